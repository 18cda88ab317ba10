"""The audit trail by every door of a real service: who, from where, what, and what it was before."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.console.support import PlainBrowser, console_service
from tests.server.test_websocket import AmqpClient
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tidegate.amqp.events import CreditGranted, DeliveriesReceived
from tidegate.amqp.message import encode_message
from tidegate.broker import Claim
from tidegate.client import EventHubAdministrator
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.server.log_format import LogFormat, start_logging
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request

KEY = "a key of the tests of the audit trail"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HubService]:
    """A service with a hub ``hub`` and, for it alone, a policy ``ann`` with Manage."""

    async def create(server: TidegateServer) -> None:
        await server.broker.create_event_hub("hub", partition_count=1, retention_hours=24)
        await server.broker.create_policy("hub", "ann", [Claim.MANAGE], key=KEY)

    with console_service(tmp_path, root_key=KEY * 2) as service:
        service.call(create)
        yield service


def _newest(service: HubService) -> dict[str, Any]:
    """The last record, without its time, by the HTTP administration."""
    assert service.ready.http is not None
    root = "RootManageSharedAccessKey"
    token = make_sas_token(audience="sb://127.0.0.1/", key_name=root, key=KEY * 2, expiry=4_000_000_000)
    connection = HTTPConnection(service.ready.http, timeout=60)
    connection.request("GET", "/api/v1/audit", headers={"Authorization": token})
    response = connection.getresponse()
    assert response.status == 200
    newest: dict[str, Any] = json.loads(response.read())[0]
    connection.close()
    assert newest.pop("time").startswith("20")
    return newest


def _record(action: str, target: str, door: str, **values: object) -> dict[str, object]:
    by_ann = {"policy": "ann", "scope": "hub", "hub": "hub", "address": "127.0.0.1", "door": door}
    return {"action": action, "target": target, **by_ann, "old": None, "new": None, **values}


def test_http(service: HubService) -> None:
    """The policy that signed the token, and the connection's address."""
    assert service.ready.http is not None
    token = make_sas_token(audience="sb://127.0.0.1/hub", key_name="ann", key=KEY, expiry=4_000_000_000)
    connection = HTTPConnection(service.ready.http, timeout=60)
    connection.request("PATCH", "/api/v1/event-hubs/hub", '{"retention_hours": 48}', {"Authorization": token})
    assert connection.getresponse().status == 200
    connection.close()
    changed = {"old": '{"retention_hours": 24}', "new": '{"retention_hours": 48}'}
    assert _newest(service) == _record("updateEventHub", "hub", "http", **changed)


def test_amqp(service: HubService) -> None:
    """The policy whose token the connection has put, also for what runs as a task of its own."""
    parsed = ConnectionString.parse(service.connection_string)
    assert parsed.port is not None
    string = ConnectionString(
        parsed.host, parsed.port, "ann", KEY, entity_path="hub", use_development_emulator=True
    ).format()

    async def change() -> None:
        async with EventHubAdministrator.from_connection_string(string) as administrator:
            await administrator.create_consumer_group("hub", "g")
            assert _newest(service) == _record("createConsumerGroup", "hub/consumergroups/g", "amqp")
            await administrator.delete_event_hub("hub")

    asyncio.run(change())
    newest = _newest(service)
    assert json.loads(newest.pop("old"))["retention_hours"] == 24
    expected = _record("deleteEventHub", "hub", "amqp")
    del expected["old"]
    assert newest == expected


def test_the_console(service: HubService) -> None:
    """Sign-ins that went well and that did not, sign-outs, and what is done in between."""
    assert service.ready.console is not None
    browser = PlainBrowser(service.ready.console)
    assert browser.post("/console/sign-in", {"policy": "ann", "key": "wrong"}).status == 403
    refused = _newest(service)
    assert json.loads(refused.pop("new"))["asked_as"] == "ann"
    assert (refused["action"], refused["policy"], refused["address"]) == ("refusedSignIn", "", "127.0.0.1")
    assert browser.post("/console/sign-in", {"policy": "ann", "key": KEY}).status == 303
    assert _newest(service) == _record("signIn", "", "console")
    browser.get("/hubs/hub/publishers")
    assert browser.post("/hubs/hub/publishers", {"publisher": "p"}).status == 303
    assert _newest(service) == _record("revokePublisher", "hub/publishers/p", "console")
    assert browser.post("/console/sign-out").status == 303
    assert _newest(service) == _record("signOut", "", "console")


def test_behind_a_trusted_proxy_the_client_counts(tmp_path: Path) -> None:
    """Its word about the client goes into the trail, over HTTP, in a WebSocket and in the console."""
    forwarded = {"X-Forwarded-For": "203.0.113.9"}
    with console_service(tmp_path, root_key=KEY * 2, trusted_proxies=["127.0.0.1"]) as service:
        service.create_hub("hub")
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        fields = {"policy": "RootManageSharedAccessKey", "key": KEY * 2}
        assert browser.post("/console/sign-in", fields, headers=forwarded).status == 303
        assert (_newest(service)["action"], _newest(service)["address"]) == ("signIn", "203.0.113.9")
        token = make_sas_token(
            audience="sb://127.0.0.1/", key_name=fields["policy"], key=KEY * 2, expiry=4_000_000_000
        )
        answer = browser.ask(
            "POST",
            "/api/v1/event-hubs/hub/consumer-groups",
            '{"name": "g"}',
            {"Authorization": token, **forwarded},
        )
        assert answer.status == 201
        assert (_newest(service)["action"], _newest(service)["address"]) == (
            "createConsumerGroup",
            "203.0.113.9",
        )
        with connect(
            f"ws://{service.ready.http}/$servicebus/websocket",
            subprotocols=[Subprotocol("AMQPWSB10")],
            additional_headers=forwarded,
            compression=None,
        ) as socket:
            client = AmqpClient(socket)
            session = client.connection.begin_session()
            for node in ("$cbs", "$management"):
                requests = session.attach_sender(f"to {node}", target=node)
                answers = session.attach_receiver(f"from {node}", source=node, target="client")
                answers.grant_credit(1)
                message = put_token_request(PutToken(SAS_TOKEN_TYPE, "sb://127.0.0.1/", token))
                if node == "$management":
                    asked = AdministrationRequest("updateNamespace", values={"throughput_units": 2})
                    message = asked.to_message()
                while requests.sendable == 0:
                    client.wait(CreditGranted)
                requests.send(encode_message(message))
                client.wait(DeliveriesReceived)
        newest = _newest(service)
    assert (newest["action"], newest["address"], newest["door"]) == ("updateNamespace", "203.0.113.9", "amqp")


def test_a_client_that_two_headers_disagree_about_is_unknown(tmp_path: Path) -> None:
    """One of them is the client's own: it neither chooses its address, nor has it the proxy's free pass, nor
    do its wrong keys count against those who share the proxy's address."""
    limits: dict[str, object] = {"trusted_proxies": ["127.0.0.1"], "connections_per_address_max": 1}
    with console_service(tmp_path, root_key=KEY * 2, **limits) as service:
        assert service.ready.console is not None
        assert service.ready.http is not None
        browser = PlainBrowser(service.ready.console)
        fields = {"policy": "RootManageSharedAccessKey", "key": KEY * 2}
        forged = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=198.51.100.1"}
        assert browser.post("/console/sign-in", fields, headers=forged).status == 303
        assert (_newest(service)["action"], _newest(service)["address"]) == (
            "signIn",
            "unknown-behind-127.0.0.1",
        )
        statuses = []
        with contextlib.ExitStack() as stack:
            for number in range(2):
                connection = HTTPConnection(service.ready.http, timeout=60)
                stack.callback(connection.close)
                forged["X-Forwarded-For"] = f"203.0.113.{number}"
                connection.request("GET", "/console/sign-in", headers=forged)
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
        assert statuses == [200, 503]


@pytest.mark.parametrize("is_root_first", [True, False])
def test_all_policies_that_allow_it_are_named(service: HubService, is_root_first: bool) -> None:
    """Whoever holds two keys does not choose which of them the trail shows."""
    root = "RootManageSharedAccessKey"
    keys = [("sb://127.0.0.1/", root, KEY * 2), ("sb://127.0.0.1/hub", "ann", KEY)]
    tokens = [
        (place, make_sas_token(audience=place, key_name=name, key=key, expiry=4_000_000_000))
        for place, name, key in keys
    ]
    asked = AdministrationRequest("revokePublisher", {"hub": "hub"}, {"name": "p"})
    with connect(
        f"ws://{service.ready.http}/$servicebus/websocket",
        subprotocols=[Subprotocol("AMQPWSB10")],
        compression=None,
    ) as socket:
        client = AmqpClient(socket)
        session = client.connection.begin_session()
        ordered = tokens if is_root_first else tokens[::-1]
        puts = [put_token_request(PutToken(SAS_TOKEN_TYPE, place, token)) for place, token in ordered]
        for node, messages in (("$cbs", puts), ("$management", [asked.to_message()])):
            requests = session.attach_sender(f"to {node}", target=node)
            answers = session.attach_receiver(f"from {node}", source=node, target="client")
            answers.grant_credit(2)
            for message in messages:
                while requests.sendable == 0:
                    client.wait(CreditGranted)
                requests.send(encode_message(message))
                client.wait(DeliveriesReceived)
    newest = _newest(service)
    assert (newest["action"], newest["policy"], newest["scope"]) == (
        "revokePublisher",
        f"{root} of the namespace, ann",
        "hub",
    )


def test_settings_at_the_start_are_the_services(tmp_path: Path) -> None:
    """Nobody's policy, and no address."""
    hubs = [{"name": "declared", "partition_count": 1}]
    with console_service(tmp_path, root_key=KEY * 2, event_hubs=hubs) as service:
        newest = _newest(service)
    assert (newest["action"], newest["target"]) == ("createEventHub", "declared")
    assert (newest["policy"], newest["address"], newest["door"]) == ("", "", "service")


@pytest.mark.slow
def test_only_who_may_manage_the_namespace_sees_it(service: HubService) -> None:
    """The page tells of all hubs; it is searched, and outlives the service."""
    assert service.ready.console is not None
    browser = PlainBrowser(service.ready.console)
    assert browser.post("/console/sign-in", {"policy": "ann", "key": KEY}).status == 303
    assert browser.get("/audit").status == 403
    assert "/audit" not in browser.get("/hubs/hub").text
    root = PlainBrowser(service.ready.console)
    fields = {"policy": "RootManageSharedAccessKey", "key": KEY * 2}
    assert root.post("/console/sign-in", fields).status == 303
    service.restart()
    assert root.post("/console/sign-in", fields).status == 303
    page = root.get("/audit").text.partition("<tbody>")[2]
    assert page.index("signIn") < page.index("createPolicy") < page.index("createEventHub")
    assert "hub/policies/ann" in re.sub("<.*?>", "", page)
    assert KEY not in page
    assert "1 record," in root.get("/audit?action=createEventHub&search=RETENTION").text
    assert "1 record," in root.get("/audit?policy=ann").text
    assert "No record matches." in root.get("/audit?search=%3Cnothing%3E").text


def test_each_record_is_a_step(service: HubService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 15,000 records, a page that looks for one held up every other client for 100 ms."""
    assert service.ready.console is not None
    browser = PlainBrowser(service.ready.console)
    fields = {"policy": "RootManageSharedAccessKey", "key": KEY * 2}
    assert browser.post("/console/sign-in", fields).status == 303
    counts: list[int] = []
    collect = SlicedWork.collect

    async def counted(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        assert isinstance(items, Iterator)
        steps = list(items)
        counts.append(len(steps))
        return await collect(self, iter(steps), address=address)

    monkeypatch.setattr(SlicedWork, "collect", counted)
    held = len(service.ask(lambda server: server.broker.audit.newest_first()))
    assert held > 3
    assert "No record matches." in browser.get("/audit?search=%3Cnothing%3E").text
    assert _newest(service)["action"] == "signIn"
    assert counts == [held, held]


@pytest.mark.parametrize("log_format", list(LogFormat))
@pytest.mark.slow
def test_the_log_has_each_change_as_json(service: HubService, log_format: LogFormat) -> None:
    """In the JSON format as a field, in the text format as the rest of the line."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level, own = root.handlers[:], root.level, logging.getLogger("tidegate").level
    start_logging(log_format, stream, clock=SystemClock())
    try:
        test_http(service)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("tidegate").setLevel(own)
    (line,) = [line for line in stream.getvalue().splitlines() if "tidegate.audit" in line]
    told = json.loads(line[line.index("{") :])
    told = told["audit"] if log_format is LogFormat.JSON else told
    assert (told["action"], told["policy"], told["old"]) == ("updateEventHub", "ann", {"retention_hours": 24})

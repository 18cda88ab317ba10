"""The HTTP face: health, and publishing as Event Hubs' REST interface has it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tidegate.amqp.message import decode_message
from tidegate.broker import Actor, Claim, acting_as, current_actor
from tidegate.gateway.health import health_report
from tidegate.gateway.http.server import HttpServer, listening_socket
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ClosedError
from tidegate.model.events import EventContents
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.admission import Admission, ConnectionLimits, Face, authenticate_peer
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import TrustedProxies, parse_address, site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.streams import StreamReceiver
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.websocket import WebSocketStream
from tidegate.wire import event_codec
from tidegate.wire.batch import iter_events
from tidegate.wire.event_codec import decode_event

AMQP = Subprotocol("AMQPWSB10")
BATCH = "application/vnd.microsoft.servicebus.json"


@dataclass(frozen=True)
class Answer:
    """What the service answered."""

    status: int
    content_type: str
    text: str
    headers: Mapping[str, str]


def _ask(
    service: HubService, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request, with header names as they stand (urllib would change their case)."""
    assert service.ready.http is not None
    connection = HTTPConnection(service.ready.http, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
        with connection.getresponse() as response:
            text = response.read().decode()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers.get("content-type", ""), text, headers)
    finally:
        connection.close()


def _request(
    service: HubService, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, content type and text of the answer."""
    answer = _ask(service, path, body=body, headers=headers)
    return answer.status, answer.content_type, answer.text


def _authorization(
    service: HubService, resource: str, *, key: str | None = None, name: str | None = None
) -> dict[str, str]:
    """A token for a hub or what is in it; for a whole audience where ``resource`` has a slash before it."""
    connection = ConnectionString.parse(service.connection_string)
    assert connection.shared_access_key_name is not None
    assert connection.shared_access_key is not None
    token = make_sas_token(
        audience=resource[1:] if resource.startswith("/") else f"http://127.0.0.1/{resource}",
        key_name=name or connection.shared_access_key_name,
        key=key or connection.shared_access_key,
        expiry=4_000_000_000,
    )
    return {"Authorization": token}


def _encoded(service: HubService, event_hub: str, partition_id: str) -> list[bytes]:
    async def read(server: TidegateServer) -> list[bytes]:
        partition = server.broker.event_hub(event_hub).partition(partition_id)
        return [
            bytes(event)
            for batch in (await partition.read(0, bytes_max=1 << 20))
            for event in iter_events(batch.payload, batch.lengths)
        ]

    return service.call(read)


def _stored(service: HubService, event_hub: str, partition_id: str) -> list[EventContents]:
    return [decode_event(event) for event in _encoded(service, event_hub, partition_id)]


def test_health_takes_a_tenth_of_the_time_at_most(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may ask: where a report of many partitions takes long, strangers must not stop the service."""
    reports = []

    def report(*args: Any) -> dict[str, object]:
        time.sleep(0.1)
        reports.append(health_report(*args))
        return reports[-1]

    monkeypatch.setattr("tidegate.gateway.http.app.health_report", report)
    begun = time.monotonic()
    for _ in range(10):
        assert json.loads(_request(hub_service, "/health")[2]) == reports[-1]
    assert len(reports) <= 1 + (time.monotonic() - begun) / 1.0


def test_health(hub_service: HubService) -> None:
    """What the emulator's health check expects, over HTTP and HTTPS."""
    status, _, text = _request(hub_service, "/health")
    assert (status, json.loads(text)["status"]) == (200, "healthy")
    context = ssl.create_default_context(cafile=hub_service.ready.ca_file)
    assert hub_service.ready.https is not None
    port = hub_service.ready.https.rpartition(":")[2]
    with urllib.request.urlopen(f"https://localhost:{port}/health", context=context, timeout=30) as response:
        assert response.status == 200


def test_publish_one_event(hub_service: HubService, event_hub: str) -> None:
    """Body, own headers and the partition key of a single event are stored."""
    headers = {
        **_authorization(hub_service, event_hub),
        "Content-Type": "application/atom+xml;type=entry;charset=utf-8",
        "BrokerProperties": '{"PartitionKey": "a"}',
        "Alert": '"Strong Wind"',
        "x-Other": "1",
    }
    path = f"/{event_hub}/messages?timeout=60&api-version=2014-01"
    status, content_type, text = _request(hub_service, path, body=b"one", headers=headers)
    assert (status, content_type, text) == (201, "application/xml; charset=utf-8", "")
    (event,) = _stored(hub_service, event_hub, "0")  # "a" belongs to partition 0 of 2
    assert (event.body, event.partition_key) == (b"one", "a")
    assert event.properties == {"Alert": "Strong Wind", "x-Other": "1"}  # in the letter case of the sender


def test_publish_a_batch_to_a_partition(hub_service: HubService, event_hub: str) -> None:
    """A JSON batch becomes one batch of events with their properties, in order."""
    batch = [{"Body": "m1", "UserProperties": {"n": 1}}, {"Body": "m2"}]
    headers = {**_authorization(hub_service, event_hub), "Content-Type": BATCH}
    path = f"/{event_hub}/partitions/1/messages"
    assert _request(hub_service, path, body=json.dumps(batch).encode(), headers=headers)[0] == 201
    events = _stored(hub_service, event_hub, "1")
    assert [(event.body, dict(event.properties)) for event in events] == [(b"m1", {"n": 1}), (b"m2", {})]


def test_keys_of_requests_leave_nothing_in_memory(hub_service: HubService, event_hub: str) -> None:
    """What is cached for producers of many keys is not for a service, whose clients choose them."""
    headers = _authorization(hub_service, event_hub)
    before = event_codec._kept_key_section.cache_info()
    for number in range(20):
        key = {"BrokerProperties": json.dumps({"PartitionKey": f"key {number}"})}
        assert _request(hub_service, f"/{event_hub}/messages", body=b"a", headers=headers | key)[0] == 201
    assert event_codec._kept_key_section.cache_info() == before


@pytest.mark.parametrize(
    ("body", "content_type", "status", "detail"),
    [
        (b"x" * 1_100_000, "text/plain", 413, "1048576"),
        (b"{", BATCH, 400, "not JSON"),
        (b"[" * 1_000_000, BATCH, 400, "not JSON"),
        (b'[{"Body": "a", "UserProperties": {"x": ' + b"9" * 1_000_000 + b"}}]", BATCH, 400, "not JSON"),
        (b"[]", BATCH, 400, "at least one"),
        (b'[{"Body": 1}]', BATCH, 400, "event 0"),
        (b'[{"Body": "\\ud800"}]', BATCH, 400, "event 0"),
        (b'[{"Body": "a", "BrokerProperties": {"PartitionKey": "\\ud800"}}]', BATCH, 400, "PartitionKey"),
        (b'[{"Body": "a", "UserProperties": {"x": [1]}}]', BATCH, 400, "event 0"),
        (b'[{"Body": "a", "UserProperties": {"x": "\\ud800"}}]', BATCH, 400, "event 0"),
        (b'[{"Body": "a", "UserProperties": {"x": 100000000000000000000}}]', BATCH, 400, "'x'"),
        (json.dumps([{"Body": "x" * 600_000}] * 2).encode(), BATCH, 413, "1048576"),
        (json.dumps([{"Body": "x" * 1_100_000}] * 2).encode(), BATCH, 413, "2097152"),
        (
            b'[{"Body": "a", "BrokerProperties": {"PartitionKey": "a"}}, {"Body": "b"}]',
            BATCH,
            400,
            "different partition keys",
        ),
    ],
)
@pytest.mark.slow
def test_bad_bodies_are_refused(
    hub_service: HubService, event_hub: str, body: bytes, content_type: str, status: int, detail: str
) -> None:
    """Each mistake has its status and a sentence, in the documented shape; nothing is stored."""
    headers = {**_authorization(hub_service, event_hub), "Content-Type": content_type}
    answer = _request(hub_service, f"/{event_hub}/messages", body=body, headers=headers)
    assert answer[0] == status
    assert answer[1] == "application/xml; charset=utf-8"
    assert answer[2].startswith(f"<Error><Code>{status}</Code><Detail>")
    assert detail in answer[2]
    assert not _stored(hub_service, event_hub, "0") + _stored(hub_service, event_hub, "1")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_EVENTS = st.lists(
    st.fixed_dictionaries(
        {"Body": st.text(max_size=5) | _VALUES},
        optional={
            "UserProperties": st.dictionaries(st.text(max_size=3), _VALUES, max_size=3) | _VALUES,
            "BrokerProperties": st.just({"PartitionKey": "a"}) | _VALUES,
        },
    ),
    max_size=3,
)


@pytest.mark.slow
def test_no_batch_makes_the_service_fail(hub_service: HubService) -> None:
    """Whatever JSON comes as a batch: it is stored whole, or refused as the sender's mistake."""
    hub = hub_service.create_hub(partition_count=1)
    headers = {**_authorization(hub_service, hub), "Content-Type": BATCH}

    @settings(max_examples=150)
    @given(_EVENTS | _VALUES)
    def publish(batch: object) -> None:
        before = len(_stored(hub_service, hub, "0"))
        answer = _ask(hub_service, f"/{hub}/messages", body=json.dumps(batch).encode(), headers=headers)
        assert answer.status in (201, 400), answer
        added = len(_stored(hub_service, hub, "0")) - before
        assert added == (len(batch) if answer.status == 201 and isinstance(batch, list) else 0)

    publish()


def test_who_may_not_publish(hub_service: HubService, event_hub: str) -> None:
    """No token, a wrong key, and another hub's token are 401; an unknown hub is 404."""
    path = f"/{event_hub}/messages"
    assert _request(hub_service, path, body=b"x")[0] == 401
    wrong = _authorization(hub_service, event_hub, key="wrong")
    assert _request(hub_service, path, body=b"x", headers=wrong)[0] == 401
    other = _authorization(hub_service, "another")
    assert _request(hub_service, path, body=b"x", headers=other)[0] == 401
    assert _request(hub_service, "/another/messages", body=b"x", headers=other)[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/hub/nothing", 404), ("POST", "/hub/elsewhere/p/messages", 404), ("GET", "/hub/messages", 405)],
)
def test_other_addresses_have_the_same_error_shape(
    hub_service: HubService, method: str, path: str, status: int
) -> None:
    """Whatever is asked for, an error looks the same and names what was asked."""
    answer = _request(hub_service, path, body=b"x" if method == "POST" else None)
    assert answer[:2] == (status, "application/xml; charset=utf-8")
    assert f"{method} {path}" in answer[2]


def test_a_batch_with_a_key_stays_together(hub_service: HubService, event_hub: str) -> None:
    """The events of a batch whose key is the same go to the key's partition, in order, with their key."""
    batch = [{"Body": str(n), "BrokerProperties": {"PartitionKey": "a"}} for n in range(5)]
    headers = {**_authorization(hub_service, event_hub), "Content-Type": f"{BATCH}; charset=utf-8"}
    path = f"/{event_hub}/messages"
    assert _request(hub_service, path, body=json.dumps(batch).encode(), headers=headers)[0] == 201
    events = _stored(hub_service, event_hub, "0")
    assert [(event.body, event.partition_key) for event in events] == [(b"%d" % n, "a") for n in range(5)]


def test_events_without_a_key_take_turns(hub_service: HubService, event_hub: str) -> None:
    """Requests that choose no partition fill all of them."""
    headers = _authorization(hub_service, event_hub)
    for number in range(4):
        assert _request(hub_service, f"/{event_hub}/messages", body=b"%d" % number, headers=headers)[0] == 201
    assert [len(_stored(hub_service, event_hub, partition)) for partition in ("0", "1")] == [2, 2]


@pytest.mark.parametrize("segment", ["publishers", "publisher"])
def test_publish_as_a_publisher(hub_service: HubService, event_hub: str, segment: str) -> None:
    """A token for one publisher sends as that one: its name is partition key and annotation."""
    path = f"/{event_hub}/{segment}/dev-01/messages"
    headers = _authorization(hub_service, f"{event_hub}/publishers/dev-01")
    assert _request(hub_service, path, body=b"one", headers=headers)[0] == 201
    batch = json.dumps([{"Body": "two", "BrokerProperties": {"PartitionKey": "dev-01"}}]).encode()
    batch_headers = {**headers, "Content-Type": BATCH}
    assert _request(hub_service, path, body=batch, headers=batch_headers)[0] == 201
    (events,) = (
        events for partition in ("0", "1") if (events := _encoded(hub_service, event_hub, partition))
    )
    annotations = [decode_message(event).message_annotations for event in events]
    assert annotations == [{"x-opt-partition-key": "dev-01", "x-opt-publisher": "dev-01"}] * 2
    assert [decode_event(event).body for event in events] == [b"one", b"two"]

    async def seen(server: TidegateServer) -> list[tuple[str, int]]:
        found = server.broker.event_hub(event_hub).publishers.newest_first()
        return [(each.name, each.events) for each in found]

    assert hub_service.call(seen) == [("dev-01", 2)]


def test_a_publishers_name_does_not_count_against_the_limit(hub_service: HubService, event_hub: str) -> None:
    """The largest event is the same for publishers as for others, and the same as over AMQP."""
    headers = _authorization(hub_service, event_hub)
    largest = 1_048_576 - 8  # the data section that holds the body has a header of 8 bytes
    for path in (f"/{event_hub}/messages", f"/{event_hub}/publishers/dev-01/messages"):
        for size, status in ((largest, 201), (largest + 1, 413)):
            assert _request(hub_service, path, body=b"x" * size, headers=headers)[0] == status


def test_what_a_publisher_may_not(hub_service: HubService, event_hub: str) -> None:
    """Another publisher, the hub itself and another key are refused; so is a revoked one, until restored."""
    headers = _authorization(hub_service, f"{event_hub}/publishers/dev-01")
    own = f"/{event_hub}/publishers/dev-01/messages"
    for path in (f"/{event_hub}/publishers/dev-02/messages", f"/{event_hub}/messages"):
        assert _request(hub_service, path, body=b"x", headers=headers)[0] == 401, path
    keyed = {**headers, "BrokerProperties": '{"PartitionKey": "other"}'}
    answer = _request(hub_service, own, body=b"x", headers=keyed)
    assert (answer[0], "dev-01" in answer[2]) == (400, True)

    async def revoke(server: TidegateServer) -> None:
        await server.broker.event_hub(event_hub).revoke_publisher("dev-01")

    async def restore(server: TidegateServer) -> None:
        await server.broker.event_hub(event_hub).restore_publisher("dev-01")

    hub_service.call(revoke)
    answer = _request(hub_service, own, body=b"x", headers=headers)
    assert (answer[0], "revoked" in answer[2]) == (401, True)
    other = _authorization(hub_service, event_hub)
    assert (
        _request(hub_service, f"/{event_hub}/publishers/dev-02/messages", body=b"x", headers=other)[0] == 201
    )
    hub_service.call(restore)
    assert _request(hub_service, own, body=b"x", headers=headers)[0] == 201


def test_the_partition_of_the_address_wins_over_the_key(hub_service: HubService, event_hub: str) -> None:
    """A key sent to a partition's own address is stored there, as over AMQP."""
    headers = {**_authorization(hub_service, event_hub), "BrokerProperties": '{"PartitionKey": "a"}'}
    path = f"/{event_hub}/partitions/1/messages"  # "a" belongs to partition 0 of 2
    assert _request(hub_service, path, body=b"x", headers=headers)[0] == 201
    assert [event.partition_key for event in _stored(hub_service, event_hub, "1")] == ["a"]
    assert not _stored(hub_service, event_hub, "0")


def test_an_unknown_partition_is_404(hub_service: HubService, event_hub: str) -> None:
    """The answer says which partitions there are."""
    headers = _authorization(hub_service, event_hub)
    status, _, text = _request(hub_service, f"/{event_hub}/partitions/2/messages", body=b"x", headers=headers)
    assert (status, "between 0 and 1" in text) == (404, True)


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        (None, "no Authorization header"),
        ("Bearer eyJhbGciOiJub25lIn0.e30.", "type &#x27;bearer&#x27;".replace("&#x27;", "'")),
        ("eyJhbGciOiJub25lIn0.e30.", "without a type"),
        ("eyJzaWcKqYeTY0QKDeXGBF4mNlRGuHRZ9tNvGGsFWE4=", "without a type"),
        ("eyJzaWcKqYeTY0QKDeXGBF4mNlRGuHRZ9tNvGGsFWE4= x", "without a type"),
        ("sr=x&sig=eyJ&se=1&skn=x", "without a type"),
        ("SharedAccessSignature sr=x", "MalformedToken"),
    ],
)
def test_tokens_that_are_none(
    hub_service: HubService, event_hub: str, header: str | None, detail: str
) -> None:
    """A missing token and one of Entra ID are refused with what to send instead, and never repeated."""
    headers = {} if header is None else {"Authorization": header}
    answer = _ask(hub_service, f"/{event_hub}/messages", body=b"x", headers=headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "SharedAccessSignature"
    assert detail in answer.text
    assert "eyj" not in answer.text.lower()


@pytest.mark.parametrize("resource", ["/127.0.0.1", "/127.0.0.1/{hub}", "/https://127.0.0.1/{hub}/messages"])
def test_resources_as_the_documents_write_them(
    hub_service: HubService, event_hub: str, resource: str
) -> None:
    """A token's resource may be a host without a scheme, or name the messages, as in Azure's examples."""
    headers = _authorization(hub_service, resource.format(hub=event_hub))
    assert _request(hub_service, f"/{event_hub}/messages", body=b"x", headers=headers)[0] == 201
    other = _authorization(hub_service, "/127.0.0.1/another")
    assert _request(hub_service, f"/{event_hub}/messages", body=b"x", headers=other)[0] == 401


@pytest.mark.parametrize(
    "path", ["/api/v1/policies", "/api/v1/event-hubs/{other}/policies", "/{other}/messages"]
)
def test_a_token_for_a_hub_stays_one_whatever_the_host_header_says(
    hub_service: HubService, event_hub: str, path: str
) -> None:
    """A hub's own policy gives nothing beyond the hub to who calls the service by the hub's name."""
    other = hub_service.create_hub(partition_count=1)

    async def create_policy(server: TidegateServer) -> str:
        return (await server.broker.create_policy(event_hub, "hub-manager", [Claim.MANAGE])).key

    key = hub_service.call(create_policy)
    token = _authorization(hub_service, f"/{event_hub}", key=key, name="hub-manager")
    body = b"one" if path.endswith("messages") else None
    for host in (event_hub, event_hub.upper(), f"{event_hub}:80"):
        answer = _ask(hub_service, path.format(other=other), body=body, headers={**token, "Host": host})
        assert answer.status == 401
        assert "key" not in answer.text
    assert _stored(hub_service, other, "0") == []
    answer = _ask(hub_service, f"/{event_hub}/messages", body=b"one", headers={**token, "Host": event_hub})
    assert answer.status == 201


def test_a_policy_without_send_may_not_publish(hub_service: HubService, event_hub: str) -> None:
    """The claims of a hub's policy count: Send is enough, Listen is not."""

    async def create(server: TidegateServer) -> tuple[str, str]:
        send = await server.broker.create_policy(event_hub, "sender", [Claim.SEND])
        return send.key, (await server.broker.create_policy(event_hub, "reader", [Claim.LISTEN])).key

    send, listen = hub_service.call(create)
    path = f"/{event_hub}/messages"
    headers = _authorization(hub_service, event_hub, key=listen, name="reader")
    status, _, text = _request(hub_service, path, body=b"x", headers=headers)
    assert (status, "'Send' claim" in text) == (401, True)
    headers = _authorization(hub_service, event_hub, key=send, name="sender")
    assert _request(hub_service, path, body=b"x", headers=headers)[0] == 201


def test_throttled_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    """Over the throughput units: 429 with Retry-After in whole seconds, and nothing is stored."""
    with HubService(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub("hub", partition_count=1)

        async def throttle(server: TidegateServer) -> None:
            await server.broker.set_throughput_units(1)

        service.call(throttle)
        headers = _authorization(service, hub)
        body = b"x" * 1_000_000
        for _ in range(50):  # a machine that takes a second for each of these would need no limit
            answer = _ask(service, f"/{hub}/messages", body=body, headers=headers)
            if answer.status != 201:
                break
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "throttled" in answer.text
        assert len(_stored(service, hub, "0")) >= 1


@pytest.mark.parametrize("timeout", ["0", "-1", "x", "1.5", "9" * 20])
def test_timeouts_that_are_none(hub_service: HubService, event_hub: str, timeout: str) -> None:
    """A time-out that cannot be meant is told, not guessed."""
    headers = _authorization(hub_service, event_hub)
    path = f"/{event_hub}/messages?timeout={timeout}"
    assert _request(hub_service, path, body=b"x", headers=headers)[0] == 400


@pytest.mark.slow
def test_a_body_that_does_not_come_times_out(hub_service: HubService, event_hub: str) -> None:
    """Who announces a body and sends none is answered when the time of the request is over."""
    head = (
        f"POST /{event_hub}/messages?timeout=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
        f"Authorization: {_authorization(hub_service, event_hub)['Authorization']}\r\n\r\nab"
    )
    with _connect(hub_service) as connection:
        connection.sendall(head.encode())
        answer = _read_answer(connection)
    assert b" 408 " in answer
    assert b"whether its events are stored is unknown" in answer


def test_a_body_of_unknown_length_is_limited_while_it_comes(hub_service: HubService, event_hub: str) -> None:
    """A body in chunks is taken when it fits, and refused as soon as it does not: then nothing is stored."""
    assert hub_service.ready.http is not None
    headers = _authorization(hub_service, event_hub)
    path = f"/{event_hub}/partitions/0/messages"
    for chunks, status in ((10, 201), (30, 413)):
        connection = HTTPConnection(hub_service.ready.http, timeout=60)
        try:
            body = (b"x" * 100_000 for _ in range(chunks))
            connection.request("POST", path, body, headers, encode_chunked=True)
            with connection.getresponse() as response:
                assert response.status == status
                assert (b"1048576" in response.read()) == (status == 413)
        finally:
            connection.close()
    assert [len(event.body) for event in _stored(hub_service, event_hub, "0")] == [1_000_000]


@pytest.mark.parametrize("change", ["regenerate", "revoke"])
def test_what_was_taken_away_while_the_body_came_counts(
    hub_service: HubService, event_hub: str, change: str
) -> None:
    """A key that is replaced, or a publisher revoked, during a request stops it: nothing is stored."""

    async def create_policy(server: TidegateServer) -> str:
        return (await server.broker.create_policy(event_hub, "sender", [Claim.SEND])).key

    async def take_away(server: TidegateServer) -> None:
        if change == "regenerate":
            await server.broker.regenerate_key(event_hub, "sender")
        else:
            await server.broker.event_hub(event_hub).revoke_publisher("p")

    key = hub_service.call(create_policy)
    token = _authorization(hub_service, event_hub, key=key, name="sender")["Authorization"]
    head = (
        f"POST /{event_hub}/publishers/p/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
        f"Expect: 100-continue\r\nAuthorization: {token}\r\n\r\n"
    )
    with _connect(hub_service) as connection:
        connection.sendall(head.encode())
        # The service asks for the body once it has judged the token.
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        hub_service.call(take_away)
        connection.sendall(b"event")
        assert _read_answer(connection).startswith(b"HTTP/1.1 401 ")
    assert _stored(hub_service, event_hub, "0") + _stored(hub_service, event_hub, "1") == []


def test_what_was_taken_away_while_a_batch_is_parsed_counts(
    hub_service: HubService, event_hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is taken apart in slices, after others' batches: a key that is replaced meanwhile stores
    nothing."""

    async def create_policy(server: TidegateServer) -> str:
        collect = SlicedWork.collect

        async def collect_and_take_away(
            work: SlicedWork, items: Iterator[bytes | None], *, address: object
        ) -> list[bytes]:
            found = await collect(work, items, address=address)
            await server.broker.regenerate_key(event_hub, "sender")
            return found

        monkeypatch.setattr(SlicedWork, "collect", collect_and_take_away)
        return (await server.broker.create_policy(event_hub, "sender", [Claim.SEND])).key

    key = hub_service.call(create_policy)
    headers = _authorization(hub_service, event_hub, key=key, name="sender")
    headers["Content-Type"] = BATCH
    body = b'[{"Body": "event"}]'
    assert _ask(hub_service, f"/{event_hub}/messages", body=body, headers=headers).status == 401
    assert _stored(hub_service, event_hub, "0") + _stored(hub_service, event_hub, "1") == []


# --- the server's own limits ------------------------------------------------------------------------------


def _connect(service: HubService) -> socket.socket:
    assert service.ready.http is not None
    host, _, port = service.ready.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def _read_answer(connection: socket.socket) -> bytes:
    """The answer up to the end of its error text, or what came before the service closed."""
    received = b""
    while b"</Error>" not in received and (chunk := connection.recv(65536)):
        received += chunk
    return received


def _admission(connections_max: int) -> Admission:
    return Admission(ConnectionLimits(connections_without_token_max=connections_max))


async def _serve(application: ASGIApp, **limits: Any) -> tuple[HttpServer, tuple[str, int], TaskOwner]:
    listener = listening_socket("127.0.0.1", 0)

    def refuse(stream: WebSocketStream) -> StreamReceiver:
        raise ClosedError("There is no AMQP here.")

    server = HttpServer(application, ssl_context=None, accept_websocket=refuse, **limits)
    tasks = TaskOwner("test")
    server.work = tasks.start(server.serve(sockets=[listener]), name="serve")
    await server.is_serving.wait()
    address = listener.getsockname()
    return server, (str(address[0]), int(address[1])), tasks


@asynccontextmanager
async def _serving(**limits: Any) -> AsyncIterator[tuple[str, int]]:
    """A server with small limits that answers every request before its body has come."""

    async def answer(request: Request) -> Response:
        return Response("early")

    application = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    server, address, tasks = await _serve(application, **limits)
    try:
        yield address
    finally:
        await server.stop()
        await tasks.close()


async def test_a_head_that_does_not_end_times_out() -> None:
    """Who sends a request drop by drop is answered with 408 and holds nothing any more."""
    async with _serving(head_timeout_s=0.2) as (host, port), asyncio.timeout(60):
        for beginning in (b"", b"GET / HTTP/1.1\r\nHost: a\r\n"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(beginning)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b"<Error><Code>408</Code>" in answer
            writer.close()


async def test_a_request_that_was_sent_ahead_has_no_other_ones_actor() -> None:
    """Behind a proxy, another user may have sent the one before: nothing is recorded as their change."""
    found: list[Actor] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(current_actor())
        with acting_as(Actor(policy=f"of {len(found)}")):
            await Response("done")(scope, receive, send)

    server, (host, port), tasks = await _serve(application)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2 + b"GET / HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()
        await server.stop()
        await tasks.close()
    assert found == [Actor()] * 3


async def _read_body(request: Request) -> Response:
    if "token" in request.query_params:
        authenticate_peer(request.scope)
    return Response(f"read {len(await request.body())}")


async def _serve_bodies(**limits: Any) -> tuple[HttpServer, tuple[str, int], TaskOwner]:
    return await _serve(
        Starlette(routes=[Route("/", _read_body, methods=["GET", "POST"])]), head_timeout_s=0.2, **limits
    )


@pytest.mark.parametrize(
    "ahead", [b"", *(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in (b"/", b"/?token"))]
)
@pytest.mark.slow
async def test_a_strangers_body_that_does_not_come_times_out(ahead: bytes) -> None:
    """A page without a session, such as the one for signing in, reads a body: it must not be waited for
    forever, also when the request was sent right behind another one, even one with a token, whose policy may
    be deleted by now. With a token it may take its time.
    """
    server, (host, port), tasks = await _serve_bodies()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(ahead + b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome")
        assert b"HTTP/1.1 408 " in await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(ahead + b"POST /?token HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome")
        stranger_reader, stranger = await asyncio.open_connection(host, port)
        assert (await stranger_reader.read()).startswith(b"HTTP/1.1 408 ")  # so the time is over
        stranger.close()
        writer.write(b" more")
        assert (await reader.readuntil(b"read 9")).count(b"HTTP/1.1 200 ") == 1 + bool(ahead)
        writer.close()
    await server.stop()
    await tasks.close()


async def test_a_strangers_body_does_not_hold_the_stop() -> None:
    """It is given up at once; a request that is waited for to its end would be cancelled after seconds."""
    is_reading, ends = asyncio.Event(), list[str]()

    async def answer(request: Request) -> Response:
        is_reading.set()
        try:
            await request.body()
        except ClientDisconnect:
            ends.append("given up")
        return Response("late")

    application = Starlette(routes=[Route("/", answer, methods=["POST"])])
    server, (host, port), tasks = await _serve(application)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome")
        await is_reading.wait()
        await server.stop()
        assert await reader.read() == b""
        writer.close()
    await tasks.close()
    assert ends == ["given up"]


async def test_a_stranger_who_does_not_read_his_answer_makes_room() -> None:
    """A page that anyone may read, asked for and not read, keeps no place for a minute; read, it is whole."""
    size = 64 << 20  # more than the kernel takes

    async def answer(request: Request) -> Response:
        return Response(bytes(size if request.query_params else 1))

    application = Starlette(routes=[Route("/", answer)])
    server, (host, port), tasks = await _serve(application, admission=_admission(1))
    async with asyncio.timeout(60):
        for _ in range(2):
            held_reader, held = await asyncio.open_connection(host, port, limit=1024)
            held.write(b"GET /?large HTTP/1.1\r\nHost: a\r\n\r\n")
            await held_reader.readexactly(100)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert len(await held_reader.read(-1)) < size  # cut off
            for each in (held, writer):
                each.close()
                await each.wait_closed()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /?large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert len(await reader.read(-1)) > size
        writer.close()
    await server.stop()
    await tasks.close()


async def test_a_stranger_whose_body_does_not_come_makes_room() -> None:
    """Those who announce a body and send nothing displace nobody: a newcomer takes their place at once."""
    server, (host, port), tasks = await _serve_bodies(admission=_admission(2))
    server.head_timeout_s = 60.0
    async with asyncio.timeout(60):
        held = [await asyncio.open_connection(host, port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        for reader, _ in held:
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # it is being waited for
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"read 0")
        assert await held[0][0].read() == b""
        for _, each in (*held, (reader, writer)):
            each.close()
    await server.stop()
    await tasks.close()


async def test_a_body_nobody_waits_for_times_out() -> None:
    """A request that was answered early may send the rest of its body only so long."""
    async with _serving(head_timeout_s=0.2) as (host, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        answer = await reader.read()
        assert answer.endswith(b"early")
        writer.close()


async def test_a_body_that_breaks_after_its_answer_ends_the_connection() -> None:
    """What is no HTTP any more is not answered a second time: the next client of a proxy might get that."""
    async with _serving() as (host, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"early")
        writer.write(b"no chunk\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_what_is_no_http_is_answered_once(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no request get 400 in the shape of every error, and the connection ends.

    What is logged of it is a line of the gateway, whose number is limited.
    """
    async with _serving() as (host, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"AMQP\x03\x01\x00\x00" + b"\r\n" * 3)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"<Error><Code>400</Code>" in answer
        writer.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["tidegate.gateway.http.server"]


async def test_a_request_with_two_lengths_is_refused() -> None:
    """What a proxy may take for one request and the service for two is none; the connection ends with it."""
    async with _serving() as (host, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


async def test_connections_over_the_limit_may_ask_for_health_only() -> None:
    """When requests under way take all places, another one is answered with 503 and /health with 200; each
    such connection ends with its answer, or soon without a request.
    """
    goes_on, has_begun = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(request: Request) -> Response:
        has_begun.release()
        await goes_on.wait()
        return Response("late", headers={"Connection": "close"})

    async def health(request: Request) -> Response:
        return Response("well")

    application = Starlette(routes=[Route("/", answer), Route("/health", health)])
    server, (host, port), tasks = await _serve(application, admission=_admission(2), head_timeout_s=0.5)

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        if path:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async with asyncio.timeout(60):
        held = [tasks.start(ask("/"), name="ask") for _ in range(2)]
        for _ in held:
            await has_begun.acquire()
        refused = await ask("/")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in refused
        well = await ask("/health")
        assert well.startswith(b"HTTP/1.1 200 ")
        assert well.endswith(b"well")
        assert (await ask("")).startswith(b"HTTP/1.1 408 ")
        with pytest.raises(InvalidStatus, match="503"):
            await connect(f"ws://{host}:{port}/$servicebus/websocket", subprotocols=[AMQP])
        goes_on.set()
        for answered in await asyncio.gather(*held):
            assert answered.endswith(b"late")
    await server.stop()
    await tasks.close()
    assert not any(server.admission.statistics().open.values())


async def test_clients_of_a_trusted_proxy_have_their_own_shares() -> None:
    """Behind a proxy the address in X-Forwarded-For has the limits, and is the one that handlers see; nobody
    else's word about it counts.
    """
    goes_on, has_begun = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(request: Request) -> Response:
        assert request.client is not None
        if "wait" in request.query_params:
            has_begun.release()
            await goes_on.wait()
        return Response(request.client.host)

    application = Starlette(routes=[Route("/", answer)])
    limits = ConnectionLimits(connections_without_token_per_address_max=1)
    proxies = Admission(limits, trusted=TrustedProxies.parse(["127.0.0.1"]))
    server, (host, port), tasks = await _serve(application, admission=proxies)
    other, (other_host, other_port), other_tasks = await _serve(application, admission=Admission(limits))

    async def ask(path: str, address: str, *, port: int = port) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        forwarded = f"X-Forwarded-For: 127.0.0.1, {address}\r\nConnection: close"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n{forwarded}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async with asyncio.timeout(60):
        held = tasks.start(ask("/?wait", "192.0.2.1"), name="ask")
        await has_begun.acquire()
        assert (await ask("/", "192.0.2.1")).startswith(b"HTTP/1.1 503 ")
        assert (await ask("/", "192.0.2.2")).endswith(b"192.0.2.2")
        goes_on.set()
        assert (await held).endswith(b"192.0.2.1")
        assert (await ask("/", "192.0.2.1")).endswith(b"192.0.2.1")
        assert (await ask("/", "192.0.2.1", port=other_port)).endswith(other_host.encode())
    for each, owner in ((server, tasks), (other, other_tasks)):
        await each.stop()
        await owner.close()


@pytest.mark.slow
async def test_a_connection_whose_answer_nobody_reads_ends() -> None:
    """Who asks and never reads does not keep a place among the connections; others are served then."""
    size = 16_777_216  # beyond all that sockets hold on the way

    async def answer(request: Request) -> Response:
        return Response(bytes(size))

    async def ask(host: str, port: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    application = Starlette(routes=[Route("/", answer)])
    server, (host, port), tasks = await _serve(application, admission=_admission(1), write_timeout_s=0.5)
    async with asyncio.timeout(60):
        _, writer = await asyncio.open_connection(host, port, limit=1)
        writer.write(request)
        await writer.drain()
        assert (await ask(host, port)).startswith(b"HTTP/1.1 503 ")
        while not (received := await ask(host, port)).startswith(b"HTTP/1.1 200 "):
            assert received.startswith(b"HTTP/1.1 503 ")
        assert received.endswith(bytes(size))
        writer.transport.abort()
    await server.stop()
    await tasks.close()


@pytest.mark.parametrize(
    ("sent", "size"),
    [
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 60000\r\n\r\n"
            + bytes(60_000),
            60_000,
        ),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n" * 2
            + b"GET / HTTP/1.1\r\n" * 3000,
            20_000,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 9\r\n"
            + b"".join(b"X-%d: %0150d\r\n" % (number, number) for number in range(60))
            + b"\r\n",
            27_000,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 9\r\n"
            + b"".join(b"x%d:\r\n" % number for number in range(97))
            + b"\r\n",
            30_000,
        ),
    ],
    ids=["body", "sent ahead", "head", "many headers"],
)
async def test_what_waits_for_the_application_counts_as_memory(sent: bytes, size: int) -> None:
    """Protects memory: requests whose answers take long may have bodies that nobody reads. It counts for the
    client's address, which its proxy names, whichever client's bytes waited before on the connection."""

    async def answer(request: Request) -> Response:
        if request.client != ("192.0.2.2", 0):
            await is_answering.wait()
        return Response()

    is_answering = asyncio.Event()
    budget = MemoryBudget(1 << 30)
    application = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    admission = Admission(trusted=TrustedProxies.parse(["127.0.0.1"]))
    server, (host, port), tasks = await _serve(application, budget=budget, admission=admission)
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.2\r\nContent-Length: 60000\r\n\r\n"
            + bytes(60_000)
        )
        await reader.readuntil(b"\r\n\r\n")
        assert {account.address for account in budget._accounts} == {site_at("192.0.2.2")}
        writer.write(sent)
        while budget.statistics().used_bytes < size:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        assert {account.address for account in budget._accounts} == {site_at("192.0.2.1")}
        is_answering.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        while budget.statistics().used_bytes:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        writer.close()
    await server.stop()
    await tasks.close()


@pytest.mark.parametrize("body_bytes", [0, 9])
async def test_an_answered_request_is_not_kept(body_bytes: int) -> None:
    """Protects memory: its head no longer counts, but the connection may wait long for more bytes."""

    class Kept:
        pass

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["kept"] = kept = Kept()
        requests.append(ref(kept))
        await Response("done", 401)(scope, receive, send)

    requests: list[ref[Kept]] = []
    server, (host, port), tasks = await _serve(application)
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {body_bytes}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"done")
        for _ in range(10):  # the application's task ends after its answer
            await asyncio.sleep(0)
        assert [request() for request in requests] == [None]
        writer.write(bytes(body_bytes) + head.encode())
        await reader.readuntil(b"done")
        writer.close()
    await server.stop()
    await tasks.close()


@pytest.mark.parametrize("is_amqp_full", [False, True])
@pytest.mark.slow
async def test_a_refused_upgrade_behind_an_unread_answer_ends(
    monkeypatch: pytest.MonkeyPatch, is_amqp_full: bool
) -> None:
    """A refused WebSocket waits no longer for its peer to read earlier answers than those would."""
    # As if so little of the answer were unsent that the next request begins.
    monkeypatch.setattr("tidegate.gateway.http.server._HttpProtocol.pause_writing", lambda connection: None)
    monkeypatch.setattr("tidegate.transport.websocket.CLOSE_TIMEOUT_S", 0.5)

    async def answer(request: Request) -> Response:
        large = bytes(16_777_216)  # beyond all that sockets hold on the way
        return Response(large, background=BackgroundTask(is_answered.release))

    is_answered = asyncio.Semaphore(0)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    upgrade = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    admission = _admission(1)
    if is_amqp_full:
        later = asyncio.get_running_loop().time() + 1000.0  # too young to make room
        admission.admit(parse_address("127.0.0.1"), Face.AMQP, now=later)
    application = Starlette(routes=[Route("/", answer)])
    server, (host, port), tasks = await _serve(application, admission=admission, write_timeout_s=2.0)
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection(host, port, limit=1)
        writer.write(request)
        await is_answered.acquire()
        writer.write(upgrade)
        while sum(admission.statistics().open.values()) > is_amqp_full:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        writer.transport.abort()
    await server.stop()
    await tasks.close()


async def test_a_refused_websocket_is_closed() -> None:
    """Where AMQP takes no more connections (the service stops), a WebSocket is closed as going away."""
    async with _serving() as (host, port), asyncio.timeout(60):
        async with connect(f"ws://{host}:{port}/$servicebus/websocket", subprotocols=[AMQP]) as websocket:
            with pytest.raises(ConnectionClosed) as closed:
                await websocket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


# --- the end of the service -------------------------------------------------------------------------------


def _head_of_a_request(service: HubService, hub: str, length: int) -> bytes:
    token = _authorization(service, hub)["Authorization"]
    return (
        f"POST /{hub}/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n"
        f"Authorization: {token}\r\n\r\n"
    ).encode()


def _wait_refused(address: str) -> None:
    """Return once the port takes no connections any more."""
    host, _, port = address.rpartition(":")
    for _ in range(1000):
        try:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.recv(1)  # taken, and closed at once or when the service has stopped
        except OSError:
            return
    raise AssertionError("the port is still served")


def test_requests_under_way_are_finished_when_the_service_stops(tmp_path: Path) -> None:
    """A stop waits for the rest of a request that has begun: it is stored and answered."""
    with HubService(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub("hub", partition_count=1)
        address = str(service.ready.http)
        with _connect(service) as connection:
            connection.sendall(_head_of_a_request(service, hub, 5) + b"ab")
            # The request has begun once another one, sent after it, has been answered.
            assert _request(service, "/health")[0] == 200
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            _wait_refused(address)
            connection.sendall(b"cde")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # until it is closed
            stopping.join(60)
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert not stopping.is_alive()
        service.start()
        assert [event.body for event in _stored(service, hub, "0")] == [b"abcde"]


@pytest.mark.slow
def test_a_request_that_does_not_end_does_not_hold_the_stop(tmp_path: Path) -> None:
    """Who sends nothing more is cut off; the service stops, and nothing of the request is stored."""
    with HubService(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub("hub", partition_count=1)
        with _connect(service) as connection:
            connection.sendall(_head_of_a_request(service, hub, 5) + b"ab")
            assert _request(service, "/health")[0] == 200
            service.stop()
        service.start()
        assert _stored(service, hub, "0") == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://other.example:443/health", b"200"),
        ("HTTPS://other.example/health?x=http://a/b", b"200"),
        ("http://other.example/tenant/messages", b"405"),
        ("http://other.example", b"303"),
        ("http://other.example?/health", b"303"),
    ],
)
def test_a_target_may_be_a_whole_uri(hub_service: HubService, target: str, status: bytes) -> None:
    """RFC 9112 section 3.2.2: servers accept absolute targets, and the path alone decides what is meant."""
    with _connect(hub_service) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        assert _read_answer(connection).split(b" ", 2)[1] == status


def test_a_websocket_may_be_asked_for_by_a_whole_uri(hub_service: HubService) -> None:
    """Java's SDKs send the absolute form, with the port of their connection string, also through a proxy."""
    target = "https://localhost:443/$servicebus/websocket"
    with _connect(hub_service) as connection:
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")

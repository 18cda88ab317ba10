"""The administration by HTTP: what it does, who may do it, and that its OpenAPI document says the same."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from starlette.routing import Route
from tests.support.partition_turns import partition_turns

from tidegate.broker import Claim
from tidegate.client import EventHubAdministrator
from tidegate.gateway.administration.operations import OPERATIONS, PREFIX, Needs, Operation
from tidegate.gateway.http.admin import Administration
from tidegate.gateway.http.openapi import openapi_document
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork

OPERATION_IDS = {operation.operation_id: operation for operation in OPERATIONS}
KEYS = ("primary-key-of-a-test", "secondary-key-of-a-test")


@dataclass(frozen=True)
class Answer:
    """What the service answered; ``value`` is the body's JSON, None where there is none."""

    status: int
    value: Any
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        """The sentence of an error."""
        assert set(self.value) == {"error"}
        assert set(self.value["error"]) == {"status", "condition", "message"}
        assert self.value["error"]["status"] == self.status
        return str(self.value["error"]["message"])


class Client:
    """Somebody with a key, and a token for a resource."""

    def __init__(self, service: HubService, *, resource: str = "", name: str = "", key: str = "") -> None:
        """Without a name: with the root policy."""
        root = ConnectionString.parse(service.connection_string)
        assert root.shared_access_key_name is not None
        assert root.shared_access_key is not None
        assert service.ready.http is not None
        self._address = service.ready.http
        self.token: str | None = make_sas_token(
            audience=f"sb://127.0.0.1/{resource}",
            key_name=name or root.shared_access_key_name,
            key=key or root.shared_access_key,
            expiry=4_000_000_000,
        )

    def ask(self, method: str, path: str, body: object = None, *, prefix: str = PREFIX) -> Answer:
        """Send a request: ``path`` is behind the prefix; a body of bytes goes as it stands."""
        headers = {} if self.token is None else {"Authorization": self.token}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = HTTPConnection(self._address, timeout=60)
        try:
            connection.request(method, prefix + path, data, headers)
            with connection.getresponse() as response:
                text = response.read()
                names = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, json.loads(text) if text else None, names)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A service of its own, with a database: these tests change the namespace."""
    folder = tmp_path_factory.mktemp("admin")
    (folder / "settings.json").write_text(json.dumps({"database": f"sqlite:///{folder / 'letters.db'}"}))
    with HubService(is_http_used=True, config=folder / "settings.json") as service:
        yield service


@pytest.fixture
def root(service: HubService) -> Client:
    """Who may do everything."""
    return Client(service)


@pytest.fixture
def hub(service: HubService) -> str:
    """A fresh event hub with two partitions."""
    return service.create_hub(partition_count=2)


# --- the document -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_document_is_valid_and_served(root: Client) -> None:
    """Anybody gets a valid OpenAPI 3.1 document, the one that the table makes."""
    document = openapi_document()
    validate(document)
    root.token = None
    answer = root.ask("GET", "/openapi.json", prefix="")
    assert (answer.status, answer.value) == (200, document)


def test_the_document_has_every_route(service: HubService) -> None:
    """What is served and what is documented are the same methods of the same addresses."""

    async def routes(server: TidegateServer) -> set[tuple[str, str]]:
        administration = Administration(
            server.broker,
            clock=SystemClock(),
            capture_statistics=dict,
            sliced_work=SlicedWork(),
            budget=MemoryBudget(1),
        )
        return {
            (method, route.path)
            for route in administration.routes()
            if isinstance(route, Route) and route.path.startswith(PREFIX)
            for method in (route.methods or set()) - {"HEAD"}
        }

    paths: Any = openapi_document()["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert service.call(routes) == documented
    assert len(OPERATION_IDS) == len(OPERATIONS) == len(documented)


def _check(schema: Any, value: object) -> None:
    """Raise unless the value is what the document's schema says."""
    document = openapi_document()
    validator = OAS31Validator({**schema, "components": document["components"]})
    errors = [error.message for error in validator.iter_errors(value)]
    assert not errors, errors


class Walk:
    """Performs operations by their names, and holds what goes in and out to the document."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.done: set[str] = set()

    def __call__(self, operation_id: str, body: object = None, **parameters: str) -> Any:
        """The answer's value of an operation that must succeed."""
        operation = OPERATION_IDS[operation_id]
        document: Any = openapi_document()
        described = document["paths"][PREFIX + operation.path][operation.method.lower()]
        if body is not None:
            _check(described["requestBody"]["content"]["application/json"]["schema"], body)
        answer = self._client.ask(operation.method, operation.path.format(**parameters), body)
        assert str(answer.status) in described["responses"], answer
        response = described["responses"][str(answer.status)]
        if "content" in response:
            _check(response["content"]["application/json"]["schema"], answer.value)
            assert answer.headers["cache-control"] == "no-store"
        else:
            assert answer.value is None
        self.done.add(operation_id)
        return answer.value


@pytest.mark.slow
def test_every_operation_does_what_the_document_says(root: Client, tmp_path: Path) -> None:
    """A life of an event hub through all operations: each succeeds, and answers what its schema says."""
    walk = Walk(root)
    walk("listAuditRecords")
    made = walk(
        "createEventHub",
        {"name": "Walk", "partition_count": 2, "retention_hours": 24, "event_bytes_max": 100_000},
    )
    assert made["partition_ids"] == ["0", "1"]
    assert (made["retention_hours"], made["retention_bytes"], made["capture"]) == (24, None, None)
    changed = walk("updateEventHub", {"retention_bytes": 1_000_000, "event_bytes_max": None}, hub="walk")
    assert (changed["retention_hours"], changed["retention_bytes"]) == (24, 1_000_000)
    assert changed["event_bytes_max"] == 1_048_576
    assert walk("readEventHub", hub="walk") == changed
    assert changed in walk("listEventHubs")

    assert walk("createConsumerGroup", {"name": "g"}, hub="walk") == {"name": "g"}
    assert walk("listConsumerGroups", hub="walk") == [{"name": "$Default"}, {"name": "g"}]
    walk("deleteConsumerGroup", hub="walk", group="g")
    assert walk("listConsumers", hub="walk") == []
    partitions: list[object] = [{"partition_id": "0", "sequence_number": 7}, {"partition_id": "1"}]
    walk("reportConsumer", {"owner": "one", "partitions": partitions}, hub="walk", group="$Default")
    consumers = walk("listConsumers", hub="walk")
    assert [(each["partition_id"], each["owner"], each["sequence_number"]) for each in consumers] == [
        ("0", "one", 7),
        ("1", "one", None),
    ]

    empty = walk("readPartition", hub="walk", partition="1")
    assert (empty["last_enqueued_offset"], empty["last_enqueued_time"], empty["is_empty"]) == (
        "-1",
        None,
        True,
    )
    assert walk("listPartitions", hub="walk")[1] == empty
    assert walk("readEventHubStatistics", hub="walk")["incoming_events"] == 0
    assert walk("readStatistics")["throttled_requests"] == 0

    for suffix, where in (("", {}), ("EventHub", {"hub": "walk"})):
        policy = walk(f"create{suffix}Policy", {"name": "p", "claims": ["Send"]}, **where)
        again = walk(f"regenerate{suffix}Key", {"is_secondary": True}, **where, policy="p")
        assert again["primary_key"] == policy["primary_key"]
        assert again["secondary_key"] != policy["secondary_key"]
        walk(f"regenerate{suffix}Key", {"key": KEYS[0]}, **where, policy="p")
        assert walk(f"read{suffix}Policy", **where, policy="p")["primary_key"] == KEYS[0]
        assert walk(f"list{suffix}Policies", **where)[-1]["claims"] == ["Send"]
        walk(f"delete{suffix}Policy", **where, policy="p")

    walk("revokePublisher", {"name": "dev-01"}, hub="walk")
    assert walk("listRevokedPublishers", hub="walk") == [{"name": "dev-01"}]
    walk("restorePublisher", hub="walk", publisher="dev-01")

    capture = walk("setCapture", {"destination": str(tmp_path), "time_window_s": 60}, hub="walk")
    assert walk("readCapture", hub="walk") == capture
    assert walk("readEventHub", hub="walk")["capture"] == capture
    # Capture follows its settings within a second or so.
    path, deadline = "/event-hubs/walk/capture/statistics", time.monotonic() + 60
    while root.ask("GET", path).status == 404:
        assert time.monotonic() < deadline, "it is not captured"
        time.sleep(0.05)
    assert walk("readCaptureStatistics", hub="walk")["backlog_events"] == 0
    walk("deleteCapture", hub="walk")

    where = {"hub": "walk", "group": "$Default"}
    assert root.ask("POST", "/walk/partitions/1/messages", b"x", prefix="").status == 201
    letter = {"partition_id": "1", "sequence_number": 0, "reason": "r"}
    assert walk("addDeadLetters", {"dead_letters": [letter]}, **where)["added"] == 1
    assert walk("listDeadLetters", **where)["dead_letters"][0]["reason"] == "r"
    assert walk("redriveDeadLetters", {"maximum": 1}, **where)["closed"] == 1
    assert walk("discardDeadLetters", {"because": "b"}, **where) == {"closed": 0, "is_complete": True}

    backup = walk("createBackup")
    assert backup["partition_count"] >= 2
    assert walk("readBackup", backup=backup["name"])["place"] == backup["place"]
    assert backup["name"] in [each["name"] for each in walk("listBackups")]
    walk("deleteBackup", backup=backup["name"])

    assert walk("updateNamespace", {"throughput_units": 3, "tier": "Standard"})["retention_hours_max"] == 168
    assert walk("readNamespace")["throughput_units"] == 3
    walk("updateNamespace", {"throughput_units": None, "tier": "Dedicated"})
    walk("deleteEventHub", hub="WALK")
    assert walk.done == set(OPERATION_IDS)


# --- who may ----------------------------------------------------------------------------------------------


def _policy_key(service: HubService, scope: str | None, name: str, *claims: Claim) -> str:
    async def create(server: TidegateServer) -> str:
        return (await server.broker.create_policy(scope, name, claims)).key

    return service.call(create)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.operation_id)
def test_claims_of_every_operation(service: HubService, hub: str, operation: Operation) -> None:
    """Without a token, or with Send alone, nothing is told; with Listen only what shows, but not keys."""
    path = operation.path.format(
        hub=hub, partition="0", group="none", policy="none", publisher="none", backup="none"
    )
    body: object = {} if operation.request is not None else None
    if operation.operation_id == "addDeadLetters":
        body = {"dead_letters": [{"partition_id": "0", "sequence_number": 0, "reason": "r"}]}
    nobody = Client(service)
    nobody.token = None
    assert nobody.ask(operation.method, path, body).status == 401
    name = f"of-{hub}"
    for claim in (Claim.SEND, Claim.LISTEN):
        scope = hub if "{hub}" in operation.path and not operation.is_of_namespace else None
        key = _policy_key(service, scope, name, claim)
        client = Client(service, resource=hub if scope else "", name=name, key=key)
        answer = client.ask(operation.method, path, body)
        if claim is Claim.LISTEN and operation.needs is Needs.SEE:
            assert answer.status in (200, 400, 404), answer  # 400: the body lacks everything
            assert "_key" not in json.dumps(answer.value)
        else:
            assert answer.status == 401, answer
            other = Claim.SEND if claim is Claim.LISTEN else Claim.LISTEN
            assert (other.value if operation.needs is Needs.REDRIVE else "Manage") in answer.message

        async def delete(server: TidegateServer, scope: str | None = scope) -> None:
            await server.broker.delete_policy(scope, name)

        service.call(delete)


def test_keys_are_for_managers(service: HubService, root: Client) -> None:
    """The same policy shows its keys to who may manage, and its name and claims to who may listen."""
    key = _policy_key(service, None, "watcher", Claim.LISTEN)
    watcher = Client(service, name="watcher", key=key)
    (shown,) = (each for each in root.ask("GET", "/policies").value if each["name"] == "watcher")
    assert shown["primary_key"] == key
    assert watcher.ask("GET", "/policies/watcher").value == {"name": "watcher", "claims": ["Listen"]}
    root.ask("DELETE", "/policies/watcher")


def test_a_manager_of_one_hub(service: HubService, root: Client, hub: str) -> None:
    """A hub's policy with Manage administers that hub, not another one and not the namespace."""
    other = service.create_hub(partition_count=1)
    made = root.ask("POST", f"/event-hubs/{hub}/policies", {"name": "m", "claims": ["Manage"]}).value
    assert made["claims"] == ["Send", "Listen", "Manage"]
    manager = Client(service, resource=hub, name="m", key=made["primary_key"])
    assert manager.ask("PATCH", f"/event-hubs/{hub}", {"retention_hours": 1}).status == 200
    assert manager.ask("GET", f"/event-hubs/{hub}/policies/m").value["primary_key"] == made["primary_key"]
    for method, path in (("GET", f"/event-hubs/{other}"), ("GET", "/event-hubs"), ("GET", "/policies")):
        assert manager.ask(method, path).status == 401, path
    wider = Client(service, name="m", key=made["primary_key"])
    assert wider.ask("GET", "/policies").status == 401


def test_where_files_are_written_is_the_namespaces_to_say(
    service: HubService, root: Client, hub: str, tmp_path: Path
) -> None:
    """Capture writes as the service's own user, to any path: a hub's manager may see it and switch it off."""
    made = root.ask("POST", f"/event-hubs/{hub}/policies", {"name": "m", "claims": ["Manage"]}).value
    manager = Client(service, resource=hub, name="m", key=made["primary_key"])
    path, settings = f"/event-hubs/{hub}/capture", {"destination": str(tmp_path / "files")}
    assert manager.ask("PUT", path, settings).status == 401
    assert root.ask("GET", path).status == 404
    assert root.ask("PUT", path, settings).status == 200
    assert manager.ask("GET", path).value["destination"] == settings["destination"]
    assert manager.ask("DELETE", path).status == 204


def test_more_partitions_are_the_namespaces_to_give(service: HubService, root: Client, hub: str) -> None:
    """Each takes descriptors and time from all tenants: not by a hub's policy, nor by a token for one hub."""
    key = root.ask("POST", f"/event-hubs/{hub}/policies", {"name": "m", "claims": ["Manage"]}).value[
        "primary_key"
    ]
    path, more = f"/event-hubs/{hub}", {"partition_count": 3, "retention_hours": 5}
    for client in (Client(service, resource=hub, name="m", key=key), Client(service, resource=hub)):
        refused = client.ask("PATCH", path, more)
        assert (refused.status, "requires Manage on the namespace" in refused.message) == (401, True)
        assert client.ask("PATCH", path, {"partition_count": 2, "retention_hours": 4}).status == 200
    assert root.ask("GET", path).value["retention_hours"] == 4
    assert root.ask("PATCH", path, more).value["partition_ids"] == ["0", "1", "2"]


def test_a_long_list_of_partitions_leaves_turns(
    service: HubService, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: an answer about 1,024 partitions takes 13 ms."""
    wide = service.create_hub(partition_count=40)
    turns = partition_turns(monkeypatch)
    answer = root.ask("GET", f"/event-hubs/{wide}/partitions")
    assert [each["partition_id"] for each in answer.value] == [*map(str, range(40))]
    assert len(set(turns)) == 40


def test_a_regenerated_key_counts_at_once(service: HubService, root: Client, hub: str) -> None:
    """The old key's tokens are worth nothing from then on, the policy's other key's still are."""
    path = f"/event-hubs/{hub}/policies"
    body = {"name": "p", "claims": ["Manage"], "primary_key": KEYS[0], "secondary_key": KEYS[1]}
    assert root.ask("POST", path, body).status == 201
    primary, secondary = (Client(service, resource=hub, name="p", key=key) for key in KEYS)
    assert primary.ask("GET", f"/event-hubs/{hub}").status == 200
    assert root.ask("POST", f"{path}/p/regenerate-key").status == 200
    assert primary.ask("GET", f"/event-hubs/{hub}").status == 401
    assert secondary.ask("GET", f"/event-hubs/{hub}").status == 200


def test_a_key_that_is_regenerated_while_the_body_comes_counts_no_more(
    service: HubService, root: Client, hub: str
) -> None:
    """Nobody makes themselves a new policy with a request that was begun with an old key."""
    path = f"/event-hubs/{hub}/policies"
    key = root.ask("POST", path, {"name": "p", "claims": ["Manage"]}).value["primary_key"]
    manager = Client(service, resource=hub, name="p", key=key)
    assert service.ready.http is not None
    host, _, port = service.ready.http.rpartition(":")
    body = json.dumps({"name": "again", "claims": ["Manage"]}).encode()
    head = (
        f"POST {PREFIX}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"Expect: 100-continue\r\nAuthorization: {manager.token}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode())
        # The service asks for the body once it has judged the token.
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        root.ask("POST", f"{path}/p/regenerate-key", {})
        connection.sendall(body)
        assert connection.recv(1024).startswith(b"HTTP/1.1 401 ")
    assert [policy["name"] for policy in root.ask("GET", path).value] == ["p"]


def test_no_key_is_logged(
    service: HubService, root: Client, hub: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Making, showing and refusing keys logs none of them, and no token."""
    caplog.set_level(logging.DEBUG)
    path = f"/event-hubs/{hub}/policies"
    body = {"name": "p", "claims": ["Manage"], "primary_key": KEYS[0], "secondary_key": KEYS[1]}
    root.ask("POST", path, body)
    root.ask("POST", path, body)
    root.ask("GET", f"{path}/p")
    root.ask("POST", f"{path}/p/regenerate-key", {"key": f"{KEYS[0]};"})
    Client(service, resource=hub, name="p", key="wrong").ask("GET", path)
    assert "refused" in caplog.text
    assert not any(secret in caplog.text for secret in (*KEYS, "sig="))


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("POST", "/event-hubs", {"name": "a b"}, 400, "'a b'"),
        ("POST", "/event-hubs", {"name": "x", "partition_count": 0}, 400, "partitions 0"),
        ("POST", "/event-hubs", {"name": "x", "partition_count": True}, 400, "partition_count"),
        ("POST", "/event-hubs", {"name": "x", "partition_count": "4"}, 400, "integer, got a string"),
        ("POST", "/event-hubs", {"name": None}, 400, "name must be a string, got null"),
        ("POST", "/event-hubs", {"partition_count": 1}, 400, "name is missing"),
        ("POST", "/event-hubs", {"name": "x", "retention": 1}, 400, "'retention'"),
        ("POST", "/event-hubs", b"{", 400, "not JSON"),
        ("POST", "/event-hubs", b'{"name": "\\ud800"}', 400, "not JSON"),
        ("POST", "/event-hubs", b"[" * 60_000, 400, "must be an object"),
        ("POST", "/event-hubs", b"[]", 400, "The body must be an object, got a list"),
        ("POST", "/event-hubs", b" " * 70_000, 413, "65536"),
        ("POST", "/event-hubs", {"name": "{hub}"}, 409, "already exists"),
        (
            "PUT",
            "/event-hubs/{hub}/consumers/$Default",
            {"owner": "a", "partitions": [{"partition_id": "0", "sequence_number": 10**18}]},
            400,
            "sequence_number",
        ),
        (
            "PUT",
            "/event-hubs/{hub}/consumers/$Default",
            {"owner": "a", "released": ["0"] * 1_025},
            400,
            "1024",
        ),
        ("PATCH", "/event-hubs/{hub}", {"partition_count": 1}, 400, "cannot be reduced to 1"),
        ("PATCH", "/event-hubs/{hub}", {"retention_hours": 10**30}, 400, "allowed"),
        ("GET", "/event-hubs/none", None, 404, "'none'"),
        ("DELETE", "/event-hubs/{hub}/consumer-groups/$Default", None, 400, "$Default"),
        ("GET", "/event-hubs/{hub}/partitions/2", None, 404, "between 0 and 1"),
        ("POST", "/policies", {"name": "p", "claims": ["Read"]}, 400, "Send, Listen, Manage"),
        ("POST", "/policies", {"name": "p", "claims": [1]}, 400, "claims[0] must be a string"),
        ("POST", "/policies", {"name": "p", "claims": []}, 400, "no claims"),
        ("DELETE", "/policies/RootManageSharedAccessKey", None, 400, "last policy with Manage"),
        ("PATCH", "/namespace", {"throughput_units": 0}, 400, "throughput units"),
        ("PATCH", "/namespace", {"tier": "Gold"}, 400, "Basic, Standard"),
        ("GET", "/event-hubs/{hub}/capture", None, 404, "not captured"),
        ("GET", "/event-hubs/{hub}/capture/statistics", None, 404, "not captured"),
        ("PUT", "/event-hubs/{hub}/capture", {"destination": "relative"}, 400, "relative"),
        ("PUT", "/event-hubs/{hub}/capture", {"destination": "/a", "time_window_s": 1}, 400, "60 to 900"),
        ("DELETE", "/event-hubs/{hub}/revoked-publishers/p", None, 404, "not revoked"),
        ("GET", "/elsewhere", None, 404, "openapi.json"),
        ("DELETE", "/event-hubs", None, 405, "openapi.json"),
    ],
)  # fmt: skip
def test_mistakes_have_one_shape(
    root: Client, hub: str, method: str, path: str, body: object, status: int, detail: str
) -> None:
    """Each mistake has its status, and a sentence that names it."""
    if isinstance(body, dict) and body.get("name") == "{hub}":
        body = {"name": hub.upper()}
    answer = root.ask(method, path.format(hub=hub), body)
    assert answer.status == status, answer
    assert detail in answer.message
    document: Any = openapi_document()
    _check(document["components"]["schemas"]["Error"], answer.value)


# --- beside the other door --------------------------------------------------------------------------------


@pytest.mark.parametrize(("noun", "parameter"), [("event-hubs", "hub"), ("policies", "policy")])
def test_long_names_in_addresses_are_refused_by_their_length(
    service: HubService, noun: str, parameter: str
) -> None:
    """Whoever asks: each costs its length several times if it is looked for."""
    client = Client(service)
    client.token = None
    answer = client.ask("GET", f"/{noun}/{'%41' * 1025}")
    assert answer.status == 400
    assert f"The {parameter} in the address has more than 1024 characters" in answer.message
    assert client.ask("GET", f"/{noun}/{'%41' * 1024}").status == 401


def test_both_doors_lead_to_the_same(service: HubService, root: Client) -> None:
    """What is made by HTTP is there over AMQP, and the reverse."""
    assert root.ask("POST", "/event-hubs", {"name": "by-http", "partition_count": 3}).status == 201

    async def look() -> tuple[int, list[str]]:
        async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
            await administrator.create_event_hub("by-amqp", partition_count=1)
            found = await administrator.list_event_hubs()
            return next(len(each.partition_ids) for each in found if each.name == "by-http"), [
                each.name for each in found
            ]

    count, names = asyncio.run(look())
    assert count == 3
    assert names == [each["name"] for each in root.ask("GET", "/event-hubs").value]


def test_a_large_number_is_kept(service: HubService, root: Client, hub: str) -> None:
    """What can be set, both doors can tell: a number beyond 64 bits is refused, and lists stay whole."""
    path, largest = f"/event-hubs/{hub}", (1 << 63) - 1
    assert root.ask("PATCH", path, {"retention_bytes": largest}).status == 200
    for number in (largest + 1, 10**4000):
        assert root.ask("PATCH", path, {"retention_bytes": number}).status == 400
    assert root.ask("GET", path).value["retention_bytes"] == largest

    async def listed() -> dict[str, int | None]:
        async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
            return {each.name: each.retention_bytes for each in await administrator.list_event_hubs()}

    assert asyncio.run(listed())[hub] == largest


def test_what_was_set_survives_a_restart(tmp_path: Path) -> None:
    """Settings made by HTTP are there after the service started again."""
    with HubService(tmp_path / "data", is_http_used=True) as service:
        root = Client(service)
        steps: list[tuple[str, str, object]] = [
            ("POST", "/event-hubs", {"name": "kept", "retention_hours": 5}),
            ("POST", "/event-hubs/kept/revoked-publishers", {"name": "dev"}),
            ("PUT", "/event-hubs/kept/capture", {"destination": str(tmp_path / "captured")}),
            ("PATCH", "/namespace", {"throughput_units": 2, "tier": "Premium"}),
        ]
        for method, path, body in steps:
            assert root.ask(method, path, body).status in (200, 201)
        paths = ("/event-hubs/kept", "/event-hubs/kept/revoked-publishers", "/policies", "/namespace")
        before = [root.ask("GET", path).value for path in paths]
        service.restart()
        assert [root.ask("GET", path).value for path in paths] == before

"""Dead letters over HTTP: what any consumer may add, list, redrive and discard, and what nobody may."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.access.doors import AmqpClient, TcpWire
from tests.console.support import console_service
from tests.server.test_http_admin import Answer, Client

from tidegate.amqp.encode import encode_value
from tidegate.amqp.types import Symbol
from tidegate.broker import Broker, Claim, Partition, audit
from tidegate.client import EventHubConsumer, EventHubProducer
from tidegate.console.explorer.reading import encoded_event
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.gateway.administration.shapes import DeadLetterQuery
from tidegate.gateway.administration.shapes import NewDeadLetter as NewPointer
from tidegate.model.errors import DatabaseUnavailableError, ServerBusyError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor.handlers import PartitionContext, TransactionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.server import dead_letters
from tidegate.server.app import TidegateServer
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
    UnitOfWork,
)
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.core import dead_letter_rows
from tidegate.sql.dead_letters import republish
from tidegate.sql.dead_letters.pages import DeadLetterPages
from tidegate.sql.handlers.forms import form_of
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A service with a database that does not exist yet."""
    folder = tmp_path_factory.mktemp("letters")
    with console_service(folder, database=f"sqlite:///{folder / 'letters.db'}") as service:
        yield service


@pytest.fixture(scope="module")
def database(service: HubService) -> Iterator[Database]:
    """The same database."""
    folder = service.data_dir.parent
    with Database.open(f"sqlite:///{folder / 'letters.db'}") as database:
        yield database


@pytest.fixture
def hub(service: HubService) -> str:
    """A fresh event hub with two partitions."""
    return service.create_hub(partition_count=2)


@pytest.fixture
def root(service: HubService) -> Client:
    """Who may do everything."""
    return Client(service)


def _client(service: HubService, scope: str | None, *claims: Claim) -> Client:
    """Who has a policy of these claims."""

    async def create(server: TidegateServer) -> str:
        name = "-".join(claim.value for claim in claims)
        if name in [policy.name for policy in server.broker.policies(scope)]:
            await server.broker.delete_policy(scope, name)
        return (await server.broker.create_policy(scope, name, claims)).key

    name = "-".join(claim.value for claim in claims)
    return Client(service, resource=scope or "", name=name, key=service.call(create))


def _send(service: HubService, hub: str, *bodies: bytes, partition_id: str = "0", key: str = "") -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            events = [EventData(body, properties={"n": 1}) for body in bodies]
            if key:
                await producer.send(events, partition_key=key)
            else:
                await producer.send(events, partition_id=partition_id)

    asyncio.run(send())


def _read(service: HubService, hub: str, count: int, partition_id: str = "0") -> list[ReceivedEvent]:
    async def read() -> list[ReceivedEvent]:
        found: list[ReceivedEvent] = []
        async with EventHubConsumer.from_connection_string(service.connection_string, hub) as consumer:
            receiver = await consumer.open_receiver(partition_id, EventPosition.earliest())
            while len(found) < count:
                found += await receiver.receive(count, 30)
        return found

    return asyncio.run(read())


def _path(hub: str, *more: str, group: str = "$Default", **query: object) -> str:
    path = "/".join([f"/event-hubs/{hub}/consumer-groups/{group}/dead-letters", *more])
    return f"{path}?{urlencode(query)}" if query else path


def _pointers(*numbers: int, partition_id: str = "0", reason: str = "broken") -> dict[str, Any]:
    return {
        "dead_letters": [
            {"partition_id": partition_id, "sequence_number": number, "reason": reason} for number in numbers
        ]
    }


def _shown(answer: Answer) -> list[tuple[str, int, str, int]]:
    assert answer.status == 200, answer
    names = ("partition_id", "sequence_number", "status", "attempts")
    return [tuple(each[name] for name in names) for each in answer.value["dead_letters"]]


def _numbers(answer: Answer) -> list[int]:
    return [number for _, number, _, _ in _shown(answer)]


# --- adding and listing -----------------------------------------------------------------------------------


def test_what_is_added_is_listed_once(service: HubService, root: Client, hub: str) -> None:
    """A repeat after a lost answer adds nothing, and no attempt; what the log lacks is named."""
    _send(service, hub, b"a", b"b")
    body = _pointers(1, 0, 1, 2, 10**15)
    first = root.ask("POST", _path(hub), body)
    missing = [{"partition_id": "0", "sequence_number": number} for number in (2, 10**15)]
    assert (first.status, first.value) == (200, {"added": 2, "already_open": 0, "missing": missing})
    again = root.ask("POST", _path(hub), body).value
    assert again == {"added": 0, "already_open": 2, "missing": missing}
    found = root.ask("GET", _path(hub.upper(), group="$default"))
    assert sorted(_shown(found)) == [("0", 0, "open", 1), ("0", 1, "open", 1)]
    assert found.value["next"] is None
    assert {each["reason"] for each in found.value["dead_letters"]} == {"broken"}


def test_the_copy_is_the_event(service: HubService, hub: str, root: Client) -> None:
    """Body, properties and key come back as they were sent."""
    _send(service, hub, b"\x00\xff", key="a")
    where = "0" if not service.call(lambda server: _is_empty(server, hub, "0")) else "1"
    root.ask("POST", _path(hub), _pointers(0, partition_id=where))
    (line,) = root.ask("GET", _path(hub)).value["dead_letters"]
    assert line["partition_key"] is None  # it parks no key
    assert root.ask("POST", _path(hub, "redrive"), {}).value == {"closed": 1, "is_complete": True}
    before, after = _read(service, hub, 2, where)
    assert (before.body, after.body, after.properties) == (b"\x00\xff", b"\x00\xff", {"n": 1})
    assert (before.partition_key, after.partition_key) == ("a", "a")


async def _is_empty(server: TidegateServer, hub: str, partition_id: str) -> bool:
    return (await server.broker.event_hub(hub).partition(partition_id).ends()).is_empty


def test_pages_and_filters(service: HubService, hub: str, root: Client) -> None:
    """Pages follow each other without a gap; reason, error type, partition and status select."""
    _send(service, hub, *[b"x"] * 5)
    for number, (reason, kind) in enumerate(
        [("Bad A", "E"), ("bad b", ""), ("c", "E"), ("d", ""), ("e", "")]
    ):
        letter = _pointers(number, reason=reason)
        letter["dead_letters"][0]["error_type"] = kind
        assert root.ask("POST", _path(hub), letter).value["added"] == 1
    seen, after = [], None
    while True:
        page = root.ask("GET", _path(hub, limit=2, **({} if after is None else {"after": after})))
        seen += _numbers(page)
        if (after := page.value["next"]) is None:
            break
    assert seen == [4, 3, 2, 1, 0]
    assert sorted(_numbers(root.ask("GET", _path(hub, reason="BAD")))) == [0, 1]
    assert sorted(_numbers(root.ask("GET", _path(hub, error_type="E")))) == [0, 2]
    assert _numbers(root.ask("GET", _path(hub, partition_id="1"))) == []
    root.ask("POST", _path(hub, "discard"), {"because": "old", "reason": "BAD"})
    assert sorted(_numbers(root.ask("GET", _path(hub)))) == [2, 3, 4]
    assert sorted(_numbers(root.ask("GET", _path(hub, status="discarded")))) == [0, 1]
    assert len(_numbers(root.ask("GET", _path(hub, status="all")))) == 5


@pytest.mark.parametrize(
    ("method", "more", "query", "body", "status", "detail"),
    [
        ("POST", (), {}, {"dead_letters": []}, 400, "dead_letters"),
        ("POST", (), {}, _pointers(*range(101)), 400, "dead_letters"),
        ("POST", (), {}, _pointers(-1), 400, "sequence_number"),
        ("POST", (), {}, _pointers(2**63), 400, "sequence_number"),
        ("POST", (), {}, _pointers(0, reason=""), 400, "reason"),
        ("POST", (), {}, _pointers(0, partition_id="2"), 404, "between 0 and 1"),
        ("POST", (), {}, {"dead_letters": [{"partition_id": "0", "sequence_number": 0}]}, 400, "reason"),
        ("POST", (), {}, _pointers(0, reason="x" * 270_000), 413, "262144"),
        ("GET", (), {"limit": 101}, None, 400, "limit"),
        ("GET", (), {"status": "gone"}, None, 400, "status"),
        ("GET", (), {"state": "open"}, None, 400, "'state'"),
        ("GET", (), {"after": "x"}, None, 400, "cursor"),
        ("POST", ("discard",), {}, {}, 400, "because"),
        ("POST", ("discard",), {}, {"because": " "}, 400, "reason"),
        ("POST", ("redrive",), {}, {"sequence_numbers": [1]}, 400, "partition_id"),
        ("POST", ("redrive",), {}, {"maximum": 0}, 400, "maximum"),
        ("POST", ("redrive",), {}, {"reason": "x" * 60_000}, 400, "reason"),
        ("POST", ("discard",), {}, {"because": "b", "error_type": "x" * 2_001}, 400, "error_type"),
        ("GET", (), {"reason": "x" * 2_001}, None, 400, "reason"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_mistakes_are_named(
    root: Client,
    hub: str,
    method: str,
    more: tuple[str, ...],
    query: Any,
    body: object,
    status: int,
    detail: str,
) -> None:
    """Each has its status, and a sentence that names it."""
    answer = root.ask(method, _path(hub, *more, **query), body)
    assert (answer.status, detail in answer.message) == (status, True), answer


def test_the_longest_filter_is_searched_for(root: Client, hub: str) -> None:
    """Databases search for text of that length, whatever is escaped in it."""
    assert _shown(root.ask("GET", _path(hub, reason="%" * 2_000))) == []
    for letter in ("%", "\u20ac", "\U0001f600"):
        answer = root.ask("POST", _path(hub, "redrive"), {"reason": letter * 2_000})
        assert answer.value == {"closed": 0, "is_complete": True}


def test_an_unknown_group_has_none(root: Client, hub: str) -> None:
    """Names that nobody created take no room in the database."""
    for method, more, body in (("POST", (), _pointers(0)), ("GET", (), None), ("POST", ("redrive",), {})):
        answer = root.ask(method, _path(hub, *more, group="none"), body)
        assert (answer.status, "consumergroups/none" in answer.message) == (404, True)


def test_too_many_open_ones_are_refused(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer whose every event fails does not fill the database; what is there can be repeated."""
    monkeypatch.setattr(dead_letters, "OPEN_MAX", 3)
    _send(service, hub, *[b"x"] * 5)
    assert root.ask("POST", _path(hub), _pointers(0, 1)).value["added"] == 2
    refused = root.ask("POST", _path(hub), _pointers(1, 2, 3))
    assert (refused.status, "3 are allowed" in refused.message) == (429, True)
    assert root.ask("POST", _path(hub), _pointers(1, 2)).value == {
        "added": 1,
        "already_open": 1,
        "missing": [],
    }
    assert root.ask("POST", _path(hub), _pointers(0, 1, 2)).status == 200


def test_an_event_is_not_decoded() -> None:
    """Protects all hubs, which share the threads: a body of a million values takes a second."""
    key = b"\x00\x53\x72" + encode_value({Symbol("x-opt-partition-key"): "k"})
    garbled = b"\x00\x53\x77\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x30"
    failed = dead_letters._Failed(NewPointer("0", 5, "broken"), 7, key + garbled)
    letter = failed.letter()
    assert (letter.partition_key, letter.payload, letter.offset) == (None, key + garbled, "5")


def test_large_events_are_written_in_several_transactions(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies in memory are bounded by bytes, not by events."""
    monkeypatch.setattr(dead_letters, "COPIES_BYTES_MAX", 1000)
    sizes: list[int] = []
    add = republish.add_once

    def watched(
        database: Database, consumer: ConsumerKey, partition_id: str, letters: Any, **more: Any
    ) -> int:
        sizes.append(len(letters))
        return add(database, consumer, partition_id, letters, **more)

    monkeypatch.setattr(dead_letters, "add_once", watched)
    _send(service, hub, *[b"x" * 600] * 5)
    assert root.ask("POST", _path(hub), _pointers(*range(5))).value["added"] == 5
    assert sizes == [2, 2, 1]


# --- beside a pipeline of the same group ------------------------------------------------------------------


def _process(database: Database, hub: str, events: list[ReceivedEvent], *, bad: int | None = None) -> int:
    """One batch of a host that parks keys and fails for one event; returns how many were processed."""

    def handle(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        if any(event.sequence_number == bad for event in batch):
            raise ValueError("a bug")

    lease = Lease("0", "host-1", 1, None, database.clock.now_utc(), "")
    transactions = SqlTransactions(
        database,
        ConsumerKey(hub),
        lease,
        form_of(handle),
        PartitionContext(GroupKey("localhost", hub, "$Default"), hub, "$Default", lease),
        policy=FailurePolicy(FailureAction.PARK_KEY),
        event_hub_created_at_ms=None,
    )
    start, until = events[0].sequence_number, events[-1].sequence_number + 1
    done = transactions.process(events, start_sequence_number=start, until_sequence_number=until)
    outcome = asyncio.run(done)
    transactions.close()
    return outcome.processed


def test_a_listener_parks_no_key(service: HubService, database: Database) -> None:
    """Protects handlers that park keys: with Listen alone, anyone could hold back every later event."""
    hub = service.create_hub(partition_count=1)
    _send(service, hub, *[b"x"] * 4, key="a")
    events = _read(service, hub, 4)
    assert _process(database, hub, events[:2]) == 2
    assert _client(service, hub, Claim.LISTEN).ask("POST", _path(hub), _pointers(0)).value["added"] == 1
    assert _process(database, hub, events[2:]) == 2
    assert [each.sequence_number for each in DeadLetters(database).list(DeadLetterFilter(event_hub=hub))] == [
        0
    ]


def test_a_listener_reopens_no_dead_letter_of_a_handler(service: HubService, database: Database) -> None:
    """It keeps its name and reason, and is not run again after a redrive with success; the answer says so."""
    hub = service.create_hub(partition_count=1)
    _send(service, hub, *[b"x"] * 3, key="a")
    events = _read(service, hub, 3)
    assert _process(database, hub, events[:1], bad=0) == 0
    letters, listener = DeadLetters(database), _client(service, hub, Claim.LISTEN)
    before = letters.show(ConsumerKey(hub), "0", 0)
    assert listener.ask("POST", _path(hub), _pointers(0)).value["already_open"] == 1
    assert letters.show(ConsumerKey(hub), "0", 0) == before
    for status, word in ((DeadLetterStatus.REDRIVEN, "redriven"), (DeadLetterStatus.DISCARDED, "discarded")):
        with UnitOfWork(database, ConsumerKey(hub)) as unit:
            dead_letter_rows.close_letters(unit, "0", [0], status, actor="a test")
        refused = listener.ask("POST", _path(hub), _pointers(0, 1))
        assert (refused.status, f"of event 0 of partition 0, which was {word}" in refused.message) == (
            409,
            True,
        )
        assert letters.show(ConsumerKey(hub), "0", 0) == replace(before, status=status)
    assert listener.ask("POST", _path(hub), _pointers(1)).value["added"] == 1
    (added,) = listener.ask("GET", _path(hub)).value["dead_letters"]
    assert (added["sequence_number"], added["pipeline"], added["partition_key"]) == (1, "", None)
    # What the handler then fails for is the handler's.
    assert _process(database, hub, events[1:2], bad=1) == 0
    assert letters.show(ConsumerKey(hub), "0", 1).pipeline == "handle"


# --- redriving and discarding -----------------------------------------------------------------------------


def test_a_redrive_publishes_and_closes(
    service: HubService, hub: str, root: Client, database: Database
) -> None:
    """In order, to the partition, once; the chosen ones only; and both trails say whose key it was."""
    _send(service, hub, b"a", b"b", b"c")
    _send(service, hub, b"d", partition_id="1")
    root.ask("POST", _path(hub), _pointers(0, 1, 2))
    root.ask("POST", _path(hub), _pointers(0, partition_id="1"))
    consumer = _client(service, hub, Claim.SEND, Claim.LISTEN)
    one = {"partition_id": "0", "sequence_numbers": [1]}
    assert consumer.ask("POST", _path(hub, "redrive"), one).value == {"closed": 1, "is_complete": True}
    some = consumer.ask("POST", _path(hub, "redrive"), {"partition_id": "0", "maximum": 1}).value
    assert some == {"closed": 1, "is_complete": False}
    assert consumer.ask("POST", _path(hub, "redrive"), {}).value == {"closed": 2, "is_complete": True}
    assert consumer.ask("POST", _path(hub, "redrive"), {}).value == {"closed": 0, "is_complete": True}
    assert [event.body for event in _read(service, hub, 6)] == [b"a", b"b", b"c", b"b", b"a", b"c"]
    assert [event.body for event in _read(service, hub, 2, "1")] == [b"d", b"d"]
    assert len(_numbers(root.ask("GET", _path(hub, status="redriven")))) == 4
    acts = DeadLetters(database).audit(event_hub=hub)
    assert {act.action for act in acts} == {"redriven"}
    assert {act.actor for act in acts} == {f"policy Send-Listen of {hub} over HTTP from 127.0.0.1"}
    records = [each for each in root.ask("GET", "/audit").value if each["target"] == hub]
    records = [each for each in records if each["action"] == "redrive"]
    assert [(each["policy"], each["door"]) for each in records] == [("Send-Listen", "http")] * 3
    assert json.loads(records[0]["new"]) == {"consumer_group": "$Default", "dead_letters": 2}


def test_redrives_displace_no_other_records(
    service: HubService, hub: str, root: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no Manage: beyond so many an hour, only the history in the database has them."""
    monkeypatch.setattr(audit, "SIGN_INS_MAX", 2)
    _send(service, hub, b"a")
    consumer = _client(service, hub, Claim.SEND, Claim.LISTEN)
    for _ in range(4):
        consumer.ask("POST", _path(hub), _pointers(0))
        assert consumer.ask("POST", _path(hub, "redrive"), {}).value["closed"] == 1
    records = [each for each in root.ask("GET", "/audit").value if each["target"] == hub]
    assert [each["action"] for each in records if each["action"] == "redrive"] == ["redrive"] * 2
    assert len(DeadLetters(database).audit(event_hub=hub)) == 4


def test_a_discard_closes_and_is_recorded(
    service: HubService, hub: str, root: Client, database: Database
) -> None:
    """Nothing is published; the reason is in both trails; a discarded one that fails again is reopened."""
    _send(service, hub, b"a", b"b")
    root.ask("POST", _path(hub), _pointers(0, 1))
    manager = _client(service, hub, Claim.MANAGE)
    chosen = {"because": "old\nfirmware", "partition_id": "0", "sequence_numbers": [0]}
    assert manager.ask("POST", _path(hub, "discard"), chosen).value == {"closed": 1, "is_complete": True}
    assert _numbers(root.ask("GET", _path(hub))) == [1]
    (act,) = DeadLetters(database).audit(event_hub=hub)
    assert (act.action, act.detail) == ("discarded", "old\nfirmware")
    record = next(each for each in root.ask("GET", "/audit").value if each["target"] == hub)
    assert (record["action"], record["policy"], record["scope"]) == ("discard", "Manage", hub.lower())
    assert json.loads(record["new"])["because"] == "old\nfirmware"
    assert root.ask("POST", _path(hub), _pointers(0)).value["added"] == 1
    assert ("0", 0, "open", 2) in _shown(root.ask("GET", _path(hub)))


def test_pipelines_and_pointers_without_a_copy_are_not_published(
    service: HubService, hub: str, root: Client, database: Database
) -> None:
    """Their own redrives run them; here they are listed, and may be discarded."""
    _send(service, hub, b"a", b"b")
    (first, second) = _read(service, hub, 2)
    letters = DeadLetters(database)
    copied = NewDeadLetter.from_text(first, "E", "r", is_payload_copied=True)
    letters.add(ConsumerKey(hub), "0", [copied], pipeline="orders")
    letters.add(ConsumerKey(hub), "0", [NewDeadLetter.from_text(second, "E", "r")])
    assert root.ask("POST", _path(hub, "redrive"), {}).value == {"closed": 0, "is_complete": True}
    assert sorted(_numbers(root.ask("GET", _path(hub)))) == [0, 1]
    assert root.ask("POST", _path(hub, "discard"), {"because": "x"}).value["closed"] == 2


def test_a_log_that_refuses_leaves_them_open(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not published is not closed: the transaction is undone, and a repeat publishes it."""
    _send(service, hub, b"a")
    root.ask("POST", _path(hub), _pointers(0))

    async def throttle(server: TidegateServer) -> None:
        partition = server.broker.event_hub(hub).partition("0")
        monkeypatch.setattr(partition, "_find_event_bytes_max", lambda: -1000)

    service.call(throttle)
    assert root.ask("POST", _path(hub, "redrive"), {}).status == 413
    assert _numbers(root.ask("GET", _path(hub))) == [0]
    monkeypatch.undo()
    assert root.ask("POST", _path(hub, "redrive"), {}).value["closed"] == 1


def test_one_at_a_time_and_others_go_on(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a redrive hangs in the database: no second one of the hub; adding, listing, and other hubs go on.

    When its policy is deleted, it publishes nothing any more.
    """
    other = service.create_hub(partition_count=1)
    for each in (hub, other):
        _send(service, each, b"a")
        root.ask("POST", _path(each), _pointers(0))
    hangs, go_on, close = threading.Event(), threading.Event(), dead_letter_rows.close_letters

    def hanging(unit: Any, *arguments: Any, **more: Any) -> None:
        if unit.consumer.event_hub == hub.lower():
            unit.rollback()  # so that the lock of SQLite is not what others wait for
            hangs.set()
            assert go_on.wait(60)
            raise DatabaseUnavailableError("It hangs at 10.0.0.1.")
        close(unit, *arguments, **more)

    monkeypatch.setattr(republish, "close_letters", hanging)
    answers: list[Answer] = []
    consumer = _client(service, hub, Claim.SEND, Claim.LISTEN)
    asking = threading.Thread(target=lambda: answers.append(consumer.ask("POST", _path(hub, "redrive"), {})))
    asking.start()
    assert hangs.wait(60)
    second = root.ask("POST", _path(hub, "discard"), {"because": "x"})
    assert (second.status, "Another" in second.message) in ((429, True), (503, True))
    assert "retry-after" in second.headers
    assert _numbers(root.ask("GET", _path(hub))) == [0]
    assert root.ask("POST", _path(other, "redrive"), {}).value["closed"] == 1
    go_on.set()
    asking.join()
    assert answers[0].status in (429, 503)
    assert "10.0.0.1" not in answers[0].message
    monkeypatch.undo()
    assert root.ask("POST", _path(hub, "redrive"), {}).value["closed"] == 1


def test_a_redrive_ends_with_its_policy(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that is deleted between two transactions publishes nothing more."""
    _send(service, hub, b"a", b"b")
    root.ask("POST", _path(hub), _pointers(0, 1))
    consumer = _client(service, hub, Claim.SEND, Claim.LISTEN)
    batches: list[int] = []

    def watched(*arguments: Any, **more: Any) -> int | None:
        if batches:
            service.call(lambda server: server.broker.delete_policy(hub, "Send-Listen"))
        batches.append(1)
        return republish.republish_next(*arguments, **more | {"events_max": 1})

    monkeypatch.setattr(dead_letters, "republish_next", watched)
    assert consumer.ask("POST", _path(hub, "redrive"), {}).status == 401
    assert _numbers(root.ask("GET", _path(hub))) == [1]
    record = next(each for each in root.ask("GET", "/audit").value if each["action"] == "redrive")
    assert json.loads(record["new"])["dead_letters"] == 1


@pytest.mark.slow
def test_what_is_committed_after_the_answer_is_recorded(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has gone, or was told that it took too long, leaves its name in the audit trail."""
    _send(service, hub, b"a")
    root.ask("POST", _path(hub), _pointers(0))
    go_on, publish_next = threading.Event(), republish.republish_next

    def slow(*arguments: Any, **more: Any) -> int | None:
        count = publish_next(*arguments, **more)
        assert go_on.wait(60)
        return count

    monkeypatch.setattr(dead_letters, "republish_next", slow)
    monkeypatch.setattr(dead_letters, "ANSWER_S_MAX", 3.0)
    consumer = _client(service, hub, Claim.SEND, Claim.LISTEN)
    assert consumer.ask("POST", _path(hub, "redrive"), {}).status in (408, 504)
    go_on.set()
    found: list[Any] = []
    until_s = time.monotonic() + 60
    while not found and time.monotonic() < until_s:
        found = [
            (each["policy"], json.loads(each["new"])["dead_letters"])
            for each in root.ask("GET", "/audit").value
            if (each["target"], each["action"]) == (hub, "redrive")
        ]
    assert found == [("Send-Listen", 1)]


def test_an_add_ends_with_its_policy(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that is deleted while its add waits adds nothing."""
    _send(service, hub, b"a")
    consumer = _client(service, hub, Claim.LISTEN)

    async def deleting(partition: Partition, number: int) -> tuple[int, bytes] | None:
        await broker.delete_policy(hub, "Listen")
        return await encoded_event(partition, number)

    async def broker_of(server: TidegateServer) -> Broker:
        return server.broker

    broker = service.call(broker_of)
    monkeypatch.setattr(dead_letters, "encoded_event", deleting)
    assert consumer.ask("POST", _path(hub), _pointers(0)).status == 401
    assert _numbers(root.ask("GET", _path(hub))) == []


def test_time_ends_work_between_transactions(
    service: HubService, hub: str, root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is said, and a repeat goes on."""
    monkeypatch.setattr(dead_letters, "WORK_S_MAX", -1.0)
    _send(service, hub, b"a")
    root.ask("POST", _path(hub), _pointers(0))
    for more, body in ((("redrive",), {}), (("discard",), {"because": "x"})):
        assert root.ask("POST", _path(hub, *more), body).value == {"closed": 0, "is_complete": False}
    monkeypatch.undo()
    assert root.ask("POST", _path(hub, "discard"), {"because": "x"}).value["is_complete"] is True


def test_requests_in_progress_are_bounded(root: Client, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are refused at once, with a time to come back."""
    monkeypatch.setattr(dead_letters, "REQUESTS_MAX", 0)
    answer = root.ask("GET", _path(hub))
    assert answer.status in (429, 503)
    assert "retry-after" in answer.headers


def test_two_hubs_leave_places_to_a_third(
    service: HubService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many requests they have: a hub never has more in progress than it leaves to others."""
    monkeypatch.setattr(dead_letters, "REQUESTS_MAX", 8)
    names = [service.create_hub(partition_count=1) for _ in range(4)]
    url = f"sqlite:///{tmp_path / 'letters.db'}"

    async def hang(database: LazyDatabase, work: object, *, when_ended: Callable[[], None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            when_ended()

    monkeypatch.setattr(LazyDatabase, "ask", hang)

    async def refusals(server: TidegateServer) -> list[int]:
        keeper = dead_letters.DatabaseDeadLetters(server.broker, url, SystemClock())
        counts = []
        async with TaskOwner("test") as tasks:
            for hub in map(server.broker.event_hub, names):
                asked = [
                    tasks.start(keeper.page(hub, "$Default", DeadLetterQuery()), name="page")
                    for _ in range(8)
                ]
                await asyncio.sleep(0)
                refused = [each for each in asked if each.done()]
                assert all(isinstance(each.exception(), ServerBusyError) for each in refused)
                counts.append(len(refused))
        return counts

    assert service.call(refusals) == [4, 6, 7, 7]


def test_a_client_that_leaves_keeps_its_place_while_its_thread_reads(
    service: HubService, hub: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A search cannot be ended: with clients that leave, one hub had all threads of the database."""
    monkeypatch.setattr(dead_letters, "REQUESTS_MAX", 2)  # one of a hub, and one that it leaves to others
    begun, is_open = threading.Event(), threading.Event()

    def hang(*_: object, **more: object) -> list[Any]:
        begun.set()
        assert is_open.wait(60)
        return []

    monkeypatch.setattr(DeadLetterPages, "page", hang)

    async def leave(server: TidegateServer) -> None:
        keeper = dead_letters.DatabaseDeadLetters(
            server.broker, f"sqlite:///{tmp_path / 'letters.db'}", SystemClock()
        )
        page = partial(keeper.page, server.broker.event_hub(hub), "$Default", DeadLetterQuery())
        async with TaskOwner("test") as tasks:
            asked = tasks.start(page(), name="page")
            assert await asyncio.to_thread(begun.wait, 60)
            asked.cancel()
            await asyncio.wait([asked])
            with pytest.raises(ServerBusyError):
                await page()
            is_open.set()
            async with asyncio.timeout(60):
                while True:
                    with suppress(ServerBusyError):
                        assert (await page())["dead_letters"] == []
                        break
                    await asyncio.sleep(0.01)
            waiting = tasks.start(page(), name="page")
            await asyncio.sleep(0)
            waiting.cancel()  # before its thread begins, or while it reads: the place is free in the end
            await asyncio.wait([waiting])
        await keeper.close()

    service.call(leave)


@pytest.mark.parametrize(("method", "body", "together"), [("GET", None, 2), ("POST", _pointers(0), 1)])
def test_one_hub_leaves_threads_and_turns_to_others(
    service: HubService,
    hub: str,
    root: Client,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    body: object,
    together: int,
) -> None:
    """However many of its requests there are, two are worked on at a time. Adds are written one by one: a
    repeat adds no attempt while the first request still runs."""
    other = service.create_hub(partition_count=1)
    _send(service, hub, b"a")
    come, is_open, working = threading.Semaphore(0), threading.Event(), [0, 0]
    turn, add_once, lock = dead_letters.DatabaseDeadLetters._turn, republish.add_once, threading.Lock()
    page = DeadLetterPages.page

    def counted(self: Any, asked: Any) -> Any:
        come.release()
        return turn(self, asked)

    def hang() -> None:
        with lock:
            working[0] += 1
            working[1] = max(working)
        assert is_open.wait(60)
        with lock:
            working[0] -= 1

    def hanging_add(*arguments: Any, **more: Any) -> int:
        hang()
        return add_once(*arguments, **more)

    def hanging_page(self: Any, chosen: Any, **more: Any) -> Any:
        if chosen.event_hub == hub:
            hang()
        return page(self, chosen, **more)

    monkeypatch.setattr(dead_letters.DatabaseDeadLetters, "_turn", counted)
    monkeypatch.setattr(dead_letters, "add_once", hanging_add)
    monkeypatch.setattr(DeadLetterPages, "page", hanging_page)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(root.ask(method, _path(hub), body).status))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert come.acquire(timeout=60)
    other_status = root.ask("GET", _path(other)).status
    is_open.set()
    for thread in threads:
        thread.join()
    assert (other_status, answers) == (200, [200] * 8)
    assert 1 <= working[1] <= together


# --- who may ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_of_hub", [True, False])
@pytest.mark.slow
def test_rights(service: HubService, hub: str, is_of_hub: bool) -> None:
    """Listen adds and lists; a redrive needs Send and Listen, a discard Manage."""
    _send(service, hub, b"a")
    scope = hub if is_of_hub else None
    asked: list[tuple[str, tuple[str, ...], object]] = [
        ("POST", (), _pointers(0)),
        ("GET", (), None),
        ("POST", ("redrive",), {}),
        ("POST", ("discard",), {"because": "x"}),
    ]
    for claims, allowed in (
        ((Claim.SEND,), (False, False, False, False)),
        ((Claim.LISTEN,), (True, True, False, False)),
        ((Claim.SEND, Claim.LISTEN), (True, True, True, False)),
        ((Claim.MANAGE,), (True, True, True, True)),
    ):
        client = _client(service, scope, *claims)
        found = [client.ask(method, _path(hub, *more), body).status for method, more, body in asked]
        assert found == [200 if each else 401 for each in allowed], claims


def test_a_hub_of_the_same_name_is_another(service: HubService, root: Client) -> None:
    """The dead letters of a deleted hub are not the new one's: not seen, not published, not discarded."""
    service.create_hub("again", partition_count=1)
    _send(service, "again", b"secret of another tenant")
    assert root.ask("POST", _path("again"), _pointers(0)).value["added"] == 1
    service.call(lambda server: server.broker.delete_event_hub("again"))
    service.create_hub("again", partition_count=1)
    assert _numbers(root.ask("GET", _path("again", status="all"))) == []
    assert root.ask("POST", _path("again", "redrive"), {}).value["closed"] == 0
    assert root.ask("POST", _path("again", "discard"), {"because": "x"}).value["closed"] == 0


def test_one_hub_never_reaches_another(service: HubService, hub: str, root: Client) -> None:
    """A manager of one hub gets nothing of another, also with a cursor from there."""
    other = service.create_hub(partition_count=1)
    for each in (hub, other):
        _send(service, each, b"a", b"b")
        root.ask("POST", _path(each), _pointers(0, 1))
    manager = _client(service, hub, Claim.MANAGE)
    for method, more, body in (
        ("POST", (), _pointers(0)),
        ("GET", (), None),
        ("POST", ("redrive",), {}),
        ("POST", ("discard",), {"because": "x"}),
    ):
        assert manager.ask(method, _path(other, *more), body).status == 401
    cursor = root.ask("GET", _path(other, limit=1)).value["next"]
    lines = manager.ask("GET", _path(hub, after=cursor)).value["dead_letters"]
    assert len(lines) <= 2
    assert manager.ask("POST", _path(hub, "discard"), {"because": "x"}).value["closed"] == 2
    assert sorted(_numbers(root.ask("GET", _path(other)))) == [0, 1]


def test_amqp_has_no_door_to_them(service: HubService, hub: str) -> None:
    """``$management`` checks other claims, so it does not carry them."""
    assert service.ready.amqp is not None
    with AmqpClient(TcpWire(service.ready.amqp)) as client:
        parameters = {"hub": hub, "group": "$Default"}
        assert client.administer("listDeadLetters", parameters) == 400
        assert client.administer("redriveDeadLetters", parameters) == 400


def test_without_a_database_it_says_what_to_set(tmp_path: Path) -> None:
    """One clear answer."""
    with HubService(is_http_used=True) as service:
        hub = service.create_hub(partition_count=1)
        answer = Client(service).ask("GET", _path(hub))
        assert (answer.status, "tidegate serve --database" in answer.message) == (404, True)


def test_a_database_that_is_gone_is_not_described(tmp_path: Path) -> None:
    """Clients learn that it is gone, and to come back; where it is, only the log says."""
    url = "postgresql://u:p@127.0.0.1:1/secret-name"
    with console_service(tmp_path, database=url) as service:
        hub = service.create_hub(partition_count=1)
        answer = Client(service).ask("GET", _path(hub))
        assert answer.status in (429, 503)
        assert "secret-name" not in answer.message
        assert "retry-after" in answer.headers


@pytest.mark.slow
def test_an_addition_whose_time_is_over_keeps_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread waits for the checkpoint's lock: with more of the same hub, none would be left to others."""
    monkeypatch.setattr(dead_letters, "ANSWER_S_MAX", 0.2)
    let_go, begun = threading.Event(), list[int]()

    def add_once(*_: object, **__: object) -> int:
        begun.append(1)
        let_go.wait(60)
        return 0

    monkeypatch.setattr(dead_letters, "add_once", add_once)
    with console_service(tmp_path, database=f"sqlite:///{tmp_path}/letters.db") as service:
        held, other = (service.create_hub(partition_count=1) for _ in range(2))
        for hub in (held, other):
            _send(service, hub, b"a")
        root = Client(service)
        try:
            for _ in range(3):
                assert root.ask("POST", _path(held), _pointers(0)).status in (408, 504)
            assert len(begun) == 1
            assert root.ask("POST", _path(other), _pointers(0)).status in (408, 504)
            assert len(begun) == 2
        finally:
            let_go.set()
        monkeypatch.setattr(dead_letters, "ANSWER_S_MAX", 30.0)
        assert root.ask("POST", _path(held), _pointers(0)).status == 200


@pytest.mark.slow
def test_a_database_that_hangs_keeps_no_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection and says nothing: requests end in time, and events are stored meanwhile."""
    monkeypatch.setattr(dead_letters, "ANSWER_S_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/letters"
        with console_service(tmp_path, database=url) as service:
            hub = service.create_hub(partition_count=1)
            _send(service, hub, b"a")
            root = Client(service)
            for _ in range(6):  # more than there are threads
                for method, more, body in (
                    ("GET", (), None),
                    ("POST", ("redrive",), {}),
                    ("POST", (), _pointers(0)),
                ):
                    assert root.ask(method, _path(hub, *more), body).status in (408, 504)
            _send(service, hub, b"b")
            assert [event.body for event in _read(service, hub, 2)] == [b"a", b"b"]
            silent.close()  # so that the stop need not wait for the driver

"""Outages of what a handler calls, and the budget of dead letters: no healthy event becomes a dead letter."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import CheckConstraint, MetaData
from sqlalchemy.exc import IntegrityError
from tests.needs import PRODUCT
from tests.sql.support import CONSUMER, dead_numbers
from tests.sql.test_transactions import checkpoint_of, effect_numbers, process
from tests.sql.transaction_support import (
    bad_at,
    effects,
    keyed,
    transactions_of,
    write_effect,
    write_effects,
)
from tests.support.clocks import SetClock
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import InvalidArgumentError, PartitionPausedError, PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.sql import ArrowHandler, Database, DeadLetters, Pipeline, TransactionalPipeline
from tidegate.sql.handlers.outages import DeadLetterBudget, OutageError, OutageWatch


class ServiceError(Exception):
    """As a library raises that has an error tree of its own."""


class Service:
    """What a handler calls: it may be away, as a whole or for some events."""

    def __init__(self) -> None:
        self.error: Callable[[], Exception] | None = None
        self.refused: set[int] = set()
        """Events for which it never answers."""
        self.goes_at: int | None = None
        """The event with which it goes away."""
        self.calls: list[int] = []

    def call(self, number: int) -> None:
        self.calls.append(number)
        if number == self.goes_at:
            self.error, self.goes_at = lambda: ConnectionResetError("gone"), None
        if self.error is not None:
            raise self.error()
        if number in self.refused:
            raise TimeoutError("no answer")

    def handle(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            self.call(event.sequence_number)
            if json.loads(event.body)["is_bad"]:
                raise ValueError(f"event {event.sequence_number} is bad")

    def handle_one(self, event: ReceivedEvent) -> dict[str, object]:
        self.call(event.sequence_number)
        if json.loads(event.body)["is_bad"]:
            raise ValueError(f"event {event.sequence_number} is bad")
        return {"sequence_number": event.sequence_number, "key": None}

    def handle_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        events: list[dict[str, Any]] = batch.to_pylist()
        for event in events:
            self.call(event["sequenceNumber"])
            if json.loads(event["body"])["is_bad"]:
                raise ValueError(f"event {event['sequenceNumber']} is bad")
        return pa.RecordBatch.from_arrays([batch.column("sequenceNumber")], names=["sequence_number"])


@pytest.fixture
def service() -> Service:
    """A service that answers."""
    return Service()


@pytest.fixture
def base(database: Database) -> Database:
    """An empty database of each kind with the table ``effects``."""
    database.ensure_table(effects)
    return database


HANDLERS: dict[str, Callable[[Service], object]] = {
    "function": lambda service: service.handle,
    "transactional pipeline": lambda service: TransactionalPipeline("p", CONSUMER.event_hub, service.handle),
    "pipeline": lambda service: Pipeline("p", CONSUMER.event_hub, effects, service.handle_one),
    "batches": lambda service: Pipeline(
        "p", CONSUMER.event_hub, effects, ArrowHandler(service.handle_batch, ("sequenceNumber", "body"))
    ),
}


def _wrapped() -> Exception:
    error = ServiceError("cannot call")
    error.__cause__ = ConnectionRefusedError("refused")
    return error


def _on_databases(others: Sequence[object]) -> list[Any]:
    """Every kind of handler with every other thing on SQLite; on servers each kind with one, the rest in
    ``make long``: they commit the same."""
    return [
        pytest.param(
            database,
            kind,
            other,
            marks=PRODUCT if database in ("postgresql", "mariadb") and column != row % len(others) else (),
        )
        for database in ("sqlite", "postgresql", "mariadb", *SQL_SERVERS)
        for row, kind in enumerate(HANDLERS)
        for column, other in enumerate(others)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "kind", "action"), _on_databases([*FailureAction]), indirect=["database_url"]
)
def test_an_outage_makes_no_dead_letter(
    base: Database, service: Service, kind: str, action: FailureAction
) -> None:
    """Nothing is committed, whatever the policy; afterwards one event is tried, and all are processed."""
    transactions = transactions_of(base, HANDLERS[kind](service), policy=FailurePolicy(action))
    assert process(transactions, bad_at([], 2)).processed == 2
    service.error = lambda: ConnectionRefusedError("nobody listens")
    for _ in range(3):
        with pytest.raises(PartitionPausedError, match="ConnectionRefusedError: nobody listens") as found:
            process(transactions, bad_at([], 502, start=2))
        assert isinstance(found.value.__cause__, ConnectionRefusedError)
        assert len(service.calls) <= 502
        service.calls.clear()
    assert (checkpoint_of(base), dead_numbers(base)) == (2, [])
    service.error = None
    outcome = process(transactions, bad_at([], 502, start=2))
    assert (outcome.processed, outcome.dead_letters, outcome.next_sequence_number) == (500, 0, 502)
    assert effect_numbers(base) == list(range(502))
    assert (checkpoint_of(base), dead_numbers(base)) == (502, [])


@pytest.mark.parametrize(
    ("error", "named", "is_outage"),
    [
        (TimeoutError, (), True),
        (_wrapped, (), True),
        (ServiceError, (), False),
        (ServiceError, (ServiceError,), True),
        (lambda: ConnectionAbortedError("x"), (ServiceError,), True),
        (ValueError, (ServiceError,), False),
    ],
)
def test_which_errors_are_an_outage(
    base: Database,
    service: Service,
    error: Callable[[], Exception],
    named: tuple[type[Exception], ...],
    is_outage: bool,
) -> None:
    """Connections and time-outs, what was caused by them, and what the policy names."""
    transactions = transactions_of(base, service.handle, policy=FailurePolicy(outage_errors=named))
    service.error = error
    if is_outage:
        with pytest.raises(PartitionPausedError):
            process(transactions, bad_at([], 3))
    else:
        assert process(transactions, bad_at([], 3)).dead_letters == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "kind", "refused"),
    _on_databases([{0}, {3}, {9}, {0, 4, 9}]),
    indirect=["database_url"],
)
def test_an_event_that_fails_alone_is_at_fault(
    base: Database, service: Service, kind: str, refused: set[int]
) -> None:
    """Others succeed after the pause, so it is no outage: the policy applies to the event."""
    transactions = transactions_of(base, HANDLERS[kind](service))
    service.refused = refused
    with pytest.raises(PartitionPausedError):
        process(transactions, bad_at([6], 10))
    for _ in range(50):  # until the event that is tried beside the first one is not at fault either
        with contextlib.suppress(PartitionPausedError):
            outcome = process(transactions, bad_at([6], 10))
            break
    assert (outcome.processed, outcome.dead_letters) == (9 - len(refused), len(refused) + 1)
    assert dead_numbers(base) == sorted({*refused, 6})
    assert effect_numbers(base) == sorted({*range(10)} - refused - {6})
    types = {letter.sequence_number: letter.error_type for letter in DeadLetters(base).list()}
    assert types == {6: "ValueError"} | dict.fromkeys(refused, "TimeoutError")


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.slow
def test_an_outage_may_come_back_while_a_batch_is_resumed(
    base: Database, service: Service, kind: str
) -> None:
    """The first event is committed, the others wait again, and none is processed twice."""
    transactions = transactions_of(base, HANDLERS[kind](service))
    service.error = lambda: ConnectionRefusedError("down")
    with pytest.raises(PartitionPausedError):
        process(transactions, bad_at([], 40))
    service.error, service.goes_at = None, 7
    with pytest.raises(PartitionPausedError):
        process(transactions, bad_at([], 40))
    assert (checkpoint_of(base), effect_numbers(base), dead_numbers(base)) == (1, [0], [])
    with pytest.raises(PartitionPausedError):
        process(transactions, bad_at([], 40))
    service.error = None
    outcome = process(transactions, bad_at([], 40))
    assert (outcome.processed, outcome.skipped, outcome.dead_letters) == (39, 1, 0)
    assert effect_numbers(base) == list(range(40))


@pytest.mark.parametrize("refused", [{10, 50, 90, 130, 170}, {*range(0, 200, 3)}, {*range(10, 14), 199}])
@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.slow
def test_events_at_fault_do_not_stop_a_partition(
    sqlite_url: str, service: Service, kind: str, refused: set[int]
) -> None:
    """Five of many that are not in a row, also within one call: who may send could stop it for everyone."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(effects)
        transactions = transactions_of(database, HANDLERS[kind](service))
        service.refused = refused
        for _ in range(60):  # until the event that is tried beside the first one is not at fault either
            with contextlib.suppress(PartitionPausedError):
                process(transactions, bad_at([], 200))
                break
        assert (checkpoint_of(database), dead_numbers(database)) == (200, sorted(refused))
        assert effect_numbers(database) == sorted({*range(200)} - refused)


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.slow
def test_events_that_need_nothing_do_not_hide_an_outage(base: Database, service: Service, kind: str) -> None:
    """A handler may call what is away for six of ten events: the others succeed, and show nothing."""
    service.refused = {number for number in range(100) if number % 10 < 6}
    transactions = transactions_of(base, HANDLERS[kind](service))
    for _ in range(20):
        with pytest.raises(PartitionPausedError):
            process(transactions, bad_at([], 100))
    assert dead_numbers(base) == []


@pytest.mark.slow
def test_a_parked_event_does_not_hide_an_outage(base: Database, service: Service) -> None:
    """It waits behind its key: the handler is not called for it, so nothing has succeeded."""
    transactions = transactions_of(base, service.handle, policy=FailurePolicy(FailureAction.PARK_KEY))
    assert process(transactions, [keyed(0, "a", is_bad=True), keyed(1, "b")]).dead_letters == 1
    service.error = lambda: ConnectionRefusedError("down")
    events = [keyed(number, "a" if number % 2 else str(number)) for number in range(2, 6)]
    for _ in range(20):
        with pytest.raises(PartitionPausedError):
            process(transactions, events)
    assert dead_numbers(base) == [0]


def test_an_error_behind_a_refused_row_is_an_outage(base: Database, service: Service) -> None:
    """The usual "insert, or else": what the database refused has led to the call, and not to its failure."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            try:
                with context.connection.begin_nested():
                    context.connection.execute(effects.insert().values(sequence_number=0, key=None))
            except IntegrityError:
                service.call(event.sequence_number)

    transactions = transactions_of(base, handle)
    assert process(transactions, bad_at([], 3)).processed == 3
    assert service.calls == [1, 2]
    service.error = lambda: ConnectionRefusedError("down")
    with pytest.raises(PartitionPausedError):
        process(transactions, bad_at([], 6, start=3))
    assert dead_numbers(base) == []


def test_a_batch_of_one_waits(base: Database, service: Service) -> None:
    """With nothing to compare it with, an outage is assumed; other errors still stop or dead-letter."""
    transactions = transactions_of(base, service.handle, policy=FailurePolicy(FailureAction.STOP))
    service.refused = {0}
    for _ in range(3):
        with pytest.raises(PartitionPausedError):
            process(transactions, bad_at([], 1))
    service.refused = set()
    assert process(transactions, bad_at([], 1)).processed == 1
    with pytest.raises(PartitionStoppedError):
        process(transactions, bad_at([1], 2, start=1))


def test_what_the_handler_decides_is_no_outage(base: Database) -> None:
    """``context.dead_letter`` with such an error is final."""

    def decide(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            context.dead_letter(event, TimeoutError("given up"))

    assert process(transactions_of(base, decide), bad_at([], 3)).dead_letters == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANDLERS)
def test_a_partition_with_too_many_dead_letters_pauses(
    database_url: str, service: Service, kind: str
) -> None:
    """What is within the budget is committed; the rest waits until the minute is over."""
    clock = SetClock()
    with Database.open(database_url, clock=clock) as database:
        database.ensure_table(effects)
        policy = FailurePolicy(dead_letters_per_minute=4)
        transactions = transactions_of(database, HANDLERS[kind](service), policy=policy)
        events = bad_at(range(5, 20), 20)
        for done in (9, 13, 17):
            with pytest.raises(PartitionPausedError, match=f"before event {done}: 4 of its events") as found:
                process(transactions, events)
            assert found.value.retry_after_s == 10
            assert checkpoint_of(database) == done
            with pytest.raises(PartitionPausedError):
                process(transactions, events)
            assert dead_numbers(database) == list(range(5, done))
            clock.advance(61)
        assert process(transactions, events).dead_letters == 3
        assert (effect_numbers(database), dead_numbers(database)) == ([*range(5)], [*range(5, 20)])


@pytest.mark.parametrize("kind", ["pipeline", "batches"])
def test_what_the_database_refuses_has_the_same_budget(sqlite_url: str, service: Service, kind: str) -> None:
    """With what the handler fails for, however few rows a batch has; what is within it is committed."""
    refusing = effects.to_metadata(MetaData())
    refusing.append_constraint(CheckConstraint("sequence_number < 5"))
    clock = SetClock()
    with Database.open(sqlite_url, clock=clock) as database:
        database.ensure_table(refusing)
        pipeline = HANDLERS[kind](service)
        assert isinstance(pipeline, Pipeline)
        policy = FailurePolicy(dead_letters_per_minute=4)
        transactions = transactions_of(database, replace(pipeline, table=refusing), policy=policy)
        assert process(transactions, bad_at([3], 6)).dead_letters == 2
        events = bad_at([6, 7], 12, start=6)
        with pytest.raises(PartitionPausedError, match="before event 8: 4 of its events"):
            process(transactions, events)
        assert (checkpoint_of(database), dead_numbers(database)) == (8, [3, 5, 6, 7])
        clock.advance(61)
        assert process(transactions, events).dead_letters == 4
        assert dead_numbers(database) == [3, *range(5, 12)]


def test_parked_events_do_not_count(base: Database) -> None:
    """They wait behind one failure."""
    policy = FailurePolicy(FailureAction.PARK_KEY, dead_letters_per_minute=1)
    events = [keyed(number, "a", is_bad=number == 0) for number in range(9)]
    outcome = process(transactions_of(base, write_effects, policy=policy), events)
    assert (outcome.dead_letters, outcome.parked) == (1, 8)


def test_the_budget_is_of_any_minute() -> None:
    """Not of the clock's; None limits nothing."""
    budget = DeadLetterBudget(5)
    budget.spend(3, 100.0)
    budget.spend(0, 110.0)
    budget.spend(2, 130.0)
    assert budget.left(159.9) == 0
    assert budget.wait_s(159.9) == pytest.approx(0.1)
    assert (budget.left(160.0), budget.left(190.0), budget.wait_s(190.0)) == (3, 5, 0.0)
    assert DeadLetterBudget(None).left(0.0) is None
    with pytest.raises(InvalidArgumentError, match="dead_letters_per_minute must be greater than 0"):
        FailurePolicy(dead_letters_per_minute=0)


_LIMITED = """
import mmap, resource
from tidegate.sql.core.memory import is_memory_short

held = mmap.mmap(-1, 1 << 30)
with open("/proc/self/statm") as found:
    size = int(found.read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
for room in (80 << 20, size):
    resource.setrlimit(resource.RLIMIT_AS, (size + room, hard))
    try:
        bytes(100 << 20 if room < size else 1 << 60)
    except MemoryError:
        print(is_memory_short())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_near_its_limit_is_short_of_memory() -> None:
    """What is left is less than a handler may need for a good event; far from it, the event is at fault."""
    ran = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False"]


def test_five_failures_in_a_row_are_an_outage() -> None:
    """Even in a large batch: each may have waited for a time-out."""
    watch = OutageWatch(FailurePolicy(), 1000)
    for _ in range(20):
        watch.failed(TimeoutError(), event_count=500)
        for _ in range(4):
            watch.failed(TimeoutError())
        watch.failed(ValueError())
        watch.succeeded()
    for _ in range(4):
        watch.failed(TimeoutError())
    with pytest.raises(OutageError):
        watch.failed(TimeoutError())

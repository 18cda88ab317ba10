"""Failure policies against a simple model, and the order of parked keys between pump and redrive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, inspect, select
from tests.sql.support import CONSUMER, LogOfEvents, dead_numbers, rows_in
from tests.sql.transaction_support import effects, keyed, transactions_of, write_effect

from tidegate.model.errors import PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.model.times import time_of
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.processor.store import TransactionOutcome
from tidegate.sql import (
    CheckpointReader,
    Database,
    DeadLetterFilter,
    DeadLetters,
    Pipeline,
    RedriveReport,
    Row,
    TransactionalPipeline,
)
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.core.parked_keys import PARKED, first_open_by_key
from tidegate.sql.core.schema import checkpoint, dead_letter, dead_letter_audit, open_keys, schema_version
from tidegate.sql.core.values import KEY_CHARACTERS_MAX, NewDeadLetter, storable_key

PARK = FailurePolicy(FailureAction.PARK_KEY)


class Kind(Enum):
    """The handlers that each policy is tried with."""

    RAISING = "a function that raises for a bad event"
    PUTTING_ASIDE = "a function that puts a bad event aside itself, which stops nothing"
    ROWS = "a pipeline whose handler returns rows"


@dataclass(slots=True)
class Handler:
    """Fails for the events in ``bad``, which a test changes as it goes."""

    kind: Kind
    bad: set[int] = field(default_factory=set)

    @property
    def pipeline(self) -> Pipeline | TransactionalPipeline:
        """To be registered, and to redrive."""
        if self.kind is Kind.ROWS:
            return Pipeline("p", CONSUMER.event_hub, effects, self.row_of)
        return TransactionalPipeline("p", CONSUMER.event_hub, self.write)

    def write(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        """One row for each good event."""
        for event in events:
            is_bad = event.sequence_number in self.bad
            if is_bad and self.kind is Kind.PUTTING_ASIDE:
                context.dead_letter(event, ValueError("bad"))
                continue
            write_effect(context, event)
            if is_bad:
                raise ValueError("bad")

    def row_of(self, event: ReceivedEvent) -> Row:
        """The same as a row."""
        if event.sequence_number in self.bad:
            raise ValueError("bad")
        return {"sequence_number": event.sequence_number, "key": ascii(event.partition_key)}


@dataclass(slots=True)
class Model:
    """What policies promise, one event at a time."""

    action: FailureAction
    keys: Sequence[str | None]
    done: set[int] = field(default_factory=set)
    open: dict[int, str] = field(default_factory=dict)
    """Open dead letters with their error type."""
    next_number: int = 0

    def process(self, until: int, bad: set[int]) -> tuple[int, int, int] | None:
        """Returns how many were processed, put aside and parked; None: it stopped."""
        counts = [0, 0, 0]
        for number in range(self.next_number, until):
            if self.action is FailureAction.PARK_KEY and self.is_behind(number):
                self.open[number] = PARKED
                counts[2] += 1
            elif number not in bad:
                self.done.add(number)
                counts[0] += 1
            elif self.action is FailureAction.STOP:
                return None
            else:
                self.open[number] = "ValueError"
                counts[1] += 1
            self.next_number = number + 1
        return counts[0], counts[1], counts[2]

    def redrive(self, bad: set[int], only: set[int]) -> tuple[int, int, int]:
        """Returns how many were redriven, failed again and wait."""
        counts = [0, 0, 0]
        for number in sorted(self.open.keys() & only):
            if self.open[number] == PARKED and self.is_behind(number):
                counts[2] += 1
            elif number in bad:
                self.open[number] = "ValueError"
                counts[1] += 1
            else:
                del self.open[number]
                self.done.add(number)
                counts[0] += 1
        return counts[0], counts[1], counts[2]

    def is_behind(self, number: int) -> bool:
        """Whether an earlier event of its key is open."""
        key = self.keys[number]
        return key is not None and any(other < number and self.keys[other] == key for other in self.open)


def process(
    transactions: SqlTransactions, events: Sequence[ReceivedEvent], start: int, until: int
) -> TransactionOutcome:
    """One batch."""
    return asyncio.run(
        transactions.process(events[start:until], start_sequence_number=start, until_sequence_number=until)
    )


def empty(database: Database) -> None:
    """As new."""
    with database.writing() as connection, connection.begin():
        for table in (effects, checkpoint, dead_letter, dead_letter_audit):
            connection.execute(delete(table))


def open_letters(database: Database) -> dict[int, str]:
    """Open dead letters with their error type."""
    return {letter.sequence_number: letter.error_type for letter in DeadLetters(database).list(limit=None)}


EVENTS = 24
STEPS = st.one_of(
    st.tuples(st.just("process"), st.integers(1, 9)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("mend"), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("redrive"), st.integers(1, 6)),
    st.tuples(st.just("redrive odd"), st.integers(1, 6)),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(Kind),
    action=st.sampled_from(FailureAction),
    keys=st.lists(st.sampled_from([None, "a", "b", "c\0"]), min_size=EVENTS, max_size=EVENTS),
    bad=st.sets(st.integers(0, EVENTS - 1), max_size=8),
    steps=st.lists(STEPS, max_size=14),
)
@pytest.mark.slow
def test_policies_do_what_the_model_says(
    database: Database,
    kind: Kind,
    action: FailureAction,
    keys: list[str | None],
    bad: set[int],
    steps: list[tuple[str, int]],
) -> None:
    """Effects, dead letters and checkpoint after each batch, restart, takeover and redrive."""
    database.ensure_table(effects)
    empty(database)
    events = [keyed(number, key) for number, key in enumerate(keys)]
    handler = Handler(kind, set(bad))
    is_stopping = action is FailureAction.STOP and kind is not Kind.PUTTING_ASIDE
    model = Model(
        action if is_stopping or action is not FailureAction.STOP else FailureAction.DEAD_LETTER, keys
    )
    epoch = 1
    transactions = transactions_of(database, handler.pipeline, policy=FailurePolicy(action))
    for step, number in steps:
        if step == "process":
            until = min(EVENTS, model.next_number + number)
            start = max(0, model.next_number - 1)
            before = model.next_number
            expected = model.process(until, handler.bad)
            if expected is None:
                with pytest.raises(PartitionStoppedError, match=f"before event {model.next_number},"):
                    process(transactions, events, start, until)
            else:
                skipped = len(events[start:before]) if until > before else until - start
                outcome = process(transactions, events, start, until)
                assert outcome == TransactionOutcome(*expected, skipped, until)
        elif step == "restart":
            epoch += 1
            transactions = transactions_of(
                database, handler.pipeline, epoch=epoch, policy=FailurePolicy(action)
            )
            begun = asyncio.run(transactions.begin())
            assert (0 if begun is None else begun.resume_point) == model.next_number
        elif step == "mend":
            handler.bad.discard(number)
        else:
            only = {each for each in range(EVENTS) if step == "redrive" or each % 2}
            chosen = DeadLetterFilter(sequence_numbers=tuple(only))
            letters = DeadLetters(database)
            log = LogOfEvents(events)
            rehearsed = letters.redrive(
                handler.pipeline, log, filter=chosen, batch_size=number, attempts_max=99, dry_run=True
            )
            report = letters.redrive(handler.pipeline, log, filter=chosen, batch_size=number, attempts_max=99)
            counts = model.redrive(handler.bad, only)
            assert (report.redriven, report.failed, report.waiting) == counts
            assert (rehearsed.redriven, rehearsed.failed, rehearsed.waiting) == counts
        assert {row[0] for row in rows_in(database, effects)} == model.done
        assert open_letters(database) == model.open
        found = CheckpointReader(database).read(CONSUMER).get("0")
        assert (found.next_sequence_number if found else None) in (
            model.next_number,
            model.next_number or None,
        )


@pytest.fixture
def parked(database: Database) -> tuple[Database, Handler, list[ReceivedEvent]]:
    """Events 0 to 7 of the keys a and b in turn; event 0 failed, so all of a are dead letters."""
    database.ensure_table(effects)
    events = [keyed(number, "ab"[number % 2]) for number in range(12)]
    handler = Handler(Kind.RAISING, {0})
    process(transactions_of(database, handler.pipeline, policy=PARK), events, 0, 8)
    return database, handler, events


def test_a_parked_event_tells_what_it_waits_behind(
    parked: tuple[Database, Handler, list[ReceivedEvent]],
) -> None:
    """Its handler never saw it; a person who looks at the list sees why."""
    database, _, _ = parked
    assert open_letters(database) == {0: "ValueError", 2: PARKED, 4: PARKED, 6: PARKED}
    letter = DeadLetters(database).show(CONSUMER, "0", 6)
    assert letter.reason.startswith("Waits behind event 0 ")
    assert (letter.partition_key, letter.pipeline) == ("a", "p")
    with database.read() as connection:
        first_open = partial(first_open_by_key, connection, CONSUMER)
        assert first_open("0", event_hub_created_at_ms=None) == {"a": 0}
        assert first_open("1", event_hub_created_at_ms=None) == {}
        # Those of an earlier hub of the name hold nothing back.
        assert first_open("0", event_hub_created_at_ms=letter.enqueued_time_ms + 1) == {}


def test_a_redrive_runs_a_key_in_order_up_to_the_first_that_fails(
    parked: tuple[Database, Handler, list[ReceivedEvent]],
) -> None:
    """A later event alone waits; a failure stops its key, and only its key; a discarded one makes way."""
    database, handler, events = parked
    letters, log = DeadLetters(database), LogOfEvents(events)

    def redrive(*numbers: int) -> RedriveReport:
        chosen = DeadLetterFilter(sequence_numbers=numbers or None)
        return letters.redrive(handler.pipeline, log, filter=chosen)

    assert redrive(4).waiting == 1
    assert letters.show(CONSUMER, "0", 4).attempts == 1
    of_this_hub = DeadLetterFilter(sequence_numbers=(4,), enqueued_from=time_of(events[1].enqueued_time_ms))
    assert letters.redrive(handler.pipeline, log, filter=of_this_hub, dry_run=True).waiting == 1
    of_this_hub = DeadLetterFilter(sequence_numbers=(4,), enqueued_from=time_of(events[4].enqueued_time_ms))
    assert letters.redrive(handler.pipeline, log, filter=of_this_hub, dry_run=True).waiting == 0
    handler.bad = {4}
    report = redrive()
    assert (report.considered, report.redriven, report.failed, report.waiting) == (4, 2, 1, 1)
    assert open_letters(database) == {4: "ValueError", 6: PARKED}
    letters.discard(DeadLetterFilter(sequence_numbers=(4,)), reason="known")
    assert redrive(6).redriven == 1
    outcome = process(transactions_of(database, handler.pipeline, epoch=2, policy=PARK), events, 8, 12)
    assert (outcome.processed, outcome.parked) == (4, 0)


def test_an_event_that_is_lost_holds_its_key(parked: tuple[Database, Handler, list[ReceivedEvent]]) -> None:
    """What the log no longer has can only be discarded by a person: those behind it wait until then."""
    database, handler, events = parked
    handler.bad = set()
    report = DeadLetters(database).redrive(handler.pipeline, LogOfEvents(events, begin=1))
    assert (report.lost, report.redriven, report.waiting) == ((("0", 0),), 0, 3)


def test_events_without_a_key_are_put_aside_alone(database: Database) -> None:
    """There is no order to keep between them."""
    database.ensure_table(effects)
    handler = Handler(Kind.RAISING, {0})
    events = [keyed(number, None) for number in range(4)]
    outcome = process(transactions_of(database, handler.pipeline, policy=PARK), events, 0, 4)
    assert (outcome.processed, outcome.dead_letters, outcome.parked) == (3, 1, 0)


def test_pump_and_redrive_take_turns(parked: tuple[Database, Handler, list[ReceivedEvent]]) -> None:
    """A batch that comes while a key is redriven waits for it, and then runs behind it: nothing overtakes."""
    database, _, events = parked
    is_inside, may_end = threading.Event(), threading.Event()
    order: list[int] = []

    def redrive_slowly(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        is_inside.set()
        assert may_end.wait(30)
        write(context, batch)

    def write(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        for event in batch:
            write_effect(context, event)
            order.append(event.sequence_number)

    redriven: list[RedriveReport] = []
    pipeline = TransactionalPipeline("p", CONSUMER.event_hub, redrive_slowly)
    redriving = threading.Thread(
        target=lambda: redriven.append(DeadLetters(database).redrive(pipeline, LogOfEvents(events)))
    )

    async def pump() -> TransactionOutcome:
        transactions = transactions_of(database, write, policy=PARK)
        redriving.start()
        assert await asyncio.to_thread(is_inside.wait, 30)
        running = asyncio.gather(
            transactions.process(events[8:12], start_sequence_number=8, until_sequence_number=12)
        )
        done, _ = await asyncio.wait([running], timeout=0.05)
        assert not done
        may_end.set()
        return (await running)[0]

    outcome = asyncio.run(pump())
    redriving.join()
    assert (redriven[0].redriven, outcome.processed, outcome.parked) == (4, 4, 0)
    assert order == [0, 2, 4, 6, 8, 9, 10, 11]
    assert dead_numbers(database) == []


def test_a_key_that_the_database_cannot_hold_is_parked_all_the_same(database: Database) -> None:
    """Keys are compared as they are stored: a NUL is replaced in both."""
    database.ensure_table(effects)
    handler = Handler(Kind.RAISING, {0})
    events = [keyed(0, "a\0"), keyed(1, "a\0"), keyed(2, "\ud800")]
    handler.kind = Kind.PUTTING_ASIDE
    outcome = process(transactions_of(database, handler.pipeline, policy=PARK), events[:2], 0, 2)
    assert (outcome.dead_letters, outcome.parked) == (1, 1)
    DeadLetters(database).add(
        CONSUMER, "0", [NewDeadLetter.from_text(events[2], "Odd", "by hand")], pipeline="p"
    )
    with database.read() as connection:
        assert set(first_open_by_key(connection, CONSUMER, "0", event_hub_created_at_ms=None)) == {
            "a\\x00",
            "\\ud800",
        }
        assert connection.execute(select(dead_letter.c.pipeline).distinct()).scalars().all() == ["p"]


def test_a_key_of_any_length_is_parked(database: Database) -> None:
    """Protects pipelines: an index of PostgreSQL takes 2,704 bytes, and who sends an event within a batch may
    give it a key of 64 KB."""
    database.ensure_table(effects)
    handler = Handler(Kind.PUTTING_ASIDE, {0})
    long = "".join(Random(1).choices([chr(code) for code in range(0x10000, 0x11000)], k=15_000))
    events = [keyed(0, long), keyed(1, long), keyed(2, "other")]
    outcome = process(transactions_of(database, handler.pipeline, policy=PARK), events, 0, 3)
    assert (outcome.processed, outcome.dead_letters, outcome.parked) == (1, 1, 1)


def test_a_database_of_an_older_version_gets_the_index(database_url: str) -> None:
    """The look-up of parked keys is fast in databases that were made before there were any."""
    with Database.open(database_url) as older, older.writing() as connection, connection.begin():
        open_keys.drop(connection)
        connection.execute(delete(schema_version).where(schema_version.c.version > 2))
    with Database.open(database_url) as newer, newer.read() as connection:
        assert open_keys.name in {
            index["name"] for index in inspect(connection).get_indexes(dead_letter.name)
        }


@pytest.mark.parametrize("character", ["k", "\0", "\ud800", "\N{WAVING HAND SIGN}"])
def test_a_stored_key_fits_its_column(character: str) -> None:
    """Also on SQL Server, whose column has so many code units of UTF-16: it would refuse the dead letter."""
    for count in (20, 100, KEY_CHARACTERS_MAX, 5_000):
        kept = storable_key(character * count)
        assert len(kept.encode("utf-16-le")) // 2 <= KEY_CHARACTERS_MAX

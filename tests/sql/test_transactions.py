"""A host's batches as transactions: exactly once, whatever the handler, the policy or the database do."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, MetaData, Table, insert, text
from sqlalchemy.exc import IntegrityError
from tests.sql.cutting_proxy import Cut, CuttingProxy
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    LogOfEvents,
    dead_numbers,
    event_with,
    events_between,
    flights,
    kill,
    row_count,
    rows_in,
)
from tests.sql.transaction_support import (
    Partition,
    bad_at,
    effects,
    keyed,
    lease_of,
    transactions_of,
    write_effect,
    write_effects,
)

from tidegate.client.retry import RetryPolicy
from tidegate.model.errors import (
    CheckpointGapError,
    DatabaseError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    PartitionStoppedError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.handlers import (
    EventProcessor,
    PartitionContext,
    TransactionalProcessor,
    TransactionContext,
)
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.processor.store import PartitionTransactions, TransactionOutcome
from tidegate.sql import (
    ArrowHandler,
    CheckpointReader,
    Database,
    DeadLetters,
    Pipeline,
    Row,
    TransactionalPipeline,
    TransactionMisusedError,
    process_partition_batch,
)
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.core import memory

STOP = FailurePolicy(FailureAction.STOP)
PARK = FailurePolicy(FailureAction.PARK_KEY)
AT_ONCE = RetryPolicy(retries_max=2, delay_s=0, delay_s_max=0)


@pytest.fixture
def base(database: Database) -> Database:
    """An empty database of each kind with the table ``effects``."""
    database.ensure_table(effects)
    return database


def process(
    transactions: SqlTransactions, events: Sequence[ReceivedEvent], *, until: int | None = None
) -> TransactionOutcome:
    """One batch that is all of its range."""
    start = events[0].sequence_number
    return asyncio.run(
        transactions.process(
            events,
            start_sequence_number=start,
            until_sequence_number=events[-1].sequence_number + 1 if until is None else until,
        )
    )


def checkpoint_of(database: Database) -> int | None:
    """Partition 0's next sequence number."""
    return CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number


def effect_numbers(database: Database) -> list[object]:
    """Events with an effect."""
    return [row[0] for row in rows_in(database, effects)]


@pytest.mark.parametrize(
    "value", ["database is locked", "database or disk is full", "no such table: a", "no such savepoint: a"]
)
def test_an_events_words_are_not_the_databases(sqlite_url: str, value: str) -> None:
    """SQLite's errors quote values: an event that imitates an outage would come again and again."""

    def handle(context: TransactionContext, event: ReceivedEvent) -> None:
        context.connection.execute(text("SELECT json_extract('{}', :path)"), {"path": value})

    with Database.open(sqlite_url) as database:
        process(transactions_of(database, handle), events_between(0, 1))
        assert dead_numbers(database) == [0]


def test_effects_dead_letters_and_checkpoint_are_one(base: Database) -> None:
    """Failed events are found one by one, undone and put aside; the others' effects stay."""
    transactions: PartitionTransactions = transactions_of(base, write_effects)
    assert asyncio.run(transactions.begin()) is None
    outcome = process(transactions_of(base, write_effects), bad_at([0, 3, 4, 9], 10))
    assert outcome == TransactionOutcome(6, 4, 0, 0, 10)
    assert effect_numbers(base) == [1, 2, 5, 6, 7, 8]
    assert dead_numbers(base) == [0, 3, 4, 9]
    letter = DeadLetters(base).list()[1]
    assert (letter.error_type, letter.reason, letter.pipeline) == (
        "ValueError",
        "event 3 is bad",
        "write_effects",
    )
    assert "write_effects" in letter.traceback
    found = CheckpointReader(base).read(CONSUMER)["0"]
    assert (found.next_sequence_number, found.offset, found.owner, found.lease_epoch) == (
        10,
        "9",
        "host-1",
        1,
    )


def test_a_batch_that_comes_again_has_no_effect(base: Database) -> None:
    """Events below the checkpoint are not run again; the rest of a straddling batch is."""
    transactions = transactions_of(base, write_effects)
    process(transactions, bad_at([1], 4))
    assert process(transactions, bad_at([1], 4)) == TransactionOutcome(0, 0, 0, 4, 4)
    assert process(transactions, bad_at([1], 6)) == TransactionOutcome(2, 0, 0, 4, 6)
    assert effect_numbers(base) == [0, 2, 3, 4, 5]
    assert DeadLetters(base).list()[0].attempts == 1


def test_a_gap_is_refused_unless_allowed(base: Database) -> None:
    """A batch beyond the checkpoint would leave events out."""
    transactions = transactions_of(base, write_effects)
    process(transactions, bad_at([], 3))
    with pytest.raises(CheckpointGapError, match="events 3 to 4"):
        process(transactions, bad_at([], 7, start=5))
    outcome = asyncio.run(
        transactions.process(
            bad_at([], 7, start=5), start_sequence_number=5, until_sequence_number=7, is_gap_allowed=True
        )
    )
    assert outcome.next_sequence_number == 7
    with pytest.raises(InvalidArgumentError, match="ends before it starts"):
        asyncio.run(transactions.process([], start_sequence_number=9, until_sequence_number=8))
    with pytest.raises(InvalidArgumentError, match="holds events"):
        process(transactions, bad_at([], 9, start=7), until=8)


def resume_point(transactions: SqlTransactions) -> int | None:
    """Where they go on."""
    found = asyncio.run(transactions.begin())
    return None if found is None else found.resume_point


def test_another_hub_of_this_name_is_refused(base: Database) -> None:
    """Sequence numbers of a deleted hub say nothing of the new one's; claiming tells at once."""
    process(transactions_of(base, write_effects, event_hub_created_at_ms=1), bad_at([], 2))
    other = transactions_of(base, write_effects, epoch=2, event_hub_created_at_ms=2)
    with pytest.raises(EventHubReplacedError):
        asyncio.run(other.begin())
    with pytest.raises(EventHubReplacedError):
        process(other, bad_at([], 3))


def test_a_claim_shuts_out_older_owners(base: Database) -> None:
    """After begin() of a newer epoch nothing of an older one is committed, even where nothing ever was."""
    old, new = transactions_of(base, write_effects), transactions_of(base, write_effects, epoch=2)
    assert asyncio.run(old.begin()) is None
    assert asyncio.run(new.begin()) is None
    with pytest.raises(FencedError, match="host-2 under lease epoch 2"):
        process(old, bad_at([], 2))
    with pytest.raises(FencedError):
        asyncio.run(old.begin())
    assert effect_numbers(base) == []
    process(new, bad_at([], 2))
    with pytest.raises(FencedError):
        process(old, bad_at([], 2))
    assert resume_point(new) == 2


def test_an_older_owner_in_mid_transaction_commits_before_the_claim_or_not_at_all(base: Database) -> None:
    """The claim waits for a running transaction; what it then returns includes that transaction's events."""
    is_inside, may_end = threading.Event(), threading.Event()

    def hang(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        write_effects(context, events)
        is_inside.set()
        assert may_end.wait(30)

    async def overtake() -> tuple[TransactionOutcome, int | None]:
        old, new = transactions_of(base, hang), transactions_of(base, write_effects, epoch=2)
        running = asyncio.gather(
            old.process(bad_at([], 3), start_sequence_number=0, until_sequence_number=3),
            claim_when_inside(new),
        )
        return await running

    async def claim_when_inside(new: SqlTransactions) -> int | None:
        await asyncio.to_thread(is_inside.wait, 30)
        claim = asyncio.gather(new.begin())
        # It cannot be finished: the row (or the file) is locked until the old owner's handler returns.
        done, _ = await asyncio.wait([claim], timeout=0.05)
        assert not done
        may_end.set()
        (found,) = await claim
        return None if found is None else found.resume_point

    outcome, next_number = asyncio.run(overtake())
    assert (outcome.next_sequence_number, next_number) == (3, 3)
    assert effect_numbers(base) == [0, 1, 2]


def test_a_cancelled_batch_ends_before_the_next_begins(base: Database) -> None:
    """Cancellation waits for the transaction, which is committed whole; a second cancel changes nothing."""
    is_inside, may_end = threading.Event(), threading.Event()

    def hang(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        is_inside.set()
        assert may_end.wait(30)
        write_effects(context, events)

    async def cancel() -> ProcessorCheckpoint | None:
        transactions = transactions_of(base, hang)
        running = asyncio.gather(
            transactions.process(bad_at([], 3), start_sequence_number=0, until_sequence_number=3)
        )
        await asyncio.to_thread(is_inside.wait, 30)
        for _ in range(2):
            running.cancel()
            done, _pending = await asyncio.wait([running], timeout=0.02)
            assert not done
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await transactions.begin()

    found = asyncio.run(cancel())
    assert found is not None
    assert found.resume_point == 3
    assert effect_numbers(base) == [0, 1, 2]


@pytest.mark.parametrize("then", ["writes on", "swallows errors", "returns", "raises"])
@pytest.mark.slow
def test_a_transaction_that_hangs_is_broken_off_and_holds_up_nobody(base: Database, then: str) -> None:
    """While its handler still hangs, the next owner works; what the handler does later has no effect."""
    is_inside, may_go_on, is_done = threading.Event(), threading.Event(), threading.Event()
    second_write: list[BaseException | None] = []

    def hang(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        connection = context.connection
        write_effects(context, events[:1])
        is_inside.set()
        assert may_go_on.wait(30)
        try:
            if then == "raises":
                raise ValueError("late")
            if then in ("writes on", "swallows errors"):
                try:
                    connection.execute(insert(effects).values(sequence_number=1_000))
                    second_write.append(None)
                except Exception as error:
                    second_write.append(error)
                    if then == "writes on":
                        raise
        finally:
            is_done.set()

    async def take_over() -> TransactionOutcome:
        old, new = transactions_of(base, hang), transactions_of(base, write_effects, epoch=2)
        running = asyncio.gather(
            old.process(bad_at([], 3), start_sequence_number=0, until_sequence_number=3),
            return_exceptions=True,
        )
        await asyncio.to_thread(is_inside.wait, 30)
        old.abandon()
        assert await new.begin() is None
        outcome = await new.process(bad_at([], 3), start_sequence_number=0, until_sequence_number=3)
        assert not is_done.is_set()
        may_go_on.set()
        (error,) = await running
        assert isinstance(error, DatabaseError | FencedError), error
        # The old owner's thread works on, but nothing that it was given can be run any more.
        with pytest.raises(FencedError):
            await old.process(bad_at([], 3), start_sequence_number=0, until_sequence_number=3)
        return outcome

    assert asyncio.run(take_over()).processed == 3
    assert None not in second_write
    assert effect_numbers(base) == [0, 1, 2]
    assert dead_numbers(base) == []
    assert checkpoint_of(base) == 3
    # No connection that was broken off is used again.
    later = transactions_of(base, write_effects, epoch=3)
    assert process(later, bad_at([], 9, start=3)).processed == 6


def write_all(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    """The corrected handler: no event is bad."""
    for event in events:
        write_effect(context, event)


@pytest.mark.parametrize("failing", [0, 1, 5, 7])
@pytest.mark.slow
def test_stop_commits_what_lies_before(base: Database, failing: int) -> None:
    """Order before progress: nothing from the failed event on is there, nothing is a dead letter."""
    events = bad_at([failing, 7], 8)
    transactions = transactions_of(base, write_effects, policy=STOP)
    for _ in range(2):
        with pytest.raises(
            PartitionStoppedError, match=f"Partition 0 .* before event {failing}.*is bad"
        ) as caught:
            process(transactions, events)
        assert isinstance(caught.value.__cause__, ValueError)
        assert effect_numbers(base) == list(range(failing))
        assert dead_numbers(base) == []
    assert resume_point(transactions) == (failing or None)
    corrected = transactions_of(base, write_all)
    process(corrected, events)
    assert effect_numbers(base) == list(range(8))


def test_retries_come_first_and_hold_nothing_meanwhile(base: Database) -> None:
    """A failure that passes is no dead letter; each try is a transaction of its own, rolled back whole."""
    tries: list[int] = []

    def flaky(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
        tries.append(len(events))
        if len(tries) < 3:
            raise ConnectionError("the other service is away")

    policy = FailurePolicy(retry=AT_ONCE)
    outcome = process(transactions_of(base, flaky, policy=policy), bad_at([], 4))
    assert (outcome, tries) == (TransactionOutcome(4, 0, 0, 0, 4), [4, 4, 4])
    outcome = process(transactions_of(base, write_effects, policy=policy), bad_at([5], 8, start=4))
    assert (outcome.dead_letters, dead_numbers(base)) == (1, [5])


def test_the_wait_between_retries_is_outside_of_transactions(base: Database) -> None:
    """While one host waits for its retry, another claims the partition; the retry is then refused."""
    has_failed = threading.Event()

    def fail(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        has_failed.set()
        raise ConnectionError

    async def overtake() -> None:
        policy = FailurePolicy(retry=RetryPolicy(retries_max=1, delay_s=0.2, delay_s_max=0.2))
        old = transactions_of(base, fail, policy=policy)
        new = transactions_of(base, write_effects, epoch=2)
        running = asyncio.gather(old.process(bad_at([], 2), start_sequence_number=0, until_sequence_number=2))
        await asyncio.to_thread(has_failed.wait, 30)
        await new.begin()
        with pytest.raises(FencedError):
            await running

    asyncio.run(overtake())


class Scores(TransactionalProcessor):
    """A processor that puts every third event aside itself."""

    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        """One row for each of the others."""
        for event in events:
            if event.sequence_number % 3 == 0:
                context.dead_letter(
                    event, "divisible by three" if event.sequence_number else KeyError("zero")
                )
            else:
                write_effect(context, event)


@pytest.mark.parametrize("policy", [FailurePolicy(is_payload_copied=True), STOP, PARK])
def test_a_handler_puts_events_aside_itself(base: Database, policy: FailurePolicy) -> None:
    """That is no failure: it is a dead letter under each policy, and the others go on."""
    events = bad_at([], 7)
    outcome = process(transactions_of(base, Scores(), policy=policy), events)
    assert outcome == TransactionOutcome(4, 3, 0, 0, 7)
    assert effect_numbers(base) == [1, 2, 4, 5]
    letters = DeadLetters(base).list()
    assert [(letter.error_type, letter.reason) for letter in letters] == [
        ("KeyError", "'zero'"),
        ("RejectedByHandler", "divisible by three"),
        ("RejectedByHandler", "divisible by three"),
    ]
    assert all((letter.payload is not None) == policy.is_payload_copied for letter in letters)
    assert letters[0].pipeline == "Scores"


def test_the_context_is_the_partitions_own_and_ends_with_the_call(base: Database) -> None:
    """A handler sees its partition; what it keeps of the context is of no use afterwards."""
    kept: list[TransactionContext] = []

    def look(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        kept.append(context)
        assert (context.event_hub, context.consumer_group, context.partition_id) == (
            "flights",
            "$Default",
            "0",
        )
        assert (context.owner, context.lease, context.group.event_hub) == ("host-1", lease_of(1), "flights")
        with pytest.raises(InvalidArgumentError, match="not among those"):
            context.checkpoint(keyed(99, None))
        with pytest.raises(InvalidArgumentError, match="not among those"):
            context.dead_letter(keyed(99, None), "from elsewhere")

    process(transactions_of(base, look), bad_at([], 1))
    with pytest.raises(InvalidArgumentError, match="after the call"):
        _ = kept[0].connection
    with pytest.raises(InvalidArgumentError, match="after the call"):
        kept[0].dead_letter(keyed(0, None), "late")
    with pytest.raises(InvalidArgumentError, match="after the call"):
        kept[0].checkpoint()


Misuse = Callable[[TransactionContext], Any]

MISUSES: dict[str, Misuse] = {
    "commit": lambda context: context.connection.commit(),
    "rollback": lambda context: context.connection.rollback(),
    "close": lambda context: context.connection.close(),
    "sql commit": lambda context: context.connection.execute(text("COMMIT")),
    "sql rollback": lambda context: context.connection.exec_driver_sql(" rollback work"),
    "open savepoint": lambda context: context.connection.begin_nested(),
}


@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize("name", MISUSES)
@pytest.mark.slow
def test_a_handler_that_ends_the_transaction_is_refused(
    base: Database, name: str, is_swallowed: bool
) -> None:
    """One clear error, nothing half done, and the database as good as before; also if it hides the error."""

    def misuse(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        write_effects(context, events)
        try:
            MISUSES[name](context)
        except Exception:
            if not is_swallowed:
                raise
        with_suppressed(lambda: write_effects(context, bad_at([], 9, start=8)))

    with pytest.raises(TransactionMisusedError, match="Nothing of the batch is committed"):
        process(transactions_of(base, misuse), bad_at([], 3))
    assert (effect_numbers(base), dead_numbers(base)) == ([], [])
    assert process(transactions_of(base, write_effects), bad_at([], 3)).processed == 3


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE more (id INT)", " drop table if exists more", "TRUNCATE effects"]
)
def test_a_handler_that_changes_tables_is_refused_where_that_commits(
    mariadb_url: str, statement: str
) -> None:
    """On MariaDB the effects would be committed without the checkpoint; temporary tables do not commit."""

    def change(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.connection.exec_driver_sql("CREATE TEMPORARY TABLE passing (id INT)")
        write_effects(context, events)
        context.connection.exec_driver_sql("DROP TEMPORARY TABLE passing")
        if events[0].sequence_number == 0:
            context.connection.exec_driver_sql(statement)

    with Database.open(mariadb_url) as database:
        database.ensure_table(effects)
        with pytest.raises(TransactionMisusedError, match="Nothing of the batch is committed"):
            process(transactions_of(database, change), bad_at([], 3))
        assert effect_numbers(database) == []
        assert process(transactions_of(database, change), bad_at([], 3, start=1)).processed == 2


def with_suppressed(work: Callable[[], None]) -> None:
    """Do it, whatever comes of it."""
    try:
        work()
    except Exception:
        return


def test_a_commit_past_sqlalchemy_is_noticed(base: Database) -> None:
    """The driver's own commit cannot be prevented; it is no success, and no fault of the event."""

    def misuse(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        driver_connection = context.connection.connection.driver_connection
        assert driver_connection is not None
        driver_connection.commit()

    with pytest.raises(TransactionMisusedError, match="bypassing SQLAlchemy"):
        process(transactions_of(base, misuse), bad_at([], 3))
    assert dead_numbers(base) == []


def test_savepoints_and_sessions_of_the_handlers_own_work(base: Database) -> None:
    """A savepoint may be rolled back, and an ORM session committed: both stay inside the transaction."""
    from sqlalchemy.orm import Session

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        write_effect(context, events[0])
        own = context.connection.begin_nested()
        with pytest.raises(IntegrityError):
            write_effect(context, events[0])
        own.rollback()
        with Session(context.connection) as session:
            for event in events[1:]:
                session.execute(insert(effects).values(sequence_number=event.sequence_number))
            session.commit()
        if any(json.loads(event.body)["is_bad"] for event in events):
            raise ValueError

    outcome = process(transactions_of(base, handle), bad_at([2], 5))
    assert (outcome.dead_letters, effect_numbers(base)) == (1, [0, 1, 3, 4])


def test_an_error_that_the_handler_swallows_still_fails_its_event(postgresql_url: str) -> None:
    """PostgreSQL refuses everything after an error: the event is found, and its neighbours are unharmed."""

    def swallow(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            if event.sequence_number == 2:
                with_suppressed(partial(write_effect, context, event))
                return

    with Database.open(postgresql_url) as database:
        database.ensure_table(effects)
        outcome = process(transactions_of(database, swallow), bad_at([], 4))
        assert (outcome.dead_letters, effect_numbers(database)) == (1, [0, 1, 3])


def test_a_loop_that_catches_errors_keeps_each_reason(base: Database) -> None:
    """The next event is tried on every database, and each dead letter says what was refused for it."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            try:
                write_effect(context, event)
                if event.sequence_number in (2, 5, 6):
                    write_effect(context, event)
            except IntegrityError as error:
                context.dead_letter(event, f"refused {event.sequence_number}: {type(error.orig).__name__}")

    handled = transactions_of(base, handle)
    assert process(handled, bad_at([], 9)) == TransactionOutcome(6, 3, 0, 0, 9)
    assert set(effect_numbers(base)) - {2, 5, 6} == {0, 1, 3, 4, 7, 8}
    reasons = {letter.sequence_number: letter.reason for letter in DeadLetters(base).list()}
    (kind,) = {reason.partition(": ")[2] for reason in reasons.values()}
    assert reasons == {number: f"refused {number}: {kind}" for number in (2, 5, 6)}
    assert kind in ("IntegrityError", "UniqueViolation")


def test_what_the_database_refuses_is_told_in_its_own_words(base: Database) -> None:
    """An integrity error of the handler's statement is the event's fault; reasons name no SQL."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            number = min(event.sequence_number, 2)
            context.connection.execute(insert(effects).values(sequence_number=number))

    process(transactions_of(base, handle), bad_at([], 4))
    (letter,) = DeadLetters(base).list()
    assert letter.sequence_number == 3
    assert "INSERT" not in letter.reason
    assert "handle" in letter.traceback


def test_a_missing_table_stops_and_puts_nothing_aside(database: Database) -> None:
    """It is no event's fault: all of them would end as dead letters."""
    with pytest.raises(DatabaseError, match="table is missing"):
        process(transactions_of(database, write_effects), bad_at([], 3))
    assert dead_numbers(database) == []


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_some_errors_are_no_dead_letters(
    base: Database, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is in trouble, not the event: everything is rolled back and the error comes through."""
    monkeypatch.setattr(memory, "_room_bytes", lambda: sys.maxsize // 2)  # more than any machine has

    def fail(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        write_effects(context, events)
        raise error

    with pytest.raises(error):
        process(transactions_of(base, fail), bad_at([], 3))
    assert (effect_numbers(base), dead_numbers(base)) == ([], [])
    assert process(transactions_of(base, write_effects), bad_at([], 3)).processed == 3


@pytest.mark.slow
@pytest.mark.parametrize("form", ["events", "rows", "batches"])
def test_an_event_that_asks_for_too_much_memory_is_at_fault(base: Database, form: str) -> None:
    """As the forged header of an array does in a few bytes; its neighbours are processed."""

    def measure(event: ReceivedEvent) -> Row:
        if json.loads(event.body)["is_bad"]:
            bytes(sys.maxsize // 2)
        return {"sequence_number": event.sequence_number, "key": None}

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.insert(effects, [measure(event) for event in events])

    def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch.column("sequenceNumber").to_pylist()
        if 1 in numbers:
            bytes(sys.maxsize // 2)
        return pa.RecordBatch.from_pydict({"sequenceNumber": numbers, "sequence_number": numbers})

    handler = {
        "events": handle,
        "rows": Pipeline("p", CONSUMER.event_hub, effects, measure),
        "batches": Pipeline("p", CONSUMER.event_hub, effects, ArrowHandler(of_batch, ("sequenceNumber",))),
    }[form]
    process(transactions_of(base, handler), bad_at([1], 3))
    (letter,) = DeadLetters(base).list()
    assert (letter.sequence_number, letter.error_type) == (1, "MemoryError")
    assert effect_numbers(base) == [0, 2]


def test_an_error_without_words_is_a_dead_letter(base: Database) -> None:
    """Whatever its class does when it is asked for them."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        raise MuteError

    process(transactions_of(base, fail), bad_at([], 1))
    (letter,) = DeadLetters(base).list()
    assert (letter.error_type, letter.reason) == ("MuteError", "MuteError")


def test_handlers_that_cannot_run_in_a_transaction_are_refused(sqlite_url: str) -> None:
    """Each is told what to write instead."""

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        raise AssertionError

    class Late(TransactionalProcessor):
        async def process_events(  # type: ignore[override]
            self, context: TransactionContext, events: Sequence[ReceivedEvent]
        ) -> None:
            raise AssertionError

    with Database.open(sqlite_url) as database:
        for handler in (handle, Late()):
            with pytest.raises(InvalidArgumentError, match="is async, and a transaction"):
                transactions_of(database, handler)
        for other, words in ((EventProcessor(), "does not define"), (Scores, "is a class"), (7, "is not a")):
            with pytest.raises(InvalidArgumentError, match=words):
                transactions_of(database, other)
        with pytest.raises(InvalidArgumentError, match="reads other/"):
            transactions_of(database, TransactionalPipeline("p", "other", write_effects))
        with pytest.raises(InvalidArgumentError, match="handler of the pipeline p is a class"):
            TransactionalPipeline("p", "flights", Scores)  # type: ignore[arg-type]
        with pytest.raises(TransactionMisusedError, match="returned a coroutine"):
            process(transactions_of(database, lambda context, events: handle(context, events)), bad_at([], 1))


@pytest.mark.parametrize("action", FailureAction)
def test_pipelines_run_under_each_policy(database: Database, action: FailureAction) -> None:
    """A pipeline's rows, an event its handler fails for, and one that only the database refuses."""
    events = [*events_between(0, 3), event_with({"delay": None}, 3), *events_between(4, 6)]
    transactions = transactions_of(database, PIPELINE, policy=FailurePolicy(action))
    if action is FailureAction.STOP:
        with pytest.raises(PartitionStoppedError, match="no arrival delay"):
            process(transactions, events)
        assert (row_count(database), checkpoint_of(database)) == (3, 3)
        return
    outcome = process(transactions, events)
    parked = 2 if action is FailureAction.PARK_KEY else 0
    assert outcome == TransactionOutcome(5 - parked, 1, parked, 0, 6)
    assert (row_count(database), checkpoint_of(database)) == (5 - parked, 6)
    assert process(transactions, events).skipped == 6


def test_a_pipelines_row_that_the_database_refuses_meets_the_policy(database: Database) -> None:
    """Not only what its handler raises."""
    events = [*events_between(0, 3), event_with({"delay": "late"}, 3), *events_between(4, 6)]
    database.ensure_table(flights)
    with database.writing() as connection, connection.begin():
        connection.execute(insert(flights).values(sequence_number=3, partition_id="0", delay=0))
    with pytest.raises(PartitionStoppedError, match="before event 3"):
        process(transactions_of(database, PIPELINE, policy=STOP), events)
    assert (row_count(database), checkpoint_of(database)) == (4, 3)


def test_a_transactional_pipelines_own_policy_goes_first(base: Database) -> None:
    """And its name is the one in the dead letters."""
    pipeline = TransactionalPipeline("scores", "Flights", write_effects, policy=STOP)
    with pytest.raises(PartitionStoppedError):
        process(transactions_of(base, pipeline), bad_at([1], 3))
    lenient = TransactionalPipeline("scores", "Flights", write_effects)
    process(transactions_of(base, lenient), bad_at([1], 3, start=1))
    assert DeadLetters(base).list()[0].pipeline == "scores"


parents_metadata = MetaData()
parent = Table("parent", parents_metadata, Column("id", Integer, primary_key=True, autoincrement=False))
child = Table(
    "child",
    parents_metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("parent_id", ForeignKey("parent.id", deferrable=True, initially="DEFERRED")),
)


DEFERRING = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
"""MariaDB checks every constraint at once, and refuses to create one that waits."""


@DEFERRING
def test_a_constraint_that_waits_for_the_commit_finds_its_event(database: Database) -> None:
    """A deferred foreign key refuses all of the commit; the careful pass names the one event."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            number = event.sequence_number
            context.connection.execute(
                insert(child).values(id=number, parent_id=number if number == 5 else 1)
            )

    database.ensure_table(parent)
    database.ensure_table(child)
    with database.writing() as connection, connection.begin():
        connection.execute(insert(parent).values(id=1))
    outcome = process(transactions_of(database, handle), bad_at([], 8))
    assert outcome == TransactionOutcome(7, 1, 0, 0, 8)
    assert dead_numbers(database) == [5]
    assert "foreign key" in DeadLetters(database).list()[0].reason.lower()


checked_child = Table(
    "checked_child",
    parents_metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("parent_id", ForeignKey("parent.id", deferrable=True, initially="DEFERRED")),
    Column("delay", Integer, CheckConstraint("delay < 5")),
)


def _checked_row(event: ReceivedEvent) -> dict[str, object]:
    number = event.sequence_number
    return {"id": number, "parent_id": 77 if number == 5 else 1, "delay": 9 if number == 2 else 1}


def _write_checked(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    for event in events:
        context.connection.execute(insert(checked_child).values(_checked_row(event)))


@pytest.fixture
def family(database: Database) -> Database:
    """A database with a parent."""
    database.ensure_table(parent)
    database.ensure_table(checked_child)
    with database.writing() as connection, connection.begin():
        connection.execute(insert(parent).values(id=1))
    return database


@DEFERRING
def test_an_event_refused_at_once_hides_none_that_the_commit_refuses(family: Database) -> None:
    """Both are put aside, whichever the database finds first."""
    outcome = process(transactions_of(family, _write_checked), bad_at([], 8))
    assert outcome == TransactionOutcome(6, 2, 0, 0, 8)
    assert dead_numbers(family) == [2, 5]


@DEFERRING
def test_a_pipelines_event_refused_at_once_hides_none_either(family: Database) -> None:
    """As in a host's transactions, and when they are redriven."""
    pipeline = Pipeline("checked", CONSUMER.event_hub, checked_child, _checked_row)
    events = bad_at([], 8)
    result = process_partition_batch(
        family, pipeline, "0", events, start_sequence_number=0, until_sequence_number=8
    )
    assert (result.rows, result.dead_letters) == (6, 2)
    assert dead_numbers(family) == [2, 5]
    report = DeadLetters(family).redrive(pipeline, LogOfEvents(events))
    assert (report.redriven, report.failed) == (0, 2)
    assert dead_numbers(family) == [2, 5]


@pytest.fixture
def cut_database(proxied_url: str) -> Iterator[Database]:
    """A database behind the proxy."""
    with Database.open(proxied_url) as database:
        database.ensure_table(effects)
        yield database


def test_a_lost_commit_of_a_batch_is_found_out(cut_database: Database, proxy: CuttingProxy) -> None:
    """Committed: success, once. Rolled back: the caller hears so, and runs the same batch again."""
    transactions = transactions_of(cut_database, write_effects)
    proxy.armed = Cut.AFTER_COMMIT
    assert process(transactions, bad_at([1], 3)) == TransactionOutcome(2, 1, 0, 0, 3)
    proxy.armed = Cut.BEFORE_COMMIT
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        process(transactions, bad_at([], 6, start=3))
    assert effect_numbers(cut_database) == [0, 2]
    process(transactions, bad_at([], 6, start=3))
    assert (proxy.cuts, effect_numbers(cut_database)) == (2, [0, 2, 3, 4, 5])


def test_a_lost_commit_of_a_claim_is_found_out(cut_database: Database, proxy: CuttingProxy) -> None:
    """A claim whose answer is lost holds; one that did not arrive is told, and may be repeated."""
    transactions = transactions_of(cut_database, write_effects, epoch=2)
    proxy.armed = Cut.BEFORE_COMMIT
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        asyncio.run(transactions.begin())
    proxy.armed = Cut.AFTER_COMMIT
    assert asyncio.run(transactions.begin()) is None
    with pytest.raises(FencedError):
        process(transactions_of(cut_database, write_effects, epoch=1), bad_at([], 1))


def test_a_connection_that_breaks_under_the_handler_is_no_dead_letter(server_url: str) -> None:
    """Even where the handler says something else about it; the same batch then goes through."""

    def lose(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        write_effects(context, events)
        try:
            kill(database, context.connection)
            context.connection.execute(text("SELECT 1"))
        except Exception:
            raise ValueError("cannot score") from None

    with Database.open(server_url) as database:
        database.ensure_table(effects)
        with pytest.raises(DatabaseUnavailableError, match="lost"):
            process(transactions_of(database, lose), bad_at([], 3))
        assert (effect_numbers(database), dead_numbers(database)) == ([], [])
        assert process(transactions_of(database, write_effects), bad_at([], 3)).processed == 3


def test_a_partition_keeps_to_one_thread(base: Database) -> None:
    """All calls of one partition run in the same thread, so drivers and handlers may keep state there."""
    names: set[str] = set()

    def look(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        names.add(threading.current_thread().name)

    transactions = transactions_of(base, look)
    for start in range(0, 6, 2):
        process(transactions, bad_at([], start + 2, start=start))
    assert len(names) == 1
    assert Partition(lease_of(1)).owner == "host-1"

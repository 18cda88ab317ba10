"""``context.checkpoint()`` inside a transaction: it commits up to there, and what is left comes again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from tests.sql.support import CONSUMER, LogOfEvents, dead_numbers, rows_in
from tests.sql.transaction_support import bad_at, effects, keyed, transactions_of, write_effect

from tidegate.model.errors import InvalidArgumentError, PartitionPausedError, PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.processor.store import TransactionOutcome
from tidegate.sql import CheckpointReader, Database, DeadLetters, TransactionalPipeline
from tidegate.sql.commit.transactions import SqlTransactions


@pytest.fixture
def base(database: Database) -> Database:
    """An empty database of each kind with the table ``effects``."""
    database.ensure_table(effects)
    return database


def process(
    transactions: SqlTransactions, events: Sequence[ReceivedEvent], *, start: int = 0
) -> TransactionOutcome:
    """One batch, from ``start`` to its last event."""
    until = events[-1].sequence_number + 1
    return asyncio.run(
        transactions.process(
            events, start_sequence_number=start, until_sequence_number=until, history_id="of the last event"
        )
    )


def effect_numbers(database: Database) -> list[int]:
    """Events with an effect."""
    return [int(str(row[0])) for row in rows_in(database, effects)]


def checkpoint_of(database: Database) -> int | None:
    """Partition 0's next sequence number."""
    return CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number


def history_of(database: Database) -> str | None:
    """The history that its checkpoint names."""
    with database.read() as connection:
        found: str | None = connection.scalar(sa.text("SELECT history_id FROM tidegate_checkpoint"))
    return found


def test_it_commits_up_to_there_and_undoes_the_rest(base: Database) -> None:
    """Effects and dead letters of the events that come again are not kept: each event counts once."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            if event.sequence_number in (0, 3):
                context.dead_letter(event, "noted")
            if event.sequence_number in (0, 2):
                context.checkpoint(event)
                context.checkpoint(events[0])  # behind the last one: it stays

    events = bad_at([], 6)
    transactions = transactions_of(base, handle)
    assert process(transactions, events) == TransactionOutcome(2, 1, 0, 0, 3)
    assert (effect_numbers(base), checkpoint_of(base), dead_numbers(base)) == ([0, 1, 2], 3, [0])
    assert history_of(base) is None  # of event 2 it may be another, and is not refused for it
    assert process(transactions, events[3:], start=3) == TransactionOutcome(2, 1, 0, 0, 6)
    assert (effect_numbers(base), checkpoint_of(base), dead_numbers(base)) == ([*range(6)], 6, [0, 3])
    assert history_of(base) == "of the last event"


def test_one_that_covers_every_event_undoes_nothing(base: Database) -> None:
    """Nothing comes again, so what is written after it stays."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.checkpoint(events[0])
        context.checkpoint()
        for event in events:
            write_effect(context, event)

    assert process(transactions_of(base, handle), bad_at([], 4)) == TransactionOutcome(4, 0, 0, 0, 4)
    assert effect_numbers(base) == [0, 1, 2, 3]


def test_a_handler_that_raises_after_it_has_committed_nothing(base: Database) -> None:
    """STOP: what precedes the failed event is committed once, by smaller calls, and the error says where."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            context.checkpoint(event)
            if event.sequence_number == 3:
                raise ValueError("not this one")

    events = bad_at([], 8)
    with pytest.raises(PartitionStoppedError) as stopped:
        process(transactions_of(base, handle, policy=FailurePolicy(FailureAction.STOP)), events)
    assert (stopped.value.next_sequence_number, stopped.value.dead_letters) == (3, 0)
    assert (effect_numbers(base), checkpoint_of(base)) == ([0, 1, 2], 3)


def test_a_pause_says_up_to_where_is_committed(base: Database) -> None:
    """One dead letter per minute: the batch ends before the second one."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            if event.sequence_number in (1, 4):
                raise ValueError("bad")

    policy = FailurePolicy(dead_letters_per_minute=1)
    with pytest.raises(PartitionPausedError) as paused:
        process(transactions_of(base, handle, policy=policy), bad_at([], 6))
    assert (paused.value.next_sequence_number, paused.value.dead_letters) == (4, 1)
    assert (effect_numbers(base), checkpoint_of(base), dead_numbers(base)) == ([0, 2, 3], 4, [1])


def test_not_inside_a_savepoint_of_the_handler(base: Database) -> None:
    """Whose end would end the checkpoint, too."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        with (
            context.connection.begin_nested(),
            pytest.raises(InvalidArgumentError, match="inside a savepoint"),
        ):
            context.checkpoint(events[0])
        write_effect(context, events[1])

    assert process(transactions_of(base, handle), bad_at([], 2)).next_sequence_number == 2
    assert effect_numbers(base) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("action", [FailureAction.DEAD_LETTER, FailureAction.PARK_KEY])
@pytest.mark.parametrize("seed", range(6))
def test_each_event_counts_once_wherever_it_is_called(
    base: Database, action: FailureAction, seed: int
) -> None:
    """Random checkpoints, failures and keys: every event ends with one effect or one dead letter."""
    chance = random.Random(seed)
    bad = {number for number in range(60) if chance.random() < 0.1}
    events = [keyed(number, chance.choice("abc")) for number in range(60)]

    def handle(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        for event in batch:
            write_effect(context, event)
            if event.sequence_number in bad:
                raise ValueError("bad")
            if chance.random() < 0.2:
                context.checkpoint(event)

    transactions = transactions_of(base, handle, policy=FailurePolicy(action))
    done = 0
    while done < len(events):
        batch = events[done : done + 12]
        outcome = process(transactions, batch, start=done)
        assert done < outcome.next_sequence_number <= batch[-1].sequence_number + 1, f"seed {seed}"
        done = outcome.next_sequence_number
    written, dead = effect_numbers(base), dead_numbers(base)
    assert sorted([*written, *dead]) == [*range(60)], f"seed {seed}"
    assert bad <= {*dead}
    assert action is FailureAction.PARK_KEY or bad == {*dead}


def test_a_redrive_leaves_nothing_to_a_later_call(base: Database) -> None:
    """It moves no checkpoint: the events after it get calls of their own, in the same transaction."""

    def refuse(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            context.dead_letter(event, "not yet")

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            write_effect(context, event)
            if event.sequence_number == events[0].sequence_number:
                context.checkpoint(event)

    events = bad_at([], 5)
    process(transactions_of(base, TransactionalPipeline("p", CONSUMER.event_hub, refuse)), events)
    pipeline = TransactionalPipeline("p", CONSUMER.event_hub, handle)
    report = DeadLetters(base).redrive(pipeline, LogOfEvents(events))
    assert (report.redriven, report.failed, report.waiting) == (5, 0, 0)
    assert effect_numbers(base) == [*range(5)]
    assert dead_numbers(base) == []

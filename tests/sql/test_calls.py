"""A host's batch in several calls of the handler: one transaction, whose rules are those of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.sql.support import dead_numbers, events_between, flights, record_delay, rows_in
from tests.sql.transaction_support import bad_at, effects, keyed, transactions_of, write_effects
from tests.support.clocks import SetClock

from tidegate.client.retry import RetryPolicy
from tidegate.model.errors import PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.processor.store import TransactionOutcome
from tidegate.sql import Database, Pipeline, Row, UnitOfWork
from tidegate.sql.commit.transactions import SqlTransactions


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def base(tmp_path: Path, clock: SetClock) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/calls.db", clock=clock) as database:
        database.ensure_table(effects)
        database.ensure_table(flights)
        yield database


class Calls:
    """A handler that notes the numbers of each call, and may take its time."""

    def __init__(self, clock: SetClock, *, seconds: float = 0.0) -> None:
        self.numbers: list[list[int]] = []
        self._clock = clock
        self._seconds = seconds

    def __call__(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        self.numbers.append([event.sequence_number for event in events])
        self._clock.advance(self._seconds)
        write_effects(context, events)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens of all transactions that were committed."""
    commit, tokens = UnitOfWork.commit, []

    def note(self: UnitOfWork) -> None:
        commit(self)
        tokens.append(self.token)

    monkeypatch.setattr(UnitOfWork, "commit", note)
    return tokens


def process(transactions: SqlTransactions, events: Sequence[ReceivedEvent]) -> TransactionOutcome:
    """One batch."""
    start, until = events[0].sequence_number, events[-1].sequence_number + 1
    return asyncio.run(transactions.process(events, start_sequence_number=start, until_sequence_number=until))


def effect_numbers(database: Database) -> list[object]:
    """Events with an effect."""
    return [row[0] for row in rows_in(database, effects)]


def test_several_calls_are_one_transaction(base: Database, clock: SetClock, commits: list[str]) -> None:
    """A call gets no more events than the handler asked for."""
    calls = Calls(clock)
    transactions = transactions_of(base, calls, max_batch_size=3)
    assert process(transactions, bad_at([], 8)) == TransactionOutcome(8, 0, 0, 0, 8)
    assert calls.numbers == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert (effect_numbers(base), len(commits)) == (list(range(8)), 1)


@pytest.mark.parametrize("bad", [[0], [4], [7], [1, 4], [2, 3, 6, 7]])
@pytest.mark.slow
def test_a_call_that_fails_fails_alone(
    base: Database, clock: SetClock, commits: list[str], bad: list[int]
) -> None:
    """The transaction is repeated with smaller calls; only the failing events become dead letters."""
    calls = Calls(clock)
    transactions = transactions_of(base, calls, max_batch_size=3)
    outcome = process(transactions, bad_at(bad, 8))
    assert outcome == TransactionOutcome(8 - len(bad), len(bad), 0, 0, 8)
    assert effect_numbers(base) == [number for number in range(8) if number not in bad]
    assert (dead_numbers(base), len(commits)) == (bad, 1)
    assert max(map(len, calls.numbers)) == 3


def test_a_call_that_ends_the_transaction_is_the_last(base: Database) -> None:
    """The events after its checkpoint come again, also those of the calls that were not made."""
    calls: list[int] = []

    def stop_at_four(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        calls.append(len(events))
        write_effects(context, events)
        if events[0].sequence_number == 3:
            context.checkpoint(events[-1])
            return
        context.checkpoint(events[1 if events[0].sequence_number else -1])

    transactions = transactions_of(base, stop_at_four, max_batch_size=3)
    assert process(transactions, bad_at([], 12)) == TransactionOutcome(8, 0, 0, 0, 8)
    assert (calls, effect_numbers(base)) == ([3, 3, 3], list(range(9)))


def test_a_stop_keeps_the_calls_before_it(base: Database, clock: SetClock) -> None:
    """Nothing from the failed event on is there, and no later call is made for good."""
    policy = FailurePolicy(FailureAction.STOP)
    transactions = transactions_of(base, Calls(clock), policy=policy, max_batch_size=3)
    with pytest.raises(PartitionStoppedError) as caught:
        process(transactions, bad_at([4], 9))
    assert (caught.value.next_sequence_number, effect_numbers(base)) == (4, [0, 1, 2, 3])


def test_a_key_stays_parked_in_later_calls(base: Database, clock: SetClock) -> None:
    """What failed in one call of the transaction holds up its key in the next."""
    policy = FailurePolicy(FailureAction.PARK_KEY)
    keys = ["a", "b", "b", "a", "b", "a"]
    events = [keyed(number, key, is_bad=number == 0) for number, key in enumerate(keys)]
    transactions = transactions_of(base, Calls(clock), policy=policy, max_batch_size=2)
    assert process(transactions, events) == TransactionOutcome(3, 1, 2, 0, 6)
    assert (effect_numbers(base), dead_numbers(base)) == ([1, 2, 4], [0, 3, 5])


@pytest.mark.parametrize("bad", [[], [1], [2, 7]])
def test_a_slow_handler_gets_short_transactions(
    base: Database, clock: SetClock, commits: list[str], bad: list[int]
) -> None:
    """After a second no more calls are made; the rest of the batch is the next transactions'."""
    transactions = transactions_of(base, Calls(clock, seconds=1.0), max_batch_size=3)
    events, done = bad_at(bad, 9), []
    while events:
        done.append(process(transactions, events).next_sequence_number)
        events = [event for event in events if event.sequence_number >= done[-1]]
    assert done[0] <= 3
    assert (done[-1], len(commits)) == (9, len(done))
    assert effect_numbers(base) == [number for number in range(9) if number not in bad]
    assert dead_numbers(base) == bad


@pytest.mark.parametrize("retries_max", [0, 1])
def test_a_slow_pipeline_gets_short_transactions(
    base: Database, clock: SetClock, commits: list[str], retries_max: int
) -> None:
    """Also where its rows are made before the transaction, which then begins with nothing locked."""

    def slow(event: ReceivedEvent) -> Row:
        clock.advance(0.2)
        return record_delay(event)

    policy = FailurePolicy(retry=RetryPolicy(retries_max=retries_max))
    pipeline = Pipeline("flights", "flights", flights, slow)
    transactions = transactions_of(base, pipeline, policy=policy, max_batch_size=2)
    assert process(transactions, events_between(0, 9)) == TransactionOutcome(4, 0, 0, 0, 4)
    assert process(transactions, events_between(4, 9)) == TransactionOutcome(4, 0, 0, 0, 8)
    assert process(transactions, events_between(8, 9)) == TransactionOutcome(1, 0, 0, 0, 9)
    assert ([row[0] for row in rows_in(base)], len(commits)) == (list(range(9)), 3)


@pytest.mark.parametrize(("is_one_history", "expected"), [(False, None), (True, "first")])
@pytest.mark.parametrize("is_pipeline", [False, True])
def test_a_part_of_a_batch_has_the_history_of_all(
    base: Database, clock: SetClock, is_pipeline: bool, is_one_history: bool, expected: str | None
) -> None:
    """Otherwise the history of its last event is not known."""

    def slow(event: ReceivedEvent) -> dict[str, object]:
        clock.advance(1.0)
        return {"sequence_number": event.sequence_number}

    handler = Pipeline("flights", "flights", effects, slow) if is_pipeline else Calls(clock, seconds=1.0)
    transactions = transactions_of(base, handler, max_batch_size=2)
    outcome = asyncio.run(
        transactions.process(
            bad_at([], 4),
            start_sequence_number=0,
            until_sequence_number=4,
            history_id="first",
            is_one_history=is_one_history,
        )
    )
    found = asyncio.run(transactions.begin())
    assert found is not None
    assert (outcome.next_sequence_number, found.history_id) == (2, expected)

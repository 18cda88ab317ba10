"""Errors of a handler that are hard to catch or to print: each is its event's, and the others continue."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, Column, Dialect, MetaData, Table, Text
from sqlalchemy.types import TypeDecorator
from tests.sql.support import CONSUMER, dead_numbers
from tests.sql.transaction_support import bad_at, effects, keyed, transactions_of
from tests.support.hard_errors import PanicError, fail_together, panic, parse_badly

from tidegate.model.errors import PartitionPausedError, PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor import FailureAction, FailurePolicy, TransactionContext
from tidegate.processor.store import TransactionOutcome
from tidegate.sql import ArrowHandler, Database, DeadLetters, Pipeline, Row


def _handler(form: str, fail: Callable[[], None]) -> object:
    """Fails for the bad events."""

    def row(event: ReceivedEvent) -> Row:
        if json.loads(event.body)["is_bad"]:
            fail()
        return {"sequence_number": event.sequence_number, "key": None}

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.insert(effects, [row(event) for event in events])

    def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        if any(json.loads(body or b"")["is_bad"] for body in batch.column("body").to_pylist()):
            fail()
        numbers = batch.column("sequenceNumber").to_pylist()
        return pa.RecordBatch.from_pydict({"sequenceNumber": numbers, "sequence_number": numbers})

    batch_handler = ArrowHandler(of_batch, ("sequenceNumber", "body"))
    return {
        "events": handle,
        "rows": Pipeline("p", CONSUMER.event_hub, effects, row),
        "batches": Pipeline("p", CONSUMER.event_hub, effects, batch_handler),
    }[form]


@pytest.fixture
def base(sqlite_url: str) -> Any:
    with Database.open(sqlite_url) as database:
        database.ensure_table(effects)
        yield database


def _process(
    database: Database, handler: object, events: Sequence[ReceivedEvent], **options: Any
) -> TransactionOutcome:
    transactions = transactions_of(database, handler, **options)
    try:
        return asyncio.run(
            transactions.process(events, start_sequence_number=0, until_sequence_number=len(events))
        )
    finally:
        transactions.close()


def _numbers(database: Database) -> list[int]:
    with database.read() as connection:
        return sorted(connection.execute(effects.select()).scalars())


FORMS = pytest.mark.parametrize("form", ["events", "rows", "batches"])


@FORMS
@pytest.mark.parametrize(
    ("fail", "error_type"),
    [(panic, "PanicError"), (fail_together, "BaseExceptionGroup"), (parse_badly, "SystemExit")],
)
def test_an_error_that_is_not_an_exception_is_a_dead_letter(
    base: Database, form: str, fail: Callable[[], None], error_type: str
) -> None:
    """Of its event alone, with its class, as an Exception would be."""
    outcome = _process(base, _handler(form, fail), bad_at([3], 8))
    assert (outcome.processed, outcome.dead_letters, outcome.next_sequence_number) == (7, 1, 8)
    assert _numbers(base) == [0, 1, 2, 4, 5, 6, 7]
    (letter,) = DeadLetters(base).list()
    assert (letter.sequence_number, letter.error_type) == (3, error_type)
    assert fail.__name__ in letter.traceback


@FORMS
def test_the_policy_decides_on_it(base: Database, form: str) -> None:
    """Stop, or an outage of what the handler calls, if it is named so."""
    stopping = FailurePolicy(FailureAction.STOP)
    with pytest.raises(PartitionStoppedError, match="before event 3"):
        _process(base, _handler(form, panic), bad_at([3], 8), policy=stopping)
    assert _numbers(base) == [0, 1, 2]
    outages = FailurePolicy(outage_errors=(PanicError,))
    with pytest.raises(PartitionPausedError, match="PanicError: index out of bounds"):
        _process(base, _handler(form, panic), bad_at(range(3, 8), 8), policy=outages)
    assert dead_numbers(base) == []


@FORMS
@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_interruption_is_not_its_events(base: Database, form: str, error: type[BaseException]) -> None:
    """Everything is rolled back and the interruption comes through."""

    def fail() -> None:
        raise error

    with pytest.raises(error):
        _process(base, _handler(form, fail), bad_at([3], 8))
    assert (_numbers(base), dead_numbers(base)) == ([], [])


class _Panicking(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value == "bad":
            raise PanicError("not to be encoded")
        return value


def test_a_column_type_that_panics(base: Database) -> None:
    """It is the value's fault, as what else a type raises."""
    table = Table(
        "panicking",
        MetaData(),
        Column("n", BigInteger, primary_key=True, autoincrement=False),
        Column("v", _Panicking),
    )
    base.ensure_table(table)

    def row(event: ReceivedEvent) -> Row:
        return {"n": event.sequence_number, "v": "bad" if event.sequence_number == 3 else "good"}

    _process(
        base, Pipeline("p", CONSUMER.event_hub, table, row), [keyed(number, None) for number in range(8)]
    )
    (letter,) = DeadLetters(base).list()
    assert (letter.sequence_number, letter.error_type) == (3, "PanicError")


@FORMS
def test_an_error_that_python_cannot_print(
    base: Database, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 and later raise for an unknown attribute whose name, here an event's, cannot be encoded."""

    class Printed(traceback.TracebackException):
        def __init__(
            self, kind: type[BaseException], error: BaseException, *others: Any, **named: Any
        ) -> None:
            super().__init__(kind, error, *others, **named)
            if isinstance(error, AttributeError) and error.name is not None:
                error.name.encode()

    def fail() -> None:
        getattr(base, json.loads('"on_\\ud800"'))

    with monkeypatch.context() as patch:  # pytest itself prints errors
        patch.setattr(traceback, "TracebackException", Printed)
        outcome = _process(base, _handler(form, fail), bad_at([3], 8))
    assert (outcome.processed, outcome.dead_letters) == (7, 1)
    (letter,) = DeadLetters(base).list()
    assert (letter.sequence_number, letter.error_type) == (3, "AttributeError")
    assert "in fail" in letter.traceback
    assert "has no attribute" in letter.traceback

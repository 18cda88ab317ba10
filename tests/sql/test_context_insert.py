"""``TransactionContext.insert``: a transactional handler's rows in bulk, undone with whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, MetaData, String, Table
from tests.sql.support import CONSUMER, dead_numbers, rows_in
from tests.sql.transaction_support import bad_at, effects, transactions_of, write_effect

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.sql import CheckpointReader, Database, DeadLetters, RowsRefusedError

Handler = Callable[[TransactionContext, Sequence[ReceivedEvent]], None]

shipments = Table(
    "shipments",
    MetaData(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("item", String(20)),
    Column("quantity", Integer, CheckConstraint("quantity > 0"), server_default="1", nullable=False),
)


@dataclass
class Shipment:
    """A row of every column."""

    sequence_number: int
    item: str
    quantity: int


@pytest.fixture
def base(database: Database) -> Database:
    """An empty database of each kind with the tables ``shipments`` and ``effects``."""
    database.ensure_table(shipments)
    database.ensure_table(effects)
    return database


def process(database: Database, handler: Handler, events: Sequence[ReceivedEvent]) -> int:
    """One batch of partition 0 from its beginning; returns the checkpoint."""
    asyncio.run(
        transactions_of(database, handler).process(
            events, start_sequence_number=0, until_sequence_number=len(events)
        )
    )
    checkpoint = CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number
    assert checkpoint is not None
    return checkpoint


def test_rows_of_every_form_are_inserted(base: Database) -> None:
    """Mappings of two column sets and dataclasses, from an iterator; the default fills what is missing."""
    counts: list[int] = []

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        def rows() -> Iterator[object]:
            for number in (event.sequence_number for event in events):
                if number % 3 == 0:
                    yield {"sequence_number": number, "item": "a"}
                elif number % 3 == 1:
                    yield {"item": None, "sequence_number": number, "quantity": number}
                else:
                    yield Shipment(number, "c", 7)

        counts.append(context.insert(shipments, rows()))

    assert process(base, handle, bad_at([], 300)) == 300
    assert counts == [300]
    expected = [[(n, "a", 1), (n, None, n), (n, "c", 7)][n % 3] for n in range(300)]
    assert sorted(tuple(row) for row in rows_in(base, shipments)) == expected
    assert dead_numbers(base) == []


def test_what_the_database_refuses_becomes_the_dead_letter_of_its_event(base: Database) -> None:
    """Its neighbours' rows are there, once."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.insert(
            shipments,
            [Shipment(n, "x", 0 if n in (2, 9) else 1) for n in (e.sequence_number for e in events)],
        )

    assert process(base, handle, bad_at([], 12)) == 12
    assert [row[0] for row in rows_in(base, shipments)] == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]
    assert dead_numbers(base) == [2, 9]
    words = [letter.reason.lower() for letter in DeadLetters(base).list()]
    assert all("quantity" in each or "check" in each for each in words)


def test_a_handler_that_catches_a_refusal_has_inserted_nothing_and_goes_its_way(base: Database) -> None:
    """What was written before stays, on PostgreSQL, too, whose transactions end with a refused statement."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        numbers = [event.sequence_number for event in events]
        write_effect(context, events[0])
        try:
            context.insert(shipments, [Shipment(n, "x", 1 if n < 250 else 0) for n in numbers])
        except RowsRefusedError:
            context.insert(shipments, [{"sequence_number": n, "item": "again"} for n in numbers])

    assert process(base, handle, bad_at([], 260)) == 260
    assert [row[0] for row in rows_in(base, effects)] == [0]
    assert {row[1] for row in rows_in(base, shipments)} == {"again"}
    assert len(rows_in(base, shipments)) == 260
    assert dead_numbers(base) == []


def test_what_is_no_row_of_the_table_becomes_a_dead_letter(base: Database) -> None:
    """An event can name columns; the words say which there are."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        def row_of(number: int) -> object:
            return (
                number if number == 3 else {"sequence_number": number, "itme" if number == 1 else "item": "x"}
            )

        context.insert(shipments, [row_of(event.sequence_number) for event in events])

    assert process(base, handle, bad_at([], 5)) == 5
    assert [row[0] for row in rows_in(base, shipments)] == [0, 2, 4]
    reasons = [letter.reason for letter in DeadLetters(base).list()]
    assert reasons == [
        "The table shipments has no column 'itme'. It has sequence_number, item, quantity.",
        "A row must be a mapping or a dataclass's instance, not int.",
    ]


def test_rows_of_events_that_the_checkpoint_leaves_are_undone(base: Database) -> None:
    """They are inserted after it; so are those of a handler that then fails."""

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        context.insert(shipments, [{"sequence_number": 0}])
        context.checkpoint(events[0])
        context.insert(shipments, [{"sequence_number": 1}])

    assert process(base, handle, bad_at([], 2)) == 1
    assert [row[0] for row in rows_in(base, shipments)] == [0]


def test_no_row_is_inserted_after_the_call(base: Database) -> None:
    """As with everything of a context."""
    kept: list[TransactionContext] = []
    process(base, lambda context, events: kept.append(context), bad_at([], 1))
    with pytest.raises(InvalidArgumentError, match="after the call"):
        kept[0].insert(shipments, [{"sequence_number": 9}])

"""Many rows at once: however many there are and however wide, each is written once and as it is."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest
from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, LargeBinary, MetaData, Table, delete
from sqlalchemy.dialects import mysql
from tests.sql.support import CONSUMER, dead_numbers, event_with, rows_in

from tidegate.model.errors import DatabaseError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import (
    Database,
    DeadLetters,
    Pipeline,
    Row,
    RowsRefusedError,
    UnitOfWork,
    process_partition_batch,
)
from tidegate.sql.core import arrow_rows
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.bulk import plan_of
from tidegate.sql.core.values import PartitionRows

FORMS = ("tuples", "columns")


def _table(width: int) -> Table:
    key = Column("c0", Integer, primary_key=True, autoincrement=False)
    return Table("wide", MetaData(), key, *[Column(f"c{place}", Integer) for place in range(1, width)])


def _write(database: Database, table: Table, rows: list[tuple[int, ...]], form: str) -> None:
    names = tuple(table.columns.keys())
    with UnitOfWork(database, CONSUMER) as unit:
        if form == "tuples":
            unit.insert_values(table, PartitionRows(names, list(rows), range(len(rows))))
            return
        columns = [pa.array(values, pa.int64()) for values in zip(*rows, strict=True)]
        data = pa.table(columns or [pa.array([], pa.int64())] * len(names), names=list(names))
        unit.insert_values(table, ArrowRows(data, data.column("c0").to_numpy()))


@pytest.mark.parametrize("width", [1, 3, 7, 501])
@pytest.mark.slow
def test_every_number_of_rows_is_written_whole(database: Database, width: int) -> None:
    """Around the number that one statement takes, in tables of few columns and of many."""
    table = _table(width)
    with database.read() as connection:
        together = plan_of(table, tuple(table.columns.keys()), connection.dialect).row_count
    database.ensure_table(table)
    for statements, beyond, form in product((0, 1, 3), (-1, 0, 1), FORMS):
        count = max(0, statements * together + beyond)
        rows = [tuple(row * width + place for place in range(width)) for row in range(count)]
        _write(database, table, rows, form)
        assert rows_in(database, table) == rows, f"{form}: {statements} statements and {beyond}"
        with database.writing() as connection, connection.begin():
            connection.execute(delete(table))


@pytest.mark.slow
def test_sqlite_takes_rows_of_few_columns_together(database: Database) -> None:
    """What makes them cheap there; PostgreSQL has COPY, and a row of 501 columns goes alone."""
    with database.read() as connection:
        plans = [
            plan_of(table, tuple(table.columns.keys()), connection.dialect)
            for table in map(_table, (5, 250, 501))
        ]
    expected = [100, 2, 1] if database.is_sqlite else [1, 1, 1]
    assert [plan.row_count for plan in plans] == expected


def test_a_table_that_refers_to_itself_takes_rows_one_by_one(sqlite_url: str) -> None:
    """SQLite looks for parents at the end of a statement: else the border of two would decide which row is
    refused."""
    table = Table(
        "tree",
        MetaData(),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("parent", Integer, ForeignKey("tree.number")),
    )
    parents = {0: 1, 40: 39, 333: 334, 499: 500}
    with Database.open(sqlite_url) as database:
        database.ensure_table(table)
        pipeline = Pipeline(
            name="tree",
            event_hub="flights",
            table=table,
            handler=lambda event: {
                "number": event.sequence_number,
                "parent": parents.get(event.sequence_number),
            },
        )
        events = [event_with({}, number) for number in range(600)]
        process_partition_batch(
            database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=600
        )
        assert dead_numbers(database) == [0, 333, 499]


def test_large_columns_are_rendered_some_rows_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their bytes, too: Arrow's text ends at 2 GiB."""
    table = Table("blobs", MetaData(), Column("c0", Integer, primary_key=True), Column("blob", LargeBinary))
    database.ensure_table(table)
    monkeypatch.setattr(arrow_rows, "_BYTES_MAX", 1_000)
    blobs = [bytes([number]) * 400 for number in range(20)]
    data = pa.table({"c0": pa.array(range(20)), "blob": pa.array(blobs)})
    with UnitOfWork(database, CONSUMER) as unit:
        unit.insert_values(table, ArrowRows(data, data.column("c0").to_numpy()))
    assert rows_in(database, table) == list(enumerate(blobs))


@pytest.mark.slow
def test_a_refused_row_among_many_is_found(database: Database) -> None:
    """The rows that went into the database with it are written, and its reason names what it broke."""
    table = Table(
        "checked",
        MetaData(),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("delay", Integer),
        CheckConstraint("delay < 450", name="delay_is_short"),
    )
    database.ensure_table(table)

    def handle(event: ReceivedEvent) -> Row:
        return {"number": event.sequence_number, "delay": 450 if event.sequence_number == 777 else 1}

    events = [event_with({}, number) for number in range(1_000)]
    pipeline = Pipeline(name="checked", event_hub="flights", table=table, handler=handle)
    result = process_partition_batch(
        database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=1_000
    )
    assert (result.rows, result.dead_letters) == (999, 1)
    assert rows_in(database, table) == [(number, 1) for number in range(1_000) if number != 777]
    assert dead_numbers(database) == [777]
    (letter,) = DeadLetters(database).list()
    assert "delay_is_short" in letter.reason
    # Of this event alone: neither what the batch failed with, nor its statement.
    assert letter.traceback.count("Traceback") == 1
    assert "VALUES" not in letter.traceback


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_column_are_refused(database: Database, form: str) -> None:
    """Neither database could write them, and no event is at fault."""
    table = _table(1)
    database.ensure_table(table)
    empty = (
        PartitionRows((), [(), ()], [0, 1])
        if form == "tuples"
        else ArrowRows(pa.table({"c0": [1, 2]}).select([]), pa.array([1, 2]).to_numpy())
    )
    with (
        pytest.raises(DatabaseError, match="rows for the table wide without any") as caught,
        UnitOfWork(database, CONSUMER) as unit,
    ):
        unit.insert_values(table, empty)
    assert type(caught.value) is DatabaseError
    assert caught.value.next_step == "It has c0."
    assert rows_in(database, table) == []


def test_a_row_of_another_length_is_its_own_fault(database: Database) -> None:
    """Also where the lengths of two rows make up for each other: nothing moves from one row to the next."""
    table = _table(2)
    database.ensure_table(table)
    values: list[tuple[object, ...]] = [(number, 0) for number in range(600)]
    values[100:102] = [(100,), (101, 0, 0)]
    rows = PartitionRows(("c0", "c1"), values, range(600))
    with pytest.raises(RowsRefusedError), UnitOfWork(database, CONSUMER) as unit:
        unit.insert_values(table, rows)
    assert rows_in(database, table) == []


def test_a_row_longer_than_a_statement_may_be_is_its_events_fault(mariadb_url: str) -> None:
    """MariaDB would break the connection; the other rows are written, in as many statements as it takes."""
    table = Table(
        "long", MetaData(), Column("number", Integer, primary_key=True), Column("blob", mysql.LONGBLOB())
    )
    sizes = {0: 900_000, 1: 20_000_000, 2: 900_000, 3: 1}
    pipeline = Pipeline(
        name="long",
        event_hub="flights",
        table=table,
        handler=lambda event: {
            "number": event.sequence_number,
            "blob": bytes(sizes[event.sequence_number]),
        },
    )
    with Database.open(mariadb_url) as database:
        database.ensure_table(table)
        events = [event_with({}, number) for number in sizes]
        process_partition_batch(
            database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=4
        )
        assert dead_numbers(database) == [1]
        assert "max_allowed_packet" in DeadLetters(database).list()[0].reason
        assert [len(row[1]) for row in rows_in(database, table)] == [900_000, 900_000, 1]  # type: ignore[arg-type]

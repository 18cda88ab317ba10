"""What tasks of a ledger sink hand on: rows in an order that databases merge quickly, and no idle columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table

from tidegate.spark.ledger.tasks import ROWS, TaskPlan, TaskRows, read_table
from tidegate.sql.ledger.rows import LedgerTable, WriteMode
from tidegate.sql.ledger.stages import StageOwner

_TABLE = Table(
    "figures",
    MetaData(),
    Column("place", String(8), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("value", BigInteger),
)


def _handed_on(mode: WriteMode, rows: pa.RecordBatch) -> pa.Table:
    plan = TaskPlan(
        owner=StageOwner("sqlite:///none.db", "query", 1, 0),
        tables={"figures": LedgerTable(_TABLE, mode)},
        destination=None,
        columns=tuple(rows.schema.names),
        is_event_kept=True,
        is_refused_dead_lettered=False,
        inline_bytes_max=1 << 20,
    )
    parts = [row for part in TaskRows(plan).run(iter([rows])) for row in part.to_pylist()]
    assert [part["kind"] for part in parts] == [ROWS]
    return read_table(parts[0]["data"])


def _rows(sequence_numbers: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "place": ["b", "a", "b", "a"],
            "number": [1, 2, 0, 1],
            "value": [1, 2, 3, 4],
            "sequenceNumber": pa.array(sequence_numbers, pa.int64()),
        }
    )


@pytest.mark.slow
def test_rows_of_an_upsert_are_in_the_order_of_their_key() -> None:
    """A shuffle's order costs the database twice the time; rows that are appended stay as they come."""
    found = _handed_on(WriteMode.UPSERT, _rows([5, 6, 7, 8]))
    assert found.select(["place", "number", "value", "sequenceNumber"]).to_pydict() == {
        "place": ["a", "a", "b", "b"],
        "number": [1, 2, 0, 1],
        "value": [4, 2, 3, 1],
        "sequenceNumber": [8, 6, 7, 5],
    }
    assert _handed_on(WriteMode.APPEND, _rows([5, 6, 7, 8])).column("value").to_pylist() == [1, 2, 3, 4]


def test_rows_that_know_no_event_come_without_its_columns() -> None:
    """Where dead letters share a DataFrame with other rows; one row that knows its event keeps them."""
    assert _handed_on(WriteMode.UPSERT, _rows([None] * 4)).column_names == ["place", "number", "value"]
    assert "sequenceNumber" in _handed_on(WriteMode.UPSERT, _rows([None, None, 7, None])).column_names

"""Rows in Arrow columns: what was written is read back equal, on both databases, by both ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
)
from tests.sql.support import CONSUMER

from tidegate.sql import Database, RowsRefusedError, UnitOfWork
from tidegate.sql.core import arrow_rows
from tidegate.sql.core.arrow_rows import ArrowRows

everything = Table(
    "everything",
    MetaData(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("small", Integer),
    Column("ratio", Double),
    Column("is_open", Boolean),
    Column("words", Text),
    Column("code", String(16)),
    Column("raw", LargeBinary),
    Column("at", DateTime(timezone=True)),
    Column("local_at", DateTime),
    Column("day", Date),
)
priced = Table(
    "priced",
    MetaData(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("price", Numeric(30, 6)),
    Column("details", JSON(none_as_null=True)),
)

_TYPES: dict[str, Any] = {
    "small": pa.int32(),
    "ratio": pa.float64(),
    "is_open": pa.bool_(),
    "words": pa.string(),
    "code": pa.string(),
    "raw": pa.binary(),
    "at": pa.timestamp("us", tz="UTC"),
    "local_at": pa.timestamp("us"),
    "day": pa.date32(),
}
_text = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("\\\n\t\r'\",.N"), max_size=12
)
_naive = st.datetimes()
_row = st.fixed_dictionaries(
    {
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "is_open": st.none() | st.booleans(),
        "words": st.none() | _text | st.sampled_from(["\\.", "\\N", "", "a\n\\.\nb"]),
        "code": st.none() | st.text("ab\\\t", max_size=16),
        "raw": st.none() | st.binary(max_size=12),
        "at": st.none() | _naive.map(lambda value: value.replace(tzinfo=UTC)),
        "local_at": st.none() | _naive,
        "day": st.none() | st.dates(),
    }
)
_on_a_database = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _write(database: Database, table: Table, data: pa.Table) -> None:
    """Replace the table's rows by these."""
    numbers = data.column("number").to_numpy()
    with UnitOfWork(database, CONSUMER) as unit:
        unit.connection.execute(delete(table))
        unit.insert_values(table, ArrowRows(data, numbers))


def _read(database: Database, table: Table) -> list[dict[str, object]]:
    with database.read() as connection:
        rows = connection.execute(select(table).order_by(table.c.number)).mappings().all()
    return [dict(row) for row in rows]


def _as_stored(row: dict[str, object], database: Database) -> dict[str, object]:
    """Where no zone is kept, SQLAlchemy gives UTC times back without."""
    at = row["at"]
    if not database.dialect.has_zones and isinstance(at, datetime):
        return {**row, "at": at.replace(tzinfo=None)}
    return row


@pytest.mark.slow
@_on_a_database
@given(rows=st.lists(_row, min_size=1, max_size=8), offset=st.integers(0, 3))
def test_what_is_written_is_read_back(database: Database, rows: list[dict[str, object]], offset: int) -> None:
    """Nulls, quotes, line ends, backslashes, bytes, extreme numbers and times; from inside arrays, too."""
    database.ensure_table(everything)
    rows = [{"number": number, **row} for number, row in enumerate(rows)]
    arrays = {"number": pa.array(range(len(rows)))}
    for name, kind in _TYPES.items():
        padded = [None] * offset + [row[name] for row in rows]
        arrays[name] = pa.array(padded, type=kind).slice(offset)
    _write(database, everything, pa.table(arrays))
    assert _read(database, everything) == [_as_stored(row, database) for row in rows]


@_on_a_database
@given(rows=st.lists(_row, min_size=1, max_size=6))
@pytest.mark.slow
def test_both_ways_write_the_same(database: Database, rows: list[dict[str, object]]) -> None:
    """Whole columns, and value by value as SQLAlchemy would: nobody can tell from the table."""
    database.ensure_table(everything)
    data = pa.table(
        {"number": pa.array(range(len(rows)))}
        | {name: pa.array([row[name] for row in rows], type=kind) for name, kind in _TYPES.items()}
    )
    _write(database, everything, data)
    fast = _read(database, everything)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_rows, "_rendered", lambda *arguments: None)
        _write(database, everything, data)
    assert _read(database, everything) == fast


@pytest.mark.parametrize("is_slow", [False, True], ids=["columns", "value by value"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_kept_where_the_database_knows_it(
    database: Database, number: float, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL does; SQLite stores NaN as NULL, whoever writes it; MariaDB has none of them."""
    if is_slow:
        monkeypatch.setattr(arrow_rows, "_rendered", lambda *arguments: None)
    database.ensure_table(everything)
    data = pa.table({"number": [0], "ratio": [number]})
    if database.dialect.name == "mariadb":
        with pytest.raises(RowsRefusedError):
            _write(database, everything, data)
        return
    _write(database, everything, data)
    (row,) = _read(database, everything)
    expected = None if database.is_sqlite and math.isnan(number) else number
    assert row["ratio"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("words", pa.array(["a", None], pa.large_string())),
        ("words", pa.array(["a", None]).dictionary_encode()),
        ("words", pa.array([None, None], pa.null())),
        ("small", pa.array([1, None], pa.uint8())),
        ("small", pa.array([1.0, None], pa.float64())),
        ("ratio", pa.array([0.1, None], pa.float32())),
        ("ratio", pa.array([7, None], pa.int64())),
        ("raw", pa.array([b"ab", None], pa.binary(2))),
        ("at", pa.array([datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5))), None])),
        ("at", pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("ns", tz="Asia/Tokyo"))),
        ("at", pa.array([datetime(1900, 1, 1, tzinfo=UTC), None], pa.timestamp("s", tz="UTC"))),
        ("day", pa.array([date(2026, 2, 28), None], pa.date64())),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)
@pytest.mark.slow
def test_other_widths_of_a_type_mean_the_same(database: Database, column: str, values: pa.Array) -> None:  # type: ignore[type-arg]
    """A 32-bit float stands for exactly its own value, and a time in any zone for the moment that it is."""
    database.ensure_table(everything)
    _write(database, everything, pa.table({"number": [0, 1], column: values}))
    found = [row[column] for row in _read(database, everything)]
    expected = values[0].as_py()
    if column == "at" and expected is not None:
        expected = expected.astimezone(UTC)
        expected = expected if database.dialect.has_zones else expected.replace(tzinfo=None)
    assert found == [expected, None]


@pytest.mark.filterwarnings("ignore:Dialect sqlite.pysqlite does .not. support Decimal")
def test_types_of_no_known_pair_go_value_by_value(database: Database) -> None:
    """Decimals, and JSON from structures: as SQLAlchemy's own insert stores them."""
    database.ensure_table(priced)
    details = [{"a": [1, 2], "b": None}, None]
    data = pa.table(
        {
            "number": [0, 1],
            "price": pa.array([Decimal("12345.678900"), None], pa.decimal128(20, 6)),
            "details": pa.array(details, pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])),
        }
    )
    _write(database, priced, data)
    written = _read(database, priced)
    with database.writing() as connection, connection.begin():
        connection.execute(delete(priced))
        connection.execute(insert(priced), data.to_pylist())
    assert written == _read(database, priced)


def test_decimals_of_any_size_are_exact_on_a_server(server_url: str) -> None:
    """Their text is the database's own; small ones come from Arrow with an exponent."""
    prices = [Decimal("0.000001"), Decimal("-123456789012345678.123456"), Decimal(0), None]
    with Database.open(server_url) as database:
        database.ensure_table(priced)
        _write(
            database, priced, pa.table({"number": range(4), "price": pa.array(prices, pa.decimal128(30, 6))})
        )
        assert [row["price"] for row in _read(database, priced)] == prices


_REFUSED: dict[str, tuple[dict[str, Callable[[], pa.Array[Any]]], bool]] = {
    "NUL": ({"words": lambda: pa.array(["a\0b"])}, False),
    "too long": ({"code": lambda: pa.array(["x" * 17])}, False),
    "too big": ({"small": lambda: pa.array([2**40])}, False),
    "no integer": ({"small": lambda: pa.array([1.5])}, False),
    "null key": ({"number": lambda: pa.array([None], pa.int64())}, True),
    "beyond 64 bits": ({"small": lambda: pa.array([2**63], pa.uint64())}, True),
    "year 10000": ({"at": lambda: pa.array([253_402_300_800], pa.timestamp("s", tz="UTC"))}, True),
    "no UTF-8": ({"words": lambda: pa.array([b"\xff"]).view(pa.string())}, True),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_values_that_a_database_cannot_hold_are_refused(database: Database, case: str) -> None:
    """The caller then finds the event (``insert_carefully``). SQLite holds nearly all that is put into it."""
    columns, is_refused_by_sqlite = _REFUSED[case]
    database.ensure_table(everything)
    arrays = {"number": pa.array([0])} | {name: make() for name, make in columns.items()}
    data = pa.table(arrays)
    rows = ArrowRows(data, np.array([0]))
    is_refused = is_refused_by_sqlite or not database.is_sqlite
    is_refused = is_refused and (case, database.dialect.name) != ("NUL", "mariadb")
    with (
        pytest.raises(RowsRefusedError) if is_refused else nullcontext(),
        UnitOfWork(database, CONSUMER) as unit,
    ):
        unit.insert_values(everything, rows)

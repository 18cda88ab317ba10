"""Turns Arrow columns into what a database takes: COPY's text, values of parameters, or literals of SQL.

Each function renders a known pair (Arrow type, plain SQL type) and returns None for any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
from sqlalchemy import types
from sqlalchemy.types import TypeEngine

from tidegate.sql.core.column_values import INTEGERS, TIMES

_compute: Any = pyarrow.compute  # its stubs know less than it does

Column: TypeAlias = Any
"""A ``pyarrow.Array`` of a type known only at run time, which the stubs cannot express."""

_TEXTS = (types.String, types.Text, types.Unicode, types.UnicodeText, types.VARCHAR, types.CHAR, types.TEXT)
_FLOATS = (types.Float, types.Double, types.FLOAT, types.REAL, types.DOUBLE, types.DOUBLE_PRECISION)
_NUMERICS = (types.Numeric, types.NUMERIC, types.DECIMAL)
_BINARIES = (types.LargeBinary, types.BLOB)
_DATES = (types.Date, types.DATE)
_BOOLEANS = (types.Boolean, types.BOOLEAN)

_FIRST_TIME_US: Final = -62_135_596_800_000_000
_LAST_TIME_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970: what Python can read back from either database."""
_FLOAT_WHOLE_MAX: Final = 2.0**63
_HEX_PAIRS: Final = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), dtype="<u2")
_COPY_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r"))
_SQL_ESCAPES: Final = (("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0"))


# --- PostgreSQL: columns as text ------------------------------------------------------------------------


def in_copy(column: Column, sql_type: TypeEngine[Any]) -> Column | None:
    """The column's values in COPY's text format; null stays null. None: unknown pair of types."""
    kind, target = column.type, type(sql_type)
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind):
        return _escaped(column, _COPY_ESCAPES) if target in _TEXTS else None
    if pa.types.is_binary(kind):
        return _hexadecimal(column, "\\\\x", "") if target in _BINARIES else None
    if pa.types.is_boolean(kind) and target in (*_BOOLEANS, *INTEGERS):
        return (column.cast(pa.int8()) if target in INTEGERS else column).cast(pa.string())
    if pa.types.is_floating(kind) and target in (*_FLOATS, *_NUMERICS, *INTEGERS):
        return _float_text(column, is_whole_wanted=target in INTEGERS)
    is_plain = (pa.types.is_integer(kind) and target in (*INTEGERS, *_FLOATS, *_NUMERICS)) or (
        pa.types.is_decimal(kind) and target in (*_NUMERICS, *_FLOATS)
    )
    if is_plain:
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind) and target in TIMES:
        text = _microseconds(column).cast(pa.string())
        # Always with a zone: without one, the server's setting would decide which moment is meant.
        has_zone = getattr(sql_type, "timezone", False)
        return _compute.binary_join_element_wise(text, "+00", "") if has_zone else text
    if pa.types.is_date(kind) and target in _DATES:
        return _date_text(column)
    return None


def _float_text(column: Column, *, is_whole_wanted: bool) -> Column:
    # The shortest string of a 32-bit float stands for another 64-bit number.
    column = column.cast(pa.float64())
    if not is_whole_wanted:
        return column.cast(pa.string())
    # As a float, 1700000000123 is 1.700000000123e+12, which PostgreSQL does not accept as an integer.
    is_whole = _is_whole(column)
    whole = _compute.if_else(is_whole, column, None).cast(pa.int64())
    return _compute.if_else(is_whole, whole.cast(pa.string()), column.cast(pa.string()))


def _is_whole(column: Column) -> Column:
    is_whole = _compute.equal(_compute.floor(column), column)
    return _compute.and_(is_whole, _compute.less(_compute.abs(column), _FLOAT_WHOLE_MAX))


def _escaped(column: Column, escapes: Sequence[tuple[str, str]]) -> Column:
    data = _bytes_of(column).to_pybytes()
    for character, escape in escapes:
        if character.encode() in data:
            column = _compute.replace_substring(column, character, escape)
    return column


def _hexadecimal(column: Column, before: str, after: str) -> Column:
    """Bytes as hexadecimal text; null stays null."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    pairs = _HEX_PAIRS[np.frombuffer(memoryview(_bytes_of(column)), dtype=np.uint8)]
    digits = pa.Array.from_buffers(
        pa.string(),
        len(column),
        [None, pa.py_buffer(((offsets - offsets[0]) * 2).astype(np.int32).data), pa.py_buffer(pairs.data)],
    )
    texts = _compute.binary_join_element_wise(before, digits, after, "")
    return _compute.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))


def _bytes_of(column: Column) -> pa.Buffer:
    """The bytes of all values of a string or binary column, concatenated."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return pa.py_buffer(b"")
    ends = np.frombuffer(offsets, dtype=np.int32)
    start, until = int(ends[column.offset]), int(ends[column.offset + len(column)])
    values: pa.Buffer = data.slice(start, until - start)
    return values


# --- MariaDB: columns as literals -----------------------------------------------------------------------


def in_sql(column: Column, sql_type: TypeEngine[Any]) -> Column | None:
    """The column's values as literals of SQL; null stays null. None: unknown pair of types.

    Raises ValueError for numbers that MariaDB would change or lacks: fractions for integers, NaN, infinity.
    """
    kind, target = column.type, type(sql_type)
    if pa.types.is_string(kind):
        return _quoted(_escaped(column, _SQL_ESCAPES)) if target in _TEXTS else None
    if pa.types.is_binary(kind):
        return _hexadecimal(column, "x'", "'") if target in _BINARIES else None
    if pa.types.is_floating(kind) and target in INTEGERS:
        return _whole_floats(column.cast(pa.float64())).cast(pa.string())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.string()) if target in (*_BOOLEANS, *INTEGERS) else None
    if pa.types.is_timestamp(kind):
        return _quoted(_microseconds(column).cast(pa.string())) if target in TIMES else None
    text = in_copy(column, sql_type)
    if text is None or pa.types.is_null(kind) or pa.types.is_integer(kind):
        return text
    if pa.types.is_floating(kind) and _compute.any(_compute.invert(_compute.is_finite(column))).as_py():
        raise ValueError("a number is not finite, and MariaDB has no such numbers")
    # A number without an exponent would be a decimal, with fewer digits than a float can need.
    return _quoted(text)


def _quoted(column: Column) -> Column:
    return _compute.binary_join_element_wise("'", column, "'", "")


def _whole_floats(column: Column) -> Column:
    """Raises ValueError for what is not an integer of 64 bits."""
    is_whole = _is_whole(column)
    if _compute.any(_compute.invert(is_whole)).as_py():
        raise ValueError("a number is not an integer of 64 bits")
    return column.cast(pa.int64())


# --- SQLite: columns as lists ---------------------------------------------------------------------------


def as_parameters(column: Column, sql_type: TypeEngine[Any]) -> list[Any] | None:
    """The column as values that the driver binds as SQLAlchemy's type would. None: unknown pair of types."""
    kind, target = column.type, type(sql_type)
    if pa.types.is_null(kind):
        return [None] * len(column)
    if (pa.types.is_string(kind) and target in _TEXTS) or (pa.types.is_binary(kind) and target in _BINARIES):
        return _plain_values(column)
    if pa.types.is_boolean(kind) and target in (*_BOOLEANS, *INTEGERS):
        return _numbers(column.cast(pa.int8()))
    if pa.types.is_integer(kind) and target in (*INTEGERS, *_FLOATS):
        return _numbers(column)
    if pa.types.is_floating(kind) and target in (*_FLOATS, *INTEGERS):
        return _numbers(column.cast(pa.float64()))
    if pa.types.is_timestamp(kind) and target in TIMES:
        # The format in which SQLAlchemy's DateTime stores and reads times on SQLite: without a zone.
        return _plain_values(_microseconds(column).cast(pa.string()))
    if pa.types.is_date(kind) and target in _DATES:
        return _plain_values(_date_text(column))
    return None


def _plain_values(column: Column) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _numbers(column: Column) -> list[Any]:
    """Numbers as Python objects, null as None; NumPy would turn integers with nulls into floats."""
    if not column.null_count:
        return _plain_values(column)
    values = _plain_values(column.fill_null(0))
    for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        values[place] = None
    return values


# --- all ------------------------------------------------------------------------------------------------


def _microseconds(column: Column) -> Column:
    """Times in UTC without a zone, truncated to the microsecond, which both databases keep.

    Raises ValueError outside the years 1 to 9999.
    """
    # Convert the zone first: in local time, the hour repeated in autumn is ambiguous.
    kind: Any = column.type
    column = column.cast(pa.timestamp(kind.unit, tz=None if kind.tz is None else "UTC"))
    if kind.unit == "ns":
        column = _compute.floor_temporal(column, unit="microsecond")
    column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    _check_range(column, _FIRST_TIME_US, _LAST_TIME_US)
    return column.cast(pa.timestamp("us"))


def _date_text(column: Column) -> Column:
    days = column.cast(pa.date32())
    _check_range(days.cast(pa.int32()), _FIRST_TIME_US // 86_400_000_000, _LAST_TIME_US // 86_400_000_000)
    return days.cast(pa.string())


def _check_range(column: Column, first: int, last: int) -> None:
    found = _compute.min_max(column).as_py()
    if found["min"] is not None and (found["min"] < first or found["max"] > last):
        raise ValueError("a time is outside of the years 1 to 9999")

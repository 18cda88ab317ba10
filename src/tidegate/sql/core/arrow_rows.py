"""Inserts rows in Arrow columns into one table: by COPY on PostgreSQL, as parameters on SQLite.

Theory of operation. If each column is a known pair (Arrow type, plain SQL type), whole columns are rendered:
for PostgreSQL as lines of COPY's text format, by Arrow's own kernels (3.6 times as fast as ``pyarrow.csv``,
measured); for SQLite as lists of Python values. A single column of any other pair sends all rows through
``bulk``, value by value, with SQLAlchemy's bind processors: slower, with the same result. Importing this
module needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from sqlalchemy import Connection, Table, types
from sqlalchemy.types import TypeEngine

from tidegate.sql.core.bulk import copy_text, insert_parameters, insert_values, plan_of
from tidegate.sql.core.column_values import INTEGERS, TIMES

_compute: Any = pyarrow.compute  # its stubs know less than it does

SequenceNumbers = npt.NDArray[np.int64]
Column: TypeAlias = Any
"""A ``pyarrow.Array`` of a type known only at run time, which the stubs cannot express."""

_ROWS_MAX: Final = 50_000
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Rows, and their bytes in Arrow, rendered together (our choice: as text they stay far below an Arrow string
column's 2 GiB, even binary values, which double)."""

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
_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r"))


@dataclass(frozen=True, slots=True, eq=False)
class ArrowRows:
    """Rows of one hub partition as columns, each row with the event it came from."""

    data: pa.Table
    """Its columns have the names of the table's."""
    sequence_numbers: SequenceNumbers
    """One per row, never descending."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that the rows have."""
        return tuple(self.data.column_names)

    def __len__(self) -> int:
        return self.data.num_rows

    def numbers(self) -> list[int]:
        """The sequence numbers as Python integers."""
        numbers: list[int] = self.sequence_numbers.tolist()
        return numbers

    def between(self, start: int, until: int) -> ArrowRows:
        """The rows of the events in ``[start, until)``, without copying."""
        numbers = self.sequence_numbers
        if not len(numbers) or (numbers[0] >= start and numbers[-1] < until):
            return self
        low, high = (int(place) for place in np.searchsorted(numbers, [start, until]))
        return ArrowRows(self.data.slice(low, high - low), numbers[low:high])


def joined_arrow(groups: Sequence[ArrowRows]) -> list[ArrowRows]:
    """Join groups that have the same columns and types; the joined numbers are not in order."""
    # Compared, not hashed: a schema with metadata, or with a type of the user's, need not have a hash.
    alike: list[list[ArrowRows]] = []
    for group in groups:
        for parts in alike:
            if parts[0].data.schema.equals(group.data.schema):
                parts.append(group)
                break
        else:
            alike.append([group])
    return [
        ArrowRows(
            pa.concat_tables([part.data.replace_schema_metadata(None) for part in parts]),
            np.concatenate([part.sequence_numbers for part in parts]),
        )
        for parts in alike
    ]


def insert_arrow(connection: Connection, table: Table, rows: ArrowRows) -> None:
    """Insert the rows. Raises as ``bulk.insert_values`` does."""
    if not len(rows):
        return
    plan = plan_of(table, rows.columns, connection.dialect)
    sql_types = [table.columns[name].type for name in rows.columns]
    render = _copy_text if plan.is_copy else _sqlite_values
    is_known = not plan.is_core_needed and (not plan.is_copy or _is_utf8(connection))
    step = max(1, min(_ROWS_MAX, len(rows) * _BYTES_MAX // max(1, rows.data.nbytes)))
    for start in range(0, len(rows), step):
        try:
            columns = [_whole(column) for column in rows.data.slice(start, step).columns]
            rendered = _rendered(render, columns, sql_types) if is_known else None
            if rendered is None:
                values = list(zip(*map(_python_values, columns), strict=True))
            elif plan.is_copy:
                lines = memoryview(_lines(rendered))
        except pa.ArrowException as error:
            # Such as invalid UTF-8: a value that cannot be turned into SQL.
            raise ValueError(" ".join(str(error).split())) from error
        if rendered is None:
            insert_values(connection, table, rows.columns, values)
        elif plan.is_copy:
            copy_text(connection, plan.statement, [lines])
        else:
            insert_parameters(connection, plan, _end_to_end(rendered))


def _whole(column: pa.ChunkedArray[Any]) -> Column:
    """The column as one chunk, without dictionary encoding or 64-bit offsets."""
    whole: Column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    kind = whole.type
    if pa.types.is_dictionary(kind):
        whole = whole.dictionary_decode()
        kind = whole.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return whole.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return whole.cast(pa.binary())
    return whole


_Renderer = Callable[[Column, TypeEngine[Any]], Any]


def _rendered(
    render: _Renderer, columns: Sequence[Column], sql_types: Sequence[TypeEngine[Any]]
) -> list[Any] | None:
    """Each column by ``render``; None if it does not know one column's pair of types."""
    rendered = []
    for column, sql_type in zip(columns, sql_types, strict=True):
        # A variant is a different type on that dialect.
        done = None if sql_type._variant_mapping else render(column, sql_type)
        if done is None:
            return None
        rendered.append(done)
    return rendered


# --- PostgreSQL: columns as text ------------------------------------------------------------------------


def _copy_text(column: Column, sql_type: TypeEngine[Any]) -> Column | None:
    """The column's values in COPY's text format; null stays null. None: unknown pair of types."""
    kind, target = column.type, type(sql_type)
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind):
        return _escaped(column) if target in _TEXTS else None
    if pa.types.is_binary(kind):
        return _bytea(column) if target in _BINARIES else None
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
    is_whole = _compute.equal(_compute.floor(column), column)
    is_whole = _compute.and_(is_whole, _compute.less(_compute.abs(column), _FLOAT_WHOLE_MAX))
    whole = _compute.if_else(is_whole, column, None).cast(pa.int64())
    return _compute.if_else(is_whole, whole.cast(pa.string()), column.cast(pa.string()))


def _lines(columns: Sequence[Column]) -> pa.Buffer:
    """Rendered columns as the lines of COPY."""
    join = _compute.binary_join_element_wise
    joined = join(*columns, "\t", null_handling="replace", null_replacement="\\N")
    lines = join(joined, "", "\n")
    _, offsets, data = lines.buffers()
    assert lines.offset == 0
    assert data is not None
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(lines) + 1)
    lines_data: pa.Buffer = data.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return lines_data


def _escaped(column: Column) -> Column:
    data = _bytes_of(column).to_pybytes()
    for character, escape in _ESCAPES:
        if character.encode() in data:
            column = _compute.replace_substring(column, character, escape)
    return column


def _bytea(column: Column) -> Column:
    """Bytes as PostgreSQL's hexadecimal text, with its backslash escaped for COPY."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    pairs = _HEX_PAIRS[np.frombuffer(memoryview(_bytes_of(column)), dtype=np.uint8)]
    digits = pa.Array.from_buffers(
        pa.string(),
        len(column),
        [None, pa.py_buffer(((offsets - offsets[0]) * 2).astype(np.int32).data), pa.py_buffer(pairs.data)],
    )
    texts = _compute.binary_join_element_wise("\\\\x", digits, "")
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


# --- SQLite: columns as lists ---------------------------------------------------------------------------


def _end_to_end(columns: Sequence[list[Any]]) -> list[Any]:
    """The values of all rows, row after row; at least one column."""
    parameters: list[Any] = [None] * (len(columns) * len(columns[0]))
    for place, column in enumerate(columns):
        parameters[place :: len(columns)] = column
    return parameters


def _sqlite_values(column: Column, sql_type: TypeEngine[Any]) -> list[Any] | None:
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


# --- both -----------------------------------------------------------------------------------------------


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


def _python_values(column: Column) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if value is None else dict(value) for value in values]
    return values


def _is_utf8(connection: Connection) -> bool:
    """Whether PostgreSQL expects UTF-8, which Arrow has; a URL or a database may set another encoding."""
    driver: Any = connection.connection.driver_connection
    return bool(driver.info.encoding == "utf-8")

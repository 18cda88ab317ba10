"""Inserts rows in Arrow columns into one table, in the form in which its database takes many.

Theory of operation. If each column is a known pair (Arrow type, plain SQL type), whole columns are rendered
(``arrow_columns``): for PostgreSQL as lines of COPY's text format, by Arrow's own kernels (3.6 times as fast
as ``pyarrow.csv``, measured); for MariaDB as rows of an INSERT; for SQLite as lists of Python values. One
column of any other pair sends all rows through ``bulk``, value by value, with SQLAlchemy's bind processors:
slower, with the same result. Importing this module needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from sqlalchemy import Connection, Table
from sqlalchemy.types import TypeEngine

from tidegate.sql.core.arrow_columns import Column, as_parameters, in_copy, in_sql
from tidegate.sql.core.bulk import copy_text, insert_parameters, insert_text, insert_values, plan_of
from tidegate.sql.core.dialects.base import BulkForm

_compute: Any = pyarrow.compute  # its stubs know less than it does

SequenceNumbers = npt.NDArray[np.int64]

_ROWS_MAX: Final = 50_000
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Rows, and their bytes in Arrow, rendered together (our choice: as text they stay far below an Arrow string
column's 2 GiB, even binary values, which double)."""


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
    render = _RENDERERS.get(plan.form)
    is_known = not plan.is_core_needed and (plan.form is not BulkForm.COPY or _is_utf8(connection))
    step = max(1, min(_ROWS_MAX, len(rows) * _BYTES_MAX // max(1, rows.data.nbytes)))
    for start in range(0, len(rows), step):
        try:
            columns = [_whole(column) for column in rows.data.slice(start, step).columns]
            rendered = _rendered(render, columns, sql_types) if is_known and render else None
            if rendered is None:
                values = list(zip(*map(_python_values, columns), strict=True))
            elif plan.form is BulkForm.COPY:
                data, ends = _joined(rendered, "\t", null="\\N", until="\n")
            elif plan.form is BulkForm.TEXT:
                data, ends = _joined(rendered, ",", null="NULL", start="(", until="),")
                str(data, "utf-8")  # invalid UTF-8 must not reach the server within a statement
        except pa.ArrowException as error:
            # Such as invalid UTF-8: a value that cannot be turned into SQL.
            raise ValueError(" ".join(str(error).split())) from error
        if rendered is None:
            insert_values(connection, table, rows.columns, values)
        elif plan.form is BulkForm.COPY:
            copy_text(connection, plan.statement, [data])
        elif plan.form is BulkForm.TEXT:
            insert_text(connection, plan, bytes(data), ends)
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


_RENDERERS: Final[dict[BulkForm, _Renderer]] = {
    BulkForm.COPY: in_copy,
    BulkForm.PARAMETERS: as_parameters,
    BulkForm.TEXT: in_sql,
}


def _joined(
    columns: Sequence[Column], separator: str, *, null: str, until: str, start: str = ""
) -> tuple[memoryview, Sequence[int]]:
    """Rendered columns as rows of text, and where each row ends in it."""
    join = _compute.binary_join_element_wise
    joined = join(*columns, separator, null_handling="replace", null_replacement=null)
    rows = join(start, joined, until, "")
    _, offsets, data = rows.buffers()
    assert rows.offset == 0
    assert data is not None
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(rows) + 1)
    return memoryview(data.slice(int(ends[0]), int(ends[-1] - ends[0]))), (ends[1:] - ends[0]).tolist()


def _end_to_end(columns: Sequence[list[Any]]) -> list[Any]:
    """The values of all rows, row after row; at least one column."""
    parameters: list[Any] = [None] * (len(columns) * len(columns[0]))
    for place, column in enumerate(columns):
        parameters[place :: len(columns)] = column
    return parameters


def _python_values(column: Column) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if value is None else dict(value) for value in values]
    return values


def _is_utf8(connection: Connection) -> bool:
    """Whether PostgreSQL expects UTF-8, which Arrow has; a URL or a database may set another encoding."""
    driver: Any = connection.connection.driver_connection
    return bool(driver.info.encoding == "utf-8")

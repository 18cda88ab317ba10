"""Makes columns readable that a sender can spoil: text that is not UTF-8, times that Python does not have.

Spark casts any bytes to a string, and has years up to 294247. Both are in columns of types that Python, and
readers of files and events, expect to be valid; an error would stop the query for good.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

_FIRST_TIME: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST_TIME: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""A day from Python's limits, as a time zone may move it."""

_compute: Any = pc
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def python_rows(rows: _Rows, **options: Any) -> list[dict[str, Any]]:
    """The rows as Python objects. Text is made UTF-8, and times outside of the years 1 to 9999 are null.

    options: of Arrow's ``to_pylist``.
    """
    try:
        return rows.to_pylist(**options)
    except (OverflowError, ValueError):
        known = _with_columns(with_valid_text(rows), lambda column: _changed(column, _known_times))
        return known.to_pylist(**options)


def with_valid_text(rows: _Rows) -> _Rows:
    """The rows, with U+FFFD in place of bytes that are not UTF-8."""
    return _with_columns(rows, valid_text)


def valid_text(column: Any) -> Any:
    """The array, whole or in chunks, with U+FFFD in place of bytes that are not UTF-8; itself if there are
    none."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return _changed(column, _valid_text)
    return column


def _with_columns(rows: _Rows, change: Callable[[Any], Any]) -> _Rows:
    if not rows.num_columns:
        return rows  # from no arrays, it would have no rows
    return type(rows).from_arrays([change(column) for column in rows.columns], schema=rows.schema)


def _changed(column: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_changed(chunk, change) for chunk in column.chunks], column.type)
    # Copied, so that no array begins within its buffers.
    return _with_leaves(column.take(pa.array(range(len(column)), pa.int64())), change)


def _with_leaves(column: Any, change: Callable[[Any], Any]) -> Any:
    """The column, with ``change`` applied to the arrays of single values in it."""
    kind = column.type
    buffer_count = 2
    if pa.types.is_struct(kind):
        children = [_with_leaves(column.field(index), change) for index in range(kind.num_fields)]
        buffer_count = 1
    elif pa.types.is_map(kind):
        pairs = [_with_leaves(each, change) for each in (column.keys, column.items)]
        children = [pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        children = [_with_leaves(column.values, change)]
    else:
        return change(column)
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:buffer_count], column.null_count, children=children
    )


def _valid_text(column: Any) -> Any:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    values = column.cast(pa.large_binary()).to_pylist()
    texts = [None if value is None else value.decode(errors="replace") for value in values]
    return pa.array(texts, column.type)


def _known_times(column: Any) -> Any:
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return column
    first, last = (
        pa.scalar(time, pa.timestamp("us", "UTC")).cast(kind) for time in (_FIRST_TIME, _LAST_TIME)
    )
    is_known = _compute.and_(_compute.greater_equal(column, first), _compute.less_equal(column, last))
    return _compute.if_else(is_known, column, pa.scalar(None, kind))

"""Text that Spark cast from any bytes can be read, in columns of every shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.columns.valid import python_rows, valid_text, with_valid_text

_TEXTS: Any = pa.array([b"\xffx", None, b"ok", b"\xc3"]).view(pa.string())
_STARTS: Any = pa.array([0, 2, None, 3, 4], pa.int32())
_KEYS: Any = pa.array(["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (_TEXTS, ["\ufffdx", None, "ok", "\ufffd"]),
        (_TEXTS[1:], [None, "ok", "\ufffd"]),
        (_TEXTS.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())[3:], ["\ufffd"]),
        (pa.chunked_array([_TEXTS[2:], _TEXTS[:1]]), ["ok", "\ufffd", "\ufffdx"]),
        (pa.ListArray.from_arrays(_STARTS, _TEXTS)[1:], [["ok"], None, ["\ufffd"]]),
        (pa.MapArray.from_arrays(_STARTS, _KEYS, _TEXTS)[1:], [[("c", "ok")], None, [("d", "\ufffd")]]),
        (pa.MapArray.from_arrays(_STARTS, _TEXTS.fill_null(""), _KEYS)[3:], [[("\ufffd", "d")]]),
        (pa.StructArray.from_arrays([_TEXTS, _KEYS], ["text", "key"])[3:], [{"text": "\ufffd", "key": "d"}]),
    ],
    ids=["text", "slice", "large", "chunks", "list", "map", "names", "struct"],
)
def test_bytes_that_are_not_utf8_are_replaced(column: Any, values: list[object]) -> None:
    """In whole columns and those that begin within their buffers; nulls stay."""
    found = valid_text(column)
    assert (found.type, found.to_pylist()) == (column.type, values)
    table = with_valid_text(pa.table({"column": column, "bytes": pa.array([b"\xff"] * len(column))}))
    assert table.to_pydict() == {"column": values, "bytes": [b"\xff"] * len(column)}


def test_rows_without_columns_stay() -> None:
    """Arrow counts rows by their columns unless it is given a number."""
    rows = pa.RecordBatch.from_pydict({"number": [1, 2]}).select([])
    assert (with_valid_text(rows).num_rows, python_rows(rows)) == (2, [{}, {}])


def test_valid_text_stays_as_it_is() -> None:
    """The usual case costs a check."""
    column = pa.array(["é", None, "\ufffd"])
    assert valid_text(column) is column

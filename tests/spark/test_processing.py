"""Rows that are there to be counted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spark.source import processing
from tidegate.spark.source.processing import rows_without_content

_FIELDS: list[Any] = [pa.field("name", pa.string()), pa.field("at", pa.timestamp("us", tz="UTC"))]
_SCHEMA = pa.schema(_FIELDS)


@given(count=st.integers(-3, 40), rows_max=st.integers(1, 9))
def test_as_many_rows_as_are_asked_for(count: int, rows_max: int) -> None:
    """In as many batches as it takes, none of them empty, and every value null."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing, "_EMPTY_ROWS_MAX", rows_max)
        batches = list(rows_without_content(count, _SCHEMA))
    assert sum(batch.num_rows for batch in batches) == max(0, count)
    assert all(0 < batch.num_rows <= rows_max for batch in batches)
    assert all(batch.schema.equals(_SCHEMA) for batch in batches)
    assert all(column.null_count == len(column) for batch in batches for column in batch.columns)

"""Lets Spark count events although a source returns other rows for them, or none.

Spark's figures (``numInputRows``, rates) count a source's rows. A source that does more than read adds rows
without content until there are as many rows as events read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

_ROWS_MAX: Final = 100_000
"""Most rows in a batch (our choice)."""


class CountedBatches:
    """Counts the rows of batches as they pass."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0
        """Rows passed so far."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def rows_without_content(count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """This many rows with null in each column; none if ``count`` is below 1."""
    for start in range(0, count, _ROWS_MAX):
        rows = min(count - start, _ROWS_MAX)
        yield pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)

"""Lets Spark count events where a source returns something else for them, or nothing.

Spark's figures (``numInputRows``, rates) count the rows of a source. A source that does more than reading
adds rows without content until there are as many as events that it has read.
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
        """Of the batches that have passed."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def rows_without_content(count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """This many rows, each column null; none where ``count`` is below 1."""
    for start in range(0, count, _ROWS_MAX):
        rows = min(count - start, _ROWS_MAX)
        yield pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)

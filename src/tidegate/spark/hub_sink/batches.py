"""Cuts a task's rows into batches for hub partitions, always the same batches for the same rows.

A row's partition and a batch's end depend only on the rows and their order, not on time or on how Spark cut
them into Arrow batches. So a repeated task makes the same batches, and the log recognises those that it has
(``client.repeatable``).

    partition set          that partition
    partitionKey set       the partition to which the service would hash the key
    neither                the next partition after every 500 such rows; task and micro-batch choose the first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns.valid import valid_text
from tidegate.model.errors import EventTooLargeError, InvalidArgumentError, NotFoundError
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.spark.hub_sink.encoding import encode_sections

_ROWS_PER_TURN: Final = 500
"""Rows without a key that go to one partition before the next (our choice: a few thousand rows reach several
partitions, and runs are long enough to be cheap)."""
_SLICE_BYTES: Final = 64 * 1024 * 1024
"""Rows are encoded in slices of this size: Arrow's offsets have 31 bits, and memory is limited."""
_KEYS_REMEMBERED: Final = 262_144

_compute: Any = pc


@dataclass(frozen=True, slots=True)
class HubBatch:
    """The content of one message."""

    partition_index: int
    sections: bytes
    event_count: int


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    pieces: list[memoryview] = field(default_factory=list)
    size_bytes: int = 0
    event_count: int = 0


def sendable_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with text that is UTF-8 wherever an event must have it: everywhere but in the body."""
    for index, field_ in enumerate(rows.schema):
        column = rows.column(index)
        if field_.name == "body" or (valid := valid_text(column)) is column:
            continue
        if field_.name == "partitionKey":
            # Spark's ``left`` can count four bytes that are not UTF-8 as one character.
            is_changed = _compute.not_equal(*(each.cast(pa.large_binary()) for each in (column, valid)))
            cut = _compute.utf8_slice_codeunits(valid, 0, PARTITION_KEY_CHARACTERS_MAX)
            valid = _compute.if_else(is_changed, cut, valid)
        rows = rows.set_column(index, field_, valid)
    return rows


class BatchCutter:
    """Cuts one task's rows: ``add`` them in order, then ``finish``."""

    def __init__(self, partition_ids: tuple[str, ...], batch_bytes_max: int, *, first_turn: int) -> None:
        """first_turn: the first partition of rows without a key, modulo the number of partitions."""
        self._partition_ids = partition_ids
        self._bytes_max = batch_bytes_max
        self._first_turn = first_turn
        self._open = [_Open() for _ in partition_ids]
        self._rows_before = 0
        self._keyless_before = 0
        self._index_by_key: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> Iterator[HubBatch]:
        """Add rows; yields the batches that they fill.

        Raises InvalidArgumentError, NotFoundError or EventTooLargeError for the first invalid row of a slice
        of 64 MB; then no batch has any row of that slice.
        """
        rows_per_slice = max(1, int(rows.num_rows * _SLICE_BYTES / max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, rows_per_slice):
            yield from self._add(rows.slice(start, rows_per_slice))

    def finish(self) -> Iterator[HubBatch]:
        """Yield the remaining batches."""
        for index in range(len(self._open)):
            if self._open[index].event_count:
                yield self._close(index)

    def _add(self, rows: pa.RecordBatch) -> Iterator[HubBatch]:
        columns = {name: rows.column(name) for name in rows.schema.names}
        keys, properties = columns.get("partitionKey"), columns.get("properties")
        self._check(columns)
        indices = self._indices(columns, rows.num_rows)
        sections = encode_sections(columns["body"], keys, properties)
        lengths = np.diff(_offsets(sections))
        if int(lengths.max()) > self._bytes_max:
            row = int(np.argmax(lengths > self._bytes_max))
            raise EventTooLargeError(
                f"Row {self._rows_before + row} of the task is an event of {lengths[row]} encoded bytes, "
                f"over the limit of {self._bytes_max}.",
                next_step="Store large content elsewhere and send a reference, or filter out such rows.",
            )
        self._rows_before += rows.num_rows
        if int(indices[0]) == int(indices[-1]) and (indices == indices[0]).all():
            yield from self._fill(int(indices[0]), sections)
            return
        order = np.argsort(indices, kind="stable").astype(np.int64)
        sorted_sections, sorted_indices = sections.take(order), indices[order]
        bounds = np.flatnonzero(np.diff(sorted_indices, prepend=-1, append=-1))
        for start, until in pairwise(bounds):
            yield from self._fill(
                int(sorted_indices[start]), sorted_sections.slice(int(start), int(until - start))
            )

    def _fill(self, index: int, sections: Any) -> Iterator[HubBatch]:
        """Add sections to a partition's open batch; yields batches that become full."""
        offsets = _offsets(sections)
        data = memoryview(sections.buffers()[2])
        start = 0
        while start < len(sections):
            room = self._bytes_max - self._open[index].size_bytes
            until = int(np.searchsorted(offsets, offsets[start] + room, side="right")) - 1
            if until > start:
                open_ = self._open[index]
                open_.pieces.append(data[int(offsets[start]) : int(offsets[until])])
                open_.size_bytes += int(offsets[until] - offsets[start])
                open_.event_count += until - start
                start = until
            if start < len(sections):
                yield self._close(index)

    def _close(self, index: int) -> HubBatch:
        full, self._open[index] = self._open[index], _Open()
        return HubBatch(index, b"".join(full.pieces), full.event_count)

    def _check(self, columns: dict[str, Any]) -> None:
        keys, partitions = columns.get("partitionKey"), columns.get("partition")
        self._refuse(
            columns["body"].is_null(),
            "has no body",
            "Filter out such rows, or set an empty body with coalesce(body, '').",
        )
        if keys is None:
            return
        if partitions is not None:
            self._refuse(
                _compute.and_(keys.is_valid(), partitions.is_valid()),
                "has a partition and a partitionKey",
                "Set one of them to null: a key chooses the partition.",
            )
        self._refuse(
            _compute.greater(_compute.utf8_length(keys), PARTITION_KEY_CHARACTERS_MAX),
            f"has a partitionKey of over {PARTITION_KEY_CHARACTERS_MAX} characters",
            "Use a shorter one, such as a hash of it.",
        )

    def _refuse(self, is_wrong: Any, problem: str, next_step: str) -> None:
        if _compute.any(is_wrong).as_py():
            row = self._rows_before + _compute.index(is_wrong.fill_null(False), True).as_py()
            raise InvalidArgumentError(f"Row {row} of the task {problem}.", next_step=next_step)

    def _indices(self, columns: dict[str, Any], count: int) -> npt.NDArray[np.int64]:
        """The index of each row's partition."""
        indices = np.full(count, -1, dtype=np.int64)
        partitions, keys = columns.get("partition"), columns.get("partitionKey")
        if partitions is not None:
            _spread(partitions, self._index_of_partition, indices)
        if keys is not None:
            _spread(keys, self._index_of_key, indices)
        is_keyless = indices < 0
        keyless = int(is_keyless.sum())
        if keyless:
            numbers = np.arange(self._keyless_before, self._keyless_before + keyless)
            indices[is_keyless] = (self._first_turn + numbers // _ROWS_PER_TURN) % len(self._partition_ids)
            self._keyless_before += keyless
        return indices

    def _index_of_partition(self, partition_id: str) -> int:
        try:
            return self._partition_ids.index(partition_id)
        except ValueError:
            raise NotFoundError(
                f"The event hub has no partition {partition_id!r}.",
                next_step=f"Its partitions are {', '.join(self._partition_ids)}.",
            ) from None

    def _index_of_key(self, key: str) -> int:
        index = self._index_by_key.get(key)
        if index is None:
            if len(self._index_by_key) >= _KEYS_REMEMBERED:
                self._index_by_key.clear()
            index = self._index_by_key[key] = partition_for_key(key, len(self._partition_ids))
        return index


def _spread(column: Any, index_of: Any, indices: npt.NDArray[np.int64]) -> None:
    """Set ``indices`` where the column has a value, looking up each distinct value once."""
    encoded = column.dictionary_encode()
    found = np.array([index_of(value) for value in encoded.dictionary.to_pylist()] or [0], dtype=np.int64)
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    is_set = numbers >= 0
    indices[is_set] = found[numbers[is_set]]


def _offsets(sections: Any) -> npt.NDArray[np.int64]:
    """The start of each section in the array's data, and the end of the last."""
    raw = np.frombuffer(sections.buffers()[1], dtype=np.int32)
    return raw[sections.offset : sections.offset + len(sections) + 1].astype(np.int64)

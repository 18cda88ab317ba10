"""A hundred homes at a time: from events to the readings of each block of homes.

Spark asks for state key by key, and each key costs some hundred microseconds of communication between Java
and Python, whatever its size. So a key here is a block of homes: those of one hub partition that share a
hash.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from examples.home_security.homes import CLOCK_ERROR_MS, PARTITION_COUNT, Kind
from examples.home_security.reading_columns import ReadingColumns, parse_readings
from examples.home_security.segments import ends_of, lengths_of, starts_of
from examples.home_security.shapes import GATHERED_ARROW, READINGS, REJECTED, joined, rows_of, to_bytes


def numbers_in_partitions(keys: pa.Array[Any], blocks: int) -> np.ndarray:
    """The number of each home's block in its partition. blocks: in the whole hub."""
    # Not the hub's hash, which is the same for all homes of a partition.
    per_partition = max(1, blocks // PARTITION_COUNT)
    hashes = [zlib.crc32(key or b"") for key in keys.cast(pa.binary()).to_pylist()]
    return np.array(hashes, dtype=np.int64) % per_partition


def gather(events: pa.RecordBatch, blocks: int) -> pa.RecordBatch:
    """Parse events and sort them by blocks, without those that only say that a sensor is alive.

    events: rows of the source, in order of their sequence numbers within each partition. Returns rows of
    ``GATHERED_ARROW``: one for each block that has an event, and rows with the time.
    """
    keys = events.column("partitionKey")
    parsed = parse_readings(keys, events.column("body"))
    partitions = events.column("partition").dictionary_encode()
    block_of_events = partitions.indices.to_numpy() * blocks + numbers_in_partitions(keys, blocks)
    order = np.argsort(block_of_events, kind="stable")
    starts = starts_of(block_of_events[order])
    firsts = order[starts]
    names = partitions.dictionary.take(partitions.indices.take(pa.array(firsts)))
    numbers = (block_of_events[firsts] % blocks).tolist()
    ends = ends_of(starts, len(order)) + 1
    readings = _by_block(
        _readings(events, parsed), (parsed.kind >= 0) & (parsed.kind != Kind.STATUS), order, ends
    )
    rejected = _by_block(_rejected(events, parsed), parsed.kind < 0, order, ends)
    found = {
        "block": pa.array(
            [f"{name}-{number}" for name, number in zip(names.to_pylist(), numbers, strict=True)]
        ),
        "partition": names,
        "first": events.column("sequenceNumber").take(pa.array(firsts)),
        "readings": pa.array(readings, pa.binary()),
        "rejected": pa.array(rejected, pa.binary()),
    }
    both = pa.concat_tables([pa.table(found), _clock(events, parsed)], promote_options="default")
    return joined(both.select(GATHERED_ARROW.names).cast(GATHERED_ARROW).to_batches(), GATHERED_ARROW)


def _clock(events: pa.RecordBatch, parsed: ReadingColumns) -> pa.Table:
    """The rows with the time.

    A home whose clock is ahead would raise every home's alarms for open doors too early, permanently. So a
    sending time counts only up to the time at which the service accepted the event, by its own clock.
    """
    enqueued_ms = events.column("enqueuedTime").cast(pa.int64()).to_numpy() // 1_000
    starts = starts_of(enqueued_ms)
    is_trusted = (parsed.kind >= 0) & (parsed.sent_ms <= enqueued_ms + CLOCK_ERROR_MS)
    sent_ms = np.maximum.reduceat(np.where(is_trusted, parsed.sent_ms, 0), starts)
    return pa.table(
        {
            "sent": pa.array(sent_ms * 1_000).cast(GATHERED_ARROW.field("sent").type),
            "enqueued_ms": pa.array(enqueued_ms[starts]),
            "events": pa.array(lengths_of(starts, len(enqueued_ms))),
        }
    )


def _readings(events: pa.RecordBatch, parsed: ReadingColumns) -> pa.RecordBatch:
    return rows_of(
        READINGS,
        *(events.column(name) for name in READINGS.names[:3]),
        events.column("partitionKey"),
        parsed.sensor,
        *(pa.array(values) for values in (parsed.kind, parsed.number, parsed.taken_ms, parsed.sent_ms)),
        pa.array(parsed.value),
    )


def _rejected(events: pa.RecordBatch, parsed: ReadingColumns) -> pa.RecordBatch:
    reasons: list[str | None] = [None] * events.num_rows
    for row, reason in parsed.reasons.items():
        reasons[row] = reason
    columns = (events.column(name) for name in REJECTED.names[:-1])
    return rows_of(REJECTED, *columns, pa.array(reasons, pa.string()))


def _by_block(
    rows: pa.RecordBatch, is_chosen: np.ndarray, order: np.ndarray, ends: np.ndarray
) -> list[bytes]:
    """The chosen rows of each block as bytes. order: rows by block; ends: of each block in it."""
    is_chosen = is_chosen[order]
    mine = rows.take(pa.array(order[is_chosen]))
    ends = np.concatenate(([0], is_chosen.cumsum()))[ends]
    starts = np.concatenate(([0], ends))[: len(ends)]
    return [
        to_bytes(mine.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]

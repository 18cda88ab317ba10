"""The snapshot of a partition's log: a position up to which everything is durable, and the state there.

It makes a start fast (only what follows it is read) and records what segments alone cannot: which segments
must exist, and which producers wrote. It is derived state: if it is missing or damaged, segments are read
instead. A snapshot is written after the sync of what it describes, so it never promises more than the disk
holds.

File ``state``: magic b"TIDESNP1", CRC32C of the rest (4 bytes), length of the JSON (4), JSON, index of the
active segment (see ``sparse_index``).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

import google_crc32c

from tidegate.storage.producers import ProducerState, StoredBatch
from tidegate.storage.sparse_index import SparseIndex

SNAPSHOT_NAME: Final = "state"
_MAGIC = b"TIDESNP1"
_HEADER = struct.Struct("<8sII")
_CRC_START = 12


_INDEX_SALT = 0
"""The snapshot has a checksum of its own around the index."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at a durable position of the log."""

    segment_bases: tuple[int, ...]
    """Base sequence numbers of all segments, the active one last."""
    position: int
    """Durable bytes of the active segment."""
    next_sequence_number: int
    last_enqueued_time_ms: int | None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
    producers: dict[int, ProducerState]
    index: SparseIndex
    """Of the active segment, up to ``position``."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as bytes, checksummed."""
    document = {
        "segment_bases": snapshot.segment_bases,
        "position": snapshot.position,
        "next_sequence_number": snapshot.next_sequence_number,
        "last_enqueued_time_ms": snapshot.last_enqueued_time_ms,
        "producers": [
            [
                producer_id,
                state.epoch,
                state.next_sequence,
                [
                    [
                        stored.sequence,
                        stored.count,
                        stored.start_sequence_number,
                        stored.enqueued_time_ms,
                        stored.body_crc,
                    ]
                    for stored in state.recent
                ],
            ]
            for producer_id, state in snapshot.producers.items()
        ],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    content = _HEADER.pack(_MAGIC, 0, len(text)) + text + snapshot.index.encode(_INDEX_SALT)
    crc: int = google_crc32c.value(content[_CRC_START:])
    return bytes(content[:8]) + crc.to_bytes(4, "little") + content[_CRC_START:]


def decode_snapshot(data: bytes) -> Snapshot | None:
    """The snapshot in ``data``; None if it is not intact."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, text_length = _HEADER.unpack_from(data)
    if magic != _MAGIC or google_crc32c.value(data[_CRC_START:]) != crc:
        return None
    text_end = _HEADER.size + text_length
    index = SparseIndex.decode(data[text_end:], _INDEX_SALT)
    if index is None:
        return None
    document = json.loads(data[_HEADER.size : text_end])
    return Snapshot(
        segment_bases=tuple(document["segment_bases"]),
        position=document["position"],
        next_sequence_number=document["next_sequence_number"],
        last_enqueued_time_ms=document["last_enqueued_time_ms"],
        producers={
            producer_id: ProducerState(epoch, following, tuple(StoredBatch(*stored) for stored in recent))
            for producer_id, epoch, following, recent in document["producers"]
        },
        index=index,
    )

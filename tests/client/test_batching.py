"""Batches are filled by the bytes that travel, and never by one more."""

from __future__ import annotations

import pytest
from tests.support.responses import section_lengths

from tidegate.client.batching import (
    ENVELOPE_BYTES_MAX,
    BatchAccumulator,
    EventDataBatch,
    largest_batch_bytes,
)
from tidegate.model.errors import EventTooLargeError
from tidegate.model.events import EventData
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.wire.batch import batch_envelope, wrap_event


@pytest.mark.parametrize("length", [0, 1, 255, 256, 1000])
def test_parts_join_to_the_wires_sections(length: int) -> None:
    """What the accumulator holds is byte for byte what ``wire.batch`` would make of the event."""
    accumulator = BatchAccumulator(10_000)
    added_bytes = accumulator.try_add(b"e" * length)
    joined = b"".join(accumulator.parts)
    assert joined == wrap_event(b"e" * length)
    assert added_bytes == accumulator.size_bytes == len(joined)


def test_the_bound_is_exact() -> None:
    """A section that just fits is taken; one byte more is not, and changes nothing."""
    accumulator = BatchAccumulator(500)
    assert accumulator.try_add(b"a" * 300) == 308
    assert accumulator.try_add(b"b" * 188) == 0
    assert (len(accumulator), accumulator.size_bytes) == (1, 308)
    assert accumulator.try_add(b"b" * 187) == 192
    parts = accumulator.take()
    assert list(section_lengths(b"".join(parts))) == [308, 192]
    assert (len(accumulator), accumulator.size_bytes) == (0, 0)


def test_try_add_tells_full_from_hopeless() -> None:
    """A full batch says False; an event that no batch could hold raises, and names both sizes."""
    batch = EventDataBatch(bytes_max=400, partition_key=None, partition_id="0")
    assert batch.try_add(EventData(b"x" * 200))
    assert not batch.try_add(EventData(b"x" * 200))
    with pytest.raises(EventTooLargeError, match="408 encoded bytes exceeds the limit of 392"):
        batch.try_add(EventData(b"x" * 400))
    assert len(batch) == 1


def test_the_largest_batch_leaves_room_for_its_envelope() -> None:
    """The whole message, numbered, stays within the service's limit; 0 and None are no limit of its own."""
    envelope = batch_envelope(producer_id=2**63 - 1, producer_epoch=0, producer_sequence_number=2**31 - 1)
    assert len(envelope) <= ENVELOPE_BYTES_MAX
    assert largest_batch_bytes(None) == largest_batch_bytes(0) == EVENT_BYTES_MAX - ENVELOPE_BYTES_MAX
    assert largest_batch_bytes(262_144) == 262_144 - ENVELOPE_BYTES_MAX

"""The record codec: whatever was encoded comes back, and whatever was altered does not."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError
from tidegate.storage.record import (
    HEADER_BYTES,
    ProducerBatch,
    decode_body,
    decode_header,
    encode_batch,
    encode_lengths,
)

_EVENTS = st.lists(st.binary(max_size=50), min_size=1, max_size=20)
_NUMBERS = st.integers(min_value=0, max_value=2**62)
_PRODUCERS = st.none() | st.builds(
    ProducerBatch,
    st.integers(0, 2**62),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
)


def _encode(
    events: list[bytes], *, seed: int = 7, base: int = 0, producer: ProducerBatch | None = None
) -> bytes:
    payload = b"".join(events)
    lengths = encode_lengths(len(payload), [len(event) for event in events])
    header = encode_batch(
        payload,
        lengths,
        len(events),
        seed=seed,
        chain=9,
        base_sequence_number=base,
        enqueued_time_ms=base + 1,
        durable_position=32,
        producer=producer,
    )
    return header + payload


@given(events=_EVENTS, base=_NUMBERS, seed=st.integers(0, 2**32 - 1), producer=_PRODUCERS)
def test_a_batch_comes_back_as_it_was(
    events: list[bytes], base: int, seed: int, producer: ProducerBatch | None
) -> None:
    """Every field and every event survives the way to disk and back."""
    data = _encode(events, seed=seed, base=base, producer=producer)
    header = decode_header(b"xyz" + data, 3, seed=seed)
    assert header is not None
    assert header.total_length == len(data)
    batch = decode_body(header, data[HEADER_BYTES:])
    assert batch is not None
    assert (batch.base_sequence_number, batch.enqueued_time_ms) == (base, base + 1)
    assert batch.until_sequence_number == base + len(events)
    assert batch.lengths == array("I", map(len, events))
    assert bytes(batch.payload) == b"".join(events)
    if producer is not None:
        assert batch.producer_id == producer.producer_id
        assert (batch.producer_epoch, batch.producer_sequence) == (producer.epoch, producer.sequence)


@given(events=_EVENTS, data=st.data())
@pytest.mark.slow
def test_any_flipped_bit_is_noticed(events: list[bytes], data: st.DataObject) -> None:
    """One bit anywhere in header, lengths or payload: the batch is not served."""
    encoded = bytearray(_encode(events))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    header = decode_header(bytes(encoded), seed=7)
    assert header is None or decode_body(header, bytes(encoded[HEADER_BYTES:])) is None


@given(events=_EVENTS, data=st.data())
@pytest.mark.slow
def test_a_batch_cut_short_is_noticed(events: list[bytes], data: st.DataObject) -> None:
    """Every prefix of a batch is incomplete, whatever the length."""
    encoded = _encode(events)
    length = data.draw(st.integers(0, len(encoded) - 1))
    header = decode_header(encoded[:length], seed=7)
    assert header is None or decode_body(header, encoded[HEADER_BYTES:length]) is None


def test_a_header_of_another_segment_is_none_of_ours() -> None:
    """A copied segment inside an event cannot be taken for batches of this one: the seed differs."""
    assert decode_header(_encode([b"event"], seed=1), seed=2) is None


@given(data=st.binary(max_size=200))
def test_random_bytes_are_no_header(data: bytes) -> None:
    """Arbitrary input never raises and never decodes."""
    assert decode_header(b"TGRB" + data, seed=7) is None


@pytest.mark.parametrize(("size", "lengths"), [(0, []), (5, [4]), (3, [4, -1]), (2**27, [2**27])])
def test_lengths_that_do_not_fit_are_refused(size: int, lengths: list[int]) -> None:
    """No events, a wrong sum, a negative length and a monstrous batch are the caller's error."""
    with pytest.raises(InvalidArgumentError):
        encode_lengths(size, lengths)

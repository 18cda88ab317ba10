"""The sparse index never points behind what is looked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.storage.segments.sparse_index import SparseIndex

_BATCHES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(70, 400)), min_size=1, max_size=60
)


def _build(batches: list[tuple[int, int, int]]) -> tuple[SparseIndex, list[tuple[int, int, int, int]]]:
    index = SparseIndex(500, start_position=32, base_sequence_number=10)
    rows, start, time_ms, position = [], 10, 100, 32
    for count, later_ms, length in batches:
        time_ms += later_ms
        index.add_batch(start, start + count, time_ms, position, length)
        rows.append((start, start + count, time_ms, position))
        start += count
        position += length
    assert (index.end_position, index.until_sequence_number) == (position, start)
    return index, rows


@given(batches=_BATCHES)
@pytest.mark.slow
def test_a_look_up_begins_at_or_before_its_batch(batches: list[tuple[int, int, int]]) -> None:
    """By sequence number and by time; and never more than the interval and a batch before it."""
    index, rows = _build(batches)
    for start, until, _, position in rows:
        for sequence_number in (start, until - 1):
            assert position - 900 < index.find_sequence_number(sequence_number) <= position
    for wanted in range(99, rows[-1][2] + 1):
        first = next(position for _, _, time_ms, position in rows if time_ms >= wanted)
        assert index.find_time(wanted) <= first


@given(batches=_BATCHES, data=st.data())
@pytest.mark.slow
def test_an_index_comes_back_or_is_known_to_be_damaged(
    batches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Round trip; one flipped bit, or another segment's seed, makes it unusable rather than wrong."""
    index, rows = _build(batches)
    encoded = bytearray(index.encode(7))
    decoded = SparseIndex.decode(bytes(encoded), 7)
    assert decoded is not None
    assert decoded.encode(7) == index.encode(7)
    assert SparseIndex.decode(bytes(encoded), 8) is None
    assert decoded.find_sequence_number(rows[-1][0]) == index.find_sequence_number(rows[-1][0])
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    assert SparseIndex.decode(bytes(encoded), 7) is None

"""Where bytes are cut: at the ends of frames, however they arrive."""

from __future__ import annotations

import itertools
import random

import pytest
from websockets.frames import Frame, Opcode

from tidegate.transport import websocket
from tidegate.transport.pieces import Pieces


@pytest.mark.parametrize("seed", range(5))
def test_pieces_end_with_frames(seed: int) -> None:
    """Of every length form, masked and not, read in parts of any size."""
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 125, 126, 70_000, rng.randrange(300)]) for _ in range(60)]
    frames = [Frame(Opcode.BINARY, rng.randbytes(size)).serialize(mask=rng.random() < 0.7) for size in sizes]
    ends = set(itertools.accumulate(map(len, frames)))
    data, pieces = b"".join(frames), Pieces(2, websocket._length_of, units_max=3)
    at = found = 0
    while at < len(data):
        until = min(len(data), at + rng.choice([1, 2, 7, 1_000, 100_000]))
        while at < until:
            size, units = pieces.next_piece(memoryview(data)[at:until])
            assert size > 0
            assert units == sum(at < end <= at + size for end in ends)
            assert units <= 3
            assert units == 3 or at + size == until
            at, found = at + size, found + units
    assert found == len(frames)

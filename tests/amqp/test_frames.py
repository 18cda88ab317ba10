"""Frames survive any cutting of the byte stream, and garbled ones are refused at once."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.amqp import frames
from tidegate.amqp.errors import FramingError
from tidegate.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    FrameSplitter,
    encode_frame,
)


def test_an_empty_frame_is_eight_bytes() -> None:
    """Protects the keep-alive frame."""
    assert encode_frame(0, b"") == EMPTY_FRAME


@settings(derandomize=True, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=600)), max_size=12), st.integers(0, 2**32)
)
@pytest.mark.slow
def test_any_cutting_of_the_stream_gives_the_same_frames(bodies: list[tuple[int, bytes]], seed: int) -> None:
    """Protects the joining of partial frames across reads whose buffer is reused."""
    stream = b"".join(encode_frame(channel, body) for channel, body in bodies)
    splitter = FrameSplitter(frame_bytes_max=1024)
    buffer = bytearray(700)
    chance = random.Random(seed)
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(stream):
        size = min(chance.randint(1, len(buffer)), len(stream) - position)
        buffer[:size] = stream[position : position + size]
        position += size
        splitter.feed(memoryview(buffer)[:size])
        while (frame := splitter.next_frame()) is not None:
            found.append((frame.channel, bytes(frame.body)))
            if chance.random() < 0.2:  # the rest is fed again, joined with what comes next
                break
        splitter.release()
        buffer[:] = bytes(len(buffer))
    splitter.feed(b"")
    while (frame := splitter.next_frame()) is not None:
        found.append((frame.channel, bytes(frame.body)))
    assert found == bodies
    assert splitter.buffered_bytes == 0


def test_headers_and_frames_come_byte_by_byte() -> None:
    """Protects the start of a connection when the network delivers single bytes."""
    stream = SASL_HEADER.encode() + encode_frame(0, b"sasl", SASL_FRAME) + AMQP_HEADER.encode() + EMPTY_FRAME
    splitter = FrameSplitter(frame_bytes_max=512)
    found: list[object] = []
    for index in range(len(stream)):
        splitter.feed(stream[index : index + 1])
        item = splitter.next_header() if len(found) % 2 == 0 else splitter.next_frame()
        if item is not None:
            found.append(bytes(item[2]) if len(found) % 2 else item)
    assert found == [SASL_HEADER, b"sasl", AMQP_HEADER, b""]


def test_an_extended_header_is_skipped() -> None:
    """Protects frames whose data offset is more than two words (part 2 section 2.3.2)."""
    splitter = FrameSplitter(frame_bytes_max=512)
    splitter.feed(b"\x00\x00\x00\x0e\x03\x00\x00\x07EXTDhi" + EMPTY_FRAME)
    frame = splitter.next_frame()
    assert frame is not None
    assert (frame.channel, bytes(frame.body)) == (7, b"hi")
    assert splitter.next_frame() is not None


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x04\x01\x02\x00\x00\x00",
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x01\x00\x00\x00",
        b"\x00\x00\x00\x08\x03\x00\x00\x00",
        b"GET / HT",
    ],
    ids=lambda data: data.hex(),
)
def test_garbled_frames_are_refused_from_their_header(data: bytes) -> None:
    """Protects memory: an impossible size is refused before anything is kept for it."""
    splitter = FrameSplitter(frame_bytes_max=1024)
    splitter.feed(data)
    with pytest.raises(FramingError):
        splitter.next_frame()


def test_good_frames_before_a_garbled_one_are_given_first() -> None:
    """Protects what was received before the peer went mad."""
    splitter = FrameSplitter(frame_bytes_max=1024)
    splitter.feed(EMPTY_FRAME + b"\xff" * 8)
    assert splitter.next_frame() is not None
    with pytest.raises(FramingError):
        splitter.next_frame()


@pytest.mark.parametrize("data", [b"HTTP/1.1", b"G", b"AMQX", b"AMP"])
def test_a_peer_that_speaks_something_else_is_refused_at_its_first_wrong_byte(data: bytes) -> None:
    """Protects against waiting for the rest of an HTTP request."""
    splitter = FrameSplitter(frame_bytes_max=512)
    splitter.feed(data)
    with pytest.raises(FramingError):
        splitter.next_header()


def test_a_frame_in_thousands_of_pieces_takes_little_more_than_its_bytes() -> None:
    """Protects the memory of the service, which counts bytes, from peers that send two of them at a time."""
    frame = encode_frame(0, bytes(16_000))
    splitter = FrameSplitter(frame_bytes_max=len(frame))
    of_frames = tracemalloc.Filter(inclusive=True, filename_pattern=frames.__file__)
    tracemalloc.start()
    try:
        for start in range(0, len(frame) - 2, 2):
            splitter.feed(frame[start : start + 2])
            assert splitter.next_frame() is None
            splitter.release()
        held = tracemalloc.take_snapshot().filter_traces([of_frames])
    finally:
        tracemalloc.stop()
    assert 16_000 < sum(trace.size for trace in held.traces) < 2 * splitter.buffered_bytes
    splitter.feed(frame[-2:])
    whole = splitter.next_frame()
    assert whole is not None
    assert bytes(whole.body) == bytes(16_000)

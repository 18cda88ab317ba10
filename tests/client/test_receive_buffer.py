"""The receive buffer hands out what came, in order; the window asks for about as much as it may hold."""

from __future__ import annotations

import math
import random

from tidegate.client.receive_buffer import PrefetchWindow, ReceiveBuffer
from tidegate.wire.encoded_events import EncodedEvents


def _chunk(start: int, count: int, size: int = 10) -> EncodedEvents:
    numbers = range(start, start + count)
    return EncodedEvents(numbers, [7] * count, [str(number) for number in numbers], [b"x" * size] * count)


def test_takes_cut_and_join_chunks() -> None:
    """However many are asked for at a time, every event comes once, in order, with its columns."""
    seed = 5
    print(f"seed {seed}")
    numbers = random.Random(seed)
    buffer = ReceiveBuffer()
    added, taken = 0, []
    for _ in range(300):
        count = numbers.randint(0, 20)
        buffer.add(_chunk(added, count))
        added += count
        part = buffer.take(numbers.randint(1, 15))
        assert list(part.offsets) == [str(number) for number in part.sequence_numbers]
        assert len(part) == len(part.messages) == len(part.enqueued_times_ms)
        taken += list(part.sequence_numbers)
        assert buffer.event_count == added - len(taken)
    taken += list(buffer.take(added).sequence_numbers)
    assert taken == list(range(added))
    assert (buffer.event_count, buffer.size_bytes, len(buffer.take(1))) == (0, 0, 0)


def test_what_nobody_wants_is_dropped() -> None:
    """Up to a number wherever it lies: in a chunk partly handed out, between chunks, before or behind all."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for _ in range(300):
        buffer = ReceiveBuffer()
        held: list[int] = []
        start = 0
        for _ in range(numbers.randint(0, 4)):
            start += numbers.choice((0, 0, 5))  # a hole in the log
            count = numbers.randint(1, 6)
            buffer.add(_chunk(start, count))
            held += range(start, start + count)
            start += count
        held = held[len(buffer.take(numbers.randint(1, 8))) :]
        wanted = numbers.randint(0, start + 3)
        buffer.drop_before(wanted)
        held = [number for number in held if number >= wanted]
        assert buffer.event_count == len(held)
        assert list(buffer.take(start + 1).sequence_numbers) == held


def test_a_whole_chunk_is_handed_out_uncopied() -> None:
    """The common case costs nothing per event: the chunk itself comes out."""
    buffer = ReceiveBuffer()
    chunk = _chunk(0, 100)
    buffer.add(chunk)
    assert buffer.take(100) is chunk


def test_sizes_follow_what_is_left() -> None:
    """Bytes go down as events go out, and clear forgets all."""
    buffer = ReceiveBuffer()
    buffer.add(_chunk(0, 10, size=100))
    buffer.take(4)
    assert buffer.size_bytes == 600
    buffer.clear()
    assert (buffer.size_bytes, buffer.event_count, len(buffer.take(5))) == (0, 0, 0)


def test_the_window_of_batches_counts_bytes() -> None:
    """Before sizes are known a batch counts as the largest; small ones open the window wider."""
    window = PrefetchWindow(bytes_max=16_000, events_max=None, delivery_bytes=1000)
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0) == 16
    for _ in range(50):
        window.observe(10, 10, 1000)  # 100 bytes each
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0) == 160
    window.observe(1, 1, 8000)
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0) == 2


def test_the_size_of_events_is_what_came_lately() -> None:
    """On average, so that it says what others may be; one large delivery does not stand for all."""
    window = PrefetchWindow(bytes_max=16_000, events_max=None, delivery_bytes=1_000_000)
    assert (window.estimate_bytes(0), window.estimate_bytes(1)) == (0, math.inf)
    window.observe(2, 20, 2000)
    assert window.estimate_bytes(3) == 300
    window.observe(1, 10, 3000)
    assert window.estimate_bytes(3) == 600


def test_the_window_of_events_counts_both() -> None:
    """Per event, the number of events bounds, too."""
    window = PrefetchWindow(bytes_max=1_000_000, events_max=300, delivery_bytes=100)
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0) == 300
    assert window.decide_credit(outstanding=0, buffered_events=140, buffered_bytes=14_000) == 160


def test_credit_is_renewed_in_halves() -> None:
    """While more than half of the window is used nothing is asked for, so that flows are rare."""
    window = PrefetchWindow(bytes_max=10_000, events_max=None, delivery_bytes=100)
    assert window.decide_credit(outstanding=60, buffered_events=1, buffered_bytes=100) == 0
    assert window.decide_credit(outstanding=30, buffered_events=1, buffered_bytes=100) == 69
    assert window.decide_credit(outstanding=0, buffered_events=90, buffered_bytes=9_000) == 0


def test_no_more_is_asked_for_than_is_wanted() -> None:
    """Of a range that ends within the window: the deliveries that hold it, by what came before."""
    window = PrefetchWindow(bytes_max=100_000, events_max=None, delivery_bytes=100)

    def credit(events_left: int, outstanding: int = 0) -> int:
        return window.decide_credit(
            outstanding=outstanding, buffered_events=5, buffered_bytes=500, events_left=events_left
        )

    assert credit(30) == 1  # it may hold them all
    window.observe(2, 20, 200)
    assert credit(30) == 3
    assert credit(31) == 4
    assert credit(30, outstanding=2) == 0  # in halves, as ever
    assert credit(30, outstanding=1) == 2
    assert credit(0) == 0
    assert credit(1_000_000) == 995  # the window's


def test_of_single_events_as_many_are_asked_for_as_are_wanted() -> None:
    """Their number is known before the first came."""
    window = PrefetchWindow(bytes_max=1_000_000, events_max=300, delivery_bytes=100)
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0, events_left=30) == 30
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0, events_left=900) == 300


def test_whatever_deliveries_hold_a_range_comes_to_its_end() -> None:
    """Sizes change without notice: asked for again and again, all of it comes."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for _ in range(200):
        window = PrefetchWindow(bytes_max=50_000, events_max=None, delivery_bytes=10_000)
        left, size, outstanding = numbers.randint(1, 2000), numbers.randint(1, 300), 0
        while left > 0:
            outstanding += window.decide_credit(
                outstanding=outstanding, buffered_events=0, buffered_bytes=0, events_left=left
            )
            assert outstanding > 0
            came = numbers.randint(1, outstanding)
            if numbers.random() < 0.1:
                size = numbers.randint(1, 300)
            window.observe(came, came * size, came * size * 10)
            left -= came * size
            outstanding -= came


def test_a_delivery_larger_than_the_window_still_comes() -> None:
    """An empty buffer always asks for one, or a large event would stop its partition for good."""
    window = PrefetchWindow(bytes_max=1000, events_max=None, delivery_bytes=1_000_000)
    assert window.decide_credit(outstanding=0, buffered_events=0, buffered_bytes=0) == 1
    assert window.decide_credit(outstanding=1, buffered_events=0, buffered_bytes=0) == 0

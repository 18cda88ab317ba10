"""Which events a file gets: the first of size and time, empty windows, gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture.avro_file import AvroEncoder
from tidegate.capture.window import ClosedWindow, Window, WindowLimits
from tidegate.wire.batch import wrap_event

_LIMITS = WindowLimits(size_bytes=1000, time_ms=60_000, is_empty_skipped=False, event_overhead_bytes=0)
_SKIPPING = WindowLimits(size_bytes=1000, time_ms=60_000, is_empty_skipped=True, event_overhead_bytes=0)


def _window(limits: WindowLimits = _LIMITS, *, start: int = 0, start_ms: int | None = None) -> Window:
    return Window(limits, start_sequence_number=start, start_ms=start_ms)


def test_size_closes_with_the_event_that_reaches_it() -> None:
    """The rest of its batch goes to the next file; the next window opens with that event's time."""
    window = _window()
    window.add_batch(0, [300, 300], 5_000)
    assert window.closed is None
    window.add_batch(2, [300, 100, 1], 6_000)
    assert window.closed == ClosedWindow(5_000, 0, 4, 1000, 6_000, is_full=True)
    following = _window(start=4, start_ms=6_000)
    following.add_batch(2, [300, 100, 1], 6_000)
    assert (following.start_sequence_number, following.until_sequence_number, following.event_bytes) == (
        4,
        5,
        1,
    )


def test_tiny_events_count_with_what_a_file_has_for_each() -> None:
    """Protects the destination's disk: a window of 300 MB of events without contents was a file of 4 GB."""
    section = wrap_event(b"\xff")
    limits = WindowLimits(size_bytes=100_000, time_ms=60_000, is_empty_skipped=False)
    window = _window(limits)
    window.add_batch(0, [len(section)] * 1_000, 0)
    assert window.closed is not None
    assert window.closed.is_full
    count = window.closed.until_sequence_number
    encoder = AvroEncoder(b"a marker 16 long")
    encoder.append(0, 1_795_176_000_123, memoryview(section * count), [len(section)] * count)
    assert len(encoder.finish()) < limits.size_bytes


def test_time_closes_before_the_first_event_beyond_it() -> None:
    """Enqueued times decide, so a file written late has what it would have had in time."""
    window = _window()
    window.add_batch(0, [10], 5_000)
    window.add_batch(1, [10], 64_999)
    window.add_batch(2, [10], 65_000)
    assert window.closed == ClosedWindow(5_000, 0, 2, 20, 65_000)


def test_the_clock_closes_where_no_event_comes() -> None:
    """A window ends by itself, at its end and not before."""
    window = _window()
    window.add_batch(0, [10], 5_000)
    window.pass_time(64_999)
    assert window.closed is None
    window.pass_time(65_000)
    assert window.closed == ClosedWindow(5_000, 0, 1, 10, 65_000)


def test_no_window_opens_before_the_first_event() -> None:
    """Capture begins with the first event: a hub without any gets no files."""
    window = _window()
    window.pass_time(10_000_000)
    assert window.closed is None
    assert window.start_ms is None


def test_an_empty_window_leaves_one_file_however_long_it_lasts() -> None:
    """A sign of life; a stop of a day is not a thousand of them."""
    window = _window(start=7, start_ms=5_000)
    window.pass_time(5_000 + 10 * 60_000 + 1)
    assert window.closed == ClosedWindow(5_000, 7, 7, 0, 5_000 + 10 * 60_000)


def test_an_empty_window_is_skipped_where_asked() -> None:
    """It moves on, and an event's window is named for a time not after the event."""
    window = _window(_SKIPPING, start=7, start_ms=5_000)
    window.pass_time(5_000 + 10 * 60_000 + 1)
    assert window.closed is None
    assert window.start_ms == 5_000 + 10 * 60_000
    window.add_batch(7, [10], 5_000 + 12 * 60_000 + 3)
    assert window.start_ms == 5_000 + 12 * 60_000


def test_catching_up_makes_no_empty_files() -> None:
    """Where the next event lies far ahead, the window moves to it."""
    window = _window(start=7, start_ms=5_000)
    window.add_batch(7, [10], 5_000 + 3 * 60_000 + 1)
    assert window.closed is None
    assert window.start_ms == 5_000 + 3 * 60_000


def test_what_the_log_lost_is_counted() -> None:
    """Before the window's first event, within it, and where nothing is left at all."""
    window = _window()
    window.add_batch(10, [1], 0)
    assert (window.missing_events, window.start_sequence_number) == (10, 10)
    window.add_batch(13, [1], 0)
    assert (window.missing_events, window.start_sequence_number) == (12, 10)
    window.skip_to(20)
    assert (window.missing_events, window.until_sequence_number) == (18, 20)


def test_a_single_event_over_the_window_is_a_file() -> None:
    """Every file makes progress."""
    window = _window()
    window.add_batch(0, [5000, 1], 0)
    assert window.closed is not None
    assert window.closed.until_sequence_number == 1


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 700), min_size=1, max_size=5), st.integers(0, 90_000)), max_size=30
    ),
    st.booleans(),
    st.sampled_from([0, 150]),
)
@pytest.mark.slow
def test_windows_part_the_log(
    batches: list[tuple[list[int], int]], is_skipped: bool, overhead_bytes: int
) -> None:
    """Whatever comes, windows follow each other without a gap or an overlap, within both limits, in time."""
    limits = WindowLimits(1000, 60_000, is_skipped, overhead_bytes)
    log: list[tuple[int, list[int], int]] = []
    number, time_ms = 0, 1_000
    for lengths, step_ms in batches:
        time_ms += step_ms
        log.append((number, lengths, time_ms))
        number += len(lengths)
    sizes = [size for _, lengths, _ in log for size in lengths]
    times = [at for _, lengths, at in log for _ in lengths]
    closed: list[ClosedWindow] = []
    start_ms: int | None = None
    while not closed or closed[-1].until_sequence_number < number:
        start = closed[-1].until_sequence_number if closed else 0
        window = Window(limits, start_sequence_number=start, start_ms=start_ms)
        for base, lengths, at in log:
            if base + len(lengths) > start:
                window.add_batch(base, lengths, at)
        window.pass_time(time_ms + 200_000)
        if window.closed is None:
            assert not log
            return
        closed.append(window.closed)
        start_ms = window.closed.next_start_ms
    for before, after in pairwise(closed):
        assert before.until_sequence_number == after.start_sequence_number
        assert before.next_start_ms <= after.start_ms
    for part in closed:
        events = slice(part.start_sequence_number, part.until_sequence_number)
        assert part.event_bytes == sum(sizes[events])
        counted = [size + overhead_bytes for size in sizes[events]]
        assert sum(counted[:-1]) < limits.size_bytes
        assert part.is_full == (sum(counted) >= limits.size_bytes)
        assert all(part.start_ms <= at < part.start_ms + limits.time_ms for at in times[events])

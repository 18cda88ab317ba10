"""Reads the events of several partitions in one order, in either direction, from the log.

    Run      one partition: pieces of the log, and the place of the next event
    Merge    all partitions: the nearest place first

The log is read in limited pieces, with other tasks in between. A
partition is read, and times are looked up in it, only when needed: for the newest 50 events of a hub with
1,024 partitions, at most 50 of them are read.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final
from weakref import WeakKeyDictionary

from tidegate.amqp.errors import DecodeError
from tidegate.broker import EventHub, Partition, RecordBatch
from tidegate.console.explorer.values import EventCursor, EventPlace, Way
from tidegate.model.errors import PositionOutOfRangeError
from tidegate.model.position import EventPosition
from tidegate.model.times import milliseconds_of, time_of
from tidegate.wire.batch import unwrap

_PIECE_BYTES: Final = 512 * 1024
"""Bytes per read of the log, as for receivers; a single batch may be larger."""
_BUFFERED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Buffer limit of all runs; beyond it a run keeps only the next event's place, and reads it again."""
_BACK_EVENTS_MIN: Final = 16
_BACK_EVENTS_MAX: Final = 4096
_TURN_S: Final = 0.002
"""Time for reads of the log before yielding to other tasks: a read of very many events takes that alone."""

Narrow = Callable[[int, int], Awaitable[tuple[int, int]]]
"""Narrows a half-open range of sequence numbers to the wanted part; may read from the log."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as stored in the log."""

    place: EventPlace
    section: memoryview


class Run:
    """The events of one partition within bounds, in one direction."""

    def __init__(
        self, partition: Partition, way: Way, start: int, until: int, narrow: Narrow | None = None
    ) -> None:
        """start, until: half open, in ascending order for either direction. narrow: called once, before the
        first read; None: the whole range.
        """
        self.partition = partition
        self._partition_index = int(partition.partition_id)
        self._way = way
        self._start = start
        self._until = until
        self._narrow = narrow
        self._back_events = _BACK_EVENTS_MIN
        self._events: Iterator[StoredEvent] = iter(())
        self._next: StoredEvent | None = None
        self.buffered_bytes = 0
        """Bytes kept in memory."""

    async def peek(self, bytes_max: int) -> EventPlace | None:
        """The place of the next event, if any. May read from the log."""
        if self._next is None:
            self._next = next(self._events, None)
        if self._next is None:
            await self._fill(bytes_max)
            self._next = next(self._events, None)
        return None if self._next is None else self._next.place

    async def pop(self, bytes_max: int) -> StoredEvent | None:
        """Remove and return the next event, if any. May read from the log."""
        place = await self.peek(bytes_max)
        event, self._next = self._next, None
        if place is not None and self._way is Way.NEWER:
            self._start = place.sequence_number + 1
        elif place is not None:
            self._until = place.sequence_number
        return event

    def release(self) -> None:
        """Drop buffered events; they are read again when needed."""
        self._events, self._next, self.buffered_bytes = iter(()), None, 0

    async def _fill(self, bytes_max: int) -> None:
        self.release()
        if self._narrow is not None:
            self._start, self._until = await self._narrow(self._start, self._until)
            self._narrow = None
        if self._start >= self._until:
            return
        if self._way is Way.NEWER:
            batches = await self.partition.read(self._start, bytes_max=bytes_max)
        else:
            batches = (await self._read_back(bytes_max))[::-1]
        self._events = chain.from_iterable(map(self._events_of, batches))
        self.buffered_bytes = sum(len(batch.payload) for batch in batches)

    def _events_of(self, batch: RecordBatch) -> Iterator[StoredEvent]:
        base, lengths = batch.base_sequence_number, batch.lengths
        numbers = range(max(self._start, base), min(self._until, batch.until_sequence_number))
        is_newer = self._way is Way.NEWER
        # Not a list of all ends: of 170,000 small events, it takes 10 ms or more.
        at = _start_in(batch, (numbers.start if is_newer else numbers.stop) - base) if numbers else 0
        for number in numbers if is_newer else reversed(numbers):
            length = lengths[number - base]
            start = at if is_newer else at - length
            place = EventPlace(batch.enqueued_time_ms, self._partition_index, number)
            yield StoredEvent(place, batch.payload[start : start + length])
            at = start + length if is_newer else start

    async def _read_back(self, bytes_max: int) -> list[RecordBatch]:
        """The batches before ``until``: as many events as fitted before, at least one batch."""
        while self._start < self._until:
            start = max(self._start, self._until - self._back_events)
            batches: list[RecordBatch] = []
            size, at = 0, start
            while at < self._until and (size < bytes_max or self._back_events == 1):
                wanted_bytes = bytes_max if self._back_events > 1 else 1
                read = await self.partition.read(at, bytes_max=wanted_bytes)
                await asyncio.sleep(0)  # what is in memory is read without waiting
                read = [batch for batch in read if batch.base_sequence_number < self._until]
                if not read:
                    at = self._until
                    break
                batches += read
                size += sum(len(batch.payload) for batch in read)
                at = max(at + 1, read[-1].until_sequence_number)
            if at < self._until:  # the events are larger than estimated
                self._back_events = max(1, self._back_events // 8)
                continue
            if batches:
                if size < bytes_max // 4:
                    self._back_events = min(_BACK_EVENTS_MAX, self._back_events * 4)
                return batches
            self._until = start  # a gap in the numbers, or retention removed them
            self._back_events = min(_BACK_EVENTS_MAX, self._back_events * 4)
        return []


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which events of each partition are wanted."""

    partitions: Sequence[Partition]
    position: EventPosition | None
    """The first wanted event; None: all."""

    @property
    def time_ms(self) -> int | None:
        """The earliest enqueued time to show, if the position is a time."""
        if self.position is None or not isinstance(self.position.value, datetime):
            return None
        return milliseconds_of(self.position.value)

    async def floor(self, partition: Partition) -> int:
        """The first wanted event. Raises PositionOutOfRangeError, InvalidArgumentError."""
        if self.position is None:
            return partition.begin_sequence_number
        try:
            return await partition.resolve(self.position)
        except PositionOutOfRangeError:
            if len(self.partitions) == 1:
                raise
            return partition.next_sequence_number  # beyond this partition's end, but perhaps not others'

    async def narrow(
        self, partition: Partition, cursor: EventCursor | None, start: int, until: int
    ) -> tuple[int, int]:
        """The wanted part of a partition's events ``start`` to ``until``."""
        time_ms = self.time_ms
        if cursor is None:
            return max(start, await self.floor(partition)), until
        at = await _sequence_number_at(partition, cursor.place)
        if cursor.way is Way.OLDER:
            return max(start, await self.floor(partition)), min(until, at)
        if time_ms is None or time_ms >= cursor.place.enqueued_time_ms:
            at = max(at, await self.floor(partition))
        return max(start, at), until


class FirstTimes:
    """Cache of the enqueued times of partitions' first events, which the oldest page of many partitions
    needs. An entry is valid until retention removes the event.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Partition, EventPlace] = WeakKeyDictionary()

    def least_ms(self, partition: Partition) -> int:
        """A lower bound of the partition's enqueued times; 0 if unknown."""
        place = self._known.get(partition)
        is_first = place is not None and place.sequence_number == partition.begin_sequence_number
        return place.enqueued_time_ms if place is not None and is_first else 0

    def note(self, partition: Partition, place: EventPlace) -> None:
        """Keep the time of an event if it is the first."""
        if place.sequence_number == partition.begin_sequence_number:
            self._known[partition] = place


class Merge:
    """The events of several partitions from a cursor on, the nearest first."""

    def __init__(self, way: Way, first_times: FirstTimes | None = None) -> None:
        """first_times: a cache to use and update."""
        self._way = way
        self._first_times = first_times or FirstTimes()
        self._heap: list[tuple[tuple[int, ...], bool, int, Run]] = []
        self._bytes_max = _PIECE_BYTES
        self._buffered = 0
        self._count = 0

    async def add(self, bounds: Bounds, partition: Partition, cursor: EventCursor | None) -> None:
        """Add a partition, without reading yet (see ``settle``).

        Raises PositionOutOfRangeError, InvalidArgumentError.
        """
        until, first_ms = partition.next_sequence_number, bounds.time_ms
        start = partition.begin_sequence_number if first_ms is not None else await bounds.floor(partition)
        if cursor is None and first_ms is None and self._way is Way.NEWER:
            self.add_range(partition, start, until, nearest_ms=self._first_times.least_ms(partition))
            return
        # All events are between these times, so the partition need not be read before they are reached.
        first_ms, last_ms = first_ms or 0, partition.known_ends().last_enqueued_time_ms or 0
        place_ms = None if cursor is None else cursor.place.enqueued_time_ms
        if self._way is Way.NEWER:
            first_ms = max(first_ms, place_ms or 0, self._first_times.least_ms(partition))
        elif place_ms is not None:
            last_ms = min(last_ms, place_ms)
        if first_ms <= last_ms:
            nearest_ms = first_ms if self._way is Way.NEWER else last_ms
            narrow = partial(bounds.narrow, partition, cursor)
            self.add_range(partition, start, until, nearest_ms=nearest_ms, narrow=narrow)

    def add_range(
        self,
        partition: Partition,
        start: int,
        until: int,
        *,
        nearest_ms: int = 0,
        narrow: Narrow | None = None,
    ) -> None:
        """Add a partition's events ``start`` to ``until``, narrowed by ``narrow``.

        nearest_ms: a bound of their times: none is before (NEWER) or after it (OLDER).
        """
        if start < until:
            run = Run(partition, self._way, start, until, narrow)
            number = start if self._way is Way.NEWER else until
            self._push(EventPlace(nearest_ms, int(partition.partition_id), number), run, is_read=False)

    def start(self) -> None:
        """Start reading after all partitions were added: their number determines the bytes per read."""
        self._bytes_max = max(1024, _PIECE_BYTES // max(1, len(self._heap)))

    @property
    def has_more(self) -> bool:
        """Whether there may be another event; certain after ``settle`` has returned True."""
        return bool(self._heap)

    async def settle(self) -> bool:
        """Find out whether there is another event; False: let other tasks run, then call again.

        Retention may still remove that event.
        """
        until_s = time.monotonic() + _TURN_S
        while self._heap and not self._heap[0][1]:
            await self._look()
            if time.monotonic() >= until_s:
                return False
        return True

    async def take(self, events_max: int, bytes_max: int) -> list[StoredEvent]:
        """The next events: about ``bytes_max`` bytes, at least one if there is one.

        May return none although there are more, to let other tasks run after many reads.
        """
        taken: list[StoredEvent] = []
        size, until_s = 0, time.monotonic() + _TURN_S
        while self._heap and len(taken) < events_max and size < bytes_max:
            if not self._heap[0][1]:
                await self._look()
            else:
                _, _, _, run = heapq.heappop(self._heap)
                self._buffered -= run.buffered_bytes
                event = await run.pop(self._bytes_max)
                if event is not None:  # else its buffer was released, and retention has removed the events
                    taken.append(event)
                    size += len(event.section)
                await self._put_back(run)
            if time.monotonic() >= until_s:
                break
        return taken

    async def _look(self) -> None:
        """Read the run that may have the nearest event."""
        run = heapq.heappop(self._heap)[3]
        place = await self._put_back(run)
        if place is not None:
            self._first_times.note(run.partition, place)

    async def _put_back(self, run: Run) -> EventPlace | None:
        """Put a run back and return the place of its next event; None, and not put back, if it has none."""
        place = await run.peek(self._bytes_max)
        if place is None:
            return None
        if self._buffered + run.buffered_bytes > _BUFFERED_BYTES_MAX and self._heap:
            run.release()
        self._buffered += run.buffered_bytes
        self._push(place, run, is_read=True)
        return place

    def _push(self, place: EventPlace, run: Run, *, is_read: bool) -> None:
        key = place if self._way is Way.NEWER else tuple(-number for number in place)
        self._count += 1
        heapq.heappush(self._heap, (key, is_read, self._count, run))


async def _sequence_number_at(partition: Partition, place: EventPlace) -> int:
    """A partition's first event at or after a place."""
    index = int(partition.partition_id)
    if index == place.partition_index:
        return place.sequence_number
    time_ms = place.enqueued_time_ms + (index < place.partition_index)
    return await partition.resolve(EventPosition.from_enqueued_time(time_of(time_ms)))


def _start_in(batch: RecordBatch, index: int) -> int:
    """Where an event of the batch, or (one past the last) its payload's end, is in the payload."""
    lengths = batch.lengths
    if index <= len(lengths) // 2:
        return sum(lengths[:index])
    return len(batch.payload) - sum(lengths[index:])


async def stored_event(partition: Partition, sequence_number: int) -> StoredEvent | None:
    """The event with that number; None if there is a gap in the numbers."""
    for batch in await partition.read(sequence_number, bytes_max=1):
        index = sequence_number - batch.base_sequence_number
        if 0 <= index < len(batch.lengths):
            start = _start_in(batch, index)
            place = EventPlace(batch.enqueued_time_ms, int(partition.partition_id), sequence_number)
            return StoredEvent(place, batch.payload[start : start + batch.lengths[index]])
    return None


async def encoded_event(partition: Partition, sequence_number: int) -> tuple[int, bytes] | None:
    """When that event was enqueued, in milliseconds, and its encoded message; None if the log lacks it."""
    stored = await stored_event(partition, sequence_number)
    if stored is None:
        return None
    try:
        encoded = bytes(unwrap(stored.section))
    except DecodeError:
        encoded = bytes(stored.section)
    return stored.place.enqueued_time_ms, encoded


def partitions_of(hub: EventHub, partition_id: str | None) -> Sequence[Partition]:
    """The given partition, or (None) all. Raises NotFoundError."""
    return hub.partitions if partition_id is None else (hub.partition(partition_id),)

"""Reads events for the console directly from the broker's partitions.

It opens no receiver: reading uses none of the five readers per consumer group, disconnects no client, and
does not count as delivery. The log is read in pieces on the event loop; a few threads decode and filter
events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from tidegate.broker import Broker, Partition
from tidegate.console.explorer.codec import event_detail, fitting_events
from tidegate.console.explorer.reading import (
    Bounds,
    FirstTimes,
    Merge,
    StoredEvent,
    partitions_of,
    stored_event,
)
from tidegate.console.explorer.values import (
    PAGE_BYTES_MAX,
    SCANNED_BYTES_MAX,
    SCANNED_EVENTS_MAX,
    EventCursor,
    EventDetail,
    EventFilter,
    EventPage,
    EventQuery,
    PageEnd,
    Show,
    ShownEvent,
    Wanted,
    Way,
)
from tidegate.console.frame.shares import SharedPlaces
from tidegate.model.errors import NotFoundError

T = TypeVar("T")

_EVENTS_PER_TURN: Final = 250
_BYTES_PER_TURN: Final = 512 * 1024
"""Bytes read and filtered before yielding to other tasks."""

_THREADS_MAX: Final = 2
"""Threads that filter events; the other CPU cores are left to the service."""

_READERS_MAX: Final = 8
"""Pages read and drawn at once, and as many live ones; others wait. Each may briefly hold about 50 MB."""

_WHOLE_EVENTS_MAX: Final = 2
"""Whole events that are decoded and shown at once. Our choice: each may take seconds, and 100 MB."""

_PARTITIONS_PER_TURN: Final = 32
"""Partitions looked up before yielding to other tasks: about 2 ms of work."""

_TAIL_EVENTS_MAX: Final = 5_000
"""Events that a tail examines per refresh; more are skipped and counted."""


class BrokerEvents:
    """Reads events without a receiver and without counting as delivery."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._threads = SharedPlaces(_THREADS_MAX)
        self._live_readers = SharedPlaces(_READERS_MAX)
        self.readers = SharedPlaces(_READERS_MAX)
        """Hold one while a page is read and drawn."""
        self.whole_events = SharedPlaces(_WHOLE_EVENTS_MAX)
        """Hold one while an event is decoded and shown."""
        self._first_times = FirstTimes()
        self._tail_sources: WeakValueDictionary[Hashable, _TailSource[Any]] = WeakValueDictionary()

    async def read(
        self, query: EventQuery, cursor: EventCursor | None, show: Show[T], *, is_wanted: Wanted
    ) -> EventPage[T]:
        """A page of events, as ``show`` gives them. is_wanted: called occasionally; False ends the page.

        Raises NotFoundError (hub, partition), PositionOutOfRangeError, InvalidArgumentError (an invalid
        offset), LogCorruptError.
        """
        hub = self.broker.event_hub(query.hub)
        bounds = Bounds(partitions_of(hub, query.partition_id), query.position)
        way = cursor.way if cursor is not None else Way.OLDER if query.is_newest_first else Way.NEWER
        merge = await self._merge(bounds, way, cursor)
        scan: _Scan[T] = _Scan(query)
        while merge.has_more and scan.end is None:
            stored = await merge.take(scan.wanted_events, _BYTES_PER_TURN)
            fitting = await self._fitting(query.hub, stored, query.filter, show)
            scan.add(stored, fitting)
            if not await is_wanted():
                scan.give_up()
            await asyncio.sleep(0)
        is_settled = scan.end is PageEnd.UNWANTED
        while not is_settled:
            is_settled = await merge.settle()
            await asyncio.sleep(0)
        return scan.page(way, cursor, has_more=merge.has_more)

    async def event(self, hub: str, partition_id: str, sequence_number: int) -> EventDetail:
        """One event. Raises NotFoundError, also if retention has removed it; LogCorruptError."""
        partition = self.broker.event_hub(hub).partition(partition_id)
        begin, until = partition.begin_sequence_number, partition.next_sequence_number
        stored = await stored_event(partition, sequence_number) if begin <= sequence_number < until else None
        if stored is None:
            held = f"it holds {begin} to {until - 1}" if begin < until else "it holds none"
            raise NotFoundError(
                f"Partition {partition_id} of {hub[:80]!r} has no event {sequence_number}: {held}."
            )
        async with self._threads.of(hub):
            return await asyncio.to_thread(
                event_detail,
                stored,
                is_first=sequence_number == begin,
                is_last=sequence_number == until - 1,
            )

    def tail(self, query: EventQuery, show: Show[T]) -> EventTail[T]:
        """New matching events, the last ``count`` and at most PAGE_BYTES_MAX, as ``show`` gives them.

        Tails of the same events share what is read, and what ``show`` returned.
        Raises NotFoundError.
        """
        hub = self.broker.event_hub(query.hub)
        key = (hub, query.partition_id, query.filter, query.count, show)
        source: _TailSource[T] | None = self._tail_sources.get(key)
        if source is None:
            source = _TailSource(
                lambda: partitions_of(hub, query.partition_id),
                query,
                partial(self._fitting, hub.name),
                show,
                self._live_readers,
            )
            self._tail_sources[key] = source
        return EventTail(source)

    async def _merge(self, bounds: Bounds, way: Way, cursor: EventCursor | None) -> Merge:
        merge = Merge(way, self._first_times)
        for number, partition in enumerate(bounds.partitions, 1):
            await merge.add(bounds, partition, cursor)
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        merge.start()
        return merge

    async def _fitting(
        self, hub: str, stored: Sequence[StoredEvent], wanted: EventFilter, show: Show[T]
    ) -> list[ShownEvent[T]]:
        if not stored:
            return []
        async with self._threads.of(hub):
            return await asyncio.to_thread(fitting_events, stored, wanted, show)


class _Scan(Generic[T]):
    """A page while it is being filled."""

    def __init__(self, query: EventQuery) -> None:
        self._query = query
        self._events: list[ShownEvent[T]] = []
        self._bytes = 0
        self._looked_at = 0
        self._scanned_bytes = 0
        self._first: StoredEvent | None = None
        self._last: StoredEvent | None = None
        self._is_cut = False
        self.end: PageEnd | None = None

    def give_up(self) -> None:
        """The client has disconnected."""
        self.end = self.end or PageEnd.UNWANTED

    @property
    def wanted_events(self) -> int:
        """How many events to read next."""
        if self._query.filter.is_empty:
            return min(_EVENTS_PER_TURN, self._query.count - len(self._events))
        return min(_EVENTS_PER_TURN, SCANNED_EVENTS_MAX - self._looked_at)

    def add(self, stored: Sequence[StoredEvent], fitting: Sequence[ShownEvent[T]]) -> None:
        """Add events that were read, and those of them that match, both in reading order."""
        if not stored:
            return
        self._first = self._first or stored[0]
        room = self._query.count - len(self._events)
        for number, event in enumerate(fitting, 1):
            self._events.append(event)
            self._bytes += event.size_bytes
            if number == room or self._bytes >= PAGE_BYTES_MAX:
                # The next page starts after this event, even if more were already checked.
                self.end = PageEnd.FULL
                looked_at = [one.place for one in stored].index(event.place) + 1
                self._is_cut = looked_at < len(stored)
                stored = stored[:looked_at]
                break
        self._last = stored[-1]
        self._looked_at += len(stored)
        self._scanned_bytes += sum(len(one.section) for one in stored)
        is_much = self._looked_at >= SCANNED_EVENTS_MAX or self._scanned_bytes >= SCANNED_BYTES_MAX
        if self.end is None and is_much:
            self.end = PageEnd.SCANNED

    def page(self, way: Way, cursor: EventCursor | None, *, has_more: bool) -> EventPage[T]:
        """The page with cursors in both directions."""
        first, last = self._first, self._last
        if way is Way.OLDER:
            first, last = last, first
            self._events.reverse()
        is_cut = has_more or self._is_cut
        older = newer = None
        if first is not None and last is not None:
            older = EventCursor(Way.OLDER, first.place)
            newer = EventCursor(Way.NEWER, last.place.after)
        elif cursor is not None:
            older = EventCursor(Way.OLDER, cursor.place)
            newer = EventCursor(Way.NEWER, cursor.place)
        # The opposite direction leads back; a first page has no cursor for it.
        if way is Way.NEWER:
            older, newer = older if cursor is not None else None, newer if is_cut else None
        else:
            older, newer = older if is_cut else None, newer if cursor is not None else None
        events = self._events
        ends = (events[0].place, events[-1].place) if events else None
        shown = tuple(event.shown for event in events)
        return EventPage(shown, ends, self._looked_at, self.end or PageEnd.END, older, newer)


class EventTail(Generic[T]):
    """New events of some partitions as they arrive, each as what is shown of it: its body is not kept."""

    def __init__(self, source: _TailSource[T]) -> None:
        self._source = source
        self._starts = source.ends_now()
        self._skipped_before = source.skipped

    @property
    def shown(self) -> list[T]:
        """What is shown of the last events, newest first."""
        starts = self._starts
        return [
            event.shown
            for event in reversed(self._source.events)
            if event.place.sequence_number >= starts.get(event.place.partition_index, 0)
        ]

    @property
    def seen(self) -> int:
        """Events that arrived since the tail began, including those that do not match."""
        starts = self._starts
        return sum(max(0, end - starts.get(index, 0)) for index, end in self._source.ends.items())

    @property
    def skipped(self) -> int:
        """Those of them that arrived too fast to be examined."""
        return min(self.seen, self._source.skipped - self._skipped_before)

    async def refresh(self) -> None:
        """Read new events. Raises NotFoundError if the hub was deleted, ClosedError.

        Cancellation: the events that were not read yet are read by the next call, of any tail.
        """
        await self._source.refresh()


class _TailSource(Generic[T]):
    """What tails of the same events share; it ends with the last of them."""

    def __init__(
        self,
        find_partitions: Callable[[], Sequence[Partition]],
        query: EventQuery,
        fitting: Callable[[Sequence[StoredEvent], EventFilter, Show[T]], Awaitable[list[ShownEvent[T]]]],
        show: Show[T],
        readers: SharedPlaces,
    ) -> None:
        """find_partitions: those to show now; later ones at the end are shown from their beginning. readers:
        one is held while events are read."""
        self._find_partitions = find_partitions
        self._hub = query.hub
        self._filter = query.filter
        self._fitting = fitting
        self._count = query.count
        self._show = show
        self._readers = readers
        self._bytes = 0
        self._refreshing = asyncio.Lock()
        self.events: deque[ShownEvent[T]] = deque()
        self.ends = self.ends_now()
        """The sequence number after the last event read, by partition as a number."""
        self.skipped = 0
        """Events that arrived too fast to be examined."""

    def ends_now(self) -> dict[int, int]:
        """The next sequence number of each partition."""
        return {int(each.partition_id): each.next_sequence_number for each in self._find_partitions()}

    async def refresh(self) -> None:
        """See ``EventTail.refresh``."""
        async with self._refreshing, self._readers.of(self._hub):
            merge, ends = Merge(Way.NEWER), self._begin()
            for partition, end in ends:
                merge.add_range(partition, self.ends[int(partition.partition_id)], end)
            merge.start()
            while merge.has_more:
                stored = await merge.take(_EVENTS_PER_TURN, _BYTES_PER_TURN)
                self._keep(await self._fitting(stored, self._filter, self._show))
                # Not before: the page whose turn it is may end meanwhile, and others show these events.
                for each in stored:
                    self.ends[each.place.partition_index] = each.place.sequence_number + 1
                await asyncio.sleep(0)
            for partition, end in ends:
                self.ends[int(partition.partition_id)] = end

    def _begin(self) -> list[tuple[Partition, int]]:
        """The partitions with new events, and their ends; skips those of a flood."""
        found: list[tuple[Partition, int]] = []
        for partition in self._find_partitions():
            if partition.is_closed:
                raise NotFoundError(f"The event hub {partition.event_hub!r} was deleted.")
            end = partition.next_sequence_number
            if self.ends.setdefault(int(partition.partition_id), 0) != end:
                found.append((partition, end))
        share = max(50, _TAIL_EVENTS_MAX // max(1, len(found)))
        for partition, end in found:
            index = int(partition.partition_id)
            start = max(self.ends[index], end - share)
            self.skipped += start - self.ends[index]
            self.ends[index] = start
        return found

    def _keep(self, events: Sequence[ShownEvent[T]]) -> None:
        """Keep the newest events, within a page's limits of events and bytes; at least one."""
        for event in events:
            self.events.append(event)
            self._bytes += event.size_bytes
            while len(self.events) > self._count or (self._bytes > PAGE_BYTES_MAX and len(self.events) > 1):
                self._bytes -= self.events.popleft().size_bytes

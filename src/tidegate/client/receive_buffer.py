"""A receiver's fetched events, and how many more to request. Pure.

Events are kept encoded, in the chunks in which they arrived; a chunk is cut only if fewer events are wanted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from typing import Final

from tidegate.wire.encoded_events import EncodedEvents

_CREDIT_MAX: Final = 4096
"""Maximum outstanding deliveries: enough for the smallest events on a slow connection."""
_DELIVERY_BYTES_DECAY: Final = 0.9
"""How fast the size estimate falls when small deliveries follow a large one."""


class ReceiveBuffer:
    """Chunks of events in the order of their sequence numbers."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[EncodedEvents, int]] = deque()
        """Each with its size in bytes, which is costly to compute."""
        self._position = 0
        """Number of events of the first chunk that were returned."""
        self.event_count = 0
        self.size_bytes = 0
        """Approximate while a chunk is partly returned."""

    def add(self, chunk: EncodedEvents) -> None:
        """Append a chunk; an empty one is ignored."""
        if len(chunk):
            size_bytes = chunk.size_bytes
            self._chunks.append((chunk, size_bytes))
            self.event_count += len(chunk)
            self.size_bytes += size_bytes

    def take(self, events_max: int) -> EncodedEvents:
        """Remove and return up to ``events_max`` events from the front; length 0 if there are none."""
        return EncodedEvents.joined(self.take_parts(events_max))

    def take_parts(self, events_max: int, bytes_max: float = math.inf) -> list[EncodedEvents]:
        """As ``take``, in the chunks as they arrived, without copying.

        bytes_max: no chunk is taken after those that hold so many bytes together.
        """
        taken: list[EncodedEvents] = []
        left, bytes_left = min(events_max, self.event_count), bytes_max
        while left > 0 and bytes_left > 0:
            (chunk, size_bytes), start = self._chunks[0], self._position
            count = min(left, len(chunk) - start)
            if start + count == len(chunk):
                self._chunks.popleft()
                self._position = 0
            else:
                self._position = start + count
            part = chunk if count == len(chunk) else chunk[start : start + count]
            self.size_bytes -= size_bytes * count // len(chunk)
            self.event_count -= count
            left -= count
            bytes_left -= size_bytes
            taken.append(part)
        if not self.event_count:
            self.size_bytes = 0  # corrects rounding by the divisions above
        return taken

    def drop_before(self, sequence_number: int) -> None:
        """Drop the events before that number."""
        while self._chunks:
            numbers = self._chunks[0][0].sequence_numbers
            start = self._position
            dropped = bisect_left(numbers, sequence_number, start) - start
            if not dropped:
                return
            self.take_parts(dropped)

    def clear(self) -> None:
        """Drop all events."""
        self._chunks.clear()
        self._position = self.event_count = self.size_bytes = 0


class PrefetchWindow:
    """Decides how much credit to grant, to keep fetched and expected bytes near a limit.

    A delivery's size is estimated as the largest recent one, its event count as the recent average. Credit is
    renewed when half of the window is free, so that flows are rare.
    """

    def __init__(self, *, bytes_max: int, events_max: int | None, delivery_bytes: int) -> None:
        """events_max: the maximum of events if each delivery is one event; None if it is a batch.

        delivery_bytes: the expected size of a delivery before the first arrives.
        """
        self._bytes_max = bytes_max
        self._events_max = events_max
        self._delivery_bytes = float(max(1, delivery_bytes))
        self._delivery_events = 1.0 if events_max is not None else None
        """None before the first batch: it alone is requested of a range, because it may hold all of it."""
        self._event_bytes: float | None = None

    def estimate_bytes(self, events: int) -> float:
        """The estimated size of that many events, by the recent average; infinite before the first."""
        if self._event_bytes is None:
            return math.inf if events else 0.0
        return events * self._event_bytes

    def widen(self, bytes_max: int) -> None:
        """Raise the limit to ``bytes_max`` if it is lower."""
        self._bytes_max = max(self._bytes_max, bytes_max)

    def observe(self, deliveries: int, events: int, size_bytes: int) -> None:
        """Update the estimates with deliveries that arrived together."""
        average = size_bytes / max(1, deliveries)
        self._delivery_bytes = max(1.0, average, self._delivery_bytes * _DELIVERY_BYTES_DECAY)
        event_bytes = size_bytes / max(1, events)
        self._event_bytes = ((self._event_bytes or event_bytes) + event_bytes) / 2
        events_each = max(1.0, events / max(1, deliveries))
        before = events_each if self._delivery_events is None else self._delivery_events
        self._delivery_events = (before + events_each) / 2

    def decide_credit(
        self, *, outstanding: int, buffered_events: int, buffered_bytes: int, events_left: int | None = None
    ) -> int:
        """How many more deliveries to allow now; 0 while the window is more than half used.

        events_left: how many of the wanted events have not arrived yet; None: no limit.
        """
        window = self._deliveries(self._bytes_max)
        free = self._deliveries(self._bytes_max - buffered_bytes)
        if self._events_max is not None:
            window = min(window, self._events_max)
            free = min(free, self._events_max - buffered_events)
        if buffered_events == 0:
            free = max(1, free)  # a single delivery larger than the window must still arrive
        if events_left is not None:
            each = self._delivery_events
            needed = min(1, events_left) if each is None else math.ceil(events_left / each)
            window, free = min(window, needed), min(free, needed)
        wanted = free - outstanding
        return wanted if wanted > 0 and 2 * wanted >= min(window, _CREDIT_MAX) else 0

    def _deliveries(self, size_bytes: int) -> int:
        return max(0, min(_CREDIT_MAX, int(size_bytes / self._delivery_bytes)))

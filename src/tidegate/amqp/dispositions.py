"""A session's deliveries that wait for their outcome to be heard or said."""

from __future__ import annotations

from collections import deque

from tidegate.amqp.events import DeliveriesSettled, Event
from tidegate.amqp.link import SenderLink
from tidegate.amqp.link_base import SERIAL_MASK
from tidegate.amqp.performatives import DeliveryState, Disposition
from tidegate.amqp.transfers import accepted_frame


class AcceptedDeliveries:
    """Ids of deliveries that this side has accepted, and not said so yet."""

    __slots__ = ("_frames", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # first and last ids
        self._frames = bytearray()

    def add(self, first: int, last: int) -> bytearray | None:
        """Add ids from ``first`` to ``last``. Returns where ``encode`` will write, if these are the first."""
        self._ranges.append((first, last))
        if len(self._ranges) > 1:
            return None
        self._frames = bytearray()
        return self._frames

    def encode(self, channel: int) -> None:
        """Write a frame for each run of ids, and forget them."""
        ranges, self._ranges = self._ranges, []
        if len(ranges) > 1:
            ranges = _joined(ranges)
        for first, last in ranges:
            self._frames += accepted_frame(channel, first, last)


class UnsettledDeliveries:
    """Deliveries that this side has sent, and whose outcomes it has not heard."""

    __slots__ = ("_links",)

    def __init__(self) -> None:
        self._links: dict[int, SenderLink] = {}

    def add(self, delivery_id: int, link: SenderLink) -> None:
        self._links[delivery_id] = link

    def forget(self, link: SenderLink) -> None:
        """The link has ended."""
        if self._links:  # the service sends everything settled: never true there
            self._links = {key: owner for key, owner in self._links.items() if owner is not link}

    def settle(self, disposition: Disposition, events: deque[Event]) -> bool:
        """Report the outcome: one event per run of consecutive ids of one link. Whether any were
        meant."""
        last = disposition.first if disposition.last is None else disposition.last
        span = (last - disposition.first) & SERIAL_MASK
        links = self._links
        if span < len(links):
            ids = [(disposition.first + step) & SERIAL_MASK for step in range(span + 1)]
        else:
            ids = [key for key in links if (key - disposition.first) & SERIAL_MASK <= span]
        _report([(key, links.pop(key)) for key in ids if key in links], disposition.state, events)
        return bool(ids)


def _report(settled: list[tuple[int, SenderLink]], state: DeliveryState | None, events: deque[Event]) -> None:
    position = 0
    while position < len(settled):
        first, link = settled[position]
        last = first
        position += 1
        while (
            position < len(settled)
            and settled[position][1] is link
            and settled[position][0] == (last + 1) & SERIAL_MASK
        ):
            last = settled[position][0]
            position += 1
        events.append(DeliveriesSettled(link, first, last, state))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of ids, all within half of the serial numbers, in order; neighbours as one."""
    before = ranges[0][0] - (1 << 31)
    ranges.sort(key=lambda each: (each[0] - before) & SERIAL_MASK)
    first, last = ranges[0]
    joined = []
    for each in ranges[1:]:
        if each[0] != (last + 1) & SERIAL_MASK:
            joined.append((first, last))
            first = each[0]
        last = each[1]
    joined.append((first, last))
    return joined

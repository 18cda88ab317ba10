"""Limits on what a peer may make one connection hold and do, and how long it may be silent; and the counters,
clocks and numbers for them.

The connection, its sessions and links all count here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Final, TypeVar

from tidegate.amqp.errors import RESOURCE_LIMIT_EXCEEDED, ResourceLimitError
from tidegate.amqp.states import SessionViolationError
from tidegate.model.errors import BrokenError, OperationTimeoutError
from tidegate.model.token_bucket import TokenBucket

K = TypeVar("K")
V = TypeVar("V")

LINK_BYTES: Final = 4096
"""What a link, and a session, add to ``held_bytes``. Our choice: the engine needs 3.0 KB for a session with
one link (tracemalloc, CPython 3.11), and the service needs more for the link. Includes names of up to
LINK_TEXT_BYTES; longer ones are added (``strings_bytes``)."""

LINK_TEXT_BYTES: Final = 1024
"""Memory for an attach's strings that LINK_BYTES includes (our choice)."""

HEARTBEATS_PER_S_MAX: Final = 10_000
"""Empty frames that a peer may send (our choice: AMQP needs two per idle time-out, and those that pile up
while this side does not read arrive together)."""


IDLE_GRACE: Final = 1.25
"""Factor between the advertised idle time-out and ours: the service advertises 240 s and closes after 300 s
(its text in azure-sdk-for-js#26073)."""

HEARTBEAT_S_MIN: Final = 0.5
"""Shortest pause between empty frames, whatever idle time-out the peer requests. Our choice: each takes 0.05
ms, of up to 5,000 connections of an address, and SDKs ask for one each 10 s or more."""

_PLAIN: Final = (type(None), str, bytes, int, float)
"""Values in which there are no others."""

SLICE_COST: Final = 128
"""Small settled deliveries per slice. Others in usual encodings count as ``DELIVERY_COST`` of them, and any
other frame as ``FRAME_COST`` (measured, with the service's work on them: 5 to 10 microseconds, 14 to 30, and
20 to 300)."""

DELIVERY_COST: Final = 4
FRAME_COST: Final = 8

COST_BYTES: Final = 256
"""This many bytes of deliveries also count as a small one (measured: 32 KB of the smallest events,
annotations or sections take 3 to 8 ms)."""

PERFORMATIVE_COST_BYTES: Final = 24
"""The same for frames that are decoded as a whole (measured: 4 KB of the smallest values take 5 ms)."""

SLICE_EVENTS_MAX: Final = 64
"""New events that end a slice: the owner must process each, and a flow may wake many links (our choice)."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What a peer may make this side hold. Over a limit the connection ends (links: the session)."""

    frame_bytes_max: int = 1 << 31
    """Bytes of an incoming frame, if less than the advertised ``max_frame_size``."""
    performative_bytes_max: int = 1 << 31
    """Bytes of an incoming frame that is not a transfer. Much of an attach is repeated in the answer."""
    partial_bytes_max: int = 64 * 1024 * 1024
    """Bytes kept of incomplete incoming messages, over all links together."""
    links_max: int = 1 << 31
    """Links that have not ended, over all sessions together."""
    frames_per_s_max: int | None = None
    """Frames that are not empty; a second's worth may come at once. None: no limit."""


def strings_bytes(*strings: str | None) -> int:
    """What a link's strings add. One character can make all of them four bytes wide: 15 KB took 60."""
    return max(0, sum(map(sys.getsizeof, strings)) - LINK_TEXT_BYTES)


def compacted(items: dict[K, V]) -> dict[K, V]:
    """The same items without most of the room of removed ones, which a dict keeps and nothing counts: a peer
    may have added thousands. Call it after each removal."""
    return dict(items) if sys.getsizeof(items) > 1024 + 256 * len(items) else items


def value_bytes(value: object) -> int:
    """Approximate memory of a decoded value or performative: its bytes may take twenty times as much."""
    found, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        found += sys.getsizeof(each)
        if isinstance(each, _PLAIN):  # most are
            continue
        if isinstance(each, (list, tuple)):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.keys()
            waiting += each.values()
        elif is_dataclass(each):
            waiting += (getattr(each, field.name) for field in fields(each))
    return found


class PeerAccount:
    """What one peer makes this side hold, and how fast its frames arrive."""

    def __init__(self, limits: PeerLimits, *, now: float) -> None:
        self.blocked_bytes = 0
        """Bytes of frames that wait for the window of their session."""
        self.partial_bytes = 0
        """Kept of incomplete deliveries."""
        self._link_count = 0
        self._link_texts_bytes = 0
        self._heartbeats = TokenBucket(HEARTBEATS_PER_S_MAX, now=now)
        self.set_limits(limits, now=now)

    def set_limits(self, limits: PeerLimits, *, now: float) -> None:
        self.limits = limits
        rate = limits.frames_per_s_max
        self._frames = None if rate is None else TokenBucket(rate, now=now)

    @property
    def held_bytes(self) -> int:
        """Approximate bytes kept for the peer's links."""
        links_bytes = LINK_BYTES * self._link_count + self._link_texts_bytes
        return self.partial_bytes + self.blocked_bytes + links_bytes

    def add_partial_bytes(self, change: int) -> None:
        """Count bytes kept of incomplete deliveries. Raises ResourceLimitError over the limit."""
        self.partial_bytes += change
        if change > 0 and self.partial_bytes > self.limits.partial_bytes_max:
            raise ResourceLimitError(
                f"Incomplete messages hold {self.partial_bytes} bytes; "
                f"{self.limits.partial_bytes_max} are allowed on one connection."
            )

    def add_links(self, change: int, *, strings_bytes: int = 0) -> None:
        """Count links and their strings. Over the limit, raises SessionViolationError and counts nothing."""
        if change > 0 and self._link_count + change > self.limits.links_max:
            raise SessionViolationError(
                RESOURCE_LIMIT_EXCEEDED,
                f"The connection has {self._link_count} links; {self.limits.links_max} are allowed.",
            )
        self._link_count += change
        self._link_texts_bytes += strings_bytes

    def count_frames(self, count: int, *, now: float) -> None:
        """Count frames that are not empty. Raises ResourceLimitError over the limit."""
        if self._frames is not None:
            _take(self._frames, count, now, "frames")

    def count_heartbeats(self, count: int, *, now: float) -> None:
        """Count empty frames. Raises ResourceLimitError over the limit."""
        _take(self._heartbeats, count, now, "empty frames")


class Silence:
    """When a peer's silence ends the connection, and when the peer needs to hear of this side."""

    __slots__ = (
        "_handshake_deadline",
        "_handshake_timeout_s",
        "_heartbeat_at",
        "_heartbeat_s",
        "_idle_limit_s",
        "received_at",
    )

    def __init__(self, now: float, handshake_timeout_s: float, idle_timeout_s: float) -> None:
        """idle_timeout_s: as advertised; 0: the peer may be silent."""
        self.received_at = now
        """When the peer was heard last, or is taken to be."""
        self._handshake_timeout_s = handshake_timeout_s
        self._handshake_deadline: float | None = now + handshake_timeout_s
        self._idle_limit_s = idle_timeout_s * IDLE_GRACE
        self._heartbeat_s: float | None = None
        self._heartbeat_at = 0.0

    def note_open(self, idle_time_out: int | None) -> None:
        """The peer has opened the connection, with this idle time-out in milliseconds."""
        self._handshake_deadline = None
        if idle_time_out:
            self._heartbeat_s = max(idle_time_out / 2000, HEARTBEAT_S_MIN)
            self._heartbeat_at = self.received_at + self._heartbeat_s

    def next_deadline(self) -> float | None:
        """When to call ``is_heartbeat_due`` next; None: not at all."""
        deadlines = []
        if self._handshake_deadline is not None:
            deadlines.append(self._handshake_deadline)
        if self._idle_limit_s:
            deadlines.append(self.received_at + self._idle_limit_s)
        if self._heartbeat_s is not None:
            deadlines.append(self._heartbeat_at)
        return min(deadlines, default=None)

    def is_heartbeat_due(self, now: float) -> bool:
        """Whether to send an empty frame now. Raises OperationTimeoutError or BrokenError for a
        silent peer."""
        if self._handshake_deadline is not None and now >= self._handshake_deadline:
            waited_s = self._handshake_timeout_s
            raise OperationTimeoutError(f"The peer did not open the connection within {waited_s:g} s.")
        if self._idle_limit_s and now >= self.received_at + self._idle_limit_s:
            allowed = f"{int(self._idle_limit_s * 1000)} milliseconds"
            raise BrokenError(
                f"The connection was inactive for more than the allowed {allowed} and is closed."
            )
        if self._heartbeat_s is None or now < self._heartbeat_at:
            return False
        self._heartbeat_at = now + self._heartbeat_s
        return True


class FreeNumbers:
    """Allocates the lowest free number from 0 on.

    A bit for each: a peer may use thousands and give them back, and what is kept of them counts nowhere.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def take(self, highest: int) -> int | None:
        """Allocate the lowest free number; None if it is above ``highest``."""
        lowest = (~self._taken & (self._taken + 1)).bit_length() - 1
        if lowest > highest:
            return None
        self._taken |= 1 << lowest
        return lowest

    def give_back(self, number: int) -> None:
        self._taken ^= 1 << number


def _take(bucket: TokenBucket, count: int, now: float, what: str) -> None:
    if bucket.wait_s(count, now=now) > 0:
        raise ResourceLimitError(f"The peer sends too many {what} per second.", next_step="Send fewer.")
    bucket.take(count, now=now)

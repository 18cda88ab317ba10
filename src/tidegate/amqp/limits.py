"""Limits on what a peer may make one connection hold and do, and the counters for them.

The connection, its sessions and links all count here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from tidegate.amqp.errors import RESOURCE_LIMIT_EXCEEDED, ResourceLimitError
from tidegate.amqp.states import SessionViolationError
from tidegate.model.token_bucket import TokenBucket

LINK_BYTES: Final = 4096
"""What a link, and a session, add to ``held_bytes``. Our choice: the engine needs 3.0 KB for a session with
one link (tracemalloc, CPython 3.11), and the service needs more for the link. Includes names of up to
LINK_TEXT_BYTES; longer ones are added (``strings_bytes``)."""

LINK_TEXT_BYTES: Final = 1024
"""Memory for an attach's strings that LINK_BYTES includes (our choice)."""

HEARTBEATS_PER_S_MAX: Final = 10_000
"""Empty frames that a peer may send (our choice: AMQP needs two per idle time-out, and those that pile up
while this side does not read arrive together)."""


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


def _take(bucket: TokenBucket, count: int, now: float, what: str) -> None:
    if bucket.wait_s(count, now=now) > 0:
        raise ResourceLimitError(f"The peer sends too many {what} per second.", next_step="Send fewer.")
    bucket.take(count, now=now)

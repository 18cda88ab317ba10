"""What a peer may make one connection hold and do, and the account of what it does.

The connection, its sessions and links count here; over a limit the connection ends (links: the session).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from tidegate.amqp.errors import RESOURCE_LIMIT_EXCEEDED, ResourceLimitError
from tidegate.amqp.states import SessionViolationError
from tidegate.model.token_bucket import TokenBucket

LINK_BYTES: Final = 4096
"""What a link, and a session, count for in ``held_bytes``. Our choice: a session with one link takes 3.0 KB
of the engine (tracemalloc, CPython 3.11), and what the service keeps for the link comes on top. Names of up
to LINK_TEXT_BYTES are in it; longer ones count for themselves (``strings_bytes``)."""

LINK_TEXT_BYTES: Final = 1024
"""How much memory the strings kept of an attach may take uncounted (our choice)."""

HEARTBEATS_PER_S_MAX: Final = 10_000
"""Empty frames that a peer may send (our choice: AMQP needs two per idle time-out, and what piles up while
this side does not read comes at once)."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What a peer may make this side hold. Over a limit the connection ends (links: the session)."""

    frame_bytes_max: int = 1 << 31
    """Bytes of an incoming frame, where that is less than the advertised ``max_frame_size``."""
    performative_bytes_max: int = 1 << 31
    """Bytes of an incoming frame that is not a transfer. Much of an attach is repeated in the answer."""
    partial_bytes_max: int = 64 * 1024 * 1024
    """Bytes kept of incoming messages that have begun and not ended, over all links together."""
    links_max: int = 1 << 31
    """Links that have not ended, over all sessions together."""
    frames_per_s_max: int | None = None
    """Frames that are not empty, and a second's worth at once; None: no limit."""


def strings_bytes(*strings: str | None) -> int:
    """What a link's strings count for. One character can make all of them four bytes wide: 15 KB took 60."""
    return max(0, sum(map(sys.getsizeof, strings)) - LINK_TEXT_BYTES)


class PeerAccount:
    """What one peer makes this side hold, and how fast its frames come."""

    def __init__(self, limits: PeerLimits, *, now: float) -> None:
        self.blocked_bytes = 0
        """Bytes of frames that wait for the window of their session."""
        self.partial_bytes = 0
        """Kept of deliveries that have begun and not ended."""
        self._link_count = 0
        self._link_texts_bytes = 0
        self._heartbeats = TokenBucket(HEARTBEATS_PER_S_MAX, now=now)
        self.set_limits(limits, now=now)

    def set_limits(self, limits: PeerLimits, *, now: float) -> None:
        """From now on ``limits`` hold."""
        self.limits = limits
        rate = limits.frames_per_s_max
        self._frames = None if rate is None else TokenBucket(rate, now=now)

    @property
    def held_bytes(self) -> int:
        """About the bytes that are kept for the peer's links."""
        links_bytes = LINK_BYTES * self._link_count + self._link_texts_bytes
        return self.partial_bytes + self.blocked_bytes + links_bytes

    def add_partial_bytes(self, change: int) -> None:
        """Count bytes kept of deliveries that have not ended. Raises ResourceLimitError over the limit."""
        self.partial_bytes += change
        if change > 0 and self.partial_bytes > self.limits.partial_bytes_max:
            raise ResourceLimitError(
                f"Messages that have begun and not ended hold {self.partial_bytes} bytes; "
                f"{self.limits.partial_bytes_max} are allowed on one connection."
            )

    def add_links(self, change: int, *, strings_bytes: int = 0) -> None:
        """Count links, and what their strings take. Raises SessionViolationError over the limit; then nothing
        is counted."""
        if change > 0 and self._link_count + change > self.limits.links_max:
            raise SessionViolationError(
                RESOURCE_LIMIT_EXCEEDED,
                f"The connection has {self._link_count} links; {self.limits.links_max} are allowed.",
            )
        self._link_count += change
        self._link_texts_bytes += strings_bytes

    def count_frames(self, count: int, *, now: float) -> None:
        """Count frames that are not empty. Raises ResourceLimitError where there are too many."""
        if self._frames is not None:
            _take(self._frames, count, now, "frames")

    def count_heartbeats(self, count: int, *, now: float) -> None:
        """Count empty frames. Raises ResourceLimitError where there are too many."""
        _take(self._heartbeats, count, now, "empty frames")


def _take(bucket: TokenBucket, count: int, now: float, what: str) -> None:
    """Raise ResourceLimitError where there are too many."""
    if bucket.wait_s(count, now=now) > 0:
        raise ResourceLimitError(f"The peer sends too many {what} per second.", next_step="Send fewer.")
    bucket.take(count, now=now)

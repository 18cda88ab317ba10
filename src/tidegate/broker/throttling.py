"""Throughput units: how much a namespace takes in and gives out per second.

Ingress beyond its units is refused with ServerBusyError; egress beyond its units is slowed and never errors.
Each direction has two token buckets, of bytes and of events, that fill at the units' rate and hold one second
of it. Off until units are set. No clock is read but the one that was passed in; nothing awaits.

A batch may hold more events than a bucket: it passes when the bucket is full, and leaves a debt that is paid
before the next one. So over any time t, what is admitted is at most

    rate * t + max(one second of rate, the largest batch)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, ServerBusyError
from tidegate.model.limits import (
    EGRESS_BYTES_PER_UNIT,
    EGRESS_EVENTS_PER_UNIT,
    INGRESS_BYTES_PER_UNIT,
    INGRESS_EVENTS_PER_UNIT,
    THROUGHPUT_UNITS_MAX,
)
from tidegate.model.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class ThroughputStatistics:
    """Counts since the service started, at one moment."""

    throttled_requests: int
    """Batches refused (Azure's metric ThrottledRequests)."""
    throttled_events: int
    throttled_bytes: int
    """What was in them."""
    delayed_deliveries: int
    """How often a receiver had to wait."""


class _Direction:
    """Bytes and events of ingress, or of egress: both must allow what passes."""

    def __init__(self, bytes_per_unit: int, events_per_unit: int) -> None:
        self._per_unit = (bytes_per_unit, events_per_unit)
        self._buckets: tuple[TokenBucket, TokenBucket] | None = None

    def set_units(self, units: int | None, *, now: float) -> None:
        bytes_rate, events_rate = (rate * (units or 0) for rate in self._per_unit)
        if units is None:
            self._buckets = None
        elif self._buckets is None:
            self._buckets = TokenBucket(bytes_rate, now=now), TokenBucket(events_rate, now=now)
        else:
            self._buckets[0].set_rate(bytes_rate, now=now)
            self._buckets[1].set_rate(events_rate, now=now)

    def use_up(self, ahead_s: float, *, now: float) -> None:
        for bucket in self._buckets or ():
            bucket.use_up(ahead_s, now=now)

    def wait_s(self, events: int, size: int, *, now: float) -> float:
        if self._buckets is None:
            return 0.0
        of_bytes, of_events = self._buckets
        return max(of_bytes.wait_s(size, now=now), of_events.wait_s(events, now=now))

    def take(self, events: int, size: int, *, now: float) -> None:
        if self._buckets is not None:
            self._buckets[0].take(size, now=now)
            self._buckets[1].take(events, now=now)


class Throughput:
    """The throughput units of a namespace."""

    def __init__(self, clock: Clock, units: int | None = None) -> None:
        """units: None means no limit. Raises InvalidArgumentError; see ``validate_units``."""
        self._clock = clock
        self._units: int | None = None
        self._ingress = _Direction(INGRESS_BYTES_PER_UNIT, INGRESS_EVENTS_PER_UNIT)
        self._egress = _Direction(EGRESS_BYTES_PER_UNIT, EGRESS_EVENTS_PER_UNIT)
        self._throttled = (0, 0, 0)
        self._delayed_deliveries = 0
        self.set_units(units)

    @property
    def units(self) -> int | None:
        """The units in force; None: no limit."""
        return self._units

    def set_units(self, units: int | None) -> None:
        """Another number of units, from now on, until the service stops.

        ``Broker.set_throughput_units`` also remembers it. Raises InvalidArgumentError.
        """
        validate_units(units)
        now = self._clock.monotonic()
        self._ingress.set_units(units, now=now)
        self._egress.set_units(units, now=now)
        self._units = units

    def use_up(self, ahead_s: float) -> None:
        """Have the units used up for the next ``ahead_s`` seconds; nothing where there are none."""
        now = self._clock.monotonic()
        self._ingress.use_up(ahead_s, now=now)
        self._egress.use_up(ahead_s, now=now)

    def admit_ingress(self, events: int, size: int) -> None:
        """Let a batch of ``events`` and ``size`` bytes in, and count it.

        Raises ServerBusyError, and then counts nothing against the units: a caller that comes back after its
        ``retry_after_s`` is admitted, if others have not taken its place.
        """
        if self._units is None:
            return
        now = self._clock.monotonic()
        wait_s = self._ingress.wait_s(events, size, now=now)
        if wait_s > 0.0:
            requests, refused_events, refused_bytes = self._throttled
            self._throttled = requests + 1, refused_events + events, refused_bytes + size
            raise ServerBusyError(
                "The request was terminated because the namespace is being throttled: its "
                f"{self._units} throughput units are used up. Error code: 50002.",
                next_step="Please wait and try again, or set more throughput units.",
                # Rounded up, and one more for a caller's clock: it must not be refused again for a rounding.
                retry_after_s=(math.ceil(wait_s * 1000) + 1) / 1000,
            )
        self._ingress.take(events, size, now=now)

    def egress_delay_s(self, events: int, size: int) -> float:
        """Count what a receiver was just sent, and say for how many seconds it gets nothing more.

        0.0: it may continue. Receivers that wait so long share the units in turns, and together get
        no more than the units (and, at first, a second of them and what each was sent before it waited).
        ``(0, 0)`` only asks, for a receiver that begins.
        """
        if self._units is None:
            return 0.0
        now = self._clock.monotonic()
        self._egress.take(events, size, now=now)
        delay_s = self._egress.wait_s(0, 0, now=now)
        if delay_s > 0.0:
            self._delayed_deliveries += 1
        return delay_s

    def statistics(self) -> ThroughputStatistics:
        """What was refused and delayed since the service started."""
        return ThroughputStatistics(*self._throttled, self._delayed_deliveries)

    def __repr__(self) -> str:
        return f"<Throughput units={self._units} throttled_requests={self._throttled[0]}>"


def validate_units(units: int | None) -> None:
    """Raise InvalidArgumentError unless ``units`` is None (no limit) or a number that can be set."""
    if units is not None and not 1 <= units <= THROUGHPUT_UNITS_MAX:
        raise InvalidArgumentError(
            f"Invalid number of throughput units {units}: use 1 to {THROUGHPUT_UNITS_MAX}, "
            "or none for no limit."
        )

"""Throughput units: limits on a namespace's ingress and egress per second.

Ingress over the limit is refused with ServerBusyError; egress over the limit is delayed. A partition uses one
unit at most. Each direction has two token buckets, of bytes and of events, that hold one second of their
rate. Without units, there is no limit.

A batch may have more events than a bucket holds: it passes when the bucket is full, and leaves a debt. So
over any time t, at most this much is admitted:

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
    """Batches refused (Azure's metric ThrottledRequests), and their events and bytes."""
    throttled_events: int
    throttled_bytes: int
    delayed_deliveries: int
    """How often a receiver had to wait."""


class _Direction:
    """Bytes and events of ingress, or of egress: both must allow a batch."""

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


class PartitionUnit:
    """The one throughput unit that a partition may use (Azure "Event Hubs features", partitions, 2026-09)."""

    def __init__(self, *, now: float) -> None:
        self.ingress = _Direction(INGRESS_BYTES_PER_UNIT, INGRESS_EVENTS_PER_UNIT)
        self.egress = _Direction(EGRESS_BYTES_PER_UNIT, EGRESS_EVENTS_PER_UNIT)
        self.ingress.set_units(1, now=now)
        self.egress.set_units(1, now=now)


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
        """Set the units until the service stops (``Broker.set_throughput_units`` also stores them).

        Raises InvalidArgumentError.
        """
        validate_units(units)
        now = self._clock.monotonic()
        self._ingress.set_units(units, now=now)
        self._egress.set_units(units, now=now)
        self._units = units

    def partition_unit(self) -> PartitionUnit:
        """The unit of a new partition; it counts only while the namespace has units."""
        return PartitionUnit(now=self._clock.monotonic())

    def use_up(self, ahead_s: float) -> None:
        """Use up the units of the next ``ahead_s`` seconds, if there is a limit."""
        now = self._clock.monotonic()
        self._ingress.use_up(ahead_s, now=now)
        self._egress.use_up(ahead_s, now=now)

    def admit_ingress(self, unit: PartitionUnit, events: int, size: int) -> None:
        """Admit a batch of ``events`` and ``size`` bytes to a partition.

        Raises ServerBusyError, and then uses no units: after its ``retry_after_s`` the caller is admitted, if
        no other has used them.
        """
        if self._units is None:
            return
        now = self._clock.monotonic()
        wait_s = self._ingress.wait_s(events, size, now=now)
        own_wait_s = unit.ingress.wait_s(events, size, now=now)
        if wait_s > 0.0 or own_wait_s > 0.0:
            requests, refused_events, refused_bytes = self._throttled
            self._throttled = requests + 1, refused_events + events, refused_bytes + size
            raise ServerBusyError(
                "The request was terminated because the "
                + (
                    f"namespace is being throttled: its {self._units} throughput units are"
                    if wait_s >= own_wait_s
                    else "partition is being throttled: the one throughput unit that it may use is"
                )
                + " used up. Error code: 50002.",
                next_step="Please wait and try again, or "
                + ("set more throughput units." if wait_s >= own_wait_s else "send to more partitions."),
                # Rounded up, plus one for the caller's clock, so that rounding causes no second refusal.
                retry_after_s=(math.ceil(max(wait_s, own_wait_s) * 1000) + 1) / 1000,
            )
        self._ingress.take(events, size, now=now)
        unit.ingress.take(events, size, now=now)

    def egress_delay_s(self, unit: PartitionUnit, events: int, size: int) -> float:
        """Count what a receiver of a partition was just sent; returns the seconds until it may get more.

        Receivers that wait this long share the units, and together exceed them only at first, by a second's
        worth and by what each was sent before it waited. ``(0, 0)`` counts nothing.
        """
        if self._units is None:
            return 0.0
        now = self._clock.monotonic()
        delay_s = 0.0
        for limit in (self._egress, unit.egress):
            limit.take(events, size, now=now)
            delay_s = max(delay_s, limit.wait_s(0, 0, now=now))
        if delay_s > 0.0:
            self._delayed_deliveries += 1
        return delay_s

    def statistics(self) -> ThroughputStatistics:
        """Refusals and delays since the service started."""
        return ThroughputStatistics(*self._throttled, self._delayed_deliveries)

    def __repr__(self) -> str:
        return f"<Throughput units={self._units} throttled_requests={self._throttled[0]}>"


def validate_units(units: int | None) -> None:
    """Raise InvalidArgumentError for an invalid number of units."""
    if units is not None and not 1 <= units <= THROUGHPUT_UNITS_MAX:
        raise InvalidArgumentError(
            f"Invalid number of throughput units {units}: use 1 to {THROUGHPUT_UNITS_MAX}, "
            "or none for no limit."
        )

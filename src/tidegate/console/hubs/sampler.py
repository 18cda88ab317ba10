"""Rates for the console: the broker's counters, read once a second.

Events cost nothing extra; a sample reads each partition's counters, and is taken less often if there are so
many that it takes long. Samples are kept for a few minutes for the namespace, a minute for each event hub,
and ten seconds for the partitions of hubs on open pages.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.broker import Broker, EventHub, EventHubStatistics
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError
from tidegate.transport.threads import Threads

HISTORY_SAMPLES: Final = 300
"""Samples kept of the whole namespace, one a second."""
RECENT_SAMPLES: Final = 60
"""Samples kept of each event hub."""
_PARTITION_SAMPLES: Final = 11

SAMPLE_S: Final = 1.0
_SHARE_MAX: Final = 0.02
"""Maximum fraction of the event loop's time. Our choice."""
_DISK_S: Final = 5.0
_PARTITIONS_WATCHED_S: Final = 60.0

_log = logging.getLogger(__name__)


class Rates(NamedTuple):
    """Per second, over about the last second; named as the counters in ``EventHubStatistics``."""

    incoming_events: float = 0.0
    incoming_bytes: float = 0.0
    outgoing_events: float = 0.0
    outgoing_bytes: float = 0.0
    throttled_requests: float = 0.0


NO_RATES: Final = Rates()


@dataclass(frozen=True, slots=True)
class Sample:
    """The rates at one moment."""

    time_utc: datetime
    rates: Rates


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the log, as last measured; None: not yet measured, or unknown."""

    log_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def is_scarce(self) -> bool:
        """Whether less than a twentieth is free."""
        if self.free_bytes is None or self.total_bytes is None:
            return False
        return self.free_bytes < self.total_bytes / 20


@dataclass(slots=True)
class HubSamples:
    """The samples of one event hub."""

    counts: EventHubStatistics = field(default_factory=EventHubStatistics)
    rates: Rates = NO_RATES
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_SAMPLES))
    """Incoming events per second, oldest first."""
    watched_until: float = float("-inf")
    """Monotonic time until which each of its partitions is sampled."""
    partitions: deque[tuple[float, array[int]]] = field(
        default_factory=lambda: deque(maxlen=_PARTITION_SAMPLES)
    )
    """Monotonic time, and the next sequence number of each partition."""


class Sampler:
    """Keeps the rates while ``run`` runs."""

    def __init__(self, broker: Broker, clock: Clock, data_dir: Path) -> None:
        self.history: deque[Sample] = deque(maxlen=HISTORY_SAMPLES)
        """Samples of the whole namespace."""
        self.disk = Disk()
        self._broker = broker
        self._clock = clock
        self._data_dir = data_dir
        self._hubs: dict[EventHub, HubSamples] = {}
        self._looked_at: float | None = None
        self._disk_looked_at = float("-inf")
        self._threads = Threads(1, name="tidegate-console-disk")

    async def run(self) -> None:
        """Sample until cancelled, also after failures."""
        while True:
            started = self._clock.monotonic()
            try:
                self.look()
                spent_s = self._clock.monotonic() - started
                await self._look_at_disk()
            except (TidegateError, OSError) as error:
                spent_s = 0.0
                _log.warning("the console's figures stand still for a moment: %s", error)
            await asyncio.sleep(max(SAMPLE_S - spent_s, spent_s / _SHARE_MAX))

    def look(self) -> None:
        """Take one sample of everything."""
        now = self._clock.monotonic()
        seconds = now - self._looked_at if self._looked_at is not None else 0.0
        known, self._hubs = self._hubs, {}
        for event_hub in self._broker.list_event_hubs():
            samples = self._hubs[event_hub] = known.get(event_hub) or HubSamples()
            self._look_at_hub(event_hub, samples, now, seconds)
        if seconds > 0.0:
            rates = sum_of(samples.rates for samples in self._hubs.values())
            self.history.append(Sample(self._clock.now_utc(), rates))
        self._looked_at = now

    @property
    def rates(self) -> Rates:
        """The current rates of the whole namespace."""
        return self.history[-1].rates if self.history else NO_RATES

    @property
    def throttled_requests(self) -> int:
        """Throttled requests of the present hubs since the service started."""
        return sum(samples.counts.throttled_requests for samples in self._hubs.values())

    def hub(self, event_hub: EventHub) -> HubSamples:
        """The samples of an event hub; empty if it was just created."""
        return self._hubs.get(event_hub) or HubSamples()

    def watch_partitions(self, event_hub: EventHub) -> None:
        """Sample each of the hub's partitions for the next minute."""
        if (samples := self._hubs.get(event_hub)) is not None:
            samples.watched_until = self._clock.monotonic() + _PARTITIONS_WATCHED_S

    def partition_rate(self, event_hub: EventHub, index: int) -> float | None:
        """Recent incoming events per second of a partition; None: not measured for long enough yet."""
        looks = self.hub(event_hub).partitions
        if len(looks) < 2:
            return None
        (since, first), (until, last) = looks[0], looks[-1]
        if until <= since or index >= len(first):  # a partition that was added since
            return None
        return (last[index] - first[index]) / (until - since)

    def _look_at_hub(self, event_hub: EventHub, samples: HubSamples, now: float, seconds: float) -> None:
        counts = event_hub.statistics()
        if seconds > 0.0:
            samples.rates = rates_between(samples.counts, counts, seconds)
            samples.recent.append(samples.rates.incoming_events)
        samples.counts = counts
        if now < samples.watched_until:
            numbers = (
                0 if partition.open_error else partition.next_sequence_number
                for partition in event_hub.partitions
            )
            samples.partitions.append((now, array("q", numbers)))
        elif samples.partitions:
            samples.partitions.clear()

    async def _look_at_disk(self) -> None:
        now = self._clock.monotonic()
        if now - self._disk_looked_at < _DISK_S:
            return
        self._disk_looked_at = now
        partitions = [each for hub in self._broker.list_event_hubs() for each in hub.partitions]

        log_bytes = sum(partition.stored_bytes for partition in partitions)

        def look() -> Disk:
            try:
                usage = shutil.disk_usage(self._data_dir)
            except OSError:
                return Disk(log_bytes)
            return Disk(log_bytes, usage.free, usage.total)

        self.disk = await self._threads.run(look)


def sum_of(rates: Iterable[Rates]) -> Rates:
    """Their sum."""
    busy = [each for each in rates if each is not NO_RATES]
    return Rates(*map(sum, zip(*busy, strict=True)))


def rates_between(before: EventHubStatistics, after: EventHubStatistics, seconds: float) -> Rates:
    """The means of the time between two counts."""
    if after == before:
        return NO_RATES
    return Rates(*((getattr(after, name) - getattr(before, name)) / seconds for name in Rates._fields))

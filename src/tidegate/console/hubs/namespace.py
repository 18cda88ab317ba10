"""The namespace for pages: the broker, its capture and the sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

from tidegate.broker import EventHub, EventHubDescription, Partition, PublisherActivity
from tidegate.console.frame.paging import PAGE_SIZE, Page, page_at, page_of
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.hubs.recorder import ChartRecorder
from tidegate.console.hubs.sampler import HubSamples, Sampler
from tidegate.model.capture import CapturedFile, CaptureProgress, CaptureStatistics
from tidegate.model.errors import NotFoundError
from tidegate.transport.reused import Reused
from tidegate.transport.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class ConsumerGroupRow:
    """A consumer group of an event hub."""

    name: str
    receivers: int
    """Open now."""
    partitions_read: int
    """Partitions with at least one open receiver."""


@dataclass(frozen=True, slots=True)
class PublisherRow:
    """A publisher of an event hub."""

    name: str
    """As it was last spelled."""
    seen: PublisherActivity | None
    """None: not seen since the service started, or forgotten."""
    is_revoked: bool

    @property
    def is_own_address(self) -> bool:
        """False: events sent to the hub's own address claim to be from it, without proof."""
        return self.seen is None or self.seen.is_own_address


@dataclass(frozen=True, slots=True)
class Held:
    """What an event hub's log holds. Partitions that could not be opened do not count."""

    events: int
    last_enqueued_ms: int | None
    """None: there never was an event."""

    @classmethod
    def of(cls, event_hub: EventHub) -> Held:
        """What it holds now."""
        bounds = [found for each in event_hub.partitions if (found := each.known_bounds) is not None]
        times = [each.last_enqueued_time_ms for each in bounds]
        return cls(
            sum(each.next_sequence_number - each.begin_sequence_number for each in bounds),
            max((time_ms for time_ms in times if time_ms is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Hub:
    """An event hub for templates; what its partitions hold is read when it is asked for."""

    event_hub: EventHub
    description: EventHubDescription
    samples: HubSamples
    capture: CaptureStatistics | None
    """None: not captured now."""
    held: Reused[Held]

    @property
    def name(self) -> str:
        """The name as its creator spelled it."""
        return self.description.name

    @property
    def receivers(self) -> int:
        """Open now, in all consumer groups."""
        return sum(len(partition.receivers()) for partition in self.event_hub.partitions)

    @property
    def events_held(self) -> int:
        """Events in the log."""
        return self._held_now.events

    @property
    def stored_bytes(self) -> int:
        """Bytes of the log on disk."""
        return self.event_hub.stored_bytes

    @property
    def last_enqueued_ms(self) -> int | None:
        """When the last event was enqueued; None if there never was one."""
        return self._held_now.last_enqueued_ms

    @property
    def failed_partitions(self) -> list[Partition]:
        """Those that accept no events until the service restarts, or could not even be opened."""
        return [partition for partition in self.event_hub.partitions if partition.is_failed]

    @property
    def _held_now(self) -> Held:
        return self.held.get(lambda: Held.of(self.event_hub))

    @property
    def policy_names(self) -> list[str]:
        """Its own policies."""
        return [policy.name for policy in self.event_hub.policies]

    @property
    def groups(self) -> list[ConsumerGroupRow]:
        """The consumer groups, ``$Default`` first."""
        receivers: Counter[str] = Counter()
        partitions: Counter[str] = Counter()
        for partition in self.event_hub.partitions:
            if groups := [each.consumer_group for each in partition.receivers()]:
                receivers.update(groups)
                partitions.update(set(groups))
        names = self.description.consumer_groups
        return [ConsumerGroupRow(name, receivers[name], partitions[name]) for name in names]

    @property
    def readers(self) -> list[tuple[str, str | None, int]]:
        """Who reads it now: consumer group, the name that a reader gave itself, and its partitions."""
        found: Counter[tuple[str, str | None]] = Counter()
        for partition in self.event_hub.partitions:
            found.update({(each.consumer_group, each.name) for each in partition.receivers()})
        return sorted(((*reader, count) for reader, count in found.items()), key=lambda each: str(each[:2]))


class Namespace:
    """The namespace of a running service; rates are sampled within ``async with``.

    Names of event hubs are case-insensitive. Raises NotFoundError for an unknown hub.
    """

    def __init__(self, parts: ConsoleParts) -> None:
        self.broker = parts.broker
        """For changes by pages."""
        self._capture = parts.capture
        self.connection_count = parts.connection_count
        """AMQP connections that are open, over all transports."""
        self.sampler = Sampler(parts.broker, parts.clock, parts.data_dir)
        path = parts.data_dir / "console" / "charts"
        self.recorder = ChartRecorder(parts.broker, self.sampler, parts.clock, path)
        self._tasks = TaskOwner("console")
        self._held: WeakKeyDictionary[EventHub, Reused[Held]] = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        self._tasks.start(self.sampler.run(), name="sampler")
        self._tasks.start(self.recorder.run(), name="recorder")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.close()
        await self.recorder.save()

    def failing_captures(self) -> list[str]:
        """The names of the hubs whose capture is failing."""
        return [name for name, found in self._capture.statistics().items() if found.is_failing]

    def busiest_hubs(self, count: int) -> list[Hub]:
        """The event hubs with most incoming and outgoing events in the last second."""

        def load(event_hub: EventHub) -> tuple[float, str]:
            rates = self.sampler.hub(event_hub).rates
            return -(rates.incoming_events + rates.outgoing_events), event_hub.name.lower()

        captures = self._capture.statistics()
        busiest = sorted(self.broker.list_event_hubs(), key=load)[:count]
        return [self._hub(event_hub, captures) for event_hub in busiest]

    def hubs(self, *, search: str, start: int) -> Page[Hub]:
        """The event hubs whose names contain ``search``, in any letter case, by name, from ``start`` on."""
        wanted = search.lower()
        found = [hub for hub in self.broker.list_event_hubs() if wanted in hub.name.lower()]
        found.sort(key=lambda hub: hub.name.lower())
        captures = self._capture.statistics()
        return page_at(found, start).map(lambda each: self._hub(each, captures))

    def hub(self, name: str) -> Hub:
        """One event hub."""
        return self._hub(self.broker.event_hub(name), self._capture.statistics())

    def has_hub(self, name: str) -> bool:
        """Whether there is an event hub of that name."""
        try:
            self.broker.event_hub(name)
        except NotFoundError:
            return False
        return True

    def partition_rates(self, event_hub: EventHub) -> Callable[[Partition], float | None]:
        """Recent incoming events per second of its partitions (None: not known yet), which are measured for a
        minute after each call.
        """
        self.sampler.watch_partitions(event_hub)
        return lambda partition: self.sampler.partition_rate(event_hub, int(partition.partition_id))

    def publishers(self, name: str, *, search: str, is_revoked_only: bool, start: int) -> Page[PublisherRow]:
        """Publishers seen since the service started, the latest first; or (is_revoked_only) revoked ones, by
        name. search: a part of the name, in any letter case.
        """
        event_hub, wanted = self.broker.event_hub(name), search.lower()
        records = event_hub.publishers
        if is_revoked_only:
            names = sorted(
                (each for each in event_hub.revoked_publishers if wanted in each.lower()), key=str.lower
            )
            return page_at(names, start).map(lambda each: _publisher(event_hub, each, records.find(each)))
        seen = records.newest_first()
        if wanted:
            seen = [each for each in seen if wanted in each.name.lower()]
        return page_at(seen, start).map(lambda each: _publisher(event_hub, each.name, each))

    def publisher(self, name: str, publisher: str) -> tuple[PublisherRow, PublisherActivity | None, int]:
        """A publisher, seen or not; the activity that claims its name at the hub's own address; and how many
        publishers with their own addresses were forgotten.
        """
        event_hub = self.broker.event_hub(name)
        own = event_hub.publishers.find(publisher)
        stated = event_hub.publishers.find(publisher, is_own_address=False)
        row = _publisher(event_hub, publisher if own is None else own.name, own)
        return row, stated, event_hub.publishers.own_forgotten

    def capture_progress(self, name: str, *, start: int) -> Page[CaptureProgress]:
        """The capture progress of each partition; empty if the hub is not captured."""
        hub_id = self.broker.event_hub(name).description.hub_id
        return page_at(self._capture.progress(hub_id), start)

    async def capture_files(self, name: str, *, start: int) -> Page[CapturedFile]:
        """Its capture files, the newest first, even if it is no longer captured; after some thousand, the
        oldest are forgotten. A total of None: the list cannot be read; the service's log has the reason.
        """
        hub_id = self.broker.event_hub(name).description.hub_id
        files, total = await self._capture.files(hub_id, start=start, count=PAGE_SIZE)
        return Page(files, total=None) if total is None else page_of(files, start, total)

    def _hub(self, event_hub: EventHub, captures: Mapping[str, CaptureStatistics]) -> Hub:
        samples, capture = self.sampler.hub(event_hub), captures.get(event_hub.name)
        held = self._held.setdefault(event_hub, Reused())
        return Hub(event_hub, event_hub.description, samples, capture, held)


def _publisher(event_hub: EventHub, name: str, seen: PublisherActivity | None) -> PublisherRow:
    return PublisherRow(name, seen, event_hub.is_publisher_revoked(name))

"""The namespace for pages: the broker, its capture and the sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self

from tidegate.broker import EventHub, Partition, PublisherActivity
from tidegate.console.frame.paging import PAGE_SIZE, Page, page_at, page_of
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.hubs.sampler import Sampler
from tidegate.console.hubs.values import (
    ConsumerGroupRow,
    Deletion,
    Hub,
    HubRow,
    Overview,
    PartitionRow,
    PublisherRow,
    Reader,
)
from tidegate.model.capture import CapturedFile, CaptureProgress, CaptureStatistics
from tidegate.transport.tasks import TaskOwner


class Namespace:
    """The namespace of a running service; rates are sampled within ``async with``.

    Names of event hubs are case-insensitive. Raises NotFoundError for an unknown hub.
    """

    def __init__(self, parts: ConsoleParts) -> None:
        self.broker = parts.broker
        """For changes by pages."""
        self._capture = parts.capture
        self._connection_count = parts.connection_count
        self._sampler = Sampler(parts.broker, parts.clock, parts.data_dir)
        self._tasks = TaskOwner("console")

    async def __aenter__(self) -> Self:
        self._tasks.start(self._sampler.run(), name="sampler")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.close()

    def overview(self) -> Overview:
        """The whole namespace now."""
        hubs = self.broker.list_event_hubs()
        return Overview(
            history=tuple(self._sampler.history),
            hub_count=len(hubs),
            partition_count=sum(len(hub.partitions) for hub in hubs),
            connections=self._connection_count(),
            receivers=sum(map(_receivers, hubs)),
            throttled_requests=self._sampler.throttled_requests,
            throughput_units=self.broker.throughput.units,
            is_congested=self.broker.is_congested,
            disk=self._sampler.disk,
            failing_captures=tuple(
                name for name, found in self._capture.statistics().items() if found.is_failing
            ),
        )

    def busiest_hubs(self, count: int) -> list[HubRow]:
        """The event hubs with most incoming and outgoing events in the last second."""

        def load(event_hub: EventHub) -> tuple[float, str]:
            rates = self._sampler.hub(event_hub).rates
            return -(rates.incoming_events + rates.outgoing_events), event_hub.name.lower()

        captures = self._capture.statistics()
        busiest = sorted(self.broker.list_event_hubs(), key=load)[:count]
        return [self._row(event_hub, captures) for event_hub in busiest]

    def hubs(self, *, search: str, start: int) -> Page[HubRow]:
        """The event hubs whose names contain ``search``, in any letter case, by name, from ``start`` on."""
        wanted = search.lower()
        found = [hub for hub in self.broker.list_event_hubs() if wanted in hub.name.lower()]
        found.sort(key=lambda hub: hub.name.lower())
        captures = self._capture.statistics()
        return page_at(found, start).map(lambda event_hub: self._row(event_hub, captures))

    def hub(self, name: str) -> Hub:
        """One event hub."""
        event_hub = self.broker.event_hub(name)
        return Hub(
            event_hub.description,
            self._sampler.hub(event_hub),
            _receivers(event_hub),
            self._capture.statistics().get(event_hub.name),
            _groups(event_hub),
            _events_held(event_hub),
            _last_enqueued_ms(event_hub),
        )

    def partitions(self, name: str, *, start: int) -> Page[PartitionRow]:
        """Its partitions, from the ``start``-th on. Their rates are measured for a minute after each call."""
        event_hub = self.broker.event_hub(name)
        self._sampler.watch_partitions(event_hub)

        def row(partition: Partition) -> PartitionRow:
            return PartitionRow(
                partition.ends(),
                partition.stored_bytes(),
                self._sampler.partition_rate(event_hub, int(partition.partition_id)),
                len(partition.receivers()),
            )

        return page_at(event_hub.partitions, start).map(row)

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

    def publisher(self, name: str, publisher: str) -> tuple[PublisherRow, PublisherRow | None, int]:
        """A publisher, seen or not; the activity that claims its name at the hub's own address; and how many
        publishers with their own addresses were forgotten.
        """
        event_hub = self.broker.event_hub(name)
        own = event_hub.publishers.find(publisher)
        stated = event_hub.publishers.find(publisher, is_own_address=False)
        return (
            _publisher(event_hub, publisher if own is None else own.name, own),
            None if stated is None else _publisher(event_hub, stated.name, stated),
            event_hub.publishers.own_forgotten,
        )

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

    def deletion(self, name: str) -> Deletion:
        """What deleting the hub would remove."""
        event_hub = self.broker.event_hub(name)
        captured = self._capture.statistics().get(event_hub.name)
        readers: Counter[tuple[str, str | None]] = Counter()
        for partition in event_hub.partitions:
            readers.update({(each.consumer_group, each.name) for each in partition.receivers()})
        return Deletion(
            events_held=_events_held(event_hub),
            stored_bytes=sum(partition.stored_bytes() for partition in event_hub.partitions),
            partition_count=len(event_hub.partitions),
            last_enqueued_ms=_last_enqueued_ms(event_hub),
            consumer_groups=event_hub.description.consumer_groups,
            readers=tuple(
                Reader(group, reader, count)
                for (group, reader), count in sorted(readers.items(), key=lambda item: str(item[0]))
            ),
            policies=tuple(policy.name for policy in event_hub.policies),
            is_captured=captured is not None,
            uncaptured_events=0 if captured is None else captured.backlog_events,
        )

    def _row(self, event_hub: EventHub, captures: Mapping[str, CaptureStatistics]) -> HubRow:
        return HubRow(
            event_hub.description,
            self._sampler.hub(event_hub),
            _receivers(event_hub),
            captures.get(event_hub.name),
        )


def _publisher(event_hub: EventHub, name: str, seen: PublisherActivity | None) -> PublisherRow:
    return PublisherRow(name, seen, event_hub.is_publisher_revoked(name))


def _groups(event_hub: EventHub) -> tuple[ConsumerGroupRow, ...]:
    receivers: Counter[str] = Counter()
    partitions: Counter[str] = Counter()
    for partition in event_hub.partitions:
        groups = [each.consumer_group for each in partition.receivers()]
        receivers.update(groups)
        partitions.update(set(groups))
    return tuple(
        ConsumerGroupRow(name, receivers[name], partitions[name])
        for name in event_hub.description.consumer_groups
    )


def _receivers(event_hub: EventHub) -> int:
    return sum(len(partition.receivers()) for partition in event_hub.partitions)


def _events_held(event_hub: EventHub) -> int:
    return sum(each.next_sequence_number - each.begin_sequence_number for each in event_hub.partitions)


def _last_enqueued_ms(event_hub: EventHub) -> int | None:
    found = [each.ends().last_enqueued_time_ms for each in event_hub.partitions]
    return max((time_ms for time_ms in found if time_ms is not None), default=None)

"""The namespace, as the console asks for it: the broker, its capture and the sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

from tidegate.broker import EventHub, Partition, PublisherActivity
from tidegate.console.frame.paging import PAGE_SIZE, Page, page_at, page_of
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.hubs.sampler import Sampler
from tidegate.console.hubs.values import (
    CaptureFileRow,
    ConsumerGroupRow,
    Deletion,
    Hub,
    HubRow,
    Overview,
    PartitionRow,
    PublisherRow,
    Publishers,
    Reader,
)
from tidegate.model.capture import CapturedFile, CaptureProgress, CaptureSettings, CaptureStatistics
from tidegate.model.hub_settings import HubChanges
from tidegate.model.limits import TierLimits
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")
S = TypeVar("S")

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Namespace:
    """The namespace of a running service; enter it to have rates.

    Names of event hubs are taken in any letter case; NotFoundError where there is none.
    """

    def __init__(self, parts: ConsoleParts) -> None:
        self._broker = parts.broker
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
        hubs = self._broker.list_event_hubs()
        return Overview(
            history=tuple(self._sampler.history),
            hub_count=len(hubs),
            partition_count=sum(len(hub.partitions) for hub in hubs),
            connections=self._connection_count(),
            receivers=sum(map(_receivers, hubs)),
            throttled_requests=self._sampler.throttled_requests,
            throughput_units=self._broker.throughput.units,
            is_congested=self._broker.is_congested,
            disk=self._sampler.disk,
            failing_captures=tuple(
                name for name, found in self._capture.statistics().items() if found.is_failing
            ),
        )

    def busiest_hubs(self, count: int) -> list[HubRow]:
        """The event hubs that most events came into and went out of in the last second."""

        def load(event_hub: EventHub) -> tuple[float, str]:
            rates = self._sampler.hub(event_hub).rates
            return -(rates.incoming_events + rates.outgoing_events), event_hub.name.lower()

        captures = self._capture.statistics()
        busiest = sorted(self._broker.list_event_hubs(), key=load)[:count]
        return [self._row(event_hub, captures) for event_hub in busiest]

    def hubs(self, *, search: str, start: int) -> Page[HubRow]:
        """The event hubs whose names hold ``search``, in any letter case, by name; from ``start`` on."""
        wanted = search.lower()
        found = [hub for hub in self._broker.list_event_hubs() if wanted in hub.name.lower()]
        found.sort(key=lambda hub: hub.name.lower())
        captures = self._capture.statistics()
        return page_at(found, start).map(lambda event_hub: self._row(event_hub, captures))

    def hub(self, name: str) -> Hub:
        """One event hub."""
        event_hub = self._broker.event_hub(name)
        description = event_hub.description
        samples = self._sampler.hub(event_hub)
        return Hub(
            name=description.name,
            created_at=_time(description.created_at_ms),
            partition_count=len(description.partition_ids),
            **description.settings(),
            consumer_groups=_groups(event_hub),
            capture=description.capture,
            capture_statistics=self._capture.statistics().get(description.name),
            rates=samples.rates,
            recent=tuple(samples.recent),
            events_held=_events_held(event_hub),
            receivers=_receivers(event_hub),
            last_enqueued_time=_last_enqueued(event_hub),
            throttled_requests=event_hub.statistics().throttled_requests,
        )

    def partitions(self, name: str, *, start: int) -> Page[PartitionRow]:
        """Its partitions, from the ``start``-th on. From the first call on their rates are measured, as long
        as it is called again within a minute.
        """
        event_hub = self._broker.event_hub(name)
        self._sampler.watch_partitions(event_hub)

        def row(partition: Partition) -> PartitionRow:
            found = partition.runtime_information()
            last = found.last_enqueued_time_ms
            return PartitionRow(
                partition_id=partition.partition_id,
                begin_sequence_number=found.begin_sequence_number,
                last_sequence_number=found.last_enqueued_sequence_number,
                events_held=found.last_enqueued_sequence_number + 1 - found.begin_sequence_number,
                stored_bytes=partition.stored_bytes(),
                last_enqueued_time=None if last is None else _time(last),
                incoming_events_per_s=self._sampler.partition_rate(event_hub, int(partition.partition_id)),
                receivers=len(partition.receivers()),
            )

        return page_at(event_hub.partitions, start).map(row)

    def publishers(self, name: str, *, search: str, is_revoked_only: bool, start: int) -> Publishers:
        """Who has published to it since the service started, the last one first; or (is_revoked_only) who may
        not, by name. ``search`` is in the name, in any letter case.
        """
        event_hub, wanted = self._broker.event_hub(name), search.lower()
        revoked, records = event_hub.revoked_publishers, event_hub.publishers
        if is_revoked_only:
            names = sorted((each for each in revoked if wanted in each.lower()), key=str.lower)
            found = page_at(names, start).map(lambda each: _publisher(event_hub, each, records.find(each)))
        else:
            seen = records.newest_first()
            if wanted:
                seen = [each for each in seen if wanted in each.name.lower()]
            found = page_at(seen, start).map(lambda each: _publisher(event_hub, each.name, each))
        return Publishers(
            found,
            len(revoked),
            records.own_max,
            records.stated_max,
            records.own_forgotten + records.stated_forgotten,
        )

    def publisher(self, name: str, publisher: str) -> tuple[PublisherRow, PublisherRow | None, int]:
        """A publisher, seen or not; what events say to be its that came to the hub's own address; and how
        many with addresses of their own fell out of what is remembered.
        """
        event_hub = self._broker.event_hub(name)
        own = event_hub.publishers.find(publisher)
        stated = event_hub.publishers.find(publisher, is_own_address=False)
        return (
            _publisher(event_hub, publisher if own is None else own.name, own),
            None if stated is None else _publisher(event_hub, stated.name, stated),
            event_hub.publishers.own_forgotten,
        )

    def capture_progress(self, name: str, *, start: int) -> Page[CaptureProgress]:
        """How far each partition's capture is; empty where the hub is not captured now."""
        hub_id = self._broker.event_hub(name).description.hub_id
        return page_at(self._capture.progress(hub_id), start)

    async def capture_files(self, name: str, *, start: int) -> Page[CaptureFileRow]:
        """The files that were written of it, the newest first, whether or not it is captured now. The oldest
        are forgotten after some thousand. A total of None: the list cannot be read; the service's log says
        why.
        """
        hub_id = self._broker.event_hub(name).description.hub_id
        files, total = await self._capture.files(hub_id, start=start, count=PAGE_SIZE)
        rows = [_captured_file(file) for file in files]
        return Page(rows, total=None) if total is None else page_of(rows, start, total)

    def deletion(self, name: str) -> Deletion:
        """What would be lost with it."""
        event_hub = self._broker.event_hub(name)
        captured = self._capture.statistics().get(event_hub.name)
        readers: Counter[tuple[str, str | None]] = Counter()
        for partition in event_hub.partitions:
            readers.update({(each.consumer_group, each.name) for each in partition.receivers()})
        return Deletion(
            events_held=_events_held(event_hub),
            stored_bytes=sum(partition.stored_bytes() for partition in event_hub.partitions),
            partition_count=len(event_hub.partitions),
            last_enqueued_time=_last_enqueued(event_hub),
            consumer_groups=event_hub.description.consumer_groups,
            readers=tuple(
                Reader(group, reader, count)
                for (group, reader), count in sorted(readers.items(), key=lambda item: str(item[0]))
            ),
            policies=tuple(policy.name for policy in event_hub.policies),
            is_captured=captured is not None,
            uncaptured_events=0 if captured is None else captured.backlog_events,
        )

    def limits(self) -> TierLimits:
        """What the namespace's tier allows."""
        return self._broker.limits

    def create_hub(self, name: str, *, partition_count: int, settings: HubChanges) -> str:
        """Make an event hub; returns its name. settings: as far as they are not the defaults.

        Raises InvalidArgumentError, AlreadyExistsError, LogFullError.
        """
        return self._broker.create_event_hub(
            name,
            partition_count=partition_count,
            **settings,
        ).name

    def update_hub(self, name: str, settings: HubChanges) -> None:
        """Change settings, all or none; see ``create_hub``. None is the default again.

        Raises InvalidArgumentError, LogFullError.
        """
        self._broker.update_event_hub(name, **settings)

    async def delete_hub(self, name: str) -> None:
        """Remove an event hub with everything in it. Raises LogFullError."""
        await self._broker.delete_event_hub(name)

    def set_capture(self, name: str, settings: CaptureSettings | None) -> None:
        """Have the hub captured, or (None) no longer. Raises LogFullError."""
        self._broker.set_capture(name, settings)

    def create_consumer_group(self, name: str, group: str) -> None:
        """Raises InvalidArgumentError, AlreadyExistsError, QuotaExceededError, LogFullError."""
        self._broker.event_hub(name).create_consumer_group(group)

    def delete_consumer_group(self, name: str, group: str) -> None:
        """Raises NotFoundError, InvalidArgumentError (``$Default`` stays), LogFullError."""
        self._broker.event_hub(name).delete_consumer_group(group)

    def revoke_publisher(self, name: str, publisher: str) -> None:
        """Raises InvalidArgumentError, AlreadyExistsError, QuotaExceededError, LogFullError."""
        self._broker.event_hub(name).revoke_publisher(publisher)

    def restore_publisher(self, name: str, publisher: str) -> None:
        """Raises NotFoundError, LogFullError."""
        self._broker.event_hub(name).restore_publisher(publisher)

    def _row(self, event_hub: EventHub, captures: Mapping[str, CaptureStatistics]) -> HubRow:
        description = event_hub.description
        samples = self._sampler.hub(event_hub)
        captured = captures.get(description.name)
        return HubRow(
            name=description.name,
            partition_count=len(description.partition_ids),
            consumer_group_count=len(description.consumer_groups),
            retention_hours=description.retention_hours,
            receivers=_receivers(event_hub),
            rates=samples.rates,
            recent=tuple(samples.recent),
            throttled_requests=samples.counts.throttled_requests,
            is_captured=captured is not None,
            capture_error=captured.last_error if captured is not None and captured.is_failing else "",
        )


def _captured_file(file: CapturedFile) -> CaptureFileRow:
    return CaptureFileRow(
        name=file.name,
        destination=file.destination,
        partition_id=file.partition_id,
        written_at=_time(file.written_at_ms),
        event_count=file.event_count,
        file_bytes=file.file_bytes,
        window_start=_time(file.window_start_ms),
        # The second of two windows that open in one second is named for the next one.
        window_s=max(0, file.window_end_ms - file.window_start_ms) / 1000,
        closed_by=file.closed_by,
    )


def _publisher(event_hub: EventHub, name: str, seen: PublisherActivity | None) -> PublisherRow:
    return PublisherRow(
        name=name,
        is_own_address=seen is None or seen.is_own_address,
        is_revoked=event_hub.is_publisher_revoked(name),
        last_enqueued_time=None if seen is None else _time(seen.last_enqueued_time_ms),
        partition_id=None if seen is None else seen.last_partition_id,
        events=0 if seen is None else seen.events,
        event_bytes=0 if seen is None else seen.event_bytes,
    )


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


def _last_enqueued(event_hub: EventHub) -> datetime | None:
    found = [each.runtime_information().last_enqueued_time_ms for each in event_hub.partitions]
    times = [time_ms for time_ms in found if time_ms is not None]
    return _time(max(times)) if times else None


def _time(time_ms: int) -> datetime:
    return _UNIX_EPOCH + timedelta(milliseconds=time_ms)

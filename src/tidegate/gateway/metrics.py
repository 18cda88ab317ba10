"""The metrics for Prometheus: one table, read from the broker at each scrape.

Nothing is counted here, and events cost nothing extra. A metric that Azure Monitor has as well is named like
Azure's, in the style of Prometheus: ``IncomingMessages`` is ``tidegate_incoming_messages_total``.
Source: Azure "Supported metrics for Microsoft.EventHub/namespaces" (2026-09); Prometheus "Metric and label
naming".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidegate.broker import Broker, Door, EventHub, KeptPartition
from tidegate.gateway.counts import ConnectionCounts, DiskSpace
from tidegate.metric_rows import MetricRow, Samples
from tidegate.model import VERSION
from tidegate.model.capture import CaptureStatistics
from tidegate.model.clock import Clock
from tidegate.model.hub_properties import PartitionEnds
from tidegate.transport.admission import AdmissionStatistics
from tidegate.transport.memory import MemoryStatistics
from tidegate.transport.sliced_work import SlicedWork

PREFIX: Final = "tidegate_"

REUSED_FROM_BYTES: Final = 256 * 1024
REUSED_FOR_S: Final = 1.0
"""An answer of that size serves all who ask within this time (our choice: a few milliseconds of work, and a
scrape is every 15 s)."""

_SAMPLES_PER_PIECE: Final = 32
"""Our choice: about 0.4 ms."""

_END: Final = b"# EOF\n"
"""Of OpenMetrics."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition of a consumer group."""

    partition_id: str
    lag_events: int | None
    """None: unknown."""
    sequence_number: int | None
    """Of its checkpoint; None: there is none."""
    renewed_at_s: float | None
    """When its owner claimed or renewed it last, as Unix time; None: it has no owner."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A consumer group of hosts or pipelines with leases, checkpoints and dead letters in the database."""

    event_hub: str
    consumer_group: str
    lag_events: int | None
    """None: this service has no such hub, or the group has only dead letters."""
    owned_partitions: int
    hosts: int
    open_dead_letters: int
    dead_letters: int = 0
    """Open or not."""
    partitions: Iterable[StoredPartition] = ()


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """The consumer groups of the service's databases."""

    groups: Sequence[StoredGroup] = ()
    read_at_s: float | None = None
    """When reading them began, as Unix time; None: they were not read."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the numbers."""

    broker: Broker
    connections: Callable[[], ConnectionCounts]
    capture: Callable[[], Mapping[str, CaptureStatistics]]
    """By the name of each hub that is captured now."""
    memory: Callable[[], MemoryStatistics]
    admission: Callable[[], AdmissionStatistics]
    tls_handshake_failures: Callable[[], int] = lambda: 0
    disk_space: Callable[[], DiskSpace | None] = lambda: None
    """None: not known yet."""
    stored_groups: Callable[[], StoredGroups] = StoredGroups
    """As read last."""


@dataclass(frozen=True, slots=True)
class ServiceMetric(MetricRow[Sources]):
    """One line of the table."""

    azure_name: str = ""
    """Of Azure's metric with the same meaning; empty: none."""


def _of_hub(
    name: str, description: str, read: Callable[[EventHub], float], azure_name: str = ""
) -> ServiceMetric:
    """A number of each event hub."""

    def samples(sources: Sources) -> Samples:
        for hub in sources.broker.list_event_hubs():
            yield (hub.name,), read(hub)

    return ServiceMetric(name, description, samples, ("event_hub",), azure_name)


def _counter(name: str, description: str, field: str, azure_name: str) -> ServiceMetric:
    """A number of ``EventHubStatistics``."""
    read = attrgetter(field)

    def samples(sources: Sources) -> Samples:
        for hub in sources.broker.list_event_hubs():
            count = 0
            for counts in hub.each_statistics():
                count += read(counts)
                yield None
            yield (hub.name,), count

    return ServiceMetric(name, description, samples, ("event_hub",), azure_name)


def _of_capture(name: str, description: str, field: str, azure_name: str = "") -> ServiceMetric:
    """A number of ``CaptureStatistics``."""
    read = attrgetter(field)

    def samples(sources: Sources) -> Samples:
        return [((hub,), float(read(found))) for hub, found in sources.capture().items()]

    return ServiceMetric(name, description, samples, ("event_hub",), azure_name)


def _of_partition(name: str, description: str, field: str) -> ServiceMetric:
    """A number of ``Partition``."""
    read = attrgetter(field)

    def samples(sources: Sources) -> Samples:
        for hub in sources.broker.list_event_hubs():
            for partition in hub.partitions:
                if partition.open_error is None:
                    yield (hub.name, partition.partition_id), read(partition)

    return ServiceMetric(name, description, samples, labels=("event_hub", "partition"))


def _partitions_of_groups(sources: Sources) -> Iterator[tuple[str, str, StoredPartition]]:
    """Event hub, consumer group, and each of its partitions: of groups in the database, then of official
    processors that keep checkpoints here, unless their group is in the database, too.

    Of several containers the one that was written last counts, so that nothing but event hubs and their
    consumer groups adds lines.
    """
    stored = [each for each in sources.stored_groups().groups if each.lag_events is not None]
    for found in stored:
        for each in found.partitions:
            yield found.event_hub, found.consumer_group, each
    names = {(each.event_hub.lower(), each.consumer_group.lower()) for each in stored}
    for hub in sources.broker.list_event_hubs():
        ends = {each.partition_id: each.known_ends() for each in hub.partitions if not each.open_error}
        for group in sources.broker.kept_groups(hub, is_newest_only=True):
            if (hub.name.lower(), group.consumer_group.lower()) in names:
                continue
            for partition_id, kept in group.partitions.items():
                end = ends.get(partition_id)
                numbers = _numbers_of(kept, end) if end else StoredPartition(partition_id, None, None, None)
                yield hub.name, group.consumer_group, numbers


def _numbers_of(kept: KeptPartition, ends: PartitionEnds) -> StoredPartition:
    behind = kept.behind(ends)
    return StoredPartition(
        kept.partition_id,
        None if behind is None else behind[0],
        kept.sequence_number,
        (kept.renewed_at_ms or 0) / 1000 if kept.owner else None,
    )


def _of_consumers(
    name: str,
    description: str,
    read: Callable[[StoredPartition], float | None],
) -> ServiceMetric:
    """A number of each partition of each consumer group; None: it has none."""

    def samples(sources: Sources) -> Samples:
        for event_hub, consumer_group, partition in _partitions_of_groups(sources):
            value = read(partition)
            yield None if value is None else ((event_hub, consumer_group, partition.partition_id), value)

    return ServiceMetric(name, description, samples, labels=("event_hub", "consumer_group", "partition"))


def _of_stored_groups(
    name: str, description: str, read: Callable[[StoredGroup], float | None]
) -> ServiceMetric:
    """A number of each consumer group in the database; None: it is unknown."""

    def samples(sources: Sources) -> Samples:
        for group in sources.stored_groups().groups:
            if (value := read(group)) is not None:
                yield (group.event_hub, group.consumer_group), value

    return ServiceMetric(name, description, samples, labels=("event_hub", "consumer_group"))


def _of_namespace(
    name: str, description: str, read: Callable[[Sources], float | None], azure_name: str = ""
) -> ServiceMetric:
    """One number; None: it does not exist now."""

    def samples(sources: Sources) -> Samples:
        value = read(sources)
        return [] if value is None else [((), value)]

    return ServiceMetric(name, description, samples, azure_name=azure_name)


METRICS: Final[tuple[ServiceMetric, ...]] = (
    _counter("incoming_messages_total", "Events stored.", "incoming_events", "IncomingMessages"),
    _counter("incoming_bytes_total", "Bytes stored.", "incoming_bytes", "IncomingBytes"),
    _counter("outgoing_messages_total", "Events delivered.", "outgoing_events", "OutgoingMessages"),
    _counter("outgoing_bytes_total", "Bytes delivered.", "outgoing_bytes", "OutgoingBytes"),
    _counter(
        "incoming_requests_total", "Batches sent, including refused ones.", "incoming_requests",
        "IncomingRequests",
    ),
    _counter(
        "throttled_requests_total", "Batches refused for the throughput units.", "throttled_requests",
        "ThrottledRequests",
    ),
    _of_hub("size_bytes", "Bytes that the log's files take.", attrgetter("stored_bytes"), "Size"),
    _of_hub(
        "receivers", "Open receivers in all consumer groups.",
        lambda hub: sum(len(partition.receivers()) for partition in hub.partitions),
    ),
    _of_partition(
        "partition_begin_sequence_number",
        "Sequence number of the first event in the log, or of the next event if it is empty.",
        "begin_sequence_number",
    ),
    _of_partition(
        "partition_next_sequence_number", "Sequence number of the next event.", "next_sequence_number"
    ),
    _of_consumers(
        "consumer_lag_messages",
        "Events that a consumer group has still to read: of official processors with checkpoints in the "
        "service, of hosts, which report them, and of pipelines that keep them in the service's database.",
        lambda partition: partition.lag_events,
    ),
    _of_consumers(
        "consumer_checkpoint_sequence_number", "Sequence number of the last event that it has processed.",
        lambda partition: partition.sequence_number,
    ),
    _of_consumers(
        "consumer_lease_renewed_timestamp_seconds",
        "When the partition's owner claimed or renewed it last, as Unix time; absent if it was released.",
        lambda partition: partition.renewed_at_s,
    ),
    _of_stored_groups(
        "group_lag_messages",
        "Events that a consumer group with checkpoints in the service's database has still to read, in all.",
        lambda group: group.lag_events,
    ),
    _of_stored_groups(
        "group_owned_partitions", "Its partitions that a host owns now.",
        lambda group: group.owned_partitions,
    ),
    _of_stored_groups("group_hosts", "Hosts that own one.", lambda group: group.hosts),
    _of_stored_groups(
        "group_open_dead_letters",
        "Its dead letters that are neither redriven nor discarded.",
        lambda group: group.open_dead_letters,
    ),
    _of_stored_groups(
        "group_dead_letters_total",
        "All its dead letters, also of before the service's start; their rate: rate(…[5m]).",
        lambda group: group.dead_letters,
    ),
    _of_namespace(
        "groups_read_timestamp_seconds",
        "When the service last read these groups from its databases, as Unix time; absent before.",
        lambda sources: sources.stored_groups().read_at_s,
    ),
    _of_namespace(
        "active_connections", "Open AMQP connections, over all transports.",
        lambda sources: sources.connections().active, "ActiveConnections",
    ),
    ServiceMetric(
        "open_connections",
        "Open connections, by protocol (WebSockets: amqp) and by whether they presented a token.",
        lambda sources: [
            ((face.value, "yes" if has_token else "no"), count)
            for (face, has_token), count in sources.admission().open.items()
        ],
        labels=("speaks", "token"),
    ),
    ServiceMetric(
        "refused_connections_total",
        "Connections refused, or ended to make room (displaced), by the limit that was reached.",
        lambda sources: [
            ((refusal.value,), count) for refusal, count in sources.admission().refused.items()
        ],
        labels=("limit",),
    ),
    _of_namespace(
        "open_connections_max", "Maximum of open connections; bounded by process_max_fds.",
        lambda sources: sources.admission().limits.connections_max,
    ),
    _of_hub(
        "failed_partitions", "Partitions that accept no events until the service restarts.",
        lambda hub: sum(partition.is_failed for partition in hub.partitions),
    ),
    _of_hub(
        "unopened_partitions",
        "Those of them that could not be opened: they refuse readers as well.",
        lambda hub: sum(partition.open_error is not None for partition in hub.partitions),
    ),
    _of_namespace(
        "memory_held_bytes",
        "Memory held for clients: unsent, incomplete and not yet durable data.",
        lambda sources: sources.memory().used_bytes,
    ),
    _of_namespace(
        "memory_held_max_bytes", "Maximum memory held for clients.",
        lambda sources: sources.memory().bytes_max,
    ),
    _of_namespace(
        "memory_ended_connections_total", "Connections ended because that maximum was reached.",
        lambda sources: sources.memory().ended_peers,
    ),
    _of_namespace(
        "connections_opened_total", "AMQP connections opened.",
        lambda sources: sources.connections().opened, "ConnectionsOpened",
    ),
    _of_namespace(
        "connections_closed_total", "AMQP connections that have ended.",
        lambda sources: sources.connections().opened - sources.connections().active, "ConnectionsClosed",
    ),
    _of_namespace(
        "throughput_units", "Throughput units; absent if there is no limit.",
        lambda sources: sources.broker.throughput.units,
    ),
    _of_namespace(
        "delayed_deliveries_total", "How often a receiver waited for throughput units.",
        lambda sources: sources.broker.throughput.statistics().delayed_deliveries,
    ),
    _of_namespace(
        "congested", "1 while reading from producers is paused because the disk is too slow.",
        lambda sources: float(sources.broker.is_congested),
    ),
    _of_namespace(
        "disk_free_bytes", "Free space for the data directory, as of the last 15 seconds.",
        lambda sources: None if (found := sources.disk_space()) is None else found.free,
    ),
    _of_namespace(
        "disk_bytes", "Size of the file system with the data directory.",
        lambda sources: None if (found := sources.disk_space()) is None else found.total,
    ),
    _of_capture(
        "captured_messages_total", "Events captured since the settings changed.",
        "captured_events", "CapturedMessages",
    ),
    _of_capture(
        "captured_bytes_total", "Bytes of events captured, as stored.", "captured_bytes",
        "CapturedBytes",
    ),
    _of_capture("captured_files_total", "Files that Capture has finished.", "captured_files"),
    _of_capture(
        "capture_backlog_messages", "Events in the log that are not in a finished file yet.",
        "backlog_events", "CaptureBacklog",
    ),
    _of_capture(
        "capture_backlog_bytes", "Their bytes, as far as Capture has counted.", "backlog_bytes"
    ),
    _of_capture(
        "capture_missing_messages_total", "Events that retention removed uncaptured.",
        "missing_events",
    ),
    _of_capture(
        "capture_failing", "1 while Capture cannot continue.", "is_failing"
    ),
    ServiceMetric(
        "authentication_failures_total",
        "Refused keys and tokens: wrong, expired, for another entity, or after too many wrong ones.",
        lambda sources: [
            ((door.value,), sources.broker.key_guard.failures(door))
            for door in (Door.AMQP, Door.HTTP, Door.CONSOLE)
        ],
        labels=("door",),
    ),
    _of_namespace(
        "tls_handshake_failures_total", "Failed TLS handshakes, over AMQP and HTTP.",
        lambda sources: sources.tls_handshake_failures(),
    ),
    ServiceMetric(
        "build_info", "1, with the release as a label.",
        lambda _: [((VERSION,), 1.0)], labels=("version",),
    ),
)  # fmt: skip
"""All metrics but those of the process (``process_…``), which prometheus-client adds."""


class MetricsPage:
    """The answer of ``/metrics``. It may have a line for each partition of each consumer group: it is made in
    slices, one at a time for each address, and a large one is reused."""

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._process = ProcessCollector(registry=None)
        self._reused = (b"", "", 0.0)
        """Body, content type, and until when."""

    async def render(self, accept: str, sliced_work: SlicedWork, *, address: object) -> tuple[bytes, str]:
        """Body and content type: OpenMetrics if ``accept`` asks for it, else Prometheus' text format.

        address: as of ``SlicedWork.collect``.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is not numbers (prometheus-client 0.26)
            encode, content_type = choose_encoder("")
        async with sliced_work.alone((self, address)):
            body, of_type, until_s = self._reused
            if of_type == content_type and self._clock.monotonic() < until_s:
                return body, content_type
            body = b"".join(await sliced_work.collect(self._pieces(encode), address=address))
            if len(body) >= REUSED_FROM_BYTES:
                self._reused = (body, content_type, self._clock.monotonic() + REUSED_FOR_S)
            return body, content_type

    def _pieces(self, encode: Callable[[Collector], bytes]) -> Iterator[bytes | None]:
        def text(row: ServiceMetric, samples: Samples) -> bytes:
            family = replace(row, read=lambda _: samples).family(PREFIX, None, [("", self._sources)])
            return encode(_One(family)).removesuffix(_END)

        for row in METRICS:
            head = text(row, [])
            yield head
            samples: list[tuple[tuple[str, ...], float]] = []
            for sample in row.read(self._sources):
                if sample is not None:
                    samples.append(sample)
                if len(samples) < _SAMPLES_PER_PIECE:
                    yield None
                else:
                    yield text(row, samples)[len(head) :]
                    samples = []
            yield text(row, samples)[len(head) :]
        yield encode(self._process)


class _One(Collector):
    """One metric, for prometheus-client."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """The metric."""
        yield self._metric

"""The readers of the format ``eventhubs``, which plan and read batch queries and micro-batches.

Where each runs (each line is a process of its own, all of them Python):

    batch planning        EventHubsBatchReader.partitions()          once per query, on the driver
    stream planning       EventHubsStreamReader, all but read()      one process per query, on the driver
    task                  read()                                     a pooled worker, on an executor

Readers are pickled for the tasks, so they hold options and plans, never a connection: ``hub`` keeps those per
process. Receivers set no owner level, so they do not disconnect others and are not disconnected by them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tidegate.columns.batches import event_batch, event_batches
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.errors import (
    CheckpointGapError,
    InvalidArgumentError,
    LogDivergedError,
    NotFoundError,
    PositionOutOfRangeError,
    ReceiverStolenError,
    TidegateError,
)
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.position import EventPosition
from tidegate.processor.lease import SHADOW_MARK
from tidegate.spark.runtime.patience import Patience, patiently
from tidegate.spark.runtime.session import usable_core_count
from tidegate.spark.runtime.versions import (
    HAS_LIMITS,
    PYSPARK,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.spark.source.hub import HubDescription, HubReader, with_remedy
from tidegate.spark.source.offsets import (
    DIVERGED_STEP,
    JsonObject,
    Loss,
    PartitionRange,
    StreamOffset,
    TaskLayout,
    added_losses,
    check_histories,
    clip_lost_events,
    end_of_micro_batch,
    histories_at,
    pack_ranges,
    ranges_between,
    split_ranges,
    task_count,
)
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.pushdown import RowBounds, narrow
from tidegate.wire.encoded_events import EncodedEvents

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

T = TypeVar("T")

_SHORT_EVENTS: Final = 4096
"""Most events in a range that is fetched together with others (our choice)."""

_logger = logging.getLogger(__name__)


@dataclass
class RangesInputPartition(InputPartition):
    """What one task reads: ranges of one or more hub partitions, in sequence."""

    ranges: tuple[PartitionRange, ...]


def read_ranges(
    options: SourceOptions, partition: InputPartition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The events of a task's ranges as Arrow batches of these columns, in order within each hub partition.

    Raises PositionOutOfRangeError if events of a range are gone (unless ``failOnDataLoss`` is off),
    LogDivergedError if the log was restored after the task was planned, NotFoundError for a missing consumer
    group, which planning does not notice, and ReceiverStolenError if a processor keeps the group to itself.
    """
    freeze_loaded_modules()
    if not isinstance(partition, RangesInputPartition):
        return  # Spark's placeholder in a batch query that has nothing to read
    hub = HubReader(options)
    try:
        for group in _grouped(partition.ranges):
            rests = group
            if _is_short(group[0]):
                parts, rests = _read_short(hub, group, options)
                yield from event_batches(parts, columns)
            for rest in rests:
                for events in _read_range(hub, rest, options):
                    yield event_batch(rest.partition_id, events, columns)
    except (NotFoundError, ReceiverStolenError) as error:
        raise with_remedy(error, options) from error
    except LogDivergedError as error:
        raise LogDivergedError(error.message, next_step=DIVERGED_STEP) from error


def _is_short(item: PartitionRange) -> bool:
    """Whether finding the range takes longer than reading it, and no other task continues it."""
    return item.event_count <= _SHORT_EVENTS and item.is_last_piece


def _grouped(ranges: Sequence[PartitionRange]) -> Iterator[list[PartitionRange]]:
    """Group ranges in order: short ones of different partitions together, any other alone."""
    group: list[PartitionRange] = []
    for item in ranges:
        is_joined = _is_short(item) and all(item.partition_id != each.partition_id for each in group)
        if group and not (is_joined and _is_short(group[0])):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _read_short(
    hub: HubReader, group: Sequence[PartitionRange], options: SourceOptions
) -> tuple[list[tuple[str, EncodedEvents]], list[PartitionRange]]:
    """The events read immediately, by partition, and the rest of the ranges."""
    parts: list[tuple[str, EncodedEvents]] = []
    rests: list[PartitionRange] = []
    for item, fetched in zip(group, hub.read_together(group), strict=True):
        expected = item.start_sequence_number
        for events in fetched.chunks:
            _report_loss(item, expected, events.sequence_numbers[0], options)
            expected = events.sequence_numbers[-1] + 1
            parts.append((item.partition_id, events))
        if fetched.error is not None and not _is_left_to_rest(fetched.error):
            raise fetched.error
        if expected < item.until_sequence_number:
            rests.append(replace(item, start_sequence_number=expected))
    return parts, rests


def _is_left_to_rest(error: Exception) -> bool:
    """Whether reading the rest waits for what is away, or reports which events are gone and continues."""
    if isinstance(error, PositionOutOfRangeError):
        return not isinstance(error, LogDivergedError)
    return isinstance(error, TidegateError) and error.is_transient


def _read_range(hub: HubReader, item: PartitionRange, options: SourceOptions) -> Iterator[EncodedEvents]:
    """The events of one range; if some are gone, raises an error that names them, or skips them."""
    expected, until = item.start_sequence_number, item.until_sequence_number
    patience = Patience(f"Reading partition {item.partition_id} of {options.event_hub!r}")
    while expected < until:
        try:
            for events in hub.read(replace(item, start_sequence_number=expected)):
                patience.over()
                _report_loss(item, expected, events.sequence_numbers[0], options)
                expected = events.sequence_numbers[-1] + 1
                yield events
        except LogDivergedError:
            raise
        except PositionOutOfRangeError:
            first = hub.describe().bounds[item.partition_id].begin_sequence_number
            if first <= expected:
                raise
        except TidegateError as error:
            patience.wait(error)
            first = expected
        else:
            first = until  # what is missing at the end is a hole in the log
        _report_loss(item, expected, first, options)
        expected = first


def _report_loss(item: PartitionRange, expected: int, first: int, options: SourceOptions) -> None:
    """Raise or log (by the options) that the events of ``item`` from ``expected`` to ``first`` are gone.

    Does nothing where there are none.
    """
    wanted = PartitionRange(item.partition_id, expected, item.until_sequence_number)
    ends = PartitionEnds(options.event_hub, item.partition_id, first, item.until_sequence_number)
    _, losses = clip_lost_events(
        [wanted], {item.partition_id: ends}, fail_on_data_loss=options.fail_on_data_loss
    )
    _log_losses(losses, options)


def _log_losses(losses: Sequence[Loss], options: SourceOptions) -> None:
    for loss in losses:
        _logger.warning("The event hub %r: %s", options.event_hub, loss)


class EventHubsBatchReader(DataSourceReader):
    """Reads from the starting to the ending position, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions, columns: Sequence[str] = EVENT_COLUMNS) -> None:
        if options.max_events_per_trigger is not None:
            raise InvalidArgumentError(
                "The option maxEventsPerTrigger is for streams; a batch query reads once.",
                next_step="Limit it with eventhubs.endingPosition, or leave the option out.",
            )
        self._options = options
        self._columns = tuple(columns)
        self._bounds = RowBounds()

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks; events enqueued afterwards are not read."""
        options, hub = self._options, HubReader(self._options)
        options.warn_of_those_without_effect()
        description = hub.describe()
        start = starting_positions(options, hub, description)
        end = description.end_offset().partitions
        until = end if options.ending is None else hub.resolve(options.ending, description)
        ranges = self._bounds.apply(
            ranges_between(start, until, histories_at(until, description.bounds)),
            lambda key, time: hub.first_sequence_number(
                key, EventPosition.from_enqueued_time(time), description.bounds[key]
            ),
        )
        ranges, losses = clip_lost_events(
            ranges, description.bounds, fail_on_data_loss=options.fail_on_data_loss
        )
        _log_losses(losses, options)
        return plan_tasks(ranges, task_layout(options, ranges, is_split_default=True))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one task."""
        return read_ranges(self._options, partition, self._columns)


class FilteringBatchReader(EventHubsBatchReader):
    """The same, reading only what a query's filters need.

    Spark (4.3, measured) keeps a filtered plan with the DataFrame that ``load`` returned: a later query of it
    without filters would get the filtered rows. So ``eventhubs.pushFilters`` has to ask for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept filters on partition, sequence number and time; returns those that Spark must apply."""
        self._bounds, left = narrow(filters)
        return left


def task_layout(
    options: SourceOptions, ranges: Sequence[PartitionRange], *, is_split_default: bool
) -> TaskLayout:
    """The number of tasks for these ranges, and whether a large range is split between several.

    is_split_default: where the options do not say.
    """
    is_split = is_split_default if options.split_partitions is None else options.split_partitions
    tasks_max = options.tasks_max or max(usable_core_count(), options.tasks_min or 1)
    event_count = sum(item.event_count for item in ranges)
    count = task_count(event_count, tasks_min=options.tasks_min or tasks_max, tasks_max=tasks_max)
    return TaskLayout(count, is_split)


def plan_tasks(ranges: Sequence[PartitionRange], layout: TaskLayout) -> list[InputPartition]:
    """Deal ranges to tasks."""
    pieces = split_ranges(ranges, layout.tasks_max) if layout.is_split else ranges
    return [RangesInputPartition(task) for task in pack_ranges(pieces, layout.tasks_max)]


def starting_positions(options: SourceOptions, hub: HubReader, description: HubDescription) -> dict[str, int]:
    """Where each partition starts: at its SQL checkpoint, if the options name a database that has one.

    Raises EventHubReplacedError if that checkpoint refers to a deleted hub of that name.
    """
    positions = hub.resolve(options.starting, description)
    return positions | sql_positions(options, description)


def sql_positions(options: SourceOptions, description: HubDescription) -> dict[str, int]:
    """The consumer group's SQL checkpoints; empty if the options name no database.

    Raises LogDivergedError if the log was restored, and no longer has what they have processed; DatabaseError
    for a missing database or one without tables: a misspelt name would otherwise start the query at the
    beginning.
    """
    url = options.starting.checkpoint_database_url
    if url is None:
        return {}
    # Here, because SQLAlchemy doubles the start of each of Spark's Python processes, and few of them need it.
    from tidegate.spark.source.ownership import checkpoint_positions
    from tidegate.sql.core.values import ConsumerKey
    from tidegate.sql.stores.checkpoints import existing_database

    found = checkpoint_positions(
        existing_database(url, named_by="The option eventhubs.startingPosition"),
        ConsumerKey(options.event_hub, options.consumer_group),
        event_hub_created_at_ms=description.created_at_ms,
        bounds=description.bounds,
    )
    return {key: number for key, number in found.items() if key in description.bounds}


class EventHubsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their tasks' ranges."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str] = EVENT_COLUMNS,
        *,
        is_committing: bool = False,
    ) -> None:
        """is_committing: tasks move the SQL checkpoints, so compare with them before each micro-batch, not
        only at the query's beginning.
        """
        if options.ending is not None:
            raise InvalidArgumentError(
                "The option eventhubs.endingPosition is for batch queries; a stream has no end.",
                next_step="Use trigger(availableNow=True) for a stream that stops at the present end.",
            )
        if not HAS_LIMITS and SHADOW_MARK in options.consumer_group:
            raise InvalidArgumentError(
                "A shadow of a pipeline ends where the live one is, which PySpark before 4.2 cannot do.",
                next_step='Run it with a newer one: `pip install "pyspark>=4.2"`.',
            )
        self._options = options
        self._columns = tuple(columns)
        self._initial: StreamOffset | None = None
        self._last_description: HubDescription | None = None
        self._available_now_until: dict[str, int] | None = None
        self._sql_start: dict[str, int] | None = None
        self._is_committing = is_committing
        self._compared: StreamOffset | None = None
        """The offset that was last compared with SQL."""
        self._last_end: StreamOffset | None = None
        """Of the last micro-batch that was planned here, for a Spark that does not give it."""

    # Spark asks for these names.

    def initialOffset(self) -> JsonObject:  # noqa: N802
        """Where a query without a checkpoint starts; computed once, because Spark asks twice and ``latest``
        moves.
        """
        if self._initial is None:
            hub = HubReader(self._options)
            description = self._describe({})
            positions = starting_positions(self._options, hub, description)
            self._initial = StreamOffset(
                positions,
                description.created_at_ms,
                histories=histories_at(positions, description.bounds),
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxEventsPerTrigger``, or everything available."""
        limit = self._options.max_events_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that stops at the hub's current end; a shadow at its live pipeline's."""
        description = self._describe({})
        ends = {key: item.next_sequence_number for key, item in description.bounds.items()}
        live_group, mark, _ = self._options.consumer_group.partition(SHADOW_MARK)
        if mark:
            live = sql_positions(replace(self._options, consumer_group=live_group), description)
            ends = {key: min(end, live.get(key, 0)) for key, end in ends.items()}
        self._available_now_until = ends

    def latestOffset(  # noqa: N802
        self, start: JsonObject | None = None, limit: ReadLimit | None = None
    ) -> JsonObject:
        """Where the next micro-batch ends: at all available events, or at a fair share of them in ``limit``.

        start, limit: None: PySpark before 4.2, which gives neither. The start is then known from the second
        micro-batch on, and limited by ``maxEventsPerTrigger``.
        Raises EventHubReplacedError if the offsets refer to another hub, LogDivergedError if a log was
        restored and no longer has what the query has read, and PositionOutOfRangeError if it has lost events
        that are to be read or were already read; with ``failOnDataLoss`` off these last are counted in the
        offset instead.
        """
        if start is None:
            if self._last_end is None:
                return self._first_end().to_json()
            start, limit = self._last_end.to_json(), self.getDefaultReadLimit()
        offset = StreamOffset.from_json(start)
        description = self._planned(lambda: self._describe(offset.partitions))
        offset = self._offset_in(offset, description)
        check_histories(offset, description.bounds)
        self._check_not_ahead(offset, description)
        if self._last_description is None:
            self._options.warn_of_those_without_effect()
        self._last_description = description
        ends = end_of_micro_batch(
            offset.partitions,
            description.bounds,
            events_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            until=self._available_now_until,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        ranges, losses = self._readable(offset, ends, description)
        end = StreamOffset(
            ends,
            description.created_at_ms,
            added_losses(offset.lost_events, losses),
            histories_at(ends, description.bounds, since=offset),
            offset.layout,
        )
        if end == offset:
            return end.to_json()  # nothing new: another layout would be a micro-batch of its own
        layout = task_layout(self._options, ranges, is_split_default=False)
        return msgspec.structs.replace(end, layout=layout).to_json()

    def _first_end(self) -> StreamOffset:
        """All that there is: where this query continues is said only when the micro-batch is planned."""
        self._options.warn_of_those_without_effect()
        if self._options.max_events_per_trigger is not None:
            _logger.warning(
                "The option eventhubs.maxEventsPerTrigger does not limit the first micro-batch: PySpark %s "
                "does not say where a stream continues, PySpark 4.2 does.",
                ".".join(map(str, PYSPARK)),
            )
        self._last_description = self._describe({})
        return self._last_description.end_offset()

    def reportLatestOffset(self) -> JsonObject | None:  # noqa: N802
        """The hub's end when last seen, for the query's status."""
        if self._last_description is None:
            return None
        return self._last_description.end_offset().to_json()

    def partitions(self, start: JsonObject, end: JsonObject) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Raises PositionOutOfRangeError if some of its events are gone."""
        start_offset, end_offset = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._last_end = end_offset
        if self._last_description is None:
            # A restarted query repeats its last micro-batch without asking for the latest offset first.
            self._options.warn_of_those_without_effect()
            self._last_description = self._describe(start_offset.partitions)
        description = self._last_description
        if end_offset.event_hub_created_at_ms != description.created_at_ms:
            self._offset_in(end_offset, description)  # raises or reports
            return []  # nothing of that hub is left to read
        start_offset = self._offset_in(start_offset, description)
        for offset in (start_offset, end_offset):
            check_histories(offset, description.bounds)
        if self._compared is None:  # as above: not checked yet
            self._check_not_ahead(start_offset, description)
        ranges, losses = self._readable(
            start_offset, end_offset.partitions, description, histories=end_offset.histories
        )
        _log_losses(losses, self._options)
        layout = end_offset.layout or task_layout(self._options, ranges, is_split_default=False)
        return plan_tasks(ranges, layout)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one task."""
        return read_ranges(self._options, partition, self._columns)

    def _planned(self, attempt: Callable[[], T]) -> T:
        """What planning needs of the service or the database; a query that has begun waits for them.

        At its beginning a wrong address is more likely.
        """
        if self._last_description is None:
            return attempt()
        return patiently(attempt, f"Planning a micro-batch of {self._options.event_hub!r}")

    def _describe(self, wanted: Mapping[str, int]) -> HubDescription:
        """The hub now. wanted: the first needed event of each partition, for subclasses that find events
        elsewhere that the log no longer holds.
        """
        return HubReader(self._options).describe()

    def _offset_in(self, offset: StreamOffset, description: HubDescription) -> StreamOffset:
        """The offset; if it refers to a deleted hub, the start of the current one.

        Raises EventHubReplacedError instead if ``failOnDataLoss`` is on, or SQL checkpoints refer to the
        deleted hub.
        """
        if offset.event_hub_created_at_ms == description.created_at_ms:
            return offset
        if self._options.fail_on_data_loss or self._options.starting.checkpoint_database_url is not None:
            description.check_same_hub(offset.event_hub_created_at_ms)
        lost = offset.lost_events
        before = self._last_description
        if before is not None and before.created_at_ms == offset.event_hub_created_at_ms:
            # What the old hub held when last seen; later events are unknown.
            unread = {
                key: max(0, held.next_sequence_number - offset.partitions.get(key, 0))
                for key, held in before.bounds.items()
            }
            lost = {key: lost.get(key, 0) + unread.get(key, 0) for key in {**lost, **unread}}
        _logger.warning(
            "The event hub %r was deleted and created again: the query continues at the new one's start.",
            self._options.event_hub,
        )
        return StreamOffset({}, description.created_at_ms, lost)

    def _readable(
        self,
        start: StreamOffset,
        until: Mapping[str, int],
        description: HubDescription,
        *,
        histories: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[PartitionRange], list[Loss]]:
        """What to read between two offsets, without what SQL had when this query began; and what is lost."""
        done = self._sql_start or {}
        starts = {key: max(start.partitions.get(key, 0), done.get(key, 0)) for key in description.bounds}
        return clip_lost_events(
            ranges_between(starts, until, histories),
            description.bounds,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _check_not_ahead(self, offset: StreamOffset, description: HubDescription) -> None:
        """Check that Spark is not ahead of SQL, which would skip events."""
        if self._compared is not None and (not self._is_committing or offset == self._compared):
            return
        positions = self._planned(lambda: sql_positions(self._options, description))
        if self._sql_start is None:
            self._sql_start = positions
        for partition_id, position in positions.items():
            spark_position = offset.partitions.get(partition_id, 0)
            begin = description.bounds[partition_id].begin_sequence_number
            is_lost = spark_position <= begin and not self._options.fail_on_data_loss
            if spark_position > position and not is_lost:
                raise CheckpointGapError(
                    f"Spark's checkpoint directory is ahead of the database: partition {partition_id} is at "
                    f"{spark_position} there, and at {position} in SQL.",
                    next_step="Delete the checkpoint directory and start again: the database decides.",
                )
        self._compared = offset

"""How far a stream has read: the offset that Spark journals, and the arithmetic of what to read next.

Pure values and functions; ``reader`` asks the service and calls these. The JSON form is a contract with every
checkpoint directory that exists: a change of meaning takes a new version number.

    {"version": 1, "eventHubCreatedAtMs": 1767225600000, "partitions": {"0": 4711, "1": 0}}

A number is the sequence number of the first event that was **not** read. Where events were lost, there is a
fourth entry, ``"lostEvents": {"0": 12}``: how many since the query began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final

from tidegate.model.errors import InvalidArgumentError, PositionOutOfRangeError
from tidegate.model.partition_ends import PartitionEnds

OFFSET_VERSION = 1

PIECES_MAX: Final = 4
"""Tasks that read one partition at the same time: a consumer group may have five receivers of it, and one is
left for a receiver that waits for the next micro-batch."""
TASK_EVENTS: Final = 10_000
"""Events that are worth a task. Our choice: reading fewer takes no longer than a task costs by itself."""

JsonObject = dict[str, object]
"""A decoded JSON object, as Spark hands it over."""


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """Into what tasks a micro-batch is cut: the same ranges and layout give the same tasks."""

    tasks_max: int
    is_split: bool
    """True: a partition's range may go to several tasks."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in every partition of one event hub."""

    partitions: Mapping[str, int]
    """Partition id → sequence number of the first event that was not read."""
    event_hub_created_at_ms: int
    """Which incarnation of the hub it counts in: milliseconds since 1970-01-01 UTC."""
    lost_events: Mapping[str, int] = field(default_factory=dict)
    """Partition id → events passed over because they were gone, since the query began; 0 where absent."""
    layout: TaskLayout | None = None
    """Of the micro-batch that ends here: one that is run again, with other options or on another machine, has
    the same rows in the same tasks, by which a sink may know them. None: as the options say."""

    def to_json(self) -> JsonObject:
        """The form that Spark journals."""
        value: JsonObject = {
            "version": OFFSET_VERSION,
            "eventHubCreatedAtMs": self.event_hub_created_at_ms,
            "partitions": dict(self.partitions),
        }
        if self.lost_events:
            value["lostEvents"] = dict(self.lost_events)
        if self.layout is not None:
            value["tasks"] = {"max": self.layout.tasks_max, "areSplit": self.layout.is_split}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> StreamOffset:
        """Read the journalled form back.

        Raises InvalidArgumentError for another source's offset, a damaged one or one of a newer version.
        """
        version = value.get("version")
        if isinstance(version, int) and version > OFFSET_VERSION:
            raise InvalidArgumentError(
                f"The checkpoint directory holds an offset of version {version}; this Tidegate reads up to "
                f"version {OFFSET_VERSION}.",
                next_step="Run the version of Tidegate that wrote it, or a newer one.",
            )
        created_at_ms = value.get("eventHubCreatedAtMs")
        partitions, lost_events = value.get("partitions"), value.get("lostEvents", {})
        if (
            version != OFFSET_VERSION
            or not isinstance(created_at_ms, int)
            or not isinstance(partitions, dict)
            or not isinstance(lost_events, dict)
        ):
            raise _not_ours(value)
        for partition_id, number in [*partitions.items(), *lost_events.items()]:
            if not isinstance(partition_id, str) or not isinstance(number, int):
                raise _not_ours(value)
        return cls(partitions, created_at_ms, lost_events, _layout_of(value))


def _layout_of(value: Mapping[str, object]) -> TaskLayout | None:
    tasks = value.get("tasks")
    if tasks is None:
        return None
    if not isinstance(tasks, dict):
        raise _not_ours(value)
    tasks_max, is_split = tasks.get("max"), tasks.get("areSplit")
    if not isinstance(tasks_max, int) or tasks_max < 1 or not isinstance(is_split, bool):
        raise _not_ours(value)
    return TaskLayout(tasks_max, is_split)


def _not_ours(value: Mapping[str, object]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The checkpoint directory holds an offset that is not of the format `eventhubs`: {value!r}.",
        next_step="Give each query a checkpoint directory of its own.",
    )


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A half-open range of one partition's events, at least one event long."""

    partition_id: str
    start_sequence_number: int
    until_sequence_number: int
    is_last_piece: bool = True
    """False: the events behind it are read by another task at the same time."""

    @property
    def event_count(self) -> int:
        """How many events lie in the range."""
        return self.until_sequence_number - self.start_sequence_number


def spread_limit(backlogs: Mapping[str, int], events_max: int) -> dict[str, int]:
    """Share ``events_max`` between partitions in proportion to their backlogs.

    Returns a share for each key, never more than its backlog; the shares' sum is ``events_max``, or the whole
    backlog where that is less. Each partition with a backlog gets at least one event, so that a small backlog
    cannot starve behind large ones; where ``events_max`` does not go round, the largest come first.
    """
    total = sum(backlogs.values())
    if total <= events_max:
        return dict(backlogs)
    shares = dict.fromkeys(backlogs, 0)
    by_size = sorted((key for key, backlog in backlogs.items() if backlog), key=lambda key: -backlogs[key])
    for key in by_size[:events_max]:
        shares[key] = 1
    rest = events_max - sum(shares.values())
    open_total = sum(backlogs[key] - shares[key] for key in by_size)
    for key in by_size:
        shares[key] += rest * (backlogs[key] - 1) // open_total if rest else 0
    # What rounding down left over: fewer than there are partitions, one each to the largest.
    left = events_max - sum(shares.values())
    for key in by_size:
        if left and shares[key] < backlogs[key]:
            shares[key] += 1
            left -= 1
    return shares


def end_of_micro_batch(
    start: Mapping[str, int],
    bounds: Mapping[str, PartitionEnds],
    *,
    events_max: int | None,
    until: Mapping[str, int] | None,
    fail_on_data_loss: bool,
) -> dict[str, int]:
    """Where each partition's part of the next micro-batch ends.

    events_max: events in it at most; None: all that there are. until: an end not to go beyond, whatever has
    been enqueued since; None: none. Raises PositionOutOfRangeError where the hub ends before ``start``, that
    is, where it has lost events that were read from it.
    """
    ends: dict[str, int] = {}
    backlogs: dict[str, int] = {}
    for partition_id, held in bounds.items():
        begin = start.get(partition_id, 0)
        if held.next_sequence_number < begin and fail_on_data_loss:
            raise PositionOutOfRangeError(
                f"Partition {partition_id}: {begin} is the next sequence number to read, and the event hub "
                f"ends at {held.next_sequence_number}: it has lost events that were read already.",
                next_step="Restore the event hub, or set failOnDataLoss to false to wait for new events.",
            )
        end = held.next_sequence_number if until is None else until.get(partition_id, 0)
        # What retention has deleted is no backlog: it must not eat up the share of what is there.
        ends[partition_id] = max(begin, min(held.begin_sequence_number, end))
        backlogs[partition_id] = max(0, end - ends[partition_id])
    shares = backlogs if events_max is None else spread_limit(backlogs, events_max)
    return {partition_id: ends[partition_id] + shares[partition_id] for partition_id in ends}


def task_count(event_count: int, *, tasks_min: int, tasks_max: int) -> int:
    """Tasks that a (micro-)batch of so many events is dealt to at most.

    tasks_min: of a small one. A larger one gets more, up to tasks_max, where each then has ``TASK_EVENTS`` or
    more.
    """
    return min(tasks_max, max(tasks_min, event_count // TASK_EVENTS))


def pack_ranges(ranges: Iterable[PartitionRange], tasks_max: int) -> list[tuple[PartitionRange, ...]]:
    """Deal ranges into at most ``tasks_max`` tasks of about equal numbers of events.

    A range stays whole, which the exactly-once sink needs; ``split_ranges`` before this is for who does not.
    A task costs some milliseconds whatever it reads, so a small micro-batch has about as many as there are
    cores, not as many as partitions.
    """
    tasks: list[list[PartitionRange]] = [[] for _ in range(max(1, tasks_max))]
    loads = [0] * len(tasks)
    for partition_range in sorted(ranges, key=lambda item: (-item.event_count, item.partition_id)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(partition_range)
        loads[lightest] += partition_range.event_count
    order = attrgetter("partition_id", "start_sequence_number")
    return [tuple(sorted(task, key=order)) for task in tasks if task]


def split_ranges(ranges: Iterable[PartitionRange], tasks_max: int) -> list[PartitionRange]:
    """Cut the ranges that hold more than a task's share of the events, so that tasks come out even.

    The pieces of a range cover it once, in order. There are ``PIECES_MAX`` of one partition at most, and none
    is smaller than ``TASK_EVENTS``.
    """
    whole = list(ranges)
    share = max(TASK_EVENTS, -(-sum(item.event_count for item in whole) // max(1, tasks_max)))
    pieces: list[PartitionRange] = []
    for item in whole:
        count = min(PIECES_MAX, -(-item.event_count // share), item.event_count // TASK_EVENTS)
        count = max(1, count)
        cuts = [item.start_sequence_number + item.event_count * index // count for index in range(count + 1)]
        pieces += [
            PartitionRange(item.partition_id, start, until, until == item.until_sequence_number)
            for start, until in pairwise(cuts)
        ]
    return pieces


def ranges_between(start: Mapping[str, int], until: Mapping[str, int]) -> list[PartitionRange]:
    """The non-empty ranges from one offset to the next; a partition missing in ``start`` starts at its 0."""
    return [
        PartitionRange(partition_id, start.get(partition_id, 0), until_sequence_number)
        for partition_id, until_sequence_number in until.items()
        if until_sequence_number > start.get(partition_id, 0)
    ]


@dataclass(frozen=True, slots=True)
class Loss:
    """Events that were to be read and are gone."""

    partition_id: str
    wanted_sequence_number: int
    available_sequence_number: int
    event_count: int

    def __str__(self) -> str:
        plural = "event is" if self.event_count == 1 else "events are"
        return (
            f"Partition {self.partition_id}: sequence number {self.wanted_sequence_number} was wanted, and "
            f"the first available one is {self.available_sequence_number}: {self.event_count} {plural} gone "
            "(retention has deleted them, or the log has a hole)."
        )


def clip_lost_events(
    ranges: Sequence[PartitionRange], bounds: Mapping[str, PartitionEnds], *, fail_on_data_loss: bool
) -> tuple[list[PartitionRange], list[Loss]]:
    """Cut off what retention has already deleted from the front of ranges.

    Returns the ranges that can be read and what was cut. Raises PositionOutOfRangeError instead of cutting
    where ``fail_on_data_loss``.
    """
    readable: list[PartitionRange] = []
    losses: list[Loss] = []
    for item in ranges:
        begin = bounds[item.partition_id].begin_sequence_number
        if item.start_sequence_number >= begin:
            readable.append(item)
            continue
        lost_until = min(begin, item.until_sequence_number)
        loss = Loss(
            item.partition_id, item.start_sequence_number, begin, lost_until - item.start_sequence_number
        )
        if fail_on_data_loss:
            raise PositionOutOfRangeError(
                str(loss), next_step="Set failOnDataLoss to false to go on from the first available event."
            )
        losses.append(loss)
        if item.until_sequence_number > begin:
            readable.append(replace(item, start_sequence_number=begin))
    return readable, losses


def added_losses(lost_events: Mapping[str, int], losses: Iterable[Loss]) -> dict[str, int]:
    """The count of lost events by partition, with more losses added."""
    counts = dict(lost_events)
    for loss in losses:
        counts[loss.partition_id] = counts.get(loss.partition_id, 0) + loss.event_count
    return counts

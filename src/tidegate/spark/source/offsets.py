"""The offset of a stream, which Spark journals, and the arithmetic of what to read next.

Pure values and functions; ``reader`` asks the service and calls these. Every existing checkpoint directory
has the JSON form, so a change of its meaning requires a new version number.

    {"version": 1, "eventHubCreatedAtMs": 1767225600000, "partitions": {"0": 4711, "1": 0}}

A number is the sequence number of the first event that was **not** read. ``"lostEvents": {"0": 12}`` is added
if events were lost: how many since the query began. ``"histories": {"0": "6f…"}`` names the history of the
log in which the event before the number was stored, if the service reports histories (``model.history``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from tidegate.model.errors import (
    LATER_VERSION,
    InvalidArgumentError,
    LogDivergedError,
    PositionOutOfRangeError,
)
from tidegate.model.history import find_divergence, history_of
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.validation import from_values

OFFSET_VERSION = 1

PIECES_MAX: Final = 4
"""Most tasks that read one partition at once: a consumer group may have five receivers per partition, and one
is reserved for a receiver that waits for the next micro-batch."""
TASK_EVENTS: Final = 10_000
"""Events that justify a task (our choice: reading fewer takes no longer than a task's overhead)."""

DIVERGED_STEP: Final = (
    "Give the query a new checkpoint directory, and set eventhubs.startingPositions to the events to "
    "continue with. See the guide on disaster recovery."
)

T = TypeVar("T")

_NAMES: Final = {
    "event_hub_created_at_ms": "eventHubCreatedAtMs",
    "lost_events": "lostEvents",
    "layout": "tasks",
}

JsonObject = dict[str, object]
"""A decoded JSON object, as Spark passes it."""


class TaskLayout(msgspec.Struct, frozen=True, rename={"tasks_max": "max", "is_split": "areSplit"}):
    """How a micro-batch is divided into tasks: the same ranges and layout give the same tasks."""

    tasks_max: Annotated[int, msgspec.Meta(ge=1)]
    is_split: bool
    """True: a partition's range may be split between tasks."""


class StreamOffset(msgspec.Struct, frozen=True, rename=_NAMES):
    """A position in every partition of one event hub."""

    partitions: Mapping[str, int]
    """Partition id → sequence number of the first event that was not read."""
    event_hub_created_at_ms: int
    """The hub's creation time, in milliseconds since 1970-01-01 UTC: a recreated hub counts from 0 again."""
    lost_events: Mapping[str, int] = {}
    """Partition id → events skipped because they were gone, since the query began; absent: 0."""
    histories: Mapping[str, str] = {}
    """Partition id → history of the event before the number; absent: unknown."""
    layout: TaskLayout | None = None
    """The layout of the micro-batch that ends here, so that a repeat, with other options or on another
    machine, has the same rows in the same tasks, by which a sink may recognise them. None: as the options
    say."""

    def to_json(self) -> JsonObject:
        """The form that Spark journals."""
        value: JsonObject = {
            "version": OFFSET_VERSION,
            "eventHubCreatedAtMs": self.event_hub_created_at_ms,
            "partitions": dict(self.partitions),
        }
        if self.lost_events:
            value["lostEvents"] = dict(self.lost_events)
        if self.histories:
            value["histories"] = dict(self.histories)
        if self.layout is not None:
            value["tasks"] = msgspec.to_builtins(self.layout)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> StreamOffset:
        """Parse the journalled form.

        Raises InvalidArgumentError for another source's offset, a damaged one or one of a newer version.
        """
        version = value.get("version")
        if isinstance(version, int) and version > OFFSET_VERSION:
            raise InvalidArgumentError(
                f"The checkpoint directory holds an offset of version {version}; this Tidegate reads up to "
                f"version {OFFSET_VERSION}.",
                next_step=LATER_VERSION,
            )
        try:
            msgspec.convert(version, Literal[1])
            return from_values(value, cls)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(
                f"The checkpoint directory holds an offset that is not of the format `eventhubs`: {value!r}.",
                next_step="Give each query a checkpoint directory of its own.",
            ) from error


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A half-open, non-empty range of one partition's events."""

    partition_id: str
    start_sequence_number: int
    until_sequence_number: int
    is_last_piece: bool = True
    """False: another task reads the events after it at the same time."""
    history_id: str | None = None
    """The history of the log in which the last event was stored when this was planned; None: unknown."""

    @property
    def event_count(self) -> int:
        """Events in the range."""
        return self.until_sequence_number - self.start_sequence_number


def spread_limit(backlogs: Mapping[str, int], events_max: int) -> dict[str, int]:
    """Share ``events_max`` between partitions in proportion to their backlogs.

    Returns a share for each key, at most its backlog; the shares add up to ``events_max``, or to the whole
    backlog where that is less. Each partition with a backlog gets at least one event, so that a small backlog
    is not starved by large ones; where ``events_max`` is too small for that, the largest come first.
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
    # What rounding down left, fewer than the partitions: one each to the largest.
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

    events_max: most events in it; None: all available. until: a fixed end, whatever is enqueued later; None:
    none. Raises PositionOutOfRangeError if the hub ends before ``start``, which means that it has lost events
    that were already read.
    """
    ends: dict[str, int] = {}
    backlogs: dict[str, int] = {}
    for partition_id, held in bounds.items():
        begin = start.get(partition_id, 0)
        if held.next_sequence_number < begin and fail_on_data_loss:
            raise PositionOutOfRangeError(
                f"Partition {partition_id}: {begin} is the next sequence number to read, but the event hub "
                f"ends at {held.next_sequence_number}: it has lost events that were already read.",
                next_step="Restore the event hub, or set failOnDataLoss to false to wait for new events.",
            )
        end = held.next_sequence_number if until is None else until.get(partition_id, 0)
        # Events that retention has deleted are not part of the backlog and must not use up the limit.
        ends[partition_id] = max(begin, min(held.begin_sequence_number, end))
        backlogs[partition_id] = max(0, end - ends[partition_id])
    shares = backlogs if events_max is None else spread_limit(backlogs, events_max)
    return {partition_id: ends[partition_id] + shares[partition_id] for partition_id in ends}


def histories_at(
    partitions: Mapping[str, int], bounds: Mapping[str, PartitionEnds], *, since: StreamOffset | None = None
) -> dict[str, str]:
    """The histories for an offset at these numbers.

    since: the offset before; where its number has not changed, neither does what it says of the history, so
    that a restart alone makes no micro-batch.
    """
    found: dict[str, str | None] = {}
    for partition_id, number in partitions.items():
        if since is not None and since.partitions.get(partition_id) == number:
            found[partition_id] = since.histories.get(partition_id)
        elif partition_id in bounds:
            found[partition_id] = history_of(number - 1, bounds[partition_id].histories)
    return {key: history_id for key, history_id in found.items() if history_id is not None}


def check_histories(offset: StreamOffset, bounds: Mapping[str, PartitionEnds]) -> None:
    """Raises LogDivergedError if a partition was restored, and no longer has what the query has read."""
    for partition_id, history_id in offset.histories.items():
        held = bounds.get(partition_id)
        if held is None or partition_id not in offset.partitions:
            continue
        where = f"Partition {partition_id} of {held.event_hub!r}"
        found = find_divergence(offset.partitions[partition_id], history_id, held.histories, where=where)
        if found is not None:
            raise LogDivergedError(
                found.message,
                next_step=DIVERGED_STEP,
            )


def task_count(event_count: int, *, tasks_min: int, tasks_max: int) -> int:
    """Most tasks for a (micro-)batch of this many events.

    tasks_min: for a small one. A larger one gets more, up to tasks_max, of at least ``TASK_EVENTS`` each.
    """
    return min(tasks_max, max(tasks_min, event_count // TASK_EVENTS))


def pack_ranges(ranges: Iterable[PartitionRange], tasks_max: int) -> list[tuple[PartitionRange, ...]]:
    """Distribute ranges over at most ``tasks_max`` tasks with about equal numbers of events.

    A range stays whole, which the exactly-once sink requires; otherwise call ``split_ranges`` first. A task
    costs some milliseconds whatever it reads, so a small micro-batch has about as many as there are cores,
    not as many as partitions.
    """
    order = attrgetter("partition_id", "start_sequence_number")
    tasks = dealt(sorted(ranges, key=attrgetter("partition_id")), tasks_max, lambda item: item.event_count)
    return [tuple(sorted(task, key=order)) for task in tasks]


def dealt(items: Iterable[T], tasks_max: int, weight: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Distribute items over at most ``tasks_max`` tasks of about equal weight, the heaviest first."""
    tasks: list[list[T]] = [[] for _ in range(max(1, tasks_max))]
    loads = [0] * len(tasks)
    for item in sorted(items, key=lambda item: -weight(item)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(item)
        loads[lightest] += weight(item)
    return [tuple(task) for task in tasks if task]


def split_ranges(ranges: Iterable[PartitionRange], tasks_max: int) -> list[PartitionRange]:
    """Split ranges that hold more than a task's share of the events, so that tasks are even.

    The pieces of a range cover it once, in order. There are at most ``PIECES_MAX`` per partition, none
    smaller than ``TASK_EVENTS``.
    """
    whole = list(ranges)
    share = max(TASK_EVENTS, -(-sum(item.event_count for item in whole) // max(1, tasks_max)))
    pieces: list[PartitionRange] = []
    for item in whole:
        count = min(PIECES_MAX, -(-item.event_count // share), item.event_count // TASK_EVENTS)
        count = max(1, count)
        cuts = [item.start_sequence_number + item.event_count * index // count for index in range(count + 1)]
        pieces += [
            PartitionRange(
                item.partition_id, start, until, until == item.until_sequence_number, item.history_id
            )
            for start, until in pairwise(cuts)
        ]
    return pieces


def ranges_between(
    start: Mapping[str, int], until: Mapping[str, int], histories: Mapping[str, str] = MappingProxyType({})
) -> list[PartitionRange]:
    """The non-empty ranges from one offset to the next; a partition missing in ``start`` starts at 0.

    histories: those of the events before ``until``.
    """
    return [
        PartitionRange(
            partition_id,
            start.get(partition_id, 0),
            until_sequence_number,
            history_id=histories.get(partition_id),
        )
        for partition_id, until_sequence_number in until.items()
        if until_sequence_number > start.get(partition_id, 0)
    ]


@dataclass(frozen=True, slots=True)
class Loss:
    """Events that were to be read but are gone."""

    partition_id: str
    wanted_sequence_number: int
    available_sequence_number: int
    event_count: int

    def __str__(self) -> str:
        plural = "event is" if self.event_count == 1 else "events are"
        return (
            f"Partition {self.partition_id}: sequence number {self.wanted_sequence_number} was wanted, but "
            f"the first available one is {self.available_sequence_number}: {self.event_count} {plural} gone "
            "(deleted by retention, or missing from the log)."
        )


def clip_lost_events(
    ranges: Sequence[PartitionRange], bounds: Mapping[str, PartitionEnds], *, fail_on_data_loss: bool
) -> tuple[list[PartitionRange], list[Loss]]:
    """Remove deleted events from the start of ranges.

    Returns the readable ranges and what was removed. Raises PositionOutOfRangeError instead if
    ``fail_on_data_loss``.
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
                str(loss), next_step="Set failOnDataLoss to false to continue at the first available event."
            )
        losses.append(loss)
        if item.until_sequence_number > begin:
            readable.append(replace(item, start_sequence_number=begin))
    return readable, losses


def added_losses(lost_events: Mapping[str, int], losses: Iterable[Loss]) -> dict[str, int]:
    """Lost events by partition, with more losses added."""
    counts = dict(lost_events)
    for loss in losses:
        counts[loss.partition_id] = counts.get(loss.partition_id, 0) + loss.event_count
    return counts

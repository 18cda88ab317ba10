"""Decides where a partition starts, and whether its log still holds the next event. Pure.

checkpoint                     the log now            outcome
none                           any                    the initial position
by number, within the log      [begin, end)           after it
by number, before begin        cut by retention       loss; the events between are gone
by number, beyond the end      restored from a copy   loss; the numbers will be assigned again
by number, of another history  restored and grown     loss; the numbers mean other events
of another hub of this name    created again          loss; the numbers mean other events
by offset or time only         any                    at it; only the service knows whether it is lost
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.client import PartitionEnds
from tidegate.model.errors import EventHubReplacedError, LogDivergedError, PositionOutOfRangeError
from tidegate.model.history import find_divergence, history_of
from tidegate.model.position import EventPosition, PositionKind
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.policies import PositionLostPolicy

PositionLost = PositionOutOfRangeError | EventHubReplacedError


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts."""

    position: EventPosition
    next_sequence_number: int | None
    """The resume point; None if it is known only with the first event read."""
    must_start_at_position: bool = False
    """True if a log that begins later has lost unprocessed events."""
    is_after_loss: bool = False
    """True if this start follows a loss; it is not recovered again."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Where to resume after a loss, by policy."""

    start: Start
    checkpoint: ProcessorCheckpoint
    """The checkpoint right before the start."""


def decide_start(
    checkpoint: ProcessorCheckpoint | None, initial: EventPosition, properties: PartitionEnds
) -> Start:
    """Where to start if nothing is lost (see ``find_loss``)."""
    if checkpoint is None:
        return _initial_start(initial, properties)
    number = checkpoint.sequence_number
    if number is None:
        return Start(checkpoint.position, None)
    if number < 0:
        return _start_at_begin(properties)
    return replace(_start_at(number + 1, checkpoint.history_id), must_start_at_position=True)


def find_loss(
    checkpoint: ProcessorCheckpoint, properties: PartitionEnds, *, event_hub_created_at_ms: int
) -> PositionLost | None:
    """The error for a checkpoint whose next event the log does not hold; None if it does."""
    where = f"Partition {properties.partition_id} of {properties.event_hub!r}"
    recorded_ms = checkpoint.event_hub_created_at_ms
    if recorded_ms is not None and recorded_ms != event_hub_created_at_ms:
        return EventHubReplacedError(
            f"{where}: the event hub was deleted and created again, and the checkpoint "
            f"({describe_position(checkpoint.position)}) belongs to the old one; {describe_log(properties)}.",
            next_step=_NEXT_STEP,
        )
    if checkpoint.sequence_number is None or checkpoint.sequence_number < 0:
        return None
    wanted = checkpoint.sequence_number + 1
    diverged = find_divergence(wanted, checkpoint.history_id, properties.histories, where=where)
    if diverged is not None:
        return diverged
    if wanted > properties.next_sequence_number:
        return PositionOutOfRangeError(
            f"{where}: the checkpoint resumes at sequence number {wanted}, beyond the end of the log; "
            f"{describe_log(properties)}. The log is older than the checkpoint, as after a restore.",
            next_step=_NEXT_STEP,
        )
    begin = properties.begin_sequence_number
    if wanted < begin:
        return PositionOutOfRangeError(
            f"{where}: sequence numbers {wanted} to {begin - 1} were removed by retention before they were "
            f"processed; {describe_log(properties)}.",
            next_step=_NEXT_STEP,
        )
    return None


def refused_position(
    position: EventPosition, properties: PartitionEnds, error: Exception
) -> PositionOutOfRangeError:
    """The error for a position that the service refused with ``error``."""
    if isinstance(error, LogDivergedError):
        return error
    return PositionOutOfRangeError(
        f"Partition {properties.partition_id} of {properties.event_hub!r} cannot be read from "
        f"{describe_position(position)}; {describe_log(properties)}. The service reports: {error}",
        next_step=_NEXT_STEP,
    )


def decide_recovery(
    policy: PositionLostPolicy, properties: PartitionEnds, *, event_hub_created_at_ms: int
) -> Recovery:
    """Where to resume after a loss; ``policy`` must not be STOP."""
    assert policy is not PositionLostPolicy.STOP
    is_latest = policy is PositionLostPolicy.LATEST
    start = _start_at_end(properties) if is_latest else _start_at_begin(properties)
    number = start.next_sequence_number
    assert number is not None
    is_offset_known = number == properties.next_sequence_number and number > 0
    checkpoint = ProcessorCheckpoint(
        properties.partition_id,
        number - 1,
        properties.last_enqueued_offset if is_offset_known else None,
        properties.last_enqueued_time_ms if is_offset_known else None,
        event_hub_created_at_ms,
        history_id=history_of(number - 1, properties.histories),
    )
    return Recovery(replace(start, is_after_loss=True), checkpoint)


def describe_log(properties: PartitionEnds) -> str:
    """The events that the log holds, as part of a sentence."""
    begin, until = properties.begin_sequence_number, properties.next_sequence_number
    if begin >= until:
        return f"the log is empty, and the next event gets {until}"
    return f"the log holds {begin} to {until - 1}"


def describe_position(position: EventPosition) -> str:
    """The wanted position, as part of a sentence."""
    if position.value is None:
        return position.kind.value
    side = "at" if position.is_inclusive else "after"
    return f"{side} {position.kind.value.replace('_', ' ')} {position.value}"


_NEXT_STEP = (
    "Set on_position_lost to EARLIEST or LATEST to resume there, use another consumer group, or set the "
    "checkpoint yourself."
)


def _initial_start(initial: EventPosition, properties: PartitionEnds) -> Start:
    match initial.kind:
        case PositionKind.EARLIEST:
            return _start_at_begin(properties)
        case PositionKind.LATEST:
            return replace(_start_at_end(properties), must_start_at_position=True)
        case PositionKind.SEQUENCE_NUMBER:
            assert isinstance(initial.value, int)
            number = initial.value if initial.is_inclusive else initial.value + 1
            return Start(initial, max(number, properties.begin_sequence_number))
        case _:
            return Start(initial, None)


def _start_at(number: int, history_id: str | None) -> Start:
    if number <= 0:
        return Start(EventPosition.earliest(), 0)
    # "After the last" rather than "at the next", because every service accepts it at the end of the log.
    position = EventPosition.from_sequence_number(number - 1, is_inclusive=False, history_id=history_id)
    return Start(position, number)


def _start_at_end(properties: PartitionEnds) -> Start:
    number = properties.next_sequence_number
    return _start_at(number, history_of(number - 1, properties.histories))


def _start_at_begin(properties: PartitionEnds) -> Start:
    return Start(EventPosition.earliest(), properties.begin_sequence_number)

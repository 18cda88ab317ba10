"""Where ``tidegate checkpoint set`` moves checkpoints to, and when it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.cli.shell.connection import FIRST_CONTACT_TIMEOUT_S
from tidegate.model.errors import (
    InvalidArgumentError,
    OperationTimeoutError,
    PositionOutOfRangeError,
    QuotaExceededError,
    ReceiverStolenError,
    TidegateError,
)
from tidegate.model.history import history_of
from tidegate.model.hub_properties import PartitionEnds, no_partition
from tidegate.model.position import EventPosition, PositionKind, parse_time
from tidegate.model.times import milliseconds_of
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from tidegate.client import EventHubConsumer
    from tidegate.model.events import ReceivedEvent
    from tidegate.processor.checkpoint import ProcessorCheckpoint
    from tidegate.processor.group_view import GroupView
    from tidegate.processor.moves import MovePlan, PlannedMove


class MoveRefusedError(TidegateError):
    """Moving checkpoints requires an option that was not given; none was moved."""


def target_of(
    *,
    sequence_number: int | None,
    offset: str | None,
    enqueued_time: str | None,
    is_earliest: bool,
    is_latest: bool,
) -> EventPosition:
    """The position that the options name. Raises InvalidArgumentError for none, or more than one."""
    given: list[EventPosition] = []
    if sequence_number is not None:
        given.append(EventPosition.from_sequence_number(sequence_number))
    if offset is not None:
        given.append(EventPosition.from_offset(offset))
    if enqueued_time is not None:
        time = parse_time(enqueued_time, now_utc=SystemClock().now_utc())
        given.append(EventPosition.from_enqueued_time(time))
    given += [EventPosition.earliest()] * is_earliest + [EventPosition.latest()] * is_latest
    if len(given) != 1:
        raise InvalidArgumentError(
            "No position given." if not given else f"{len(given)} positions given.",
            next_step="Use exactly one of --sequence-number, --offset, --enqueued-time, --earliest, "
            "--latest.",
        )
    return given[0]


def compared_with(move: PlannedMove, view: GroupView, *, lease_duration_s: float) -> PlannedMove:
    """The move, compared with the store. lease_duration_s: an older lease has expired."""
    return replace(
        move,
        before=view.checkpoints.get(move.partition_id),
        owner=view.owner(move.partition_id, lease_duration_s=lease_duration_s),
        lease_age_s=view.lease_age_s(move.partition_id),
    )


def refuse_moves(plan: MovePlan, *, is_rewind_allowed: bool, is_forced: bool) -> None:
    """Raises MoveRefusedError, with all reasons, for moves that need an option which was not given."""
    reasons: list[str] = []
    remedies: list[str] = []
    if plan.owned and not is_forced:
        held = ", ".join(
            f"{move.partition_id} by {move.owner} (renewed {move.lease_age_s:.0f} s ago)"
            for move in plan.owned
        )
        reasons.append(f"Hosts are processing these partitions: {held}.")
        remedies.append("Stop them first, or add --force.")
    if plan.rewinds and not is_rewind_allowed:
        said = ", ".join(
            f"{move.partition_id} from {move.resume_point_before} to {move.resume_point}"
            for move in plan.rewinds
        )
        reasons.append(f"Checkpoints would move backwards, or into another log: partition {said}.")
        remedies.append("Add --rewind to process events again.")
    if reasons:
        raise MoveRefusedError(f"Nothing changed. {' '.join(reasons)}", next_step=" ".join(remedies))


async def plan_moves(
    consumer: EventHubConsumer,
    partition_ids: Sequence[str] | None,
    target: EventPosition,
    *,
    is_offset_needed: bool = False,
) -> list[PlannedMove]:
    """Find the target in the log of each partition (None: of all).

    is_offset_needed: the store requires offsets. The offset before the first retained event is unknown, so
    that checkpoint becomes one with nothing processed.
    Raises NotFoundError (no such partition), PositionOutOfRangeError (not in the log), and as reading does.
    """
    from tidegate.processor.moves import PlannedMove

    hub = await consumer.get_event_hub_properties()
    chosen = hub.partition_ids if partition_ids is None else tuple(dict.fromkeys(partition_ids))
    for partition_id in chosen:
        if partition_id not in hub.partition_ids:
            raise no_partition(hub.name, partition_id, hub.partition_ids)
    moves = []
    for partition_id in chosen:
        partition = await consumer.get_partition_properties(partition_id)
        resume_point = await _find(consumer, partition, target)
        checkpoint = await _checkpoint_before(consumer, partition, resume_point)
        if is_offset_needed and checkpoint.offset is None and resume_point == partition.begin_sequence_number:
            checkpoint = replace(checkpoint, sequence_number=-1)
        checkpoint = replace(
            checkpoint,
            event_hub_created_at_ms=milliseconds_of(hub.created_at),
            history_id=history_of(resume_point - 1, partition.histories),
        )
        moves.append(PlannedMove(checkpoint))
    return moves


async def _find(consumer: EventHubConsumer, partition: PartitionEnds, position: EventPosition) -> int:
    """The sequence number that processing continues with."""
    from tidegate.processor.moves import resume_point_of

    begin, until = partition.begin_sequence_number, partition.next_sequence_number
    resume_point = resume_point_of(position, partition.partition_id, begin=begin, until=until)
    if resume_point is not None:
        return resume_point
    if position.kind is PositionKind.OFFSET:
        if partition.is_empty:
            raise PositionOutOfRangeError(
                f"Partition {partition.partition_id} has no event with the offset {position.value}.",
                next_step="Use --earliest or --latest.",
            )
        if position.value == partition.last_enqueued_offset:
            return until
    else:
        assert isinstance(position.value, datetime)
        last_time = partition.last_enqueued_time
        if partition.is_empty or last_time is None or position.value > last_time:
            return until
    return (await _first_event(consumer, partition, position)).sequence_number


async def _checkpoint_before(
    consumer: EventHubConsumer, partition: PartitionEnds, resume_point: int
) -> ProcessorCheckpoint:
    """The checkpoint of the event before ``resume_point``; with offset and time if the log still has it."""
    from tidegate.processor.checkpoint import ProcessorCheckpoint

    begin, until = partition.begin_sequence_number, partition.next_sequence_number
    last = resume_point - 1
    if resume_point == until and partition.last_enqueued_time is not None:
        time_ms = milliseconds_of(partition.last_enqueued_time)
        return ProcessorCheckpoint(partition.partition_id, last, partition.last_enqueued_offset, time_ms)
    if last < begin:
        return ProcessorCheckpoint(partition.partition_id, last)
    try:
        event = await _first_event(consumer, partition, EventPosition.from_sequence_number(last))
    except (ReceiverStolenError, QuotaExceededError):
        # On Azure, hosts keep other readers out of the partition: the sequence number alone is enough.
        return ProcessorCheckpoint(partition.partition_id, last)
    return ProcessorCheckpoint.of_event(event)


async def _first_event(
    consumer: EventHubConsumer, partition: PartitionEnds, position: EventPosition
) -> ReceivedEvent:
    async with await consumer.open_receiver(
        partition.partition_id, position, prefetch_events=1, prefetch_bytes=1, is_peeking=True
    ) as receiver:
        events = await receiver.receive(1, max_wait_s=FIRST_CONTACT_TIMEOUT_S)
    if not events:
        raise OperationTimeoutError(
            f"Partition {partition.partition_id} returned no event from {position.kind.value} "
            f"{position.value} within {FIRST_CONTACT_TIMEOUT_S:.0f} s."
        )
    return events[0]

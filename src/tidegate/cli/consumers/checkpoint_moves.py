"""Where ``tidegate checkpoint set`` moves checkpoints to, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.cli.shell.connection import FIRST_CONTACT_TIMEOUT_S
from tidegate.cli.shell.stores import GroupView, milliseconds_of
from tidegate.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    PositionOutOfRangeError,
    QuotaExceededError,
    ReceiverStolenError,
    TidegateError,
)
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.position_text import parse_time

if TYPE_CHECKING:
    from tidegate.client import EventHubConsumer, PartitionProperties
    from tidegate.model.events import ReceivedEvent
    from tidegate.processor.checkpoint import ProcessorCheckpoint


class MoveRefusedError(TidegateError):
    """Something speaks against moving checkpoints that an option can allow; none was moved."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where processing is to go on, as the options say it."""

    position: EventPosition

    @classmethod
    def of_options(
        cls,
        *,
        sequence_number: int | None,
        offset: str | None,
        enqueued_time: str | None,
        is_earliest: bool,
        is_latest: bool,
        now_utc: datetime,
    ) -> Target:
        """The one position that was given. Raises InvalidArgumentError for none, or more than one."""
        given: list[EventPosition] = []
        if sequence_number is not None:
            given.append(EventPosition.from_sequence_number(sequence_number))
        if offset is not None:
            given.append(EventPosition.from_offset(offset))
        if enqueued_time is not None:
            given.append(EventPosition.from_enqueued_time(parse_time(enqueued_time, now_utc=now_utc)))
        given += [EventPosition.earliest()] * is_earliest + [EventPosition.latest()] * is_latest
        if len(given) != 1:
            raise InvalidArgumentError(
                "No position is given." if not given else f"{len(given)} positions are given.",
                next_step="Give one of --sequence-number, --offset, --enqueued-time, --earliest, --latest.",
            )
        return cls(given[0])


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's checkpoint, before and after."""

    partition_id: str
    after: ProcessorCheckpoint
    before: ProcessorCheckpoint | None = None
    """None: there is none."""
    owner: str | None = None
    """The host that has the partition, or had it; None: none."""
    lease_age_s: float = 0.0
    is_set: bool = False

    @property
    def events(self) -> int | None:
        """How many are skipped; negative: processed again; None: unknown, or there was no checkpoint."""
        if self.before is None or self.is_other_hub:
            return None
        before, after = self.before.sequence_number, self.after.sequence_number
        return None if before is None or after is None else after - before

    @property
    def is_other_hub(self) -> bool:
        """Whether the checkpoint counts in another hub of this name."""
        before_ms = None if self.before is None else self.before.event_hub_created_at_ms
        return before_ms is not None and before_ms != self.after.event_hub_created_at_ms

    @property
    def is_rewind(self) -> bool:
        """Whether it may go backwards: it does, or the two cannot be compared."""
        return self.before is not None and (self.events is None or self.events < 0)

    def compared_with(self, view: GroupView) -> Move:
        """The same with what the store has now."""
        lease = view.leases.leases.get(self.partition_id)
        return replace(
            self,
            before=view.checkpoints.get(self.partition_id),
            owner=None if lease is None or not lease.owner else lease.owner,
            lease_age_s=0.0 if lease is None else view.lease_age_s(lease),
        )

    def seen_in(self, checkpoints: Mapping[str, ProcessorCheckpoint]) -> Move:
        """The same with whether the store has it now."""
        found = checkpoints.get(self.partition_id)
        is_there = found is not None and found.sequence_number == self.after.sequence_number
        return replace(self, is_set=is_there)

    def record(self, group: str) -> dict[str, object]:
        """For people and scripts."""
        return {
            "consumer_group": group,
            "partition": self.partition_id,
            "before": _following(self.before),
            "after": _following(self.after),
            "events": self.events,
            "is_set": self.is_set,
        }


def refuse_moves(
    moves: Sequence[Move], *, is_rewind_allowed: bool, is_forced: bool, lease_duration_s: float
) -> None:
    """Raises MoveRefusedError, with everything that speaks against them, unless it is allowed."""
    reasons: list[str] = []
    remedies: list[str] = []
    owned = [move for move in moves if move.owner is not None and move.lease_age_s < lease_duration_s]
    if owned and not is_forced:
        held = ", ".join(
            f"{move.partition_id} by {move.owner} (renewed {move.lease_age_s:.0f} s ago)" for move in owned
        )
        reasons.append(f"Partitions are processed now: {held}.")
        remedies.append("Stop those hosts first, or add --force.")
    backwards = [move for move in moves if move.is_rewind]
    if backwards and not is_rewind_allowed:
        said = ", ".join(
            f"{move.partition_id} from {_following(move.before)} to {_following(move.after)}"
            for move in backwards
        )
        reasons.append(f"Checkpoints would go backwards, or into another log: partition {said}.")
        remedies.append("Add --rewind if events are to be processed again.")
    if reasons:
        raise MoveRefusedError(f"Nothing was set. {' '.join(reasons)}", next_step=" ".join(remedies))


async def plan_moves(
    consumer: EventHubConsumer,
    partition_ids: Sequence[str] | None,
    target: Target,
    *,
    is_offset_needed: bool = False,
) -> list[Move]:
    """Find the target in each partition's log (None: in all).

    is_offset_needed: the store takes no checkpoint without offset. The one before the first event that is
    held, whose offset nobody knows any more, becomes one that says that nothing is processed.
    Raises NotFoundError (no such partition), PositionOutOfRangeError (not in the log), and what reading does.
    """
    hub = await consumer.get_event_hub_properties()
    chosen = hub.partition_ids if partition_ids is None else tuple(dict.fromkeys(partition_ids))
    unknown = [each for each in chosen if each not in hub.partition_ids]
    if unknown:
        raise NotFoundError(
            f"The event hub {hub.name} has no partition {', '.join(map(repr, unknown))}.",
            next_step=f"It has: {', '.join(hub.partition_ids)}.",
        )
    moves = []
    for partition_id in chosen:
        partition = await consumer.get_partition_properties(partition_id)
        following = await _find(consumer, partition, target.position)
        checkpoint = await _checkpoint_before(consumer, partition, following)
        if is_offset_needed and checkpoint.offset is None and following == _bounds(partition)[0]:
            checkpoint = replace(checkpoint, sequence_number=-1)
        created_at_ms = milliseconds_of(hub.created_at)
        moves.append(Move(partition_id, replace(checkpoint, event_hub_created_at_ms=created_at_ms)))
    return moves


async def _find(consumer: EventHubConsumer, partition: PartitionProperties, position: EventPosition) -> int:
    """The sequence number that processing goes on with."""
    begin, until = _bounds(partition)
    if position.kind is PositionKind.EARLIEST:
        return begin
    if position.kind is PositionKind.LATEST:
        return until
    if position.kind is PositionKind.SEQUENCE_NUMBER:
        assert isinstance(position.value, int)
        if not begin <= position.value <= until:
            raise PositionOutOfRangeError(
                f"Partition {partition.partition_id} cannot go on with event {position.value}: its log "
                f"begins at {begin}, and its next event will be {until}.",
                next_step=f"Give a number from {begin} to {until}, or --earliest or --latest.",
            )
        return position.value
    if position.kind is PositionKind.OFFSET:
        if partition.is_empty:
            raise PositionOutOfRangeError(
                f"Partition {partition.partition_id} holds no event with the offset {position.value}.",
                next_step="Give --earliest or --latest.",
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
    consumer: EventHubConsumer, partition: PartitionProperties, following: int
) -> ProcessorCheckpoint:
    """The checkpoint of the event before ``following``; with offset and time where the log still tells."""
    from tidegate.processor.checkpoint import ProcessorCheckpoint

    begin, until = _bounds(partition)
    last = following - 1
    if following == until and partition.last_enqueued_time is not None:
        time_ms = milliseconds_of(partition.last_enqueued_time)
        return ProcessorCheckpoint(partition.partition_id, last, partition.last_enqueued_offset, time_ms)
    if last < begin:
        return ProcessorCheckpoint(partition.partition_id, last)
    try:
        event = await _first_event(consumer, partition, EventPosition.from_sequence_number(last))
    except (ReceiverStolenError, QuotaExceededError):
        # Hosts read the partition and let nobody else: the sequence number alone is enough to go on from.
        return ProcessorCheckpoint(partition.partition_id, last)
    return ProcessorCheckpoint.of_event(event)


async def _first_event(
    consumer: EventHubConsumer, partition: PartitionProperties, position: EventPosition
) -> ReceivedEvent:
    async with await consumer.open_receiver(
        partition.partition_id, position, prefetch_events=1, prefetch_bytes=1
    ) as receiver:
        events = await receiver.receive(1, max_wait_s=FIRST_CONTACT_TIMEOUT_S)
    if not events:
        raise OperationTimeoutError(
            f"Partition {partition.partition_id} gave no event from {position.kind.value} {position.value} "
            f"on within {FIRST_CONTACT_TIMEOUT_S:.0f} s."
        )
    return events[0]


def _bounds(partition: PartitionProperties) -> tuple[int, int]:
    # An empty partition of Azure may say -1; ours says where its next event will be.
    until = partition.next_sequence_number
    return (until if partition.is_empty else max(0, partition.begin_sequence_number)), until


def _following(checkpoint: ProcessorCheckpoint | None) -> int | None:
    if checkpoint is None or checkpoint.sequence_number is None:
        return None
    return checkpoint.sequence_number + 1

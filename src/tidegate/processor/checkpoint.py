"""Checkpoints, which record a consumer group's progress in a partition, and their store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from tidegate.model.errors import EventHubReplacedError, FencedError
from tidegate.model.events import ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.model.times import time_of
from tidegate.processor.lease import GroupKey, Lease


@dataclass(frozen=True, slots=True)
class ProcessorCheckpoint:
    """The last processed event of a partition. Processing can resume from any of its three positions."""

    partition_id: str
    sequence_number: int | None
    """Of the last processed event; -1: none processed yet; None: only the offset or the time is known."""
    offset: str | None = None
    enqueued_time_ms: int | None = None
    """Of the last processed event: milliseconds since 1970-01-01 UTC; None if unknown."""
    event_hub_created_at_ms: int | None = None
    """The event hub's creation time, which identifies a hub deleted and created again under the same name;
    None if the store does not keep it (the official layout)."""
    history_id: str | None = field(default=None, compare=False, kw_only=True)
    """The history of the log in which the event was read (``PartitionReceiver.history_of``): with it, a host
    notices a restored log. None: unknown."""
    moved_at: datetime | None = field(default=None, compare=False)
    """When it was last moved, aware; None if the store does not keep it (only SQL does)."""
    moved_by: str | None = field(default=None, compare=False)
    """Who moved it, for display; None as above."""

    @classmethod
    def of_event(
        cls,
        event: ReceivedEvent,
        *,
        event_hub_created_at_ms: int | None = None,
        history_id: str | None = None,
    ) -> ProcessorCheckpoint:
        """The checkpoint after processing everything up to ``event``, inclusive."""
        return cls(
            event.partition_id,
            event.sequence_number,
            event.offset,
            event.enqueued_time_ms,
            event_hub_created_at_ms,
            history_id=history_id,
        )

    @property
    def resume_point(self) -> int | None:
        """The first event not yet processed; None if the checkpoint has no sequence number."""
        return None if self.sequence_number is None else self.sequence_number + 1

    @property
    def has_position(self) -> bool:
        """False: an owner has created it, and not moved it yet."""
        return (self.sequence_number, self.offset, self.enqueued_time_ms) != (None, None, None)

    @property
    def position(self) -> EventPosition:
        """Where reading resumes: after the sequence number, else the offset, else at the enqueued time.

        By enqueued time, events of the same millisecond may be processed again.
        """
        if self.sequence_number is not None:
            if self.sequence_number < 0:
                return EventPosition.earliest()
            return EventPosition.from_sequence_number(self.sequence_number + 1)
        if self.offset is not None:
            return EventPosition.from_offset(self.offset)
        if self.enqueued_time_ms is not None:
            return EventPosition.from_enqueued_time(time_of(self.enqueued_time_ms))
        return EventPosition.earliest()

    def is_of_hub(self, created_at_ms: int) -> bool | None:
        """Whether it counts in the hub created then, or in an earlier one of its name; None: unknown.

        Official SDKs' stores record no hub: what was moved before the hub existed is of another.
        """
        if self.event_hub_created_at_ms is not None:
            return self.event_hub_created_at_ms == created_at_ms
        return None if self.moved_at is None else self.moved_at >= time_of(created_at_ms)

    def distance_from(self, other: ProcessorCheckpoint) -> int | None:
        """How far it is beyond ``other`` (negative: behind); None if the two cannot be compared.

        Compares the first of number, offset and time that both have. Offsets are opaque: only numeric ones
        are known to ascend.
        """
        for mine, theirs in (
            (self.sequence_number, other.sequence_number),
            (_number(self.offset), _number(other.offset)),
            (self.enqueued_time_ms, other.enqueued_time_ms),
        ):
            if mine is not None and theirs is not None:
                return mine - theirs
        return None

    def is_behind(self, other: ProcessorCheckpoint) -> bool:
        """Whether it is known to be behind ``other``."""
        return (self.distance_from(other) or 0) < 0


class CheckpointManager(Protocol):
    """Keeps checkpoints, as ICheckpointManager of the classic host.

    Every method raises StoreUnavailableError (in SQL: DatabaseUnavailableError) if the store does not answer
    and a retry may help, StoreError (DatabaseError) for any other refusal.
    """

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        """Let only the holder of ``lease`` move its partition's checkpoint, under the epoch returned.

        Called when a host whose leases are kept elsewhere opens a partition, before it reads the checkpoint.
        The epoch is at least the lease's, and higher than each that was returned or used before, by
        compare-and-set: from then on, ``update_checkpoint`` refuses the earlier owners. Without a position,
        the checkpoint is not listed yet. A store without epochs returns the lease's, and refuses no owner.
        """
        ...

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        """The group's checkpoints by partition id; partitions without one are absent."""
        ...

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        """Move a checkpoint forward; a lower one is ignored.

        lease: the lease under which it is moved; None for people and tools. is_rewind_allowed: also move it
        backwards.
        Raises FencedError if the store keeps epochs and the checkpoint was moved under a higher one;
        EventHubReplacedError if the stored one belongs to another hub of the same name and rewinding is not
        allowed.
        """
        ...


def decide_move(
    group: GroupKey,
    checkpoint: ProcessorCheckpoint,
    lease: Lease | None,
    *,
    current: ProcessorCheckpoint | None,
    epoch: int,
    is_rewind_allowed: bool,
) -> bool:
    """Whether ``checkpoint`` replaces ``current``; every store applies this rule.

    epoch: the highest lease epoch that has moved it. Raises FencedError, EventHubReplacedError.
    """
    if lease is not None and lease.epoch < epoch:
        raise FencedError(
            f"The checkpoint of {group}, partition {checkpoint.partition_id}, was moved under epoch {epoch}; "
            f"{lease.owner} has epoch {lease.epoch}.",
            next_step="Another host owns the partition now: stop processing it.",
        )
    if current is None or is_rewind_allowed:
        return True
    stored_ms = current.event_hub_created_at_ms
    check_same_hub(group, checkpoint.partition_id, stored_ms, checkpoint.event_hub_created_at_ms)
    return not checkpoint.is_behind(current)


def check_same_hub(group: object, partition_id: str, stored_ms: int | None, now_ms: int | None) -> None:
    """Raises EventHubReplacedError if a checkpoint belongs to another hub of the same name.

    group: as the message names it. stored_ms, now_ms: when the checkpoint's hub and the present one were
    created; None: unknown.
    """
    if stored_ms is not None and now_ms is not None and stored_ms != now_ms:
        raise EventHubReplacedError(
            f"The checkpoint of partition {partition_id} of {group} belongs to the event hub created at "
            f"{stored_ms} ms, which was deleted and created again at {now_ms} ms.",
            next_step="The new one's sequence numbers start again: use another consumer group, or set this "
            "one's checkpoints again, with rewinding allowed.",
        )


def _number(offset: str | None) -> int | None:
    if offset is None or not offset.isdecimal() or len(offset) > 19:
        return None  # as none of over 64 bits is a place; int() has a limit, and others may write to a store
    return int(offset)

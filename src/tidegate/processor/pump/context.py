"""The context that a partition's handler gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError, FencedError, InvalidArgumentError, TidegateError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import CheckpointManager, ProcessorCheckpoint
from tidegate.processor.dead_letters import FailedEvent
from tidegate.processor.handlers import CloseReason, PartitionContext
from tidegate.processor.lease import GroupKey, Lease


class OwnedPartitionContext(PartitionContext):
    """``PartitionContext`` of one session, from a partition's ``open`` to its ``close``, for one event loop.

    After the session, ``checkpoint`` raises, so that an abandoned call cannot move a later owner's
    checkpoint.
    """

    def __init__(
        self,
        *,
        group: GroupKey,
        event_hub: str,
        consumer_group: str,
        lease: Lease,
        checkpoints: CheckpointManager,
        event_hub_created_at_ms: int,
        is_transactional: bool,
        add_dead_letters: Callable[[Sequence[FailedEvent]], Awaitable[None]] | None,
        clock: Clock,
    ) -> None:
        """add_dead_letters: stores them, or raises; None: the host has no manager for them."""
        super().__init__(group, event_hub, consumer_group, lease)
        self.fenced: FencedError | None = None
        """The store's error after another host took over, even if the handler swallowed it."""
        self.uncheckpointed_events = 0
        """Events processed since the last checkpoint."""
        self.history_of: Callable[[int], str | None] = lambda _: None
        """See ``PartitionReceiver``; set when the receiver is open."""
        self.epoch: int | None = None
        """Under which the checkpoint moves; None: the lease's."""
        self._checkpoints = checkpoints
        self._add_dead_letters = add_dead_letters
        self._clock = clock
        self._failed: dict[int, FailedEvent] = {}
        """Dead letters that are not stored yet, by sequence number."""
        self._event_hub_created_at_ms = event_hub_created_at_ms
        self._is_transactional = is_transactional
        self._handed: ReceivedEvent | None = None
        """The last event of the running call, else the last processed one."""
        self._processed: ReceivedEvent | None = None
        self._checkpointed = -1
        """The sequence number of this session's last checkpoint."""
        self._end: TidegateError | None = None

    @property
    def checkpoint_lease(self) -> Lease:
        """The lease, under the epoch with which the checkpoint moves."""
        return self.lease if self.epoch is None else replace(self.lease, epoch=self.epoch)

    async def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """See ``PartitionContext``.

        Outside of a call, None means all processed events, if any. Also raises ClosedError (the partition was
        closed here), and InvalidArgumentError for an event that the handler did not get.
        """
        if self._end is not None:
            raise self._end
        if self._is_transactional:
            raise InvalidArgumentError(
                "In transactional processing the checkpoint moves with the transaction.",
                next_step="Remove the call of context.checkpoint().",
            )
        if event is None:
            event = self._handed
        else:
            self._check_handed(event)
        if event is None or event.sequence_number <= self._checkpointed:
            return
        uncheckpointed_events = self.uncheckpointed_events
        await self.store_dead_letters()
        try:
            await self._checkpoints.update_checkpoint(
                self.group,
                ProcessorCheckpoint.of_event(
                    event,
                    event_hub_created_at_ms=self._event_hub_created_at_ms,
                    history_id=self.history_of(event.sequence_number),
                ),
                lease=self.checkpoint_lease,
            )
        except FencedError as error:
            self.fenced = error
            raise
        self._checkpointed = max(self._checkpointed, event.sequence_number)
        if event is self._processed:
            self.uncheckpointed_events -= uncheckpointed_events

    def dead_letter(self, event: ReceivedEvent, error: BaseException | str) -> None:
        """See ``PartitionContext``. Also raises ClosedError (the partition was closed here)."""
        if self._end is not None:
            raise self._end
        if self._add_dead_letters is None or self._is_transactional:
            raise InvalidArgumentError(
                f"Nothing keeps dead letters that are reported for partition {self.partition_id} here.",
                next_step="Give the host dead_letters=…; in a transaction, use the context of the call.",
            )
        self._check_handed(event)
        if event.sequence_number <= self._checkpointed:
            raise InvalidArgumentError(
                f"The checkpoint of partition {self.partition_id} has passed event {event.sequence_number}: "
                "its dead letter could be lost.",
                next_step="Report the event before the call of checkpoint() that covers it.",
            )
        failed = FailedEvent(event, self._clock.now_utc(), error, self.group)
        self._failed[event.sequence_number] = failed

    async def store_dead_letters(self) -> None:
        """Store the dead letters reported so far. Raises StoreUnavailableError, and keeps them.

        After the session, it raises as ``checkpoint``: the next owner gets these events again, and decides.
        """
        if not self._failed or self._add_dead_letters is None:
            return
        if (lost := self._end or self.fenced) is not None:
            raise lost
        failed = [self._failed[number] for number in sorted(self._failed)]
        await self._add_dead_letters(failed)
        for each in failed:
            self._failed.pop(each.event.sequence_number, None)

    def begin_call(self, last: ReceivedEvent) -> None:
        """Note that the handler is called with a batch that ends with ``last``."""
        self._handed = last

    def end_call(self, event_count: int, *, is_processed: bool) -> None:
        """Note that the call has ended. is_processed: False if it raised or was cancelled."""
        if not is_processed:
            self._handed = self._processed
            self._failed.clear()
            return
        self._processed = self._handed
        if self._processed is not None and self._processed.sequence_number > self._checkpointed:
            self.uncheckpointed_events += event_count
        else:
            self.uncheckpointed_events = 0

    def end(self, reason: CloseReason) -> None:
        """Close the context: ``checkpoint`` raises from now on."""
        what = f"Partition {self.partition_id} of {self.event_hub!r}"
        if reason is CloseReason.OWNERSHIP_LOST:
            self._end = FencedError(f"{what} now belongs to another host: its checkpoint is not moved.")
        else:
            self._end = ClosedError(f"{what} was closed: its checkpoint can no longer be moved.")

    def __repr__(self) -> str:
        state = "ended" if self._end else "open"
        return f"<PartitionContext {self.group}/{self.partition_id} epoch={self.lease.epoch} {state}>"

    def _check_handed(self, event: ReceivedEvent) -> None:
        if event.partition_id != self.partition_id:
            raise InvalidArgumentError(
                f"An event of partition {event.partition_id} cannot be the checkpoint of partition "
                f"{self.partition_id}."
            )
        if self._handed is None or event.sequence_number > self._handed.sequence_number:
            raise InvalidArgumentError(
                f"Sequence number {event.sequence_number} of partition {self.partition_id} was not passed to "
                "this handler yet, so it cannot be its checkpoint."
            )

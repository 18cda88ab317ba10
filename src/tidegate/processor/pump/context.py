"""The context that a partition's handler gets."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.model.errors import ClosedError, FencedError, InvalidArgumentError, TidegateError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import CheckpointStore, ProcessorCheckpoint
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
        store: CheckpointStore,
        event_hub_created_at_ms: int,
        is_transactional: bool,
    ) -> None:
        super().__init__(group, event_hub, consumer_group, lease)
        self.fenced: FencedError | None = None
        """The store's error after another host took over, even if the handler swallowed it."""
        self.uncheckpointed_events = 0
        """Events processed since the last checkpoint."""
        self.history_of: Callable[[int], str | None] = lambda _: None
        """See ``PartitionReceiver``; set when the receiver is open."""
        self._store = store
        self._event_hub_created_at_ms = event_hub_created_at_ms
        self._is_transactional = is_transactional
        self._handed: ReceivedEvent | None = None
        """The last event of the running call, else the last processed one."""
        self._processed: ReceivedEvent | None = None
        self._checkpointed = -1
        """The sequence number of this session's last checkpoint."""
        self._end: TidegateError | None = None

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
        try:
            await self._store.update_checkpoint(
                self.group,
                ProcessorCheckpoint.of_event(
                    event,
                    event_hub_created_at_ms=self._event_hub_created_at_ms,
                    history_id=self.history_of(event.sequence_number),
                ),
                lease=self.lease,
            )
        except FencedError as error:
            self.fenced = error
            raise
        self._checkpointed = max(self._checkpointed, event.sequence_number)
        if event is self._processed:
            self.uncheckpointed_events -= uncheckpointed_events

    def begin_call(self, last: ReceivedEvent) -> None:
        """Note that the handler is called with a batch that ends with ``last``."""
        self._handed = last

    def end_call(self, event_count: int, *, is_processed: bool) -> None:
        """Note that the call has ended. is_processed: False if it raised or was cancelled."""
        if not is_processed:
            self._handed = self._processed
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

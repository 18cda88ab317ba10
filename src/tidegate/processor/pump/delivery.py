"""Delivers batches to the processor: at least once, or each as one transaction of the store."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.errors import PartitionPausedError, PartitionStoppedError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.dead_letters import DeadLetterManager
from tidegate.processor.policies import FailurePolicy
from tidegate.processor.pump.context import OwnedPartitionContext
from tidegate.processor.pump.shared_reads import CheckpointReads
from tidegate.processor.registration import Processor
from tidegate.processor.statistics import HostTotals
from tidegate.processor.store import PartitionTransactions, TransactionalStore
from tidegate.tracing import Tracing


class PlainDelivery:
    """At least once: the handler moves the checkpoint itself."""

    def __init__(
        self, processor: Processor, context: OwnedPartitionContext, checkpoints: CheckpointReads
    ) -> None:
        self._processor = processor
        self._context = context
        self._checkpoints = checkpoints

    async def begin(self) -> ProcessorCheckpoint | None:
        """The stored checkpoint to resume from; None if there is none. Raises StoreError."""
        return (await self._checkpoints.read()).get(self._context.partition_id)

    async def process(self, events: Sequence[ReceivedEvent], *, start: int | None) -> int | None:
        """Call the handler, and raise what it raises. start: the resume point, for transactions.

        Returns the first event not yet processed; None if there were no events.
        """
        context = self._context
        if events:
            context.begin_call(events[-1])
        is_processed = False
        try:
            await self._processor.process_events(context, events)
            await context.store_dead_letters()
            is_processed = True
        finally:
            context.end_call(len(events), is_processed=is_processed)
        return events[-1].sequence_number + 1 if events else None

    def close(self) -> None:
        """Do nothing: only transactions have resources."""

    abandon = close


class TransactionalDelivery:
    """Exactly once in the database: handler, dead letters and checkpoint in one transaction."""

    def __init__(
        self,
        store: TransactionalStore,
        processor: Processor,
        context: OwnedPartitionContext,
        *,
        policy: FailurePolicy,
        event_hub_created_at_ms: int,
        max_batch_size: int,
        totals: HostTotals,
        dead_letters: DeadLetterManager | None,
    ) -> None:
        """dead_letters: None: the store keeps them itself."""
        self._context = context
        self._totals = totals
        # A user's store need not know of managers.
        others = {} if dead_letters is None else {"dead_letters": dead_letters}
        self._transactions: PartitionTransactions = store.open_transactions(
            context.group,
            context.checkpoint_lease,
            processor.form,
            context,
            policy=policy,
            event_hub_created_at_ms=event_hub_created_at_ms,
            max_batch_size=max_batch_size,
            **others,
        )

    async def begin(self) -> ProcessorCheckpoint | None:
        """Claim the checkpoint for this lease's epoch, and return it; None if there is none.

        Raises FencedError, EventHubReplacedError, DatabaseError.
        """
        return await self._transactions.begin()

    async def process(self, events: Sequence[ReceivedEvent], *, start: int | None) -> int | None:
        """Run the batch's transaction; returns the first event not yet processed. Raises what the handler or
        the store raises.

        start: the resume point; None if only the events show it. Numbers between it and the first event were
        never assigned: otherwise the receiver would have reported them as lost.
        """
        first, last = events[0].sequence_number, events[-1].sequence_number
        history_id = self._context.history_of(last)
        try:
            outcome = await self._transactions.process(
                events,
                start_sequence_number=first if start is None else start,
                until_sequence_number=last + 1,
                history_id=history_id,
                is_one_history=history_id == self._context.history_of(first),
            )
        except (PartitionPausedError, PartitionStoppedError) as error:
            self._totals.dead_letters += error.dead_letters
            raise
        self._totals.dead_letters += outcome.dead_letters + outcome.parked
        return outcome.next_sequence_number

    def close(self) -> None:
        """Stop the transactions' thread; nothing is delivered afterwards."""
        self._transactions.close()

    def abandon(self) -> None:
        """Roll back the transaction of a call that does not return, which frees its locks."""
        self._transactions.abandon()


class TracedDelivery:
    """Another delivery, in which each call with events has a span: see ``Tracing.processing``."""

    def __init__(
        self,
        delivery: PlainDelivery | TransactionalDelivery,
        context: OwnedPartitionContext,
        tracing: Tracing,
    ) -> None:
        self._delivery = delivery
        self._context = context
        self._tracing = tracing
        self.begin = delivery.begin
        self.close = delivery.close
        self.abandon = delivery.abandon

    async def process(self, events: Sequence[ReceivedEvent], *, start: int | None) -> int | None:
        """As that delivery does."""
        if not events:
            return await self._delivery.process(events, start=start)
        context = self._context
        with self._tracing.processing(
            events,
            event_hub=context.event_hub,
            consumer_group=context.consumer_group,
            partition_id=context.partition_id,
        ):
            return await self._delivery.process(events, start=start)


Delivery = PlainDelivery | TransactionalDelivery | TracedDelivery
"""Delivers batches of one partition to its processor."""

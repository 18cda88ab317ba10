"""A session: one processor instance and one receiver on an owned partition, from ``open`` to ``close``.

Theory of operation
-------------------
``run`` is a task. It opens the processor, finds the start, opens the receiver, and then receives and delivers
batches in turn, so two calls for a partition never overlap. An error of the handler is passed to its
``process_error``, and the same batch is delivered again after a wait; any other error ends the session, and
the pump decides the next step. Meanwhile the receiver prefetches.

Stopping interrupts a wait, but lets a running call return; to end that early, cancel the task.

The cost per batch: one call, two readings of the clock, one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random as random_module
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.client import EventHubConsumer, EventHubProperties, PartitionEnds, PartitionReceiver
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    BrokenError,
    CheckpointGapError,
    DatabaseError,
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    LogDivergedError,
    PartitionPausedError,
    PartitionStoppedError,
    PositionOutOfRangeError,
    StoreError,
    TidegateError,
    loggable,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor.checkpoint import CheckpointManager, ProcessorCheckpoint
from tidegate.processor.dead_letters import DeadLetterManager, FailedEvent, store_failed
from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import GroupKey, Lease, LeaseManager, LeaseSnapshot
from tidegate.processor.options import EventProcessorOptions
from tidegate.processor.policies import RESTART, PositionLostPolicy
from tidegate.processor.pump.context import OwnedPartitionContext
from tidegate.processor.pump.delivery import (
    Delivery,
    PlainDelivery,
    TracedDelivery,
    TransactionalDelivery,
)
from tidegate.processor.pump.shared_reads import CheckpointReads, SharedRead
from tidegate.processor.pump.starting import (
    PositionLost,
    Start,
    decide_recovery,
    decide_start,
    find_loss,
    refused_position,
)
from tidegate.processor.pump.states import PumpStep
from tidegate.processor.raised import failure_of_call
from tidegate.processor.registration import Processor, Registration
from tidegate.processor.statistics import HostTotals
from tidegate.processor.store import TransactionalStore
from tidegate.tracing import find_tracing
from tidegate.transport.tasks import TaskOwner

_logger = logging.getLogger(__name__)

_TRANSACTION_BYTES_MAX: Final = 4 * 1024 * 1024
"""A transaction gets no more events after so many bytes (our choice: it holds them besides the prefetch)."""
_ENDS_SESSION = (FencedError, PartitionStoppedError, EventHubReplacedError, CheckpointGapError)
"""Errors that running the same batch again cannot fix."""


@dataclass(frozen=True, slots=True)
class PumpEnvironment:
    """Shared by all pumps of a host."""

    group: GroupKey
    consumer: EventHubConsumer
    leases: LeaseManager
    checkpoint_manager: CheckpointManager
    lease_reads: SharedRead[LeaseSnapshot]
    dead_letters: DeadLetterManager | None
    """None: the transactional store's own, or none."""
    registration: Registration
    options: EventProcessorOptions
    clock: Clock
    random: random_module.Random
    tasks: TaskOwner
    hub: SharedRead[EventHubProperties]
    checkpoints: CheckpointReads
    report: Callable[[Exception, str | None], None]
    """Called with (error, partition id) for errors outside of handler calls; never raises."""
    refused: Callable[[TidegateError], None]
    """Called with the error if the service refuses a partition: this host may not read it, or no host can."""
    served: Callable[[], None]
    """Called when a receiver was opened."""
    totals: HostTotals
    added_partitions: set[str] = field(default_factory=set)
    """Those that the hub got while this host ran: they start at their beginning."""

    @property
    def is_one_store(self) -> bool:
        """Whether leases and checkpoints are in one store, where the leases' epochs fence the checkpoints."""
        return id(self.leases) == id(self.checkpoint_manager)

    async def open_checkpoint(self, lease: Lease) -> int:
        """The epoch under which the lease's holder moves a checkpoint that is kept elsewhere.

        The lease's own may be lower than the checkpoint's, or none. Raises FencedError if the lease was lost
        before: later owners get higher epochs, but an earlier one must not.
        """
        epoch = await self.checkpoint_manager.create_checkpoint(self.group, lease)
        found = (await self.lease_reads.read()).leases.get(lease.partition_id)
        if found is None or (found.owner, found.epoch) != (lease.owner, lease.epoch):
            raise FencedError(
                f"Partition {lease.partition_id} of {self.group} was taken while it was opened."
            )
        return epoch

    async def add_dead_letters(self, failed: Sequence[FailedEvent]) -> None:
        """Store dead letters outside of transactions. Raises StoreUnavailableError."""
        assert self.dead_letters is not None
        await store_failed(self.dead_letters, failed)
        self.totals.dead_letters += len(failed)

    def initial_position_of(self, partition_id: str) -> EventPosition:
        """Where a partition without a checkpoint starts."""
        if partition_id in self.added_partitions:
            return EventPosition.earliest()
        return self.options.position_of(partition_id)

    def restart_delay_s(self, tries: int, error: Exception | None) -> float:
        """The wait before try number ``tries`` after the first; there is no last, as no event may be lost."""
        cause = error if isinstance(error, TidegateError) else None
        return RESTART.delay_before(tries, jitter_fraction=self.random.random(), error=cause)


@dataclass(slots=True)
class PartitionProgress:
    """An owned partition's progress, over all sessions of this ownership."""

    events_processed: int = 0
    last_progress_at: datetime | None = None
    next_sequence_number: int | None = None
    error: Exception | None = None
    """The latest error since the last progress."""
    first: ProcessorCheckpoint | None = None
    """Where the first session without a checkpoint started; later ones must not start at a later end."""


class PartitionSession:
    """Runs once. The pump starts ``run`` as a task and then closes the processor."""

    def __init__(
        self,
        environment: PumpEnvironment,
        lease: Lease,
        progress: PartitionProgress,
        on_step: Callable[[PartitionSession, PumpStep], None],
    ) -> None:
        """on_step: called with this session when its receiver is open, it pauses or resumes."""
        self._on_step = on_step
        self.progress = progress
        self.partition_id = lease.partition_id
        self.has_read = False
        """Whether the receiver was ever open."""
        self.has_progressed = False
        self.has_begun = False
        """Whether the store has accepted its lease's epoch."""
        self.activity = 0
        """Changes with each step; unchanged while a call hangs or waits."""
        self.batch_in_hand_since: float | None = None
        """Monotonic time at which the running call got its events; None if no call with events runs."""
        self.is_opening = False
        """Whether the processor's ``open`` is the running or last call."""
        self._environment = environment
        self._lease = lease
        self._processor: Processor | None = None
        self._context: OwnedPartitionContext | None = None
        self._delivery: Delivery | None = None
        self._receiver: PartitionReceiver | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_paused = False
        self._call_depth = 0
        self._event_hub_created_at_ms = 0
        self._checkpointed_at = environment.clock.monotonic()

    # --- the session's task -------------------------------------------------------------------------------

    async def run(self, undelivered: Exception | None = None) -> None:
        """Read and deliver until stopped. Raises any error but the handler's own.

        undelivered: an error that the previous processor did not get.
        """
        self._task = asyncio.current_task()
        environment = self._environment
        hub = await environment.hub.read()
        self._event_hub_created_at_ms = hub.created_at_ms
        self._context = context = OwnedPartitionContext(
            group=environment.group,
            event_hub=environment.consumer.event_hub,
            consumer_group=environment.consumer.consumer_group,
            lease=self._lease,
            checkpoints=environment.checkpoint_manager,
            event_hub_created_at_ms=self._event_hub_created_at_ms,
            is_transactional=environment.registration.is_transactional,
            add_dead_letters=None if environment.dead_letters is None else environment.add_dead_letters,
            clock=environment.clock,
        )
        self._processor = environment.registration.make(context)
        with self._calling():
            self.is_opening = True
            await self._processor.open(context)
            self.is_opening = False
            if undelivered is not None:
                await self.notify(undelivered)
        self._check_stopping()
        if not environment.is_one_store:
            context.epoch = await environment.open_checkpoint(self._lease)
        delivery = self._delivery = self._make_delivery(self._processor, context)
        try:
            await self._open_receiver(await self._find_start(delivery), delivery)
            await self._receive_and_deliver(delivery)
        finally:
            self._close_receiver()
            delivery.close()

    def stop(self) -> None:
        """Interrupt a wait; end after a running call returns."""
        self._is_stopping = True
        if self._call_depth == 0 and self._task is not None:
            self._task.cancel()

    def renew_lease(self, lease: Lease) -> None:
        """Keep the lease's new version and time."""
        self._lease = lease
        if self._context is not None:
            self._context.lease = lease

    def _make_delivery(self, processor: Processor, context: OwnedPartitionContext) -> Delivery:
        delivery, tracing = self._untraced_delivery(processor, context), find_tracing()
        return delivery if tracing is None else TracedDelivery(delivery, context, tracing)

    def _untraced_delivery(
        self, processor: Processor, context: OwnedPartitionContext
    ) -> PlainDelivery | TransactionalDelivery:
        environment = self._environment
        if not environment.registration.is_transactional:
            return PlainDelivery(processor, context, environment.checkpoints)
        assert isinstance(environment.checkpoint_manager, TransactionalStore)
        return TransactionalDelivery(
            environment.checkpoint_manager,
            processor,
            context,
            policy=environment.options.failure_policy,
            event_hub_created_at_ms=self._event_hub_created_at_ms,
            max_batch_size=environment.options.max_batch_size,
            totals=environment.totals,
            dead_letters=environment.dead_letters,
        )

    # --- where it starts ----------------------------------------------------------------------------------

    async def _find_start(self, delivery: Delivery) -> Start:
        """The start by checkpoint, else the initial position; after a loss, by the policy."""
        try:
            checkpoint = await delivery.begin()
        except EventHubReplacedError as error:
            return await self._recover(error, delivery)
        self.has_begun = True
        properties = await self._read_properties()
        loss: PositionLost | None = None
        checkpoint = checkpoint or self.progress.first
        if checkpoint is not None:
            loss = find_loss(checkpoint, properties, event_hub_created_at_ms=self._event_hub_created_at_ms)
        if loss is not None:
            return await self._recover(loss, delivery)
        return decide_start(checkpoint, self._environment.initial_position_of(self.partition_id), properties)

    async def _recover(self, loss: PositionLost, delivery: Delivery) -> Start:
        """Report a loss, set the checkpoint to the policy's start, and return that.

        The checkpoint is set immediately, so that no host finds the same loss again. Raises ``loss`` if the
        policy is to stop.
        """
        environment, context = self._environment, self._context
        assert context is not None
        policy = environment.options.on_position_lost
        if policy is PositionLostPolicy.STOP:
            raise loss
        environment.report(loss, self.partition_id)
        await self.notify(loss)
        recovery = decide_recovery(
            policy, await self._read_properties(), event_hub_created_at_ms=self._event_hub_created_at_ms
        )
        await environment.checkpoint_manager.update_checkpoint(
            environment.group, recovery.checkpoint, lease=context.checkpoint_lease, is_rewind_allowed=True
        )
        await delivery.begin()  # read the moved checkpoint
        return recovery.start

    async def _open_receiver(self, start: Start, delivery: Delivery) -> None:
        """Open the receiver at ``start``; if the service refuses the position, once by the policy."""
        try:
            self._receiver = await self._attach(start)
        except (PositionOutOfRangeError, InvalidArgumentError) as error:
            properties = await self._read_properties()
            loss = refused_position(start.position, properties, error)
            if start.is_after_loss:
                raise loss from error
            # The policy's start was chosen from the log as it is now, so a second refusal ends the session.
            start = await self._recover(loss, delivery)
            self._receiver = await self._attach(start)
        if self._context is not None:
            self._context.history_of = self._receiver.history_of
        self.progress.next_sequence_number = start.next_sequence_number
        self._remember_first()
        self.has_read = True
        self._on_step(self, PumpStep.OPEN)
        self.activity += 1
        self._environment.served()

    async def _attach(self, start: Start) -> PartitionReceiver:
        environment, options = self._environment, self._environment.options
        return await environment.consumer.open_receiver(
            self.partition_id,
            start.position,
            owner_level=self._lease.epoch if environment.leases.has_epochs else 0,
            receiver_name=self._lease.owner,
            prefetch_events=options.prefetch_count,
            prefetch_bytes=options.prefetch_bytes,
            must_start_at_position=start.must_start_at_position,
        )

    async def _open_receiver_again(self, error: PositionOutOfRangeError, delivery: Delivery) -> None:
        """Recover after retention removed the next events while the partition was being read."""
        self._close_receiver()
        hub = await self._environment.hub.read()
        wanted = self.progress.next_sequence_number
        # In a hub that was created again the numbers mean other events: the next session finds that loss.
        if hub.created_at_ms != self._event_hub_created_at_ms or wanted is None:
            raise BrokenError(f"Partition {self.partition_id} must be opened again: {error}") from error
        properties = await self._read_properties()
        checkpoint = ProcessorCheckpoint(self.partition_id, wanted - 1)
        loss = find_loss(checkpoint, properties, event_hub_created_at_ms=hub.created_at_ms)
        if loss is None or isinstance(error, LogDivergedError):
            loss = error
        await self._open_receiver(await self._recover(loss, delivery), delivery)

    async def _read_properties(self) -> PartitionEnds:
        return await self._environment.consumer.get_partition_properties(self.partition_id)

    def _remember_first(self) -> None:
        number = self.progress.next_sequence_number
        if self.progress.first is None and number is not None:
            assert self._receiver is not None
            self.progress.first = ProcessorCheckpoint(
                self.partition_id,
                number - 1,
                event_hub_created_at_ms=self._event_hub_created_at_ms,
                history_id=self._receiver.history_of(number - 1),
            )

    def _close_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close_nowait()

    # --- receiving and delivering -------------------------------------------------------------------------

    async def _receive_and_deliver(self, delivery: Delivery) -> None:
        clock, options = self._environment.clock, self._environment.options
        idle_until = clock.monotonic() + options.receive_timeout_s
        events_max, bytes_max = options.max_batch_size, math.inf
        if self._environment.registration.is_transactional:
            events_max, bytes_max = max(events_max, options.max_transaction_events), _TRANSACTION_BYTES_MAX
        while True:
            self._check_stopping()
            assert self._receiver is not None
            try:
                events = await self._receiver.receive(
                    events_max, self._wait_s(idle_until), bytes_max=bytes_max
                )
            except PositionOutOfRangeError as error:
                await self._open_receiver_again(error, delivery)
                continue
            is_timeout = not events and clock.monotonic() >= idle_until
            if events or (is_timeout and options.invoke_after_receive_timeout):
                await self._deliver(delivery, events)
            if events or is_timeout:
                idle_until = clock.monotonic() + options.receive_timeout_s
            await self._checkpoint_when_due()
            await asyncio.sleep(0)  # lets leases be renewed even if the handler never waits

    async def _deliver(self, delivery: Delivery, events: Sequence[ReceivedEvent]) -> None:
        """Deliver a batch, with retries until it is processed. What a call leaves over gets the next one."""
        tries, is_done = 0, False
        while not is_done:
            self._check_stopping()
            try:
                with self._calling(is_batch=bool(events)):
                    until = await delivery.process(events, start=self.progress.next_sequence_number)
            except PartitionStoppedError as error:
                self._note_processed(events, error.next_sequence_number)
                raise
            except _ENDS_SESSION:
                raise
            except BaseException as raised:  # whatever a handler raises, its batch is delivered again
                failure = failure_of_call(raised)
                if isinstance(failure, PartitionPausedError):
                    events = self._note_processed(events, failure.next_sequence_number)
                tries += 1
                await self._after_failure(failure, tries)
            else:
                events = self._note_processed(events, until)
                is_done = not events
        if self._is_paused:
            self._is_paused = False
            _logger.warning("Partition %s of %s continues", self.partition_id, self._environment.group)
            self._on_step(self, PumpStep.RESUME)
        if self._context is not None and self._context.fenced is not None:
            raise self._context.fenced

    async def _after_failure(self, error: Exception, tries: int) -> None:
        environment = self._environment
        self.progress.error = error
        if isinstance(error, PartitionPausedError) and not self._is_paused:
            self._is_paused = True
            self._on_step(self, PumpStep.PAUSE)
            environment.report(error, self.partition_id)
        _logger.warning(
            "Partition %s of %s: a batch failed (%s: %s) and comes again",
            self.partition_id,
            environment.group,
            type(error).__name__,
            error,
            exc_info=loggable(error) if tries == 1 else None,
        )
        if environment.registration.is_transactional and isinstance(error, (DatabaseError, StoreError)):
            environment.report(error, self.partition_id)
        with self._calling():
            await self.notify(error)
        self._check_stopping()
        await asyncio.sleep(environment.restart_delay_s(tries, error))
        self.activity += 1

    def _note_processed(self, events: Sequence[ReceivedEvent], until: int | None) -> Sequence[ReceivedEvent]:
        """Note that the events before ``until`` are processed; returns the others."""
        count = 0 if until is None else bisect_left(events, until, key=lambda event: event.sequence_number)
        if not count:
            return events
        progress = self.progress
        if progress.next_sequence_number is None:
            progress.next_sequence_number = events[0].sequence_number
            self._remember_first()
        progress.next_sequence_number = events[count - 1].sequence_number + 1
        progress.events_processed += count
        self._environment.totals.events += count
        progress.last_progress_at = self._environment.clock.now_utc()
        progress.error = None
        self.has_progressed = True
        return events[count:]

    @contextlib.contextmanager
    def _calling(self, *, is_batch: bool = False) -> Iterator[None]:
        """Mark a handler call, for which stopping waits."""
        self._call_depth += 1
        self.activity += 1
        if is_batch:
            self.batch_in_hand_since = self._environment.clock.monotonic()
        try:
            yield
        finally:
            self._call_depth -= 1
            self.activity += 1
            self.batch_in_hand_since = None

    def _check_stopping(self) -> None:
        if self._is_stopping:
            raise asyncio.CancelledError

    # --- automatic checkpoints ----------------------------------------------------------------------------

    def _wait_s(self, idle_until: float) -> float:
        """Seconds to wait for events: until the time-out, or until a checkpoint is due."""
        options, context = self._environment.options, self._context
        until = idle_until
        if options.checkpoint_every_s is not None and context is not None and context.uncheckpointed_events:
            until = min(until, self._checkpointed_at + options.checkpoint_every_s)
        return max(0.0, until - self._environment.clock.monotonic())

    async def _checkpoint_when_due(self) -> None:
        options, context = self._environment.options, self._context
        assert context is not None
        if not context.uncheckpointed_events:
            return
        now = self._environment.clock.monotonic()
        every_events, every_s = options.checkpoint_every_events, options.checkpoint_every_s
        is_due = (every_events is not None and context.uncheckpointed_events >= every_events) or (
            every_s is not None and now - self._checkpointed_at >= every_s
        )
        if is_due:
            self._checkpointed_at = now  # even if it fails: the next attempt is when the next is due
            await self._checkpoint(context)

    async def _checkpoint(self, context: OwnedPartitionContext) -> None:
        try:
            with self._calling():
                await context.checkpoint()
        except FencedError:
            raise
        except TidegateError as error:
            if not isinstance(error, (StoreError, DatabaseError)):
                raise
            self.progress.error = error
            self._environment.report(error, self.partition_id)

    # --- called by the pump: errors and the end -----------------------------------------------------------

    async def notify(self, error: Exception) -> None:
        """Pass ``error`` to the processor, if any, whose own errors are only reported."""
        if self._processor is None or self._context is None:
            return
        try:
            await self._processor.process_error(self._context, error)
        except BaseException as second:  # a user's code may raise anything; the first error is handled anyway
            self._environment.report(failure_of_call(second), self.partition_id)

    async def close(self, reason: CloseReason, error: Exception | None) -> None:
        """Pass ``error`` to the processor and close it; its own errors are only reported.

        With SHUTDOWN and RESTARTED, a due automatic checkpoint is made first.
        """
        context, options = self._context, self._environment.options
        if self._processor is None or context is None:
            return
        if error is not None:
            await self.notify(error)
        is_automatic = options.checkpoint_every_events is not None or options.checkpoint_every_s is not None
        is_kept = reason in (CloseReason.SHUTDOWN, CloseReason.RESTARTED) and context.fenced is None
        try:
            if is_automatic and is_kept and context.uncheckpointed_events:
                try:
                    await context.checkpoint()
                except TidegateError as second:
                    self._environment.report(second, self.partition_id)
            if reason is CloseReason.OWNERSHIP_LOST:
                context.end(reason)
            await self._processor.close(context, reason)
        except BaseException as second:  # a user's code may raise anything; the partition is closed anyway
            self._environment.report(failure_of_call(second), self.partition_id)
        finally:
            context.end(reason)

    def give_up(self, reason: CloseReason) -> None:
        """Abandon a call that continues despite cancellation: it can no longer move a checkpoint.

        Its transaction is rolled back, so that it blocks no others.
        """
        self._close_receiver()
        if self._delivery is not None:
            self._delivery.abandon()
        if self._context is not None:
            self._context.end(reason)

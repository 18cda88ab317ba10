"""A host's batches as SQL transactions: the handler's writes, dead letters and checkpoint commit together.

Theory of operation. ``begin`` records the lease's epoch in the checkpoint's row, so that an older owner
cannot commit. ``process`` has ``engine`` run a transaction with the handler in it. If the handler fails, the
transaction is rolled back and retried after the policy's delays. After the last retry, a careful transaction
finds the events that fail (``event_runs``); the policy's action applies to them.

If it fails because of an outage (``outages``), nothing is committed and ``process`` raises; the next call
tries one event, and the others only if the outage is over. If the first event fails again and another one
succeeds, the first is at fault, not an outage.

A ``Pipeline`` whose failed events simply become dead letters runs before anything is locked (``batch``).

A batch may need several calls of the handler; after a while no more are made, and the rest is for the next
transaction (``handling.Calls``).
"""

from __future__ import annotations

import asyncio
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from sqlalchemy import Connection

from tidegate.model.errors import PartitionPausedError, PartitionStoppedError, text_of
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import ProcessorCheckpoint, check_same_hub
from tidegate.processor.dead_letters import FailedEvent
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import Lease
from tidegate.processor.policies import FailureAction, FailurePolicy
from tidegate.processor.registration import HandlerRefusedError
from tidegate.processor.store import TransactionOutcome
from tidegate.sql.commit.batch import TooManyDeadLettersError, commit_batches
from tidegate.sql.commit.engine import BatchScope, Share, run_transaction
from tidegate.sql.commit.partition_batch import handled_batch
from tidegate.sql.core.database import Database
from tidegate.sql.core.parked_keys import KeyOrder, first_open_by_key, parked_letter, stored_key_of
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import ConsumerKey, EventPlace, NewDeadLetter
from tidegate.sql.handlers.context import DeadLettered
from tidegate.sql.handlers.event_runs import (
    EventRun,
    EventsFailedError,
    RunOutcome,
    TransactionFailure,
    repeat_carefully,
)
from tidegate.sql.handlers.forms import HandlerForm
from tidegate.sql.handlers.handling import Calls
from tidegate.sql.handlers.outages import DeadLetterBudget, OutageError, OutageWatch
from tidegate.sql.handlers.pipeline import Pipeline
from tidegate.sql.outbox.writer import Outbox

T = TypeVar("T")

StoreFailed = Callable[[Connection, Sequence[FailedEvent]], None]
"""Stores failed events of a transaction that is about to commit, with its connection or elsewhere."""


class SqlTransactions:
    """``PartitionTransactions`` in a SQL database. Everything runs in order in its own thread."""

    def __init__(
        self,
        database: Database,
        consumer: ConsumerKey,
        lease: Lease,
        form: HandlerForm,
        context: PartitionContext,
        *,
        policy: FailurePolicy,
        event_hub_created_at_ms: int | None,
        random_: random.Random | None = None,
        budget: DeadLetterBudget | None = None,
        store_failed: StoreFailed | None = None,
        outbox: Outbox | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """policy: a pipeline's own policy takes precedence. event_hub_created_at_ms: which hub of this name;
        None: not checked. random_: for the jitter of retries; None: the process's. budget: of this partition,
        if it outlives these transactions. store_failed: gets dead letters as the last step before they would
        be written; None: they are, to this database's own table. outbox: of the
        process; None: no relay runs here. max_batch_size: events of a call of the handler, at most; None: a
        batch is one call. Raises HandlerRefusedError.
        """
        self._database = database
        self._consumer = consumer
        self._lease = lease
        self._form = form
        self._context = context
        self._policy = self._form.policy or policy
        if store_failed is not None and self._policy.action is FailureAction.PARK_KEY:
            raise HandlerRefusedError(
                "PARK_KEY looks for earlier events of a key among the dead letters of the database, and this "
                "host keeps its dead letters elsewhere.",
                next_step="Leave out dead_letters=…, or use another FailureAction.",
            )
        self._store_failed = store_failed
        self._event_hub_created_at_ms = event_hub_created_at_ms
        self._random = random_ or random.Random()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"tidegate partition {lease.partition_id}")
        self._budget = budget or DeadLetterBudget(self._policy.dead_letters_per_minute)
        self._outbox = outbox or Outbox(database)
        self._calls = None if max_batch_size is None else Calls(max_batch_size, database.clock)
        self._has_outage = False
        self._done_until = 0
        """One past the last sequence number that was committed here."""
        self._dead_letters = 0
        """Committed here, with parked events."""
        self._running: UnitOfWork | None = None
        """The running transaction, for ``abandon``."""
        self._is_abandoned = False

    async def begin(self) -> ProcessorCheckpoint | None:
        """See ``PartitionTransactions``. Cancellation: waits for the running transaction to end."""
        return await self._in_thread(self._begin)

    async def process(
        self,
        events: Sequence[ReceivedEvent],
        *,
        start_sequence_number: int,
        until_sequence_number: int,
        is_gap_allowed: bool = False,
        history_id: str | None = None,
        is_one_history: bool = False,
    ) -> TransactionOutcome:
        """See ``PartitionTransactions``.

        Also raises CheckpointGapError, EventHubReplacedError, InvalidArgumentError (events out of order or
        range), TransactionMisusedError (the handler ended the transaction itself). PartitionStoppedError is
        raised after the events before the failed one are committed. Cancellation: as there; a wait between
        retries ends immediately.
        """
        scope = BatchScope(
            self._consumer,
            self._lease.partition_id,
            start_sequence_number,
            until_sequence_number,
            self._event_hub_created_at_ms,
            is_gap_allowed,
            self._lease.owner,
            self._lease.epoch,
            self._form.name,
            history_id,
            is_one_history,
        )
        scope.check_events(events)
        dead_letters_before = self._dead_letters
        try:
            outcome = await self._attempt_watched(scope, events)
        except (PartitionPausedError, PartitionStoppedError) as error:
            error.next_sequence_number = self._done_until or None
            error.dead_letters = self._dead_letters - dead_letters_before
            raise
        return outcome

    async def _attempt_watched(
        self, scope: BatchScope, events: Sequence[ReceivedEvent]
    ) -> TransactionOutcome:
        """Commit a batch; an outage becomes a PartitionPausedError."""
        try:
            outcome = await (self._resume if self._has_outage else self._attempt)(scope, events)
        except OutageError as outage:
            self._has_outage = True
            raise self._paused(outage) from outage.__cause__
        self._has_outage = False
        return outcome

    async def _attempt(
        self, scope: BatchScope, events: Sequence[ReceivedEvent], *, is_outage_over: bool = False
    ) -> TransactionOutcome:
        """Commit a batch. Raises OutageError.

        is_outage_over: True: an event that fails as in an outage may be at fault.
        """
        pipeline, retry = self._form.pipeline, self._policy.retry
        watched = len(events) if is_outage_over else None
        is_stored_here = self._store_failed is None
        if pipeline is not None and self._policy.is_plain and is_stored_here and not is_outage_over:
            done = await self._in_thread(partial(self._commit_rows, pipeline, scope, events))
            if done is not None:
                return done
        for retries_done in range(retry.retries_max + 1):
            is_last = retries_done == retry.retries_max
            try:
                return await self._in_thread(
                    partial(self._run, scope, events, is_last=is_last, watched=watched)
                )
            except (EventsFailedError, RowsRefusedError) as failed:
                last_failure = failed
            except OutageError:
                if is_last:
                    raise
            if not is_last:
                fraction = self._random.random()
                await asyncio.sleep(retry.delay_before(retries_done + 1, jitter_fraction=fraction))
        return await self._in_thread(
            partial(
                repeat_carefully,
                lambda why: self._run(scope, events, is_last=True, failed=why, watched=watched),
                last_failure,
            )
        )

    async def _resume(self, scope: BatchScope, events: Sequence[ReceivedEvent]) -> TransactionOutcome:
        """Commit a batch after an outage: its first event, and the others if that succeeds."""
        done = _index_of(events, self._done_until)
        scope, events = (
            replace(scope, start=max(scope.start, min(self._done_until, scope.until))),
            events[done:],
        )
        if not events:
            return await self._attempt(scope, events)
        until = events[0].sequence_number + 1
        try:
            first = await self._attempt(replace(scope, until=until), events[:1])
        except OutageError:
            others = events[1:]
            if not others or not await self._in_thread(partial(self._succeeds, self._random.choice(others))):
                raise
            first = TransactionOutcome(0, 0, 0, 0, scope.start)
        else:
            scope, events = replace(scope, start=until), events[1:]
        if not events:
            return replace(first, skipped=first.skipped + done)
        rest = await self._attempt(scope, events, is_outage_over=True)
        return TransactionOutcome(
            first.processed + rest.processed,
            first.dead_letters + rest.dead_letters,
            first.parked + rest.parked,
            first.skipped + rest.skipped + done,
            rest.next_sequence_number,
        )

    def _succeeds(self, event: ReceivedEvent) -> bool:
        """Whether the handler is called for an event, and succeeds; its effects are rolled back."""
        unit = UnitOfWork(
            self._database, self._consumer, owner=self._lease.owner, lease_epoch=self._lease.epoch
        )
        with unit, self._abandonable(unit):
            try:
                outcome = self._event_run(unit, None, None).run_whole([event], is_failure_accepted=False)
            except (EventsFailedError, OutageError):
                return False
            finally:
                unit.rollback()
        return not outcome.held

    def _paused(self, outage: OutageError) -> PartitionPausedError:
        error = outage.__cause__
        assert error is not None
        return PartitionPausedError(
            f"Partition {self._lease.partition_id} of {self._consumer} pauses: its handler failed with "
            f"{type(error).__name__}: {text_of(error)}. It is taken for an outage of what it calls.",
            next_step="One event is tried until it succeeds; then the partition continues.",
        )

    def close(self) -> None:
        """End the thread after its current work."""
        self._executor.shutdown(wait=False)

    def abandon(self) -> None:
        """Undo the running transaction, whose handler does not return, and release its locks.

        In a thread of its own, because it may wait for a statement to end.
        """
        self._is_abandoned = True
        unit = self._running
        if unit is not None:
            name = f"tidegate partition {self._lease.partition_id} aborted"
            threading.Thread(target=unit.abort, name=name, daemon=True).start()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # In the caller's context: a handler then finds the current span, for example.
        running = asyncio.wrap_future(self._executor.submit(copy_context().run, work))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                # A transaction cannot be cancelled, and the next one must not overlap with it.
                cancelled = error
        if cancelled is not None:
            if not running.cancelled():
                running.exception()
            raise cancelled
        return running.result()

    def _begin(self) -> ProcessorCheckpoint | None:
        partition_id = self._lease.partition_id
        unit = UnitOfWork(
            self._database,
            self._consumer,
            pipeline_name=self._form.name,
            owner=self._lease.owner,
            lease_epoch=self._lease.epoch,
        )
        with unit:
            locked = unit.lock_checkpoint(partition_id)
            stored_ms = locked.event_hub_created_at_ms
            check_same_hub(self._consumer, partition_id, stored_ms, self._event_hub_created_at_ms)
            unit.claim(partition_id)
            unit.commit()
        if locked.next_sequence_number is None:
            return None
        return ProcessorCheckpoint(
            partition_id,
            locked.next_sequence_number - 1,
            event_hub_created_at_ms=self._event_hub_created_at_ms,
            history_id=locked.history_id,
        )

    def _commit_rows(
        self, pipeline: Pipeline, scope: BatchScope, events: Sequence[ReceivedEvent]
    ) -> TransactionOutcome | None:
        """None: more events fail, here or in the database, than may become dead letters."""
        if pipeline.is_payload_copied != self._is_payload_copied:
            pipeline = replace(pipeline, is_payload_copied=self._is_payload_copied)
        watch = OutageWatch(self._policy)
        batch = handled_batch(pipeline, scope, events, on_failure=watch.failed, calls=self._calls)
        left = self._budget.left(self._database.clock.monotonic())
        if left is not None and len(batch.dead_letters) > left:
            return None
        try:
            (result,) = commit_batches(self._database, [replace(batch, dead_letters_max=left)])
        except TooManyDeadLettersError:
            return None
        self._done_until = result.until_sequence_number
        self._dead_letters += result.dead_letters
        self._budget.spend(result.dead_letters, self._database.clock.monotonic())
        skipped = _index_of(events, result.start_sequence_number)
        processed = _index_of(events, batch.scope.until) - skipped - result.dead_letters
        return TransactionOutcome(processed, result.dead_letters, 0, skipped, result.until_sequence_number)

    def _run(
        self,
        scope: BatchScope,
        events: Sequence[ReceivedEvent],
        *,
        is_last: bool,
        failed: TransactionFailure | None = None,
        watched: int | None = None,
    ) -> TransactionOutcome:
        """Run the handler in one transaction. Raises a TransactionFailure if it has to be run again.

        is_last: no retry is left. failed: why the previous one failed, which makes this one careful. watched:
        see ``OutageWatch``.
        """
        outcome = RunOutcome()
        skipped = len(events)
        has_published = False
        is_stopping = self._policy.action is FailureAction.STOP
        failures_max = 0 if is_stopping else self._budget.left(self._database.clock.monotonic())

        def write(unit: UnitOfWork, shares: list[Share]) -> None:
            nonlocal outcome, skipped, has_published
            (share,) = shares
            skipped = _index_of(events, share.first)
            todo = events[skipped:]
            run = self._event_run(unit, failures_max, OutageWatch(self._policy, watched))
            if failed is None:
                outcome = run.run_whole(todo, is_failure_accepted=is_last)
            else:
                outcome = run.run_carefully(todo, is_commit_refused=failed.is_at_commit)
            has_published = run.published.is_used
            if outcome.until is not None:
                share.until = outcome.until
                share.is_moved = bool(todo) and todo[0].sequence_number < share.until
            if self._store_failed is None:
                share.dead_letters = self._letters_of(outcome)
            elif outcome.dead_lettered:
                with unit.translating("writing dead letters"):
                    self._store_failed(unit.connection, self._failed_of(outcome, todo))
            before = _index_of(events, share.until)
            if before:
                share.last = EventPlace(events[before - 1].offset, events[before - 1].enqueued_time_ms)

        (share,) = run_transaction(self._database, [scope], write, guard=self._abandonable)
        if has_published:
            self._outbox.wake()
        if share.is_done:
            assert share.checkpoint is not None
            return TransactionOutcome(0, 0, 0, len(events), share.checkpoint)
        self._done_until = share.until
        self._dead_letters += len(outcome.dead_lettered) + len(outcome.held)
        now = self._database.clock.monotonic()
        self._budget.spend(outcome.failures, now)
        if outcome.stopped_by is not None:
            raise self._refusal(
                outcome.stopped_by, None if is_stopping else self._budget.wait_s(now)
            ) from outcome.stopped_by.error
        return TransactionOutcome(
            outcome.processed, len(outcome.dead_lettered), len(outcome.held), skipped, share.until
        )

    def _failed_of(self, outcome: RunOutcome, events: Sequence[ReceivedEvent]) -> list[FailedEvent]:
        found = {each.letter.sequence_number: each for each in outcome.dead_lettered}
        now, group = self._database.clock.now_utc(), self._context.group
        return [
            FailedEvent(event, now, each.letter.reason if each.error is None else each.error, group)
            for event in events
            if (each := found.get(event.sequence_number)) is not None
        ]

    def _letters_of(self, outcome: RunOutcome) -> list[NewDeadLetter]:
        copied = self._is_payload_copied
        parked = [parked_letter(event, behind, is_payload_copied=copied) for event, behind in outcome.held]
        letters = [*(each.letter for each in outcome.dead_lettered), *parked]
        return sorted(letters, key=lambda letter: letter.sequence_number)

    @contextmanager
    def _abandonable(self, unit: UnitOfWork) -> Iterator[None]:
        self._running = unit
        try:
            if self._is_abandoned:
                unit.abort()
            yield
        finally:
            self._running = None

    def _event_run(self, unit: UnitOfWork, failures_max: int | None, outages: OutageWatch | None) -> EventRun:
        order: KeyOrder | None = None
        if self._policy.action is FailureAction.PARK_KEY:
            with unit.translating("looking for parked keys"):
                first_open = first_open_by_key(
                    unit.connection,
                    self._consumer,
                    self._lease.partition_id,
                    event_hub_created_at_ms=self._event_hub_created_at_ms,
                )
            order = KeyOrder(first_open, key_of=stored_key_of)
        return EventRun(
            unit,
            self._form.run,
            self._context,
            self._outbox,
            order=order,
            is_payload_copied=self._is_payload_copied,
            failures_max=failures_max,
            outages=outages,
            may_end_early=True,
            calls=self._calls,
        )

    @property
    def _is_payload_copied(self) -> bool:
        pipeline = self._form.pipeline
        return self._policy.is_payload_copied or (pipeline is not None and pipeline.is_payload_copied)

    def _refusal(
        self, stopped_by: DeadLettered, wait_s: float | None
    ) -> PartitionStoppedError | PartitionPausedError:
        """The error of a run that ended before a failed event. wait_s: None: the policy is to stop."""
        letter = stopped_by.letter
        where = f"Partition {self._lease.partition_id} of {self._consumer}"
        if wait_s is None:
            return PartitionStoppedError(
                f"{where} stopped before event {letter.sequence_number}, which its handler failed for: "
                f"{letter.error_type}: {letter.reason}.",
                next_step="Correct the handler or the data and start again; everything before it is "
                "committed.",
            )
        return PartitionPausedError(
            f"{where} pauses before event {letter.sequence_number}: "
            f"{self._policy.dead_letters_per_minute} of its events became dead letters within a minute, "
            f"and this one failed with {letter.error_type}: {letter.reason}.",
            next_step="It continues when the minute is over. Correct the handler, or raise "
            "dead_letters_per_minute.",
            retry_after_s=min(wait_s, _PAUSE_S_MAX),
        )


_PAUSE_S_MAX: Final = 10.0


def _index_of(events: Sequence[ReceivedEvent], number: int) -> int:
    """The number of ``events`` before ``number``."""
    return bisect_left(events, number, key=lambda event: event.sequence_number)

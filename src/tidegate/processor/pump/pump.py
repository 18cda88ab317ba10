"""The pump of one owned partition: runs one session after another, until another host owns the partition.

How a session ended decides the next step: see the table in ``pump.states``.

Overlapping calls: a session's calls end before the next session's begin, even after a stall, with one
exception. A call that continues despite cancellation (it swallows the cancellation, or is a transaction that
hangs in its thread) is abandoned after ``close_timeout_s``, or after twice that if it was first asked to end:
it can no longer move a checkpoint, a hanging transaction is rolled back from outside, and its processor
instance gets no further call. The host cannot stop its other effects. (Calls of a processor that a factory
shares between partitions do overlap.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from tidegate.model.errors import (
    ClockSkewError,
    EventHubReplacedError,
    FencedError,
    NotFoundError,
    PartitionStalledError,
    PartitionStoppedError,
    PositionOutOfRangeError,
    ReceiverStolenError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import Lease
from tidegate.processor.pump.session import PartitionProgress, PartitionSession, PumpEnvironment
from tidegate.processor.pump.states import CLOSE_REASONS, PUMP_STEPS, PumpStep
from tidegate.processor.raised import failure_of_call
from tidegate.processor.registration import HandlerRefusedError
from tidegate.processor.statistics import PartitionState, PartitionStatistics

T = TypeVar("T")

Reacquire = Callable[[str], Awaitable[Lease | None]]
"""``PartitionManager.reacquire``."""


class PartitionPump:
    """Processes one partition from ``start`` (called once) to ``stop``."""

    def __init__(self, environment: PumpEnvironment, lease: Lease, reacquire: Reacquire) -> None:
        self.partition_id = lease.partition_id
        self._environment = environment
        self._lease = lease
        self._reacquire = reacquire
        self._progress = PartitionProgress()
        self.session: PartitionSession | None = None
        """The running session, for the watchdog; None between sessions and if the partition is stopped."""
        self._state = PartitionState.STARTING
        self._stop_reason: CloseReason | None = None
        self._stop_requested = asyncio.Event()
        self._stall: PartitionStalledError | None = None
        self._interrupted = asyncio.Event()
        """Set by a stop or a stall, to interrupt the session."""
        self._undelivered: Exception | None = None
        """An error that an abandoned processor did not get, for its successor."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start processing; returns without waiting."""
        self._task = self._environment.tasks.start(self._run(), name=f"partition {self.partition_id}")

    async def stop(self, reason: CloseReason) -> None:
        """Stop processing; returns when the handler's last call has ended or was abandoned.

        Cancellation: the pump continues to stop; only the wait is cancelled.
        """
        if self._stop_reason is None:
            self._stop_reason = reason
        self._stop_requested.set()
        self._interrupted.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def renew_lease(self, lease: Lease) -> None:
        """Keep the lease's new version and time."""
        self._lease = lease
        if self.session is not None:
            self.session.renew_lease(lease)

    def restart_stalled(self, error: PartitionStalledError) -> None:
        """Cancel a hanging session and start again under a new epoch. For the watchdog."""
        self._take(PumpStep.STALL)
        self._stall = error
        self._interrupted.set()

    def statistics(self) -> PartitionStatistics:
        """The partition's progress."""
        progress = self._progress
        return PartitionStatistics(
            partition_id=self.partition_id,
            state=self._state,
            epoch=self._lease.epoch,
            next_sequence_number=progress.next_sequence_number,
            events_processed=progress.events_processed,
            last_progress_at=progress.last_progress_at,
            error=progress.error,
        )

    def __repr__(self) -> str:
        return f"<PartitionPump {self.partition_id} {self._state} epoch={self._lease.epoch}>"

    # --- sessions -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._run_sessions()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                raise
            # The store's: a task that ends with it counts as ended on purpose, and the lease would be kept.
            raise _cancelled(self.partition_id, "store") from error

    async def _run_sessions(self) -> None:
        tries = 0
        while self._stop_reason is None:
            session = PartitionSession(self._environment, self._lease, self._progress, self._session_stepped)
            error, is_abandoned = await self._attend(session)
            if self._stop_reason is not None:
                await self._close(session, self._stop_reason, None, is_abandoned=is_abandoned)
                return
            self._take(PumpStep.RESTART)
            step = await self._decide_step(session, error)
            reason = self._close_reason(step)
            reported = None if step is PumpStep.LOSE else error
            await self._close(session, reason, reported, is_abandoned=is_abandoned)
            if step in (PumpStep.RESTART, PumpStep.REACQUIRE):
                tries = 1 if session.has_progressed else tries + 1
                await self._unless_stopped(asyncio.sleep(self._environment.restart_delay_s(tries, error)))
            if step is PumpStep.REACQUIRE and not await self._renew_epoch():
                step = PumpStep.LOSE
            self._take(step)
            if self._state is PartitionState.STOPPED:
                await self._stop_requested.wait()
                return

    def _close_reason(self, step: PumpStep) -> CloseReason:
        """The reason of a stop that was called meanwhile, else that of the step."""
        return CLOSE_REASONS[step] if self._stop_reason is None else self._stop_reason

    def _take(self, step: PumpStep) -> None:
        self._state = PUMP_STEPS.get((self._state, step), self._state)

    def _session_stepped(self, session: PartitionSession, step: PumpStep) -> None:
        if session is self.session:  # not abandoned
            self._take(step)

    async def _attend(self, session: PartitionSession) -> tuple[Exception | None, bool]:
        """Run a session; returns its error (None: stopped), and whether it was abandoned."""
        close_timeout_s = self._environment.options.close_timeout_s
        self._stall = None
        self._interrupted.clear()
        if self._stop_reason is not None:
            return None, False
        self.session = session
        undelivered, self._undelivered = self._undelivered, None
        task = self._environment.tasks.start(
            _as_outcome(session.run(undelivered)), name=f"session of partition {self.partition_id}"
        )
        interrupted = self._environment.tasks.start(self._interrupted.wait(), name="interruption")
        await asyncio.wait([task, interrupted], return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not task.done() and self._stall is None:
            session.stop()
            await asyncio.wait([task], timeout=close_timeout_s)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=close_timeout_s)
        self.session = None
        if self._stall is not None:
            return self._stall, not task.done()
        if not task.done() or self._stop_reason is not None:
            return None, not task.done()
        if task.cancelled():
            return _cancelled(self.partition_id, "handler"), False
        return task.result()[1], False

    async def _close(
        self, session: PartitionSession, reason: CloseReason, error: Exception | None, *, is_abandoned: bool
    ) -> None:
        """Report ``error``, pass it to the processor and close that, within ``close_timeout_s`` each."""
        if error is not None:
            self._progress.error = error
            self._environment.report(error, self.partition_id)
        if is_abandoned:
            session.give_up(reason)
            self._undelivered = error
            if error is None:
                self._environment.report(self._hanging(), self.partition_id)
            return
        close_timeout_s = self._environment.options.close_timeout_s
        task = self._environment.tasks.start(
            session.close(reason, error), name=f"closing partition {self.partition_id}"
        )
        await asyncio.wait([task], timeout=close_timeout_s)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=close_timeout_s)
            session.give_up(reason)

    def _hanging(self) -> PartitionStalledError:
        return PartitionStalledError(
            f"A call of the handler of partition {self.partition_id} did not end within twice "
            f"{self._environment.options.close_timeout_s:g} s while the partition was being closed. It was "
            "abandoned; its transaction was rolled back.",
            next_step="Set time-outs for everything that the handler waits for.",
        )

    async def _decide_step(self, session: PartitionSession, error: Exception | None) -> PumpStep:
        if isinstance(error, PartitionStalledError):
            return PumpStep.REACQUIRE
        if session.is_opening:
            return PumpStep.RESTART  # the handler's own error, of any type
        match error:
            case ReceiverStolenError():
                return PumpStep.REACQUIRE if await self._is_lease_ours() else PumpStep.LOSE
            case FencedError():
                if not await self._is_lease_ours():
                    return PumpStep.LOSE
                if not self._environment.is_one_store:
                    return PumpStep.RESTART  # under a new epoch of the checkpoint's
                is_transactional = self._environment.registration.is_transactional
                return PumpStep.RESTART if is_transactional and session.has_begun else PumpStep.FAIL
            case EventHubReplacedError() if session.has_read:
                return PumpStep.RESTART  # noticed while reading: the next start asks the policy
            case PartitionStoppedError() | EventHubReplacedError() | PositionOutOfRangeError():
                return PumpStep.FAIL
            case ClockSkewError():
                return PumpStep.RESTART  # reported each time; a clock can be corrected
            case HandlerRefusedError() | NotFoundError() | UnauthorizedError():
                self._environment.refused(error)
                return PumpStep.RESTART
        return PumpStep.RESTART

    async def _is_lease_ours(self) -> bool:
        """Whether the lease is ours; True if the store does not answer, as no host can take it then."""
        environment = self._environment
        try:
            snapshot = await self._unless_stopped(environment.leases.list_leases(environment.group))
        except Exception as error:  # a store may be a user's code: its failure must not end the host
            environment.report(error, self.partition_id)
            return True
        if snapshot is None:
            return True  # stopped meanwhile
        lease = snapshot.leases.get(self.partition_id)
        return lease is not None and lease.owner == self._lease.owner and lease.epoch == self._lease.epoch

    async def _renew_epoch(self) -> bool:
        """Acquire the lease again, for a new epoch; False if it is no longer ours."""
        tries = 0
        while self._stop_reason is None:
            try:
                # Not cancelled by a stop, because the store might then grant a lease that is never released.
                lease = await self._reacquire(self.partition_id)
            except BaseException as raised:  # as above
                tries, error = tries + 1, failure_of_call(raised)
                self._environment.report(error, self.partition_id)
                await self._unless_stopped(asyncio.sleep(self._environment.restart_delay_s(tries, error)))
                continue
            if lease is None:
                return False
            self._lease = lease
            break
        return True

    async def _unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """The result of ``work``; None if the pump is stopped first. Raises what ``work`` raises."""
        tasks = self._environment.tasks
        task = tasks.start(_as_outcome(work), name=f"partition {self.partition_id} between sessions")
        stopped = tasks.start(self._stop_requested.wait(), name="stop")
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=self._environment.options.close_timeout_s)
            return None
        outcome, error = task.result()
        if error is not None:
            raise error
        return outcome


async def _as_outcome(work: Coroutine[object, object, T]) -> tuple[T | None, Exception | None]:
    """The result of ``work`` or its exception, which the pump handles, not the task's owner."""
    try:
        return await work, None
    except BaseException as error:  # handled by ``_decide_step``, or raised again
        return None, failure_of_call(error)


def _cancelled(partition_id: str, by: str) -> TidegateError:
    return TidegateError(
        f"The processing of partition {partition_id} was cancelled by its own {by}.",
        next_step=f"Let the {by} raise its error instead of CancelledError.",
    )

"""The console's jobs: each is a task of the service, and ends with it."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.broker import Action, AuditTrail, Grant
from tidegate.console.frame.rights import Access
from tidegate.console.jobs.job import JOBS_KEPT_MAX, JOBS_RUNNING_MAX, Job, JobKind, JobState
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError, QuotaExceededError, TidegateError
from tidegate.transport.tasks import TaskOwner


class RunningJob:
    """A job, for its own work. All methods are called on the event loop."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_cancelled = False
        """Checked by work in a thread, between two transactions."""

    def tell(self, **changes: Any) -> None:  # Any: the fields of Job
        """Update the job's public state."""
        self.job = replace(self.job, **changes)


_ACTIONS: Final = {
    JobKind.REDRIVE: Action.REDRIVE,
    JobKind.DISCARD: Action.DISCARD,
    JobKind.MOVE: Action.MOVE_CHECKPOINTS,
}
"""The audit record of a job's start; dry runs have none."""

Work = Callable[[RunningJob], Awaitable[None]]
"""Does a job; an error ends it as failed, a cancellation as cancelled."""


class Jobs:
    """The jobs of this service; they end with it, or with the rights that they were started with.

    Signing out ends no job, because users may start long ones and leave; removing the policy or key does.
    """

    def __init__(self, clock: Clock, audit: AuditTrail, access: Access) -> None:
        """audit: records who starts jobs."""
        self._clock = clock
        self._audit = audit
        self._tasks = TaskOwner("console jobs")
        self._jobs: OrderedDict[str, RunningJob] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._access = access
        self._started: dict[str, Grant] = {}
        """The grants that running jobs were started with."""
        self._remove_listener = access.add_change_listener(self._end_those_without_rights)

    def start(self, kind: JobKind, title: str, work: Work, *, event_hub: str | None, actor: str) -> Job:
        """Start a job. Raises QuotaExceededError if too many are running."""
        if len(self._running) >= JOBS_RUNNING_MAX:
            raise QuotaExceededError(
                f"{JOBS_RUNNING_MAX} jobs are running, the maximum of the console.",
                next_step="Wait for one to end, or cancel one.",
            )
        job_id = secrets.token_hex(6)
        running = RunningJob(Job(job_id, kind, title, event_hub, actor, self._clock.now_utc()))
        self._jobs[job_id] = running
        self._forget()
        self._running[job_id] = self._tasks.start(self._run(running, work), name=f"{kind} {job_id}")
        if kind in _ACTIONS:
            self._audit.record(_ACTIONS[kind], event_hub or "", new={"job": title})
        return running.job

    def job(self, job_id: str) -> Job:
        """A job's state. Raises NotFoundError, also for old jobs, which are forgotten."""
        return self._find(job_id).job

    def jobs(self) -> Sequence[Job]:
        """The known jobs, the latest first."""
        return [each.job for each in reversed(self._jobs.values())]

    def watch(self, job: Job, grant: Grant) -> None:
        """Cancel the job when its user loses Manage on its hub."""
        if job.job_id in self._running:
            self._started[job.job_id] = grant

    def cancel(self, job_id: str) -> None:
        """Cancel a job, if it has not ended; committed changes stay. Raises NotFoundError."""
        running, task = self._find(job_id), self._running.get(job_id)
        if task is not None and not running.is_cancelled:
            running.is_cancelled = True
            task.cancel()

    async def wait_ended(self, job_id: str, *, at_most_s: float) -> Job:
        """The job's state once it has ended, or after ``at_most_s`` seconds. Raises NotFoundError."""
        running, task = self._find(job_id), self._running.get(job_id)
        if task is not None:
            await asyncio.wait([task], timeout=at_most_s)
        return running.job

    async def close(self) -> None:
        """Cancel all jobs, and wait for their end."""
        self._remove_listener()
        for running in self._jobs.values():
            running.is_cancelled = True
        await self._tasks.close()

    async def _run(self, running: RunningJob, work: Work) -> None:
        state, message, next_step = JobState.DONE, running.job.message, ""
        try:
            await work(running)
            state, message = running.job.state, running.job.message
            if state is JobState.RUNNING:
                state = JobState.DONE
        except asyncio.CancelledError:
            state, message = JobState.CANCELLED, "What it had committed by then stays."
            if not running.is_cancelled:
                raise
        except TidegateError as error:
            state, message, next_step = JobState.FAILED, error.message, error.next_step or ""
        except Exception:
            # The task's owner logs the error; the job's message refers to the log.
            state, message = JobState.FAILED, "The service failed; its log says how."
            raise
        finally:
            del self._running[running.job.job_id]
            self._started.pop(running.job.job_id, None)
            running.tell(
                state=state,
                message=message,
                next_step=next_step or running.job.next_step,
                ended_at=self._clock.now_utc(),
            )

    def _end_those_without_rights(self) -> None:
        for job_id, grant in list(self._started.items()):
            rights = self._access.rights(grant)
            if rights is None or not rights.may_manage(self._jobs[job_id].job.event_hub):
                self.cancel(job_id)

    def _find(self, job_id: str) -> RunningJob:
        running = self._jobs.get(job_id)
        if running is None:
            raise NotFoundError(
                "There is no such job: the console keeps only the newest, and none after a restart.",
                next_step="The audit trail of dead letters shows what was done.",
            )
        return running

    def _forget(self) -> None:
        ended = [job_id for job_id, each in self._jobs.items() if not each.job.is_running]
        for job_id in ended[: max(0, len(self._jobs) - JOBS_KEPT_MAX)]:
            del self._jobs[job_id]

"""Long work that the console starts and watches: redrives, discards, moves of checkpoints.

Each job is a task of the service, and ends with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

from tidegate.broker import Action, AuditTrail, Grant
from tidegate.console.frame.rights import Access
from tidegate.console.frame.shares import oldest_of_most, share_left
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError, QuotaExceededError, TidegateError
from tidegate.transport.tasks import TaskOwner

JOBS_RUNNING_MAX: Final = 4
"""Concurrent jobs. Our choice: each redrive is a separate process."""

JOBS_KEPT_MAX: Final = 100
"""Jobs kept; of those that have ended, the oldest of the hub that has most are forgotten. The audit trail
records their actions."""


class JobKind(StrEnum):
    """What a job does."""

    REDRIVE = "redrive"
    DRY_RUN = "dry run of a redrive"
    DISCARD = "discard"
    MOVE = "move of checkpoints"


_ACTIONS: Final = {
    JobKind.REDRIVE: Action.REDRIVE,
    JobKind.DISCARD: Action.DISCARD,
    JobKind.MOVE: Action.MOVE_CHECKPOINTS,
}
"""The audit record of a job's start; dry runs have none."""


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    DONE = "done"
    INCOMPLETE = "done in part"
    """It has ended, but could not do everything."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobTable:
    """Rows that a job reports."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class JobCancelledError(TidegateError):
    """Ends a cancelled job's work in a thread."""


@dataclass(slots=True, eq=False)
class Job:
    """A job; changes on the event loop only."""

    job_id: str
    kind: JobKind
    title: str
    event_hub: str | None
    """The job's hub, as requested; None: all."""
    actor: str
    """Who started it."""
    started_at: datetime
    state: JobState = JobState.RUNNING
    ended_at: datetime | None = None
    done: int = 0
    total: int | None = None
    """None: not known yet, or at all."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of its results so far, by label."""
    tables: Sequence[JobTable] = ()
    problem: TidegateError | None = None
    """Why it failed; shown as ``for_users`` has it."""
    message: str = ""
    """A remark on its end."""
    output: str = ""
    """The end of its process's output."""
    follow_up: Mapping[str, str] = field(default_factory=dict)
    """For a dry run: the form's fields that execute it."""
    is_cancelled: bool = False
    """Checked by work in a thread, between two transactions."""
    grant: Grant | None = None
    """The job is cancelled when this loses Manage on its hub; None: never."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.state is JobState.RUNNING

    def update(self, **changes: Any) -> None:  # Any: the fields above
        """Set some of its fields."""
        for name, value in changes.items():
            setattr(self, name, value)

    def require_wanted(self) -> None:
        """Raise JobCancelledError if it was cancelled. For work in a thread, also in each transaction once it
        has its locks: others may have held them for long."""
        if self.is_cancelled:
            raise JobCancelledError(f"The job was cancelled: {self.title}.")

    def updater_for_threads(self) -> Callable[..., None]:
        """``update`` for work in a thread; it returns at once."""
        loop = asyncio.get_running_loop()

        def update(**changes: Any) -> None:
            loop.call_soon_threadsafe(partial(self.update, **changes))

        return update


Work = Callable[[Job], Awaitable[None]]
"""Does a job; an error ends it as failed, a cancellation as cancelled."""


class Jobs:
    """The jobs of this service; they end with it, or with the rights that they were started with.

    Signing out ends no job, because users may start long ones and leave; removing the policy or key does.
    """

    def __init__(self, clock: Clock, audit: AuditTrail, access: Access) -> None:
        """audit: records who starts and cancels jobs."""
        self._clock = clock
        self._audit = audit
        self._tasks = TaskOwner("console jobs")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._access = access
        self._remove_listener = access.add_change_listener(self._end_those_without_rights)

    def start(self, kind: JobKind, title: str, work: Work, *, event_hub: str | None, actor: str) -> Job:
        """Start a job. Raises QuotaExceededError if too many are running, of all or of its event hub."""
        holders = ((self._jobs[job_id].event_hub or "", 1) for job_id in self._running)
        if share_left(event_hub or "", holders, JOBS_RUNNING_MAX) <= 0:
            raise QuotaExceededError(
                f"Too many jobs are running: {JOBS_RUNNING_MAX} are the maximum, and an event hub has no "
                "more than it leaves to others.",
                next_step="Wait for one to end, or cancel one.",
            )
        job = Job(secrets.token_hex(6), kind, title, event_hub, actor, self._clock.now_utc())
        self._jobs[job.job_id] = job
        ended = {each.job_id: each.event_hub or "" for each in self._jobs.values() if not each.is_running}
        if ended and len(self._jobs) > JOBS_KEPT_MAX:
            del self._jobs[oldest_of_most(ended, newcomer=event_hub or "")]
        self._running[job.job_id] = self._tasks.start(self._run(job, work), name=f"{kind} {job.job_id}")
        if kind in _ACTIONS:
            self._audit.record(_ACTIONS[kind], event_hub or "", new={"job": title})
        return job

    def job(self, job_id: str) -> Job:
        """A job. Raises NotFoundError, also for old jobs, which are forgotten."""
        job = self._jobs.get(job_id)
        if job is None:
            raise absent_job()
        return job

    def jobs(self) -> Sequence[Job]:
        """The known jobs, the latest first."""
        return list(reversed(self._jobs.values()))

    def cancel(self, job: Job) -> None:
        """Cancel a job for a user, if it has not ended; committed changes stay."""
        if self._end(job):
            self._audit.record(Action.CANCEL_JOB, job.event_hub or "", new={"job": job.title})

    def _end(self, job: Job) -> bool:
        """Cancel a job; False if it has ended or was cancelled before."""
        task = self._running.get(job.job_id)
        if task is None or job.is_cancelled:
            return False
        job.is_cancelled = True
        task.cancel()
        return True

    async def wait_ended(self, job: Job, *, at_most_s: float) -> None:
        """Return when the job has ended, or after ``at_most_s`` seconds."""
        task = self._running.get(job.job_id)
        if task is not None:
            await asyncio.wait([task], timeout=at_most_s)

    async def close(self) -> None:
        """Cancel all jobs, and wait for their end."""
        self._remove_listener()
        for job in self._jobs.values():
            job.is_cancelled = True
        await self._tasks.close()

    async def _run(self, job: Job, work: Work) -> None:
        try:
            await work(job)
            if job.is_running:
                job.state = JobState.DONE
        except asyncio.CancelledError:
            job.update(state=JobState.CANCELLED, message="What it had committed by then stays.")
            if not job.is_cancelled:
                raise
        except TidegateError as error:
            job.update(state=JobState.FAILED, problem=error)
        except Exception:
            # The task's owner logs the error; the job's message refers to the log.
            job.update(state=JobState.FAILED, message="The service failed; its log says how.")
            raise
        finally:
            del self._running[job.job_id]
            job.ended_at = self._clock.now_utc()

    def _end_those_without_rights(self) -> None:
        for job_id in list(self._running):
            job = self._jobs[job_id]
            if job.grant is not None:
                rights = self._access.rights(job.grant)
                if rights is None or not rights.may_manage(job.event_hub):
                    self._end(job)


def absent_job() -> NotFoundError:
    """The error for a job that is not known, or that the user may not see."""
    return NotFoundError(
        "There is no such job: the console keeps only the newest, and none after a restart.",
        next_step="The audit trail of dead letters shows what was done.",
    )

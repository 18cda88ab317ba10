"""Jobs of the console: no hub's take all places."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.broker import Broker
from tidegate.console.frame.rights import Access
from tidegate.console.jobs import jobs as console_jobs
from tidegate.console.jobs.jobs import Job, JobKind, Jobs
from tidegate.model.errors import QuotaExceededError
from tidegate.transport.clock import SystemClock


async def _hang(job: Job) -> None:
    await asyncio.Event().wait()


async def test_jobs_of_one_hub_leave_places_to_others(broker: Broker) -> None:
    """Whoever manages one hub could keep all others from every redrive, discard and move of checkpoints."""
    jobs = Jobs(SystemClock(), broker.audit, Access(broker, SystemClock()))

    def start(hub: str | None) -> Job:
        return jobs.start(JobKind.DRY_RUN, "a job", _hang, event_hub=hub, actor="somebody")

    start("busy")
    start("Busy")
    with pytest.raises(QuotaExceededError, match="has no more than it leaves"):
        start("busy")
    start("other")
    start(None)
    with pytest.raises(QuotaExceededError):
        start("third")
    await jobs.close()


async def test_jobs_of_one_hub_leave_others_theirs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of jobs are in memory alone: a hundred quick ones made those of all others unknown."""
    monkeypatch.setattr(console_jobs, "JOBS_KEPT_MAX", 3)
    jobs = Jobs(SystemClock(), broker.audit, Access(broker, SystemClock()))

    async def end(job: Job) -> None:
        """Does nothing."""

    kept = list[str]()
    for hub in ("other", None, "busy", "Busy", "busy", "BUSY"):
        job = jobs.start(JobKind.DRY_RUN, "a job", end, event_hub=hub, actor="somebody")
        await jobs.wait_ended(job, at_most_s=10.0)
        kept.append(job.job_id)
    assert [each.job_id for each in reversed(jobs.jobs())] == [*kept[:2], kept[-1]]
    await jobs.close()

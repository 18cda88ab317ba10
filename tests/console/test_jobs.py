"""Jobs of the console: no hub's take all places."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.broker import Broker
from tidegate.console.frame.rights import Access
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

"""``/console/jobs``: redrives, discards and moves of checkpoints that were started here, with progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.pages import Pages, get, post, see_other
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of, session_of
from tidegate.console.jobs.jobs import Job, Jobs, JobState, absent_job

LIVE_EVERY_S = 0.5
QUICK_S = 1.0
"""A job that ends within this many seconds is shown with its result immediately."""

_LOOKS: Final = {
    JobState.DONE: "good",
    JobState.INCOMPLETE: "warning",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "warning",
}
_PARTS: Final = {
    "job": "jobs/job_now.html",
    "actions": "jobs/job_actions.html",
    "sentence": "jobs/job_sentence.html",
}


def job_address(job_id: str) -> str:
    """The URL of a job's page."""
    return f"/console/jobs/{job_id}"


async def follow_job(jobs: Jobs, request: Request, job: Job) -> Response:
    """Redirect to a job that the request has started; the job is cancelled if its user loses the right."""
    job.grant = session_of(request).grant
    await jobs.wait_ended(job, at_most_s=QUICK_S)
    return see_other(job_address(job.job_id))


@dataclass(eq=False)
class JobPages(Pages):
    """The jobs of the console."""

    jobs: Jobs

    @get("/console/jobs")
    async def show_list(self, request: Request) -> Response:
        rights = rights_of(request)
        require_listen(request, rights.hub)
        jobs = [job for job in self.jobs.jobs() if rights.may_see(job.event_hub, job.started_at)]
        return page(request, "jobs/page.html", jobs=jobs, looks=_LOOKS, address_of=job_address)

    @get("/console/jobs/{job_id}")
    async def show(self, request: Request) -> Response:
        return page(request, "jobs/job.html", **await self._context(request))

    @get("/console/live/jobs/{job_id}")
    async def stream(self, request: Request) -> Response:
        self._job(request)
        return self.live(request, self._context, _PARTS, every_s=LIVE_EVERY_S)

    @post("/console/jobs/{job_id}/cancel")
    async def cancel(self, request: Request) -> Response:
        await form_of(request)
        job = self._job(request)
        require_manage(request, job.event_hub)
        self.jobs.cancel(job)
        await self.jobs.wait_ended(job, at_most_s=2.0)
        if not job.is_running:
            session_of(request).flash("warning", f"The job is {job.state.value}; what it committed stays.")
        return see_other(job_address(job.job_id))

    def _job(self, request: Request) -> Job:
        """The job of the URL. Raises NotFoundError, also if the user may not see the job's hub."""
        require_listen(request, rights_of(request).hub)
        job = self.jobs.job(request.path_params["job_id"])
        if not rights_of(request).may_see(job.event_hub, job.started_at):
            raise absent_job()
        return job

    async def _context(self, request: Request) -> dict[str, Any]:
        job = self._job(request)
        return {
            "job": job,
            "is_over": not job.is_running,
            "look": _LOOKS.get(job.state, ""),
            "address": job_address(job.job_id),
            "may_act": rights_of(request).may_manage(job.event_hub),
        }

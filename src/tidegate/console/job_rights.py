"""Jobs that people start end with the rights that they were started with, as their live pages do.

Signing out ends no job: somebody may start a long one and go home. A policy or key that is taken away does.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.console.backend.access import AccessView, Credential
from tidegate.console.backend.jobs import Job, JobsView
from tidegate.model.errors import NotFoundError


class JobRights:
    """Who has started which job that is at work."""

    def __init__(self, access: AccessView, jobs: Callable[[], JobsView]) -> None:
        """jobs: asked only where one was started."""
        self._access = access
        self._jobs = jobs
        self._started: dict[str, Credential] = {}
        """By job."""
        self._remove_listener = access.add_change_listener(self._end_those_without_rights)

    def watch(self, job: Job, credential: Credential) -> None:
        """Cancel the job when its starter may no longer manage what it is about."""
        self._started = {
            job_id: each for job_id, each in self._started.items() if self._running(job_id) is not None
        }
        self._started[job.job_id] = credential

    def close(self) -> None:
        """Hear no more of changes. Harmless twice."""
        self._remove_listener()

    def _end_those_without_rights(self) -> None:
        for job_id, credential in self._started.items():
            job, rights = self._running(job_id), self._access.rights(credential)
            if job is not None and (rights is None or not rights.may_manage(job.event_hub)):
                self._jobs().cancel(job_id)

    def _running(self, job_id: str) -> Job | None:
        try:
            job = self._jobs().job(job_id)
        except NotFoundError:
            return None
        return job if job.is_running else None

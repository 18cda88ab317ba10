"""``/dead-letters/discard`` and ``/dead-letters/redrive``, for one dead letter or all that match a filter.

Both first show what they would do. The selection is fixed at that moment: later failures are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.dead_letters.filter import LetterQuery
from tidegate.console.dead_letters.letters import DeadLetterView
from tidegate.console.dead_letters.redrive import RedriveRequest
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import digits_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import actor_of, form_of, require_manage, rights_of
from tidegate.console.jobs.jobs import Jobs
from tidegate.console.jobs.page import follow_job
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.sql import DeadLetterFilter, DeadLetterStatus

COUNT_S = 5.0
"""Seconds that a confirmation waits for the counts."""
ATTEMPTS_MAX_DEFAULT = 10
"""As for ``tidegate dlq redrive``: skip dead letters that have already failed this often."""


@dataclass(eq=False)
class DeadLetterActionPages(Pages):
    """Discarding and redriving dead letters."""

    letters: DeadLetterView
    jobs: Jobs

    @get("/dead-letters/discard")
    async def confirm_discard(self, request: Request) -> Response:
        """How many match, by reason."""
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_manage(request, query.hub)
        return await self._page(request, "dead_letters/discard.html", query, {"because": ""}, None)

    @post("/dead-letters/discard")
    async def discard(self, request: Request) -> Response:
        """Discard them permanently."""
        form = await form_of(request)
        query = LetterQuery.of(form, rights_of(request))
        require_manage(request, query.hub)
        because = str(form.get("because", "")).strip()[:2_000]
        try:
            job = self.letters.start_discard(self._meant(query), because=because, actor=actor_of(request))
        except InvalidArgumentError as error:
            return await self._page(request, "dead_letters/discard.html", query, {"because": because}, error)
        return await follow_job(self.jobs, request, job)

    @get("/dead-letters/redrive")
    async def ask_redrive(self, request: Request) -> Response:
        """The form for pipeline and number; and how many match, by reason."""
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_manage(request, query.hub)
        asked = {"pipeline": "", "maximum": "", "attempts_max": str(ATTEMPTS_MAX_DEFAULT)}
        return await self._page(request, "dead_letters/redrive.html", query, asked, None)

    @post("/dead-letters/redrive")
    async def redrive(self, request: Request) -> Response:
        """Process them again; only a dry run unless ``mode`` is ``earnest``."""
        form = await form_of(request)
        query = LetterQuery.of(form, rights_of(request))
        require_manage(request, query.hub)
        asked = {name: str(form.get(name, "")).strip() for name in ("pipeline", "maximum", "attempts_max")}
        try:
            job = self.letters.start_redrive(
                RedriveRequest(
                    pipeline=asked["pipeline"],
                    filter=self._meant(query),
                    maximum=_count(asked["maximum"], "how many to take at most"),
                    attempts_max=_count(asked["attempts_max"], "the number of attempts")
                    or ATTEMPTS_MAX_DEFAULT,
                    is_dry_run=form.get("mode") != "earnest",
                    actor=actor_of(request),
                )
            )
        except InvalidArgumentError as error:
            return await self._page(request, "dead_letters/redrive.html", query, asked, error)
        return await follow_job(self.jobs, request, job)

    async def _page(
        self,
        request: Request,
        template: str,
        query: LetterQuery,
        asked: Mapping[str, str],
        problem: TidegateError | None,
    ) -> Response:
        now, sums = self.console.clock.now_utc(), None
        try:
            sums = await self.letters.sums(self._meant(query), at_most_s=COUNT_S)
        except InvalidArgumentError as error:
            problem = error
        return page(
            request,
            template,
            status_code=status_of(problem),
            query=query,
            fields=_fixed(query, now),
            asked=asked,
            sums=sums,
            pipelines=self.letters.redrive_pipelines,
            problem=problem,
        )

    def _meant(self, query: LetterQuery) -> DeadLetterFilter:
        """The filter, limited to open dead letters that have already failed."""
        now = self.console.clock.now_utc()
        fields = {**query.fields, "state": DeadLetterStatus.OPEN.value}
        return LetterQuery(fields).filter(now_utc=now).until(now)


def _fixed(query: LetterQuery, now: datetime) -> Mapping[str, str]:
    """The filter's fields for the form: relative times become absolute, and later failures are excluded."""
    fields = {**query.fields, "state": ""}
    try:
        chosen = LetterQuery(fields).filter(now_utc=now).until(now)
    except InvalidArgumentError:
        return fields
    times = {"from": chosen.failed_from, "until": chosen.failed_until}
    return fields | {
        name: time.astimezone(UTC).isoformat() for name, time in times.items() if time is not None
    }


def _count(text: str, what: str) -> int | None:
    if not text:
        return None
    if not (found := digits_of(text, 9)):
        raise InvalidArgumentError(f"{text[:40]!r} is not {what}.", next_step="Enter a number, 1 or more.")
    return found

"""``/dead-letters``: a list by reason and time; ``/dead-letters/HUB/GROUP/PARTITION/NUMBER``: one of them;
``/dead-letters/discard`` and ``/dead-letters/redrive``, for one dead letter or all that match a filter.

The last two first show what they would do. The selection is fixed at that moment: later failures are not
included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.dead_letters.filter import LetterQuery, letter_address, parse_place
from tidegate.console.dead_letters.histogram import histogram_of
from tidegate.console.dead_letters.letters import DeadLetterView, LetterEvent, LetterSums
from tidegate.console.dead_letters.redrive import RedriveRequest
from tidegate.console.explorer.bodies import hex_lines, pretty_json
from tidegate.console.explorer.values import (
    PROPERTIES_SHOWN_MAX,
    PROPERTY_CHARACTERS_MAX,
    property_text,
)
from tidegate.console.frame.drawing import drawn
from tidegate.console.frame.errors import problem_page, status_of
from tidegate.console.frame.forms import digits_of
from tidegate.console.frame.pages import Pages, attachment, get, post
from tidegate.console.frame.paging import PAGE_SIZE
from tidegate.console.frame.rendering import for_users, fragments, page
from tidegate.console.frame.sessions import (
    actor_of,
    form_of,
    require_listen,
    require_manage,
    require_session,
    rights_of,
)
from tidegate.console.jobs.jobs import Jobs
from tidegate.console.jobs.page import follow_job
from tidegate.console.pipelines.page import seen_by
from tidegate.console.pipelines.reported import ReportedPipelines
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.events import EventContents
from tidegate.sql import AuditEntry, ConsumerKey, DeadLetter, DeadLetterFilter, DeadLetterStatus
from tidegate.sql.dead_letters.pages import DeadLetterLine, DeadLetterPlace

LIVE_EVERY_S = 2.0
FIRST_PAINT_S = 0.1
"""Seconds after which results not yet available are sent live, or with the next request."""
LIVE_WAIT_S = 30.0

BODY_SHOWN_MAX = 256 * 1024
"""Bytes of a body that a page shows; a download has them all."""
HEX_SHOWN_MAX = 4 * 1024
HISTORY_MAX = 100

COUNT_S = 5.0
"""Seconds that a confirmation waits for the counts."""
ATTEMPTS_MAX_DEFAULT = 10
"""As for ``tidegate dlq redrive``: skip dead letters that have already failed this often."""


@dataclass(eq=False)
class DeadLetterPages(Pages):
    """The list of dead letters, each one's page, and what can be done about them."""

    letters: DeadLetterView
    jobs: Jobs
    pipelines: ReportedPipelines

    # --- all ----------------------------------------------------------------------------------------------

    @get("/dead-letters")
    async def show_list(self, request: Request) -> Response:
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_listen(request, query.hub)
        context = self._frame(request, query)
        try:
            chosen = query.filter(now_utc=self.console.clock.now_utc())
            behind = _place_of(request)
            rows = await self._rows(query, chosen, behind, at_most_s=FIRST_PAINT_S)
            sums = await self._sums(query, chosen, at_most_s=FIRST_PAINT_S)
        except TidegateError as error:
            if status_of(error) >= 500:
                raise
            nothing: dict[str, Any] = dict.fromkeys(("next", "sums"))
            nothing |= {"lines": [], "is_sought": False, "live": None, "problems": {}}
            return problem_page(request, "dead_letters/page.html", error, **context | nothing)
        return problem_page(request, "dead_letters/page.html", None, **context | rows | sums)

    @get("/console/live/dead-letters")
    async def stream(self, request: Request) -> Response:
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_listen(request, query.hub)
        is_sought = request.query_params.get("sought") == "1"
        # Relative times count from the request.
        chosen = query.filter(now_utc=self.console.clock.now_utc())
        behind = _place_of(request)

        async def render() -> Mapping[str, str] | None:
            nonlocal is_sought
            context, drawn = self._frame(request, query), dict[str, str]()
            try:
                # A later page begins behind its own place: what fails now is before it.
                if is_sought or behind is None:
                    rows = await self._rows(query, chosen, behind, at_most_s=LIVE_WAIT_S)
                    if is_sought or not rows["is_sought"]:
                        parts = {"rows": "dead_letters/rows.html"}
                        drawn |= await self._draw(request, parts, context | rows)
                    if is_sought:
                        is_sought = rows["is_sought"]
                        return drawn
                sums = await self._sums(query, chosen, at_most_s=LIVE_WAIT_S)
            except TidegateError as error:
                return {**drawn, "trouble": str(for_users(error, rights_of(request)))}
            drawn |= await self._draw(request, {"sums": "dead_letters/sums.html"}, context | sums)
            return {**drawn, "trouble": ""}

        return self.console.streams.stream(request, render, every_s=LIVE_EVERY_S)

    async def _draw(
        self, request: Request, parts: Mapping[str, str], context: Mapping[str, Any]
    ) -> Mapping[str, str]:
        return await self.console.streams.draw(lambda: fragments(request, parts, context))

    def _frame(self, request: Request, query: LetterQuery) -> dict[str, Any]:
        rights = rights_of(request)
        behind = request.query_params.get("behind", "")
        return {
            "query": query,
            "fields": query.fields,
            "states": [state.value for state in DeadLetterStatus],
            "behind": behind,
            "is_hub_fixed": rights.hub is not None,
            "may_act": rights.may_manage(query.hub),
            "has_pipelines": bool(self.letters.redrive_pipelines),
            "live": query.query(behind=behind),
            "databases": self._databases,
            "is_database_chosen": bool(query.database) or not self._databases,
        }

    @property
    def _databases(self) -> Sequence[str]:
        """The names of the databases, if there are several."""
        names = [*self.letters.databases]
        return names if len(names) > 1 else []

    async def _rows(
        self,
        query: LetterQuery,
        chosen: DeadLetterFilter,
        behind: DeadLetterPlace | None,
        *,
        at_most_s: float,
    ) -> dict[str, Any]:
        found = await self.letters.page(
            chosen, query.database, behind=behind, limit=PAGE_SIZE, at_most_s=at_most_s
        )
        following = None if found is None or found.next is None else query.query(behind=found.next)
        return {
            "lines": [] if found is None else found.lines,
            "next": following,
            "address_of": self._address_of,
            "is_sought": found is None,
            "problems": {} if found is None else found.problems,
        }

    def _address_of(self, letter: DeadLetterLine, database: str) -> str:
        return letter_address(letter, database if self._databases else "")

    async def _sums(
        self, query: LetterQuery, chosen: DeadLetterFilter, *, at_most_s: float
    ) -> dict[str, Any]:
        sums = await self.letters.sums(chosen, query.database, at_most_s=at_most_s)
        return sums_context(query, sums)

    @get("/dead-letters/history")
    async def history(self, request: Request) -> Response:
        """The history of redrives and discards."""
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_listen(request, query.hub)
        acts = await self.letters.history(query.hub, since=query.since, limit=HISTORY_MAX)
        return page(request, "dead_letters/history.html", acts=acts, hub=query.hub, address_of=letter_address)

    # --- discarding and redriving --------------------------------------------------------------------------

    @get("/dead-letters/discard")
    async def confirm_discard(self, request: Request) -> Response:
        """How many match, by reason."""
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_manage(request, query.hub)
        return await self._action_page(request, "dead_letters/discard.html", query, {"because": ""}, None)

    @post("/dead-letters/discard")
    async def discard(self, request: Request) -> Response:
        """Discard them permanently."""
        form = await form_of(request)
        query = LetterQuery.of(form, rights_of(request))
        require_manage(request, query.hub)
        because = str(form.get("because", "")).strip()[:2_000]
        try:
            job = self.letters.start_discard(
                self._meant(query), query.database, because=because, actor=actor_of(request)
            )
        except InvalidArgumentError as error:
            return await self._action_page(
                request, "dead_letters/discard.html", query, {"because": because}, error
            )
        return await follow_job(self.jobs, request, job)

    @get("/dead-letters/redrive")
    async def ask_redrive(self, request: Request) -> Response:
        """The form for pipeline and number; and how many match, by reason."""
        query = LetterQuery.of(request.query_params, rights_of(request))
        require_manage(request, query.hub)
        asked = {"pipeline": "", "maximum": "", "attempts_max": str(ATTEMPTS_MAX_DEFAULT)}
        return await self._action_page(request, "dead_letters/redrive.html", query, asked, None)

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
                    database=query.database,
                    maximum=_count(asked["maximum"], "how many to take at most"),
                    attempts_max=_count(asked["attempts_max"], "the number of attempts")
                    or ATTEMPTS_MAX_DEFAULT,
                    is_dry_run=form.get("mode") != "earnest",
                    actor=actor_of(request),
                )
            )
        except InvalidArgumentError as error:
            return await self._action_page(request, "dead_letters/redrive.html", query, asked, error)
        return await follow_job(self.jobs, request, job)

    async def _action_page(
        self,
        request: Request,
        template: str,
        query: LetterQuery,
        asked: Mapping[str, str],
        problem: TidegateError | None,
    ) -> Response:
        now, sums, is_refused = self.console.clock.now_utc(), None, False
        fields = _fixed(query, now)
        try:
            self.letters.one_database(query.database)
            sums = await self.letters.sums(self._meant(query), query.database, at_most_s=COUNT_S)
        except InvalidArgumentError as error:
            problem, is_refused = error, True
        fixed = [] if is_refused else [name for name in ("from", "until") if fields[name]]
        return problem_page(
            request,
            template,
            problem,
            query=query,
            fields=fields,
            times={name: datetime.fromisoformat(fields[name]) for name in fixed},
            is_refused=is_refused,
            asked=asked,
            sums=sums,
            pipelines=self.letters.redrive_pipelines,
        )

    def _meant(self, query: LetterQuery) -> DeadLetterFilter:
        """The filter, limited to open dead letters that have already failed."""
        now = self.console.clock.now_utc()
        fields = {**query.fields, "state": DeadLetterStatus.OPEN.value}
        return replace(query, fields=fields).filter(now_utc=now).until(now)

    # --- one ----------------------------------------------------------------------------------------------

    @get("/dead-letters/{hub}/{group}/{partition}/{number}")
    async def show(self, request: Request) -> Response:
        async with self._one(request) as (database, letter, history):
            event = missing = None
            properties: list[tuple[Markup, Markup]] = []
            shown: dict[str, Markup] = {}
            try:
                event = await self.letters.event(letter, event_texts)
                names = await drawn(request, [name for name, _ in event.properties])
                values = await drawn(request, [value for _, value in event.properties])
                properties = list(zip(names, values, strict=True))
                shown = dict(zip(event.body, await drawn(request, [*event.body.values()]), strict=True))
            except TidegateError as error:
                missing = error
            parts = request.path_params
            reported = seen_by(request, await self.pipelines.pipelines()).entries
            return page(
                request,
                "dead_letters/dead_letter.html",
                # A host's pipeline has no page.
                is_pipeline_reported=any(each.name == letter.pipeline for each in reported),
                letter=letter,
                history=history,
                event=event,
                properties=properties,
                missing=missing,
                shown=shown,
                database=database if self._databases else "",
                body_address=letter_address(letter, request.query_params.get("database", ""), part="/body"),
                query=LetterQuery.of({**parts, "database": database}, rights_of(request)),
                is_open=letter.status is DeadLetterStatus.OPEN,
                may_act=rights_of(request).may_manage(parts["hub"]),
                has_pipelines=bool(self.letters.redrive_pipelines),
            )

    @get("/dead-letters/{hub}/{group}/{partition}/{number}/body")
    async def download(self, request: Request) -> Response:
        """The unchanged body."""
        async with self._one(request) as (_, letter, _):
            body = await self.letters.event(letter, lambda event: event.contents.body)
        name = f"{request.path_params['hub']}-{letter.partition_id}-{letter.sequence_number}.bin"
        return attachment(body, name)

    @asynccontextmanager
    async def _one(self, request: Request) -> AsyncIterator[tuple[str, DeadLetter, Sequence[AuditEntry]]]:
        """The one that is asked for, with a place for it: its copy and its event have megabytes."""
        parts: Mapping[str, str] = request.path_params
        require_listen(request, parts["hub"])
        number = digits_of(parts["number"])
        if number is None or any("\0" in part for part in parts.values()):
            raise NotFoundError("There is no such dead letter.")
        consumer = ConsumerKey(parts["hub"], parts["group"])
        since, database = rights_of(request).since, request.query_params.get("database", "")
        async with self.letters.whole(database).of(parts["hub"]):
            require_session(request)  # a page may wait for others'
            yield await self.letters.letter(consumer, parts["partition"], number, database, since=since)


def sums_context(query: LetterQuery, sums: LetterSums | None) -> dict[str, Any]:
    """What ``sums.html`` shows, once: the links of its tables are made while it is drawn, in its turn."""
    histogram = None if sums is None else histogram_of(sums.hours)
    bars = [] if histogram is None else [bar for bar in reversed(histogram.bars) if bar.count]
    reasons = () if sums is None else sums.reasons
    hours = ({"from_": bar.start.isoformat(), "until": bar.until.isoformat()} for bar in bars)
    texts = ({"error_type": each.error_type, "reason_is": each.reason} for each in reasons)
    return {
        "sums": sums,
        "histogram": histogram,
        "bars": zip(bars, query.links(hours), strict=True),
        "reasons": zip(reasons, query.links(texts), strict=True),
    }


@dataclass(frozen=True, slots=True)
class EventTexts:
    """What a page shows of an event; each text is cut."""

    is_copy: bool
    problem: str
    size_bytes: int
    """Of the body."""
    content_type: str | None
    properties: Sequence[tuple[str, str]]
    more_properties: int
    """That are not shown."""
    body: Mapping[str, str]
    """As JSON if it is some, as text if it is UTF-8, and in hexadecimal."""


def event_texts(event: LetterEvent) -> EventTexts:
    """Pure; runs in threads, because some events take long."""
    contents = event.contents
    properties = [
        (name[:PROPERTY_CHARACTERS_MAX], property_text(value, PROPERTY_CHARACTERS_MAX))
        for name, value in islice(contents.properties.items(), PROPERTIES_SHOWN_MAX)
    ]
    return EventTexts(
        event.is_copy,
        event.problem,
        len(contents.body),
        contents.content_type,
        properties,
        len(contents.properties) - len(properties),
        _body_texts(contents),
    )


def _body_texts(contents: EventContents) -> dict[str, str]:
    body = contents.body
    if contents.body_value is not None and not body:
        return {"text": property_text(contents.body_value, BODY_SHOWN_MAX)}
    found = {"hex": hex_lines(body[:HEX_SHOWN_MAX], 0)}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return found
    found["text"] = text[:BODY_SHOWN_MAX]
    if len(body) <= BODY_SHOWN_MAX and (pretty := pretty_json(text)) is not None:
        found["json"] = pretty
    return found


def _place_of(request: Request) -> DeadLetterPlace | None:
    text = request.query_params.get("behind", "")
    return parse_place(text) if text else None


def _fixed(query: LetterQuery, now: datetime) -> Mapping[str, str]:
    """The filter's fields for the form: relative times become absolute, and later failures are excluded."""
    fields = {**query.fields, "state": ""}
    try:
        chosen = replace(query, fields=fields).filter(now_utc=now).until(now)
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

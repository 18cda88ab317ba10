"""``/consumers/HUB/GROUP/move``: moves checkpoints back or forward, after a dry run."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.consumers.groups import Consumers
from tidegate.console.consumers.page import group_address, names_of
from tidegate.console.consumers.values import KeptPlan, MoveRequest
from tidegate.console.frame.context import Console, stored
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import sequence_number_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import actor_of, form_of, require_manage
from tidegate.console.jobs.jobs import Jobs
from tidegate.console.jobs.page import follow_job
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.position import EventPosition, PositionKind
from tidegate.model.position_text import parse_time

STEPS_SHOWN_MAX = 200
"""Partitions that a dry run lists; its sums include all."""


class MoveTo(StrEnum):
    """The targets of a move in the form."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SEQUENCE_NUMBER = "sequence-number"
    TIME = "time"


_KINDS: Final = {
    MoveTo.EARLIEST: PositionKind.EARLIEST,
    MoveTo.LATEST: PositionKind.LATEST,
    MoveTo.SEQUENCE_NUMBER: PositionKind.SEQUENCE_NUMBER,
    MoveTo.TIME: PositionKind.ENQUEUED_TIME,
}


class MovePages(Pages):
    """Moving checkpoints."""

    def __init__(self, console: Console, consumers: Consumers | None, jobs: Jobs | None) -> None:
        self._clock = console.clock
        self._consumers = consumers
        self._jobs = jobs

    @property
    def _view(self) -> Consumers:
        return stored(self._consumers)

    @get("/consumers/{hub}/{group}/move")
    async def ask(self, request: Request) -> Response:
        """The form, and its dry run."""
        hub, group = names_of(request)
        require_manage(request, hub)
        fields = {name: request.query_params.get(name, "").strip() for name in ("to", "value", "partition")}
        plan, problem = None, None
        if fields["to"]:
            try:
                plan = await self._view.plan_move(self._request_of(hub, group, fields))
            except TidegateError as error:
                problem = error
        return self._page(request, fields, plan, problem)

    @post("/consumers/{hub}/{group}/move")
    async def move(self, request: Request) -> Response:
        """Execute the moves of a dry run."""
        hub, group = names_of(request)
        require_manage(request, hub)
        form = await form_of(request)
        plan = self._view.plan(str(form.get("plan", "")))
        if (plan.request.event_hub, plan.request.consumer_group) != (hub, group):
            raise NotFoundError("The dry run is of another consumer group.")
        try:
            job = self._view.start_move(
                plan.plan_id,
                actor=actor_of(request),
                is_rewind_allowed=form.get("rewind") == "yes",
                is_forced=form.get("force") == "yes",
            )
        except InvalidArgumentError as error:
            return self._page(request, _fields_of(plan.request), plan, error)
        return await follow_job(stored(self._jobs), request, job)

    def _page(
        self,
        request: Request,
        fields: dict[str, str],
        kept: KeptPlan | None,
        problem: TidegateError | None,
    ) -> Response:
        hub, group = names_of(request)
        context: dict[str, Any] = {
            "hub": hub,
            "group": group,
            "address": group_address(hub, group),
            "fields": fields,
            "choices": list(MoveTo),
            "plan_id": "" if kept is None else kept.plan_id,
            "plan": None if kept is None else kept.plan,
            "steps": () if kept is None else kept.plan.moves[:STEPS_SHOWN_MAX],
            "problem": problem,
        }
        status = status_of(problem)
        return page(request, "consumers/move.html", status_code=status, **context)

    def _request_of(self, hub: str, group: str, fields: dict[str, str]) -> MoveRequest:
        try:
            to = MoveTo(fields["to"])
        except ValueError as error:
            raise InvalidArgumentError(f"{fields['to'][:40]!r} is not a valid target.") from error
        return MoveRequest(hub, group, fields["partition"] or None, self._position(to, fields["value"]))

    def _position(self, to: MoveTo, value: str) -> EventPosition:
        if to is MoveTo.TIME:
            return EventPosition.from_enqueued_time(parse_time(value, now_utc=self._clock.now_utc()))
        if to is not MoveTo.SEQUENCE_NUMBER:
            return EventPosition.earliest() if to is MoveTo.EARLIEST else EventPosition.latest()
        return EventPosition.from_sequence_number(sequence_number_of(value))


def _fields_of(request: MoveRequest) -> dict[str, str]:
    value = request.position.value
    return {
        "to": next(to.value for to, kind in _KINDS.items() if kind is request.position.kind),
        "value": "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value),
        "partition": request.partition_id or "",
    }

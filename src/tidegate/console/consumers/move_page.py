"""``/consumers/HUB/GROUP/move``: moves checkpoints back or forward, after a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.consumers.groups import Consumers
from tidegate.console.consumers.moves import KeptPlan, MoveRequest
from tidegate.console.consumers.page import group_address, names_of
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

_TARGETS: Final = {
    "earliest": PositionKind.EARLIEST,
    "latest": PositionKind.LATEST,
    "sequence-number": PositionKind.SEQUENCE_NUMBER,
    "time": PositionKind.ENQUEUED_TIME,
}
"""The targets of a move, by name in the form."""


@dataclass(eq=False)
class MovePages(Pages):
    """Moving checkpoints."""

    consumers: Consumers
    jobs: Jobs

    @get("/consumers/{hub}/{group}/move")
    async def ask(self, request: Request) -> Response:
        """The form, and its dry run."""
        hub, group = names_of(request)
        require_manage(request, hub)
        fields = {name: request.query_params.get(name, "").strip() for name in ("to", "value", "partition")}
        plan, problem = None, None
        if fields["to"]:
            try:
                position = self._position(fields["to"], fields["value"])
                move = MoveRequest(hub, group, fields["partition"] or None, position)
                plan = await self.consumers.plan_move(move)
            except TidegateError as error:
                problem = error
        return self._page(request, fields, plan, problem)

    @post("/consumers/{hub}/{group}/move")
    async def move(self, request: Request) -> Response:
        """Execute the moves of a dry run."""
        hub, group = names_of(request)
        require_manage(request, hub)
        form = await form_of(request)
        plan = self.consumers.plan(str(form.get("plan", "")))
        if (plan.request.event_hub, plan.request.consumer_group) != (hub, group):
            raise NotFoundError("The dry run is of another consumer group.")
        try:
            job = self.consumers.start_move(
                plan.plan_id,
                actor=actor_of(request),
                is_rewind_allowed=form.get("rewind") == "yes",
                is_forced=form.get("force") == "yes",
            )
        except InvalidArgumentError as error:
            return self._page(request, _fields_of(plan.request), plan, error)
        return await follow_job(self.jobs, request, job)

    def _page(
        self, request: Request, fields: dict[str, str], kept: KeptPlan | None, problem: TidegateError | None
    ) -> Response:
        hub, group = names_of(request)
        return page(
            request,
            "consumers/move.html",
            status_code=status_of(problem),
            hub=hub,
            group=group,
            address=group_address(hub, group),
            fields=fields,
            choices=list(_TARGETS),
            plan_id="" if kept is None else kept.plan_id,
            plan=None if kept is None else kept.plan,
            steps=() if kept is None else kept.plan.moves[:STEPS_SHOWN_MAX],
            problem=problem,
        )

    def _position(self, to: str, value: str) -> EventPosition:
        kind = _TARGETS.get(to)
        if kind is None:
            raise InvalidArgumentError(f"{to[:40]!r} is not a valid target.")
        if kind is PositionKind.ENQUEUED_TIME:
            return EventPosition.from_enqueued_time(parse_time(value, now_utc=self.console.clock.now_utc()))
        if kind is PositionKind.SEQUENCE_NUMBER:
            return EventPosition.from_sequence_number(sequence_number_of(value))
        return EventPosition.earliest() if kind is PositionKind.EARLIEST else EventPosition.latest()


def _fields_of(request: MoveRequest) -> dict[str, str]:
    value = request.position.value
    return {
        "to": next(to for to, kind in _TARGETS.items() if kind is request.position.kind),
        "value": "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value),
        "partition": request.partition_id or "",
    }

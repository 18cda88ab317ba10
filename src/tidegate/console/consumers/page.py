"""``/consumers``: all consumer groups with their lag; ``/consumers/HUB/GROUP``: its lease table, live; and
``…/move``: moves its checkpoints back or forward, after a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.errors import problem_page
from tidegate.console.frame.forms import sequence_number_of, start_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.paging import listing, page_at
from tidegate.console.frame.rendering import listed, page
from tidegate.console.frame.rights import Rights
from tidegate.console.frame.sessions import (
    actor_of,
    form_of,
    require_listen,
    require_manage,
    require_session,
    rights_of,
)
from tidegate.console.frame.slices import in_slices
from tidegate.console.hubs.day_charts import lag_context
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.jobs.jobs import Jobs
from tidegate.console.jobs.page import follow_job
from tidegate.model.errors import InvalidArgumentError, NotFoundError, ServerBusyError, TidegateError
from tidegate.model.position import EventPosition, PositionKind, parse_time

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers
    from tidegate.console.consumers.moves import KeptPlan, MoveRequest
    from tidegate.console.consumers.progress import GroupProgress, GroupSummary, PartitionProgress

LIVE_EVERY_S = 2.0
FIRST_PAINT_S = 0.15
"""Seconds after which groups not yet read are sent live, or with the next request."""
LIVE_WAIT_S = 30.0

_LIST_PARTS: Final = {"groups": "consumers/groups.html", "problems": "frame/database_problems.html"}
_ONE_PARTS: Final = {"sums": "consumers/consumer_sums.html", "leases": "consumers/consumer_leases.html"}

_MOVE_FIELDS: Final = ("to", "value", "partition", "database")

STEPS_SHOWN_MAX = 200
"""Partitions that a dry run lists; its sums include all."""

_TARGETS: Final = {
    "earliest": PositionKind.EARLIEST,
    "latest": PositionKind.LATEST,
    "sequence-number": PositionKind.SEQUENCE_NUMBER,
    "time": PositionKind.ENQUEUED_TIME,
}
"""The targets of a move, by name in the form."""


def group_address(hub: str, group: str) -> str:
    """The page of a consumer group."""
    return f"/consumers/{quote(hub, safe='')}/{quote(group, safe='')}"


def host_address(name: str) -> str:
    """The page of a host. No event hub can have the name ``-``."""
    return f"/consumers/-/host?{urlencode({'name': name})}"


def names_of(request: Request) -> tuple[str, str]:
    """Event hub and consumer group of a URL. Raises NotFoundError for names that no database can hold."""
    hub, group = request.path_params["hub"], request.path_params["group"]
    if "\0" in hub + group:
        raise NotFoundError("There is no such consumer group.")
    return hub, group


@dataclass(eq=False)
class ConsumerPages(Pages):
    """Consumer groups, their lag, and moves of their checkpoints."""

    namespace: Namespace
    open_consumers: Callable[[], Consumers]
    jobs: Jobs

    @property
    def consumers(self) -> Consumers:
        """What is read; opened at first use."""
        return self.open_consumers()

    @get("/consumers")
    async def show_list(self, request: Request) -> Response:
        require_listen(request, rights_of(request).hub)
        return page(request, "consumers/page.html", **await self._list(request, at_most_s=FIRST_PAINT_S))

    @get("/console/live/consumers")
    async def stream_list(self, request: Request) -> Response:
        require_listen(request, rights_of(request).hub)
        return self.live(request, self._list, _LIST_PARTS, words="sentence", every_s=LIVE_EVERY_S)

    async def _list(self, request: Request, *, at_most_s: float = LIVE_WAIT_S) -> dict[str, Any]:
        rights, search = rights_of(request), request.query_params.get("search", "").strip()
        found = await self.consumers.groups(rights, at_most_s=at_most_s)
        begun = [] if found is None else [each.summary for each in found.groups]
        seen = [each for each in begun if rights.may_listen(each.event_hub)]
        others = [] if found is None else found.others
        if rights.hub is not None:
            others = [names for names in others if rights.may_listen(names[0])]
        matching: list[GroupSummary | tuple[str, str]] = [*seen, *others]
        if wanted := search.lower():
            matching = [each for each in matching if wanted in _name_of(each).lower()]
        start = start_of(request.query_params.get("start"))
        shown = page_at(matching, start)
        rows = [each for each in shown.items if not isinstance(each, tuple)]
        if found is not None:
            names = [each for each in shown.items if isinstance(each, tuple)]
            rows += await self.consumers.unbegun_groups(names, found.letters)
        problems = {} if found is None else found.problems
        return {
            "letters_of": self._letters_of,
            "address_of": self._address_of,
            "is_any": bool(seen or others),
            "is_any_begun": bool(seen),
            **self._databases,
            "problems": problems,
            "is_read": found is not None,
            "start": start,
            **listing(request, "/consumers", replace(shown, items=rows), search=search),
            "sentence": _sentence(seen),
        }

    @property
    def _databases(self) -> dict[str, Any]:
        """The names of the databases, if there are several; and whether there is any."""
        names = list(self.consumers.databases)
        return {"databases": names if len(names) > 1 else [], "has_database": bool(names)}

    def _address_of(self, group: GroupSummary) -> str:
        address = group_address(group.event_hub, group.consumer_group)
        return address + _query(self._named(group))

    def _letters_of(self, group: GroupSummary) -> str:
        names = {"hub": group.event_hub, "group": group.consumer_group, "database": self._named(group)}
        return f"/dead-letters?{urlencode({name: value for name, value in names.items() if value})}"

    def _named(self, group: GroupSummary) -> str:
        """The database of the group, if there are several."""
        return group.database if self._databases["databases"] else ""

    @get("/consumers/-/host")
    async def show_host(self, request: Request) -> Response:
        """What a host, or another reader of that name, has leases of."""
        rights, name = rights_of(request), request.query_params.get("name", "")
        require_listen(request, rights.hub)
        found = await self.consumers.groups(rights, at_most_s=LIVE_WAIT_S)
        if found is None:
            raise ServerBusyError("The database does not answer.", next_step="Reload the page.")
        leases = await in_slices(request, _leases_of(name, found.groups, rights))
        require_session(request)  # it may have waited for others
        shown = page_at(leases, start_of(request.query_params.get("start")))
        context = listing(request, "/consumers/-/host", shown, name=name) | self._databases
        context |= {"problems": found.problems, "address_of": self._address_of}
        return page(request, "consumers/host.html", **context)

    @get("/consumers/{hub}/{group}")
    async def show(self, request: Request) -> Response:
        hub, _ = names_of(request)
        require_listen(request, hub)
        context = await self._one(request)
        return page(request, "consumers/consumer.html", **context, **self._charts(context["summary"]))

    def _charts(self, group: GroupSummary) -> dict[str, Any]:
        """Those of its lag, if it has a hub and a lag is noted."""
        if not (group.is_hub_here and group.is_begun):
            return {"charts": ()}
        hub_id = self.namespace.hub(group.event_hub).description.hub_id
        address = f"/console/charts/{quote(group.event_hub)}/{quote(group.consumer_group, safe='')}"
        return lag_context(self.namespace.recorder.day, hub_id, group.consumer_group, address)

    @get("/console/live/consumers/{hub}/{group}")
    async def stream(self, request: Request) -> Response:
        hub, _ = names_of(request)
        require_listen(request, hub)
        return self.live(request, self._one, _ONE_PARTS, words="sentence", every_s=LIVE_EVERY_S)

    async def _one(self, request: Request) -> dict[str, Any]:
        hub, group = names_of(request)
        database = request.query_params.get("database", "")
        progress = await self.consumers.group(hub, group, rights_of(request), database=database)
        only = request.query_params.get("only", "")
        shown = [each for each in progress.partitions if only != "trouble" or each.is_trouble]
        start = start_of(request.query_params.get("start"))
        found, address = page_at(shown, start), group_address(hub, group)
        return {
            "summary": progress.summary,
            "address": address,
            "move_address": f"{address}/move{_query(database)}",
            **self._databases,
            "database": database,
            "problems": {},
            "letters_of": self._letters_of,
            "start": start,
            **listing(request, address, found, only=only, database=database),
            "may_move": rights_of(request).may_manage(hub) and not progress.summary.is_kept,
            "sentence": _sentence_of_one(progress),
        }

    # -- moving checkpoints

    @get("/consumers/{hub}/{group}/move")
    async def ask_to_move(self, request: Request) -> Response:
        """The form, and its dry run."""
        hub, group = names_of(request)
        require_manage(request, hub)
        fields = {name: request.query_params.get(name, "").strip() for name in _MOVE_FIELDS}
        plan, problem = None, None
        if fields["to"]:
            from tidegate.console.consumers.moves import MoveRequest

            try:
                position = self._position(fields["to"], fields["value"])
                move = MoveRequest(hub, group, fields["partition"] or None, position, fields["database"])
                plan = await self.consumers.plan_move(move, rights_of(request))
            except TidegateError as error:
                problem = error
        return self._move_page(request, fields, plan, problem)

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
            return self._move_page(request, _fields_of(plan.request), plan, error)
        return await follow_job(self.jobs, request, job)

    def _move_page(
        self, request: Request, fields: dict[str, str], kept: KeptPlan | None, problem: TidegateError | None
    ) -> Response:
        hub, group = names_of(request)
        return problem_page(
            request,
            "consumers/move.html",
            problem,
            hub=hub,
            group=group,
            address=group_address(hub, group),
            page_address=f"{group_address(hub, group)}{_query(fields['database'])}",
            **self._databases,
            fields=fields,
            choices=list(_TARGETS),
            plan_id="" if kept is None else kept.plan_id,
            plan=None if kept is None else kept.plan,
            steps=() if kept is None else kept.plan.moves[:STEPS_SHOWN_MAX],
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


def _leases_of(
    name: str, groups: Sequence[GroupProgress], rights: Rights
) -> Iterator[tuple[GroupSummary, PartitionProgress] | None]:
    """The leases of a host; None for each of others."""
    for group in groups:
        if rights.may_listen(group.summary.event_hub):
            for each in group.partitions:
                yield (group.summary, each) if each.owner == name else None


def _fields_of(request: MoveRequest) -> dict[str, str]:
    value = request.position.value
    return {
        "to": next(to for to, kind in _TARGETS.items() if kind is request.position.kind),
        "value": "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value),
        "partition": request.partition_id or "",
        "database": request.database,
    }


def _name_of(group: GroupSummary | tuple[str, str]) -> str:
    return " ".join(group) if isinstance(group, tuple) else f"{group.event_hub} {group.consumer_group}"


def _query(database: str) -> str:
    return f"?{urlencode({'database': database})}" if database else ""


def _sentence(groups: list[GroupSummary]) -> str:
    """The problems, for screen readers; unchanged while they are the same."""
    stalled = [f"{each.event_hub} / {each.consumer_group}" for each in groups if each.stalled_count]
    if not stalled:
        return "No partition is stalled." if groups else ""
    return f"Stalled partitions: {listed(stalled, 3)}."


def _sentence_of_one(group: GroupProgress) -> str:
    stalled = [each.partition_id for each in group.partitions if each.stalled_s is not None]
    return f"Stalled: partition {listed(stalled, 5)}." if stalled else "No partition is stalled."

"""``/consumers``: all consumer groups with their lag; ``/consumers/HUB/GROUP``: its lease table, live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.consumers.groups import Consumers
from tidegate.console.consumers.values import GroupProgress, GroupSummary, PartitionProgress
from tidegate.console.frame.context import Console, stored
from tidegate.console.frame.forms import start_of
from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.paging import page_at, pager
from tidegate.console.frame.rendering import fragment, page
from tidegate.console.frame.sessions import require_listen, rights_of
from tidegate.model.errors import NotFoundError, TidegateError

LIVE_EVERY_S = 2.0
FIRST_PAINT_S = 0.15
"""Seconds after which groups not yet read are sent live, or with the next request."""
LIVE_WAIT_S = 30.0


def group_address(hub: str, group: str) -> str:
    """The page of a consumer group."""
    return f"/consumers/{quote(hub, safe='')}/{quote(group, safe='')}"


def names_of(request: Request) -> tuple[str, str]:
    """Event hub and consumer group of a URL. Raises NotFoundError for names that no database can hold."""
    hub, group = request.path_params["hub"], request.path_params["group"]
    if "\0" in hub + group:
        raise NotFoundError("There is no such consumer group.")
    return hub, group


class ConsumerPages(Pages):
    """Consumer groups and their lag."""

    def __init__(self, console: Console, consumers: Consumers | None) -> None:
        self._console = console
        self._view = consumers

    @get("/consumers")
    async def show_list(self, request: Request) -> Response:
        require_listen(request, rights_of(request).hub)
        view = self._view
        if view is None:
            return page(request, "frame/processing_absent.html", title="Consumers")
        return page(
            request, "consumers/page.html", **await self._list(request, view, at_most_s=FIRST_PAINT_S)
        )

    @get("/console/live/consumers")
    async def live_list(self, request: Request) -> Response:
        require_listen(request, rights_of(request).hub)
        view = stored(self._view)

        async def render() -> Mapping[str, str]:
            try:
                context = await self._list(request, view, at_most_s=LIVE_WAIT_S)
            except TidegateError as error:
                return {"sentence": str(error)}
            return {
                "groups": fragment(request, "consumers/groups.html", **context),
                "sentence": context["sentence"],
            }

        return self._console.streams.stream(request, render, every_s=LIVE_EVERY_S)

    async def _list(self, request: Request, view: Consumers, *, at_most_s: float) -> dict[str, Any]:
        rights, search = rights_of(request), request.query_params.get("search", "").strip()
        groups = await view.groups(at_most_s=at_most_s)
        seen = [group for group in groups or () if rights.may_listen(group.event_hub)]
        wanted = search.lower()
        matching = [each for each in seen if wanted in f"{each.event_hub} {each.consumer_group}".lower()]
        start = start_of(request.query_params.get("start"))
        found = page_at(matching, start)
        return {
            "groups": found.items,
            "found": found,
            "letters_of": _letters_of,
            "address_of": lambda group: group_address(group.event_hub, group.consumer_group),
            "is_any": bool(seen),
            "is_read": groups is not None,
            "search": search,
            "start": start,
            "total": found.total,
            **pager("/consumers", found, search=search),
            "live": urlencode(request.query_params.multi_items()),
            "sentence": _sentence(seen),
        }

    @get("/consumers/{hub}/{group}")
    async def show(self, request: Request) -> Response:
        hub, _ = names_of(request)
        require_listen(request, hub)
        view = self._view
        if view is None:
            return page(request, "frame/processing_absent.html", title="Consumers")
        return page(request, "consumers/consumer.html", **await self._one(request, view))

    @get("/console/live/consumers/{hub}/{group}")
    async def live(self, request: Request) -> Response:
        hub, _ = names_of(request)
        require_listen(request, hub)
        view = stored(self._view)

        async def render() -> Mapping[str, str]:
            try:
                context = await self._one(request, view)
            except TidegateError as error:
                return {"sentence": str(error)}
            return {
                "sums": fragment(request, "consumers/consumer_sums.html", **context),
                "leases": fragment(request, "consumers/consumer_leases.html", **context),
                "sentence": context["sentence"],
            }

        return self._console.streams.stream(request, render, every_s=LIVE_EVERY_S)

    async def _one(self, request: Request, view: Consumers) -> dict[str, Any]:
        hub, group = names_of(request)
        progress = await view.group(hub, group)
        only = request.query_params.get("only", "")
        shown = [each for each in progress.partitions if only != "trouble" or is_trouble(each)]
        start = start_of(request.query_params.get("start"))
        found, address = page_at(shown, start), group_address(hub, group)
        return {
            "summary": progress.summary,
            "address": address,
            "letters_of": _letters_of,
            "partitions": found.items,
            "found": found,
            "is_trouble": is_trouble,
            "only": only,
            "start": start,
            "total": found.total,
            **pager(address, found, only=only),
            "live": urlencode(request.query_params.multi_items()),
            "may_move": rights_of(request).may_manage(hub),
            "sentence": _sentence_of_one(progress),
        }


def is_trouble(partition: PartitionProgress) -> bool:
    """Whether the partition needs attention."""
    return partition.stalled_s is not None or partition.lag.is_beyond_log or bool(partition.lag.lost_events)


def _sentence(groups: list[GroupSummary]) -> str:
    """The problems, for screen readers; unchanged while they are the same."""
    stalled = [f"{each.event_hub} / {each.consumer_group}" for each in groups if each.stalled_count]
    if not stalled:
        return "No partition is stalled." if groups else ""
    more = f" and {len(stalled) - 3} more" if len(stalled) > 3 else ""
    return f"Stalled partitions: {', '.join(stalled[:3])}{more}."


def _sentence_of_one(group: GroupProgress) -> str:
    stalled = [each.partition_id for each in group.partitions if each.stalled_s is not None]
    if not stalled:
        return "No partition is stalled."
    more = f" and {len(stalled) - 5} more" if len(stalled) > 5 else ""
    return f"Stalled: partition {', '.join(stalled[:5])}{more}."


def _letters_of(group: GroupSummary) -> str:
    """The URL of the group's open dead letters."""
    return f"/dead-letters?{urlencode({'hub': group.event_hub, 'group': group.consumer_group})}"

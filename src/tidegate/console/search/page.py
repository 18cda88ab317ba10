"""``/console/search``: event hubs, consumer groups, hosts and pipelines by a part of their names.

Finds only what the user may see on its own page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.consumers.page import group_address, host_address
from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.rendering import page
from tidegate.console.frame.rights import Rights
from tidegate.console.frame.sessions import require_listen, require_session, rights_of
from tidegate.console.frame.slices import in_slices
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.pipelines.page import seen_by
from tidegate.console.pipelines.reported import ReportedPipelines

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers, FoundGroups

SHOWN_MAX: Final = 50
"""Results of each kind. Our choice: a page, as of a list."""
_CHARACTERS_MAX: Final = 200
_PATIENCE_S: Final = 2.0
"""Seconds that the page waits for the groups' hosts; without them it says so."""

Result = tuple[str, str, str]
"""Name, what else is known of it, and its page."""


@dataclass(eq=False)
class SearchPages(Pages):
    """The one page."""

    namespace: Namespace
    open_consumers: Callable[[], Consumers]
    pipelines: ReportedPipelines

    @get("/console/search")
    async def show(self, request: Request) -> Response:
        rights = rights_of(request)
        require_listen(request, rights.hub)
        wanted = request.query_params.get("q", "").strip()[:_CHARACTERS_MAX]
        context: dict[str, Any] = {"wanted": wanted, "found": {}, "is_whole": True, "shown_max": SHOWN_MAX}
        if not wanted:
            return page(request, "search/page.html", **context)
        groups = await self.open_consumers().groups(rights, at_most_s=_PATIENCE_S)
        found = {
            "Event hubs": await in_slices(request, self._hubs(rights, wanted)),
            "Consumer groups": await in_slices(request, _groups(groups, rights, wanted)),
            "Hosts": await in_slices(request, _hosts(groups, rights, wanted)),
            "Pipelines": [
                (each.name, each.status.event_hub, f"/pipelines/{quote(each.name, safe='')}")
                for each in seen_by(request, await self.pipelines.pipelines()).entries
                if wanted.lower() in each.name.lower()
            ],
        }
        require_session(request)  # it may have waited for others
        counts = {kind: len(results) for kind, results in found.items()}
        found["Hosts"] = nsmallest(SHOWN_MAX, found["Hosts"])  # there may be too many to sort in one step
        context |= {"found": found, "counts": counts}
        context |= {"is_whole": groups is not None and not groups.problems}
        return page(request, "search/page.html", **context)

    def _hubs(self, rights: Rights, wanted: str) -> Iterator[Result | None]:
        for hub in sorted(self.namespace.broker.list_event_hubs(), key=lambda hub: hub.name.lower()):
            is_found = rights.may_listen(hub.name) and wanted.lower() in hub.name.lower()
            count = len(hub.description.partition_ids)
            yield (hub.name, f"{count} partitions", f"/hubs/{quote(hub.name)}") if is_found else None


def _groups(found: FoundGroups | None, rights: Rights, wanted: str) -> Iterator[Result | None]:
    if found is None:
        return
    for each in found.groups:
        summary = each.summary
        yield _group(summary.event_hub, summary.consumer_group, rights, wanted)
    for hub, group in found.others:
        yield _group(hub, group, rights, wanted)


def _group(hub: str, group: str, rights: Rights, wanted: str) -> Result | None:
    is_found = rights.may_listen(hub) and wanted.lower() in group.lower()
    return (group, f"of {hub}", group_address(hub, group)) if is_found else None


def _hosts(found: FoundGroups | None, rights: Rights, wanted: str) -> Iterator[Result | None]:
    seen: set[str | None] = {None}
    for group in () if found is None else found.groups:
        if rights.may_listen(group.summary.event_hub):
            for owner in (each.owner for each in group.partitions):
                is_new = owner not in seen
                seen.add(owner)
                is_found = is_new and owner is not None and wanted.lower() in owner.lower()
                yield (owner, "", host_address(owner)) if owner is not None and is_found else None

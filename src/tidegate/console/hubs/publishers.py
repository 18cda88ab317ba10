"""``/hubs/NAME/publishers``: an event hub's publishers, and revoked ones.

Publishers are revoked and restored on their own pages, because the live rows of the list move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.context import Console
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import start_of, texts_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.paging import pager
from tidegate.console.frame.rendering import fragment, page
from tidegate.console.frame.sessions import form_of, require_listen
from tidegate.console.hubs.hub import change_hub, hub_to_see
from tidegate.console.hubs.namespace import Namespace
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.limits import PUBLISHER_NAME_CHARACTERS_MAX

_REVOKED: Final = "revoked"
"""The value of ``only`` in a URL."""


class PublisherPages(Pages):
    """The publishers of an event hub."""

    def __init__(self, console: Console, namespace: Namespace) -> None:
        self._console = console
        self._namespace = namespace

    @get("/hubs/{hub}/publishers")
    async def list(self, request: Request) -> Response:
        return self._list(request, {"publisher": ""}, None)

    @get("/console/live/hubs/{hub}/publishers")
    async def live(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])

        async def render() -> Mapping[str, str]:
            return {
                "publishers": fragment(request, "hubs/hub_publishers_table.html", **self._context(request))
            }

        return self._console.streams.stream(request, render)

    @get("/hubs/{hub}/publisher")
    async def show(self, request: Request) -> Response:
        hub = hub_to_see(request, self._namespace)
        name = request.query_params.get("name", "").strip()
        if not name:
            raise NotFoundError("The address names no publisher.")
        own, stated, forgotten = self._namespace.publisher(hub.name, name[:PUBLISHER_NAME_CHARACTERS_MAX])
        return page(
            request,
            "hubs/hub_publisher.html",
            tab="publishers",
            hub=hub,
            own=own,
            stated=stated,
            forgotten=forgotten,
        )

    @post("/hubs/{hub}/publishers")
    async def revoke(self, request: Request) -> Response:
        publisher = texts_of(await form_of(request)).get("publisher", "")
        return change_hub(
            request,
            self._namespace,
            lambda hub: hub.revoke_publisher(publisher),
            lambda error: self._list(request, {"publisher": publisher}, error),
            f"The publisher {publisher} can no longer send.",
            "publishers",
        )

    @post("/hubs/{hub}/publishers/restore")
    async def restore(self, request: Request) -> Response:
        publisher = texts_of(await form_of(request)).get("publisher", "")
        return change_hub(
            request,
            self._namespace,
            lambda hub: hub.restore_publisher(publisher),
            lambda error: self._list(request, {"publisher": ""}, error),
            f"The publisher {publisher} can send again.",
            "publishers",
        )

    def _context(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        search = query.get("search", "").strip()
        only = _REVOKED if query.get("only") == _REVOKED else ""
        hub = self._namespace.hub(request.path_params["hub"])
        event_hub = self._namespace.broker.event_hub(hub.name)
        found = self._namespace.publishers(
            hub.name,
            search=search,
            is_revoked_only=bool(only),
            start=start_of(query.get("start")),
        )
        return {
            "hub": hub,
            "records": event_hub.publishers,
            "revoked": len(event_hub.revoked_publishers),
            "found": found,
            "search": search,
            "only": only,
            "query": urlencode(query.multi_items()),
            **pager(f"/hubs/{hub.name}/publishers", found, search=search, only=only),
        }

    def _list(self, request: Request, fields: Mapping[str, str], problem: TidegateError | None) -> Response:
        require_listen(request, request.path_params["hub"])
        return page(
            request,
            "hubs/hub_publishers.html",
            status_code=status_of(problem),
            tab="publishers",
            fields=fields,
            problem=problem,
            **self._context(request),
        )

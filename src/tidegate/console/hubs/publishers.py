"""``/hubs/NAME/publishers``: an event hub's publishers, and revoked ones.

Publishers are revoked and restored on their own pages, because the live rows of the list move.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.forms import start_of, texts_of
from tidegate.console.frame.pages import get, post
from tidegate.console.frame.paging import listing
from tidegate.console.frame.sessions import form_of, require_listen
from tidegate.console.hubs.hub import NamespacePages
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.limits import PUBLISHER_NAME_CHARACTERS_MAX

_REVOKED: Final = "revoked"
"""The value of ``only`` in a URL."""


class PublisherPages(NamespacePages):
    """The publishers of an event hub."""

    @get("/hubs/{hub}/publishers")
    async def list(self, request: Request) -> Response:
        return await self._list(request, "", None)

    @get("/console/live/hubs/{hub}/publishers")
    async def stream(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])
        return self.live(request, self._context, {"publishers": "hubs/hub_publishers_table.html"})

    @get("/hubs/{hub}/publisher")
    async def show(self, request: Request) -> Response:
        hub = self.hub_to_see(request)
        name = request.query_params.get("name", "").strip()
        if not name:
            raise NotFoundError("The address names no publisher.")
        own, stated, forgotten = self.namespace.publisher(hub.name, name[:PUBLISHER_NAME_CHARACTERS_MAX])
        context: dict[str, Any] = {"own": own, "stated": stated, "forgotten": forgotten}
        return self.hub_page(request, "hubs/hub_publisher.html", "publishers", None, **context)

    @post("/hubs/{hub}/publishers")
    async def revoke(self, request: Request) -> Response:
        publisher = texts_of(await form_of(request)).get("publisher", "")
        return await self.change_hub(
            request,
            lambda hub: hub.revoke_publisher(publisher),
            lambda error: self._list(request, publisher, error),
            f"The publisher {publisher} can no longer send.",
            "publishers",
        )

    @post("/hubs/{hub}/publishers/restore")
    async def restore(self, request: Request) -> Response:
        publisher = texts_of(await form_of(request)).get("publisher", "")
        return await self.change_hub(
            request,
            lambda hub: hub.restore_publisher(publisher),
            lambda error: self._list(request, "", error),
            f"The publisher {publisher} can send again.",
            "publishers",
        )

    async def _context(self, request: Request) -> dict[str, Any]:
        hub, query = self.hub_to_see(request), request.query_params
        search = query.get("search", "").strip()
        only = _REVOKED if query.get("only") == _REVOKED else ""
        found = self.namespace.publishers(
            hub.name, search=search, is_revoked_only=bool(only), start=start_of(query.get("start"))
        )
        return {
            "hub": hub,
            "records": hub.event_hub.publishers,
            "revoked": len(hub.event_hub.revoked_publishers),
            **listing(request, f"/hubs/{hub.name}/publishers", found, search=search, only=only),
        }

    async def _list(self, request: Request, publisher: str, problem: TidegateError | None) -> Response:
        """publisher: in the form."""
        context = await self._context(request) | {"fields": {"publisher": publisher}}
        return self.hub_page(request, "hubs/hub_publishers.html", "publishers", problem, **context)

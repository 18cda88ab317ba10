"""``/hubs/NAME/publishers``: an event hub's publishers, and revoked ones.

Publishers are revoked and restored on their own pages, because the live rows of the list move.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import EventHub
from tidegate.console.frame.forms import EMPTY_FORM, Fields, Form, start_of
from tidegate.console.frame.pages import get
from tidegate.console.frame.paging import listing
from tidegate.console.frame.sessions import require_listen
from tidegate.console.hubs.hub import NamespacePages, hub_form
from tidegate.model.errors import NotFoundError
from tidegate.model.limits import PUBLISHER_NAME_CHARACTERS_MAX

_REVOKED: Final = "revoked"
"""The value of ``only`` in a URL."""


class PublisherPages(NamespacePages):
    """The publishers of an event hub."""

    @get("/hubs/{hub}/publishers")
    async def list(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        context = await self._context(request) | {"fields": {"publisher": ""} | form.fields}
        return self.hub_page(request, "hubs/hub_publishers.html", "publishers", form, **context)

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
        return self.hub_page(request, "hubs/hub_publisher.html", "publishers", **context)

    @hub_form("/hubs/{hub}/publishers", list, "/hubs/{hub}/publishers")
    async def revoke(self, request: Request, hub: EventHub, fields: Fields) -> str:
        publisher = fields.get("publisher", "")
        await hub.revoke_publisher(publisher)
        return f"The publisher {publisher} can no longer send."

    @hub_form("/hubs/{hub}/publishers/restore", list, "/hubs/{hub}/publishers")
    async def restore(self, request: Request, hub: EventHub, fields: Fields) -> str:
        publisher = fields.pop("publisher", "")  # the form of the list revokes
        await hub.restore_publisher(publisher)
        return f"The publisher {publisher} can send again."

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

"""``/hubs``: the event hubs, and creating one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.console.frame.context import Console
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import start_of, texts_of, whole_number
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.paging import pager
from tidegate.console.frame.rendering import fragment, page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of, session_of
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.hubs.setting_fields import changed_settings, setting_fields, setting_texts
from tidegate.model.errors import TidegateError
from tidegate.model.hub_settings import PARTITION_COUNT_DEFAULT, HubSettings

CREATE_PATH = "/hubs/-/create"
"""No event hub can have the name ``-``."""

_BLANK = {"name": "", "partition_count": str(PARTITION_COUNT_DEFAULT), **setting_texts(HubSettings())}


class HubListPages(Pages):
    """The list of event hubs, and creating one."""

    def __init__(self, console: Console, namespace: Namespace) -> None:
        self._console = console
        self._namespace = namespace

    @get("/hubs")
    async def list(self, request: Request) -> Response:
        rights = rights_of(request)
        if rights.hub is not None:
            return RedirectResponse(f"/hubs/{quote(rights.hub)}", status_code=303)
        if not rights.can_listen:
            return self._send_only(request)
        return page(request, "hubs/page.html", **self._context(request))

    @get("/console/live/hubs")
    async def live(self, request: Request) -> Response:
        require_listen(request)

        async def render() -> Mapping[str, str]:
            return {"hubs": fragment(request, "hubs/table.html", **self._context(request))}

        return self._console.streams.stream(request, render)

    @get(CREATE_PATH)
    async def ask(self, request: Request) -> Response:
        return self._form(request, _BLANK, None)

    @post(CREATE_PATH)
    async def create(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        require_manage(request)
        try:
            hub = self._namespace.broker.create_event_hub(
                fields.get("name", ""),
                partition_count=whole_number(fields, "partition_count", "The number of partitions"),
                **changed_settings(fields, _BLANK),
            )
        except TidegateError as error:
            return self._form(request, _BLANK | fields, error)
        session_of(request).flash("success", f"Created the event hub {hub.name}.")
        return RedirectResponse(f"/hubs/{hub.name}", status_code=303)

    def _form(self, request: Request, fields: Mapping[str, str], problem: TidegateError | None) -> Response:
        return page(
            request,
            "hubs/hub_create.html",
            status_code=status_of(problem),
            fields=fields,
            problem=problem,
            limits=self._namespace.broker.limits,
            settings=setting_fields(self._namespace.broker.limits),
        )

    def _send_only(self, request: Request) -> Response:
        """Users who may only send see no names, but can enter one."""
        wanted = request.query_params.get("name", "").strip()
        if wanted:
            return RedirectResponse(f"/hubs/{quote(wanted, safe='')}/explorer/send", status_code=303)
        return page(request, "hubs/send_only.html")

    def _context(self, request: Request) -> dict[str, Any]:
        search = request.query_params.get("search", "").strip()
        found = self._namespace.hubs(search=search, start=start_of(request.query_params.get("start")))
        return {
            "hubs": found.items,
            "found": found,
            "search": search,
            "query": urlencode(request.query_params.multi_items()),
            **pager("/hubs", found, search=search),
        }

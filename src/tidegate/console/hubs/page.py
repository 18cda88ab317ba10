"""``/hubs``: the event hubs, and creating one."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.errors import problem_page
from tidegate.console.frame.forms import EMPTY_FORM, Form, start_of, texts_of, whole_number
from tidegate.console.frame.pages import done, get, post, see_other
from tidegate.console.frame.paging import listing
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of
from tidegate.console.hubs.hub import NamespacePages
from tidegate.console.hubs.setting_fields import changed_settings, setting_fields, setting_texts
from tidegate.model.errors import TidegateError
from tidegate.model.hub_settings import PARTITION_COUNT_DEFAULT, HubSettings

CREATE_PATH = "/hubs/-/create"
"""No event hub can have the name ``-``."""

_BLANK = {"name": "", "partition_count": str(PARTITION_COUNT_DEFAULT), **setting_texts(HubSettings())}


class HubListPages(NamespacePages):
    """The list of event hubs, and creating one."""

    @get("/hubs")
    async def list(self, request: Request) -> Response:
        rights = rights_of(request)
        if rights.hub is not None:
            return see_other(f"/hubs/{quote(rights.hub)}")
        if not rights.can_listen:
            return self._send_only(request)
        return page(request, "hubs/page.html", **await self._context(request))

    @get("/console/live/hubs")
    async def stream(self, request: Request) -> Response:
        require_listen(request)
        return self.live(request, self._context, {"hubs": "hubs/table.html"})

    @get(CREATE_PATH)
    async def ask(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        limits, settings = self.namespace.broker.limits, setting_fields(self.namespace.broker.limits)
        context = {"fields": _BLANK | form.fields, "limits": limits, "settings": settings}
        return problem_page(request, "hubs/hub_create.html", form.problem, **context)

    @post(CREATE_PATH)
    async def create(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        require_manage(request)
        try:
            hub = await self.namespace.broker.create_event_hub(
                fields.get("name", ""),
                partition_count=whole_number(fields, "partition_count", "The number of partitions"),
                **changed_settings(fields, _BLANK),
            )
        except TidegateError as error:
            return await self.ask(request, Form(fields, error))
        return done(request, f"Created the event hub {hub.name}.", f"/hubs/{hub.name}")

    def _send_only(self, request: Request) -> Response:
        """Users who may only send see no names, but can enter one."""
        wanted = request.query_params.get("name", "").strip()
        if wanted:
            return see_other(f"/hubs/{quote(wanted, safe='')}/explorer/send")
        return page(request, "hubs/send_only.html")

    async def _context(self, request: Request) -> dict[str, Any]:
        search = request.query_params.get("search", "").strip()
        found = self.namespace.hubs(search=search, start=start_of(request.query_params.get("start")))
        return {"hubs": found.items, **listing(request, "/hubs", found, search=search)}

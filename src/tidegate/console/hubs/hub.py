"""``/hubs/NAME``: one event hub: its partitions, consumer groups and settings, and deleting it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import EventHub
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import FieldError, start_of, texts_of
from tidegate.console.frame.pages import Pages, done, get, post, see_other
from tidegate.console.frame.paging import listing, page_at
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of
from tidegate.console.hubs.namespace import Hub, Namespace
from tidegate.console.hubs.setting_fields import changed_settings, setting_fields, setting_texts
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP


@dataclass(eq=False)
class NamespacePages(Pages):
    """Pages of event hubs."""

    namespace: Namespace

    def hub_to_see(self, request: Request) -> Hub:
        """The event hub of the URL. Requires Listen."""
        require_listen(request, request.path_params["hub"])
        return self.namespace.hub(request.path_params["hub"])

    def hub_to_change(self, request: Request) -> EventHub:
        """The event hub of the URL. Requires Manage."""
        require_manage(request, request.path_params["hub"])
        return self.namespace.broker.event_hub(request.path_params["hub"])

    def hub_page(
        self, request: Request, template: str, tab: str, problem: TidegateError | None, **context: Any
    ) -> Response:
        """A page of the hub, with what is wrong with its form. Requires Listen."""
        context = {"hub": self.hub_to_see(request), "tab": tab, "problem": problem} | context
        return page(request, template, status_code=status_of(problem), **context)

    async def change_hub(
        self,
        request: Request,
        change: Callable[[EventHub], Awaitable[object]],
        refuse: Callable[[TidegateError], Awaitable[Response]],
        text: str,
        tab: str,
    ) -> Response:
        """Call ``change`` with the hub if the user may manage it, show ``text``, and return to the tab.

        ``refuse`` renders the page for an error.
        """
        hub = self.hub_to_change(request)
        try:
            await change(hub)
        except TidegateError as error:
            return await refuse(error)
        return done(request, text, f"/hubs/{hub.name}/{tab}")


class HubPages(NamespacePages):
    """An event hub: its partitions, consumer groups and settings."""

    @get("/hubs/{hub}")
    async def show(self, request: Request) -> Response:
        name = request.path_params["hub"]
        rights = rights_of(request)
        if rights.may_send(name) and not rights.may_listen(name):
            return see_other(f"/hubs/{quote(name, safe='')}/explorer/send")
        return self.hub_page(request, "hubs/hub.html", "partitions", None, **await self._partitions(request))

    @get("/console/live/hubs/{hub}")
    async def stream(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])
        parts = {"figures": "hubs/hub_figures.html", "partitions": "hubs/hub_partitions.html"}
        return self.live(request, self._partitions, parts)

    async def _partitions(self, request: Request) -> dict[str, Any]:
        hub = self.hub_to_see(request)
        start = start_of(request.query_params.get("start"))
        found = page_at(hub.event_hub.partitions, start)
        rate_of = self.namespace.partition_rates(hub.event_hub)
        return {
            "hub": hub,
            "rate_of": rate_of,
            "start": start,
            **listing(request, f"/hubs/{hub.name}", found),
        }

    # -- consumer groups

    @get("/hubs/{hub}/groups")
    async def groups(self, request: Request) -> Response:
        return await self._groups(request, "", None)

    @post("/hubs/{hub}/groups")
    async def create_group(self, request: Request) -> Response:
        name = texts_of(await form_of(request)).get("name", "")
        return await self.change_hub(
            request,
            lambda hub: hub.create_consumer_group(name),
            lambda error: self._groups(request, name, error),
            f"Created the consumer group {name}.",
            "groups",
        )

    @get("/hubs/{hub}/groups/{group}/delete")
    async def ask_to_delete_group(self, request: Request) -> Response:
        return await self._deletion_of_group(request, None)

    @post("/hubs/{hub}/groups/{group}/delete")
    async def delete_group(self, request: Request) -> Response:
        await form_of(request)
        group = request.path_params["group"]
        return await self.change_hub(
            request,
            lambda hub: hub.delete_consumer_group(group),
            lambda error: self._deletion_of_group(request, error),
            f"Deleted the consumer group {group}.",
            "groups",
        )

    async def _groups(self, request: Request, name: str, problem: TidegateError | None) -> Response:
        return self.hub_page(
            request,
            "hubs/hub_groups.html",
            "groups",
            problem,
            fields={"name": name},
            default_group=DEFAULT_CONSUMER_GROUP,
            limits=self.namespace.broker.limits,
        )

    async def _deletion_of_group(self, request: Request, problem: TidegateError | None) -> Response:
        hub, wanted = self.hub_to_see(request), request.path_params["group"].lower()
        group = next((group for group in hub.groups if group.name.lower() == wanted), None)
        if group is None:
            raise NotFoundError(f"The event hub {hub.name!r} has no consumer group {wanted[:80]!r}.")
        return self.hub_page(request, "hubs/hub_group_delete.html", "groups", problem, group=group)

    # -- settings

    @get("/hubs/{hub}/settings")
    async def settings(self, request: Request) -> Response:
        return self._settings(request, {}, None)

    @post("/hubs/{hub}/settings")
    async def change_settings(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = self.hub_to_change(request)
        try:
            changes = changed_settings(fields, setting_texts(hub.description))
            await self.namespace.broker.update_event_hub(hub.name, **changes)
        except TidegateError as error:
            return self._settings(request, fields, error)
        text = "The settings are changed." if changes else "Nothing was changed."
        return done(request, text, f"/hubs/{hub.name}/settings")

    def _settings(self, request: Request, fields: dict[str, str], problem: TidegateError | None) -> Response:
        """fields: as the user left them; missing ones are as the hub has them."""
        return self.hub_page(
            request,
            "hubs/hub_settings.html",
            "settings",
            problem,
            fields=setting_texts(self.hub_to_see(request).description) | fields,
            settings=setting_fields(self.namespace.broker.limits),
        )

    # -- deleting

    @get("/hubs/{hub}/delete")
    async def ask_to_delete(self, request: Request) -> Response:
        return self._deletion(request, None)

    @post("/hubs/{hub}/delete")
    async def delete(self, request: Request) -> Response:
        name = texts_of(await form_of(request)).get("name", "")
        hub = self.hub_to_change(request)
        try:
            if name != hub.name:
                text = f"The name does not match: {name[:80]!r}."
                raise FieldError("name", text, next_step=f"Enter {hub.name} to delete it.")
            await self.namespace.broker.delete_event_hub(hub.name)
        except TidegateError as error:
            return self._deletion(request, error)
        return done(request, f"Deleted the event hub {hub.name} with everything in it.", "/hubs")

    def _deletion(self, request: Request, problem: TidegateError | None) -> Response:
        return self.hub_page(request, "hubs/hub_delete.html", "settings", problem, fields={"name": ""})

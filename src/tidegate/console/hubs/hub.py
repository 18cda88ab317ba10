"""``/hubs/NAME``: one event hub: its partitions, consumer groups and settings, and deleting it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import EventHub
from tidegate.console.frame.errors import problem_page
from tidegate.console.frame.forms import (
    EMPTY_FORM,
    Fields,
    Form,
    check_name,
    optional_number,
    start_of,
    texts_of,
)
from tidegate.console.frame.pages import Pages, done, get, post, see_other
from tidegate.console.frame.paging import listing, page_at
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of
from tidegate.console.hubs.day_charts import load_context
from tidegate.console.hubs.namespace import Hub, Namespace
from tidegate.console.hubs.setting_fields import changed_settings, setting_fields, setting_texts
from tidegate.model.errors import NotFoundError, TidegateError, UnauthorizedError
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
        self, request: Request, template: str, tab: str, form: Form = EMPTY_FORM, **context: Any
    ) -> Response:
        """A page of the hub, with what is wrong with its form. Requires Listen."""
        context = {"hub": self.hub_to_see(request), "tab": tab} | context
        return problem_page(request, template, form.problem, **context)


Change = Callable[[Any, Request, EventHub, Fields], Awaitable[str]]


def hub_form(
    path: str, ask: Callable[..., Awaitable[Response]], then: str
) -> Callable[[Change], Callable[[Any, Request], Awaitable[Response]]]:
    """Route POST of a path to the method, which changes the hub of the URL by the fields of a form.

    Requires Manage. ask: the page of the form; it shows what the method refuses, with the fields as they were
    sent. then: the page that shows the sentence which the method returns; ``{hub}`` is the hub's name.
    """

    def routed(change: Change) -> Callable[[Any, Request], Awaitable[Response]]:
        async def handle(pages: NamespacePages, request: Request) -> Response:
            fields = texts_of(await form_of(request))
            hub = pages.hub_to_change(request)
            try:
                text = await change(pages, request, hub, fields)
            except UnauthorizedError:
                raise
            except TidegateError as error:
                return await ask(pages, request, Form(fields, error))
            return done(request, text, then.format(hub=hub.name))

        return post(path)(handle)

    return routed


class HubPages(NamespacePages):
    """An event hub: its partitions, consumer groups and settings."""

    @get("/hubs/{hub}")
    async def show(self, request: Request) -> Response:
        name = request.path_params["hub"]
        rights = rights_of(request)
        if rights.may_send(name) and not rights.may_listen(name):
            return see_other(f"/hubs/{quote(name, safe='')}/explorer/send")
        context = await self._partitions(request)
        hub: Hub = context["hub"]
        context |= load_context(
            self.namespace.recorder.day, hub.description.hub_id, f"/console/charts/{hub.name}"
        )
        return self.hub_page(request, "hubs/hub.html", "partitions", **context)

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
    async def groups(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        hub = self.hub_to_see(request)
        found = page_at(hub.groups, start_of(request.query_params.get("start")))
        return self.hub_page(
            request,
            "hubs/hub_groups.html",
            "groups",
            form,
            fields={"name": ""} | form.fields,
            default_group=DEFAULT_CONSUMER_GROUP,
            limits=self.namespace.broker.limits,
            **listing(request, f"/hubs/{hub.name}/groups", found),
        )

    @hub_form("/hubs/{hub}/groups", groups, "/hubs/{hub}/groups")
    async def create_group(self, request: Request, hub: EventHub, fields: Fields) -> str:
        name = fields.get("name", "")
        await hub.create_consumer_group(name)
        return f"Created the consumer group {name}."

    @get("/hubs/{hub}/groups/{group}/delete")
    async def ask_to_delete_group(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        hub, wanted = self.hub_to_see(request), request.path_params["group"].lower()
        group = next((group for group in hub.groups if group.name.lower() == wanted), None)
        if group is None:
            raise NotFoundError(f"The event hub {hub.name!r} has no consumer group {wanted[:80]!r}.")
        return self.hub_page(request, "hubs/hub_group_delete.html", "groups", form, group=group)

    @hub_form("/hubs/{hub}/groups/{group}/delete", ask_to_delete_group, "/hubs/{hub}/groups")
    async def delete_group(self, request: Request, hub: EventHub, fields: Fields) -> str:
        group = request.path_params["group"]
        await hub.delete_consumer_group(group)
        return f"Deleted the consumer group {group}."

    # -- settings

    @get("/hubs/{hub}/settings")
    async def settings(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        return self.hub_page(
            request,
            "hubs/hub_settings.html",
            "settings",
            form,
            fields=_settings(self.hub_to_see(request).event_hub) | form.fields,
            settings=setting_fields(self.namespace.broker.limits),
            limits=self.namespace.broker.limits,
        )

    @hub_form("/hubs/{hub}/settings", settings, "/hubs/{hub}/settings")
    async def change_settings(self, request: Request, hub: EventHub, fields: Fields) -> str:
        changes, before = changed_settings(fields, setting_texts(hub.description)), len(hub.partitions)
        count = optional_number(fields, "partition_count", "The number of partitions")
        await self.namespace.broker.update_event_hub(hub.name, partition_count=count, **changes)
        if (now := len(hub.partitions)) > before:
            return f"The hub has {now} partitions instead of {before}: keys map to other ones than before."
        return "The settings are changed." if changes else "Nothing was changed."

    # -- deleting

    @get("/hubs/{hub}/delete")
    async def ask_to_delete(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        return self.hub_page(request, "hubs/hub_delete.html", "settings", form, fields={"name": ""})

    @hub_form("/hubs/{hub}/delete", ask_to_delete, "/hubs")
    async def delete(self, request: Request, hub: EventHub, fields: Fields) -> str:
        check_name(fields.get("name", ""), hub.name)
        await self.namespace.broker.delete_event_hub(hub.name)
        return f"Deleted the event hub {hub.name} with everything in it."


def _settings(hub: EventHub) -> dict[str, str]:
    """The hub's settings and number of partitions, as their form shows them."""
    return {"partition_count": str(len(hub.partitions)), **setting_texts(hub.description)}

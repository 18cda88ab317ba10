"""``/hubs/NAME``: one event hub: its partitions and consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.broker import EventHub
from tidegate.console.frame.context import Console
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import start_of, texts_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.paging import pager
from tidegate.console.frame.rendering import fragment, page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, rights_of, session_of
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.hubs.values import Hub
from tidegate.model.errors import NotFoundError, TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP


def hub_to_see(request: Request, namespace: Namespace) -> Hub:
    """The event hub of the URL. Requires Listen."""
    require_listen(request, request.path_params["hub"])
    return namespace.hub(request.path_params["hub"])


def hub_to_change(request: Request, namespace: Namespace) -> EventHub:
    """The event hub of the URL. Requires Manage."""
    require_manage(request, request.path_params["hub"])
    return namespace.broker.event_hub(request.path_params["hub"])


def change_hub(
    request: Request,
    namespace: Namespace,
    change: Callable[[EventHub], None],
    refuse: Callable[[TidegateError], Response],
    done: str,
    tab: str,
) -> Response:
    """Call ``change`` with the hub if the user may manage it, report ``done``, and return to the tab.

    ``refuse`` renders the page for an error.
    """
    hub = hub_to_change(request, namespace)
    try:
        change(hub)
    except TidegateError as error:
        return refuse(error)
    session_of(request).flash("success", done)
    return RedirectResponse(f"/hubs/{hub.name}/{tab}", status_code=303)


class HubPages(Pages):
    """An event hub: its partitions and consumer groups."""

    def __init__(self, console: Console, namespace: Namespace) -> None:
        self._console = console
        self._namespace = namespace

    @get("/hubs/{hub}")
    async def show(self, request: Request) -> Response:
        name = request.path_params["hub"]
        rights = rights_of(request)
        if rights.may_send(name) and not rights.may_listen(name):
            return RedirectResponse(f"/hubs/{quote(name, safe='')}/explorer/send", status_code=303)
        require_listen(request, name)
        return page(request, "hubs/hub.html", tab="partitions", **self._partitions(request))

    @get("/console/live/hubs/{hub}")
    async def live(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])

        async def render() -> Mapping[str, str]:
            context = self._partitions(request)
            return {
                name: fragment(request, f"hubs/hub_{name}.html", **context)
                for name in ("figures", "partitions")
            }

        return self._console.streams.stream(request, render)

    @get("/hubs/{hub}/groups")
    async def groups(self, request: Request) -> Response:
        return self._groups(request, {"name": ""}, None)

    @post("/hubs/{hub}/groups")
    async def create_group(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        name = fields.get("name", "")
        return change_hub(
            request,
            self._namespace,
            lambda hub: hub.create_consumer_group(name),
            lambda error: self._groups(request, {"name": name}, error),
            f"Created the consumer group {name}.",
            "groups",
        )

    @get("/hubs/{hub}/groups/{group}/delete")
    async def ask_to_delete_group(self, request: Request) -> Response:
        return self._deletion_of_group(request, None)

    @post("/hubs/{hub}/groups/{group}/delete")
    async def delete_group(self, request: Request) -> Response:
        await form_of(request)
        group = request.path_params["group"]
        return change_hub(
            request,
            self._namespace,
            lambda hub: hub.delete_consumer_group(group),
            lambda error: self._deletion_of_group(request, error),
            f"Deleted the consumer group {group}.",
            "groups",
        )

    def _partitions(self, request: Request) -> dict[str, Any]:
        hub = self._namespace.hub(request.path_params["hub"])
        found = self._namespace.partitions(hub.name, start=start_of(request.query_params.get("start")))
        return {
            "hub": hub,
            "found": found,
            "start": start_of(request.query_params.get("start")),
            **pager(f"/hubs/{hub.name}", found),
        }

    def _groups(self, request: Request, fields: Mapping[str, str], problem: TidegateError | None) -> Response:
        hub = hub_to_see(request, self._namespace)
        return page(
            request,
            "hubs/hub_groups.html",
            status_code=status_of(problem),
            tab="groups",
            hub=hub,
            fields=fields,
            problem=problem,
            default_group=DEFAULT_CONSUMER_GROUP,
            limits=self._namespace.broker.limits,
        )

    def _deletion_of_group(self, request: Request, problem: TidegateError | None) -> Response:
        hub = hub_to_see(request, self._namespace)
        wanted = request.path_params["group"].lower()
        group = next((group for group in hub.groups if group.name.lower() == wanted), None)
        if group is None:
            raise NotFoundError(f"The event hub {hub.name!r} has no consumer group {wanted[:80]!r}.")
        return page(
            request,
            "hubs/hub_group_delete.html",
            status_code=status_of(problem),
            tab="groups",
            hub=hub,
            group=group,
            problem=problem,
        )

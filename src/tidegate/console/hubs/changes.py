"""Changing an event hub: its settings, and deleting it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import FieldError, texts_of
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import form_of, session_of
from tidegate.console.hubs.hub import hub_to_change, hub_to_see
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.hubs.setting_fields import changed_settings, setting_fields, setting_texts
from tidegate.model.errors import TidegateError


class HubChangePages(Pages):
    """Changing and deleting an event hub."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    # -- settings

    @get("/hubs/{hub}/settings")
    async def settings(self, request: Request) -> Response:
        return self._settings(request, None, None)

    @post("/hubs/{hub}/settings")
    async def change_settings(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = hub_to_change(request, self._namespace)
        before = setting_texts(hub.description)
        try:
            changes = changed_settings(fields, before)
            self._namespace.broker.update_event_hub(hub.name, **changes)
        except TidegateError as error:
            return self._settings(request, before | fields, error)
        session_of(request).flash(
            "success", "The settings are changed." if changes else "Nothing was changed."
        )
        return RedirectResponse(f"/hubs/{hub.name}/settings", status_code=303)

    def _settings(
        self, request: Request, fields: Mapping[str, str] | None, problem: TidegateError | None
    ) -> Response:
        hub = hub_to_see(request, self._namespace)
        return page(
            request,
            "hubs/hub_settings.html",
            status_code=status_of(problem),
            tab="settings",
            hub=hub,
            fields=setting_texts(hub.description) if fields is None else fields,
            problem=problem,
            settings=setting_fields(self._namespace.broker.limits),
        )

    # -- deleting

    @get("/hubs/{hub}/delete")
    async def ask_to_delete(self, request: Request) -> Response:
        return self._deletion(request, None)

    @post("/hubs/{hub}/delete")
    async def delete(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = hub_to_change(request, self._namespace)
        try:
            if fields.get("name") != hub.name:
                raise FieldError(
                    "name",
                    f"The name does not match: {fields.get('name', '')[:80]!r}.",
                    next_step=f"Enter {hub.name} to delete it.",
                )
            await self._namespace.broker.delete_event_hub(hub.name)
        except TidegateError as error:
            return self._deletion(request, error)
        session_of(request).flash("success", f"Deleted the event hub {hub.name} with everything in it.")
        return RedirectResponse("/hubs", status_code=303)

    def _deletion(self, request: Request, problem: TidegateError | None) -> Response:
        hub = hub_to_see(request, self._namespace)
        return page(
            request,
            "hubs/hub_delete.html",
            status_code=status_of(problem),
            tab="settings",
            hub=hub,
            deletion=self._namespace.deletion(hub.name),
            fields={"name": ""},
            problem=problem,
        )

"""Changing an event hub: its settings, its capture, and deleting it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tidegate.console.access import form_of, require_listen, require_manage, session_of
from tidegate.console.backend.service import Hub
from tidegate.console.context import Console
from tidegate.console.errors import status_of
from tidegate.console.pages.forms import FieldError, optional_number, start_of, texts_of, whole_number
from tidegate.console.pages.hubs import pager
from tidegate.console.rendering import page
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings
from tidegate.model.errors import TidegateError
from tidegate.model.limits import (
    CAPTURE_SIZE_WINDOW_BYTES_DEFAULT,
    CAPTURE_SIZE_WINDOW_BYTES_MAX,
    CAPTURE_SIZE_WINDOW_BYTES_MIN,
    CAPTURE_TIME_WINDOW_S_DEFAULT,
    CAPTURE_TIME_WINDOW_S_MAX,
    CAPTURE_TIME_WINDOW_S_MIN,
)

_MB: Final = 1024 * 1024
_SETTINGS: Final = {
    "retention_hours": "The retention",
    "retention_bytes": "The size of a partition",
    "event_bytes_max": "The largest event",
}
_CAPTURE_LIMITS: Final = {
    "size_min": CAPTURE_SIZE_WINDOW_BYTES_MIN // _MB,
    "size_max": CAPTURE_SIZE_WINDOW_BYTES_MAX // _MB,
    "time_min": CAPTURE_TIME_WINDOW_S_MIN,
    "time_max": CAPTURE_TIME_WINDOW_S_MAX,
}


def routes(console: Console) -> list[Route]:
    """What is served."""
    pages = _Pages(console)
    found = []
    for what, ask, change in (
        ("settings", pages.settings, pages.change_settings),
        ("capture", pages.capture, pages.set_capture),
        ("capture/off", pages.ask_to_end_capture, pages.end_capture),
        ("delete", pages.ask_to_delete, pages.delete),
    ):
        found.append(Route(f"/hubs/{{hub}}/{what}", ask, methods=["GET"]))
        found.append(Route(f"/hubs/{{hub}}/{what}", change, methods=["POST"]))
    return found


class _Pages:
    def __init__(self, console: Console) -> None:
        self._service = console.backend.service

    # -- settings

    async def settings(self, request: Request) -> Response:
        return self._settings(request, None, None)

    async def change_settings(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = self._to_change(request)
        before = _settings_of(hub)
        try:
            # What is left as it was shown is not touched: the tier's own limit stays the tier's.
            changes = {
                name: optional_number(fields, name, noun)
                for name, noun in _SETTINGS.items()
                if name in fields and fields[name] != before[name]
            }
            self._service.update_hub(hub.name, changes)
        except TidegateError as error:
            return self._settings(request, before | fields, error)
        session_of(request).flash(
            "success", "The settings are changed." if changes else "Nothing was changed."
        )
        return RedirectResponse(f"/hubs/{hub.name}/settings", status_code=303)

    def _settings(
        self, request: Request, fields: Mapping[str, str] | None, problem: TidegateError | None
    ) -> Response:
        hub = self._to_see(request)
        return page(
            request,
            "hub_settings.html",
            status_code=status_of(problem),
            tab="settings",
            hub=hub,
            fields=_settings_of(hub) if fields is None else fields,
            problem=problem,
            limits=self._service.limits(),
        )

    # -- capture

    async def capture(self, request: Request) -> Response:
        return self._capture(request, None, None)

    async def set_capture(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        # As in the administration: its destination is a place beyond the event hub.
        require_manage(request)
        hub = self._to_change(request)
        try:
            self._service.set_capture(hub.name, _capture_settings(fields))
        except TidegateError as error:
            return self._capture(request, _capture_fields(hub) | _unchecked() | fields, error)
        session_of(request).flash("success", "Capture is set.")
        return RedirectResponse(f"/hubs/{hub.name}/capture", status_code=303)

    async def ask_to_end_capture(self, request: Request) -> Response:
        hub = self._to_see(request)
        return page(request, "hub_capture_off.html", tab="capture", hub=hub)

    async def end_capture(self, request: Request) -> Response:
        await form_of(request)
        hub = self._to_change(request)
        self._service.set_capture(hub.name, None)
        session_of(request).flash("success", f"{hub.name} is captured no longer.")
        return RedirectResponse(f"/hubs/{hub.name}/capture", status_code=303)

    def _capture(
        self, request: Request, fields: Mapping[str, str] | None, problem: TidegateError | None
    ) -> Response:
        hub = self._to_see(request)
        found = self._service.capture_progress(hub.name, start=start_of(request.query_params.get("start")))
        return page(
            request,
            "hub_capture.html",
            status_code=status_of(problem),
            tab="capture",
            hub=hub,
            found=found,
            fields=_capture_fields(hub) if fields is None else fields,
            problem=problem,
            capture_limits=_CAPTURE_LIMITS,
            **pager(f"/hubs/{hub.name}/capture", found),
        )

    # -- deleting

    async def ask_to_delete(self, request: Request) -> Response:
        return self._deletion(request, None)

    async def delete(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        hub = self._to_change(request)
        try:
            if fields.get("name") != hub.name:
                raise FieldError(
                    "name",
                    f"The name written was {fields.get('name', '')[:80]!r}.",
                    next_step=f"Write {hub.name} to delete it.",
                )
            await self._service.delete_hub(hub.name)
        except TidegateError as error:
            return self._deletion(request, error)
        session_of(request).flash("success", f"The event hub {hub.name} is gone, with everything in it.")
        return RedirectResponse("/hubs", status_code=303)

    def _deletion(self, request: Request, problem: TidegateError | None) -> Response:
        hub = self._to_see(request)
        return page(
            request,
            "hub_delete.html",
            status_code=status_of(problem),
            tab="settings",
            hub=hub,
            deletion=self._service.deletion(hub.name),
            fields={"name": ""},
            problem=problem,
        )

    def _to_see(self, request: Request) -> Hub:
        require_listen(request, request.path_params["hub"])
        return self._service.hub(request.path_params["hub"])

    def _to_change(self, request: Request) -> Hub:
        require_manage(request, request.path_params["hub"])
        return self._service.hub(request.path_params["hub"])


def _settings_of(hub: Hub) -> dict[str, str]:
    return {
        "retention_hours": str(hub.retention_hours),
        "retention_bytes": "" if hub.retention_bytes is None else str(hub.retention_bytes),
        "event_bytes_max": str(hub.event_bytes_max),
    }


def _capture_fields(hub: Hub) -> dict[str, str]:
    """The form as the settings are; where there are none, as they would be by default."""
    settings = hub.capture
    if settings is None:
        return {
            "destination": "",
            "size_window_mb": str(CAPTURE_SIZE_WINDOW_BYTES_DEFAULT // _MB),
            "time_window_s": str(CAPTURE_TIME_WINDOW_S_DEFAULT),
            "name_format": NAME_FORMAT_DEFAULT,
            "is_enabled": "on",
            "is_empty_skipped": "",
        }
    return {
        "destination": settings.destination,
        "size_window_mb": str(settings.size_window_bytes // _MB),
        "time_window_s": str(settings.time_window_s),
        "name_format": settings.name_format,
        "is_enabled": "on" if settings.is_enabled else "",
        "is_empty_skipped": "on" if settings.is_empty_skipped else "",
    }


def _unchecked() -> dict[str, str]:
    """Boxes that are not ticked are not in what a browser sends."""
    return {"is_enabled": "", "is_empty_skipped": ""}


def _capture_settings(fields: Mapping[str, str]) -> CaptureSettings:
    return CaptureSettings(
        destination=fields.get("destination", ""),
        is_enabled=bool(fields.get("is_enabled")),
        size_window_bytes=whole_number(fields, "size_window_mb", "The size of a file") * _MB,
        time_window_s=whole_number(fields, "time_window_s", "The time of a file"),
        is_empty_skipped=bool(fields.get("is_empty_skipped")),
        name_format=fields.get("name_format", "") or NAME_FORMAT_DEFAULT,
    )

"""``/hubs/NAME/capture``: an event hub's capture: progress, files and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.broker import EventHubDescription
from tidegate.console.frame.context import Console
from tidegate.console.frame.errors import status_of
from tidegate.console.frame.forms import start_of, texts_of, whole_number
from tidegate.console.frame.pages import Pages, get, post
from tidegate.console.frame.paging import pager
from tidegate.console.frame.rendering import fragment, page
from tidegate.console.frame.sessions import form_of, require_listen, require_manage, session_of
from tidegate.console.hubs.hub import hub_to_change, hub_to_see
from tidegate.console.hubs.namespace import Namespace
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
_CAPTURE_LIMITS: Final = {
    "size_min": CAPTURE_SIZE_WINDOW_BYTES_MIN // _MB,
    "size_max": CAPTURE_SIZE_WINDOW_BYTES_MAX // _MB,
    "time_min": CAPTURE_TIME_WINDOW_S_MIN,
    "time_max": CAPTURE_TIME_WINDOW_S_MAX,
}

_LIVE: Final = ("figures", "files", "partitions")
"""The live parts: ``hub_capture_….html``."""


class CapturePages(Pages):
    """The capture of an event hub."""

    def __init__(self, console: Console, namespace: Namespace) -> None:
        self._console = console
        self._namespace = namespace

    @get("/hubs/{hub}/capture")
    async def show(self, request: Request) -> Response:
        return await self._page(request, None, None)

    @get("/console/live/hubs/{hub}/capture")
    async def live(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])

        async def render() -> Mapping[str, str]:
            context = await self._context(request)
            return {name: fragment(request, f"hubs/hub_capture_{name}.html", **context) for name in _LIVE}

        return self._console.streams.stream(request, render)

    @post("/hubs/{hub}/capture")
    async def set_capture(self, request: Request) -> Response:
        fields = texts_of(await form_of(request))
        # As in the administration, because the destination is outside of the event hub.
        require_manage(request)
        hub = hub_to_change(request, self._namespace)
        try:
            self._namespace.broker.set_capture(hub.name, _capture_settings(fields))
        except TidegateError as error:
            return await self._page(request, _capture_fields(hub.description) | _unchecked() | fields, error)
        session_of(request).flash("success", "Capture is set.")
        return RedirectResponse(f"/hubs/{hub.name}/capture", status_code=303)

    @get("/hubs/{hub}/capture/off")
    async def ask_to_end_capture(self, request: Request) -> Response:
        hub = hub_to_see(request, self._namespace)
        return page(request, "hubs/hub_capture_off.html", tab="capture", hub=hub)

    @post("/hubs/{hub}/capture/off")
    async def end_capture(self, request: Request) -> Response:
        await form_of(request)
        hub = hub_to_change(request, self._namespace)
        self._namespace.broker.set_capture(hub.name, None)
        session_of(request).flash("success", f"{hub.name} is captured no longer.")
        return RedirectResponse(f"/hubs/{hub.name}/capture", status_code=303)

    async def _context(self, request: Request) -> dict[str, Any]:
        hub = hub_to_see(request, self._namespace)
        files_start = start_of(request.query_params.get("files"))
        start = start_of(request.query_params.get("start"))
        found = self._namespace.capture_progress(hub.name, start=start)
        files = await self._namespace.capture_files(hub.name, start=files_start)
        path = f"/hubs/{hub.name}/capture"
        return {
            "hub": hub,
            "found": found,
            "files": files,
            "files_pages": pager(path, files, place="files", start=str(start or "")),
            "query": urlencode(request.query_params.multi_items()),
            **pager(path, found, files=str(files_start or "")),
        }

    async def _page(
        self, request: Request, fields: Mapping[str, str] | None, problem: TidegateError | None
    ) -> Response:
        context = await self._context(request)
        return page(
            request,
            "hubs/hub_capture.html",
            status_code=status_of(problem),
            tab="capture",
            fields=_capture_fields(context["hub"].description) if fields is None else fields,
            problem=problem,
            capture_limits=_CAPTURE_LIMITS,
            **context,
        )


def _capture_fields(hub: EventHubDescription) -> dict[str, str]:
    """The form's fields with the hub's settings, or the defaults."""
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
    """Values of unticked boxes, which browsers do not send."""
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

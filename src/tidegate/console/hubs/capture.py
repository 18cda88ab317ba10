"""``/hubs/NAME/capture``: an event hub's capture: progress, files and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.forms import start_of, texts_of, whole_number
from tidegate.console.frame.pages import done, get, post
from tidegate.console.frame.paging import pager
from tidegate.console.frame.sessions import form_of, require_listen, require_manage
from tidegate.console.hubs.hub import NamespacePages
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings
from tidegate.model.errors import TidegateError
from tidegate.model.limits import (
    CAPTURE_SIZE_WINDOW_BYTES_MAX,
    CAPTURE_SIZE_WINDOW_BYTES_MIN,
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

_LIVE: Final = {name: f"hubs/hub_capture_{name}.html" for name in ("figures", "files", "partitions")}

_DEFAULTS: Final[dict[str, Any]] = {each.name: each.default for each in fields(CaptureSettings)} | {
    "destination": ""
}

_UNTICKED: Final = {"is_enabled": "", "is_empty_skipped": ""}
"""Browsers do not send unticked boxes."""


class CapturePages(NamespacePages):
    """The capture of an event hub."""

    @get("/hubs/{hub}/capture")
    async def show(self, request: Request) -> Response:
        return await self._page(request, {}, None)

    @get("/console/live/hubs/{hub}/capture")
    async def stream(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])
        return self.live(request, self._context, _LIVE)

    @post("/hubs/{hub}/capture")
    async def set_capture(self, request: Request) -> Response:
        given = texts_of(await form_of(request))
        # As in the administration, because the destination is outside of the event hub.
        require_manage(request)
        broker = self.namespace.broker
        return await self.change_hub(
            request,
            lambda hub: broker.set_capture(hub.name, _capture_settings(given)),
            lambda error: self._page(request, _UNTICKED | given, error),
            "Capture is set.",
            "capture",
        )

    @get("/hubs/{hub}/capture/off")
    async def ask_to_end_capture(self, request: Request) -> Response:
        return self.hub_page(request, "hubs/hub_capture_off.html", "capture", None)

    @post("/hubs/{hub}/capture/off")
    async def end_capture(self, request: Request) -> Response:
        await form_of(request)
        hub = self.hub_to_change(request)
        await self.namespace.broker.set_capture(hub.name, None)
        return done(request, f"{hub.name} is captured no longer.", f"/hubs/{hub.name}/capture")

    async def _context(self, request: Request) -> dict[str, Any]:
        hub, query = self.hub_to_see(request), request.query_params
        files_start, start = start_of(query.get("files")), start_of(query.get("start"))
        found = self.namespace.capture_progress(hub.name, start=start)
        files = await self.namespace.capture_files(hub.name, start=files_start)
        path = f"/hubs/{hub.name}/capture"
        return {
            "hub": hub,
            "found": found,
            "files": files,
            "files_pages": pager(path, files, place="files", start=str(start or "")),
            "query": urlencode(query.multi_items()),
            **pager(path, found, files=str(files_start or "")),
        }

    async def _page(self, request: Request, given: dict[str, str], problem: TidegateError | None) -> Response:
        """given: the form's fields, as the user left them; missing ones are as the hub has them."""
        context = await self._context(request)
        context["fields"] = _capture_fields(context["hub"].description.capture) | given
        context["capture_limits"] = _CAPTURE_LIMITS
        return self.hub_page(request, "hubs/hub_capture.html", "capture", problem, **context)


def _capture_fields(settings: CaptureSettings | None) -> dict[str, str]:
    """The form's fields with a hub's settings, or (None) the defaults."""
    values: dict[str, Any] = {**(_DEFAULTS if settings is None else settings.to_mapping())}
    size_mb = values.pop("size_window_bytes") // _MB
    ticks = {name: "on" if values.pop(name) else "" for name in _UNTICKED}
    return {name: str(value) for name, value in values.items()} | ticks | {"size_window_mb": str(size_mb)}


def _capture_settings(given: Mapping[str, str]) -> CaptureSettings:
    return CaptureSettings(
        destination=given.get("destination", ""),
        is_enabled=bool(given.get("is_enabled")),
        size_window_bytes=whole_number(given, "size_window_mb", "The size of a file") * _MB,
        time_window_s=whole_number(given, "time_window_s", "The time of a file"),
        is_empty_skipped=bool(given.get("is_empty_skipped")),
        name_format=given.get("name_format", "") or NAME_FORMAT_DEFAULT,
    )

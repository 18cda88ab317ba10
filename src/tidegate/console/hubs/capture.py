"""``/hubs/NAME/capture``: an event hub's capture: progress, files and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.broker import EventHub
from tidegate.console.frame.forms import EMPTY_FORM, Fields, Form, start_of, whole_number
from tidegate.console.frame.pages import get
from tidegate.console.frame.paging import pager
from tidegate.console.frame.sessions import require_listen, require_manage
from tidegate.console.hubs.hub import NamespacePages, hub_form
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings
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
    async def show(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        context = await self._context(request)
        sent = _UNTICKED | form.fields if form.problem else {}
        context["fields"] = _capture_fields(context["hub"].description.capture) | sent
        context["capture_limits"] = _CAPTURE_LIMITS
        return self.hub_page(request, "hubs/hub_capture.html", "capture", form, **context)

    @get("/console/live/hubs/{hub}/capture")
    async def stream(self, request: Request) -> Response:
        require_listen(request, request.path_params["hub"])
        return self.live(request, self._context, _LIVE)

    @hub_form("/hubs/{hub}/capture", show, "/hubs/{hub}/capture")
    async def set_capture(self, request: Request, hub: EventHub, fields: Fields) -> str:
        # As in the administration, because the destination is outside of the event hub.
        require_manage(request)
        await self.namespace.broker.set_capture(hub.name, _capture_settings(fields))
        return "Capture is set."

    @get("/hubs/{hub}/capture/off")
    async def ask_to_end_capture(self, request: Request, form: Form = EMPTY_FORM) -> Response:
        return self.hub_page(request, "hubs/hub_capture_off.html", "capture", form)

    @hub_form("/hubs/{hub}/capture/off", ask_to_end_capture, "/hubs/{hub}/capture")
    async def end_capture(self, request: Request, hub: EventHub, fields: Fields) -> str:
        await self.namespace.broker.set_capture(hub.name, None)
        return f"{hub.name} is captured no longer."

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


def _capture_fields(settings: CaptureSettings | None) -> dict[str, str]:
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

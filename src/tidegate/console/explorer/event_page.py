"""``/hubs/NAME/explorer/events/PARTITION/SEQUENCE_NUMBER``: one event in detail, and its body as a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.explorer.bodies import Look, body_bytes, body_view, pretty_json, visible
from tidegate.console.explorer.decoding import system_properties
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.properties import type_name
from tidegate.console.explorer.values import PROPERTIES_SHOWN_MAX, EventDetail, property_text
from tidegate.console.frame.forms import digits_of, start_of
from tidegate.console.frame.pages import Pages, get
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import require_listen
from tidegate.model.errors import NotFoundError

T = TypeVar("T")

_AROUND = 10


@dataclass(eq=False)
class EventPages(Pages):
    """One event."""

    events: BrokerEvents

    @get("/hubs/{hub}/explorer/events/{partition}/{number}")
    async def show(self, request: Request) -> Response:
        detail = await self._find(request)
        wanted, at = request.query_params.get("as", ""), request.query_params.get("at", "")
        look = Look(wanted) if wanted in {look.value for look in Look} else None
        start = start_of(at[:9])
        contents = detail.event.contents
        view = None if contents is None else await asyncio.to_thread(body_view, contents, look, start)
        message = detail.message
        system = {} if message is None else await asyncio.to_thread(system_properties, message)
        return page(
            request,
            "explorer/event.html",
            hub=request.path_params["hub"],
            event=detail.event,
            detail=detail,
            contents=contents,
            view=view,
            properties=_properties(detail),
            system={visible(name): visible(value) for name, value in _shown(system)},
            system_count=len(system),
            properties_max=PROPERTIES_SHOWN_MAX,
            around=max(0, detail.event.sequence_number - _AROUND),
        )

    @get("/hubs/{hub}/explorer/events/{partition}/{number}/body")
    async def download(self, request: Request) -> Response:
        detail = await self._find(request)
        event = detail.event
        if event.contents is None:
            raise NotFoundError(f"The event {event.sequence_number} is not a message and has no body.")
        body = body_bytes(event.contents)
        name = f"{request.path_params['hub']}-{event.partition_id}-{event.sequence_number}"
        kind = await asyncio.to_thread(_kind, body)
        return Response(
            body,
            # Never the sender's content type: a browser must not show it as a page of this site.
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{name}.{kind}"'},
        )

    async def _find(self, request: Request) -> EventDetail:
        hub, number = request.path_params["hub"], request.path_params["number"]
        require_listen(request, hub)
        if (found := digits_of(number)) is None:
            raise NotFoundError(f"{number[:40]!r} is not a sequence number.")
        return await self.events.event(hub, request.path_params["partition"], found)


def _properties(detail: EventDetail) -> Mapping[str, tuple[str, str]]:
    """Text of each application property, and AMQP's name of its type."""
    if detail.event.contents is None:
        return {}
    types = {} if detail.message is None else detail.message.application_properties
    return {
        visible(name): (visible(property_text(value)), type_name(types[name]) if name in types else "")
        for name, value in _shown(detail.event.contents.properties)
    }


def _shown(properties: Mapping[str, T]) -> Iterable[tuple[str, T]]:
    return islice(properties.items(), PROPERTIES_SHOWN_MAX)


def _kind(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "bin"
    return "json" if pretty_json(text) is not None else "txt"

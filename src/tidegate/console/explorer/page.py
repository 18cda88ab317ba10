"""``/hubs/NAME/explorer``: a hub's events by page, as they arrive, or one in detail.

Requires Listen, but opens no receiver. A page with a filter examines a limited number of events, shows how
many, and offers to continue; it ends when the browser disconnects.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.explorer.bodies import (
    ENCODER,
    Look,
    body_bytes,
    body_view,
    pretty_json,
    preview,
    value_text,
)
from tidegate.console.explorer.codec import system_properties
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.json_test import column_texts
from tidegate.console.explorer.properties import type_name
from tidegate.console.explorer.query import COLUMNS, COUNTS, STARTS, Columns, ExplorerForm
from tidegate.console.explorer.values import (
    PROPERTIES_SHOWN_MAX,
    PROPERTY_CHARACTERS_MAX,
    EventCursor,
    EventDetail,
    EventPage,
    ExploredEvent,
    Show,
    Way,
    property_text,
)
from tidegate.console.frame.drawing import drawn
from tidegate.console.frame.errors import problem_page
from tidegate.console.frame.forms import digits_of, start_of
from tidegate.console.frame.pages import Pages, attachment, get
from tidegate.console.frame.rendering import fragment, page, rendered
from tidegate.console.frame.sessions import require_listen, require_session
from tidegate.console.frame.shares import SharedPlaces
from tidegate.console.frame.slices import in_slices
from tidegate.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    PositionOutOfRangeError,
    TidegateError,
)
from tidegate.model.limits import PARTITION_KEY_CHARACTERS_MAX
from tidegate.model.times import time_text

T = TypeVar("T")

_DOWNLOADS_MAX: Final = 2
"""Pages that are turned into JSON at once. Our choice: 16 MB of control characters become 100 MB."""
_PROPERTIES_SHOWN = 3
_PROPERTY_CHARACTERS = 40
_VALUE_CHARACTERS = 80
_ALL_COLUMNS: Final = Columns()
_AROUND = 10
_ROWS_PER_DRAW: Final = 20
"""Rows of live pages drawn in one step of the event loop: about a millisecond of work."""


@dataclass(eq=False)
class ExplorerPages(Pages):
    """The events of a hub."""

    events: BrokerEvents

    def __post_init__(self) -> None:
        self._downloads = SharedPlaces(_DOWNLOADS_MAX)

    @get("/hubs/{hub}/explorer")
    async def show(self, request: Request) -> Response:
        form = self._form(request)
        context = self._context(form)
        found: EventPage[Mapping[str, Any]] | None = None
        problem: TidegateError | None = None
        columns = Columns()
        async with self.events.readers.of(form.hub):
            try:
                columns = form.columns
                form = form.fixed(now_utc=request.state.now)
                found = await self._read(request, form, partial(event_rows, columns=columns))
            except (InvalidArgumentError, PositionOutOfRangeError) as error:
                problem = error
            shown = () if found is None else _in_order(found, form)
            rows = await in_slices(request, (_drawn(form.hub, row, columns) for row in shown))
            return problem_page(
                request,
                "explorer/page.html",
                problem,
                **context,
                pager=form,
                found=found,
                rows=rows,
                columns=columns,
                same=_cursor_of(found, form),
                key_partition=self._key_partition(form),
            )

    @get("/hubs/{hub}/explorer/page.jsonl")
    async def download(self, request: Request) -> Response:
        """The page as JSON Lines, in the format of ``tidegate receive --nl``."""
        form = self._form(request)
        async with self._downloads.of(form.hub):
            lines = _in_order(await self._read(request, form, json_lines), form)
            content = await asyncio.to_thread(b"".join, lines)
        return attachment(content, f"{form.hub}.jsonl", "application/x-ndjson")

    @get("/hubs/{hub}/explorer/live")
    async def show_live(self, request: Request) -> Response:
        form = self._form(request)
        context = self._context(form)
        problem: TidegateError | None = None
        kept = 0
        try:
            kept, _ = form.live_query(now_utc=request.state.now).count, form.columns
        except InvalidArgumentError as error:
            problem = error
        return problem_page(request, "explorer/live.html", problem, **context, kept=kept)

    @get("/console/live/hubs/{hub}/explorer")
    async def stream(self, request: Request) -> Response:
        form = self._form(request)
        query, columns = form.live_query(now_utc=request.state.now), form.columns
        tail = self.events.tail(query, _LiveRows(columns))
        draw = self.console.streams.draw
        is_over = False
        last_seen: int | None = None

        async def render() -> Mapping[str, str] | None:
            nonlocal is_over, last_seen
            if is_over:
                return None
            try:
                await tail.refresh()
            except NotFoundError as error:
                is_over = True
                ended = partial(fragment, request, "explorer/counts.html", state=None, problem=error)
                return await draw(lambda: {"counts": ended()})
            if tail.seen == last_seen:
                return {}  # the rows shown are current
            last_seen = tail.seen
            rows = tail.shown
            waiting = [row for row in rows if row.html is None]
            for start in range(0, len(waiting), _ROWS_PER_DRAW):
                await draw(partial(_draw_rows, form.hub, waiting[start : start + _ROWS_PER_DRAW], columns))
            return await draw(
                lambda: {
                    "events": fragment(
                        request,
                        "explorer/rows.html",
                        hub=form.hub,
                        rows=[row.html for row in rows],
                        columns=columns,
                        column_names=COLUMNS,
                    ),
                    "counts": fragment(request, "explorer/counts.html", state=tail),
                }
            )

        return self.console.streams.stream(request, render)

    # -- one event

    @get("/hubs/{hub}/explorer/events/{partition}/{number}")
    async def show_event(self, request: Request) -> Response:
        async with self._whole_event(request) as detail:
            return await self._event_page(request, detail)

    async def _event_page(self, request: Request, detail: EventDetail) -> Response:
        wanted, at = request.query_params.get("as", ""), request.query_params.get("at", "")
        look = Look(wanted) if wanted in {look.value for look in Look} else None
        start = start_of(at[:9])
        contents = detail.event.contents
        view, body = None, Markup("")
        if contents is not None:
            view = await asyncio.to_thread(body_view, contents, look, start)
            (body,) = await drawn(request, [view.text])
        message = detail.message
        system = {} if message is None else await asyncio.to_thread(system_properties, message)
        properties = await asyncio.to_thread(_properties, detail)
        # A list opens it below its row.
        is_in_place = request.query_params.get("in") == "place"
        return page(
            request,
            "explorer/event_parts.html" if is_in_place else "explorer/event.html",
            is_in_place=is_in_place,
            hub=request.path_params["hub"],
            event=detail.event,
            detail=detail,
            contents=contents,
            view=view,
            body=body,
            properties=properties,
            system={name: _cut(text) for name, text in _shown(system)},
            system_count=len(system),
            properties_max=PROPERTIES_SHOWN_MAX,
            around=max(0, detail.event.sequence_number - _AROUND),
        )

    @get("/hubs/{hub}/explorer/events/{partition}/{number}/body")
    async def download_body(self, request: Request) -> Response:
        async with self._whole_event(request) as detail:
            event = detail.event
            if event.contents is None:
                raise NotFoundError(f"The event {event.sequence_number} is not a message and has no body.")
            body = await asyncio.to_thread(body_bytes, event.contents)
            kind = await asyncio.to_thread(_kind, body)
        name = f"{request.path_params['hub']}-{event.partition_id}-{event.sequence_number}"
        return attachment(body, f"{name}.{kind}")

    @asynccontextmanager
    async def _whole_event(self, request: Request) -> AsyncIterator[EventDetail]:
        """The one that is asked for, with a place for it."""
        hub, number = request.path_params["hub"], request.path_params["number"]
        require_listen(request, hub)
        if (found := digits_of(number)) is None:
            raise NotFoundError(f"{number[:40]!r} is not a sequence number.")
        async with self.events.whole_events.of(hub):
            require_session(request)  # a page may wait for others'
            yield await self.events.event(hub, request.path_params["partition"], found)

    def _form(self, request: Request) -> ExplorerForm:
        hub = request.path_params["hub"]
        require_listen(request, hub)
        # As its creator spelled it: live rows, which name it, are shared with other users' pages.
        return ExplorerForm.of(self.events.broker.event_hub(hub).name, request.query_params)

    async def _read(self, request: Request, form: ExplorerForm, show: Show[T]) -> EventPage[T]:
        query = form.query(now_utc=request.state.now)

        async def is_wanted() -> bool:
            require_session(request)  # a page may wait for others', and take long itself
            return not await request.is_disconnected()

        return await self.events.read(query, form.cursor, show, is_wanted=is_wanted)

    def _context(self, form: ExplorerForm) -> dict[str, Any]:
        return {
            "hub": form.hub,
            "form": form,
            "partition_ids": self.events.broker.event_hub(form.hub).description.partition_ids,
            "starts": STARTS,
            "counts": COUNTS,
            "column_names": COLUMNS,
            "shown_columns": form.fields["columns"].split(",") if form.fields["columns"] else list(COLUMNS),
        }

    def _key_partition(self, form: ExplorerForm) -> str | None:
        """The partition of the key's events, if all partitions are searched for them."""
        if not form.fields["key"] or form.fields["partition"]:
            return None
        try:
            return self.events.broker.event_hub(form.hub).partition_for(form.fields["key"]).partition_id
        except InvalidArgumentError:  # no event can have such a key
            return None


def _in_order(found: EventPage[T], form: ExplorerForm) -> Sequence[T]:
    """Its events in the order in which they are shown."""
    return found.events[::-1] if form.fields["from"] == "newest" else found.events


def _cursor_of(found: EventPage[T] | None, form: ExplorerForm) -> EventCursor | None:
    """A cursor for the same events, whatever has arrived since."""
    if found is None or found.ends is None:
        return None
    first, last = found.ends
    if form.fields["from"] == "newest":
        return EventCursor(Way.OLDER, last.after)
    return EventCursor(Way.NEWER, first)


@dataclass(slots=True, eq=False)
class _LiveRow:
    """An event of live pages, drawn once for all of them."""

    values: Mapping[str, Any]
    html: Markup | None = None


@dataclass(frozen=True, slots=True)
class _LiveRows:
    """Makes rows; equal ones share what they make."""

    columns: Columns

    def __call__(self, events: Sequence[ExploredEvent]) -> list[_LiveRow]:
        return [_LiveRow(row) for row in event_rows(events, self.columns)]


def _draw_rows(hub: str, rows: Sequence[_LiveRow], columns: Columns) -> None:
    for row in rows:
        if row.html is None:
            row.html = _drawn(hub, row.values, columns)


def _drawn(hub: str, row: Mapping[str, Any], columns: Columns) -> Markup:
    return rendered("explorer/row.html", {"hub": hub, "row": row, "columns": columns})


def event_rows(events: Sequence[ExploredEvent], columns: Columns = _ALL_COLUMNS) -> list[Mapping[str, Any]]:
    """Events as rows of a table."""
    return [_row(event) | {"values": _values(event, columns)} for event in events]


def _values(event: ExploredEvent, columns: Columns) -> list[str]:
    return column_texts(columns.paths, event, _VALUE_CHARACTERS)


def _row(event: ExploredEvent) -> dict[str, Any]:
    contents = event.contents
    body, is_text = (event.problem, True) if contents is None else preview(contents)
    properties = [] if contents is None else list(contents.properties.items())
    shown = [
        f"{name}={property_text(value, _PROPERTY_CHARACTERS)}"[:_PROPERTY_CHARACTERS]
        for name, value in properties[:_PROPERTIES_SHOWN]
    ]
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "enqueued_time": event.enqueued_time,
        "size_bytes": event.size_bytes,
        # No longer than a key that chooses a partition; one in an event may be.
        "partition_key": contents
        and contents.partition_key
        and contents.partition_key[:PARTITION_KEY_CHARACTERS_MAX],
        "properties": shown,
        "more_properties": len(properties) - len(shown),
        "body": body,
        "is_text": is_text,
        "is_garbled": contents is None,
    }


def json_lines(events: Sequence[ExploredEvent]) -> list[bytes]:
    """Events as JSON Lines, in the format of ``tidegate receive --nl``. By Python code, as in ``bodies``: an
    event may have 170,000 properties."""
    return [f"{''.join(ENCODER.iterencode(_record(event)))}\n".encode() for event in events]


def _record(event: ExploredEvent) -> Mapping[str, object]:
    place = {
        "partition": event.partition_id,
        "sequence_number": event.sequence_number,
        "offset": str(event.sequence_number),
        "enqueued_time": time_text(event.enqueued_time),
    }
    if event.contents is None:
        place["decode_error"] = event.problem
        return {**place, "partition_key": None, "properties": {}, "body": None, "body_base64": None}
    properties = {name: _plain(value) for name, value in event.contents.properties.items()}
    return {**place, **event.contents.record(value_text), "properties": properties}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON cannot represent it
    return value if value is None or isinstance(value, bool | int | float | str) else property_text(value)


def _properties(detail: EventDetail) -> Mapping[str, tuple[str, str]]:
    if detail.event.contents is None:
        return {}
    types = {} if detail.message is None else detail.message.application_properties
    return {
        name: (
            _cut(property_text(value, PROPERTY_CHARACTERS_MAX + 1)),
            type_name(types[name]) if name in types else "",
        )
        for name, value in _shown(detail.event.contents.properties)
    }


def _cut(text: str) -> str:
    return text if len(text) <= PROPERTY_CHARACTERS_MAX else f"{text[:PROPERTY_CHARACTERS_MAX]}…"


def _shown(properties: Mapping[str, T]) -> Iterable[tuple[str, T]]:
    return islice(properties.items(), PROPERTIES_SHOWN_MAX)


def _kind(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "bin"
    return "json" if pretty_json(text) is not None else "txt"

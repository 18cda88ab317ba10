"""Live parts of a page: fragments of HTML as server-sent events.

In a page, with htmx and its SSE extension:

    <div hx-ext="sse" sse-connect="/console/live/overview">
      <section sse-swap="rates" aria-live="polite">…</section>
    </div>

Source: WHATWG HTML, "Server-sent events" (2026-09).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidegate.console.access import Session, Sessions, session_of
from tidegate.model.errors import ServerBusyError, TidegateError

STREAMS_MAX: Final = 64
"""Streams at once; each costs a rendering per beat. Our choice: browsers open 6 connections per host."""

KEEP_ALIVE_S: Final = 15.0
"""Seconds after which a stream without news sends a comment: so a peer that is gone is noticed."""

END_EVENT: Final = "end"
"""The last event of a stream that is over: ``sse-close="end"`` keeps the browser from asking again."""

_log = logging.getLogger(__name__)

Render = Callable[[], Awaitable[Mapping[str, str] | None]]
"""The fragments by event name, None: it is over. A browser takes them as HTML, so that what is no ``Markup``,
as ``rendering.fragment`` gives it, is text and is escaped here."""


class LiveStreams:
    """All streams of a console."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._is_closed = asyncio.Event()
        self._count = 0

    def close(self) -> None:
        """End all streams within a moment; browsers ask again by themselves."""
        self._is_closed.set()

    def stream(self, request: Request, render: Render, *, every_s: float = 1.0) -> Response:
        """Send what ``render`` returns while the peer is connected and signed in: each fragment when it has
        changed, as the event of its name.

        render: called at once and then ``every_s`` seconds after it has returned; None ends the stream with
        the event ``end``, as does a TidegateError, unless it is transient: that is one beat without news.
        Raises ServerBusyError when there are too many streams.
        """
        if self._count >= STREAMS_MAX:
            raise ServerBusyError(
                f"{STREAMS_MAX} live pages are open, the most that the console keeps up to date.",
                next_step="Close some, then reload this page.",
            )
        return StreamingResponse(
            self._events(session_of(request), render, every_s),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _events(self, session: Session, render: Render, every_s: float) -> AsyncIterator[str]:
        self._count += 1
        try:
            sent: dict[str, str] = {}
            quiet_s = 0.0
            while not self._is_closed.is_set() and self._sessions.rights(session) is not None:
                fragments = await _rendered(render)
                if fragments is None:
                    yield format_event(END_EVENT, "")
                    return
                shown = {name: str(escape(text)) for name, text in fragments.items()}
                news = {name: text for name, text in shown.items() if sent.get(name) != text}
                sent |= news
                quiet_s = 0.0 if news else quiet_s + every_s
                if news:
                    yield "".join(format_event(name, text) for name, text in news.items())
                elif quiet_s >= KEEP_ALIVE_S:
                    quiet_s = 0.0
                    yield ": still here\n\n"
                await self._wait(every_s)
        finally:
            self._count -= 1

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_closed.wait()
        except TimeoutError:
            pass


async def _rendered(render: Render) -> Mapping[str, str] | None:
    try:
        return await render()
    except TidegateError as error:
        if error.is_transient:
            return {}
        _log.info("a live page ends: %s", error)
        return None


def format_event(name: str, text: str) -> str:
    """One server-sent event; lines of the text, which is HTML, stay lines."""
    data = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{data}\n"

"""Live parts of pages: HTML fragments as server-sent events.

In a page, with htmx, its SSE extension, and idiomorph, which changes only what differs (``console.js``):

    <div sse-connect="/console/live/overview">
      <section sse-swap="rates" aria-live="polite">…</section>
    </div>

Source: WHATWG HTML, "Server-sent events" (2026-09).
"""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidegate.console.frame.rendering import shown
from tidegate.console.frame.sessions import Session, Sessions, first_of_most, session_of
from tidegate.model.errors import ServerBusyError, TidegateError
from tidegate.transport.reused import WORK_SHARE

STREAMS_MAX: Final = 64
"""Concurrent streams; each renders periodically. Beyond this, the policy with most streams loses one. Our
choice: browsers open 6 connections per host."""

KEEP_ALIVE_S: Final = 15.0
"""Seconds after which an unchanged stream sends a comment, to detect a disconnected peer."""

END_EVENT: Final = "end"
"""The last event of a finished stream: ``sse-close="end"`` keeps the browser from reconnecting."""

_log = logging.getLogger(__name__)

T = TypeVar("T")

Render = Callable[[], Awaitable[Mapping[str, str] | None]]
"""Returns fragments by event name; None ends the stream. Browsers treat them as HTML, so strings that are not
``Markup`` (see ``rendering.fragment``) are shown as text."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One stream: waits and renders until it is ended."""

    session: Session
    is_ended: bool = False
    limit: asyncio.Timeout | None = None
    """The time-out around the current wait; None while it waits only for its reader."""

    def end(self) -> None:
        """End the stream immediately."""
        self.is_ended = True
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())

    async def next(self, find: Callable[[], Awaitable[str | None]], pause_s: float) -> str | None:
        """The result of ``find`` after a pause; None also if the stream was ended."""
        try:
            async with asyncio.timeout(None) as self.limit:
                await asyncio.sleep(pause_s)
                return await find()
        except TimeoutError:
            if not self.is_ended:
                raise
            return None
        finally:
            self.limit = None


class LiveStreams:
    """All streams of a console."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._streams: dict[_Stream, None] = {}
        """In order of their start."""
        self._is_closed = False
        self._drawing = asyncio.Lock()
        self._rests_until_s = 0.0
        sessions.call_at_end(self._end_those_of)

    def close(self) -> None:
        """End all streams promptly; browsers reconnect automatically."""
        self._is_closed = True
        for stream in self._streams:
            stream.end()

    def stream(self, request: Request, render: Render, *, every_s: float = 1.0) -> Response:
        """Send changed fragments of ``render`` while the peer is connected and signed in, each as an event.

        render: called at once, and again ``every_s`` seconds after it has returned; None or a TidegateError
        ends the stream with the event ``end``. After a transient error it is called again.
        The response raises ServerBusyError if there are too many streams, most of them by the session's own
        policy.
        """
        stream = _Stream(session_of(request))
        return _LiveResponse(self._events(stream, render, every_s), self._place_of(stream))

    async def draw(self, render: Callable[[], T]) -> T:
        """The result of ``render``. All live pages together take a tenth of the event loop's time, and are
        drawn less often if that is not enough."""
        async with self._drawing:
            await asyncio.sleep(self._rests_until_s - time.monotonic())
            started_s = time.monotonic()
            try:
                return render()
            finally:
                self._charge(started_s)

    @types.coroutine
    def charged(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """The result of ``work``, whose time on the event loop, but not its waiting, counts as drawing."""
        step = partial(work.send, None)
        while True:
            started_s = time.monotonic()
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._charge(started_s)
            try:
                yield awaited
            except BaseException as error:
                step = partial(work.throw, error)
            else:
                step = partial(work.send, None)

    def _charge(self, started_s: float) -> None:
        now_s = time.monotonic()
        self._rests_until_s = max(self._rests_until_s, now_s) + (WORK_SHARE - 1) * (now_s - started_s)

    def _make_room(self, session: Session) -> None:
        live = [stream for stream in self._streams if not stream.is_ended]
        if len(live) < STREAMS_MAX:
            return
        first = first_of_most(live, lambda stream: stream.session)
        if (first.session.hub, first.session.policy_name) == (session.hub, session.policy_name):
            raise ServerBusyError(
                f"{STREAMS_MAX} live pages are open, the most that the console keeps up to date.",
                next_step="Close some, then reload this page.",
            )
        first.end()

    def _end_those_of(self, session: Session) -> None:
        for stream in self._streams:
            if stream.session is session:
                stream.end()

    @contextmanager
    def _place_of(self, stream: _Stream) -> Iterator[None]:
        self._make_room(stream.session)
        stream.is_ended = self._is_closed
        self._streams[stream] = None
        try:
            yield
        finally:
            del self._streams[stream]

    async def _events(self, stream: _Stream, render: Render, every_s: float) -> AsyncIterator[str]:
        sent: dict[str, int] = {}  # hashes: a fragment may have millions of characters
        pause_s = quiet_s = 0.0

        async def find() -> str | None:
            fragments = await _rendered(render)
            return None if fragments is None else await self.draw(partial(_news, fragments, sent))

        while not stream.is_ended and self._sessions.rights(stream.session) is not None:
            news = await stream.next(find, pause_s)
            if stream.is_ended:
                return
            if news is None:
                yield format_event(END_EVENT, "")
                return
            pause_s, quiet_s = every_s, 0.0 if news else quiet_s + every_s
            if news:
                yield news
            elif quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield ": still here\n\n"


class _LiveResponse(StreamingResponse):
    """A stream's response. It takes the stream's place before it sends anything: a client that does not read
    may keep even its beginning waiting."""

    def __init__(self, events: AsyncIterator[str], place: AbstractContextManager[None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


def _news(fragments: Mapping[str, str], sent: dict[str, int]) -> str:
    """The events for what differs from what was sent, as ``sent`` then says; empty: nothing does."""
    events = []
    for name, fragment in fragments.items():
        text = str(escape(shown(fragment)))
        if sent.get(name) != hash(text):
            sent[name] = hash(text)
            events.append(format_event(name, text))
    return "".join(events)


async def _rendered(render: Render) -> Mapping[str, str] | None:
    try:
        return await render()
    except TidegateError as error:
        if error.is_transient:
            return {}
        _log.info("a live page ends: %s", error)
        return None


def format_event(name: str, text: str) -> str:
    """One server-sent event; keeps the line ends of its HTML."""
    data = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{data}\n"

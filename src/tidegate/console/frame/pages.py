"""Pages as classes, whose methods declare their routes in decorators; and what every page has."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tidegate.console.frame.live import LiveStreams
from tidegate.console.frame.rendering import for_users, fragments, is_personal
from tidegate.console.frame.rights import Access
from tidegate.console.frame.sessions import Sessions, rights_of, session_of
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError
from tidegate.transport.tasks import TaskOwner

_ADDRESSES: Final = "addresses"

Handler = TypeVar("Handler", bound=Callable[[Any, Request], Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class Drawn:
    """The live parts of a page at one moment."""

    parts: Mapping[str, str]
    is_over: bool


@dataclass(frozen=True, slots=True)
class Console:
    """The console of one service."""

    access: Access
    sessions: Sessions
    streams: LiveStreams
    clock: Clock
    tasks: TaskOwner
    """For background tasks that pages start."""
    drawn: SharedAnswers[Hashable, Drawn]
    """Live parts of pages, drawn once for all their viewers."""


@dataclass(eq=False)
class Pages:
    """Pages of one subject."""

    console: Console

    def routes(self) -> list[Route]:
        """The routes of the methods, in order of definition."""
        return [
            Route(path, getattr(self, name), methods=[method])
            for name, member in vars(type(self)).items()
            for method, path in getattr(member, _ADDRESSES, ())
        ]

    def live(
        self,
        request: Request,
        context: Callable[[Request], Coroutine[Any, Any, Mapping[str, Any]]],
        parts: Mapping[str, str],
        *,
        words: str | None = None,
        every_s: float = 1.0,
    ) -> Response:
        """Keep parts of a page up to date: ``parts`` are templates by event, ``context`` gives their values.

        words: the value that is sent as it is, in whose place errors are shown; None: none, and an error ends
        the stream. It also ends after values with a true ``is_over``. The caller has checked the user's
        rights.

        Viewers with the same rights and query share what is drawn, unless it has forms, which are of one
        session. So ``context`` must depend on nothing else of the request.
        """
        is_over, drawn = False, self.console.drawn
        # A session has its own token.
        session = session_of(request).form_token if any(map(is_personal, parts.values())) else ""
        # Not the query of a URL, which ends at a "#" that a page's own parameters include.
        key = (request.scope["path"], request.scope["query_string"], rights_of(request), session)

        async def draw() -> Drawn:
            values = await self.console.streams.charged(context(request))
            said = {} if words is None else {words: values[words]}
            found = await self.console.streams.draw(lambda: fragments(request, parts, values))
            return Drawn(found | said, values.get("is_over", False))

        async def render() -> Mapping[str, str] | None:
            nonlocal is_over
            if is_over:
                return None
            try:
                found = await drawn.ask(key, draw, at_most_s=None)
            except TidegateError as error:
                if words is None:
                    raise
                return {words: str(for_users(error, rights_of(request)))}
            assert found is not None
            is_over = found.is_over
            return found.parts

        return self.console.streams.stream(request, render, every_s=every_s)


def get(path: str) -> Callable[[Handler], Handler]:
    """Route GET and HEAD of a path to the method."""
    return lambda handler: _answering(handler, "GET", path)


def post(path: str) -> Callable[[Handler], Handler]:
    """Route POST of a path to the method."""
    return lambda handler: _answering(handler, "POST", path)


def see_other(address: str) -> Response:
    """Send the browser to another page, with GET."""
    return RedirectResponse(address, status_code=303)


def attachment(content: bytes, name: str, media_type: str = "application/octet-stream") -> Response:
    """A file to save. Never of the sender's media type: a browser must not show it as a page of this site."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    disposition = {"Content-Disposition": f'attachment; filename="{plain}"'}
    return Response(content, headers=disposition, media_type=media_type)


def done(request: Request, text: str, address: str) -> Response:
    """Report a success on the page at ``address``."""
    session_of(request).flash("success", text)
    return see_other(address)


def _answering(handler: Handler, method: str, path: str) -> Handler:
    setattr(handler, _ADDRESSES, ((method, path), *getattr(handler, _ADDRESSES, ())))
    return handler

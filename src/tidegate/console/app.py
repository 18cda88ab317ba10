"""The console as an ASGI application, and its route in the gateway.

    request -> ConsoleRoute: is the path the console's? -> security headers -> session -> page

Errors under the console's paths are shown as pages; the gateway's other paths are unaffected.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, NoMatchFound, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.console.about.page import AboutPages
from tidegate.console.audit.page import AuditPages
from tidegate.console.consumers.page import ConsumerPages
from tidegate.console.explorer.page import ExplorerPages
from tidegate.console.explorer.send_page import SendPages
from tidegate.console.frame.absent import AbsentPages
from tidegate.console.frame.errors import answer_of_exception, error_page
from tidegate.console.frame.live import LiveStreams
from tidegate.console.frame.pages import Console, Drawn, Pages, see_other
from tidegate.console.frame.rendering import STATIC_DIRECTORY, STATIC_PATH
from tidegate.console.frame.sessions import (
    Session,
    Sessions,
    address_of,
    check_origin,
    session_id_in,
    set_cookie,
)
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.console.frame.slices import site_of_client
from tidegate.console.hubs.capture import CapturePages
from tidegate.console.hubs.charts import ChartPages
from tidegate.console.hubs.hub import HubPages
from tidegate.console.hubs.page import HubListPages
from tidegate.console.hubs.publishers import PublisherPages
from tidegate.console.jobs.page import JobPages
from tidegate.console.keys.page import KeyPages
from tidegate.console.overview.page import OverviewPages
from tidegate.console.pipelines.page import PipelinePages
from tidegate.console.search.page import SearchPages
from tidegate.console.sign_in.page import SignInPages, address_of_sign_in
from tidegate.console.views import Views
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError, UnauthorizedError
from tidegate.transport.counted_body import counted
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import TrustedProxies
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner

_log = logging.getLogger(__name__)

PLACES: Final = ("hubs", "consumers", "dead-letters", "pipelines", "keys", "audit", "console")
"""First segments of the console's paths, besides ``/``."""

METHODS: Final = ("GET", "HEAD", "POST")

_OPEN_PATHS: Final = (STATIC_PATH, "/console/sign-in", "/console/sign-out")
_DRAWN_S: Final = 0.5
"""Seconds for which live parts are used again, at least: half of the time between two samples."""

_SLASHES_MAX: Final = 8
"""In the path of a static file."""

_LIVE_PATH: Final = "/console/live/"

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every response. Scripts and styles may come only from files of this origin."""


class ConsoleApp:
    """The console of one service; its gateway adds ``route()``.

    To stop: ``end_streams``, then close the gateway, then ``close``.
    """

    def __init__(
        self,
        views: Views,
        *,
        clock: Clock,
        proxies: TrustedProxies,
        budget: MemoryBudget,
        sliced_work: SlicedWork,
    ) -> None:
        """proxies: trusted to report their clients' addresses. budget: counts the memory of forms.
        sliced_work: decodes them.
        """
        sessions = Sessions(views.access, clock, proxies)
        tasks = TaskOwner("console pages")
        drawn: SharedAnswers[Hashable, Drawn] = SharedAnswers(
            clock, kept_s=_DRAWN_S, is_work_counted=False, is_for_waiting=True
        )
        self.console = Console(views.access, sessions, LiveStreams(sessions), clock, tasks, drawn)
        static = _WholeFiles(directory=STATIC_DIRECTORY)
        routes: list[BaseRoute] = [Mount(STATIC_PATH, static, name="static")]
        routes += page_routes(self.console, views)
        self.application = Starlette(
            routes=routes,
            middleware=[
                Middleware(_Headers),
                Middleware(_SignedIn, console=self.console, budget=budget, sliced_work=sliced_work),
            ],
            exception_handlers={
                HTTPException: answer_of_exception,
                TidegateError: answer_of_exception,
                Exception: answer_of_exception,
            },
        )
        # Starlette's redirects would use the Host header.
        self.application.router.redirect_slashes = False

    def route(self) -> BaseRoute:
        """The route that the gateway adds after its own."""
        return ConsoleRoute(self.application)

    def end_streams(self) -> None:
        """End live streams, so that the HTTP server can stop; pages are still served. Idempotent."""
        self.console.streams.close()

    async def close(self) -> None:
        """End all work that pages have started; no page is served afterwards. Idempotent."""
        self.end_streams()
        self.console.sessions.close()
        await self.console.drawn.close()
        await self.console.tasks.close()


def page_routes(console: Console, views: Views) -> list[Route]:
    """The routes of all pages."""
    namespace, events, jobs = views.namespace, views.events, views.jobs
    pages: list[Pages] = [
        HubListPages(console, namespace),
        HubPages(console, namespace),
        ChartPages(console, namespace),
        PublisherPages(console, namespace),
        CapturePages(console, namespace),
        ExplorerPages(console, events),
        SendPages(console, events, views.sender),
        PipelinePages(console, views.pipelines),
        SignInPages(console),
        KeyPages(console, namespace.broker, views.root_strings),
        AuditPages(console, views.trail, namespace.has_hub),
        AboutPages(console),
        SearchPages(console, namespace, views.consumers, views.pipelines),
        OverviewPages(console, namespace, views.consumers, views.letters),
        ConsumerPages(console, namespace, views.consumers, jobs),
    ]
    if views.letters is None:
        pages += [AbsentPages(console)]
    else:
        # With them comes SQLAlchemy: a service without a database starts faster, and is smaller.
        from tidegate.console.dead_letters.page import DeadLetterPages

        pages += [DeadLetterPages(console, views.letters, jobs, views.pipelines), JobPages(console, jobs)]
    return [route for each in pages for route in each.routes()]


class ConsoleRoute(BaseRoute):
    """Matches the console's paths that no earlier route fully matches."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches by the path's first segment; methods that browsers don't use are left to the gateway."""
        if scope["type"] != "http" or scope["method"] not in METHODS:
            return Match.NONE, {}
        path: str = scope["path"]
        # A request target need not begin with a slash, such as "*" (RFC 9112 section 3.2).
        is_ours = path == "/" or (path.startswith("/") and path.split("/", 2)[1] in PLACES)
        return (Match.FULL, {}) if is_ours else (Match.NONE, {})

    def url_path_for(self, name: str, /, **path_params: object) -> NoMatchFound:  # type: ignore[override]
        """Never matches: the console's URLs are written out."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the console."""
        await self._application(scope, receive, send)


class _WholeFiles(StaticFiles):
    """As Starlette's, without ranges, and in few folders: each of a hundred ranges, or a thousand folders, in
    one request costs a stranger nothing, and the service some turns of a thread."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].count("/") > _SLASHES_MAX:
            raise HTTPException(404)
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)


class _Headers:
    """Adds the security headers, and lets browsers cache files whose URL contains their hash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_static = scope["path"].startswith(f"{STATIC_PATH}/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                if is_static and scope["query_string"].startswith(b"v=") and message["status"] == 200:
                    headers["Cache-Control"] = "public, max-age=31536000, immutable"
                elif "Cache-Control" not in headers:
                    headers["Cache-Control"] = "no-cache" if is_static else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _SignedIn:
    """Requires a session, except for signing in."""

    def __init__(self, app: ASGIApp, console: Console, budget: MemoryBudget, sliced_work: SlicedWork) -> None:
        self._app = app
        self._console = console
        self._budget = budget
        self._sliced_work = sliced_work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        request.state.clock = self._console.clock
        request.state.now = self._console.clock.now_utc()
        request.state.sessions = self._console.sessions
        request.state.session = request.state.rights = None
        request.state.sliced_work = self._sliced_work
        path: str = scope["path"]
        if path.startswith(f"{STATIC_PATH}/"):
            await self._app(scope, receive, send)
            return
        if request.method == "POST":
            try:
                check_origin(request)
                self._budget.require_room()
            except TidegateError as error:
                await error_page(request, error)(scope, receive, send)
                return
            with counted(receive, self._budget, address=site_of_client(request)) as receive_counted:
                await self._serve(request, scope, receive_counted, send)
        else:
            await self._serve(request, scope, receive, send)

    async def _serve(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        found = self._console.sessions.find(request)
        if found is None:
            if path in _OPEN_PATHS:
                await self._app(scope, receive, send)
            else:
                await _ask_to_sign_in(request)(scope, receive, send)
            return
        session, request.state.rights = found
        request.state.session = session
        if path not in _OPEN_PATHS:
            send = self._while_in_force(request, session, scope, receive, send)
        with self._console.access.acting(session.grant, address_of(request)):
            await self._answer(request, session, scope, receive, send)

    def _while_in_force(
        self, request: Request, session: Session, scope: Scope, receive: Receive, send: Send
    ) -> Send:
        """``send`` while the session lasts, then a refusal: a page may wait for others', a thread or the
        database, and what it reads then is not for an ended session.

        A form's redirect is sent in any case: the form may have ended its own session, by what it changed.
        """
        has_ended = False

        async def send_while_in_force(message: Message) -> None:
            nonlocal has_ended
            if message["type"] == "http.response.start" and self._console.sessions.rights(session) is None:
                is_redirect = request.method == "POST" and message["status"] == 303
                has_ended = not is_redirect
            if not has_ended:
                await send(message)
            elif message["type"] == "http.response.start":
                error = UnauthorizedError("Your session has ended.", next_step="Sign in again.")
                await error_page(request, error)(scope, receive, send)

        return send_while_in_force

    async def _answer(
        self, request: Request, session: Session, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if session_id_in(request) == session.session_id:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            # A user who has meanwhile signed in with another policy has that session's cookie.
            if message["type"] == "http.response.start" and request.state.session is session:
                carrier = Response()
                set_cookie(request, carrier, session)
                MutableHeaders(scope=message).append("Set-Cookie", carrier.headers["set-cookie"])
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def _ask_to_sign_in(request: Request) -> Response:
    path: str = request.scope["path"]
    if request.method == "GET" and not path.startswith(_LIVE_PATH):
        query = request.scope["query_string"].decode("latin-1")
        wanted = quote(path) + (f"?{query}" if query else "")
        return see_other(address_of_sign_in(wanted))
    return error_page(
        request,
        UnauthorizedError(
            "You are not signed in, or the session has ended.", next_step="Sign in at /console/sign-in."
        ),
        status_code=401,
    )


__all__ = ["ConsoleApp", "ConsoleRoute", "PLACES", "SECURITY_HEADERS", "page_routes"]

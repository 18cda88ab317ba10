"""Sessions: signing in, rights, and protection from other sites.

A browser holds a random session id in a cookie (HttpOnly, SameSite=Strict; over HTTPS ``__Host-`` and
Secure, so that neither plain HTTP nor another host of the domain can read or replace it); all other state is
in this process's memory. Cookies do not depend on the port: other services on this host get it as well. Each
request checks the session's rights by the current policies. A session whose policy or key is removed ends
immediately, with its live streams, even if a policy with that name and key is created again. Forms contain
the session's token, and must come from this origin.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import FormData
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from tidegate.broker import Grant
from tidegate.console.frame.form_reading import read_form
from tidegate.console.frame.rights import Access, Rights
from tidegate.model.clock import Clock
from tidegate.model.errors import UnauthorizedError
from tidegate.model.hosts import split_authority
from tidegate.transport.admission import authenticate_peer
from tidegate.transport.peers import TrustedProxies, is_from_this_machine
from tidegate.transport.sliced_work import Visits

T = TypeVar("T")

COOKIE: Final = "tidegate-console"
"""The port is added, because cookies are shared by all ports of a host."""

SESSION_IDLE_S: Final = 8 * 3600.0
"""Seconds without a request after which a session ends. Our choice: a working day."""

SESSIONS_MAX: Final = 1_000
"""Concurrent sessions; beyond this, the policy with most sessions loses one. Our choice: a few hundred KB."""

FORM_BYTES_MAX: Final = 1024 * 1024
"""Default limit of a form's size."""

FORM_TOKEN: Final = "form_token"
"""The hidden field of each form."""

_FLASHES_MAX = 5


@dataclass(frozen=True, slots=True)
class Flash:
    """A message at the top of the next page."""

    kind: str
    """``success``, ``warning`` or ``error``."""
    text: str


@dataclass(slots=True)
class Session:
    """A signed-in user."""

    session_id: str = field(repr=False)
    grant: Grant = field(repr=False)
    form_token: str = field(repr=False)
    is_automatic: bool
    """True: the development key signed in, not a person."""
    used_at: float
    """Monotonic time of the last use."""
    hub: str = ""
    """The event hub of its policy; empty for the namespace's."""
    policy_name: str = ""
    flashes: list[Flash] = field(default_factory=list)

    def flash(self, kind: str, text: str) -> None:
        """Show a message on the next page."""
        self.flashes = [*self.flashes, Flash(kind, text)][-_FLASHES_MAX:]

    def take_flashes(self) -> list[Flash]:
        """Remove and return the messages to show."""
        taken, self.flashes = self.flashes, []
        return taken


class Sessions:
    """All sessions of a service; they end with it."""

    def __init__(self, access: Access, clock: Clock, proxies: TrustedProxies) -> None:
        """proxies: whose requests come from other addresses."""
        self._access = access
        self._proxies = proxies
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._on_end: Callable[[Session], None] = lambda session: None
        # A session without rights can do nothing: the visit ends its streams.
        visits = Visits(lambda: self._sessions, self._end_without_rights)
        self._remove_listener = access.add_change_listener(visits.start)

    def call_at_end(self, on_end: Callable[[Session], None]) -> None:
        """Call ``on_end`` with each session that ends; it must neither block nor raise."""
        self._on_end = on_end

    def close(self) -> None:
        """Stop listening to changes. Idempotent."""
        self._remove_listener()

    async def sign_in(self, policy_name: str, key: str, hub: str | None, *, address: str) -> Session:
        """A new session, for a policy's name and key. Raises as ``Access.sign_in``."""
        grant = await self._access.sign_in(policy_name, key, hub, address=address)
        return self._start(grant, is_automatic=False)

    async def sign_in_by_link(self, secret: str, *, address: str) -> Session:
        """A new session, for the secret of the service's link. Raises as ``Access.sign_in``."""
        grant = await self._access.sign_in_by_link(secret, address=address)
        return self._start(grant, is_automatic=False)

    def sign_out(self, session: Session) -> None:
        """End a session. Idempotent."""
        if self._sessions.pop(session.session_id, None) is not None:
            self._on_end(session)

    def rights(self, session: Session) -> Rights | None:
        """The session's current rights; None if it has ended. Does not count as use."""
        if self._sessions.get(session.session_id) is not session:
            return None
        rights = self._access.rights(session.grant)
        is_idle = self._clock.monotonic() - session.used_at > SESSION_IDLE_S
        if session.is_automatic and self._access.development_credential() is None:
            rights = None
        if rights is None or is_idle:
            self.sign_out(session)
            return None
        return rights

    def find(self, request: HTTPConnection) -> tuple[Session, Rights] | None:
        """The session of a request and its rights; signs in automatically with the development key."""
        session = self._sessions.get(session_id_in(request))
        rights = None if session is None else self.rights(session)
        if session is None or rights is None or (session.is_automatic and not self._is_local(request)):
            session = self._start_automatic(request)
            rights = None if session is None else self.rights(session)
        if session is None or rights is None:
            return None
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        authenticate_peer(request.scope)
        return session, rights

    def _end_without_rights(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self.rights(session)

    def _is_local(self, request: HTTPConnection) -> bool:
        peer = None if request.client is None else request.client.host
        version: str = request.scope["http_version"]
        return is_from_this_machine(peer, request.headers, http_version=version, proxies=self._proxies)

    def _start_automatic(self, request: HTTPConnection) -> Session | None:
        if not self._is_local(request):
            return None
        grant = self._access.development_credential()
        return None if grant is None else self._start(grant, is_automatic=True)

    def _start(self, grant: Grant, *, is_automatic: bool) -> Session:
        rights = self._access.rights(grant)
        session = Session(
            secrets.token_urlsafe(32),
            grant,
            secrets.token_urlsafe(32),
            is_automatic,
            self._clock.monotonic(),
            *(("", "") if rights is None else (rights.hub or "", rights.policy_name)),
        )
        while len(self._sessions) >= SESSIONS_MAX:
            self._make_room()
        self._sessions[session.session_id] = session
        return session

    def _make_room(self) -> None:
        # A local program without cookies starts a session with each request: these are ended first.
        for session in self._sessions.values():
            if session.is_automatic:
                self.sign_out(session)
                return
        # The least recently used session of the policy with most: frequent sign-ins do not end others'
        # sessions.
        self.sign_out(first_of_most(self._sessions.values(), lambda session: session))


def first_of_most(holders: Iterable[T], session_of: Callable[[T], Session]) -> T:
    """The first of the policy that holds most, in the hub (or the namespace) that holds most."""
    held = [(session_of(each), each) for each in holders]
    (hub, _), *_ = Counter(session.hub for session, _ in held).most_common(1)
    held = [(session, each) for session, each in held if session.hub == hub]
    (policy_name, _), *_ = Counter(session.policy_name for session, _ in held).most_common(1)
    return next(each for session, each in held if session.policy_name == policy_name)


def address_of(request: HTTPConnection) -> str:
    """The client's address; empty if unknown."""
    return request.client.host if request.client is not None else ""


def cookie_name(request: HTTPConnection) -> str:
    """The cookie's name: browsers give cookies to all ports of a host, and each service has its own."""
    found = split_authority(request.headers.get("host", ""))
    # Browsers accept a cookie with that prefix only with Secure and for this exact host (RFC 6265bis,
    # 4.1.3.2).
    prefix = "__Host-" if _is_https(request) else ""
    return f"{prefix}{COOKIE}-{(found and found[1]) or 0}"


def session_id_in(request: HTTPConnection) -> str:
    """The session id in the browser's cookie, or empty.

    ``Request.cookies`` strips Unicode blanks from names: a cookie that another host of the domain set under
    such a name would count as the ``__Host-`` one.
    """
    # Searched for at once: a header of 16 KB can have as many cookies.
    wanted = re.compile(rf"(?:^|;)[ \t]*{re.escape(cookie_name(request))}=([^;]*)")
    values = [value for header in request.headers.getlist("cookie") for value in wanted.findall(header)]
    return values[-1].strip(" \t") if values else ""


def set_cookie(request: HTTPConnection, response: Response, session: Session | None) -> None:
    """Set the session's cookie, or (None) delete it."""
    response.set_cookie(
        cookie_name(request),
        "" if session is None else session.session_id,
        max_age=0 if session is None else None,
        httponly=True,
        samesite="strict",
        secure=_is_https(request),
        path="/",
    )


def _is_https(request: HTTPConnection) -> bool:
    """Whether the browser uses HTTPS, to this service or a trusted proxy."""
    return bool(request.scope["scheme"] == "https")


def session_of(request: HTTPConnection) -> Session:
    """The session of a request, which all pages but sign-in have."""
    session = request.state.session
    assert isinstance(session, Session)
    return session


def rights_of(request: HTTPConnection) -> Rights:
    """The rights of the request's user."""
    rights = request.state.rights
    assert isinstance(rights, Rights)
    return rights


def actor_of(request: HTTPConnection) -> str:
    """The policy and the client's address, for the history in the database."""
    rights = rights_of(request)
    of = f" of {rights.hub}" if rights.hub else ""
    return f"policy {rights.policy_name}{of} from {address_of(request) or 'an unknown address'}"


def require_listen(request: HTTPConnection, hub: str | None = None) -> None:
    """Raise UnauthorizedError unless events of the hub (None: of all) may be seen."""
    _require(rights_of(request).may_listen(hub), "Listen", hub)


def require_send(request: HTTPConnection, hub: str | None = None) -> None:
    """Raise UnauthorizedError unless events may be sent to the hub (None: to all)."""
    _require(rights_of(request).may_send(hub), "Send", hub)


def require_manage(request: HTTPConnection, hub: str | None = None) -> None:
    """Raise UnauthorizedError unless the hub (None: the namespace) may be changed."""
    _require(rights_of(request).may_manage(hub), "Manage", hub)


def require_session(request: HTTPConnection) -> None:
    """Raise UnauthorizedError if the request's session has ended since: call it after a long wait."""
    sessions: Sessions = request.state.sessions
    if sessions.rights(session_of(request)) is None:
        raise UnauthorizedError("Your session has ended.", next_step="Sign in again.")


async def form_of(request: Request, *, bytes_max: int = FORM_BYTES_MAX) -> FormData:
    """The form of a POST, after checking that it comes from this session. bytes_max: of all its fields.

    Raises UnauthorizedError for a form without the session's token, or if the session has ended before the
    form was complete, and as ``read_form``.
    """
    form = await read_form(request, bytes_max=bytes_max)
    session, token = session_of(request), form.get(FORM_TOKEN)
    is_ours = isinstance(token, str) and hmac.compare_digest(token.encode(), session.form_token.encode())
    if not is_ours:
        raise UnauthorizedError(
            "The form is not of this session, which may have ended meanwhile.",
            next_step="Go back, reload the page and send it again.",
        )
    require_session(request)  # a form may arrive slowly
    return form


def check_origin(request: HTTPConnection) -> None:
    """Raise UnauthorizedError for a request from another site's page, as reported by the browser."""
    origin = request.headers.get("origin")
    if origin is None:
        is_foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    else:
        scheme, host = _scheme_and_host_of(origin)
        # A page sent over plain HTTP may have been changed on the way.
        is_foreign = host != request.headers.get("host", "").lower() or (
            _is_https(request) and scheme != "https"
        )
    if is_foreign:
        raise UnauthorizedError("The form comes from another site.", next_step="Use the console's own pages.")


def _scheme_and_host_of(origin: str) -> tuple[str, str | None]:
    """Scheme, and host with port, of an ``Origin`` header; None as host if invalid."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "", None
    return parts.scheme, parts.netloc.lower()


def _require(is_allowed: bool, claim: str, hub: str | None) -> None:
    if not is_allowed:
        where = "of the namespace" if hub is None else f"on the event hub {hub[:80]!r}"
        next_step = f"Sign in with a policy that has {claim}."
        raise UnauthorizedError(f"This needs {claim} {where}.", next_step=next_step)

"""``/console/sign-in`` and ``/console/sign-out``."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidegate.console.frame.form_reading import read_form
from tidegate.console.frame.pages import Pages, get, post, see_other
from tidegate.console.frame.rendering import page
from tidegate.console.frame.sessions import Session, address_of, form_of, set_cookie
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ConnectionStringError, ServerBusyError, UnauthorizedError
from tidegate.transport.admission import keep_waiting

_FORM_BYTES_MAX: Final = 16 * 1024
"""Enough for a connection string and a URL; small because the sender is not signed in yet."""


LINK: Final = "link"
"""The parameter with the secret that signs in once."""


def address_of_sign_in(wanted: str) -> str:
    """The URL of the sign-in page that then returns to ``wanted``."""
    return "/console/sign-in" if wanted == "/" else f"/console/sign-in?next={quote(wanted)}"


class SignInPages(Pages):
    """Signing in and out."""

    @get("/console/sign-in")
    async def ask(self, request: Request) -> Response:
        wanted = _own_address(request.query_params.get("next", "/"))
        secret = request.query_params.get(LINK)
        problem: UnauthorizedError | ServerBusyError | None = None
        # A program that only looks at the link, as chats do, must not use it up: many ask by HEAD.
        if secret is not None and request.method == "GET":
            keep_waiting(request.scope)
            try:
                session = await self.console.sessions.sign_in_by_link(secret, address=address_of(request))
            except (UnauthorizedError, ServerBusyError) as error:
                problem = error
            else:
                return _signed_in(request, session, wanted)
        return page(
            request,
            "sign_in/page.html",
            status_code=200 if problem is None else 403,
            wanted=wanted,
            policy_name="",
            hub="",
            problem=problem,
        )

    @post("/console/sign-in")
    async def sign_in(self, request: Request) -> Response:
        form = await read_form(request, bytes_max=_FORM_BYTES_MAX)
        keep_waiting(request.scope)  # until its answer, which is delayed after wrong keys
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        wanted = _own_address(fields.get("next", "/"))
        name, key, hub = (fields.get(each, "").strip() for each in ("policy", "key", "hub"))
        try:
            if key.lower().startswith("endpoint="):
                parsed = ConnectionString.parse(key)
                name, hub = parsed.shared_access_key_name or "", parsed.entity_path or hub
                key = parsed.shared_access_key or ""
            address = address_of(request)
            session = await self.console.sessions.sign_in(name, key, hub or None, address=address)
        except (UnauthorizedError, ServerBusyError, ConnectionStringError) as error:
            return page(
                request,
                "sign_in/page.html",
                status_code=429 if isinstance(error, ServerBusyError) else 403,
                wanted=wanted,
                policy_name=name,
                hub=hub,
                problem=error,
            )
        return _signed_in(request, session, wanted)

    @post("/console/sign-out")
    async def sign_out(self, request: Request) -> Response:
        if request.state.session is not None:
            await form_of(request)
            session = request.state.session
            self.console.access.note_sign_out(session.grant, address_of(request))
            self.console.sessions.sign_out(session)
        response = see_other("/console/sign-in")
        set_cookie(request, response, None)
        return response


def _signed_in(request: Request, session: Session, wanted: str) -> Response:
    response = see_other(wanted)
    request.state.session = session
    set_cookie(request, response, session)
    return response


def _own_address(text: str) -> str:
    """``text`` if it is a URL of this site, else ``/``."""
    is_own = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if is_own else "/"

"""The pages over HTTP, on loopback. A page is shown to anyone who has its address with the key.

/?key=KEY             the homes, in pages of 50, with a search and the addresses of their pages
/homes/NAME?key=KEY   the page of the residents of one home
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import jinja2

from examples.home_security.web import words
from examples.home_security.web.homes import Homes
from examples.home_security.web.keys import Keys, is_same
from tidegate import NotFoundError, TidegateError, UnauthorizedError

REFRESH_S: Final = 5
"""How often a home's page reloads, in seconds."""

_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= words.FILTERS


class HomesServer(ThreadingHTTPServer):
    """Serves the homes below a URL. A context manager, which closes its socket."""

    def __init__(self, summaries_url: str, keys: Keys, *, port: int) -> None:
        """summaries_url: as fsspec names it. port: 0 is any free one."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.homes = Homes(summaries_url)
        self.keys = keys

    @property
    def list_address(self) -> str:
        """Of the list, for a browser on this machine."""
        return f"http://127.0.0.1:{self.server_port}/?key={self.keys.of_list()}"

    def home_address(self, name: str) -> str:
        """Of a home's page, for a browser on this machine."""
        return f"http://127.0.0.1:{self.server_port}{self.home_path(name)}"

    def home_path(self, name: str) -> str:
        """The same without the server; a home's name is any string, including slashes."""
        return f"/homes/{quote(name, safe='')}?key={self.keys.of_home(name)}"


@contextmanager
def serving(summaries_url: str, keys: Keys) -> Iterator[HomesServer]:
    """Serve in a thread, on a free port, while the context is open; yields the server."""
    with HomesServer(summaries_url, keys, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="web page", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HomesServer

    def do_GET(self) -> None:
        """Respond with a page, also for an error."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        try:
            if parts.path == "/":
                self._check(query, self.server.keys.of_list())
                self._show_list(query)
            elif parts.path.startswith("/homes/"):
                name = unquote(parts.path.removeprefix("/homes/"))
                self._check(query, self.server.keys.of_home(name))
                self._show_home(name)
            else:
                raise NotFoundError("There is no such page.", next_step="Check the address.")
        except TidegateError as error:
            status = {NotFoundError: 404, UnauthorizedError: 403}.get(type(error), 503)
            self._answer(status, "error.html", error=error, refresh_s=REFRESH_S)

    def _check(self, query: dict[str, list[str]], key: str) -> None:
        """Raises UnauthorizedError, before anything is looked at, if the address lacks the page's key."""
        if not is_same(key, query.get("key", [""])[0]):
            raise UnauthorizedError(
                "This address does not open a page.",
                next_step="Use the whole address that you were given; the operator has a list of all.",
            )

    def _show_list(self, query: dict[str, list[str]]) -> None:
        home, search, after = (query.get(name, [""])[0] for name in ("home", "search", "after"))
        if home.strip():
            self.send_response(303)
            self.send_header("Location", self.server.home_path(home.strip()))
            self.end_headers()
            return
        homes = self.server.homes
        found = homes.names(search=search.strip(), after=after)
        links = {name: self.server.home_path(name) for name in found.names}
        shown = {"found": found, "links": links, "search": search.strip(), "after": after}
        self._answer(200, "homes.html", key=self.server.keys.of_list(), place=homes.place, **shown)

    def _show_home(self, name: str) -> None:
        shown = self.server.homes.home(name)
        self._answer(
            200, "home.html", written_at=shown.written_at, refresh_s=REFRESH_S, summary=shown.summary
        )

    def _answer(self, status: int, template: str, **values: Any) -> None:
        body = _TEMPLATES.get_template(template).render(**values).encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

"""The pages over HTTP, on loopback, for all users of this machine, without sign-in.

/             the homes, in pages of 50, with a search
/homes/NAME   the page of the residents of one home
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
from tidegate import NotFoundError, TidegateError

REFRESH_S: Final = 5
"""How often a home's page reloads, in seconds."""

_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= words.FILTERS
# A home's name is any string, including slashes.
_TEMPLATES.filters["in_address"] = lambda text: quote(text, safe="")


class HomesServer(ThreadingHTTPServer):
    """Serves the homes below a URL. A context manager, which closes its socket."""

    def __init__(self, summaries_url: str, *, port: int) -> None:
        """summaries_url: as fsspec names it. port: 0 is any free one."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.homes = Homes(summaries_url)

    @property
    def address(self) -> str:
        """For a browser on this machine, ``http://127.0.0.1:PORT/``."""
        return f"http://127.0.0.1:{self.server_port}/"


@contextmanager
def serving(summaries_url: str) -> Iterator[str]:
    """Serve in a thread, on a free port, while the context is open; yields the address."""
    with HomesServer(summaries_url, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="web page", daemon=True)
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HomesServer

    def do_GET(self) -> None:
        """Respond with a page, also for an error."""
        parts = urlsplit(self.path)
        try:
            if parts.path == "/":
                self._show_list(parse_qs(parts.query))
            elif parts.path.startswith("/homes/"):
                self._show_home(unquote(parts.path.removeprefix("/homes/")))
            else:
                raise NotFoundError("There is no such page.", next_step="The list is at /.")
        except TidegateError as error:
            status = 404 if isinstance(error, NotFoundError) else 503
            self._answer(status, "error.html", error=error, refresh_s=REFRESH_S)

    def _show_list(self, query: dict[str, list[str]]) -> None:
        home, search, after = (query.get(name, [""])[0] for name in ("home", "search", "after"))
        if home.strip():
            self.send_response(303)
            self.send_header("Location", f"/homes/{quote(home.strip(), safe='')}")
            self.end_headers()
            return
        homes = self.server.homes
        found = homes.names(search=search.strip(), after=after)
        self._answer(200, "homes.html", found=found, search=search.strip(), after=after, place=homes.place)

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
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

"""What the tests of the console share: a service with one, a client without scripts, and axe."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

import jinja2
import pytest
from tests.support.absent import not_tested

from tidegate.broker import EMULATOR_KEY
from tidegate.console.frame.live import LiveStreams
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page

T = TypeVar("T")

AXE = Path(__file__).parent / "axe" / "node_modules" / "axe-core" / "axe.min.js"
NARROW = {"width": 360, "height": 740}
WIDE = {"width": 1280, "height": 800}

_FORM_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


def console_service(directory: Path, **settings: object) -> HubService:
    """A service (not started) with a console, by default under the development key: so the tests, on this
    machine, are signed in. settings: by their names in a settings file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "settings.json"
    config.write_text(json.dumps({"root_key": EMULATOR_KEY, **settings}))
    return HubService(directory / "data", is_http_used=True, config=config)


def watch_drawing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The templates rendered from now on by a service of this process, each with whether it was in the turn
    of the live pages. Grows.
    """
    found: list[tuple[str, bool]] = []
    is_drawing = False
    draw, render = LiveStreams.draw, jinja2.Template.render

    async def watched_draw(self: LiveStreams, work: Callable[[], T]) -> T:
        def drawn() -> T:
            nonlocal is_drawing
            is_drawing = True
            try:
                return work()
            finally:
                is_drawing = False

        return await draw(self, drawn)

    def watched_render(self: jinja2.Template, *values: Any, **named: Any) -> str:
        found.append((str(self.name), is_drawing))
        return render(self, *values, **named)

    monkeypatch.setattr(LiveStreams, "draw", watched_draw)
    monkeypatch.setattr(jinja2.Template, "render", watched_render)
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        """The body."""
        return self.body.decode()


class PlainBrowser:
    """A browser without scripts: it keeps cookies and fills forms in. It follows no redirects by itself."""

    def __init__(self, address: str) -> None:
        """address: of the console, ``http://127.0.0.1:5300/``."""
        parts = urlsplit(address)
        assert parts.hostname is not None
        self.host, self.port = parts.hostname, parts.port
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.cookies: dict[str, str] = {}
        self.form_token = ""

    def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask for a page; remembers its form token."""
        answer = self.ask("GET", path, None, dict(headers or {}))
        if (found := _FORM_TOKEN.search(answer.body.decode(errors="replace"))) is not None:
            self.form_token = found[1]
        return answer

    def post(
        self, path: str, fields: Mapping[str, str] | None = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a form, with the token that the last page had."""
        if not self.form_token:
            self.get("/")
        body = urlencode({"form_token": self.form_token, **(fields or {})})
        sent = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.origin, **(headers or {})}
        return self.ask("POST", path, body, sent)

    def follow(self, answer: Answer) -> Answer:
        """The page that a form's answer leads to."""
        assert answer.status == 303, (answer.status, answer.text)
        return self.get(answer.headers["location"])

    def open(self, path: str) -> http.client.HTTPResponse:
        """A stream that has begun; close it."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request("GET", path, headers={"Cookie": cookies, "Connection": "close"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response

    def ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        """Send a request as it is, but for the cookies."""
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()
        for cookie in response.headers.get_all("Set-Cookie", []):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer


def find_chromium() -> str | None:
    """The browser: that of CHROMIUM in the environment, else the first known name on PATH."""
    given = os.environ.get("CHROMIUM")
    if given:
        return given
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path is not None), None)


def assert_accessible(page: Page) -> None:
    """No serious or critical violation, and nothing wider than the page: light, dark and at 360 pixels."""
    if not AXE.exists():
        not_tested(
            "NOT TESTED FOR ACCESSIBILITY: axe-core is not installed. Install Node.js and run `make npm`."
        )
    for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW)):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        where = f"{page.url} {scheme} {size['width']}px"
        assert _violations(page) == [], where
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{where}: {wide} pixels too wide"
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDE["width"], "height": WIDE["height"]})


def _violations(page: Page) -> list[str]:
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE.read_text(encoding="utf-8"))
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:200]} "
        f"{node.get('failureSummary', '')[:300]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:5]
    ]

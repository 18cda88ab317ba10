"""The site in a browser: it asks nobody else for anything, its search finds, everybody can read it."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.conftest import chromium  # noqa: F401 - a fixture
from tests.console.support import assert_accessible
from tests.docs_support import ROOT, build_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.programs


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The built site on a port of loopback; ends in ``/``."""
    directory = tmp_path_factory.mktemp("site")
    build_site(ROOT / "mkdocs.yml", directory)
    handler = functools.partial(_Quiet, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:  # noqa: F811 - the fixture
    """A page that fails the test where something is asked for elsewhere, or a script fails."""
    context = chromium.new_context(base_url=address)
    context.set_default_timeout(60_000)
    opened = context.new_page()
    troubles: list[str] = []
    context.on(
        "request",
        lambda request: (
            None if request.url.startswith((address, "data:", "blob:")) else troubles.append(request.url)
        ),
    )
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    yield opened
    context.close()
    assert troubles == []


def test_the_search_finds_and_leads_to_the_place(page: Page) -> None:
    """With the index that was built, in a worker of the page's own."""
    page.goto("index.html")
    # Key by key: the page looks at the field when a key comes up, and only a millisecond after it is focused.
    page.get_by_role("textbox", name="Search").press_sequentially("BlockingConsumer")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/reference/**")
    assert "BlockingConsumer" in page.locator("article.md-content__inner").inner_text()


def test_the_search_finds_guides_before_the_reference(page: Page) -> None:
    """What a reader can follow is the first result."""
    for words in ("dead+letters", "certificate", "checkpoint"):
        page.goto(f"index.html?q={words}")
        first = page.locator(".md-search-result__link").first
        first.wait_for(state="attached")
        assert re.search("/(guides|concepts)/", str(first.get_attribute("href"))), words


@pytest.mark.parametrize("name", ["index.html", "reference/states.html", "tutorial.html"])
def test_pages_can_be_read_by_everybody(page: Page, name: str) -> None:
    """No serious finding of axe, light, dark and narrow."""
    page.goto(name)
    assert_accessible(page)

"""A service with a console, and browsers to look at it with: one without scripts, and Chromium."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.console.explorer_support import StepClock
from tests.console.support import PlainBrowser, console_service, find_chromium
from tests.support.absent import not_tested

from tidegate.broker import Broker
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.sending import EventSender
from tidegate.server.opening import open_broker
from tidegate.storage.options import LogOptions

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tidegate.testing.hub import HubService


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A running service under the development key, without a database; one per test file."""
    with console_service(tmp_path_factory.mktemp("console")) as started:
        yield started


@pytest.fixture(scope="module")
def console_address(service: HubService) -> str:
    """Where the console is, ending in ``/``."""
    assert service.ready.console is not None
    return service.ready.console


@pytest.fixture
def plain_browser(console_address: str) -> PlainBrowser:
    """A browser without scripts."""
    return PlainBrowser(console_address)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One headless Chromium per test file; skips loudly where there is none.

    Not for the whole run: Playwright keeps an event loop running in the tests' thread, where no asynchronous
    test can then be run. So a file that uses it has no asynchronous tests.
    """
    executable = find_chromium()
    if executable is None:
        not_tested(
            "NOT TESTED IN A BROWSER: there is no Chromium. Install it, or say where with CHROMIUM=PATH."
        )
    from playwright.sync_api import sync_playwright

    arguments = ["--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # root has no user namespaces of its own
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def console_page(chromium: Browser, console_address: str) -> Iterator[Page]:
    """A page of a fresh profile; relative addresses are the console's. A script that fails, or something
    that the content security policy refused, fails the test.
    """
    context = chromium.new_context(base_url=console_address, color_scheme="light")
    context.set_default_timeout(60_000)  # ms; a busy machine takes its time
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "console",
        lambda message: troubles.append(message.text) if "Content Security Policy" in message.text else None,
    )
    yield page
    context.close()
    assert troubles == []


@pytest.fixture
def clock() -> StepClock:
    """The broker's clock."""
    return StepClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: StepClock) -> AsyncIterator[Broker]:
    """A broker whose segments are small, so that reads meet their ends; no service, no port."""
    opened = await open_broker(tmp_path, clock=clock, options=LogOptions(segment_bytes_max=16 * 1024))
    yield opened
    await opened.close()


@pytest.fixture
def events(broker: Broker) -> BrokerEvents:
    """What the explorer reads of the broker."""
    return BrokerEvents(broker)


@pytest.fixture
async def sender(broker: Broker, clock: StepClock) -> AsyncIterator[EventSender]:
    """What sends to the broker."""
    made = EventSender(broker, clock=clock)
    yield made
    await made.close()

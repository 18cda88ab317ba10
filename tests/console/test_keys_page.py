"""Policies, their connection strings and first programs, throughput units and tier."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.console.support import PlainBrowser, assert_accessible, console_service

from tidegate.broker import Claim
from tidegate.model.connection_string import ConnectionString
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page

_STRING = re.compile(r'<pre id="way-\d+"><code>(.*?)</code>')


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[HubService]:
    """A service whose namespace a test may change."""
    with console_service(tmp_path) as started:
        yield started


def _browser(service: HubService) -> PlainBrowser:
    assert service.ready.console is not None
    return PlainBrowser(service.ready.console)


def _strings(text: str) -> list[ConnectionString]:
    return [ConnectionString.parse(html.unescape(found)) for found in _STRING.findall(text)]


def test_a_policy_is_created_used_regenerated_and_deleted(own_service: HubService) -> None:
    """Its strings have its own two keys and its hub; a wrong form changes nothing and says why."""
    hub = own_service.create_hub(partition_count=1)
    browser = _browser(own_service)
    assert "has no policies of its own" in browser.get(f"/hubs/{hub}/keys").text
    refused = browser.post(f"/hubs/{hub}/keys", {"name": "feed"})
    assert (refused.status, "no claims" in refused.text, 'value="feed"' in refused.text) == (400, True, True)
    made = browser.post(f"/hubs/{hub}/keys", {"name": "feed", "Send": "on"})
    assert (made.status, made.headers["location"]) == (303, f"/hubs/{hub}/keys/feed")
    text = browser.get(f"/hubs/{hub}/keys/feed").text
    primary, secondary = _strings(text)
    assert primary.entity_path == secondary.entity_path == hub
    assert primary.shared_access_key != secondary.shared_access_key

    async def stored(server: TidegateServer) -> tuple[str, ...]:
        return server.broker.policy(hub, "feed").keys

    assert own_service.call(stored) == (primary.shared_access_key, secondary.shared_access_key)
    assert f'eventhub_name="{hub}") as producer' in html.unescape(text)
    assert "EventHubConsumerClient" not in text  # it has no Listen
    assert "You are signed in with" not in text
    assert "<p>Send. <a" in text
    listed = re.sub(r"<[^>]+>|\s+", " ", browser.get(f"/hubs/{hub}/keys").text)
    assert re.search(r"Policy +Rights +feed +Send +Create", listed)
    browser.get(f"/hubs/{hub}/keys/feed")
    assert browser.post(f"/hubs/{hub}/keys/feed/regenerate", {"which": "third"}).status == 400
    assert browser.post(f"/hubs/{hub}/keys/feed/regenerate", {"which": "secondary"}).status == 303
    kept, changed = _strings(browser.get(f"/hubs/{hub}/keys/feed").text)
    assert kept == primary
    assert changed.shared_access_key != secondary.shared_access_key
    for name in ("", "Feed"):
        asked = browser.post(f"/hubs/{hub}/keys/feed/delete", {"name": name})
        assert (asked.status, "Enter feed to delete it." in asked.text) == (400, True)
    assert browser.post(f"/hubs/{hub}/keys/feed/delete", {"name": "feed"}).status == 303
    assert browser.get(f"/hubs/{hub}/keys/feed").status == 404


def test_limits_of_the_namespace(own_service: HubService) -> None:
    """Both are set at once, or neither where one is wrong."""

    async def limits(server: TidegateServer) -> tuple[int | None, str]:
        return server.broker.throughput.units, server.broker.tier.value

    browser = _browser(own_service)
    before = own_service.call(limits)
    browser.get("/keys")
    for wrong in (
        {"throughput_units": "0", "tier": "Basic"},
        {"throughput_units": "2", "tier": "Gold"},
        {"throughput_units": "many", "tier": "Basic"},
        {"throughput_units": "-3", "tier": "Basic"},
    ):
        refused = browser.post("/keys/-/limits", wrong)
        assert refused.status == 400
        assert own_service.call(limits) == before
    assert "Enter an integer from 1 to 1,000, or nothing for no limit." in refused.text
    assert browser.post("/keys/-/limits", {"throughput_units": "2", "tier": "Standard"}).status == 303
    assert own_service.call(limits) == (2, "Standard")
    assert browser.post("/keys/-/limits", {"throughput_units": "", "tier": "Standard"}).status == 303
    assert own_service.call(limits) == (None, "Standard")


def test_the_last_policy_with_manage_stays(own_service: HubService) -> None:
    """The page shows why, and the policy, and what becomes of who signed in with a key of it."""
    browser = _browser(own_service)
    text = browser.get("/keys/RootManageSharedAccessKey").text
    assert "You are signed in with the primary key. Regenerating it signs you out" in text
    assert "CA to trust" not in text
    root = {"name": "RootManageSharedAccessKey"}
    refused = browser.post("/keys/RootManageSharedAccessKey/delete", root)
    assert refused.status in (400, 409)
    assert "last policy with Manage" in refused.text
    assert len(_strings(refused.text)) == 2


def test_a_policy_sees_keys_of_its_own_hub_alone(own_service: HubService) -> None:
    """Manage on a hub opens that hub's keys, not the namespace's nor another hub's; Listen opens none."""
    hub, other = own_service.create_hub(partition_count=1), own_service.create_hub(partition_count=1)

    async def prepare(server: TidegateServer) -> list[str]:
        await server.broker.regenerate_key(None, "RootManageSharedAccessKey")  # ends the automatic sign-in
        await server.broker.regenerate_key(None, "RootManageSharedAccessKey", is_secondary=True)
        claims = {"owner": [Claim.MANAGE], "reader": [Claim.LISTEN]}
        made = [await server.broker.create_policy(hub, name, each) for name, each in claims.items()]
        return [policy.key for policy in made]

    for name, key in zip(("owner", "reader"), own_service.call(prepare), strict=True):
        browser = _browser(own_service)
        fields = {"policy": name, "key": key, "hub": hub, "next": "/"}
        assert browser.post("/console/sign-in", fields).status == 303
        own = 200 if name == "owner" else 403
        pages = {f"/hubs/{hub}/keys": own, f"/hubs/{hub}/keys/reader": own}
        pages |= {"/keys": 403, "/keys/RootManageSharedAccessKey": 403}
        pages |= {
            f"/hubs/{other}/keys": 403,
            f"/hubs/{hub}/keys/RootManageSharedAccessKey": 404 if own == 200 else 403,
        }
        assert {path: browser.get(path).status for path in pages} == pages
        shown = browser.get(f"/hubs/{hub}").text
        assert (f'/hubs/{hub}/keys"' in shown, 'href="/keys"' in shown) == (own == 200, False)
        if own == 403:
            for path in (f"/hubs/{hub}/keys", f"/hubs/{hub}/keys/reader/delete", "/keys/-/limits"):
                assert browser.post(path, {"name": "x", "Send": "on"}).status == 403


def test_with_tls_programs_trust_its_authority(own_service: HubService) -> None:
    """The strings with TLS alone need it: a program without it fails, Python's without a word."""

    async def have_tls(server: TidegateServer) -> None:
        over_tls = server.ready.connection_string.replace(";UseDevelopmentEmulator=true", "")
        server._ready = replace(server.ready, connection_string=over_tls)

    own_service.call(have_tls)
    assert "CA to trust" in _browser(own_service).get("/keys/RootManageSharedAccessKey").text


@pytest.mark.programs
def test_the_pages_with_a_browser(service: HubService, console_page: Page) -> None:
    """They are found from the navigation, accessible, and copy what is shown."""
    hub = service.create_hub("keyed")
    console_page.goto("/")
    console_page.get_by_role("link", name="Keys", exact=True).click()
    console_page.wait_for_url("**/keys")
    assert_accessible(console_page)
    console_page.get_by_role("link", name="RootManageSharedAccessKey").last.click()
    console_page.wait_for_url("**/keys/RootManageSharedAccessKey")
    for each in console_page.locator("main details").all():
        each.locator("summary").click()
    assert_accessible(console_page)
    console_page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console_page.get_by_role("button", name="Copy", exact=True).first.click()
    console_page.get_by_role("button", name="Copied").wait_for()
    copied = console_page.evaluate("navigator.clipboard.readText()")
    assert ConnectionString.parse(copied).shared_access_key_name == "RootManageSharedAccessKey"
    console_page.goto(f"/hubs/{hub}/keys")
    assert_accessible(console_page)

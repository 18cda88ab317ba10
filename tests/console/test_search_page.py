"""Search, the charts' values, pages of hosts, and About: what is found, and by whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest
from tests.console.processing_support import append, keep_official_group, recreate_hub, signed_in, text_of
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Claim
from tidegate.console.consumers import groups as consumers
from tidegate.console.hubs.recorder import ChartRecorder
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.sliced_work import SlicedWork

RECORDERS: Final[list[ChartRecorder]] = []
"""That of the service, once it has started."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """One whose groups are read for each page."""

    async def load(recorder: ChartRecorder) -> None:
        RECORDERS.append(recorder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "_LOOK_S", 0.0)
        patch.setattr(ChartRecorder, "load", load)
        with console_service(tmp_path_factory.mktemp("console")) as started:
            yield started


@pytest.fixture(scope="module")
def hub(service: HubService) -> str:
    """A hub with a group whose partition 0 an official processor has."""
    hub = service.create_hub("orders-north", partition_count=2)
    append(service, hub, [b"x"] * 10)
    keep_official_group(service, hub)
    return hub


@pytest.mark.slow
def test_names_are_found_by_those_who_may_see_them(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Hubs, groups and hosts, each with its page; a policy of one hub finds only what is of that hub."""
    other = service.create_hub("orders-south")
    found = plain_browser.get("/console/search?q=ORDERS").text
    assert f'href="/hubs/{hub}"' in found
    assert f'href="/hubs/{other}"' in found
    assert f'href="/consumers/{hub}/official"' in plain_browser.get("/console/search?q=offi").text
    assert 'href="/consumers/-/host?name=official-1"' in plain_browser.get("/console/search?q=official-").text
    host = plain_browser.get("/consumers/-/host?name=official-1")
    assert f"{hub} official 0" in text_of(host.text)
    nothing = plain_browser.get("/console/search?q=<b>none").text
    assert "Nothing that you may see has “&lt;b&gt;none”" in nothing
    assert "by a part of their names" in plain_browser.get("/console/search").text

    of_other = signed_in(service, other, Claim.LISTEN)
    seen = of_other.get("/console/search?q=o").text
    assert f'href="/hubs/{other}"' in seen
    assert hub not in seen
    assert "official" not in seen
    assert "No host of this name" in of_other.get("/consumers/-/host?name=official-1").text
    sender = signed_in(service, hub, Claim.SEND)
    for path in ("/console/search?q=o", "/consumers/-/host?name=official-1", f"/console/charts/{hub}"):
        assert sender.get(path).status == 403


def test_many_leases_are_looked_at_in_turns(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a hundred thousand, which nobody else waits for; each host is found once."""
    looked_at: list[object] = []
    collect = SlicedWork.collect

    async def watched(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        steps = list(items)
        looked_at.extend(steps)
        return await collect(self, iter(steps), address=address)

    monkeypatch.setattr(SlicedWork, "collect", watched)
    assert f"{hub} official 0" in text_of(plain_browser.get("/consumers/-/host?name=official-1").text)
    assert len(looked_at) >= 2  # partitions
    assert plain_browser.get("/console/search?q=official-").text.count("name=official-1") == 1
    assert looked_at.count(("official-1", "", "/consumers/-/host?name=official-1")) == 1


def test_charts_are_of_those_who_may_see_the_hub(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """The namespace's, a hub's, and the lag of a group; the same number of minutes in each."""

    async def note(server: TidegateServer) -> None:
        await RECORDERS[-1].note()

    service.call(note)
    found = json.loads(plain_browser.get("/console/charts").text)
    assert {name: chart["unit"] for name, chart in found.items()} == {
        "events": "events/s",
        "bytes": "bytes/s",
    }
    lag = json.loads(plain_browser.get(f"/console/charts/{hub}/official").text)
    assert lag["events"]["series"][0]["values"][-1] == 6
    assert "At most in the last 24 hours: 6 events" in plain_browser.get(f"/consumers/{hub}/official").text
    own = signed_in(service, hub, Claim.LISTEN)
    assert own.get(f"/console/charts/{hub}").status == 200
    other = signed_in(service, service.create_hub(), Claim.LISTEN)
    for path in ("/console/charts", f"/console/charts/{hub}", f"/console/charts/{hub}/official"):
        assert other.get(path).status == 403
    assert own.get("/console/charts").status == 403
    recreate_hub(service, hub)
    lag = json.loads(plain_browser.get(f"/console/charts/{hub}/official").text)
    assert set(lag["events"]["series"][0]["values"]) == {None}


def test_about(plain_browser: PlainBrowser) -> None:
    """Version, rights, shortcuts, and the software of others; the menu leads there."""
    words = text_of(plain_browser.get("/console/about").text)
    for part in ("Tidegate 0.", "Listen, Send, Manage", "g h Event hubs", "htmx.org 2."):
        assert part in words
    assert 'href="/console/about"' in plain_browser.get("/").text

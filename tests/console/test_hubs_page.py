"""Event hubs in the console: what it shows of them, and what it does to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request
from tests.console.support import PlainBrowser, assert_accessible

from tidegate.broker import Claim
from tidegate.client import EventHubConsumer, EventHubProducer, run_blocking
from tidegate.console.frame import shared_answers
from tidegate.console.frame.rendering import fragments
from tidegate.console.frame.sessions import rights_of
from tidegate.model.errors import LogCorruptError
from tidegate.model.events import EventData
from tidegate.model.hub_settings import HUB_SETTINGS
from tidegate.model.limits import TIER_DEFAULT, Tier
from tidegate.model.position import EventPosition
from tidegate.server.app import TidegateServer
from tidegate.storage.failed_log import FailedLog
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page


def _send(service: HubService, hub: str, count: int, partition_id: str) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            await producer.send([EventData(b"x" * 50) for _ in range(count)], partition_id=partition_id)

    run_blocking(send)


def _signed_in(service: HubService, hub: str | None, claim: Claim) -> PlainBrowser:
    """A browser of somebody who has a new policy with one claim."""

    async def create(server: TidegateServer) -> tuple[str, str]:
        name = f"policy-{len(server.broker.policies(hub))}"
        return name, (await server.broker.create_policy(hub, name, [claim])).key

    name, key = service.call(create)
    assert service.ready.console is not None
    browser = PlainBrowser(service.ready.console)
    fields = {"policy": name, "key": key, "hub": hub or "", "next": "/"}
    assert browser.post("/console/sign-in", fields).status == 303
    browser.get("/hubs")
    return browser


@pytest.mark.slow
def test_a_list_of_many_hubs_comes_in_pages(service: HubService, plain_browser: PlainBrowser) -> None:
    """50 a page, by name, found by a part of it; what an address may hold besides does no harm."""
    for number in range(60):
        service.create_hub(f"paged-{number:02}", partition_count=1)
    first = plain_browser.get("/hubs?search=PAGED-")
    assert [f"paged-{number:02}" in first.text for number in (0, 49, 50)] == [True, True, False]
    assert "60 in all" in first.text
    second = plain_browser.get("/hubs?search=PAGED-&start=50")
    assert [f"paged-{number:02}" in second.text for number in (49, 50, 59)] == [False, True, True]
    assert "No event hub has" in plain_browser.get("/hubs?search=nothing%22%3E%3Cscript%3E").text
    assert "<script>" not in plain_browser.get("/hubs?search=%3Cscript%3E").text
    for start in ("-1", "x", "9" * 30, "1e3", "60"):
        assert plain_browser.get(f"/hubs?start={start}").status == 200


@pytest.mark.slow
def test_a_hub_shows_where_its_partitions_begin_and_end(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """Numbers, sizes and times of each; the rest by pages; whatever the letter case of the name."""
    hub = service.create_hub("Shown", partition_count=120)
    _send(service, hub, 7, "3")
    page = plain_browser.get("/hubs/shown").text
    row = re.search(r'partition=3".*?</tr>', page, re.DOTALL)
    assert row is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[0])
    assert cells[:3] == ["0", "6", "7"]
    assert cells[3].endswith(" B")
    assert cells[5] != "–"
    assert "120 partitions, 0 to 49 of them" in page
    assert "100 to 119 of them" in plain_browser.get("/hubs/Shown?start=100").text
    assert plain_browser.get("/hubs/absent").status == 404
    assert plain_browser.get("/hubs/%2e%2e").status == 404


@pytest.mark.slow
def test_a_hub_is_made_changed_and_deleted(service: HubService, plain_browser: PlainBrowser) -> None:
    """Each step through its form; what is wrong is told beside it, and nothing was done."""
    path = "/hubs/-/create"
    wrong = plain_browser.post(path, {"name": "made", "partition_count": "many"})
    assert wrong.status == 400
    assert "The number of partitions is &#39;many&#39;." in wrong.text
    assert 'value="made"' in wrong.text
    assert 'aria-invalid="true"' in wrong.text
    for fields in (
        {"name": "-bad-", "partition_count": "1"},
        {"name": "made", "partition_count": "99999"},
        {"name": "made", "partition_count": "1", "retention_hours": "0"},
        {"name": "made", "partition_count": "1", "event_bytes_max": "1"},
        {"name": "made"},
    ):
        assert plain_browser.post(path, fields).status == 400, fields
    assert plain_browser.get("/hubs/made").status == 404
    made = plain_browser.post(path, {"name": "made", "partition_count": "2", "retention_hours": "24"})
    assert "Created the event hub made." in plain_browser.follow(made).text
    assert plain_browser.post(path, {"name": "MADE", "partition_count": "2"}).status == 409

    changed = plain_browser.post(
        "/hubs/made/settings", {"retention_hours": "48", "retention_bytes": "1,000,000"}
    )
    page = plain_browser.follow(changed).text
    assert 'value="48"' in page
    assert 'value="1000000"' in page
    assert plain_browser.post("/hubs/made/settings", {"retention_hours": "1000000"}).status == 400

    _send(service, "made", 5, "0")
    told = plain_browser.get("/hubs/made/delete").text
    assert "<strong>5 events</strong>" in told
    assert "It has no readers now." in told
    assert plain_browser.post("/hubs/made/delete", {"name": "mad"}).status == 400
    assert plain_browser.get("/hubs/made").status == 200
    gone = plain_browser.post("/hubs/made/delete", {"name": "made"})
    assert "Deleted the event hub made" in plain_browser.follow(gone).text
    assert plain_browser.get("/hubs/made").status == 404


def test_settings_left_as_they_were_shown_are_not_touched(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """A form that is sent as it came makes the tier's limit on events none of the hub's own."""
    hub = service.create_hub()
    page = plain_browser.get(f"/hubs/{hub}/settings").text
    fields = dict(re.findall(r'<input id="(\w+)" [^>]*value="([^"]*)"', page))
    fields |= dict(re.findall(r'<textarea id="(\w+)" [^>]*>\n([^<]*)</textarea>', page))
    assert set(fields) == {"partition_count", *(setting.name for setting in HUB_SETTINGS)}
    done = plain_browser.follow(plain_browser.post(f"/hubs/{hub}/settings", fields))
    assert "Nothing was changed." in done.text


def test_partitions_are_added(service: HubService, plain_browser: PlainBrowser) -> None:
    """With the count, which the page says cannot go back; fewer are refused, as text is; and so is any
    addition in a tier that cannot.
    """
    hub = service.create_hub(partition_count=2)
    path = f"/hubs/{hub}/settings"
    assert "Partitions cannot be removed again, and keys then map to other partitions" in (
        plain_browser.get(path).text
    )
    done = plain_browser.follow(plain_browser.post(path, {"partition_count": "4"}))
    assert "The hub has 4 partitions instead of 2: keys map to other ones than before." in done.text
    assert "4 partitions" in plain_browser.get(f"/hubs/{hub}").text
    for wanted in ("3", "0", "many"):
        assert plain_browser.post(path, {"partition_count": wanted}).status == 400
    service.call(lambda server: server.broker.set_tier(Tier.STANDARD))
    try:
        assert "The tier cannot add partitions" in plain_browser.get(path).text
        refused = plain_browser.post(path, {"partition_count": "8"})
        assert "4 partitions, and the Standard tier cannot add any" in refused.text
    finally:
        service.call(lambda server: server.broker.set_tier(TIER_DEFAULT))


def test_consumer_groups_and_who_reads(service: HubService, plain_browser: PlainBrowser) -> None:
    """Groups are made and deleted; a reader is seen, and told of before its group or hub goes."""
    hub = service.create_hub(partition_count=2)
    path = f"/hubs/{hub}/groups"
    made = plain_browser.post(path, {"name": "reports"})
    assert "Created the consumer group reports." in plain_browser.follow(made).text
    assert plain_browser.post(path, {"name": "reports"}).status == 409
    assert plain_browser.post(path, {"name": "a/b"}).status == 400
    assert plain_browser.post(f"{path}/$Default/delete").status == 400
    assert plain_browser.get(f"{path}/absent/delete").status == 404

    async def look_while_reading() -> tuple[str, str, str]:
        consumer = EventHubConsumer.from_connection_string(
            service.connection_string, hub, consumer_group="reports"
        )
        async with consumer:
            await consumer.open_receiver("1", EventPosition.latest())
            return (
                plain_browser.get(path).text,
                plain_browser.get(f"{path}/reports/delete").text,
                plain_browser.get(f"/hubs/{hub}/delete").text,
            )

    groups, group, whole = run_blocking(look_while_reading)
    row = re.search(r">reports<.*?</tr>", groups, re.DOTALL)
    assert row is not None
    assert re.findall(r'class="n">(\d+)<', row[0]) == ["1", "1"]
    assert "1 receiver in it now" in group
    assert "disconnected" in whole
    gone = plain_browser.post(f"{path}/reports/delete")
    assert "Deleted the consumer group reports." in plain_browser.follow(gone).text


def test_consumer_groups_come_in_pages(service: HubService, plain_browser: PlainBrowser) -> None:
    """Protects the event loop: a page of 1,000 groups takes it tens of milliseconds."""
    hub = service.create_hub(partition_count=1)

    async def fill(server: TidegateServer) -> None:
        for number in range(60):
            await server.broker.event_hub(hub).create_consumer_group(f"group-{number}")

    service.call(fill)
    first = plain_browser.get(f"/hubs/{hub}/groups").text
    second = plain_browser.get(f"/hubs/{hub}/groups?start=50").text
    assert (">group-48<" in first, ">group-49<" in first) == (True, False)
    assert f"/hubs/{hub}/groups?start=50" in first
    assert (">group-48<" in second, ">group-49<" in second, ">group-59<" in second) == (False, True, True)


def test_capture_is_set_shown_and_ended(
    service: HubService, plain_browser: PlainBrowser, tmp_path: Path
) -> None:
    """What is wrong with its settings is told; an unticked box pauses it."""
    hub = service.create_hub(partition_count=2)
    path = f"/hubs/{hub}/capture"
    fields = {"destination": str(tmp_path), "time_window_s": "60", "size_window_mb": "10", "is_enabled": "on"}
    assert plain_browser.post(path, fields | {"time_window_s": "5"}).status == 400
    assert plain_browser.post(path, fields | {"destination": "somewhere"}).status == 400
    assert plain_browser.post(path, fields | {"name_format": "{Year}"}).status == 400
    page = plain_browser.follow(plain_browser.post(path, fields)).text
    assert "Capture is set." in page
    assert f'value="{tmp_path}"' in page
    paused = {name: value for name, value in fields.items() if name != "is_enabled"}
    assert "paused" in plain_browser.follow(plain_browser.post(path, paused)).text
    assert plain_browser.get(f"{path}/off").status == 200
    assert "is captured no longer" in plain_browser.follow(plain_browser.post(f"{path}/off")).text


@pytest.mark.parametrize("claim", [Claim.LISTEN, Claim.SEND])
@pytest.mark.slow
def test_without_manage_nothing_can_be_changed(service: HubService, claim: Claim) -> None:
    """Whatever form is sent; who may listen sees it all the same, with the reason."""
    hub = service.create_hub()
    browser = _signed_in(service, None, claim)
    for path, fields in (
        ("/hubs/-/create", {"name": "sneaked", "partition_count": "1"}),
        (f"/hubs/{hub}/settings", {"retention_hours": "1"}),
        (f"/hubs/{hub}/groups", {"name": "sneaked"}),
        (f"/hubs/{hub}/groups/$Default/delete", {}),
        (f"/hubs/{hub}/publishers", {"publisher": "a"}),
        (f"/hubs/{hub}/publishers/restore", {"publisher": "a"}),
        (f"/hubs/{hub}/capture", {"destination": "/tmp"}),
        (f"/hubs/{hub}/capture/off", {}),
        (f"/hubs/{hub}/delete", {"name": hub}),
    ):
        assert browser.post(path, fields).status == 403, path
    seen = 200 if claim is Claim.LISTEN else 403
    for path in ("groups", "publishers", "publisher?name=a", "capture", "settings", "delete"):
        page = browser.get(f"/hubs/{hub}/{path}")
        assert page.status == seen, path
        assert ("need" in page.text and " disabled" in page.text) == (seen == 200), path
    for path in ("publishers", "capture"):
        address = f"/console/live/hubs/{hub}/{path}"
        if seen == 200:
            with browser.open(address) as stream:
                assert stream.readline().startswith(b"event: "), path
        else:
            assert browser.get(address).status == seen, path


def test_a_hubs_own_policy_sees_that_hub_alone(service: HubService) -> None:
    """The overview and the list lead to it; another one is out of reach, and so is Capture's destination."""
    own, other = service.create_hub(), service.create_hub()
    browser = _signed_in(service, own, Claim.MANAGE)
    for path in ("/", "/hubs"):
        assert browser.get(path).headers["location"] == f"/hubs/{own}"
    assert browser.get(f"/hubs/{own}").status == 200
    assert browser.get(f"/hubs/{other}").status == 403
    assert browser.get("/console/live/overview").status == 403
    for path in ("", "/publishers", "/capture"):
        assert browser.get(f"/console/live/hubs/{other}{path}").status == 403, path
    assert browser.post("/hubs/-/create", {"name": "x", "partition_count": "1"}).status == 403
    assert browser.post(f"/hubs/{own}/settings", {"retention_hours": "5"}).status == 303
    assert browser.post(f"/hubs/{own}/capture", {"destination": "/tmp"}).status == 403
    assert browser.post(f"/hubs/{own}/delete", {"name": own}).status == 303
    assert own not in browser.get("/hubs").text


def test_who_may_only_send_is_led_to_sending(service: HubService) -> None:
    """And is told no names of event hubs, unless the policy is of one."""
    hub = service.create_hub("secret-name")
    browser = _signed_in(service, None, Claim.SEND)
    page = browser.follow(browser.get("/"))
    assert page.status == 200
    assert hub not in page.text
    assert browser.get(f"/hubs?name={hub}").headers["location"] == f"/hubs/{hub}/explorer/send"
    assert browser.get(f"/hubs/{hub}").headers["location"] == f"/hubs/{hub}/explorer/send"


@pytest.mark.programs
def test_making_and_deleting_a_hub_with_a_browser(service: HubService, console_page: Page) -> None:
    """From the list to the new hub, its rates live, and away again; each page is accessible."""
    console_page.goto("/hubs")
    console_page.get_by_role("link", name="Create an event hub").click()
    assert_accessible(console_page)
    console_page.get_by_label("Name", exact=True).fill("walked")
    console_page.get_by_label("Partitions").fill("3")
    console_page.get_by_role("button", name="Create").click()
    console_page.get_by_text("Created the event hub walked.").wait_for()
    _send(service, "walked", 9, "2")
    row = console_page.get_by_role("row").filter(has=console_page.get_by_role("link", name="2", exact=True))
    row.get_by_text("9", exact=True).wait_for()
    assert_accessible(console_page)
    for tab in ("Consumer groups", "Publishers", "Capture", "Settings"):
        console_page.get_by_role("link", name=tab, exact=True).click()
        console_page.wait_for_url(re.compile(r"/hubs/walked/\w+$"))
        assert_accessible(console_page)
    console_page.get_by_role("link", name="Delete this event hub").click()
    console_page.get_by_text("9 events").wait_for()
    assert_accessible(console_page)
    console_page.get_by_label("Write its name").fill("walked")
    console_page.get_by_role("button", name="Delete it for good").click()
    console_page.get_by_text("with everything in it").wait_for()
    assert_accessible(console_page)


def test_a_hubs_manager_adds_no_partitions(service: HubService) -> None:
    """The form says who can, and takes the hub's other settings."""
    hub = service.create_hub(partition_count=2)
    manager = _signed_in(service, hub, Claim.MANAGE)
    path = f"/hubs/{hub}/settings"
    assert "needs Manage of the namespace" in manager.get(path).text
    fields = {"partition_count": "3", "retention_hours": "5"}
    assert manager.post(path, fields).status == 403
    assert manager.post(path, fields | {"partition_count": "2"}).status == 303
    assert "needs Manage of the namespace" not in _signed_in(service, None, Claim.MANAGE).get(path).text


def test_live_pages_are_drawn_once_for_all_viewers(
    service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop from sixty pages of a policy; other rights and other pages are drawn apart."""
    monkeypatch.setattr(shared_answers._Answer, "is_kept", lambda *_: True)
    drawn = Counter[tuple[str, str]]()

    def counted(request: Request, *given: Any) -> Mapping[str, str]:
        drawn[f"{request.scope['path']}?{request.url.query}", rights_of(request).policy_name] += 1
        return fragments(request, *given)

    monkeypatch.setattr("tidegate.console.frame.pages.fragments", counted)
    hub = service.create_hub(partition_count=2)
    plain_browser.get("/hubs")
    listener = _signed_in(service, None, Claim.LISTEN)
    # Searched for, because the page that Chromium showed last may still be drawn.
    page, hubs = f"/console/live/hubs/{hub}?", f"/console/live/hubs?search={hub}"
    for browser, address in ((plain_browser, page), (listener, page), (listener, hubs)):
        for _ in range(4):
            with browser.open(address) as stream:
                assert stream.readline().startswith(b"event: ")
    asked = sorted((address, count) for (address, _), count in drawn.items() if hub in address)
    assert asked == [(page, 1), (page, 1), (hubs, 1)]


def test_what_viewers_share_is_of_their_whole_query(
    service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can send a "#", as no browser does, and behind it what others would see instead."""
    monkeypatch.setattr(shared_answers._Answer, "is_kept", lambda *_: True)
    hub = service.create_hub(partition_count=1)
    plain_browser.get("/hubs")
    seen = []
    for search in (f"{hub}#none", hub):
        with plain_browser.open(f"/console/live/hubs?search={search}") as stream:
            seen.append(b"".join(iter(stream.readline, b"\n")))
    assert [f"/hubs/{hub}".encode() in each for each in seen] == [False, True]


def test_user_metadata_is_shown_in_its_order(service: HubService, plain_browser: PlainBrowser) -> None:
    """Who manages one hub writes it, and the namespace's managers read it in the audit trail; the form that
    edits it has it as it is."""
    hub = service.create_hub(partition_count=1)
    manager = _signed_in(service, hub, Claim.MANAGE)
    assert "user_metadata" in manager.get(f"/hubs/{hub}/settings").text
    assert manager.post(f"/hubs/{hub}/settings", {"user_metadata": "pay \u202e001\x9b"}).status == 303
    audit = plain_browser.get("/audit").text
    assert "pay \\u202e001\ufffd" in audit
    assert "\u202e" not in audit
    assert "pay \u202e001\x9b</textarea>" in plain_browser.get(f"/hubs/{hub}/settings").text


@pytest.mark.slow
def test_a_live_page_of_a_hub_that_goes_ends(service: HubService, plain_browser: PlainBrowser) -> None:
    """Its stream says that it is over, so that the browser does not ask again and again."""
    hub = service.create_hub(partition_count=1)

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)

    plain_browser.get("/hubs")
    stream = plain_browser.open(f"/console/live/hubs/{hub}")
    assert stream.readline() == b"event: figures\n"
    service.call(delete)
    assert stream.read().endswith(b"event: end\ndata: \n\n")
    stream.close()


def test_a_partition_that_could_not_be_opened_shows_its_reason(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """In the list of hubs and on the hub's page; the others are shown as ever. What a hub's policy gets names
    no file of the service's machine, as over AMQP."""
    service.create_hub("half", partition_count=2)
    _send(service, "half", 3, "0")

    async def damage(server: TidegateServer) -> None:
        server.broker.event_hub("half").partitions[1]._log = FailedLog(
            LogCorruptError("It is damaged: /var/lib/1.log.")
        )

    service.call(damage)
    page = plain_browser.get("/hubs/half").text
    assert "could not be opened" in page
    assert "It is damaged: /var/lib/1.log." in page
    assert "partition=0" in page
    assert "1 failed" in plain_browser.get("/hubs?search=half").text
    manager = _signed_in(service, "half", Claim.MANAGE)
    answers = [
        manager.get("/hubs/half"),
        manager.post("/hubs/half/explorer/send", {"body": "x", "partition": "1"}),
        manager.get("/hubs/half/explorer?partition=1"),
    ]
    for answer in answers:
        assert "are damaged and cannot be read" in answer.text
        assert "/var/lib" not in answer.text

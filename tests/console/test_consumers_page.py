"""Consumers in the console: leases and lag as they are, stalls told, checkpoints moved as was shown."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Sample
from prometheus_client.parser import text_string_to_metric_families
from tests.access.support import RawHttp
from tests.console.processing_support import (
    DEADLINE_S,
    append,
    ended_job,
    hidden_fields,
    keep_official_group,
    signed_in,
    text_of,
)
from tests.console.support import PlainBrowser, assert_accessible, console_service

from tidegate.broker import Claim
from tidegate.console.consumers import groups as consumers
from tidegate.console.consumers import page as consumers_page
from tidegate.console.consumers import progress
from tidegate.console.consumers.progress import (
    LEASE_DURATION_S,
    STALL_TIMEOUT_S,
    HubLog,
    PartitionProgress,
    progress_of,
)
from tidegate.console.dead_letters import page as dead_letters_page
from tidegate.console.frame import shared_answers
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import PartitionEnds
from tidegate.processor import (
    EventProcessor,
    EventProcessorHost,
    EventProcessorOptions,
    Lease,
    LeaseSnapshot,
    PartitionContext,
    PartitionManagerOptions,
    ProcessorCheckpoint,
)
from tidegate.processor.group_view import GroupView
from tidegate.server import stored_groups
from tidegate.server.app import TidegateServer
from tidegate.sql import (
    CheckpointReader,
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    NewDeadLetter,
    SqlStore,
    move_checkpoint,
)
from tidegate.sql.dead_letters.pages import DeadLetterPages
from tidegate.sql.stores.leases import LeaseTable
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Page

HUB = "telemetry"
NOW = datetime(2026, 11, 22, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The database of the service; each test has consumer groups of its own in it."""
    with Database.open(f"sqlite:///{tmp_path_factory.mktemp('processing')}/reports.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, database: Database) -> Iterator[HubService]:
    """A service with 3 partitions of 10 events; nothing that it has read is kept for the next page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "_LOOK_S", 0.0)
        patch.setattr(shared_answers, "WORK_SHARE", 0)
        # A busy machine takes its time, and the test's browser has no scripts to wait with.
        patch.setattr(consumers_page, "FIRST_PAINT_S", 30.0)
        with console_service(tmp_path_factory.mktemp("console"), database=database.url) as started:
            started.create_hub(HUB, partition_count=3)
            for partition_id in ("0", "1", "2"):
                append(started, HUB, [b"x"] * 10, partition_id=partition_id)
            yield started


def _checkpoint(database: Database, group: str, partition_id: str, sequence_number: int) -> None:
    """As a host of this group has it."""
    target = ProcessorCheckpoint(partition_id, sequence_number, str(sequence_number))
    move_checkpoint(database, ConsumerKey(HUB, group), target, owner="a-host", is_rewind_allowed=True)


def _create_group(service: HubService, name: str) -> None:
    async def create(server: TidegateServer) -> None:
        await server.broker.event_hub(HUB).create_consumer_group(name)

    service.call(create)


def _delete_group(service: HubService, name: str) -> None:
    async def delete(server: TidegateServer) -> None:
        await server.broker.event_hub(HUB).delete_consumer_group(name)

    service.call(delete)


def _samples(service: HubService) -> list[Sample]:
    """Of the metrics."""
    assert service.ready.http is not None
    with RawHttp(service.ready.http) as http:
        status, body = http.ask("GET", "/metrics", [("Host", "localhost")])
    assert status == 200
    return [each for family in text_string_to_metric_families(body.decode()) for each in family.samples]


def _following(database: Database, group: str) -> dict[str, int | None]:
    found = CheckpointReader(database).read(ConsumerKey(HUB, group))
    return {partition_id: each.next_sequence_number for partition_id, each in found.items()}


@pytest.mark.slow
def test_groups_and_their_lag(service: HubService, database: Database, plain_browser: PlainBrowser) -> None:
    """A host's group with its lease, a pipeline's without, and one of a hub that is not here."""
    _checkpoint(database, "spark", "0", 3)
    _checkpoint(database, "hosts", "1", 9)
    LeaseTable(database).acquire(ConsumerKey(HUB, "hosts"), "1", "host-a", expected=None)
    move_checkpoint(database, ConsumerKey("elsewhere", "hosts"), ProcessorCheckpoint("0", 1))
    DeadLetters(database).add(
        ConsumerKey(HUB, "hosts"),
        "1",
        [NewDeadLetter(each, str(each), 5, "ValueError", "") for each in (1, 2)],
    )
    plain_browser.get("/consumers")  # may share an answer that had begun before
    page = text_of(plain_browser.get("/consumers").text)
    assert "elsewhere hosts no such hub here" in page
    row = "telemetry hosts 2 without a host 3 1 1 20 [0-9]+ m?s 0 2 2 in the last hour"
    assert re.search(row, page), page
    assert "telemetry spark behind 3 – – 26" in page
    assert "spark" not in text_of(plain_browser.get("/consumers?search=HOSTS").text)
    one = text_of(plain_browser.get(f"/consumers/{HUB}/hosts").text)
    assert "1 caught up host-a" in one
    assert "Open dead letters 2 2 in the last hour. Show them" in one
    letters = f"/dead-letters?hub={HUB}&amp;group=hosts"
    for address in ("/consumers", f"/consumers/{HUB}/hosts"):
        shown = plain_browser.get(address).text
        assert shown.count(f'<a href="{letters}">') == 1
    assert "Open dead letters 0 Leases" in text_of(plain_browser.get(f"/consumers/{HUB}/spark").text)
    assert "0 not begun no lease" in one
    assert "No partition is stalled" in one
    for nothing in ("nobody", "%00", "a%00b/move?to=latest"):
        assert plain_browser.get(f"/consumers/{HUB}/{nothing}").status == 404


def test_groups_without_a_checkpoint_are_listed(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """They have no reader, and the page says what would be one; with a checkpoint they are as others."""
    _create_group(service, "quiet")
    assert re.search(
        r"telemetry quiet no reader yet 3 – – \d+ – 0 0 –", text_of(plain_browser.get("/consumers").text)
    )
    one = text_of(plain_browser.get(f"/consumers/{HUB}/quiet").text)
    assert "0 not begun no lease" in one
    assert "tidegate host run FILE.py:NAME" in one
    _checkpoint(database, "quiet", "0", 3)
    assert "telemetry quiet behind 3" in text_of(plain_browser.get("/consumers").text)


def test_groups_are_in_the_metrics(service: HubService, database: Database) -> None:
    """Lag, hosts and open dead letters of the database's groups, as they are at the scrape."""
    for name in ("measured", "ledger"):
        _create_group(service, name)
    _checkpoint(database, "measured", "0", 3)
    LeaseTable(database).acquire(ConsumerKey(HUB, "measured"), "0", "host-a", expected=None)

    def numbers(group: str = "measured") -> dict[str, float]:
        names = {"event_hub": HUB, "consumer_group": group}
        return {
            " ".join((sample.name, *sorted(sample.labels[each] for each in more))).removeprefix(
                "tidegate_"
            ): sample.value
            for sample in _samples(service)
            if sample.labels.items() >= names.items()
            for more in [sample.labels.keys() - names.keys()]
        }

    expected = {
        "group_lag_messages": 26, "group_owned_partitions": 1, "group_hosts": 1,
        "group_open_dead_letters": 0, "group_dead_letters_total": 0,
        "consumer_lag_messages 0": 6, "consumer_lag_messages 1": 10, "consumer_lag_messages 2": 10,
        "consumer_checkpoint_sequence_number 0": 3,
    }  # fmt: skip
    renewed = "consumer_lease_renewed_timestamp_seconds 0"
    found = numbers()
    assert abs(found.pop(renewed) - SystemClock().now_utc().timestamp()) < DEADLINE_S
    assert found == expected
    letter, consumer = NewDeadLetter(1, "1", 5, "ValueError", ""), ConsumerKey(HUB, "measured")
    DeadLetters(database).add(consumer, "0", [letter])
    one = expected | {"group_open_dead_letters": 1, "group_dead_letters_total": 1}
    assert numbers().items() >= one.items()
    DeadLetters(database).discard(DeadLetterFilter(HUB, "measured"), reason="a test")
    one["group_open_dead_letters"] = 0  # the counter does not fall
    assert numbers().items() >= one.items()
    DeadLetters(database).add(ConsumerKey(HUB, "ledger"), "0", [letter])
    only = {"group_dead_letters_total": 1, "group_open_dead_letters": 1, "group_hosts": 0}
    assert numbers("ledger") == only | {"group_owned_partitions": 0}
    for name in ("measured", "ledger"):
        _delete_group(service, name)
        assert numbers(name) == {}


def test_metrics_wait_for_no_page(
    service: HubService, database: Database, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of one hub may ask for sums, each of which takes seconds: all hubs' metrics stayed the same."""
    name, may_end = "tidegate_groups_read_timestamp_seconds", threading.Event()

    def read_at() -> float:
        return next(sample.value for sample in _samples(service) if sample.name == name)

    def count_slowly(*_: object, **__: object) -> list[object]:
        may_end.wait(10 * DEADLINE_S)
        return []

    monkeypatch.setattr(stored_groups, "READ_S_MAX", DEADLINE_S)
    before = read_at()
    assert abs(before - SystemClock().now_utc().timestamp()) < DEADLINE_S
    monkeypatch.setattr(DeadLetterPages, "counts_by_hour", count_slowly)
    monkeypatch.setattr(DeadLetterPages, "page", count_slowly)
    monkeypatch.setattr(dead_letters_page, "FIRST_PAINT_S", 0.1)
    try:
        for day in range(1, 5):  # as many as there are threads for pages, and twice as many as for sums
            page = plain_browser.get(f"/dead-letters?from=2020-01-0{day}T00:00:00Z")
            assert page.status == 200
        assert read_at() > before
    finally:
        may_end.set()


def test_groups_that_the_service_keeps(service: HubService, plain_browser: PlainBrowser) -> None:
    """Those of official processors with checkpoints in its accounts are in the same list, with owner and lag;
    the console does not move their checkpoints, which are not in the database."""

    client = keep_official_group(service, HUB)
    assert "telemetry official" in text_of(plain_browser.get("/consumers").text)
    one = plain_browser.get(f"/consumers/{HUB}/official")
    assert "0 behind official-1" in text_of(one.text)
    assert "official/move" not in one.text
    assert "Official processors keep it in the service" in one.text
    refused = plain_browser.get(f"/consumers/{HUB}/official/move?to=latest").text
    assert "keeps its checkpoints in the service" in refused
    assert client.ask("DELETE", "/consumers", {"restype": "container"}).status == 202


def test_moving_shows_first_what_it_does(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """The dry run counts what is skipped and repeated; then exactly that is done, once."""
    for partition_id, number in (("0", 3), ("1", 9)):
        _checkpoint(database, "moved", partition_id, number)
    address = f"/consumers/{HUB}/moved/move"
    page = plain_browser.get(f"{address}?to=sequence-number&value=6").text
    assert "2 events would be skipped, 4 processed again , in 3 partitions" in text_of(page)
    assert "Of 1 it is not known" in text_of(page)
    assert _following(database, "moved") == {"0": 4, "1": 10}
    fields = hidden_fields(page)
    refused = plain_browser.post(address, fields)
    assert (refused.status, "would move backwards; nothing was moved" in refused.text) == (400, True)
    append(service, HUB, [b"later"])
    done = text_of(ended_job(plain_browser, plain_browser.post(address, {**fields, "rewind": "yes"})))
    assert "Moved 3" in done
    assert _following(database, "moved") == {"0": 6, "1": 6, "2": 6}
    stored = CheckpointReader(database).read(ConsumerKey(HUB, "moved"))["0"]
    assert (stored.offset, stored.owner) == ("5", "policy RootManageSharedAccessKey from 127.0.0.1")
    assert stored.enqueued_time_ms is not None
    assert plain_browser.post(address, {**fields, "rewind": "yes"}).status == 404


@pytest.mark.parametrize(
    ("query", "following"),
    [("to=earliest", 0), ("to=latest", 10), ("to=time&value=1h", 0), ("to=time&value=2999-01-01", 10)],
)
def test_every_place_to_move_to(
    query: str, following: int, service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """One partition of several; the others stay where they are."""
    group = f"to-{query[3:7]}-{following}"
    _checkpoint(database, group, "1", 4)
    _checkpoint(database, group, "2", 4)
    address = f"/consumers/{HUB}/{group}/move"
    page = plain_browser.get(f"{address}?{query}&partition=2").text
    ended_job(plain_browser, plain_browser.post(address, {**hidden_fields(page), "rewind": "yes"}))
    assert _following(database, group) == {"1": 5, "2": following}


@pytest.mark.parametrize(
    "query",
    [
        "to=nowhere",
        "to=sequence-number&value=x",
        "to=sequence-number&value=",
        "to=sequence-number&value=99999",
        "to=time&value=soon",
        "to=latest&partition=17",
        "to=latest&partition=%3Cb%3E",
    ],
)
def test_what_cannot_be_moved_to_is_said_beside_the_form(query: str, plain_browser: PlainBrowser) -> None:
    """Without a failure of the service, and with what was entered kept."""
    answer = plain_browser.get(f"/consumers/{HUB}/any/move?{query}")
    assert answer.status in (400, 404, 409)
    assert 'role="alert"' in answer.text
    assert "<b>" not in answer.text


def test_a_host_at_work_is_not_moved_under_its_feet(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """Unless that is said; a checkpoint that moved after the dry run is left, and that is told."""
    consumer = ConsumerKey(HUB, "busy")
    _checkpoint(database, "busy", "0", 2)
    _checkpoint(database, "busy", "1", 2)
    address = f"/consumers/{HUB}/busy/move?to=latest&partition=0"
    page = plain_browser.get(address).text
    LeaseTable(database).acquire(consumer, "0", "host-b", expected=None)
    refused = ended_job(plain_browser, plain_browser.post(address.split("?")[0], hidden_fields(page)))
    assert "1 partitions are processed now (0 by host-b); no checkpoint was moved." in text_of(refused)
    page = plain_browser.get(address).text
    assert "Hosts process 1 of these partitions now" in text_of(page)
    forced = {**hidden_fields(page), "force": "yes"}
    assert "Moved 1" in text_of(ended_job(plain_browser, plain_browser.post(address.split("?")[0], forced)))
    address = f"/consumers/{HUB}/busy/move?to=latest&partition=1"
    page = plain_browser.get(address).text
    _checkpoint(database, "busy", "1", 5)
    left = text_of(ended_job(plain_browser, plain_browser.post(address.split("?")[0], hidden_fields(page))))
    assert "it has moved since the dry run" in left
    assert _following(database, "busy")["1"] == 6


def test_only_groups_of_the_hub_or_with_checkpoints_are_moved(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """A person's words make no checkpoints under other names: each would be a group from then on."""
    invented = plain_browser.get(f"/consumers/{HUB}/invented/move?to=latest")
    assert invented.status == 404
    assert "has no consumer group" in text_of(invented.text)
    assert "plan" not in hidden_fields(invented.text)
    known = plain_browser.get(f"/consumers/{HUB}/%24default/move?to=latest")
    assert (known.status, "plan" in hidden_fields(known.text)) == (200, True)


@pytest.mark.slow
def test_rights_decide_who_moves(service: HubService, database: Database) -> None:
    """Listen of a hub sees that hub's groups; Manage of another moves nothing here."""
    service.create_hub("neighbour", partition_count=1)
    _checkpoint(database, "guarded", "0", 2)
    reader = signed_in(service, HUB, Claim.LISTEN)
    assert "elsewhere" not in reader.get("/consumers").text
    assert "Needs Manage" in reader.get(f"/consumers/{HUB}/guarded").text
    assert reader.get(f"/consumers/{HUB}/guarded/move?to=latest").status == 403
    neighbour = signed_in(service, "neighbour", Claim.MANAGE)
    assert neighbour.get(f"/consumers/{HUB}/guarded").status == 403
    assert service.ready.console is not None
    owner = PlainBrowser(service.ready.console)
    plan = hidden_fields(owner.get(f"/consumers/{HUB}/guarded/move?to=latest").text)
    # A plan of another group, through an address that the policy may use.
    assert neighbour.post("/consumers/neighbour/guarded/move", plan).status == 404
    assert _following(database, "guarded") == {"0": 3}


@pytest.mark.slow
def test_a_move_that_waits_for_the_database_ends_with_its_policy(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """Protects a revocation from what waits: another writer, such as a pipeline, holds the lock for long."""
    for partition_id in ("0", "1"):
        _checkpoint(database, "waiting", partition_id, 3)

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    manager = signed_in(service, HUB, Claim.MANAGE)
    address = f"/consumers/{HUB}/waiting/move"
    fields = hidden_fields(manager.get(f"{address}?to=latest").text)
    with database.writing():
        started = manager.post(address, fields)
        assert 'class="state ">running' in plain_browser.get(started.headers["location"]).text
        service.call(delete)
    assert "cancelled" in ended_job(plain_browser, started)
    assert _following(database, "waiting") == {"0": 4, "1": 4}


@pytest.mark.slow
def test_dry_runs_of_one_hub_do_not_replace_those_of_others(
    service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever manages a hub could make all other dry runs expire before they are carried out."""
    monkeypatch.setattr(consumers, "_PLANS_MAX", 4)
    hub, busy_hub = service.create_hub(partition_count=1), service.create_hub(partition_count=1)
    manager, busy = signed_in(service, hub, Claim.MANAGE), signed_in(service, busy_hub, Claim.MANAGE)
    address = f"/consumers/{hub}/%24Default/move"
    fields = hidden_fields(manager.get(f"{address}?to=latest").text)
    busy_address = f"/consumers/{busy_hub}/%24Default/move"
    plans = [hidden_fields(busy.get(f"{busy_address}?to=latest").text) for _ in range(6)]
    assert "Moved 1 " in text_of(ended_job(manager, manager.post(address, fields)))
    assert busy.post(busy_address, plans[0]).status == 404
    assert "Moved 1 " in text_of(ended_job(busy, busy.post(busy_address, plans[-1])))


@pytest.mark.slow
def test_many_partitions_come_in_pages(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """120 partitions: 50 to a page, each once, 2 before 10."""
    service.create_hub("wide", partition_count=120)
    move_checkpoint(database, ConsumerKey("wide"), ProcessorCheckpoint("7", 0))
    seen: list[str] = []
    address = "/consumers/wide/%24Default"
    for _ in range(3):
        page = plain_browser.get(address).text
        seen += re.findall(r'<th scope="row" class="n"><a [^>]*partition=(\d+)">', page)
        address = page.split('rel="next" href="', 1)[1].split('"', 1)[0] if 'rel="next"' in page else ""
    assert not address
    assert seen == [str(number) for number in range(120)]
    assert "There are no partitions" in plain_browser.get("/consumers/wide/%24Default?start=999").text


class _Counting(EventProcessor):
    """Processes quickly, and moves its checkpoint."""

    async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await context.checkpoint(events[-1])


@contextmanager
def _host(service: HubService, database: Database, group: str) -> Iterator[None]:
    """A real host in a thread of its own."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    started = threading.Event()

    async def run() -> None:
        stop = asyncio.Event()
        running.append((asyncio.get_running_loop(), stop))
        store = SqlStore(database)
        host = EventProcessorHost.from_connection_string(
            service.connection_string,
            HUB,
            store=store,
            consumer_group=group,
            host_name="host-of-the-test",
            options=EventProcessorOptions(receive_timeout_s=0.2),
            manager_options=PartitionManagerOptions(lease_duration_s=2.0, renew_interval_s=0.3),
        )
        await host.register(_Counting)
        started.set()
        await stop.wait()
        await host.unregister()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(DEADLINE_S)
    try:
        yield
    finally:
        loop, stop = running[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.programs
def test_in_a_browser(
    service: HubService, database: Database, console_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under live load the table follows a host; its end is told as a stall; every page is accessible."""
    monkeypatch.setattr(progress, "STALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(progress, "LEASE_DURATION_S", 2.0)  # the host's
    address = f"/consumers/{HUB}/%24Default"
    with _host(service, database, "$Default"):
        deadline = time.monotonic() + DEADLINE_S
        while len(_following(database, "$Default")) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        console_page.goto(address)
        console_page.get_by_role("cell", name="host-of-the-test").first.wait_for()
        end = append(service, HUB, [b"live"] * 5) + 4
        console_page.get_by_role("row", name="0 caught up").get_by_role(
            "cell", name=f"{end:,}", exact=True
        ).wait_for()
        assert_accessible(console_page)
    append(service, HUB, [b"nobody reads it"])
    console_page.get_by_text("Stalled: partition 0.").wait_for()
    console_page.get_by_role("link", name="Only those in trouble").click()
    console_page.get_by_text("Partitions 1 to 1 of 1 in trouble").wait_for()
    console_page.goto("/consumers")
    console_page.get_by_text("Stalled partitions: telemetry").wait_for()
    assert_accessible(console_page)
    console_page.goto(f"{address}/move")
    console_page.get_by_label("To", exact=True).select_option("latest")
    console_page.get_by_role("button", name="Dry run").click()
    console_page.get_by_text("1 events would be skipped, 0 processed again").wait_for()
    deadline = time.monotonic() + 2 * DEADLINE_S
    while console_page.get_by_role("checkbox").count():  # a lease that the host could not give back runs out
        assert time.monotonic() < deadline, console_page.inner_text("main")
        console_page.reload()
    assert_accessible(console_page)
    console_page.get_by_role("button", name="Move 3 checkpoints").press("Enter")
    console_page.get_by_role("heading", name="Move of checkpoints").wait_for()
    assert_accessible(console_page)
    assert _following(database, "$Default")["0"] == end + 2


ages = st.floats(min_value=0, max_value=1_000)


def _group(moved_s: float, lease_s: float, following: int) -> GroupView:
    moved_at = NOW - timedelta(seconds=moved_s)
    checkpoint = ProcessorCheckpoint("0", following - 1, moved_at=moved_at)
    lease = Lease("0", "host", 1, moved_at, NOW - timedelta(seconds=lease_s), "1")
    return GroupView(LeaseSnapshot({"0": lease}, NOW), {"0": checkpoint})


def _seen(group: GroupView, begin: int, until: int, waiting_s: float | None) -> PartitionProgress:
    log = HubLog("h", 1, frozenset(), {"0": PartitionEnds("h", "0", begin, until, str(until - 1), 0)})
    number = max(begin, (group.checkpoints["0"].sequence_number or 0) + 1)
    unread = {} if waiting_s is None else {("h", 1, "0", number): NOW - timedelta(seconds=waiting_s)}
    return progress_of(
        ConsumerKey("h", "g"), group, log, unread, NOW, open_dead_letters=0, new_dead_letters=0, is_kept=False
    ).partitions[0]


@given(ages, ages, ages, st.integers(0, 20), st.integers(0, 10), st.integers(0, 15))
@pytest.mark.slow
def test_a_stall_is_what_hosts_call_one(
    moved_s: float, lease_s: float, waiting_s: float, following: int, begin: int, more: int
) -> None:
    """Events to read and no step, for twice a lease: both, and neither alone."""
    until = begin + more
    found = _seen(_group(moved_s, lease_s, following), begin, until, waiting_s)
    is_behind = following < until
    assert found.lag.is_beyond_log == (following > until)
    assert found.is_lease_over == (lease_s >= LEASE_DURATION_S)
    expected = is_behind and more > 0 and min(moved_s, waiting_s) >= STALL_TIMEOUT_S
    assert (found.stalled_s is not None) == expected
    if not found.lag.is_beyond_log:
        assert found.lag.events == until - max(begin, following)
        assert found.lag.lost_events == (max(0, begin - following) if following > 0 else 0)


def test_a_group_without_leases_can_stall_too() -> None:
    """A Spark pipeline's checkpoint that stays behind; one whose wait is not known yet is not accused."""
    group = replace(_group(STALL_TIMEOUT_S + 1, 0, 3), leases=LeaseSnapshot({}, NOW))
    assert _seen(group, 0, 9, STALL_TIMEOUT_S + 5).stalled_s == pytest.approx(STALL_TIMEOUT_S + 1)
    assert _seen(group, 0, 9, None).stalled_s is None

"""The pipelines' pages: every state in words, live figures, the log's end, and stopping once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.console.pipeline_process import status_of
from tests.console.processing_support import recreate_hub, signed_in
from tests.console.support import PlainBrowser, assert_accessible, console_service, watch_drawing

from tidegate.broker import AuditRecord, Claim
from tidegate.console.pipelines import reported
from tidegate.console.pipelines.reported import ReportedPipelines
from tidegate.model.pipeline_status import PipelineState, ProcessIdentity
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parent.parent.parent
HUB = "orders"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PipelineFiles:
    """The state directory that the service looks at."""
    return PipelineFiles(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, files: PipelineFiles) -> Iterator[HubService]:
    """A running service that looks at ``files``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_STATE_DIR", str(files.root.parent))
        with console_service(tmp_path_factory.mktemp("console")) as started:
            started.create_hub(HUB)
            yield started


@contextmanager
def running(files: PipelineFiles, name: str, hub: str = HUB) -> Iterator[subprocess.Popen[bytes]]:
    """A pipeline's process; it ends in order once its standard input is closed."""
    words = [sys.executable, "-m", "tests.console.pipeline_process", str(files.root.parent), name, hub]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(browser: PlainBrowser, path: str, pattern: str) -> str:
    """Ask for a page until it says something; each request costs the service some milliseconds."""
    deadline = SystemClock().monotonic() + 60
    while True:
        text = browser.get(path).text
        if re.search(pattern, text):
            return text
        assert SystemClock().monotonic() < deadline, text


@pytest.mark.slow
def test_every_end_is_told_with_what_to_do(files: PipelineFiles, plain_browser: PlainBrowser) -> None:
    """How it ended, when, why and what next; damaged files are named; nothing in them becomes markup."""
    base = replace(status_of("x", HUB), ended_at=datetime(2026, 3, 2, 6, 15, tzinfo=UTC))
    error = "A row <b>was</b> refused. Widen the column."
    files.write(replace(base, name="done", state=PipelineState.ENDED, events_total=123_456))
    files.write(replace(base, name="asked", state=PipelineState.STOPPED))
    files.write(replace(base, name="broken", state=PipelineState.FAILED, error=error, dead_letters_open=31))
    gone = ProcessIdentity(base.process.host, 2**22 + 1, "never")
    files.write(replace(base, name="gone", process=gone, ended_at=None))
    (files.root / "torn").mkdir(parents=True)
    (files.root / "torn" / "status.json").write_text('{"version": 1, "na')
    again = replace(base, name="again", state=PipelineState.STARTING, error="No database.", ended_at=None)
    files.write(again)
    listed = wait_for(plain_browser, "/pipelines", "1 unreadable")
    for words in ("ended", "stopped", "failed", "killed", "123,456", "31 open", "1 unreadable"):
        assert words in listed
    assert "A row &lt;b&gt;was&lt;/b&gt; refused." in listed
    assert "torn/status.json: This is not a pipeline status. Delete it." in listed
    assert f"process {gone.pid} is gone" in plain_browser.get("/pipelines/gone").text
    one = plain_browser.get("/pipelines/broken").text
    assert "<b>was</b>" not in one
    assert "&lt;b&gt;was&lt;/b&gt; refused. Widen the column." in one
    assert "No database.</span> Nothing, unless" in plain_browser.get("/pipelines/again").text
    assert plain_browser.get("/pipelines/torn").status == 400
    found = plain_browser.get("/pipelines?search=broken").text
    assert "/pipelines/broken" in found
    assert "/pipelines/done" not in found


@pytest.mark.slow
def test_a_process_that_says_nothing_is_noticed(files: PipelineFiles, plain_browser: PlainBrowser) -> None:
    """Its process is there, but frozen, or without a disk."""
    silent = status_of("silent", HUB)
    files.write(replace(silent, updated_at=silent.updated_at - timedelta(minutes=3)))
    wait_for(plain_browser, "/pipelines/silent", "has reported nothing for 18")


@pytest.mark.parametrize(
    "name", ["nobody", "..", "%2e%2e", "..%2fdone", "done%2fstatus.json", "%00", "a%0ab"]
)
def test_only_pipelines_have_pages(plain_browser: PlainBrowser, name: str) -> None:
    """No name leads to another file."""
    for path in (f"/pipelines/{name}", f"/console/live/pipelines/{name}", f"/pipelines/{name}/stop"):
        assert plain_browser.ask("GET", path, None, {}).status == 404


@pytest.mark.slow
def test_the_log_ends_where_it_ends(files: PipelineFiles, plain_browser: PlainBrowser) -> None:
    """Of a long log the last lines are shown, whole ones; what is no text does no harm."""
    files.write(replace(status_of("talker", HUB), state=PipelineState.ENDED))
    wait_for(plain_browser, "/pipelines/talker", "spark.log")
    lines = b"".join(b"line %d <i>\n" % number for number in range(20_000))
    files.log_file("talker").write_bytes(lines + b"\xff\xfe last word")
    text = plain_browser.get("/pipelines/talker").text
    assert "last word" in text
    assert "<i>" not in text
    assert "line 19999 &lt;i&gt;" in text
    assert "line 10000 " not in text
    shown = text[text.index('sse-swap="log">') + len('sse-swap="log">') :].lstrip()
    assert re.match(r"line \d+ &lt;i&gt;\n", shown)
    with closing(plain_browser.open("/console/live/pipelines/talker")) as stream:
        while stream.readline() != b"event: log\n":
            pass
        assert re.match(rb"data: line \d+ &lt;i&gt;\n", stream.readline())


@pytest.mark.slow
def test_a_live_page_is_drawn_in_its_turn(
    files: PipelineFiles, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop: what it draws counts against the live pages' share."""
    files.write(replace(status_of("drawn", HUB), state=PipelineState.ENDED))
    wait_for(plain_browser, "/pipelines/drawn", "spark.log")
    found = watch_drawing(monkeypatch)
    with closing(plain_browser.open("/console/live/pipelines/drawn")) as stream:
        while not stream.readline().startswith(b"event: facts"):
            pass
    assert ("pipelines/pipeline_facts.html", True) in found
    assert all(is_drawing for _, is_drawing in found), found


@pytest.mark.slow
def test_stopping_needs_manage_and_is_said_first(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser
) -> None:
    """With Listen alone the button says why it is off, and the form is refused, as is one without a token."""

    async def add(server: TidegateServer) -> str:
        return (await server.broker.create_policy(HUB, "viewer", [Claim.LISTEN])).key

    key = service.call(add)
    with running(files, "guarded") as process:
        text = wait_for(plain_browser, "/pipelines/guarded", "777")
        assert 'href="/pipelines/guarded/stop"' in text
        assert "777" in plain_browser.get("/pipelines/guarded/stop").text
        assert plain_browser.post("/pipelines/guarded/stop", {"form_token": "guessed"}).status == 403
        viewer = PlainBrowser(plain_browser.origin)
        viewer.get("/console/sign-in")
        answer = viewer.post("/console/sign-in", {"policy": "viewer", "key": key, "hub": HUB, "next": "/"})
        assert answer.status == 303
        assert "needs Manage on orders" in viewer.get("/pipelines/guarded").text
        assert viewer.get("/pipelines/guarded/stop").status == 403
        assert viewer.post("/pipelines/guarded/stop").status == 403
        assert process.poll() is None


@pytest.mark.slow
def test_a_hubs_policy_sees_its_pipelines_only(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser
) -> None:
    """Those of other hubs, and those whose status is damaged, are neither listed nor shown: the answer is as
    if no pipeline had the name. Where the service's machine has them all is for policies of the namespace.
    """

    async def add(server: TidegateServer) -> str:
        return (await server.broker.create_policy(HUB, "narrow", [Claim.LISTEN])).key

    files.write(replace(status_of("ours", HUB), state=PipelineState.ENDED))
    files.write(replace(status_of("foreign", "payments"), state=PipelineState.ENDED))
    (files.root / "damaged").mkdir()
    (files.root / "damaged" / "status.json").write_text('{"version": 1, "na')
    key = service.call(add)
    assert str(files.root) in wait_for(plain_browser, "/pipelines", "/pipelines/foreign")
    plain_browser.get("/console/sign-in")
    plain_browser.post("/console/sign-in", {"policy": "narrow", "key": key, "hub": HUB, "next": "/"})
    listed = plain_browser.get("/pipelines").text
    assert str(files.root) not in listed + plain_browser.get("/pipelines/ours").text
    assert "/pipelines/ours" in listed
    assert "/pipelines/foreign" not in listed
    for name in ("foreign", "damaged"):
        for path in (f"/pipelines/{name}", f"/console/live/pipelines/{name}", f"/pipelines/{name}/stop"):
            absent = plain_browser.get(path.replace(name, "absent"))
            answer = plain_browser.get(path)
            assert (answer.status, answer.text.replace(name, "absent")) == (404, absent.text)
        assert plain_browser.post(f"/pipelines/{name}/stop").status == 404


@pytest.mark.slow
def test_no_pipeline_is_stopped_once_the_right_has_ended(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a revocation from a form that waits while the pipeline is found, by the last of its looks."""
    is_looking, may_go_on = threading.Event(), threading.Event()
    look = ReportedPipelines._look_now

    def look_late(view: ReportedPipelines) -> object:
        is_looking.set()
        may_go_on.wait(60)
        return look(view)

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    with running(files, "watched") as process:
        wait_for(plain_browser, "/pipelines/watched", "777")
        manager = signed_in(service, HUB, Claim.MANAGE)
        monkeypatch.setattr(reported, "_FRESH_S", 600.0)
        monkeypatch.setattr(ReportedPipelines, "_look_now", look_late)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(manager.post, "/pipelines/watched/stop")
            assert is_looking.wait(60)
            service.call(delete)
            may_go_on.set()
            assert asked.result(60).status == 403
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_no_pipeline_of_another_hub_is_stopped(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a pipeline that was started under a name that one of the user's hub has just had."""
    ours = replace(status_of("nightly", HUB), state=PipelineState.ENDED)
    files.write(ours)
    wait_for(plain_browser, "/pipelines", "/pipelines/nightly")
    manager = signed_in(service, HUB, Claim.MANAGE)
    monkeypatch.setattr(reported, "_FRESH_S", 600.0)  # the console still knows only ours
    with running(files, "nightly", "payments") as process:
        deadline = SystemClock().monotonic() + 60
        while files.read("nightly").event_hub == HUB:
            assert SystemClock().monotonic() < deadline
            time.sleep(0.01)
        answer = manager.post("/pipelines/nightly/stop")
        assert (answer.status, "payments" in answer.text) == (404, False)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


@pytest.mark.slow
def test_no_log_and_no_figures_of_another_hub_are_shown(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the log of a pipeline that was started under a name that one of the user's hub has just had,
    and the figures that are kept from a hub's pipeline that had the name before.
    """
    first = replace(status_of("weekly", HUB), processed_events_per_s=31_337.0)
    files.write(first)
    files.log_file("weekly").write_text("ours")
    viewer = signed_in(service, HUB, Claim.LISTEN)
    wait_for(plain_browser, "/pipelines/weekly", "31,337 /s")
    wait_for(plain_browser, "/pipelines/weekly", "highest 31,337")
    assert "ours" in viewer.get("/pipelines/weekly").text
    with monkeypatch.context() as patch:
        patch.setattr(reported, "_FRESH_S", 600.0)
        files.write(replace(first, event_hub="payments", processed_events_per_s=1.0))
        files.log_file("weekly").write_text("theirs")
        text = viewer.get("/pipelines/weekly").text
        assert ">weekly<" in text
        assert "theirs" not in text
    text = wait_for(plain_browser, "/pipelines/weekly", "lowest 1")
    assert "highest 31,337" not in text
    assert "theirs" in text


@pytest.mark.slow
def test_a_hub_created_again_shows_no_pipelines_of_the_earlier_one(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser
) -> None:
    """Protects a former tenant, whose pipelines and their logs are known by the hub's name alone."""
    hub = service.create_hub()
    former = status_of("of-former", hub)
    files.write(former)
    files.log_file("of-former").write_text("theirs")
    files.write(replace(status_of("of-both", hub), processed_events_per_s=31_337.0))
    wait_for(plain_browser, "/pipelines/of-both", "highest 31,337")
    recreate_hub(service, hub)
    files.write(replace(status_of("of-both", hub), processed_events_per_s=1.0))
    manager = signed_in(service, hub, Claim.MANAGE)
    listed = wait_for(manager, "/pipelines", "/pipelines/of-both")
    assert "of-former" not in listed
    for path in ("/pipelines/of-former", "/console/live/pipelines/of-former", "/pipelines/of-former/stop"):
        assert manager.get(path).status == 404
    assert manager.post("/pipelines/of-former/stop").status == 404
    assert "highest 31,337" not in wait_for(manager, "/pipelines/of-both", "highest 1[^,0-9]")
    # A policy of the namespace covers both hubs.
    assert "theirs" in plain_browser.get("/pipelines/of-former").text
    assert "highest 31,337" in plain_browser.get("/pipelines/of-both").text


@pytest.mark.slow
def test_a_pipeline_is_asked_to_stop_once(
    service: HubService, files: PipelineFiles, plain_browser: PlainBrowser
) -> None:
    """Who presses twice, while it comes to an end, does not end it in the middle of its work; and is named in
    the audit trail, once.
    """

    async def newest_first(server: TidegateServer) -> list[AuditRecord]:
        return server.broker.audit.newest_first()

    with running(files, "patient") as process:
        wait_for(plain_browser, "/pipelines/patient", "777")
        plain_browser.get("/pipelines/patient/stop")
        page = plain_browser.follow(plain_browser.post("/pipelines/patient/stop"))
        assert "was asked to stop" in page.text
        assert plain_browser.post("/pipelines/patient/stop").status == 303
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
        assert "stopped" in wait_for(plain_browser, "/pipelines/patient", r">stopped</span>")
        page = plain_browser.follow(plain_browser.post("/pipelines/patient/stop"))
        assert "is not running" in page.text
    records = [each for each in service.call(newest_first) if each.new == {"pipeline": "patient"}]
    assert [(each.action, each.target, each.policy) for each in records] == [
        ("stopPipeline", HUB, "RootManageSharedAccessKey")
    ]


@pytest.mark.programs
def test_a_browser_sees_it_live_and_stops_it(files: PipelineFiles, console_page: Page) -> None:
    """Figures change without a reload, a killed process is told by itself; both pages are accessible."""
    with running(files, "lively") as process:
        console_page.goto("/pipelines")
        row = console_page.locator("tr", has=console_page.get_by_role("link", name="lively"))
        row.get_by_text("2,345 /s").wait_for()
        row.get_by_role("img", name=re.compile("Events processed per second")).wait_for()
        assert_accessible(console_page)
        console_page.get_by_role("link", name="lively").click()
        total = console_page.locator(".figure", has_text="micro-batches").locator("dd")
        before = total.inner_text()
        console_page.wait_for_function("before => document.body.innerText.indexOf(before) < 0", arg=before)
        console_page.locator("canvas").wait_for()
        assert_accessible(console_page)
        console_page.get_by_role("link", name="Stop…").click()
        console_page.get_by_role("button", name="Stop lively").click()
        console_page.get_by_text("was asked to stop; its micro-batch").wait_for()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
        console_page.locator(".state", has_text="stopped").wait_for()
        assert console_page.get_by_role("link", name="Stop…").count() == 0
    with running(files, "lively") as process:
        console_page.locator(".state", has_text="running").wait_for()
        process.send_signal(signal.SIGKILL)
        console_page.locator(".state", has_text="killed").wait_for()
        console_page.get_by_text("is gone and reported no end").wait_for()

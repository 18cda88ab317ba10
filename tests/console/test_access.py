"""Signing in: who gets in, who may do what, and what keeps others out."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import queue
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from tests.console.explorer_support import send_events
from tests.console.support import PlainBrowser, assert_accessible, console_service
from tools.vendoring import MANIFEST, VENDOR_DIRECTORY

from tidegate.broker import ROOT_POLICY_NAME, Claim
from tidegate.console.app import SECURITY_HEADERS
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.values import EventPage, Wanted
from tidegate.console.frame import live
from tidegate.console.frame import sessions as access
from tidegate.console.frame.sessions import rights_of
from tidegate.console.overview import page as overview
from tidegate.console.pipelines.reported import PipelineList, ReportedPipelines
from tidegate.model.events import EventData
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "a key of the tests of the console"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A service whose root key is not the development key."""
    with console_service(tmp_path_factory.mktemp("console"), root_key=KEY) as started:
        yield started


def test_a_used_link_leaves_a_session_alone(plain_browser: PlainBrowser) -> None:
    """And says so: who is signed in is not asked to believe the contrary."""
    used = "/console/sign-in?link=used&next=/hubs"
    assert "<strong>Not signed in.</strong> The link is not complete" in plain_browser.get(used).text
    assert _sign_in(plain_browser, ROOT_POLICY_NAME, KEY) == 303
    shown = plain_browser.get(used).text
    assert "<strong>Nothing has changed.</strong> The link is not complete" in shown
    assert f'You are still signed in, with the policy {ROOT_POLICY_NAME}: <a href="/hubs">' in shown


def _sign_in(browser: PlainBrowser, policy: str, key: str, hub: str = "", wanted: str = "/") -> int:
    fields = {"policy": policy, "key": key, "hub": hub, "next": wanted}
    return browser.post("/console/sign-in", fields).status


def test_whoever_is_not_signed_in_is_led_to_where_they_can(plain_browser: PlainBrowser) -> None:
    """Every page asks; live parts say no; nothing of the service is told."""
    answer = plain_browser.get("/hubs?page=2")
    assert (answer.status, answer.headers["location"]) == (303, "/console/sign-in?next=/hubs%3Fpage%3D2")
    assert plain_browser.get("/console/live/overview").status == 401
    assert plain_browser.get(plain_browser.get("/").headers["location"]).status == 200


def test_the_root_key_signs_in_and_signing_out_ends_it(plain_browser: PlainBrowser) -> None:
    """The cookie is for this site and no script; after signing out it is worth nothing."""
    assert _sign_in(plain_browser, ROOT_POLICY_NAME, "wrong") == 403
    assert not plain_browser.cookies
    answer = plain_browser.post(
        "/console/sign-in", {"policy": ROOT_POLICY_NAME, "key": KEY, "next": "/consumers?group=a"}
    )
    assert (answer.status, answer.headers["location"]) == (303, "/consumers?group=a")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert KEY not in cookie
    page = plain_browser.get("/")
    assert page.status == 200
    assert KEY not in page.text
    kept = dict(plain_browser.cookies)
    assert plain_browser.post("/console/sign-out").status == 303
    plain_browser.cookies = kept
    assert plain_browser.get("/").status == 303


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        ([";" * 16_000], ""),
        (["a=1;tidegate-console-80=one"], "one"),
        (["tidegate-console-80=one; tidegate-console-80=two ;", "b=;"], "two"),
        (["tidegate-console-80=one", ";\ttidegate-console-80=two=3"], "two=3"),
        (["xtidegate-console-80=one; tidegate-console-80 =two; \xa0tidegate-console-80=three"], ""),
        (["; " * 5_000 + "tidegate-console-80=one" + "; " * 2_000], "one"),
    ],
)
def test_the_cookie_is_found_at_once(cookies: list[str], found: str) -> None:
    """Protects the event loop from a stranger's header with thousands of cookies: it is not taken apart."""
    headers = [(b"host", b"a:80"), *((b"cookie", text.encode("latin-1")) for text in cookies)]
    request = Request({"type": "http", "scheme": "http", "headers": headers})
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        session_id = access.session_id_in(request)
    finally:
        sys.setprofile(None)
    assert session_id == found
    assert calls < 2_000  # compiling the pattern


def test_the_cookie_is_the_hosts_own_over_https(tmp_path: Path) -> None:
    """Also behind a proxy that ends TLS, if it is trusted: no page by plain HTTP, and none of a host beside
    this one, can then plant a session of somebody else. Nobody else's word about the scheme counts.
    """
    https = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    fields = {"policy": ROOT_POLICY_NAME, "key": KEY}
    with console_service(tmp_path / "trusting", root_key=KEY, trusted_proxies=["127.0.0.1"]) as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        assert browser.post("/console/sign-in", fields, headers=https).status == 403, "a page by plain HTTP"
        https["Origin"] = browser.origin.replace("http:", "https:")
        answer = browser.post("/console/sign-in", fields, headers=https)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-tidegate-console-")
        assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))
        ((name, session_id),) = browser.cookies.items()
        assert browser.get("/", headers=https).status == 200
        browser.cookies = {name.removeprefix("__Host-"): session_id}
        assert browser.get("/", headers=https).status == 303
        for blank in ("\x85", "\xa0"):  # browsers let other hosts of the domain set such names
            browser.cookies = {f"{blank}{name}": session_id}
            assert browser.get("/", headers=https).status == 303
        browser.cookies = {name: session_id}
        assert browser.get("/", headers={"X-Forwarded-Proto": "https, http"}).status == 303
        browser.get("/", headers=https)
        gone = browser.post("/console/sign-out", headers=https).headers["set-cookie"]
        assert {f'{name}=""', "Max-Age=0", "Secure", "Path=/"} <= set(gone.split("; "))
        forwarded = {"Forwarded": 'for=192.0.2.7;proto=http, for=192.0.2.7; Proto="HTTPS"'}
        forwarded["Origin"] = https.pop("Origin")
        answer = PlainBrowser(service.ready.console).post("/console/sign-in", fields, headers=forwarded)
        assert "Secure" in answer.headers["set-cookie"]
    settings = tmp_path / "tls.json"
    settings.write_text(json.dumps({"root_key": KEY, "trusted_proxies": ["127.0.0.1"]}))
    with HubService(tmp_path / "tls", is_http_used=True, is_tls_used=True, config=settings) as service:
        assert service.ready.https is not None
        port = int(service.ready.https.rpartition(":")[2])
        context = ssl.create_default_context(cafile=service.ready.ca_file)
        with closing(HTTPSConnection("localhost", port, context=context, timeout=60)) as connection:
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            connection.request("POST", "/console/sign-in", urlencode(fields), form)
            assert f"__Host-tidegate-console-{port}=" in (connection.getresponse().headers["set-cookie"])
    with console_service(tmp_path / "wary", root_key=KEY) as service:
        assert service.ready.console is not None
        answer = PlainBrowser(service.ready.console).post("/console/sign-in", fields, headers=https)
        assert "Secure" not in answer.headers["set-cookie"]


def test_a_connection_string_signs_in(service: HubService, plain_browser: PlainBrowser) -> None:
    """What ``tidegate serve`` has told can be pasted whole."""
    assert _sign_in(plain_browser, "", service.connection_string) == 303
    assert plain_browser.get("/").status == 200
    other = PlainBrowser(plain_browser.origin)
    assert _sign_in(other, "", "Endpoint=sb://x/;Nonsense=1") == 403
    assert _sign_in(other, "", "Endpoint=sb://x/") == 403


@pytest.mark.parametrize(
    "wanted", ["//example.org", "https://example.org/", "/\\example.org", "", "/a\r\nb: c"]
)
def test_signing_in_leads_nowhere_else(plain_browser: PlainBrowser, wanted: str) -> None:
    """A link that somebody sends cannot make the sign-in page lead to another site."""
    answer = plain_browser.post("/console/sign-in", {"policy": ROOT_POLICY_NAME, "key": KEY, "next": wanted})
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_a_key_that_is_taken_away_ends_its_sessions(service: HubService, plain_browser: PlainBrowser) -> None:
    """At the next request, without anybody signing out; what is live ends within a second."""

    async def regenerate(server: TidegateServer) -> None:
        await server.broker.regenerate_key(None, "reader")

    key = _create_policy(service, None, "reader", Claim.LISTEN)
    assert _sign_in(plain_browser, "reader", key) == 303
    assert plain_browser.get("/").status == 200
    stream = plain_browser.open("/console/live/overview")
    assert stream.readline().startswith(b"event: ")
    service.call(regenerate)
    stream.read()
    stream.close()
    assert plain_browser.get("/").status == 303
    assert _sign_in(PlainBrowser(plain_browser.origin), "reader", key) == 403


@pytest.mark.parametrize("end", ["regenerate", "delete", "sign out"])
@pytest.mark.slow
def test_a_live_page_ends_with_its_session_at_once(
    end: str, service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the page waits for something that never comes; another session's page goes on."""
    context, is_over = overview.OverviewPages._context, threading.Event()
    waiting: queue.Queue[str] = queue.Queue()
    beats: Counter[str] = Counter()

    async def never_again(self: overview.OverviewPages, request: Request) -> Mapping[str, Any]:
        policy = rights_of(request).policy_name
        beats[policy] += 1
        if beats[policy] > 1 and not is_over.is_set():
            waiting.put(policy)
            await asyncio.get_running_loop().create_future()
        return await context(self, request)

    async def take_away(server: TidegateServer) -> None:
        if end == "delete":
            await server.broker.delete_policy(None, policy)
        else:
            await server.broker.regenerate_key(None, policy)

    monkeypatch.setattr(overview.OverviewPages, "_context", never_again)
    policy, other = f"goes by {end}".replace(" ", "-"), f"stays at {end}".replace(" ", "-")
    streams = []
    browsers = plain_browser, PlainBrowser(plain_browser.origin)
    for browser, name in zip(browsers, (policy, other), strict=True):
        assert _sign_in(browser, name, _create_policy(service, None, name, Claim.LISTEN)) == 303
        browser.get("/hubs")
        streams.append(browser.open("/console/live/overview"))
    with closing(streams[0]), closing(streams[1]):
        assert {waiting.get(timeout=30), waiting.get(timeout=30)} == {policy, other}
        if end == "sign out":
            assert plain_browser.post("/console/sign-out").status == 303
        else:
            service.call(take_away)
        streams[0].read()  # the connection's own deadline is 30 s
        assert plain_browser.get("/").status == 303
        is_over.set()
        assert browsers[1].get("/hubs").status == 200
        assert beats[other] == 2, "another session's page was asked again"


def test_a_session_does_not_come_back_with_a_policy_made_again(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """Deleting a policy signs its people out for good, though the new one has the same name and key."""

    async def make_again(server: TidegateServer) -> None:
        await server.broker.delete_policy(None, "twice")
        await server.broker.create_policy(None, "twice", [Claim.LISTEN], key=key, secondary_key=KEY)

    key = _create_policy(service, None, "twice", Claim.LISTEN)
    assert _sign_in(plain_browser, "twice", key) == 303
    assert plain_browser.get("/").status == 200
    service.call(make_again)
    assert plain_browser.get("/").status == 303
    assert _sign_in(plain_browser, "twice", key) == 303


def test_a_hubs_policy_signs_in_for_that_hub(service: HubService, plain_browser: PlainBrowser) -> None:
    """Where two hubs have a policy of that name and key, the hub has to be named."""
    hubs = service.create_hub(), service.create_hub()
    for hub in hubs:
        _create_policy(service, hub, "local", Claim.LISTEN, key=KEY)
    assert _sign_in(plain_browser, "local", KEY) == 403
    assert _sign_in(plain_browser, "local", KEY, hub="elsewhere") == 403
    assert _sign_in(plain_browser, "local", KEY, hub=hubs[1].upper()) == 303
    assert f"on {hubs[1]}" in plain_browser.follow(plain_browser.get("/")).text


def test_a_hubs_policy_knows_the_hub_by_its_own_name(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """A redrive is of the pipeline whose hub is written as the hub is."""
    hub = service.create_hub("Readings")
    key = _create_policy(service, hub, "reader", Claim.LISTEN)
    assert _sign_in(plain_browser, "reader", key, hub="readings") == 303
    assert plain_browser.get("/").headers["location"] == "/hubs/Readings"

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)

    service.call(delete)
    assert plain_browser.get("/hubs/Readings").status == 303, "the session has ended with its hub"


@pytest.mark.slow
def test_sessions_of_one_policy_sign_out_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many, those make room that are of the hub and of the policy with most."""
    monkeypatch.setattr(access, "SESSIONS_MAX", 8)
    with console_service(tmp_path, root_key=KEY) as service:
        assert service.ready.console is not None
        hub = service.create_hub()
        _create_policy(service, hub, "few", Claim.LISTEN, key=KEY)
        _create_policy(service, hub, "many", Claim.LISTEN, key=KEY)
        policies = [ROOT_POLICY_NAME, "few", *["many"] * 12]
        browsers = [PlainBrowser(service.ready.console) for _ in policies]
        for browser, policy in zip(browsers, policies, strict=True):
            assert _sign_in(browser, policy, KEY) == 303
        root, few, *many = (browser.get(f"/hubs/{hub}").status != 303 for browser in browsers)
    assert (root, few) == (True, True)
    assert many == [False] * 6 + [True] * 6


def test_live_pages_of_one_policy_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listen on one hub is enough to open live pages: the oldest of theirs ends when somebody else comes."""
    monkeypatch.setattr(live, "STREAMS_MAX", 3)
    with console_service(tmp_path, root_key=KEY) as service, ExitStack() as stack:
        assert service.ready.console is not None
        hub = service.create_hub()
        _create_policy(service, hub, "many", Claim.LISTEN, key=KEY)
        greedy, other = PlainBrowser(service.ready.console), PlainBrowser(service.ready.console)
        assert _sign_in(greedy, "many", KEY, hub) == 303
        assert _sign_in(other, ROOT_POLICY_NAME, KEY) == 303
        theirs = [stack.enter_context(closing(greedy.open(f"/console/live/hubs/{hub}"))) for _ in range(3)]
        for stream in theirs:
            assert stream.readline().startswith(b"event: ")
        assert greedy.get(f"/console/live/hubs/{hub}").status == 503
        mine = stack.enter_context(closing(other.open(f"/console/live/hubs/{hub}")))
        assert mine.readline().startswith(b"event: ")
        theirs[0].read()  # it ends; the connection's own deadline is 30 s
        assert greedy.get(f"/console/live/hubs/{hub}").status == 503
        assert theirs[1].readline()


def test_forms_come_from_the_sessions_own_pages(service: HubService, plain_browser: PlainBrowser) -> None:
    """Neither another site's page nor one of another session can act for whoever is signed in."""
    assert _sign_in(plain_browser, ROOT_POLICY_NAME, KEY) == 303
    plain_browser.get("/")
    for headers in (
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": f"http://{plain_browser.host}:1"},
    ):
        assert plain_browser.post("/console/sign-out", headers=headers).status == 403
    other = PlainBrowser(plain_browser.origin)
    assert _sign_in(other, ROOT_POLICY_NAME, KEY) == 303
    other.get("/")
    assert plain_browser.post("/console/sign-out", {"form_token": other.form_token}).status == 403
    assert plain_browser.post("/console/sign-out", {"form_token": ""}).status == 403
    assert plain_browser.get("/").status == 200


def test_a_form_that_breaks_off_is_no_failure_of_the_service(
    service: HubService, caplog: pytest.LogCaptureFixture
) -> None:
    """Else strangers would fill the log with errors and their tracebacks, whose number nothing limits."""
    assert service.ready.http is not None
    host, _, port = service.ready.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            b"POST /console/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the form is being read

    async def wait_done(server: TidegateServer) -> None:
        reading = [task for task in asyncio.all_tasks() if "run_asgi" in repr(task)]
        if reading:
            await asyncio.wait(reading, timeout=60)

    service.call(wait_done)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("end", ["regenerate", "delete", "sign out"])
def test_a_form_that_is_slow_does_not_outlive_its_session(
    end: str, service: HubService, plain_browser: PlainBrowser
) -> None:
    """The head of a form keeps no right: what is complete after the session's end changes nothing."""

    async def take_away(server: TidegateServer) -> None:
        if end == "delete":
            await server.broker.delete_policy(hub, "manager")
        else:
            await server.broker.regenerate_key(hub, "manager")

    async def is_there(server: TidegateServer) -> bool:
        return hub in [known.name for known in server.broker.list_event_hubs()]

    hub = service.create_hub()
    key = _create_policy(service, hub, "manager", Claim.MANAGE)
    assert _sign_in(plain_browser, "manager", key, hub) == 303
    assert plain_browser.get(f"/hubs/{hub}/delete").status == 200
    body = urlencode({"form_token": plain_browser.form_token, "name": hub})
    cookies = "; ".join(f"{name}={value}" for name, value in plain_browser.cookies.items())
    head = (
        f"POST /hubs/{hub}/delete HTTP/1.1\r\nHost: {plain_browser.host}:{plain_browser.port}\r\n"
        f"Cookie: {cookies}\r\nOrigin: {plain_browser.origin}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((plain_browser.host, plain_browser.port or 80), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the form is being read
        if end == "sign out":
            assert plain_browser.post("/console/sign-out").status == 303
        else:
            service.call(take_away)
        connection.sendall(body.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")
    assert service.call(is_there)


@pytest.mark.parametrize("address", ["explorer", "explorer/page.jsonl"])
def test_a_page_that_waits_does_not_outlive_its_session(
    address: str, service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of events waits for others': after its policy's end it shows nothing."""
    is_waiting, may_go_on = threading.Event(), threading.Event()
    read = BrokerEvents.read

    async def read_late(events: BrokerEvents, *given: Any, is_wanted: Wanted) -> EventPage[Any]:
        is_waiting.set()
        await asyncio.to_thread(may_go_on.wait, 60)
        return await read(events, *given, is_wanted=is_wanted)

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_policy(hub, "reader")

    hub = service.create_hub()
    key = _create_policy(service, hub, "reader", Claim.LISTEN)
    send_events(service, hub, EventData(b"one"))
    assert _sign_in(plain_browser, "reader", key, hub) == 303
    assert plain_browser.get(f"/hubs/{hub}/{address}").status == 200
    monkeypatch.setattr(BrokerEvents, "read", read_late)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(plain_browser.get, f"/hubs/{hub}/{address}")
        assert is_waiting.wait(60)
        service.call(delete)
        may_go_on.set()
        answer = asked.result(60)
    assert answer.status == 403


def test_every_page_is_refused_once_its_session_has_ended(
    service: HubService, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a revocation from pages that wait for a thread or the database: their answers are checked."""
    is_waiting, may_go_on = threading.Event(), threading.Event()
    look = ReportedPipelines.pipelines

    async def look_late(view: ReportedPipelines) -> PipelineList:
        is_waiting.set()
        await asyncio.to_thread(may_go_on.wait, 60)
        return await look(view)

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_policy(hub, "reader")

    hub = service.create_hub()
    key = _create_policy(service, hub, "reader", Claim.LISTEN)
    assert _sign_in(plain_browser, "reader", key, hub) == 303
    assert plain_browser.get("/pipelines").status == 200
    monkeypatch.setattr(ReportedPipelines, "pipelines", look_late)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(plain_browser.get, "/pipelines")
        assert is_waiting.wait(60)
        service.call(delete)
        may_go_on.set()
        answer = asked.result(60)
    assert answer.status == 403
    assert "Your session has ended" in answer.text


def test_a_form_that_ends_its_own_session_is_answered(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """A manager who deletes the hub of the session's policy sees no refusal: it was done."""
    hub = service.create_hub()
    key = _create_policy(service, hub, "manager", Claim.MANAGE)
    assert _sign_in(plain_browser, "manager", key, hub) == 303
    plain_browser.get(f"/hubs/{hub}/delete")
    answer = plain_browser.post(f"/hubs/{hub}/delete", {"name": hub})
    assert (answer.status, answer.headers["location"]) == (303, "/hubs")


def test_whoever_is_nobody_cannot_send_much(plain_browser: PlainBrowser) -> None:
    """A form is bounded, before anything of it is read, and so is one that does not say how long it is."""
    large = {"policy": ROOT_POLICY_NAME, "key": "x" * 20_000}
    assert plain_browser.post("/console/sign-in", large).status == 400
    chunked = {"Transfer-Encoding": "chunked", "Content-Type": "application/x-www-form-urlencoded"}
    assert plain_browser.ask("POST", "/console/sign-in", "0\r\n\r\n", chunked).status == 400
    garbled = {"Content-Type": "multipart/form-data"}
    assert plain_browser.ask("POST", "/console/sign-in", "x", garbled).status == 400


def test_the_development_key_signs_in_on_this_machine_only(tmp_path: Path) -> None:
    """Not through a proxy, not under another name for this address, and not once the key is another."""
    with console_service(tmp_path) as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        assert browser.get("/").status == 200
        cookies = dict(browser.cookies)
        assert browser.get("/", headers={"X-Forwarded-For": "203.0.113.7"}).status == 303
        assert browser.get("/", headers={"Host": "evil.example.org:80"}).status == 303
        browser.cookies = cookies
        assert browser.get("/", headers={"Host": f"localhost:{browser.port}"}).status == 200

        async def regenerate(server: TidegateServer) -> None:
            await server.broker.regenerate_key(None, ROOT_POLICY_NAME)

        service.call(regenerate)
        assert browser.get("/").status == 303


def test_every_answer_has_the_security_headers(plain_browser: PlainBrowser) -> None:
    """Pages, redirects, errors and files; files keep for ever where their address has their hash."""
    assert _sign_in(plain_browser, ROOT_POLICY_NAME, KEY) == 303
    page = plain_browser.get("/")
    static = next(part for part in page.text.split('"') if part.startswith("/console/static/console.css"))
    answers = [page, plain_browser.get(static), plain_browser.get("/hubs/nothing/at/all")]
    plain_browser.cookies.clear()
    answers.append(plain_browser.get("/"))
    assert [answer.status for answer in answers] == [200, 200, 404, 303]
    for answer in answers:
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name.lower()] == value
    assert "immutable" in answers[1].headers["cache-control"]
    assert answers[0].headers["cache-control"] == "no-store"
    assert plain_browser.get("/console/static/../app.py").status in (303, 404)
    # A stranger may ask for a hundred parts of one, each of which takes the service two turns of a thread.
    part = plain_browser.get(static, headers={"Range": "bytes=0-0,2-2"})
    assert (part.status, part.body) == (200, plain_browser.get(static).body)


def test_no_file_is_looked_for_in_many_folders(
    plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger may ask for one in four thousand: 20 ms of a thread, which keeps the event loop waiting."""
    looked: list[str] = []
    look = StaticFiles.lookup_path

    def watched(files: StaticFiles, path: str) -> tuple[str, os.stat_result | None]:
        looked.append(path)
        return look(files, path)

    monkeypatch.setattr(StaticFiles, "lookup_path", watched)
    paths = ("console.css", "a/" * 4_000)
    assert [plain_browser.get(f"/console/static/{path}").status for path in paths] == [200, 404]
    assert looked == ["console.css"]


def test_the_gateways_addresses_are_not_the_consoles(
    service: HubService, plain_browser: PlainBrowser
) -> None:
    """Publishing to hubs that are named as pages works, and their errors are in the gateway's shape."""
    for hub in ("hubs", "console", "pipelines"):
        service.create_hub(hub)
        token = _signature(service, hub)
        sent = plain_browser.ask("POST", f"/{hub}/messages", "x", {"Authorization": token})
        assert (sent.status, sent.headers["content-type"]) == (201, "application/xml; charset=utf-8")
        refused = plain_browser.ask("POST", f"/{hub}/messages", "x", {})
        assert (refused.status, refused.headers["content-type"]) == (401, "application/xml; charset=utf-8")
    assert plain_browser.get("/health").status == 200
    assert plain_browser.get("/openapi.json").headers["content-type"] == "application/json"
    assert plain_browser.get("/nothing").headers["content-type"] == "application/xml; charset=utf-8"
    assert (
        plain_browser.ask("PUT", "/hubs/messages", "x", {})
        .headers["content-type"]
        .startswith("application/xml")
    )


@pytest.mark.parametrize("target", ["x", "*"])
def test_a_target_without_a_slash_is_nobodys_address(target: str, plain_browser: PlainBrowser) -> None:
    """A request line may name what is no path (RFC 9112 section 3.2); that is no failure of the service."""
    assert plain_browser.ask("GET", target, None, {}).status in (400, 404)


def test_no_console_where_it_is_switched_off(tmp_path: Path) -> None:
    """Then the addresses are the gateway's, which has nothing there."""
    with console_service(tmp_path, is_console_served=False) as service:
        assert service.ready.console is None
        answer = PlainBrowser(f"http://{service.ready.http}/").get("/")
        assert (answer.status, answer.headers["content-type"]) == (404, "application/xml; charset=utf-8")


def test_what_is_shipped_is_what_npm_has() -> None:
    """The files are those whose hashes ``make vendor`` has written down, and all have a licence."""
    manifest = json.loads(MANIFEST.read_text())
    files = {file["file"]: file["sha256"] for package in manifest for file in package["files"]}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR_DIRECTORY.iterdir()}
    assert found.pop(MANIFEST.name)
    assert found == files
    for package in manifest:
        assert any("LICENSE" in file["file"] for file in package["files"])


@pytest.mark.programs
def test_signing_in_with_a_browser(console_page: Page) -> None:
    """From a page, through the form, back to that page, by keyboard; a wrong key is told."""
    console_page.goto("/?wanted")
    assert_accessible(console_page)
    console_page.get_by_label("Policy").fill(ROOT_POLICY_NAME)
    console_page.get_by_label("Key").fill("wrong")
    console_page.keyboard.press("Enter")
    assert "Not signed in." in console_page.get_by_role("alert").inner_text()
    assert_accessible(console_page)
    console_page.get_by_label("Key").fill(KEY)
    console_page.keyboard.press("Enter")
    console_page.wait_for_url("**/?wanted")
    console_page.get_by_role("button", name="Sign out").click()
    console_page.wait_for_url("**/console/sign-in")


def _create_policy(
    service: HubService, hub: str | None, name: str, claim: Claim, *, key: str | None = None
) -> str:
    async def create(server: TidegateServer) -> str:
        return (await server.broker.create_policy(hub, name, [claim], key=key)).key

    return service.call(create)


def _signature(service: HubService, hub: str) -> str:
    """What a publisher of the hub sends along."""
    expiry = int(SystemClock().now_utc().timestamp()) + 600
    audience = f"sb://{service.ready.http}/{hub}"
    return make_sas_token(audience=audience, key_name=ROOT_POLICY_NAME, key=KEY, expiry=expiry)

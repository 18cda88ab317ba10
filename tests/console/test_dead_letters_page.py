"""Dead letters in the console: found by reason and time, seen whole, discarded and run again."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.console.processing_support import (
    DEADLINE_S,
    append,
    ended_job,
    hidden_fields,
    signed_in,
    text_of,
)
from tests.console.support import PlainBrowser, assert_accessible, console_service, watch_drawing

from tidegate.broker import AuditRecord, Claim
from tidegate.client import BlockingConsumer
from tidegate.console.dead_letters import letters as dead_letters
from tidegate.console.dead_letters import page as dead_letters_page
from tidegate.console.dead_letters.filter import LetterQuery, format_place, parse_place
from tidegate.console.dead_letters.histogram import DAYS_MAX, HOURS_MAX, histogram_of
from tidegate.console.dead_letters.letters import DeadLetterView, LetterEvent, LetterSums
from tidegate.console.dead_letters.page import sums_context
from tidegate.console.frame import shared_answers
from tidegate.console.frame.rendering import rendered
from tidegate.console.frame.rights import Rights
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents, EventData, PropertyValue
from tidegate.server.app import TidegateServer
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
    Pipeline,
    ReasonCount,
    load_pipeline,
    process_partition_batch,
)
from tidegate.sql.dead_letters.pages import DeadLetterPlace, HourCount
from tidegate.testing.hub import HubService
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.event_codec import decode_event, encode_event

if TYPE_CHECKING:
    from playwright.sync_api import Page

T = TypeVar("T")

PIPELINES = """
import json, os, time
from pathlib import Path
from sqlalchemy import BigInteger, Column, MetaData, Table, Text
from tidegate.sql import Pipeline

table = Table(
    "reading", MetaData(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
)

def first(event):
    value = json.loads(event.body)
    if value["celsius"] is None:
        raise ValueError("the sensor gave no temperature")
    return {"sequence_number": event.sequence_number, "text": str(value["celsius"])}

def corrected(event):
    value = json.loads(event.body)
    if value.get("is_broken"):
        raise ValueError("the sensor is broken")
    return {"sequence_number": event.sequence_number, "text": str(value["celsius"])}

def hanging(event):
    mark = Path(__file__).with_suffix(".pid")
    mark.with_suffix(".new").write_text(str(os.getpid()))
    mark.with_suffix(".new").rename(mark)
    time.sleep(120)

first_pipeline = Pipeline("readings", "HUB", table, first)
corrected_pipeline = Pipeline("readings", "HUB", table, corrected)
hanging_pipeline = Pipeline("readings", "HUB", table, hanging)
"""

USE = """
document.styleSheets[1].insertRule(".table.short { height: 3rem }");
const region = document.querySelector("[aria-label='By reason']");
region.scrollTop = 20;
getSelection().selectAllChildren(document.getElementById("by-reason"));
"""
"""Scrolls a table, and selects text."""
USED = """() => ({
    focus: document.activeElement.textContent,
    selected: getSelection().toString(),
    is_open: document.querySelector("main details").open,
    scrolled: document.querySelector("[aria-label='By reason']").scrollTop,
    page_scrolled: scrollY,
})"""

HUB = "readings"
READINGS = ConsumerKey(HUB)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the service's database and its pipelines are."""

    database_url: str
    pipelines: Path

    def pipeline(self, name: str) -> str:
        """A pipeline's name, as the settings have it."""
        return f"{self.pipelines}:{name}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A database and pipelines that no test has used."""
    directory = tmp_path_factory.mktemp("processing")
    file = directory / "pipelines_of_readings.py"
    file.write_text(PIPELINES.replace("HUB", HUB))
    return Place(f"sqlite:///{directory}/readings.db", file)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[HubService]:
    """A service with a database, and with pipelines to redrive with."""
    pipelines = [place.pipeline(f"{name}_pipeline") for name in ("corrected", "hanging")]
    directory = tmp_path_factory.mktemp("console")
    with pytest.MonkeyPatch.context() as patch:
        # What one test has asked for is not kept for the next.
        patch.setattr(dead_letters, "_PAGES_S", 0.0)
        patch.setattr(dead_letters, "_SUMS_S", 0.0)
        patch.setattr(shared_answers, "WORK_SHARE", 0)
        # A busy machine takes its time, and the plain browser has no scripts to wait with.
        patch.setattr(dead_letters_page, "FIRST_PAINT_S", 30.0)
        with console_service(directory, database=place.database_url, redrive_pipelines=pipelines) as started:
            started.create_hub(HUB, partition_count=1)
            started.create_hub("other", partition_count=1)
            yield started


@pytest.fixture
def letters(service: HubService, place: Place) -> Iterator[DeadLetters]:
    """Three open dead letters of ten events, one of them of a broken sensor; one of another hub."""
    events = [{"celsius": None if number in (3, 5, 8) else number} for number in range(10)]
    events[8]["is_broken"] = 1
    start = append(service, HUB, [json.dumps(event).encode() for event in events])
    pipeline = load_pipeline(place.pipeline("first_pipeline"))
    assert isinstance(pipeline, Pipeline)
    with (
        Database.open(place.database_url) as database,
        BlockingConsumer(service.connection_string, HUB) as consumer,
    ):
        database.ensure_table(pipeline.table)
        with database.writing() as connection, connection.begin():
            for name in ("dead_letter", "dead_letter_audit", "checkpoint"):
                connection.execute(text(f"DELETE FROM tidegate_{name}"))
        process_partition_batch(
            database,
            pipeline,
            partition_id="0",
            start_sequence_number=start,
            until_sequence_number=start + 10,
            events=list(consumer.read_events(HUB, "0", range(start, start + 10))),
        )
        found, now_ms = DeadLetters(database), time.time_ns() // 1_000_000
        found.add(ConsumerKey("other"), "0", [NewDeadLetter(1, "1", now_ms, "KeyError", "<b>'x'\u202e</b>")])
        yield found


def _numbers(letters: DeadLetters, status: DeadLetterStatus) -> list[int]:
    found = letters.list(DeadLetterFilter(event_hub=HUB, status=status))
    first = min(
        letter.sequence_number for letter in letters.list(DeadLetterFilter(event_hub=HUB, status=None))
    )
    return [letter.sequence_number - first + 3 for letter in found]


@pytest.mark.slow
def test_dead_letters_are_found_and_seen_whole(letters: DeadLetters, plain_browser: PlainBrowser) -> None:
    """The list is filtered by its fields; one shows its error, its event three ways, and what was done."""
    everything = text_of(plain_browser.get("/dead-letters").text)
    assert "4 open dead letters" in everything
    assert "the sensor gave no temperature" in everything
    markup = plain_browser.get("/dead-letters?hub=OTHER").text
    assert "<b>&#39;x" not in markup
    assert "&lt;b&gt;" in markup
    assert ("\u202e" in markup, "\\u202e" in markup) == (False, True)
    assert "1 open dead letter matches" in text_of(markup)
    assert "1 open dead letter matches" in text_of(plain_browser.get("/dead-letters?reason=<B>").text)
    assert "No dead letter matches" in plain_browser.get("/dead-letters?reason_is=<b>").text
    assert "No dead letter matches" in plain_browser.get("/dead-letters?reason=nothing+of+the+kind").text
    assert "There are no dead letters" in plain_browser.get("/dead-letters?state=redriven").text
    letter = letters.list(DeadLetterFilter(event_hub=HUB))[0]
    address = f"/dead-letters/{HUB}/%24Default/0/{letter.sequence_number}"
    assert address in plain_browser.get(f"/dead-letters?hub={HUB}&group=$default&partition=0&from=1h").text
    page = plain_browser.get(address).text
    shown = text_of(page)
    for words in ("ValueError: the sensor gave no temperature", "From the log", "Traceback", "in first"):
        assert words in shown
    assert "{&#34;celsius&#34;: null}" in page
    assert "7b 22 63 65" in page
    assert 'href="/pipelines/' not in page  # a host's pipeline has no page
    assert '<a href="">reload it</a>' in page  # whatever its address asks for
    body = plain_browser.get(f"{address}/body")
    assert (body.body, body.headers["content-type"]) == (b'{"celsius": null}', "application/octet-stream")
    assert "attachment" in body.headers["content-disposition"]


@pytest.mark.parametrize(("query", "part"), [("", "sums"), ("?sought=1", "rows")])
def test_live_parts_are_drawn_in_their_turn(
    query: str, part: str, letters: DeadLetters, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop: what they draw counts against the live pages' share."""
    plain_browser.get("/")
    found = watch_drawing(monkeypatch)
    with closing(plain_browser.open(f"/console/live/dead-letters{query}")) as stream:
        while stream.readline() != f"event: {part}\n".encode():
            pass
    assert (f"dead_letters/{part}.html", True) in found
    assert all(is_drawing for _, is_drawing in found), found


def test_a_crafted_body_makes_no_large_page() -> None:
    """Deep and wide, 256 KB would become 200 MB by indentation; what has no shape is shown as a picture."""
    wide = b"[" * 900 + b"0," * 120_000 + b"0" + b"]" * 900
    for body in (wide, b"[" * 100_000, b"9" * 100_000):
        shown = dead_letters_page.event_texts(LetterEvent(False, EventContents(body))).body
        assert "json" not in shown
        assert shown["text"] == body.decode()
    body = b'{"n": 1.50, "n": "\x7f"}'
    fair = dead_letters_page.event_texts(LetterEvent(False, EventContents(body))).body
    assert fair["json"] == '{\n  "n": 1.50,\n  "n": "\x7f"\n}'
    assert fair["text"] == '{"n": 1.50, "n": "\x7f"}'
    assert fair["hex"].startswith("00000000  7b 22 6e 22 3a")


def test_an_event_is_decoded_beside_the_event_loop(
    letters: DeadLetters, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, senders and receivers have their turn: a list of a million takes 1.4 s."""
    is_beside: list[bool] = []

    def noted(work: Callable[[Any], T]) -> Callable[[Any], T]:
        def seen(given: Any) -> T:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                is_beside.append(True)
            else:
                is_beside.append(False)
            return work(given)

        return seen

    monkeypatch.setattr(dead_letters, "decode_event", noted(decode_event))
    monkeypatch.setattr(dead_letters_page, "event_texts", noted(dead_letters_page.event_texts))
    letter = letters.list(DeadLetterFilter(event_hub=HUB))[0]
    address = f"/dead-letters/{HUB}/%24Default/0/{letter.sequence_number}"
    assert "&#34;celsius&#34;: null" in plain_browser.get(address).text
    assert is_beside == [True, True]
    assert plain_browser.get(f"{address}/body").body == b'{"celsius": null}'
    assert is_beside == [True, True, True]


@pytest.mark.parametrize("part", ["", "/body"])
def test_few_whole_dead_letters_are_held_at_once(
    letters: DeadLetters, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Protects the memory: each holds its copy and its event from when it is read, and 1,500 that waited for
    a thread held 2.2 GB."""
    number = letters.list(DeadLetterFilter(event_hub=HUB))[0].sequence_number
    held, counts = 0, list[int]()
    letter, event = DeadLetterView.letter, DeadLetterView.event

    async def read(self: DeadLetterView, *place: Any, **since: Any) -> Any:
        nonlocal held
        held += 1
        counts.append(held)
        return await letter(self, *place, **since)

    async def shown(self: DeadLetterView, *given: Any) -> Any:
        nonlocal held
        await asyncio.sleep(0.1)  # the others could be read
        found = await event(self, *given)
        held -= 1
        return found

    monkeypatch.setattr(DeadLetterView, "letter", read)
    monkeypatch.setattr(DeadLetterView, "event", shown)
    plain_browser.get("/")
    address = f"/dead-letters/{HUB}/%24Default/0/{number}{part}"
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: plain_browser.get(address), range(4))
        assert [answer.status for answer in answers] == [200] * 4
    assert max(counts) == 1


def test_what_an_event_says_is_cut_and_drawn_in_slices(
    letters: DeadLetters, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop: its properties may have megabytes."""
    counts: list[int] = []
    collect = SlicedWork.collect

    async def counted(self: SlicedWork, items: Iterator[Any], *, address: object = None) -> list[Any]:
        found = await collect(self, items, address=address)
        counts.append(len(found))
        return found

    monkeypatch.setattr(SlicedWork, "collect", counted)
    properties: dict[str, PropertyValue] = {"long": "<\x01" * 10_000, "n" * 20_000: "x"}
    payload = encode_event(EventData(b"<\x01" * 50_000, properties))
    letters.add(READINGS, "0", [NewDeadLetter(10_000_001, "1", 5, "ValueError", "large", payload=payload)])
    page = plain_browser.get(f"/dead-letters/{HUB}/%24Default/0/10000001").text
    assert ">" + "&lt;\u2401" * 5_000 + "<" in page
    assert f">{'n' * 10_000}<" in page
    assert "&lt;\u2401" * 50_000 in page
    assert sum(counts) > 60


def test_an_event_that_the_log_has_let_go_comes_from_its_copy(
    letters: DeadLetters, plain_browser: PlainBrowser
) -> None:
    """The copy is shown as what it is; where there is none, the page says what can be done."""
    payload = encode_event(EventData(b"\xff\x00 no text", {f"n{each}": each for each in range(1_500)}))
    letters.add(
        READINGS, "0", [NewDeadLetter(10_000_000, "1", 5, "ValueError", "long gone", payload=payload)]
    )
    page = plain_browser.get(f"/dead-letters/{HUB}/%24Default/0/10000000").text
    assert "The log no longer holds the event" in page
    assert "ff 00 20 6e" in page
    assert (">n999<" in page, ">n1000<" in page, "500 more are not shown" in page) == (True, False, True)
    assert "has no copy" in plain_browser.get("/dead-letters/other/%24Default/0/1").text
    for number in ("2", "x", "-1", "9" * 19, "9" * 5_000):
        assert plain_browser.get(f"/dead-letters/other/%24Default/0/{number}").status == 404


def test_a_filter_has_a_length() -> None:
    """A redrive's process gets it in its arguments, which the system refuses above 128 KB each."""
    rights = Rights("policy", can_listen=True, can_send=True, can_manage=True)
    fields = LetterQuery.of({"reason": "x" * 5_000, "reason_is": "x" * 200_000}, rights).fields
    assert (len(fields["reason"]), len(fields["reason_is"])) == (2_000, 2_000)


def test_tables_do_not_repeat_a_long_filter() -> None:
    """Protects the event loop, which draws a page in one step: with a link in each row that has the whole
    filter, it had a megabyte and more. The first rows have theirs; with usual filters, all have."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [HourCount(begin + timedelta(hours=each), 1) for each in range(HOURS_MAX)]

    def drawn(filter: Mapping[str, str], reason: str) -> str:
        rights = Rights("policy", can_listen=True, can_send=True, can_manage=True)
        query = LetterQuery.of(filter, rights)
        reasons = [ReasonCount("Error", f"{each} {reason}", 1, begin, begin) for each in range(20)]
        sums = LetterSums(HOURS_MAX, hours, reasons, begin, {})
        context = {"query": query, "fields": query.fields, "live": None, **sums_context(query, sums)}
        return rendered("dead_letters/sums.html", context)

    def links(page: str) -> tuple[int, int]:
        return page.count("until="), page.count("reason_is=")

    usual = drawn({"hub": HUB, "group": "$Default", "error_type": "Error"}, "the sensor gave no temperature")
    assert links(usual) == (HOURS_MAX, 20)
    long = drawn({"reason": "ä" * 1_000}, "x" * 1_000)
    assert 0 < links(long)[0] < 10
    assert 0 < links(long)[1] < 10
    assert len(long) < 150_000
    refused = drawn({}, "\U0001f30a" * 1_990)  # the service takes no address of 24 KB
    assert links(refused) == (HOURS_MAX, 0)


@pytest.mark.parametrize(
    "query",
    [
        "behind=x",
        "behind=W10",
        "behind=%FF",
        "from=soon",
        "state=lost",
        "number=-1",
        "number=9e9",
        "from=0001-01-01T00:00%2B14:00",
    ],
)
@pytest.mark.slow
def test_what_cannot_be_meant_is_said(query: str, letters: DeadLetters, plain_browser: PlainBrowser) -> None:
    """A garbled address is the reader's error: a page with the filter, not a failure of the service."""
    answer = plain_browser.get(f"/dead-letters?{query}")
    assert answer.status == 400
    assert "Not found." in text_of(answer.text)
    assert plain_browser.get(f"/console/live/dead-letters?{query}").status == 400


def test_discarding_says_first_what_it_means(letters: DeadLetters, plain_browser: PlainBrowser) -> None:
    """Numbers by reason, then a reason of one's own; what failed after the page was shown is left alone."""
    page = plain_browser.get(f"/dead-letters/discard?hub={HUB}").text
    assert "3 open dead letters" in text_of(page)
    fields = hidden_fields(page)
    assert fields["hub"] == HUB
    letters.add(READINGS, "0", [NewDeadLetter(10_000_001, "1", 5, "ValueError", "came later")])
    refused = plain_browser.post("/dead-letters/discard", {**fields, "because": " "})
    assert (refused.status, "Enter a reason" in refused.text) == (400, True)
    assert letters.count(DeadLetterFilter(event_hub=HUB)) == 4
    done = ended_job(
        plain_browser, plain_browser.post("/dead-letters/discard", {**fields, "because": "test data"})
    )
    assert "Discarded 3" in text_of(done)
    assert [letter.reason for letter in letters.list(DeadLetterFilter(event_hub=HUB))] == ["came later"]
    trail = text_of(plain_browser.get(f"/dead-letters/history?hub={HUB}").text)
    assert trail.count("policy RootManageSharedAccessKey from 127.0.0.1 test data") == 3
    audit = text_of(plain_browser.get("/audit?action=discard").text)
    assert f"discard {HUB} RootManageSharedAccessKey 127.0.0.1 (console)" in audit
    assert letters.count(DeadLetterFilter(event_hub="other")) == 1


@pytest.mark.slow
def test_redriving_is_tried_and_then_done(
    letters: DeadLetters, plain_browser: PlainBrowser, place: Place
) -> None:
    """The dry run tells what would fail and why, and leaves no trace; then it is done by one button."""
    page = plain_browser.get(f"/dead-letters/redrive?hub={HUB}").text
    form = {**hidden_fields(page), "pipeline": place.pipeline("corrected_pipeline"), "mode": "dry"}
    tried = ended_job(plain_browser, plain_browser.post("/dead-letters/redrive", form))
    words = text_of(tried)
    assert "done in part" in words
    assert "Would be redriven 2" in words
    assert "the sensor is broken" in words
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]
    earnest = {**hidden_fields(tried), "mode": "earnest"}
    done = ended_job(plain_browser, plain_browser.post("/dead-letters/redrive", earnest))
    assert "Redriven 2" in text_of(done)
    assert _numbers(letters, DeadLetterStatus.OPEN) == [8]
    assert _numbers(letters, DeadLetterStatus.REDRIVEN) == [3, 5]
    (broken,) = letters.list(DeadLetterFilter(event_hub=HUB))
    history = text_of(plain_browser.get(f"/dead-letters/{HUB}/%24Default/0/{broken.sequence_number}").text)
    assert (
        "redrive failed policy RootManageSharedAccessKey from 127.0.0.1 ValueError: the sensor is broken"
        in history
    )
    assert "Attempts 2" in history
    assert "Redriven 2" in text_of(done)
    assert "Redrive" in text_of(plain_browser.get("/console/jobs").text)


@pytest.mark.slow
def test_a_redrive_that_cannot_be_is_told(
    letters: DeadLetters, plain_browser: PlainBrowser, place: Place
) -> None:
    """A pipeline that the settings do not name, one of another hub, and numbers that are none."""
    name = place.pipeline("corrected_pipeline")
    unknown = {"pipeline": "os:system"}
    for form in (unknown, {"pipeline": name, "maximum": "0"}, {"pipeline": name, "attempts_max": "x"}):
        assert plain_browser.post("/dead-letters/redrive", {"hub": HUB, **form}).status == 400
    answer = plain_browser.post("/dead-letters/redrive", {"hub": "other", "pipeline": name})
    other = ended_job(plain_browser, answer)
    assert "failed" in other
    told = "The pipeline is for another event hub or consumer group, not for other/$Default."
    assert told in text_of(other)
    assert f"{HUB}/" not in other, "the name of a hub that a policy of the other one must not learn"
    assert letters.count() == 4


@pytest.mark.slow
def test_a_redrive_ends_when_it_is_cancelled(
    letters: DeadLetters, service: HubService, plain_browser: PlainBrowser, place: Place
) -> None:
    """Its process is gone, every dead letter is as it was, and the audit trail names who cancelled it."""
    mark = place.pipelines.with_suffix(".pid")
    mark.unlink(missing_ok=True)
    form = {"hub": HUB, "pipeline": place.pipeline("hanging_pipeline"), "mode": "earnest"}
    job = plain_browser.post("/dead-letters/redrive", form).headers["location"]
    process_id = _process_of(mark)
    # The handler runs already; what the process has said before may still be on its way to the service.
    deadline = time.monotonic() + DEADLINE_S
    while "0 of 3 done" not in (page := text_of(plain_browser.get(job).text)):
        assert time.monotonic() < deadline, page
    assert "cancelled" in ended_job(plain_browser, plain_browser.post(f"{job}/cancel"))
    plain_browser.post(f"{job}/cancel")
    _wait_gone(process_id)

    async def newest_first(server: TidegateServer) -> list[AuditRecord]:
        return server.broker.audit.newest_first()

    cancelled, started = service.call(newest_first)[:2]
    assert (cancelled.action, started.action) == ("cancelJob", "redrive")
    assert (cancelled.target, cancelled.new) == (HUB, started.new)
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]


@pytest.mark.slow
def test_a_job_ends_with_the_policy_that_started_it(
    letters: DeadLetters, service: HubService, place: Place, plain_browser: PlainBrowser
) -> None:
    """What somebody has started goes no further once their key is taken away. Signing out ends no job."""

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    mark = place.pipelines.with_suffix(".pid")
    mark.unlink(missing_ok=True)
    manager = signed_in(service, HUB, Claim.MANAGE)
    form = {"hub": HUB, "pipeline": place.pipeline("hanging_pipeline"), "mode": "earnest"}
    started = manager.post("/dead-letters/redrive", form)
    process_id = _process_of(mark)
    assert manager.post("/console/sign-out").status == 303
    assert 'class="state ">running' in plain_browser.get(started.headers["location"]).text
    service.call(delete)
    assert "cancelled" in ended_job(plain_browser, started)
    _wait_gone(process_id)
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]


@pytest.mark.slow
def test_a_discard_that_still_counts_ends_with_its_policy(
    letters: DeadLetters, service: HubService, monkeypatch: pytest.MonkeyPatch, plain_browser: PlainBrowser
) -> None:
    """Protects a revocation from what waits: counting can take long, and a discard cannot be undone."""
    is_counting, may_go_on = threading.Event(), threading.Event()
    count = DeadLetters.count

    def count_late(self: DeadLetters, wanted: DeadLetterFilter) -> int:
        is_counting.set()
        assert may_go_on.wait(DEADLINE_S)
        return count(self, wanted)

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    manager = signed_in(service, HUB, Claim.MANAGE)
    fields = hidden_fields(manager.get(f"/dead-letters/discard?hub={HUB}").text)
    monkeypatch.setattr(DeadLetters, "count", count_late)
    started = manager.post("/dead-letters/discard", {**fields, "because": "test data"})
    assert is_counting.wait(DEADLINE_S)
    service.call(delete)
    may_go_on.set()
    assert "cancelled" in ended_job(plain_browser, started)
    monkeypatch.undo()
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]


@pytest.mark.slow
def test_a_discard_that_waits_for_the_database_ends_with_its_policy(
    letters: DeadLetters, service: HubService, place: Place, plain_browser: PlainBrowser
) -> None:
    """As above: another writer, such as a pipeline, may hold the lock for long."""

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    manager = signed_in(service, HUB, Claim.MANAGE)
    fields = hidden_fields(manager.get(f"/dead-letters/discard?hub={HUB}").text)
    with Database.open(place.database_url) as database, database.writing():
        # Answered after a second, when the job has counted and waits for the lock.
        started = manager.post("/dead-letters/discard", {**fields, "because": "test data"})
        assert 'class="state ">running' in plain_browser.get(started.headers["location"]).text
        service.call(delete)
    assert "cancelled" in ended_job(plain_browser, started)
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]


@pytest.mark.parametrize("path", ["/dead-letters/discard", "/dead-letters/redrive"])
@pytest.mark.slow
def test_a_refused_form_that_still_counts_shows_nothing_to_an_ended_session(
    path: str, letters: DeadLetters, service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a revocation from forms that are shown again with a problem: their reasons quote events."""
    is_counting, may_go_on = threading.Event(), threading.Event()
    count = DeadLetters.counts_by_reason

    def count_late(self: DeadLetters, wanted: DeadLetterFilter, *, limit: int) -> Sequence[ReasonCount]:
        is_counting.set()
        assert may_go_on.wait(DEADLINE_S)
        return count(self, wanted, limit=limit)

    async def delete(server: TidegateServer) -> None:
        for policy in server.broker.policies(HUB):
            await server.broker.delete_policy(HUB, policy.name)

    manager = signed_in(service, HUB, Claim.MANAGE)
    assert "sensor" in manager.get(f"{path}?hub={HUB}").text
    monkeypatch.setattr(dead_letters_page, "COUNT_S", DEADLINE_S)
    monkeypatch.setattr(DeadLetters, "counts_by_reason", count_late)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(manager.post, path, {"hub": HUB, "because": " "})
        assert is_counting.wait(DEADLINE_S)
        service.call(delete)
        may_go_on.set()
        answer = asked.result(DEADLINE_S)
    assert answer.status == 403
    assert "Your session has ended" in answer.text
    assert "sensor" not in answer.text


@pytest.mark.slow
def test_rights_decide_what_is_seen_and_done(letters: DeadLetters, service: HubService, place: Place) -> None:
    """Listen of a hub sees that hub's alone and changes nothing; a form sent all the same is refused."""
    browser = signed_in(service, "other", Claim.LISTEN)
    page = text_of(browser.get("/dead-letters").text)
    assert "1 open dead letter" in page
    assert "sensor" not in page
    assert "Needs Manage" in page
    for path in (
        f"/dead-letters?hub={HUB}",
        f"/dead-letters/{HUB}/%24Default/0/3",
        f"/dead-letters/history?hub={HUB}",
    ):
        assert browser.get(path).status == 403
    assert browser.get("/dead-letters/discard?hub=other").status == 403
    form = {"because": "mine", "pipeline": place.pipeline("corrected_pipeline")}
    for path in ("/dead-letters/discard", "/dead-letters/redrive"):
        for hub in ("", "other", HUB):
            assert browser.post(path, {**form, "hub": hub}).status == 403
    manager = signed_in(service, "other", Claim.MANAGE)
    assert manager.post("/dead-letters/discard", {**form, "hub": HUB}).status == 403
    # A form that names no hub means the policy's own.
    assert "Discarded 1" in text_of(ended_job(manager, manager.post("/dead-letters/discard", form)))
    assert letters.count() == 3
    found = signed_in(service, HUB, Claim.MANAGE).get(_latest_job(service))
    assert (found.status, "other" in found.text) == (404, False)


def test_what_is_told_live_is_text(letters: DeadLetters, plain_browser: PlainBrowser) -> None:
    """Words that somebody wrote become no elements of the page of whoever looks at the job."""
    page = plain_browser.get(f"/dead-letters/discard?hub={HUB}").text
    assert "<dt>Failed before</dt><dd><time " in page
    markup = '<b hx-get="/console/sign-out" hx-trigger="load">test data</b>'
    started = plain_browser.post("/dead-letters/discard", {**hidden_fields(page), "because": markup})
    ended_job(plain_browser, started)
    with closing(plain_browser.open(started.headers["location"].replace("/jobs/", "/live/jobs/"))) as stream:
        told = stream.read().decode()
    assert "<b" not in told
    sentence = told.split("event: sentence\n")[1].split("\n")[0]
    assert "&lt;b hx-get=" in sentence
    assert "&amp;" not in told  # escaped once
    assert '<dl class="figures">' in told  # what templates write stays markup


def _latest_job(service: HubService) -> str:
    """The address of the latest job."""
    assert service.ready.console is not None
    page = PlainBrowser(service.ready.console).get("/console/jobs").text
    return page[page.index("/console/jobs/") :].split('"', 1)[0]


def test_pages_follow_each_other(letters: DeadLetters, plain_browser: PlainBrowser) -> None:
    """Fifty to a page; the last one leads nowhere."""
    new = [NewDeadLetter(20_000_000 + number, "1", 5, "ValueError", "many") for number in range(120)]
    letters.add(READINGS, "0", new)
    path, seen = "?reason=many", []
    while path:
        page = plain_browser.get(f"/dead-letters{path}").text
        rows = page[page.index('aria-label="Dead letters"') :]
        seen += [part.split('"', 1)[0] for part in rows.split(f'href="/dead-letters/{HUB}/')[1:]]
        following = rows.split('rel="next"')[0].rsplit('href="', 1)[1] if 'rel="next"' in rows else ""
        path = following.split('"', 1)[0].replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 120


def test_without_a_database_the_pages_say_how_to_give_one(tmp_path: Path) -> None:
    """And where there is a database that is not there yet, that is said."""
    with console_service(tmp_path / "none") as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        for path in ("/dead-letters", "/consumers"):
            answer = browser.get(path)
            assert (answer.status, "tidegate serve --database" in answer.text) == (200, True)
        assert browser.get("/console/jobs").status == 404
        assert browser.post("/dead-letters/discard", {"because": "x"}).status == 404
    with console_service(tmp_path / "late", database=f"sqlite:///{tmp_path}/late.db") as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        for path in ("/dead-letters", "/consumers"):
            answer = browser.get(path)
            assert (answer.status, "It comes with the first host" in answer.text) == (200, True)
            assert "There are no dead letters" not in answer.text
        Database.open(f"sqlite:///{tmp_path}/late.db").close()
        answer = browser.get("/dead-letters")
        assert (answer.status, "It comes with the first host" in answer.text) == (200, False)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.slow
def test_a_redrive_ends_with_the_service(
    letters: DeadLetters, service: HubService, place: Place, plain_browser: PlainBrowser
) -> None:
    """Nothing that the console has started outlives the service."""
    mark = place.pipelines.with_suffix(".pid")
    mark.unlink(missing_ok=True)
    form = {"hub": HUB, "pipeline": place.pipeline("hanging_pipeline"), "mode": "earnest"}
    plain_browser.post("/dead-letters/redrive", form)
    process_id = _process_of(mark)
    service.restart()
    _wait_gone(process_id)
    assert _numbers(letters, DeadLetterStatus.OPEN) == [3, 5, 8]


@pytest.mark.programs
def test_in_a_browser(letters: DeadLetters, console_page: Page, place: Place) -> None:
    """Sums follow what fails, and leave focus, selection and scroll position; one dead letter is redriven on
    its page; every page is accessible."""
    console_page.goto("/dead-letters")
    console_page.get_by_text("4 open dead letters.").wait_for()
    console_page.get_by_text("As a table").click()
    console_page.get_by_role("link", name="the sensor gave no temperature").focus()
    console_page.evaluate(USE)
    used = console_page.evaluate(USED)
    assert (used["selected"], used["is_open"], used["scrolled"] > 0) == ("By reason", True, True)
    # More frequent than the row in focus, which moves down.
    late = [NewDeadLetter(30_000_000 + each, "1", 5, "LateError", "came now") for each in range(4)]
    letters.add(READINGS, "0", late)
    console_page.get_by_text("8 open dead letters.").wait_for()
    console_page.get_by_role("link", name="came now").first.wait_for()
    assert console_page.evaluate(USED) == used
    assert_accessible(console_page)
    console_page.get_by_role("link", name="the sensor gave no temperature").press("Enter")
    console_page.get_by_text("3 open dead letters match.").wait_for()
    console_page.get_by_role("region", name="Dead letters").locator("th a").last.click()
    assert_accessible(console_page)
    console_page.get_by_role("link", name="Redrive…").click()
    console_page.get_by_text("1 open dead letter").first.wait_for()
    assert_accessible(console_page)
    console_page.get_by_label("Pipeline").select_option(place.pipeline("corrected_pipeline"))
    console_page.get_by_role("button", name="Dry run").press("Enter")
    console_page.get_by_text("This was a dry run").wait_for()
    assert_accessible(console_page)
    console_page.get_by_role("button", name="Redrive now").press("Enter")
    console_page.get_by_role("heading", name="Redrive", exact=True).wait_for()
    console_page.get_by_text("done", exact=True).wait_for()
    assert letters.count(DeadLetterFilter(event_hub=HUB)) == 6
    console_page.goto(f"/dead-letters/discard?hub={HUB}")
    assert_accessible(console_page)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(
    st.datetimes(timezones=st.just(UTC)),
    names,
    names,
    names,
    st.integers(min_value=-(1 << 63) + 1, max_value=(1 << 63) - 1),
)
@pytest.mark.slow
def test_a_place_survives_its_address(
    at: datetime, hub: str, group: str, partition: str, number: int
) -> None:
    """Whatever names hold in a database: UTF-8, and no NUL."""
    place = DeadLetterPlace(at, hub, group, partition, number)
    assert parse_place(format_place(place)) == place


@given(st.text() | st.binary().map(lambda raw: raw.hex()))
@pytest.mark.slow
def test_a_garbled_place_is_an_error_of_the_address(garbled: str) -> None:
    """And nothing else."""
    try:
        parse_place(garbled)
    except InvalidArgumentError:
        return


@given(st.dictionaries(st.integers(0, 24 * 300), st.integers(1, 1_000_000), min_size=1, max_size=60))
@pytest.mark.slow
def test_a_histogram_leaves_nothing_out(hours: dict[int, int]) -> None:
    """Bars and those before them are all there are, in order, side by side, and none outside the picture."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    counts = [HourCount(begin + timedelta(hours=hour), count) for hour, count in sorted(hours.items())]
    found = histogram_of(counts)
    assert found is not None
    assert sum(bar.count for bar in found.bars) + found.earlier == sum(hours.values())
    assert len(found.bars) <= (HOURS_MAX if found.unit == "hour" else DAYS_MAX)
    assert (found.times[0], found.times[-1]) == (found.bars[0].start, found.bars[-1].until)
    assert found.most <= found.top <= 2 * found.most
    assert found.top == 1 or found.top % 2 == 0
    for bar, following in pairwise(found.bars):
        assert bar.until == following.start
        assert bar.x + bar.width <= following.x
    for bar in found.bars:
        assert 0 <= bar.y <= found.height
        assert bar.x + bar.width <= found.width
        assert (bar.height > 0) == (bar.count > 0)


def _process_of(mark: Path) -> int:
    deadline = time.monotonic() + DEADLINE_S
    while not mark.exists():
        assert time.monotonic() < deadline, "the handler was not run"
        time.sleep(0.05)
    return int(mark.read_text())


def _wait_gone(process_id: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, "the process of the redrive goes on"
        time.sleep(0.05)

"""Several databases in the console: each is shown, also one that comes later; one that is away hides none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.console.processing_support import ended_job, hidden_fields, text_of
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Claim
from tidegate.console.consumers import groups
from tidegate.console.consumers import page as consumers_page
from tidegate.console.dead_letters import letters
from tidegate.console.dead_letters import page as letters_page
from tidegate.console.frame import shared_answers
from tidegate.console.frame.lazy_database import LazyDatabase
from tidegate.console.overview import page as overview_page
from tidegate.processor import ProcessorCheckpoint
from tidegate.server.app import TidegateServer
from tidegate.sql import ConsumerKey, Database, DeadLetters, NewDeadLetter, move_checkpoint
from tidegate.sql.stores.checkpoints import CheckpointReader

HUB = "readings"


def _fill(url: str, group: str, *numbers: int) -> None:
    """A group's checkpoint in a database, and dead letters."""
    with Database.open(url) as database:
        consumer = ConsumerKey(HUB, group)
        move_checkpoint(database, consumer, ProcessorCheckpoint("0", 0, "0"))
        DeadLetters(database).add(
            consumer, "0", [NewDeadLetter(each, str(each), 5, "KeyError", "no id") for each in numbers]
        )


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the next page; and pages wait for what they show."""
    monkeypatch.setattr(groups, "_LOOK_S", 0.0)
    monkeypatch.setattr(letters, "_PAGES_S", 0.0)
    monkeypatch.setattr(letters, "_SUMS_S", 0.0)
    monkeypatch.setattr(overview_page, "_PROCESSING_S", 0.0)
    monkeypatch.setattr(overview_page, "_PATIENCE_S", 30.0)
    monkeypatch.setattr(shared_answers, "WORK_SHARE", 0)
    for module in (consumers_page, letters_page):
        monkeypatch.setattr(module, "FIRST_PAINT_S", 30.0)


@pytest.mark.slow
def test_each_database_is_shown(tmp_path: Path) -> None:
    """Groups and dead letters of all, also of one that comes into being while the service runs."""
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    _fill(first, "$Default", 1)
    with console_service(tmp_path / "console", database=first, more_databases=[second]) as service:
        assert service.ready.console is not None
        service.create_hub(HUB, partition_count=1)

        async def create(server: TidegateServer) -> None:
            await server.broker.event_hub(HUB).create_consumer_group("ledger")

        service.call(create)
        browser = PlainBrowser(service.ready.console)

        def words(path: str) -> str:
            return text_of(browser.get(path).text)

        # The second is not there yet: what it may have is unknown, and the first is shown all the same.
        found = words("/consumers")
        assert "The database second cannot be read." in found
        assert f"{HUB} $Default first " in found
        found = words("/dead-letters")
        assert "The database second cannot be read." in found
        assert "At least 1 open dead letter" in found
        assert "Open dead letters 1 at least; a database does not answer" in words("/")
        assert "The database second cannot be read." in words("/consumers/-/host?name=nobody")

        _fill(second, "$Default", 2, 3)
        _fill(second, "reports", 4)
        found = words("/consumers")
        assert "cannot be read" not in found
        for row in (f"{HUB} $Default first ", f"{HUB} $Default second ", f"{HUB} reports second "):
            assert row in found
        # A ledger's dead letters come without a checkpoint.
        with Database.open(second) as database:
            letter = NewDeadLetter(5, "5", 5, "KeyError", "no id")
            DeadLetters(database).add(ConsumerKey(HUB, "ledger"), "0", [letter])
        assert f"{HUB} ledger – no reader yet 1 – – 0 – 0 1 1 in the last hour" in words("/consumers")
        assert "5 open dead letters" in words("/dead-letters")
        assert "Open dead letters 5 " in words("/")
        assert "2 open dead letters match" in words(
            "/dead-letters?hub=readings&group=$default&database=second"
        )
        assert "In the database second." in words(f"/consumers/{HUB}/reports?database=second")
        listed = browser.get("/dead-letters?group=reports").text
        assert f"/dead-letters/{HUB}/reports/0/4?database=second" in listed
        assert "Database second" in words(f"/dead-letters/{HUB}/reports/0/4?database=second")
        group = f'href="/consumers/{HUB}/reports?database=second"'
        assert group in listed
        assert group in browser.get(f"/dead-letters/{HUB}/reports/0/4?database=second").text
        assert browser.get("/consumers/readings/reports?database=third").status == 404

        _change_one(browser, first, second)


def test_dead_letters_of_a_database_that_does_not_answer_hold_back_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for one has places of its own, which bound the memory."""
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    for url in (first, second):
        _fill(url, "$Default", 1)
    ask, may_answer, asked = LazyDatabase.ask, threading.Event(), threading.Semaphore(0)

    async def ask_or_wait(self: LazyDatabase, question: Callable[[Database], Any], **more: Any) -> Any:
        if self.secret_url == first:
            asked.release()
            await asyncio.to_thread(may_answer.wait)
        return await ask(self, question, **more)

    with console_service(tmp_path / "console", database=first, more_databases=[second]) as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        browser.get("/")
        monkeypatch.setattr(LazyDatabase, "ask", ask_or_wait)
        letter = "%24Default/0/1/body?database="
        with ThreadPoolExecutor() as threads:
            try:
                hubs = (HUB, "others")
                waiting = [threads.submit(browser.get, f"/dead-letters/{hub}/{letter}first") for hub in hubs]
                assert all(asked.acquire(timeout=30) for _ in hubs)
                answer = browser.get(f"/dead-letters/{HUB}/{letter}second")
                assert "no copy" in answer.text
            finally:
                may_answer.set()
        assert [each.result().status for each in waiting] == [404, 404]


def test_a_hubs_policy_does_not_see_where_a_database_is(tmp_path: Path) -> None:
    """It sees that one is away; the namespace's also see the reason, with the file."""
    url = f"sqlite:///{tmp_path}/absent.db"
    with console_service(tmp_path / "console", database=url) as service:
        assert service.ready.console is not None
        service.create_hub(HUB, partition_count=1)

        async def create(server: TidegateServer) -> str:
            return (await server.broker.create_policy(HUB, "reader", [Claim.LISTEN])).key

        browser, key = PlainBrowser(service.ready.console), service.call(create)
        fields = {"policy": "reader", "key": key, "hub": HUB, "next": "/"}
        assert browser.post("/console/sign-in", fields).status == 303
        paths = ("/consumers", "/dead-letters", "/consumers/-/host?name=nobody", f"/dead-letters/{HUB}/g/0/1")
        for path in paths:
            assert str(tmp_path) in PlainBrowser(service.ready.console).get(path).text, path
            found = browser.get(path).text
            assert ("The database failed" in found, str(tmp_path) in found) == (True, False), path


def test_nor_in_what_a_job_says_of_its_failure(tmp_path: Path) -> None:
    """Who manages one hub discards, and the namespace's policies read why that failed."""
    with console_service(tmp_path / "console", database=f"sqlite:///{tmp_path}/absent.db") as service:
        assert service.ready.console is not None
        service.create_hub(HUB, partition_count=1)

        async def create(server: TidegateServer) -> str:
            return (await server.broker.create_policy(HUB, "manager", [Claim.MANAGE])).key

        manager, key = PlainBrowser(service.ready.console), service.call(create)
        assert manager.post("/console/sign-in", {"policy": "manager", "key": key, "hub": HUB}).status == 303
        manager.get("/console/about")
        answer = manager.post("/dead-letters/discard", {"hub": HUB, "because": "none is needed"})
        found = ended_job(manager, answer)
        assert ("The database failed" in found, str(tmp_path) in found) == (True, False)
        assert str(tmp_path) in PlainBrowser(service.ready.console).get(answer.headers["location"]).text


def _change_one(browser: PlainBrowser, first: str, second: str) -> None:
    """What is discarded or moved is that of the database that was chosen."""
    for path in ("/dead-letters", "/dead-letters/discard"):
        found = text_of(browser.get(path).text)
        assert ("Choose a database" in found, "still being counted" in found) == (True, False)
    fields = hidden_fields(browser.get("/dead-letters/discard?database=second").text)
    answer = browser.post("/dead-letters/discard", {**fields, "because": "a test"})
    assert "Discarded 4" in text_of(ended_job(browser, answer))
    assert "1 open dead letter." in text_of(browser.get("/dead-letters").text)
    address = f"/consumers/{HUB}/%24Default/move"
    fields = hidden_fields(browser.get(f"{address}?to=earliest&database=second").text)
    assert "Moved 1" in text_of(ended_job(browser, browser.post(address, {**fields, "rewind": "yes"})))
    for url, following in ((first, 1), (second, 0)):
        with Database.open(url) as database:
            read = CheckpointReader(database).read(ConsumerKey(HUB))
        assert read["0"].next_sequence_number == following

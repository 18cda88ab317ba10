"""A hub's policy sees nothing of an earlier hub of that name: the database and the service's memory know such
things by the name alone, and the name may have been another tenant's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.console.processing_support import ended_job, hidden_fields, recreate_hub, signed_in, text_of
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Claim
from tidegate.console.consumers import groups
from tidegate.console.consumers import page as consumers_page
from tidegate.console.dead_letters import letters
from tidegate.console.dead_letters import page as dead_letters_page
from tidegate.console.frame import shared_answers
from tidegate.console.frame.rights import Rights
from tidegate.model.events import EventData
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.server.app import TidegateServer
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetters,
    DeadLetterStatus,
    NewDeadLetter,
    Pipeline,
    load_pipeline,
    move_checkpoint,
)
from tidegate.sql.stores.checkpoints import CheckpointReader
from tidegate.sql.stores.leases import LeaseTable
from tidegate.testing.hub import HubService
from tidegate.wire.event_codec import encode_event

PIPELINE = """
from sqlalchemy import BigInteger, Column, MetaData, Table
from tidegate.sql import Pipeline

table = Table("number", MetaData(), Column("sequence_number", BigInteger, primary_key=True))
pipeline = Pipeline("numbers", "HUB", table, lambda event: {"sequence_number": event.sequence_number})
"""
REDRIVEN = "redriven-hub"
"""The hub of the pipeline in the service's settings."""


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('database')}/shared.db"


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    """The same, opened; its tables exist."""
    with Database.open(database_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pipeline to redrive with, as the settings have it."""
    file = tmp_path_factory.mktemp("pipelines") / "numbers.py"
    file.write_text(PIPELINE.replace("HUB", REDRIVEN))
    return f"{file}:pipeline"


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, database: Database, pipeline: str
) -> Iterator[HubService]:
    """A service with that database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        # What one test has asked for is not kept for the next, and pages wait for what they show.
        patch.setattr(letters, "_PAGES_S", 0.0)
        patch.setattr(letters, "_SUMS_S", 0.0)
        patch.setattr(groups, "_LOOK_S", 0.0)
        patch.setattr(shared_answers, "WORK_SHARE", 0)
        for module in (dead_letters_page, consumers_page):
            patch.setattr(module, "FIRST_PAINT_S", 30.0)
        settings = {"database": database_url, "redrive_pipelines": [pipeline]}
        with console_service(tmp_path_factory.mktemp("console"), **settings) as started:
            loaded = load_pipeline(pipeline)
            assert isinstance(loaded, Pipeline)
            database.ensure_table(loaded.table)
            started.create_hub(REDRIVEN, partition_count=1)
            yield started


def letter(number: int, words: str) -> NewDeadLetter:
    """A dead letter, of an event enqueued now, that holds the words wherever it can."""
    copy = encode_event(EventData(words.encode()))
    now_ms = time.time_ns() // 1_000_000
    return NewDeadLetter(number, str(number), now_ms, "ValueError", words, words, words, bytes(copy))


@pytest.mark.slow
def test_dead_letters(service: HubService, database: Database, plain_browser: PlainBrowser) -> None:
    """They hold reasons, tracebacks, keys and copies of events; their history holds reasons and policies."""
    hub = service.create_hub(partition_count=1)
    stored, consumer = DeadLetters(database), ConsumerKey(hub)
    stored.add(consumer, "0", [letter(3, "former secret"), letter(4, "former secret")])
    former = signed_in(service, hub, Claim.MANAGE)
    assert "former secret" in former.get("/dead-letters").text
    form = {"number": "4", "because": "former reason"}
    assert "Discarded 1" in text_of(ended_job(former, former.post("/dead-letters/discard", form)))
    assert "former reason" in former.get("/dead-letters/history").text

    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    lists = ("/dead-letters", "/dead-letters?state=all", "/dead-letters/history")
    asked = ("/dead-letters/discard", "/dead-letters/redrive")
    for path in (*lists, *asked, *(f"{path}?hub={hub}&state=all" for path in asked)):
        answer = tenant.get(path)
        assert (answer.status, "former" in answer.text) == (200, False), path
    address = f"/dead-letters/{hub}/%24Default/0"
    absent = text_of(tenant.get(f"{address}/9").text)
    for number, path in ((3, "3"), (4, "4"), (3, "3/body")):
        answer = tenant.get(f"{address}/{path}")
        assert answer.status == 404
        assert text_of(answer.text) == absent.replace("letter 9 ", f"letter {number} ")
    for chosen in ({}, {"number": "3"}):
        done = ended_job(tenant, tenant.post("/dead-letters/discard", {**chosen, "because": "x"}))
        assert "Discarded 0" in text_of(done)
    assert stored.show(consumer, "0", 3).status is DeadLetterStatus.OPEN

    # One of the hub as it is now, with a number that the earlier one had discarded.
    stored.add(consumer, "0", [letter(4, "our own")])
    assert "1 open dead letter" in text_of(tenant.get("/dead-letters").text)
    page = tenant.get(f"{address}/4").text
    assert "our own" in page
    assert "former" not in page
    done = ended_job(tenant, tenant.post("/dead-letters/discard", {"because": "our reason"}))
    assert "Discarded 1" in text_of(done)
    history = tenant.get("/dead-letters/history").text
    assert "our reason" in history
    assert "former" not in history
    # A policy of the namespace covers both hubs.
    assert "former secret" in plain_browser.get(f"{address}/3").text
    assert "former reason" in plain_browser.get(f"/dead-letters/history?hub={hub}").text


@pytest.mark.slow
def test_redrives(
    service: HubService, database: Database, pipeline: str, plain_browser: PlainBrowser
) -> None:
    """The process of a redrive gets the same limit: its report quotes the reasons of what it considered."""
    stored, consumer = DeadLetters(database), ConsumerKey(REDRIVEN)
    stored.add(consumer, "0", [letter(3, "former secret")], pipeline="numbers")
    recreate_hub(service, REDRIVEN)
    stored.add(consumer, "0", [letter(4, "our own")], pipeline="numbers")
    tenant = signed_in(service, REDRIVEN, Claim.MANAGE)
    done = ended_job(tenant, tenant.post("/dead-letters/redrive", {"pipeline": pipeline}))
    assert "our own" in done
    assert "former" not in done
    # The form that executes what was tried.
    answer = tenant.post("/dead-letters/redrive", hidden_fields(done) | {"mode": "earnest"})
    ended_job(tenant, answer)
    assert stored.show(consumer, "0", 3).status is DeadLetterStatus.OPEN
    assert stored.show(consumer, "0", 4).status is DeadLetterStatus.REDRIVEN

    # What was tried is also all that a policy of the namespace executes, which covers both hubs.
    stored.add(consumer, "0", [letter(5, "our own")], pipeline="numbers")
    started = tenant.post("/dead-letters/redrive", {"pipeline": pipeline})
    ended_job(tenant, started)
    tried = hidden_fields(plain_browser.follow(started).text)
    ended_job(plain_browser, plain_browser.post("/dead-letters/redrive", tried | {"mode": "earnest"}))
    assert stored.show(consumer, "0", 5).status is DeadLetterStatus.REDRIVEN
    assert stored.show(consumer, "0", 3).status is DeadLetterStatus.OPEN


def test_consumer_groups(service: HubService, database: Database, plain_browser: PlainBrowser) -> None:
    """Names of groups and hosts, numbers and policies; but a checkpoint that stops hosts is told."""
    hub = service.create_hub(partition_count=2)

    async def created_at_ms(server: TidegateServer) -> int:
        return server.broker.event_hub(hub).description.created_at_ms

    def checkpoint(group: str, partition_id: str, number: int, owner: str) -> None:
        target = ProcessorCheckpoint(
            partition_id, number, event_hub_created_at_ms=service.call(created_at_ms)
        )
        move_checkpoint(database, ConsumerKey(hub, group), target, owner=owner, is_rewind_allowed=True)

    for group in ("$Default", "former-group"):
        checkpoint(group, "0", 31_337, "former-policy")
        LeaseTable(database).acquire(ConsumerKey(hub, group), "0", "former-host", expected=None)
    LeaseTable(database).acquire(ConsumerKey(hub, "leased"), "0", "former-host", expected=None)
    DeadLetters(database).add(ConsumerKey(hub), "0", [letter(3, "former secret")])
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    default = f"/consumers/{hub}/%24Default"
    for path in ("/consumers", default, f"{default}/move?to=earliest"):
        answer = tenant.get(path)
        assert answer.status == 200
        for words in ("former", "leased<", "31,337", "31,338"):
            assert words not in answer.text, (path, words)
    page = text_of(tenant.get(default).text)
    assert "0 not of this log no lease" in page
    assert "1 checkpoints do not belong to this log" in page
    assert "Open dead letters 0" in page
    absent = text_of(tenant.get(f"/consumers/{hub}/absent-group").text)
    for group in ("former-group", "leased"):
        answer = tenant.get(f"/consumers/{hub}/{group}")
        assert (answer.status, text_of(answer.text)) == (404, absent.replace("absent-group", group))
    # What the hub has now is seen, as is a host that holds a partition.
    checkpoint("ours", "0", 7, "our-policy")
    LeaseTable(database).acquire(ConsumerKey(hub, "ours"), "0", "our-host", expected=None)
    DeadLetters(database).add(ConsumerKey(hub, "ours"), "0", [letter(3, "our own")])
    assert "ours" in tenant.get("/consumers").text
    page = tenant.get(f"/consumers/{hub}/ours").text
    for words in ("our-host", "our-policy"):
        assert words in page
    assert "Open dead letters 1" in text_of(page)
    # A policy of the namespace covers both hubs.
    assert "former-host" in plain_browser.get(f"/consumers/{hub}/former-group").text


def test_moves(service: HubService, database: Database) -> None:
    """A dry run of the earlier hub is not carried out in this one, where its positions mean nothing."""
    hub = service.create_hub(partition_count=1)
    former = signed_in(service, hub, Claim.MANAGE)
    address = f"/consumers/{hub}/%24Default/move"
    fields = hidden_fields(former.get(f"{address}?to=latest").text)
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    answer = tenant.post(address, fields)
    assert (answer.status, "This dry run has expired" in answer.text) == (404, True)
    assert CheckpointReader(database).read(ConsumerKey(hub)) == {}
    fields = hidden_fields(tenant.get(f"{address}?to=latest").text)
    assert "Moved 1 " in text_of(ended_job(tenant, tenant.post(address, fields)))


@pytest.mark.slow
def test_a_move_that_waits_leaves_a_new_hubs_checkpoints(
    service: HubService, database: Database, plain_browser: PlainBrowser
) -> None:
    """Another writer may hold the database's lock for long. Who manages the namespace still has the right."""
    service.create_hub("waited-for", partition_count=1)
    address = "/consumers/waited-for/%24Default/move"
    fields = hidden_fields(plain_browser.get(f"{address}?to=earliest").text)
    with database.writing():
        # Answered after a second, when the job waits for the lock.
        started = plain_browser.post(address, {**fields, "rewind": "yes", "force": "yes"})
        recreate_hub(service, "waited-for")
    assert "was deleted; its checkpoints stay" in ended_job(plain_browser, started)
    assert not CheckpointReader(database).read(ConsumerKey("waited-for"))


def test_moves_of_groups_that_record_no_hub(service: HubService, database: Database) -> None:
    """Official SDKs' stores keep no creation time, and the hosts of the former tenant may still run: neither
    the number that they reached nor their name is shown."""
    hub = service.create_hub(partition_count=1)
    consumer = ConsumerKey(hub)
    move_checkpoint(database, consumer, ProcessorCheckpoint("0", 424_241))
    lease = LeaseTable(database).acquire(consumer, "0", "former-secret-host", expected=None)
    assert lease is not None
    time.sleep(0.01)
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    address = f"/consumers/{hub}/%24Default/move"
    page = tenant.get(f"{address}?to=earliest").text
    assert "another log" in page
    assert "424,24" not in page
    fields = hidden_fields(page) | {"rewind": "yes"}
    refused = text_of(ended_job(tenant, tenant.post(address, fields)))
    assert "1 partitions are processed now (0 by a host of an earlier hub of this name)" in refused
    assert "former-secret-host" not in refused


def test_sets_of_sent_events(service: HubService) -> None:
    """Their pages say how much the former tenant has sent, and an error may quote what it was."""
    hub = service.create_hub(partition_count=1)
    former = signed_in(service, hub, Claim.SEND)
    former.get(f"/hubs/{hub}/explorer/send")
    form = {"lines": "one\ntwo", "repeats": "5000", "rate": "20"}
    address = former.post(f"/hubs/{hub}/explorer/sets", form).headers["location"]
    assert "10,000" in former.get(address).text
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    assert address not in tenant.get(f"/hubs/{hub}/explorer/send").text
    live = f"/console/live/hubs/{hub}/sets/{address.rpartition('/')[2]}"
    assert [tenant.get(path).status for path in (address, live)] == [404, 404]
    assert tenant.post(f"{address}/stop").status == 404
    own = tenant.post(f"/hubs/{hub}/explorer/sets", form).headers["location"]
    assert "10,000" in tenant.get(own).text
    assert own in tenant.get(f"/hubs/{hub}/explorer/send").text
    assert tenant.post(f"{own}/stop").status == 303


def test_jobs(service: HubService, plain_browser: PlainBrowser) -> None:
    """A job's title quotes a reason, its actor names a policy and an address, its output quotes events."""
    hub = service.create_hub(partition_count=1)
    former = signed_in(service, hub, Claim.MANAGE)
    started = former.post("/dead-letters/discard", {"hub": hub, "because": "a former secret"})
    ended_job(former, started)
    address = started.headers["location"]
    recreate_hub(service, hub)
    tenant = signed_in(service, hub, Claim.MANAGE)
    assert "former" not in tenant.get("/console/jobs").text
    for path in (address, address.replace("/console", "/console/live", 1)):
        answer = tenant.get(path)
        absent = tenant.get(path.replace(path[-12:], "0123456789ab"))
        assert (answer.status, answer.text.replace(path[-12:], "0123456789ab")) == (404, absent.text)
    assert tenant.post(f"{address}/cancel").status == 404
    own = tenant.post("/dead-letters/discard", {"hub": hub, "because": "our own"})
    assert "our own" in ended_job(tenant, own)
    assert "our own" in tenant.get("/console/jobs").text
    # A policy of the namespace covers both hubs.
    assert "a former secret" in plain_browser.get(address).text


def test_the_kelvin_sign_is_no_second_spelling() -> None:
    """Its small letter is k: a hub's rights under such a name would be those of no hub that exists."""
    rights = Rights("policy", can_listen=True, can_send=True, can_manage=True, hub="kitchen")
    assert rights.covers("Kitchen")
    assert not rights.covers("\u212aitchen")

"""The guide on disaster recovery is true: each case is brought about, and its way out taken."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table
from tests.capture.support import wait_until
from tests.docs_support import ROOT, environment_of

from tidegate.client import EventHubConsumer, EventHubProducer
from tidegate.model.errors import LogDivergedError, TidegateError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import EventProcessorHost, PartitionState
from tidegate.sql import Database, Pipeline, Row, SqlStore
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.usefixtures("forked_python")

_HUB = "telemetry"
_TABLE = Table(
    "readings",
    MetaData(),
    Column("partition_id", String(64), primary_key=True),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("body", String(64), nullable=False),
)


def _read(event: ReceivedEvent) -> Row:
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "body": event.body.decode(),
    }


class Place:
    """A service with one hub of one partition, and a database beside it."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        self.database = directory / "readings.db"
        self.service = HubService(self.log)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    async def send(self, *bodies: str) -> None:
        """All in one batch."""
        string = self.service.connection_string
        async with EventHubProducer.from_connection_string(string, _HUB) as producer:
            await producer.send([EventData(body.encode()) for body in bodies], partition_id="0")

    async def received(self, count: int) -> list[ReceivedEvent]:
        """The first events of the log."""
        string = self.service.connection_string
        async with (
            EventHubConsumer.from_connection_string(string, _HUB) as consumer,
            await consumer.open_receiver("0", EventPosition.earliest()) as receiver,
        ):
            found: list[ReceivedEvent] = []
            while len(found) < count:
                found += await receiver.receive(max_events=count, max_wait_s=20)
            return found

    @asynccontextmanager
    async def host(self) -> AsyncIterator[EventProcessorHost]:
        """A transactional host at work."""
        with Database.open(self.url) as database:
            database.ensure_table(_TABLE)
            store = SqlStore(database)
            host = EventProcessorHost.from_connection_string(
                self.service.connection_string, _HUB, store=store, transactional=True
            )
            try:
                async with host.running(Pipeline("readings", _HUB, _TABLE, _read)):
                    yield host
            finally:
                await store.close()

    async def process(self, count: int) -> None:
        """Until the table has so many rows."""
        async with self.host():
            await wait_until(lambda: len(self.rows()) >= count)

    def rows(self) -> list[str]:
        """The bodies in the table, by sequence number."""
        with closing(sqlite3.connect(self.database, timeout=10)) as connection:
            try:
                found = connection.execute("SELECT body FROM readings ORDER BY sequence_number").fetchall()
            except sqlite3.OperationalError:
                return []  # The host has not made it yet.
        return [body for (body,) in found]

    def audit(self) -> tuple[int, dict[str, object]]:
        """Exit code of ``tidegate audit``, and what it says of the partition."""
        words = ["audit", _HUB, "--database", self.url, "--table", "readings", "--json"]
        code, text = self.command(*words)
        return code, json.loads(text)[0]

    def command(self, *words: str) -> tuple[int, str]:
        """Run ``tidegate …``; exit code and standard output."""
        is_offline = words[0] == "check"
        found = subprocess.run(
            [sys.executable, "-m", "tidegate.cli", *words],
            env=None if is_offline else environment_of(self.service),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return found.returncode, found.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place with the hub in it, not running."""
    made = Place(tmp_path)
    with made.service:
        made.service.create_hub(_HUB, partition_count=1)
    return made


def _copy(source: Path, target: Path) -> None:
    """Replace ``target`` by a copy: a backup, or its restoration."""
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        for leftover in target.parent.glob(f"{target.name}-*"):
            leftover.unlink()  # SQLite's own, which belong to the file that is replaced
        shutil.copy(source, target)


@pytest.mark.slow
async def test_a_backup_of_the_database_and_then_the_log_goes_on_exactly_once(
    place: Place, tmp_path: Path
) -> None:
    """Both restored: what the log has more than the database is processed once, and nothing twice."""
    with place.service:
        await place.send("a", "b")
        await place.process(2)
    _copy(place.database, tmp_path / "backup.db")
    with place.service:
        await place.send("c")
        await place.process(3)
    _copy(place.log, tmp_path / "backup-log")
    with place.service:
        await place.send("lost")
        await place.process(4)
    _copy(tmp_path / "backup-log", place.log)
    _copy(tmp_path / "backup.db", place.database)
    with place.service:
        await place.process(3)
        assert place.rows() == ["a", "b", "c"]
        assert place.audit()[0] == 0


@pytest.mark.slow
async def test_a_log_that_is_older_than_the_database_is_noticed(place: Place, tmp_path: Path) -> None:
    """Audit and host say so, the host also once new events have the old numbers; and there is a way."""
    with place.service:
        await place.send("a", "b")
    _copy(place.log, tmp_path / "backup-log")
    with place.service:
        await place.send("lost 2", "lost 3")
        await place.process(4)
    _copy(tmp_path / "backup-log", place.log)
    with place.service:
        code, partition = place.audit()
        assert (code, partition["beyond_log"]) == (4, 2), partition
        async with place.host() as host:
            await wait_until(lambda: _state(host) is PartitionState.STOPPED)
            assert isinstance(host.statistics().partitions["0"].error, LogDivergedError)
    grown = tmp_path / "grown"
    grown.mkdir()
    other = Place(grown)
    _copy(place.log, other.log)
    _copy(place.database, other.database)
    with other.service:
        await other.send("new 2", "new 3", "new 4")
        async with other.host() as host:
            await wait_until(lambda: _state(host) is PartitionState.STOPPED)
            assert isinstance(host.statistics().partitions["0"].error, LogDivergedError)
        assert other.rows() == ["a", "b", "lost 2", "lost 3"]
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM readings WHERE sequence_number >= 2")
    with place.service:
        words = ["checkpoint", "set", _HUB, "--all", "--latest", "--rewind", "--yes", "--database", place.url]
        assert place.command(*words)[0] == 0
        await place.send("new 2", "new 3", "new 4")
        await place.process(5)
        assert place.rows() == ["a", "b", "new 2", "new 3", "new 4"]
        assert place.audit()[0] == 0


def _state(host: EventProcessorHost) -> PartitionState | None:
    found = host.statistics().partitions.get("0")
    return None if found is None else found.state


@pytest.mark.slow
async def test_a_damaged_segment_is_refused_and_repaired_with_its_numbers_kept(
    place: Place,
) -> None:
    """The service serves the rest meanwhile, and afterwards everything that is intact."""
    with place.service:
        await place.send("a", "b")
    (segment,) = place.log.glob("logs/*/0/*.log")
    intact = segment.read_bytes()
    with place.service:
        await place.send("c")
    damaged = bytearray(segment.read_bytes())
    damaged[len(intact) - 3] ^= 0xFF  # in the batch of a and b
    segment.write_bytes(damaged)
    with place.service:
        await place.send("d")
        with pytest.raises(TidegateError, match="damaged"):
            await place.received(4)
    assert place.command("check", str(place.log))[0] == 4
    assert place.command("check", str(place.log), "--repair")[0] == 0
    assert place.command("check", str(place.log))[0] == 0
    assert segment.read_bytes()[: len(damaged)] == bytes(damaged)  # no bytes are discarded
    with place.service:
        await place.send("e")
        found = [(event.sequence_number, event.body) for event in await place.received(3)]
    assert found == [(2, b"c"), (3, b"d"), (4, b"e")]


def test_the_guide_describes_each(place: Place) -> None:
    """Its cases are those above."""
    page = (ROOT / "docs/guides/disaster-recovery.md").read_text(encoding="utf-8")
    for words in ("The log is older than the database", "A segment is damaged", "Back up the database first"):
        assert words in page

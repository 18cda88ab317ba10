"""``tidegate pipeline replay --shadow``, ``diff``, ``swap`` and ``drop``, over a real service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, inspect, select
from tests.cli.support import Result, run_tidegate
from tests.docs_support import ROOT, write_programs
from tests.needs import some_have
from tests.support.sqlserver import SQL_SERVERS

from tidegate.client import BlockingConsumer, EventHubConsumer, EventHubProducer
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    Pipeline,
    load_pipeline,
    process_partition_batch,
)
from tidegate.testing.hub import HubService

readings = Table(
    "reading",
    MetaData(),
    Column("partition_id", String(16), primary_key=True),
    Column("sequence_number", Integer, primary_key=True, autoincrement=False),
    Column("celsius", Integer, nullable=False),
)
PROGRAM = """
from tests.cli.test_shadow_commands import pipeline_of
pipeline = pipeline_of(HUB, factor=2)
former = pipeline_of(HUB, factor=1)
"""


def pipeline_of(hub: str, *, factor: int) -> Pipeline:
    """A version: the text of an event times a factor; the first one cannot read 7."""

    def read(event: ReceivedEvent) -> dict[str, object]:
        if factor == 1 and bytes(event.body) == b"7":
            raise ValueError("seven")
        place = {"partition_id": event.partition_id, "sequence_number": event.sequence_number}
        return place | {"celsius": int(event.body) * factor}

    return Pipeline("readings", hub, readings, read)


class Place:
    """A hub with two partitions, a database, a file with the next version, and the live one as it runs."""

    def __init__(
        self, path: Path, url: str, hub: str, service: HubService, environment: dict[str, str]
    ) -> None:
        self.url, self.hub, self._service = url, hub, service
        self.file = path / "pipelines.py"
        self.file.write_text(f"HUB = {hub!r}\n{PROGRAM}")
        self._environment = environment | {
            "TIDEGATE_STATE_DIR": str(path / "state"),
            "TIDEGATE_DATABASE": url,
        }
        self._sent = 0

    def send(self, count: int) -> None:
        """Send numbers to both partitions, count to each."""
        numbers = range(self._sent, self._sent + count)
        self.send_bodies([(each, str(number).encode()) for number in numbers for each in "01"])
        self._sent += count

    def send_bodies(self, bodies: Sequence[tuple[str, bytes]]) -> None:
        """Send events to partitions."""

        async def send() -> None:
            connection = self._service.connection_string
            async with EventHubProducer.from_connection_string(connection, self.hub) as producer:
                for partition_id, body in bodies:
                    await producer.enqueue(EventData(body), partition_id=partition_id)
                await producer.flush()

        asyncio.run(send())

    def run_live(self, *, factor: int = 1, until: int | None = None) -> int:
        """Process both partitions, to the end or up to a number, as a host would; how many rows that made."""
        ends = dict.fromkeys("01", until or self._sent)
        return self.process(pipeline_of(self.hub, factor=factor), ends)

    def process(self, pipeline: Pipeline, ends: Mapping[str, int]) -> int:
        """Process partitions from their checkpoints up to a number; how many rows that made."""
        rows = 0
        with (
            Database.open(self.url) as database,
            BlockingConsumer(self._service.connection_string, self.hub) as consumer,
        ):
            database.ensure_table(pipeline.table)
            for partition_id, until in ends.items():
                rows += process_partition_batch(
                    database,
                    pipeline,
                    partition_id,
                    list(consumer.read_events(self.hub, partition_id, range(until))),
                    start_sequence_number=0,
                    until_sequence_number=until,
                    event_hub_created_at_ms=consumer.get_event_hub_properties().created_at_ms,
                ).rows
        return rows

    def run(self, command: str, *options: str, name: str = "pipeline", file: str = "") -> Result:
        """A command of ``tidegate pipeline`` for the shadow v2."""
        words = ("pipeline", command, f"{file or self.file}:{name}", "--shadow", "v2", *options)
        return run_tidegate(*words, environment=self._environment)

    def run_beside_an_owner(self, command: str, *, name: str) -> Result:
        """The same while a host's receivers own the partitions."""

        async def run() -> Result:
            connection = self._service.connection_string
            async with EventHubConsumer.from_connection_string(connection, self.hub) as consumer:
                owners = [
                    await consumer.open_receiver(each, EventPosition.earliest(), owner_level=1)
                    for each in "01"
                ]
                found = await asyncio.to_thread(self.run, command, name=name)
                for owner in owners:
                    assert await owner.receive()
            return found

        return asyncio.run(run())

    def rows(self) -> list[tuple[str, int, int]]:
        """The live table."""
        with Database.open(self.url) as database, database.read() as connection:
            return [tuple(row) for row in connection.execute(select(readings).order_by(*readings.columns))]

    def table_names(self) -> set[str]:
        """Those in the database that are not Tidegate's."""
        with Database.open(self.url) as database, database.read() as connection:
            return {each for each in inspect(connection).get_table_names() if not each.startswith("tidegate")}


@pytest.fixture
def place(
    tmp_path: Path, database_url: str, event_hub: str, hub_service: HubService, environment: dict[str, str]
) -> Place:
    """Everything that one test needs."""
    return Place(tmp_path, database_url, event_hub, hub_service, environment)


@pytest.mark.slow
@some_have("database_url", ["postgresql"], ["sqlite", "mariadb", *SQL_SERVERS])
def test_the_whole_walk(place: Place) -> None:
    """Replay beside the live pipeline, differences at its own position, swap, and on from the checkpoint."""
    place.send(15)
    Database.open(place.url).close()
    refused = place.run("replay")
    assert (refused.code, "has no checkpoint" in refused.err) == (1, True)
    place.run_live(until=10)
    missing = place.run("diff")
    assert (missing.code, "has no shadow v2" in missing.err) == (1, True), missing.err
    replayed = place.run("replay")
    assert (replayed.code, "Replayed 20 events into reading__v2" in replayed.err) == (0, True), replayed.err
    place.run_live()
    # The live pipeline has moved on: the shadow follows it.
    found = place.run("diff", "--json", "--limit", "2")
    assert found.code == 4, found.err
    values = found.json()
    assert isinstance(values, dict)
    assert values["positions"] == [
        {"partition": "0", "live": 15, "shadow": 15},
        {"partition": "1", "live": 15, "shadow": 15},
    ]
    assert values["rows"] == {
        "same": 2,
        "changed": 26,
        "only_live": 0,
        "only_shadow": 2,
        "first": [
            {
                "key": {"partition_id": "0", "sequence_number": number},
                "live": {"celsius": number},
                "shadow": {"celsius": 2 * number},
            }
            for number in (1, 2)
        ],
    }
    letter = values["dead_letters"]["first"][0]
    assert letter == {
        "key": {"partition": "0", "sequence_number": 7},
        "live": {"error_type": "ValueError", "reason": "seven"},
        "shadow": None,
    }
    table = place.run("diff")
    assert "row only shadow" in table.out
    assert ["row", "changed", "partition_id=0,", "sequence_number=1", "celsius", "1", "2"] in [
        line.split() for line in table.out.splitlines()
    ]
    lines = place.run("diff", "--csv", "--limit", "1").out.splitlines()
    assert lines[:2] == [
        "difference,key,column,live,shadow",
        'row changed,"partition_id=0, sequence_number=1",celsius,1,2',
    ]
    assert "Rows: 2 same, 26 changed, 0 only live, 2 only shadow." in table.err
    assert "Open dead letters: 0 same, 0 changed, 2 only live, 0 only shadow." in table.err

    place.send(5)
    place.run_live()
    behind = place.run("swap")
    assert (behind.code, "partition 0: shadow 15, live 20" in behind.err) == (1, True), behind.err
    assert "Replayed 10 events" in place.run("replay").err
    swapped = place.run("swap")
    assert (swapped.code, "reading has the rows of the shadow v2" in swapped.err) == (0, True), swapped.err
    place.send(5)
    assert place.run_live(factor=2) == 10
    assert place.rows() == [(each, number, 2 * number) for each in "01" for number in range(25)]
    with Database.open(place.url) as database:
        chosen = DeadLetterFilter(event_hub=place.hub, consumer_group="$Default")
        assert DeadLetters(database).count(chosen) == 0
    # The former version is the shadow now, and can follow.
    assert "Replayed 10 events" in place.run("replay", name="former").err
    assert place.run("swap", name="former").code == 0
    assert [celsius for *_, celsius in place.rows()] == [n for _ in "01" for n in range(25) if n != 7]
    assert "Dropped the shadow v2" in place.run("drop").err
    again = place.run("drop")
    assert (again.code, "has no shadow v2: nothing was dropped" in again.err) == (0, True)
    assert place.table_names() == {"reading"}
    with Database.open(place.url) as database, database.read() as connection:
        groups = connection.exec_driver_sql(
            "SELECT DISTINCT consumer_group FROM tidegate_checkpoint"
        ).scalars()
        assert set(groups) == {ConsumerKey(place.hub).consumer_group}


@pytest.mark.slow
def test_equal_versions(
    tmp_path: Path, sqlite_url: str, event_hub: str, hub_service: HubService, environment: dict[str, str]
) -> None:
    """A version that changes nothing is exit code 0; a host that reads the partitions is not disturbed."""
    place = Place(tmp_path, sqlite_url, event_hub, hub_service, environment)
    place.send(9)
    place.run_live()
    assert place.run_beside_an_owner("replay", name="former").code == 0
    same = place.run("diff", name="former")
    assert (same.code, same.out) == (0, ""), same.err
    assert "Rows: 16 same, 0 changed, 0 only live, 0 only shadow." in same.err
    assert "Open dead letters: 2 same," in same.err


def test_the_guide_works_as_it_stands(
    tmp_path: Path, sqlite_url: str, hub_service: HubService, environment: dict[str, str]
) -> None:
    """Its files and commands print what it shows, in the order of a terminal."""
    write_programs(tmp_path)
    guide = (ROOT / "docs/guides/replay.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n(Replayed .*?)```", guide, flags=re.DOTALL)[0]
    program = load_pipeline(f"{tmp_path}/rooms.py:readings")
    assert isinstance(program, Pipeline)
    place = Place(
        tmp_path, sqlite_url, hub_service.create_hub("rooms", partition_count=2), hub_service, environment
    )
    sent = [
        ("0", b'{"device": "attic", "celsius": 28.0}'),
        ("0", b'{"device": "cellar"}'),
        ("0", b'{"device": "oven", "celsius": 190.0}'),
        ("1", b'{"device": "hall", "celsius": 20.46}'),
    ]
    place.send_bodies(sent)
    place.process(program, {"0": 3, "1": 1})
    replayed = place.run("replay", name="readings", file=f"{tmp_path}/rooms_v2.py")
    found = place.run("diff", name="readings", file=f"{tmp_path}/rooms_v2.py")
    assert found.code == 4, found.err
    said = found.err.partition("Error")[0]
    assert [line.split() for line in f"{replayed.err}\n{found.out}{said}".splitlines()] == [
        line.split() for line in shown.splitlines()
    ]


def test_what_has_no_shadow(tmp_path: Path, environment: dict[str, str]) -> None:
    """One line says what is wrong, before anything is started."""
    file = tmp_path / "pipelines.py"
    file.write_text(
        "from tidegate.spark import FileSink, HubSource, StreamPipeline\n"
        "files = StreamPipeline('files', HubSource('hub'), FileSink('/nowhere'))\n"
    )
    for words, said in (
        (["replay", f"{file}:files"], "Neither --capture nor --shadow was given."),
        (["replay", f"{file}:files", "--shadow", "v2"], "it has no shadow"),
        (["swap", f"{file}:files", "--shadow", "v2"], "it has no shadow"),
    ):
        refused = run_tidegate("pipeline", *words, environment=environment)
        assert (refused.code, said in refused.err, len(refused.err.splitlines())) == (2, True, 1), refused.err

"""What the Spark tests share: events with known bodies, a pipeline over them, and the check of exactness."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, String, Table, func, select

import tidegate
from tidegate.client import EventHubProducer
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.sql import CheckpointReader, Database, Pipeline
from tidegate.sql.core.schema import dead_letter

readings = Table(
    "readings",
    MetaData(),
    Column("partition", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("value", Integer, nullable=False),
)
"""Without a key on purpose: an event that is written twice must show, not be refused."""


def score(event: ReceivedEvent) -> dict[str, object]:
    """The handler of these tests: every seventh event cannot be scored."""
    value = json.loads(event.body)["value"]
    if value % 7 == 3:
        raise ValueError(f"value {value % 10} cannot be scored")
    return {"partition": event.partition_id, "number": event.sequence_number, "value": value}


def make_pipeline(event_hub: str, name: str = "readings") -> Pipeline:
    """The pipeline of these tests over a hub."""
    return Pipeline(name, event_hub, readings, score)


def publish(connection_string: str, event_hub: str, count: int, *, first_value: int = 0) -> None:
    """Send ``count`` events with ascending values, dealt to the hub's partitions in turn."""

    async def send() -> None:
        async with EventHubProducer.from_connection_string(connection_string, event_hub) as producer:
            partition_ids = (await producer.get_event_hub_properties()).partition_ids
            for value in range(first_value, first_value + count):
                body = json.dumps({"value": value}).encode()
                await producer.enqueue(
                    EventData(body, {"parity": "odd" if value % 2 else "even"}),
                    partition_id=partition_ids[value % len(partition_ids)],
                )
            await producer.flush()

    asyncio.run(send())


def cluster_environment(home: Path) -> dict[str, str]:
    """Of a ``SparkCluster`` whose executors have this Python, and Tidegate from where this process has it."""
    return {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.defpath)),
        "PYTHONPATH": str(Path(tidegate.__file__).parents[1]),
        "HOME": str(home),
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a database holds after a pipeline ran."""

    rows: int
    distinct_rows: int
    dead_letters: int
    position: int
    """Sum of the checkpoints: how many events are accounted for."""


def outcome_of(database_url: str) -> Outcome:
    """Count what was written. All dead letters have distinct keys by the table's primary key."""
    with Database.open(database_url) as database:
        database.ensure_table(readings)
        with database.read() as connection:
            rows = connection.execute(select(func.count()).select_from(readings)).scalar_one()
            distinct = select(readings.c.partition, readings.c.number).distinct().subquery()
            distinct_rows = connection.execute(select(func.count()).select_from(distinct)).scalar_one()
            letters = connection.execute(select(func.count()).select_from(dead_letter)).scalar_one()
        return Outcome(rows, distinct_rows, letters, position_of(database))


def position_of(database: Database) -> int:
    """How many events the checkpoints say are done."""
    return sum(item.next_sequence_number or 0 for item in CheckpointReader(database).read_all())


def has_reached(database_url: str, position: int) -> bool:
    """Whether so many events are accounted for in the database."""
    return position_of(Database.shared(database_url)) >= position


def assert_exact(database_url: str, event_count: int) -> None:
    """Rows and dead letters together are the events that ``publish`` sent, none twice, none missing."""
    dead_letters = sum(value % 7 == 3 for value in range(event_count))
    assert outcome_of(database_url) == Outcome(
        event_count - dead_letters, event_count - dead_letters, dead_letters, event_count
    )

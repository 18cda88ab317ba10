"""Events, tables and pipelines that the tests of the transactional core share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, Text, func, select

from tidegate.model.errors import PositionOutOfRangeError
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.sql import ConsumerKey, Database, DeadLetters, Pipeline, Row
from tidegate.sql.core.values import DeadLetterFilter

CONSUMER = ConsumerKey("flights")

flights = Table(
    "flights",
    MetaData(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("partition_id", String(64), primary_key=True),
    Column("delay", Integer, nullable=False),
    Column("note", Text),
)


def event_with(body: object, sequence_number: int, *, partition_id: str = "0") -> ReceivedEvent:
    """An event with a JSON body, whose offset and time follow from its sequence number."""
    return ReceivedEvent(
        partition_id=partition_id,
        sequence_number=sequence_number,
        offset=str(sequence_number),
        enqueued_time_ms=1_700_000_000_000 + sequence_number,
        contents=EventContents(body=json.dumps(body).encode(), partition_key="UA1"),
    )


def events_between(start: int, until: int, *, partition_id: str = "0") -> list[ReceivedEvent]:
    """Good events: the delay is the sequence number."""
    return [
        event_with({"delay": number}, number, partition_id=partition_id) for number in range(start, until)
    ]


def record_delay(event: ReceivedEvent) -> Row:
    """A handler: one row per event; an event without a delay cannot be scored."""
    delay = json.loads(event.body)["delay"]
    if delay is None:
        raise ValueError("no arrival delay: cancelled or diverted")
    return {"sequence_number": event.sequence_number, "partition_id": event.partition_id, "delay": delay}


PIPELINE = Pipeline(name="flights", event_hub="flights", table=flights, handler=record_delay)


def rows_in(database: Database, table: Table = flights) -> list[tuple[object, ...]]:
    """All rows of a table, ordered by its columns."""
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(select(table).order_by(*table.columns))]


def kill(database: Database, connection: Connection) -> None:
    """End a connection, as an administrator would."""
    own, statement = {
        "postgresql": ("pg_backend_pid()", "SELECT pg_terminate_backend({id}, 10000)"),
        "mariadb": ("CONNECTION_ID()", "KILL {id}"),
        "mssql": ("@@SPID", "KILL {id}"),
    }[database.dialect.name]
    number = connection.exec_driver_sql(f"SELECT {own}").scalar_one()
    with database.writing() as other, other.begin():
        other.exec_driver_sql(statement.format(id=number))


def row_count(database: Database, table: Table = flights) -> int:
    """How many rows a table has."""
    with database.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def dead_numbers(database: Database) -> list[int]:
    """Sequence numbers of the open dead letters."""
    return [letter.sequence_number for letter in DeadLetters(database).list(DeadLetterFilter(), limit=None)]


class LogOfEvents:
    """An ``EventReader`` over a list; ``begin`` is what retention has left."""

    def __init__(self, events: Iterable[ReceivedEvent], *, begin: int = 0) -> None:
        self.events = {(event.partition_id, event.sequence_number): event for event in events}
        self.begin = begin
        self.reads = 0

    def read_events(
        self, event_hub: str, partition_id: str, sequence_numbers: Sequence[int]
    ) -> Iterable[ReceivedEvent]:
        """As the protocol says; raises before giving anything when one is gone."""
        self.reads += 1
        for number in sequence_numbers:
            if number < self.begin or (partition_id, number) not in self.events:
                raise PositionOutOfRangeError(f"Event {number} is not in the log.")
        return [self.events[partition_id, number] for number in sequence_numbers]

"""What must hold after a run on Spark; every finding is a sentence, an empty list is what the tests want.

Rows are checked as those of hosts are (``tests.processor.faults.checker``). Aggregates are worked out anew
from the log, by a consumer without Spark, and compared key by key.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import func, select
from tests.processor.faults.checker import FINDINGS_MAX, check_rows
from tests.processor.faults.work import Fate, consumer_of, fate_of, sink
from tests.spark.faults.work import KEY_COUNT, aggregates

from tidegate.amqp.message import decode_message
from tidegate.client import BlockingConsumer
from tidegate.sql import Database, audit_table
from tidegate.sql.core.schema import dead_letter


@dataclass(slots=True)
class Aggregate:
    """A row of ``aggregates`` as it has to be."""

    events: int = 0
    total: int = 0
    lowest: int | None = None
    highest: int | None = None

    def add(self, number: int) -> None:
        """One more event."""
        self.events += 1
        self.total += number
        self.lowest = number if self.lowest is None else min(self.lowest, number)
        self.highest = number if self.highest is None else max(self.highest, number)


@dataclass(slots=True)
class LogContents:
    """What the log says, read once more from its start."""

    events: int = 0
    by_key: dict[int, Aggregate] = field(default_factory=lambda: defaultdict(Aggregate))
    bad: set[tuple[str, int]] = field(default_factory=set)
    """Partition and sequence number of the events that have to be dead letters."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What is there after a run, for the report."""

    rows: int
    """Of aggregates: the events in them."""
    dead_letters: int


def check_partitions_work(
    database: Database, connection_string: str, event_hub: str, events: int
) -> list[str]:
    """Each event is a row or a dead letter, once, as its number says; and ``tidegate audit`` agrees."""
    findings = check_log(connection_string, event_hub, events) + check_rows(database, event_hub, events)
    with BlockingConsumer(connection_string, event_hub) as consumer:
        found = audit_table(database, consumer_of(event_hub), consumer, sink.name)
    if not found.is_sound():
        findings += [f"tidegate audit: {each}" for each in (*found.partitions, *found.strays)]
    return findings


def check_aggregates_work(
    database: Database, connection_string: str, event_hub: str, events: int
) -> list[str]:
    """The table is what the log gives, and what must not be in it is a dead letter, once."""
    contents = read_log(connection_string, event_hub)
    findings = check_log(connection_string, event_hub, events)
    if contents.events != events:
        findings.append(f"{contents.events} events were read from the log, not {events}")
    columns = aggregates.c
    with database.read() as connection:
        rows = connection.execute(
            select(columns.key, columns.events, columns.total, columns.lowest, columns.highest)
        ).all()
        letters = connection.execute(select(dead_letter.c.partition_id, dead_letter.c.sequence_number)).all()
    stored = {key: Aggregate(*values) for key, *values in rows}
    findings += [
        f"key {key}: the table has {stored.get(key)}, and the log gives {contents.by_key.get(key)}"
        for key in sorted(stored.keys() | contents.by_key.keys())
        if stored.get(key) != contents.by_key.get(key)
    ][:FINDINGS_MAX]
    put_aside = [(partition_id, number) for partition_id, number in letters]
    if len(put_aside) != len(set(put_aside)):
        findings.append(f"{len(put_aside) - len(set(put_aside))} dead letters are there twice")
    wrong = contents.bad.symmetric_difference(put_aside)
    findings += [f"dead letter wrongly there or missing: {each}" for each in sorted(wrong)[:FINDINGS_MAX]]
    return findings


def check_log(connection_string: str, event_hub: str, events: int) -> list[str]:
    """The log holds as many events as were sent."""
    with BlockingConsumer(connection_string, event_hub) as consumer:
        held = sum(each.next_sequence_number for each in consumer.get_all_partition_properties())
    return [] if held == events else [f"the log holds {held} events, not {events}"]


def read_log(connection_string: str, event_hub: str) -> LogContents:
    """Everything the log says, by our client alone."""
    contents = LogContents()
    with BlockingConsumer(connection_string, event_hub) as consumer:
        for held in consumer.get_all_partition_properties():
            for events in consumer.read_encoded(held.partition_id, 0, held.next_sequence_number):
                for sequence_number, message in zip(events.sequence_numbers, events.messages, strict=True):
                    _add(contents, held.partition_id, sequence_number, message)
    return contents


def _add(contents: LogContents, partition_id: str, sequence_number: int, message: bytes | memoryview) -> None:
    number = int(b"".join(decode_message(message).data))
    contents.events += 1
    if fate_of(number) is Fate.ROW:
        contents.by_key[number % KEY_COUNT].add(number)
    else:
        contents.bad.add((partition_id, sequence_number))


def read_totals(database: Database, work: str) -> Totals:
    """How far a run has come; zeros where its tables are not there yet."""
    table, count = {
        "partitions": (sink, func.count()),
        "aggregates": (aggregates, func.coalesce(func.sum(aggregates.c.events), 0)),
    }[work]
    with database.read() as connection:
        rows = connection.execute(select(count).select_from(table)).scalar_one()
        letters = connection.execute(select(func.count()).select_from(dead_letter)).scalar_one()
    return Totals(int(rows), letters)

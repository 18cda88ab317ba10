"""The audit of a real table on SQLite and PostgreSQL, with a log that is only its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    insert,
)
from tests.sql.support import CONSUMER, events_between, flights, record_delay

from tidegate.model.errors import EventHubReplacedError, InvalidArgumentError, NotFoundError
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.sql import (
    Audit,
    ConsumerKey,
    Database,
    Finding,
    FindingKind,
    NewDeadLetter,
    PartitionAudit,
    Pipeline,
    StrayRows,
    UnitOfWork,
    audit_table,
    process_partition_batch,
)
from tidegate.sql.dead_letters.republish import add_once

CREATED_AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
CREATED_AT_MS = int(CREATED_AT.timestamp() * 1000)

loose = Table(
    "loose",
    MetaData(),
    Column("number", Numeric(20, 0)),
    Column("part", Integer),
    Column("delay", Integer),
)
"""A table that refuses nothing: the number may come twice or be missing."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """An ``AuditedLog``: [begin, end) of each partition."""

    bounds: Sequence[tuple[int, int]]

    def get_event_hub_properties(self) -> EventHubProperties:
        """As the protocol says."""
        return EventHubProperties("flights", CREATED_AT, tuple(map(str, range(len(self.bounds)))))

    def get_all_partition_properties(self) -> list[PartitionEnds]:
        """As the protocol says."""
        return [
            PartitionEnds("flights", str(number), begin, end, str(end - 1), 0)
            for number, (begin, end) in enumerate(self.bounds)
        ]


def _process(database: Database, start: int, until: int, *, partition_id: str = "0") -> None:
    process_partition_batch(
        database,
        Pipeline("flights", "flights", flights, record_delay),
        partition_id=partition_id,
        start_sequence_number=start,
        until_sequence_number=until,
        events=events_between(start, until, partition_id=partition_id),
        event_hub_created_at_ms=CREATED_AT_MS,
    )


def _advance(database: Database, until: int, *, partition_id: str = "0", dead: Iterable[int] = ()) -> None:
    """Move the checkpoint with dead letters and without rows."""
    with UnitOfWork(database, CONSUMER) as unit:
        locked = unit.lock(partition_id)
        letters = [NewDeadLetter(number, str(number), number, "ValueError", "bad") for number in dead]
        unit.add_dead_letters(partition_id, letters)
        unit.advance(partition_id, locked, until)


def _fill(database: Database, rows: Iterable[tuple[int | None, int | None]]) -> None:
    database.ensure_table(loose)
    values = [{"number": number, "part": part, "delay": 0} for number, part in rows]
    with database.writing() as connection, connection.begin():
        connection.execute(insert(loose), values)


def _audit_loose(database: Database, log: LogBounds, *, is_first_row_start: bool = False) -> Audit:
    return audit_table(
        database,
        CONSUMER,
        log,
        "loose",
        sequence_column="number",
        partition_column="part",
        is_first_row_start=is_first_row_start,
    )


def _findings(partition: PartitionAudit) -> list[tuple[FindingKind, int, int]]:
    return [
        (found.kind, found.start_sequence_number, found.until_sequence_number) for found in partition.findings
    ]


def test_what_the_core_wrote_is_sound(database: Database) -> None:
    """Batches of the transactional core leave nothing to find, with dead letters and with a reader behind."""
    _process(database, 0, 30)
    _advance(database, 33, dead=[30, 31, 32])
    _process(database, 0, 7, partition_id="1")
    done: list[tuple[int, int]] = []
    audit = audit_table(
        database,
        CONSUMER,
        LogBounds([(0, 40), (0, 7), (0, 0)]),
        "flights",
        progress=lambda count, total: done.append((count, total)),
    )
    assert audit.is_sound()
    assert [(item.events, item.rows, item.dead_letters_open) for item in audit.partitions] == [
        (33, 30, 3),
        (7, 7, 0),
        (0, 0, 0),
    ]
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_every_kind_of_wrong_is_named(database: Database) -> None:
    """Gaps, duplicates, rows of open dead letters, rows beyond the checkpoint, and rows of nothing.

    The table's partitions are numbers here, and its sequence numbers decimals.
    """
    _advance(database, 10, dead=[3, 4])
    rows = [(0, 0), (1, 0), (1, 0), (4, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 0)]
    _fill(database, [*rows, (None, 0), (0, 5), (5, None)])
    audit = _audit_loose(database, LogBounds([(0, 20)]))
    assert _findings(audit.partitions[0]) == [
        (FindingKind.GAP, 2, 3),
        (FindingKind.GAP, 5, 7),
        (FindingKind.DUPLICATE, 1, 2),
        (FindingKind.ROW_AND_DEAD_LETTER, 4, 5),
        (FindingKind.BEYOND_CHECKPOINT, 10, 12),
    ]
    assert audit.strays == (StrayRows(None, 1), StrayRows("0", 1), StrayRows("5", 1))
    assert not audit.is_sound(allowed=frozenset(FindingKind))


def test_dead_letters_of_listeners_neither_spoil_nor_hide(database: Database) -> None:
    """Who may Listen adds some over HTTP: of events with a row, of a lost one, before the first, beyond."""
    _advance(database, 10, dead=[4])
    _fill(database, [(number, 0) for number in (2, 3, 5, 6, 8, 9)])
    letters = [
        NewDeadLetter(number, str(number), CREATED_AT_MS, "E", "added") for number in (0, 1, 2, 7, 8, 12)
    ]
    limits = {"open_max": 99, "event_hub_created_at_ms": CREATED_AT_MS}
    assert add_once(database, CONSUMER, "0", letters, **limits) == 6
    (partition,) = _audit_loose(database, LogBounds([(0, 20)]), is_first_row_start=True).partitions
    assert (partition.start_sequence_number, partition.dead_letters_open) == (2, 1)
    assert _findings(partition) == [(FindingKind.GAP, 7, 8)]


def test_where_retention_took_the_events_the_table_alone_tells(database: Database) -> None:
    """Below the log's begin, the audit starts at the first row: gaps behind it are named, others not."""
    _advance(database, 30)
    _fill(database, [(number, 0) for number in range(5, 30) if number != 8])
    (partition,) = _audit_loose(database, LogBounds([(20, 30)])).partitions
    assert partition.start_sequence_number == 5
    assert partition.findings == (Finding(FindingKind.GAP, 8, 9),)


def test_a_consumer_that_did_not_start_at_the_beginning(database: Database) -> None:
    """What lies before the first row or dead letter is a gap, unless it was not to be read."""
    _advance(database, 30, dead=[18])
    _fill(database, [(number, 0) for number in range(19, 30)])
    log = LogBounds([(0, 30)])
    assert _audit_loose(database, log).partitions[0].gaps == 18
    partition = _audit_loose(database, log, is_first_row_start=True).partitions[0]
    assert (partition.start_sequence_number, partition.findings) == (18, ())


def test_an_empty_table_hides_no_loss(database: Database) -> None:
    """Without any row there is no first row: everything that was to be processed is missing."""
    _advance(database, 12)
    database.ensure_table(loose)
    (partition,) = _audit_loose(database, LogBounds([(2, 12)]), is_first_row_start=True).partitions
    assert _findings(partition) == [(FindingKind.GAP, 2, 12)]


def test_a_log_older_than_the_checkpoint(database: Database) -> None:
    """A log restored from a copy gives the same numbers to other events: named, though all rows match."""
    _process(database, 0, 30)
    (partition,) = audit_table(database, CONSUMER, LogBounds([(0, 25)]), "flights").partitions
    assert _findings(partition) == [(FindingKind.BEYOND_LOG, 25, 30)]


def test_another_hub_of_the_same_name(database: Database) -> None:
    """The numbers of a hub that was made anew are never compared with the old one's rows."""
    with UnitOfWork(database, CONSUMER) as unit:
        unit.advance("0", unit.lock("0"), 5, event_hub_created_at_ms=CREATED_AT_MS - 1)
    with pytest.raises(EventHubReplacedError, match="created again"):
        audit_table(database, CONSUMER, LogBounds([(0, 5)]), "flights")


def test_wrong_words_get_one_clear_error(database: Database) -> None:
    """A table, column or group that is not there is named, with what is."""
    _process(database, 0, 3)
    log = LogBounds([(0, 3)])
    with pytest.raises(NotFoundError, match="no table 'flight'"):
        audit_table(database, CONSUMER, log, "flight")
    with pytest.raises(InvalidArgumentError, match="no column 'seq'; it has sequence_number, partition_id"):
        audit_table(database, CONSUMER, log, "flights", sequence_column="seq")
    with pytest.raises(InvalidArgumentError, match="column partition_id of the table flights is VARCHAR"):
        audit_table(database, CONSUMER, log, "flights", sequence_column="partition_id")
    with pytest.raises(NotFoundError, match=r"flights/other.*There are some of: flights/\$Default"):
        audit_table(database, ConsumerKey("flights", "other"), log, "flights")


def test_a_pipeline_that_goes_on_meanwhile_is_no_finding(database: Database) -> None:
    """All is read as of one moment: what is committed between two readings is not half seen."""
    _process(database, 0, 10)

    class BusyLog(LogBounds):
        """While the audit asks for the log's end, the pipeline commits the next batch."""

        def get_all_partition_properties(self) -> list[PartitionEnds]:
            """As the protocol says."""
            _process(database, 10, 20)
            return LogBounds.get_all_partition_properties(self)

    audit = audit_table(database, CONSUMER, BusyLog([(0, 20)]), "flights")
    assert audit.is_sound()
    assert audit.partitions[0].rows == 10


def test_a_table_in_a_schema(postgresql_url: str) -> None:
    """``schema.table`` names a table outside the search path."""
    with Database.open(postgresql_url) as database:
        _advance(database, 2)
        elsewhere = Table(
            "rows",
            MetaData(schema="tidegate_audit_elsewhere"),
            Column("sequence_number", BigInteger),
            Column("partition_id", Text),
        )
        with database.writing() as connection, connection.begin():
            connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS tidegate_audit_elsewhere")
            elsewhere.create(connection)
            connection.execute(
                insert(elsewhere), [{"sequence_number": n, "partition_id": "0"} for n in (0, 1)]
            )
        audit = audit_table(database, CONSUMER, LogBounds([(0, 2)]), "tidegate_audit_elsewhere.rows")
        assert audit.is_sound()
        with pytest.raises(NotFoundError):
            audit_table(database, CONSUMER, LogBounds([(0, 2)]), "no_such_schema.rows")

"""Batches: what is committed, what is skipped, what is put aside, and what is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import CheckConstraint, Column, Integer, MetaData, String, Table, UniqueConstraint, exc
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    dead_numbers,
    event_with,
    events_between,
    flights,
    record_delay,
    row_count,
    rows_in,
)

from tidegate.model.errors import (
    CheckpointGapError,
    DatabaseError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    InvalidArgumentError,
)
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.sql import (
    BatchResult,
    CheckpointReader,
    Database,
    DeadLetters,
    NewDeadLetter,
    Pipeline,
    Row,
    process_partition_batch,
)
from tidegate.sql.commit.batch import commit_batches
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.commit.partition_batch import computed_batch
from tidegate.sql.core.failures import translate
from tidegate.sql.core.values import EventPlace, PartitionRows


def process(database: Database, events: list[ReceivedEvent], start: int, until: int) -> BatchResult:
    """Shorthand for the pipeline of these tests."""
    return process_partition_batch(
        database, PIPELINE, "0", events, start_sequence_number=start, until_sequence_number=until
    )


def next_number(database: Database) -> int | None:
    """Where the checkpoint of partition 0 is; None: there is none."""
    found = CheckpointReader(database).read(CONSUMER).get("0")
    return None if found is None else found.next_sequence_number


def test_rows_and_checkpoint_are_committed(database: Database) -> None:
    """A batch leaves its rows and a checkpoint that tells place, time and owner."""
    assert process(database, events_between(5, 9), 5, 10) == BatchResult(4, 0, 0, 5, 10)
    assert [row[0] for row in rows_in(database)] == [5, 6, 7, 8]
    checkpoint = CheckpointReader(database).read(CONSUMER)["0"]
    assert (checkpoint.next_sequence_number, checkpoint.offset) == (10, "8")
    assert checkpoint.enqueued_time_ms == 1_700_000_000_008
    assert checkpoint.owner
    assert checkpoint.updated_at.tzinfo is not None


def test_a_handler_failure_puts_only_that_event_aside(database: Database) -> None:
    """The others are kept, and the dead letter points to its event and says why."""
    events = [*events_between(0, 2), event_with({"delay": None}, 2), event_with({"delay": 3}, 3)]
    assert process(database, events, 0, 4) == BatchResult(3, 1, 0, 0, 4)
    (letter,) = DeadLetters(database).list()
    assert (letter.partition_id, letter.sequence_number, letter.offset) == ("0", 2, "2")
    assert (letter.error_type, letter.reason) == ("ValueError", "no arrival delay: cancelled or diverted")
    assert "record_delay" in letter.traceback
    assert (letter.attempts, letter.pipeline, letter.partition_key, letter.payload) == (
        1,
        "flights",
        "UA1",
        None,
    )


def test_a_repeated_batch_has_no_second_effect(database: Database) -> None:
    """A retried task neither doubles rows nor dead letters, and reports what it skipped."""
    events = [*events_between(0, 3), event_with({"delay": None}, 3)]
    process(database, events, 0, 4)
    assert process(database, events, 0, 4) == BatchResult(0, 0, 4, 4, 4)
    assert row_count(database) == 3
    assert DeadLetters(database).list()[0].attempts == 1


def test_a_batch_that_overlaps_the_checkpoint_is_cut(database: Database) -> None:
    """Only what lies at or beyond the checkpoint counts: rows and dead letters alike."""
    process(database, [event_with({"delay": None}, 0), *events_between(1, 3)], 0, 3)
    events = [event_with({"delay": None}, 0), *events_between(1, 5), event_with({"delay": None}, 5)]
    assert process(database, events, 0, 6) == BatchResult(2, 1, 3, 3, 6)
    assert [row[0] for row in rows_in(database)] == [1, 2, 3, 4]
    assert dead_numbers(database) == [0, 5]


def test_a_batch_beyond_the_checkpoint_is_a_gap(database: Database) -> None:
    """Unprocessed events are never jumped over silently; on purpose they can be."""
    process(database, events_between(0, 3), 0, 3)
    with pytest.raises(CheckpointGapError, match="events 3 to 4 were never"):
        process(database, events_between(5, 7), 5, 7)
    assert (row_count(database), next_number(database)) == (3, 3)
    process_partition_batch(
        database,
        PIPELINE,
        "0",
        events_between(5, 7),
        start_sequence_number=5,
        until_sequence_number=7,
        is_gap_allowed=True,
    )
    assert (row_count(database), next_number(database)) == (5, 7)


def test_a_hub_made_anew_is_noticed(database: Database) -> None:
    """Sequence numbers of another hub of the same name are not taken for processed ones."""

    def process_of(created_at_ms: int) -> BatchResult:
        return process_partition_batch(
            database,
            PIPELINE,
            "0",
            events_between(0, 2),
            start_sequence_number=0,
            until_sequence_number=2,
            event_hub_created_at_ms=created_at_ms,
        )

    process_of(1000)
    assert process_of(1000).skipped == 2
    with pytest.raises(EventHubReplacedError, match="created at 1000 ms"):
        process_of(2000)


def test_an_empty_range_of_events_moves_the_checkpoint(database: Database) -> None:
    """Events that a read filtered out are processed all the same."""
    assert process(database, [], 0, 7) == BatchResult(0, 0, 0, 0, 7)
    assert next_number(database) == 7


@pytest.mark.parametrize(
    ("events", "start", "until"),
    [
        (events_between(0, 3), 1, 3),
        (events_between(0, 3), 0, 2),
        ([*events_between(1, 2), *events_between(0, 1)], 0, 2),
        ([*events_between(1, 2), *events_between(1, 2)], 0, 2),
        ([], 3, 2),
    ],
)
def test_events_out_of_range_or_order_are_refused(
    sqlite_url: str, events: list[ReceivedEvent], start: int, until: int
) -> None:
    """A caller's mistake about its range is an error before anything is written."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(flights)
        with pytest.raises(InvalidArgumentError):
            process(database, events, start, until)
        assert (row_count(database), next_number(database)) == (0, None)


def test_a_handler_may_give_several_rows_or_none(database: Database) -> None:
    """None is no row; an iterable is as many rows as it has, put aside whole when one is no good."""

    def handle(event: ReceivedEvent) -> list[Row] | Iterator[Row] | None:
        number = event.sequence_number
        base = {"sequence_number": number, "delay": number}
        if number == 0:
            return None
        if number == 1:
            return (dict(base, partition_id=str(i)) for i in range(3))
        return [dict(base, partition_id="a"), dict(base, nonsense=1)]

    pipeline = replace(PIPELINE, handler=handle)
    result = process_partition_batch(
        database, pipeline, "0", events_between(0, 3), start_sequence_number=0, until_sequence_number=3
    )
    assert (result.rows, result.dead_letters) == (3, 1)
    (letter,) = DeadLetters(database).list()
    assert (letter.sequence_number, letter.error_type) == (2, "UnknownColumnError")
    assert "'nonsense'" in letter.reason


class _Sly(dict[str, object]):
    """Has its columns until they are read."""

    def __getitem__(self, key: str) -> object:
        raise LookupError(key)


def test_an_event_is_never_half_a_row_and_half_a_dead_letter(sqlite_url: str) -> None:
    """The second row fails when it is read: the first one of the same event is not written either."""
    good: Row = {"sequence_number": 0, "partition_id": "a", "delay": 1}
    with Database.open(sqlite_url) as database:
        database.ensure_table(flights)
        sly = replace(PIPELINE, handler=lambda event: [good, _Sly(good)])
        result = process_partition_batch(
            database, sly, "0", events_between(0, 1), start_sequence_number=0, until_sequence_number=1
        )
        assert (result.rows, result.dead_letters) == (0, 1)


@pytest.mark.parametrize("result", ["text", b"bytes", 7, {}, [1], [{}], {1: 2}])
@pytest.mark.slow
def test_what_is_no_row_is_a_dead_letter(sqlite_url: str, result: object) -> None:
    """A handler's odd result is its event's problem, not the batch's."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(flights)
        odd = replace(
            PIPELINE,
            handler=lambda event: result if event.sequence_number == 1 else record_delay(event),  # type: ignore[arg-type,return-value]
        )
        outcome = process_partition_batch(
            database, odd, "0", events_between(0, 3), start_sequence_number=0, until_sequence_number=3
        )
        assert (outcome.rows, outcome.dead_letters) == (2, 1)
        assert dead_numbers(database) == [1]


@pytest.mark.parametrize(
    "delay", [None, object(), {"a": 1}, 2**70, [1, 2]], ids=["null", "object", "dict", "huge", "list"]
)
@pytest.mark.slow
def test_values_that_the_database_refuses_are_dead_letters(database: Database, delay: object) -> None:
    """The careful pass finds exactly the offending events, whatever the driver calls the offence."""

    def handle(event: ReceivedEvent) -> Row:
        number = event.sequence_number
        return {
            "sequence_number": number,
            "partition_id": "0",
            "delay": delay if number in (3, 7) else number,
        }

    pipeline = replace(PIPELINE, handler=handle)
    result = process_partition_batch(
        database, pipeline, "0", events_between(0, 10), start_sequence_number=0, until_sequence_number=10
    )
    assert (result.rows, result.dead_letters) == (8, 2)
    assert dead_numbers(database) == [3, 7]
    assert [row[0] for row in rows_in(database)] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert next_number(database) == 10


def test_text_that_a_database_cannot_hold_is_a_dead_letter(server_url: str) -> None:
    """NUL characters and lone surrogates come from real devices; their reason must be storable, too."""
    with Database.open(server_url) as database:
        database.ensure_table(flights)
        has_nul = database.dialect.name == "mariadb"
        notes = {1: "a\0b", 2: "\ud800"}

        def handle(event: ReceivedEvent) -> Row:
            if event.sequence_number == 3:
                raise ValueError("broken \0 \ud800 text")
            return {**record_delay(event), "note": notes.get(event.sequence_number, "fine")}

        result = process_partition_batch(
            database,
            replace(PIPELINE, handler=handle),
            "0",
            events_between(0, 5),
            start_sequence_number=0,
            until_sequence_number=5,
        )
        refused = [2, 3] if has_nul else [1, 2, 3]
        assert (result.rows, result.dead_letters) == (5 - len(refused), len(refused))
        assert dead_numbers(database) == refused


def test_the_earlier_of_two_conflicting_events_stays(database: Database) -> None:
    """A unique key hit twice within a batch, and one hit by a stored row: the later event is put aside."""
    unique = Table(
        "unique_flights",
        MetaData(),
        Column("number", Integer, nullable=False),
        Column("name", String(10), nullable=False),
        UniqueConstraint("name", name="one_name", deferrable=True, initially="DEFERRED")
        if database.dialect.name == "postgresql"
        else UniqueConstraint("name"),
        CheckConstraint("number <> 6"),
    )
    database.ensure_table(unique)
    pipeline = Pipeline(
        name="p",
        event_hub="flights",
        table=unique,
        handler=lambda event: {"number": event.sequence_number, "name": f"n{event.sequence_number % 4}"},
    )
    process_partition_batch(
        database, pipeline, "0", events_between(0, 1), start_sequence_number=0, until_sequence_number=1
    )
    result = process_partition_batch(
        database, pipeline, "0", events_between(1, 7), start_sequence_number=1, until_sequence_number=7
    )
    assert (result.rows, result.dead_letters) == (3, 3)
    assert rows_in(database, unique) == [(0, "n0"), (1, "n1"), (2, "n2"), (3, "n3")]
    assert dead_numbers(database) == [4, 5, 6]


def test_rows_with_different_columns_go_together(database: Database) -> None:
    """A column that a row leaves out takes the table's default."""

    def handle(event: ReceivedEvent) -> Row:
        row = dict(record_delay(event))
        if event.sequence_number % 2:
            row["note"] = "odd"
        return row

    process_partition_batch(
        database,
        replace(PIPELINE, handler=handle),
        "0",
        events_between(0, 4),
        start_sequence_number=0,
        until_sequence_number=4,
    )
    assert [row[3] for row in rows_in(database)] == [None, "odd", None, "odd"]


def test_defaults_made_in_python_are_kept(database: Database) -> None:
    """The bulk path does not bypass a column's Python-side default."""
    table = Table(
        "with_default", MetaData(), Column("number", Integer), Column("kind", String(10), default="plain")
    )
    database.ensure_table(table)
    pipeline = Pipeline(
        name="p", event_hub="flights", table=table, handler=lambda event: {"number": event.sequence_number}
    )
    process_partition_batch(
        database, pipeline, "0", events_between(0, 2), start_sequence_number=0, until_sequence_number=2
    )
    assert rows_in(database, table) == [(0, "plain"), (1, "plain")]


def test_a_missing_table_is_an_error_and_loses_nothing(database: Database) -> None:
    """What no event is to blame for stops the batch with a clear error, and the checkpoint stays."""
    other = Table("not_there", MetaData(), Column("number", Integer))
    pipeline = Pipeline(name="p", event_hub="flights", table=other, handler=lambda event: {"number": 1})
    with pytest.raises(DatabaseError, match=r"table is missing.*ensure_table"):
        process_partition_batch(
            database, pipeline, "0", events_between(0, 2), start_sequence_number=0, until_sequence_number=2
        )
    assert next_number(database) is None
    assert dead_numbers(database) == []


def test_an_event_that_does_not_decode_is_a_dead_letter(database: Database) -> None:
    """Garbled bytes fail in the handler and again when the dead letter is made: neither stops the batch."""

    def decode(encoded: bytes | memoryview) -> EventContents:
        raise ValueError("garbled")

    broken = ReceivedEvent(
        partition_id="0", sequence_number=1, offset="1", enqueued_time_ms=1, encoded=b"?", decode=decode
    )
    result = process(database, [*events_between(0, 1), broken], 0, 2)
    assert (result.rows, result.dead_letters) == (1, 1)
    assert DeadLetters(database).list()[0].reason == "garbled"


def test_rows_computed_elsewhere(database: Database) -> None:
    """The variant for DataFrames: rows, failed and skipped events in one batch, refused rows put aside."""
    columns = ("sequence_number", "partition_id", "delay")
    rows = PartitionRows(columns, [(0, "0", 10), (2, "0", None), (4, "0", 14)], [0, 2, 4])
    dead = NewDeadLetter(sequence_number=1, offset="1", enqueued_time_ms=1, error_type="E", reason="why")

    def commit() -> BatchResult:
        batch = computed_batch(
            flights,
            BatchScope(CONSUMER, "0", 0, 6, pipeline_name="frame"),
            [rows],
            positions=lambda number: EventPlace(str(number), number, payload=b"copy"),
            dead_letters=[dead],
        )
        return commit_batches(database, [batch])[0]

    assert commit() == BatchResult(2, 2, 0, 0, 6)
    assert commit() == BatchResult(0, 0, 6, 6, 6)
    letters = DeadLetters(database).list()
    assert [(letter.sequence_number, letter.payload) for letter in letters] == [(1, None), (2, b"copy")]
    checkpoint = CheckpointReader(database).read(CONSUMER)["0"]
    assert (checkpoint.next_sequence_number, checkpoint.offset) == (6, "4")


def test_rows_computed_elsewhere_need_known_columns() -> None:
    """A column that the table lacks is the caller's mistake here: no event is to blame."""
    with pytest.raises(InvalidArgumentError, match="'wrong'"):
        computed_batch(
            flights,
            BatchScope(CONSUMER, "0", 0, 1),
            [PartitionRows(("wrong",), [(1,)], [0])],
            positions=lambda number: EventPlace("0", 0),
        )


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_PROTOCOL])
def test_a_file_that_others_hold_is_busy(code: int) -> None:
    """Trying again helps: both are what SQLite reports when it has tried for as long as it wants to."""
    cause = sqlite3.OperationalError("busy")
    cause.sqlite_errorcode = code
    told = translate(exc.OperationalError("SELECT", None, cause), doing="reading", where="db")
    assert isinstance(told, DatabaseUnavailableError)


def test_a_full_disk_of_postgresql_is_called_that() -> None:
    """Its SQLSTATE is one of those for which trying again helps, but only after somebody made room."""

    error = translate(psycopg.errors.DiskFull("could not extend file"), doing="inserting", where="db")
    assert "The disk of the database db is full" in str(error)

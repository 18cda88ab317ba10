"""A micro-batch in one transaction: upserts against a model, refused rows, dead letters, staged rows."""

from __future__ import annotations

import enum
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)
from tests.support.postgresql import PostgresqlServer

from tidegate.model.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    FencedError,
    InvalidArgumentError,
)
from tidegate.sql import ConsumerKey, Database, DeadLetters, NewDeadLetter
from tidegate.sql.core.schema import ledger_stage
from tidegate.sql.dead_letters.republish import add_once
from tidegate.sql.ledger.commit import BatchCommit, BatchContents, LedgerResult, letter_rows
from tidegate.sql.ledger.ledger import BatchLedger, MicroBatch
from tidegate.sql.ledger.rows import LedgerTable, WriteMode
from tidegate.sql.ledger.stages import EVENT_COLUMNS, StageOwner, StageWriter, drop_strays

CONSUMER = ConsumerKey("homes", "ledger")

states = Table(
    "states",
    MetaData(),
    Column("home", BigInteger, primary_key=True, autoincrement=False),
    Column("room", String(64), primary_key=True),
    Column("version", Integer),
    Column("temperature", Integer, CheckConstraint("temperature < 100")),
    Column("note", Text),
)
alarms = Table("alarms", MetaData(), Column("home", BigInteger, nullable=False), Column("kind", String(8)))


class Sink:
    """A driver without Spark: commits batches, one number after the other."""

    def __init__(self, database: Database, tables: Mapping[str, LedgerTable], **options: Any) -> None:
        self.database = database
        self.tables = tables
        self.ledger = BatchLedger(database, "states")
        self._url = database.engine().url.render_as_string(hide_password=False)
        self._is_refused_dead_lettered = options.get("is_refused_dead_lettered", False)
        for target in tables.values():
            database.ensure_table(target.table)
        self.batch = MicroBatch("q", "run", 0, "0")
        self.epoch = self.ledger.claim(self.batch)

    @property
    def owner(self) -> StageOwner:
        """Of this batch's stages."""
        return StageOwner(self._url, "states", self.epoch, self.batch.batch_id)

    def stage(self, contents: BatchContents, name: str, rows: pa.Table) -> None:
        """What a task does with rows of which there are many."""
        target = self.tables[name].table
        columns = [column for column in rows.column_names if column in target.columns]
        with StageWriter(
            self.owner, target, columns, [each for each in rows.column_names if each in EVENT_COLUMNS]
        ) as writer:
            writer.write(rows)
            contents.stages.setdefault(name, []).append(writer.stage())

    def commit(self, contents: BatchContents) -> LedgerResult:
        """One micro-batch; the next one has the next number."""
        result = BatchCommit(
            self.database,
            self.ledger,
            self.owner,
            self.batch,
            self.tables,
            contents,
            CONSUMER,
            self._is_refused_dead_lettered,
        ).run()
        number = self.batch.batch_id + 1
        self.batch = MicroBatch("q", "run", number, str(number))
        return result

    def write(self, rows: Sequence[Mapping[str, object]], *, is_staged: bool = False) -> LedgerResult:
        """Rows for the one table, as one micro-batch."""
        name = next(iter(self.tables))
        data = pa.Table.from_pylist([dict(row) for row in rows])
        contents = BatchContents()
        if is_staged and rows:
            self.stage(contents, name, data)
        elif rows:
            contents.rows[name] = [data]
        return self.commit(contents)

    def contents_of(self, table: Table) -> list[tuple[object, ...]]:
        """What a table holds, in order."""
        with self.database.read() as connection:
            return sorted(tuple(row) for row in connection.execute(select(table)))


def event(sequence_number: int, **values: object) -> dict[str, object]:
    """A row with the event that it came from."""
    return {
        **values,
        "partition": "0",
        "sequenceNumber": sequence_number,
        "offset": str(sequence_number),
        "enqueuedTime": datetime(2026, 1, 1, tzinfo=UTC),
        "partitionKey": None,
    }


@pytest.fixture(params=["driver", "stage"])
def is_staged(request: pytest.FixtureRequest) -> bool:
    """Rows in the driver's memory, or left by tasks."""
    return bool(request.param == "stage")


row_values = st.fixed_dictionaries(
    {
        "home": st.integers(0, 3),
        "room": st.sampled_from(["hall", 'sat"tic\\', "\N{SNOWMAN}\tcellar\n"]),
        "version": st.none() | st.integers(0, 4),
        "temperature": st.none() | st.integers(-5, 99),
    }
)


def last_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row with the highest version, None being the lowest; None: two share it."""
    highest = max(-1 if row["version"] is None else row["version"] for row in rows)
    found = [row for row in rows if (-1 if row["version"] is None else row["version"]) == highest]
    return found[0] if len(found) == 1 else None


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(st.lists(row_values, max_size=8), st.booleans()), max_size=5),
    is_older_ignored=st.booleans(),
)
@pytest.mark.slow
def test_upserts_do_what_a_dictionary_does(
    database: Database, batches: list[tuple[list[dict[str, Any]], bool]], is_older_ignored: bool
) -> None:
    """Last wins by version within a batch, and by batch or by version between them; a tie writes nothing."""
    with database.writing() as connection, connection.begin():
        states.create(connection, checkfirst=True)
        for table in ("tidegate_ledger_query", "tidegate_batch_ledger", "states"):
            connection.execute(text(f"DELETE FROM {table}"))
    target = LedgerTable(states, order_by=("version",), is_older_ignored=is_older_ignored)
    sink = Sink(database, {"states": target})
    model: dict[tuple[object, object], Mapping[str, Any]] = {}
    for rows, staged in batches:
        by_key: dict[tuple[object, object], list[Mapping[str, Any]]] = {}
        for row in rows:
            by_key.setdefault((row["home"], row["room"]), []).append(row)
        last = {key: last_of(mine) for key, mine in by_key.items()}
        if None in last.values():
            with pytest.raises(DatabaseError, match="same key and the same version"):
                sink.write(rows, is_staged=staged)
            continue
        sink.write(rows, is_staged=staged)
        for key, new in last.items():
            assert new is not None
            stored = model.get(key)
            if stored is None or not is_older_ignored or last_of([stored, new]) in (new, None):
                model[key] = new
    assert sink.contents_of(states) == sorted(
        (row["home"], row["room"], row["version"], row["temperature"], None) for row in model.values()
    )


def test_rows_that_share_a_key_are_an_error_that_names_it(database: Database, is_staged: bool) -> None:
    """Without columns to order by nobody knows which is the last; nothing of the batch is written."""
    sink = Sink(database, {"states": LedgerTable(states)})
    rows = [{"home": home, "room": "hall", "version": version} for version, home in enumerate([1, 2, 7, 7])]
    with pytest.raises(DatabaseError, match="have the same key: home=7, room='hall'"):
        sink.write(rows, is_staged=is_staged)
    assert sink.contents_of(states) == []
    assert sink.write(rows[:3]) == LedgerResult(0, 3, 0)


def test_columns_that_the_rows_lack_keep_their_value(database: Database) -> None:
    """An upsert changes what it was given, and nothing else."""
    sink = Sink(database, {"states": LedgerTable(states)})
    sink.write([{"home": 1, "room": "hall", "version": 1, "note": "by hand"}])
    sink.write([{"home": 1, "room": "hall", "version": 2}])
    assert sink.contents_of(states) == [(1, "hall", 2, None, "by hand")]


def test_a_refused_row_is_named_with_its_column(database: Database, is_staged: bool) -> None:
    """Of a thousand rows the database refuses one: the error says which, and nothing is written."""
    sink = Sink(database, {"alarms": LedgerTable(alarms, WriteMode.APPEND)})
    rows: list[dict[str, object]] = [{"home": home, "kind": "glass"} for home in range(1000)]
    rows[678] = {"home": None, "kind": "smoke"}
    with pytest.raises(DatabaseError) as caught:
        sink.write(rows, is_staged=is_staged)
    assert "refused a row for alarms, for its column 'home'" in str(caught.value)
    assert "The row: home=None, kind='smoke'." in str(caught.value)
    assert sink.contents_of(alarms) == []


@pytest.mark.slow
def test_refused_rows_are_put_aside_where_that_was_asked_for(database: Database, is_staged: bool) -> None:
    """Their events become dead letters with the database's words; the event's other rows go, too."""
    sink = Sink(database, {"states": LedgerTable(states)}, is_refused_dead_lettered=True)
    rows = [event(number, home=number, room="hall", temperature=number) for number in range(96, 102)]
    rows.append(event(100, home=5, room="hall", temperature=5))
    result = sink.write(rows, is_staged=is_staged)
    assert result == LedgerResult(0, 4, 2)
    assert [row[0] for row in sink.contents_of(states)] == [96, 97, 98, 99]
    letters = DeadLetters(database).list()
    assert [letter.sequence_number for letter in letters] == [100, 101]
    assert "constraint" in letters[0].reason.lower()
    assert letters[0].pipeline == "states"


def test_a_row_whose_text_is_not_utf8_becomes_a_dead_letter(database: Database) -> None:
    """Spark casts any bytes to a string; the row that the database refuses can still be read."""
    sink = Sink(database, {"states": LedgerTable(states)}, is_refused_dead_lettered=True)
    rows = [event(number, home=number, room="hall") for number in range(3)]
    data = pa.Table.from_pylist(rows, schema=_schema_of(rows))
    for name in ("note", "partitionKey"):
        texts = pa.array([b"ok", b"k\xff", b"ok"]).view(pa.string())
        data = data.append_column(name, texts) if name == "note" else data.set_column(6, name, texts)
    result = sink.commit(BatchContents({"states": [data]}))
    assert result == LedgerResult(0, 2, 1)
    assert [row[0] for row in sink.contents_of(states)] == [0, 2]
    (letter,) = DeadLetters(database).list()
    assert (letter.sequence_number, letter.partition_key) == (1, "k\ufffd")


@pytest.mark.parametrize(
    ("sql_type", "far"),
    [
        (DateTime(timezone=True), pa.array([0, 2**60], pa.timestamp("us", "UTC"))),
        (Date(), pa.array([0, 2**30], pa.date32())),
    ],
    ids=["time", "date"],
)
def test_a_row_whose_time_python_lacks_becomes_a_dead_letter(
    database: Database, sql_type: Any, far: pa.Array[Any]
) -> None:
    """Spark has years up to 294247, and a sender may choose them."""
    times = Table("times", MetaData(), Column("at", sql_type))
    target = LedgerTable(times, WriteMode.APPEND)
    sink = Sink(database, {"times": target}, is_refused_dead_lettered=True)
    rows = [event(number) for number in range(2)]
    data = pa.Table.from_pylist(rows, schema=_schema_of(rows)).append_column("at", far)
    assert sink.commit(BatchContents({"times": [data]})) == LedgerResult(0, 1, 1)
    assert [letter.sequence_number for letter in DeadLetters(database).list()] == [1]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_an_error_quotes_a_body_that_is_no_text(database: Database, kind: pa.DataType) -> None:
    """As a step does, cast or not: it is a dead letter, with U+FFFD where the bytes are not UTF-8."""
    sink = Sink(database, {"states": LedgerTable(states)})
    row = pa.Table.from_pylist([event(4)]).append_column("_error", pa.array([b"not \xff"]).view(kind))
    assert sink.commit(BatchContents(letters=[letter_rows(row)])) == LedgerResult(0, 0, 1)
    assert [letter.reason for letter in DeadLetters(database).list()] == ["not \ufffd"]


def test_events_in_error_become_dead_letters_and_give_no_row(database: Database, is_staged: bool) -> None:
    """Rows, dead letters and the ledger's row are one transaction; a repeated batch adds no attempt."""
    sink = Sink(database, {"states": LedgerTable(states), "alarms": LedgerTable(alarms, WriteMode.APPEND)})
    for is_repeated in (False, True):
        contents = BatchContents()
        good = [event(number, home=number, room="hall") for number in range(4)]
        loud = [event(2, home=2, kind="glass"), event(3, home=3, kind="glass")]
        for name, rows in (("states", good), ("alarms", loud)):
            data = pa.Table.from_pylist(rows, schema=_schema_of(rows))
            if is_staged:
                sink.stage(contents, name, data)
            else:
                contents.rows[name] = [data]
        bad = [event(number, _error=f"no home {number}") for number in (2, 9, 9)]
        contents.letters = [letter_rows(pa.Table.from_pylist(bad, schema=_schema_of(bad)))]
        result = sink.commit(contents)
        assert result == (LedgerResult(0, 0, 0, True) if is_repeated else LedgerResult(0, 4, 2))
        sink.batch = MicroBatch("q", "run", 0, "0")
    assert [row[0] for row in sink.contents_of(states)] == [0, 1, 3]
    assert sink.contents_of(alarms) == [(3, "glass")]
    letters = DeadLetters(database).list()
    assert [(each.sequence_number, each.reason, each.attempts) for each in letters] == [
        (2, "no home 2", 1),
        (9, "no home 9", 1),
    ]
    assert letters[0].enqueued_time_ms == 1_767_225_600_000


def _schema_of(rows: Sequence[Mapping[str, object]]) -> pa.Schema:
    types: dict[str, pa.DataType] = {
        "partitionKey": pa.string(),
        "enqueuedTime": pa.timestamp("us", tz="UTC"),
    }
    inferred = pa.Table.from_pylist([dict(row) for row in rows]).schema
    return pa.schema([pa.field(each.name, types.get(each.name, each.type)) for each in inferred])


def test_an_error_without_its_event_is_refused(database: Database) -> None:
    """A dead letter that points nowhere could never be redriven."""
    sink = Sink(database, {"states": LedgerTable(states)})
    contents = BatchContents(letters=[letter_rows(pa.table({"_error": ["lost"]}))])
    with pytest.raises(InvalidArgumentError, match="has no partition"):
        sink.commit(contents)


def test_an_addition_over_http_waits_for_a_micro_batchs_dead_letters(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would replace what is not committed yet, and take the event from the pipeline's own redrive."""
    sink, record, added = Sink(database, {}), BatchLedger.record, list[int]()
    at = datetime(2026, 1, 31, tzinfo=UTC)
    row = {"partition": "0", "sequenceNumber": 7, "offset": "7", "enqueuedTime": at, "_error": "not a home"}

    def add() -> None:
        letter = NewDeadLetter(7, "7", int(at.timestamp() * 1000), "E", "by a client")
        added.append(add_once(database, CONSUMER, "0", [letter], open_max=9, event_hub_created_at_ms=0))

    adding = Thread(target=add)

    def record_later(*given: Any, **named: Any) -> None:
        adding.start()
        adding.join(0.3)
        record(*given, **named)

    monkeypatch.setattr(BatchLedger, "record", record_later)
    sink.commit(BatchContents(letters=[letter_rows(pa.Table.from_pylist([row]))]))
    adding.join()
    (found,) = DeadLetters(database).list()
    assert (added, found.pipeline, found.reason) == ([0], "states", "not a home")


def stages_of(database: Database, owner: StageOwner) -> list[str]:
    """Stages that exist, registered or not."""
    if owner.spool_folder is not None:
        return [path.name for path in owner.spool_folder.glob("*")] if owner.spool_folder.exists() else []
    with database.read() as connection:
        registered = set(connection.execute(select(ledger_stage.c.stage_name)).scalars())
        tables = {name for name in inspect(connection).get_table_names() if "tidegate_stage_" in name}
    assert registered == tables
    return sorted(tables)


def stage_one_row(owner: StageOwner, divisor: int = 1) -> str:
    """What a task does; with the divisor 0 it fails before it is done."""
    with StageWriter(owner, states, ["home"], []) as writer:
        writer.write(pa.table({"home": [1]}))
        assert 1 / divisor
        return writer.stage().name


def test_strays_are_removed_and_nobody_elses(database: Database) -> None:
    """What attempts of earlier batches and overtaken runs left goes; others' and this batch's stays."""
    sink = Sink(database, {"states": LedgerTable(states)})
    rows = pa.table({"home": [1], "room": ["hall"]})
    contents = BatchContents()
    sink.stage(contents, "states", rows)
    sink.stage(BatchContents(), "states", rows)  # a second attempt of the same task, which nobody names
    other = BatchLedger(database, "other")
    foreign = StageOwner(
        sink.owner.database_url, "other", other.claim(MicroBatch("o", "run", 0, "0")), batch_id=0
    )
    kept = stage_one_row(foreign)
    if foreign.spool_folder is not None:  # what is in events is for this user alone
        modes = (foreign.spool_folder, foreign.spool_folder / kept)
        assert [stat.S_IMODE(path.stat().st_mode) for path in modes] == [0o700, 0o600]
    assert drop_strays(database, sink.owner) == 0
    sink.commit(contents)
    assert drop_strays(database, sink.owner) == 1
    assert stages_of(database, sink.owner) == [kept]
    sink.stage(BatchContents(), "states", rows)
    zombie = sink.owner
    sink.epoch = sink.ledger.claim(MicroBatch("q", "later", 1, "1"))
    assert drop_strays(database, sink.owner) == 1
    if not database.is_sqlite:
        with pytest.raises(FencedError):
            stage_one_row(zombie)
    assert stages_of(database, sink.owner) == [kept]


def test_a_task_that_fails_leaves_no_table(server_url: str) -> None:
    """The staging table is made in the transaction that fills it, or dropped afterwards."""
    with Database.open(server_url) as database:
        sink = Sink(database, {"states": LedgerTable(states)})
        with pytest.raises(ZeroDivisionError):
            stage_one_row(sink.owner, divisor=0)
        assert stages_of(database, sink.owner) == []


def test_staged_rows_that_a_crash_of_the_server_took_are_missed(postgresql: PostgresqlServer) -> None:
    """Tables that are not logged are empty after a crash: the batch is refused, and right when run again."""
    with PostgresqlServer() as server, Database.open(server.create_schema()) as database:
        sink = Sink(database, {"states": LedgerTable(states)})
        rows = pa.table({"home": list(range(1000)), "room": ["hall"] * 1000})
        contents = BatchContents()
        sink.stage(contents, "states", rows)
        server.stop()
        server.start()
        with pytest.raises(DatabaseUnavailableError, match="are 0 instead of 1000"):
            sink.commit(contents)
        again = BatchContents()
        sink.stage(again, "states", rows)
        assert sink.commit(again) == LedgerResult(0, 1000, 0)
        assert len(sink.contents_of(states)) == 1000


def test_a_columns_key_need_not_be_its_name(database: Database) -> None:
    """SQLAlchemy's name for a column, and the database's."""
    table = Table(
        "renamed",
        MetaData(),
        Column("Home Number", BigInteger, primary_key=True, autoincrement=False, key="home"),
        Column("The Version", Integer, key="version"),
    )
    target = LedgerTable(table, order_by=("version",), is_older_ignored=True)
    sink = Sink(database, {"renamed": target})
    sink.write([{"home": 1, "version": 2}])
    sink.write([{"home": 1, "version": 3}, {"home": 2, "version": 1}])
    sink.write([{"home": 1, "version": 1}])
    assert sink.contents_of(table) == [(1, 3), (2, 1)]


def test_a_row_without_its_key_is_refused(database: Database, *, is_staged: bool) -> None:
    """SQLite would give it the next number, and another one with each micro-batch."""
    table = Table("counted", MetaData(), Column("home", Integer, primary_key=True), Column("n", Integer))
    sink = Sink(database, {"counted": LedgerTable(table)}, is_refused_dead_lettered=True)
    rows = [event(0, home=5, n=3), event(1, home=None, n=4)]
    result = sink.write(rows, is_staged=is_staged)
    assert (result.rows, result.dead_letters) == (1, 1)
    assert sink.contents_of(table) == [(5, 3)]
    (letter,) = DeadLetters(database).list()
    assert letter.sequence_number == 1
    assert "home" in letter.reason


class _Colour(enum.Enum):
    RED = 1
    GREEN = 2


@pytest.mark.slow
def test_a_refused_row_is_found_among_members_of_an_enumeration(
    database: Database, *, is_staged: bool
) -> None:
    """Where staged rows are read again to find it, Arrow has no place for them."""
    table = Table(
        "coloured",
        MetaData(),
        Column("home", BigInteger, primary_key=True, autoincrement=False),
        Column("colour", Enum(_Colour)),
        Column("n", Integer, CheckConstraint("n < 100")),
    )
    sink = Sink(database, {"coloured": LedgerTable(table)}, is_refused_dead_lettered=True)
    rows = [event(0, home=1, colour="RED", n=1), event(1, home=2, colour="GREEN", n=100)]
    result = sink.write(rows, is_staged=is_staged)
    assert (result.rows, result.dead_letters) == (1, 1)
    assert sink.contents_of(table) == [(1, _Colour.RED, 1)]

"""SQL Server without a server: every statement is read as T-SQL, compared with a file, and run on a stand-in.

``python -m tests.sql.test_mssql`` writes ``mssql_statements.sql`` again. What this cannot show is in
docs/reference/databases.md; with ``TIDEGATE_SQLSERVER_URL`` test_conformance.py runs on a server.
"""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlglot import exp
from tests.sql import test_conformance as conformance
from tests.sql.conformance import COMPILED
from tests.sql.support import CONSUMER, PIPELINE, event_with, flights, row_count
from tests.support import fake_odbc
from tests.support.fake_odbc import FakeServer, parsed, server_error

from tidegate.client.repeatable import HubLayout
from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, TidegateError
from tidegate.model.events import EventData
from tidegate.sql import Database, DeadLetters, UnitOfWork, process_partition_batch
from tidegate.sql.core import database as database_module
from tidegate.sql.core import schema
from tidegate.sql.core.dead_letter_rows import conditions_of
from tidegate.sql.core.dialects.base import NO_KIND, ErrorKind
from tidegate.sql.core.dialects.mssql import MssqlDialect
from tidegate.sql.core.failures import translate
from tidegate.sql.core.unit_of_work import RowsRefusedError
from tidegate.sql.core.values import ConsumerKey, DeadLetterFilter, NewDeadLetter
from tidegate.sql.dead_letters.pages import DeadLetterPages
from tidegate.sql.outbox import lanes
from tidegate.sql.outbox.writer import Outbox, OutboxWriter
from tidegate.sql.stores.leases import LeaseClaim, LeaseTable

STATEMENTS: Final = Path(__file__).with_name("mssql_statements.sql")
URL: Final = "mssql://user:s3cret@host:1433/one?driver=any&PWD=hunter2"
_OF_SQLALCHEMY: Final = (
    "sys.objects",
    "INFORMATION_SCHEMA",
    "SERVERPROPERTY",
    "schema_name()",
    "sys.system_views",
)


@contextmanager
def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:

    def ensure_table(database: Database, table: sa.Table) -> None:
        changing = database.dialect.changing_schema
        with database.writing() as connection, connection.begin(), changing(connection):
            table.create(connection, checkfirst=True)

    monkeypatch.setattr(Database, "ensure_table", ensure_table)
    with FakeServer(folder).installed() as server:
        yield server


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The stand-in, as pyodbc. A table's columns are not asked for: SQLite has other catalogs."""
    with _installed(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def database(fake: FakeServer) -> Iterator[Database]:
    """With the tables of the conformance suite."""
    with Database.open(URL, lock_wait_s=30.0) as database:
        for table in (flights, conformance.values):
            database.ensure_table(table)
        yield database


def _cases() -> Iterator[Any]:
    """Each test of the suite that can be run so, with each of its own parameters."""
    for name in COMPILED:
        test = getattr(conformance, name)
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for case in marks[0].args[1] if marks else [()]:
            values = case if isinstance(case, tuple) else (case,)
            yield pytest.param(test, values, id=f"{name}-{'-'.join(map(str, values))}")


@pytest.mark.slow
@pytest.mark.parametrize(("test", "values"), list(_cases()))
def test_the_suite_runs_on_statements_that_are_read(
    database: Database, test: Any, values: tuple[Any, ...]
) -> None:
    """The real code paths send only statements that T-SQL's reader knows, and the results are the suite's."""
    assert len(inspect.signature(test).parameters) == len(values) + 1
    test(database, *values)


def tour(database: Database) -> None:
    """What hosts, dead letters, leases, ledgers and the console's pages ask of the database."""
    events = [event_with({"delay": None if number == 2 else number}, number) for number in range(5)]
    process_partition_batch(database, PIPELINE, "0", events, start_sequence_number=0, until_sequence_number=5)
    with UnitOfWork(database, CONSUMER, lease_epoch=3) as unit:
        unit.lock_checkpoints(["0", "1"])
        unit.advance("1", None, 7)
    letters, pages = DeadLetters(database), DeadLetterPages(database)
    again = NewDeadLetter.from_text(event_with({}, 9), "Error", "again ", is_payload_copied=True)
    letters.add(CONSUMER, "0", [again])
    reason = DeadLetterFilter(
        event_hub="flights", error_type="Error", reason_is="again ", reason_contains="again "
    )
    for filter_ in (DeadLetterFilter(), reason):
        letters.list(filter_, limit=10)
        letters.count(filter_)
        pages.page(filter_, limit=3)
        pages.counts_by_hour(filter_)
    letters.counts_by_reason()
    pages.open_counts()
    pages.all_counts()
    letters.discard(DeadLetterFilter(), reason="never", actor="somebody")
    letters.audit()
    lanes.save_hub(database, "target", ["0"], 1_000)
    fill = dict.fromkeys((column.name for column in schema.outbox_lane.columns), 0)
    names = dict.fromkeys(("event_hub", "consumer_group", "partition_id"), "flights")
    with database.writing() as connection, connection.begin():
        targets = {"target_hub": "t", "target_partition_id": "0", "next_number": 5}
        rows = [fill | names | targets | {"lane_id": name} for name in ("a", "b")]
        connection.execute(schema.outbox_lane.insert(), rows)
    steps = [lanes.LaneStep(name, 0, relayed_until=2, sent_until=3) for name in ("a", "b")]
    lanes.take_steps(database, steps)
    lanes.read_rows(database, ["a"], 10)
    lanes.read_lanes(database, ConsumerKey("flights", "flights"), ["flights"])
    leases = LeaseTable(database)
    first = leases.acquire(CONSUMER, "0", "a", expected=None)
    assert first is not None
    leases.request(CONSUMER, first, "b")
    renewed = leases.renew(CONSUMER, [first])["0"]
    leases.claim(CONSUMER, [LeaseClaim("0", "c", int(renewed.version)), LeaseClaim("1", "c", None)])
    leases.read_all()
    conformance._upsert(database, [{"key": "a", "other": 1}, {"key": "b", "other": 2}])
    conformance._upsert(database, [{"key": "a", "other": 3}], order_by=("other",), is_older_ignored=True)


def recorded(fake: FakeServer) -> str:
    """The statements of a tour, each once, sorted: the order of indexes is nobody's."""
    with Database.open(URL, lock_wait_s=30.0) as database:
        for table in (flights, conformance.values):
            database.ensure_table(table)
        tour(database)
    ours = [
        " ".join(each.split()) for each in fake.statements if not any(part in each for part in _OF_SQLALCHEMY)
    ]
    return "".join(f"{each};\n" for each in sorted(set(map(_without_numbers, ours))))


def _without_numbers(statement: str) -> str:
    head, is_check, rest = statement.partition("CURRENT_TRANSACTION_ID() <> ")
    return f"{head}{is_check}1{rest[rest.index(' ') :]}" if is_check else statement


@pytest.mark.slow
def test_the_statements_are_the_recorded_ones(fake: FakeServer) -> None:
    """A change of what SQL Server is sent is seen, and can be read by somebody who knows it."""
    assert recorded(fake) == STATEMENTS.read_text(encoding="utf-8"), "python -m tests.sql.test_mssql"


def test_statements_lock_by_hints() -> None:
    """SQL Server has no FOR UPDATE, and SQLAlchemy leaves it out without a word."""
    statements = [parsed(each) for each in _recorded_queries()]
    tables = [table for each in statements for table in each.find_all(exp.Table)]
    hints = {table.name: set[str]() for table in tables}
    for table in tables:
        for hint in table.args.get("hints") or ():
            hints[table.name].add(hint.sql(dialect="tsql"))
    for name in ("tidegate_checkpoint", "tidegate_lease", "tidegate_dead_letter"):
        assert "WITH (UPDLOCK, ROWLOCK)" in hints[name]
        assert "WITH (UPDLOCK, HOLDLOCK)" in hints[name]
    for each in statements:
        absent = [found for found in each.find_all(exp.Not) if found.find(exp.Exists)]
        if isinstance(each, exp.Insert) and absent:
            (locked,) = absent[0].find_all(exp.Table)
            assert [hint.sql(dialect="tsql") for hint in locked.args["hints"]] == ["WITH (UPDLOCK, HOLDLOCK)"]
    assert "FOR UPDATE" not in STATEMENTS.read_text(encoding="utf-8")


def _recorded_queries() -> list[str]:
    lines = STATEMENTS.read_text(encoding="utf-8").splitlines()
    return [
        line.removesuffix(";") for line in lines if line.startswith(("SELECT", "INSERT", "UPDATE", "CREATE"))
    ]


def test_reasons_are_compared_exactly() -> None:
    """The stand-in has neither ``[…]`` in patterns nor strings that are equal but for blanks at the end."""
    filter_ = DeadLetterFilter(error_type="E ", reason_is="why ", reason_contains="[A-Z]")
    statement = sa.select(schema.dead_letter.c.offset).where(*conditions_of(filter_))
    compiled = statement.compile(sa.create_engine("mssql+pyodbc://", module=_module()))
    assert {"/[a-z]", "E .", "why ."} <= set(compiled.params.values())
    assert "tidegate_dead_letter.reason + " in str(compiled)


def test_nothing_locks_rows_without_hints() -> None:
    """A new query with FOR UPDATE has to go through ``locking``."""
    folder = Path(inspect.getfile(Database)).parents[1]
    places = [
        path.name for path in folder.rglob("*.py") if ".with_for_update(" in path.read_text(encoding="utf-8")
    ]
    assert places == ["base.py"]


def test_keys_of_indexes_fit() -> None:
    """1,700 bytes, 900 of a clustered one; ``max`` in none (Microsoft Learn, "Maximum capacity specifications
    for SQL Server", which has 900 for any primary key, too: names as long as Event Hubs allows fit that).
    """
    dialect = sa.create_engine("mssql+pyodbc://", module=_module()).dialect
    for table in schema.metadata.tables.values():
        assert table.primary_key.dialect_options["mssql"]["clustered"] is False
        for columns in (table.primary_key.columns, *(index.columns for index in table.indexes)):
            sizes = [_bytes(column.type.dialect_impl(dialect)) for column in columns]
            assert sum(sizes) <= 1_700, (table.name, [column.name for column in columns], sizes)


def _module() -> Any:
    with FakeServer(Path(tempfile.gettempdir())).installed():
        import pyodbc  # type: ignore[import-not-found, unused-ignore]

        return pyodbc


def _bytes(kind: Any) -> int:
    length = getattr(getattr(kind, "impl_instance", kind), "length", None)
    assert length != "max"
    return 2 * length if isinstance(length, int) else 10


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1205, ErrorKind.BUSY | ErrorKind.DEADLOCK),
        (1222, ErrorKind.BUSY),
        (3960, ErrorKind.BUSY),
        *((number, ErrorKind.BUSY) for number in (3961, 983, 615, 4060, 17809)),
        *((number, ErrorKind.BUSY) for number in (10928, 10929, 10936, 40501, 40613, 49918, 49919, 49920)),
        (40197, ErrorKind.LOST),
        *((number, ErrorKind.LOST | ErrorKind.TOO_LARGE) for number in (40549, 40551, 40553)),
        *((number, ErrorKind.DATA) for number in (233, 511, 515, 547, 2601, 2627, 2628, 8115, 8152, 51_234)),
        (208, ErrorKind.NO_TABLE),
        (229, ErrorKind.NO_RIGHT),
        *((number, ErrorKind.DISK_FULL) for number in (9002, 1132)),
        (824, ErrorKind.BROKEN),
        *((number, ErrorKind.NO_SAVEPOINT) for number in (628, 3903, 6401, 56401)),
        # A mistake in a statement; a page that was read; of another service; backups'.
        *((number, NO_KIND) for number in (102, 121, 825, 3257, 42108)),
    ],
)
def test_errors_by_number(number: int, kind: ErrorKind) -> None:
    """The number decides, wherever else digits are in the sentence."""
    error = server_error(number, "Violation of 'x (2627) (y)'. The duplicate key value is ((547)).")
    assert MssqlDialect().kinds_of(error) == kind


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (2627, "The duplicate key value is (a (1205); [).", ErrorKind.DATA),
        (2627, "The duplicate key value is (a (1205) (SQLExecDirectW); [).", ErrorKind.DATA),
        (8623, "The connection to 'a' is closed.", NO_KIND),
    ],
)
def test_a_value_is_not_the_errors_number(number: int, words: str, kind: ErrorKind) -> None:
    """A sentence quotes the event's values, which must not make a row's fault an outage."""
    assert MssqlDialect().kinds_of(server_error(number, words)) == kind


def test_the_first_of_many_errors_decides() -> None:
    """On Windows others follow it, without a function."""
    error = server_error(2627, "Violation of PRIMARY KEY constraint.", state="23000")
    followed = type(error)("23000", f"{error.args[1]}; [23000] The statement has been terminated. (3621)")
    assert MssqlDialect().kinds_of(followed) == ErrorKind.DATA


_LINK = "[08S01] [Microsoft]Communication link failure (0) (SQLExecDirectW)"
_RESET = "[08S01] [Microsoft]TCP Provider: Error code 0x2746 (10054) (SQLExecDirectW)"
_TIME = "[HYT00] [Microsoft]Login timeout expired (0) (SQLDriverConnect)"
_RANGE = "[22003] [Microsoft]Numeric value out of range (0) (SQLExecute)"
_LONG = "String data, right truncation: length 512 buffer 510"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (fake_odbc.OperationalError("08S01", _LINK), ErrorKind.LOST),
        (fake_odbc.OperationalError("08S01", _RESET), ErrorKind.LOST),
        (fake_odbc.OperationalError("HYT00", _TIME), ErrorKind.LOST),
        (fake_odbc.ProgrammingError("The cursor's connection was closed."), ErrorKind.LOST),
        (fake_odbc.ProgrammingError(_LONG, "HY000"), ErrorKind.DATA),
        (fake_odbc.ProgrammingError("Invalid parameter type.  param-index=0", "HY105"), ErrorKind.DATA),
        (fake_odbc.DataError("22003", _RANGE), ErrorKind.DATA),
    ],
)
def test_errors_of_the_driver(error: Exception, kind: ErrorKind) -> None:
    """Those that no server sent."""
    assert MssqlDialect().kinds_of(error) == kind


_LOGIN = server_error(18456, "Login failed for user.", state="28000", kind=fake_odbc.InterfaceError)
_NO_DATABASE = server_error(4060, "Cannot open database. The login failed.", kind=fake_odbc.ProgrammingError)
_AZURE = server_error(40613, "Database is not currently available.", state="HY000")
_DRIVER = server_error(0, "Can't open lib 'ODBC Driver 18'", state="01000")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (_LOGIN, DatabaseError, "refused this user"),
        (_NO_DATABASE, DatabaseError, "Check user, password and database name"),
        (_AZURE, DatabaseUnavailableError, "busy"),
        (_DRIVER, DatabaseError, "Install unixODBC"),
    ],
    ids=["login", "database", "azure", "driver"],
)
def test_errors_of_connecting(
    fake: FakeServer, error: Exception, kind: type[TidegateError], words: str
) -> None:
    """Whose fault it is, what to do, and no password."""
    fake.failures.append(("connect", error))
    with pytest.raises(kind, match=words) as caught:
        Database.open(URL)
    assert isinstance(caught.value, DatabaseUnavailableError) == (kind is DatabaseUnavailableError)
    assert "s3cret" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_it_says_once_that_it_was_never_run(
    fake: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, for whoever uses it, and to the doctor; without the password."""
    monkeypatch.setattr(database_module, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Database.open(URL).close()
    (record,) = caplog.records
    assert "never run on SQL Server" in record.getMessage()
    assert "Exactly once is not promised" in (Database.describe(URL).untried or "")
    assert "s3cret" not in caplog.text
    assert "hunter2" not in caplog.text


def test_a_transaction_that_ended_is_not_committed(fake: FakeServer, database: Database) -> None:
    """Some errors roll everything back, and the next statement begins another transaction by itself."""

    def lose(unit: UnitOfWork) -> None:
        unit.advance("0", unit.lock("0"), 5)
        raw: Any = unit.connection.connection.driver_connection
        raw.rollback()
        unit.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])

    with pytest.raises(DatabaseUnavailableError):
        conformance._within(UnitOfWork(database, CONSUMER), lose)
    with UnitOfWork(database, CONSUMER) as after:
        assert after.lock("0") is None
    error = server_error(1205, "You have been chosen as the deadlock victim.", state="40001")
    assert isinstance(translate(error, doing="x", where="y"), DatabaseUnavailableError)


def test_rows_go_in_one_statement_each_that_the_driver_sends_together(
    fake: FakeServer, database: Database
) -> None:
    """No statement has as many parameters as rows: 2,099 is the most, and 1,000 rows in VALUES."""
    rows = [{"sequence_number": number, "partition_id": "0", "delay": 1} for number in range(2_500)]
    before = len(fake.statements)
    with UnitOfWork(database, CONSUMER) as unit:
        unit.insert_rows(flights, rows)
    inserts = [each for each in fake.statements[before:] if each.startswith("INSERT")]
    assert inserts == ["INSERT INTO flights (sequence_number, partition_id, delay) VALUES (?, ?, ?)"] * 3


def test_the_error_of_a_later_row_is_seen(database: Database) -> None:
    """The driver tells of it with that row's result; the row would be lost without a word."""
    rows = [{"sequence_number": number, "partition_id": "0", "delay": 1} for number in (1, 2, 2)]
    with pytest.raises(RowsRefusedError, match="2627"), UnitOfWork(database, CONSUMER) as unit:
        unit.insert_rows(flights, rows)
    assert row_count(database, flights) == 0


def test_a_session_that_the_server_ended_is_not_busy(fake: FakeServer, database: Database) -> None:
    """The same transaction would be ended again: the error says what to change."""
    fake.failures.append(("INSERT INTO flights", server_error(40552, "Session terminated: log space.")))
    unit = UnitOfWork(database, CONSUMER)
    with pytest.raises(DatabaseError, match=r"ended the session.*max_batch_size") as caught, unit:
        unit.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])
    assert not isinstance(caught.value, DatabaseUnavailableError)


@pytest.mark.slow
def test_more_leases_than_a_statement_has_parameters_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are renewed and released in pieces of one transaction. 1,040 leases need 2,100 parameters."""
    assert MssqlDialect.parameters_max <= fake_odbc.PARAMETERS_MAX
    names, now = [str(number) for number in range(40)], datetime(2026, 1, 1, tzinfo=UTC)
    values = {"event_hub": CONSUMER.event_hub, "consumer_group": CONSUMER.consumer_group, "epoch": 1}
    values |= {"owner": "me", "version": 1, "acquired_at": now, "renewed_at": now}
    with database.writing() as connection, connection.begin():
        connection.execute(sa.insert(schema.lease), [{**values, "partition_id": each} for each in names])
    monkeypatch.setattr(fake_odbc, "PARAMETERS_MAX", 50)
    monkeypatch.setattr(MssqlDialect, "parameters_max", 50)
    table = LeaseTable(database)
    renewed = table.renew(CONSUMER, list(table.read(CONSUMER).leases.values()))
    assert sorted(renewed) == sorted(names)
    released = table.claim(CONSUMER, [LeaseClaim(each, "", 2) for each in names])
    assert sorted(released) == sorted(names)


def test_tables_are_renamed_by_a_procedure() -> None:
    """There is no ALTER TABLE for that; the old name is an identifier, the new one a string."""
    connection = Mock(dialect=sa.create_engine("mssql+pyodbc://", module=_module()).dialect)
    MssqlDialect().rename_tables(connection, [("user", "user__1"), ("a", "b")], "dbo")
    calls = [(str(each.args[0]), each.args[1]) for each in connection.execute.call_args_list]
    assert calls == [
        ("EXEC sp_rename :place, :new", {"place": "dbo.[user]", "new": "user__1"}),
        ("EXEC sp_rename :place, :new", {"place": "dbo.a", "new": "b"}),
    ]


def test_a_url_without_database_or_with_a_hidden_password_is_refused() -> None:
    """``odbc_connect`` would carry the password past what hides it."""
    for url in ("mssql://host", "mssql://host/name?odbc_connect=PWD%3Dx"):
        with pytest.raises(DatabaseError, match="mssql://user:password@host:1433/name"):
            Database.open(url)


def test_published_events_are_stored_with_their_savepoint(database: Database) -> None:
    """SAVE TRANSACTION begins one, and nothing releases it: what was published becomes rows all the same."""
    layouts = {"target": HubLayout(("0",), 1_000, is_repeat_safe=True)}

    def publish(unit: UnitOfWork, *, is_failing: bool) -> None:
        with unit.savepoint():
            writer.add("target", EventData(b"x"), partition_key=None, partition_id="0")
            if is_failing:
                raise ArithmeticError

    with UnitOfWork(database, CONSUMER) as unit:
        writer = OutboxWriter(Outbox(database, layouts=layouts), unit, "0")
        with pytest.raises(ArithmeticError):
            publish(unit, is_failing=True)
        publish(unit, is_failing=False)
    assert row_count(database, schema.outbox) == 1


def test_times_are_read_as_utc(database: Database) -> None:
    """DATETIME2 has no zone."""
    moment = datetime(2026, 3, 29, 1, 30, 0, 5, tzinfo=UTC)
    with database.writing() as connection, connection.begin():
        connection.execute(conformance.values.insert().values(key="a", other=1, at=moment))
        assert connection.execute(sa.select(conformance.values.c.at)).scalar_one() == moment


def main() -> int:
    """See the module's text."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        _installed(Path(folder), patch) as server,
    ):
        STATEMENTS.write_text(recorded(server), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

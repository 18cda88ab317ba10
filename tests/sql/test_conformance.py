"""What the transactional core asks of a database, feature by feature, on each that Tidegate works with.

A new ``SqlDialect`` has to pass all of it. ``python -m tests.sql.conformance`` writes the results into the
docs, so each test's docstring is a feature's name there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.sql.conformance import PAGE, SUITE, features, table_of
from tests.sql.support import CONSUMER, flights, rows_in
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, FencedError
from tidegate.sql import Database, UnitOfWork
from tidegate.sql.core import schema
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.dialects.base import NO_KIND, ErrorKind
from tidegate.sql.core.failures import is_bad_data, is_environment, is_of, reason_of
from tidegate.sql.core.schema import UtcDateTime
from tidegate.sql.core.unit_of_work import RowsRefusedError
from tidegate.sql.core.values import PartitionRows
from tidegate.sql.ledger.rows import LedgerTable, TableWriter, WriteMode
from tidegate.sql.ledger.stages import arrow_rows
from tidegate.sql.stores.leases import LeaseTable

WAIT_S = 30.0
"""A deadline, not a promise."""

values = sa.Table(
    "conforming",
    sa.MetaData(),
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("other", sa.Integer, nullable=False, unique=True),
    sa.Column("words", sa.Text),
    sa.Column("ratio", sa.Double),
    sa.Column("raw", sa.LargeBinary),
    sa.Column("at", UtcDateTime),
)


@pytest.fixture
def wide(database: Database) -> Database:
    """With the table ``conforming``."""
    database.ensure_table(values)
    return database


@pytest.fixture(params=["postgresql", "mariadb", *SQL_SERVERS])
def server(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database behind a connection that can be lost; SQLite has none."""
    with Database.open(request.getfixturevalue(f"{request.param}_url"), lock_wait_s=WAIT_S) as database:
        database.ensure_table(flights)
        yield database


def _flight(number: int) -> dict[str, object]:
    return {"sequence_number": number, "partition_id": "0", "delay": number}


def _within(unit: UnitOfWork, act: Callable[[UnitOfWork], None]) -> None:
    with unit:
        act(unit)


def test_schema(database_url: str) -> None:
    """Schema: created once by many at once, and found again"""
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(Database.open, [database_url] * 6))
    for database in opened:
        with database.read() as connection:
            numbers = connection.execute(sa.select(schema.schema_version.c.version)).scalars().all()
        assert sorted(numbers) == list(range(1, len(schema.MIGRATIONS) + 1))
        database.close()


def test_compare_and_set(database: Database) -> None:
    """Compare-and-set: a checkpoint moves only from where the batch began"""
    with UnitOfWork(database, CONSUMER) as unit:
        unit.advance("0", unit.lock("0"), 5)

    def move(unit: UnitOfWork) -> None:
        unit.insert_rows(flights, [_flight(1)])
        unit.advance("0", 3, 9)

    with pytest.raises(FencedError):
        _within(UnitOfWork(database, CONSUMER), move)
    assert rows_in(database) == []
    with UnitOfWork(database, CONSUMER) as unit:
        assert unit.lock("0") == 5


def test_locks(database: Database) -> None:
    """Locks: competitors for a partition queue, also for a new one"""
    seen: list[int | None] = []

    def count() -> None:
        with UnitOfWork(database, CONSUMER) as unit:
            start = unit.lock("7")
            unit.insert_rows(flights, [_flight(start or 0)])
            unit.advance("7", start, (start or 0) + 1)
        seen.append(start)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(count) for _ in range(24)]:
            done.result(WAIT_S)
    assert sorted(seen, key=lambda start: start or 0) == [None, *range(1, 24)]
    assert [row[0] for row in rows_in(database)] == list(range(24))


@pytest.mark.slow
def test_waiting_for_a_lock_is_bounded(database_url: str) -> None:
    """Locks: waiting is bounded, and then nothing is written"""
    with Database.open(database_url, lock_wait_s=1.0) as database:
        with UnitOfWork(database, CONSUMER) as unit:
            unit.lock("0")
        with UnitOfWork(database, CONSUMER) as holder:
            holder.lock("0")
            late = UnitOfWork(database, CONSUMER)
            with pytest.raises(DatabaseUnavailableError), late:
                late.lock("0")


def test_fencing(database: Database) -> None:
    """Fencing: epochs of leases rise, also above the checkpoint's, and refuse earlier owners"""
    leases = LeaseTable(database)
    first = leases.acquire(CONSUMER, "0", "a", expected=None)
    assert first is not None
    assert leases.acquire(CONSUMER, "0", "b", expected=None) is None
    with UnitOfWork(database, CONSUMER, lease_epoch=first.epoch + 5) as unit:
        unit.advance("0", unit.lock("0"), 1)
    taken = leases.acquire(CONSUMER, "0", "b", expected=first)
    assert taken is not None
    assert taken.epoch > first.epoch + 5
    assert leases.renew(CONSUMER, [first]) == {}
    renewed = leases.renew(CONSUMER, [taken])["0"]
    assert (renewed.owner, renewed.epoch) == ("b", taken.epoch)
    assert leases.release(CONSUMER, [renewed])["0"].owner == ""
    old = UnitOfWork(database, CONSUMER, lease_epoch=first.epoch)
    with pytest.raises(FencedError), old:
        old.lock("0")


@pytest.mark.parametrize("form", ["tuples", "columns"])
def test_bulk_insert(wide: Database, form: str) -> None:
    """Bulk insert: many rows, with every character, byte and number as it was"""
    count = 3_000
    columns: dict[str, list[Any]] = {
        "key": [f"{number}'\\\"%s\n{chr(0x1F600)}" for number in range(count)],
        "other": list(range(count)),
        "words": [None, "", " a ", "\\N", "NULL", "x" * 500] * (count // 6),
        "ratio": [None, 0.1, -1e300, 5e-324, 1 / 3, 2.0**60] * (count // 6),
        "raw": [None, b"", bytes(range(256)), b"'\\", b"\0", b"\xff"] * (count // 6),
    }
    with UnitOfWork(wide, CONSUMER) as unit:
        if form == "tuples":
            rows = list(zip(*columns.values(), strict=True))
            unit.insert_values(values, PartitionRows(tuple(columns), rows, range(count)))
        else:
            data = pa.table(columns)
            unit.insert_values(values, ArrowRows(data, data.column("other").to_numpy()))
    statement = sa.select(*(values.c[name] for name in columns)).order_by(values.c.other)
    with wide.read() as connection:
        found = [tuple(row) for row in connection.execute(statement)]
    assert found == list(zip(*columns.values(), strict=True))


def test_names_that_differ_little(database: Database) -> None:
    """Text: case, accents and trailing blanks make different names"""
    names = ["a", "A", "á", "a ", "\U0001f600"]
    for place, name in enumerate(names):
        with UnitOfWork(database, CONSUMER) as unit:
            assert unit.lock(name) is None
            unit.advance(name, None, place)
    for place, name in enumerate(names):
        with UnitOfWork(database, CONSUMER) as unit:
            assert unit.lock(name) == place


_NUMBERS = sa.Table(
    "conforming_numbers",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("other", sa.Integer, nullable=False, unique=True),
)
"""Its key is numbered by the database, if nobody else does."""


def _upsert(
    database: Database, rows: list[dict[str, Any]], *, table: sa.Table = values, **settings: Any
) -> None:
    target = LedgerTable(table, WriteMode.UPSERT, **settings)
    with UnitOfWork(database, CONSUMER) as unit:
        writer = TableWriter(unit, target)
        writer.load(arrow_rows(pa.Table.from_pylist(rows)))
        writer.finish()


def test_upsert(wide: Database) -> None:
    """Upsert: by a key; the last row of a key wins by an order, and an older one changes nothing"""
    _upsert(wide, [{"key": "a", "other": 1, "words": "first"}, {"key": "b", "other": 2, "words": "b"}])
    _upsert(wide, [{"key": "a", "other": 3, "words": "second"}, {"key": "A", "other": 4, "words": "c"}])
    last = [{"key": "b", "other": number, "words": str(number)} for number in (12, 15, 11)]
    _upsert(wide, last, order_by=("other",), is_older_ignored=True)
    _upsert(wide, [{"key": "b", "other": 9, "words": "older"}], order_by=("other",), is_older_ignored=True)
    with wide.read() as connection:
        statement = sa.select(values.c.key, values.c.other, values.c.words)
        found = {row.key: (row.other, row.words) for row in connection.execute(statement)}
    assert found == {"a": (3, "second"), "A": (4, "c"), "b": (15, "15")}


def test_upsert_refuses(wide: Database) -> None:
    """Upsert: rows that share a key, or another row's unique value, are refused and change nothing"""
    _upsert(wide, [{"key": "a", "other": 1, "words": "a"}, {"key": "b", "other": 2, "words": "b"}])
    before = rows_in(wide, values)
    with pytest.raises(DatabaseError, match="same key"):
        _upsert(wide, [{"key": "c", "other": 5, "words": "1"}, {"key": "c", "other": 6, "words": "2"}])
    with pytest.raises(RowsRefusedError):
        _upsert(wide, [{"key": "c", "other": 2, "words": "of b"}])
    assert rows_in(wide, values) == before
    wide.ensure_table(_NUMBERS)
    _upsert(wide, [{"id": 3, "other": 1}, {"id": 4, "other": 2}], table=_NUMBERS)
    with pytest.raises(RowsRefusedError):
        _upsert(wide, [{"id": 7, "other": 2}], table=_NUMBERS)
    assert rows_in(wide, _NUMBERS) == [(3, 1), (4, 2)]


@pytest.mark.parametrize("is_committed", [False, True], ids=["rolled back", "committed"])
def test_lost_commit(server: Database, is_committed: bool) -> None:
    """Lost COMMIT: whether it took place is found out, and COMMIT is not sent again"""

    def lose(connection: sa.Connection) -> None:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        if is_committed:
            raw.commit()
        server.dialect.abort(raw)

    unit = UnitOfWork(server, CONSUMER)
    unit.__enter__()
    unit.insert_rows(flights, [_flight(1)])
    unit.advance("0", unit.lock("0"), 2)
    sa.event.listen(unit.connection, "commit", lose)
    if is_committed:
        unit.commit()
    else:
        with pytest.raises(DatabaseUnavailableError, match="rolled back"):
            unit.commit()
    assert len(rows_in(server)) == int(is_committed)


def _failure(database: Database, act: Callable[[sa.Connection], object]) -> BaseException:
    with database.writing() as connection, connection.begin() as transaction:
        with pytest.raises(sa.exc.SQLAlchemyError) as caught:
            act(connection)
        transaction.rollback()
    return caught.value


_CHILD = sa.Table(
    "conforming_child",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent", sa.Integer, sa.ForeignKey("conforming_child.id")),
    sa.Column("positive", sa.Integer, sa.CheckConstraint("positive > 0")),
)
_DATA: dict[str, Callable[[sa.Connection], object]] = {
    "a key twice": lambda c: [c.execute(sa.insert(_CHILD).values(id=1)) for _ in range(2)],
    "NULL": lambda c: c.execute(sa.insert(values).values(key="x", other=None)),
    "no parent": lambda c: c.execute(sa.insert(_CHILD).values(id=2, parent=7)),
    "a check": lambda c: c.execute(sa.insert(_CHILD).values(id=3, positive=-1)),
}


@pytest.mark.parametrize("case", _DATA)
def test_errors_of_data(wide: Database, case: str) -> None:
    """Errors: a row at fault is known as such"""
    wide.ensure_table(_CHILD)
    error = _failure(wide, _DATA[case])
    assert (is_bad_data(error), is_environment(error)) == (True, False)


@pytest.mark.parametrize(
    ("kind", "statement"),
    [(ErrorKind.NO_TABLE, "SELECT * FROM no_such_table"), (NO_KIND, "SELEKT 1")],
    ids=["no table", "syntax"],
)
def test_errors_of_others(database: Database, kind: ErrorKind, statement: str) -> None:
    """Errors: a missing table and a wrong statement are not a row's fault"""
    error = _failure(database, lambda connection: connection.exec_driver_sql(statement))
    assert not is_bad_data(error)
    assert is_environment(error) == (kind is ErrorKind.NO_TABLE)


def test_errors_of_savepoints(database: Database) -> None:
    """Errors: a transaction that a handler ended is noticed by its savepoint"""
    release = "ROLLBACK TRANSACTION" if database.dialect.name == "mssql" else "RELEASE SAVEPOINT"
    statement = f"{release} no_such_savepoint"
    error = _failure(database, lambda connection: connection.exec_driver_sql(statement))
    assert is_of(error, ErrorKind.NO_SAVEPOINT)


def test_errors_of_deadlocks(server: Database) -> None:
    """Errors: a deadlock ends one of its transactions, whose retry helps"""
    for number in (1, 2):
        with UnitOfWork(server, CONSUMER) as unit:
            unit.insert_rows(flights, [_flight(number)])
    both = threading.Barrier(2, timeout=WAIT_S)

    def cross(first: int, second: int) -> BaseException | None:
        statement = sa.update(flights).values(delay=flights.c.delay + 1)
        with server.writing() as connection, connection.begin() as transaction:
            connection.execute(statement.where(flights.c.sequence_number == first))
            both.wait()
            try:
                connection.execute(statement.where(flights.c.sequence_number == second))
            except sa.exc.DBAPIError as error:
                transaction.rollback()
                return error
        return None

    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(cross, *pair) for pair in ((1, 2), (2, 1))]
        failures = [error for error in (end.result(WAIT_S) for end in ends) if error is not None]
    assert len(failures) == 1
    assert is_of(failures[0], ErrorKind.DEADLOCK)
    assert is_environment(failures[0])
    assert not is_bad_data(failures[0])


def test_errors_of_lost_connections(server: Database) -> None:
    """Errors: a lost connection is not a row's fault, and its transaction leaves nothing"""

    def lose(unit: UnitOfWork) -> None:
        unit.insert_rows(flights, [_flight(1)])
        server.dialect.abort(unit.connection.connection.dbapi_connection)
        unit.lock("0")

    with pytest.raises(DatabaseUnavailableError):
        _within(UnitOfWork(server, CONSUMER), lose)
    with UnitOfWork(server, CONSUMER) as unit:
        unit.lock("0")  # waits until the server has ended the other
    assert rows_in(server) == []


def test_savepoints(wide: Database) -> None:
    """Savepoints: what is refused behind one is undone, and the transaction continues"""
    with UnitOfWork(wide, CONSUMER) as unit:
        unit.insert_rows(values, [{"key": "a", "other": 1}])
        with pytest.raises(RowsRefusedError), unit.savepoint():
            unit.insert_rows(values, [{"key": "b", "other": 2}, {"key": "c", "other": 1}])
        unit.insert_rows(values, [{"key": "d", "other": 4}])
    assert [row[0] for row in rows_in(wide, values)] == ["a", "d"]


def test_temporary_tables(wide: Database) -> None:
    """Temporary tables: they come and go inside a transaction, which can still be undone"""
    temporary = sa.Table(
        wide.dialect.temporary_name("conforming_new"),
        sa.MetaData(),
        sa.Column("key", sa.String(40)),
        sa.Column("more", sa.Integer),
        prefixes=["TEMPORARY"],
    )
    for _ in range(2):
        with UnitOfWork(wide, CONSUMER) as unit:
            unit.insert_rows(values, [{"key": "a", "other": 1}])
            wide.dialect.make_table(unit.connection, temporary, like=values)
            unit.insert_rows(temporary, [{"key": None, "more": 1}, {"key": "A", "more": 2}])
            wide.dialect.drop_temporary(unit.connection, temporary)
            wide.dialect.make_table(unit.connection, temporary, like=values)
            unit.rollback()
    assert rows_in(wide, values) == []


def test_snapshots(wide: Database) -> None:
    """Snapshots: a reader sees one state, however long it reads"""
    with wide.read() as connection:
        wide.dialect.begin_snapshot(connection)
        statement = sa.select(sa.func.count()).select_from(values)
        counts = [connection.execute(statement).scalar_one()]
        with UnitOfWork(wide, CONSUMER) as unit:
            unit.insert_rows(values, [{"key": "a", "other": 1}])
        counts.append(connection.execute(statement).scalar_one())
    assert counts == [0, 0]
    assert len(rows_in(wide, values)) == 1


def test_time(wide: Database) -> None:
    """Time: the database's own, in UTC, the same in a whole statement; kept to the microsecond"""
    now = wide.dialect.now(wide.clock, UtcDateTime())
    with wide.read() as connection:
        before = wide.clock.now_utc()
        one, other = connection.execute(sa.select(now.label("one"), now.label("other"))).one()
        after = wide.clock.now_utc()
    slack = timedelta(milliseconds=100)  # a machine's clock may be set meanwhile
    assert before - slack <= one <= after + slack
    assert one == other
    moment = datetime(2026, 3, 29, 1, 30, 0, 123_457, tzinfo=UTC)
    with UnitOfWork(wide, CONSUMER) as unit:
        unit.insert_rows(values, [{"key": "a", "other": 1, "at": moment}])
    with wide.read() as connection:
        assert connection.execute(sa.select(values.c.at)).scalar_one() == moment


@pytest.mark.parametrize("is_descending", [False, True], ids=["ascending", "descending"])
def test_places(wide: Database, is_descending: bool) -> None:
    """Places: pages follow each other by several columns, in either order"""
    pairs = [(number // 3, f"{number % 3}") for number in range(12)]
    with UnitOfWork(wide, CONSUMER) as unit:
        rows = [{"key": f"{a}-{b}", "other": place, "ratio": float(a)} for place, (a, b) in enumerate(pairs)]
        unit.insert_rows(values, rows)
    columns = (values.c.ratio, values.c.key)
    order = [column.desc() if is_descending else column for column in columns]
    found: list[Any] = []
    statement = sa.select(*columns).order_by(*order).limit(5)
    with wide.read() as connection:
        while True:
            following = statement
            if found:
                is_beyond = wide.dialect.is_beyond(columns, found[-1], is_descending=is_descending)
                following = statement.where(is_beyond)
            page = [tuple(row) for row in connection.execute(following)]
            if not page:
                break
            found += page
    assert found == sorted(((float(a), f"{a}-{b}") for a, b in pairs), reverse=is_descending)


def test_reasons(database: Database) -> None:
    """Errors: a reason is the database's own sentence, without SQL and parameters"""
    error = _failure(database, lambda connection: connection.exec_driver_sql("SELECT * FROM no_such_table"))
    assert "no_such_table" in str(reason_of(error))
    assert "SELECT *" not in str(reason_of(error)).partition("\n")[0]


def test_the_table_in_the_docs_has_every_feature() -> None:
    """The page is written by hand, but for the table: a new test needs a new run."""
    page = (SUITE.parents[2] / "docs" / "reference" / PAGE).read_text(encoding="utf-8")
    names = [line.split(" | ")[0].removeprefix("| ") for line in table_of(page).splitlines()[2:]]
    assert names == list(features().values())

"""A value means the same to both databases, and in each form in which rows can come."""

from __future__ import annotations

import array
import enum
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Computed,
    Date,
    DateTime,
    Enum,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Time,
    Uuid,
    delete,
    select,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB
from sqlalchemy.types import TypeDecorator
from tests.sql.support import CONSUMER, dead_numbers, event_with

from tidegate.model.errors import FencedError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import (
    BatchResult,
    Database,
    DeadLetters,
    Pipeline,
    Row,
    RowsRefusedError,
    UnitOfWork,
    process_partition_batch,
)
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.values import PartitionRows

BERLIN = ZoneInfo("Europe/Berlin")
FORMS = ("tuples", "columns", "columns, value by value")

_metadata = MetaData()
values = Table(
    "column_values",
    _metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("whole", BigInteger),
    Column("local_at", DateTime),
    Column("at", DateTime(timezone=True)),
    Column("details", JSON(none_as_null=True)),
)


def _write(
    database: Database, form: str, column: str, found: list[Any], kind: pa.DataType | None = None
) -> None:
    """Replace the table's rows. The zone of the server is none that anything should depend on."""
    names = ("number", column, *(("details",) if form == FORMS[2] else ()))
    with UnitOfWork(database, CONSUMER) as unit:
        if database.dialect.name == "postgresql":
            unit.connection.exec_driver_sql("SET LOCAL TIME ZONE 'America/New_York'")
        elif database.dialect.name == "mariadb":
            unit.connection.exec_driver_sql("SET time_zone = '-05:00'")
        unit.connection.execute(delete(values))
        if form == "tuples":
            rows = [(number, value) for number, value in enumerate(found)]
            unit.insert_values(values, PartitionRows(names, rows, range(len(rows))))
            return
        data = pa.table(
            {
                "number": pa.array(range(len(found))),
                column: pa.array(found, kind),
                "details": pa.array([None] * len(found), pa.string()),
            }
        ).select(list(names))
        unit.insert_values(values, ArrowRows(data, data.column("number").to_numpy()))


def _read(database: Database, column: str) -> list[Any]:
    statement = select(values.columns[column]).order_by(values.c.number)
    with database.read() as connection:
        return list(connection.execute(statement).scalars())


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.lists(st.none() | st.integers(-(2**53), 2**53), min_size=1, max_size=8))
@pytest.mark.slow
def test_whole_numbers_may_come_as_floats(database: Database, form: str, numbers: list[int | None]) -> None:
    """As pandas has them in a column where one is missing, milliseconds since 1970 among them."""
    database.ensure_table(values)
    numbers = [*numbers, 1_700_000_000_123]
    floats = [None if number is None else float(number) for number in numbers]
    _write(database, form, "whole", floats, pa.float64())
    assert _read(database, "whole") == numbers


@pytest.mark.parametrize("form", FORMS)
def test_truth_values_are_numbers_where_numbers_are_wanted(database: Database, form: str) -> None:
    """As SQLite and Python have it."""
    database.ensure_table(values)
    _write(database, form, "whole", [True, None, False], pa.bool_())
    assert _read(database, "whole") == [1, None, 0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", [2.0**63, float("inf"), float("nan")])
def test_what_is_no_whole_number_is_for_the_database_to_say(
    database: Database, form: str, wrong: float
) -> None:
    """Servers refuse it, and SQLite takes anything."""
    database.ensure_table(values)
    if database.is_sqlite:
        _write(database, form, "whole", [wrong], pa.float64())
        return
    with pytest.raises(RowsRefusedError):
        _write(database, form, "whole", [wrong], pa.float64())
    assert _read(database, "whole") == []


_AUTUMN = [datetime(2024, 10, 26, 23, tzinfo=UTC) + timedelta(minutes=20 * step) for step in range(9)]
"""Three hours of UTC, in which Berlin's clocks show one hour twice."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.slow
def test_a_time_with_a_zone_is_stored_as_utc(database: Database, form: str, unit: Any) -> None:
    """In a column without one on both databases, also in the night in which a clock shows an hour twice."""
    database.ensure_table(values)
    times = [*(moment.astimezone(BERLIN) for moment in _AUTUMN), None]
    _write(database, form, "local_at", times, pa.timestamp(unit, "Europe/Berlin"))
    assert _read(database, "local_at") == [*(moment.replace(tzinfo=None) for moment in _AUTUMN), None]
    _write(database, form, "at", times, pa.timestamp(unit, "Europe/Berlin"))
    expected = [moment if database.dialect.has_zones else moment.replace(tzinfo=None) for moment in _AUTUMN]
    assert _read(database, "at") == [*expected, None]


@pytest.mark.parametrize("form", FORMS)
def test_a_time_without_a_zone_is_in_utc(database: Database, form: str) -> None:
    """Whatever zone the server is set to."""
    database.ensure_table(values)
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC).replace(tzinfo=None)
    _write(database, form, "at", [noon, None], pa.timestamp("us"))
    assert _read(database, "at") == [noon.replace(tzinfo=UTC) if database.dialect.has_zones else noon, None]


def test_uuids_may_be_text(database: Database) -> None:
    """Neither Spark nor Arrow has another form; what is none is refused."""
    table = Table("devices", MetaData(), Column("device", Uuid, primary_key=True))
    database.ensure_table(table)
    device = uuid.uuid4()

    def write(text: str) -> None:
        data = pa.table({"device": [text]})
        with UnitOfWork(database, CONSUMER) as unit:
            unit.insert_values(table, ArrowRows(data, pa.array([0]).to_numpy()))

    write(str(device))
    with pytest.raises(RowsRefusedError):
        write("no device")
    with database.read() as connection:
        assert connection.execute(select(table)).scalars().all() == [device]


_BINARY = LargeBinary().with_variant(LONGBLOB(), "mariadb")
_MICROSECONDS = DateTime().with_variant(DATETIME(fsp=6), "mariadb")


@pytest.mark.parametrize("value", [5, True, 2**45, 1.5, [1, 2], "text"], ids=str)
@pytest.mark.parametrize("sql_type", [LargeBinary(), _BINARY], ids=["plain", "variant"])
def test_a_binary_column_takes_bytes_only(database: Database, value: object, sql_type: Any) -> None:
    """MariaDB's driver makes that many bytes of an integer, and thereby ends the process."""
    table = _numbered("binaries", Column("value", sql_type))
    result = _process(database, table, [b"a", value, bytearray(b"b"), memoryview(b"c"), None])
    assert result == BatchResult(4, 1, 0, 0, 5)
    assert dead_numbers(database) == [1]
    with database.read() as connection:
        found = connection.execute(select(table.c.value).order_by(table.c.number)).scalars().all()
    assert found == [b"a", b"b", b"c", None]


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        (DateTime(), 20200101),
        (DateTime(timezone=True), 1_101_010_101),
        (_MICROSECONDS, 20200101101112),
        (Date(), 101112),
        (Time(), 5),
        (Time(), True),
        (Interval(), 5),
        (Interval(), 0.5),
        (DateTime(), time_of_day(1, 2, 3)),
    ],
    ids=str,
)
def test_what_is_not_a_time_is_not_read_as_one(database: Database, sql_type: Any, value: object) -> None:
    """Servers read dates and durations into amounts, and MariaDB a date into the time of day."""
    table = _numbered("times", Column("value", sql_type))
    assert _process(database, table, [None, value]) == BatchResult(1, 1, 0, 0, 2)


@pytest.mark.parametrize(
    ("sql_type", "text"),
    [
        (DateTime(), "10:11:12"),
        (DateTime(), "1101010101"),
        (_MICROSECONDS, "20-1-2"),
        (Date(), "10:11:12"),
        (Time(), "130"),
    ],
    ids=str,
)
def test_text_is_not_read_as_another_time_by_mariadb(mariadb_url: str, sql_type: Any, text: str) -> None:
    """It takes any separators and most numbers of digits."""
    with Database.open(mariadb_url) as database:
        table = _numbered("times", Column("value", sql_type))
        assert _process(database, table, [None, text]) == BatchResult(1, 1, 0, 0, 2)


@pytest.mark.parametrize(
    ("sql_type", "text", "expected"),
    [
        (DateTime(), "2026-07-01 10:11:12", datetime(2026, 7, 1, 10, 11, 12)),  # noqa: DTZ001
        (DateTime(), "2026-07-01", datetime(2026, 7, 1)),  # noqa: DTZ001
        (Date(), "2026-07-01", date(2026, 7, 1)),
        (Date(), "20260701", date(2026, 7, 1)),
        (Time(), "10:11:12", time_of_day(10, 11, 12)),
        (Time(), "101112", time_of_day(10, 11, 12)),
    ],
    ids=str,
)
def test_times_may_be_text(server_url: str, sql_type: Any, text: str, expected: object) -> None:
    """As servers read it; SQLite has no times of its own, so SQLAlchemy takes only Python's."""
    with Database.open(server_url) as database:
        table = _numbered("times", Column("value", sql_type))
        assert _process(database, table, [text]) == BatchResult(1, 0, 0, 0, 1)
        with database.read() as connection:
            assert connection.execute(select(table.c.value)).scalar_one() == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([1.5, 2.5]),
        lambda: np.array(5),
        lambda: array.array("f", [1.5]),
        lambda: pa.py_buffer(b"abc"),
        lambda: np.void(b"abc"),
        lambda: np.bytes_(b"abc"),
    ],
    ids=["ndarray", "ndarray without dimensions", "array", "Buffer", "void", "bytes_"],
)
def test_a_binary_column_takes_any_buffer(database: Database, make: Callable[[], Any]) -> None:
    """Embeddings and pictures come as arrays."""
    value = make()
    table = _numbered("buffers", Column("value", LargeBinary))
    assert _process(database, table, [value, None]) == BatchResult(2, 0, 0, 0, 2)
    with database.read() as connection:
        found = connection.execute(select(table.c.value).order_by(table.c.number)).scalars().all()
    assert found == [memoryview(value).tobytes(), None]


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), array.array("b", [1])], ids=repr)
def test_bytes_are_bytes_while_another_thread_imports_numpy(
    database: Database, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    """Its module is there then, without its names: sound events of other partitions became dead letters."""
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    table = _numbered("meanwhile", Column("value", LargeBinary))
    assert _process(database, table, [value]) == BatchResult(1, 0, 0, 0, 1)


@pytest.mark.parametrize("value", [np.int64(5), np.float64(1.5), np.str_("abc"), np.bool_(True)], ids=repr)
def test_numpys_numbers_and_text_are_not_bytes(database: Database, value: object) -> None:
    """They are buffers, and integers, of which MariaDB's driver would make zero bytes."""
    table = _numbered("scalars", Column("value", LargeBinary))
    assert _process(database, table, [b"a", value]) == BatchResult(1, 1, 0, 0, 2)


class _Document(TypeDecorator[bytes]):
    """Encodes text, and passes on all else."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> bytes | None:
        return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("value", [5, 2**45, True, [1, 2]], ids=repr)
def test_no_number_becomes_zero_bytes_behind_a_users_type(database: Database, value: object) -> None:
    """The types of a user decide what they take, but what they pass on gets to the driver."""
    table = _numbered("documents", Column("value", _Document))
    found = ["a", np.array([1.5]), value, None]
    assert _process(database, table, found) == BatchResult(3, 1, 0, 0, 4)
    assert dead_numbers(database) == [2]


class _Packed(LargeBinary):
    """A subclass with a function of its own."""

    cache_ok = True

    def bind_processor(self, dialect: object) -> Any:
        return lambda value: None if value is None else str(value).encode()


def test_a_subclass_of_a_type_decides_what_it_takes(database: Database) -> None:
    """As a TypeDecorator does."""
    table = _numbered("packed", Column("value", _Packed))
    assert _process(database, table, [5, None]) == BatchResult(2, 0, 0, 0, 2)
    with database.read() as connection:
        assert connection.execute(select(table.c.value)).scalars().all() == [b"5", None]


class _Colour(enum.Enum):
    RED = 1


class _Shelf(TypeDecorator[str]):
    """A type of a user's, whose table of places does not have every place."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: object) -> str | None:
        if value == "large":
            return str(bytes(1 << 60))
        return None if value is None else {"a": "1"}[value]


def _process(database: Database, table: Table, found: list[object]) -> BatchResult:
    database.ensure_table(table)

    def handle(event: ReceivedEvent) -> Row:
        return {"number": event.sequence_number, "value": found[event.sequence_number]}

    pipeline = Pipeline("values", "flights", table, handle)
    events = [event_with({}, number) for number in range(len(found))]
    return process_partition_batch(
        database, pipeline, "0", events, start_sequence_number=0, until_sequence_number=len(events)
    )


def _numbered(name: str, *more: Any) -> Table:
    return Table(name, MetaData(), Column("number", Integer, primary_key=True, autoincrement=False), *more)


@pytest.mark.parametrize(
    ("column_type", "found", "words"),
    [
        (Enum("red", "green", name="colour", validate_strings=True), ["red", "blue", "green"], "blue"),
        (Enum(_Colour), [_Colour.RED, 5, None], "5"),
        (_Shelf(), ["a", "b", "a"], "b"),
        (_Shelf(), ["a", "large", "a"], "MemoryError"),
    ],
    ids=["enum", "enum class", "type of a user's", "memory"],
)
def test_a_value_that_its_type_refuses_is_its_events_fault(
    database: Database, column_type: Any, found: list[object], words: str
) -> None:
    """Whatever a type raises: the other events are written."""
    table = _numbered("typed", Column("value", column_type))
    assert _process(database, table, found) == BatchResult(2, 1, 0, 0, 3)
    assert dead_numbers(database) == [1]
    assert words in DeadLetters(database).list()[0].reason


def test_text_too_long_for_its_index_is_its_events_fault(database: Database) -> None:
    """PostgreSQL limits what an index holds; SQLite does not, and MariaDB's index holds the beginning."""
    table = _numbered("indexed", Column("value", Text), Index("by_value", "value", mariadb_length=9))
    long = "".join(str(uuid.uuid4()) for _ in range(1_000))
    result = _process(database, table, ["a", long, "b"])
    assert (result.rows, result.dead_letters) == ((2, 1) if database.dialect.name == "postgresql" else (3, 0))


def test_what_a_function_in_the_table_refuses_is_its_events_fault(database: Database) -> None:
    """A column that the database computes, here from JSON that is none."""
    computed = {
        "sqlite": "json_extract(value, '$.a')",
        "postgresql": "(value::json ->> 'a')",
        "mariadb": "1 / json_valid(value)",
    }[database.dialect.name]
    table = _numbered(
        "computing", Column("value", Text), Column("a", Text, Computed(computed, persisted=True))
    )
    assert _process(database, table, ['{"a": 1}', "{", "{}"]) == BatchResult(2, 1, 0, 0, 3)
    assert dead_numbers(database) == [1]


_TRIGGERS = {
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.value = 7 THEN RAISE EXCEPTION 'no seven' USING ERRCODE = '45000'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "mariadb": (
        "CREATE TRIGGER refuse BEFORE INSERT ON triggered FOR EACH ROW IF NEW.value = 7 THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no seven'; END IF",
    ),
}


def test_an_error_of_a_users_own_trigger_is_its_events_fault(server_url: str) -> None:
    """Class 45 is what SQL leaves to users."""
    with Database.open(server_url) as database:
        table = _numbered("triggered", Column("value", Integer))
        database.ensure_table(table)
        with database.writing() as connection, connection.begin():
            for statement in _TRIGGERS[database.dialect.name]:
                connection.exec_driver_sql(statement)
        assert _process(database, table, [1, 7, 2]) == BatchResult(2, 1, 0, 0, 3)
        assert "no seven" in DeadLetters(database).list()[0].reason


@pytest.mark.parametrize(
    "body",
    [
        "SELECT 1 INTO STRICT one WHERE NEW.value <> 7;",
        "ASSERT NEW.value <> 7;",
        "IF NEW.value = 7 THEN RAISE 'of PL/Python' USING ERRCODE = '38000'; END IF;",
    ],
)
def test_what_ends_a_trigger_is_its_events_fault(postgresql_url: str, body: str) -> None:
    """A query without a row, an assertion, and an exception of another language."""
    with Database.open(postgresql_url) as database:
        table = _numbered("triggered", Column("value", Integer))
        database.ensure_table(table)
        with database.writing() as connection, connection.begin():
            connection.exec_driver_sql(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE one int; BEGIN "
                f"{body} RETURN NEW; END $$"
            )
            connection.exec_driver_sql(_TRIGGERS["postgresql"][1])
        assert _process(database, table, [1, 7, 2]) == BatchResult(2, 1, 0, 0, 3)
        assert dead_numbers(database) == [1]


def test_json_too_deep_for_the_stack_is_its_events_fault(postgresql_url: str) -> None:
    """PostgreSQL reads nested JSON on its stack, and only so much of it."""
    with Database.open(postgresql_url) as database:
        table = _numbered(
            "deep", Column("value", Text), Column("read", JSON, Computed("value::json", persisted=True))
        )
        assert _process(database, table, ["[]", "[" * 200_000, "{}"]) == BatchResult(2, 1, 0, 0, 3)
        assert dead_numbers(database) == [1]
        assert "stack depth" in DeadLetters(database).list()[0].reason


def test_names_with_percent_signs_are_only_names(database: Database) -> None:
    """In statements with parameters they are doubled, and a COPY has none."""
    table = _numbered("100%", Column("delay%", Integer, key="value"))
    assert _process(database, table, [1, 2]) == BatchResult(2, 0, 0, 0, 2)
    with database.read() as connection:
        assert connection.execute(select(table.c.value).order_by(table.c.number)).scalars().all() == [1, 2]


@pytest.mark.slow
def test_an_insert_that_is_aborted_says_so(sqlite_url: str) -> None:
    """Not that its user may not write, which is how SQLite keeps what comes next from being written."""
    rows = PartitionRows(("number",), [(number,) for number in range(2_000_000)], range(2_000_000))
    has_begun = threading.Event()
    with Database.open(sqlite_url) as database:
        database.ensure_table(values)
        unit = UnitOfWork(database, CONSUMER)

        def break_off() -> None:
            has_begun.wait()
            time.sleep(0.1)
            assert unit.abort()

        def insert() -> None:
            with unit:
                has_begun.set()
                unit.insert_values(values, rows)

        breaker = threading.Thread(target=break_off)
        breaker.start()
        with pytest.raises(FencedError, match="was aborted"):
            insert()
        breaker.join()
        assert _read(database, "number") == []

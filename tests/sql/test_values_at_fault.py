"""Values that a sender chooses, and what databases and drivers raise for them: their events are at fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import JSON, BigInteger, Column, Integer, MetaData, Table, Text, exc, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine
from tests.sql.support import CONSUMER, dead_numbers
from tests.sql.transaction_support import transactions_of

from tidegate.model.errors import DatabaseError
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.sql import Database, Pipeline, Row
from tidegate.sql.core.failures import is_bad_data, is_environment

_KEY = "n BIGINT PRIMARY KEY"


def _table(column_type: TypeEngine[Any]) -> Table:
    key = Column("n", BigInteger, primary_key=True, autoincrement=False)
    return Table("chosen", MetaData(), key, Column("v", column_type))


def _numbers(database: Database, table: Table) -> list[object]:
    with database.read() as connection:
        return list(connection.execute(select(table.c.n).order_by(table.c.n)).scalars())


async def _store(
    database: Database, table: Table, bodies: Sequence[bytes], value: Callable[[bytes], object] = bytes.decode
) -> None:
    """Run a pipeline with a row per event; ``value`` makes its column of the body."""

    def row(event: ReceivedEvent) -> Row:
        return {"n": event.sequence_number, "v": value(event.body)}

    transactions = transactions_of(database, Pipeline("chosen", CONSUMER.event_hub, table, row))
    try:
        await transactions.begin()
        events = [
            ReceivedEvent("0", number, str(number), number + 1, contents=EventContents(body))
            for number, body in enumerate(bodies)
        ]
        await transactions.process(events, start_sequence_number=0, until_sequence_number=len(events))
    finally:
        transactions.close()


def _nested(levels: bytes) -> object:
    value: list[object] = []
    for _ in range(int(levels)):
        value = [value]
    return value


@pytest.mark.parametrize("column_type", [JSONB(), ARRAY(Integer, dimensions=1)], ids=["jsonb", "array"])
async def test_values_too_deep_for_the_driver(postgresql_url: str, column_type: TypeEngine[Any]) -> None:
    """psycopg encodes them by functions that call themselves, outside of SQLAlchemy: a RecursionError."""
    table = _table(column_type)
    with Database.open(postgresql_url) as database:
        database.ensure_table(table)
        await _store(database, table, [b"0", b"100000", b"0"], _nested)
        assert (_numbers(database, table), dead_numbers(database)) == ([0, 2], [1])


async def test_json_too_deep(database: Database) -> None:
    """On every database, whoever encodes it."""
    table = _table(JSON())
    database.ensure_table(table)
    await _store(database, table, [b"0", b"100000", b"0"], _nested)
    assert (_numbers(database, table), dead_numbers(database)) == ([0, 2], [1])


def _trigger(body: str) -> str:
    return f"CREATE TRIGGER chosen_row BEFORE INSERT ON chosen FOR EACH ROW BEGIN {body} END"


_TABLE = f"CREATE TABLE chosen ({_KEY}, v TEXT)"
_CODES = "CREATE TABLE codes AS SELECT 'a' AS name, 1 AS code UNION ALL SELECT 'b', 2 UNION ALL SELECT 'b', 3"
_GENERATED = f"CREATE TABLE chosen ({_KEY}, v TEXT, made VARCHAR(100) AS (JSON_EXTRACT(v, '$.a')) STORED)"
_MARIADB: dict[str, tuple[bytes, bytes, Sequence[str]]] = {
    "1526: no partition": (
        b"a",
        b"bbbb",
        [
            "CREATE TABLE chosen (n BIGINT, v VARCHAR(9), PRIMARY KEY (n, v)) "
            "PARTITION BY LIST COLUMNS (v) (PARTITION p VALUES IN ('a'))"
        ],
    ),
    "1118: a row too long": (
        b"a",
        b"b" * 250,
        [
            "SET SESSION innodb_strict_mode = OFF",
            f"CREATE TABLE chosen ({_KEY}, v TEXT, "
            + ", ".join(f"v{i} VARCHAR(250) AS (v) STORED" for i in range(40))
            + ") CHARACTER SET latin1",
        ],
    ),
    "1339: CASE without a branch": (
        b"a",
        b"b",
        [_TABLE, _trigger("CASE NEW.v WHEN 'a' THEN SET NEW.v = 'x'; END CASE;")],
    ),
    "1172: INTO more than one row": (
        b"a",
        b"b",
        [
            _TABLE,
            _CODES,
            _trigger("DECLARE x INT; SELECT code INTO x FROM codes WHERE name = NEW.v; SET NEW.v = x;"),
        ],
    ),
    "4036: a control character in JSON": (b'{"a": 1}', b'{"a": "\x01"}', [_GENERATED]),
    "4037: cut JSON": (b'{"a": 1}', b'{"a":', [_GENERATED]),
    "4038: no JSON": (b'{"a": 1}', b"x", [_GENERATED]),
    "4040: nested JSON": (b'{"a": 1}', b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", [_GENERATED]),
}


def _plpgsql(body: str) -> list[str]:
    return [
        _TABLE,
        f"CREATE FUNCTION chosen_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        "CREATE TRIGGER chosen_row BEFORE INSERT ON chosen FOR EACH ROW EXECUTE FUNCTION chosen_row()",
    ]


_POSTGRESQL: dict[str, tuple[bytes, bytes, Sequence[str]]] = {
    "20000: CASE without a branch": (
        b"a",
        b"b",
        _plpgsql("CASE NEW.v WHEN 'a' THEN RETURN NEW; END CASE;"),
    ),
    "42601: of a query for text": (
        b"a",
        b"a b",
        [
            f"CREATE TABLE chosen ({_KEY}, v TEXT, "
            "q TSQUERY GENERATED ALWAYS AS (to_tsquery('simple', v)) STORED)"
        ],
    ),
    "42601: of a path in JSON": (b"$.a", b"$.", [f"CREATE TABLE chosen ({_KEY}, v JSONPATH)"]),
}
_CASES = [
    *(pytest.param("mariadb", *case, id=f"mariadb {name}") for name, case in _MARIADB.items()),
    *(pytest.param("postgresql", *case, id=f"postgresql {name}") for name, case in _POSTGRESQL.items()),
]


@pytest.mark.parametrize(("kind", "good", "bad", "statements"), _CASES)
async def test_errors_about_a_value(
    request: pytest.FixtureRequest, kind: str, good: bytes, bad: bytes, statements: Sequence[str]
) -> None:
    """One event becomes a dead letter, and its neighbours rows: it does not stop its partition."""
    table = _table(Text())
    with Database.open(request.getfixturevalue(f"{kind}_url")) as database:
        with database.writing() as connection, connection.begin():
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%"))
        await _store(database, table, [good, bad, good])
        assert (_numbers(database, table), dead_numbers(database)) == ([0, 2], [1])


_BROKEN = {
    "mariadb 1139: no regular expression": ("mariadb", [_TABLE, _trigger("SET NEW.v = NEW.v REGEXP '(';")]),
    "mariadb 1329: an empty table": (
        "mariadb",
        [
            _TABLE,
            "CREATE TABLE codes (code INT)",
            _trigger(
                "DECLARE x INT; DECLARE found CURSOR FOR SELECT code FROM codes; "
                "OPEN found; FETCH found INTO x; CLOSE found; SET NEW.v = x;"
            ),
        ],
    ),
    "postgresql 42601: no destination": ("postgresql", _plpgsql("SELECT 1; RETURN NEW;")),
    "postgresql 2F005: no RETURN": ("postgresql", _plpgsql("NEW.v := 'x';")),
}


@pytest.mark.parametrize(("kind", "statements"), _BROKEN.values(), ids=_BROKEN)
async def test_errors_of_a_trigger(
    request: pytest.FixtureRequest, kind: str, statements: Sequence[str]
) -> None:
    """They stop the partition: each event would become a dead letter."""
    with Database.open(request.getfixturevalue(f"{kind}_url")) as database:
        with database.writing() as connection, connection.begin():
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%"))
        with pytest.raises(DatabaseError):
            await _store(database, _table(Text()), [b"a", b"b"])
        assert dead_numbers(database) == []


_POLICY = [
    "CREATE ROLE chosen_writer",
    f"CREATE TABLE chosen ({_KEY}, v TEXT)",
    "ALTER TABLE chosen ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON chosen WITH CHECK (v = 'a')",
    "GRANT INSERT ON chosen TO chosen_writer",
    "CREATE TABLE others (n BIGINT)",
    "DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO chosen_writer', current_schema()); END $$",
    "SET LOCAL ROLE chosen_writer",
]


@pytest.mark.parametrize(
    ("statements", "failing", "is_of_row", "is_of_database"),
    [
        (_POLICY, "INSERT INTO chosen VALUES (1, 'b')", False, True),
        (_POLICY, "INSERT INTO others VALUES (1)", False, True),
        ([], "SELEKT 1", False, False),
        ([], "DO $$ BEGIN EXECUTE 'SELEKT 1'; END $$", False, False),
        ([], "DO $$ BEGIN SELECT 1; END $$", False, False),
        (["CREATE EXTENSION ltree"], "SELECT text 'a..b'::ltree", True, False),
        (["CREATE EXTENSION ltree"], "SELECT text 'a b'::ltxtquery", True, False),
        ([], "SELECT text '''a'::tsvector", True, False),
        (["CREATE EXTENSION ltree"], "SELECT repeat('a', 2000)::ltree", True, False),
        (["CREATE EXTENSION hstore"], "SELECT text 'a =>'::hstore", True, False),
    ],
    ids=[
        "policy",
        "right",
        "syntax",
        "syntax in a function",
        "no destination",
        "ltree",
        "ltxtquery",
        "tsvector",
        "label",
        "hstore",
    ],
)
def test_states_of_values_and_of_others(
    postgresql_url: str, statements: Sequence[str], failing: str, is_of_row: bool, is_of_database: bool
) -> None:
    """PostgreSQL has one SQLSTATE for a policy and a missing right, and one for all kinds of syntax."""
    with Database.open(postgresql_url) as database, database.writing() as connection:
        for statement in statements:  # undone at the end
            connection.exec_driver_sql(statement.replace("%", "%%"))
        with pytest.raises(exc.DBAPIError) as caught:
            connection.exec_driver_sql(failing)
    assert (is_bad_data(caught.value), is_environment(caught.value)) == (is_of_row, is_of_database)

"""Tables of a new database, of a start that was cut off, and of earlier releases: always the same ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.sql.support import (
    CONSUMER,
    PIPELINE,
    dead_numbers,
    event_with,
    events_between,
    flights,
    row_count,
)
from tests.support.mariadb import MariadbServer

from tidegate.model.errors import DatabaseError
from tidegate.sql import CheckpointReader, Database, UnitOfWork, process_partition_batch
from tidegate.sql.core import schema
from tidegate.sql.stores.leases import LeaseTable


def statements_of(database: Database) -> list[str]:
    """What creates the tables as the database reports them, and the versions that it has recorded."""
    with database.read() as connection:
        metadata = sa.MetaData()
        metadata.reflect(connection, only=lambda name, _: name.startswith("tidegate_"))
        dialect = connection.dialect
        versions = connection.execute(sa.select(schema.schema_version.c.version)).scalars()
        return [
            *(str(CreateTable(table).compile(dialect=dialect)) for table in metadata.sorted_tables),
            *sorted(
                str(CreateIndex(index).compile(dialect=dialect))
                for table in metadata.sorted_tables
                for index in table.indexes
            ),
            *sorted(map(str, versions)),
        ]


def make_version_1(database: Database) -> None:
    """Make a new database what the first release has created."""
    with database.writing() as connection, connection.begin():
        later = (schema.lease, schema.ledger_query, schema.ledger_stage)
        for table in (*later, schema.outbox, schema.outbox_lane, schema.outbox_hub):
            table.drop(connection)
        for index in (schema.open_keys, schema.by_time):
            index.drop(connection)
        for statement in (
            "ALTER TABLE tidegate_checkpoint DROP COLUMN history_id",
            "ALTER TABLE tidegate_batch_ledger DROP COLUMN fingerprint",
            "ALTER TABLE tidegate_batch_ledger RENAME COLUMN query_id TO other",
            "DELETE FROM tidegate_schema_version WHERE version > 1",
        ):
            connection.execute(sa.text(statement))


def test_a_database_of_version_1_gets_the_tables_of_a_new_one(database_url: str) -> None:
    """A new database gets its tables without migrations: they must be those that migrations lead to."""
    with Database.open(database_url) as database:
        new = statements_of(database)
        with UnitOfWork(database, CONSUMER) as unit:
            unit.advance("0", unit.lock("0"), 7)
        make_version_1(database)
        assert statements_of(database) != new
    with Database.open(database_url) as database:
        assert statements_of(database) == new
        assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 7
        assert LeaseTable(database).read(CONSUMER).leases == {}


def test_tables_that_are_added_need_no_version(database_url: str) -> None:
    """A database gets tables of published events, and programs that do not know them may open it again."""
    with Database.open(database_url) as database:
        new, outbox = statements_of(database), (schema.outbox, schema.outbox_lane, schema.outbox_hub)
        with database.writing() as connection, connection.begin():
            for table in outbox:
                table.drop(connection)
        assert statements_of(database) != new
    with Database.open(database_url) as database:
        assert statements_of(database) == new
        with database.read() as connection:
            assert schema.current_version(connection) == len(schema.MIGRATIONS) == 7


def test_who_runs_continues_on_tables_with_more_columns(database_url: str) -> None:
    """A newer version's migration only adds, so hosts that run need not stop for it; those that start are
    refused."""
    with Database.open(database_url) as database:
        database.ensure_table(flights)
        leases = LeaseTable(database)
        lease = leases.acquire(CONSUMER, "0", "host", expected=None)
        assert lease is not None
        with database.writing() as connection, connection.begin():
            for table in schema.metadata.sorted_tables:
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD later VARCHAR(9)"))
            row = {"version": len(schema.MIGRATIONS) + 1, "applied_at": database.clock.now_utc()}
            connection.execute(schema.schema_version.insert(), row)
        events = [event_with({"delay": None}, 0), *events_between(1, 9)]
        process_partition_batch(
            database, PIPELINE, "0", events, start_sequence_number=0, until_sequence_number=9
        )
        assert (row_count(database), dead_numbers(database)) == (8, [0])
        assert leases.renew(CONSUMER, [lease]).keys() == {"0"}
    with pytest.raises(DatabaseError, match="are of version"):
        Database.open(database_url)


def test_a_start_that_was_cut_off_is_completed_by_the_next(mariadb: MariadbServer) -> None:
    """MariaDB commits each statement that creates something, so what is cut off stays half done."""
    with Database.open(mariadb.create_database()) as database:
        new = statements_of(database)
    cuts = 0
    while True:
        url = mariadb.create_database()
        if not is_start_cut_off(url, after=cuts):
            break
        with Database.open(url) as database:
            assert statements_of(database) == new, f"after {cuts} statements"
        cuts += 1
    assert cuts > len(schema.metadata.tables), "each table, index and version is a statement"


def is_start_cut_off(url: str, *, after: int) -> bool:
    """Whether opening the database came to more than ``after`` statements that change it."""
    left = after
    is_cut = False

    def cut(connection: object, cursor: object, statement: str, *rest: object) -> None:
        nonlocal left, is_cut
        if statement.lstrip().startswith(("CREATE", "ALTER", "INSERT")):
            left -= 1
            if left < 0:
                is_cut = True
                raise ConnectionAbortedError("cut off")

    sa.event.listen(sa.Engine, "before_cursor_execute", cut)
    try:
        with suppress(ConnectionAbortedError):
            Database.open(url).close()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", cut)
    return is_cut

"""Tidegate's tables, which it keeps beside the user's own, and their migrations.

Rule: never edit a released migration; a change to a table is a new entry in MIGRATIONS. All tables are named
``tidegate_…``. Times are stored with a zone on PostgreSQL and as UTC text on SQLite; an event's enqueued time
stays the log's integer of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    and_,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.types import TypeDecorator

from tidegate.model.errors import DatabaseError
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.values import ConsumerKey


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, stored with its zone if the database has zones, otherwise as UTC without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC, without a zone for a database that has none."""
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc if DIALECTS[dialect.name].has_zones else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert from the database; the result is aware and in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData()

schema_version = Table(
    "tidegate_schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", UtcDateTime, nullable=False),
)


def _consumer_columns() -> tuple[Column[str], Column[str], Column[str]]:
    return (
        Column("event_hub", String(256), primary_key=True),
        Column("consumer_group", String(256), primary_key=True),
        Column("partition_id", String(64), primary_key=True),
    )


checkpoint = Table(
    "tidegate_checkpoint",
    metadata,
    *_consumer_columns(),
    Column("next_sequence_number", BigInteger),
    Column("offset", Text),
    Column("enqueued_time_ms", BigInteger),
    Column("event_hub_created_at_ms", BigInteger),
    Column("transaction_token", String(64)),
    Column("owner", Text),
    Column("lease_epoch", BigInteger),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""One row per consumer and partition: the authority on what has been processed."""

dead_letter = Table(
    "tidegate_dead_letter",
    metadata,
    *_consumer_columns(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("offset", Text, nullable=False),
    Column("enqueued_time_ms", BigInteger, nullable=False),
    Column("partition_key", Text),
    Column("error_type", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("traceback", Text, nullable=False),
    Column("payload", LargeBinary),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("first_failed_at", UtcDateTime, nullable=False),
    Column("last_failed_at", UtcDateTime, nullable=False),
    Column("pipeline", Text, nullable=False),
    Index("tidegate_dead_letter_status", "status", "pipeline"),
)
"""Dead letters. The sequence number is in the key, because a partition may have many."""

open_keys = Index(
    "tidegate_dead_letter_open_key",
    dead_letter.c.event_hub,
    dead_letter.c.consumer_group,
    dead_letter.c.partition_id,
    dead_letter.c.partition_key,
    dead_letter.c.sequence_number,
    postgresql_where=text("status = 'open'"),
    sqlite_where=text("status = 'open'"),
)
"""The open dead letters of each partition key, in order: read with each batch while keys are parked."""

by_time = Index(
    "tidegate_dead_letter_time",
    dead_letter.c.status,
    dead_letter.c.last_failed_at,
    dead_letter.c.event_hub,
    dead_letter.c.consumer_group,
    dead_letter.c.partition_id,
    dead_letter.c.sequence_number,
)
"""Dead letters of each status by their last failure, the order of the console's pages. It includes the names,
so that pages and sums of one hub do not read the rows of others."""

dead_letter_audit = Table(
    "tidegate_dead_letter_audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("event_hub", String(256), nullable=False),
    Column("consumer_group", String(256), nullable=False),
    Column("partition_id", String(64), nullable=False),
    Column("sequence_number", BigInteger, nullable=False),
    Column("action", String(32), nullable=False),
    Column("actor", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("detail", Text, nullable=False),
    Column("transaction_token", String(64), nullable=False, index=True),
    Index("tidegate_dead_letter_audit_key", "event_hub", "consumer_group", "partition_id", "sequence_number"),
)
"""Who did what to which dead letter, written in the transaction that did it."""

batch_ledger = Table(
    "tidegate_batch_ledger",
    metadata,
    Column("query_name", String(256), primary_key=True),
    Column("query_id", String(64), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", String(64)),
    Column("row_count", BigInteger, nullable=False),
    Column("dead_letter_count", BigInteger, nullable=False),
    Column("transaction_token", String(64), nullable=False),
    Column("committed_at", UtcDateTime, nullable=False),
)
"""Committed micro-batches whose rows were shuffled and so belong to no partition; only each query's latest
are kept."""

ledger_query = Table(
    "tidegate_ledger_query",
    metadata,
    Column("query_name", String(256), primary_key=True),
    Column("query_id", String(64), nullable=False),
    Column("next_batch_id", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("owner", Text, nullable=False),
    Column("transaction_token", String(64), nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)
"""The ledger's queries, each with its checkpoint directory and current run."""

ledger_stage = Table(
    "tidegate_ledger_stage",
    metadata,
    Column("stage_name", String(63), primary_key=True),
    Column("query_name", String(256), nullable=False, index=True),
    Column("epoch", BigInteger, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)
"""Tables of rows that tasks have written and their driver has not merged yet, with their owners."""

lease = Table(
    "tidegate_lease",
    metadata,
    *_consumer_columns(),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("acquired_at", UtcDateTime, nullable=False),
    Column("renewed_at", UtcDateTime, nullable=False),
    Column("version", BigInteger, nullable=False),
)
"""Which host processes a partition; an empty owner: it was released. Every change raises the version."""


def of_consumer(table: Table, consumer: ConsumerKey, partition_id: str | None = None) -> ColumnElement[bool]:
    """The condition for a consumer's rows in ``table``; partition_id: None: of all its partitions."""
    row = table.c
    mine = and_(row.event_hub == consumer.event_hub, row.consumer_group == consumer.consumer_group)
    return mine if partition_id is None else and_(mine, row.partition_id == partition_id)


def in_partition_order(table: Table) -> tuple[ColumnElement[object], ...]:
    """The order by hub, group and partition (2 before 10)."""
    row = table.c
    return row.event_hub, row.consumer_group, func.length(row.partition_id), row.partition_id


def _tables(*tables: Table) -> Callable[[Connection], None]:
    return lambda connection: metadata.create_all(connection, tables=tables, checkfirst=True)


def _index(index: Index) -> Callable[[Connection], None]:
    # In a new database the index came with its table.
    return lambda connection: index.create(connection, checkfirst=True)


def _renew_ledger(connection: Connection) -> None:
    # The ledger before this version knew no query ids, and nothing wrote to it.
    columns = {column["name"] for column in inspect(connection).get_columns(batch_ledger.name)}
    if "query_id" not in columns:
        batch_ledger.drop(connection)
    metadata.create_all(connection, tables=[batch_ledger, ledger_query, ledger_stage], checkfirst=True)


MIGRATIONS: Final[tuple[Callable[[Connection], None], ...]] = (
    _tables(checkpoint, dead_letter, dead_letter_audit, batch_ledger),
    _tables(lease),
    _index(open_keys),
    _renew_ledger,
    _index(by_time),
)
"""Entry ``i`` migrates a database from version ``i`` to ``i + 1``."""


def current_version(connection: Connection) -> int:
    """The version of this database's tables; 0: there are none."""
    if not inspect(connection).has_table(schema_version.name):
        return 0
    versions = connection.execute(select(schema_version.c.version)).scalars().all()
    return max(versions, default=0)


def migrate(connection: Connection, *, now: datetime) -> int:
    """Migrate the tables to this program's version; the caller holds the writers' lock and commits.

    Returns the number of migrations run. Raises DatabaseError if a newer Tidegate wrote this database.
    """
    version = current_version(connection)
    if version > len(MIGRATIONS):
        raise DatabaseError(
            f"The tidegate_* tables are of version {version}, and this Tidegate knows versions up to "
            f"{len(MIGRATIONS)}.",
            next_step="Upgrade Tidegate on this machine to the version that last wrote the database.",
        )
    if version == 0:
        schema_version.create(connection, checkfirst=True)
    for number, apply in enumerate(MIGRATIONS[version:], start=version + 1):
        apply(connection)
        connection.execute(schema_version.insert().values(version=number, applied_at=now))
    return len(MIGRATIONS) - version

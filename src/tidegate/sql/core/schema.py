"""Tidegate's tables, which it keeps beside the user's own, and their migrations.

Rule: never edit a released migration; a change to a table is a new entry in MIGRATIONS. All tables are named
``tidegate_…``. Times are stored with a zone on PostgreSQL and as UTC text on SQLite; an event's enqueued time
stays the log's integer of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tidegate.model.errors import DatabaseError
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.dialects.mariadb import COLLATION
from tidegate.sql.core.dialects.mssql import name_type, words_type
from tidegate.sql.core.values import KEY_CHARACTERS_MAX, OVER_HTTP, ConsumerKey


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A time, stored with its zone if the database has zones, otherwise as UTC. Without a zone it is UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """The database's type that keeps microseconds."""
        ours = DIALECTS.get(dialect.name)  # None: SQL that is only shown, as in a notebook
        return dialect.type_descriptor(self.impl_instance if ours is None else ours.time_type)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Convert to UTC, without a zone for a database that has none."""
        if value is None:
            return None
        utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc if DIALECTS[dialect.name].has_zones else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Convert from the database; the result is aware and in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = sa.MetaData()
_ON_MARIADB: Final[dict[str, Any]] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": COLLATION,
}

_WORDS: Final = sa.Text().with_variant(words_type(), "mssql")
_PIPELINE_CHARACTERS_MAX: Final = 800
"""On SQL Server, where an index has at most 1,700 bytes."""


def _name(characters_max: int, elsewhere: sa.types.TypeEngine[str] | None = None) -> sa.types.TypeEngine[str]:
    """A string that is compared, or in a key. elsewhere: its type but on SQL Server; None: of that length."""
    kind = sa.String(characters_max) if elsewhere is None else elsewhere
    return kind.with_variant(name_type(characters_max), "mssql")


schema_version = sa.Table(
    "tidegate_schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("applied_at", UtcDateTime, nullable=False),
    **_ON_MARIADB,
)


def _consumer_columns() -> tuple[sa.Column[str], sa.Column[str], sa.Column[str]]:
    return (
        sa.Column("event_hub", _name(256), primary_key=True),
        sa.Column("consumer_group", _name(256), primary_key=True),
        sa.Column("partition_id", _name(64), primary_key=True),
    )


checkpoint = sa.Table(
    "tidegate_checkpoint",
    metadata,
    *_consumer_columns(),
    sa.Column("next_sequence_number", sa.BigInteger),
    sa.Column("offset", _WORDS),
    sa.Column("enqueued_time_ms", sa.BigInteger),
    sa.Column("event_hub_created_at_ms", sa.BigInteger),
    sa.Column("transaction_token", _name(64)),
    sa.Column("owner", _WORDS),
    sa.Column("lease_epoch", sa.BigInteger),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("history_id", _name(64)),
    **_ON_MARIADB,
)
"""One row per consumer and partition: the authority on what has been processed."""

dead_letter = sa.Table(
    "tidegate_dead_letter",
    metadata,
    *_consumer_columns(),
    sa.Column("sequence_number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offset", _WORDS, nullable=False),
    sa.Column("enqueued_time_ms", sa.BigInteger, nullable=False),
    sa.Column("partition_key", _name(KEY_CHARACTERS_MAX + 1, sa.Text())),
    sa.Column("error_type", _WORDS, nullable=False),
    sa.Column("reason", _WORDS, nullable=False),
    sa.Column("traceback", _WORDS, nullable=False),
    sa.Column("payload", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mariadb")),
    sa.Column("status", _name(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("first_failed_at", UtcDateTime, nullable=False),
    sa.Column("last_failed_at", UtcDateTime, nullable=False),
    sa.Column("pipeline", _name(_PIPELINE_CHARACTERS_MAX, sa.Text()), nullable=False),
    sa.Index("tidegate_dead_letter_status", "status", "pipeline", mariadb_length={"pipeline": 256}),
    **_ON_MARIADB,
)
"""Dead letters. The sequence number is in the key, because a partition may have many."""

open_keys = sa.Index(
    "tidegate_dead_letter_open_key",
    dead_letter.c.event_hub,
    dead_letter.c.consumer_group,
    dead_letter.c.partition_id,
    dead_letter.c.partition_key,
    dead_letter.c.sequence_number,
    postgresql_where=sa.text("status = 'open'"),
    sqlite_where=sa.text("status = 'open'"),
    mssql_where=sa.text("status = 'open'"),
    mariadb_length={"partition_key": 128},
)
"""The open dead letters of each partition key, in order: read with each batch while keys are parked."""

by_time = sa.Index(
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

dead_letter_audit = sa.Table(
    "tidegate_dead_letter_audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_hub", _name(256), nullable=False),
    sa.Column("consumer_group", _name(256), nullable=False),
    sa.Column("partition_id", _name(64), nullable=False),
    sa.Column("sequence_number", sa.BigInteger, nullable=False),
    sa.Column("action", _name(32), nullable=False),
    sa.Column("actor", _WORDS, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("detail", _WORDS, nullable=False),
    sa.Column("transaction_token", _name(64), nullable=False, index=True),
    sa.Index(
        "tidegate_dead_letter_audit_key", "event_hub", "consumer_group", "partition_id", "sequence_number"
    ),
    **_ON_MARIADB,
)
"""Who did what to which dead letter, written in the transaction that did it."""

batch_ledger = sa.Table(
    "tidegate_batch_ledger",
    metadata,
    sa.Column("query_name", _name(256), primary_key=True),
    sa.Column("query_id", _name(64), primary_key=True),
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", _name(64)),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("dead_letter_count", sa.BigInteger, nullable=False),
    sa.Column("transaction_token", _name(64), nullable=False),
    sa.Column("committed_at", UtcDateTime, nullable=False),
    **_ON_MARIADB,
)
"""Committed micro-batches whose rows were shuffled and so belong to no partition; only each query's latest
are kept."""

ledger_query = sa.Table(
    "tidegate_ledger_query",
    metadata,
    sa.Column("query_name", _name(256), primary_key=True),
    sa.Column("query_id", _name(64), nullable=False),
    sa.Column("next_batch_id", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("run_id", _name(64), nullable=False),
    sa.Column("owner", _WORDS, nullable=False),
    sa.Column("transaction_token", _name(64), nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    **_ON_MARIADB,
)
"""The ledger's queries, each with its checkpoint directory and current run."""

ledger_stage = sa.Table(
    "tidegate_ledger_stage",
    metadata,
    sa.Column("stage_name", _name(63), primary_key=True),
    sa.Column("query_name", _name(256), nullable=False, index=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    **_ON_MARIADB,
)
"""Tables of rows that tasks have written and their driver has not merged yet, with their owners."""

lease = sa.Table(
    "tidegate_lease",
    metadata,
    *_consumer_columns(),
    sa.Column("owner", _WORDS, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("acquired_at", UtcDateTime, nullable=False),
    sa.Column("renewed_at", UtcDateTime, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("requested_by", _WORDS),
    sa.Column("requested_at", UtcDateTime),
    **_ON_MARIADB,
)
"""Which host processes a partition; an empty owner: it was released. Every change but a request raises the
version. ``requested_by`` is NULL if the owner knows no requests."""


outbox = sa.Table(
    "tidegate_outbox",
    metadata,
    sa.Column("lane_id", _name(32), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("event_count", sa.Integer, nullable=False),
    sa.Column("until_byte", sa.BigInteger, nullable=False),
    sa.Column("sections", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mariadb"), nullable=False),
    **_ON_MARIADB,
)
"""Published events that no relay has noted as acknowledged. A row is a batch, as sent. ``number`` is that
of its first event in the lane, ``until_byte`` counts the lane's bytes up to its end."""

outbox_lane = sa.Table(
    "tidegate_outbox_lane",
    metadata,
    sa.Column("lane_id", _name(32), primary_key=True),
    sa.Column("event_hub", _name(256), nullable=False),
    sa.Column("consumer_group", _name(256), nullable=False),
    sa.Column("partition_id", _name(64), nullable=False),
    sa.Column("target_hub", _name(256), nullable=False),
    sa.Column("target_partition_id", _name(64), nullable=False),
    sa.Column("next_number", sa.BigInteger, nullable=False),
    sa.Column("next_byte", sa.BigInteger, nullable=False),
    sa.Column("relayed_until", sa.BigInteger, nullable=False),
    sa.Column("relayed_bytes", sa.BigInteger, nullable=False),
    sa.Column("sent_until", sa.BigInteger, nullable=False),
    sa.Column("producer_id", sa.BigInteger, nullable=False),
    sa.Column("producer_epoch", sa.Integer, nullable=False),
    sa.Column("base_number", sa.BigInteger, nullable=False),
    sa.Column("base_sequence_number", sa.BigInteger, nullable=False),
    sa.Index("tidegate_outbox_lane_source", "event_hub", "consumer_group", "partition_id"),
    **_ON_MARIADB,
)
"""What one partition of a consumer publishes to one partition of a hub, in order. ``sql.outbox.lanes`` says
what the numbers mean."""

outbox_hub = sa.Table(
    "tidegate_outbox_hub",
    metadata,
    sa.Column("target_hub", _name(256), primary_key=True),
    sa.Column("partition_ids", _WORDS, nullable=False),
    sa.Column("batch_bytes_max", sa.Integer, nullable=False),
    **_ON_MARIADB,
)
"""Hubs that were published to, as last read: events are stored while the hub does not answer."""


for _table in metadata.tables.values():
    # A clustered key of SQL Server has at most 900 bytes.
    _table.primary_key.dialect_options["mssql"]["clustered"] = False


def of_consumer(
    table: sa.Table, consumer: ConsumerKey, partition_id: str | None = None
) -> sa.ColumnElement[bool]:
    """The condition for a consumer's rows in ``table``; partition_id: None: of all its partitions."""
    row = table.c
    mine = sa.and_(row.event_hub == consumer.event_hub, row.consumer_group == consumer.consumer_group)
    return mine if partition_id is None else sa.and_(mine, row.partition_id == partition_id)


def letters_of_handlers(consumer: ConsumerKey, partition_id: str | None = None) -> sa.ColumnElement[bool]:
    """The condition for a consumer's dead letters without those added over HTTP; partition_id: as above."""
    return sa.and_(of_consumer(dead_letter, consumer, partition_id), dead_letter.c.pipeline != OVER_HTTP)


def in_partition_order(table: sa.Table) -> tuple[sa.ColumnElement[object], ...]:
    """The order by hub, group and partition (2 before 10)."""
    row = table.c
    return row.event_hub, row.consumer_group, sa.func.length(row.partition_id), row.partition_id


def _tables(*tables: sa.Table) -> Callable[[sa.Connection], None]:
    def create(connection: sa.Connection) -> None:
        metadata.create_all(connection, tables=tables, checkfirst=True)
        for index in (index for table in tables for index in table.indexes):
            # A start that was cut off may have left a table without its indexes.
            index.create(connection, checkfirst=True)

    return create


def _index(index: sa.Index) -> Callable[[sa.Connection], None]:
    # Where a start was cut off, the index may have come with its table.
    return lambda connection: index.create(connection, checkfirst=True)


def _columns(*columns: sa.Column[Any]) -> Callable[[sa.Connection], None]:
    def add(connection: sa.Connection) -> None:
        for column in columns:
            # As above.
            known = {each["name"] for each in sa.inspect(connection).get_columns(column.table.name)}
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {column.table.name} ADD {column.name} {kind}"))

    return add


def _renew_ledger(connection: sa.Connection) -> None:
    # The ledger before this version knew no query ids, and nothing wrote to it.
    columns = {column["name"] for column in sa.inspect(connection).get_columns(batch_ledger.name)}
    if "query_id" not in columns:
        batch_ledger.drop(connection)
    _tables(batch_ledger, ledger_query, ledger_stage)(connection)


MIGRATIONS: Final[tuple[Callable[[sa.Connection], None], ...]] = (
    _tables(checkpoint, dead_letter, dead_letter_audit, batch_ledger),
    _tables(lease),
    _index(open_keys),
    _renew_ledger,
    _index(by_time),
    _columns(lease.c.requested_by, lease.c.requested_at),
    _columns(checkpoint.c.history_id),
)
"""Entry ``i`` migrates a database from version ``i`` to ``i + 1``."""

_ADDED: Final = _tables(outbox, outbox_lane, outbox_hub)
"""Tables that programs without them need not know: where they are missing they are created without a version,
which would refuse such a program its next start."""


def current_version(connection: sa.Connection) -> int:
    """The version of this database's tables; 0: there are none."""
    if not sa.inspect(connection).has_table(schema_version.name):
        return 0
    versions = connection.execute(sa.select(schema_version.c.version)).scalars().all()
    return max(versions, default=0)


def is_current(connection: sa.Connection) -> bool:
    """Whether this database has this program's tables, in this version."""
    names = sa.inspect(connection).get_table_names()
    return metadata.tables.keys() <= set(names) and current_version(connection) == len(MIGRATIONS)


def is_new(connection: sa.Connection) -> bool:
    """Whether this database has none of the tables."""
    return metadata.tables.keys().isdisjoint(sa.inspect(connection).get_table_names())


def migrate(connection: sa.Connection, *, now: datetime) -> int:
    """Create or migrate the tables to this program's version; the caller holds the writers' lock and commits.

    A new database gets all tables at once. MariaDB commits each statement, so a start that is cut off there
    leaves some of them and no version; then the next start runs every migration.

    Returns the number of migrations run. Raises DatabaseError if a newer Tidegate wrote this database.
    """
    if is_new(connection):
        metadata.create_all(connection, checkfirst=False)
        _record(connection, range(1, len(MIGRATIONS) + 1), now)
        return len(MIGRATIONS)
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
        _record(connection, [number], now)
    _ADDED(connection)
    return len(MIGRATIONS) - version


def _record(connection: sa.Connection, versions: Iterable[int], now: datetime) -> None:
    rows = [{"version": version, "applied_at": now} for version in versions]
    connection.execute(schema_version.insert(), rows)

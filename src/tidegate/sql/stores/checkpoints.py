"""Reads and deletes checkpoints, the positions of consumers. Only ``UnitOfWork`` moves them."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import (
    ColumnElement,
    Connection,
    NullPool,
    create_engine,
    delete,
    exc,
    func,
    make_url,
    select,
)

from tidegate.model.errors import DatabaseError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.sql.core.database import LOCK_WAIT_S, Database, absolute_url, shown_url, sqlite_file
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.failures import translate
from tidegate.sql.core.schema import (
    checkpoint,
    current_version,
    dead_letter,
    dead_letter_audit,
    in_partition_order,
    lease,
    of_consumer,
    outbox,
    outbox_lane,
)
from tidegate.sql.core.values import Checkpoint, ConsumerKey


class CheckpointReader:
    """Reads checkpoints without waiting for transactions that move them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, consumer: ConsumerKey) -> dict[str, Checkpoint]:
        """This consumer's checkpoints by partition id; partitions without one are absent.

        Raises DatabaseError and DatabaseUnavailableError.
        """
        return {found.partition_id: found for found in self._select(of_consumer(checkpoint, consumer))}

    def read_all(self) -> list[Checkpoint]:
        """All consumers' checkpoints, by hub, group and partition, without rows that were only locked.

        Raises as ``read``.
        """
        return self._select(checkpoint.c.owner.is_not(None))

    def _select(self, condition: ColumnElement[bool]) -> list[Checkpoint]:
        statement = select(checkpoint).where(condition).order_by(*in_partition_order(checkpoint))
        with self._database.read() as connection:
            return [Checkpoint(**found) for found in connection.execute(statement).mappings()]


def processor_checkpoints(rows: Iterable[Checkpoint]) -> dict[str, ProcessorCheckpoint]:
    """One consumer's checkpoints in the hosts' form, by partition id, without rows that were only locked."""
    found = {row.partition_id: processor_checkpoint(row) for row in rows}
    return {partition_id: each for partition_id, each in found.items() if each is not None}


def processor_checkpoint(row: Checkpoint) -> ProcessorCheckpoint | None:
    """The checkpoint in the hosts' form; None if the row has no position."""
    if row.next_sequence_number is None and row.offset is None and row.enqueued_time_ms is None:
        return None
    number = row.next_sequence_number
    return ProcessorCheckpoint(
        row.partition_id,
        None if number is None else number - 1,
        row.offset,
        row.enqueued_time_ms,
        row.event_hub_created_at_ms,
        row.updated_at,
        row.owner,
        history_id=row.history_id,
    )


def highest_epoch(connection: Connection, consumer: ConsumerKey) -> int:
    """The highest epoch that any owner of this consumer's partitions has had; 0: there was none."""
    epochs = [
        connection.execute(select(func.max(epoch)).where(of_consumer(table, consumer))).scalar_one()
        for table, epoch in ((checkpoint, checkpoint.c.lease_epoch), (lease, lease.c.epoch))
    ]
    return max(epoch or 0 for epoch in epochs)


def forget_consumer(connection: Connection, consumer: ConsumerKey) -> None:
    """Delete a consumer's checkpoints, its dead letters and their audit trail, and published events not sent.

    For a consumer that starts over with another log, or has ended. Stop its hosts and queries first; a host
    that stops sends what was published. Leases stay, so that epochs keep rising. Its pipelines' rows also
    stay: delete them in the same transaction.
    connection: in a transaction, which the caller commits.
    """
    lanes = select(outbox_lane.c.lane_id).where(of_consumer(outbox_lane, consumer))
    connection.execute(delete(outbox).where(outbox.c.lane_id.in_(lanes)))
    for table in (outbox_lane, checkpoint, dead_letter, dead_letter_audit):
        connection.execute(delete(table).where(of_consumer(table, consumer)))


def existing_database(url: str, *, named_by: str) -> Database:
    """This process's ``Database`` for ``url``, if it has Tidegate's tables; creates no file and no table.

    named_by: the setting that names it, for errors. Tables of an earlier version are migrated, as by
    ``Database.open``. Raises DatabaseError if the database or Tidegate's tables do not exist, and as
    ``Database.shared``.
    """
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise DatabaseError(
            f"{named_by} names the SQLite database {path}, which does not exist.",
            next_step="Correct its URL: sqlite:////absolute/path.db has four slashes.",
        )
    database_url = absolute_url(url)
    # Some pipelines call this before each micro-batch, so a new connection each time would be slow.
    if database_url not in _found and not _has_tables(database_url):
        raise DatabaseError(
            f"{named_by} names the database {shown_url(url)}, which has no tables of Tidegate, and so no "
            "checkpoints.",
            next_step="Name the database that the consumer group's pipeline or processor writes to.",
        )
    _found.add(database_url)
    return Database.shared(url)


_found: set[str] = set()
"""URLs of databases in which this process has seen the tables."""


def _has_tables(url: str) -> bool:
    """Checked on a separate connection, which changes nothing: ``Database`` would create what is missing."""
    parsed = make_url(url)
    dialect = DIALECTS[parsed.get_backend_name()]
    try:
        engine = create_engine(
            url,
            poolclass=NullPool,
            hide_parameters=True,
            connect_args=dialect.connect_arguments(parsed, lock_wait_s=LOCK_WAIT_S),
        )
        with engine.connect() as connection:
            return current_version(connection) > 0
    except (exc.SQLAlchemyError, ModuleNotFoundError) as error:
        Database.shared(url)  # also fails, with the better message
        raise translate(error, doing="looking for checkpoints", where=shown_url(url)) from error

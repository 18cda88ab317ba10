"""Audits a table: reads rows, dead letters and checkpoints in one snapshot, and compares them.

One transaction reads everything, so a pipeline may run meanwhile. Rows are streamed in order, partition by
partition; an index on partition and sequence number saves the database a sort. Dead letters that were added
over HTTP are left out: who may Listen could otherwise hide a gap, or make a sound table look wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import sqlalchemy as sa

from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.processor.checkpoint import check_same_hub
from tidegate.sql.audit.audit import FINDINGS_MAX, Audit, PartitionAudit, StrayRows, audit_partition
from tidegate.sql.core.database import Database
from tidegate.sql.core.schema import checkpoint, dead_letter, letters_of_handlers, of_consumer
from tidegate.sql.core.values import ConsumerKey, DeadLetterStatus

_ROWS_AT_ONCE: Final = 10_000
"""Rows per fetch (our choice: little memory, few round trips)."""


class AuditedLog(Protocol):
    """Reports where a hub's log begins and ends. ``BlockingConsumer`` is one."""

    def get_event_hub_properties(self) -> EventHubProperties:
        """The hub's partitions and creation time."""
        ...

    def get_all_partition_properties(self) -> Sequence[PartitionEnds]:
        """Where each partition begins and ends now."""
        ...


def audit_table(
    database: Database,
    consumer: ConsumerKey,
    log: AuditedLog,
    table: str,
    *,
    sequence_column: str = "sequence_number",
    partition_column: str = "partition_id",
    is_first_row_start: bool = False,
    findings_max: int = FINDINGS_MAX,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Compare a table that has partitions and sequence numbers with log, checkpoints and dead letters.

    table: its name, or ``schema.name``. A partition's audit starts where its log begins, or at the table's
    first row if that is earlier, because only the table knows of events that retention deleted.
    is_first_row_start: expect nothing before the first row or dead letter, for consumers that did not start
    at the log's beginning; this cannot find a loss at their very start. findings_max: ranges to list per kind
    and partition. progress: called with (partitions done, partitions).
    Raises NotFoundError (no such table; no checkpoint of this consumer), InvalidArgumentError (a column that
    is missing or cannot hold the numbers), EventHubReplacedError (the checkpoint counts in another hub of
    this name), DatabaseError, DatabaseUnavailableError, and what ``log`` raises.
    """
    with database.read() as connection:
        database.dialect.begin_snapshot(connection)
        sink = _Sink.find(connection, database, table, sequence_column, partition_column)
        checkpoints = _read_checkpoints(connection, consumer)
        if not checkpoints:
            raise _no_checkpoint(connection, database, consumer)
        # Asked after the first read, so that an intact log ends beyond everything that was read.
        created_at_ms = log.get_event_hub_properties().created_at_ms
        for partition_id, (_, stored_ms) in checkpoints.items():
            check_same_hub(consumer, partition_id, stored_ms, created_at_ms)
        partitions = log.get_all_partition_properties()
        extents = sink.extents(connection)
        found: list[PartitionAudit] = []
        for partition in partitions:
            extent = extents.get(partition.partition_id)
            letters = _read_dead_letters(connection, consumer, partition.partition_id)
            if not database.dialect.has_parallel_results:
                letters = iter(list(letters))
            audited = audit_partition(
                iter(()) if extent is None else sink.sequence_numbers(connection, extent),
                letters,
                partition_id=partition.partition_id,
                start_sequence_number=_start(connection, consumer, partition, extent, is_first_row_start),
                checkpoint_sequence_number=checkpoints.get(partition.partition_id, (None, None))[0],
                log_until_sequence_number=partition.next_sequence_number,
                findings_max=findings_max,
            )
            found.append(audited)
            if progress is not None:
                progress(len(found), len(partitions))
    known = {partition.partition_id for partition in partitions}
    return Audit(tuple(found), tuple(_strays(extents, known)))


@dataclass(frozen=True, slots=True)
class _Extent:
    """What a table holds of one partition."""

    value: object
    """As stored in the partition column: text or a number."""
    rows: int
    unnumbered: int
    first: int | None


@dataclass(frozen=True, slots=True)
class _Sink:
    """The audited table, reduced to its two columns."""

    table: sa.Table
    partition: sa.ColumnElement[object]
    sequence_number: sa.ColumnElement[int]

    @classmethod
    def find(
        cls,
        connection: sa.Connection,
        database: Database,
        name: str,
        sequence_column: str,
        partition_column: str,
    ) -> _Sink:
        schema, _, bare = name.rpartition(".")
        try:
            table = sa.Table(bare, sa.MetaData(), schema=schema or None, autoload_with=connection)
        except sa.exc.NoSuchTableError as error:
            raise NotFoundError(
                f"There is no table {name!r} in {database.url}.",
                next_step="Name the one that the pipeline writes to, as schema.table where it has a schema.",
            ) from error
        for column in (sequence_column, partition_column):
            if column not in table.columns:
                raise InvalidArgumentError(
                    f"The table {name} has no column {column!r}; it has {', '.join(table.columns.keys())}.",
                    next_step="Name its columns with --sequence-column and --partition-column.",
                )
        partition, number = table.columns[partition_column], table.columns[sequence_column]
        if not isinstance(partition.type, sa.String | sa.Integer | sa.types.NullType):
            raise _wrong_type(name, partition_column, str(partition.type), "partition ids")
        if not isinstance(number.type, sa.Integer | sa.Numeric | sa.types.NullType):
            raise _wrong_type(name, sequence_column, str(number.type), "sequence numbers")
        is_whole = isinstance(number.type, sa.Integer)
        return cls(table, partition, number if is_whole else sa.cast(number, sa.BigInteger))

    def extents(self, connection: sa.Connection) -> Mapping[str | None, _Extent]:
        """What the table holds, by partition id; reads the table once."""
        statement = sa.select(
            self.partition,
            sa.func.count(),
            sa.func.count(self.sequence_number),
            sa.func.min(self.sequence_number),
        ).group_by(self.partition)
        return {
            None if value is None else str(value): _Extent(value, rows, rows - numbered, first)
            for value, rows, numbered, first in connection.execute(statement)
        }

    def sequence_numbers(self, connection: sa.Connection, extent: _Extent) -> Iterator[int]:
        """The sequence numbers of one partition's rows, ascending."""
        statement = (
            sa.select(self.sequence_number)
            .where(self.partition == extent.value, self.sequence_number.is_not(None))
            .order_by(self.sequence_number)
        )
        options = {"yield_per": _ROWS_AT_ONCE}
        for chunk in connection.execute(statement, execution_options=options).scalars().partitions():
            yield from chunk


def _read_checkpoints(
    connection: sa.Connection, consumer: ConsumerKey
) -> Mapping[str, tuple[int | None, int | None]]:
    """(next sequence number, creation time of the hub it counts in) by partition id."""
    row = checkpoint.c
    statement = sa.select(row.partition_id, row.next_sequence_number, row.event_hub_created_at_ms)
    statement = statement.where(of_consumer(checkpoint, consumer))
    return {found[0]: (found[1], found[2]) for found in connection.execute(statement)}


def _read_dead_letters(
    connection: sa.Connection, consumer: ConsumerKey, partition_id: str
) -> Iterator[tuple[int, DeadLetterStatus]]:
    row = dead_letter.c
    statement = (
        sa.select(row.sequence_number, row.status)
        .where(letters_of_handlers(consumer, partition_id))
        .order_by(row.sequence_number)
    )
    options = {"yield_per": _ROWS_AT_ONCE}
    for number, status in connection.execute(statement, execution_options=options):
        yield number, DeadLetterStatus(status)


def _start(
    connection: sa.Connection,
    consumer: ConsumerKey,
    partition: PartitionEnds,
    extent: _Extent | None,
    is_first_row_start: bool,
) -> int:
    begin = partition.begin_sequence_number
    first_row = None if extent is None else extent.first
    if not is_first_row_start:
        return begin if first_row is None else min(begin, first_row)
    statement = sa.select(sa.func.min(dead_letter.c.sequence_number)).where(
        letters_of_handlers(consumer, partition.partition_id)
    )
    first_letter = connection.execute(statement).scalar_one()
    return min((number for number in (first_row, first_letter) if number is not None), default=begin)


def _strays(extents: Mapping[str | None, _Extent], known: set[str]) -> Iterator[StrayRows]:
    for partition_id, extent in sorted(extents.items(), key=lambda item: item[0] or ""):
        rows = extent.unnumbered if partition_id in known else extent.rows
        if rows:
            yield StrayRows(partition_id, rows)


def _no_checkpoint(connection: sa.Connection, database: Database, consumer: ConsumerKey) -> NotFoundError:
    row = checkpoint.c
    statement = (
        sa.select(row.event_hub, row.consumer_group)
        .distinct()
        .order_by(row.event_hub, row.consumer_group)
        .limit(10)
    )
    there = [f"{hub}/{group}" for hub, group in connection.execute(statement)]
    return NotFoundError(
        f"There is no checkpoint of {consumer} in {database.url}, so there is nothing to compare with.",
        next_step=f"There are some of: {', '.join(there)}." if there else "Nothing was committed there yet.",
    )


def _wrong_type(table: str, column: str, type_name: str, contents: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The column {column} of the table {table} is {type_name}, which does not hold {contents}.",
        next_step="Name the right columns with --sequence-column and --partition-column.",
    )

"""Stages, in which tasks leave a large micro-batch's rows until its driver commits them together.

On PostgreSQL a task creates an unlogged table and fills it by COPY in one transaction, so a killed attempt
leaves nothing. On MariaDB, where creating and dropping a table commits, the stage is registered before, so
that what is left is found and dropped. On SQLite, which has one writer, it is a file beside the database. A
stage records its query, batch and run's epoch. The driver merges the stages of the attempts that Spark
accepted; all others of its query are strays, unless they are of a later epoch or batch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from tidegate.files import make_private_directory, open_private
from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, FencedError
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.database import Database, sqlite_file
from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.schema import UtcDateTime, ledger_query, ledger_stage
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.ledger.rows import loose_copy

logger = logging.getLogger(__name__)

EVENT_COLUMNS: Final[Mapping[str, Any]] = {
    "partition": sa.Text(),
    "sequenceNumber": sa.BigInteger(),
    "offset": sa.Text(),
    "enqueuedTime": UtcDateTime(),
    "partitionKey": sa.Text(),
}
"""Columns that say which event a row came from, with their types in a stage."""

_EVENT_PREFIX: Final = "tidegate_event_"
"""Prefix of these columns in a stage, because a target table may have the same names."""


@dataclass(frozen=True, slots=True)
class StageOwner:
    """The query, run and batch that a stage belongs to."""

    database_url: str = field(repr=False)
    query_name: str
    epoch: int
    batch_id: int

    @property
    def spool_folder(self) -> Path | None:
        """The folder of stages that are files; None: they are tables."""
        path = sqlite_file(self.database_url)
        return None if path is None else path.with_name(path.name + "-stages")

    def file(self, name: str) -> Path:
        """The path of a stage that is a file."""
        assert self.spool_folder is not None
        return self.spool_folder / name

    @property
    def file_prefix(self) -> str:
        """The prefix of this query's file names."""
        return hashlib.sha256(self.query_name.encode()).hexdigest()[:16] + "-"


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows that a task has staged."""

    name: str
    """The name of the table or file."""
    rows: int
    columns: tuple[str, ...]
    """The target table's columns that the rows have."""
    event_columns: tuple[str, ...]
    """Those of ``EVENT_COLUMNS`` that the rows have."""

    def table(self, target: sa.Table) -> sa.Table:
        """The stage as a table, unlogged on PostgreSQL."""
        more: list[sa.Column[Any]] = [
            sa.Column(_EVENT_PREFIX + name, EVENT_COLUMNS[name]) for name in self.event_columns
        ]
        return loose_copy(target, self.name, self.columns, more=more, prefixes=("UNLOGGED",))


class StageWriter:
    """Writes one stage; a context manager. A clean exit keeps it, an exception leaves nothing."""

    def __init__(
        self, owner: StageOwner, target: sa.Table, columns: Sequence[str], event_columns: Sequence[str]
    ) -> None:
        name = f"tidegate_stage_{uuid.uuid4().hex}"
        if owner.spool_folder is not None:
            name = f"{owner.file_prefix}{owner.epoch}-{owner.batch_id}-{uuid.uuid4().hex}.arrow"
        self._owner = owner
        self._target = target
        self._stage = Stage(name, 0, tuple(columns), tuple(event_columns))
        self._table = self._stage.table(target)
        self._rows = 0
        self._stack = ExitStack()
        self._unit: UnitOfWork | None = None
        self._file: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> StageWriter:
        if self._owner.spool_folder is not None:
            return self
        database = Database.shared(self._owner.database_url)
        with ExitStack() as stack:
            self._unit = stack.enter_context(
                UnitOfWork(database, ConsumerKey("ledger", self._owner.query_name))
            )
            with self._unit.translating("creating a table for staged rows"):
                if not database.dialect.has_transactional_ddl:
                    self._register(self._unit)  # committed with the table, before there are rows in it
                database.dialect.make_table(self._unit.connection, self._table, like=self._target)
            self._stack = stack.pop_all()
        return self

    def write(self, rows: pa.Table) -> None:
        """Add rows with the stage's columns; the event's have their plain names.

        Raises RowsRefusedError, which leaves the stage unchanged.
        """
        shown = rows.select([*self._stage.columns])
        for name in self._stage.event_columns:
            shown = shown.append_column(_EVENT_PREFIX + name, rows.column(name))
        if self._unit is None:
            self._write_file(shown)
        else:
            with self._unit.savepoint():
                self._unit.insert_values(self._table, arrow_rows(shown))
        self._rows += rows.num_rows

    def stage(self) -> Stage:
        """The written stage; call it before the exit.

        Raises FencedError if another run has claimed the query, because the stage would never be merged.
        """
        stage = replace(self._stage, rows=self._rows)
        if self._unit is None:
            return stage
        with self._unit.translating("registering staged rows"):
            self._check_epoch(self._unit)
            if self._unit.database.dialect.has_transactional_ddl:
                self._register(self._unit, rows=stage.rows)
        return stage

    def _check_epoch(self, unit: UnitOfWork) -> None:
        epoch = unit.connection.execute(
            sa.select(ledger_query.c.epoch).where(ledger_query.c.query_name == self._owner.query_name)
        ).scalar_one_or_none()
        if epoch != self._owner.epoch:
            raise FencedError(
                f"Another driver took over the query {self._owner.query_name}.",
                next_step="Nothing of the batch was written here. Run one driver per query.",
            )

    def _register(self, unit: UnitOfWork, *, rows: int = 0) -> None:
        unit.connection.execute(
            ledger_stage.insert().values(
                stage_name=self._stage.name,
                query_name=self._owner.query_name,
                epoch=self._owner.epoch,
                batch_id=self._owner.batch_id,
                row_count=rows,
                created_at=unit.database.clock.now_utc(),
            )
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        unit = self._unit
        if error is not None and unit is not None and not unit.database.dialect.has_transactional_ddl:
            drop_committed(unit.database, self._owner, [self._stage.name])

    def _write_file(self, shown: pa.Table) -> None:
        if self._file is None:
            path = self._owner.file(self._stage.name)
            try:
                make_private_directory(path.parent)
                os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
                sink = self._stack.enter_context(pa.OSFile(str(path), "wb"))
            except OSError as error:
                raise DatabaseError(
                    f"Rows cannot be staged in {path.parent}: {error}.",
                    next_step="Make the folder of the SQLite database writable, with space for a batch.",
                ) from error
            self._file = self._stack.enter_context(pa.ipc.new_file(sink, shown.schema))
        self._file.write_table(shown)


def arrow_rows(rows: pa.Table) -> ArrowRows:
    """Rows without sequence numbers, for bulk inserts."""
    return ArrowRows(rows, np.zeros(rows.num_rows, dtype=np.int64))


def read_stage_file(owner: StageOwner, stage: Stage) -> Iterator[pa.Table]:
    """The rows of a stage file, in portions, with plain names for the event's columns."""
    with pa.memory_map(str(owner.file(stage.name))) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            yield plain_names(pa.Table.from_batches([reader.get_batch(index)]))


def read_stage_table(unit: UnitOfWork, stage: Stage, target: sa.Table, rows_max: int) -> Iterator[pa.Table]:
    """The rows of a stage table, ``rows_max`` at a time. Slow: for finding a refused row.

    The transaction may run other statements meanwhile; where the database cannot do so, all are in memory.
    """
    columns = [
        # As stored: Arrow cannot hold a member of a Python enumeration.
        sa.type_coerce(column, sa.String()).label(column.key) if isinstance(column.type, sa.Enum) else column
        for column in stage.table(target).columns
    ]
    statement = sa.select(*columns)
    if unit.database.dialect.has_parallel_results:
        statement = statement.execution_options(yield_per=rows_max)
    with unit.translating("reading staged rows"), unit.connection.execute(statement) as result:
        for part in result.mappings().partitions(rows_max):
            yield plain_names(pa.Table.from_pylist([dict(row) for row in part]))


def plain_names(rows: pa.Table) -> pa.Table:
    """Rename the event's columns to the source's names."""
    return rows.rename_columns([name.removeprefix(_EVENT_PREFIX) for name in rows.column_names])


def event_column(name: str) -> str:
    """The name of an event's column in a stage."""
    return _EVENT_PREFIX + name


def drop_stages(unit: UnitOfWork, names: Sequence[str]) -> None:
    """Drop tables; on PostgreSQL in the transaction that merged them."""
    if not names:
        return
    with unit.translating("dropping staged rows"):
        for name in names:
            unit.connection.execute(sa.schema.DropTable(sa.Table(name, sa.MetaData()), if_exists=True))
        unit.connection.execute(sa.delete(ledger_stage).where(ledger_stage.c.stage_name.in_(names)))


def drop_committed(database: Database, owner: StageOwner, names: Sequence[str]) -> None:
    """Drop tables whose rows are committed, or will never be, where dropping them commits.

    If the database cannot now, a later batch does (``drop_strays``).
    """
    if not names:
        return
    try:
        _drop(database, owner, names)
    except DatabaseUnavailableError as error:
        logger.info("Staged rows of %s are dropped later: %s", owner.query_name, error)


def _drop(database: Database, owner: StageOwner, names: Sequence[str]) -> None:
    with UnitOfWork(database, ConsumerKey("ledger", owner.query_name)) as unit:
        drop_stages(unit, names)
        # A lost answer does not matter: the next reader sees whether they were dropped.
        unit.set_witness(lambda _: CommitOutcome.COMMITTED)


def remove_stage_files(owner: StageOwner, names: Sequence[str]) -> None:
    """Remove files whose rows are committed."""
    for name in names:
        owner.file(name).unlink(missing_ok=True)


def drop_strays(database: Database, owner: StageOwner) -> int:
    """Remove stages that this query's earlier runs and batches left. Returns how many.

    Stages of ``owner``'s own batch stay. Raises DatabaseError, DatabaseUnavailableError.
    """
    if owner.spool_folder is not None:
        return _remove_files(owner, owner.spool_folder)
    row = ledger_stage.c
    statement = sa.select(row.stage_name).where(
        row.query_name == owner.query_name,
        sa.or_(row.epoch < owner.epoch, sa.and_(row.epoch == owner.epoch, row.batch_id < owner.batch_id)),
    )
    with database.read() as connection:
        names = list(connection.execute(statement).scalars())
    if names:
        _drop(database, owner, names)
    return len(names)


def _remove_files(owner: StageOwner, folder: Path) -> int:
    removed = 0
    for path in folder.glob(f"{owner.file_prefix}*.arrow"):
        epoch, batch_id = (int(part) for part in path.name.split("-")[1:3])
        if (epoch, batch_id) < (owner.epoch, owner.batch_id):
            path.unlink(missing_ok=True)
            removed += 1
    return removed

"""Stages: where tasks leave the rows of a large micro-batch until its driver commits them together.

On PostgreSQL a task creates an unlogged table and fills it by COPY, both in one transaction: an attempt that
is killed leaves nothing. On SQLite, which has one writer, it writes a file beside the database instead. A
stage records its query, the epoch of its run and its batch. The driver merges those that Spark's accepted
attempts named; all others of its query that are not of a later epoch or batch are strays.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    Enum,
    MetaData,
    String,
    Table,
    and_,
    delete,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.schema import CreateTable, DropTable

from tidegate.model.errors import DatabaseError, FencedError
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.database import Database, sqlite_file
from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.schema import UtcDateTime, ledger_query, ledger_stage
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.ledger.rows import loose_copy
from tidegate.transport.private_files import make_private_directory, open_private

EVENT_COLUMNS: Final[Mapping[str, Any]] = {
    "partition": String(),
    "sequenceNumber": BigInteger(),
    "offset": String(),
    "enqueuedTime": UtcDateTime(),
    "partitionKey": String(),
}
"""Columns that say which event a row came from, with their types in a stage."""

_EVENT_PREFIX: Final = "tidegate_event_"
"""Prefix of these columns' names, which a target table may also have."""


@dataclass(frozen=True, slots=True)
class StageOwner:
    """The query, run and batch that a stage belongs to."""

    database_url: str = field(repr=False)
    query_name: str
    epoch: int
    batch_id: int

    @property
    def spool_folder(self) -> Path | None:
        """Where stages are files; None: they are tables."""
        path = sqlite_file(self.database_url)
        return None if path is None else path.with_name(path.name + "-stages")

    @property
    def file_prefix(self) -> str:
        """What the names of this query's files begin with."""
        return hashlib.sha256(self.query_name.encode()).hexdigest()[:16] + "-"


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows that a task has staged."""

    name: str
    """Of the table, or of the file."""
    rows: int
    columns: tuple[str, ...]
    """Columns of the target table that the rows have."""
    event_columns: tuple[str, ...]
    """Of ``EVENT_COLUMNS``, those that the rows also have."""

    def table(self, target: Table) -> Table:
        """The stage as a table of PostgreSQL."""
        more: list[Column[Any]] = [
            Column(_EVENT_PREFIX + name, EVENT_COLUMNS[name]) for name in self.event_columns
        ]
        return loose_copy(target, self.name, self.columns, more=more, prefixes=("UNLOGGED",))


class StageWriter:
    """Writes one stage; a context manager. A clean exit keeps it, an exception leaves nothing."""

    def __init__(
        self, owner: StageOwner, target: Table, columns: Sequence[str], event_columns: Sequence[str]
    ) -> None:
        folder = owner.spool_folder
        name = f"tidegate_stage_{uuid.uuid4().hex}"
        if folder is not None:
            name = f"{owner.file_prefix}{owner.epoch}-{owner.batch_id}-{uuid.uuid4().hex}.arrow"
        self._owner = owner
        self._folder = folder
        self._target = target
        self._stage = Stage(name, 0, tuple(columns), tuple(event_columns))
        self._table = self._stage.table(target)
        self._rows = 0
        self._stack = ExitStack()
        self._unit: UnitOfWork | None = None
        self._file: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> StageWriter:
        if self._folder is None:
            database = Database.shared(self._owner.database_url)
            consumer = ConsumerKey("ledger", self._owner.query_name)
            self._unit = self._stack.enter_context(UnitOfWork(database, consumer))
            with self._unit.translating("creating a table for staged rows"):
                self._unit.connection.execute(CreateTable(self._table))
        return self

    def write(self, rows: pa.Table) -> None:
        """Add rows with the stage's columns, the event's with their plain names.

        Raises RowsRefusedError, which leaves the stage unchanged.
        """
        if self._unit is None:
            self._write_file(rows)
        else:
            shown = rows.select([*self._stage.columns])
            for name in self._stage.event_columns:
                shown = shown.append_column(_EVENT_PREFIX + name, rows.column(name))
            with self._unit.savepoint():
                self._unit.insert_values(self._table, arrow_rows(shown))
        self._rows += rows.num_rows

    def stage(self) -> Stage:
        """The stage as written; call it before the exit.

        Raises FencedError where another run has claimed the query: the stage would never be merged.
        """
        stage = Stage(self._stage.name, self._rows, self._stage.columns, self._stage.event_columns)
        if self._unit is None:
            return stage
        with self._unit.translating("registering staged rows"):
            epoch = self._unit.connection.execute(
                select(ledger_query.c.epoch).where(ledger_query.c.query_name == self._owner.query_name)
            ).scalar_one_or_none()
            if epoch != self._owner.epoch:
                raise FencedError(
                    f"Another driver took over the query {self._owner.query_name}.",
                    next_step="Nothing of the batch was written here. Run one driver per query.",
                )
            self._unit.connection.execute(
                ledger_stage.insert().values(
                    stage_name=stage.name,
                    query_name=self._owner.query_name,
                    epoch=self._owner.epoch,
                    batch_id=self._owner.batch_id,
                    row_count=stage.rows,
                    created_at=self._unit.database.clock.now_utc(),
                )
            )
        return stage

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _write_file(self, rows: pa.Table) -> None:
        names = [*self._stage.columns]
        shown = rows.select(names)
        for name in self._stage.event_columns:
            shown = shown.append_column(_EVENT_PREFIX + name, rows.column(name))
        if self._file is None:
            assert self._folder is not None
            try:
                make_private_directory(self._folder)
                path = self._folder / self._stage.name
                os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
                sink = self._stack.enter_context(pa.OSFile(str(path), "wb"))
            except OSError as error:
                raise DatabaseError(
                    f"Rows cannot be staged in {self._folder}: {error}.",
                    next_step="Make the folder of the SQLite database writable, with space for a batch.",
                ) from error
            self._file = self._stack.enter_context(pa.ipc.new_file(sink, shown.schema))
        self._file.write_table(shown)


def arrow_rows(rows: pa.Table) -> ArrowRows:
    """Rows without sequence numbers, for the bulk paths."""
    return ArrowRows(rows, np.zeros(rows.num_rows, dtype=np.int64))


def read_stage_file(owner: StageOwner, stage: Stage) -> Iterator[pa.Table]:
    """The rows of a stage that is a file, some at a time, with the event's columns by their plain names."""
    folder = owner.spool_folder
    assert folder is not None
    with pa.memory_map(str(folder / stage.name)) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            yield plain_names(pa.Table.from_batches([reader.get_batch(index)]))


def read_stage_table(unit: UnitOfWork, stage: Stage, target: Table, rows_max: int) -> Iterator[pa.Table]:
    """The rows of a stage that is a table, ``rows_max`` at a time. Slow: for finding a refused row.

    The transaction may be used for other statements meanwhile.
    """
    columns = [
        # As stored: Arrow cannot hold a member of a Python enumeration.
        type_coerce(column, String()).label(column.key) if isinstance(column.type, Enum) else column
        for column in stage.table(target).columns
    ]
    statement = select(*columns).execution_options(yield_per=rows_max)
    with unit.translating("reading staged rows"), unit.connection.execute(statement) as result:
        for part in result.mappings().partitions():
            yield plain_names(pa.Table.from_pylist([dict(row) for row in part]))


def plain_names(rows: pa.Table) -> pa.Table:
    """Rename the event's columns to the source's names."""
    return rows.rename_columns([name.removeprefix(_EVENT_PREFIX) for name in rows.column_names])


def event_column(name: str) -> str:
    """The name of an event's column in a stage."""
    return _EVENT_PREFIX + name


def drop_stages(unit: UnitOfWork, names: Sequence[str]) -> None:
    """Drop merged tables, in the transaction that merged them."""
    if not names:
        return
    with unit.translating("dropping staged rows"):
        for name in names:
            unit.connection.execute(DropTable(Table(name, MetaData()), if_exists=True))
        unit.connection.execute(delete(ledger_stage).where(ledger_stage.c.stage_name.in_(names)))


def remove_stage_files(owner: StageOwner, names: Sequence[str]) -> None:
    """Remove files whose rows are committed."""
    folder = owner.spool_folder
    assert folder is not None
    for name in names:
        (folder / name).unlink(missing_ok=True)


def drop_strays(database: Database, owner: StageOwner) -> int:
    """Remove stages of this query that earlier runs and batches left behind; how many.

    Those of ``owner``'s own batch stay. Raises DatabaseError, DatabaseUnavailableError.
    """
    if owner.spool_folder is not None:
        return _remove_files(owner)
    row = ledger_stage.c
    statement = select(row.stage_name).where(
        row.query_name == owner.query_name,
        or_(row.epoch < owner.epoch, and_(row.epoch == owner.epoch, row.batch_id < owner.batch_id)),
    )
    with database.read() as connection:
        names = list(connection.execute(statement).scalars())
    if names:
        with UnitOfWork(database, ConsumerKey("ledger", owner.query_name)) as unit:
            drop_stages(unit, names)
            # The next reader sees whether they were dropped, so a lost answer does not matter.
            unit.set_witness(lambda _: CommitOutcome.COMMITTED)
    return len(names)


def _remove_files(owner: StageOwner) -> int:
    folder = owner.spool_folder
    assert folder is not None
    removed = 0
    for path in folder.glob(f"{owner.file_prefix}*.arrow"):
        epoch, batch_id = (int(part) for part in path.name.split("-")[1:3])
        if (epoch, batch_id) < (owner.epoch, owner.batch_id):
            path.unlink(missing_ok=True)
            removed += 1
    return removed

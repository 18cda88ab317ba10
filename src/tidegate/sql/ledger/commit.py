"""Commits one micro-batch in one transaction: rows of several tables, dead letters, and the ledger's row.

If the database refuses rows, the transaction is rolled back, and a second one, also rolled back, halves them
behind savepoints to find the refused ones. Either these are the error, or their events join the dead letters
and the first transaction is repeated without them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, delete

from tidegate.columns.schema import TYPES
from tidegate.columns.valid import with_valid_text
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.times import milliseconds_of
from tidegate.sql.core.checkpoint_rows import CheckpointRows
from tidegate.sql.core.database import Database
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import ConsumerKey, NewDeadLetter, PartitionRows
from tidegate.sql.handlers.batches import ERROR_COLUMN as ERROR
from tidegate.sql.handlers.batches import PARTITION_COLUMN as PARTITION
from tidegate.sql.handlers.batches import SEQUENCE_NUMBER_COLUMN as SEQUENCE_NUMBER
from tidegate.sql.ledger.ledger import BatchLedger, MicroBatch
from tidegate.sql.ledger.refusals import RefusedRow, refusal_error, write_halving
from tidegate.sql.ledger.rows import LedgerTable, TableWriter
from tidegate.sql.ledger.stages import (
    EVENT_COLUMNS,
    Stage,
    StageOwner,
    arrow_rows,
    drop_committed,
    drop_stages,
    event_column,
    read_stage_file,
    read_stage_table,
    remove_stage_files,
)

_compute: Any = pyarrow.compute  # its stubs know less than it does

ERROR_TYPE: Final = "_errorType"
TRANSFORMATION_ERROR_TYPE: Final = "TransformationError"
"""The error type of a dead letter whose row has ``_error``."""

_ROWS_READ_MAX: Final = 20_000
_LETTERS_MAX: Final = 10_000
"""Dead letters written together."""
_ATTEMPTS_MAX: Final = 5
"""Transactions per micro-batch; each after the first knows more refused rows."""

_KEYS: Final = [PARTITION, SEQUENCE_NUMBER]
LETTER_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, TYPES[name]) for name in EVENT_COLUMNS),
        pa.field(ERROR, pa.string()),
        pa.field(ERROR_TYPE, pa.string()),
    ]
)
"""The schema of rows that become dead letters."""


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """The result of a micro-batch."""

    batch_id: int
    rows: int
    """Rows written to all tables."""
    dead_letters: int
    is_repeated: bool = False
    """True: it was already committed, so nothing was written."""


@dataclass(slots=True)
class BatchContents:
    """All rows of a micro-batch, in memory and staged."""

    rows: dict[str, list[pa.Table]] = field(default_factory=dict)
    """In memory, by table."""
    stages: dict[str, list[Stage]] = field(default_factory=dict)
    """Left by tasks, by table."""
    letters: list[pa.Table] = field(default_factory=list)
    """Rows of LETTER_SCHEMA."""


@dataclass(slots=True)
class BatchCommit:
    """Commits one micro-batch."""

    database: Database
    ledger: BatchLedger
    owner: StageOwner
    batch: MicroBatch
    tables: Mapping[str, LedgerTable]
    contents: BatchContents
    consumer: ConsumerKey | None
    is_refused_dead_lettered: bool

    def run(self) -> LedgerResult:
        """Commit everything or nothing.

        Raises DatabaseError (a refused row and its column; rows that share a key), LedgerMismatchError,
        FencedError, DatabaseUnavailableError.
        """
        for attempts_left in reversed(range(_ATTEMPTS_MAX)):
            try:
                return self._attempt()
            except RowsRefusedError as refused:
                found = self._find_refused(refused)
                if not found:
                    raise
                target, row = found[0]
                is_event_known = all(item.values.get(SEQUENCE_NUMBER) is not None for _, item in found)
                if not self.is_refused_dead_lettered or not is_event_known:
                    raise refusal_error(target, row) from refused
                if not attempts_left:
                    raise
                self.contents.letters.append(letters_of_refused([item for _, item in found]))
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self) -> LedgerResult:
        with self._unit() as unit:
            if not self.ledger.enter(unit, self.batch, self.owner.epoch):
                unit.rollback()
                return LedgerResult(self.batch.batch_id, 0, 0, is_repeated=True)
            is_dropped_inside = not self.database.is_sqlite and self.database.dialect.has_transactional_ddl
            letters = distinct_letters(self.contents.letters)
            row_count = 0
            for name, target in self.tables.items():
                writer = TableWriter(unit, target)
                for part in self._parts(unit, name, letters, is_staged_read=self.database.is_sqlite):
                    writer.load(arrow_rows(_of_table(part, target)))
                if not self.database.is_sqlite:
                    for stage in self.contents.stages.get(name, ()):
                        staged = stage.table(target.table)
                        removed = _remove_events(unit, staged, stage, letters)
                        writer.take(staged, stage.columns, stage.rows - removed)
                row_count += writer.finish()
            letter_count = self._add_letters(unit, letters)
            self.ledger.record(unit, self.batch, rows=row_count, dead_letters=letter_count)
            names = [stage.name for stages in self.contents.stages.values() for stage in stages]
            if is_dropped_inside:
                drop_stages(unit, names)
        if self.database.is_sqlite:
            remove_stage_files(self.owner, names)
        elif not is_dropped_inside:
            drop_committed(self.database, self.owner, names)
        return LedgerResult(self.batch.batch_id, row_count, letter_count)

    def _unit(self) -> UnitOfWork:
        consumer = self.consumer or ConsumerKey("ledger", self.ledger.query_name)
        return UnitOfWork(self.database, consumer, pipeline_name=self.ledger.query_name)

    def _parts(
        self, unit: UnitOfWork, name: str, letters: pa.Table, *, is_staged_read: bool
    ) -> Generator[pa.Table]:
        """One table's rows, without those of dead-lettered events."""
        for rows in self.contents.rows.get(name, ()):
            yield _without_events(rows, letters)
        for stage in self.contents.stages.get(name, ()) if is_staged_read else ():
            if self.database.is_sqlite:
                parts = read_stage_file(self.owner, stage)
            else:
                parts = read_stage_table(unit, stage, self.tables[name].table, _ROWS_READ_MAX)
            for rows in parts:
                yield _without_events(rows, letters)

    def _find_refused(self, refused: RowsRefusedError) -> list[tuple[LedgerTable, RefusedRow]]:
        """The rows that the database refuses; only the first if refusals are errors anyway."""
        found: list[tuple[LedgerTable, RefusedRow]] = []
        refused_max = None if self.is_refused_dead_lettered else 1
        letters = distinct_letters(self.contents.letters)
        with self._unit() as unit:
            self.ledger.enter(unit, self.batch, self.owner.epoch)
            unit.make_constraints_immediate(is_commit_refused=refused.is_at_commit)
            for name, target in self.tables.items():
                write = _careful_write(unit, target)
                with closing(self._parts(unit, name, letters, is_staged_read=True)) as parts:
                    for part in parts:
                        rows = write_halving(write, part, refused_max=refused_max)
                        found += [(target, row) for row in rows]
                        if found and refused_max is not None:
                            break
            unit.rollback()
        return found

    def _add_letters(self, unit: UnitOfWork, letters: pa.Table) -> int:
        """Write dead letters, by partition and sequence number.

        Under each checkpoint's lock, as those of hosts: additions over HTTP look for handlers' dead letters
        under it, and would replace what is not committed yet.
        """
        if not letters.num_rows:
            return 0
        partition_ids: list[Any] = letters.column(PARTITION).unique().to_pylist()
        checkpoints = CheckpointRows(unit.consumer, self.database.clock)
        for partition_id in sorted(partition_ids):
            checkpoints.lock(unit.connection, partition_id)
            mine = letters.filter(_compute.equal(letters.column(PARTITION), partition_id))
            mine = mine.sort_by(SEQUENCE_NUMBER)
            for start in range(0, mine.num_rows, _LETTERS_MAX):
                part = mine.slice(start, _LETTERS_MAX)
                unit.add_dead_letters(partition_id, [_letter_of(row) for row in part.to_pylist()])
        return letters.num_rows


def _careful_write(unit: UnitOfWork, target: LedgerTable) -> Callable[[pa.Table], None]:
    def write(rows: pa.Table) -> None:
        with unit.savepoint():
            writer = TableWriter(unit, target)
            writer.load(arrow_rows(_of_table(rows, target)))
            writer.finish()
            unit.check_deferred_constraints()

    return write


def _of_table(rows: pa.Table, target: LedgerTable) -> pa.Table:
    return rows.select([name for name in rows.column_names if name in target.table.columns])


def letter_rows(rows: pa.Table) -> pa.Table:
    """The dead letters' columns of the rows, with valid text; missing ones are null."""
    columns: list[Any] = [
        rows.column(field.name).cast(options=_compute.CastOptions(field.type, allow_invalid_utf8=True))
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in LETTER_SCHEMA
    ]
    return with_valid_text(pa.Table.from_arrays(columns, schema=LETTER_SCHEMA))


def letters_of_refused(refused: Sequence[RefusedRow]) -> pa.Table:
    """Refused rows as dead letters, with the database's message as their reason."""
    return pa.Table.from_pylist(
        [
            {
                **{name: row.values.get(name) for name in EVENT_COLUMNS},
                ERROR: row.reason,
                ERROR_TYPE: type(row.error.reason).__name__,
            }
            for row in refused
        ],
        schema=LETTER_SCHEMA,
    )


def distinct_letters(parts: Sequence[pa.Table]) -> pa.Table:
    """The first dead letter of each event. Raises InvalidArgumentError."""
    if not parts:
        return LETTER_SCHEMA.empty_table()
    letters = pa.concat_tables(parts)
    for name in (PARTITION, SEQUENCE_NUMBER, "offset", "enqueuedTime"):
        if letters.column(name).null_count:
            raise InvalidArgumentError(
                f"A row with {ERROR} has no {name}, so its event cannot become a dead letter.",
                next_step="Keep the columns partition, sequenceNumber, offset and enqueuedTime unchanged.",
            )
    numbered = letters.append_column("number", pa.array(range(letters.num_rows)))
    first = numbered.group_by(_KEYS).aggregate([("number", "min")])
    return letters.take(first.column("number_min").combine_chunks())


def _letter_of(row: Mapping[str, Any]) -> NewDeadLetter:
    return NewDeadLetter(
        sequence_number=row[SEQUENCE_NUMBER],
        offset=row["offset"],
        enqueued_time_ms=milliseconds_of(row["enqueuedTime"]),
        error_type=row[ERROR_TYPE] or TRANSFORMATION_ERROR_TYPE,
        reason=row[ERROR],
        partition_key=row["partitionKey"],
    )


def _without_events(rows: pa.Table, letters: pa.Table) -> pa.Table:
    """The rows without those of dead-lettered events: an event writes all its rows or none."""
    if not letters.num_rows or not set(_KEYS) <= set(rows.column_names):
        return rows
    numbered = rows.select(_KEYS).cast(pa.schema([LETTER_SCHEMA.field(name) for name in _KEYS]))
    numbered = numbered.append_column("number", pa.array(range(rows.num_rows)))
    left = numbered.join(letters.select(_KEYS), _KEYS, join_type="left anti").column("number")
    return rows.take(left.combine_chunks().sort())


def _remove_events(unit: UnitOfWork, staged: Table, stage: Stage, letters: pa.Table) -> int:
    """Delete the rows of dead-lettered events from a stage. Returns how many."""
    if not letters.num_rows or not set(_KEYS) <= set(stage.event_columns):
        return 0
    keys = Table(
        unit.database.dialect.temporary_name("tidegate_dead_lettered"),
        MetaData(),
        Column(PARTITION, Text()),
        Column(SEQUENCE_NUMBER, BigInteger()),
        prefixes=["TEMPORARY"],
    )
    values = list(
        zip(letters.column(PARTITION).to_pylist(), letters.column(SEQUENCE_NUMBER).to_pylist(), strict=True)
    )
    statement = delete(staged).where(
        staged.c[event_column(PARTITION)] == keys.c[PARTITION],
        staged.c[event_column(SEQUENCE_NUMBER)] == keys.c[SEQUENCE_NUMBER],
    )
    with unit.translating("removing the rows of dead-lettered events"):
        unit.database.dialect.make_table(unit.connection, keys)
        unit.insert_values(keys, PartitionRows((PARTITION, SEQUENCE_NUMBER), values, [0] * len(values)))
        removed = unit.connection.execute(statement).rowcount
        unit.database.dialect.drop_temporary(unit.connection, keys)
    return removed

"""A ledger sink's tasks, which return small results to the driver and stage large ones.

A task keeps rows as Arrow until they exceed its share of the driver's memory; then it stages them and all
that follow (``sql.ledger.stages``). It returns one row per part, so the parts of attempts that Spark did not
accept are never seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from tidegate.model.errors import DatabaseError, InvalidArgumentError
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.sql.core.unit_of_work import RowsRefusedError
from tidegate.sql.handlers.batches import ERROR_COLUMN, SKIP_COLUMN
from tidegate.sql.ledger.commit import BatchContents, letter_rows, letters_of_refused
from tidegate.sql.ledger.refusals import refusal_error, write_halving
from tidegate.sql.ledger.rows import LedgerTable, WriteMode
from tidegate.sql.ledger.stages import EVENT_COLUMNS, Stage, StageOwner, StageWriter

_compute: Any = pyarrow.compute  # its stubs know less than it does

TABLE_COLUMN: Final = "_table"
"""Names a row's destination if one DataFrame feeds several tables."""

PART_SCHEMA: Final = "kind string, destination string, stage string, rows long, data binary"
"""The schema of what tasks return, in Spark's notation."""
ROWS, STAGED, ERRORS, REFUSED = "rows", "staged", "errors", "refused"

_FLUSH_BYTES: Final = 4 * 1024 * 1024
"""Rows staged together (our choice: the fixed cost of a COPY is negligible at this size)."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Everything that a task needs to know."""

    owner: StageOwner
    tables: Mapping[str, LedgerTable]
    destination: str | None
    """Of all rows; None: each row names its own, or there is only one table."""
    columns: tuple[str, ...]
    """Of the rows to write: the step's if there is one, else the DataFrame's."""
    is_event_kept: bool
    """True: rows keep the columns that say which event they came from."""
    is_refused_dead_lettered: bool
    """True: a row that the database refuses becomes a dead letter instead of an error."""
    inline_bytes_max: int
    """Of this task's rows that go to the driver."""

    def columns_of(self, name: str) -> tuple[str, ...]:
        """The table's columns that the rows have."""
        return tuple(column for column in self.columns if column in self.tables[name].table.columns)

    @property
    def event_columns(self) -> tuple[str, ...]:
        """The columns that say which event a row came from, if they are kept."""
        return tuple(name for name in EVENT_COLUMNS if name in self.columns) if self.is_event_kept else ()


class _RefusedError(Exception):
    """Ends a task whose staged rows the database refuses; never leaves this module."""

    def __init__(self, error: DatabaseError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _Part:
    """A task's rows for one table."""

    waiting: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    writer: StageWriter | None = None


class TaskRows:
    """The rows of one task attempt."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._parts = {name: _Part() for name in plan.tables}
        self._errors: list[pa.Table] = []
        self._inline_bytes = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take all rows, then report where they are. Raises InvalidArgumentError (unknown destination)."""
        freeze_loaded_modules()
        try:
            stages = self._stage(batches)
        except _RefusedError as refused:
            # Returned instead of raised, because another attempt of the task would also be refused.
            yield _part_row(REFUSED, None, None, 0, str(refused.error).encode())
            return
        for name, stage in stages.items():
            yield _part_row(STAGED, name, stage.name, stage.rows, None)
        for name, part in self._parts.items():
            if part.waiting:
                rows = _in_order(pa.concat_tables(part.waiting), self._plan.tables[name])
                rows = _without_unknown_events(rows, self._plan, name)
                yield _part_row(ROWS, name, None, rows.num_rows, _to_bytes(rows))
        if self._errors:
            errors = pa.concat_tables(self._errors)
            yield _part_row(ERRORS, None, None, errors.num_rows, _to_bytes(errors))

    def _stage(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Stage]:
        """Take all rows. Staged rows persist if this returns, and are removed if it raises."""
        with ExitStack() as stack:
            for batch in batches:
                self._take(stack, pa.Table.from_batches([batch]))
            for name, part in self._parts.items():
                if part.writer is not None:
                    self._flush(name, part)
            return {name: part.writer.stage() for name, part in self._parts.items() if part.writer}

    def _take(self, stack: ExitStack, rows: pa.Table) -> None:
        plan = self._plan
        if ERROR_COLUMN in rows.column_names:
            is_error = _compute.is_valid(rows.column(ERROR_COLUMN))
            self._dead_letter(rows.filter(is_error))
            rows = rows.filter(_compute.invert(is_error))
        if SKIP_COLUMN in rows.column_names:
            rows = rows.filter(_compute.invert(_compute.fill_null(rows.column(SKIP_COLUMN), False)))
        for name, mine in self._by_destination(rows):
            self._keep(
                stack, name, mine.select(list(dict.fromkeys([*plan.columns_of(name), *plan.event_columns])))
            )

    def _by_destination(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        plan = self._plan
        if plan.destination is not None or TABLE_COLUMN not in rows.column_names:
            yield plan.destination or next(iter(plan.tables)), rows
            return
        destinations: Any = rows.column(TABLE_COLUMN)
        for name in destinations.unique().to_pylist():
            if name not in plan.tables:
                raise InvalidArgumentError(
                    f"The {TABLE_COLUMN} of a row is {name!r}, and the sink {plan.owner.query_name!r} has no "
                    "such table.",
                    next_step=f"It has {', '.join(plan.tables)}.",
                )
            yield name, rows.filter(_compute.equal(destinations, name))

    def _keep(self, stack: ExitStack, name: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        part = self._parts[name]
        part.waiting.append(rows)
        part.bytes += rows.nbytes
        self._inline_bytes += rows.nbytes
        if part.writer is not None:
            if part.bytes >= _FLUSH_BYTES:
                self._flush(name, part)
        elif self._inline_bytes > self._plan.inline_bytes_max:
            part.writer = stack.enter_context(
                StageWriter(
                    self._plan.owner,
                    self._plan.tables[name].table,
                    self._plan.columns_of(name),
                    self._plan.event_columns,
                )
            )
            self._flush(name, part)

    def _flush(self, name: str, part: _Part) -> None:
        writer, target = part.writer, self._plan.tables[name]
        assert writer is not None
        if not part.waiting:
            return
        rows = _in_order(pa.concat_tables(part.waiting), target)
        part.waiting = []
        self._inline_bytes -= part.bytes
        part.bytes = 0
        try:
            writer.write(rows)
        except RowsRefusedError:
            limit = None if self._plan.is_refused_dead_lettered else 1
            refused = write_halving(writer.write, rows, refused_max=limit)
            if refused and not self._plan.is_refused_dead_lettered:
                raise _RefusedError(refusal_error(target, refused[0])) from refused[0].error
            self._dead_letter(letters_of_refused(refused))

    def _dead_letter(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._errors.append(letter_rows(rows))


def _in_order(rows: pa.Table, target: LedgerTable) -> pa.Table:
    """Sort an upsert's rows by their key.

    A shuffle leaves them in hash order, in which merging visits another page for each row: twice the
    processor time for 100,000 rows (PostgreSQL 15, measured).
    """
    if target.mode is not WriteMode.UPSERT:
        return rows
    try:
        return rows.sort_by([(name, "ascending") for name in target.key_columns])
    except pa.ArrowNotImplementedError:  # a type without an order
        return rows


def _without_unknown_events(rows: pa.Table, plan: TaskPlan, name: str) -> pa.Table:
    """Drop the event columns if no row says which event it came from."""
    more = [column for column in plan.event_columns if column not in plan.tables[name].table.columns]
    is_known = any(rows.column(column).null_count < rows.num_rows for column in more)
    return rows if is_known else rows.drop_columns(more)


def read_table(data: bytes) -> pa.Table:
    """The rows of a part's ``data``."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def _part_row(
    kind: str, destination: str | None, stage: str | None, rows: int, data: bytes | None
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([kind], pa.string()),
            pa.array([destination], pa.string()),
            pa.array([stage], pa.string()),
            pa.array([rows], pa.int64()),
            pa.array([data], pa.binary()),
        ],
        names=["kind", "destination", "stage", "rows", "data"],
    )


def add_parts(contents: BatchContents, plan: TaskPlan, parts: pa.Table) -> None:
    """Add the parts that the accepted attempts of a DataFrame's tasks returned.

    Raises DatabaseError if the database refused a row of one of them.
    """
    for part in parts.to_pylist():
        name = part["destination"]
        if part["kind"] == STAGED:
            stage = Stage(part["stage"], part["rows"], plan.columns_of(name), plan.event_columns)
            contents.stages.setdefault(name, []).append(stage)
        elif part["kind"] == REFUSED:
            raise DatabaseError(part["data"].decode())
        elif part["kind"] == ROWS:
            contents.rows.setdefault(name, []).append(read_table(part["data"]))
        else:
            contents.letters.append(read_table(part["data"]))

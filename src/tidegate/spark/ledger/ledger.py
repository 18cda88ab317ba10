"""``LedgerSink`` writes rows of any streaming query to SQL tables, exactly once per micro-batch.

For rows that belong to no hub partition after a shuffle: aggregates, joins, keyed state. One transaction
holds a micro-batch's rows, dead letters and row in the ledger; a repeat finds that row and writes nothing.

    sink = LedgerSink(name="delays", database_url=…, table=delays, mode=WriteMode.UPSERT)
    query = sink.start(averages, checkpoint_location=…, output_mode="update")

Keep Spark's checkpoint directory: it holds the state, and the ledger identifies the query by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.processor.policies import FailureAction
from tidegate.spark.ledger.batch import batch_of_connect, current_batch
from tidegate.spark.ledger.columns import check_columns
from tidegate.spark.ledger.tasks import PART_SCHEMA, TABLE_COLUMN, TaskPlan, TaskRows, add_parts
from tidegate.spark.runtime.arrow_step import ArrowStep
from tidegate.spark.runtime.connect import is_connect
from tidegate.spark.runtime.patience import patiently
from tidegate.spark.runtime.session import checkpoint_path, refuse_sqlite_on_cluster
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.sql import ConsumerKey, Database
from tidegate.sql.core.database import absolute_url
from tidegate.sql.handlers.batches import ERROR_COLUMN
from tidegate.sql.ledger.commit import BatchCommit, BatchContents, LedgerResult
from tidegate.sql.ledger.ledger import BatchLedger, MicroBatch
from tidegate.sql.ledger.rows import LedgerTable, StagedRowsLostError, WriteMode, check_key
from tidegate.sql.ledger.stages import StageOwner, drop_strays

DRIVER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most rows of a micro-batch that go through the driver, in bytes of Arrow (our choice)."""

OnWritten = Callable[[LedgerResult], None]


class LedgerSink:
    """A function for ``foreachBatch`` that writes each micro-batch exactly once."""

    def __init__(
        self,
        *,
        name: str,
        database_url: str,
        table: Table | None = None,
        mode: WriteMode = WriteMode.UPSERT,
        key: Sequence[str] = (),
        order_by: Sequence[str] = (),
        tables: Mapping[str, LedgerTable] | None = None,
        consumer: ConsumerKey | None = None,
        on_refused_row: FailureAction = FailureAction.STOP,
        adopt: str | None = None,
        driver_bytes_max: int = DRIVER_BYTES_MAX,
        step: ArrowStep | None = None,
        on_written: OnWritten | None = None,
    ) -> None:
        """name: the query's name in the ledger, unique in the database; keep it.

        table, mode, key, order_by: the one table to write, see ``LedgerTable``. tables: several, by names of
        your choice; each row's column ``_table`` names its table, or ``write`` gets one DataFrame per table.
        consumer: whose dead letters rows with a non-null ``_error`` become; such rows need the source's
        columns ``partition``, ``sequenceNumber``, ``offset`` and ``enqueuedTime``. on_refused_row: for rows
        that the database refuses: STOP raises an error that names the row; DEAD_LETTER dead-letters its
        event, for which all rows need those columns. adopt: the token of a LedgerMismatchError, to allow once
        what it refused. driver_bytes_max: most bytes of Arrow rows per micro-batch in the driver's memory;
        beyond that, tasks first write to their own tables (or files, with SQLite). step: turns the rows given
        to ``write`` into the tables' rows, see ``ArrowStep``; None: they already are. on_written: called
        in Spark's thread with the result of each micro-batch that Spark has it write.
        Raises InvalidArgumentError, DatabaseError.
        """
        if (table is None) == (tables is None):
            raise InvalidArgumentError(
                f"The sink {name!r} needs either table or tables.", next_step="Give one of the two."
            )
        if on_refused_row is FailureAction.PARK_KEY:
            raise InvalidArgumentError(
                "A ledger sink cannot park keys.", next_step="Use FailureAction.STOP or DEAD_LETTER."
            )
        if table is not None:
            tables = {table.name: LedgerTable(table, mode, tuple(key), tuple(order_by))}
        assert tables is not None
        self.name = name
        self.tables = dict(tables)
        self.consumer = consumer
        self._database_url = absolute_url(database_url)
        self._adopt = adopt
        self._driver_bytes_max = driver_bytes_max
        self._step = step
        self._on_written = on_written
        self._is_refused_dead_lettered = on_refused_row is FailureAction.DEAD_LETTER
        self._epochs: dict[str, int] = {}
        self._done: tuple[str, int] | None = None
        self._run_id = ""
        self._checkpoint_location: str | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In the process that Spark Connect's server starts for one run of the query."""
        self.__dict__.update(state, _run_id=str(uuid.uuid4()))

    def __repr__(self) -> str:
        return f"<LedgerSink {self.name} → {', '.join(self.tables)}>"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls it. Raises what ``write`` raises."""
        result = self.write(rows, batch_id)
        if self._on_written is not None:
            self._on_written(result)

    def start(
        self,
        rows: DataFrame,
        *,
        checkpoint_location: str | Path,
        output_mode: str = "update",
        trigger: Trigger = AS_SOON_AS_POSSIBLE,
    ) -> StreamingQuery:
        """Start a query that writes ``rows`` to this sink and has its name.

        checkpoint_location: Spark's own directory, new or this query's. output_mode: as in Spark. Raises
        InvalidArgumentError if ``rows`` does not fit the tables, DatabaseError.
        """
        self._check(rows.schema)
        if is_connect(rows.sparkSession) and self._on_written is not None:
            raise InvalidArgumentError(
                f"The sink {self.name!r} has on_written, which Spark Connect would call in a process of its "
                "server.",
                next_step="Leave it out; query.lastProgress and the ledger's tables say what was written.",
            )
        self._checkpoint_location = checkpoint_path(checkpoint_location)
        writer = (
            rows.writeStream.queryName(self.name)
            .outputMode(output_mode)
            .option("checkpointLocation", self._checkpoint_location)
            .foreachBatch(self)
        )
        return trigger.applied_to(writer).start()

    def write(self, rows: DataFrame | Mapping[str, DataFrame], batch_id: int) -> LedgerResult:
        """Write one micro-batch completely or not at all.

        rows: for the sink's table, or with the column ``_table``; or one DataFrame per table. Call it once
        per micro-batch.
        Raises LedgerMismatchError (the checkpoint directory does not match the database), FencedError (a
        later run took over), InvalidArgumentError (columns that do not fit), DatabaseError,
        DatabaseUnavailableError. Whatever it raises, nothing of the micro-batch was committed, unless the
        message says that this is unknown.
        """
        frames: dict[str | None, DataFrame] = {}
        if isinstance(rows, DataFrame):
            frames[None] = rows
        else:
            frames.update(rows.items())
        batch = self._batch(next(iter(frames.values())), batch_id)
        if self._done == (batch.run_id, batch_id):
            raise InvalidArgumentError(
                f"The sink {self.name!r} was given batch {batch_id} twice in one run; the second part would "
                "count as written.",
                next_step="Give all tables of a micro-batch in one call: write({name: rows, …}, batch_id).",
            )
        for name, frame in frames.items():
            self._check(frame.schema, name)
        # The rows are the same again, because Spark computes them from the state before this batch.
        result = patiently(lambda: self._write(frames, batch), f"Micro-batch {batch_id} of {self.name}")
        self._done = (batch.run_id, batch_id)
        return result

    def _batch(self, rows: DataFrame, batch_id: int) -> MicroBatch:
        batch = self._identified(rows, batch_id)
        if self._done is None or self._done[0] != batch.run_id:
            return batch
        return replace(batch, previous_id=self._done[1])

    def _identified(self, rows: DataFrame, batch_id: int) -> MicroBatch:
        if not is_connect(rows.sparkSession):
            return current_batch(rows, batch_id)
        if not self._run_id or self._checkpoint_location is None:
            raise InvalidArgumentError(
                f"With Spark Connect, the sink {self.name!r} cannot know which query calls it.",
                next_step="Start the query with the sink's own start(rows, checkpoint_location=…); rows for "
                f"several tables then have the column {TABLE_COLUMN}.",
            )
        return batch_of_connect(rows, batch_id, self._run_id, self._checkpoint_location)

    def _write(self, frames: Mapping[str | None, DataFrame], batch: MicroBatch) -> LedgerResult:
        database = Database.shared(self._database_url)
        ledger = BatchLedger(database, self.name, adoption=self._adopt)
        owner = StageOwner(self._database_url, self.name, self._epoch(ledger, batch), batch.batch_id)
        drop_strays(database, owner)
        if ledger.is_committed(batch):
            for rows in frames.values():
                # Spark ends a stateful query whose micro-batch was not run (4.3, measured): its state stores
                # must commit their version of the batch even if the rows are not needed.
                rows.write.format("noop").mode("overwrite").save()
            return LedgerResult(batch.batch_id, 0, 0, is_repeated=True)
        contents = BatchContents()
        for destination, rows in frames.items():
            plan = self._task_plan(owner, destination, rows)
            parts = rows.mapInArrow(_task_function(plan, self._step), PART_SCHEMA).toArrow()
            add_parts(contents, plan, parts)
        commit = BatchCommit(
            database,
            ledger,
            owner,
            batch,
            self.tables,
            contents,
            self.consumer,
            self._is_refused_dead_lettered,
        )
        # The rows are kept meanwhile; the ledger shows whether the last attempt was committed.
        return patiently(commit.run, f"Committing to {self.name}", unless=StagedRowsLostError)

    def _epoch(self, ledger: BatchLedger, batch: MicroBatch) -> int:
        epoch = self._epochs.get(batch.run_id)
        if epoch is None:
            for target in self.tables.values():
                ledger.database.ensure_table(target.table)
                check_key(ledger.database, target)
            epoch = ledger.claim(batch)
            self._epochs = {batch.run_id: epoch}
        return epoch

    def _task_plan(self, owner: StageOwner, destination: str | None, rows: DataFrame) -> TaskPlan:
        task_count = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        columns = rows.columns if self._step is None else self._step.schema.fieldNames()
        return TaskPlan(
            owner=owner,
            tables=self.tables,
            destination=destination,
            columns=tuple(columns),
            is_event_kept=ERROR_COLUMN in columns or self._is_refused_dead_lettered,
            is_refused_dead_lettered=self._is_refused_dead_lettered,
            inline_bytes_max=self._driver_bytes_max // task_count,
        )

    def _check(self, schema: StructType, destination: str | None = None) -> None:
        refuse_sqlite_on_cluster(self._database_url)
        if self._step is not None:
            schema = self._step.schema
        check_columns(
            self.name, schema, self.tables, destination, self.consumer, self._is_refused_dead_lettered
        )


def _task_function(
    plan: TaskPlan, step: ArrowStep | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    made = None if step is None else step.in_tasks()

    def write_ledger_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return TaskRows(plan).run(batches if made is None else made(batches))

    return write_ledger_rows

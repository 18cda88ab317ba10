"""``LedgerSink``: rows of any streaming query into SQL tables, exactly once per micro-batch.

For what a shuffle has taken from its hub partitions: aggregates, joins, keyed state. One transaction holds
the rows of a micro-batch, its dead letters and its row in the ledger; a micro-batch that Spark runs again
finds itself there and writes nothing.

    sink = LedgerSink(name="delays", database_url=…, table=delays, mode=WriteMode.UPSERT)
    query = sink.start(averages, checkpoint_location=…, output_mode="update")

Spark's checkpoint directory must be kept: state lives there, and the ledger knows the query by it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.commits import (
    BOOKKEEPING_COLUMNS,
    ERROR_COLUMN,
)
from tidegate.spark.ledger_batch import current_batch
from tidegate.spark.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.sql import ConsumerKey, Database
from tidegate.sql.database import absolute_url
from tidegate.sql.ledger import BatchLedger, MicroBatch
from tidegate.sql.ledger_rows import LedgerTable, TableWriter, WriteMode
from tidegate.sql.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

TABLE_COLUMN = "_table"
"""Names the destination of a row, where a sink has several tables and one DataFrame feeds them."""


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """What a micro-batch did."""

    batch_id: int
    rows: int
    """Rows given to the tables, of all tables together."""
    dead_letters: int
    is_repeated: bool
    """True: it was committed before, and nothing was written now."""


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
        adopt: str | None = None,
    ) -> None:
        """name: of the query in the ledger, unique in the database; keep it.

        table, mode, key, order_by: the one table to write, see ``LedgerTable``. tables: several, by names
        of your own; each row's column ``_table`` then names the one it is for, or ``write`` is given a
        DataFrame for each. consumer: whose dead letters rows with a non-null ``_error`` become; such rows
        need the columns ``partition``, ``sequenceNumber``, ``offset`` and ``enqueuedTime``. adopt: the
        token of a LedgerMismatchError, which allows what it refused, once.
        Raises InvalidArgumentError, DatabaseError.
        """
        if (table is None) == (tables is None):
            raise InvalidArgumentError(
                f"The sink {name!r} needs either table or tables.", next_step="Give one of the two."
            )
        if table is not None:
            tables = {table.name: LedgerTable(table, mode, tuple(key), tuple(order_by))}
        assert tables is not None
        self.name = name
        self.tables = dict(tables)
        self.consumer = consumer
        self._database_url = absolute_url(database_url)
        self._adopt = adopt
        self._epochs: dict[str, int] = {}
        self._done: tuple[str, int] | None = None

    def __repr__(self) -> str:
        return f"<LedgerSink {self.name} → {', '.join(self.tables)}>"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls it. Raises what ``write`` raises."""
        self.write(rows, batch_id)

    def start(
        self,
        rows: DataFrame,
        *,
        checkpoint_location: str | Path,
        output_mode: str = "update",
        trigger: Trigger = AS_SOON_AS_POSSIBLE,
    ) -> StreamingQuery:
        """Start a query that writes ``rows`` here; its name is the sink's.

        checkpoint_location: Spark's own directory, new or of this query. output_mode: as in Spark.
        Raises InvalidArgumentError where ``rows`` does not fit the tables, DatabaseError.
        """
        self._check(rows)
        writer = (
            rows.writeStream.queryName(self.name)
            .outputMode(output_mode)
            .option("checkpointLocation", str(checkpoint_location))
            .foreachBatch(self)
        )
        if trigger.is_available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger.interval is not None:
            writer = writer.trigger(processingTime=trigger.interval)
        return writer.start()

    def write(self, rows: DataFrame | Mapping[str, DataFrame], batch_id: int) -> LedgerResult:
        """Write one micro-batch, whole or not at all.

        rows: for the sink's table, or with the column ``_table``; or one DataFrame for each table named.
        Call it once per micro-batch.
        Raises LedgerMismatchError (the checkpoint directory does not go with the database), FencedError (a
        later run took over), InvalidArgumentError (columns that do not fit), DatabaseError,
        DatabaseUnavailableError; whatever it raises, nothing of the micro-batch was committed, unless the
        text says that this could not be found out.
        """
        frames: dict[str | None, DataFrame] = {}
        if isinstance(rows, DataFrame):
            frames[None] = rows
        else:
            frames.update(rows.items())
        batch = current_batch(next(iter(frames.values())), batch_id)
        if self._done == (batch.run_id, batch_id):
            raise InvalidArgumentError(
                f"The sink {self.name!r} was given batch {batch_id} twice in one run; the second part would "
                "count as written.",
                next_step="Give all tables of a micro-batch in one call: write({name: rows, …}, batch_id).",
            )
        for name, frame in frames.items():
            self._check(frame, name)
        database = Database.shared(self._database_url)
        ledger = BatchLedger(database, self.name, adoption=self._adopt)
        epoch = self._epoch(ledger, batch)
        if ledger.is_committed(batch):
            result = LedgerResult(batch_id, 0, 0, True)
        else:
            result = self._commit(database, ledger, batch, epoch, self._collect(frames))
        self._done = (batch.run_id, batch_id)
        return result

    def _epoch(self, ledger: BatchLedger, batch: MicroBatch) -> int:
        epoch = self._epochs.get(batch.run_id)
        if epoch is None:
            for target in self.tables.values():
                ledger.database.ensure_table(target.table)
            epoch = ledger.claim(batch)
            self._epochs = {batch.run_id: epoch}
        return epoch

    def _collect(self, frames: Mapping[str | None, DataFrame]) -> dict[str, list[pa.Table]]:
        collected: dict[str, list[pa.Table]] = {name: [] for name in self.tables}
        for name, frame in frames.items():
            rows = frame.toArrow()
            if name is not None:
                collected[name].append(rows)
            elif TABLE_COLUMN not in rows.column_names:
                collected[next(iter(self.tables))].append(rows)
            else:
                destinations = rows.column(TABLE_COLUMN)
                for destination in destinations.unique().to_pylist():
                    if destination not in self.tables:
                        raise InvalidArgumentError(
                            f"A row's {TABLE_COLUMN} is {destination!r}, which is no table of the sink "
                            f"{self.name!r}.",
                            next_step=f"It has {', '.join(self.tables)}.",
                        )
                    collected[destination].append(rows.filter(pa.compute.equal(destinations, destination)))
        return collected

    def _commit(
        self,
        database: Database,
        ledger: BatchLedger,
        batch: MicroBatch,
        epoch: int,
        collected: Mapping[str, Sequence[pa.Table]],
    ) -> LedgerResult:
        consumer = self.consumer or ConsumerKey("ledger", self.name)
        with UnitOfWork(database, consumer, pipeline_name=self.name) as unit:
            if not ledger.enter(unit, batch, epoch):
                unit.rollback()
                return LedgerResult(batch.batch_id, 0, 0, True)
            row_count = 0
            for name, parts in collected.items():
                target = self.tables[name]
                for rows in parts:
                    columns = [column for column in rows.column_names if column in target.table.columns]
                    writer = TableWriter(unit, target, columns)
                    arrays: list[Any] = [rows.column(column).to_pylist() for column in columns]
                    writer.load(list(zip(*arrays, strict=True)))
                    row_count += writer.finish()
            ledger.record(unit, batch, rows=row_count, dead_letters=0)
        return LedgerResult(batch.batch_id, row_count, 0, False)

    def _check(self, rows: DataFrame, destination: str | None = None) -> None:
        """Raises InvalidArgumentError where the columns do not fit the tables."""
        names = rows.columns
        if destination is not None and destination not in self.tables:
            raise InvalidArgumentError(
                f"The sink {self.name!r} has no table {destination!r}.",
                next_step=f"It has {', '.join(self.tables)}.",
            )
        if destination is None and len(self.tables) > 1 and TABLE_COLUMN not in names:
            raise InvalidArgumentError(
                f"The sink {self.name!r} has several tables, and the rows do not say which they are for.",
                next_step=f"Add a column {TABLE_COLUMN} that holds one of {', '.join(self.tables)}, or call "
                "write({name: rows, …}, batch_id).",
            )
        if ERROR_COLUMN in names and self.consumer is None:
            raise InvalidArgumentError(
                f"The rows have a column {ERROR_COLUMN}, and the sink {self.name!r} does not know whose dead "
                "letters they become.",
                next_step="Give the sink consumer=ConsumerKey(event_hub, consumer_group).",
            )
        targets = self.tables if destination is None else {destination: self.tables[destination]}
        known = {column for target in targets.values() for column in target.table.columns.keys()}  # noqa: SIM118 - a column is no key
        unknown = [
            column
            for column in names
            if column not in known and column not in (*BOOKKEEPING_COLUMNS, TABLE_COLUMN)
        ]
        if unknown:
            raise InvalidArgumentError(
                f"The rows have a column {unknown[0]!r}, which "
                f"{' and '.join(target.table.name for target in targets.values())} lack(s).",
                next_step=f"The tables have {', '.join(sorted(known))}.",
            )

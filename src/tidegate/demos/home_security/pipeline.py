"""The pipeline on Spark: events of the hub, through state kept per block of homes, into SQL and to blobs.

    eventhubs ─► gather (mapInArrow) ─► by block ─► HomesProcessor ─► foreachBatch ─┬─► home_minute   upsert
                 parse, filter           shuffle    state in RocksDB,               ├─► home_alarm    append
                                                    timers by the watermark         ├─► dead letters
                                                                                    └─► summaries     blobs
                                                                       the first three in one transaction

The checkpoint directory holds the state and must be kept: without it, open doors and half counted minutes are
forgotten, and the ledger refuses to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from tidegate.demos.home_security.blocks import (
    Block,
    BlockOutput,
    decode_parts,
    encode_parts,
    gather,
)
from tidegate.demos.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB
from tidegate.demos.home_security.latencies import QUANTILES
from tidegate.demos.home_security.shapes import (
    ALARMS,
    ALARMS_ARROW,
    CHANGES,
    GATHERED,
    GATHERED_ARROW,
    MINUTES,
    MINUTES_ARROW,
)
from tidegate.demos.home_security.summaries import SummaryStore
from tidegate.demos.home_security.tables import CONSUMER, NAME, home_alarm, home_minute
from tidegate.model.connection_string import ConnectionString
from tidegate.spark.ledger import LedgerSink
from tidegate.spark.source import register
from tidegate.sql.ledger_rows import LedgerTable, WriteMode

SPARK_SETTINGS: Final = {
    # transformWithState works with this state store only; changes are saved instead of whole snapshots.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

ARRIVALS: Final = "arrivals"
"""The name under which Spark tells of each micro-batch how many events it has and when they arrived."""


@dataclass(frozen=True, slots=True)
class HomeSecurity:
    """What the pipeline can be told."""

    connection_string: str
    """Of the namespace; a secret."""
    database_url: str
    checkpoint_location: Path
    summaries_url: str | None
    """Where the homes' summaries go, as fsspec names it (a directory, or ``az://container/path``); None:
    nowhere."""
    watermark_delay_s: float
    """How far partitions may be apart, in seconds of the homes' time."""
    blocks: int = BLOCKS_DEFAULT
    max_events_per_trigger: int = 200_000


def start_home_security(
    spark: SparkSession, wanted: HomeSecurity, on_committed: Callable[[int], None] = lambda batch_id: None
) -> StreamingQuery:
    """Start the pipeline and return its query.

    on_committed: called with a micro-batch's number once it is in SQL. The session needs
    ``SPARK_SETTINGS``. Raises what the source and ``LedgerSink`` raise.
    """
    register(spark)
    sink = LedgerSink(
        name=NAME,
        database_url=wanted.database_url,
        tables={
            "minutes": LedgerTable(home_minute, WriteMode.UPSERT),
            "alarms": LedgerTable(home_alarm, WriteMode.APPEND),
        },
        consumer=CONSUMER,
    )
    store = None if wanted.summaries_url is None else SummaryStore(wanted.summaries_url)
    return (
        changes_of_homes(spark, wanted)
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", str(wanted.checkpoint_location))
        .foreachBatch(partial(write_changes, sink, store, on_committed))
        .start()
    )


def changes_of_homes(spark: SparkSession, wanted: HomeSecurity) -> DataFrame:
    """The stream of what micro-batches change, a row per block of homes."""
    return (
        gathered_events(spark, wanted)
        .withWatermark("sent", f"{round(wanted.watermark_delay_s * 1000)} milliseconds")
        .groupBy("block")
        .transformWithState(
            statefulProcessor=HomesProcessor(),
            outputStructType=CHANGES,
            outputMode="Update",
            timeMode="EventTime",
        )
    )


def gathered_events(spark: SparkSession, wanted: HomeSecurity) -> DataFrame:
    """The stream of readings, parsed and packed by blocks of homes where they were read."""
    connection_string = ConnectionString.parse(wanted.connection_string).with_entity_path(EVENT_HUB).format()
    events = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", connection_string)
        .option("eventhubs.startingPosition", "earliest")
        .option("eventhubs.maxEventsPerTrigger", str(wanted.max_events_per_trigger))
        .option("eventhubs.tasksMax", str(spark.sparkContext.defaultParallelism))
        .load()
        .select("partition", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "body")
    )
    arrivals = functions.percentile_approx(functions.unix_millis("enqueuedTime"), list(QUANTILES), 1_000)
    count = functions.count(functions.lit(1))
    return events.observe(ARRIVALS, count.alias("events"), arrivals.alias("enqueued_ms")).mapInArrow(
        partial(gather_events, wanted.blocks), GATHERED
    )


def gather_events(blocks: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events to rows of blocks: a step of the pipeline that runs where the events were read."""
    for batch in batches:
        times_ms = batch.column("enqueuedTime").cast(pa.int64()).to_numpy() // 1000
        places = zip(
            _values(batch, "partition"),
            _values(batch, "sequenceNumber"),
            _values(batch, "offset"),
            times_ms.tolist(),
            strict=True,
        )
        events = zip(places, _values(batch, "partitionKey"), _values(batch, "body"), strict=True)
        gathered = gather(events, blocks)
        # One time for all: the watermark only moves by the latest, and a row behind it would be dropped.
        sent = datetime.fromtimestamp(gathered.latest_sent_ms / 1000, UTC)
        names, found = list(gathered.blocks), list(gathered.blocks.values())
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(names, pa.string()),
                pa.array([block.first_sequence_number for block in found], pa.int64()),
                pa.array([sent] * len(found), pa.timestamp("us", tz="UTC")),
                pa.array([encode_parts(block.readings) for block in found], pa.binary()),
                pa.array([encode_parts(block.rejected) for block in found], pa.binary()),
            ],
            schema=GATHERED_ARROW,
        )


class HomesProcessor(StatefulProcessor):
    """The state of each block of homes, and a timer for the earliest time at which one is to be looked at."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark hands over what keeps the state."""
        self._handle = handle
        self._state = handle.getValueState("homes", "homes binary, timer_ms long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: TimerValues,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """The readings of a micro-batch for a block."""
        homes, timer_ms = self._state.get() or (None, None)
        block, output = Block(homes), BlockOutput()
        # Rows of a block come from one task, and a shuffle promises no order.
        for row in sorted(rows, key=lambda row: row.first):
            output.rejected += decode_parts(row.rejected)
            block.take(decode_parts(row.readings), output)
        yield self._keep(block, output, timer_ms)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803 - Spark's name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """The watermark has passed a block's earliest deadline."""
        homes, _ = self._state.get() or (None, None)
        block, output = Block(homes), BlockOutput()
        block.expire(timerValues.getCurrentWatermarkInMs(), output)
        yield self._keep(block, output, None)

    def close(self) -> None:
        """Nothing is open."""

    def _keep(self, block: Block, output: BlockOutput, timer_ms: int | None) -> Row:
        homes, deadline_ms = block.encode(output)
        # A timer that is no longer needed is left to fire: looking is cheaper than asking Spark to forget it.
        if deadline_ms is not None and (timer_ms is None or deadline_ms + 1 < timer_ms):
            timer_ms = deadline_ms + 1
            self._handle.registerTimer(timer_ms)
        self._state.update((homes, timer_ms))
        return Row(**output.encoded())


# --- what a micro-batch changes, to where it belongs --------------------------------------------------------


def write_changes(
    sink: LedgerSink,
    store: SummaryStore | None,
    on_committed: Callable[[int], None],
    changes: DataFrame,
    batch_id: int,
) -> None:
    """Write one micro-batch: summaries first, for they may be written twice, then SQL, once."""
    changes.persist()
    try:
        if store is not None:
            changes.select("summaries").foreachPartition(store.write_rows)
        sink.write(
            {
                "minutes": changes.select("minutes").mapInArrow(minutes_of, MINUTES),
                "alarms": changes.select("alarms", "rejected").mapInArrow(alarms_of, ALARMS),
            },
            batch_id,
        )
        on_committed(batch_id)
    finally:
        changes.unpersist()


def minutes_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Blocks' rows to the rows of ``home_minute``."""
    for batch in batches:
        columns: list[list[Any]] = [[] for _ in MINUTES_ARROW]
        for encoded in _values(batch, "minutes"):
            for column, values in zip(columns, decode_parts(encoded), strict=True):
                column += values
        arrays = [pa.array(values, field.type) for values, field in zip(columns, MINUTES_ARROW, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=MINUTES_ARROW)


def alarms_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Blocks' rows to the rows of ``home_alarm``, and to dead letters."""
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for alarms, rejected in zip(_values(batch, "alarms"), _values(batch, "rejected"), strict=True):
            rows += [(*alarm, None, None, None, None, None) for alarm in decode_parts(alarms)]
            rows += [
                (None, None, None, None, None, None, reason, partition, number, offset, time_ms * 1000)
                for (partition, number, offset, time_ms), reason in decode_parts(rejected)
            ]
        columns = zip(*rows, strict=True) if rows else [()] * len(ALARMS_ARROW)
        arrays = [
            pa.array(list(values), field.type) for values, field in zip(columns, ALARMS_ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=ALARMS_ARROW)


def _values(batch: pa.RecordBatch, column: str) -> list[Any]:
    return batch.column(column).to_pylist()

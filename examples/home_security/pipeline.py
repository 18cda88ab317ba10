"""The pipeline on Spark: events of the hub, through state kept per block of homes, into SQL and to blobs.

    eventhubs + gather ─► by block ─► HomesProcessor ─► foreachBatch ─┬─► home_minute   new ones appended,
    read, parse, filter   shuffle     state in RocksDB,               │                 others upserted
                                      timers by the watermark         ├─► home_alarm    appended
                                                                      ├─► dead letters
                                                                      └─► summaries     blobs
                                                         all but the last in one transaction

The checkpoint directory holds the state and must be kept: without it, open doors and partly counted minutes
are lost, and the ledger refuses to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from examples.home_security.block import Block, BlockChanges
from examples.home_security.blocks import gather
from examples.home_security.checkpoint import claim_checkpoint
from examples.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB, PARTITION_COUNT
from examples.home_security.latencies import QUANTILES
from examples.home_security.shapes import (
    ALARMS,
    CHANGES,
    EVENTS,
    GATHERED,
    MINUTES,
    PAGES,
    READINGS,
    REJECTED,
    RESULTS,
    RESULTS_ARROW,
    from_bytes,
    joined,
    to_bytes,
)
from examples.home_security.summaries import SummaryStore
from examples.home_security.tables import CONSUMER, NAME, home_alarm, home_minute
from tidegate.spark import (
    ArrowStep,
    LedgerSink,
    LedgerTable,
    WriteMode,
    checkpoint_path,
    freeze_loaded_modules,
    mapped_events,
    task_options,
)

SPARK_SETTINGS: Final = {
    # Required by transformWithState; saves changes instead of whole snapshots.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"
"""Java options for Spark on one machine, where Java only passes on what Python computes. Its optimizing
compiler would use 2 to 4 of 15 µs of CPU per event for the second to fourth million of them (Java 17, two
cores, measured), and Spark generates new code for each query; G1 takes half a microsecond more than the
parallel collector."""

ARRIVALS: Final = "arrivals"
"""The name under which Spark reports the number of events of each micro-batch, and when they arrived."""


NEW_MINUTES, MINUTES_AGAIN, ALARMS_RAISED = "new minutes", "minutes", "alarms"
"""The names of the ledger's tables in rows."""


@dataclass(frozen=True, slots=True)
class HomeSecurity:
    """Options of the pipeline."""

    connection_string: str
    """Of the namespace; a secret."""
    database_url: str
    checkpoint_location: str | Path
    """A directory, or a URL of a file system supported by Spark."""
    summaries_url: str | None
    """The location of the homes' summaries, as fsspec names it (a directory, or ``az://container/path``);
    None: none are written."""
    watermark_delay_s: float
    """How far apart partitions may be, in seconds of the homes' time."""
    blocks: int = BLOCKS_DEFAULT
    max_events_per_trigger: int = 200_000
    tasks: int | None = None
    """Tasks per stage of a micro-batch, and so how many cores can share it; fixed when the state is created.
    None: on one machine its cores; on a cluster, where executors may join at any time, the hub's number of
    partitions keep state, and a large micro-batch is read by more tasks than a small one."""


def start_home_security(
    spark: SparkSession, wanted: HomeSecurity, on_committed: Callable[[int], None] = lambda batch_id: None
) -> StreamingQuery:
    """Start the pipeline and return its query.

    on_committed: called with a micro-batch's number once it is in SQL. The session needs ``SPARK_SETTINGS``.
    Raises InvalidArgumentError if the checkpoint directory was created with another number of blocks, and
    what the source and ``LedgerSink`` raise.
    """
    spark.conf.set("spark.sql.shuffle.partitions", task_count(spark, wanted))
    checkpoint = checkpoint_path(wanted.checkpoint_location)
    claim_checkpoint(spark, checkpoint, wanted.blocks)
    store = None if wanted.summaries_url is None else SummaryStore(wanted.summaries_url)
    sink = LedgerSink(
        name=NAME,
        database_url=wanted.database_url,
        tables={
            # Appending a new row costs the database half of upserting one that may exist.
            NEW_MINUTES: LedgerTable(home_minute, WriteMode.APPEND),
            MINUTES_AGAIN: LedgerTable(home_minute, WriteMode.UPSERT),
            ALARMS_RAISED: LedgerTable(home_alarm, WriteMode.APPEND),
        },
        consumer=CONSUMER,
        step=ArrowStep(partial(results_of, store), RESULTS),
    )
    return (
        changes_of_homes(spark, wanted)
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(partial(write_changes, sink, on_committed))
        .start()
    )


def changes_of_homes(spark: SparkSession, wanted: HomeSecurity) -> DataFrame:
    """The stream of what micro-batches change, a row per block of homes.

    Spark drops rows behind the watermark before this code sees them: readings, and events that should become
    dead letters. Whether a reading is late is for ``Block`` to decide, from the log. So rows of blocks have
    no event time, and rows with event time end once they have moved the watermark: by a condition on that
    time, since Spark would apply any other before it.
    """
    return (
        gathered_events(spark, wanted)
        .withWatermark("sent", f"{round(wanted.watermark_delay_s * 1000)} milliseconds")
        .where("sent IS NULL")
        .groupBy("block")
        .transformWithState(
            statefulProcessor=HomesProcessor(are_pages_wanted=wanted.summaries_url is not None),
            outputStructType=CHANGES,
            outputMode="Update",
            timeMode="EventTime",
        )
    )


def gathered_events(spark: SparkSession, wanted: HomeSecurity) -> DataFrame:
    """The stream of readings, parsed and packed by blocks of homes in the tasks that read them."""
    options = {
        "eventhubs.connectionString": wanted.connection_string,
        "eventhubs.eventHubName": EVENT_HUB,
        "eventhubs.startingPosition": "earliest",
        "eventhubs.maxEventsPerTrigger": str(wanted.max_events_per_trigger),
        **reading_options(spark, wanted),
    }
    step = ArrowStep(partial(gather_events, wanted.blocks), GATHERED)
    arrivals = functions.percentile("enqueued_ms", list(QUANTILES), functions.col("events")).cast(
        "array<long>"
    )
    return mapped_events(spark, options, step, columns=EVENTS).observe(
        ARRIVALS, functions.sum("events").alias("events"), arrivals.alias("enqueued_ms")
    )


def reading_options(spark: SparkSession, wanted: HomeSecurity) -> dict[str, str]:
    """The source's options for the number of tasks that read a micro-batch."""
    return task_options(spark) if wanted.tasks is None else {"eventhubs.tasksMax": str(wanted.tasks)}


def task_count(spark: SparkSession, wanted: HomeSecurity) -> int:
    """Tasks of a micro-batch that keep state.

    On a cluster the number of cores is meaningless: it is that of the first executors. Nor does
    Spark's default of 200 suit: one core takes minutes for a micro-batch of so many tasks.
    """
    if wanted.tasks is not None:
        return wanted.tasks
    return PARTITION_COUNT if is_on_cluster(spark) else spark.sparkContext.defaultParallelism


def is_on_cluster(spark: SparkSession) -> bool:
    """Whether executors are separate processes (``local-cluster`` included)."""
    master = spark.sparkContext.master or ""
    return master != "local" and not master.startswith("local[")


def gather_events(blocks: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn events into rows of blocks: the step that runs where events are read."""
    for batch in batches:
        yield gather(batch, blocks)


class HomesProcessor(StatefulProcessor):
    """The state of each block of homes, and a timer for its earliest deadline."""

    def __init__(self, *, are_pages_wanted: bool) -> None:
        self._are_pages_wanted = are_pages_wanted

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark with the handle of the state."""
        freeze_loaded_modules()
        self._handle = handle
        self._state = handle.getValueState("homes", "partition string, homes binary, timer_ms long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: TimerValues,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """The readings of a micro-batch for a block."""
        _, homes, timer_ms = self._state.get() or (None, None, None)
        # A block's rows come from one task, but a shuffle guarantees no order.
        parts = sorted(rows, key=lambda row: row.first)
        partition = parts[0].partition
        block = Block(partition, homes)
        readings = joined([from_bytes(part.readings, READINGS) for part in parts], READINGS)
        changes = block.take(readings, are_pages_wanted=self._are_pages_wanted)
        rejected = [from_bytes(part.rejected, REJECTED) for part in parts]
        changes.rejected = joined([*rejected, changes.rejected], REJECTED)
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        # Expire here: left to Spark's timers, the state would be read and written once more.
        if timer_ms is not None and timer_ms <= watermark_ms:
            self._handle.deleteTimer(timer_ms)
            timer_ms = None
        deadline_ms = block.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < watermark_ms:
            changes.follow(block.expire(watermark_ms, are_pages_wanted=self._are_pages_wanted))
        yield self._keep(key, partition, block, changes, timer_ms)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803 - Spark's name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """The watermark has passed the earliest deadline of a block without readings; or one that is no
        longer its earliest, and there is nothing to do."""
        partition, homes, _ = self._state.get() or ("", None, None)
        block = Block(partition, homes)
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        changes = block.expire(watermark_ms, are_pages_wanted=self._are_pages_wanted)
        yield self._keep(key, partition, block, changes, None)

    def close(self) -> None:
        """Nothing to close."""

    def _keep(
        self, key: Any, partition: str, block: Block, changes: BlockChanges, timer_ms: int | None
    ) -> Row:
        deadline_ms = block.next_deadline_ms()
        # An obsolete timer is left to fire: that costs less than asking Spark to delete it.
        if deadline_ms is not None and (timer_ms is None or deadline_ms + 1 < timer_ms):
            timer_ms = deadline_ms + 1
            self._handle.registerTimer(timer_ms)
        homes = block.encode()
        self._state.update((partition, homes, timer_ms))
        (name,) = key
        return Row(
            block=name,
            minutes=to_bytes(changes.minutes),
            alarms=to_bytes(changes.alarms),
            rejected=to_bytes(changes.rejected),
            pages=to_bytes(changes.pages),
            state_bytes=len(homes),
        )


# --- what a micro-batch changes, to where it belongs --------------------------------------------------------


def write_changes(
    sink: LedgerSink, on_committed: Callable[[int], None], changes: DataFrame, batch_id: int
) -> None:
    """Write one micro-batch: pages first, since they may be written twice, then SQL, once."""
    sink.write(changes, batch_id)
    on_committed(batch_id)


def results_of(store: SummaryStore | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn blocks' rows into rows for SQL, after writing their pages: the sink's step."""
    for batch in batches:
        if store is not None:
            store.write(pages_by_block(batch))
        minutes = _parts(batch, "minutes", MINUTES)
        # New ones in key order: an append keeps the order, and it suits the index.
        minutes = minutes.sort_by([(column.name, "ascending") for column in home_minute.primary_key])
        names = pc.if_else(minutes.column("is_new"), NEW_MINUTES, MINUTES_AGAIN)
        alarms = _parts(batch, "alarms", ALARMS)
        parts = [
            minutes.drop_columns("is_new").append_column("_table", names),
            alarms.append_column("_table", pa.repeat(ALARMS_RAISED, alarms.num_rows)),
            _parts(batch, "rejected", REJECTED),
        ]
        rows = pa.concat_tables(parts, promote_options="default")
        yield from rows.select(RESULTS_ARROW.names).cast(RESULTS_ARROW).combine_chunks().to_batches()


def pages_by_block(batch: pa.RecordBatch) -> dict[str, dict[str, bytes]]:
    """Block → home → its page. A block may have several rows; the last one counts."""
    found: dict[str, dict[str, bytes]] = {}
    changes: Any = batch.select(["block", "pages"]).to_pydict()
    for block, part in zip(changes["block"], changes["pages"], strict=True):
        rows: Any = from_bytes(part, PAGES)
        if rows.num_rows:
            pages = rows.column("page").cast(pa.binary()).to_pylist()
            found.setdefault(block, {}).update(zip(rows.column("home").to_pylist(), pages, strict=True))
    return found


def _parts(batch: pa.RecordBatch, column: str, schema: pa.Schema) -> pa.Table:
    parts: Any = batch.column(column).to_pylist()
    return pa.Table.from_batches([from_bytes(part, schema) for part in parts], schema)

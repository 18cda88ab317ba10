"""What one version of PySpark can do with Tidegate, in a plain session.

    python -m tests.spark.matrix.program [--connect] [FEATURE …]

Prints a line of JSON for each feature: ``{"feature": …, "result": …}``, where the result is ``works``,
``lacks: …``, ``refused: …`` with the words of our error, or ``failed: …``. To be run by the version's own
Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, func, select
from tests.spark.capture_support import azure_record, write_file
from tests.spark.support import assert_exact, make_pipeline, publish

from tidegate.model.errors import TidegateError
from tidegate.model.pipeline_status import PipelineState
from tidegate.spark import (
    ArrowStep,
    HubSource,
    SqlBatchSink,
    SqlSink,
    StreamPipeline,
    Trigger,
    mapped_events,
    register,
    reported_query,
    run_pipeline,
    start_stream_pipeline,
)
from tidegate.spark.runtime.errors import error_in
from tidegate.spark.runtime.java import find_java
from tidegate.spark.runtime.versions import HAS_LIMITS
from tidegate.sql import ConsumerKey, Database
from tidegate.testing.hub import HubService
from tidegate.transport.status_files import PipelineFiles

COUNT: Final = 400
_NOW: Final = Trigger(is_available_now=True)
_LIMIT: Final = 150
_ATTEMPTS: Final = 4
_SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start; a busy machine needs more."""

values = Table(
    "chosen",
    MetaData(),
    Column("partition", String(16), primary_key=True),
    Column("sequenceNumber", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Integer, nullable=False),
)
parities = Table(
    "parities",
    MetaData(),
    Column("parity", String(8), primary_key=True),
    Column("events", BigInteger, nullable=False),
)


class LacksError(Exception):
    """What this version lacks, and nothing can be done about."""


class Trial:
    """A session, a filled hub, and a folder for databases and checkpoints."""

    def __init__(self, spark: SparkSession, service: HubService, folder: Path) -> None:
        self.spark, self.service, self.folder = spark, service, folder
        self.hub = service.create_hub(partition_count=2)
        publish(service.connection_string, self.hub, COUNT)

    def options(self, **more: object) -> dict[str, str]:
        """The source's, for a stream that begins with the first event."""
        given = {"connectionString": self.service.hub_connection_string(self.hub), **more}
        return {f"eventhubs.{name}": str(value) for name, value in given.items()}

    def stream(self, **more: object) -> DataFrame:
        """The hub's events."""
        return self.spark.readStream.format("eventhubs").options(**self.options(**more)).load()

    def checkpoint(self, name: str) -> str:
        """A checkpoint directory."""
        return str(self.folder / f"checkpoint-{name}")

    def database(self, name: str) -> str:
        """The URL of a database."""
        return f"sqlite:///{self.folder}/{name}.db"

    def finish(self, name: str, rows: DataFrame, output_format: str, **options: str) -> list[int]:
        """Write what a stream has now; the events of each micro-batch that has any."""
        writer = rows.writeStream.format(output_format).queryName(name).options(**options)
        query = writer.option("checkpointLocation", self.checkpoint(name)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def batch_read(trial: Trial) -> None:
    """All events, and those of a condition that the source applies."""
    rows = trial.spark.read.format("eventhubs").options(**trial.options()).load()
    expect(rows.count(), COUNT)
    expect(rows.where("partition = '1' AND sequenceNumber < 10").count(), 10)
    expect({json.loads(row.body)["value"] for row in rows.select("body").collect()}, set(range(COUNT)))


def stream_read(trial: Trial) -> None:
    """All events into a table in memory, then those that came later."""
    path = str(trial.folder / "read")
    for first, total in ((COUNT, COUNT), (COUNT, COUNT + 10)):
        if total > COUNT:
            publish(trial.service.connection_string, trial.hub, 10, first_value=first)
        trial.finish("read", trial.stream().select("partition", "sequenceNumber"), "parquet", path=path)
        found = trial.spark.read.parquet(path)
        expect((found.count(), found.distinct().count()), (total, total))


def limited_batches(trial: Trial) -> None:
    """As many micro-batches as ``maxEventsPerTrigger`` makes of the events."""
    sizes = trial.finish("limited", trial.stream(maxEventsPerTrigger=_LIMIT), "noop")
    if not HAS_LIMITS:
        raise LacksError("a limit of a stream's first micro-batch: before 4.2, Spark gives none")
    expect(max(sizes) <= _LIMIT, True, f"micro-batches of {sizes}")


def hub_sink(trial: Trial) -> None:
    """A table and a stream, each event once."""
    target = trial.service.create_hub(partition_count=2)
    options = {"eventhubs.connectionString": trial.service.hub_connection_string(target)}
    rows = trial.spark.range(50).select(F.col("id").cast("string").alias("body"))
    rows.write.format("eventhubs").options(**options).mode("append").save()
    trial.finish("publish", trial.stream().select("body", "properties"), "eventhubs", **options)
    found = trial.spark.read.format("eventhubs").options(**options).load()
    expect(found.count(), 50 + trial.spark.read.format("eventhubs").options(**trial.options()).load().count())


def file_sink(trial: Trial) -> None:
    """A stream into Parquet files of the format ``eventhubs-files``."""
    path = str(trial.folder / "files")
    trial.finish("files", trial.stream().select("partition", "sequenceNumber"), "eventhubs-files", path=path)
    expect(trial.spark.read.parquet(path).count() >= COUNT, True)


def handler(trial: Trial) -> None:
    """``run_pipeline`` with a function per event: rows, dead letters and checkpoint are exact."""
    hub = trial.service.create_hub(partition_count=2)
    publish(trial.service.connection_string, hub, COUNT)
    run_pipeline(
        trial.spark,
        make_pipeline(hub),
        connection_string=trial.service.connection_string,
        database_url=trial.database("handler"),
        checkpoint_location=trial.checkpoint("handler"),
        trigger=_NOW,
    ).awaitTermination()
    assert_exact(trial.database("handler"), COUNT)


def chosen(events: DataFrame) -> DataFrame:
    """Rows of a table; what is odd has none."""
    value = F.get_json_object(F.col("body").cast("string"), "$.value").cast("int")
    rows = events.select("partition", "sequenceNumber", "offset", "enqueuedTime", value.alias("value"))
    return rows.withColumn("_skip", F.col("value") % 2 == 1)


def sql_sink(trial: Trial) -> None:
    """A declared pipeline of steps into a table, and again from where it ended."""
    pipeline = StreamPipeline("chosen", HubSource(trial.hub), SqlSink(values), [chosen])
    first = _run(trial, pipeline)
    publish(trial.service.connection_string, trial.hub, 10)
    expect(_run(trial, pipeline) - first, 5)


def ledger_sink(trial: Trial) -> None:
    """Counts of a declared pipeline, upserted once per micro-batch, and again from where they ended."""

    def counted(events: DataFrame) -> DataFrame:
        by_parity = events.groupBy(events.properties["parity"].alias("parity"))
        return by_parity.agg(F.count("*").alias("events"))

    pipeline = StreamPipeline("parities", HubSource(trial.hub), SqlBatchSink(parities), [counted])
    _run(trial, pipeline)
    publish(trial.service.connection_string, trial.hub, 10)
    _run(trial, pipeline)
    with Database.open(trial.database("parities")) as database, database.read() as connection:
        found = connection.execute(select(func.sum(parities.c.events))).scalar_one()
    expect(found, trial.spark.read.format("eventhubs").options(**trial.options()).load().count())


def _run(trial: Trial, pipeline: StreamPipeline) -> int:
    url = trial.database(pipeline.name)
    start_stream_pipeline(
        trial.spark,
        pipeline,
        connection_string=trial.service.connection_string,
        database_url=url,
        checkpoint_location=trial.checkpoint(pipeline.name),
        trigger=_NOW,
    ).awaitTermination()
    (table,) = (parities,) if isinstance(pipeline.sink, SqlBatchSink) else (values,)
    with Database.open(url) as database, database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def capture_read(trial: Trial) -> None:
    """Captured events as a table."""
    root = trial.folder / "captured"
    write_file(root, [azure_record(number) for number in range(100)])
    rows = trial.spark.read.format("eventhubs-capture").option("path", str(root)).load()
    expect((rows.count(), rows.where("sequenceNumber < 7").count()), (100, 7))


def mapped(trial: Trial) -> None:
    """``mapped_events``: a function of Arrow batches where they are read."""
    step = ArrowStep(lambda batches: batches, "partition string, sequenceNumber long")
    rows = mapped_events(trial.spark, trial.options(), step, columns=["partition", "sequenceNumber"])
    path = str(trial.folder / "mapped")
    trial.finish("mapped", rows, "parquet", path=path)
    expect(trial.spark.read.parquet(path).count() >= COUNT, True)


def reports(trial: Trial) -> None:
    """``reported_query``: the status that the console and ``tidegate pipeline status`` show."""
    os.environ["TIDEGATE_STATE_DIR"] = str(trial.folder)
    Database.open(trial.database("letters")).close()
    with reported_query(
        trial.spark,
        "reports",
        ConsumerKey(trial.hub),
        connection_string=trial.service.connection_string,
        database_url=trial.database("letters"),
        sink="noop",
        target="nothing",
        checkpoint=trial.checkpoint("reports"),
    ) as running:
        running()
        trial.finish("reports", trial.stream(), "noop")
    status = PipelineFiles.of_user(os.environ).read("reports")
    expect((status.state, status.events_total), (PipelineState.ENDED, COUNT))


FEATURES: Final[dict[str, Callable[[Trial], None]]] = {
    "batch read": batch_read,
    "stream": stream_read,
    "limited micro-batches": limited_batches,
    "hub sink": hub_sink,
    "file sink": file_sink,
    "run_pipeline": handler,
    "SqlSink": sql_sink,
    "LedgerSink": ledger_sink,
    "mapped_events": mapped,
    "reported_query": reports,
    "Capture": capture_read,
}


def expect(found: object, wanted: object, words: str = "") -> None:
    """Raise unless both are the same."""
    if found != wanted:
        raise AssertionError(words or f"{found!r} instead of {wanted!r}")


def result_of(run: Callable[[], None]) -> str:
    """One feature's result, in a line."""
    try:
        run()
    except LacksError as error:
        return f"lacks: {error}"
    except AssertionError as error:
        return f"failed: {error}"
    except Exception as error:
        ours = error if isinstance(error, TidegateError) else error_in(error)
        if ours is not None:
            return f"refused: {ours}"
        print(error, file=sys.stderr)
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "works"


def session(*, is_connect: bool) -> SparkSession:
    """As a notebook has it: with nothing of ours but what makes a short program quick."""
    os.environ.update(find_java().environment(), PYSPARK_PYTHON=sys.executable)
    builder = SparkSession.builder
    builder = builder.remote("local[2]") if is_connect else builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Try the features that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", action="store_true")
    parser.add_argument("features", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-matrix-") as folder, HubService() as service:
        spark = session(is_connect=given.connect)
        register(spark)
        for feature in given.features or FEATURES:
            started = time.monotonic()
            for attempt in range(_ATTEMPTS):
                place = Path(folder, f"{feature} {attempt}".replace(" ", "-"))
                place.mkdir()
                result = result_of(partial(FEATURES[feature], Trial(spark, service, place)))
                if _SLOW_START not in result:
                    break
            seconds = round(time.monotonic() - started, 1)
            print(json.dumps({"feature": feature, "result": result, "seconds": seconds}), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()

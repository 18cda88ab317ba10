"""A Spark driver for the tests that kill one: windowed counts of files of readings, until there are no more.

    python -m tests.spark.ledger_driver '{"readings": …, "checkpoints": …, "update_url": …, "append_url": …}'

Two queries at once: one upserts windows as they grow, one appends those that are closed. Ends with 0 when
both are done, with 1 and the explained error on standard output otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Column, DateTime, Integer, MetaData, Table
from tests.spark.conftest import QUICK_START

from tidegate.spark import LedgerSink, Trigger, WriteMode, explain, spark_session

WATERMARK = "2 minutes"
UPSERTS, APPENDS = "minutes", "final minutes"

minutes = Table(
    "minutes",
    MetaData(),
    Column("minute", DateTime(timezone=True), primary_key=True),
    Column("home", Integer, primary_key=True, autoincrement=False),
    Column("readings", Integer, nullable=False),
    Column("total", Integer, nullable=False),
)
"""For upserts of rows that are complete each time."""
final_minutes = Table(
    "final_minutes",
    MetaData(),
    Column("minute", DateTime(timezone=True)),
    Column("home", Integer),
    Column("readings", Integer),
    Column("total", Integer),
)
"""For windows that are closed; without a key on purpose: a row that is written twice must show."""


def per_minute(stream: DataFrame) -> DataFrame:
    """Readings and their sum, by home and minute."""
    return (
        stream.withWatermark("time", WATERMARK)
        .groupBy(F.window("time", "1 minute").alias("window"), "home")
        .agg(F.count("*").cast("int").alias("readings"), F.sum("value").cast("int").alias("total"))
        .select(F.col("window.start").alias("minute"), "home", "readings", "total")
    )


def causes_of(error: Exception) -> Iterator[str]:
    """What Java says is behind an error of Spark, which often says only that it waited for something."""
    cause: Any = getattr(error, "_origin", None)
    while cause is not None:
        yield str(cause.toString())[:2000]
        cause = cause.getCause()


def main() -> int:
    """Run the query with the arguments in ``sys.argv[1]``."""
    arguments = json.loads(sys.argv[1])
    spark = spark_session("ledger-driver", cores=2, java_options=QUICK_START, log_level="OFF")
    stream = (
        spark.readStream.schema("time TIMESTAMP, home INT, value INT")
        .option("maxFilesPerTrigger", 1)
        .json(arguments["readings"])
    )
    # Upserts are staged by tasks, so that kills leave strays; appends go through the driver.
    upserts = LedgerSink(
        name=UPSERTS, database_url=arguments["update_url"], table=minutes, driver_bytes_max=0
    )
    appends = LedgerSink(
        name=APPENDS, database_url=arguments["append_url"], table=final_minutes, mode=WriteMode.APPEND
    )
    try:
        queries = [
            sink.start(
                per_minute(stream),
                checkpoint_location=f"{arguments['checkpoints']}/{output_mode}",
                output_mode=output_mode,
                trigger=Trigger(is_available_now=True),
            )
            for sink, output_mode in ((upserts, "update"), (appends, "append"))
        ]
        for query in queries:
            query.awaitTermination()
    except Exception as error:
        print(explain(error), *causes_of(error), sep="\n", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Spark driver for the fault tests: runs one kind of work until it is killed.

    python -m tests.spark.faults.driver '{"master": "spark://…", "work": "partitions", …}'

Where it ends by itself, its last line is ``ENDED <class of the error>: <what explain says>``.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.conftest import QUICK_START
from tests.spark.faults.work import aggregate, aggregates, make_pipeline

from tidegate.model.connection_string import ConnectionString
from tidegate.spark import explain, register, run_pipeline, spark_session
from tidegate.sql import ConsumerKey

ENDED_MARK: Final = "ENDED"

_CONFIGURATION: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.memory": "640m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Tasks run a second time as soon as they are a little slower than the first that was done.
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.efficiency.enabled": "false",
}


def main() -> int:
    """Run the work that ``sys.argv[1]`` names."""
    arguments = json.loads(sys.argv[1])
    try:
        spark = spark_session(
            "chaos",
            master=arguments["master"],
            configuration=_CONFIGURATION | {"spark.executorEnv.PYTHONPATH": arguments["python_path"]},
            log_level="OFF",
            are_executors_checked=False,
        )
        query = {"partitions": _start_partitions, "aggregates": _start_aggregates}[arguments["work"]](
            spark, arguments
        )
        query.awaitTermination()
    except Exception as error:
        print(f"{ENDED_MARK} {_class_of(error)}: {explain(error)}", flush=True)
        return 1
    return 0


def _start_partitions(spark: SparkSession, arguments: dict[str, str]) -> StreamingQuery:
    return run_pipeline(
        spark,
        make_pipeline(arguments["event_hub"]),
        connection_string=arguments["connection_string"],
        database_url=arguments["database_url"],
        checkpoint_location=arguments["checkpoint"],
        max_events_per_trigger=int(arguments["max_events_per_trigger"]),
        transaction_rows_max=int(arguments["max_events_per_trigger"]) // 40,
    )


def _start_aggregates(spark: SparkSession, arguments: dict[str, str]) -> StreamingQuery:
    from tidegate.spark.ledger.ledger import LedgerSink

    register(spark)
    connection = ConnectionString.parse(arguments["connection_string"])
    events = (
        spark.readStream.format("eventhubs")
        .option("connectionString", connection.with_entity_path(arguments["event_hub"]).format())
        .option("maxEventsPerTrigger", arguments["max_events_per_trigger"])
        .load()
    )
    sink = LedgerSink(
        name="chaos",
        database_url=arguments["database_url"],
        table=aggregates,
        consumer=ConsumerKey(arguments["event_hub"], "$Default"),
    )
    return sink.start(aggregate(events), checkpoint_location=arguments["checkpoint"])


def _class_of(error: Exception) -> str:
    """Tidegate's class at the root of Spark's error, else the error's own."""
    found = re.findall(r"tidegate(?:\.\w+)+\.(\w+Error)\b", f"{type(error).__module__}.{error}")
    return found[-1] if found else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

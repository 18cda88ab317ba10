"""A Spark driver for the tests that kill one: copies a hub to another hub and to files until both are done.

python -m tests.spark.sink_driver '{"source": …, "target": …, "files": …, "checkpoint": …}'
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import functions as sf
from tests.spark.conftest import QUICK_START

from tidegate.spark import explain, register, spark_session


def main() -> int:
    """Run both queries with the arguments in ``sys.argv[1]``."""
    arguments = json.loads(sys.argv[1])
    spark = spark_session("driver", cores=2, java_options=QUICK_START, log_level="OFF")
    register(spark)
    try:
        events = (
            spark.readStream.format("eventhubs")
            .option("eventhubs.connectionString", arguments["source"])
            .option("eventhubs.maxEventsPerTrigger", str(arguments["max_events_per_trigger"]))
            .load()
        )
        to_hub = (
            events.select("body", "partitionKey")
            .writeStream.format("eventhubs")
            .option("eventhubs.connectionString", arguments["target"])
            .option("checkpointLocation", arguments["checkpoint"] + "/hub")
            .trigger(availableNow=True)
            .start()
        )
        # One after the other: Spark gives each Python process 10 s to start, little on a busy machine.
        while to_hub.isActive and to_hub.lastProgress is None:
            time.sleep(0.05)
        to_files = (
            events.select(sf.col("body").cast("string").alias("body"), "partition")
            .writeStream.format("eventhubs-files")
            .option("fileFormat", "json")
            .option("partitionColumns", "partition")
            .option("checkpointLocation", arguments["checkpoint"] + "/files")
            .trigger(availableNow=True)
            .start(arguments["files"])
        )
        to_hub.awaitTermination()
        to_files.awaitTermination()
    except Exception as error:
        print(explain(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

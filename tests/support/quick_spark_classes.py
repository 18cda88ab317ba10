"""Lets Spark load the classes that tests need, and its JVM end by itself: it writes the archive then."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import functions as F
from tests.spark.support import make_pipeline, publish

from tidegate.spark import Trigger, register, run_pipeline, spark_session
from tidegate.testing.hub import HubService


def main() -> None:
    """A pipeline into SQLite, a window's state, files, and Python in tasks."""
    spark = spark_session("classes", cores=2, log_level="OFF")
    register(spark)
    gateway = SparkContext._gateway
    assert gateway is not None
    with HubService() as service, tempfile.TemporaryDirectory() as folder:
        hub = service.create_hub(partition_count=2)
        publish(service.connection_string, hub, 400)
        run_pipeline(
            spark,
            make_pipeline(hub),
            connection_string=service.connection_string,
            database_url=f"sqlite:///{folder}/database",
            checkpoint_location=Path(folder, "pipeline"),
            trigger=Trigger(is_available_now=True),
            max_events_per_trigger=100,
        ).awaitTermination()
        options = {"eventhubs.connectionString": service.connection_string, "eventhubs.eventHubName": hub}
        rows = spark.readStream.format("eventhubs").options(**options).load()
        windows = rows.withWatermark("enqueuedTime", "1 minute").groupBy(F.window("enqueuedTime", "1 minute"))
        files = windows.count().writeStream.format("parquet").option("path", f"{folder}/files")
        files.option("checkpointLocation", f"{folder}/windows").trigger(
            availableNow=True
        ).start().awaitTermination()
        spark.read.parquet(f"{folder}/files").toPandas()
        spark.range(10).mapInArrow(lambda batches: batches, "id long").toPandas()
        spark.sql("select count(*), id % 3 from range(100) group by 2 order by 2").collect()
    spark.stop()
    process = gateway.proc
    process.stdin.close()
    process.wait()


if __name__ == "__main__":
    main()

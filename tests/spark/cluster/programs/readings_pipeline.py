"""A user's program for spark-submit: processes what the hub holds, and ends."""

from __future__ import annotations

import os

from readings_scoring import readings, score  # type: ignore[import-not-found]

from tidegate.spark import Trigger, run_pipeline, spark_session
from tidegate.sql import Pipeline

if __name__ == "__main__":
    spark = spark_session("readings")
    query = run_pipeline(
        spark,
        Pipeline("readings", os.environ["READINGS_HUB"], readings, score),
        connection_string=os.environ["TIDEGATE_CONNECTION_STRING"],
        database_url=os.environ["TIDEGATE_DATABASE"],
        checkpoint_location=os.environ["READINGS_CHECKPOINT"],
        trigger=Trigger(is_available_now=True),
        max_events_per_trigger=int(os.environ["READINGS_PER_TRIGGER"]),
        ca_file=os.environ.get("READINGS_CA_FILE"),
    )
    query.awaitTermination()
    spark.stop()

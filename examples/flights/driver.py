"""The example's Spark driver, a process of its own: ``python -m examples.flights.driver``.

It processes the events in the hub and exits. The connection string and the database's URL are environment
variables, because every user of the machine can read command lines.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from examples.flights.scoring import pipeline
from examples.support.screen import visible
from examples.support.service import CONNECTION_STRING_VARIABLE, DATABASE_VARIABLE
from tidegate.spark import Trigger, explain, reported_query, run_pipeline, spark_session
from tidegate.sql import ConsumerKey

TRANSACTIONS_PER_BATCH = 12
"""About three per hub partition, so that a micro-batch spends most of its time between its first and last
commit."""


def main() -> int:
    """Process the events in the hub; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--started-file", type=Path, required=True, help="made when the query has begun")
    parser.add_argument("--events-per-trigger", type=int, required=True)
    arguments = parser.parse_args()
    connection_string, database_url = os.environ[CONNECTION_STRING_VARIABLE], os.environ[DATABASE_VARIABLE]
    spark = spark_session("tidegate example flights")
    try:
        with reported_query(
            spark,
            pipeline.name,
            ConsumerKey(pipeline.event_hub, pipeline.consumer_group),
            connection_string=connection_string,
            database_url=database_url,
            sink="sql",
            target=pipeline.table.name,
            checkpoint=str(arguments.checkpoint_dir),
        ) as tell_running:
            query = run_pipeline(
                spark,
                pipeline,
                connection_string=connection_string,
                database_url=database_url,
                checkpoint_location=arguments.checkpoint_dir,
                trigger=Trigger(is_available_now=True),
                max_events_per_trigger=arguments.events_per_trigger,
                transaction_rows_max=max(1, arguments.events_per_trigger // TRANSACTIONS_PER_BATCH),
            )
            tell_running()
            arguments.started_file.touch()
            query.awaitTermination()
    except Exception as error:  # any error of a query: one sentence instead of Java's stack trace
        sys.stderr.write(visible(f"{explain(error)}\n"))
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

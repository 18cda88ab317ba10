"""A user's program whose rows tell where they were made. Its first micro-batch waits for more executors.

    python joined_executors.py HUB EVENTS_PER_TRIGGER EXECUTORS DIRECTORY

DIRECTORY: gets the file ``started`` once the pipeline runs, and ``joined`` once there are that many
executors.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from sqlalchemy import Column, Integer, MetaData, String, Table

from tidegate.model.events import ReceivedEvent
from tidegate.spark import Trigger, run_pipeline, spark_session
from tidegate.sql import Pipeline

places = Table(
    "places",
    MetaData(),
    Column("stage", Integer, nullable=False),
    Column("executor", String(200), nullable=False),
)


def place_in(directory: str, event: ReceivedEvent) -> dict[str, object]:
    """Of which micro-batch (it has one stage), and the executor's own directory."""
    while not Path(directory, "joined").exists():
        time.sleep(0.05)
    context = TaskContext.get()
    assert context is not None
    return {"stage": context.stageId(), "executor": os.getcwd()}


if __name__ == "__main__":
    hub, events_per_trigger, executors, directory = sys.argv[1:]
    spark = spark_session("places")
    query = run_pipeline(
        spark,
        Pipeline("places", hub, places, lambda event: place_in(directory, event)),
        connection_string=os.environ["TIDEGATE_CONNECTION_STRING"],
        database_url=os.environ["TIDEGATE_DATABASE"],
        checkpoint_location=Path(directory, "checkpoint"),
        trigger=Trigger(is_available_now=True),
        max_events_per_trigger=int(events_per_trigger),
    )
    Path(directory, "started").touch()
    context: Any = spark.sparkContext._jsc.sc()  # type: ignore[union-attr,unused-ignore]
    while query.isActive and context.getExecutorMemoryStatus().size() < int(executors) + 1:  # and the driver
        time.sleep(0.05)
    Path(directory, "joined").touch()
    query.awaitTermination()
    spark.stop()

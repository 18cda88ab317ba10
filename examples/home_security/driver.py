"""The Spark driver of the demo, a process of its own: ``python -m examples.home_security.driver``.

It runs until its stop file appears, processes the remaining events, and exits. The connection string and the
database's URL are environment variables, because every user of the machine can read command lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from examples.home_security.latencies import Latencies
from examples.home_security.pipeline import (
    ARRIVALS,
    JAVA_OPTIONS,
    SPARK_SETTINGS,
    HomeSecurity,
    start_home_security,
)
from examples.home_security.status import write_status
from examples.home_security.tables import CONSUMER, NAME, home_alarm, home_minute
from examples.support.screen import visible
from examples.support.service import CONNECTION_STRING_VARIABLE, DATABASE_VARIABLE
from tidegate.spark import explain, reported_query, spark_session

_LOOK_EVERY_S = 0.2


class ProgressFile:
    """Maintains a file with the query's progress and speed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latencies, self._recent = Latencies(), Latencies()
        self._committed_ms: dict[int, int] = {}
        self._last_batch_id = -1
        self._status: dict[str, Any] = {"events": 0, "position": 0, "dropped": 0, "batches": 0}

    def note_commit(self, batch_id: int) -> None:
        """Record that a micro-batch is in SQL now."""
        self._committed_ms[batch_id] = time.time_ns() // 1_000_000

    def update(self, query: StreamingQuery) -> None:
        """Add the query's progress since the last call, and write the file."""
        for progress in query.recentProgress:
            if progress.batchId > self._last_batch_id:
                self.take(json.loads(progress.json))
        status = self._status
        for name, latencies in (("", self._latencies), ("recent_", self._recent)):
            status[f"{name}p50_ms"] = latencies.percentile_ms(0.5)
            status[f"{name}p99_ms"] = latencies.percentile_ms(0.99)
        write_status(self._path, status)

    def forget_latencies(self) -> None:
        """Start measuring latencies again."""
        self._latencies, self._recent = Latencies(), Latencies()

    def take(self, progress: dict[str, Any]) -> None:
        """Add one progress report of the query, as its JSON."""
        status = self._status
        self._last_batch_id = batch_id = progress["batchId"]
        status["batches"] += 1
        status["batch_id"] = batch_id
        status["batch_ms"] = progress["durationMs"].get("triggerExecution", 0)
        end = progress["sources"][0]["endOffset"]
        status["position"] = sum(end["partitions"].values()) if end else 0
        watermark = progress["eventTime"].get("watermark")
        if watermark is not None:
            status["watermark_ms"] = round(datetime.fromisoformat(watermark).timestamp() * 1000)
        for operator in progress["stateOperators"]:
            status["state_bytes"] = operator["customMetrics"].get("rocksdbSstFileSize", 0)
            status["dropped"] += operator["numRowsDroppedByWatermark"]
        observed = progress.get("observedMetrics", {}).get(ARRIVALS)
        committed_ms = self._committed_ms.pop(batch_id, None)
        if observed is None or not observed["events"]:
            return
        status["events"] += observed["events"]
        if committed_ms is not None:
            self._recent = Latencies()
            for latencies in (self._latencies, self._recent):
                latencies.add(observed["enqueued_ms"], observed["events"], committed_ms)


def main() -> int:
    """Run the pipeline; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint-dir", required=True, help="a directory, or a URL that Spark knows")
    for name in ("status-file", "stop-file"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--summaries")
    parser.add_argument("--watermark-delay", type=float, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--events-per-trigger", type=int, required=True)
    parser.add_argument("--master", help="of a Spark cluster; else this machine")
    parser.add_argument(
        "--tasks", type=int, help="of each stage of a micro-batch: how many cores can share it"
    )
    given = parser.parse_args()
    wanted = HomeSecurity(
        connection_string=os.environ[CONNECTION_STRING_VARIABLE],
        database_url=os.environ[DATABASE_VARIABLE],
        checkpoint_location=given.checkpoint_dir,
        summaries_url=given.summaries,
        watermark_delay_s=given.watermark_delay,
        blocks=given.blocks,
        max_events_per_trigger=given.events_per_trigger,
        tasks=given.tasks,
    )
    spark = spark_session(
        "tidegate example home security",
        master=given.master,
        configuration=SPARK_SETTINGS,
        java_options=JAVA_OPTIONS,
    )
    try:
        progress = ProgressFile(given.status_file)
        with reported_query(
            spark,
            NAME,
            CONSUMER,
            connection_string=wanted.connection_string,
            database_url=wanted.database_url,
            sink="sql-batch",
            target=f"{home_minute.name}, {home_alarm.name}",
            checkpoint=str(wanted.checkpoint_location),
        ) as tell_running:
            query = start_home_security(spark, wanted, on_committed=progress.note_commit)
            tell_running()
            while not given.stop_file.exists() and query.isActive:
                progress.update(query)
                time.sleep(_LOOK_EVERY_S)
            query.processAllAvailable()
            progress.update(query)
            query.stop()
    except Exception as error:  # any error of a query: one sentence instead of Java's stack trace
        sys.stderr.write(visible(f"{explain(error)}\n"))
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

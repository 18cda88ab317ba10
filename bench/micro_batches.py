"""A query's micro-batches, once the first is over: their rate, their processor time and their state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from bench.measure import family_cpu_s, own_cpu_s

ALL_PROGRESS: Final = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
"""A setting of Spark's, which forgets those of all but the last 100 micro-batches else."""

_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Run:
    """One variant, measured."""

    name: str
    events: int
    elapsed_s: float
    """Sum of the micro-batches, the first one left out."""
    batch_ms: float
    """The median micro-batch."""
    cpu_us_per_event: float
    """Of the driver, its JVM, Python workers, the service and PostgreSQL."""
    state_bytes: int = 0
    """Of all blocks, as they are handed to the state store."""
    rocksdb_bytes: int = 0
    """What RocksDB holds: memory (memtables, caches) and files together."""
    floor_per_s: float | None = None
    """What a run of this kind has to reach, in events per second."""

    @property
    def events_per_s(self) -> float:
        """Events per second, start of the query left out."""
        return self.events / self.elapsed_s if self.elapsed_s else 0.0


def measure_query(
    name: str,
    start: Callable[[], StreamingQuery],
    *,
    events: int | None = None,
    server_pid: int | None = None,
) -> Run:
    """Run a query to the end of what there is, or, where its source has no end, for so many events.

    server_pid: a process whose family's time counts, too, and which no child of this one has started.
    Raises what the query ends with.
    """

    def cpu_now_s() -> float:
        return own_cpu_s(with_descendants=True) + (family_cpu_s(server_pid) if server_pid else 0.0)

    _progress.print(f"measuring: {name}")
    query = start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.02)  # the first micro-batch, which is left out
    begun, cpu_s = len(query.recentProgress), cpu_now_s()
    if events is None:
        query.processAllAvailable()
    while events and sum(progress.numInputRows for progress in query.recentProgress[begun:]) < events:
        if query.awaitTermination(1):
            raise RuntimeError(f"{name} has ended before its {events:,} events")
    cpu_s = cpu_now_s() - cpu_s
    batches = [json.loads(progress.json) for progress in query.recentProgress[begun:]]
    batches = [batch for batch in batches if batch["numInputRows"]]
    query.stop()
    count = sum(batch["numInputRows"] for batch in batches)
    times_ms = sorted(batch["durationMs"]["triggerExecution"] for batch in batches)
    stores = [operator for batch in batches for operator in batch["stateOperators"]]
    stores = [store for store in stores if "rocksdbSstFileSize" in store["customMetrics"]]
    observed = [batch.get("observedMetrics", {}).get("state") for batch in batches]
    run = Run(
        name,
        events=count,
        elapsed_s=sum(times_ms) / 1000,
        batch_ms=times_ms[len(times_ms) // 2] if times_ms else 0.0,
        cpu_us_per_event=cpu_s / max(1, count) * 1e6,
        state_bytes=max((found["bytes"] or 0 for found in observed if found), default=0),
        rocksdb_bytes=max(
            (store["memoryUsedBytes"] + store["customMetrics"]["rocksdbSstFileSize"] for store in stores),
            default=0,
        ),
    )
    _progress.print(f"  {run.events_per_s:,.0f} events/s, {run.cpu_us_per_event:.1f} µs of CPU per event")
    return run

"""Home security at 100,000 homes: sustained rate, state, and latency, beside runs that leave parts out.

    python -m bench.home_security [--events N] [--homes N] [--per-batch N] [--sqlite]

Every variant reads the same hub from the start in micro-batches of the same size, in the same Spark, after a
run of its own that warms it up. The ratios are to the variant ``gathered``, which reads, parses and sorts
events by blocks and writes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from tidegate.demos.home_security.generator import GeneratorPlan
from tidegate.demos.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB, PARTITION_COUNT
from tidegate.demos.home_security.pipeline import (
    SPARK_SETTINGS,
    HomeSecurity,
    changes_of_homes,
    gathered_events,
    start_home_security,
)
from tidegate.demos.home_security.publish import Publishing, publish
from tidegate.spark import register, spark_session
from tidegate.testing.hub import HubProcess
from tidegate.testing.postgresql import PostgresqlServer

_RATE = 20_000.0
_WATERMARK_DELAY_S = 300.0
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
    state_bytes: int

    @property
    def events_per_s(self) -> float:
        """Events per second, start of the query left out."""
        return self.events / self.elapsed_s if self.elapsed_s else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--homes", type=int, default=100_000)
    parser.add_argument("--per-batch", type=int, default=100_000)
    parser.add_argument("--sqlite", action="store_true", help="instead of PostgreSQL")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        service = stack.enter_context(_filled_service(directory, given.events, given.homes))
        database_url = f"sqlite:///{directory}/homes.db"
        if not given.sqlite:
            database_url = stack.enter_context(PostgresqlServer()).create_database()
        spark = spark_session("bench", configuration=SPARK_SETTINGS)
        stack.callback(spark.stop)
        register(spark)
        wanted = HomeSecurity(
            connection_string=service.connection_string,
            database_url=database_url,
            checkpoint_location=directory,
            summaries_url=None,
            watermark_delay_s=_WATERMARK_DELAY_S,
            blocks=BLOCKS_DEFAULT,
            max_events_per_trigger=given.per_batch,
        )
        _print(list(_runs(spark, wanted, directory)))


@contextmanager
def _filled_service(directory: Path, events: int, homes: int) -> Iterator[HubProcess]:
    with HubProcess(directory / "data") as service:
        service.create_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        _progress.print("filling the hub …")
        plan = GeneratorPlan(homes=homes, rate=_RATE, co_after_s=0)
        wanted = Publishing(service.connection_string, plan, events / _RATE, is_paced=False)
        asyncio.run(publish(wanted, lambda generator, elapsed_s: None, asyncio.Event()))
        yield service


def _runs(spark: SparkSession, wanted: HomeSecurity, directory: Path) -> Iterator[Run]:
    def variant(name: str, **changes: object) -> HomeSecurity:
        fields = {field: getattr(wanted, field) for field in HomeSecurity.__slots__}
        return HomeSecurity(**fields | {"checkpoint_location": directory / f"checkpoint-{name}"} | changes)

    _progress.print("measuring: gathered → no-op")
    yield _measure("gathered", _start_noop(gathered_events(spark, wanted), directory / "checkpoint-gathered"))
    for blocks in (PARTITION_COUNT * 8, BLOCKS_DEFAULT, BLOCKS_DEFAULT * 8):
        name = f"state of {blocks} blocks"
        _progress.print(f"measuring: {name} → no-op")
        changes = changes_of_homes(spark, variant(name, blocks=blocks))
        yield _measure(name, _start_noop(changes, directory / f"checkpoint-{blocks}"))
    for name, url in (("SQL and summaries", str(directory / "summaries")),):
        _progress.print(f"measuring: {name}")
        yield _measure(name, start_home_security(spark, variant("whole", summaries_url=url)))


def _start_noop(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    return (
        rows.writeStream.format("noop")
        .outputMode("update" if "minutes" in rows.columns else "append")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def _measure(name: str, query: StreamingQuery) -> Run:
    started = time.monotonic()
    query.processAllAvailable()
    _progress.print(f"  {time.monotonic() - started:.1f} s in all")
    batches = [progress for progress in query.recentProgress if progress.numInputRows][1:]
    query.stop()
    times_ms = sorted(progress.durationMs["triggerExecution"] for progress in batches)
    states = [operator.customMetrics for progress in batches for operator in progress.stateOperators]
    return Run(
        name,
        sum(progress.numInputRows for progress in batches),
        sum(times_ms) / 1000,
        times_ms[len(times_ms) // 2] if times_ms else 0.0,
        max((int(metrics.get("rocksdbSstFileSize", 0)) for metrics in states), default=0),
    )


def _print(runs: list[Run]) -> None:
    table = Table(title="Home security")
    for column in ("variant", "events", "events/s", "of gathered", "batch p50 ms", "state MB"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    base = runs[0].events_per_s
    for run in runs:
        table.add_row(
            run.name,
            f"{run.events:,}",
            f"{run.events_per_s:,.0f}",
            f"{run.events_per_s / base:.2f}" if base else "",
            f"{run.batch_ms:,.0f}",
            f"{run.state_bytes / 1e6:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()

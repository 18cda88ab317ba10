"""Home security at 100,000 homes: sustained rate, state, and latency, beside runs that leave parts out.

    python -m bench.home_security [--events N] [--homes N] [--per-batch N] [--sqlite] [--json FILE]

Every variant reads the same hub from the start in micro-batches of the same size, in the same Spark, which
has run the whole pipeline once to compile it; the first micro-batch of each, with the query's start, is left
out. Ratios are to ``gathered``, which reads, parses and sorts events by blocks and writes nothing. The
pipeline into SQL runs in turns with its floor, windows by hand (``bench.probes``): the round in the middle.
Latency is measured after that, with a generator that is a process of its own and wants its share of the two
cores, at a part of the rate that the pipeline has shown: from the time at which the hub accepted an event to
the commit of its micro-batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from bench.measure import Measurement, own_cpu_s
from bench.probes import start_windows
from bench.targets import HOMES_BY_HAND, HOMES_STATE_EVENTS_PER_S
from tidegate.demos.home_security.driver import ProgressFile
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
from tidegate.demos.home_security.status import CONNECTION_STRING_VARIABLE, read_status
from tidegate.spark import register, spark_session
from tidegate.testing.hub import HubProcess
from tidegate.testing.postgresql import PostgresqlServer

LATENCY_SHARE = 0.25
"""Of the rate into SQL, at which latency is measured (our choice: a pipeline is not run at its limit, and the
generator, which shares its cores, costs some 20 µs of CPU per event, as much as the pipeline)."""

ROUNDS = 3
"""Of the pipeline into SQL and its floor."""
BY_HAND = "windows by hand"

_RATE = 20_000.0
_WATERMARK_DELAY_S = 300.0
_QUERY_DEADLINE_S = 900.0
_ALL_PROGRESS = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
"""Spark forgets those of all but the last 100 micro-batches else."""
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


@dataclass(frozen=True, slots=True)
class Latency:
    """From an event's acceptance to the commit of its micro-batch, at a steady rate."""

    rate: float
    """Asked for, in events per second."""
    published_per_s: float
    """Reached by the generator."""
    events: int
    batches: int
    p50_ms: float | None
    p99_ms: float | None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--homes", type=int, default=100_000)
    parser.add_argument("--per-batch", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=BLOCKS_DEFAULT)
    parser.add_argument("--latency-s", type=float, default=20.0, help="0: latency is not measured")
    parser.add_argument("--sqlite", action="store_true", help="instead of PostgreSQL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    given = parser.parse_args()
    runs, latency = measure(
        events=given.events,
        homes=given.homes,
        per_batch=given.per_batch,
        blocks=given.blocks,
        latency_s=given.latency_s,
        is_sqlite=given.sqlite,
    )
    print_runs(runs, latency)
    if given.json is not None:
        given.json.write_text(json.dumps(as_dict(runs, latency), indent=2))


def measure(
    *,
    events: int,
    homes: int = 100_000,
    per_batch: int = 100_000,
    blocks: int = BLOCKS_DEFAULT,
    latency_s: float = 20.0,
    is_sqlite: bool = False,
) -> tuple[list[Run], Latency | None]:
    """Every variant, and the latency of the one that writes to SQL."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        service = stack.enter_context(_filled_service(directory, events, homes))
        database_url = f"sqlite:///{directory}/homes.db"
        server = None if is_sqlite else stack.enter_context(PostgresqlServer(is_fsync_used=True))
        spark = spark_session("bench", configuration=SPARK_SETTINGS | _ALL_PROGRESS)
        stack.callback(spark.stop)
        register(spark)
        wanted = HomeSecurity(
            connection_string=service.connection_string,
            database_url=database_url,
            checkpoint_location=directory,
            summaries_url=None,
            watermark_delay_s=_WATERMARK_DELAY_S,
            blocks=blocks,
            max_events_per_trigger=per_batch,
        )

        def variant(name: str, **changes: object) -> HomeSecurity:
            url = server.create_database() if server else f"sqlite:///{directory}/{name}.db"
            more = {"checkpoint_location": directory / f"checkpoint-{name}", "database_url": url}
            return replace(wanted, **more | changes)  # type: ignore[arg-type]

        def by_hand(number: int, rows: int) -> Run:
            assert server is not None
            url, checkpoint = server.create_database(), directory / f"hand-{number}"
            return _measure(BY_HAND, partial(start_windows, spark, url, per_batch, checkpoint), events=rows)

        _progress.print("warming up")
        its = variant("warm", summaries_url=str(directory / "warm"))
        _measure("SQL and pages", partial(start_home_security, spark, its))
        if server is not None:
            by_hand(ROUNDS, events)
        runs = [_measure("gathered", partial(_start_noop, gathered_events(spark, wanted), directory / "g"))]
        changes = changes_of_homes(spark, wanted)
        state = _measure(f"state of {blocks} blocks", partial(_start_noop, changes, directory / "s"))
        runs.append(replace(state, floor_per_s=HOMES_STATE_EVENTS_PER_S))

        rounds: list[tuple[Run, Run]] = []
        for number in range(ROUNDS):
            ours = _measure("SQL", partial(start_home_security, spark, variant(f"SQL-{number}")))
            rounds.append((ours, ours if server is None else by_hand(number, ours.events)))
        rounds.sort(key=lambda found: found[0].events_per_s / found[1].events_per_s)
        ours, hand = rounds[ROUNDS // 2]
        runs.append(ours if server is None else replace(ours, floor_per_s=hand.events_per_s))
        its = variant("SQL-and-pages", summaries_url=str(directory / "pages"))
        runs.append(_measure("SQL and pages", partial(start_home_security, spark, its)))
        if server is not None:
            runs.append(hand)
        if not latency_s:
            return runs, None
        rate = LATENCY_SHARE * ours.events_per_s
        its = variant("latency", max_events_per_trigger=1_000_000)
        return runs, _measure_latency(spark, its, directory, rate=rate, homes=homes, duration_s=latency_s)


@contextmanager
def _filled_service(directory: Path, events: int, homes: int) -> Iterator[HubProcess]:
    with HubProcess(directory / "data") as service:
        service.create_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        _progress.print("filling the hub …")
        plan = GeneratorPlan(homes=homes, rate=_RATE, co_after_s=0)
        wanted = Publishing(service.connection_string, plan, events / _RATE, is_paced=False)
        asyncio.run(publish(wanted, lambda generator, elapsed_s: None, asyncio.Event()))
        yield service


def _start_noop(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    is_state = "state_bytes" in rows.columns
    if is_state:
        rows = rows.observe("state", F.sum("state_bytes").alias("bytes"))
    return (
        rows.writeStream.format("noop")
        .outputMode("update" if is_state else "append")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def _measure(name: str, start: partial[StreamingQuery], *, events: int | None = None) -> Run:
    """Run a query to the end of what there is, or, where its source has no end, for so many events.

    Raises what the query ends with.
    """
    _progress.print(f"measuring: {name}")
    query = start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.02)  # the first micro-batch, which is left out
    begun, cpu_s = len(query.recentProgress), own_cpu_s(with_descendants=True)
    if events is None:
        query.processAllAvailable()
    while events and sum(progress.numInputRows for progress in query.recentProgress[begun:]) < events:
        if query.awaitTermination(1):
            raise RuntimeError(f"{name} has ended before its {events:,} events")
    cpu_s = own_cpu_s(with_descendants=True) - cpu_s
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


def _measure_latency(
    spark: SparkSession, wanted: HomeSecurity, directory: Path, *, rate: float, homes: int, duration_s: float
) -> Latency | None:
    """Run the pipeline behind a generator that keeps a rate, on what is already there and then on that; None:
    the generator has failed."""
    _progress.print(f"measuring: latency at {rate:,.0f} events/s")
    progress = ProgressFile(directory / "latency.json")
    query = start_home_security(spark, wanted, on_committed=progress.note_commit)
    query.processAllAvailable()
    progress.update(query)
    progress.forget_latencies()
    before = read_status(directory / "latency.json")
    generated = directory / "generator.json"
    with _generator(
        wanted.connection_string, generated, rate=rate, homes=homes, duration_s=duration_s
    ) as its:
        deadline = time.monotonic() + _QUERY_DEADLINE_S
        while its.poll() is None and query.isActive and time.monotonic() < deadline:
            progress.update(query)
            time.sleep(0.2)
    query.processAllAvailable()
    progress.update(query)
    query.stop()
    made, status = read_status(generated), read_status(directory / "latency.json")
    if its.returncode or not made or status["p50_ms"] is None:
        _progress.print(f"without latency: the generator ended with exit code {its.returncode}")
        return None
    return Latency(
        rate=rate,
        published_per_s=made["events"] / made["elapsed_s"],
        events=status["events"] - before["events"],
        batches=status["batches"] - before["batches"],
        p50_ms=status["p50_ms"],
        p99_ms=status["p99_ms"],
    )


@contextmanager
def _generator(
    connection_string: str, status: Path, *, rate: float, homes: int, duration_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    plan = GeneratorPlan(homes=homes, rate=rate, seed=2, co_after_s=0)
    words = [sys.executable, "-m", "tidegate.demos.home_security.publish", "--status-file", str(status)]
    words += ["--duration", str(duration_s), "--homes", str(homes), "--seed", str(plan.seed)]
    words += ["--rate", str(rate), "--speed", str(plan.speed), "--co-after", "0"]
    for name in ("malformed_share", "delayed_share", "duplicate_share"):
        words += [f"--{name.replace('_', '-')}", str(getattr(plan, name))]
    process = subprocess.Popen(words, env=os.environ | {CONNECTION_STRING_VARIABLE: connection_string})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def measurements(runs: list[Run]) -> list[Measurement]:
    """The variants beside other stages."""
    names = (
        "home security, gathered",
        "home security, keyed state",
        "home security → PostgreSQL",
        "home security → PostgreSQL and pages",
        HOMES_BY_HAND,
    )
    found = [
        Measurement(
            name, run.events, wall_s=run.elapsed_s, client_cpu_s=run.cpu_us_per_event * run.events / 1e6
        )
        for name, run in zip(names, runs, strict=True)
    ]
    for measurement in found[1:]:
        measurement.compare_with(found[0])
    found[2].compare_with(found[4])
    return found


def print_runs(runs: list[Run], latency: Latency | None, console: Console | None = None) -> None:
    """A table of the variants, a line for the latency. console: None: standard output."""
    table = Table(title="Home security", title_justify="left")
    for column in (
        *("variant", "events", "events/s", "of gathered", "of its floor", "batch p50 ms"),
        *("CPU µs/event", "state MB", "RocksDB MB"),
    ):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for run in runs:
        floor = run.floor_per_s
        table.add_row(
            run.name,
            f"{run.events:,}",
            f"{run.events_per_s:,.0f}",
            f"{run.events_per_s / runs[0].events_per_s:.2f}" if runs[0].events_per_s else "",
            f"{run.events_per_s / floor:.2f} × {floor:,.0f}" if floor else "–",
            f"{run.batch_ms:,.0f}",
            f"{run.cpu_us_per_event:.1f}",
            f"{run.state_bytes / 1e6:.1f}" if run.state_bytes else "–",
            f"{run.rocksdb_bytes / 1e6:.1f}" if run.rocksdb_bytes else "–",
        )
    console = console or Console(width=None if sys.stdout.isatty() else 130)
    console.print(table)
    console.print(
        "State: all blocks as the state store is given them. RocksDB: its memory (memtables, caches) and its "
        "files."
    )
    if latency is not None:
        console.print(
            f"Event to SQL at {latency.published_per_s:,.0f} events/s ({latency.rate:,.0f} asked for), "
            f"{latency.events:,} events in {latency.batches} micro-batches: p50 {latency.p50_ms:,.0f} ms, "
            f"p99 {latency.p99_ms:,.0f} ms."
        )


def as_dict(runs: list[Run], latency: Latency | None) -> dict[str, object]:
    """For JSON."""
    return {
        "runs": [{**asdict(run), "events_per_s": round(run.events_per_s)} for run in runs],
        "latency": None if latency is None else asdict(latency),
    }


if __name__ == "__main__":
    main()

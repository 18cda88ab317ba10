"""Home security at 100,000 homes: sustained rate, state, and latency, beside runs that leave parts out.

    python -m bench.home_security [--events N] [--homes N] [--per-batch N] [--sqlite] [--json FILE]

Every variant reads the same hub from the start in micro-batches of the same size, in the same Spark, which
has run the whole pipeline before to compile it; the first micro-batch of each, with the query's start, is
left out. Ratios are to ``gathered``, which reads, parses and sorts events by blocks and writes nothing. The
pipeline into SQL runs in turns with its floor, windows by hand (``bench.probes``, a process of its own that
was warmed up as long): the round in the middle.
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

from examples.home_security.driver import ProgressFile
from examples.home_security.generator import GeneratorPlan
from examples.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB, PARTITION_COUNT
from examples.home_security.pipeline import (
    JAVA_OPTIONS,
    SPARK_SETTINGS,
    HomeSecurity,
    changes_of_homes,
    gathered_events,
    start_home_security,
)
from examples.home_security.publish import Publishing, publish
from examples.home_security.status import read_status
from examples.support.service import CONNECTION_STRING_VARIABLE
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table
from tests.support.postgresql import PostgresqlServer

from bench.measure import Measurement
from bench.micro_batches import ALL_PROGRESS, Run, measure_query
from bench.probes import measure_windows, probe_process
from bench.targets import HOMES_STATE_EVENTS_PER_S, WINDOWS_BY_HAND
from tidegate.spark import register, spark_session
from tidegate.testing.hub import HubProcess

LATENCY_SHARE = 0.25
"""Of the rate into SQL, at which latency is measured (our choice: a pipeline is not run at its limit, and the
generator, which shares its cores, costs some 20 µs of CPU per event, as much as the pipeline)."""

ROUNDS = 3
"""Of the pipeline into SQL and its floor."""
WARM_UPS = 2
"""Of both: after one, both get faster still."""

_RATE = 20_000.0
_WATERMARK_DELAY_S = 300.0
_QUERY_DEADLINE_S = 900.0
_progress = Console(stderr=True)


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
        spark = spark_session("bench", configuration=SPARK_SETTINGS | ALL_PROGRESS, java_options=JAVA_OPTIONS)
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

        probe = None if server is None else stack.enter_context(probe_process())

        def by_hand(name: str, rows: int) -> Run:
            assert server is not None
            assert probe is not None
            wanted = (server.create_database(), per_batch, directory / name, rows, server.process_id)
            return probe.submit(measure_windows, *wanted).result()

        _progress.print("warming up")
        for number in range(WARM_UPS):
            its = variant(f"warm-{number}", summaries_url=str(directory / f"warm-{number}"))
            measure_query("SQL and pages", partial(start_home_security, spark, its))
            if server is not None:
                by_hand(f"hand-warm-{number}", events)
        runs = [
            measure_query("gathered", partial(_start_noop, gathered_events(spark, wanted), directory / "g"))
        ]
        changes = changes_of_homes(spark, wanted)
        state = measure_query(f"state of {blocks} blocks", partial(_start_noop, changes, directory / "s"))
        runs.append(replace(state, floor_per_s=HOMES_STATE_EVENTS_PER_S))

        rounds: list[tuple[Run, Run]] = []
        for number in range(ROUNDS):
            ours = measure_query("SQL", partial(start_home_security, spark, variant(f"SQL-{number}")))
            rounds.append((ours, ours if server is None else by_hand(f"hand-{number}", ours.events)))
        rounds.sort(key=lambda found: found[0].events_per_s / found[1].events_per_s)
        ours, hand = rounds[ROUNDS // 2]
        runs.append(ours if server is None else replace(ours, floor_per_s=hand.events_per_s))
        its = variant("SQL-and-pages", summaries_url=str(directory / "pages"))
        runs.append(measure_query("SQL and pages", partial(start_home_security, spark, its)))
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
    words = [sys.executable, "-m", "examples.home_security.publish", "--status-file", str(status)]
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
        WINDOWS_BY_HAND,
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

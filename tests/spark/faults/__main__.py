"""``make chaos-spark``: a million events through a Spark cluster under faults, by database and kind of work.

    python -m tests.spark.faults --events 1000000 --database mariadb --work partitions --work aggregates

Ends with status 1 where anything was found wrong, and names the seed to run it again with.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Final

from tests.processor.faults.surroundings import SEED_VARIABLE, SERVERS, chosen_seed
from tests.processor.faults.work import PARTITION_COUNT
from tests.spark.faults.chaos import Fault, SparkChaosSettings
from tests.spark.faults.runs import SparkChaosResult, run_chaos
from tests.support.spark_cluster import SparkCluster

_WORK: Final = ("partitions", "aggregates")


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.faults", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events in all, for each kind of work")
    parser.add_argument("--workers", type=int, default=2, help="workers of the cluster, one core each")
    parser.add_argument("--per-trigger", type=int, default=20_000, help="events of a micro-batch at most")
    parser.add_argument(
        "--fault-interval",
        type=float,
        nargs=2,
        default=(0.5, 3.0),
        metavar=("MIN", "MAX"),
        help="seconds from one fault to the next",
    )
    parser.add_argument("--work", action="append", choices=_WORK, help="once or twice; both without it")
    parser.add_argument(
        "--database", action="append", choices=tuple(SERVERS), help="may be repeated; all without it"
    )
    arguments = parser.parse_args()
    seed = chosen_seed()
    results = []
    with SparkCluster(workers=arguments.workers) as cluster:
        for database, work in itertools.product(arguments.database or SERVERS, arguments.work or _WORK):
            settings = SparkChaosSettings(
                events=arguments.events // PARTITION_COUNT * PARTITION_COUNT,
                seed=seed,
                work=work,
                max_events_per_trigger=arguments.per_trigger,
                life_events_min=3 * arguments.per_trigger,
                fault_interval_s=tuple(arguments.fault_interval),
                drain_s=600.0,
            )
            print(
                f"--- {database}, {work}: {settings.events:,} events, {arguments.workers} workers", flush=True
            )
            result = run_chaos(settings, cluster, database, tell=lambda line: print(line, flush=True))
            print(_table(work, result, settings), flush=True)
            results.append(result)
    is_idle = any(not result.report.speculations for result in results)
    if is_idle:
        print("No attempt of a task was overtaken by a speculative one: the run proves nothing about those.")
    return int(is_idle or any(result.findings for result in results))


def _table(work: str, result: SparkChaosResult, settings: SparkChaosSettings) -> str:
    """What was done and what is there; then everything that is wrong."""
    report, totals = result.report, result.totals
    cells = {
        "events": f"{settings.events:,}",
        "rows" if work == "partitions" else "events in aggregates": f"{totals.rows:,}",
        "dead letters": f"{totals.dead_letters:,}",
        "sum of both": f"{totals.rows + totals.dead_letters:,}",
        **{fault.value: f"{report.faults[fault]:,}" for fault in Fault},
        "attempts given up for a speculative one": f"{report.speculations:,}",
        "driver starts": f"{report.driver_starts:,}",
        **{f"drivers ended by {name}": f"{count:,}" for name, count in report.driver_ends.items()},
        "elapsed": f"{report.elapsed_s:.1f} s",
        "events per second": f"{settings.events / report.elapsed_s:,.0f}",
        "found wrong": f"{len(result.findings):,}",
    }
    lines = [f"{name:42}{cell:>14}" for name, cell in cells.items()]
    where = f"WRONG in {work} ({SEED_VARIABLE}={settings.seed})"
    lines += [f"{where}: {finding}" for finding in result.findings]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

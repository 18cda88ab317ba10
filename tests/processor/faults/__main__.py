"""``make chaos``: the run under faults at full length, once for each database, with a table at the end.

    python -m tests.processor.faults --events 1000000 --database sqlite --database postgresql

Ends with status 1 where anything was found wrong, and names the seed to run it again with.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack
from typing import Final

from tests.processor.faults.chaos import ChaosSettings, Fault
from tests.processor.faults.runs import ChaosResult, run_chaos
from tests.processor.faults.surroundings import SEED_VARIABLE, SERVERS, chosen_seed
from tests.processor.faults.work import PARTITION_COUNT

_DATABASES: Final = ("sqlite", *SERVERS)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tests.processor.faults", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events in all")
    parser.add_argument("--hosts", type=int, default=5, help="host processes")
    parser.add_argument("--lease", type=float, default=3.0, help="lease duration in seconds")
    parser.add_argument("--plain", action="store_true", help="at-least-once checkpoints, no transactions")
    parser.add_argument(
        "--database", action="append", choices=_DATABASES, help="may be repeated; all without it"
    )
    arguments = parser.parse_args()
    settings = ChaosSettings(
        events=arguments.events // PARTITION_COUNT * PARTITION_COUNT,
        seed=chosen_seed(),
        hosts=arguments.hosts,
        events_per_s=1_000_000.0,
        lease_duration_s=arguments.lease,
        fault_interval_s=(0.4, 1.6),
        is_transactional=not arguments.plain,
        drain_s=600.0,
    )
    results = {}
    for name in arguments.database or _DATABASES:
        print(f"--- {name}: {settings.events:,} events, {settings.hosts} hosts", flush=True)
        results[name] = _run(name, settings)
    print(_table(results, settings))
    return int(any(result.findings for result in results.values()))


def _run(database: str, settings: ChaosSettings) -> ChaosResult:
    with ExitStack() as stack:
        url = None
        if database in SERVERS:
            server = SERVERS[database]()
            stack.enter_context(server)
            url = server.create_database()
        return asyncio.run(run_chaos(settings, url, tell=lambda line: print(line, flush=True)))


def _table(results: dict[str, ChaosResult], settings: ChaosSettings) -> str:
    """What was done and what is there, a column for each database; then everything that is wrong."""
    rows: dict[str, list[str]] = {}
    for result in results.values():
        report, totals = result.report, result.totals
        cells = {"events": f"{report.events:,}"}
        if settings.is_transactional:
            cells["rows"] = f"{totals.rows:,}"
            cells["dead letters"] = f"{totals.dead_letters:,}"
            cells["rows + dead letters"] = f"{totals.rows + totals.dead_letters:,}"
        else:
            cells["events seen"] = f"{totals.rows:,}"
            cells["seen again"] = f"{totals.seen_again:,}"
        cells |= {
            **{fault.value: f"{report.faults[fault]:,}" for fault in Fault},
            "connections cut": f"{report.connections_cut:,}",
            "of them in commit": f"{report.commits_cut:,}",
            "host restarts": f"{report.starts:,}",
            "takeovers": f"{totals.takeovers:,}",
            "transactions fenced": f"{report.fenced:,}",
            "elapsed": f"{report.elapsed_s:.1f} s",
            "events per second": f"{report.events / report.elapsed_s:,.0f}",
            "found wrong": f"{len(result.findings):,}",
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    lines = [f"{'':22}" + "".join(f"{name:>14}" for name in results)]
    lines += [f"{name:22}" + "".join(f"{cell:>14}" for cell in cells) for name, cells in rows.items()]
    for name, result in results.items():
        where = f"WRONG on {name} ({SEED_VARIABLE}={settings.seed})"
        lines += [f"{where}: {finding}" for finding in result.findings]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

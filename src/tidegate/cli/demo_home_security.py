"""``tidegate demo home-security``: its options, its table, its JSON."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.demo_support import (
    KeepServing,
    check,
    print_table,
    tell,
    termination_unwinds,
    wait_for_interrupt,
)
from tidegate.cli.shell.installed import check_installed
from tidegate.cli.shell.options import DATABASE_VARIABLE, with_output
from tidegate.cli.shell.render import Output, OutputFormat

if TYPE_CHECKING:
    from tidegate.demos.home_security.demo import HomeSecurityReport


@with_output(OutputFormat.TABLE, OutputFormat.JSON)
def home_security(
    output: Output,
    homes: Annotated[int, typer.Option(min=1, metavar="N", help="How many homes there are.")] = 100_000,
    rate: Annotated[float, typer.Option(min=1, metavar="N", help="Events per second.")] = 5_000,
    duration: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For how long events are made.")
    ] = 60,
    speed: Annotated[
        float, typer.Option(min=0.1, metavar="X", help="Simulated seconds per second: 60 is a minute.")
    ] = 60,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed makes the same events.")] = 1,
    malformed_share: Annotated[
        float, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of events: not to be read.")
    ] = 0.005,
    delayed_share: Annotated[
        float, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of readings: sent late, some too late.")
    ] = 0.01,
    duplicate_share: Annotated[
        float, typer.Option(min=0, max=0.5, metavar="SHARE", help="Of readings: sent twice.")
    ] = 0.01,
    crash: Annotated[
        bool, typer.Option("--crash/--no-crash", help="Kill the Spark driver once with SIGKILL.")
    ] = True,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where everything goes. Default: a new temporary directory."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQL database to write to. Default: SQLite, homes.db in DIR."),
    ] = None,
    summaries: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the homes' summaries go: a directory, or az://CONTAINER/PATH. Default: in DIR.",
        ),
    ] = None,
    keep_serving: KeepServing = False,
) -> None:
    """Watch 100,000 homes: sensors to alarms in SQL, exactly once.

    Alarms and figures per minute come out right although the pipeline crashes once.

    It starts a service, makes up homes with motion, door, window and glass-break sensors, and detectors of
    carbon monoxide that come while it runs, and lets a Spark pipeline with keyed state and timers put aside
    what is malformed, count per home and minute, raise alarms, and write each home's summary. The driver is
    killed once in mid-batch. Then every figure is recomputed from the log; exit code 4 if one does not hold.
    Ctrl-C ends the events early, and what was sent is still processed and checked.

    \b
    Examples:
      tidegate demo home-security
      tidegate demo home-security --homes 1000 --rate 500 --duration 20 --json
      tidegate demo home-security --rate 20000 --database postgresql://user@host/name
    """
    from tidegate.cli.demo_screen import DemoScreen

    check_installed("pyspark", "pyarrow", "google.protobuf", "numpy", extras="spark,demos")
    from tidegate.demos.home_security.demo import HomeSecurityDemo, run_home_security_demo
    from tidegate.demos.home_security.generator import GeneratorPlan

    plan = GeneratorPlan(
        homes=homes,
        rate=rate,
        speed=speed,
        seed=seed,
        malformed_share=malformed_share,
        delayed_share=delayed_share,
        duplicate_share=duplicate_share,
        co_after_s=duration / 3,
    )
    wanted = HomeSecurityDemo(
        plan=plan,
        duration_s=duration,
        data_dir=data_dir,
        database_url=database or os.environ.get(DATABASE_VARIABLE),
        summaries_url=summaries,
        is_crash_wanted=crash,
    )

    def show(report: HomeSecurityReport) -> None:
        screen.close()
        tell(output, report, summary=_summary, draw=_print_report)
        if keep_serving:
            wait_for_interrupt(screen.note)

    with termination_unwinds(), DemoScreen() as screen:
        report = run_home_security_demo(wanted, screen, show)
    check(report)


def _summary(report: HomeSecurityReport) -> dict[str, object]:
    kept = (
        *("events", "status_events", "readings", "duplicates", "minutes", "homes"),
        *("alarms", "dead_letters", "p50_ms", "p99_ms", "state_bytes", "database", "summaries"),
    )
    values = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {name: values[name] for name in kept} | {
        "published_per_s": round(report.published_per_s, 1),
        "elapsed_s": round(report.elapsed_s, 3),
        "data_dir": str(report.data_dir),
        "crashes": 0 if report.crash is None else 1,
        "failures": list(report.failures),
        "is_exact": not report.failures,
    }


def _print_report(output: Output, report: HomeSecurityReport) -> None:
    put_aside = sum(report.dead_letters.values())
    figures = [
        {"what": "events", "count": report.events},
        {"what": "  readings, counted per home and minute", "count": report.readings},
        {"what": "  readings that came twice", "count": report.duplicates},
        {"what": "  dead letters", "count": put_aside},
        {"what": "  sensors that say they are alive, filtered out", "count": report.status_events},
        {"what": "rows of home_minute", "count": report.minutes},
        {"what": "alarms", "count": sum(report.alarms.values())},
        {"what": "homes with a summary", "count": report.homes},
    ]
    print_table(output, "Figures", figures)
    print_table(output, "Alarms", [{"kind": kind, "count": count} for kind, count in report.alarms.items()])
    reasons = [{"reason": reason, "count": count} for reason, count in report.dead_letters.items()]
    print_table(output, "Dead letters by reason", reasons)
    latency = "" if report.p50_ms is None else f" Event to SQL: p50 {report.p50_ms:,.0f} ms"
    latency += "" if report.p99_ms is None else f", p99 {report.p99_ms:,.0f} ms."
    output.line(
        f"Published at {report.published_per_s:,.0f} events/s, all in SQL after {report.elapsed_s:,.0f} s; "
        f"{report.state_bytes / 1e6:,.1f} MB of state.{latency}"
    )
    if report.crash is not None:
        output.line(f"The Spark driver was killed once, while {report.crash.describe()}.")
    output.line(
        "A recomputation from the log gives other figures."
        if report.failures
        else "A recomputation from the log gives every row, alarm, dead letter and summary the same."
    )
    output.line(f"The log lies in {report.data_dir}, the results in {report.database}.")
    output.line(f"The summaries are in {report.summaries}, one JSON file per block of homes.")

"""``tidegate demo``: the runnable examples, drawn for people or told as one JSON object."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.demo_home_security import home_security
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
    from tidegate.demos.flights.demo import FlightsReport

demo_app = typer.Typer(help="Run an example, for real.", no_args_is_help=True)
demo_app.command("home-security")(home_security)


@demo_app.callback()
def demo() -> None:
    """Run an example, for real."""


@demo_app.command("flights")
@with_output(OutputFormat.TABLE, OutputFormat.JSON)
def flights(
    output: Output,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where everything goes; a second run goes on there. Default: a new temporary one.",
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQL database to write to. Default: SQLite, flights.db in DIR."),
    ] = None,
    flights_max: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N flights.", hidden=True)
    ] = None,
    events_per_trigger: Annotated[
        int, typer.Option(min=1, metavar="N", help="Events of one micro-batch at most.")
    ] = 48_000,
    keep_serving: KeepServing = False,
) -> None:
    """Send 336,776 flights through Spark into SQL, exactly once.

    It starts a service, publishes every flight that left New York City in 2013, runs a Spark pipeline over
    them into SQL, kills that once with SIGKILL in mid-batch, starts it again, and checks every figure to
    the row: rows + dead letters = events, per partition and in all. Exit code 4 if a figure does not hold.

    \b
    Examples:
      tidegate demo flights
      tidegate demo flights --keep-serving
      tidegate demo flights --data-dir ./flights --database postgresql://user@host/name --json
    """
    from tidegate.cli.demo_screen import DemoScreen
    from tidegate.demos.flights.demo import FlightsDemo, run_flights_demo

    check_installed("pyspark", "pyarrow", extras="spark,demos")
    wanted = FlightsDemo(
        data_dir=data_dir,
        database_url=database or os.environ.get(DATABASE_VARIABLE),
        events_per_trigger=events_per_trigger,
        flights_max=flights_max,
    )

    def show(report: FlightsReport) -> None:
        screen.close()
        tell(output, report, summary=_summary, draw=_print_report)
        if keep_serving:
            wait_for_interrupt(screen.note)

    with termination_unwinds(), DemoScreen() as screen:
        report = run_flights_demo(wanted, screen, show)
    check(report)


def _summary(report: FlightsReport) -> dict[str, object]:
    return {
        "published": report.published,
        "rows": report.rows,
        "dead_letters_open": report.dead_letters_open,
        "dead_letters_total": report.dead_letters_total,
        "database": report.database,
        "data_dir": str(report.data_dir),
        "crashes": report.crashes,
        "events_per_s": {stage.stage: round(stage.events_per_s, 1) for stage in report.stages},
        "partitions": {
            account.partition_id: {
                "events": account.events,
                "rows": account.rows,
                "dead_letters_open": account.dead_letters_open,
            }
            for account in report.partitions
        },
        "is_exact": not report.failures,
    }


def _print_report(output: Output, report: FlightsReport) -> None:
    carriers = [
        {
            "carrier": item.carrier,
            "airline": item.airline,
            "flights": item.flights,
            "mean_delay_min": item.mean_delay_minutes,
            "late_%": item.late_percent,
        }
        for item in report.carriers
    ]
    routes = [
        {
            "route": item.route,
            "from": item.from_airport,
            "to": item.to_airport,
            "flights": item.flights,
            "mean_delay_min": item.mean_delay_minutes,
            "late_%": item.late_percent,
        }
        for item in report.routes
    ]
    reasons = [
        {"error": item.error_type, "reason": item.reason, "count": item.count} for item in report.reasons
    ]
    stages = [
        {
            "stage": item.stage,
            "events": item.events,
            "seconds": item.elapsed_s,
            "events_per_s": item.events_per_s,
        }
        for item in report.stages
        if item.events
    ]
    accounts = [
        {
            "partition": account.partition_id,
            "events": account.events,
            "rows": account.rows,
            "dead_letters": account.dead_letters_open + account.dead_letters_discarded,
            "holds": account.is_exact,
        }
        for account in report.partitions
    ]
    print_table(output, "Worst carriers by arrival delay", carriers)
    print_table(output, "Worst routes by arrival delay (flown daily)", routes)
    print_table(output, "Open dead letters by reason", reasons)
    print_table(output, "Throughput", stages)
    print_table(output, "Every event is one row or one dead letter", accounts)
    for line in _closing_lines(report):
        output.line(line)


def _closing_lines(report: FlightsReport) -> list[str]:
    put_aside = sum(item.dead_letters_open + item.dead_letters_discarded for item in report.partitions)
    lines = [
        f"{report.rows:,} rows + {put_aside:,} dead letters = {report.published:,} events"
        f"{'' if not report.failures else '  DOES NOT HOLD'}.",
        _crash_line(report),
        f"The log lies in {report.data_dir}, the results in {report.database}.",
    ]
    if report.dead_letters_open:
        lines += [
            "",
            "What to do next: look at the dead letters, and run them through the corrected handler.",
        ]
        if report.is_password_hidden:
            lines.append(f"(Set {DATABASE_VARIABLE} to the database's URL first: it holds a password.)")
        lines += [f"  {command}" for command in follow_up_commands(report)]
    return lines


def _crash_line(report: FlightsReport) -> str:
    if report.crash is not None:
        return f"The Spark driver was killed once, while {report.crash.describe()}."
    if any(stage.stage == "pipeline" and stage.events for stage in report.stages):
        return "The Spark driver was not killed: it was done before a micro-batch was found half committed."
    return "The Spark driver did not run: an earlier run had processed everything."


def follow_up_commands(report: FlightsReport) -> tuple[str, str]:
    """The two commands that follow up, ready to be pasted into a shell."""
    database = f'"${DATABASE_VARIABLE}"' if report.is_password_hidden else shlex.quote(report.database)
    program = _program()
    return (
        f"{program} dlq list --database {database} --by-reason",
        f"{program} dlq redrive --database {database} --data-dir {shlex.quote(str(report.data_dir))} "
        "--pipeline tidegate.demos.flights:corrected_pipeline",
    )


def _program() -> str:
    """How this very program is called from the shell that called it."""
    script = Path(sys.argv[0])
    if script.name != "tidegate":
        return f"{shlex.quote(sys.executable)} -m tidegate.cli"
    found = shutil.which("tidegate")
    if found is not None and Path(found).resolve() == script.resolve():
        return "tidegate"
    return shlex.quote(str(script))

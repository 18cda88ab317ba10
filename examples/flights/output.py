"""The example's output: the report as tables for people, or as JSON for programs."""

from __future__ import annotations

import shlex
from pathlib import Path

from examples.flights import scoring
from examples.flights.demo import FlightsReport
from examples.support.command import print_table, shell_path, shell_program
from examples.support.service import DATABASE_VARIABLE


def summary(report: FlightsReport) -> dict[str, object]:
    """The figures, for programs: the keys are stable."""
    return {
        "published": report.published,
        "rows": report.rows,
        "dead_letters_open": report.dead_letters_open,
        "dead_letters_total": report.dead_letters_total,
        "database": str(report.database),
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


def print_report(report: FlightsReport) -> None:
    """The figures, for people."""
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
            "dead_letters": account.dead_letters_kept,
            "holds": account.is_exact,
        }
        for account in report.partitions
    ]
    print_table("Worst carriers by arrival delay", report.carriers)
    print_table("Worst routes by arrival delay (flown daily)", report.routes)
    print_table("Open dead letters by reason", reasons)
    print_table("Throughput", stages)
    print_table("Every event is one row or one dead letter", accounts)
    for line in _closing_lines(report):
        print(line)


def _closing_lines(report: FlightsReport) -> list[str]:
    dead_letters = sum(item.dead_letters_kept for item in report.partitions)
    lines = [
        f"{report.rows:,} rows + {dead_letters:,} dead letters = {report.published:,} events"
        f"{'' if not report.failures else '  DOES NOT HOLD'}.",
        _crash_line(report),
        f"The log is in {report.data_dir}, the results are in {report.database}.",
    ]
    if report.dead_letters_open:
        lines += [
            "",
            "Next: list the dead letters, and redrive them through the corrected handler.",
        ]
        if report.database.password is not None:
            lines.append(f"(First set {DATABASE_VARIABLE} to the database's URL, which holds a password.)")
        lines += [f"  {command}" for command in follow_up_commands(report)]
    return lines


def _crash_line(report: FlightsReport) -> str:
    if report.crash is not None:
        return f"The Spark driver was killed once, while {report.crash.describe()}."
    if any(stage.stage == "pipeline" and stage.events for stage in report.stages):
        return "The Spark driver was not killed: it was done before a micro-batch was found half committed."
    return "The Spark driver did not run: an earlier run had processed everything."


def follow_up_commands(report: FlightsReport) -> tuple[str, str]:
    """The two next commands for the user, ready to be pasted into a shell."""
    has_password = report.database.password is not None
    database = f'"${DATABASE_VARIABLE}"' if has_password else shlex.quote(str(report.database))
    program = shell_program()
    corrected = shell_path(Path(scoring.__file__))
    return (
        f"{program} dlq list --database {database} --by-reason",
        f"{program} dlq redrive --database {database} --data-dir {shlex.quote(str(report.data_dir))} "
        f"--pipeline {corrected}:corrected_pipeline",
    )

"""The example's output: the report as tables for people, or as JSON for programs."""

from __future__ import annotations

import dataclasses

from examples.home_security.demo import HomeSecurityReport
from examples.support.command import print_table


def summary(report: HomeSecurityReport) -> dict[str, object]:
    """The figures, for programs: the keys are stable."""
    figures = dataclasses.asdict(report)
    del figures["crash"]
    return figures | {"crashes": 0 if report.crash is None else 1, "is_exact": not report.failures}


def print_report(report: HomeSecurityReport) -> None:
    """The figures, for people."""
    figures = [
        {"what": "events", "count": report.events},
        {"what": "  readings, counted per home and minute", "count": report.readings},
        {"what": "  duplicate readings", "count": report.duplicates},
        {"what": "  dead letters", "count": sum(report.dead_letters.values())},
        {"what": "  status events of sensors, filtered out", "count": report.status_events},
        {"what": "rows of home_minute", "count": report.minutes},
        {"what": "alarms", "count": sum(report.alarms.values())},
        {"what": "homes heard of", "count": report.homes_heard},
        {"what": "homes with a summary", "count": report.homes},
    ]
    print_table("Figures", figures)
    print_table("Alarms", [{"kind": kind, "count": count} for kind, count in report.alarms.items()])
    reasons = [{"reason": reason, "count": count} for reason, count in report.dead_letters.items()]
    print_table("Dead letters by reason", reasons)
    latency = "" if report.p50_ms is None else f" Event to SQL: p50 {report.p50_ms:,.0f} ms"
    latency += "" if report.p99_ms is None else f", p99 {report.p99_ms:,.0f} ms."
    print(
        f"Published at {report.published_per_s:,.0f} events/s, all in SQL after {report.elapsed_s:,.0f} s; "
        f"{report.state_bytes / 1e6:,.1f} MB of state.{latency}"
    )
    if report.crash is not None:
        print(f"The Spark driver was killed once, while {report.crash.describe()}.")
    print(
        "A recomputation from the log gives other figures."
        if report.failures
        else "A recomputation from the log gives the same rows, alarms, dead letters and summaries."
    )
    print(f"The log is in {report.data_dir}, the results in {report.database}.")
    print(f"The summaries are in {report.summaries}, one JSON file per block of homes.")

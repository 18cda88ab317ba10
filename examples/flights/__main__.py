"""``python -m examples.flights``: the options, and the run."""

from __future__ import annotations

import argparse

from examples.flights.demo import FlightsDemo, FlightsReport, run_flights_demo
from examples.flights.output import print_report, summary
from examples.support.command import (
    add_common_options,
    at_least,
    check_figures,
    check_installed,
    print_json,
    run_command,
    wait_for_interrupt,
)
from examples.support.screen import Screen

DESCRIPTION = """\
Send 336,776 flights through Spark into SQL, exactly once.

Starts a service, publishes every flight that left New York City in 2013, runs a Spark pipeline over them into
SQL, kills that once with SIGKILL in mid-batch, starts it again, and checks every figure to the row: rows +
dead letters = events, per partition and in total. Exit code 4 if a figure does not hold.
"""
EXAMPLES = """\
examples:
  python -m examples.flights
  python -m examples.flights --keep-serving
  python -m examples.flights --data-dir ./flights --database postgresql://user@host/name --json
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common_options(made, database_file="flights.db")
    made.add_argument("--flights-max", type=at_least(1), metavar="N", help=argparse.SUPPRESS)
    made.add_argument(
        "--events-per-trigger",
        type=at_least(1),
        default=48_000,
        metavar="N",
        help="maximum number of events in a micro-batch (default: %(default)s)",
    )
    return made


def main() -> None:
    """Run the example."""
    given = parser().parse_args()
    check_installed("pyspark", "pyarrow")
    wanted = FlightsDemo(
        data_dir=given.data_dir,
        database_url=given.database,
        events_per_trigger=given.events_per_trigger,
        flights_max=given.flights_max,
    )

    def show(report: FlightsReport) -> None:
        screen.close()
        if given.json:
            print_json(summary(report))
        else:
            print_report(report)
        if given.keep_serving:
            wait_for_interrupt(screen.note)

    with Screen() as screen:
        report = run_flights_demo(wanted, screen, show)
    check_figures(report.failures)


if __name__ == "__main__":
    run_command(main)

"""``python -m examples.flights``: the options, and the run."""

from __future__ import annotations

import argparse
from functools import partial

from examples.support.command import at_least, check_installed, example_parser, run_command, run_demo

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
    made = example_parser(
        "examples.flights", description=DESCRIPTION, examples=EXAMPLES, database_file="flights.db"
    )
    made.add_argument("--flights-max", type=at_least(1), metavar="N", help=argparse.SUPPRESS)
    made.add_argument(
        "--events-per-trigger",
        type=at_least(1),
        default=48_000,  # gives about seven micro-batches, so that one in the middle can crash
        metavar="N",
        help="maximum number of events in a micro-batch (default: %(default)s)",
    )
    return made


def main() -> None:
    """Run the example."""
    given = parser().parse_args()
    check_installed("pyspark", "pyarrow", "psutil")
    from examples.flights.demo import run_flights_demo
    from examples.flights.output import print_report, summary

    run = partial(
        run_flights_demo,
        data_dir=given.data_dir,
        database_url=given.database,
        events_per_trigger=given.events_per_trigger,
        flights_max=given.flights_max,
    )
    run_demo(given, run, summary=summary, print_report=print_report)


if __name__ == "__main__":
    run_command(main)

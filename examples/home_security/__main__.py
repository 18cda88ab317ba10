"""``python -m examples.home_security``: the options, and the run."""

from __future__ import annotations

import argparse
from functools import partial

from examples.support.command import at_least, check_installed, example_parser, run_command, run_demo

DESCRIPTION = """\
Watch 100,000 homes: sensors to alarms in SQL, exactly once.

Alarms and figures per minute are right although the pipeline crashes once.

Starts a service, generates homes with motion, door, window and glass-break sensors, and carbon monoxide
detectors that join while it runs. A Spark pipeline with keyed state and timers dead-letters malformed events,
counts per home and minute, raises alarms, and writes each home's summary. The driver is killed once in
mid-batch. Then every figure is recomputed from the log; exit code 4 if one does not hold. Ctrl-C ends the
events early; those already sent are still processed and checked.
"""
EXAMPLES = """\
examples:
  python -m examples.home_security
  python -m examples.home_security --homes 1000 --speed 30 --duration 20 --json
  python -m examples.home_security --speed 1 --duration 600
  python -m examples.home_security --speed 60 --database postgresql://user@host/name
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = example_parser(
        "examples.home_security", description=DESCRIPTION, examples=EXAMPLES, database_file="homes.db"
    )

    def number(
        name: str, default: float, metavar: str, minimum: float, maximum: float = float("inf"), *, help: str
    ) -> None:
        kind = at_least(minimum, is_whole=isinstance(default, int), maximum=maximum)
        made.add_argument(
            name, type=kind, default=default, metavar=metavar, help=f"{help} (default: %(default)s)"
        )

    number("--homes", 100_000, "N", 1, help="number of homes")
    made.add_argument(
        "--rate",
        type=at_least(1, is_whole=False),
        metavar="N",
        help="events per second, of homes at random (default: every home sends once in its minute)",
    )
    number("--duration", 60.0, "SECONDS", 1, help="how long events are generated")
    number("--speed", 10.0, "X", 0.1, help="seconds of the homes per second: 1 is real time; at most that")
    number("--seed", 1, "N", 0, help="the same seed generates the same events")
    number("--malformed-share", 0.005, "SHARE", 0, 0.5, help="of events: malformed")
    number("--delayed-share", 0.01, "SHARE", 0, 0.5, help="of readings: sent late, some too late")
    number("--duplicate-share", 0.01, "SHARE", 0, 0.5, help="of readings: sent twice")
    made.add_argument(
        "--crash",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="kill the Spark driver once with SIGKILL (default: --crash)",
    )
    made.add_argument(
        "--summaries",
        metavar="URL",
        help="where the homes' summaries are written: a directory, or az://CONTAINER/PATH; default: "
        "summaries in DIR",
    )
    return made


def main() -> None:
    """Run the example."""
    given = parser().parse_args()
    check_installed("pyspark", "pyarrow", "google.protobuf", "numpy", "psutil")
    from examples.home_security.demo import run_home_security_demo
    from examples.home_security.generator import GeneratorPlan
    from examples.home_security.output import print_report, summary

    names = ("homes", "rate", "speed", "seed", "malformed_share", "delayed_share", "duplicate_share")
    plan = GeneratorPlan(**{name: getattr(given, name) for name in names}, co_after_s=given.duration / 3)
    run = partial(
        run_home_security_demo,
        plan=plan,
        duration_s=given.duration,
        data_dir=given.data_dir,
        database_url=given.database,
        summaries_url=given.summaries,
        is_crash_wanted=given.crash,
    )
    run_demo(given, run, summary=summary, print_report=print_report)


if __name__ == "__main__":
    run_command(main)

"""Attack a service of our own and print what a quiet user notices; exit code 1 where a bound is broken.

    make floods                                     every flood, against this tree
    make floods ARGS="--only heartbeats"            one of them; repeatable
    make floods ARGS="--before ../old --json f"     another checkout in turns with this one
    make floods ARGS="--compare f"                  beside what a file holds

Each flood ends by itself after ``--seconds``. Attackers and service use loopback only.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.floods.attack import Flood
from bench.floods.catalog import FLOODS
from bench.floods.report import as_json, broken_bounds, is_base_disturbed, print_table, read_json
from bench.floods.trial import Outcome, Timing, run_trial

_TRIES = 2
_HERE = Path(__file__).parents[2]
_progress = Console(stderr=True)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        prog="make floods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [flood.name for flood in FLOODS]
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="repeatable")
    parser.add_argument("--seconds", type=float, default=Timing().flood_s, help="how long each flood lasts")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of attackers")
    parser.add_argument("--tree", type=Path, default=_HERE, help="the checkout to run the service from")
    parser.add_argument("--before", type=Path, help="another checkout, to be flooded in turns with it")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="JSON of an earlier run, for the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    floods = [flood for flood in FLOODS if not arguments.only or flood.name in arguments.only]
    if arguments.list:
        for flood in floods:
            print(f"{flood.name:<24}point {flood.item}: {flood.what}.")
        return 0
    timing = replace(Timing(), flood_s=arguments.seconds, scale=arguments.scale)
    earlier = (
        {outcome.flood: outcome for outcome in read_json(arguments.compare)} if arguments.compare else {}
    )
    outcomes: list[tuple[str, Outcome]] = []
    has_broken = False
    for flood in floods:
        if flood.name in earlier:
            outcomes.append(("before", earlier[flood.name]))
        if arguments.before is not None:
            _progress.print(f"{flood.name}, before …")
            outcomes.append(("before", _run(flood, arguments.before, timing)))
        _progress.print(f"{flood.name}: {flood.what} …")
        outcome = _run(flood, arguments.tree, timing)
        outcomes.append(("now", outcome))
        broken = broken_bounds(flood, outcome)
        has_broken = has_broken or bool(broken)
        _progress.print(f"  bounds broken: {', '.join(broken) or 'none'}", highlight=False)
        if arguments.json is not None:
            arguments.json.write_text(as_json(outcomes))
    print_table(floods, outcomes)
    return int(has_broken)


def _run(flood: Flood, tree: Path, timing: Timing) -> Outcome:
    """A trial; once more where something else on the machine disturbed the canary before the flood."""
    for _ in range(_TRIES - 1):
        outcome = run_trial(flood, tree.resolve(), timing)
        if not is_base_disturbed(outcome):
            return outcome
        _progress.print("  the machine is busy with something else: once more …")
    return run_trial(flood, tree.resolve(), timing)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.storage.damage --cases N``: see the package."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import sys
from functools import partial

from tests.storage.damage.canaries import DEFENCES, switch_off
from tests.storage.damage.run import run


def main() -> None:
    """Parse the options, run, print; exit code 1 if there is a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--case", type=int, help="only this one, of the worlds of this seed")
    parser.add_argument("--without", choices=DEFENCES, action="append", default=[], help="a canary")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"seed {options.seed}", flush=True)
    cases = range(options.cases) if options.case is None else (options.case,)
    for defence in options.without:
        switch_off(defence)
    is_canary = bool(options.without)
    say = partial(print, flush=True)
    outcome = asyncio.run(run(options.seed, cases, options.without, on_line=say, is_canary=is_canary))
    print(outcome)
    sys.stdout.flush()
    os._exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()

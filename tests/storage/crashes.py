"""Power losses and kills, many of each: what was acknowledged is there, once, in order and unaltered.

Run as ``make crashes N=1000`` or ``python -m tests.storage.crashes --losses 1000 --kills 1000 [--seed S]``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.storage.test_kill import KILLS, kill
from tests.storage.test_power_loss import LOSSES, simulate

from tidegate.model.errors import TidegateError

_ROW = "{:12} {:>6} {:>20} {:>8}"


async def _repeat(name: str, count: int, each: int, seed: int, work: Callable[[int], Awaitable[int]]) -> bool:
    """Print a line; returns whether nothing was lost. each: how many a call of ``work`` does."""
    done = acknowledged = failures = 0
    while done < count:
        try:
            acknowledged += await work(seed)
        except (AssertionError, TidegateError) as error:
            failures += 1
            print(f"{name}, seed {seed}: {type(error).__name__}: {error}", flush=True)
        done += each
        seed += 1
    print(_ROW.format(name, done, acknowledged, failures), flush=True)
    return failures == 0


async def _kill_in_new_directory(seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="tidegate-kill-") as directory:
        return await kill(seed, Path(directory))


async def _main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the first round")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # failing disks are the point
    heads = ("", "rounds", "acknowledged batches", "failures")
    print(f"seed {options.seed}\n{_ROW.format(*heads)}", flush=True)
    is_whole = await _repeat("power losses", options.losses, LOSSES, options.seed, simulate)
    return await _repeat("kills", options.kills, KILLS, options.seed, _kill_in_new_directory) and is_whole


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main()) else 1)

"""A program for the tests: forks children that process a partition, compete for it, and are killed at it.

Run as ``python -m tests.sql.workers MODE DATABASE_URL SEED``; prints one JSON object. The database is opened
before the forks, so each run also shows that children make connections of their own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.sql.support import CONSUMER, PIPELINE, event_with, flights

from tidegate.model.errors import CheckpointGapError, FencedError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import CheckpointReader, Database, UnitOfWork, process_partition_batch

EVENT_COUNT: Final = 300
BATCH_EVENTS_MAX: Final = 25
WINDOWS: Final = ("insert_values", "add_dead_letters", "advance_all", "commit")
"""Methods of ``UnitOfWork`` that a child dies before or after."""


def the_events(start: int, until: int) -> list[ReceivedEvent]:
    """The log of these tests: every seventh event cannot be scored."""
    return [
        event_with({"delay": None if number % 7 == 0 else number}, number) for number in range(start, until)
    ]


def work(database: Database, random_numbers: random.Random) -> int:
    """Process the partition from wherever its checkpoint is to the end; returns how many rows went in."""
    rows = 0
    while True:
        found = CheckpointReader(database).read(CONSUMER).get("0")
        start = (found.next_sequence_number or 0) if found else 0
        if start >= EVENT_COUNT:
            return rows
        until = min(EVENT_COUNT, start + random_numbers.randint(1, BATCH_EVENTS_MAX))
        try:
            rows += process_partition_batch(
                database,
                PIPELINE,
                "0",
                the_events(start, until),
                start_sequence_number=start,
                until_sequence_number=until,
            ).rows
        except (FencedError, CheckpointGapError):
            continue


def die_at(name: str, call_number: int, *, is_before: bool) -> None:
    """Make this process kill itself around the given call of a method of ``UnitOfWork``."""
    original: Callable[..., object] = getattr(UnitOfWork, name)
    calls = 0

    def dying(self: UnitOfWork, *arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if is_before and calls == call_number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *arguments, **options)
        if calls == call_number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(UnitOfWork, name, dying)


def fork(run: Callable[[], object]) -> int:
    """Run something in a child; its exit status tells whether it came through."""
    process_id = os.fork()
    if process_id == 0:
        try:
            run()
        except BaseException as error:  # the child must never return into the parent's code
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return process_id


def crash_in_every_window(database: Database, seed: int) -> dict[str, object]:
    """Children die before and after each step, and some at random times; the last one finishes the work."""
    killed = 0
    for name in WINDOWS:
        for is_before in (True, False):

            def run(name: str = name, is_before: bool = is_before) -> None:
                die_at(name, 2, is_before=is_before)
                work(database, random.Random(seed))

            _, status = os.waitpid(fork(run), 0)
            killed += os.WIFSIGNALED(status)
    for round_number in range(3):
        delay_s = random.Random(seed + round_number).uniform(0.0, 0.03)
        child = fork(lambda: work(database, random.Random(seed)))
        time.sleep(delay_s)  # a random moment is the point
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    work(database, random.Random(seed))
    return {"killed": killed}


def compete(database: Database, seed: int) -> dict[str, object]:
    """Four children process the same partition at once; each row must be counted by exactly one of them."""
    readers = []
    for number in range(4):
        receiving, sending = os.pipe()

        def run(sending: int = sending, number: int = number) -> None:
            rows = work(database, random.Random(seed + number))
            os.write(sending, str(rows).encode())

        readers.append((fork(run), receiving))
        os.close(sending)
    rows = []
    for child, receiving in readers:
        os.waitpid(child, 0)
        rows.append(int(os.read(receiving, 100) or b"-1"))
    return {"rows": rows}


def main() -> None:
    """See the module's text."""
    mode, url, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    database = Database.open(url)
    database.ensure_table(flights)
    run = {"crash": crash_in_every_window, "compete": compete}[mode]
    print(json.dumps(run(database, seed)))


if __name__ == "__main__":
    main()

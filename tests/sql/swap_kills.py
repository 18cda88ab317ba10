"""``python -m tests.sql.swap_kills URL``: swaps that are killed before each statement and each commit."""

from __future__ import annotations

import json
import os
import signal
import sys

from sqlalchemy import delete, event
from tests.sql.support import CONSUMER, PIPELINE, LogOfEvents, flights, rows_in
from tests.sql.test_shadows import EVENTS, IN_SHADOW, NEXT, SHADOW, letters_of, process, rows_of

from tidegate.model.errors import FencedError
from tidegate.sql import Database, DeadLetters
from tidegate.sql.core.schema import checkpoint, dead_letter
from tidegate.sql.shadows.replaying import prepare_shadow
from tidegate.sql.shadows.swap import drop_shadow, swap_shadow

OLD, NEW = [7], [3]
"""Dead letters of the two versions."""


def swap_and_die(url: str, step: int) -> bool:
    """Swap in a child that kills itself before a step; returns whether it got so far."""
    child = os.fork()
    if child == 0:
        with Database.open(url) as database:
            steps = iter(range(step + 1))

            def count(*_: object) -> None:
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            event.listen(database.engine(), "before_cursor_execute", count)
            event.listen(database.engine(), "commit", count)
            swap_shadow(database, SHADOW)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def check(database: Database) -> bool:
    """Whether the swap waits to be completed; asserts that all is of one version otherwise."""
    rows, letters = rows_in(database), [number for number, *_ in letters_of(database, CONSUMER)]
    assert rows in (rows_of(PIPELINE, 10), rows_of(NEXT, 10)), rows
    try:
        process(database, PIPELINE, 10)
    except FencedError:
        assert letters == OLD
        try:
            DeadLetters(database).redrive(PIPELINE, LogOfEvents(EVENTS))
        except FencedError:
            return True
        raise AssertionError("a redrive ran during a swap") from None
    assert letters == (OLD if rows == rows_of(PIPELINE, 10) else NEW), (rows, letters)
    return False


def main(url: str) -> None:
    """Print how many swaps were killed, and how many of them had to be completed."""
    kills = waiting = 0
    is_killed = True
    while is_killed:
        with Database.open(url) as database:
            drop_shadow(database, SHADOW)
            with database.writing() as connection, connection.begin():
                flights.drop(connection, checkfirst=True)
                for table in (checkpoint, dead_letter):
                    connection.execute(delete(table))
            database.ensure_table(flights)
            process(database, PIPELINE, 10)
            prepare_shadow(database, SHADOW)
            process(database, IN_SHADOW, 10)
        is_killed = swap_and_die(url, kills)
        with Database.open(url) as database:
            waits = check(database)
            kills, waiting = kills + is_killed, waiting + waits
            if waits or rows_in(database) == rows_of(PIPELINE, 10):
                swap_shadow(database, SHADOW)
            assert not check(database)
            assert process(database, NEXT, 20) == 10
            assert rows_in(database) == rows_of(NEXT, 20)
            assert rows_in(database, IN_SHADOW.table) == rows_of(PIPELINE, 10)
    print(json.dumps({"kills": kills, "waiting": waiting}))


if __name__ == "__main__":
    main(sys.argv[1])

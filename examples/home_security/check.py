"""Whether SQL and the summaries agree with the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, inspect, select

from examples.home_security.homes import Alarm
from examples.home_security.page_files import MalformedPagesError
from examples.home_security.summaries import SummaryStore
from examples.home_security.tables import CONSUMER, NAME, home_alarm, home_minute
from examples.home_security.verify import EventAddress, Expected, Figures, Minute
from tidegate import AlreadyExistsError
from tidegate.sql import Database, DeadLetterFilter, DeadLetters, forget_consumer, forget_query, next_batch_id

_ROWS_PER_FETCH = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of the tables."""

    minutes: Mapping[Minute, Figures]
    alarms: tuple[Alarm, ...]
    dead_letters: Mapping[EventAddress, str]


def read_tables(database: Database) -> Found:
    """Read everything back."""
    row, alarm = home_minute.c, home_alarm.c
    minutes: dict[Minute, Figures] = {}
    with database.read() as connection:
        found = connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(
            select(
                row.home,
                row.minute_ms,
                row.readings,
                row.motions,
                row.openings,
                row.co_max_ppm,
                row.duplicates,
            )
        )
        for home, minute_ms, readings, motions, openings, co_max_ppm, duplicates in found:
            minutes[home, minute_ms] = (readings, motions, openings, co_max_ppm, duplicates)
        found = connection.execute(
            select(alarm.home, alarm.sensor, alarm.number, alarm.kind, alarm.raised_ms, alarm.value)
        )
        alarms = tuple(Alarm._make(row) for row in found)
    chosen = DeadLetterFilter(CONSUMER.event_hub, CONSUMER.consumer_group, status=None)
    letters = DeadLetters(database).list(chosen, limit=None)
    return Found(
        minutes, alarms, {(letter.partition_id, letter.sequence_number): letter.reason for letter in letters}
    )


def failures_of(expected: Expected, found: Found, store: SummaryStore | None) -> tuple[str, ...]:
    """The figures that differ, one sentence each; empty if none does."""
    return (
        *_differences("rows of home_minute", expected.minutes, found.minutes),
        *_differences("alarms", Counter(expected.alarms), Counter(found.alarms)),
        *_differences("dead letters", expected.dead_letters, found.dead_letters),
        *([] if store is None else _summary_failures(expected.summaries, store)),
    )


def _differences(what: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> list[str]:
    wrong = {key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)}
    if not wrong:
        return []
    first = min(wrong)
    return [
        f"{len(wrong):,} {what} are not what the log says, of {len(expected):,}; the first is {first}: "
        f"{found.get(first)} instead of {expected.get(first)}"
    ]


def _summary_failures(expected: Mapping[str, bytes], store: SummaryStore) -> list[str]:
    try:
        found = store.read()
    except MalformedPagesError as error:
        return [str(error)]
    return _differences("summaries", expected, found)


def count_by(values: Iterable[str]) -> dict[str, int]:
    """The number of each value, most frequent first."""
    return dict(Counter(values).most_common())


def has_earlier_run(database: Database, store: SummaryStore) -> bool:
    """Whether an earlier run of the demo left something that may be deleted. Changes nothing.

    Only the database shows whose files of pages these are, and it knows a run as soon as its driver starts; a
    file does not name its owner, and its writer may still be running. Raises AlreadyExistsError if there are
    tables or files of pages, but the database knows of no run.
    """
    if _is_ours(database):
        return True
    if store.has_files():
        raise AlreadyExistsError(
            f"{store.url} has files of pages, but the database knows of no run of this demo that wrote them.",
            next_step="Use another --summaries, or none for a directory in the data directory; or delete "
            "them if they are not needed.",
        )
    return False


def prepare_places(database: Database, store: SummaryStore) -> bool:
    """Create the tables, and delete the results of an earlier run of the demo; returns whether there were
    any.

    Raises as ``has_earlier_run`` and ``SummaryStore.clear``; the database is then unchanged.
    """
    if has_earlier_run(database, store):
        store.clear()  # before the database forgets the run, so that this can be repeated
    return prepare_database(database)


def prepare_database(database: Database) -> bool:
    """Create the tables, and delete the results of an earlier run of the demo; returns whether there were
    any.

    Each run of the demo has its own hub, so an earlier one's results would count as this one's. Raises
    AlreadyExistsError if the tables are not this demo's.
    """
    is_ours = _is_ours(database)
    for table in (home_minute, home_alarm):
        database.ensure_table(table)
    if not is_ours:
        return False
    with database.writing() as connection, connection.begin():
        for table in (home_minute, home_alarm):
            connection.execute(delete(table))
        forget_query(connection, NAME)
        forget_consumer(connection, CONSUMER)
    return True


def _is_ours(database: Database) -> bool:
    """Whether this demo wrote to the database before. Raises AlreadyExistsError for others' tables."""
    has_tables = inspect(database.engine()).has_table(home_minute.name)
    is_ours = next_batch_id(database, NAME) is not None
    if has_tables and not is_ours:
        raise AlreadyExistsError(
            f"The database {database.url} has a table {home_minute.name} that this demo did not fill.",
            next_step="Use another --database, or none for a new SQLite file.",
        )
    return is_ours

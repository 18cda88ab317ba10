"""Pages and hours of dead letters say the same as the whole table, whatever is in it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql import ConsumerKey, Database, DeadLetterFilter, DeadLetters, DeadLetterStatus
from tidegate.sql.core.schema import by_time, dead_letter, schema_version
from tidegate.sql.dead_letters.pages import DeadLetterLine, DeadLetterPages

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
FILTERS = {
    "open": DeadLetterFilter(),
    "all": DeadLetterFilter(status=None),
    "hub": DeadLetterFilter(event_hub="Hub1", status=None),
    "partition": DeadLetterFilter(consumer_group="$DEFAULT", partition_id="1"),
    "error": DeadLetterFilter(error_type="ValueError"),
    "reason": DeadLetterFilter(reason_contains="REASON 2", status=None),
    "whole reason": DeadLetterFilter(reason_is="reason 2"),
    "time": DeadLetterFilter(failed_from=NOON, failed_until=NOON + timedelta(hours=1), status=None),
    "discarded": DeadLetterFilter(status=DeadLetterStatus.DISCARDED),
    "enqueued": DeadLetterFilter(enqueued_from=EPOCH + timedelta(milliseconds=75), status=None),
}


def _fill(database: Database, seed: int, count: int = 150) -> None:
    """Rows of which many share their time, as those of one batch do."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    rows = []
    for number in range(count):
        at = NOON + timedelta(
            minutes=chosen.choice([-90, -1, 0, 0, 0, 30, 61]), microseconds=chosen.choice([0, 1])
        )
        rows.append(
            {
                "event_hub": f"hub{chosen.randrange(3)}",
                "consumer_group": chosen.choice(["$Default", "reports"]),
                "partition_id": str(chosen.randrange(12)),
                "sequence_number": number,
                "offset": str(number),
                "enqueued_time_ms": number,
                "partition_key": None,
                "error_type": chosen.choice(["ValueError", "KeyError"]),
                "reason": f"reason {chosen.choice([0, 1, 2, 22])}",
                "traceback": "",
                "payload": None,
                "status": chosen.choice(list(DeadLetterStatus)).value,
                "attempts": 1,
                "first_failed_at": at,
                "last_failed_at": at,
                "pipeline": "",
            }
        )
    with database.writing() as connection, connection.begin():
        connection.execute(dead_letter.insert(), rows)


def test_a_filter_survives_its_fields() -> None:
    """What an address or a form carries means the same dead letters again; the rest is refused."""
    filters = (
        *FILTERS.values(),
        DeadLetterFilter(
            "Hub", "group", "pipeline", "7", (1, 20), None, "Error", "part", "whole ", NOON, NOON
        ),
    )
    for filter in filters:
        fields = filter.to_fields()
        assert DeadLetterFilter.from_fields(fields, now_utc=NOON) == filter
    assert DeadLetterFilter().to_fields() == {}
    assert DeadLetterFilter.from_fields({"from": "2h", "hub": ""}, now_utc=NOON) == DeadLetterFilter(
        failed_from=NOON - timedelta(hours=2)
    )
    for field in ({"state": "closed"}, {"number": "-1"}, {"number": "1,"}, {"until": "soon"}):
        with pytest.raises(InvalidArgumentError):
            DeadLetterFilter.from_fields(field, now_utc=NOON)


def _walk(pages: DeadLetterPages, filter: DeadLetterFilter, limit: int) -> list[DeadLetterLine]:
    found: list[DeadLetterLine] = []
    while page := pages.page(filter, behind=found[-1].place if found else None, limit=limit):
        assert len(page) <= limit
        found += page
    return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_pages_are_the_table_in_order(database: Database, seed: int) -> None:
    """Page after page, each dead letter comes once, the latest failure first, however the pages are cut."""
    _fill(database, seed)
    for name, chosen in FILTERS.items():
        print(f"filter {name}")
        _check_pages(database, chosen)


def _check_pages(database: Database, chosen: DeadLetterFilter) -> None:
    pages = DeadLetterPages(database)
    expected = {
        (letter.event_hub, letter.consumer_group, letter.partition_id, letter.sequence_number): letter
        for letter in DeadLetters(database).list(chosen, limit=None)
    }
    for limit in (7, 1000):
        found = _walk(pages, chosen, limit)
        keys = [
            (line.event_hub, line.consumer_group, line.partition_id, line.sequence_number) for line in found
        ]
        assert len(keys) == len(set(keys))
        assert set(keys) == set(expected)
        order = [(line.last_failed_at, *key) for line, key in zip(found, keys, strict=True)]
        assert order == sorted(order, reverse=True)
        assert all(line.status is expected[key].status for line, key in zip(found, keys, strict=True))
    hours = pages.counts_by_hour(chosen)
    counted = Counter(
        letter.last_failed_at.replace(minute=0, second=0, microsecond=0) for letter in expected.values()
    )
    assert [(each.start, each.count) for each in hours] == sorted(counted.items())


def test_a_page_walks_the_index_of_times(sqlite_url: str) -> None:
    """SQLite sorts nothing for a page of one hub, though the primary key begins with the hub."""
    plans: list[str] = []
    with Database.open(sqlite_url) as database:
        _fill(database, 3)
        pages = DeadLetterPages(database)
        place = pages.page(DeadLetterFilter())[-1].place
        for filter in (DeadLetterFilter(), DeadLetterFilter(event_hub="hub1", partition_id="1")):
            statement = pages._part(filter, DeadLetterStatus.OPEN, place, 50)
            compiled = statement.compile(
                dialect=database.engine().dialect, compile_kwargs={"literal_binds": True}
            )
            with database.read() as connection:
                found = connection.execute(text(f"EXPLAIN QUERY PLAN {compiled}"))
                plans.append(" ".join(row[3] for row in found))
    for plan in plans:
        assert "tidegate_dead_letter_time" in plan
        assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("seed", [1, 2])
def test_open_ones_are_counted_by_consumer(database: Database, seed: int) -> None:
    """Of all consumers at once, or of one; who has none is not there."""
    _fill(database, seed)
    pages = DeadLetterPages(database)
    found = Counter(
        ConsumerKey(letter.event_hub, letter.consumer_group)
        for letter in DeadLetters(database).list(limit=None)
    )
    assert pages.open_counts() == found
    one = ConsumerKey("Hub1", "REPORTS")
    assert pages.open_counts(one) == {one: found[one]}
    assert pages.open_counts(ConsumerKey("nobody")) == {}
    later = EPOCH + timedelta(milliseconds=75)
    newer = sum(pages.open_counts(enqueued_from=later).values())
    assert newer == DeadLetters(database).count(DeadLetterFilter(enqueued_from=later))
    assert 0 < newer < sum(found.values())
    everything = DeadLetters(database).list(DeadLetterFilter(status=None), limit=None)
    assert pages.all_counts() == Counter(
        ConsumerKey(letter.event_hub, letter.consumer_group) for letter in everything
    )
    middle = sorted(letter.last_failed_at for letter in everything)[len(everything) // 2]
    for failed_from in (None, middle):
        filter = DeadLetterFilter("hub1", "reports", failed_from=failed_from)
        by_partition = Counter(each.partition_id for each in DeadLetters(database).list(filter, limit=None))
        assert pages.open_by_partition(one, failed_from=failed_from) == by_partition
    assert sum(pages.open_counts(failed_from=middle).values()) == DeadLetters(database).count(
        DeadLetterFilter(failed_from=middle)
    )


def test_discarding_goes_by_pages_and_can_be_ended(database: Database) -> None:
    """What progress raises ends a discard there; what was done stays done, and the rest is open."""
    _fill(database, 4)
    letters = DeadLetters(database)
    before = letters.count()
    told: list[int] = []

    class EndedError(Exception):
        pass

    def end_at_the_third(done: int) -> None:
        told.append(done)
        if len(told) == 3:
            raise EndedError

    with pytest.raises(EndedError):
        letters.discard(DeadLetterFilter(), reason="test", progress=end_at_the_third)
    assert told == sorted(told)
    assert letters.count() == before - told[-1]
    assert letters.discard(DeadLetterFilter(), reason="test") == before - told[-1]
    assert letters.count() == 0
    assert len(letters.audit(limit=None)) == before


def test_a_database_of_the_version_before_gets_the_index(database: Database) -> None:
    """Opening a database that has no such index makes it, and pages are as they were."""
    _fill(database, 5)
    expected = DeadLetterPages(database).page(replace(DeadLetterFilter(), status=None))
    with database.writing() as connection, connection.begin():
        by_time.drop(connection)
        connection.execute(schema_version.delete().where(schema_version.c.version >= 5))
    database.close()
    with Database.open(database._url) as again:
        assert DeadLetterPages(again).page(DeadLetterFilter(status=None)) == expected
        with again.read() as connection:
            name = {
                "sqlite": "sqlite_master WHERE name",
                "postgresql": "pg_indexes WHERE indexname",
                "mariadb": "information_schema.statistics WHERE index_name",
            }[again.dialect.name]
            found = connection.execute(text(f"SELECT count(*) FROM {name} = '{by_time.name}'")).scalar_one()
        assert found >= 1

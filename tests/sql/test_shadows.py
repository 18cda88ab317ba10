"""Shadows: the comparison against a model, and difference, swap and drop in each database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, ForeignKey, MetaData, String, Table, Text, text
from tests.needs import ci_has
from tests.sql.support import CONSUMER, PIPELINE, LogOfEvents, event_with, events_between, flights, rows_in
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import DatabaseUnavailableError, FencedError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetterFilter,
    DeadLetters,
    NewDeadLetter,
    Pipeline,
    process_partition_batch,
)
from tidegate.sql.dead_letters.pages import DeadLetterPages
from tidegate.sql.dead_letters.republish import add_once
from tidegate.sql.shadows import swap
from tidegate.sql.shadows.comparing import Page, RowDifference, RowValues, compare_rows
from tidegate.sql.shadows.difference import ShadowDifference, compare_shadow
from tidegate.sql.shadows.replaying import prepare_shadow
from tidegate.sql.shadows.shadow import Shadow, ShadowError, ShadowPosition, reading_snapshot
from tidegate.sql.shadows.swap import drop_shadow, swap_shadow
from tidegate.sql.stores.leases import LeaseTable

pytestmark = pytest.mark.usefixtures("forked_python")

SHADOW = Shadow("v2", PIPELINE.name, CONSUMER, flights)
keys = st.text("aAbBcC", max_size=3)
tables = st.dictionaries(keys, st.sampled_from([1, 2, float("nan"), None]), max_size=30)


def _order(key: str) -> tuple[bool, int, str]:
    """An order that is not Python's: all that begins with b comes first, and shorter keys later."""
    return not key.startswith("b"), -len(key), key


def _pages(rows: dict[str, object], calls: list[int]) -> Page:
    """A table."""

    def page(after: RowValues | None, until: RowValues | None, limit: int) -> Sequence[RowValues]:
        found = [
            (key, rows[key])
            for key in sorted(rows, key=_order)
            if (after is None or _order(key) > _order(after[0]))
            and (until is None or _order(key) <= _order(until[0]))
        ]
        calls.append(len(found[:limit]))
        return found[:limit]

    return page


@given(live=tables, shadow=tables, page_rows=st.integers(1, 7), limit=st.integers(0, 5))
@pytest.mark.slow
def test_pages_find_what_whole_tables_do(
    live: dict[str, object], shadow: dict[str, object], page_rows: int, limit: int
) -> None:
    """Counts and differing rows are those of a comparison in memory, in pages of any size, in any order."""
    calls: list[int] = []
    found = compare_rows(
        _pages(live, calls), _pages(shadow, calls), key_size=1, limit=limit, page_rows=page_rows
    )
    both = live.keys() & shadow.keys()
    changed = {key for key in both if repr(live[key]) != repr(shadow[key])}
    assert (found.same, found.changed) == (len(both) - len(changed), len(changed))
    assert (found.only_live, found.only_shadow) == (len(live.keys() - both), len(shadow.keys() - both))
    wanted = {
        repr(
            RowDifference(
                (key,), (live[key],) if key in live else None, (shadow[key],) if key in shadow else None
            )
        )
        for key in (live.keys() | shadow.keys()) - (both - changed)
    }
    listed = [repr(each) for each in found.first]
    assert len(listed) == len(set(listed)) == min(limit, len(wanted))
    assert set(listed) <= wanted
    for side in (live, shadow):
        seen = [each.key[0] for each in found.first if each.key[0] in side]
        assert seen == sorted(seen, key=_order)
    assert max(calls) <= page_rows


def doubled(event: ReceivedEvent) -> dict[str, object]:
    """The next version: delays of events from 5 on are doubled, and event 3 is a dead letter."""
    delay = json.loads(event.body)["delay"]
    if event.sequence_number == 3:
        raise LookupError("not in the next version")
    return {
        "sequence_number": event.sequence_number,
        "partition_id": event.partition_id,
        "delay": (delay or 0) * (2 if event.sequence_number >= 5 else 1),
    }


NEXT = replace(PIPELINE, handler=doubled)
IN_SHADOW = replace(NEXT, table=SHADOW.shadow_table(), consumer_group=SHADOW.consumer.consumer_group)
EVENTS = [*events_between(0, 7), event_with({"delay": None}, 7), *events_between(8, 20)]
"""Event 7 is a dead letter of the live version."""


def process(database: Database, pipeline: Pipeline, until: int) -> int:
    """Process events from the checkpoint on, as a host would; returns the rows."""
    result = process_partition_batch(
        database, pipeline, "0", EVENTS[:until], start_sequence_number=0, until_sequence_number=until
    )
    return result.rows


def rows_of(pipeline: Pipeline, until: int) -> list[tuple[object, ...]]:
    """What a version makes of events, by its handler alone."""
    rows: list[tuple[object, ...]] = []
    for event in EVENTS[:until]:
        try:
            row: Any = pipeline.handler(event)  # type: ignore[operator]
        except (LookupError, ValueError):
            continue
        rows.append((row["sequence_number"], row["partition_id"], row["delay"], None))
    return rows


def letters_of(database: Database, consumer: ConsumerKey) -> list[tuple[int, str, str]]:
    """Open dead letters: number, reason, pipeline."""
    chosen = DeadLetterFilter(event_hub=consumer.event_hub, consumer_group=consumer.consumer_group)
    found = DeadLetters(database).list(chosen, limit=None)
    return [(each.sequence_number, each.reason, each.pipeline) for each in found]


def difference(database: Database, *, moved_to: int | None = None, **options: object) -> ShadowDifference:
    """Compare both; moved_to: between the two snapshots, live and shadow process more events."""
    with ExitStack() as stack:
        live = stack.enter_context(reading_snapshot(database))
        if moved_to is not None:
            live.execute(text("SELECT count(*) FROM flights")).all()
            process(database, PIPELINE, moved_to)
        own = stack.enter_context(reading_snapshot(database))
        return compare_shadow(SHADOW, live, own, **{"limit": 20, **options})  # type: ignore[arg-type]


@pytest.fixture
def replayed(database: Database) -> Database:
    """Ten events in both versions."""
    process(database, PIPELINE, 10)
    prepare_shadow(database, SHADOW)
    process(database, IN_SHADOW, 10)
    return database


def test_difference_of_rows_and_dead_letters(replayed: Database) -> None:
    """It lists rows by key and open dead letters by event, while the live version runs on.

    Those that were added over HTTP say nothing of a version.
    """
    added = NewDeadLetter(2, "2", 1, "E", "added")
    add_once(replayed, SHADOW.live, "0", [added], open_max=9, event_hub_created_at_ms=0)
    found = difference(replayed, moved_to=15)
    assert [(each.key, each.live, each.shadow) for each in found.rows.first] == [
        ((3, "0"), (3, None), None),
        ((5, "0"), (5, None), (10, None)),
        ((6, "0"), (6, None), (12, None)),
        ((7, "0"), None, (0, None)),
        ((8, "0"), (8, None), (16, None)),
        ((9, "0"), (9, None), (18, None)),
    ]
    assert (found.rows.same, found.rows.changed, found.rows.only_live, found.rows.only_shadow) == (4, 4, 1, 1)
    assert [(each.key, each.kind) for each in found.dead_letters.first] == [
        (("0", 7), "only live"),
        (("0", 3), "only shadow"),
    ]
    assert not found.is_equal
    # The live one is at 15 now, and the shadow at 10: these are not the same events.
    with pytest.raises(ShadowError, match="partition 0: shadow 10, live 15"):
        difference(replayed)


def test_dead_letters_of_a_shadow_are_not_among_the_live_ones(replayed: Database) -> None:
    """Lists, counts and discards leave them out, unless they are asked for them by their group."""
    letters, pages = DeadLetters(replayed), DeadLetterPages(replayed)
    everything, its = DeadLetterFilter(), DeadLetterFilter(consumer_group=SHADOW.consumer.consumer_group)
    for chosen, numbers in ((everything, [7]), (its, [3])):
        assert [each.sequence_number for each in letters.list(chosen)] == numbers
        assert sorted(each.sequence_number for each in pages.page(chosen)) == numbers
        assert letters.count(chosen) == sum(each.count for each in letters.counts_by_reason(chosen))
        assert letters.count(chosen) == len(numbers)
    assert letters.discard(everything, reason="not needed") == 1
    assert letters.count(its) == 1


def test_columns_that_are_ignored_or_only_one_has(replayed: Database) -> None:
    """A column that one table lacks or that is not to be compared makes no difference; others are refused."""
    with replayed.writing() as connection, connection.begin():
        connection.execute(text("ALTER TABLE flights__v2 ADD COLUMN score INTEGER"))
    found = difference(replayed, ignored=["delay"])
    assert (found.rows.same, found.rows.changed, found.columns) == (8, 0, ("note",))
    assert (found.only_live, found.only_shadow) == ((), ("score",))
    for name in ("partition_id", "speed"):
        with pytest.raises(InvalidArgumentError, match=f"no column '{name}'"):
            difference(replayed, ignored=[name])


def test_swap_and_back(replayed: Database) -> None:
    """After a swap, the next version continues at the checkpoint: no event is skipped or processed twice; and
    the former rows and dead letters are the shadow's, which can be swapped back."""
    swap_shadow(replayed, SHADOW)
    assert rows_in(replayed) == rows_of(NEXT, 10)
    assert rows_in(replayed, IN_SHADOW.table) == rows_of(PIPELINE, 10)
    assert letters_of(replayed, CONSUMER) == [(3, "not in the next version", "flights")]
    assert [number for number, *_ in letters_of(replayed, SHADOW.consumer)] == [7]
    assert process(replayed, NEXT, 20) == 10
    assert rows_in(replayed) == rows_of(NEXT, 20)
    with pytest.raises(ShadowError, match="partition 0: shadow 10, live 20"):
        swap_shadow(replayed, SHADOW)
    process(replayed, replace(IN_SHADOW, handler=PIPELINE.handler), 20)
    swap_shadow(replayed, SHADOW)
    assert (rows_in(replayed), letters_of(replayed, CONSUMER)[0][0]) == (rows_of(PIPELINE, 20), 7)
    drop_shadow(replayed, SHADOW)
    assert (rows_in(replayed), letters_of(replayed, SHADOW.consumer)) == (rows_of(PIPELINE, 20), [])


@pytest.mark.parametrize(
    ("live", "own", "is_same"),
    [(5, 5, True), (5, 4, False), (5, None, False), (0, None, True), (None, 0, True), (None, 5, False)],
)
def test_positions_that_are_the_same(live: int | None, own: int | None, is_same: bool) -> None:
    """A shadow that is ahead of a live version without a number would have its events processed again."""
    assert ShadowPosition("0", live, own).is_same is is_same


def test_names_of_indexes_survive_swaps(database: Database) -> None:
    """A schema has one index of a name: after a swap, another shadow of the same name can be created."""
    table = Table(
        "indexed",
        MetaData(),
        Column("id", String(10), primary_key=True),
        Column("value", String(10), index=True),
    )
    shadow = replace(SHADOW, table=table)
    database.ensure_table(table)
    process(database, replace(PIPELINE, handler=lambda event: None), 1)
    for _ in range(2):
        # As another process would: it declares the table anew.
        table = table.to_metadata(MetaData())
        shadow = replace(SHADOW, table=table)
        prepare_shadow(database, shadow)
        process(database, replace(IN_SHADOW, handler=lambda event: None), 1)
        swap_shadow(database, shadow)
        drop_shadow(database, shadow)


def test_a_swap_fences_who_still_processes(replayed: Database) -> None:
    """An owner from before the swap cannot commit into the tables of the next version."""
    process_partition_batch(
        replayed, PIPELINE, "0", [], start_sequence_number=10, until_sequence_number=10, lease_epoch=4
    )
    swap_shadow(replayed, SHADOW)
    with pytest.raises(FencedError, match="under lease epoch"):
        process_partition_batch(
            replayed,
            PIPELINE,
            "0",
            EVENTS[10:11],
            start_sequence_number=10,
            until_sequence_number=11,
            lease_epoch=0,
        )
    assert rows_in(replayed) == rows_of(NEXT, 10)


@pytest.mark.slow
def test_nobody_commits_during_a_swap(
    replayed: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is committed after the positions were compared would be in the former table."""
    rename = swap._rename

    def rename_late(*arguments: Any) -> None:
        errors = (DatabaseUnavailableError, FencedError)
        with Database.open(database_url, lock_wait_s=1) as other, pytest.raises(errors):
            process(other, PIPELINE, 20)
        rename(*arguments)

    monkeypatch.setattr(swap, "_rename", rename_late)
    swap_shadow(replayed, SHADOW)
    assert rows_in(replayed) == rows_of(NEXT, 10)


def test_swaps_that_are_refused(replayed: Database) -> None:
    """A host that runs, a view and a foreign key refuse a swap by name, and nothing changes."""
    leases = LeaseTable(replayed)
    lease = leases.acquire(CONSUMER, "0", "host-1", expected=None)
    assert lease is not None
    with pytest.raises(ShadowError, match="host-1 processes"):
        swap_shadow(replayed, SHADOW)
    leases.release(CONSUMER, [lease])
    with replayed.writing() as connection, connection.begin():
        connection.execute(text("CREATE VIEW late AS SELECT delay FROM flights"))
    with pytest.raises(ShadowError, match="The view late"):
        swap_shadow(replayed, SHADOW)
    with replayed.writing() as connection, connection.begin():
        connection.execute(text("DROP VIEW late"))
        connection.execute(text("CREATE UNIQUE INDEX flight_number ON flights (sequence_number)"))
        Table(
            "remark",
            MetaData(),
            Column("note", String(10), primary_key=True),
            Column("flight", flights.c.sequence_number.type, ForeignKey(flights.c.sequence_number)),
        ).create(connection)
    with pytest.raises(ShadowError, match="A foreign key of the table remark"):
        swap_shadow(replayed, SHADOW)
    assert rows_in(replayed) == rows_of(PIPELINE, 10)


def test_what_is_left_of_a_shadow_is_not_taken_for_one(replayed: Database) -> None:
    """Rows without a checkpoint would be written twice by a replay from the beginning."""
    with replayed.writing() as connection, connection.begin():
        connection.execute(text("DELETE FROM tidegate_checkpoint WHERE consumer_group LIKE '%~v2'"))
    with pytest.raises(ShadowError, match="has no checkpoint"):
        prepare_shadow(replayed, SHADOW)
    drop_shadow(replayed, SHADOW)
    prepare_shadow(replayed, SHADOW)
    assert rows_in(replayed, IN_SHADOW.table) == []


def test_an_interrupted_swap_is_completed(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tables are renamed before dead letters are exchanged, nobody commits between the two."""
    with Database.open(mariadb_url) as database:
        database.ensure_table(flights)
        process(database, PIPELINE, 10)
        prepare_shadow(database, SHADOW)
        process(database, IN_SHADOW, 10)
        with monkeypatch.context() as patch:
            patch.setattr(swap, "_exchange_letters", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                swap_shadow(database, SHADOW)
        assert (rows_in(database), letters_of(database, CONSUMER)[0][0]) == (rows_of(NEXT, 10), 7)
        for forbidden in (
            lambda: process(database, NEXT, 20),
            lambda: DeadLetters(database).redrive(PIPELINE, LogOfEvents(EVENTS)),
        ):
            with pytest.raises(FencedError, match="run `tidegate pipeline swap` with --shadow v2 again"):
                forbidden()
        with pytest.raises(ShadowError, match="was interrupted"):
            drop_shadow(database, SHADOW)
        swap_shadow(database, SHADOW)
        assert (rows_in(database), letters_of(database, CONSUMER)[0][0]) == (rows_of(NEXT, 10), 3)
        assert process(database, NEXT, 20) == 10


@pytest.mark.parametrize("name", ["V2", "v-2", "2", "", "a" * 21])
def test_names_that_no_table_could_have(name: str) -> None:
    """They are refused where they are given."""
    with pytest.raises(InvalidArgumentError):
        replace(SHADOW, name=name)
    with pytest.raises(InvalidArgumentError, match="no primary key"):
        replace(SHADOW, table=Table("keyless", MetaData(), Column("a", Text)))


@pytest.mark.faults
@ci_has("database_url", "mariadb", "sqlite", "postgresql", *SQL_SERVERS)
def test_a_kill_at_each_step_of_a_swap(database_url: str) -> None:
    """SIGKILL before each statement and commit: the rows are all of one version, and so are the dead letters
    unless the swap waits to be completed; then nobody can commit; and repeated, it is done once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sql.swap_kills", database_url],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] > 15
    # A transaction needs no second call; MariaDB's three steps do.
    assert (result["waiting"] > 0) == database_url.startswith("mariadb")

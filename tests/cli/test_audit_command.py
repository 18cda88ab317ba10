"""``tidegate audit`` against a real service and databases of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click
import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, delete, insert
from tests.cli.support import Result, run_on_terminal, run_tidegate

from tidegate.client import BlockingConsumer
from tidegate.sql import ConsumerKey, Database, NewDeadLetter, Pipeline, UnitOfWork, process_partition_batch
from tidegate.testing.hub import HubService

readings = Table(
    "reading",
    MetaData(),
    Column("sequence_number", BigInteger, nullable=False),
    Column("partition_id", Text, nullable=False),
    Column("text", Text, nullable=False),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def processed_url(request: pytest.FixtureRequest, event_hub: str, environment: dict[str, str]) -> str:
    """A database into which a pipeline has brought 10 events of partition 0, one as a dead letter."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    lines = "\n".join("bad" if number == 3 else str(number) for number in range(10)).encode()
    sent = run_tidegate("send", event_hub, "--partition", "0", environment=environment, input_bytes=lines)
    assert sent.code == 0, sent.err
    pipeline = Pipeline(
        "readings",
        event_hub,
        readings,
        lambda event: {
            "sequence_number": event.sequence_number,
            "partition_id": event.partition_id,
            "text": str(int(event.body)),
        },
    )
    with (
        Database.open(url) as database,
        BlockingConsumer(environment["TIDEGATE_CONNECTION_STRING"], event_hub) as consumer,
    ):
        database.ensure_table(readings)
        process_partition_batch(
            database,
            pipeline,
            partition_id="0",
            start_sequence_number=0,
            until_sequence_number=10,
            events=list(consumer.read_events(event_hub, "0", range(10))),
        )
    return url


def _audit(hub: str, url: str, *options: str, environment: dict[str, str]) -> Result:
    return run_tidegate(
        "audit", hub, "--database", url, "--table", "reading", *options, environment=environment
    )


def _change(url: str, *, without: Iterable[int] = (), also: Iterable[tuple[int, str]] = ()) -> None:
    added = [{"sequence_number": n, "partition_id": part, "text": ""} for n, part in also]
    with Database.open(url) as database, database.writing() as connection, connection.begin():
        connection.execute(delete(readings).where(readings.c.sequence_number.in_(list(without))))
        if added:
            connection.execute(insert(readings), added)


@pytest.mark.slow
def test_a_sound_table(processed_url: str, event_hub: str, environment: dict[str, str]) -> None:
    """Nothing wrong is exit code 0, with the numbers that were compared; in every format."""
    found = _audit(event_hub, processed_url, "--json", environment=environment)
    assert found.code == 0, found.err
    first, second = json.loads(found.out)
    assert first == {
        "partition": "0",
        "start": 0,
        "checkpoint": 10,
        "log_end": 10,
        "events": 10,
        "rows": 9,
        "dead_letters": 1,
        "discarded": 0,
        "gaps": 0,
        "duplicates": 0,
        "rows_and_dead_letters": 0,
        "beyond_checkpoint": 0,
        "beyond_log": 0,
        "stray_rows": 0,
        "findings": [],
    }
    assert (second["partition"], second["checkpoint"], second["events"]) == ("1", None, 0)
    assert "Compared 10 events of 2 partitions with 9 rows and 1 open dead letter." in found.err
    table = _audit(event_hub, processed_url, environment=environment)
    assert table.code == 0
    header, line, _ = table.out.splitlines()
    assert "next event" in header
    assert header.split("  ")[0] == "partition"
    assert line.split()[:7] == ["0", "0", "10", "10", "10", "9", "1"]
    lines = _audit(event_hub, processed_url, "--csv", environment=environment).out.splitlines()
    assert lines[0].startswith("partition,start,checkpoint,log_end,events,rows,dead_letters")
    assert lines[1] == "0,0,10,10,10,9,1,0,0,0,0,0,0,0,[]"


def test_a_terminal_of_80_columns_shows_gaps_and_duplicates(
    processed_url: str, event_hub: str, environment: dict[str, str]
) -> None:
    """What an audit is run for does not drop out first."""
    words = ("audit", event_hub, "--database", processed_url, "--table", "reading")
    shown = click.unstyle(run_on_terminal(*words, environment=environment).out)
    assert {"gaps", "duplicates", "rows", "discarded"} <= {*shown[: shown.index("───")].split()}


def test_what_is_wrong_is_named(processed_url: str, event_hub: str, environment: dict[str, str]) -> None:
    """Each thing that is wrong is listed as a range, the sentence counts them, and the exit code is 4."""
    _change(processed_url, without=[5, 6, 8], also=[(1, "0"), (3, "0"), (12, "0"), (0, "north")])
    found = _audit(event_hub, processed_url, "--nl", environment=environment)
    assert found.code == 4
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [(item["kind"], item["from"], item["until"]) for item in records[0]["findings"]] == [
        ("gap", 5, 7),
        ("gap", 8, 9),
        ("duplicate", 1, 2),
        ("row_and_dead_letter", 3, 4),
        ("beyond_checkpoint", 12, 13),
    ]
    assert (records[2]["partition"], records[2]["stray_rows"]) == ("north", 1)
    assert (
        "3 events missing; 1 event with more than one row; 1 event with a row and an open dead letter; "
        "1 event beyond the checkpoint; 1 row of no event." in found.err
    )
    table = _audit(event_hub, processed_url, "--limit", "1", environment=environment)
    assert table.code == 4
    assert ["0", "gap", "5", "7", "2"] in [line.split() for line in table.out.splitlines()]
    assert ["0", "gap", "8", "9", "1"] not in [line.split() for line in table.out.splitlines()]
    assert "Listing 4 of 5 ranges" in table.err
    assert "3 events missing" in table.err


def test_gaps_and_duplicates_on_purpose(
    processed_url: str, event_hub: str, environment: dict[str, str]
) -> None:
    """What a handler does on purpose is allowed by name, and still shown."""
    _change(processed_url, without=[5], also=[(1, "0")])
    refused = _audit(event_hub, processed_url, "--allow-gaps", environment=environment)
    assert refused.code == 4
    assert "missing" not in refused.err
    allowed = _audit(
        event_hub, processed_url, "--allow-gaps", "--allow-duplicates", "--json", environment=environment
    )
    assert allowed.code == 0, allowed.err
    first = json.loads(allowed.out)[0]
    assert (first["gaps"], first["duplicates"], len(first["findings"])) == (1, 1, 2)


def test_a_consumer_that_started_late(
    sqlite_url: str, event_hub: str, environment: dict[str, str], hub_service: HubService
) -> None:
    """--from-first-row leaves out what lies before the first row or dead letter."""
    sent = run_tidegate(
        "send", event_hub, "--partition", "0", environment=environment, input_bytes=b"a\nb\nc\nd\n"
    )
    assert sent.code == 0
    with Database.open(sqlite_url) as database:
        database.ensure_table(readings)
        with UnitOfWork(database, ConsumerKey(event_hub)) as unit:
            unit.add_dead_letters("0", [NewDeadLetter(2, "2", 0, "ValueError", "bad")])
            unit.advance("0", unit.lock("0"), 4)
    _change(sqlite_url, also=[(3, "0")])
    whole = _audit(event_hub, sqlite_url, environment=environment)
    assert (whole.code, "2 events missing" in whole.err) == (4, True)
    assert _audit(event_hub, sqlite_url, "--from-first-row", environment=environment).code == 0


def test_wrong_words_get_one_clear_line(sqlite_url: str, event_hub: str, environment: dict[str, str]) -> None:
    """No database, no table, no such column, hub or group: one sentence that names it, and its exit code."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(readings)
        with UnitOfWork(database, ConsumerKey(event_hub)) as unit:
            unit.advance("0", unit.lock("0"), 0)
    missing = run_tidegate("audit", event_hub, "--table", "reading", environment=environment)
    for found, code, words in (
        (missing, 2, "No database given"),
        (
            run_tidegate(
                "audit", event_hub, "--database", sqlite_url, "--table", "nowhere", environment=environment
            ),
            1,
            "no table 'nowhere'",
        ),
        (
            _audit(event_hub, sqlite_url, "--sequence-column", "number", environment=environment),
            2,
            "no column 'number'; it has sequence_number, partition_id, text",
        ),
        (_audit(event_hub, sqlite_url, "--group", "other", environment=environment), 1, "no checkpoint"),
        (_audit("no-such-hub", sqlite_url, environment=environment), 1, "no-such-hub"),
    ):
        assert found.code == code, found.err
        assert found.err.startswith("Error: ")
        assert words in found.err
        assert len(found.err.splitlines()) == 1
        assert found.out == ""

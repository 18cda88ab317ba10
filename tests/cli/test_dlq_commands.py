"""``tidegate dlq``: from a dead letter in the database to its event in the log and back into a table."""

from __future__ import annotations

import json
import socket
import sqlite3
import stat
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import run_tidegate

from tidegate.cli.shell.stores import default_actor
from tidegate.client import BlockingConsumer
from tidegate.model.events import EventData
from tidegate.sql import (
    ConsumerKey,
    Database,
    DeadLetters,
    NewDeadLetter,
    Pipeline,
    load_pipeline,
    process_partition_batch,
)
from tidegate.testing.hub import HubService
from tidegate.wire.event_codec import encode_event

PIPELINE_FILE = """
import json
from sqlalchemy import BigInteger, Column, MetaData, Table, Text
from sqlalchemy import insert
from tidegate.sql import Pipeline, TransactionalPipeline

table = Table(
    "reading", MetaData(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
)

def first(event):
    value = json.loads(event.body)
    if value["celsius"] is None:
        raise ValueError("the sensor gave no temperature")
    return {"sequence_number": event.sequence_number, "text": str(value["celsius"])}

def corrected(event):
    value = json.loads(event.body)
    if value["celsius"] is None and value.get("is_broken"):
        raise ValueError("the sensor is broken")
    return {"sequence_number": event.sequence_number, "text": str(value["celsius"])}

first_pipeline = Pipeline("readings", "HUB", table, first)
corrected_pipeline = Pipeline("readings", "HUB", table, corrected)

def write(context, events):
    for event in events:
        context.connection.execute(insert(table).values(**corrected(event)))

writing_pipeline = TransactionalPipeline("readings", "HUB", write)
"""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """A pipeline has run once: 7 rows, and 3 dead letters in partition 0."""

    hub: str
    database_url: str
    pipeline_file: Path


@pytest.fixture
def aftermath(tmp_path: Path, hub_service: HubService, environment: dict[str, str]) -> Aftermath:
    """Ten events, three of them without a temperature, one of these of a broken sensor."""
    hub = hub_service.create_hub(f"dlq-{uuid.uuid4().hex[:8]}", partition_count=1)
    pipeline_file = tmp_path / "readings.py"
    pipeline_file.write_text(PIPELINE_FILE.replace("HUB", hub))
    events = [{"celsius": None if number in (3, 5, 8) else number} for number in range(10)]
    events[8]["is_broken"] = True
    lines = "\n".join(json.dumps(event) for event in events).encode()
    assert run_tidegate("send", hub, environment=environment, input_bytes=lines).code == 0
    url = f"sqlite:///{tmp_path / 'readings.db'}"
    pipeline = load_pipeline(f"{pipeline_file}:first_pipeline")
    assert isinstance(pipeline, Pipeline)
    with Database.open(url) as database, BlockingConsumer(hub_service.connection_string, hub) as consumer:
        database.ensure_table(pipeline.table)
        received = list(consumer.read_events(hub, "0", range(10)))
        process_partition_batch(
            database,
            pipeline,
            partition_id="0",
            start_sequence_number=0,
            until_sequence_number=10,
            events=received,
        )
    return Aftermath(hub, url, pipeline_file)


def _redrive(
    aftermath: Aftermath,
    *options: str,
    environment: dict[str, str],
    pipeline: str = "corrected_pipeline",
) -> tuple[int, dict[str, object], str]:
    found = run_tidegate(
        "dlq",
        "redrive",
        "--database",
        aftermath.database_url,
        "--pipeline",
        f"{aftermath.pipeline_file}:{pipeline}",
        "--json",
        *options,
        environment=environment,
    )
    record = json.loads(found.out) if found.out else {}
    return found.code, record, found.err


def test_list_count_and_show(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """A list has one record per dead letter, counts go by reason, and one can be seen with its event."""
    database = ["--database", aftermath.database_url]
    listed = run_tidegate("dlq", "list", *database, "--json", environment=environment).json()
    assert [item["sequence_number"] for item in listed] == [3, 5, 8]  # type: ignore[attr-defined]
    counts = run_tidegate("dlq", "list", *database, "--by-reason", "--json", environment=environment).json()
    assert isinstance(counts, list)
    (count,) = counts
    assert (count["error_type"], count["reason"], count["count"]) == (
        "ValueError",
        "the sensor gave no temperature",
        3,
    )
    limited = run_tidegate("dlq", "list", *database, "--limit", "1", "--nl", environment=environment)
    assert len(limited.out.splitlines()) == 1
    assert "1 of 3" in limited.err
    shown = run_tidegate(
        "dlq", "show", aftermath.hub, "0", "5", *database, "--event", "--json", environment=environment
    ).json()
    assert isinstance(shown, dict)
    assert json.loads(shown["body"]) == {"celsius": None}
    assert "first" in shown["traceback"]
    assert run_tidegate("dlq", "show", aftermath.hub, "0", "4", *database, environment=environment).code == 1


def test_an_export_is_for_this_user_alone(
    aftermath: Aftermath, environment: dict[str, str], tmp_path: Path
) -> None:
    """Dead letters hold what is in events: a file of them has mode 0600, also where one was before."""
    file = tmp_path / "letters.jsonl"
    file.write_text("of an earlier export")
    file.chmod(0o644)
    words = ("--database", aftermath.database_url, "--nl", "--output", str(file))
    listed = run_tidegate("dlq", "list", *words, environment=environment)
    assert (listed.code, listed.out) == (0, ""), listed.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    plain = run_tidegate("dlq", "list", "--database", aftermath.database_url, "--nl", environment=environment)
    assert letters == [json.loads(line) for line in plain.out.splitlines()]
    first = letters[0]
    place = (aftermath.hub, "0", str(first["sequence_number"]))
    shown = run_tidegate("dlq", "show", *place, *words, environment=environment)
    assert (shown.code, shown.out) == (0, ""), shown.err
    assert "traceback" in json.loads(file.read_text())
    assert not list(tmp_path.glob(".letters*"))
    refused = run_tidegate("dlq", "list", *words[:-1], str(tmp_path / "none" / "x"), environment=environment)
    assert refused.code == 2
    assert "Cannot write" in refused.err


def test_show_has_an_event_that_cannot_be_decoded(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """Its bytes and the reason; it may have been dead-lettered for that."""
    with closing(sqlite3.connect(aftermath.database_url.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE tidegate_dead_letter SET payload = x'ff' WHERE sequence_number = 5")
    words = ("dlq", "show", aftermath.hub, "0", "5", "--database", aftermath.database_url, "--event")
    shown = run_tidegate(*words, "--json", environment=environment)
    assert shown.code == 0, shown.err
    record = shown.json()
    assert isinstance(record, dict)
    assert (record["body"], record["body_base64"]) == (None, "/w==")
    assert "Byte 0 of a message is 0xff" in record["decode_error"]


def test_show_has_the_traceback_line_by_line(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """People read it as Python prints it, indented under its heading; for programs it is one field."""
    words = ["dlq", "show", aftermath.hub, "0", "5", "--database", aftermath.database_url]
    record = run_tidegate(*words, "--json", environment=environment).json()
    assert isinstance(record, dict)
    shown = run_tidegate(*words, environment=environment)
    fields, _, lines = shown.out.partition("\ntraceback\n")
    assert "is payload copied" in fields.replace("_", " ")
    assert lines.splitlines() == [f"  {line}" for line in record["traceback"].splitlines()]
    assert len(lines.splitlines()) > 2


def test_redrive_in_steps(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """A dry run writes nothing, --limit takes that many, what fails again stays open and is exit code 1."""
    code, report, _ = _redrive(aftermath, "--dry-run", environment=environment)
    assert (code, report["considered"], report["redriven"], report["failed"]) == (4, 3, 2, 1)
    assert report["by_reason"] == [
        {
            "error_type": "ValueError",
            "reason": "the sensor gave no temperature",
            "considered": 3,
            "redriven": 2,
            "failed": 1,
            "waiting": 0,
        }
    ]
    code, report, _ = _redrive(aftermath, "--limit", "1", environment=environment)
    assert (code, report["redriven"], report["rows"]) == (0, 1, 1)
    code, report, error = _redrive(aftermath, environment=environment)
    assert (code, report["considered"], report["redriven"], report["failed"]) == (1, 2, 1, 1)
    assert "stay open" in error
    listed = run_tidegate(
        "dlq", "list", "--database", aftermath.database_url, "--json", environment=environment
    )
    assert [item["reason"] for item in listed.json()] == ["the sensor is broken"]  # type: ignore[attr-defined]


def test_redrive_by_reason_finds_nothing_else(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """A filter by reason leaves the others alone."""
    for option in (["--reason", "no such reason"], ["--reason-is", "the sensor"]):
        code, report, _ = _redrive(aftermath, *option, environment=environment)
        assert (code, report["considered"]) == (0, 0)
    whole = ["--reason-is", "the sensor gave no temperature"]
    assert _redrive(aftermath, *whole, "--dry-run", environment=environment)[1]["considered"] == 3


@pytest.mark.slow
def test_redrive_takes_a_handler_that_writes_itself(
    aftermath: Aftermath, environment: dict[str, str]
) -> None:
    """A TransactionalPipeline is named as a Pipeline is; events are chosen by number and by time."""
    chosen = ["--sequence-number", "3", "--sequence-number", "8"]
    code, report, _ = _redrive(
        aftermath,
        *chosen,
        *("--failed-since", "1h", "--enqueued-since", "1h"),
        environment=environment,
        pipeline="writing_pipeline",
    )
    assert (code, report["considered"], report["redriven"], report["failed"]) == (1, 2, 1, 1)
    code, report, _ = _redrive(
        aftermath, "--failed-until", "2020-01-01", environment=environment, pipeline="writing_pipeline"
    )
    assert (code, report["considered"]) == (0, 0)
    code, report, _ = _redrive(aftermath, "--enqueued-since", "2100-01-01", environment=environment)
    assert (code, report["considered"]) == (0, 0)
    code, _, error = _redrive(aftermath, "--failed-since", "soon", environment=environment)
    assert (code, "'soon' is not a valid time" in error) == (2, True)
    database = ["--database", aftermath.database_url]
    told = run_tidegate(
        "dlq", "history", aftermath.hub, "0", "3", *database, "--json", environment=environment
    )
    assert [entry["action"] for entry in told.json()] == ["redriven"]  # type: ignore[attr-defined]
    table = run_tidegate("dlq", "history", aftermath.hub, *database, environment=environment)
    assert "redrive_failed" in table.out


def test_redrive_shows_reasons_as_a_table(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """People see the counts by reason below the report."""
    shown = run_tidegate(
        "dlq",
        "redrive",
        "--database",
        aftermath.database_url,
        "--pipeline",
        f"{aftermath.pipeline_file}:corrected_pipeline",
        "--dry-run",
        environment=environment,
    )
    assert "the sensor gave no temperature" in shown.out
    assert "considered" in shown.out


def test_redrive_says_that_there_is_nothing(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """People read one sentence instead of zeros; what failed too often to be tried is not nothing."""
    words = [
        *("dlq", "redrive", "--database", aftermath.database_url),
        *("--pipeline", f"{aftermath.pipeline_file}:corrected_pipeline"),
    ]
    shown = run_tidegate(*words, "--reason", "no such reason", environment=environment)
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.splitlines()[-1] == (
        f"No open dead letter of the pipeline readings ({ConsumerKey(aftermath.hub)}) matches."
    )
    exhausted = run_tidegate(*words, "--attempts-max", "1", environment=environment)
    assert (exhausted.code, "exhausted" in exhausted.out) == (1, True)


@pytest.mark.slow
def test_redrive_and_receive_read_beside_a_host(
    aftermath: Aftermath, hub_service: HubService, environment: dict[str, str]
) -> None:
    """While an owner reads every partition of the group: both succeed, and the owner keeps its receiver."""
    owner = BlockingConsumer(hub_service.connection_string, aftermath.hub, owner_level=7)
    with owner:
        events = owner.read_events(aftermath.hub, "0", range(10))
        assert next(events).sequence_number == 0
        words = ("receive", aftermath.hub, "--no-follow", "--nl")
        received = run_tidegate(*words, environment=environment)
        assert (received.code, len(received.out.splitlines())) == (0, 10), received.err
        shown = run_tidegate(
            *("dlq", "show", aftermath.hub, "0", "5", "--event", "--json"),
            *("--database", aftermath.database_url),
            environment=environment,
        )
        assert shown.code == 0, shown.err
        code, report, err = _redrive(aftermath, environment=environment)
        assert (code, report["redriven"], report["failed"]) == (1, 2, 1), err
        # The same receiver goes on: nobody has taken the partition from it.
        assert [event.sequence_number for event in events] == [*range(1, 10)]
        group = hub_service.ask(
            lambda server: server.broker.event_hub(aftermath.hub).partition("0").receivers()
        )
        assert [handle.owner_level for handle in group] == [7]


def test_a_redrive_reads_with_the_group_that_is_named(
    aftermath: Aftermath, environment: dict[str, str]
) -> None:
    """As a service that knows no peeking needs it; one that does not exist is an error."""
    code, _, err = _redrive(aftermath, "--read-group", "nobody", environment=environment)
    assert (code, "nobody" in err) == (1, True)


def test_show_falls_back_to_the_copy(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """An event that the log no longer holds is shown from the dead letter's copy."""
    with Database.open(aftermath.database_url) as database:
        copied = NewDeadLetter(
            77, "77", 1, "ValueError", "old", payload=encode_event(EventData(b"kept"), None)
        )
        DeadLetters(database).add(ConsumerKey(aftermath.hub), "0", [copied], pipeline="readings")
    shown = run_tidegate(
        "dlq",
        "show",
        aftermath.hub,
        "0",
        "77",
        "--database",
        aftermath.database_url,
        "--event",
        "--json",
        environment=environment,
    )
    assert isinstance(record := shown.json(), dict)
    assert (shown.code, record["body"]) == (0, "kept")


def test_discard_needs_a_reason_and_closes(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """Discarding asks why, can be rehearsed, and leaves an audit trail instead of an open dead letter."""
    words = ["dlq", "discard", "--database", aftermath.database_url, "--hub", aftermath.hub]
    assert run_tidegate(*words, environment=environment).code == 2
    rehearsed = run_tidegate(*words, "--because", "test", "--dry-run", environment=environment)
    assert "3 dead letters" in rehearsed.err
    assert run_tidegate(*words, "--because", "sensor replaced", environment=environment).code == 0
    listed = run_tidegate(
        "dlq",
        "list",
        "--database",
        aftermath.database_url,
        "--status",
        "discarded",
        "--nl",
        environment=environment,
    )
    assert len(listed.out.splitlines()) == 3
    words = ["dlq", "history", aftermath.hub, "--database", aftermath.database_url, "--json"]
    history: Any = run_tidegate(*words, environment=environment)
    assert {entry["actor"] for entry in history.json()} == {default_actor()}
    assert default_actor().endswith(f"@{socket.gethostname()}")


@pytest.mark.slow
def test_redrive_reads_a_data_directory_itself(tmp_path: Path, lonely: dict[str, str]) -> None:
    """With --data-dir no service needs to run: the command serves the directory to itself."""
    data_dir = tmp_path / "data"
    hub = f"dlq-{uuid.uuid4().hex[:8]}"
    with HubService(data_dir) as service:
        service.create_hub(hub, partition_count=1)
        environment = lonely | {"TIDEGATE_CONNECTION_STRING": service.connection_string}
        sent = run_tidegate("send", hub, environment=environment, input_bytes=b'{"celsius": null}')
        assert sent.code == 0, sent.err
        pipeline_file = tmp_path / "readings.py"
        pipeline_file.write_text(PIPELINE_FILE.replace("HUB", hub).replace("nullable=False", "nullable=True"))
        url = f"sqlite:///{tmp_path / 'readings.db'}"
        pipeline = load_pipeline(f"{pipeline_file}:first_pipeline")
        assert isinstance(pipeline, Pipeline)
        with Database.open(url) as database, BlockingConsumer(service.connection_string, hub) as consumer:
            database.ensure_table(pipeline.table)
            process_partition_batch(
                database,
                pipeline,
                partition_id="0",
                start_sequence_number=0,
                until_sequence_number=1,
                events=list(consumer.read_events(hub, "0", [0])),
            )
        held = run_tidegate(
            "dlq",
            "show",
            hub,
            "0",
            "0",
            "--database",
            url,
            "--event",
            "--data-dir",
            str(data_dir),
            environment=lonely,
        )
        assert held.code == 1
        assert "Error:" in held.err
    code, report, error = _redrive(
        Aftermath(hub, url, pipeline_file), "--data-dir", str(data_dir), environment=lonely
    )
    assert (code, report.get("redriven")) == (0, 1), error
    missing = run_tidegate(
        "dlq",
        "show",
        hub,
        "0",
        "0",
        "--database",
        url,
        "--event",
        "--data-dir",
        str(tmp_path),
        environment=lonely,
    )
    assert missing.code == 1
    assert "is not a service's data directory" in missing.err
    with Database.open(url) as database:
        assert ConsumerKey(hub) == pipeline.consumer
        with database.read() as connection:
            assert len(connection.execute(pipeline.table.select()).all()) == 1


def test_a_misspelt_database_is_an_error_and_is_not_made(tmp_path: Path, environment: dict[str, str]) -> None:
    """Looking for dead letters in a file that is not there must not look like there were none."""
    missing = tmp_path / "misspelt.db"
    found = run_tidegate("dlq", "list", "--database", f"sqlite:///{missing}", environment=environment)
    assert found.code == 1
    assert "There is no SQLite database" in found.err
    assert not missing.exists()


def test_redrive_for_a_program(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """A program is told the progress line by line and why events fail again, and names who asked for it."""
    code, report, error = _redrive(
        aftermath, "--dry-run", "--progress", "--hub", aftermath.hub, environment=environment
    )
    assert code == 4
    failures = report["failures"]
    assert failures == [
        {
            "error_type": "ValueError",
            "reason": "the sensor is broken",
            "count": 1,
            "partition": "0",
            "sequence_number": 8,
        }
    ]
    told = [json.loads(line)["progress"] for line in error.splitlines() if line.startswith("{")]
    assert told[0] == {"considered": 0, "redriven": 0, "failed": 0, "waiting": 0, "total": 3}
    assert told[-1] == {"considered": 3, "redriven": 2, "failed": 1, "waiting": 0, "total": 3}
    # All have failed once: none is tried, and the program is told to expect none.
    _, _, error = _redrive(aftermath, "--attempts-max", "1", "--progress", environment=environment)
    told = [json.loads(line)["progress"] for line in error.splitlines() if line.startswith("{")]
    assert told[-1] == {"considered": 0, "redriven": 0, "failed": 0, "waiting": 0, "total": 0}
    code, _, _ = _redrive(aftermath, "--actor", "console: ann", environment=environment)
    assert code == 1
    history = run_tidegate(
        "dlq",
        "history",
        aftermath.hub,
        "--database",
        aftermath.database_url,
        "--json",
        environment=environment,
    )
    assert {entry["actor"] for entry in history.json()} == {"console: ann"}  # type: ignore[attr-defined]


def test_redrive_refuses_a_pipeline_of_another_hub(aftermath: Aftermath, environment: dict[str, str]) -> None:
    """Whoever says which hub or consumer group is meant is not given another's dead letters."""
    for other in (["--hub", "elsewhere"], ["--group", "reports"]):
        code, report, error = _redrive(aftermath, *other, environment=environment)
        assert (code, report) == (2, {})
        assert "The pipeline is for" in error

"""``export`` and ``import``: a hub in a file, and a hub again; nothing is lost or half there."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from tests.cli.support import Result, run_tidegate
from tests.cli.test_round_trip import EVENTS, LOGGED, publish

from tidegate.cli.events.sending import Input, Routing, _Line, _Sender
from tidegate.cli.shell.stream_lines import unzipped
from tidegate.client import EventHubProducer
from tidegate.model.errors import EventTooLargeError, InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A hub with all kinds of events in its first partition, and as many in its second."""
    name = hub_service.create_hub(partition_count=2)
    for partition_id in ("0", "1"):
        publish(hub_service, name, partition_id)
    return name


def run(*words: str, environment: dict[str, str], code: int = 0) -> Result:
    """A command that ends with this code."""
    found = run_tidegate(*words, environment=environment)
    assert found.code == code, found.err
    return found


def records_of(path: Path) -> list[dict[str, object]]:
    """What a file has, by partition and number."""
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()
    records = [json.loads(line) for line in lines]
    return sorted(records, key=lambda each: (each["partition"], each["sequence_number"]))


def contents(records: list[dict[str, object]]) -> list[dict[str, object]]:
    """Without what the service assigns."""
    return [{name: value for name, value in each.items() if name not in LOGGED} for each in records]


def test_a_hub_in_a_file_and_back(
    hub: str, hub_service: HubService, environment: dict[str, str], tmp_path: Path
) -> None:
    """Compressed by its name, for this user only; imported with partitions kept, the copy differs in nothing
    that the service does not assign."""
    file = tmp_path / "events.jsonl.gz"
    exported = run("export", hub, str(file), environment=environment)
    assert f"Exported {2 * len(EVENTS)} events of {hub} to {file}." in exported.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("*events*")] == [file.name]
    copy, again = hub_service.create_hub(partition_count=2), tmp_path / "again.jsonl"
    run("import", copy, str(file), "--keep-partitions", environment=environment)
    run("export", copy, str(again), environment=environment)
    first, second = records_of(file), records_of(again)
    assert contents(first) == contents(second)
    assert [each["partition"] for each in first] == [each["partition"] for each in second]


def test_what_is_exported(hub: str, environment: dict[str, str], tmp_path: Path) -> None:
    """From a position, of one partition, to standard output; a file that exists is kept, unless forced."""
    shown = run("export", hub, "-", "--partition", "1", "--from", "@1", environment=environment).out
    records = [json.loads(line) for line in shown.splitlines()]
    assert [each["sequence_number"] for each in records] in ([1], [1, 2, 3, 4, 5])  # by where the key belongs
    assert {each["partition"] for each in records} == {"1"}
    file = tmp_path / "kept.jsonl"
    file.write_text("mine")
    refused = run("export", hub, str(file), environment=environment, code=1)
    assert ("add --force" in refused.err, file.read_text()) == (True, "mine")
    run("export", hub, str(file), "--force", environment=environment)
    assert len(records_of(file)) == 2 * len(EVENTS)
    nowhere = run("export", hub, str(tmp_path / "no" / "file"), environment=environment, code=2)
    assert "Cannot write" in nowhere.err


@pytest.mark.slow
def test_an_import_that_stops_says_how_to_continue(
    hub: str, hub_service: HubService, environment: dict[str, str], tmp_path: Path
) -> None:
    """At a line that is no record, or of a partition that the hub lacks; --skip sends just the rest."""
    file = tmp_path / "events.jsonl"
    run("export", hub, str(file), environment=environment)
    good = file.read_text().splitlines()
    copy = hub_service.create_hub(partition_count=1)
    file.write_text("\n".join([*good[:2], "{", *good[2:]]))
    stopped = run("import", copy, str(file), environment=environment, code=2)
    assert "Line 3: Invalid JSON" in stopped.err
    assert "To continue, correct line 3 and add --skip 2, or leave it out with --skip 3." in stopped.err
    file.write_text("\n".join(good))
    run("import", copy, str(file), "--skip", "2", environment=environment)
    again = tmp_path / "again.jsonl"
    run("export", copy, str(again), environment=environment)
    assert contents(records_of(again)) == contents([json.loads(line) for line in good])
    refused = run("import", copy, str(file), "--keep-partitions", environment=environment, code=2)
    assert "the event hub has no partition '1'" in refused.err.lower()


def test_an_import_continues_after_an_event_that_no_producer_may_send(
    hub_service: HubService, environment: dict[str, str], tmp_path: Path
) -> None:
    """A hub may hold a longer key within a batch: the line is named, empty ones count, and --skip leaves it
    out."""
    records = [{"body": str(number), "partition_key": "k"} for number in range(5)]
    records[2]["partition_key"] = "k" * 129
    file, copy = tmp_path / "events.jsonl", hub_service.create_hub(partition_count=1)
    file.write_text("\n\n".join(map(json.dumps, records)))
    stopped = run("import", copy, str(file), environment=environment, code=2)
    assert "Line 5: A partition key of 129 characters exceeds the limit of 128." in stopped.err
    assert "To continue, correct line 5 and add --skip 2, or leave it out with --skip 3." in stopped.err
    run("import", copy, str(file), "--skip", "3", environment=environment)
    shown = run("export", copy, "-", environment=environment).out
    assert [json.loads(line)["body"] for line in shown.splitlines()] == ["0", "1", "3", "4"]


class Refusing:
    """A producer of a hub that takes no event with the body 3."""

    async def enqueue_many(self, events: Iterable[EventData], **_: object) -> None:
        """Takes those before it."""
        for event in events:
            if event.body == b"3":
                raise EventTooLargeError("3 is too large.")


async def test_what_was_taken_before_a_refused_event_counts() -> None:
    """Else the import that continues would send it again."""
    sender = _Sender(Input([]), Routing(), ["0"])
    lines = [_Line(EventData(b"%d" % number), None, None, 10 * number) for number in range(5)]
    with pytest.raises(EventTooLargeError, match="Line 30: 3 is too large"):
        await sender._enqueue(cast(EventHubProducer, Refusing()), lines)
    assert (sender.event_count, sender.refused_line) == (3, 30)


async def _unzip(raw: bytes) -> bytes:
    async def chunks() -> object:
        for start in range(0, len(raw), 7):
            yield raw[start : start + 7]

    return b"".join([each async for each in unzipped(chunks())])  # type: ignore[arg-type]


async def test_what_gzip_writes() -> None:
    """Also files put together of several; one that is cut off or none at all is refused, not shortened."""
    data = os.urandom(3000) + b"x" * 3_000_000
    raw = gzip.compress(data)
    assert await _unzip(raw) == data
    assert await _unzip(raw + gzip.compress(b"more")) == data + b"more"
    for wrong, words in ((raw[:-9], "cut off"), (b"plain text, long enough", "not a valid gzip file")):
        with pytest.raises(InvalidArgumentError, match=words):
            await _unzip(wrong)

"""What tests of Capture share: events, and the reading back of files."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro

from tidegate.broker import Partition
from tidegate.model.events import EventData
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
"""A whole second: the start of the first window is listed as one."""


async def append_bodies(partition: Partition, bodies: Sequence[bytes]) -> None:
    """Append events as one batch."""
    await append_events(partition, [EventData(body) for body in bodies])


async def append_events(
    partition: Partition, events: Sequence[EventData], partition_key: str | None = None
) -> None:
    """Append events as one batch."""
    sections = [wrap_event(encode_event(event, partition_key)) for event in events]
    await partition.append(b"".join(sections), array("I", map(len, sections)))


def read_capture_file(path: Path) -> list[dict[str, Any]]:
    """The records of a file, by the schema that it carries."""
    with path.open("rb") as file:
        return [record for record in fastavro.reader(file) if isinstance(record, dict)]


def capture_files(root: Path) -> list[Path]:
    """The finished files below a destination, in the order of their names."""
    return sorted(root.rglob("*.avro"))


def captured_numbers(root: Path) -> list[int]:
    """The sequence numbers in all files of one partition, file by file."""
    return [record["SequenceNumber"] for path in capture_files(root) for record in read_capture_file(path)]


async def wait_until(condition: Callable[[], object], *, deadline_s: float = 30.0) -> None:
    """Return once ``condition`` holds; fails with it at the deadline."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  what is waited for is on a disk
            await asyncio.sleep(0.01)

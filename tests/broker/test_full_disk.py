"""A disk that is full to the last byte: events are refused, and what frees space still can."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.absent import not_tested
from tests.support.clocks import SetClock

from tidegate.broker import AppendResult, Broker, Partition
from tidegate.broker.blobs.blob import NO_CONDITIONS
from tidegate.broker.blobs.refusals import BlobRefusedError
from tidegate.model.errors import LogFullError
from tidegate.server.opening import open_broker
from tidegate.storage.options import LogOptions

_OPTIONS = LogOptions(segment_bytes_max=200_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        not_tested("A full disk: mounting a small file system needs Linux and root.")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        not_tested(
            f"A full disk: mounting a small file system is not allowed here ({mounted.stderr.strip()})."
        )
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


async def _append(partition: Partition, size: int = 5) -> AppendResult:
    return await partition.append(bytes(size), array("I", (size,)))


async def _append_until_full(partition: Partition) -> None:
    while True:
        await _append(partition, 50_000)


def _take_the_rest(disk: Path) -> Path:
    """Another program takes what is free."""
    others = disk / "others"
    with others.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return others


async def _fill(partition: Partition, disk: Path) -> None:
    with pytest.raises(LogFullError):
        await _append_until_full(partition)
    _take_the_rest(disk)
    with pytest.raises(LogFullError):
        await _append(partition, 5000)


async def _reopened(broker: Broker, disk: Path, clock: SetClock) -> Broker:
    await broker.close()
    return await open_broker(disk / "data", clock=clock, options=_OPTIONS)


@pytest.mark.slow
async def test_what_frees_space_can_when_the_disk_is_full(small_disk: Path, clock: SetClock) -> None:
    """Deleting a hub, setting retention by size, and retention by age, which must begin a new segment: each
    makes room for events again, and a restart knows it."""
    broker = await open_broker(small_disk / "data", clock=clock, options=_OPTIONS)
    for name in ("other", "hub"):
        await broker.create_event_hub(name, partition_count=1, retention_hours=1)
    for _ in range(10):
        await _append(broker.event_hub("other").partitions[0], 50_000)
    partition = broker.event_hub("hub").partitions[0]
    await _fill(partition, small_disk)
    await broker.delete_event_hub("other")
    await _append(partition)

    await _fill(partition, small_disk)
    for retention_bytes in range(1_000_040, 1_000_000, -1):  # the control log grows beyond its last block
        await broker.update_event_hub("hub", retention_bytes=retention_bytes)
    assert await broker.apply_retention() > 0
    await _append(partition)

    await _fill(partition, small_disk)
    next_number = partition.next_sequence_number
    for _ in range(70):
        clock.advance(60)
        await broker.apply_retention()
    assert partition.begin_sequence_number == next_number
    await _append(partition)
    broker = await _reopened(broker, small_disk, clock)
    assert [hub.name for hub in broker.list_event_hubs()] == ["hub"]
    ends = await broker.event_hub("hub").partitions[0].ends()
    assert (ends.begin_sequence_number, ends.next_sequence_number) == (next_number, next_number + 1)
    await broker.close()


async def test_events_do_not_take_the_space_for_deletions(small_disk: Path, clock: SetClock) -> None:
    """A service that starts without room for it refuses events until there is."""
    broker = await open_broker(small_disk / "data", clock=clock, options=_OPTIONS)
    hub = await broker.create_event_hub("hub", partition_count=1)
    await _append(hub.partitions[0])
    await broker.close()
    os.truncate(small_disk / "data" / "reserve", 0)
    others = _take_the_rest(small_disk)
    os.truncate(others, others.stat().st_size - 500_000)
    broker = await open_broker(small_disk / "data", clock=clock, options=_OPTIONS)
    partition = broker.event_hub("hub").partitions[0]
    with pytest.raises(LogFullError):
        await _append(partition)
    others.unlink()
    assert (await _append(partition)).start_sequence_number == 1
    await broker.close()


@pytest.mark.slow
async def test_checkpoints_do_not_take_the_space_for_deletions(small_disk: Path, clock: SetClock) -> None:
    """Stored, replaced and deleted ones, as a policy with Listen can: they are refused on a full disk, and
    work again when an event hub is deleted."""
    broker = await open_broker(small_disk / "data", clock=clock, options=_OPTIONS)
    for name in ("other", "hub"):
        await broker.create_event_hub(name, partition_count=1)
    for _ in range(10):
        await _append(broker.event_hub("other").partitions[0], 50_000)
    account = broker.event_hub("hub").description.hub_id
    await broker.blobs.create_container(account, "store", {})
    names = [f"{number:03}" + "\U0001f600" * 900 for number in range(250)]  # 4 KB a key

    async def put(name: str) -> None:
        await broker.blobs.put(account, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata={})

    await asyncio.gather(*map(put, names[:240]))
    await _fill(broker.event_hub("hub").partitions[0], small_disk)
    refused = 0
    for name in names:
        for call in (
            put(name),
            broker.blobs.delete(account, "store", name, NO_CONDITIONS, lease_id=None),
        ):
            with suppress(BlobRefusedError):
                try:
                    await call
                except LogFullError:
                    refused += 1
    await broker.delete_event_hub("other")
    assert refused > 480
    await put("new")
    await _append(broker.event_hub("hub").partitions[0])
    await broker.close()

"""Online backups: what is in them, what meanwhile changes cannot harm, and what is left of one that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.storage.simulated_files import SimulatedFiles
from tests.storage.test_power_loss import read_all
from tests.storage.test_stuck_files import StuckFiles

from tidegate.model.errors import LogFailedError, NotFoundError, ServerBusyError
from tidegate.model.history import History
from tidegate.storage import backup as backup_module
from tidegate.storage.backup import BACKUPS_NAME
from tidegate.storage.check import check_log_directory
from tidegate.storage.engine import Backup, BackupState
from tidegate.storage.files import Files
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.record import ProducerBatch
from tidegate.transport.tasks import TaskOwner


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test", on_failure=lambda error: None) as owner:
        yield owner


_OPTIONS = LogOptions(segment_bytes_max=4000, index_interval_bytes=500, save_interval_bytes=3000)
_PARTITIONS = 3


@dataclass
class _Written:
    """What one partition acknowledged."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    sequence: int = 0
    """Of the next batch of its producer."""


class _World:
    """An engine with load."""

    def __init__(self, manager: LogManager) -> None:
        self.manager = manager
        self.written = {str(number): _Written() for number in range(_PARTITIONS)}

    async def append(self, partition_id: str) -> None:
        written = self.written[partition_id]
        payload = b"%s:%d " % (partition_id.encode(), written.sequence) * 20
        producer = ProducerBatch(7, 0, written.sequence)
        log = self.manager.log("hub", partition_id)
        future = log.append_nowait(payload, [len(payload)], enqueued_time_ms=1, producer=producer)
        written.sequence += 1
        written.payloads[(await future).start_sequence_number] = payload

    async def load(self) -> None:
        """To each partition in turn, each event after the one before was acknowledged."""
        while True:
            for partition_id in self.written:
                await self.append(partition_id)

    async def churn(self) -> None:
        """Retention, and other hubs that come and go."""
        for number in range(1_000_000):
            name = f"other{number}"
            await self.manager.create_logs(name, 2)
            log = self.manager.log(name, "0")
            await log.append_nowait(b"x" * 3000, [3000], enqueued_time_ms=1)
            for partition_id in self.written:
                await self.manager.log("hub", partition_id).apply_retention(before_ms=0, bytes_max=9000)
            await self.manager.delete_logs(name)


async def _complete(manager: LogManager, name: str) -> Backup:
    """The backup, once it is no longer being made."""
    async with asyncio.timeout(60):
        while True:
            (found,) = [each for each in await manager.backups.list_all() if each.name == name]
            if found.state is not BackupState.COPYING:
                return found
            await asyncio.sleep(0.001)


async def _check(
    directory: Path, acknowledged: dict[str, dict[int, bytes]], files: Files | None = None
) -> dict[str, tuple[History, ...]]:
    """Start the backup: it holds what was acknowledged before it, and goes on from there."""
    report = check_log_directory(directory, files=files)
    assert (report.damages, report.torn_tails, report.notes) == ([], [], [])
    assert BACKUPS_NAME not in str(directory) or report.unproved == []
    restored = await LogManager.open(directory, options=_OPTIONS, files=files)
    histories, ends = {}, []
    for partition_id, sent in acknowledged.items():
        log = restored.open_log("hub", partition_id)
        begin, end = log.view.begin_sequence_number, log.view.next_sequence_number
        held = {batch.base_sequence_number: bytes(batch.payload) for batch in await read_all(log)}
        assert list(held) == list(range(begin, end))
        assert {number: sent[number] for number in sent if number >= begin}.items() <= held.items()
        state = await log.producer_state(7)
        assert state is not None
        # A batch that the backup lacks is stored when it is sent again: it is not taken for a repeat.
        assert state.next_sequence == end
        histories[partition_id] = log.known_bounds.histories
        ends.append(end)
        future = log.append_nowait(b"more", [4], enqueued_time_ms=1, producer=ProducerBatch(7, 0, end))
        assert (await future).start_sequence_number == end
    # It is of one moment: no event is in it without one that was acknowledged before it was sent.
    assert ends == sorted(ends, reverse=True)
    await restored.close()
    return histories


@pytest.mark.slow
async def test_a_backup_under_load_has_what_was_acknowledged_before(tmp_path: Path, tasks: TaskOwner) -> None:
    """It is sound and starts, with retention and deletions at the same time, and knows its history."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    await manager.control.change("key", b"value", expected_version=0)
    await manager.create_logs("hub", _PARTITIONS)
    world = _World(manager)
    for partition_id in world.written:
        for _ in range(30):
            await world.append(partition_id)
    tasks.start(world.load(), name="load")
    tasks.start(world.churn(), name="churn")
    acknowledged: dict[str, dict[str, dict[int, bytes]]] = {}
    for number in range(5):
        name = f"backup{number}"
        acknowledged[name] = {key: dict(each.payloads) for key, each in world.written.items()}
        await manager.backups.create(name)
        await asyncio.sleep(0)
        found = await _complete(manager, name)
        assert (found.state, found.failure) == (BackupState.COMPLETE, None)
        assert found.bytes_copied == found.bytes_total
    await tasks.close()
    histories = {key: manager.open_log("hub", key).known_bounds.histories for key in world.written}
    await manager.close()
    assert check_log_directory(tmp_path).is_sound
    for name, sent in acknowledged.items():
        directory = tmp_path / BACKUPS_NAME / name
        for key, found_histories in (await _check(directory, sent)).items():
            # The running one is in it, and ends where the copy goes on with another.
            assert found_histories[:-1] == histories[key]
            assert found_histories[-1].first_sequence_number >= len(sent[key])
        restored = await LogManager.open(directory, options=_OPTIONS)
        cell = await restored.control.read("key")
        assert cell is not None
        assert cell.value == b"value"
        await restored.close()
    assert check_log_directory(tmp_path).is_sound  # the copies went on, and share no file that changes


async def test_a_hub_may_be_deleted_while_a_backup_begins(tmp_path: Path, tasks: TaskOwner) -> None:
    """What is there at the moment is in it, not what was there at the request."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    await manager.create_logs("kept", 1)
    await manager.create_logs("gone", 1)
    await manager.open_log("gone", "0").append_nowait(b"event", [5], enqueued_time_ms=0)
    making = tasks.start(manager.backups.create("first"), name="backup")
    await asyncio.sleep(0)  # its directories are being made
    await manager.delete_logs("gone")
    await making
    found = await _complete(manager, "first")
    assert (found.state, found.failure, found.partition_count) == (BackupState.COMPLETE, None, 1)
    await manager.close()


async def test_an_empty_engine_and_idle_partitions_have_a_backup(tmp_path: Path) -> None:
    """Without a hub, without an event, and with a new segment that has none."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    await manager.backups.create("first")
    assert (await _complete(manager, "first")).partition_count == 0
    await manager.create_logs("hub", 2)
    log = manager.open_log("hub", "0")
    await log.append_nowait(b"event", [5], enqueued_time_ms=1)
    assert await log.apply_retention(before_ms=0, bytes_max=None, seal_before_ms=5) == 0
    await manager.backups.create("second")
    found = await _complete(manager, "second")
    assert (found.partition_count, found.event_count) == (2, 1)
    await manager.close()
    for name in ("first", "second"):
        assert check_log_directory(tmp_path / BACKUPS_NAME / name).is_sound
    restored = await LogManager.open(tmp_path / BACKUPS_NAME / "second", options=_OPTIONS)
    log = restored.open_log("hub", "0")
    assert await log.apply_retention(before_ms=5, bytes_max=None, seal_before_ms=5) == 1
    assert (await log.append_nowait(b"next", [4], enqueued_time_ms=9)).start_sequence_number == 1
    await restored.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.faults
@pytest.mark.repeats
async def test_a_backup_is_complete_or_not_there(seed: int, tasks: TaskOwner) -> None:
    """After a power loss at any step of it: the next start removes the rest, and the log is as it was."""
    print(f"seed {seed}")
    randomness = random.Random(seed)
    ended = set()
    for left in range(0, 140, 1 + randomness.randrange(3)):
        disk, data = SimulatedFiles(), Path("/data")
        manager = await LogManager.open(data, options=_OPTIONS, files=disk, is_threaded=False)
        await manager.create_logs("hub", _PARTITIONS)
        world = _World(manager)

        async def pumped(work: asyncio.Task[None], manager: LogManager = manager) -> None:
            while not work.done():
                manager.commit_queued()
                await asyncio.sleep(0)
            work.result()

        async def fill(world: _World = world) -> None:
            for _ in range(20):
                await asyncio.gather(*map(world.append, world.written))

        await pumped(tasks.start(fill(), name="fill"))
        disk.operations_left = left

        async def make(manager: LogManager = manager) -> None:
            await manager.backups.create("one")
            ended.add((await _complete(manager, "one")).state)

        try:
            await pumped(tasks.start(make(), name="make"))
        except LogFailedError:
            ended.add(BackupState.FAILED)
        after = disk.lose_power(randomness)
        disk.operations_left = None
        await manager.close()
        sent = {key: each.payloads for key, each in world.written.items()}
        again = await LogManager.open(data, options=_OPTIONS, files=after)
        names = [each.name for each in await again.backups.list_all()]
        await again.close()
        assert not [path for path in after.entries if ".new" in str(path)]
        for directory in (data, *(data / BACKUPS_NAME / name for name in names)):
            await _check(directory, sent, after)
    assert ended == {BackupState.FAILED, BackupState.COMPLETE}


async def test_one_backup_at_a_time_and_what_is_deleted_is_gone(tmp_path: Path, tasks: TaskOwner) -> None:
    """One that is being made can be given up; unknown names, and paths, are not found."""
    files = StuckFiles()
    manager = await LogManager.open(tmp_path, options=_OPTIONS, files=files)
    await manager.create_logs("hub", 1)
    await manager.open_log("hub", "0").append_nowait(b"event", [5], enqueued_time_ms=1)
    with files.holding("one.new/control"):
        await manager.backups.create("one")
        (found,) = await manager.backups.list_all()
        assert found.state is BackupState.COPYING
        with pytest.raises(ServerBusyError, match="one is being made"):
            await manager.backups.create("two")
        deletion = tasks.start(manager.backups.delete("one"), name="delete")
    await deletion
    for name in ("one", "two", "../logs", "..", ""):
        with pytest.raises(NotFoundError):
            await manager.backups.delete(name)
    assert await manager.backups.list_all() == []
    assert list((tmp_path / BACKUPS_NAME).iterdir()) == []
    await manager.backups.create("two")
    assert (await _complete(manager, "two")).state is BackupState.COMPLETE
    await manager.backups.delete("two")
    assert list((tmp_path / BACKUPS_NAME).iterdir()) == []
    await manager.close()


async def test_a_partition_that_cannot_be_copied_fails_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose file is stuck, and one that could not be opened: the error says which; nothing is left."""
    monkeypatch.setattr(backup_module, "_MOMENT_TIMEOUT_S", 0.2)
    files = StuckFiles()
    manager = await LogManager.open(tmp_path, options=_OPTIONS, files=files)
    await manager.create_logs("hub", 2)
    log = manager.open_log("hub", "0")
    await log.append_nowait(b"event", [5], enqueued_time_ms=1)
    with files.holding("hub/0/"):
        stuck = log.append_nowait(b"stuck", [5], enqueued_time_ms=1)
        await asyncio.to_thread(files.waiting.acquire)
        with pytest.raises(ServerBusyError):
            await manager.backups.create("one")
    await stuck
    await manager.backups.create("two")
    assert (await _complete(manager, "two")).event_count == 2
    await manager.close()
    for path in (tmp_path / "logs" / "hub" / "1").glob("manifest.*"):
        path.unlink()
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    assert manager.log("hub", "1").failure is not None
    with pytest.raises(LogFailedError, match="hub/1 could not be opened"):
        await manager.backups.create("three")
    assert [each.name for each in await manager.backups.list_all()] == ["two"]
    await manager.close()

"""Stuck files: what waits for them, and what does not. Random ones: every partition keeps its order."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.storage.test_power_loss import read_all

from tidegate.model.errors import ClosedError
from tidegate.storage import group_commit
from tidegate.storage.files import OsFiles, ReadableFile, WritableFile
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch
from tidegate.transport.tasks import TaskOwner

_OPTIONS = LogOptions(
    segment_bytes_max=3000, index_interval_bytes=300, mark_after_s=0.0, idle_save_s=0.0, journal_bytes=20_000
)


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test") as owner:
        yield owner


class StuckFiles(OsFiles):
    """The real file system, parts of which can be held."""

    def __init__(self) -> None:
        self._held: dict[str, threading.Event] = {}
        self.waiting = threading.Semaphore(0)
        """Released for each call that waits."""

    @contextmanager
    def holding(self, part: str) -> Iterator[None]:
        """Calls on paths that contain ``part`` wait."""
        self._held[part] = threading.Event()
        try:
            yield
        finally:
            self._held.pop(part).set()

    def wait_for(self, path: Path) -> None:
        for part, released in list(self._held.items()):
            if part in str(path):
                self.waiting.release()
                released.wait()

    def is_held(self, path: Path) -> bool:
        return any(part in str(path) for part in self._held)

    def create(self, path: Path) -> WritableFile:
        self.wait_for(path)
        return _StuckWritable(self, path, super().create(path))

    def open_writable(self, path: Path) -> WritableFile:
        self.wait_for(path)
        return _StuckWritable(self, path, super().open_writable(path))

    def open_readable(self, path: Path) -> ReadableFile:
        return _StuckReadable(self, path, super().open_readable(path))

    def remove_tree(self, directory: Path) -> None:
        self.wait_for(directory)
        super().remove_tree(directory)


class _StuckWritable:
    def __init__(self, files: StuckFiles, path: Path, file: WritableFile) -> None:
        self._files, self._path, self._file = files, path, file
        self.truncate, self.allocate, self.close = file.truncate, file.allocate, file.close

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        self._files.wait_for(self._path)
        return self._file.write_at(buffers, position)

    def reader(self) -> ReadableFile | None:
        file = self._file.reader()
        return None if file is None else _StuckReadable(self._files, self._path, file)

    def sync(self) -> None:
        self._files.wait_for(self._path)
        self._file.sync()


class _StuckReadable:
    def __init__(self, files: StuckFiles, path: Path, file: ReadableFile) -> None:
        self._files, self._path, self._file = files, path, file
        self.size, self.close = file.size, file.close
        self.is_cache_known = file.is_cache_known

    def read_at(self, count: int, position: int) -> bytes:
        self._files.wait_for(self._path)
        return self._file.read_at(count, position)

    def read_cached(self, into: memoryview, position: int) -> int | None:
        return None if self._files.is_held(self._path) else self._file.read_cached(into, position)


async def _open(
    tmp_path: Path, files: StuckFiles, count: int = 3
) -> tuple[LogManager, list[FilePartitionLog]]:
    manager = await LogManager.open(tmp_path, options=_OPTIONS, files=files)
    await manager.create_logs("hub", count)
    return manager, [manager.open_log("hub", str(index)) for index in range(count)]


def _append(
    log: FilePartitionLog, body: bytes, producer: ProducerBatch | None = None
) -> asyncio.Future[AppendResult]:
    return log.append_nowait(body, [len(body)], enqueued_time_ms=1, producer=producer)


async def test_what_waits_for_a_stuck_file_is_its_partition(tmp_path: Path, tasks: TaskOwner) -> None:
    """Its appends, its readers, its retention and the deletion of its hub; and all of that goes on in order
    once the file does. Others append, read and are deleted meanwhile."""
    files = StuckFiles()
    manager, (stuck, *others) = await _open(tmp_path, files)
    await manager.create_logs("other", 1)
    await _append(stuck, b"0")
    with files.holding("hub/0/"):
        first = _append(stuck, b"1", ProducerBatch(1, 0, 0))
        assert await asyncio.to_thread(files.waiting.acquire)
        later = [_append(stuck, b"%d" % number) for number in range(2, 20)]
        state = tasks.start(stuck.producer_state(1), name="state")
        retained = tasks.start(stuck.apply_retention(before_ms=2, bytes_max=None), name="retained")
        read = tasks.start(stuck.read(0, bytes_max=1), name="read")
        for number in range(100):
            for log in others:
                assert (await _append(log, b"x")).start_sequence_number == number
            assert (await others[0].read(number, bytes_max=1))[0].base_sequence_number == number
        await manager.delete_logs("other")
        await manager.create_logs("third", 1)
        waiting: list[asyncio.Future[Any]] = [first, *later, state, retained, read]
        assert not any(each.done() for each in waiting)
    assert [(await each).start_sequence_number for each in (first, *later)] == list(range(1, 20))
    assert await state is not None
    assert [bytes(batch.payload) for batch in await read] == [b"0"]
    await retained
    assert (await _append(stuck, b"20")).start_sequence_number == 20
    await manager.close()


async def test_a_stuck_deletion_stops_nobody(tmp_path: Path, tasks: TaskOwner) -> None:
    """Removing the files of a large hub may take seconds."""
    files = StuckFiles()
    manager, _ = await _open(tmp_path, files)
    await manager.create_logs("other", 1)
    other = manager.open_log("other", "0")
    with files.holding("hub.deleted"):
        deletion = tasks.start(manager.delete_logs("hub"), name="deletion")
        assert await asyncio.to_thread(files.waiting.acquire)
        assert (await _append(other, b"x")).start_sequence_number == 0
        assert not deletion.done()
    await deletion
    await manager.close()


async def test_closing_waits_for_what_is_stuck(tmp_path: Path, tasks: TaskOwner) -> None:
    """What was queued is answered; what comes later is refused."""
    files = StuckFiles()
    manager, (stuck, *_) = await _open(tmp_path, files)
    with files.holding("hub/0/"):
        queued = [_append(stuck, b"x")]
        assert await asyncio.to_thread(files.waiting.acquire)
        queued.append(_append(stuck, b"y"))
        closing = tasks.start(manager.close(), name="closing")
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            _append(stuck, b"z")
        assert not closing.done()
    await closing
    assert [future.result().start_sequence_number for future in queued] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_files_that_are_stuck_now_and_then_change_nothing(
    tmp_path: Path, seed: int, tasks: TaskOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition's batches are stored once and in order, and read so; also after a restart."""
    print(f"seed {seed}")
    monkeypatch.setattr(group_commit, "ROUND_MAX", 7)
    randomness = random.Random(seed)
    files = StuckFiles()
    manager, logs = await _open(tmp_path, files)
    sent: list[list[bytes]] = [[] for _ in logs]
    pending: list[tuple[int, asyncio.Future[AppendResult]]] = []
    work: list[asyncio.Task[int] | asyncio.Task[ProducerState | None]] = []
    for _ in range(12):
        held = randomness.randrange(len(logs))
        with files.holding(f"hub/{held}/"):
            for _ in range(randomness.randint(1, 40)):
                index = randomness.randrange(len(logs))
                body = b"%d" % len(sent[index]) * randomness.randint(1, 80)
                sent[index].append(body)
                pending.append((index, _append(logs[index], body)))
            log = randomness.choice(logs)
            retention = log.apply_retention(before_ms=0, bytes_max=None, seal_before_ms=2)
            work += (tasks.start(retention, name="r"), tasks.start(log.producer_state(1), name="s"))
            await asyncio.gather(*(future for index, future in pending if index != held))
    await asyncio.gather(*(future for _, future in pending), *work)
    for _ in range(2):
        for log, bodies in zip(logs, sent, strict=True):
            assert [bytes(batch.payload) for batch in await read_all(log)] == bodies
        await manager.close()
        manager, logs = await _open(tmp_path, files)
    await manager.close()

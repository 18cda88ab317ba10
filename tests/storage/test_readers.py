"""Readers of one partition: which an append wakes, and which loads from the disk are left out."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.test_stuck_files import StuckFiles

from tidegate.storage import calls_in_turn
from tidegate.storage.calls_in_turn import CallsInTurn
from tidegate.storage.files import ReadableFile
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.record import AppendResult
from tidegate.storage.segments.cold_reads import ColdReads, HubsInTurn, NotInMemory
from tidegate.transport.tasks import TaskOwner


async def _open(tmp_path: Path, files: StuckFiles | None = None) -> tuple[LogManager, FilePartitionLog]:
    manager = await LogManager.open(tmp_path, options=LogOptions(index_interval_bytes=2000), files=files)
    await manager.create_logs("hub", 1)
    return manager, manager.open_log("hub", "0")


async def _append(log: FilePartitionLog, size: int = 10) -> AppendResult:
    return await log.append_nowait(b"x" * size, [size], enqueued_time_ms=1)


async def _passes(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- waking


async def test_an_append_wakes_the_readers_that_found_nothing(tmp_path: Path) -> None:
    """Once, until they look again. Protects the event loop: a receiver without credit never looks, and there
    may be thousands. The end of the log concerns all."""
    manager, log = await _open(tmp_path)
    woken: Counter[str] = Counter()
    waiting = log.open_reader(0, lambda: woken.update(["waiting"]))
    log.open_reader(0, lambda: woken.update(["idle"]))
    closed = log.open_reader(0, lambda: woken.update(["closed"]))
    assert waiting.take(100) == closed.take(100) == []
    closed.close()
    for _ in range(3):
        await _append(log)
        await _passes()
    assert woken == {"waiting": 1}
    assert waiting.take(10_000)[-1].until_sequence_number == 3
    assert waiting.take(10_000) == []
    await log.producer_state(1)
    await _passes()
    assert woken == {"waiting": 1}
    await _append(log)
    await _passes()
    assert woken == {"waiting": 2}
    manager.close_logs("hub")
    await _passes()
    assert woken == {"waiting": 3, "idle": 1}
    await manager.close()


async def test_many_readers_are_woken_over_several_passes_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects everything else that the event loop does."""
    monkeypatch.setattr(calls_in_turn, "_CALLS_AT_ONCE", 20)
    manager, log = await _open(tmp_path)
    woken: Counter[int] = Counter()
    passed = 0
    readers = [log.open_reader(0, lambda: woken.update([passed])) for _ in range(100)]
    assert not any(reader.take(1) for reader in readers)
    await _append(log)
    while woken.total() < 100:
        await asyncio.sleep(0)
        passed += 1
    assert max(woken.values()) == 20
    await manager.close()


async def test_hubs_take_turns_at_calls() -> None:
    """A quiet hub's call does not wait for the thousands of another; a call that waits is made once."""
    calls = CallsInTurn(asyncio.get_running_loop())
    made: list[str] = []

    def call_of(name: str) -> calls_in_turn.Call:
        return lambda: made.append(name)

    same = call_of("same")
    calls.add("busy", [call_of("busy") for _ in range(1000)])
    calls.add("quiet", [same, same])
    calls.add("quiet", [same])
    assert made == []
    await asyncio.sleep(0)
    assert "same" in made
    assert len(made) < 200
    await _passes(20)
    assert Counter(made) == {"busy": 1000, "same": 1}


# -- loads from the disk


class _Loads:
    """Loads of one partition, on a thread that waits."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(1)
        self.reads = ColdReads(HubsInTurn(self.threads, 1), "hub", loop, CallsInTurn(loop))
        self.may_load = threading.Event()
        self.loaded: list[str] = []
        self.installed: list[str] = []
        self.done: list[str] = []

    def ask(self, place: str, name: str) -> tuple[NotInMemory, asyncio.Future[None]]:
        """What to forget, and a future that is done with it."""

        def load() -> str:
            assert self.may_load.wait(60)
            self.loaded.append(place)
            return place

        missing = NotInMemory(place, load, lambda result: self.installed.append(f"{result} {name}"))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self.done.append(name))
        return missing, future


async def test_looks_at_one_place_share_its_load() -> None:
    """Each gets the result, whether it came before the load began or after."""
    loads = _Loads()
    asked = [loads.ask(place, name) for place, name in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"))]
    for missing, future in asked:
        loads.reads.load(missing, lambda error, future=future: future.set_result(error))  # type: ignore[misc]
    loads.may_load.set()
    await asyncio.gather(*(future for _, future in asked))
    assert loads.loaded == ["a", "b"]
    assert sorted(loads.installed) == ["a 1", "a 3", "b 2", "b 4"]
    loads.threads.shutdown()


async def test_what_nothing_waits_for_is_not_loaded() -> None:
    """A load that has begun is installed, as it may be an open file; the next one waits for it alone."""
    loads = _Loads()
    dones = {}
    for place, name in (("a", "1"), ("b", "2"), ("c", "3"), ("b", "4"), ("d", "5")):
        missing, future = loads.ask(place, name)
        dones[name] = missing, future.set_result
        loads.reads.load(missing, future.set_result)  # type: ignore[arg-type]
    for name in ("1", "2", "3"):
        loads.reads.forget(*dones[name])  # type: ignore[arg-type]
        loads.reads.forget(*dones[name])  # type: ignore[arg-type]
    loads.may_load.set()
    await future
    await asyncio.sleep(0)
    assert loads.loaded == ["a", "b", "d"]
    assert loads.installed == ["a 1", "b 4", "d 5"]
    assert loads.done == ["4", "5"]
    loads.threads.shutdown()


class _CountedFiles(StuckFiles):
    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open_readable(self, path: Path) -> ReadableFile:
        self.opened += 1
        return super().open_readable(path)


async def test_a_reader_that_is_gone_leaves_no_load_behind(tmp_path: Path) -> None:
    """Nor does a read that was cancelled. Protects later readers of the partition, which waited for the loads
    of all receivers that had come and gone."""
    files = _CountedFiles()
    manager, log = await _open(tmp_path, files)
    for _ in range(40):
        await _append(log, 3000)
    opened = files.opened
    with files.holding("hub/0/"):
        readers = [log.open_reader(start, lambda: None) for start in range(0, 40, 2)]
        assert not any(reader.take(1) for reader in readers)
        assert await asyncio.to_thread(files.waiting.acquire)  # the first is being loaded
        async with TaskOwner("test") as tasks:
            read = tasks.start(log.read(39, bytes_max=1), name="read")
            await asyncio.sleep(0)
            read.cancel()
        for reader in readers:
            reader.close()
        await asyncio.sleep(0)
        later = asyncio.Event()
        last = log.open_reader(21, later.set)
        assert last.take(1) == []
    async with asyncio.timeout(60):
        await later.wait()
    assert last.take(1)[0].base_sequence_number == 21
    assert files.opened - opened == 2
    await manager.close()

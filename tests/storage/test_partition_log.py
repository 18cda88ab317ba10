"""The partition log on a real disk: appending, reading, waiting, producers, retention, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.storage.test_power_loss import read_all

from tidegate.model.errors import (
    ClosedError,
    DirectoryInUseError,
    LogCorruptError,
    OutOfOrderSequenceError,
    ServerBusyError,
)
from tidegate.storage.group_commit import ROUND_MAX, Delivery
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.partition_writer import PartitionWriter, Request
from tidegate.storage.record import AppendResult, ProducerBatch
from tidegate.transport.tasks import TaskOwner

_OPTIONS = LogOptions(
    segment_bytes_max=2000, index_interval_bytes=300, save_interval_bytes=1500, journal_bytes=20_000
)
OpenLog = Callable[[], AbstractAsyncContextManager[tuple[LogManager, FilePartitionLog]]]


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    """Opens the same log again and again."""

    @asynccontextmanager
    async def open_once() -> AsyncIterator[tuple[LogManager, FilePartitionLog]]:
        manager = await LogManager.open(tmp_path, options=_OPTIONS)
        await manager.create_logs("hub", 1)
        try:
            yield manager, manager.open_log("hub", "0")
        finally:
            await manager.close()

    return open_once


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test") as owner:
        yield owner


async def _append(log: FilePartitionLog, number: int, *, count: int = 1, size: int = 100) -> AppendResult:
    payload = number.to_bytes(4, "big") * (size // 4) * count
    return await log.append_nowait(payload, [size] * count, enqueued_time_ms=1000 + number)


@pytest.mark.slow
async def test_a_burst_of_appends_is_answered_in_rounds(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects everybody else on the event loop, which answers what one round has stored in one go."""
    sizes: list[int] = []
    deliver = FilePartitionLog.deliver

    def counted(log: FilePartitionLog, requests: list[Request]) -> None:
        sizes.append(len(requests))
        deliver(log, requests)

    monkeypatch.setattr(FilePartitionLog, "deliver", counted)
    async with open_log() as (_, log):
        results = await asyncio.gather(*(_append(log, number) for number in range(1300)))
        assert [result.start_sequence_number for result in results] == list(range(1300))
    assert sum(sizes) == 1300
    assert max(sizes) <= ROUND_MAX


async def test_a_quiet_partition_does_not_wait_for_the_backlog_of_a_busy_one(tmp_path: Path) -> None:
    """An append is in the next round however many there are for another partition, whose order is kept."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS, is_threaded=False)
    await manager.create_logs("hub", 2)
    busy, quiet = manager.open_log("hub", "0"), manager.open_log("hub", "1")
    ended: list[str] = []

    def append(log: FilePartitionLog, name: str) -> asyncio.Future[AppendResult]:
        future = log.append_nowait(b"abc", [3], enqueued_time_ms=1)
        future.add_done_callback(lambda _: ended.append(name))
        return future

    futures = [append(busy, "busy") for _ in range(4 * ROUND_MAX)]
    last = append(quiet, "quiet")
    manager.commit_queued()
    await asyncio.gather(*futures, last)
    assert ended.index("quiet") < ROUND_MAX
    assert [future.result().start_sequence_number for future in futures] == list(range(4 * ROUND_MAX))
    await manager.close()


async def test_questions_for_producers_ride_in_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: TaskOwner
) -> None:
    """Each knows the appends before it, and divides no round. Protects the senders of all partitions, who
    waited for a sync with each client that attached as an idempotent producer."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS, is_threaded=False)
    await manager.create_logs("hub", 2)
    log, other = manager.open_log("hub", "0"), manager.open_log("hub", "1")
    rounds: list[int] = []
    deliver = manager._commit._deliver

    def counted(delivery: Delivery) -> None:
        rounds.append(sum(len(requests) for _, requests in delivery[0]))
        deliver(delivery)

    monkeypatch.setattr(manager._commit, "_deliver", counted)
    states = []
    for number in range(10):
        batch = ProducerBatch(number, 0, 0)
        log.append_nowait(b"abc", [3], enqueued_time_ms=1, producer=batch)
        other.append_nowait(b"abc", [3], enqueued_time_ms=1)
        states += [tasks.start(log.producer_state(each), name="state") for each in (number, 100)]
        await asyncio.sleep(0)
    manager.commit_queued()
    assert rounds == [10 + 10 + 16]  # no more than 16 clients are answered in a round
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    manager.commit_queued()
    known = await asyncio.gather(*states)
    assert [None if state is None else state.next_sequence for state in known] == [1, None] * 10
    assert rounds[1:] == [4]
    await manager.close()


async def test_questions_of_clients_that_are_gone_fill_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: TaskOwner
) -> None:
    """However many came and went while the disk was stuck; those that stayed are answered, or refused at the
    log's end."""
    manager = await LogManager.open(tmp_path, options=_OPTIONS, is_threaded=False)
    await manager.create_logs("hub", 1)
    log = manager.open_log("hub", "0")
    queued: list[object] = []
    put = manager._commit.put

    def counted(writer: PartitionWriter, request: Request) -> None:
        queued.append(request)
        put(writer, request)

    monkeypatch.setattr(manager._commit, "put", counted)
    for _ in range(100):
        gone = tasks.start(log.producer_state(1), name="gone")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
    stayed = [tasks.start(log.producer_state(1), name="stayed") for _ in range(40)]
    await asyncio.sleep(0)
    assert len(queued) == 16
    for _ in range(2):
        manager.commit_queued()
        for _ in range(3):
            await asyncio.sleep(0)
    assert sum(state.done() for state in stayed) == 16
    manager.close_logs("hub")
    manager.commit_queued()
    ended = await asyncio.gather(*stayed, return_exceptions=True)
    assert ended.count(None) == 32
    assert sum(isinstance(error, ClosedError) for error in ended) == 8
    await manager.close()


async def test_events_are_read_back_in_order_after_a_restart(open_log: OpenLog) -> None:
    """Over many segments, from every sequence number, with small and large reads, before and after a
    restart.
    """
    async with open_log() as (_, log):
        results = await asyncio.gather(*(_append(log, number, count=3) for number in range(40)))
        assert [result.start_sequence_number for result in results] == list(range(0, 120, 3))
        assert len(log.view.segments) > 5
        before = await read_all(log)
    async with open_log() as (_, log):
        after = await read_all(log)
        assert [(batch.base_sequence_number, bytes(batch.payload)) for batch in before] == [
            (batch.base_sequence_number, bytes(batch.payload)) for batch in after
        ]
        for start in range(120):
            batch = (await log.read(start, bytes_max=1))[0]
            assert batch.base_sequence_number <= start < batch.until_sequence_number
        assert await log.read(120, bytes_max=1000) == []
        assert (await _append(log, 50)).start_sequence_number == 120


async def test_a_batch_larger_than_the_read_is_not_stuck(open_log: OpenLog) -> None:
    """A reader with a small bytes_max still gets a large batch, and one larger than a segment is stored."""
    async with open_log() as (_, log):
        await _append(log, 1)
        await _append(log, 2, count=1, size=50_000)
        await _append(log, 3)
        assert [batch.base_sequence_number for batch in (await read_all(log))] == [0, 1, 2]
        assert len((await log.read(1, bytes_max=10))[0].payload) == 50_000


async def test_a_read_takes_few_of_many_small_batches(tmp_path: Path) -> None:
    """Each is decoded on the event loop: 256 KB of single events held it up for 50 ms. None is skipped."""
    manager = await LogManager.open(tmp_path)
    await manager.create_logs("hub", 1)
    log = manager.open_log("hub", "0")
    await asyncio.gather(*(_append(log, number, size=4) for number in range(300)))
    reads: list[list[int]] = []
    while not reads or reads[-1][-1] < 299:
        batches = await log.read(reads[-1][-1] + 1 if reads else 0, bytes_max=256 * 1024)
        reads.append([batch.base_sequence_number for batch in batches])
    assert [number for read in reads for number in read] == [*range(300)]
    assert [len(read) for read in reads] == [128, 128, 44]
    await manager.close()


async def test_enqueued_times_never_go_back(open_log: OpenLog) -> None:
    """A clock that is set back does not make times go back, and look-ups by time find the first event."""
    async with open_log() as (_, log):
        times = [5, 9, 3, 9, 20, 20, 30] * 3
        results = [await log.append_nowait(b"x" * 200, [200], enqueued_time_ms=time_ms) for time_ms in times]
        stored = [result.enqueued_time_ms for result in results]
        assert stored == sorted(stored)
        for wanted in range(35):
            expected = next(
                (number for number, time_ms in enumerate(stored) if time_ms >= wanted), len(stored)
            )
            assert await log.sequence_number_at_time(wanted) == expected


async def test_a_reader_is_woken_when_its_event_can_be_read(open_log: OpenLog) -> None:
    """After the event is readable; a closed reader leaves nothing behind."""
    async with open_log() as (_, log):
        calls: list[int] = []
        woken = asyncio.Event()

        def wake() -> None:
            calls.append(log.view.next_sequence_number)
            woken.set()

        reader = log.open_reader(0, wake)
        assert reader.take(1) == []
        await _append(log, 1)
        await woken.wait()
        await _append(log, 2)
        await log.read(0, bytes_max=1)  # so that the file is open
        assert [batch.base_sequence_number for batch in reader.take(1000)] == [0, 1]
        reader.close()
        reader.close()
        await _append(log, 3)
        assert calls == [1]


async def test_a_cancelled_append_is_wholly_there_or_wholly_absent(open_log: OpenLog) -> None:
    """Cancellation before the writer takes it: absent. After: present. Later appends are unaffected either
    way.
    """
    async with open_log() as (_, log):
        futures = [
            log.append_nowait(bytes([number]) * 40, [20, 20], enqueued_time_ms=1) for number in range(60)
        ]
        for future in futures[::3]:
            future.cancel()
        kept = [future for number, future in enumerate(futures) if number % 3]
        await asyncio.gather(*kept)
        payloads = [bytes(batch.payload) for batch in (await read_all(log))]
        present = [payload[0] for payload in payloads]
        assert present == sorted(present)
        assert {number for number in range(60) if number % 3} <= set(present)
        assert all(payload == payload[:1] * 40 for payload in payloads)


async def test_a_repeated_batch_is_stored_once_also_after_restarts(open_log: OpenLog) -> None:
    """Producer state comes back from manifest and headers; a repeat in the same round, too, is answered."""
    async with open_log() as (_, log):
        first = log.append_nowait(b"aabb", [2, 2], enqueued_time_ms=1, producer=ProducerBatch(7, 0, 0))
        again = log.append_nowait(b"aabb", [2, 2], enqueued_time_ms=2, producer=ProducerBatch(7, 0, 0))
        assert await first == AppendResult(0, 2, 1)
        assert await again == AppendResult(0, 2, 1, is_duplicate=True)
        for number in range(30):
            producer = ProducerBatch(8, 0, number)
            await log.append_nowait(b"x" * 100, [100], enqueued_time_ms=3, producer=producer)
    async with open_log() as (_, log):
        repeat = await log.append_nowait(b"aabb", [2, 2], enqueued_time_ms=9, producer=ProducerBatch(7, 0, 0))
        assert repeat == AppendResult(0, 2, 1, is_duplicate=True)
        with pytest.raises(OutOfOrderSequenceError, match="expected number 30"):
            await log.append_nowait(b"x", [1], enqueued_time_ms=9, producer=ProducerBatch(8, 0, 31))
        following = await log.append_nowait(b"x", [1], enqueued_time_ms=9, producer=ProducerBatch(8, 0, 30))
        assert following.start_sequence_number == 32


async def test_retention_removes_whole_old_segments(open_log: OpenLog, tmp_path: Path) -> None:
    """By time, by size, and the last segment when all of it is old; numbers go on, readers get what is
    left.
    """
    async with open_log() as (_, log):
        for number in range(60):
            await _append(log, number, size=200)
        reader_start = (await log.read(0, bytes_max=100))[-1].until_sequence_number
        assert await log.apply_retention(before_ms=0, bytes_max=None) == 0
        assert await log.apply_retention(before_ms=1030, bytes_max=None) > 0
        assert 0 < log.view.begin_sequence_number <= 30
        assert (await log.read(reader_start, bytes_max=100))[
            0
        ].base_sequence_number == log.view.begin_sequence_number
        begin = log.view.begin_sequence_number
        assert await log.apply_retention(before_ms=0, bytes_max=3000) > 0
        kept = sum(path.stat().st_size for path in (tmp_path / "logs/hub/0").glob("*.log"))
        assert log.view.begin_sequence_number > begin
        assert 3000 <= kept < 3000 + 2 * _OPTIONS.segment_bytes_max
        assert await log.apply_retention(before_ms=10_000, bytes_max=None) > 0
        assert (log.view.begin_sequence_number, log.view.next_sequence_number) == (60, 60)
        assert log.view.last_enqueued_time_ms == 1059
    async with open_log() as (_, log):
        assert (log.view.begin_sequence_number, log.view.next_sequence_number) == (60, 60)
        assert log.view.last_enqueued_time_ms == 1059
        assert (await _append(log, 60)).start_sequence_number == 60


async def test_lost_and_damaged_indexes_are_rebuilt(open_log: OpenLog, tmp_path: Path) -> None:
    """Without index files, with garbled ones, and with one copy of the manifest, everything is found."""
    async with open_log() as (_, log):
        for number in range(40):
            await _append(log, number)
    directory = tmp_path / "logs/hub/0"
    indexes = sorted(directory.glob("*.index"))
    for path in indexes[::2]:
        path.unlink()
    for path in indexes[1::2]:
        path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    (directory / "manifest.0").unlink()
    async with open_log() as (_, log):
        assert [batch.base_sequence_number for batch in (await read_all(log))] == list(range(40))
        assert await log.sequence_number_at_time(1020) == 20
        assert log.view.last_enqueued_time_ms == 1039
        assert len(sorted(directory.glob("*.index"))) == len(indexes)


async def test_the_index_of_another_segment_is_not_used(open_log: OpenLog, tmp_path: Path) -> None:
    """Indexes that were exchanged, as a restored backup may, neither skip events nor refuse intact ones."""
    async with open_log() as (_, log):
        for number in range(40):
            await _append(log, number)
    indexes = sorted((tmp_path / "logs/hub/0").glob("*.index"))
    contents = [path.read_bytes() for path in indexes]
    for path, content in zip(indexes, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    async with open_log() as (_, log):
        assert [batch.base_sequence_number for batch in (await read_all(log))] == list(range(40))
        for number in range(40):
            assert (await log.read(number, bytes_max=1))[0].base_sequence_number == number
            assert await log.sequence_number_at_time(1000 + number) == number
    assert [path.read_bytes() for path in indexes] == contents


async def test_altered_events_are_never_served(open_log: OpenLog, tmp_path: Path) -> None:
    """One flipped bit in an old segment: reading it names file, byte and command; the others are still
    read.
    """
    async with open_log() as (_, log):
        for number in range(40):
            await _append(log, number)
    path = sorted((tmp_path / "logs/hub/0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[500] ^= 4
    path.write_bytes(data)
    base = int(path.stem)
    async with open_log() as (_, log):
        with pytest.raises(LogCorruptError, match=rf"byte \d+ of {path}.*tidegate check {tmp_path}"):
            await log.read(base + 2, bytes_max=100)
        assert (await log.read(0, bytes_max=100))[0].base_sequence_number == 0
        assert (await _append(log, 41)).start_sequence_number == 40


async def test_a_segment_that_vanished_is_noticed_at_start(open_log: OpenLog, tmp_path: Path) -> None:
    """Acknowledged events are missing: refuse, rather than give their numbers to others."""
    async with open_log() as (_, log):
        for number in range(40):
            await _append(log, number)
    paths = sorted((tmp_path / "logs/hub/0").glob("*.log"))
    paths[2].rename(tmp_path / "elsewhere")
    with pytest.raises(LogCorruptError, match="missing"):
        async with open_log():
            pass


async def test_two_services_cannot_share_a_directory(open_log: OpenLog, tmp_path: Path) -> None:
    """The second one is told who owns it; after a close the directory is free."""
    async with open_log():
        with pytest.raises(DirectoryInUseError, match="in use by another service"):
            await LogManager.open(tmp_path)
    async with open_log():
        pass


async def test_close_finishes_what_was_queued(open_log: OpenLog) -> None:
    """Queued appends are stored and acknowledged; later ones and waiters get ClosedError; closing twice is
    fine.
    """
    async with open_log() as (manager, log):
        futures = [log.append_nowait(b"abc", [3], enqueued_time_ms=1) for _ in range(50)]
        woken: list[bool] = []
        log.open_reader(1000, lambda: woken.append(log.is_closed))
        await manager.close()
        assert [future.result().start_sequence_number for future in futures] == list(range(50))
        assert True in woken
        with pytest.raises(ClosedError):
            log.append_nowait(b"abc", [3], enqueued_time_ms=1)
        await manager.close()
    async with open_log() as (_, log):
        assert log.view.next_sequence_number == 50


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    """Beyond the bound appends are refused as busy, and go through once the disk has caught up."""
    options = LogOptions(queued_bytes_max=1000, congested_bytes=300)
    manager = await LogManager.open(tmp_path, options=options, is_threaded=False)
    await manager.create_logs("hub", 1)
    log = manager.open_log("hub", "0")
    futures = [log.append_nowait(b"x" * 400, [400], enqueued_time_ms=1) for _ in range(2)]
    with pytest.raises(ServerBusyError) as caught:
        log.append_nowait(b"x" * 400, [400], enqueued_time_ms=1)
    assert caught.value.retry_after_s == 4.0
    assert manager.is_congested
    manager.commit_queued()
    await manager.wait_uncongested()
    assert [future.result().start_sequence_number for future in futures] == [0, 1]
    log.append_nowait(b"x" * 400, [400], enqueued_time_ms=1)
    await manager.close()


async def test_deleted_logs_are_gone(open_log: OpenLog, tmp_path: Path) -> None:
    """Queued appends are answered, waiters get ClosedError, the directory is removed."""
    async with open_log() as (manager, log):
        await _append(log, 1)
        await log.read(0, bytes_max=10)
        queued = log.append_nowait(b"x", [1], enqueued_time_ms=1)
        await manager.delete_logs("hub")
        assert queued.done()
        assert log.is_closed
        assert list((tmp_path / "logs").iterdir()) == []

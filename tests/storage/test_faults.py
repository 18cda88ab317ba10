"""Full disks, failing syncs, torn tails and damage: one clear error, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.simulated_files import SimulatedFiles
from tests.storage.test_power_loss import read_all

from tidegate.model.errors import (
    InvalidArgumentError,
    LogCorruptError,
    LogFailedError,
    LogFullError,
    ServerBusyError,
)
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.record import ProducerBatch
from tidegate.storage.segments.segment import segment_path
from tidegate.transport.tasks import TaskOwner

_DATA = Path("/data")
_DIRECTORY = _DATA / "logs/hub/0"
_OPTIONS = LogOptions(segment_bytes_max=5000, index_interval_bytes=300, journal_bytes=20_000)
_DIRECT = replace(_OPTIONS, journal_part_bytes=0)
"""Every round syncs segments, and the journal has nothing."""


async def _open(
    files: SimulatedFiles, options: LogOptions = _OPTIONS
) -> tuple[LogManager, list[FilePartitionLog]]:
    manager = await LogManager.open(_DATA, options=options, files=files, is_threaded=False)
    await manager.create_logs("hub", 2)
    return manager, [manager.open_log("hub", "0"), manager.open_log("hub", "1")]


def _append(
    manager: LogManager, log: FilePartitionLog, payload: bytes, *, producer: ProducerBatch | None = None
) -> int:
    future = log.append_nowait(payload, [len(payload)], enqueued_time_ms=1, producer=producer)
    manager.commit_queued()
    return future.result().start_sequence_number


@pytest.mark.parametrize("space_left", [0, 1, 70, 163, 164, 300, 500])
async def test_a_full_disk_refuses_whole_batches_and_recovers(space_left: int) -> None:
    """Nothing is half acknowledged, no sequence number is lost, and the log works again when space
    returns.
    """
    files = SimulatedFiles()
    manager, logs = await _open(files)
    assert [_append(manager, log, b"first") for log in logs] == [0, 0]
    files.space_left = space_left
    futures = [logs[0].append_nowait(bytes([n]) * 300, [300], enqueued_time_ms=1) for n in range(3)]
    manager.commit_queued()
    for future in futures:
        error = future.exception()
        assert isinstance(error, LogFullError)
        assert error.is_transient
    files.space_left = None
    assert _append(manager, logs[1], b"the other partition") == 1
    assert _append(manager, logs[0], b"after") == 1
    await manager.close()
    manager, logs = await _open(files)
    assert [bytes(batch.payload) for batch in (await read_all(logs[0]))] == [b"first", b"after"]
    await manager.close()


async def test_one_full_partition_leaves_the_others_alone() -> None:
    """In the same round the batch that fits is stored, the one that does not is refused."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    for log in logs:
        _append(manager, log, b"first")
    files.space_left = 200
    fits = logs[0].append_nowait(b"x" * 50, [50], enqueued_time_ms=1)
    too_large = logs[1].append_nowait(b"x" * 500, [500], enqueued_time_ms=1)
    manager.commit_queued()
    assert fits.result().start_sequence_number == 1
    assert isinstance(too_large.exception(), LogFullError)
    await manager.close()


async def test_a_full_disk_when_a_segment_begins() -> None:
    """No room for a new segment: refused, and later the new segment is made after all."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    _append(manager, log, b"x" * 4000)
    files.space_left = 20
    future = log.append_nowait(b"y" * 4000, [4000], enqueued_time_ms=1)
    manager.commit_queued()
    assert isinstance(future.exception(), LogFullError)
    files.space_left = None
    assert _append(manager, log, b"z" * 4000) == 1
    assert len(log.view.segments) == 2
    await manager.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_times_are_found_while_the_newest_segment_is_empty(count: int) -> None:
    """A segment that was begun and holds nothing, because the disk was full then, hides no event."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    for number in range(count):
        log.append_nowait(b"x" * 4000, [4000], enqueued_time_ms=10 * number)
        manager.commit_queued()
    files.space_left = 2000  # enough to begin a segment, and not for the batch
    refused = log.append_nowait(b"y" * 4000, [4000], enqueued_time_ms=40)
    manager.commit_queued()
    assert isinstance(refused.exception(), LogFullError)
    assert log.view.segments[-1].base_sequence_number == log.view.next_sequence_number == count
    for _ in range(2):
        for number in range(count):
            assert await log.sequence_number_at_time(10 * number) == number
            assert await log.sequence_number_at_time(10 * number + 1) == number + 1
        files.space_left = None
        await manager.close()
        manager, (log, _) = await _open(files)
    await manager.close()


@pytest.mark.parametrize("opens_left", range(11))
@pytest.mark.slow
async def test_running_out_of_descriptors_ends_no_log(opens_left: int) -> None:
    """Whichever file cannot be opened, the batch is refused as busy, and the log goes on when one can: no
    acknowledged event is lost, none is stored twice, and a power loss in between changes nothing.
    """
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    files.opens_left = opens_left
    stored: list[bytes] = []
    refused = 0
    for number in range(8):  # two batches a segment
        payload = bytes([number]) * 2400
        future = log.append_nowait(payload, [len(payload)], enqueued_time_ms=1)
        manager.commit_queued()
        error = future.exception()
        if error is None:
            stored.append(payload)
        else:
            assert isinstance(error, ServerBusyError)
            refused += 1
        if number == 5:
            files.opens_left = None
    assert refused > 0
    assert (await read_all(log))[-1].payload == stored[-1]
    after = files.lose_power(random.Random(opens_left))
    await manager.close()
    for found in (files, after):
        manager, (log, _) = await _open(found)
        assert [bytes(batch.payload) for batch in (await read_all(log))] == stored
        assert _append(manager, log, b"more") == len(stored)
        await manager.close()


async def test_readers_wait_for_descriptors() -> None:
    """What cannot be opened now is no failed disk: readers are told to come again, and then read."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    for number in range(6):
        _append(manager, log, bytes([number]) * 2400)
    files.opens_left = 0
    for read in (lambda: log.read(0, bytes_max=10), lambda: log.sequence_number_at_time(0)):
        with pytest.raises(ServerBusyError, match="ulimit"):
            await read()
    files.opens_left = None
    assert len(await read_all(log)) == 6
    await manager.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
async def test_only_what_passes_by_itself_is_repeated(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A write that failed for lack of memory is cut off and repeated; one that the disk refused is not."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    _append(manager, log, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(files, "operate", _failing_once(code))
        future = log.append_nowait(b"x", [1], enqueued_time_ms=1)
        manager.commit_queued()
    if code == errno.EIO:
        assert isinstance(future.exception(), LogFailedError)
    else:
        assert isinstance(future.exception(), ServerBusyError)
        assert _append(manager, log, b"second") == 1
        assert [bytes(batch.payload) for batch in (await read_all(log))] == [b"first", b"second"]
    await manager.close()


def _failing_once(code: int) -> Callable[[], None]:
    errors = [OSError(code, "injected")]

    def operate() -> None:
        if errors:
            raise errors.pop()

    return operate


async def test_a_failing_listener_costs_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Producers of all partitions are answered although a reader's code fails when it is woken."""
    manager, logs = await _open(SimulatedFiles())

    def fail() -> None:
        raise ZeroDivisionError

    assert logs[0].open_reader(0, fail).take(1) == []
    futures = [log.append_nowait(b"x", [1], enqueued_time_ms=1) for log in logs]
    manager.commit_queued()
    assert [future.result().start_sequence_number for future in futures] == [0, 0]
    await asyncio.sleep(0)
    assert "reader" in caplog.text
    await manager.close()


async def test_a_disk_that_does_not_read_is_one_clear_error() -> None:
    """Readers get our error, which says what to look at; appends are not concerned."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    _append(manager, log, b"x")
    files.read_error = errno.EIO
    for read in (lambda: log.read(0, bytes_max=10), lambda: log.sequence_number_at_time(0)):
        with pytest.raises(LogFailedError, match="Check the disk"):
            await read()
    assert _append(manager, log, b"y") == 1
    files.read_error = None
    assert len(await log.read(0, bytes_max=1000)) == 2
    await manager.close()


@pytest.mark.parametrize(
    "producer",
    [ProducerBatch(1 << 63, 0, 0), ProducerBatch(-1, 0, 0), ProducerBatch(1, 1 << 15, 0)],
)
async def test_producer_numbers_out_of_range_are_refused(producer: ProducerBatch) -> None:
    """Numbers that no batch header holds are the caller's error, and do not end the partition's appends."""
    manager, (log, _) = await _open(SimulatedFiles())
    with pytest.raises(InvalidArgumentError, match="producer"):
        log.append_nowait(b"x", [1], enqueued_time_ms=1, producer=producer)
    assert _append(manager, log, b"y") == 0
    await manager.close()


async def test_an_idempotent_producer_retries_after_a_full_disk() -> None:
    """The refused batch left no trace in the producer's state: its retry is stored, its successor waits
    for it.
    """
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    _append(manager, log, b"a", producer=ProducerBatch(5, 0, 0))
    files.space_left = 10
    refused = log.append_nowait(b"b", [1], enqueued_time_ms=1, producer=ProducerBatch(5, 0, 1))
    manager.commit_queued()
    assert isinstance(refused.exception(), LogFullError)
    files.space_left = None
    assert _append(manager, log, b"b", producer=ProducerBatch(5, 0, 1)) == 1
    await manager.close()


async def test_a_batch_that_a_full_disk_refused_makes_no_producer_forgotten() -> None:
    """A producer's repeat is stored once, also where a newcomer's batch, refused, would have taken its place
    in a full table.
    """
    files = SimulatedFiles()
    options = replace(_OPTIONS, producers_max=1)
    manager = await LogManager.open(_DATA, options=options, files=files, is_threaded=False)
    await manager.create_logs("hub", 1)
    log = manager.open_log("hub", "0")
    _append(manager, log, b"a", producer=ProducerBatch(5, 0, 0))
    files.space_left = 10
    refused = log.append_nowait(b"b", [1], enqueued_time_ms=1, producer=ProducerBatch(6, 0, 0))
    manager.commit_queued()
    assert isinstance(refused.exception(), LogFullError)
    files.space_left = None
    assert _append(manager, log, b"a", producer=ProducerBatch(5, 0, 0)) == 0
    assert log.view.next_sequence_number == 1
    await manager.close()


async def test_short_writes_are_completed() -> None:
    """A write that writes less than asked is gone on with."""
    files = SimulatedFiles()
    files.write_bytes_max = 7
    manager, (log, _) = await _open(files)
    assert _append(manager, log, b"0123456789" * 20) == 0
    assert bytes((await read_all(log))[0].payload) == b"0123456789" * 20
    await manager.close()


async def test_after_a_failed_sync_nothing_is_acknowledged_until_a_restart() -> None:
    """The partition says so clearly; the other goes on; a restart verifies the file and appends go on."""
    files = SimulatedFiles()
    manager, logs = await _open(files, _DIRECT)
    for log in logs:
        _append(manager, log, b"first")
    files.sync_error, files.sync_error_name = errno.EIO, "hub/0/"
    futures = [log.append_nowait(b"second", [6], enqueued_time_ms=1) for log in logs]
    manager.commit_queued()
    assert isinstance(futures[0].exception(), LogFailedError)
    assert futures[1].result().start_sequence_number == 1
    files.sync_error = None
    later = logs[0].append_nowait(b"third", [5], enqueued_time_ms=1)
    manager.commit_queued()
    with pytest.raises(LogFailedError, match=r"sync failed.*restart the service"):
        later.result()
    assert [bytes(batch.payload) for batch in (await read_all(logs[0]))] == [b"first"]
    await manager.close()
    manager, logs = await _open(files)
    assert _append(manager, logs[0], b"third") == 1
    await manager.close()


async def test_a_producer_learns_of_no_batch_whose_sync_failed() -> None:
    """A sender that takes a batch for stored because the service counted it does not send it again."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files, _DIRECT)
    _append(manager, log, b"first", producer=ProducerBatch(1, 0, 0))
    files.sync_error, files.sync_error_name = errno.EIO, "hub/0/"
    second = log.append_nowait(b"second", [6], enqueued_time_ms=1, producer=ProducerBatch(1, 0, 1))
    async with TaskOwner("test") as tasks:
        state = tasks.start(log.producer_state(1), name="state")
        await asyncio.sleep(0)
        manager.commit_queued()
        assert isinstance(second.exception(), LogFailedError)
        with pytest.raises(LogFailedError, match="sync failed"):
            await state
    files.sync_error = None
    await manager.close()
    manager, (log, _) = await _open(files)
    async with TaskOwner("test") as tasks:
        state = tasks.start(log.producer_state(1), name="state")
        await asyncio.sleep(0)
        manager.commit_queued()
        known = await state
        assert known is not None
        assert known.next_sequence == 1
    await manager.close()


async def test_what_a_start_serves_outlasts_a_power_loss() -> None:
    """A batch whose sync and whose cut failed is read from the page cache at the next start, and the kernel
    takes its pages for written: to be served, it must be written again."""
    files = SimulatedFiles()
    manager, logs = await _open(files, _DIRECT)
    _append(manager, logs[0], b"first")
    files.sync_error = files.truncate_error = errno.EIO
    files.is_failed_sync_forgotten = True
    future = logs[0].append_nowait(b"second", [6], enqueued_time_ms=1)
    manager.commit_queued()
    assert isinstance(future.exception(), LogFailedError)
    await manager.close()
    files.sync_error = files.truncate_error = None
    manager, logs = await _open(files)
    served = [bytes(batch.payload) for batch in (await read_all(logs[0]))]
    assert served == [b"first", b"second"]
    manager, logs = await _open(files.lose_power(random.Random(0)))
    assert [bytes(batch.payload) for batch in (await read_all(logs[0]))] == served
    await manager.close()


async def _crashed_log(events: int) -> SimulatedFiles:
    """A disk as a killed service leaves it: the manifest as of the first append."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files, _DIRECT)
    for number in range(events):
        _append(manager, log, bytes([number]) * 100)
    files.locked.clear()
    return files


def _content(files: SimulatedFiles) -> bytearray:
    return files.entries[segment_path(_DIRECTORY, 0)].content


@pytest.mark.parametrize("cut", [1, 50, 99, 100, 163, 167])
async def test_a_torn_tail_is_cut_off_and_told(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    """The last batch is incomplete: it goes, with a line in the log; what was before it stays, appends go
    on.
    """
    files = await _crashed_log(5)
    content = _content(files)
    del content[-cut:]
    with caplog.at_level(logging.WARNING):
        manager, (log, _) = await _open(files)
    assert "incomplete write" in caplog.text
    assert log.view.next_sequence_number == 4
    assert _append(manager, log, b"again") == 4
    assert len(await read_all(log)) == 5
    await manager.close()


@pytest.mark.parametrize("position", [72, 102, 142, 230, 234, 292, 332])
async def test_damage_before_acknowledged_events_is_refused(position: int) -> None:
    """A later batch proves that the damaged bytes were durable: nothing is cut off, the error says where
    and what.
    """
    files = await _crashed_log(5)
    content = _content(files)
    size = len(content)
    content[position] ^= 0x10
    with pytest.raises(LogCorruptError, match=r"at byte \d+ of .*0\.log.*tidegate check /data") as caught:
        await _open(files)
    assert "--repair" in str(caught.value)
    assert len(content) == size


async def test_damage_that_the_manifest_covers_is_refused() -> None:
    """After a clean stop a shorter file is damage, even though nothing follows."""
    files = SimulatedFiles()
    manager, (log, _) = await _open(files)
    for _ in range(3):
        _append(manager, log, b"x" * 100)
    await manager.close()
    del _content(files)[-1:]
    with pytest.raises(LogCorruptError, match="durable bytes"):
        await _open(files)


async def test_a_clean_start_reads_only_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean stop no batch is read at start, however large the log is."""
    files = await _crashed_log(20)
    manager, _ = await _open(files)
    await manager.close()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a batch was read")

    monkeypatch.setattr("tidegate.storage.segments.segment_reader.decode_header", refuse)
    manager, (log, _) = await _open(files)
    assert log.view.next_sequence_number == 20
    await manager.close()


async def test_an_event_that_holds_a_segment_is_just_an_event() -> None:
    """A copy of another segment, sent as an event and then torn, is not taken for acknowledged batches."""
    copy = bytes(_content(await _crashed_log(3)))
    files = SimulatedFiles()
    manager, (log, _) = await _open(files, _DIRECT)
    _append(manager, log, copy)
    files.locked.clear()
    del _content(files)[-1:]
    manager, (log, _) = await _open(files)
    assert log.view.next_sequence_number == 0
    await manager.close()


async def test_a_mistake_in_the_writer_strands_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception fails the appends of its partition; the other and the thread go on."""
    files = SimulatedFiles()
    manager, logs = await _open(files, _DIRECT)
    for log in logs:
        _append(manager, log, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(logs[0].writer, "sync", lambda: 1 // 0)
        futures = [log.append_nowait(b"second", [6], enqueued_time_ms=1) for log in logs]
        manager.commit_queued()
    assert isinstance(futures[0].exception(), LogFailedError)
    assert futures[1].result().start_sequence_number == 1
    assert [bytes(batch.payload) for batch in (await read_all(logs[0]))] == [b"first"]
    await manager.close()

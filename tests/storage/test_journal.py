"""The journal: one sync for a round of many partitions, and nothing of it lost, made up or believed twice."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.simulated_files import SimulatedFiles
from tests.storage.test_power_loss import read_all
from tests.storage.test_stuck_files import StuckFiles

from tidegate.model.errors import LogCorruptError, LogFailedError, LogFormatError, LogFullError
from tidegate.storage import group_commit
from tidegate.storage.check import check_log_directory
from tidegate.storage.journal import journal, records
from tidegate.storage.journal.journal import Journal
from tidegate.storage.journal.reading import JOURNAL_NAMES, read_journal
from tidegate.storage.journal.records import (
    RECORDS_START,
    JournalHeader,
    JournalPart,
    decode_header,
    encode_header,
    encode_round,
    iter_records,
)
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.record import AppendResult

_DATA = Path("/data")
_COUNT = 5
_OPTIONS = LogOptions(segment_bytes_max=100_000, journal_bytes=20_000, mark_after_s=100, idle_save_s=100)
_HEADER = JournalHeader(7, bytes(range(16)), bytes(16))
_PATH = Path("/data/journal.0")


async def _open(
    files: SimulatedFiles, options: LogOptions = _OPTIONS
) -> tuple[LogManager, list[FilePartitionLog]]:
    files.locked.clear()
    manager = await LogManager.open(_DATA, options=options, files=files, is_threaded=False)
    await manager.create_logs("hub", _COUNT)
    return manager, [manager.open_log("hub", str(index)) for index in range(_COUNT)]


def _round(
    manager: LogManager, logs: list[FilePartitionLog], body: bytes
) -> list[asyncio.Future[AppendResult]]:
    """Append to all logs in one round."""
    futures = [log.append_nowait(body, [len(body)], enqueued_time_ms=1) for log in logs]
    manager.commit_queued()
    return futures


async def _bodies(log: FilePartitionLog) -> list[bytes]:
    return [bytes(batch.payload) for batch in await read_all(log)]


async def _crashed(rounds: int, *, is_power_lost: bool, options: LogOptions = _OPTIONS) -> SimulatedFiles:
    """A disk after a kill, or a power loss that took all that was not synced."""
    files = SimulatedFiles()
    manager, logs = await _open(files, options)
    for number in range(rounds):
        for future in _round(manager, logs, b"%d" % number):
            assert future.result().start_sequence_number == number
    if is_power_lost:
        return files.lose_power(random.Random(0), share=0.0)
    files.locked.clear()
    return files


def _expected(rounds: int) -> list[bytes]:
    return [b"%d" % number for number in range(rounds)]


# -- bytes

_PARTS = st.lists(
    st.builds(
        JournalPart,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**62),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.integers(0, 2**32 - 1),
        st.lists(st.binary(max_size=80), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def _file(rounds: list[list[JournalPart]]) -> bytes:
    data = encode_header(_HEADER)
    for number, parts in enumerate(rounds, 1):
        data += encode_round(parts, _HEADER, position=len(data), round_number=number, rounds_before=3)
    return data


def _plain(parts: list[JournalPart]) -> list[JournalPart]:
    return [replace(part, buffers=(b"".join(part.buffers),)) for part in parts]


@settings(max_examples=60)
@given(rounds=st.lists(_PARTS, max_size=4), rest=st.binary(max_size=50))
@pytest.mark.slow
def test_records_are_read_as_they_were_written(rounds: list[list[JournalPart]], rest: bytes) -> None:
    """In order, with their rounds, whatever is behind the last one."""
    data = _file(rounds) + rest
    assert decode_header(data, _PATH) == _HEADER
    found = list(iter_records(data, _HEADER))
    assert [record.part for record in found] == [part for parts in rounds for part in _plain(parts)]
    assert [record.round_number for record in found if record.is_last_of_round] == list(
        range(1, len(rounds) + 1)
    )
    assert not list(iter_records(data, replace(_HEADER, generation=bytes(16))))


@pytest.mark.slow
@settings(max_examples=100)
@given(rounds=st.lists(_PARTS, min_size=1, max_size=4), data=st.data())
def test_a_damaged_record_is_not_read(rounds: list[list[JournalPart]], data: st.DataObject) -> None:
    """One bit of it, a cut, bytes inserted before it: the others are read, and nothing is made up."""
    whole = bytearray(_file(rounds))
    intact = [record.part for record in iter_records(bytes(whole), _HEADER)]
    at = data.draw(st.integers(RECORDS_START, len(whole) - 1))
    kind = data.draw(st.sampled_from(["bit", "cut", "insert"]))
    if kind == "bit":
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del whole[at:]
    else:
        whole[at:at] = b"x"
    found = [record.part for record in iter_records(bytes(whole), _HEADER)]
    assert len(found) < len(intact)
    assert all(part in intact for part in found)
    if kind == "bit":
        assert len(found) == len(intact) - 1


@pytest.mark.parametrize("copy", [0, 4096])
def test_one_copy_of_the_header_is_enough(copy: int) -> None:
    """A damaged sector does not cost the journal."""
    data = bytearray(_file([]))
    data[copy + 20] ^= 1
    assert decode_header(bytes(data), _PATH) == _HEADER
    data[4096 - copy + 20] ^= 1
    assert decode_header(bytes(data), _PATH) is None


@pytest.mark.parametrize(
    ("field", "value", "text"), [(8, 3, "format 3"), (12, 0x40, "features of the bits 0x40")]
)
async def test_a_later_journal_is_refused_by_name(field: int, value: int, text: str) -> None:
    """It may have events in a form that this version does not read: nothing is changed."""
    files = await _crashed(2, is_power_lost=False)
    content = files.entries[_DATA / "journal.0"].content
    fields = bytearray(content[: records._HEADER.size])
    fields[field] = value
    crc = records._CRC.pack(google_crc32c.value(bytes(fields)))
    for start in (0, 4096):
        content[start : start + len(fields) + 4] = fields + crc
    before = bytes(content)
    with pytest.raises(LogFormatError, match=rf"journal\.0.*{text}"):
        await _open(files)
    for repair in (False, True):
        report = check_log_directory(_DATA, repair=repair, files=files)
        assert text in report.damages[0].description
        assert not report.is_repaired
    assert bytes(content) == before


# -- rounds


async def test_a_small_round_costs_one_sync() -> None:
    """However many partitions it has; a large one costs one for each."""
    files = SimulatedFiles()
    manager, logs = await _open(files, replace(_OPTIONS, journal_part_bytes=300))
    _round(manager, logs, b"first")  # begins segments and histories
    for body, syncs in ((b"small", 1), (b"x" * 500, _COUNT)):
        before = files.syncs
        for future in _round(manager, logs, body):
            assert future.done()
        assert files.syncs - before == syncs
    await manager.close()


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("rounds", [1, 8, 60])
@pytest.mark.slow
async def test_a_start_writes_what_the_segments_lack(rounds: int, is_power_lost: bool) -> None:
    """After a power loss that took all that was not synced, also with files that were used again; a check
    sees the same. Once more after that start: it has made everything durable."""
    files = await _crashed(rounds, is_power_lost=is_power_lost)
    report = check_log_directory(_DATA, files=files)
    assert (report.damages, report.notes, report.events) == ([], [], _COUNT * rounds)
    for _ in range(2):
        _, logs = await _open(files)
        assert not read_journal(files, _DATA, None).records
        for log in logs:
            assert await _bodies(log) == _expected(rounds)
        files = files.lose_power(random.Random(1), share=0.0)


async def test_after_a_stop_the_journal_is_empty() -> None:
    """A copy of a stopped directory needs no replay, and one without its journal is whole."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    _round(manager, logs, b"0")
    await manager.close()
    found = read_journal(files, _DATA, None)
    assert not found.records
    assert found.problem is None
    for name in JOURNAL_NAMES:
        files.remove(_DATA / name)
    files = files.lose_power(random.Random(0), share=0.0)
    manager, logs = await _open(files)
    assert [await _bodies(log) for log in logs] == [[b"0"]] * _COUNT
    await manager.close()


async def test_what_does_not_fit_on_the_disk_is_not_in_the_journal() -> None:
    """A refused batch does not come back after a power loss; its place has the next one."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    _round(manager, logs, b"first")
    files.space_left = 100
    futures = [
        log.append_nowait(b"x" * size, [size], enqueued_time_ms=1)
        for log, size in zip(logs, (10, 500, 600, 700, 800), strict=True)
    ]
    manager.commit_queued()
    assert [type(future.exception()) for future in futures] == [type(None), *[LogFullError] * 4]
    files.space_left = None
    _round(manager, logs, b"after")
    manager, logs = await _open(files.lose_power(random.Random(0), share=0.0))
    assert await _bodies(logs[0]) == [b"first", b"x" * 10, b"after"]
    for log in logs[1:]:
        assert await _bodies(log) == [b"first", b"after"]


# -- a disk that fails


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_journal_that_fails_is_left_out(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are synced instead, also those of earlier rounds; nothing is lost, and a restart uses it
    again."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    _round(manager, logs, b"0")
    with monkeypatch.context() as patch:
        if kind == "write":
            patch.setattr(journal, "write_all", _failing)
        files.sync_error, files.sync_error_name = errno.EIO, "/journal."
        for future in _round(manager, logs, b"1"):
            assert future.result().start_sequence_number == 1
    assert "is not used any more" in caplog.text
    files.sync_error = None
    before = files.syncs
    _round(manager, logs, b"2")
    assert files.syncs - before == _COUNT
    lost = files.lose_power(random.Random(0), share=0.0)
    for name in JOURNAL_NAMES:
        lost.entries[_DATA / name].content[RECORDS_START:] = bytes(100)  # no help
    for found in (lost, files):
        manager, logs = await _open(found)
        for log in logs:
            assert await _bodies(log) == _expected(3)
    before = files.syncs
    _round(manager, logs, b"3")
    before = files.syncs
    _round(manager, logs, b"4")
    assert files.syncs - before == 1


def _failing(*_: object) -> int:
    raise OSError(errno.EIO, "injected")


async def test_a_segment_that_fails_later_keeps_its_records() -> None:
    """Its partition refuses, the others go on, and the file is not used again: at the restart, nothing that
    was acknowledged is missing, although the system forgot what it could not write."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    _round(manager, logs, b"0")
    files.sync_error, files.sync_error_name = errno.EIO, "hub/0/0"
    files.is_failed_sync_forgotten = True
    stored = 1
    while logs[0].failure is None:
        for future in _round(manager, logs, b"%d" % stored):
            assert future.exception() is None
        stored += 1
    number = stored
    for _ in range(100):  # more than the other file takes
        first, *others = _round(manager, logs, b"%d" % number)
        assert isinstance(first.exception(), LogFailedError)
        for future in others:
            assert future.result().start_sequence_number == number
        number += 1
    files.sync_error = None
    await manager.close()
    after = files.lose_power(random.Random(0), share=0.0)
    assert check_log_directory(_DATA, files=after).damages == []
    manager, logs = await _open(after)
    assert await _bodies(logs[0]) == _expected(stored)
    for log in logs[1:]:
        assert await _bodies(log) == _expected(number)
    assert _round(manager, logs[:1], b"more")[0].result().start_sequence_number == stored


async def test_a_log_that_cannot_be_written_keeps_the_journal() -> None:
    """The start serves the other partitions, and the next start has all."""
    files = await _crashed(3, is_power_lost=True)
    files.sync_error, files.sync_error_name = errno.EIO, "hub/0/0"
    manager = await LogManager.open(_DATA, options=_OPTIONS, files=files, is_threaded=False)
    assert isinstance(manager.log("hub", "0").failure, LogFailedError)
    other = manager.open_log("hub", "1")
    _round(manager, [other], b"3")
    files.sync_error = None
    await manager.close()
    manager, logs = await _open(files.lose_power(random.Random(0), share=0.0))
    assert await _bodies(logs[0]) == _expected(3)
    assert await _bodies(logs[1]) == _expected(4)


async def test_without_space_for_it_a_service_starts() -> None:
    """Segments are synced, and the space that it could not have is given back."""
    files = SimulatedFiles()
    files.space_left = 500_000
    manager, logs = await _open(files, replace(_OPTIONS, reserve_bytes=1000, journal_bytes=300_000))
    assert files.entries[_DATA / "journal.0"].content[RECORDS_START:] == b""
    for future in _round(manager, logs, b"0"):
        assert future.result().start_sequence_number == 0
    await manager.close()


# -- damage


async def test_the_journal_replaces_what_a_segment_has_lost() -> None:
    """A damaged bit and a cut within what the journal has: nothing is lost, and nothing is reported."""
    files = await _crashed(6, is_power_lost=False)
    files.entries[_DATA / "logs/hub/0/00000000000000000000.log"].content[150] ^= 1
    del files.entries[_DATA / "logs/hub/1/00000000000000000000.log"].content[200:]
    assert check_log_directory(_DATA, files=files).damages == []
    _, logs = await _open(files)
    assert [await _bodies(log) for log in logs] == [_expected(6)] * _COUNT


@pytest.mark.parametrize("removed", [1, 40, 300])
async def test_what_was_moved_by_a_removal_goes_back(removed: int) -> None:
    """Bytes were removed within the first batch. The journal has that one, and not the last one, which was
    intact where it had moved to: written again, the others would overwrite its beginning."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    for body in (b"0" * 400, b"1", b"2"):
        _round(manager, logs, body)
    _round(manager, logs[:1], b"3" * 400)
    files.locked.clear()
    path = _DATA / "logs/hub/0/00000000000000000000.log"
    whole = bytes(files.entries[path].content)
    del files.entries[path].content[150 : 150 + removed]
    assert check_log_directory(_DATA, files=files).damages == []
    _, logs = await _open(files)
    assert await _bodies(logs[0]) == [b"0" * 400, b"1", b"2", b"3" * 400]
    assert bytes(files.entries[path].content) == whole


async def test_what_the_journal_has_not_is_damage_by_number() -> None:
    """It shows how far a log went: what a large round had synced before is no torn tail."""
    files = SimulatedFiles()
    manager, logs = await _open(files, replace(_OPTIONS, journal_part_bytes=300))
    _round(manager, logs, b"x" * 1000)
    _round(manager, logs, b"y")
    path = _DATA / "logs/hub/0/00000000000000000000.log"
    files.locked.clear()
    files.entries[path].content[200] ^= 1
    for repair in (False, True):
        report = check_log_directory(_DATA, repair=repair, files=files)
        assert [damage.lost for damage in report.damages] == [(0, 1)]
    manager, logs = await _open(files)
    assert await _bodies(logs[0]) == [b"y"]
    assert _round(manager, logs, b"z")[0].result().start_sequence_number == 2


def _drop(files: SimulatedFiles, other: SimulatedFiles) -> None:
    files.remove(_DATA / "journal.0")


def _zero(files: SimulatedFiles, other: SimulatedFiles) -> None:
    content = files.entries[_DATA / "journal.0"].content
    content[:] = bytes(len(content))


def _exchange(files: SimulatedFiles, other: SimulatedFiles) -> None:
    for name in JOURNAL_NAMES:
        files.entries[_DATA / name] = other.entries[_DATA / name]


def _double(files: SimulatedFiles, other: SimulatedFiles) -> None:
    files.entries[_DATA / "journal.0"].content[:] = files.entries[_DATA / "journal.1"].content


def _hole(files: SimulatedFiles, other: SimulatedFiles) -> None:
    files.entries[_DATA / "journal.0"].content[RECORDS_START + 100] ^= 1


def _cut(files: SimulatedFiles, other: SimulatedFiles) -> None:
    """Of the full file, that is: the other one says how many rounds it had."""
    found = read_journal(files, _DATA, None).files[0]
    del files.entries[found.path].content[found.records[-2].start :]


@pytest.mark.parametrize("damage", [_drop, _zero, _exchange, _double, _hole, _cut])
@pytest.mark.slow
async def test_a_damaged_journal_is_doubt(
    damage: Callable[[SimulatedFiles, SimulatedFiles], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs that were not closed are refused until a repair, which says from where on it is not known what was
    lost, and gives no number again. Others are served."""
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_checkpoint", lambda *_: None)  # the full file stays
        files = await _crashed(20, is_power_lost=True)
    damage(files, await _crashed(4, is_power_lost=True))
    found = check_log_directory(_DATA, files=files)
    assert [each.path for each in found.damages if each.lost and each.lost[1] is None] == [
        _DATA / "logs/hub" / str(index) for index in range(_COUNT)
    ]
    with caplog.at_level(logging.ERROR):
        manager = await LogManager.open(_DATA, options=_OPTIONS, files=files, is_threaded=False)
    assert "journal" in caplog.text
    for _ in range(2):
        with pytest.raises(LogCorruptError):
            manager.open_log("hub", "1")
        await manager.create_logs("other", 1)
        assert _round(manager, [manager.open_log("other", "0")], b"x")[0].result() is not None
        files.locked.clear()  # killed: the doubt stays, and concerns no other log
        manager = await LogManager.open(_DATA, options=_OPTIONS, files=files, is_threaded=False)
    await manager.close()
    report = check_log_directory(_DATA, repair=True, files=files)
    assert report.is_repaired
    assert [each.lost for each in report.damages] == [each.lost for each in found.damages]
    assert check_log_directory(_DATA, files=files).is_sound
    manager, logs = await _open(files)
    for log in logs:
        assert _round(manager, [log], b"new")[0].result().start_sequence_number >= 10**9
        assert (await _bodies(log))[-1] == b"new"


@pytest.mark.parametrize("damage", [_drop, _zero, _exchange, _double])
async def test_a_damaged_journal_does_not_matter_after_a_stop(
    damage: Callable[[SimulatedFiles, SimulatedFiles], None],
) -> None:
    """Everything is in the segments, and the manifests say so."""
    files = SimulatedFiles()
    manager, logs = await _open(files)
    _round(manager, logs, b"0")
    await manager.close()
    damage(files, await _crashed(4, is_power_lost=True))
    assert check_log_directory(_DATA, files=files).is_sound
    manager, logs = await _open(files)
    for log in logs:
        assert await _bodies(log) == [b"0"]
    assert _round(manager, logs, b"1")[0].result().start_sequence_number == 1
    assert read_journal(files, _DATA, None).problem is None


# -- stuck files


async def _open_threaded(tmp_path: Path, files: StuckFiles) -> tuple[LogManager, list[FilePartitionLog]]:
    manager = await LogManager.open(tmp_path, options=_OPTIONS, files=files)
    await manager.create_logs("hub", _COUNT)
    return manager, [manager.open_log("hub", str(index)) for index in range(_COUNT)]


async def test_with_the_journal_stuck_appends_wait_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers read, hubs are created, the loop turns; then everything is answered in order."""
    files = StuckFiles()
    manager, logs = await _open_threaded(tmp_path, files)
    for log in logs:
        await log.append_nowait(b"0", [1], enqueued_time_ms=1)
    monkeypatch.setattr(group_commit, "_LEAVE_AFTER_S", 60)  # no write is slow enough
    with files.holding("journal."):
        futures = [
            log.append_nowait(b"%d" % number, [1], enqueued_time_ms=1)
            for number in range(1, 5)
            for log in logs
        ]
        assert await asyncio.to_thread(files.waiting.acquire)
        for number in range(20):
            assert bytes((await logs[0].read(0, bytes_max=100))[0].payload) == b"0"
            await manager.create_logs(f"hub{number}", 1)
        assert not any(future.done() for future in futures)
    await asyncio.gather(*futures)
    assert await _bodies(logs[0]) == _expected(5)
    await manager.close()


async def test_a_segment_stuck_in_a_checkpoint_stops_nobody_else(tmp_path: Path) -> None:
    """The full file waits for it; the other partitions go on beyond what the second file takes."""
    files = StuckFiles()
    manager, (stuck, *others) = await _open_threaded(tmp_path, files)
    await stuck.append_nowait(b"0", [1], enqueued_time_ms=1)
    with files.holding("hub/0/"):
        for number in range(200):
            futures = [log.append_nowait(b"x" * 100, [100], enqueued_time_ms=1) for log in others]
            assert {(await future).start_sequence_number for future in futures} == {number}
        assert len(read_journal(files, tmp_path, None).files[0].records) > 0
    assert (await stuck.append_nowait(b"1", [1], enqueued_time_ms=1)).start_sequence_number == 1
    await manager.close()
    manager, (stuck, *others) = await _open_threaded(tmp_path, files)
    assert await _bodies(stuck) == _expected(2)
    assert len(await _bodies(others[0])) == 200
    await manager.close()

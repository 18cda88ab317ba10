"""``check_log_directory``: it finds all damage, and a repair keeps everything that is intact."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import time
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from tests.storage.test_power_loss import read_all

from tidegate.model.errors import DirectoryInUseError, LogCorruptError, LogFormatError
from tidegate.storage.check import check_log_directory
from tidegate.storage.examination.findings import TornTail
from tidegate.storage.files import OsFiles
from tidegate.storage.log_manager import LogManager
from tidegate.storage.manifest import ManifestFiles
from tidegate.storage.options import LogOptions
from tidegate.storage.segments.segment import decode_segment_header

_OPTIONS = LogOptions(segment_bytes_max=2000, index_interval_bytes=300, journal_bytes=20_000)
_EVENTS = 60


async def _write_log(data_directory: Path) -> list[Path]:
    manager = await LogManager.open(data_directory, options=_OPTIONS)
    await manager.create_logs("hub", 1)
    log = manager.open_log("hub", "0")
    for number in range(_EVENTS):
        await log.append_nowait(bytes([number]) * 100, [100], enqueued_time_ms=number)
    await manager.close()
    return sorted((data_directory / "logs/hub/0").glob("*.log"))


async def _surviving(data_directory: Path) -> tuple[list[int], int]:
    manager = await LogManager.open(data_directory, options=_OPTIONS)
    log = manager.open_log("hub", "0")
    batches = await read_all(log)
    for batch in batches:
        assert bytes(batch.payload) == bytes([batch.base_sequence_number]) * 100
    result = await log.append_nowait(b"after", [5], enqueued_time_ms=1)
    assert bytes((await log.read(result.start_sequence_number, bytes_max=1))[0].payload) == b"after"
    await manager.close()
    return [batch.base_sequence_number for batch in batches], result.start_sequence_number


async def test_a_sound_log_is_called_sound(tmp_path: Path) -> None:
    """Every event is counted, nothing is changed; a running service is not checked."""
    await _write_log(tmp_path)
    report = check_log_directory(tmp_path, repair=True)
    assert report.is_sound
    assert (report.partitions, report.batches, report.events) == (1, _EVENTS, _EVENTS)
    manager = await LogManager.open(tmp_path)
    with pytest.raises(DirectoryInUseError):
        check_log_directory(tmp_path)
    await manager.close()


async def test_stray_files_among_the_logs_are_named_and_left_alone(tmp_path: Path) -> None:
    """What a file manager or a backup leaves there neither stops a check nor counts as damage."""
    await _write_log(tmp_path)
    strays = [tmp_path / "logs/.DS_Store", tmp_path / "logs/hub/notes.txt"]
    for path in strays:
        path.write_text("mine")
    report = check_log_directory(tmp_path, repair=True)
    assert report.is_sound
    assert report.events == _EVENTS
    assert report.strays == strays
    assert all(path.read_text() == "mine" for path in strays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
async def test_a_repair_keeps_all_that_is_intact(seed: int, tmp_path: Path) -> None:
    """Random damage in random places: exactly the events that the report calls lost are lost, none is
    altered.

    Numbers of lost events are not given again, the damaged file is kept, and a second check finds nothing.
    """
    print(f"seed {seed}")
    randomness = random.Random(seed)
    paths = await _write_log(tmp_path)
    for path in randomness.sample(paths, randomness.randint(1, 3)):
        data = bytearray(path.read_bytes())
        position = randomness.choice((5, randomness.randrange(len(data))))
        kind = randomness.randrange(4)
        if kind == 0:
            data[position] ^= 1 << randomness.randrange(8)
        elif kind == 1:
            data[position : position + 300] = randomness.randbytes(len(data[position : position + 300]))
        elif kind == 2:
            del data[position:]
        else:
            path.unlink()
            continue
        path.write_bytes(data)
    found = check_log_directory(tmp_path)
    assert not found.is_sound
    report = check_log_directory(tmp_path, repair=True)
    assert [damage.lost for damage in report.damages] == [damage.lost for damage in found.damages]
    ranges = [damage.lost for damage in report.damages if damage.lost is not None]
    lost = {number for start, until in ranges for number in range(start, until or start)}
    for damage in report.damages:
        assert damage.set_aside is None or damage.set_aside.exists()
    assert check_log_directory(tmp_path).is_sound
    survivors, following = await _surviving(tmp_path)
    assert survivors == [number for number in range(_EVENTS) if number not in lost]
    assert following == _EVENTS


async def test_a_service_refuses_damage_until_it_is_repaired(tmp_path: Path) -> None:
    """The error names the command; after it the log serves what is left."""
    paths = await _write_log(tmp_path)
    paths[-1].unlink()
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogCorruptError, match="tidegate check"):
        manager.open_log("hub", "0")
    await manager.close()
    report = check_log_directory(tmp_path, repair=True)
    assert report.is_repaired
    survivors, following = await _surviving(tmp_path)
    assert survivors == list(range(int(paths[-1].stem)))
    assert following == _EVENTS


def _as_of_version(path: Path, version: int, place: str) -> None:
    """Rewrite a header as a later version would have written it, with its checksum."""
    data = bytearray(path.read_bytes())
    header = decode_segment_header(bytes(data))
    assert header is not None
    start, size, at, seed = (0, 60, 24, 0) if place == "segment" else (64, 60, 58, header.seed)
    struct.pack_into("<H", data, start + at, version)
    crc = google_crc32c.extend(seed, bytes(data[start : start + size]))
    struct.pack_into("<I", data, start + size, crc)
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["segment", "batch"])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.slow
async def test_a_later_format_is_refused_and_left_alone(place: str, is_last: bool, tmp_path: Path) -> None:
    """Events of a later version were acknowledged: neither a start nor a repair may take them for a torn
    tail, or for damage."""
    paths = await _write_log(tmp_path)
    path = paths[-1 if is_last else 0]
    _as_of_version(path, 3, place)
    before = {path: path.read_bytes() for path in paths}
    for repair in (False, True):
        report = check_log_directory(tmp_path, repair=repair)
        (damage,) = report.damages
        assert f"A {place} of the log has format 3; this version of Tidegate reads format 2" in (
            damage.description
        )
        assert str(tmp_path / "logs/hub/0") in damage.description
        assert not report.is_repaired
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogFormatError, match="format 3"):
        await read_all(manager.open_log("hub", "0"))
    await manager.close()
    assert {path: path.read_bytes() for path in paths} == before


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("damage", ["bit", "cut", "batch"])
@pytest.mark.parametrize("idle_save_s", [0.01, 100], ids=["saved", "marked"])
@pytest.mark.slow
async def test_what_was_stored_before_a_pause_is_no_torn_tail(
    damage: str, is_busy: bool, idle_save_s: float, tmp_path: Path
) -> None:
    """D1: a moment after an append the partition has recorded how far it went: neither a start nor a check
    takes lost events for a write that was never acknowledged, also after a crash."""
    crashed = tmp_path / "crashed"
    options = replace(
        _OPTIONS,
        segment_bytes_max=100_000,
        journal_part_bytes=0,
        mark_after_s=0.01,
        idle_save_s=idle_save_s,
    )
    manager = await LogManager.open(tmp_path / "log", options=options)
    await manager.create_logs("hub", 2)
    for number in range(10):
        await manager.open_log("hub", "0").append_nowait(bytes(100), [100], enqueued_time_ms=number)
    deadline = time.monotonic() + 10
    while _known_end(tmp_path / "log") != 10:
        assert time.monotonic() < deadline
        if is_busy:
            await manager.open_log("hub", "1").append_nowait(bytes(100), [100], enqueued_time_ms=0)
        else:
            await asyncio.sleep(0.01)
    shutil.copytree(tmp_path / "log", crashed)
    await manager.close()
    (path,) = crashed.glob("logs/hub/0/*.log")
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[-50] ^= 1
    else:
        del data[-(1 if damage == "cut" else 168) :]
    path.write_bytes(data)
    report = check_log_directory(crashed)
    assert not report.torn_tails
    assert [found.lost for found in report.damages] == [(9, 10)]
    manager = await LogManager.open(crashed, options=options)
    with pytest.raises(LogCorruptError):
        await read_all(manager.open_log("hub", "0"))
    await manager.close()


def _known_end(data_directory: Path) -> int:
    found = ManifestFiles(OsFiles(), data_directory / "logs/hub/0").read()
    assert found.mark is not None
    return found.mark.next_sequence_number


async def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    """A write that was cut short before its acknowledgement is reported apart, with its size."""
    paths = await _write_log(tmp_path)
    size = paths[-1].stat().st_size
    with paths[-1].open("ab") as file:
        file.write(b"TGRB" + b"\1" * 80)
    report = check_log_directory(tmp_path)
    assert report.is_sound
    assert report.torn_tails == [TornTail(paths[-1], size, 84)]

"""The second format: bytes prove whose they are, that they follow each other, and how far they went."""

from __future__ import annotations

import json
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from tests.storage.simulated_files import SimulatedFiles
from tests.storage.test_power_loss import read_all

from tidegate.model.errors import LogCorruptError, LogFormatError
from tidegate.storage.check import check_log_directory
from tidegate.storage.files import OsFiles
from tidegate.storage.log_manager import LogManager
from tidegate.storage.manifest import MANIFEST_NAMES, Manifest, ManifestFiles
from tidegate.storage.options import LogOptions
from tidegate.storage.segments.segment import decode_segment_header, encode_segment_header

_OPTIONS = LogOptions(segment_bytes_max=1000, index_interval_bytes=300, journal_bytes=20_000)
_EVENTS = 20


async def _write(data_directory: Path) -> None:
    """Two hubs of two partitions, whose logs have the same lengths and numbers, in several segments."""
    manager = await LogManager.open(data_directory, options=_OPTIONS)
    for hub in ("a", "b"):
        await manager.create_logs(hub, 2)
        for partition in ("0", "1"):
            log = manager.open_log(hub, partition)
            for number in range(_EVENTS):
                payload = f"{hub}{partition}{number:3}".encode() * 20
                await log.append_nowait(payload, [100], enqueued_time_ms=number)
    await manager.close()


def _segments(data_directory: Path, place: str) -> list[Path]:
    return sorted((data_directory / "logs" / place).glob("*.log"))


def _exchange(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


async def _served(data_directory: Path, place: str) -> list[bytes]:
    """What a service serves of a partition until it refuses; each event is its own."""
    manager = await LogManager.open(data_directory, options=_OPTIONS)
    hub, partition = place.split("/")
    served: list[bytes] = []
    try:
        log = manager.open_log(hub, partition)
        start = log.view.begin_sequence_number
        while batches := await log.read(start, bytes_max=100):
            served += [bytes(batch.payload) for batch in batches]
            start = batches[-1].until_sequence_number
    except LogCorruptError:
        pass
    finally:
        await manager.close()
    assert all(payload.startswith(place.replace("/", "").encode()) for payload in served)
    return served


@pytest.mark.parametrize("other", ["a/1", "b/0"], ids=["partition", "hub"])
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.slow
async def test_a_segment_of_another_partition_is_not_served(number: int, other: str, tmp_path: Path) -> None:
    """D2: exchanged files of the same name and length are none of ours, and a repair says what is lost."""
    await _write(tmp_path)
    for one, foreign in zip(_segments(tmp_path, "a/0"), _segments(tmp_path, other), strict=True):
        if one == _segments(tmp_path, "a/0")[number]:
            _exchange(one, foreign)
    before = await _served(tmp_path, "a/0")
    assert len(before) < _EVENTS
    found = check_log_directory(tmp_path)
    assert len([damage for damage in found.damages if damage.lost is not None]) == 2
    assert check_log_directory(tmp_path, repair=True).is_repaired
    assert check_log_directory(tmp_path).is_sound
    (lost,) = [each.lost for each in found.damages if each.lost is not None and "/a/0/" in str(each.path)]
    assert lost[1] is not None
    assert len(await _served(tmp_path, "a/0")) == _EVENTS - (lost[1] - lost[0])


async def test_exchanged_segments_of_a_partition_are_found_again(tmp_path: Path) -> None:
    """Neither order is served wrongly; a repair finds both where they are and loses nothing."""
    await _write(tmp_path)
    paths = _segments(tmp_path, "a/0")
    _exchange(paths[0], paths[2])
    assert await _served(tmp_path, "a/0") == []
    report = check_log_directory(tmp_path, repair=True)
    assert [damage.lost for damage in report.damages] == [None, None]
    assert check_log_directory(tmp_path).is_sound
    assert len(await _served(tmp_path, "a/0")) == _EVENTS


async def test_a_batch_that_is_left_out_or_older_breaks_the_chain(tmp_path: Path) -> None:
    """The bytes of each batch are intact and of this segment; what follows does not name them."""
    await _write(tmp_path)
    paths = _segments(tmp_path, "a/0")
    data = paths[0].read_bytes()
    paths[0].write_bytes(data[:64] + data[64 + 168 :])
    assert await _served(tmp_path, "a/0") == []
    (damage,) = check_log_directory(tmp_path).damages
    assert damage.lost == (0, 1)


@pytest.mark.parametrize("other", ["a/1", "b/0"], ids=["partition", "hub"])
@pytest.mark.slow
async def test_the_manifest_and_index_of_another_partition_are_not_used(other: str, tmp_path: Path) -> None:
    """One copy of the manifest, or an index, is somebody else's: the log is served from what is its own."""
    await _write(tmp_path)
    directory, foreign = tmp_path / "logs/a/0", tmp_path / "logs" / other
    for name in [MANIFEST_NAMES[0], *(path.name for path in directory.glob("*.index"))]:
        shutil.copy(foreign / name, directory / name)
    assert len(check_log_directory(tmp_path).notes) > 1
    assert len(await _served(tmp_path, "a/0")) == _EVENTS


async def test_a_whole_partition_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    """Everything in the directory fits together; it is the wrong one, and the error says whose it is."""
    await _write(tmp_path)
    one, other = tmp_path / "logs/a/0", tmp_path / "logs/b/1"
    one.rename(tmp_path / "kept")
    other.rename(one)
    (tmp_path / "kept").rename(other)
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogCorruptError, match="the log of the partition b/1"):
        manager.open_log("a", "0")
    await manager.close()
    report = check_log_directory(tmp_path, repair=True)
    assert not report.is_repaired
    assert all(not damage.is_repairable for damage in report.damages)


@pytest.mark.parametrize("damage", ["missing", "cut", "zeros"])
@pytest.mark.slow
async def test_without_a_manifest_a_log_is_damaged_and_no_new_one(damage: str, tmp_path: Path) -> None:
    """Both copies are gone: the partition refuses. A repair serves what the segments hold, says that the rest
    is unknown, and gives no number twice; without segments, too."""
    await _write(tmp_path)
    directory = tmp_path / "logs/a/0"
    for path in directory.glob("*.log"):
        (tmp_path / "logs/a/1" / path.name).unlink()
    for place in ("a/0", "a/1"):
        for path in [tmp_path / "logs" / place / name for name in MANIFEST_NAMES]:
            if damage == "missing":
                path.unlink()
            else:
                data = path.read_bytes()
                path.write_bytes(data[:4100] if damage == "cut" else bytes(len(data)))
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    for partition in ("0", "1"):
        with pytest.raises(LogCorruptError, match="manifest"):
            manager.open_log("a", partition)
    await manager.create_logs("b", 3)
    await manager.close()
    report = check_log_directory(tmp_path, repair=True)
    assert report.is_repaired
    assert (_EVENTS, None) in [each.lost for each in report.damages]
    assert (0, None) in [each.lost for each in report.damages]
    assert check_log_directory(tmp_path).is_sound
    assert len(await _served(tmp_path, "a/0")) == _EVENTS
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    for partition in ("0", "1"):
        result = await manager.open_log("a", partition).append_nowait(b"x", [1], enqueued_time_ms=99)
        assert result.start_sequence_number >= 1_000_000_000
        assert bytes((await read_all(manager.open_log("a", partition)))[-1].payload) == b"x"
    await manager.close()


def _with_feature(path: Path, kind: str) -> None:
    """Rewrite a copy of the manifest as a later version would, with a feature of its own."""
    data = bytearray(path.read_bytes())
    _, _, text_length, index_length, revision = struct.unpack_from("<8sIIIq", data, 4096)
    start = 4096 + 28
    document = json.loads(data[start : start + text_length])
    document[kind] = ["tiered-storage"]
    text = json.dumps(document).encode()
    index = bytes(data[start + text_length : start + text_length + index_length])
    content = struct.pack("<IIq", len(text), index_length, revision) + text + index
    crc = google_crc32c.value(content)
    path.write_bytes(bytes(data[:4104]) + struct.pack("<I", crc) + content)


async def test_an_unknown_feature_that_is_needed_is_refused_by_name(tmp_path: Path) -> None:
    """One partition has it, in its newest manifest alone: it refuses, a check says so and changes nothing."""
    await _write(tmp_path)
    path = tmp_path / "logs/a/0" / MANIFEST_NAMES[1]
    _with_feature(path, "features")
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogFormatError, match=r"feature tiered-storage.*logs/a/0"):
        manager.open_log("a", "0")
    assert len(await read_all(manager.open_log("a", "1"))) == _EVENTS
    await manager.close()
    before = {path: path.read_bytes() for path in (tmp_path / "logs/a/0").iterdir()}
    (damage,) = check_log_directory(tmp_path, repair=True).damages
    assert "tiered-storage" in damage.description
    assert {path: path.read_bytes() for path in (tmp_path / "logs/a/0").iterdir()} == before


async def test_an_unknown_feature_that_is_optional_is_kept(tmp_path: Path) -> None:
    """It neither stops a start nor gets lost when the manifest is saved again."""
    await _write(tmp_path)
    directory = tmp_path / "logs/a/0"
    for name in MANIFEST_NAMES:
        _with_feature(directory / name, "optional_features")
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    await manager.open_log("a", "0").append_nowait(b"a0", [2], enqueued_time_ms=99)
    await manager.close()
    assert _manifest(directory).optional_features == ("tiered-storage",)


async def test_a_segment_with_an_unknown_feature_is_refused(tmp_path: Path) -> None:
    """The bits of its header say what a reader has to know."""
    await _write(tmp_path)
    path = _segments(tmp_path, "a/0")[1]
    data = path.read_bytes()
    header = decode_segment_header(data)
    assert header is not None
    path.write_bytes(encode_segment_header(replace(header, incompatible=4)) + data[64:])
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogFormatError, match="0x4"):
        await manager.open_log("a", "0").read(int(path.stem), bytes_max=100)
    await manager.close()
    assert not check_log_directory(tmp_path, repair=True).is_repaired


async def test_the_first_format_is_refused(tmp_path: Path) -> None:
    """Nothing of it was released: one sentence says so, and nothing is changed."""
    await (await LogManager.open(tmp_path, options=_OPTIONS)).close()
    directory = tmp_path / "logs/a/0"
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(b"TIDESEG1" + bytes(100))
    (directory / "state").write_bytes(b"TIDESNP1")
    manager = await LogManager.open(tmp_path, options=_OPTIONS)
    with pytest.raises(LogFormatError, match="format 1, which no released version"):
        manager.open_log("a", "0")
    await manager.close()
    assert not check_log_directory(tmp_path, repair=True).is_repaired
    assert sorted(path.name for path in directory.iterdir()) == [f"{0:020}.log", "state"]


def _manifest(directory: Path) -> Manifest:
    found = ManifestFiles(OsFiles(), directory).read().manifest
    assert found is not None
    return found


async def test_each_start_that_stores_events_begins_a_history(tmp_path: Path) -> None:
    """With its first number; a start without an event leaves none, and a repair begins one as well."""
    for count in (2, 0, 3, 0):
        manager = await LogManager.open(tmp_path, options=_OPTIONS)
        await manager.create_logs("a", 1)
        for _ in range(count):
            await manager.open_log("a", "0").append_nowait(b"a0", [2], enqueued_time_ms=1)
        await manager.close()
    directory = tmp_path / "logs/a/0"
    histories = _manifest(directory).histories
    assert [first for _, first in histories] == [0, 2]
    assert len({history for history, _ in histories}) == 2
    (path,) = _segments(tmp_path, "a/0")
    path.write_bytes(path.read_bytes()[:-1])
    assert check_log_directory(tmp_path, repair=True).is_repaired
    assert [first for _, first in _manifest(directory).histories] == [0, 2, 5]
    assert _manifest(directory).histories[:2] == histories


@pytest.mark.parametrize("copy", MANIFEST_NAMES)
@pytest.mark.parametrize("damage", ["missing", "older", "zeros"])
@pytest.mark.slow
async def test_one_copy_of_the_manifest_is_enough(copy: str, damage: str, tmp_path: Path) -> None:
    """After a kill, whichever it is: nothing is lost, and the next start saves it again."""
    files = OsFiles()
    manager = await LogManager.open(tmp_path / "log", options=_OPTIONS, is_threaded=False)
    await manager.create_logs("a", 1)
    log = manager.open_log("a", "0")
    older = (tmp_path / "log/logs/a/0" / copy).read_bytes()
    for number in range(_EVENTS):
        future = log.append_nowait(b"a0%3d" % number * 20, [100], enqueued_time_ms=number)
        manager.commit_queued()
        future.result()
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    await manager.close()
    path = tmp_path / "killed/logs/a/0" / copy
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(older if damage == "older" else bytes(path.stat().st_size))
    assert check_log_directory(tmp_path / "killed").is_sound
    assert len(await _served(tmp_path / "killed", "a/0")) == _EVENTS
    if damage != "older":
        assert ManifestFiles(files, path.parent).read().problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("operations", range(40))
async def test_a_repair_that_loses_power_ends_the_same(operations: int) -> None:
    """At whatever step it stops, another repair and a start then find what an uninterrupted one would."""
    data = Path("/data")
    files = SimulatedFiles()
    manager = await LogManager.open(data, options=_OPTIONS, files=files, is_threaded=False)
    await manager.create_logs("a", 1)
    log = manager.open_log("a", "0")
    for number in range(_EVENTS):
        log.append_nowait(bytes([number]) * 100, [100], enqueued_time_ms=number)
        manager.commit_queued()
    await manager.close()
    segments = sorted(path for path in files.entries if path.suffix == ".log")
    for path, position in ((segments[0], 3), (segments[1], 400), (segments[2], 70), (segments[-1], 200)):
        for content in (files.entries[path].content, files.entries[path].durable):
            content[position] ^= 1
    for content in (files.entries[segments[3]].content, files.entries[segments[3]].durable):
        content[:] = bytes(len(content))
    damages = check_log_directory(data, files=files).damages
    expected = [damage.lost for damage in damages if damage.lost is not None]
    files.operations_left = operations
    try:
        check_log_directory(data, files=files, repair=True)
    except OSError:
        files.locked.clear()
    files = files.lose_power(random.Random(operations))
    check_log_directory(data, files=files, repair=True)
    assert check_log_directory(data, files=files).is_sound
    manager = await LogManager.open(data, options=_OPTIONS, files=files, is_threaded=False)
    log = manager.open_log("a", "0")
    held = {batch.base_sequence_number for batch in await read_all(log)}
    lost = {number for start, until in expected for number in range(start, until or 0)}
    assert held == set(range(_EVENTS)) - lost
    assert log.view.next_sequence_number == _EVENTS
    await manager.close()

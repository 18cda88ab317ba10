"""The control log in files: damage, power losses, failed syncs, later formats, and what a change costs."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest
from tests.storage.simulated_files import SimulatedFiles

from tidegate.model.errors import LogCorruptError, LogFailedError, LogFullError, TidegateError
from tidegate.storage.control import records
from tidegate.storage.control.log import OUTDATED_BYTES_MIN, FileControlLog
from tidegate.storage.control.reading import FILE_NAMES, read_files
from tidegate.storage.control.repair import damages_of, merge
from tidegate.storage.engine import ChangeInDoubtError, ControlChange
from tidegate.storage.files import Files, OsFiles
from tidegate.storage.write_errors import Reserve

_DIRECTORY = Path("/data")
_PATHS = tuple(_DIRECTORY / name for name in FILE_NAMES)


def _disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_directory(_DIRECTORY)
    files.sync_directory(_DIRECTORY.parent)
    return files


def _open(files: Files, *, is_used: bool = False) -> FileControlLog:
    return FileControlLog.open(files, _DIRECTORY, is_used=is_used, is_threaded=False)


async def _values(log: FileControlLog) -> dict[str, bytes]:
    return {key: cell.value for key, cell in (await log.read_all("")).items()}


async def _set(log: FileControlLog, key: str, value: bytes | None) -> int:
    cell = await log.read(key)
    return await log.change(key, value, expected_version=0 if cell is None else cell.version)


async def _set_all(log: FileControlLog, values: dict[str, bytes | None]) -> int:
    cells = await log.read_all("")
    return await log.change_all(
        [
            ControlChange(key, value, cells[key].version if key in cells else 0)
            for key, value in values.items()
        ]
    )


async def _filled(files: Files, count: int = 12) -> dict[str, bytes]:
    """A log with changes, a removal and a start in between, closed; its values."""
    for generation in range(2):
        log = _open(files)
        for number in range(count):
            await _set(log, f"hub/{number}", b'{"retention_hours":%d}' % (number + 100 * generation))
        await _set_all(log, {"hub/1": None, "hub/2": b"%d" % generation, f"hub/new {generation}": b"new"})
        values = await _values(log)
        await log.close()
    return values


def _copy_of(files: SimulatedFiles) -> SimulatedFiles:
    files.sync_directory(_DIRECTORY)
    copy = files.lose_power(random.Random(0))
    for path, inode in files.entries.items():
        copy.entries[path].content[:] = copy.entries[path].durable[:] = inode.content
    return copy


async def test_a_second_start_changes_no_byte() -> None:
    """What is sound is not touched."""
    files = _disk()
    values = await _filled(files)
    before = {path: bytes(files.entries[path].content) for path in _PATHS}
    log = _open(files)
    assert await _values(log) == values
    await log.close()
    assert {path: bytes(files.entries[path].content) for path in _PATHS} == before


def _damage(randomness: random.Random, data: bytearray) -> str:
    """Damage some bytes; says how."""
    kind = randomness.choice(["bit", "byte", "zeros", "cut", "insert", "delete", "swap", "record"])
    at = randomness.randrange(len(data))
    length = randomness.choice([1, 8, 70, 512])
    match kind:
        case "bit":
            data[at] ^= 1 << randomness.randrange(8)
        case "byte":
            data[at] = (data[at] + randomness.randrange(1, 256)) % 256
        case "zeros":
            data[at : at + length] = bytes(len(data[at : at + length]))
        case "cut":
            del data[at:]
        case "insert":
            data[at:at] = randomness.randbytes(length)
        case "delete":
            del data[at : at + length]
        case "swap":
            other = randomness.randrange(len(data))
            data[at], data[other] = data[other], data[at]
        case "record":  # a whole one is left out, or stands twice
            whole = list(records.whole_records(bytes(data)))
            chosen = randomness.choice(whole)
            data[chosen.start : chosen.end] = data[chosen.start : chosen.end] * randomness.choice([0, 2])
    return f"{kind} at {at}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_one_damaged_file_changes_nothing(seed: int) -> None:
    """D7: whichever it is and wherever it is damaged, or gone: the other has everything, and restores it."""
    randomness = random.Random(seed)
    print(f"seed {seed}")
    files = _disk()
    values = await _filled(files)
    for _ in range(100):
        damaged = _copy_of(files)
        path = randomness.choice(_PATHS)
        what = _damage(randomness, damaged.entries[path].content) if randomness.random() > 0.1 else "gone"
        if what == "gone":
            damaged.remove(path)
        for _ in range(2):
            log = _open(damaged, is_used=True)
            assert await _values(log) == values, (path, what)
            await log.close()
        found = read_files(damaged, _DIRECTORY, is_used=True)
        assert [file is not None and file.is_sound for file in found.found] == [True, True]
        assert damages_of(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_two_damaged_files_are_refused_and_repaired(seed: int) -> None:
    """Refused with file and offset, never a first start and never another value. What a repair keeps is
    everything, or it says which changes are lost."""
    randomness = random.Random(seed)
    print(f"seed {seed}")
    files = _disk()
    values = await _filled(files)
    outcomes = {"refused": 0, "whole": 0, "partly": 0}
    for _ in range(150):
        damaged = _copy_of(files)
        what = [_damage(randomness, damaged.entries[path].content) for path in _PATHS]
        found = read_files(damaged, _DIRECTORY, is_used=True)
        if all(file is None or file.is_sound for file in found.found):
            continue  # cut at the end of a record, or changed nothing
        try:
            found.best()
        except LogCorruptError:
            outcomes["refused"] += 1
        else:  # one of them is only shorter
            continue
        with pytest.raises(LogCorruptError, match=r"at byte \d+[^`]*`tidegate check DIR --repair`"):
            _open(damaged, is_used=True)
        assert damages_of(found)
        state, lost = merge(damaged, _DIRECTORY, found)
        kept = {key: cell.value for key, cell in state.cells.items()}
        if not lost:
            # Cut at the end of a record: nothing shows that there were more.
            assert kept == values or any("cut" in each for each in what), what
        outcomes["partly" if lost else "whole"] += 1
        FileControlLog.write(damaged, _DIRECTORY, state)
        log = _open(damaged, is_used=True)
        assert await _values(log) == kept
        await _set(log, "more", b"{}")
        await log.close()
        assert not damages_of(read_files(damaged, _DIRECTORY, is_used=True))
    assert min(outcomes.values()) > 0, outcomes


async def test_missing_files_are_a_first_start_only_without_logs() -> None:
    """D8: with logs beside them, something is wrong."""
    files = _disk()
    await _filled(files)
    for path in _PATHS:
        files.remove(path)
    with pytest.raises(LogCorruptError, match=r"control\.log and its copy are missing"):
        _open(files, is_used=True)
    log = _open(files)
    assert await _values(log) == {}
    await log.close()


async def test_files_of_different_namespaces_are_refused() -> None:
    """Neither is believed, and no repair mixes them."""
    files, other = _disk(), _disk()
    await _filled(files)
    await _filled(other, 15)
    files.entries[_PATHS[1]].content[:] = other.entries[_PATHS[1]].content
    with pytest.raises(LogCorruptError, match="different namespaces"):
        _open(files)
    with pytest.raises(LogCorruptError, match="do not belong together"):
        merge(files, _DIRECTORY, read_files(files, _DIRECTORY, is_used=True))


async def test_an_older_copy_does_not_win_over_a_damaged_file() -> None:
    """A damaged file shows that it was further, also behind the damage: nothing goes back unnoticed."""
    files = _disk()
    await _filled(files)
    older = bytes(files.entries[_PATHS[1]].content)
    log = _open(files)
    await _set(log, "hub/3", b"newer")
    await _set(log, "hub/4", b"newer")
    await log.close()
    files.entries[_PATHS[1]].content[:] = older
    for position in (10, 200, len(older) - 5):
        damaged = _copy_of(files)
        damaged.entries[_PATHS[0]].content[position] ^= 255
        with pytest.raises(LogCorruptError, match="lacks its changes after revision"):
            _open(damaged)
    log = _open(files)  # an older copy alone is brought up to date
    assert (await _values(log))["hub/4"] == b"newer"
    await log.close()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("FORMAT", 7, "the format 7"), ("FEATURES", frozenset({"striped"}), "the feature 'striped'")],
)
async def test_what_a_later_version_writes_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, told: str
) -> None:
    """An unknown format is not damage: a repair may not touch it, either."""
    files = _disk()
    with monkeypatch.context() as patched:
        patched.setattr(records, name, value)
        await _filled(files)
    before = bytes(files.entries[_PATHS[0]].content)
    with pytest.raises(LogCorruptError, match=f"{told}, which this version does not know"):
        _open(files)
    assert bytes(files.entries[_PATHS[0]].content) == before


async def test_a_form_of_change_of_a_later_version_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its digest is right, so it was made: passing over a part of it would undo that part."""
    files = _disk()
    log = _open(files)
    with monkeypatch.context() as patched:
        encode = records._encode
        patched.setattr(
            records,
            "_encode",
            lambda revision, previous, about, value: encode(
                revision, previous, {**about, "unless": "hub/1"}, value
            ),
        )
        await _set(log, "hub/0", b"later")
    await log.close()
    before = bytes(files.entries[_PATHS[0]].content)
    with pytest.raises(LogCorruptError, match="the field 'unless', which this version does not know"):
        _open(files, is_used=True)
    assert bytes(files.entries[_PATHS[0]].content) == before


@pytest.mark.slow
async def test_changes_survive_a_power_loss_at_every_write() -> None:
    """Before or after the interrupted change, of one key or of several, at each step of a first start, of
    changes, of a compaction and of the start after a loss. Answered changes are there."""
    big = bytes(OUTDATED_BYTES_MIN // 4)
    for seed in range(3):
        for operations in range(90):
            print(f"seed {seed}, operations {operations}")
            randomness = random.Random(f"{seed} {operations}")
            files = _disk()
            files.operations_left = operations
            before: dict[str, bytes] = {}
            after = before
            try:
                log = _open(files)
                for number in range(24):
                    key = f"hub/{number % 3}"
                    value = None if number % 7 == 6 else b"%d" % number + big
                    before = after
                    if number % 5 == 4:
                        after = before | {"hub/2": b"%d" % number, "hub/more": big}
                        await _set_all(log, {"hub/2": b"%d" % number, "hub/more": big})
                        continue
                    after = {**before, key: value} if value is not None else {**before}
                    if value is None:
                        after.pop(key, None)
                    if value is not None or key in before:
                        await _set(log, key, value)
            except LogFailedError:
                pass
            files.operations_left = None
            after_loss = files.lose_power(randomness)
            after_loss.operations_left = randomness.randrange(12)
            try:
                await _open(after_loss).close()
            except LogFailedError:
                after_loss = after_loss.lose_power(randomness)
            after_loss.operations_left = None
            log = _open(after_loss)
            assert await _values(log) in (before, after)
            await log.close()


@pytest.mark.parametrize("failing", FILE_NAMES)
@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_failed_change_does_not_come_back(failing: str, is_forgotten: bool) -> None:
    """D10: the sync fails, and the change is undone in both files: it is not there after a restart."""
    files = _disk()
    values = await _filled(files)
    log = _open(files)
    files.sync_error, files.sync_error_name = errno.EIO, failing
    files.is_failed_sync_forgotten = is_forgotten
    files.sync_errors_left = 1
    with pytest.raises(LogFailedError, match="Cannot write the hub/3"):
        await _set(log, "hub/3", b"failed")
    assert log.failure is None
    for seed in range(8):
        survivors = _open(files.lose_power(random.Random(seed)))
        assert await _values(survivors) == values
    await _set(log, "hub/4", b"later")
    reopened = _open(files.lose_power(random.Random(0)))
    assert await _values(reopened) == values | {"hub/4": b"later"}


async def test_a_change_that_cannot_be_undone_is_in_doubt() -> None:
    """D10: neither a failure nor a success. Nothing that builds on it is accepted until the restart, which
    finds the value before it or the one after it."""
    files = _disk()
    values = await _filled(files)
    log = _open(files)
    files.sync_error = errno.EIO
    with pytest.raises(ChangeInDoubtError, match="not known whether the last one, of the hub/3, was made"):
        await _set(log, "hub/3", b"doubtful")
    files.sync_error = None
    with pytest.raises(LogFailedError, match="accepts no more changes") as caught:
        await _set(log, "hub/4", b"later")
    assert not isinstance(caught.value, ChangeInDoubtError)
    assert log.failure is not None
    for seed in range(8):
        reopened = _open(files.lose_power(random.Random(seed)))
        assert await _values(reopened) in (values, values | {"hub/3": b"doubtful"})
        await _set(reopened, "hub/4", b"later")
    reopened = _open(files)  # without a power loss, from the page cache
    found = await _values(reopened)
    assert await _values(_open(files.lose_power(random.Random(0)))) == found


async def test_a_full_disk_refuses_a_change_and_nothing_else() -> None:
    """Wherever it becomes full: the old value stays, the next change works, and a start does, too."""
    for space in range(0, 900, 37):
        files = _disk()
        values = await _filled(files)
        log = _open(files)
        files.space_left = space
        with pytest.raises(LogFullError, match="is full"):
            await _set(log, "hub/3", bytes(1000))
        assert await _values(_open(_copy_of(files))) == values
        files.space_left = None
        await _set(log, "hub/3", b"later")
        assert await _values(_open(_copy_of(files))) == values | {"hub/3": b"later"}


async def test_only_what_may_borrow_uses_the_reserve() -> None:
    """On a disk without room for all of it, other changes are refused, and made when there is room again."""
    files = _disk()
    reserve = Reserve(files, _DIRECTORY / "reserve", 2000)
    log = FileControlLog.open(files, _DIRECTORY, is_used=False, is_threaded=False, reserve=reserve)
    files.space_left = 1900
    checkpoint = [ControlChange("blob/1", b"", 0)]
    with pytest.raises(LogFullError, match="is full"):
        await log.change_all(checkpoint, may_borrow=False)
    await _set(log, "hub/1", b"")
    files.space_left = 2000 + 100
    with pytest.raises(LogFullError):  # the reserve is whole, and stays so
        await log.change_all(checkpoint, may_borrow=False)
    assert (len(files.entries[_DIRECTORY / "reserve"].content), reserve.is_whole()) == (2000, True)
    files.space_left = None
    await log.change_all(checkpoint, may_borrow=False)
    assert await _values(_open(_copy_of(files))) == {"hub/1": b"", "blob/1": b""}


async def test_outdated_values_are_dropped() -> None:
    """The files stay within twice the values and a bit, without a directory's sync per change."""
    files = _disk()
    log = _open(files)
    value = bytes(1000)
    for number in range(2000):
        await _set(log, f"hub/{number % 5}", value)
    for path in _PATHS:
        assert len(files.entries[path].content) < 2 * 5 * 1100 + OUTDATED_BYTES_MIN + 2000
    assert sorted(path.name for path in files.entries) == sorted(FILE_NAMES)
    await log.close()
    assert list(await _values(_open(files))) == [f"hub/{number}" for number in range(5)]


@pytest.mark.parametrize("error", ["create", "directory"])
async def test_files_that_cannot_be_compacted(error: str) -> None:
    """For want of space or descriptors they grow; if the rename is in doubt, nothing more is accepted, since
    it would go to a file that may be gone after a power loss."""
    files = _disk()
    log = _open(files)
    done = 0
    files.opens_left = 0 if error == "create" else None
    files.directory_sync_error = errno.EIO if error == "directory" else None
    try:
        for done in range(150):
            await _set(log, "hub/0", b"%d" % done + bytes(1000))
    except LogFailedError:
        done -= 1
    assert (error == "directory") == (log.failure is not None) == ("compacted" in str(log.failure))
    for seed in range(8):
        values = await _values(_open(files.lose_power(random.Random(seed))))
        assert values == {"hub/0": b"%d" % done + bytes(1000)}


@pytest.mark.slow
async def test_a_change_costs_the_same_however_many_values_there_are() -> None:
    """D16: bytes and syncs of a change among 10 hubs and among 10,000 are the same; so are, per change, the
    bytes of compaction, within the size of the values."""
    costs = []
    for hubs in (10, 10_000):
        files = _disk()
        log = _open(files)
        for number in range(hubs):
            await log.change(f"hub/{number:05}", bytes(300), expected_version=0)
        written, syncs = files.written_bytes, files.syncs
        for number in range(20):
            await _set(log, f"hub/{number % 10:05}", bytes(300))
        costs.append((files.written_bytes - written, files.syncs - syncs))
        assert files.written_bytes < 6 * 400 * (hubs + 20) + 4 * OUTDATED_BYTES_MIN
    assert costs[0] == costs[1]
    assert costs[0][1] == 2 * 20


async def test_long_keys_count_in_bytes() -> None:
    """A file is not rewritten at each change because its keys have characters of several bytes."""
    files = _disk()
    log = _open(files)
    for number in range(100):
        await _set(log, f"{number}" + "\U0001f600" * 1000, b"")
    files.written_bytes = 0
    await _set(log, "key", b"")
    assert files.written_bytes < 2 * 200


async def test_a_cancelled_change_leaves_the_log_usable(tmp_path: Path) -> None:
    """In its thread: it is made or not, and what comes after it finds which."""
    log = FileControlLog.open(OsFiles(), tmp_path, is_used=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await log.change("hub/0", b"first", expected_version=0)
    assert await _values(log) in ({}, {"hub/0": b"first"})
    await _set(log, "hub/0", b"second")
    assert await _values(log) == {"hub/0": b"second"}
    await log.close()
    with pytest.raises(TidegateError, match="is stopping"):
        await _set(log, "hub/0", b"third")

"""The state of a partition's capture: it survives, and is never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.broker import ControlConflictError, ControlLog
from tidegate.capture.state import CAPTURE_KEYS, PartitionState, PlannedFile, StateStore, remove_states
from tidegate.model.errors import LogCorruptError
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.files import OsFiles

_STATE = PartitionState(7, 1_000, 1, PlannedFile("a/b.avro", 7, 9, 100, 2_000, is_full=True))
_MARKED = PartitionState(
    7, 1_000, 1, PlannedFile("a/b.avro", 7, 9, 100, 2_000, is_full=True, sync_marker=bytes(range(240, 256)))
)


@pytest.fixture
def control(tmp_path: Path) -> ControlLog:
    """A new control log."""
    return FileControlLog.open(OsFiles(), tmp_path, is_used=False, is_threaded=False)


async def test_a_state_survives(control: ControlLog) -> None:
    """With and without a planned file; the partitions' states are apart."""
    store, other = StateStore(control, "hub", "0"), StateStore(control, "hub", "1")
    assert await store.load() is None
    for state in (PartitionState(), _STATE, _MARKED, PartitionState(9, 2_000, 1)):
        await store.save(state)
        assert await StateStore(control, "hub", "0").load() == state
    assert await other.load() is None


async def test_a_file_that_an_earlier_version_planned(control: ControlLog) -> None:
    """It has no marker; the file is written with the one that it had then."""
    store = StateStore(control, "hub", "0")
    await store.load()
    await store.save(_STATE)
    cell = await control.read(CAPTURE_KEYS + "hub/0")
    assert cell is not None
    value = cell.value.replace(b',"sync_marker":null', b"")
    assert len(value) < len(cell.value)
    await control.change(CAPTURE_KEYS + "hub/0", value, expected_version=cell.version)
    assert await store.load() == _STATE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"format_version": 2, "planned": null}',
        b'{"format_version": 1}',
        b"\xff",
        b'{"format_version": 1, "planned": null, "next_sequence_number": "7"}',
        b'{"format_version": 1, "planned": null, "unheard": 1}',
        b'{"format_version": 1, "planned": {"name": "x"}}',
        b'{"format_version": 1, "planned": null, "next_sequence_number": -1}',
    ],
)
async def test_what_another_version_wrote_is_refused(control: ControlLog, data: bytes) -> None:
    """D18: to begin again would put every event into a second file."""
    await control.change(CAPTURE_KEYS + "hub/0", data, expected_version=0)
    with pytest.raises(LogCorruptError, match=r"control\.log \(capture/hub/0\)"):
        await StateStore(control, "hub", "0").load()


async def test_a_lost_answer_and_a_second_capture(control: ControlLog) -> None:
    """The same state again is no conflict; another capture of the partition is one."""
    store, late = StateStore(control, "hub", "0"), StateStore(control, "hub", "0")
    for each in (store, late):
        await each.load()
        await each.save(_STATE)
    await late.save(PartitionState(9))
    with pytest.raises(ControlConflictError):
        await store.save(PartitionState(8))


async def test_states_of_deleted_hubs_are_removed(control: ControlLog) -> None:
    """Theirs alone."""
    await control.change("hub/gone", b"{}", expected_version=0)
    for hub_id in ("gone", "kept"):
        await StateStore(control, hub_id, "0").save(_STATE)
    await remove_states(control, {"kept"})
    assert list(await control.read_all("")) == ["hub/gone", CAPTURE_KEYS + "kept/0"]

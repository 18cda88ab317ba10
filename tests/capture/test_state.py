"""The state of a partition's capture: it survives, and is never guessed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidegate import files
from tidegate.capture import state as state_module
from tidegate.capture.state import PartitionState, PlannedFile, StateFile
from tidegate.model.errors import LogCorruptError

_STATE = PartitionState(7, 1_000, 1, PlannedFile("a/b.avro", 7, 9, 100, 2_000, is_full=True))


def test_a_state_survives(tmp_path: Path) -> None:
    """With and without a planned file, replaced as a whole, readable by its owner alone."""
    store = StateFile(tmp_path / "capture" / "hub" / "0.json")
    assert store.load() is None
    for state in (PartitionState(), _STATE, PartitionState(9, 2_000, 1)):
        store.save(state)
        assert store.load() == state
    assert [path.name for path in store.path.parent.iterdir()] == ["0.json"]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_a_state_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """It does not say what closed the window."""
    store = StateFile(tmp_path / "0.json")
    store.save(_STATE)
    store.path.write_text(store.path.read_text().replace(',\n    "is_full": true', ""))
    assert "is_full" not in store.path.read_text()
    assert store.load() == PartitionState(7, 1_000, 1, PlannedFile("a/b.avro", 7, 9, 100, 2_000))


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
def test_a_garbled_state_is_refused(tmp_path: Path, data: bytes) -> None:
    """To begin anew would put every event into a second file."""
    path = tmp_path / "0.json"
    path.write_bytes(data)
    with pytest.raises(LogCorruptError, match=r"0\.json"):
        StateFile(path).load()


def test_a_state_that_cannot_be_saved_leaves_the_old_one(tmp_path: Path) -> None:
    """As on a full disk."""
    store = StateFile(tmp_path / "0.json")
    store.save(_STATE)
    (tmp_path / f".0.json.{os.getpid()}").mkdir()
    with pytest.raises(OSError, match="directory"):
        store.save(PartitionState())
    assert store.load() == _STATE


def test_a_power_loss_takes_no_directory_of_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is gone would put every event into a second file: the first save syncs the directories
    above it, also where another partition, or an attempt that failed, made them.
    """
    synced: list[Path] = []
    for module in (state_module, files):
        monkeypatch.setattr(module, "sync_directory", synced.append)
    hub = tmp_path / "capture" / "hub"
    hub.mkdir(parents=True)
    store = StateFile(hub / "0.json")
    store.save(_STATE)
    assert synced == [hub, tmp_path / "capture", tmp_path]
    store.save(_STATE)
    assert synced[3:] == [hub]

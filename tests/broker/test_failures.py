"""Damage and failing disks, as far as they reach beyond one call: the rest of the namespace is served, and
nothing is acknowledged that a restart may not know."""

from __future__ import annotations

import errno
import random
import shutil
from array import array
from pathlib import Path

import pytest
from tests.storage.simulated_files import SimulatedFiles
from tests.support.clocks import SetClock

from tidegate.model.errors import (
    ClosedError,
    LogCorruptError,
    LogFailedError,
    NotFoundError,
)
from tidegate.model.position import EventPosition
from tidegate.server.opening import open_broker
from tidegate.storage import log_manager, recovery
from tidegate.storage.engine import ChangeInDoubtError

_DATA = Path("/data")


async def _filled(directory: Path, clock: SetClock) -> Path:
    """A stopped namespace with the hub ``hub`` of two partitions with an event each; the logs of the hub."""
    broker = await open_broker(directory, clock=clock)
    hub = await broker.create_event_hub("hub", partition_count=2)
    for partition in hub.partitions:
        await partition.append(b"event", array("I", (5,)))
    await broker.close()
    return directory / "logs" / hub.description.hub_id


@pytest.mark.parametrize(
    "damage", ["a segment is missing", "everything is missing", "the manifest", "a file"]
)
@pytest.mark.slow
async def test_a_partition_that_cannot_be_opened_keeps_no_other_from_being_served(
    tmp_path: Path, clock: SetClock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """D12: it refuses every request with the reason, and its hub can be deleted."""
    logs = await _filled(tmp_path, clock)
    match damage:
        case "a segment is missing":
            next((logs / "0").glob("*.log")).unlink()
        case "everything is missing":
            shutil.rmtree(logs / "0")
        case "the manifest":
            for path in (logs / "0").glob("manifest.*"):
                path.write_bytes(path.read_bytes()[:4200])
        case "a file":
            shutil.rmtree(logs / "0")
            (logs / "0").write_text("not a directory")
    broker = await open_broker(tmp_path, clock=clock)
    assert str(logs / "0") in caplog.text
    failed, sound = broker.event_hub("hub").partitions
    assert failed.is_failed
    assert failed.open_error is not None
    assert sound.open_error is None
    assert (await sound.append(b"more", array("I", (4,)))).start_sequence_number == 1
    assert len(await sound.read(0, bytes_max=1000)) == 2
    refused = (LogCorruptError, LogFailedError)
    with pytest.raises(refused):
        await failed.append(b"more", array("I", (4,)))
    with pytest.raises(refused):
        await failed.read(0, bytes_max=100)
    with pytest.raises(refused):
        await failed.ends()
    for position in (EventPosition.earliest(), EventPosition.latest()):
        with pytest.raises(refused):
            await failed.resolve(position)
    await broker.apply_retention()
    await broker.delete_event_hub("hub")
    assert not logs.exists()
    with pytest.raises(ClosedError):
        await failed.read(0, bytes_max=100)
    await broker.close()


async def test_an_internal_error_while_opening_a_log_fails_its_partition_alone(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage may find a mistake of ours: the service starts all the same."""
    await _filled(tmp_path, clock)
    recover = recovery.recover_log

    def fail(directory: Path, **options: object) -> object:
        if directory.name == "1":
            raise KeyError("a mistake")
        return recover(directory, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log_manager, "recover_log", fail)
    broker = await open_broker(tmp_path, clock=clock)
    sound, failed = broker.event_hub("hub").partitions
    assert (sound.is_failed, failed.is_failed) == (False, True)
    assert "KeyError" in str(failed.open_error)
    await broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_a_hub_whose_deletion_is_in_doubt_acknowledges_nothing(clock: SetClock, seed: int) -> None:
    """D10: the deletion could be neither made nor undone. After a power loss the hub is there with all
    its events, or it is gone; neither may lose an event that was acknowledged after the error."""
    files = SimulatedFiles()
    broker = await open_broker(_DATA, clock=clock, files=files)
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.create_event_hub("other", partition_count=1)
    partition = hub.partitions[0]
    await partition.append(b"event", array("I", (5,)))
    files.sync_error, files.sync_error_name = errno.EIO, "control"
    with pytest.raises(ChangeInDoubtError, match="not known whether"):
        await broker.delete_event_hub("hub")
    files.sync_error = None
    with pytest.raises(NotFoundError):
        broker.event_hub("hub")
    with pytest.raises(ClosedError):
        await partition.append(b"lost?", array("I", (5,)))
    # Nothing that builds on the unknown state is promised, either; other hubs are served.
    assert broker.catalog_failure is not None
    with pytest.raises(LogFailedError, match="accepts no more changes"):
        await broker.create_event_hub("later", partition_count=1)
    with pytest.raises(LogFailedError):
        await broker.delete_event_hub("other")
    await broker.event_hub("other").partitions[0].append(b"event", array("I", (5,)))
    survivors = files.lose_power(random.Random(seed))
    await broker.close()
    broker = await open_broker(_DATA, clock=clock, files=survivors)
    assert broker.catalog_failure is None
    names = [event_hub.name for event_hub in broker.list_event_hubs()]
    assert names in (["hub", "other"], ["other"])
    for name in names:
        batches = await broker.event_hub(name).partitions[0].read(0, bytes_max=100)
        assert [bytes(batch.payload) for batch in batches] == [b"event"]
    await broker.close()


async def test_a_hub_whose_creation_is_in_doubt_is_not_served(clock: SetClock) -> None:
    """D10, the other way round: what is served may not be gone after a power loss."""
    files = SimulatedFiles()
    broker = await open_broker(_DATA, clock=clock, files=files)
    files.sync_error, files.sync_error_name = errno.EIO, "control"
    with pytest.raises(ChangeInDoubtError):
        await broker.create_event_hub("hub", partition_count=1)
    with pytest.raises(NotFoundError):
        broker.event_hub("hub")
    await broker.close()


async def test_files_of_a_deleted_hub_that_cannot_be_removed_are_logged(
    clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The deletion is done once the catalog has it: what is left only takes space."""
    files = SimulatedFiles()
    broker = await open_broker(_DATA, clock=clock, files=files)
    await broker.create_event_hub("hub", partition_count=1)
    sync = files.sync_directory

    def fail(directory: Path) -> None:
        if directory == _DATA / "logs":
            raise OSError(errno.EIO, "injected")
        sync(directory)

    files.sync_directory = fail  # type: ignore[method-assign]
    await broker.delete_event_hub("hub")
    assert "Could not remove the logs" in caplog.text
    await broker.close()

"""The directory store where it differs from others: processes, kills, damage, names, and a deleted file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import ClosedError, InvalidArgumentError, StoreError, StoreUnavailableError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey
from tidegate.processor.stores.checkpoint_file import CheckpointFile, CheckpointRecord, checkpoint_path
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.testing.leases import acquire

GROUP = GroupKey("localhost", "Flights", "$Default")
FOLDER = Path("localhost/flights/$default")
_SPAWN = multiprocessing.get_context("spawn")
_WAIT_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """A store in a directory that does not exist yet."""
    return DirectoryStore(tmp_path / "store", lock_wait_s=0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store keeps GROUP."""
    return tmp_path / "store" / FOLDER


async def test_a_renewal_does_not_stand_behind_what_handlers_do_in_threads(tmp_path: Path) -> None:
    """``asyncio.to_thread`` has few threads, and handlers may use them all for long."""
    store = DirectoryStore(tmp_path / "store")
    release = threading.Event()
    with ThreadPoolExecutor(1) as few:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(few)
        busy = loop.run_in_executor(None, release.wait, _WAIT_S)
        try:
            async with asyncio.timeout(_WAIT_S / 2):
                lease = await acquire(store, GROUP, "0", "host-a")
                assert set(await store.renew(GROUP, [lease])) == {"0"}
                await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5, "5"), lease=lease)
                assert set(await store.list_checkpoints(GROUP)) == {"0"}
        finally:
            release.set()
        assert await busy
        await store.close()


async def test_a_closed_store_says_so(store: DirectoryStore) -> None:
    """Its threads have ended; using it afterwards is the caller's mistake, and told as that."""
    await store.list_leases(GROUP)
    await store.close()
    await store.close()
    with pytest.raises(ClosedError):
        await store.list_leases(GROUP)


async def _steal_until(path: Path, owner: str, count: int) -> list[int]:
    """Take partition 0 so often; returns the epochs that were won."""
    store = DirectoryStore(path)
    epochs: list[int] = []
    while len(epochs) < count:
        current = (await store.list_leases(GROUP)).leases.get("0")
        lease = await store.acquire(GROUP, "0", owner, expected=current)
        if lease is not None:
            epochs.append(lease.epoch)
    return epochs


def _steal_in_process(path: Path, owner: str, count: int, answer: Connection) -> None:
    answer.send(asyncio.run(_steal_until(path, owner, count)))


async def _checkpoint_for_ever(path: Path, told: Connection) -> None:
    store = DirectoryStore(path)
    lease = await acquire(store, GROUP, "0", "host-a")
    number = 0
    while True:
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", number, str(number)), lease=lease)
        lease = (await store.renew(GROUP, [lease]))["0"] if number % 50 == 0 else lease
        told.send(number)
        number += 1


def _checkpoint_in_process(path: Path, told: Connection) -> None:
    asyncio.run(_checkpoint_for_ever(path, told))


@pytest.mark.slow
def test_processes_never_win_the_same_epoch(tmp_path: Path) -> None:
    """Hosts in separate processes compete for a partition: each epoch has one winner, and none is skipped."""
    pipes = [_SPAWN.Pipe(duplex=False) for _ in range(3)]
    processes = [
        _SPAWN.Process(target=_steal_in_process, args=(tmp_path, f"host-{number}", 20, sender))
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    epochs: list[int] = []
    for receiver, _ in pipes:
        assert receiver.poll(_WAIT_S), "a process did not answer"
        epochs += receiver.recv()
    for process in processes:
        process.join(_WAIT_S)
    assert sorted(epochs) == list(range(1, 61))


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 60, 333])
async def test_a_killed_process_loses_no_checkpoint(tmp_path: Path, acknowledged: int) -> None:
    """What was acknowledged before SIGKILL is there, and the lock of the dead is free."""
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_checkpoint_in_process, args=(tmp_path, sender))
    process.start()
    last = -1
    while last < acknowledged:
        assert receiver.poll(_WAIT_S), "the process stopped"
        last = receiver.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(_WAIT_S)
    sender.close()
    while receiver.poll():
        try:
            last = receiver.recv()
        except EOFError:
            break
    store = DirectoryStore(tmp_path)
    checkpoint = (await store.list_checkpoints(GROUP))["0"]
    assert checkpoint.sequence_number in (last, last + 1)
    current = (await store.list_leases(GROUP)).leases["0"]
    assert current.owner == "host-a"
    new = await acquire(store, GROUP, "0", "host-b", expected=current)
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", last + 5, "x"), lease=new)


async def test_a_garbled_lease_file_is_named(store: DirectoryStore, folder: Path) -> None:
    """One clear error that names the file, for a reader and for a writer; the file is left as it is."""
    lease = await acquire(store, GROUP, "0", "host-a")
    path = folder / "leases.json"
    good = json.loads(path.read_text())
    for content in (
        "",
        "{",
        "[]",
        '"text"',
        '{"format": 0, "leases": {}}',
        '{"format": 1, "leases": []}',
        '{"format": 1, "leases": {"0": {}}}',
        json.dumps(good | {"leases": {"0": good["leases"]["0"] | {"epoch": "1"}}}),
        json.dumps(good | {"leases": {"0": good["leases"]["0"] | {"version": "x"}}}),
        json.dumps(good | {"leases": {"0": good["leases"]["0"] | {"renewed_at": "2026-01-01T00:00:00"}}}),
    ):
        path.write_text(content)
        with pytest.raises(StoreError, match=r"leases\.json is garbled"):
            await store.list_leases(GROUP)
        with pytest.raises(StoreError, match=r"leases\.json is garbled"):
            await store.renew(GROUP, [lease])
        assert path.read_text() == content


@pytest.mark.parametrize("content", [b"{}", b" " * 1024, b"x" * 1024, b" " * 512, b"\n" * 1025, b"\0" * 1024])
async def test_a_garbled_checkpoint_file_is_named(
    store: DirectoryStore, folder: Path, content: bytes
) -> None:
    """A damaged checkpoint is never taken for none: its partition would start over without a word."""
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=None)
    path = folder / "checkpoint-0.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"checkpoint-0\.json is garbled"):
        await store.list_checkpoints(GROUP)
    with pytest.raises(StoreError, match=r"checkpoint-0\.json is garbled"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 2, "2"), lease=None)
    assert path.read_bytes() == content


async def test_files_of_a_later_version_are_refused_by_name(store: DirectoryStore, folder: Path) -> None:
    """They are not garbled: whoever followed that advice would delete checkpoints that are right."""
    lease = await acquire(store, GROUP, "0", "host-a")
    for number in (1, 2):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", number, "x"), lease=None)
    leases, checkpoint = folder / "leases.json", folder / "checkpoint-0.json"
    leases.write_text('{"format": 2, "owners": {}}')
    with pytest.raises(StoreError, match=r"leases\.json has the format 2, which this version does not know"):
        await store.renew(GROUP, [lease])
    slots = checkpoint.read_bytes()
    later = slots[512:].rstrip().replace(b'{"crc32"', b'{"format":2,"crc32"')
    content = slots[:512] + later.ljust(511) + b"\n"
    checkpoint.write_bytes(content)
    for attempt in (
        store.list_checkpoints(GROUP),
        store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 3, "x"), lease=None),
    ):
        with pytest.raises(StoreError, match=r"checkpoint-0\.json has the format 2, which this version does"):
            await attempt
    assert checkpoint.read_bytes() == content


async def test_another_partitions_file_is_not_believed(store: DirectoryStore, folder: Path) -> None:
    """A file that was restored under another name would make its partition skip or repeat events."""
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=None)
    (folder / "checkpoint-1.json").write_bytes((folder / "checkpoint-0.json").read_bytes())
    with pytest.raises(StoreError, match=r"checkpoint-1\.json holds the checkpoint of partition 0"):
        await store.list_checkpoints(GROUP)
    with pytest.raises(StoreError, match=r"checkpoint-1\.json holds the checkpoint of partition 0"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("1", 2, "2"), lease=None)


async def test_a_file_that_never_held_a_checkpoint_is_none(store: DirectoryStore, folder: Path) -> None:
    """A crash between making a file and its first record leaves it empty; the next one fills it."""
    folder.mkdir(parents=True)
    (folder / "checkpoint-0.json").touch()
    assert dict(await store.list_checkpoints(GROUP)) == {}
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=None)
    assert sorted(await store.list_checkpoints(GROUP)) == ["0"]


def test_a_write_that_is_cut_short_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """However much of a slot reached the disk, the file holds the new checkpoint or the one before."""
    path = tmp_path / "checkpoint-0.json"
    for count in range(4):
        before = path.read_bytes() if count else b""
        with CheckpointFile(path, is_created=True) as file:
            file.write(
                CheckpointRecord(ProcessorCheckpoint("0", count, str(count)), 1, count), is_synced=False
            )
        after = path.read_bytes()
        if not count:
            continue
        start = count % 2 * 512
        for cut in range(0, 513, 8):
            path.write_bytes(
                before[:start]
                + after[start : start + cut]
                + before[start + cut : start + 512]
                + before[start + 512 :]
            )
            with CheckpointFile(path, is_created=False) as file:
                record = file.read()
            assert record is not None
            assert record.count in (count - 1, count)
            assert record.checkpoint.sequence_number == record.count
        path.write_bytes(after)


@given(
    st.builds(
        ProcessorCheckpoint,
        st.text("0123456789", min_size=1, max_size=4),
        st.none() | st.integers(-1, 2**63 - 1),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=30),
        st.none() | st.integers(0, 2**53),
        st.none() | st.integers(0, 2**53),
    )
)
@pytest.mark.slow
def test_every_checkpoint_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: ProcessorCheckpoint
) -> None:
    """Whatever an offset holds, and whichever positions are known."""
    record = CheckpointRecord(checkpoint, 7, 0)
    path = checkpoint_path(tmp_path_factory.mktemp("checkpoint"), checkpoint.partition_id)
    with CheckpointFile(path, is_created=True) as file:
        file.write(record, is_synced=False)
        assert file.read() == record


async def test_an_offset_that_is_too_long_is_refused(store: DirectoryStore) -> None:
    """A slot has an end; the error says so, and what is there stays."""
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=None)
    with pytest.raises(InvalidArgumentError, match="has room for 511"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 2, "2" * 500), lease=None)
    assert (await store.list_checkpoints(GROUP))["0"].sequence_number == 1


async def test_a_checkpoint_by_offset_alone_is_kept(store: DirectoryStore) -> None:
    """It moves forward by its offset, where offsets are numbers; other offsets cannot be compared."""
    for offset, expected in (("900", "900"), ("100", "900"), ("a-1", "a-1"), ("100", "100")):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", None, offset), lease=None)
        assert (await store.list_checkpoints(GROUP))["0"] == ProcessorCheckpoint("0", None, expected)


async def test_odd_names_stay_in_the_directory(tmp_path: Path) -> None:
    """No name of a namespace, hub, group or partition leads out of the store's directory."""
    store = DirectoryStore(tmp_path / "store")
    group = GroupKey("..", "a/../../b", ".")
    await acquire(store, group, "../../0", "host-a")
    await store.update_checkpoint(group, ProcessorCheckpoint("../../0", 1, "1"), lease=None)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert sorted(await store.list_checkpoints(group)) == ["../../0"]
    assert len(list((tmp_path / "store").glob("*/*/*/checkpoint-*"))) == 1


async def test_leases_by_a_hosts_name_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What an earlier version kept is not used, and not passed over in silence."""
    store = DirectoryStore(tmp_path)
    await acquire(store, GROUP, "0", "host-a")
    assert not caplog.records
    by_id = GroupKey("0123abcd", GROUP.event_hub, GROUP.consumer_group)
    for _ in range(2):
        assert not (await store.list_leases(by_id)).leases
    (record,) = caplog.records
    assert "in other namespaces (localhost) are not used" in record.getMessage()


async def test_epochs_go_on_when_the_lease_file_is_deleted(store: DirectoryStore, folder: Path) -> None:
    """As the error for a garbled one advises: nobody is fenced by the checkpoints that are still there."""
    old = await acquire(store, GROUP, "0", "host-a")
    for _ in range(3):
        old = await acquire(store, GROUP, "0", "host-a", expected=old)
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=old)
    (folder / "leases.json").unlink()
    assert dict(await store.renew(GROUP, [old])) == {}
    new = await acquire(store, GROUP, "0", "host-b")
    assert new.epoch == 5
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 2, "2"), lease=new)


@contextlib.contextmanager
def held_locks(folder: Path) -> Iterator[None]:
    """Another process's locks on the leases and on partition 0's checkpoint."""
    with (folder / "leases.lock").open("a") as leases, (folder / "checkpoint-0.json").open("a") as checkpoint:
        for file in (leases, checkpoint):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_a_lock_that_is_not_free_is_said(store: DirectoryStore, folder: Path) -> None:
    """A host that was stopped while it held a lock does not hang the others for ever, or silently."""
    lease = await acquire(store, GROUP, "0", "host-a")
    checkpoint = ProcessorCheckpoint("0", 1, "1")
    await store.update_checkpoint(GROUP, checkpoint, lease=lease)
    with held_locks(folder):
        with pytest.raises(StoreUnavailableError, match=r"lock of .*leases\.json"):
            await store.acquire(GROUP, "0", "host-b", expected=lease)
        with pytest.raises(StoreUnavailableError, match=r"lock of .*checkpoint-0\.json"):
            await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 2, "2"), lease=lease)
        # What is there can be read: other partitions' owners begin in the meantime.
        assert dict((await store.list_leases(GROUP)).leases) == {"0": lease}
        assert dict(await store.list_checkpoints(GROUP)) == {"0": checkpoint}
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 2, "2"), lease=lease)


async def test_a_place_that_is_no_directory_is_named(tmp_path: Path) -> None:
    """A path that cannot be used is one error of the tree, with the path in it."""
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file")
    with pytest.raises(StoreError, match=f"cannot use {tmp_path}/file/localhost"):
        await store.acquire(GROUP, "0", "host-a", expected=None)
    with pytest.raises(StoreError, match="cannot use"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 1, "1"), lease=None)
    with pytest.raises(StoreError, match="cannot use"):
        await store.list_leases(GROUP)

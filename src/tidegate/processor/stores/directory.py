"""Leases and checkpoints in a directory: for hosts on one machine, in any number of processes.

    {path}/{namespace}/{hub}/{group}/leases.json         all leases of the group, replaced as a whole
    {path}/{namespace}/{hub}/{group}/leases.lock         held while leases are changed
    {path}/{namespace}/{hub}/{group}/checkpoint-{partition}.json     see ``checkpoint_file``

Names are in lower case, percent-encoded where needed. All files are JSON that people may read and only stores
may write.

The locks are advisory file locks (flock) of a local file system. A host that is stopped (SIGSTOP) while it
holds one keeps others from writing; they report StoreUnavailableError until it continues or dies. Reading
needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from tidegate.files import lock_file, replace_file, sync_directory, unlock_file
from tidegate.model.clock import Clock
from tidegate.model.errors import LATER_VERSION, ClosedError, StoreError, StoreUnavailableError
from tidegate.model.validation import from_json
from tidegate.processor.checkpoint import ProcessorCheckpoint, decide_move
from tidegate.processor.lease import NAMES_SUFFIX, GroupKey, Lease, LeaseSnapshot
from tidegate.processor.stores import lease_changes
from tidegate.processor.stores.checkpoint_file import (
    CheckpointFile,
    CheckpointRecord,
    checkpoint_path,
    file_name,
    read_unlocked,
)
from tidegate.transport.clock import SystemClock

T = TypeVar("T")

_logger: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.002
_LEASE_THREADS: Final = 2
_CHECKPOINT_THREADS: Final = 4
"""The store's own threads (our choice): in the event loop's, renewals would wait for handlers' work. Leases
do not wait for checkpoints, which may wait for another process."""


_Decide = Callable[[CheckpointRecord | None], CheckpointRecord | None]
"""What to write instead of a partition's record; None: it stays."""


class DirectoryStore:
    """A ``ProcessorStore`` in a directory, with epochs.

    Times are by the machine's clock, which all its hosts share. Changes of leases are on disk when they
    return. Killed processes lose no checkpoints; a power failure may lose the newest ones (see
    ``checkpoint_file``).
    """

    has_epochs: bool = True
    """Receivers are opened with the lease's epoch."""

    def __init__(self, path: Path | str, clock: Clock | None = None, *, lock_wait_s: float = 10.0) -> None:
        """path: created when first written to. clock: None uses the machine's.

        lock_wait_s: maximum wait for other processes, in seconds.
        """
        self._path = Path(path)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock_wait_s = lock_wait_s
        self._lease_threads = ThreadPoolExecutor(_LEASE_THREADS, "tidegate-leases")
        self._checkpoint_threads = ThreadPoolExecutor(_CHECKPOINT_THREADS, "tidegate-checkpoints")
        self._listed: set[Path] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<DirectoryStore {self._path}>"

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the machine's time."""
        folder = self._folder(group)
        leases = await self._run(self._lease_threads, lambda: self._list_leases(folder))
        return LeaseSnapshot(leases, self._clock.now_utc())

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """See ``LeaseManager``."""
        folder = self._folder(group)
        return await self._run(
            self._lease_threads, lambda: self._acquire(folder, partition_id, owner, expected)
        )

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        """See ``LeaseManager``."""
        folder = self._folder(group)
        await self._run(self._lease_threads, lambda: self._request(folder, lease, requester))

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """See ``LeaseManager``; all in one write."""
        folder = self._folder(group)
        return await self._run(self._lease_threads, lambda: self._change(folder, leases, is_released=False))

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """See ``LeaseManager``; all in one write."""
        folder = self._folder(group)
        await self._run(self._lease_threads, lambda: self._change(folder, leases, is_released=True))

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        """See ``CheckpointManager``; on disk when this returns."""
        path = checkpoint_path(self._folder(group), lease.partition_id)
        epoch = 0

        def decide(record: CheckpointRecord | None) -> CheckpointRecord:
            nonlocal epoch
            record = record or CheckpointRecord(ProcessorCheckpoint(lease.partition_id, None), 0, -1)
            epoch = max(lease.epoch, record.epoch + 1)
            return CheckpointRecord(record.checkpoint, epoch, record.count + 1)

        await self._run(self._checkpoint_threads, lambda: self._move_durably(path, decide))
        return epoch

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        """The group's checkpoints by partition id."""
        folder = self._folder(group)
        return await self._run(self._checkpoint_threads, lambda: self._list_checkpoints(folder))

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        """Move a checkpoint forward; see ``CheckpointManager``.

        A partition's first one, and a rewind, are on disk when this returns. Others use no thread, because
        that costs more than 0.03 ms of file work (see ``checkpoint_file``).
        """
        path = checkpoint_path(self._folder(group), checkpoint.partition_id)

        def decide(record: CheckpointRecord | None) -> CheckpointRecord | None:
            return _next_record(group, checkpoint, lease, record, is_rewind_allowed=is_rewind_allowed)

        if not is_rewind_allowed:
            with _translated_errors(path):
                file = await self._open_soon(path)
                if file is not None:
                    with file:
                        record = file.read()
                        if record is not None:
                            file.write(decide(record), is_synced=False)
                            return
        await self._run(self._checkpoint_threads, lambda: self._move_durably(path, decide))

    async def groups_of(self, event_hub: str) -> list[GroupKey]:
        """The groups of a hub of this name that have a lease or a checkpoint here, in all namespaces."""
        return await self._run(self._checkpoint_threads, lambda: self._groups_of(event_hub.lower()))

    async def close(self) -> None:
        """Stop the store's threads after their current work. Idempotent."""
        self._is_closed = True
        for threads in (self._lease_threads, self._checkpoint_threads):
            await asyncio.to_thread(threads.shutdown)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise ClosedError(f"The directory store {self._path} is closed.")
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    # Everything below runs in a thread, except what ``update_checkpoint`` calls.

    def _folder(self, group: GroupKey) -> Path:
        names = (group.namespace, group.event_hub, group.consumer_group)
        return self._path.joinpath(*map(file_name, names))

    def _groups_of(self, event_hub: str) -> list[GroupKey]:
        with _translated_errors(self._path):
            return [
                GroupKey(unquote(group.parents[1].name), event_hub, unquote(group.name))
                for group in sorted(self._path.glob("*/*/*"))
                if unquote(group.parent.name) == event_hub and not group.name.endswith(NAMES_SUFFIX)
            ]

    def _list_leases(self, folder: Path) -> dict[str, Lease]:
        if folder not in self._listed:
            self._listed.add(folder)
            self._warn_of_others(folder)
        return _read_leases(folder / "leases.json")

    def _warn_of_others(self, folder: Path) -> None:
        """Say that a group begins here which another namespace has as well."""
        if folder.exists() or not self._path.is_dir():
            return
        place = folder.relative_to(folder.parents[1])
        names = [each.name for each in self._path.iterdir() if (each / place).is_dir()]
        if names:
            _logger.warning(
                "The leases and checkpoints in %s of this hub and group in other namespaces (%s) are not "
                "used. They are another service's, or of a version that named a namespace by its host.",
                self._path,
                ", ".join(sorted(names)),
            )

    def _acquire(self, folder: Path, partition_id: str, owner: str, expected: Lease | None) -> Lease | None:
        with self._changed_leases(folder) as leases:
            current = leases.get(partition_id)
            # A checkpoint may have a higher epoch if leases.json was deleted, and would then fence the owner.
            known = [0 if current is None else current.epoch]
            record = self._read_checkpoint(checkpoint_path(folder, partition_id))
            known += [] if record is None else [record.epoch]
            epoch, now = max(known) + 1, self._clock.now_utc()
            return lease_changes.acquire(leases, partition_id, owner, expected=expected, epoch=epoch, now=now)

    def _request(self, folder: Path, lease: Lease, requester: str) -> None:
        with self._changed_leases(folder) as leases:
            lease_changes.request(leases, lease, requester, now=self._clock.now_utc())

    def _change(self, folder: Path, wanted: Sequence[Lease], *, is_released: bool) -> dict[str, Lease]:
        """Renew or release leases, and return those that were changed."""
        if not wanted:
            return {}
        with self._changed_leases(folder) as leases:
            return lease_changes.change(leases, wanted, now=self._clock.now_utc(), is_released=is_released)

    @contextlib.contextmanager
    def _changed_leases(self, folder: Path) -> Iterator[dict[str, Lease]]:
        """The group's leases, read under the lock, and written afterwards if they were changed."""
        path = folder / "leases.json"
        with _translated_errors(path):
            _make_folder(folder)
            descriptor = os.open(folder / "leases.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._wait(lambda: lock_file(descriptor), path)
                leases = _read_leases(path)
                before = dict(leases)
                yield leases
                if leases != before:
                    _write_leases(path, leases)
            finally:
                unlock_file(descriptor)
                os.close(descriptor)

    def _wait(self, attempt: Callable[[], T], path: Path) -> T:
        """The result of ``attempt``, which is repeated while another process holds the lock."""
        deadline = self._clock.monotonic() + self._lock_wait_s
        while True:
            try:
                return attempt()
            except BlockingIOError:
                self._check_deadline(deadline, path)
            time.sleep(_PAUSE_S)

    def _check_deadline(self, deadline: float, path: Path) -> None:
        if self._clock.monotonic() >= deadline:
            raise StoreUnavailableError(
                f"Another process has held the lock of {path} for {self._lock_wait_s:g} s; "
                "nothing was changed.",
                next_step="Check whether a host on this machine is suspended, or its disk hangs.",
            ) from None

    async def _open_soon(self, path: Path) -> CheckpointFile | None:
        """The locked file, without a thread; None if missing. Do not await while it is open."""
        deadline = self._clock.monotonic() + self._lock_wait_s
        while True:
            try:
                return CheckpointFile(path, is_created=False)
            except FileNotFoundError:
                return None
            except BlockingIOError:
                self._check_deadline(deadline, path)
            await asyncio.sleep(_PAUSE_S)

    def _open(self, path: Path, *, is_created: bool = False) -> CheckpointFile:
        """As ``_open_soon``, in a thread. Raises FileNotFoundError."""
        return self._wait(lambda: CheckpointFile(path, is_created=is_created), path)

    def _move_durably(self, path: Path, decide: _Decide) -> None:
        with _translated_errors(path):
            _make_folder(path.parent)
            with self._open(path, is_created=True) as file:
                record = file.read()
                file.write(decide(record), is_synced=True)
            if record is None:
                sync_directory(path.parent)

    def _list_checkpoints(self, folder: Path) -> dict[str, ProcessorCheckpoint]:
        checkpoints: dict[str, ProcessorCheckpoint] = {}
        for path in sorted(folder.glob("checkpoint-*.json")):
            record = self._read_checkpoint(path)
            if record is not None and record.checkpoint.has_position:
                checkpoints[record.checkpoint.partition_id] = record.checkpoint
        return checkpoints

    def _read_checkpoint(self, path: Path) -> CheckpointRecord | None:
        with _translated_errors(path):
            try:
                with contextlib.suppress(StoreError):
                    return read_unlocked(path)
                with self._open(path) as file:
                    return file.read()
            except FileNotFoundError:
                return None


def _next_record(
    group: GroupKey,
    checkpoint: ProcessorCheckpoint,
    lease: Lease | None,
    record: CheckpointRecord | None,
    *,
    is_rewind_allowed: bool,
) -> CheckpointRecord | None:
    """The record after ``update_checkpoint``; None: it does not change. Raises as ``decide_move``."""
    epoch = 0 if lease is None else lease.epoch
    if record is None:
        return CheckpointRecord(checkpoint, epoch, 0)
    current = record.checkpoint
    is_moved = decide_move(
        group, checkpoint, lease, current=current, epoch=record.epoch, is_rewind_allowed=is_rewind_allowed
    )
    moved = CheckpointRecord(checkpoint if is_moved else current, max(epoch, record.epoch), record.count + 1)
    is_changed = (moved.checkpoint, moved.epoch) != (current, record.epoch)
    return moved if is_changed else None


_Time = Annotated[datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class _StoredLease:
    owner: str
    epoch: int
    acquired_at: _Time | None
    renewed_at: _Time
    version: Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]
    requested_by: str | None = None
    requested_at: _Time | None = None


@dataclass(frozen=True, slots=True)
class _LeaseFile:
    format: Literal[1]
    leases: dict[str, _StoredLease]


@dataclass(frozen=True, slots=True)
class _LaterLeaseFile:
    format: Annotated[int, msgspec.Meta(gt=1)]


def _write_leases(path: Path, leases: Mapping[str, Lease]) -> None:
    """Replace the file, so that readers see either the old or the new content."""
    stored = {partition_id: asdict(lease) for partition_id, lease in leases.items()}
    for fields in stored.values():
        del fields["partition_id"]
    content = msgspec.json.format(msgspec.json.encode({"format": 1, "leases": stored}), indent=2)
    replace_file(path, content, mode=0o666, is_synced=True)


def _read_leases(path: Path) -> dict[str, Lease]:
    with _translated_errors(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        stored = from_json(content, _LeaseFile).leases
    except msgspec.DecodeError as exc:
        with contextlib.suppress(msgspec.DecodeError):
            later = from_json(content, _LaterLeaseFile)
            raise StoreError(
                f"The lease file {path} has the format {later.format}, which this version does not know.",
                next_step=LATER_VERSION,
            ) from exc
        raise StoreError(
            f"The lease file {path} is garbled: {exc}.",
            next_step="Stop the hosts and delete it: leases are acquired again, and checkpoints are kept.",
        ) from exc
    return {partition_id: Lease(partition_id, **asdict(each)) for partition_id, each in stored.items()}


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_directory(folder.parent)


@contextlib.contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Translate errors of the file system to StoreError."""
    try:
        yield
    except OSError as exc:
        kind = StoreUnavailableError if exc.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(
            f"The directory store cannot use {path}: {exc.strerror or exc}.",
            next_step="Use a local directory that this user may write to, with free space.",
        ) from exc

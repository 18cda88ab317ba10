"""Leases and checkpoints in this process's memory: for tests, and for hosts that share one process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.model.clock import Clock
from tidegate.processor.checkpoint import ProcessorCheckpoint, decide_move
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot


@dataclass(slots=True)
class _Group:
    leases: dict[str, Lease] = field(default_factory=dict)
    checkpoints: dict[str, ProcessorCheckpoint] = field(default_factory=dict)
    checkpoint_epochs: dict[str, int] = field(default_factory=dict)
    """The highest epoch that has moved each checkpoint."""


class MemoryStore:
    """``ProcessorStore`` in memory. Thread-safe: give the same object to every host."""

    def __init__(self, clock: Clock, *, has_epochs: bool = True) -> None:
        """has_epochs: False behaves as a store shared with official processors: all epochs are 0."""
        self._clock = clock
        self._has_epochs = has_epochs
        self._groups: dict[GroupKey, _Group] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()
        """Held for each operation, and never across an await."""

    def __repr__(self) -> str:
        leases = sum(len(group.leases) for group in self._groups.values())
        return f"<MemoryStore groups={len(self._groups)} leases={leases}>"

    @property
    def has_epochs(self) -> bool:
        """Whether acquiring raises the epoch."""
        return self._has_epochs

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the store's time."""
        with self._lock:
            return LeaseSnapshot(dict(self._group(group).leases), self._clock.now_utc())

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """See ``LeaseStore``."""
        with self._lock:
            leases = self._group(group).leases
            current = leases.get(partition_id)
            if _version_of(current) != _version_of(expected):
                return None
            epoch = 0 if current is None else current.epoch
            now = self._clock.now_utc()
            lease = Lease(
                partition_id=partition_id,
                owner=owner,
                epoch=epoch + 1 if self._has_epochs else 0,
                acquired_at=now,
                renewed_at=now,
                version=self._next_version(),
            )
            leases[partition_id] = lease
            return lease

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """See ``LeaseStore``."""
        with self._lock:
            stored = self._group(group).leases
            now = self._clock.now_utc()
            renewed = {
                lease.partition_id: replace(lease, renewed_at=now, version=self._next_version())
                for lease in _those_as_given(stored, leases)
                if lease.owner
            }
            stored.update(renewed)
            return renewed

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """See ``LeaseStore``."""
        with self._lock:
            stored = self._group(group).leases
            for lease in _those_as_given(stored, leases):
                stored[lease.partition_id] = replace(lease, owner="", version=self._next_version())

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        """The group's checkpoints by partition id."""
        with self._lock:
            return dict(self._group(group).checkpoints)

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        """See ``CheckpointStore``."""
        partition_id = checkpoint.partition_id
        with self._lock:
            stored = self._group(group)
            epoch = stored.checkpoint_epochs.get(partition_id, 0)
            is_moved = decide_move(
                group,
                checkpoint,
                lease,
                current=stored.checkpoints.get(partition_id),
                epoch=epoch,
                is_rewind_allowed=is_rewind_allowed,
            )
            if lease is not None:
                stored.checkpoint_epochs[partition_id] = lease.epoch
            if is_moved:
                stored.checkpoints[partition_id] = checkpoint

    async def close(self) -> None:
        """Does nothing."""

    def _group(self, group: GroupKey) -> _Group:
        return self._groups.setdefault(group, _Group())

    def _next_version(self) -> str:
        return str(next(self._versions))


def _version_of(lease: Lease | None) -> str | None:
    return None if lease is None else lease.version


def _those_as_given(stored: Mapping[str, Lease], leases: Sequence[Lease]) -> list[Lease]:
    return [lease for lease in leases if _version_of(stored.get(lease.partition_id)) == lease.version]

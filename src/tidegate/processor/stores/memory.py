"""Leases and checkpoints in this process's memory: for tests, and for hosts that share one process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.model.clock import Clock
from tidegate.processor.checkpoint import ProcessorCheckpoint, decide_move
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot
from tidegate.processor.stores import lease_changes
from tidegate.transport.clock import SystemClock


@dataclass(slots=True)
class _Group:
    leases: dict[str, Lease] = field(default_factory=dict)
    checkpoints: dict[str, ProcessorCheckpoint] = field(default_factory=dict)
    checkpoint_epochs: dict[str, int] = field(default_factory=dict)
    """The highest epoch that has moved each checkpoint."""


class MemoryStore:
    """``ProcessorStore`` in memory. Thread-safe: give the same object to every host."""

    def __init__(self, clock: Clock | None = None, *, has_epochs: bool = True) -> None:
        """clock: None uses the machine's.

        has_epochs: False behaves as a store shared with official processors: all epochs are 0.
        """
        self._clock: Clock = SystemClock() if clock is None else clock
        self.has_epochs: bool = has_epochs
        """Whether acquiring raises the epoch."""
        self._groups: dict[GroupKey, _Group] = {}
        self._lock = threading.Lock()
        """Held for each operation, and never across an await."""

    def __repr__(self) -> str:
        leases = sum(len(group.leases) for group in self._groups.values())
        return f"<MemoryStore groups={len(self._groups)} leases={leases}>"

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the store's time."""
        with self._lock:
            return LeaseSnapshot(dict(self._group(group).leases), self._clock.now_utc())

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """See ``LeaseManager``."""
        with self._lock:
            stored = self._group(group)
            leases, current = stored.leases, stored.leases.get(partition_id)
            known = (0 if current is None else current.epoch, stored.checkpoint_epochs.get(partition_id, 0))
            epoch = max(known) + 1 if self.has_epochs else 0
            now = self._clock.now_utc()
            return lease_changes.acquire(leases, partition_id, owner, expected=expected, epoch=epoch, now=now)

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        """See ``LeaseManager``."""
        with self._lock:
            now = self._clock.now_utc()
            lease_changes.request(self._group(group).leases, lease, requester, now=now)

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """See ``LeaseManager``."""
        with self._lock:
            return lease_changes.change(self._group(group).leases, leases, now=self._clock.now_utc())

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """See ``LeaseManager``."""
        with self._lock:
            now = self._clock.now_utc()
            lease_changes.change(self._group(group).leases, leases, now=now, is_released=True)

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        """See ``CheckpointManager``."""
        with self._lock:
            epochs = self._group(group).checkpoint_epochs
            epoch = max(lease.epoch, epochs.get(lease.partition_id, 0) + 1)
            epochs[lease.partition_id] = epoch
            return epoch

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
        """See ``CheckpointManager``."""
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

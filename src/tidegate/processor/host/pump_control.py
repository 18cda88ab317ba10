"""Starts and stops a host's pumps: side by side, but for one partition one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import Lease
from tidegate.transport.tasks import TaskOwner


class PartitionPumps(Protocol):
    """What reads the partitions of a host: one pump for each lease it holds.

    For one partition the calls never overlap: ``start_pump`` comes only when the last ``stop_pump`` has
    returned. They should not raise; what they raise is reported, and only that partition is affected.
    """

    async def start_pump(self, lease: Lease) -> None:
        """Begin to process the partition under ``lease``; returns at once, when the pump's task runs."""
        ...

    async def stop_pump(self, partition_id: str, reason: CloseReason) -> None:
        """End the partition's pump; returns when the handler's last call has ended.

        One that has no pump (any more) is no error.
        """
        ...

    def lease_renewed(self, lease: Lease) -> None:
        """The lease of a running pump, with its new version and time; the epoch is the same."""
        ...


class PumpControl:
    """Starts and stops ``PartitionPumps`` for the partition manager, without making it wait."""

    def __init__(
        self,
        pumps: PartitionPumps,
        *,
        on_exception: Callable[[Exception, str | None], None],
        on_start_failed: Callable[[str], None],
    ) -> None:
        """on_start_failed: called with the partition whose pump did not start, after ``on_exception``."""
        self._pumps = pumps
        self._on_exception = on_exception
        self._on_start_failed = on_start_failed
        self._tasks = TaskOwner("pump control")
        self._started: dict[str, asyncio.Task[None]] = {}
        """By partition: the task that starts its pump, ended or not."""
        self._stopping: dict[str, asyncio.Task[None]] = {}

    @property
    def partition_ids(self) -> set[str]:
        """Partitions that have a pump, even one that is only being started or stopped."""
        return {*self._started, *self._stopping}

    def start(self, lease: Lease) -> None:
        """Start the partition's pump; there must be none, not even one that is being stopped."""
        partition_id = lease.partition_id
        assert partition_id not in self.partition_ids, f"partition {partition_id} has a pump already"
        self._started[partition_id] = self._tasks.start(self._start(lease), name=f"start {partition_id}")

    def stop(self, partition_id: str, reason: CloseReason) -> None:
        """Begin to stop the partition's pump; one that is being stopped already keeps its first reason."""
        started = self._started.pop(partition_id, None)
        if started is not None:
            task = self._tasks.start(self._stop(partition_id, started, reason), name=f"stop {partition_id}")
            self._stopping[partition_id] = task

    def lease_renewed(self, lease: Lease) -> None:
        """Pass a renewed lease on, where the pump runs."""
        started = self._started.get(lease.partition_id)
        if started is None or not started.done():
            return
        try:
            self._pumps.lease_renewed(lease)
        except Exception as exc:  # a failure of one partition only
            self._on_exception(exc, lease.partition_id)

    async def wait_stopped(self) -> None:
        """Wait until nothing is being stopped any more. Cancellation: stopping continues."""
        while self._stopping:
            await asyncio.wait(list(self._stopping.values()))

    async def close(self) -> None:
        """End the tasks that are left; after ``wait_stopped`` there are none."""
        await self._tasks.close()

    async def _start(self, lease: Lease) -> None:
        try:
            await self._pumps.start_pump(lease)
        except Exception as exc:  # as above
            self._on_exception(exc, lease.partition_id)
            if self._started.pop(lease.partition_id, None) is not None:
                self._on_start_failed(lease.partition_id)

    async def _stop(self, partition_id: str, started: asyncio.Task[None], reason: CloseReason) -> None:
        try:
            await asyncio.wait([started])
            await self._pumps.stop_pump(partition_id, reason)
        except Exception as exc:  # as above
            self._on_exception(exc, partition_id)
        finally:
            del self._stopping[partition_id]

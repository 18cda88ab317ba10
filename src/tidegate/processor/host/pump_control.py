"""Starts and stops a host's pumps without waiting: concurrently, but in sequence for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import Lease
from tidegate.processor.pump.pump import PartitionPump
from tidegate.transport.tasks import TaskOwner


class PumpControl:
    """A host's pumps, one for each lease that it holds. An error in one affects only its partition."""

    def __init__(
        self,
        make_pump: Callable[[Lease], PartitionPump],
        *,
        on_exception: Callable[[Exception, str | None], None],
        on_start_failed: Callable[[str], None],
    ) -> None:
        """on_start_failed: called after ``on_exception`` with the partition whose pump did not start."""
        self.pumps: dict[str, PartitionPump] = {}
        """By partition, even if it is being stopped."""
        self._make_pump = make_pump
        self._on_exception = on_exception
        self._on_start_failed = on_start_failed
        self._tasks = TaskOwner("pump control")
        self._stopping: dict[str, asyncio.Task[None]] = {}

    def start(self, lease: Lease) -> None:
        """Start the partition's pump; there must be none, not even one being stopped."""
        partition_id = lease.partition_id
        assert partition_id not in self.pumps, f"partition {partition_id} has a pump already"
        try:
            pump = self._make_pump(lease)
            pump.start()
        except Exception as exc:  # a failure of one partition only
            self._on_exception(exc, partition_id)
            self._on_start_failed(partition_id)
        else:
            self.pumps[partition_id] = pump

    def stop(self, partition_id: str, reason: CloseReason) -> None:
        """Begin stopping the partition's pump; one already being stopped keeps its first reason."""
        if partition_id in self.pumps and partition_id not in self._stopping:
            task = self._tasks.start(self._stop(partition_id, reason), name=f"stop {partition_id}")
            self._stopping[partition_id] = task

    def lease_renewed(self, lease: Lease) -> None:
        """Pass a renewed lease to the pump, if it runs."""
        pump = self.pumps.get(lease.partition_id)
        if pump is not None and lease.partition_id not in self._stopping:
            pump.renew_lease(lease)

    async def stopped(self, partition_id: str) -> None:
        """Wait until the partition has no pump that is being stopped. Cancellation: stopping continues."""
        task = self._stopping.get(partition_id)
        if task is not None:
            await asyncio.wait([task])

    async def wait_stopped(self) -> None:
        """Wait until no pump is being stopped. Cancellation: stopping continues."""
        while self._stopping:
            await asyncio.wait(list(self._stopping.values()))

    async def close(self) -> None:
        """Cancel the remaining tasks; there are none after ``wait_stopped``."""
        await self._tasks.close()

    async def _stop(self, partition_id: str, reason: CloseReason) -> None:
        try:
            await self.pumps[partition_id].stop(reason)
        except Exception as exc:  # as above
            self._on_exception(exc, partition_id)
        finally:
            del self._stopping[partition_id], self.pumps[partition_id]

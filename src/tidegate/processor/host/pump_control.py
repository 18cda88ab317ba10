"""Starts and stops a host's pumps: stops concurrently, but in sequence for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import Lease
from tidegate.transport.tasks import TaskOwner


class PartitionPumps(Protocol):
    """The pumps of a host, one for each lease that it holds.

    Calls for one partition never overlap: ``start_pump`` is called after the last ``stop_pump`` has returned.
    They should not raise; an error is reported, and affects only that partition.
    """

    def start_pump(self, lease: Lease) -> None:
        """Start processing the partition under ``lease``; returns without waiting."""
        ...

    async def stop_pump(self, partition_id: str, reason: CloseReason) -> None:
        """Stop the partition's pump, if it has one; returns when the handler's last call has ended."""
        ...

    def lease_renewed(self, lease: Lease) -> None:
        """Pass a running pump its lease's new version and time; the epoch is unchanged."""
        ...


class PumpControl:
    """Starts and stops ``PartitionPumps`` without making the partition manager wait."""

    def __init__(
        self,
        pumps: PartitionPumps,
        *,
        on_exception: Callable[[Exception, str | None], None],
        on_start_failed: Callable[[str], None],
    ) -> None:
        """on_start_failed: called after ``on_exception`` with the partition whose pump did not start."""
        self._pumps = pumps
        self._on_exception = on_exception
        self._on_start_failed = on_start_failed
        self._tasks = TaskOwner("pump control")
        self._running: set[str] = set()
        self._stopping: dict[str, asyncio.Task[None]] = {}

    @property
    def partition_ids(self) -> set[str]:
        """Partitions with a pump, even if it is being stopped."""
        return {*self._running, *self._stopping}

    def start(self, lease: Lease) -> None:
        """Start the partition's pump; there must be none, not even one being stopped."""
        partition_id = lease.partition_id
        assert partition_id not in self.partition_ids, f"partition {partition_id} has a pump already"
        try:
            self._pumps.start_pump(lease)
        except Exception as exc:  # a failure of one partition only
            self._on_exception(exc, partition_id)
            self._on_start_failed(partition_id)
        else:
            self._running.add(partition_id)

    def stop(self, partition_id: str, reason: CloseReason) -> None:
        """Begin stopping the partition's pump; one already being stopped keeps its first reason."""
        if partition_id in self._running:
            self._running.remove(partition_id)
            task = self._tasks.start(self._stop(partition_id, reason), name=f"stop {partition_id}")
            self._stopping[partition_id] = task

    def lease_renewed(self, lease: Lease) -> None:
        """Pass a renewed lease to the pump, if it runs."""
        if lease.partition_id not in self._running:
            return
        try:
            self._pumps.lease_renewed(lease)
        except Exception as exc:  # as above
            self._on_exception(exc, lease.partition_id)

    async def wait_stopped(self) -> None:
        """Wait until no pump is being stopped. Cancellation: stopping continues."""
        while self._stopping:
            await asyncio.wait(list(self._stopping.values()))

    async def close(self) -> None:
        """Cancel the remaining tasks; there are none after ``wait_stopped``."""
        await self._tasks.close()

    async def _stop(self, partition_id: str, reason: CloseReason) -> None:
        try:
            await self._pumps.stop_pump(partition_id, reason)
        except Exception as exc:  # as above
            self._on_exception(exc, partition_id)
        finally:
            del self._stopping[partition_id]

"""Holds a host's leases: renews them, shares partitions out with the other hosts, starts and stops pumps.

What to acquire or steal is decided by ``balancer.decide_balance``; this module performs it.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from tidegate.model.clock import Clock
from tidegate.processor.handlers import CloseReason
from tidegate.processor.lease import GroupKey, Lease, LeaseStore
from tidegate.processor.options import PartitionManagerOptions


class PartitionPumps(Protocol):
    """What reads the partitions of a host: one pump for each lease it holds.

    For one partition the calls never overlap: ``start_pump`` comes only when the last ``stop_pump`` has
    returned. They raise nothing that is meant; what they raise is reported and costs only that partition.
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


class PartitionManager:
    """Takes a host's fair share of the partitions, and keeps it."""

    def __init__(
        self,
        *,
        group: GroupKey,
        store: LeaseStore,
        owner: str,
        partition_ids: Sequence[str],
        options: PartitionManagerOptions,
        clock: Clock,
        random: random_module.Random,
        pumps: PartitionPumps,
        on_exception: Callable[[Exception, str | None], None],
    ) -> None:
        """owner: the host's name, unique in the group. on_exception: told (error, partition id or None)."""
        self._leases: dict[str, Lease] = {}

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The leases that are held now, by partition id, as last renewed: a live view."""
        return MappingProxyType(self._leases)

    async def run(self) -> None:
        """Hold leases until cancelled. Afterwards call ``close``: cancelling alone releases nothing."""
        raise NotImplementedError

    async def reacquire(self, partition_id: str) -> Lease | None:
        """Take a lease that is held already anew, with the next epoch, and return it.

        The pump is not touched: its owner has ended it and starts it again with what is returned.

        Returns None where the partition is not held (any more).
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Stop all pumps with SHUTDOWN, side by side; then release all leases in one call. Idempotent.

        Cancellation: the leases are released by a second call, or run out.
        """
        raise NotImplementedError

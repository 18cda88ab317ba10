"""Reports of a host to the service: which partitions it owns, and their checkpoints.

A store may be anywhere, but owners and lag of all groups are looked for in the service: in ``/metrics``,
``tidegate lag`` and the console. Only names and numbers are sent, never where the store is; Azure gets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from tidegate.client import EventHubConsumer
from tidegate.model.errors import InvalidArgumentError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.pump.shared_reads import CheckpointReads

_LAST_S: Final = 1.0
"""A host that ends waits so long to report it (our choice): its leases are released already."""

_logger = logging.getLogger(__name__)


class ServiceReports:
    """The reports of one registration of a host."""

    def __init__(
        self,
        host_name: str,
        consumer: EventHubConsumer,
        checkpoints: CheckpointReads,
        owned: Callable[[], Collection[str]],
        created_at_ms: Callable[[], int],
        *,
        interval_s: float,
    ) -> None:
        """checkpoints: of the group. owned: the partitions that the host owns now. created_at_ms: the hub's
        creation, which changes if it is created again; checkpoints of an earlier one are not reported."""
        self._host_name = host_name
        self._consumer = consumer
        self._checkpoints = checkpoints
        self._owned = owned
        self._created_at_ms = created_at_ms
        self._interval_s = interval_s
        self._reported: set[str] = set()
        """Partitions that it has reported as its own."""

    async def run(self) -> None:
        """Report every ``interval_s``; returns if the service knows no reports."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._report()
            except InvalidArgumentError as error:
                _logger.info("The service takes no reports of host %s: %s", self._host_name, error)
                return
            except Exception as error:  # a store may be a user's code; the pumps report what is wrong with it
                _logger.debug("A report of host %s failed: %r", self._host_name, error)

    async def end(self) -> None:
        """Report the partitions that the host has released, with their last checkpoints, unless that takes
        longer than a report may."""
        with contextlib.suppress(Exception):  # as in ``run``
            async with asyncio.timeout(_LAST_S):
                checkpoints = await self._checkpoints.read() if self._reported else {}
                numbers = {each: self._number(checkpoints, each) for each in sorted(self._reported)}
                await self._consumer.report(self._host_name, numbers, released=sorted(self._reported))

    async def _report(self) -> None:
        owned = sorted(self._owned())
        checkpoints = await self._checkpoints.read() if owned else {}
        numbers = {each: self._number(checkpoints, each) for each in owned}
        lost = sorted(self._reported.difference(owned))
        self._reported.update(owned)
        await self._consumer.report(self._host_name, numbers, released=lost)
        self._reported.difference_update(lost)

    def _number(self, checkpoints: Mapping[str, ProcessorCheckpoint], partition_id: str) -> int | None:
        found = checkpoints.get(partition_id)
        if found is None or found.event_hub_created_at_ms not in (None, self._created_at_ms()):
            return None
        return found.sequence_number

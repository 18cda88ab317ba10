"""Whether the event loop can turn while a list of partitions is made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidegate.broker import Partition
from tidegate.model.hub_properties import PartitionEnds
from tidegate.transport.sliced_work import SlicedWork


def partition_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each partition that is looked at from now on, the number of the loop's turn; a slice holds one."""
    ends, seen, turns = Partition.ends, list[int](), 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    async def noted(partition: Partition) -> PartitionEnds:
        seen.append(turns)
        asyncio.get_running_loop().call_soon(turn)
        return await ends(partition)

    async def collect(self: SlicedWork, items: Iterator[object], *, address: object = None) -> list[object]:
        found = []
        for item in items:
            found.append(item)
            await asyncio.sleep(0)
        return found

    monkeypatch.setattr(Partition, "ends", noted)
    monkeypatch.setattr(SlicedWork, "collect", collect)
    return seen

"""Long lists: of partitions, each takes some 30 microseconds in an answer, and with 100 histories 300.

The rule: a row is encoded in the slice that makes it. All rows in one step took 0.1 to 0.3 s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from tidegate.broker import EventHub, Partition, current_actor
from tidegate.transport.at_once import at_once
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork

T = TypeVar("T")

ROW_BYTES: Final = 1024
_HISTORY_BYTES: Final = 100
"""Approximate memory of a row, and of each history in it, until the answer is made (measured: 0.6 KB, and 46
to 82 bytes)."""


def partition_rows_bytes(event_hub: EventHub) -> int:
    """Approximate memory of the rows of all partitions."""
    known = (partition.known_bounds for partition in event_hub.partitions)
    return sum(ROW_BYTES + _HISTORY_BYTES * len(each.histories) if each else ROW_BYTES for each in known)


async def each_partition(
    event_hub: EventHub, row: Callable[[Partition], Coroutine[Any, Any, T]], sliced_work: SlicedWork
) -> list[T]:
    """``row`` of each partition, in order, in slices on behalf of the actor's address. Raises what it raises.

    row: should hardly ever wait. Cancellation: no effect.
    """
    rows = (at_once(row(partition)) for partition in event_hub.partitions)
    found: list[T | Awaitable[T]] = await in_slices(rows, sliced_work)
    return [await each if isinstance(each, Awaitable) else each for each in found]


async def in_slices(rows: Iterator[T | None], sliced_work: SlicedWork) -> list[T]:
    """All rows but None, in slices on behalf of the actor's address. There a policy has one list at a time,
    however many requests it sends, and with which others. Cancellation: no effect."""
    actor = current_actor()
    address = site_at(actor.peer.address)
    # One of several policies: twelve have 4,095 combinations.
    policy = min(((grant.scope, grant.policy_name) for grant in actor.grants), default=None)
    async with nullcontext() if policy is None else sliced_work.alone((policy, address)):
        return await sliced_work.collect(rows, address=address)

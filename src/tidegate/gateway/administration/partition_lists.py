"""Long lists: of partitions, each takes some 30 microseconds in an answer, and with 100 histories 300.

The rule: a row is encoded in the slice that makes it. All rows in one step took 0.1 to 0.3 s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from tidegate.amqp.types import Encoded
from tidegate.broker import EventHub, Partition, current_actor
from tidegate.transport.at_once import at_once
from tidegate.transport.counted_body import CountedBody, counted
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork

T = TypeVar("T")

ROW_BYTES: Final = 128
"""Of a row, besides its encoded bytes (CPython 3.11)."""


async def each_partition(
    event_hub: EventHub, row: Callable[[Partition], Coroutine[Any, Any, T]], sliced_work: SlicedWork
) -> list[T]:
    """``row`` of each partition, in order; otherwise as ``in_slices``. Raises what it raises as well.

    row: should hardly ever wait.
    """
    rows = (at_once(row(partition)) for partition in event_hub.partitions)
    with counted(_no_body, sliced_work.budget, address=_site_of_actor()) as held:
        found: list[T | Awaitable[T]] = await _collected(rows, sliced_work, held)
        return [await each if isinstance(each, Awaitable) else each for each in found]


async def in_slices(rows: Iterator[T | None], sliced_work: SlicedWork) -> list[T]:
    """All rows but None, in slices on behalf of the actor's address. There a policy has one list at a time,
    however many requests it sends, and with which others. Until the list is whole, its rows count in the
    memory for clients. Cancellation: no effect.

    Raises ServerBusyError if that memory is exhausted and this list holds most.
    """
    with counted(_no_body, sliced_work.budget, address=_site_of_actor()) as held:
        return await _collected(rows, sliced_work, held)


async def _collected(rows: Iterator[T | None], sliced_work: SlicedWork, held: CountedBody) -> list[T]:
    actor, address = current_actor(), _site_of_actor()
    # One of several policies: twelve have 4,095 combinations. Tokens for hubs have a list apart from the
    # key's own, all of one policy together: names of hubs are free.
    policy = min(((each.scope, each.policy_name, bool(each.hub)) for each in actor.grants), default=None)
    async with nullcontext() if policy is None else sliced_work.alone((policy, address)):
        return await sliced_work.collect(_each_counted(rows, held), address=address)


def _each_counted(rows: Iterator[T], held: CountedBody) -> Iterator[T]:
    for row in rows:
        if row is not None:
            data = row.data if isinstance(row, Encoded) else row
            held.add(ROW_BYTES + (len(data) if isinstance(data, bytes) else 0))
        yield row


def _site_of_actor() -> tuple[int, int] | None:
    return site_at(current_actor().peer.address)


async def _no_body() -> dict[str, object]:
    raise AssertionError("only what is added counts")

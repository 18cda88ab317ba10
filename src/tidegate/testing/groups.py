"""Consumer groups for the conformance suites, and what these share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

from tidegate.model.errors import TidegateError
from tidegate.processor.checkpoint import CheckpointManager, ProcessorCheckpoint
from tidegate.processor.lease import GroupKey

T = TypeVar("T")

HOSTS: Final = 8
"""How many hosts race for a partition."""


class Suite:
    """What the suites of leases and of checkpoints share."""

    has_lease_epochs: bool | None = None
    """Whether leases have epochs that rise and fence; None: as the store's ``has_epochs`` says."""
    has_namespaces: bool = True
    """False: a location holds one namespace, and a store refuses a second one with InvalidArgumentError."""

    def are_epochs_kept(self, store: object) -> bool:
        """Whether leases have epochs in this store."""
        has_epochs: bool = getattr(store, "has_epochs", True)
        return has_epochs if self.has_lease_epochs is None else self.has_lease_epochs


def make_group() -> GroupKey:
    """A new consumer group, with as awkward a name as Event Hubs allows."""
    return GroupKey("Name-1.servicebus.windows.net", f"Hub.{uuid.uuid4().hex[:12]}_x", "$Default")


@asynccontextmanager
async def open_group(make: Callable[[], Awaitable[T]]) -> AsyncIterator[tuple[GroupKey, T, T]]:
    """An unused consumer group, and two stores on one location, as two hosts have them."""
    async with AsyncExitStack() as stack:
        stores = [await make() for _ in range(2)]
        for store in {id(store): store for store in stores}.values():
            close = getattr(store, "close", None)
            if close is not None:
                stack.push_async_callback(close)
        yield make_group(), stores[0], stores[1]


def other_groups(group: GroupKey) -> tuple[GroupKey, list[GroupKey], GroupKey]:
    """One of another namespace, others of this one, and the group in another spelling."""
    elsewhere = replace(group, namespace="other.servicebus.windows.net", authority="")
    others = [
        replace(group, event_hub=group.event_hub + "-2"),
        replace(group, consumer_group="$Default2"),
    ]
    return (
        elsewhere,
        others,
        GroupKey(*map(str.upper, (group.namespace, group.event_hub, group.consumer_group))),
    )


def checkpoint_at(partition_id: str, sequence_number: int) -> ProcessorCheckpoint:
    """With an offset and a time that go with the number."""
    offset = str(sequence_number * 100) if sequence_number >= 0 else None
    return ProcessorCheckpoint(partition_id, sequence_number, offset, 1_700_000_000_000 + sequence_number)


async def position_of(store: CheckpointManager, group: GroupKey) -> int | None:
    """Where the checkpoint of partition 0 stands."""
    return (await store.list_checkpoints(group))["0"].sequence_number


async def is_refused(call: Awaitable[object], kind: type[TidegateError]) -> bool:
    """Whether a call raises that error."""
    try:
        await call
    except kind:
        return True
    return False

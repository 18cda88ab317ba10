"""Our hosts and the official processor in one consumer group, with the official blob store on Azurite."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from tests.interop.support import SdkTarget, target_of
from tests.needs import ci_has
from tests.support.blob_storage import BlobStorage

from tidegate.client import EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor import (
    EventProcessorHost,
    EventProcessorOptions,
    GroupKey,
    PartitionContext,
    PartitionManagerOptions,
)
from tidegate.processor.stores.blob import BlobStore
from tidegate.testing.hub import HubService

PARTITIONS = [str(number) for number in range(8)]
WAIT_S = 60.0
"""Longest wait for something that must happen; reached only when a test fails."""
_SPAWN = multiprocessing.get_context("spawn")
_INTERVAL_S = 0.5
_LEASE_S = 6.0
"""The same for both sides, and well above the whole second in which Blob Storage tells the time."""

pytestmark = [
    pytest.mark.programs,
    ci_has("blob_storage", "tidegate", "azurite"),
    # On a loaded machine an official processor may leave sockets when it is closed (azure-eventhub 5.15.1).
    # They are asyncio's streams, as the warnings say, and ours opens none through those.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Journal:
    """Who processed what, and whether anything was left out or came out of order.

    Events of a partition are numbered from 0. One may come again when its partition changes hands; one that
    comes for the first time must be the next.
    """

    def __init__(self) -> None:
        self.next: dict[str, int] = dict.fromkeys(PARTITIONS, 0)
        """By partition, the first event that nobody has processed."""
        self.calls: list[tuple[str, str, list[int]]] = []
        """(who, partition id, sequence numbers), in order."""
        self.faults: list[str] = []

    def note(self, who: str, partition_id: str, numbers: Sequence[int]) -> None:
        """Write a call down."""
        self.calls.append((who, partition_id, list(numbers)))
        for number in numbers:
            if number > self.next[partition_id]:
                self.faults.append(
                    f"{who} came to {number} of {partition_id} before {self.next[partition_id]}"
                )
            self.next[partition_id] = max(self.next[partition_id], number + 1)
        if any(second != first + 1 for first, second in itertools.pairwise(numbers)):
            self.faults.append(f"{who} was given {numbers} of {partition_id}")

    def processed_by(self, who: str) -> set[tuple[str, int]]:
        """The events that one processor was given."""
        return {
            (partition, number) for one, partition, numbers in self.calls if one == who for number in numbers
        }

    @property
    def count(self) -> int:
        """Calls so far."""
        return len(self.calls)


@dataclass(frozen=True)
class Place:
    """Where both sides find each other; can be sent to another process."""

    hub: str
    hub_connection_string: str
    target: SdkTarget
    storage_connection_string: str
    container: str


class Surroundings:
    """One hub, one container, one consumer group, and what was processed there in this process."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.journal = Journal()
        address = ConnectionString.parse(place.target.connection_string)
        self.namespace = f"{address.host}:{address.port}"
        """As the official Python package takes it from the connection string: with the port."""
        self.sent = 0

    def open_store(self) -> BlobStore:
        """Our store in the container."""
        return BlobStore.from_connection_string(self.place.storage_connection_string, self.place.container)

    @contextlib.asynccontextmanager
    async def official_processor(self, who: str) -> AsyncIterator[None]:
        """The official ``EventHubConsumerClient`` with load balancing; its owner id is of its own making."""
        store = BlobCheckpointStore.from_connection_string(
            self.place.storage_connection_string, self.place.container
        )
        client = self.place.target.async_consumer(
            self.place.hub,
            checkpoint_store=store,
            load_balancing_interval=_INTERVAL_S,
            partition_ownership_expiration_interval=_LEASE_S,
        )

        async def process(context: Any, events: Sequence[Any]) -> None:
            if events:
                self.journal.note(who, context.partition_id, [event.sequence_number for event in events])
                await context.update_checkpoint(events[-1])

        async with store, asyncio.TaskGroup() as group:
            group.create_task(
                client.receive_batch(process, max_batch_size=50, max_wait_time=0.1, starting_position="-1")
            )
            try:
                yield
            finally:
                await client.close()

    @contextlib.asynccontextmanager
    async def our_host(self, who: str) -> AsyncIterator[EventProcessorHost]:
        """An ``EventProcessorHost`` that checkpoints each of its calls."""
        store = self.open_store()

        async def process(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
            self.journal.note(who, context.partition_id, [event.sequence_number for event in events])
            await context.checkpoint()

        host = EventProcessorHost(
            who,
            connection_string=self.place.hub_connection_string,
            store=store,
            options=EventProcessorOptions(max_batch_size=50, receive_timeout_s=0.2, close_timeout_s=5),
            manager_options=PartitionManagerOptions(lease_duration_s=_LEASE_S, renew_interval_s=_INTERVAL_S),
        )
        async with host.running(process):
            yield host
        await store.close()

    async def publish(self, count: int) -> None:
        """Send so many events to each partition."""
        async with EventHubProducer.from_connection_string(self.place.hub_connection_string) as producer:
            for partition in PARTITIONS:
                events = [EventData(b"%d" % number) for number in range(self.sent, self.sent + count)]
                await producer.send(events, partition_id=partition)
        self.sent += count

    async def process_round(self, count: int) -> dict[str, set[str]]:
        """Publish, and wait until all is processed; returns which partitions each processor was given."""
        before = self.journal.count
        await self.publish(count)
        await self.wait_processed()
        given: dict[str, set[str]] = {}
        for who, partition, _ in self.journal.calls[before:]:
            given.setdefault(who, set()).add(partition)
        return given

    async def owners(self) -> dict[str, list[str]]:
        """By owner, the partitions it has now."""
        store = self.open_store()
        try:
            leases = (await store.list_leases(self._group())).leases
        finally:
            await store.close()
        owned: dict[str, list[str]] = {}
        for partition, lease in leases.items():
            owned.setdefault(lease.owner, []).append(partition)
        return owned

    async def checkpoints(self) -> dict[str, int]:
        """By partition, the last processed event as the container has it."""
        store = self.open_store()
        try:
            kept = await store.list_checkpoints(self._group())
        finally:
            await store.close()
        return {
            partition: checkpoint.sequence_number
            for partition, checkpoint in kept.items()
            if checkpoint.sequence_number is not None
        }

    async def wait_processed(self) -> None:
        """Until everything that was sent is processed by somebody."""
        await until(lambda: set(self.journal.next.values()) == {self.sent}, self.journal)

    async def wait_checkpoints(self) -> None:
        """Until everything that was sent lies behind the checkpoints."""
        async with asyncio.timeout(WAIT_S):
            # The container tells nobody that it has changed.
            # Of every partition: one that has no checkpoint yet would be read again by the next processor.
            wanted = dict.fromkeys(PARTITIONS, self.sent - 1)
            while await self.checkpoints() != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def wait_renewals(self) -> None:
        """Until every lease has been renewed, or has changed hands."""
        store = self.open_store()
        try:
            old = (await store.list_leases(self._group())).leases
            async with asyncio.timeout(WAIT_S):
                # The container tells nobody that it has changed.
                while old.items() & (await store.list_leases(self._group())).leases.items():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await store.close()

    def _group(self) -> GroupKey:
        return GroupKey(self.namespace, self.place.hub, "$Default")


async def until(is_reached: Callable[[], bool], journal: Journal) -> None:
    """Wait for a condition; fails with what was seen where it never holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not is_reached():  # noqa: ASYNC110 (the official client tells nobody how far it is)
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"after {WAIT_S:g} s: next {journal.next}, faults {journal.faults}")


@pytest.fixture
def transport() -> str:
    """How the official processor reaches the service; our host does without TLS."""
    return "plain"


@pytest.fixture
def surroundings(
    hub_service: HubService, blob_storage: BlobStorage, transport: str
) -> Iterator[Surroundings]:
    """A new hub with eight partitions and a new container."""
    hub = hub_service.create_hub(partition_count=len(PARTITIONS))
    yield Surroundings(
        Place(
            hub,
            hub_service.hub_connection_string(hub),
            target_of(hub_service, transport),
            blob_storage.connection_string(),
            blob_storage.create_container(),
        )
    )
    gc.collect()  # what the official client left is named here, not in a test of another file


async def _run_for_ever(place: Place, side: str) -> None:
    surroundings = Surroundings(place)
    processor = surroundings.official_processor if side == "official" else surroundings.our_host
    async with processor("dead"):
        await asyncio.Event().wait()


def _process_for_ever(place: Place, side: str) -> None:
    asyncio.run(_run_for_ever(place, side))


async def test_both_sides_share_the_partitions(surroundings: Surroundings) -> None:
    """Two official processors and two hosts: two partitions each, everything processed, in order."""
    await surroundings.publish(40)
    async with (
        surroundings.official_processor("official-1"),
        surroundings.our_host("host-1"),
        surroundings.official_processor("official-2"),
        surroundings.our_host("host-2"),
    ):
        split: dict[str, set[str]] = {}
        async with asyncio.timeout(WAIT_S):
            while sorted(map(len, split.values())) != [2, 2, 2, 2]:
                # Partitions change hands with events under way.
                split = await surroundings.process_round(10)
        assert sorted(split) == sorted(["official-1", "official-2", "host-1", "host-2"])
        for _ in range(3):
            await surroundings.wait_renewals()
            assert await surroundings.process_round(100) == split
        await surroundings.wait_checkpoints()
    assert not surroundings.journal.faults


# TLS is by another name, and at another port.
@pytest.mark.parametrize("transport", [pytest.param("plain", marks=pytest.mark.repeats), "tls"])
async def test_each_side_goes_on_from_the_others_checkpoints(surroundings: Surroundings) -> None:
    """The official processor, then ours, then the official one: nothing is lost, nothing comes twice."""
    for number, side in enumerate(("official", "ours", "official", "ours")):
        who = f"{side}-{number}"
        before = surroundings.sent
        await surroundings.publish(30)
        processor = surroundings.official_processor if side == "official" else surroundings.our_host
        async with processor(who):
            await surroundings.wait_processed()
            await surroundings.wait_checkpoints()
        assert surroundings.journal.processed_by(who) == {
            (partition, one) for partition in PARTITIONS for one in range(before, surroundings.sent)
        }
        # The official one may claim a partition once more while it closes (azure-eventhub 5.15.1).
        if side == "ours":
            assert set(await surroundings.owners()) <= {""}, "a lease was not released"
    assert not surroundings.journal.faults


@pytest.mark.parametrize("side", ["official", "ours"])
async def test_a_killed_processor_is_taken_over_by_the_other_side(
    surroundings: Surroundings, side: str
) -> None:
    """Its leases run out by the storage's clock; the other side goes on right behind its checkpoints."""
    await surroundings.publish(200)
    dead = _SPAWN.Process(target=_process_for_ever, args=(surroundings.place, side))
    dead.start()
    try:
        async with asyncio.timeout(WAIT_S):
            while len(await surroundings.checkpoints()) < len(PARTITIONS):  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.02)
    finally:
        assert dead.pid is not None
        os.kill(dead.pid, signal.SIGKILL)
        dead.join(WAIT_S)
    assert "" not in await surroundings.owners(), "it had time to release a lease"
    journal = surroundings.journal
    journal.next = {partition: last + 1 for partition, last in (await surroundings.checkpoints()).items()}
    begin = dict(journal.next)
    processor = surroundings.our_host if side == "official" else surroundings.official_processor
    async with processor("heir"):
        await surroundings.publish(10)
        await surroundings.wait_processed()
    assert not journal.faults
    assert journal.processed_by("heir") == {
        (partition, one) for partition in PARTITIONS for one in range(begin[partition], surroundings.sent)
    }

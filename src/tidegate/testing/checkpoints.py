"""The conformance suite of checkpoint managers; run as ``tidegate.testing.stores`` says."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from dataclasses import replace

from tidegate.model.errors import EventHubReplacedError, FencedError
from tidegate.processor.checkpoint import CheckpointManager, ProcessorCheckpoint
from tidegate.processor.lease import GroupKey, Lease
from tidegate.testing.groups import (
    HOSTS,
    Suite,
    checkpoint_at,
    is_refused,
    open_group,
    other_groups,
    position_of,
)
from tidegate.transport.clock import SystemClock


class CheckpointManagerConformance(Suite, ABC):
    """Checkpoints: kept as given, forward only, fenced by epoch."""

    has_checkpoint_epochs: bool = True
    """False: ``create_checkpoint`` refuses no earlier owner, as in the official layout."""

    @abstractmethod
    async def make_store(self) -> CheckpointManager:
        """As ``LeaseManagerConformance.make_store``."""

    async def own(
        self, store: CheckpointManager, group: GroupKey, owner: str, *, partition_id: str = "0"
    ) -> Lease:
        """The lease of the partition's next owner, with the epoch under which it moves the checkpoint."""
        now = SystemClock().now_utc()
        lease = Lease(partition_id, owner, 0, now, now, "1")
        return replace(lease, epoch=await store.create_checkpoint(group, lease))

    def is_fenced(self, store: object) -> bool:
        """Whether ``store`` refuses an earlier owner."""
        return self.has_checkpoint_epochs

    async def test_one_epoch_has_one_owner(self) -> None:
        """Hosts that open a partition simultaneously get different epochs, above that of each lease; only
        the last one may move the checkpoint, which has no position until then."""
        async with open_group(self.make_store) as (group, *stores):
            now = SystemClock().now_utc()
            leases = [Lease("0", f"host-{host}", host % 3, now, now, "1") for host in range(HOSTS)]
            epochs = await asyncio.gather(
                *(stores[host % 2].create_checkpoint(group, lease) for host, lease in enumerate(leases))
            )
            assert all(epoch >= lease.epoch for epoch, lease in zip(epochs, leases, strict=True))
            assert dict(await stores[0].list_checkpoints(group)) == {}
            if not self.has_checkpoint_epochs:
                return
            assert len(set(epochs)) == HOSTS
            for host, lease in enumerate(leases):
                owner = replace(lease, epoch=epochs[host])
                moved = stores[host % 2].update_checkpoint(group, checkpoint_at("0", 5), lease=owner)
                assert await is_refused(moved, FencedError) == (epochs[host] < max(epochs))
            far = replace(leases[0], epoch=max(epochs) + 7)
            assert await stores[0].create_checkpoint(group, far) == far.epoch
            assert await stores[1].create_checkpoint(group, leases[0]) == far.epoch + 1
            assert await position_of(stores[0], group) == 5
            late = stores[0].update_checkpoint(group, checkpoint_at("0", 6), lease=far)
            assert await is_refused(late, FencedError)

    async def test_checkpoints_of_groups_do_not_meet(self) -> None:
        """As leases: different spellings of a name are one group, different names are not."""
        async with open_group(self.make_store) as (group, store, other):
            elsewhere, others, shouted = other_groups(group)
            await store.update_checkpoint(group, checkpoint_at("0", 5), lease=None)
            if self.has_namespaces:
                others.append(elsewhere)
            for one in others:
                assert dict(await other.list_checkpoints(one)) == {}
                await other.update_checkpoint(one, checkpoint_at("0", 7), lease=None)
            assert await position_of(other, shouted) == 5

    async def test_a_checkpoint_is_kept(self) -> None:
        """Another host continues from the same event; values that a store does not keep are None."""
        given = ProcessorCheckpoint(
            "7", 41, "4294967296", 1_700_000_000_123, 1_600_000_000_456, history_id="0123abcd" * 4
        )
        async with open_group(self.make_store) as (group, store, other):
            assert dict(await store.list_checkpoints(group)) == {}
            lease = await self.own(store, group, "host-a", partition_id="7")
            await store.update_checkpoint(group, given, lease=lease)
            kept = dict(await other.list_checkpoints(group))
            assert list(kept) == ["7"]
            assert (kept["7"].partition_id, kept["7"].sequence_number, kept["7"].offset) == (
                "7",
                41,
                "4294967296",
            )
            assert kept["7"].enqueued_time_ms in (None, given.enqueued_time_ms)
            assert kept["7"].event_hub_created_at_ms in (None, given.event_hub_created_at_ms)
            assert kept["7"].history_id == given.history_id
            # A history is that of one number, and never left with another.
            await store.update_checkpoint(
                group, replace(given, sequence_number=42, history_id=None), lease=lease
            )
            assert (await other.list_checkpoints(group))["7"].history_id is None

    async def test_a_checkpoint_moves_forward_only(self) -> None:
        """A slow worker's old checkpoint does not undo a newer one, unless explicitly requested."""
        async with open_group(self.make_store) as (group, store, other):
            lease = await self.own(store, group, "host-a")
            for number, expected in ((10, 10), (9, 10), (10, 10), (11, 11), (0, 11)):
                await store.update_checkpoint(group, checkpoint_at("0", number), lease=lease)
                assert await position_of(other, group) == expected
            # Nor may a store object that has never seen this partition's checkpoint move it back.
            await other.update_checkpoint(group, checkpoint_at("0", 3), lease=None)
            assert await position_of(store, group) == 11
            await other.update_checkpoint(group, checkpoint_at("0", 2), lease=None, is_rewind_allowed=True)
            assert await position_of(store, group) == 2
            await store.update_checkpoint(group, checkpoint_at("0", 3), lease=lease)
            assert await position_of(other, group) == 3
            await store.update_checkpoint(group, checkpoint_at("0", -1), lease=lease, is_rewind_allowed=True)
            assert await position_of(other, group) == -1

    async def test_a_checkpoint_needs_no_lease(self) -> None:
        """A person may set the checkpoint of a partition that was never processed."""
        async with open_group(self.make_store) as (group, store, other):
            await store.update_checkpoint(group, checkpoint_at("0", 4), lease=None)
            assert await position_of(other, group) == 4

    async def test_an_old_owner_is_fenced(self) -> None:
        """Once the new owner has moved the checkpoint, the old owner is fenced.

        Without epochs the old owner gets no error, but the checkpoint still only moves forward.
        """
        async with open_group(self.make_store) as (group, store, other):
            old = await self.own(store, group, "host-a")
            await store.update_checkpoint(group, checkpoint_at("0", 5), lease=old)
            new = await self.own(other, group, "host-b")
            await other.update_checkpoint(group, checkpoint_at("0", 7), lease=new)
            is_fenced = self.is_fenced(store)
            late = store.update_checkpoint(group, checkpoint_at("0", 6), lease=old)
            assert await is_refused(late, FencedError) == is_fenced
            assert await position_of(store, group) == 7
            late = store.update_checkpoint(group, checkpoint_at("0", 9), lease=old)
            assert await is_refused(late, FencedError) == is_fenced
            assert await position_of(store, group) == (7 if is_fenced else 9)
            # A tool that moves it without a lease does not readmit the old owner.
            await other.update_checkpoint(group, checkpoint_at("0", 8), lease=None, is_rewind_allowed=True)
            late = store.update_checkpoint(group, checkpoint_at("0", 12), lease=old)
            assert await is_refused(late, FencedError) == is_fenced
            await other.update_checkpoint(group, checkpoint_at("0", 20), lease=new)
            assert await position_of(store, group) == 20

    async def test_a_slow_new_owner_fences_as_well(self) -> None:
        """The new owner's epoch counts from its first checkpoint on, even if that does not move it."""
        async with open_group(self.make_store) as (group, store, other):
            old = await self.own(store, group, "host-a")
            await store.update_checkpoint(group, checkpoint_at("0", 5), lease=old)
            new = await self.own(other, group, "host-b")
            await other.update_checkpoint(group, checkpoint_at("0", 4), lease=new)
            late = store.update_checkpoint(group, checkpoint_at("0", 6), lease=old)
            assert await is_refused(late, FencedError) == self.is_fenced(store)

    async def test_a_checkpoint_belongs_to_one_hub(self) -> None:
        """A hub that was deleted and recreated under its name starts without checkpoints."""
        async with open_group(self.make_store) as (group, store, other):
            first = replace(checkpoint_at("0", 5), event_hub_created_at_ms=1_000)
            await store.update_checkpoint(group, first, lease=None)
            if (await other.list_checkpoints(group))["0"].event_hub_created_at_ms is None:
                return  # as in the official layout, which cannot record it
            second = replace(checkpoint_at("0", 9), event_hub_created_at_ms=2_000)
            mixed = other.update_checkpoint(group, second, lease=None)
            assert await is_refused(mixed, EventHubReplacedError)
            assert await position_of(store, group) == 5
            second = replace(checkpoint_at("0", 2), event_hub_created_at_ms=2_000)
            await other.update_checkpoint(group, second, lease=None, is_rewind_allowed=True)
            assert (await store.list_checkpoints(group))["0"].event_hub_created_at_ms == 2_000

    async def test_the_furthest_of_many_checkpoints_stays(self) -> None:
        """Checkpoints that arrive concurrently, in any order, from two hosts, leave the furthest one."""
        numbers = list(range(24))
        random.Random(4).shuffle(numbers)
        async with open_group(self.make_store) as (group, *stores):
            await asyncio.gather(
                *(
                    stores[number % 2].update_checkpoint(group, checkpoint_at(partition, number), lease=None)
                    for number in numbers
                    for partition in ("0", "1")
                )
            )
            kept = await stores[0].list_checkpoints(group)
            assert {partition: one.sequence_number for partition, one in kept.items()} == {"0": 23, "1": 23}

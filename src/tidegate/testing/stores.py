"""The conformance suites of stores: what a host relies on, for any store, lease or checkpoint manager.

    class TestMyStore(ProcessorStoreConformance):      # or LeaseManager…, CheckpointManager… for one alone
        async def make_store(self) -> ProcessorStore:
            return MyStore(...)

pytest runs it unchanged; the tests are coroutines, so pytest-asyncio is required, in auto mode or with
``@pytest.mark.asyncio`` on the class. Pass fixtures to ``make_store`` as attributes, set by an autouse
fixture of the class. Nothing here imports pytest: any runner that finds ``test_…`` coroutines works.

Every test uses a consumer group of its own, so all can run against one location, even concurrently.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

from tidegate.processor.checkpoint import CheckpointManager
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.store import ProcessorStore
from tidegate.testing.checkpoints import CheckpointManagerConformance
from tidegate.testing.groups import checkpoint_at, open_group, position_of
from tidegate.testing.leases import LeaseManagerConformance, acquire


class ProcessorStoreConformance(LeaseManagerConformance, CheckpointManagerConformance):
    """Everything that a host relies on. Subclass it with ``make_store``."""

    @abstractmethod
    async def make_store(self) -> ProcessorStore:
        """As ``LeaseManagerConformance.make_store``."""

    def is_fenced(self, store: object) -> bool:
        """The epochs are those of the store's own leases."""
        return self.are_epochs_kept(store)

    async def own(
        self, store: CheckpointManager, group: GroupKey, owner: str, *, partition_id: str = "0"
    ) -> Lease:
        """The lease of the partition's next owner, acquired in the store."""
        leases = cast(ProcessorStore, store)
        known = (await leases.list_leases(group)).leases.get(partition_id)
        return await acquire(leases, group, partition_id, owner, expected=known)

    async def test_a_released_partition_keeps_its_checkpoint(self) -> None:
        """A checkpoint outlives its lease, so the next owner continues from it."""
        async with open_group(self.make_store) as (group, store, other):
            lease = await acquire(store, group, "0", "host-a")
            await store.update_checkpoint(group, checkpoint_at("0", 5), lease=lease)
            await store.release(group, [lease])
            released = (await other.list_leases(group)).leases["0"]
            await acquire(other, group, "0", "host-b", expected=released)
            assert await position_of(other, group) == 5

    async def test_closing_twice_is_harmless(self) -> None:
        """A host closes its store even if its user closes it as well."""
        async with open_group(self.make_store) as (group, store, _):
            await store.list_leases(group)
            await store.close()

"""The store in memory: the conformance suite, and what is its own."""

from __future__ import annotations

import pytest

from tidegate.model.errors import EventHubReplacedError, FencedError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey
from tidegate.processor.store import ProcessorStore
from tidegate.processor.stores.memory import MemoryStore
from tidegate.testing.stores import ProcessorStoreConformance
from tidegate.transport.clock import SystemClock

GROUP = GroupKey("localhost", "hub", "$Default")


class TestMemoryStore(ProcessorStoreConformance):
    """All that a host relies on, with epochs."""

    @pytest.fixture(autouse=True)
    def _one_place(self) -> None:
        self.store: ProcessorStore = MemoryStore(SystemClock())

    async def make_store(self) -> ProcessorStore:
        """The same object each time: a store in memory is its own place."""
        return self.store


class TestMemoryStoreWithoutEpochs(TestMemoryStore):
    """All that a host relies on where official processors share the group."""

    @pytest.fixture(autouse=True)
    def _one_place(self) -> None:
        self.store = MemoryStore(SystemClock(), has_epochs=False)


async def test_an_epoch_fences_although_its_checkpoint_was_left() -> None:
    """A new owner whose first checkpoint lies behind shuts the old owner out all the same."""
    store = MemoryStore(SystemClock())
    old = await store.acquire(GROUP, "0", "a", expected=None)
    assert old is not None
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 9), lease=old)
    new = await store.acquire(GROUP, "0", "b", expected=old)
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 4), lease=new)
    with pytest.raises(FencedError, match="epoch 2; a has epoch 1"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 10), lease=old)
    assert (await store.list_checkpoints(GROUP))["0"].sequence_number == 9


@pytest.mark.parametrize(
    ("first", "second", "is_moved"),
    [
        (ProcessorCheckpoint("0", 5, "9", 1000), ProcessorCheckpoint("0", 4, "10", 1001), False),
        (ProcessorCheckpoint("0", 5, "9", 1000), ProcessorCheckpoint("0", None, "10", 999), True),
        (ProcessorCheckpoint("0", None, "900"), ProcessorCheckpoint("0", None, "1000"), True),
        (ProcessorCheckpoint("0", None, "900"), ProcessorCheckpoint("0", None, "80"), False),
        (ProcessorCheckpoint("0", None, "geo:9", 1000), ProcessorCheckpoint("0", None, "80", 999), False),
        (ProcessorCheckpoint("0", None, "geo:9", 1000), ProcessorCheckpoint("0", None, "80", 1001), True),
        (ProcessorCheckpoint("0", None, "geo:9"), ProcessorCheckpoint("0", None, "80"), True),
    ],
)
async def test_checkpoints_are_compared_by_what_both_have(
    first: ProcessorCheckpoint, second: ProcessorCheckpoint, is_moved: bool
) -> None:
    """The sequence number decides, then offsets that are numbers, then times; else the last one counts."""
    store = MemoryStore(SystemClock())
    await store.update_checkpoint(GROUP, first, lease=None)
    await store.update_checkpoint(GROUP, second, lease=None)
    assert (await store.list_checkpoints(GROUP))["0"] == (second if is_moved else first)


async def test_another_hub_of_the_name_is_not_mixed_up() -> None:
    """A hub that was made anew counts from 0 again: its checkpoint is refused, until somebody resets it."""
    store = MemoryStore(SystemClock())
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 9, None, None, 1000), lease=None)
    anew = ProcessorCheckpoint("0", 12, None, None, 2000)
    with pytest.raises(EventHubReplacedError, match="created at 1000 ms"):
        await store.update_checkpoint(GROUP, anew, lease=None)
    await store.update_checkpoint(GROUP, anew, lease=None, is_rewind_allowed=True)
    assert (await store.list_checkpoints(GROUP))["0"] == anew

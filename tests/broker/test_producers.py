"""Idempotent producers at a partition: what is filled in, who is shut out, and what attaching waits for."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from random import Random

import pytest

from tidegate.broker import AppendResult, Broker, Partition, ProducerHandle, producers
from tidegate.broker.producers import LINKS_MAX, ProducerRegistry
from tidegate.model.errors import InvalidArgumentError, OutOfOrderSequenceError, ProducerEpochStolenError
from tidegate.server.opening import open_broker
from tidegate.storage.log_manager import LogManager
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner


async def _open(
    partition: Partition,
    producer_id: int | None = None,
    epoch: int | None = None,
    last: int | None = None,
    stolen: list[str] | None = None,
) -> ProducerHandle:
    texts = [] if stolen is None else stolen
    return await partition.open_producer(
        producer_id=producer_id,
        epoch=epoch,
        last_sequence_number=last,
        on_stolen=lambda error: texts.append(str(error)),
    )


def _append(
    partition: Partition, handle: ProducerHandle, sequence: int, count: int
) -> asyncio.Future[AppendResult]:
    return partition.append_nowait(b"x" * count, array("I", [1] * count), producer=handle.batch(sequence))


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    """A namespace with a hub of one partition; closed by the test that reopens it, or by nobody."""
    broker = await open_broker(tmp_path, clock=SystemClock())
    await broker.create_event_hub("hub", partition_count=1)
    return broker


async def test_what_is_not_said_is_filled_in(broker: Broker) -> None:
    """New producers get ids of their own, epoch 0 and -1; one that comes back gets where it stands."""
    partition = broker.event_hub("hub").partition("0")
    first, second = await _open(partition), await _open(partition)
    assert first.producer_id != second.producer_id
    assert (first.epoch, first.last_sequence_number) == (0, -1)
    assert 0 <= first.producer_id < 1 << 53  # what JavaScript's numbers hold exactly
    await _append(partition, first, 0, 3)
    again = await _open(partition, first.producer_id)
    assert (again.epoch, again.last_sequence_number) == (0, 2)
    said = await _open(partition, first.producer_id, 0, 1)
    assert said.last_sequence_number == 1  # it alone knows what was acknowledged
    await broker.close()


async def test_a_count_that_a_producer_brings_along_is_believed_where_nothing_is_known(
    broker: Broker,
) -> None:
    """A producer that comes with a number goes on behind it; where another is known, that one counts."""
    partition = broker.event_hub("hub").partition("0")
    handle = await _open(partition, 197, 3, 42)
    with pytest.raises(OutOfOrderSequenceError):
        await _append(partition, handle, 45, 1)
    await _append(partition, handle, 43, 2)
    behind = await _open(partition, 197, 3, 40)
    with pytest.raises(OutOfOrderSequenceError):
        await _append(partition, behind, 41, 2)
    assert partition.next_sequence_number == 2
    higher = await _open(partition, 197, 4, 99)
    await _append(partition, higher, 100, 1)
    await broker.close()


async def test_a_higher_epoch_shuts_out_the_lower_at_once(broker: Broker) -> None:
    """The loser is told when the other attaches; a lower epoch is refused, an equal one is not."""
    partition = broker.event_hub("hub").partition("0")
    stolen: list[str] = []
    first = await _open(partition, 7, 1, stolen=stolen)
    equal = await _open(partition, 7, 1, stolen=stolen)
    assert stolen == []
    winner = await _open(partition, 7, 2, stolen=stolen)
    assert len(stolen) == 2
    assert first.stolen_error is not None
    first.close()
    equal.close()
    with pytest.raises(ProducerEpochStolenError, match="now has epoch 2; epoch 1"):
        await _open(partition, 7, 1)
    assert winner.stolen_error is None
    await broker.close()


async def test_a_producer_has_few_links(broker: Broker) -> None:
    """Protects the event loop: a higher epoch detaches all links of the lower in one step. The oldest makes
    room, so that a client whose connections were lost can always come back; other producers keep theirs.
    """
    partition = broker.event_hub("hub").partition("0")
    other = await _open(partition, 8, 0)
    stolen: list[str] = []
    handles = [await _open(partition, 7, 0, stolen=stolen) for _ in range(LINKS_MAX)]
    assert stolen == []
    await asyncio.gather(*(_open(partition, 7, 0, stolen=stolen) for _ in range(40)), return_exceptions=True)
    assert len(stolen) == 40
    assert all("oldest" in text for text in stolen)
    assert all(handle.stolen_error is not None for handle in handles)
    latest = await _open(partition, 7, 0)
    await _append(partition, latest, 0, 1)
    await _open(partition, 7, 1, stolen=stolen)
    assert len(stolen) == 41 + LINKS_MAX - 1
    assert latest.stolen_error is not None
    assert other.stolen_error is None
    await broker.close()


async def test_epochs_and_counts_survive_a_restart(broker: Broker, tmp_path: Path) -> None:
    """What was stored shuts out lower epochs after a restart, too, and the count goes on."""
    partition = broker.event_hub("hub").partition("0")
    handle = await _open(partition, 7, 2)
    await _append(partition, handle, 0, 5)
    await broker.close()
    broker = await open_broker(tmp_path, clock=SystemClock())
    partition = broker.event_hub("hub").partition("0")
    with pytest.raises(ProducerEpochStolenError):
        await _open(partition, 7, 1)
    again = await _open(partition, 7)
    assert (again.epoch, again.last_sequence_number) == (2, 4)
    await broker.close()


async def test_the_look_at_the_log_waits_for_what_is_queued(broker: Broker) -> None:
    """A producer that asks where it stands is told of its batches that are still being written."""
    partition = broker.event_hub("hub").partition("0")
    handle = await _open(partition, 7, 0)
    appends = [_append(partition, handle, number * 2, 2) for number in range(20)]
    again = await _open(partition, 7, 1)
    assert again.last_sequence_number == 39
    await asyncio.gather(*appends)
    await broker.close()


async def test_two_that_attach_at_once(broker: Broker) -> None:
    """Of two that wait for the log at the same time the higher epoch wins, whoever came first."""
    partition = broker.event_hub("hub").partition("0")
    low, high = await asyncio.gather(_open(partition, 7, 1), _open(partition, 7, 2), return_exceptions=True)
    assert isinstance(low, ProducerEpochStolenError)
    assert isinstance(high, ProducerHandle)
    await broker.close()


async def test_parties_take_turns_at_a_slow_log(tmp_path: Path) -> None:
    """However many producers of one party wait, that of another is in the next round. Those that give up
    leave their places to others of the party; one alone has all that the log answers in a round."""
    tasks = TaskOwner("producers")
    manager = await LogManager.open(tmp_path, is_threaded=False)
    await manager.create_logs("hub", 1)
    registry = ProducerRegistry(manager.open_log("hub", "0"))
    answered: list[str] = []

    async def attach(party: str) -> None:
        await registry.open(
            producer_id=None, epoch=None, last_sequence_number=None, on_stolen=lambda _: None, party=party
        )
        answered.append(party)

    async def commit_round() -> int:
        before = len(answered)
        manager.commit_queued()
        for _ in range(5):
            await asyncio.sleep(0)
        return len(answered) - before

    many = [tasks.start(attach("many"), name="many") for _ in range(300)]
    await asyncio.sleep(0)
    for number in (1, 2, 3):
        few = tasks.start(attach("few"), name="few")
        await asyncio.sleep(0)
        await commit_round()
        await commit_round()
        assert few.done()
        assert answered.count("few") == number
    waiting = [each for each in many if not each.done()]
    for gone in (*waiting[:8], *waiting[30:]):  # of those that the log is asked for, and of the others
        gone.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    stayed = [await commit_round() for _ in range(3)]
    assert sum(stayed) == 22
    more = [tasks.start(attach("many"), name="more") for _ in range(40)]
    await asyncio.sleep(0)
    assert [await commit_round() for _ in range(3)] == [16, 16, 8]
    await asyncio.gather(*more)
    await tasks.close()
    await manager.close()


@pytest.mark.parametrize("seed", range(40))
async def test_a_partys_places_are_neither_lost_nor_given_twice(seed: int) -> None:
    """Whenever those that wait for one, have just got one, or hold one are cancelled."""
    random, asking = Random(seed), producers._Asking()
    inside = served = 0

    async def ask() -> None:
        nonlocal inside, served
        async with asking:
            inside += 1
            assert inside <= producers._ASKING_MAX
            try:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                served += 1
            finally:
                inside -= 1

    tasks: list[asyncio.Task[None]] = []
    async with TaskOwner("asking") as owner:
        for _ in range(40):
            tasks += [owner.start(ask(), name="ask") for _ in range(random.randrange(12))]
            for gone in random.sample(tasks, min(len(tasks), random.randrange(8))):
                gone.cancel()
            await asyncio.sleep(0)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert served == sum(end is None for end in ends) > 0
    assert not [end for end in ends if isinstance(end, Exception)]
    assert (asking._free, len(asking._waiting)) == (producers._ASKING_MAX, 0)


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (0, 1 << 15, 0), (0, 0, 1 << 31), (1 << 63, 0, 0), (0, 0, -2)]
)
async def test_numbers_out_of_range(broker: Broker, numbers: tuple[int, int, int]) -> None:
    """Numbers that have no place in a batch are refused when the producer attaches."""
    with pytest.raises(InvalidArgumentError):
        await _open(broker.event_hub("hub").partition("0"), *numbers)
    await broker.close()

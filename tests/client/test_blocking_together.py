"""Short ranges of several partitions are fetched at once, and what is missing of one can be asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack

import pytest

from tidegate.client import EventHubConsumer, EventHubProducer, FetchedRange
from tidegate.client.blocking import consumer as blocking_module
from tidegate.client.blocking.consumer import BlockingConsumer
from tidegate.client.receiver import PREFETCH_BYTES, PartitionReceiver
from tidegate.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    OperationTimeoutError,
    PositionOutOfRangeError,
)
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService

_COUNT = 50
_DELIVERIES_OVER = 2
"""That may come behind the end of a range, for it is events that are counted and deliveries that come."""


@pytest.fixture(scope="module")
def hub(hub_service: HubService) -> str:
    """Three partitions of ``_COUNT`` events, in batches of ten."""
    name = hub_service.create_hub(partition_count=3)

    async def send() -> None:
        async with EventHubProducer.from_connection_string(hub_service.connection_string, name) as producer:
            for partition_id in ("0", "1", "2"):
                for start in range(0, _COUNT, 10):
                    events = [EventData(b"%d" % n) for n in range(start, start + 10)]
                    await producer.send(events, partition_id=partition_id)

    asyncio.run(send())
    return name


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What receivers were opened for."""
    calls: list[object] = []
    open_one = EventHubConsumer.open_receiver

    async def noted(*arguments: object, **options: object) -> PartitionReceiver:
        calls.append(arguments[1])
        return await open_one(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EventHubConsumer, "open_receiver", noted)
    return calls


@pytest.fixture
def consumer(hub_service: HubService, hub: str, opened: list[object]) -> Iterator[BlockingConsumer]:
    """Of the hub, closed at the end."""
    with BlockingConsumer(hub_service.hub_connection_string(hub)) as consumer:
        yield consumer


def _numbers(fetched: FetchedRange) -> list[int]:
    return [number for chunk in fetched.chunks for number in chunk.sequence_numbers]


def _read(consumer: BlockingConsumer, partition_id: str, start: int, until: int) -> list[int]:
    chunks = consumer.read_encoded(partition_id, start, until)
    return [number for chunk in chunks for number in chunk.sequence_numbers]


def test_ranges_that_go_on_where_others_ended(consumer: BlockingConsumer, opened: list[object]) -> None:
    """Each partition has one receiver for as long as its ranges follow each other, however they are read."""
    first = consumer.read_together([("0", 3, 20), ("1", 0, 40), ("2", 5, 5)])
    assert [_numbers(each) for each in first] == [list(range(3, 20)), list(range(40)), []]
    second = consumer.read_together([("0", 20, 30), ("1", 40, _COUNT)])
    assert [_numbers(each) for each in second] == [list(range(20, 30)), list(range(40, _COUNT))]
    assert _read(consumer, "0", 30, 45) == list(range(30, 45))
    assert [each.error for each in first + second] == [None] * 5
    assert len(opened) == 2


@pytest.mark.parametrize("is_batch_delivery_wanted", [True, False])
def test_two_that_take_turns_keep_their_receivers(
    hub_service: HubService, hub: str, opened: list[object], is_batch_delivery_wanted: bool
) -> None:
    """As Spark's workers do: what the other one has read meanwhile is skipped, however it is delivered."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    connection_string = hub_service.hub_connection_string(hub)
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(
                BlockingConsumer(connection_string, is_batch_delivery_wanted=is_batch_delivery_wanted)
            )
            for _ in range(2)
        ]
        for consumer in consumers:  # before that nothing tells how large events are
            consumer.read_together([("0", 0, 1), ("1", 0, 1)])
        start = 1
        while start < _COUNT:
            until = min(_COUNT, start + numbers.randint(1, 7))
            consumer, wanted = numbers.choice(consumers), list(range(start, until))
            together, alone = (
                consumer.read_together([("0", start, until)]),
                _read(consumer, "1", start, until),
            )
            assert (_numbers(together[0]), together[0].error, alone) == (wanted, None, wanted)
            start = until
    assert len(opened) == 4


def test_far_behind_a_receiver_is_opened(
    consumer: BlockingConsumer, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Much is not fetched in vain; here 18 events are more than may be, and 5 are not."""
    monkeypatch.setattr(blocking_module, "_SKIP_BYTES_MAX", 200)
    assert _read(consumer, "0", 0, 20) == list(range(20))
    assert _read(consumer, "0", 25, 30) == list(range(25, 30))
    assert len(opened) == 1
    assert _read(consumer, "0", _COUNT - 2, _COUNT) == list(range(_COUNT - 2, _COUNT))
    assert len(opened) == 2
    assert _read(consumer, "0", 3, 5) == [3, 4]  # nor does one go back
    assert len(opened) == 3


@pytest.mark.slow
def test_what_is_wrong_with_one_range_is_no_matter_of_the_others(consumer: BlockingConsumer) -> None:
    """Its error comes with what was read before, and is what ``read_encoded`` says."""
    good, beyond, unknown, late = consumer.read_together(
        [("0", 0, 2), ("1", 1000, 1001), ("no such", 0, 1), ("2", 45, _COUNT + 1)], timeout_s=1.0
    )
    assert (_numbers(good), good.error) == ([0, 1], None)
    assert isinstance(beyond.error, PositionOutOfRangeError)
    assert isinstance(unknown.error, NotFoundError)
    assert (_numbers(late), type(late.error)) == (list(range(45, _COUNT)), OperationTimeoutError)
    with pytest.raises(InvalidArgumentError, match="3 to 2"):
        consumer.read_together([("0", 3, 2)])


def test_large_events_are_left_for_later(
    consumer: BlockingConsumer, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bytes run out, the rest of each range is there to be read, by the same receiver."""
    monkeypatch.setattr(blocking_module, "_TOGETHER_BYTES", 1)
    for fetched, partition_id in zip(
        consumer.read_together([("0", 0, _COUNT), ("1", 0, _COUNT)]), "01", strict=True
    ):
        numbers = _numbers(fetched)
        assert fetched.error is None
        assert numbers == list(range(len(numbers)))
        assert _read(consumer, partition_id, len(numbers), _COUNT) == list(range(len(numbers), _COUNT))
    assert len(opened) == 2


def test_a_receiver_of_a_short_range_serves_a_long_one_as_well_as_another(
    consumer: BlockingConsumer, opened: list[object]
) -> None:
    """It was opened with a share of what all may fetch, and fetches as much ahead as any other then."""
    consumer.read_together([(partition_id, 0, 5) for partition_id in "012"])
    ((receiver, _, _), *_) = consumer._state.idle.values()
    assert receiver._prefetch_bytes == blocking_module._TOGETHER_BYTES // 3
    assert _read(consumer, "0", 5, _COUNT) == list(range(5, _COUNT))
    assert len(opened) == 3
    assert receiver._prefetch_bytes == PREFETCH_BYTES


def test_nobody_waits_for_a_place(hub_service: HubService, hub: str, consumer: BlockingConsumer) -> None:
    """Five others read the partition: the other ranges come, and this one is left to ``read_encoded``."""
    connection_string = hub_service.hub_connection_string(hub)
    others = [BlockingConsumer(connection_string) for _ in range(5)]
    try:
        readings = [other.read_encoded("0", 0, _COUNT) for other in others]
        for reading in readings:
            next(reading)
        # Each holds its place until its reading is given up.
        crowded, free = consumer.read_together([("0", 0, 5), ("1", 0, 5)])
        assert (crowded.chunks, crowded.error) == ((), None)
        assert (_numbers(free), free.error) == ([0, 1, 2, 3, 4], None)
    finally:
        del readings, reading
        for other in others:
            other.close()
    assert _read(consumer, "0", 0, 5) == [0, 1, 2, 3, 4]


def test_little_behind_a_range_is_fetched(hub_service: HubService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes next may be another process's to read: nothing behind the end is asked for on purpose."""
    name = hub_service.create_hub(partition_count=1)
    connection_string = hub_service.hub_connection_string(name)
    batches, each = 100, 20

    async def send() -> None:
        async with EventHubProducer.from_connection_string(connection_string) as producer:
            for _ in range(batches):
                await producer.send([EventData(b"x")] * each, partition_id="0")

    asyncio.run(send())
    receivers: list[PartitionReceiver] = []
    start: Callable[..., Coroutine[object, object, None]] = PartitionReceiver.start

    async def noted(receiver: PartitionReceiver) -> None:
        receivers.append(receiver)
        await start(receiver)

    monkeypatch.setattr(PartitionReceiver, "start", noted)
    with BlockingConsumer(connection_string) as consumer:
        for begin, until in ((0, 30), (30, 700), (700, 1400), (1400, 1500)):
            assert _read(consumer, "0", begin, until) == list(range(begin, until))
            (receiver,) = receivers
            assert receiver.next_sequence_number is not None
            assert receiver.next_sequence_number <= until + each * _DELIVERIES_OVER
        assert _read(consumer, "0", 1500, batches * each) == list(range(1500, batches * each))
    assert len(receivers) == 1

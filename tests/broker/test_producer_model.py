"""Whatever happens between its batches, each event of an idempotent producer is stored once, and in order.

Cut lines, lost requests, lost answers, instances that take over and restarts of the service, in any order,
against a producer that knows only which of its batches were acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.broker import Broker, Partition, ProducerHandle
from tidegate.server.opening import open_broker
from tidegate.transport.clock import SystemClock

_STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4)),
    st.tuples(st.just("lose the answer"), st.integers(1, 4)),
    st.tuples(st.just("lose the request"), st.integers(1, 4)),
    st.tuples(st.just("cut the line"), st.just(0)),
    st.tuples(st.just("forget the last number"), st.just(0)),
    st.tuples(st.just("take over"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


class _Producer:
    """As @azure/event-hubs: it counts what was acknowledged, and says so when it comes back."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.handle: ProducerHandle | None = None
        self.epoch = 0
        self.last = -1
        self.sent = 0
        """Events handed to it so far; the n-th is the number n, as four bytes."""

    @property
    def partition(self) -> Partition:
        return self.broker.event_hub("hub").partition("0")

    async def attach(self, *, is_last_said: bool) -> None:
        old = self.handle
        self.handle = await self.partition.open_producer(
            producer_id=None if old is None else old.producer_id,
            epoch=None if old is None else self.epoch,
            last_sequence_number=self.last if is_last_said and old is not None else None,
            on_stolen=lambda error: None,
        )
        if old is not None:
            old.close()
        assert self.handle.last_sequence_number == self.last

    async def append(self, count: int) -> None:
        assert self.handle is not None
        events = b"".join(number.to_bytes(4, "big") for number in range(self.sent, self.sent + count))
        batch = self.handle.batch(self.last + 1)
        await self.partition.append(events, array("I", [4] * count), producer=batch)

    async def step(self, name: str, count: int) -> None:
        match name:
            case "restart":
                await self.broker.close()
                self.broker = await open_broker(self.directory, clock=SystemClock())
                await self.attach(is_last_said=True)
            case "cut the line":
                await self.attach(is_last_said=True)
            case "forget the last number":
                await self.attach(is_last_said=False)
            case "take over":
                self.epoch += 1
                await self.attach(is_last_said=True)
            case _:
                if name == "lose the answer":
                    await self.append(count)
                if name != "send":
                    await self.attach(is_last_said=True)
                await self.append(count)
                self.last += count
                self.sent += count

    async def stored(self) -> list[int]:
        numbers: list[int] = []
        position = 0
        while batches := await self.partition.read(position, bytes_max=1 << 20):
            for batch in batches:
                data = bytes(batch.payload)
                numbers += [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
                position = batch.until_sequence_number
        return numbers


async def _run(steps: Sequence[tuple[str, int]], directory: Path) -> None:
    broker = await open_broker(directory, clock=SystemClock())
    await broker.create_event_hub("hub", partition_count=1)
    producer = _Producer(broker, directory)
    try:
        await producer.attach(is_last_said=False)
        for name, count in steps:
            await producer.step(name, count)
            assert await producer.stored() == list(range(producer.sent))
    finally:
        await producer.broker.close()


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_STEPS, max_size=15))
def test_each_event_is_stored_once(steps: list[tuple[str, int]]) -> None:
    """After every step the log holds exactly what was handed to the producer."""
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_run(steps, Path(name)))

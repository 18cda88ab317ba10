"""Events as record batches, from a real service."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

import pytest

from tidegate.client import BlockingConsumer, EventHubConsumer, EventHubProducer
from tidegate.columns.schema import EVENT_ARROW_SCHEMA
from tidegate.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    ReceiverStolenError,
)
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubService

EARLIEST = EventPosition.earliest()


@pytest.fixture
def connection_string(hub_service: HubService, event_hub: str) -> str:
    return hub_service.hub_connection_string(event_hub)


async def _send(connection_string: str, count: int, partition_id: str = "1") -> None:
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        events = [
            EventData(b"body %d" % n, {"device": f"d-{n}", "n": n}, message_id=f"m{n % 2}")
            for n in range(count)
        ]
        await producer.enqueue_many(events, partition_id=partition_id)
        await producer.flush()


@pytest.mark.slow
@pytest.mark.parametrize("is_batched", [True, False])
async def test_batches_hold_what_events_hold(connection_string: str, is_batched: bool) -> None:
    """Every column, against the events that ``receive`` gives; by both kinds of delivery."""
    await _send(connection_string, 3000)
    async with (
        EventHubConsumer.from_connection_string(
            connection_string, is_batch_delivery_wanted=is_batched
        ) as consumer,
        await consumer.open_receiver("1", EARLIEST) as by_events,
        await consumer.open_receiver("1", EARLIEST) as by_batches,
    ):
        rows = 0
        while rows < 3000:
            batch = await by_batches.receive_arrow(max_events=1001, max_wait_s=30)
            assert 0 < len(batch) <= 1001
            assert batch.schema.equals(EVENT_ARROW_SCHEMA)
            batch.validate(full=True)
            for row in batch.to_pylist():
                (event,) = await by_events.receive(1, 30)
                assert row == {
                    "body": event.body,
                    "partition": "1",
                    "offset": event.offset,
                    "sequenceNumber": event.sequence_number,
                    "enqueuedTime": event.enqueued_time,
                    "publisher": None,
                    "partitionKey": None,
                    "properties": [(name, str(value)) for name, value in event.properties.items()],
                    "systemProperties": [("message-id", event.contents.message_id)],
                }
            rows += len(batch)
        assert len(await by_batches.receive_arrow(["body"], max_wait_s=0)) == 0


async def test_a_cancelled_call_loses_no_event(connection_string: str) -> None:
    """Neither does one that names a column that there is not."""
    async with (
        EventHubConsumer.from_connection_string(connection_string) as consumer,
        await consumer.open_receiver("1", EARLIEST) as receiver,
    ):
        waiting = asyncio.ensure_future(receiver.receive_arrow())  # noqa: TID251
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await _send(connection_string, 10)
        with pytest.raises(InvalidArgumentError, match="no column 'bodi'"):
            await receiver.receive_arrow(["bodi"])
        batch = await receiver.receive_arrow(["properties.n", "sequenceNumber"], max_wait_s=30)
        assert batch.to_pylist()[0] == {"properties.n": "0", "sequenceNumber": 0}


async def test_a_higher_owner_level_ends_it(connection_string: str) -> None:
    """As it ends ``receive``: buffered events belong to the new owner."""
    await _send(connection_string, 10)
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        first = await consumer.open_receiver("1", EARLIEST, owner_level=1)
        assert len(await first.receive_arrow(max_events=1, max_wait_s=30)) == 1
        await consumer.open_receiver("1", EARLIEST, owner_level=2)

        async def read_on() -> None:
            while True:
                await first.receive_arrow(max_events=1)

        async with asyncio.timeout(30):
            with pytest.raises(ReceiverStolenError):
                await read_on()


@pytest.mark.parametrize(("limit", "value"), [("_TOGETHER_BYTES", 1), ("_TOGETHER_EVENTS", 10)])
def test_what_is_not_read_together_is_read_afterwards(
    connection_string: str, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """All of a partition or a part of it; each event is there once, and those of a partition are in order."""
    monkeypatch.setattr(f"tidegate.client.blocking.consumer.{limit}", value)
    for partition_id in ("0", "1"):
        asyncio.run(_send(connection_string, 100, partition_id))
    with BlockingConsumer(connection_string) as consumer:
        table = consumer.read_arrow(["partition", "sequenceNumber"]).read_all()
        rows = [tuple(row.values()) for row in table.to_pylist()]
    for partition_id in ("0", "1"):
        assert [row for row in rows if row[0] == partition_id] == [(partition_id, n) for n in range(100)]
    assert len(rows) == 200


def test_all_partitions_are_read_up_to_their_ends(connection_string: str) -> None:
    """From any position; events that come later are not waited for."""
    with BlockingConsumer(connection_string) as consumer:
        assert consumer.read_arrow().read_all().equals(EVENT_ARROW_SCHEMA.empty_table())
        asyncio.run(_send(connection_string, 100, "0"))
        middle = datetime.now(UTC)  # noqa: TID251
        while datetime.now(UTC).timestamp() * 1000 < int(middle.timestamp() * 1000) + 2:  # noqa: TID251
            pass
        asyncio.run(_send(connection_string, 50, "1"))

        def read(position: EventPosition, partition_ids: list[str] | None = None) -> list[tuple[str, int]]:
            table = consumer.read_arrow(
                ["partition", "sequenceNumber"], position=position, partition_ids=partition_ids
            ).read_all()
            return [tuple(row.values()) for row in table.to_pylist()]

        whole = [("0", n) for n in range(100)] + [("1", n) for n in range(50)]
        assert read(EARLIEST) == whole
        assert read(EARLIEST, ["1"]) == whole[100:]
        assert read(EventPosition.from_enqueued_time(middle)) == whole[100:]
        assert read(EventPosition.from_offset("97"), ["0"]) == whole[98:100]
        assert read(EventPosition.from_sequence_number(48)) == whole[48:100] + whole[148:]
        assert read(EventPosition.from_sequence_number(70, is_inclusive=False)) == whole[71:100]
        assert read(EventPosition.latest()) == []
        with pytest.raises(NotFoundError, match="no partition 'x'"):
            consumer.read_arrow(partition_ids=["x"])
        with pytest.raises(InvalidArgumentError, match="list of column names"):
            consumer.read_arrow("body")


def test_without_pyarrow_it_says_what_to_install(
    connection_string: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow is large, and only these calls need it."""
    monkeypatch.delitem(sys.modules, "tidegate.columns.batches", raising=False)
    monkeypatch.delattr("tidegate.columns.batches", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        BlockingConsumer(connection_string) as consumer,
        pytest.raises(NotFoundError, match=r"pyarrow.*\[arrow\]"),
    ):
        consumer.read_arrow()

"""A reader of a restored log that has grown again gets an error; one of a log that goes on does not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidegate.client import BlockingConsumer, EventHubConsumer, EventHubProducer, PartitionReceiver
from tidegate.client.blocking import consumer as blocking
from tidegate.model.errors import LogDivergedError
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.storage.check import check_log_directory
from tidegate.testing.hub import HubProcess, HubService

_HUB = "telemetry"


async def send(service: HubService | HubProcess, count: int) -> None:
    """To partition 0, in one batch."""
    async with EventHubProducer.from_connection_string(service.connection_string, _HUB) as producer:
        await producer.send([EventData(b"event") for _ in range(count)], partition_id="0")


@asynccontextmanager
async def reading(
    service: HubService | HubProcess, position: EventPosition, *, is_batched: bool = True
) -> AsyncIterator[PartitionReceiver]:
    """A receiver of partition 0."""
    async with (
        EventHubConsumer.from_connection_string(
            service.connection_string, _HUB, is_batch_delivery_wanted=is_batched
        ) as consumer,
        await consumer.open_receiver("0", position) as receiver,
    ):
        yield receiver


async def read(receiver: PartitionReceiver, until: int) -> str:
    """Read up to the event before ``until``; returns its history."""
    number = -1
    while number < until - 1:
        number = (await receiver.receive(until, max_wait_s=20))[-1].sequence_number
    assert number == until - 1
    history_id = receiver.history_of(number)
    assert history_id is not None
    return history_id


@pytest.fixture
def service(tmp_path: Path) -> HubService:
    """Not running; the hub has no event yet."""
    made = HubService(tmp_path / "log")
    with made:
        made.create_hub(_HUB, partition_count=1)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("is_batched", [True, False])
async def test_a_position_in_a_restored_log_that_has_grown_again_is_refused(
    service: HubService, tmp_path: Path, is_batched: bool
) -> None:
    """150 events were read, the backup has 50; up to 50 the reader may go on, whatever else it has read."""
    with service:
        await send(service, 50)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    with service:
        await send(service, 100)
        async with reading(service, EventPosition.earliest(), is_batched=is_batched) as receiver:
            history_id = await read(receiver, 150)
            first_id = receiver.history_of(49)
    assert history_id != first_id
    with service:  # a plain restart
        await send(service, 1)
        position = EventPosition.from_sequence_number(150, history_id=history_id)
        async with reading(service, position, is_batched=is_batched) as receiver:
            await read(receiver, 151)
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        await send(service, 150)
        for number, read_in in ((150, history_id), (100, history_id), (100, first_id)):
            position = EventPosition.from_sequence_number(number, history_id=read_in)
            with pytest.raises(LogDivergedError, match="checkpoint set"):
                async with reading(service, position, is_batched=is_batched):
                    pass
        position = EventPosition.from_sequence_number(50, history_id=first_id)
        async with reading(service, position, is_batched=is_batched) as receiver:
            await read(receiver, 200)


@pytest.mark.slow
async def test_a_reader_that_waits_while_an_older_log_is_restored_gets_the_error(
    service: HubService, tmp_path: Path
) -> None:
    """It attaches again by itself after each restart, and ends when the log is not the one that it read."""
    with service:
        await send(service, 50)
        shutil.copytree(service.data_dir, tmp_path / "backup")  # of a log that is open
        await send(service, 100)
    service.start()
    try:
        async with reading(service, EventPosition.earliest()) as receiver:
            await read(receiver, 150)
            service.restart()
            await send(service, 10)
            await read(receiver, 160)
            service.stop()
            shutil.rmtree(service.data_dir)
            shutil.copytree(tmp_path / "backup", service.data_dir)
            service.start()
            await send(service, 200)
            with pytest.raises(LogDivergedError, match="which this log does not have"):
                await read(receiver, 250)
    finally:
        service.stop()


@pytest.mark.slow
def test_a_receiver_that_was_kept_takes_no_history_to_another_log(
    service: HubService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range without a history is read of whatever log there is, as by a new consumer."""
    monkeypatch.setattr(blocking, "_IDLE_S", 60.0)
    with service:
        asyncio.run(send(service, 50))
    shutil.copytree(service.data_dir, tmp_path / "backup")
    service.start()
    try:
        asyncio.run(send(service, 100))
        with BlockingConsumer(service.connection_string, _HUB) as consumer:
            assert sum(map(len, consumer.read_encoded("0", 0, 150))) == 150
            service.stop()
            shutil.rmtree(service.data_dir)
            shutil.copytree(tmp_path / "backup", service.data_dir)
            service.start()
            asyncio.run(send(service, 150))
            assert sum(map(len, consumer.read_encoded("0", 150, 200))) == 50
    finally:
        service.stop()


@pytest.mark.slow
async def test_a_consumer_that_begins_at_the_end_also_notices(service: HubService, tmp_path: Path) -> None:
    """Its position is a number, too, although it was given none."""
    with service:
        await send(service, 50)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    service.start()
    try:
        await send(service, 10)
        async with reading(service, EventPosition.latest()) as receiver:
            service.stop()
            shutil.rmtree(service.data_dir)
            shutil.copytree(tmp_path / "backup", service.data_dir)
            service.start()
            await send(service, 100)
            with pytest.raises(LogDivergedError):
                await receiver.receive(max_wait_s=20)
    finally:
        service.stop()


@pytest.mark.slow
async def test_a_kill_and_a_repair_that_loses_nothing_stop_no_reader(tmp_path: Path) -> None:
    """The reader's history is still that of the events which it has read."""
    with HubProcess(tmp_path / "log") as service:
        service.create_hub(_HUB, partition_count=1)
        await send(service, 50)
        async with reading(service, EventPosition.earliest()) as receiver:
            history_id = await read(receiver, 50)
        service.kill()
        service.start()
        position = EventPosition.from_sequence_number(50, history_id=history_id)
        async with reading(service, position) as receiver:
            await send(service, 10)
            history_id = await read(receiver, 60)
        service.stop()
        (copy,) = service.data_dir.glob("logs/*/0/manifest.0")
        copy.unlink()
        assert check_log_directory(service.data_dir, repair=True).is_sound
        assert copy.exists()
        service.start()
        position = EventPosition.from_sequence_number(60, history_id=history_id)
        async with reading(service, position) as receiver:
            await send(service, 10)
            await read(receiver, 70)

"""The source's tasks against the real service, without Spark: many at once, too late, as Azure sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.support import publish
from tests.spark.test_data_loss import delete_all

from tidegate.client import EventHubProducer
from tidegate.client.blocking.consumer import BlockingConsumer
from tidegate.client.credentials import SharedKeyCredential
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, PositionOutOfRangeError, ReceiverStolenError
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.spark.source import hub as hub_module
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.offsets import PartitionRange, StreamOffset, TaskLayout, split_ranges
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import (
    EventHubsBatchReader,
    EventHubsStreamReader,
    RangesInputPartition,
    read_ranges,
)
from tidegate.testing.hub import HubService
from tidegate.wire.encoded_events import EncodedEvents

_COUNT = 2000


@pytest.fixture(scope="module")
def filled_hub(hub_service: HubService) -> str:
    """A hub with one partition of 2,000 events."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, _COUNT)
    return hub


def _options(service: HubService, hub: str, **options: str) -> SourceOptions:
    return SourceOptions.parse({"connectionString": service.hub_connection_string(hub), **options})


def _rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def _task(*ranges: PartitionRange) -> RangesInputPartition:
    return RangesInputPartition(ranges)


@pytest.fixture
def consumer_settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Arguments that the readers' consumers are made with, beside their own."""
    settings: dict[str, object] = {}

    def make(*arguments: object, **named: object) -> BlockingConsumer:
        return BlockingConsumer(*arguments, **{**named, **settings})  # type: ignore[arg-type]

    monkeypatch.setattr(hub_module, "_consumers", {})
    monkeypatch.setattr(hub_module, "BlockingConsumer", make)
    return settings


def test_a_service_without_the_extension_gives_the_same_rows(
    hub_service: HubService, filled_hub: str, consumer_settings: dict[str, object]
) -> None:
    """Azure sends events one by one, each with its own annotations: every column comes out the same."""
    task = _task(PartitionRange("0", 100, 700))
    batched = _rows(read_ranges(_options(hub_service, filled_hub), task, EVENT_COLUMNS))
    consumer_settings["is_batch_delivery_wanted"] = False
    hub_module._consumers.clear()
    single = _rows(read_ranges(_options(hub_service, filled_hub), task, EVENT_COLUMNS))
    assert [row["sequenceNumber"] for row in single] == list(range(100, 700))
    assert single == batched


@pytest.mark.slow
def test_more_tasks_than_receivers_wait_for_their_turn(hub_service: HubService, filled_hub: str) -> None:
    """Retries and speculation add to the readers that were planned: without a level, and with names of their
    own, none pushes out another, and those beyond five wait until one of them ends."""
    with ExitStack() as stack:
        connection_string = hub_service.hub_connection_string(filled_hub)
        consumers = [
            stack.enter_context(BlockingConsumer(connection_string, receiver_name=f"r{index}"))
            for index in range(8)
        ]
        readings = [each.read_encoded("0", 0, _COUNT, is_continued=False) for each in consumers]
        firsts = [list(next(reading).sequence_numbers) for reading in readings[:5]]
        pool = stack.enter_context(ThreadPoolExecutor(3))
        late = [pool.submit(_numbers, each) for each in readings[5:]]
        deadline = time.monotonic() + 30
        while not all(each._state.keeps_none_until for each in consumers[5:]):
            assert time.monotonic() < deadline, "nobody was made to wait"
            time.sleep(0.01)
        assert not any(each.done() for each in late)
        found = [first + _numbers(reading) for first, reading in zip(firsts, readings[:5], strict=True)]
        found += [each.result(60) for each in late]
    assert found == [list(range(_COUNT))] * 8


def test_a_processor_that_has_the_group_is_named(hub_service: HubService) -> None:
    """With what to do here: the service's own words are of epochs, which the source has no option for."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 3)
    task = _task(PartitionRange("0", 0, 3))

    def open_with_level(server: TidegateServer) -> None:
        partition = server.broker.event_hub(hub).partition("0")
        partition.open_receiver("$Default", name="host", owner_level=1, on_stolen=lambda _: None)

    hub_service.ask(open_with_level)
    with pytest.raises(ReceiverStolenError, match=r"group \$Default .*: stop it, or name another"):
        _rows(read_ranges(_options(hub_service, hub), task, ["sequenceNumber"]))


def _numbers(chunks: Iterator[EncodedEvents]) -> list[int]:
    return [number for chunk in chunks for number in chunk.sequence_numbers]


def test_pieces_read_what_the_whole_range_does(
    hub_service: HubService, filled_hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut into tasks, the range comes once and in order; none of the readers is kept for a next range."""
    monkeypatch.setattr("tidegate.spark.source.offsets.TASK_EVENTS", 100)
    options = _options(hub_service, filled_hub)
    pieces = split_ranges([PartitionRange("0", 3, 1999)], 8)
    assert len(pieces) == 4
    numbers = [
        row["sequenceNumber"]
        for piece in pieces
        for row in _rows(read_ranges(options, _task(piece), ["sequenceNumber"]))
    ]
    assert numbers == list(range(3, 1999))


def test_a_larger_micro_batch_has_more_tasks(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own events, not by all there are. The end keeps their number, also for a reader that is started
    again with other options; an end of an older version, which has none, goes by the options."""
    monkeypatch.setattr("tidegate.spark.source.offsets.TASK_EVENTS", 10)
    hub = hub_service.create_hub(partition_count=8)
    publish(hub_service.connection_string, hub, 80)
    options = _options(hub_service, hub, tasksMin="2", tasksMax="6")
    reader = EventHubsStreamReader(options)
    others = EventHubsStreamReader(_options(hub_service, hub, tasksMax="3"))
    start = reader.initialOffset()
    ends = [reader.latestOffset(start, limit) for limit in (ReadMaxRows(16), ReadMaxRows(40))]
    ends.append(reader.latestOffset(ends[1], ReadAllAvailable()))
    ends.append(reader.latestOffset(start, ReadAllAvailable()))
    assert [StreamOffset.from_json(end).layout for end in ends] == [
        TaskLayout(count, is_split=False) for count in (2, 4, 4, 6)
    ]
    for each in (reader, others):
        assert [len(each.partitions(start, end)) for end in ends] == [2, 4, 4, 6]
    assert reader.latestOffset(ends[3], ReadAllAvailable()) == ends[3], "nothing new is no micro-batch"
    old = msgspec.structs.replace(StreamOffset.from_json(ends[1]), layout=None).to_json()
    assert [len(each.partitions(start, old)) for each in (reader, others)] == [4, 3]
    assert len(EventHubsBatchReader(options).partitions()) == 6
    alone = EventHubsStreamReader(_options(hub_service, hub, tasksMin="500"))
    layout = StreamOffset.from_json(alone.latestOffset(start, ReadAllAvailable())).layout
    assert layout == TaskLayout(500, is_split=False), "without tasksMax, the cores do not forbid it"


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    ["tidegate.spark.source.reader._SHORT_EVENTS", "tidegate.client.blocking.consumer._TOGETHER_BYTES"],
)
def test_retention_overtakes_a_task_that_reads(
    hub_service: HubService,
    consumer_settings: dict[str, object],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    """What was fetched is given out, then comes the error; or the loss is told, and the rest is read.

    limit: so that the range is read as a long one, or as a short one that does not come whole at once.
    """
    monkeypatch.setattr(limit, 1)
    consumer_settings["prefetch_bytes"] = 4096
    for is_strict in (True, False):
        hub = hub_service.create_hub(partition_count=1)
        options = _options(hub_service, hub, failOnDataLoss=str(is_strict).lower())
        _publish_large(hub_service, hub, 60)
        batches = read_ranges(options, _task(PartitionRange("0", 0, 70)), ["sequenceNumber"])
        numbers = [row["sequenceNumber"] for row in _rows(iter([next(batches)]))]
        delete_all(hub_service, hub)
        publish(hub_service.connection_string, hub, 10, first_value=60)
        if is_strict:
            with pytest.raises(PositionOutOfRangeError, match="first available one is 60"):
                _rows(batches)
            continue
        with caplog.at_level("WARNING"):
            numbers += [row["sequenceNumber"] for row in _rows(batches)]
        missing = 60 - numbers.index(60)
        assert missing > 0
        assert numbers == [*range(60 - missing), *range(60, 70)]
        assert f"{missing} events are gone" in caplog.text


def _publish_large(service: HubService, hub: str, count: int) -> None:
    """Events of 100 kB, of which a delivery holds ten."""

    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            for _ in range(count // 5):
                await producer.send([EventData(bytes(100_000))] * 5, partition_id="0")

    asyncio.run(send())


_credentials_made: list[str] = []


def make_credential() -> SharedKeyCredential:
    """What the option ``credential`` names in the test below, in the place of Entra ID's."""
    _credentials_made.append("one")
    parsed = ConnectionString.parse(_credential_source[0])
    assert parsed.shared_access_key_name is not None
    assert parsed.shared_access_key is not None
    return SharedKeyCredential(parsed.shared_access_key_name, parsed.shared_access_key)


_credential_source: list[str] = []


def test_a_named_credential_is_made_where_it_is_used(hub_service: HubService, filled_hub: str) -> None:
    """No secret is in the options then; the function is called in the process that connects."""
    parsed = ConnectionString.parse(hub_service.connection_string)
    keyless = f"Endpoint=sb://{parsed.host}:{parsed.port};UseDevelopmentEmulator=true;EntityPath={filled_hub}"
    _credential_source[:] = [hub_service.connection_string]
    given = {"connectionString": keyless, "credential": f"{__name__}:make_credential"}
    options = SourceOptions.parse(given)
    assert len(_rows(read_ranges(options, _task(PartitionRange("0", 0, 10)), ["body"]))) == 10
    assert _credentials_made
    missing = SourceOptions.parse({**given, "credential": "no_such_module:f"})
    with pytest.raises(InvalidArgumentError, match="No module named 'no_such_module'"):
        HubReader(missing)

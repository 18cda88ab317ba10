"""The stream over Capture and log by itself, without a Spark: every event once, in order, whatever moves."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.capture_support import START_S, azure_record, capture_to_end, write_file
from tests.spark.support import make_pipeline, publish

from tidegate.model.errors import EventHubReplacedError, InvalidArgumentError, PositionOutOfRangeError
from tidegate.server.app import TidegateServer
from tidegate.spark.capture.names import CaptureFile
from tidegate.spark.capture.plan import FileRange
from tidegate.spark.capture.replay_index import first_missing, split_at
from tidegate.spark.capture.replay_source import (
    ReplayInputPartition,
    ReplayStreamReader,
    check_replayable,
    parse_options,
    plan_replay,
)
from tidegate.spark.pipelines.pipeline import sink_options
from tidegate.spark.source.offsets import PartitionRange, StreamOffset
from tidegate.sql import ConsumerKey, Database, UnitOfWork
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

COLUMNS = ("partition", "sequenceNumber", "body")


def drop_all(service: HubService, hub: str) -> None:
    """What retention does when all events so far are too old."""

    async def apply(server: TidegateServer) -> None:
        for partition in server.broker.event_hub(hub).partitions:
            await partition.apply_retention(before_ms=2**60, bytes_max=None)
            assert partition.begin_sequence_number == partition.next_sequence_number

    service.call(apply)


def make_reader(service: HubService, hub: str, path: Path, **options: str) -> ReplayStreamReader:
    """A reader whose partitions without a checkpoint begin with the first captured event."""
    source = {"eventhubs.connectionString": service.hub_connection_string(hub), **options}
    replay, positions = plan_replay(source, {"path": str(path)})
    given = {**source, **replay, "eventhubs.startingPositions": positions}
    return ReplayStreamReader(parse_options(given)[0], COLUMNS, parse_options(given)[1])


def read_batch(reader: ReplayStreamReader, start: dict[str, object], limit: int | None) -> dict[str, object]:
    """The end of the micro-batch after ``start``."""
    return reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))


def events_of(reader: ReplayStreamReader, start: dict[str, object], end: dict[str, object]) -> pa.Table:
    """All rows of a micro-batch, partition by partition as a task has them."""
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return pa.Table.from_batches(batches, schema=batches[0].schema if batches else pa.schema([]))


@pytest.mark.slow
def test_a_shadow_ends_at_the_live_checkpoint(
    hub_service: HubService, tmp_path: Path, sqlite_url: str
) -> None:
    """It reads with the live pipeline's consumer group, captured events too, and what is available to it is
    what the live pipeline has processed; of a partition that this has not begun, nothing."""
    hub = hub_service.create_hub(partition_count=3)
    publish(hub_service.connection_string, hub, 60)
    capture_to_end(hub_service, hub, str(tmp_path), size_bytes=1000)
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 30, first_value=60)
    with Database.open(sqlite_url) as database:
        for partition_id, until in (("0", 25), ("1", 10)):
            with UnitOfWork(database, ConsumerKey(hub)) as unit:
                unit.advance(partition_id, unit.lock(partition_id), until)
    options = {"consumerGroup": "$Default~v2", "startingPosition": f"checkpoint:{sqlite_url}"}
    reader = make_reader(hub_service, hub, tmp_path, **{f"eventhubs.{key}": options[key] for key in options})
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = read_batch(reader, start, None)
    assert StreamOffset.from_json(end).partitions == {"0": 25, "1": 10, "2": 0}
    found = events_of(reader, start, end)
    assert sorted(zip(found["partition"].to_pylist(), found["sequenceNumber"].to_pylist(), strict=True)) == [
        *(("0", number) for number in range(25)),
        *(("1", number) for number in range(10)),
    ]


@pytest.mark.slow
def test_every_event_once_while_capture_and_retention_go_on(hub_service: HubService, tmp_path: Path) -> None:
    """Micro-batches of any size; meanwhile events come, files are written, the front is dropped."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    hub = hub_service.create_hub(partition_count=2)
    sent = 300
    publish(hub_service.connection_string, hub, sent)
    capture_to_end(hub_service, hub, str(tmp_path), size_bytes=1000)
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 60, first_value=sent)
    sent += 60
    reader = make_reader(hub_service, hub, tmp_path)
    offset = reader.initialOffset()
    assert StreamOffset.from_json(offset).partitions == {"0": 0, "1": 0}
    expected = {"0": 0, "1": 0}
    kinds = set()
    while sum(expected.values()) < sent:
        end = read_batch(reader, offset, rng.choice((None, 7, 40, 90)))
        kinds |= {type(task) for task in reader.partitions(offset, end)}
        for row in events_of(reader, offset, end).to_pylist():
            assert row["sequenceNumber"] == expected[row["partition"]], f"seed {seed}"
            value = 2 * row["sequenceNumber"] + int(row["partition"])
            assert row["body"] == b'{"value": %d}' % value, f"seed {seed}"
            expected[row["partition"]] += 1
        offset = end
        if rng.random() < 0.5 and sent < 600:
            publish(hub_service.connection_string, hub, 40, first_value=sent)
            sent += 40
            capture_to_end(hub_service, hub, str(tmp_path), size_bytes=1000)
            drop_all(hub_service, hub)
    assert sum(expected.values()) == sent
    assert ReplayInputPartition in kinds


@pytest.mark.slow
def test_what_is_nowhere_is_named_by_number(hub_service: HubService, tmp_path: Path) -> None:
    """Strictly an error with what was wanted and what there is; else it goes on there, in order."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 20)
    capture_to_end(hub_service, hub, str(tmp_path))
    publish(hub_service.connection_string, hub, 5, first_value=20)
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 5, first_value=25)
    reader = make_reader(hub_service, hub, tmp_path)
    start = reader.initialOffset()
    end = read_batch(reader, start, None)
    with pytest.raises(PositionOutOfRangeError, match=r"number 20 was wanted.*available one is 25"):
        reader.partitions(start, end)
    lenient = make_reader(hub_service, hub, tmp_path, failOnDataLoss="false")
    end = read_batch(lenient, start, None)
    assert events_of(lenient, start, end)["sequenceNumber"].to_pylist() == [*range(20), *range(25, 30)]


def test_a_hole_within_a_file_is_noticed(hub_service: HubService, tmp_path: Path) -> None:
    """Nothing of a file but its ends is known when a micro-batch is planned."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 10)
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 2, first_value=10)
    later_s = START_S + 10 * 365 * 86_400  # no older than the hub
    records = [azure_record(n, later_s) for n in (0, 1, 2, 5, 6, 7, 8, 9)]
    write_file(tmp_path, records, event_hub=hub, time_s=later_s)
    reader = make_reader(hub_service, hub, tmp_path)
    start = reader.initialOffset()
    end = read_batch(reader, start, None)
    with pytest.raises(PositionOutOfRangeError, match=r"number 3 was wanted.*available one is 5"):
        events_of(reader, start, end)
    lenient = make_reader(hub_service, hub, tmp_path, failOnDataLoss="false")
    end = read_batch(lenient, start, None)
    assert events_of(lenient, start, end)["sequenceNumber"].to_pylist() == [0, 1, 2, *range(5, 12)]


@pytest.mark.slow
def test_a_hub_made_anew_is_another_hub(hub_service: HubService, tmp_path: Path) -> None:
    """Neither the old checkpoint nor the old files count in it; its own files do."""
    hub, path = hub_service.create_hub(partition_count=1), tmp_path / "capture"
    publish(hub_service.connection_string, hub, 10)
    capture_to_end(hub_service, hub, str(path))
    source = {"eventhubs.connectionString": hub_service.hub_connection_string(hub)}
    database = f"sqlite:///{tmp_path}/tidegate.db"
    sink_options(make_pipeline(hub), source, database, is_transformed=False)

    async def replace(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)
        # Times of capture files are compared in seconds.
        second = int(SystemClock().now_utc().timestamp())
        while int(SystemClock().now_utc().timestamp()) == second:  # noqa: ASYNC110  the clock is what is waited for
            await asyncio.sleep(0.01)
        await server.broker.create_event_hub(hub, partition_count=1)

    hub_service.call(replace)
    publish(hub_service.connection_string, hub, 4)
    with pytest.raises(InvalidArgumentError, match="no captured events of the event hub"):
        make_reader(hub_service, hub, path)
    capture_to_end(hub_service, hub, str(path))
    with pytest.raises(EventHubReplacedError, match="deleted and created again"):
        sink_options(make_pipeline(hub), source, database, is_transformed=False)
    drop_all(hub_service, hub)
    reader = make_reader(hub_service, hub, path)
    start = reader.initialOffset()
    found = events_of(reader, start, read_batch(reader, start, None))
    assert found["body"].to_pylist() == [b'{"value": %d}' % value for value in range(4)]


def test_options_that_would_leave_events_out_are_refused(hub_service: HubService) -> None:
    """A replay of some partitions would look like one of all."""
    source = {"connectionString": hub_service.hub_connection_string("any"), "capture.path": "/x"}
    for name in ("partitions", "endingTime"):
        with pytest.raises(InvalidArgumentError, match=rf"capture\.{name} would exclude events"):
            parse_options({**source, f"capture.{name}": "0"})


def test_a_transformation_that_asks_the_log_is_refused() -> None:
    """Where the sink would read dropped events again."""
    with pytest.raises(InvalidArgumentError, match="dropped the column 'enqueuedTime'"):
        check_replayable(["partition", "sequenceNumber", "offset"], make_pipeline("hub"))
    check_replayable(["offset", "enqueuedTime"], make_pipeline("hub"))


def test_ranges_are_cut_and_holes_found() -> None:
    """The seam belongs to the log; files may overlap."""
    wanted = PartitionRange("0", 10, 20)
    assert split_at(wanted, 15) == (PartitionRange("0", 10, 15), PartitionRange("0", 15, 20))
    assert split_at(wanted, 10) == (None, wanted)
    assert split_at(wanted, 99) == (wanted, None)
    files = [
        FileRange(CaptureFile("f", "n", "h", "0", 0, 0), a, b, 0) for a, b in ((0, 12), (11, 15), (16, 30))
    ]
    assert first_missing(files, wanted) == 15
    assert first_missing(files, PartitionRange("0", 10, 15)) is None
    assert first_missing([], wanted) == 10

"""A stream whose offsets are of a log that was restored from a backup since ends with an error."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.client.test_histories import send
from tests.spark.support import make_pipeline, publish

from tidegate.model.errors import LogDivergedError
from tidegate.spark import Trigger, run_pipeline
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.offsets import JsonObject, StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsStreamReader, RangesInputPartition
from tidegate.sql import CheckpointReader, Database
from tidegate.testing.hub import HubService

_HUB = "telemetry"


def _options(service: HubService, **more: str) -> SourceOptions:
    return SourceOptions.parse({"connectionString": service.hub_connection_string(_HUB), **more})


def _reader(service: HubService) -> EventHubsStreamReader:
    """A query that was started again."""
    return EventHubsStreamReader(_options(service))


def _read(service: HubService, start: JsonObject) -> tuple[JsonObject, int]:
    """The next micro-batch: where it ends, and how many events it has."""
    reader = _reader(service)
    end = reader.latestOffset(start, ReadAllAvailable())
    count = 0
    for task in reader.partitions(start, end):
        count += sum(batch.num_rows for batch in reader.read(task))
    return end, count


@pytest.mark.slow
def test_a_query_ends_at_a_restored_log_that_has_grown_again(tmp_path: Path) -> None:
    """150 events were read, the backup has 50 and grows to 200: none of these is skipped or read.

    Restarts of service and query in between, and offsets without a history, are read on as before.
    """
    service = HubService(tmp_path / "log")
    with service:
        service.create_hub(_HUB, partition_count=1)
        asyncio.run(send(service, 50))
        start = _reader(service).initialOffset()
        offset, count = _read(service, start)
        assert count == 50
        assert _read(service, offset) == (offset, 0)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    for more in (10, 90):
        with service:
            assert _read(service, offset) == (offset, 0)  # no micro-batch for the restart alone
            asyncio.run(send(service, more))
            before, (offset, count) = offset, _read(service, offset)
            assert count == more
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        asyncio.run(send(service, 150))
        with pytest.raises(LogDivergedError, match="sequence number 149 was read in the history"):
            _reader(service).latestOffset(offset, ReadAllAvailable())
        with pytest.raises(LogDivergedError, match="startingPositions"):  # a repeat of the last micro-batch
            _reader(service).partitions(before, offset)
        found = StreamOffset.from_json(offset)
        plain = StreamOffset(found.partitions, found.event_hub_created_at_ms).to_json()
        assert _read(service, plain)[1] == 50


def _transform(rows: DataFrame) -> DataFrame:
    number = rows.sequenceNumber.cast("int")
    return rows.select("partition", "sequenceNumber", number.alias("number"), number.alias("value"))


@pytest.mark.slow
@pytest.mark.parametrize("is_short", [True, False])
def test_a_task_that_was_planned_before_the_restore_ends_with_an_error(
    tmp_path: Path, is_short: bool
) -> None:
    """The driver has compared the log when it planned the task; the executor reads another one."""
    service = HubService(tmp_path / "log")
    with service:
        service.create_hub(_HUB, partition_count=1)
        asyncio.run(send(service, 50))
        start = _reader(service).initialOffset()
    shutil.copytree(service.data_dir, tmp_path / "backup")
    with service:
        asyncio.run(send(service, 100))
        reader = _reader(service)
        (task,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    assert isinstance(task, RangesInputPartition)
    if not is_short:
        task = RangesInputPartition((replace(task.ranges[0], is_last_piece=False),))
    with service:
        asyncio.run(send(service, 150))
        with pytest.raises(LogDivergedError, match="startingPositions"):
            list(reader.read(task))


@pytest.mark.parametrize("is_transformed", [False, True])
def test_the_checkpoints_of_a_pipeline_have_the_history(
    spark: SparkSession, tmp_path: Path, sqlite_url: str, is_transformed: bool
) -> None:
    """With and without a transformation; a query that starts at them, with a new checkpoint directory, ends
    with an error if the log was restored since."""
    service = HubService(tmp_path / "log")
    with service:
        service.create_hub(_HUB, partition_count=2)
        publish(service.connection_string, _HUB, 60)
    shutil.copytree(service.data_dir, tmp_path / "backup")
    with service:
        publish(service.connection_string, _HUB, 60)
        query = run_pipeline(
            spark,
            make_pipeline(_HUB),
            connection_string=service.connection_string,
            database_url=sqlite_url,
            checkpoint_location=tmp_path / "checkpoint",
            transform=_transform if is_transformed else None,
            trigger=Trigger(is_available_now=True),
        )
        assert query.awaitTermination(300)
        bounds = HubReader(_options(service)).describe().bounds
        found = CheckpointReader(Database.shared(sqlite_url)).read(make_pipeline(_HUB).consumer)
        assert {key: (each.next_sequence_number, each.history_id) for key, each in found.items()} == {
            key: (each.next_sequence_number, each.histories[-1].history_id) for key, each in bounds.items()
        }
    shutil.rmtree(service.data_dir)
    shutil.copytree(tmp_path / "backup", service.data_dir)
    with service:
        publish(service.connection_string, _HUB, 120)
        starting = _options(service, **{"eventhubs.startingPosition": f"checkpoint:{sqlite_url}"})
        with pytest.raises(LogDivergedError, match="checkpoint set"):
            EventHubsStreamReader(starting).initialOffset()

"""A stream whose offsets are of a log that was restored from a backup since ends with an error."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.client.test_histories import send

from tidegate.model.errors import LogDivergedError
from tidegate.spark.source.offsets import JsonObject, StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsStreamReader
from tidegate.testing.hub import HubService

_HUB = "telemetry"


def _reader(service: HubService) -> EventHubsStreamReader:
    """A query that was started again."""
    options = SourceOptions.parse({"connectionString": service.hub_connection_string(_HUB)})
    return EventHubsStreamReader(options)


def _read(service: HubService, start: JsonObject) -> tuple[JsonObject, int]:
    """The next micro-batch: where it ends, and how many events it has."""
    reader = _reader(service)
    end = reader.latestOffset(start, ReadAllAvailable())
    count = 0
    for task in reader.partitions(start, end):
        count += sum(batch.num_rows for batch in reader.read(task))
    return end, count


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

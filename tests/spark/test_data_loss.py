"""Events that are deleted before they were read: named where that is an error, passed over where asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.support import publish

from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.errors import (
    CheckpointGapError,
    EventHubReplacedError,
    InvalidArgumentError,
    PositionOutOfRangeError,
)
from tidegate.server.app import TidegateServer
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.offsets import PartitionRange, StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.ownership import claim_checkpoints
from tidegate.spark.source.reader import EventHubsStreamReader, RangesInputPartition, _read_range, read_ranges
from tidegate.sql import ConsumerKey, Database
from tidegate.testing.hub import HubService
from tidegate.wire.encoded_events import EncodedEvents


@pytest.fixture
def emptied_hub(hub_service: HubService) -> str:
    """A hub of one partition: retention has deleted the first ten of its fifteen events."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 10)
    delete_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 5, first_value=10)
    return hub


def delete_all(service: HubService, hub: str) -> None:
    """What retention does when all events are too old."""

    async def apply(server: TidegateServer) -> None:
        partition = server.broker.event_hub(hub).partition("0")
        assert await partition.apply_retention(before_ms=2**60, bytes_max=None) == 1

    service.call(apply)


def _options(service: HubService, hub: str, **options: str) -> SourceOptions:
    return SourceOptions.parse({"connectionString": service.hub_connection_string(hub), **options})


def _numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.column("sequenceNumber").to_numpy()]


@pytest.mark.parametrize("until", [8, 15])
@pytest.mark.slow
def test_retention_between_planning_and_reading(
    hub_service: HubService, emptied_hub: str, until: int
) -> None:
    """A task whose range is gone, whole or in front, says so by number, or reads the rest of it."""
    task = RangesInputPartition((PartitionRange("0", 0, until),))
    with pytest.raises(PositionOutOfRangeError, match=r"number 0 was wanted.*first available one is 10"):
        _numbers(read_ranges(_options(hub_service, emptied_hub), task, EVENT_COLUMNS))
    lenient = _options(hub_service, emptied_hub, failOnDataLoss="false")
    assert _numbers(read_ranges(lenient, task, EVENT_COLUMNS)) == list(range(10, max(until, 10)))


def test_retention_before_planning(
    hub_service: HubService, emptied_hub: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that was down for too long ends with an error, or goes on with what is there."""
    created_at_ms = HubReader(_options(hub_service, emptied_hub)).describe().created_at_ms
    start = StreamOffset({"0": 3}, created_at_ms, {"0": 100}).to_json()
    strict = EventHubsStreamReader(_options(hub_service, emptied_hub))
    with pytest.raises(PositionOutOfRangeError, match=r"number 3 was wanted.*7 events are gone"):
        strict.latestOffset(start, ReadAllAvailable())
    lenient = EventHubsStreamReader(_options(hub_service, emptied_hub, failOnDataLoss="false"))
    end = lenient.latestOffset(start, ReadAllAvailable())
    reached = msgspec.structs.replace(
        StreamOffset.from_json(end), layout=None, histories={}
    )  # which goes by this machine's cores
    assert reached == StreamOffset({"0": 15}, created_at_ms, {"0": 107})
    with caplog.at_level("WARNING"):
        (task,) = lenient.partitions(start, end)
    assert f"The event hub {emptied_hub!r}: Partition 0: sequence number 3 was wanted" in caplog.text
    assert _numbers(lenient.read(task)) == [10, 11, 12, 13, 14]
    # An offset that was journalled before the loss was seen is refused where it is read, too.
    with pytest.raises(PositionOutOfRangeError, match="number 3 was wanted"):
        EventHubsStreamReader(_options(hub_service, emptied_hub)).partitions(start, end)


def test_a_hub_made_anew_is_gone_on_with_where_asked(
    hub_service: HubService, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false: from the new hub's beginning, and what is known to be lost is counted."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 12)
    lenient = EventHubsStreamReader(_options(hub_service, hub, failOnDataLoss="false"))
    first = lenient.initialOffset()
    middle = lenient.latestOffset(first, ReadMaxRows(4))
    replace_hub(hub_service, hub)
    publish(hub_service.connection_string, hub, 3)
    with caplog.at_level("WARNING"):
        end = lenient.latestOffset(middle, ReadAllAvailable())
    assert "was deleted and created again" in caplog.text
    offset = StreamOffset.from_json(end)
    assert (offset.partitions, offset.lost_events) == ({"0": 3}, {"0": 8})
    (task,) = lenient.partitions(middle, end)
    assert _numbers(lenient.read(task)) == [0, 1, 2]
    # The micro-batch that was planned in the old hub and repeated after a restart has nothing left.
    restarted = EventHubsStreamReader(_options(hub_service, hub, failOnDataLoss="false"))
    assert restarted.partitions(first, middle) == []
    strict = EventHubsStreamReader(_options(hub_service, hub))
    with pytest.raises(EventHubReplacedError, match="deleted and created again"):
        strict.partitions(first, middle)
    with pytest.raises(EventHubReplacedError, match="deleted and created again"):
        strict.latestOffset(middle, ReadAllAvailable())


def replace_hub(service: HubService, hub: str) -> None:
    """Delete a hub and make one of the same name."""

    async def replace(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)
        await server.broker.create_event_hub(hub, partition_count=1)

    service.call(replace)


def test_a_restart_after_a_loss_that_was_passed_over(
    hub_service: HubService, emptied_hub: str, tmp_path: Path
) -> None:
    """A micro-batch of lost events commits nothing to SQL; that is no reason to refuse the next start."""
    url = f"sqlite:///{tmp_path}/tidegate.db"
    created_at_ms = HubReader(_options(hub_service, emptied_hub)).describe().created_at_ms
    claim_checkpoints(
        Database.shared(url),
        ConsumerKey(emptied_hub),
        event_hub_created_at_ms=created_at_ms,
        start_sequence_numbers={"0": 0},
        begin_sequence_numbers={"0": 0},
    )
    from_sql = {"startingPosition": f"checkpoint:{url}", "failOnDataLoss": "false"}
    reader = EventHubsStreamReader(_options(hub_service, emptied_hub, **from_sql))
    start = StreamOffset({"0": 10}, created_at_ms).to_json()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert StreamOffset.from_json(end).partitions == {"0": 15}
    ahead = StreamOffset({"0": 11}, created_at_ms).to_json()
    with pytest.raises(CheckpointGapError, match="ahead of the database"):
        EventHubsStreamReader(_options(hub_service, emptied_hub, **from_sql)).latestOffset(
            ahead, ReadAllAvailable()
        )


class _HubWithHole:
    """Holds events 0 and 1 of five; asked a second time for the rest, it would be asked for ever."""

    def __init__(self) -> None:
        self.is_read = False

    def read(self, item: PartitionRange) -> Iterator[EncodedEvents]:
        """The two events, once."""
        assert not self.is_read
        self.is_read = True
        yield EncodedEvents([0, 1], [0, 0], ["0", "1"], [b"", b""])


def test_a_hole_at_the_end_of_a_range_is_a_loss(hub_service: HubService) -> None:
    """Logs of other services may have holes: reading over one ends, and says what is missing."""
    item = PartitionRange("0", 0, 5)
    strict = _options(hub_service, "any")
    with pytest.raises(PositionOutOfRangeError, match="number 2 was wanted"):
        list(_read_range(cast(HubReader, _HubWithHole()), item, strict))
    lenient = _options(hub_service, "any", failOnDataLoss="false")
    (events,) = _read_range(cast(HubReader, _HubWithHole()), item, lenient)
    assert events.sequence_numbers == [0, 1]


def test_a_position_of_a_partition_that_is_not_there_is_refused(
    hub_service: HubService, emptied_hub: str
) -> None:
    """A misspelt partition would otherwise start at its default without a word."""
    positions = '{"0": "latest", "7": "latest"}'
    reader = EventHubsStreamReader(_options(hub_service, emptied_hub, startingPositions=positions))
    with pytest.raises(InvalidArgumentError, match=r"partition 7, which.*Its partitions are 0"):
        reader.initialOffset()

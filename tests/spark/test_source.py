"""The format ``eventhubs`` against the real service, in a real Spark."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.spark.support import publish

from tidegate.client import EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.spark import explain
from tidegate.sql import Database
from tidegate.testing.hub import HubService

_COUNT = 400


@pytest.fixture(scope="module")
def filled_hub(hub_service: HubService) -> str:
    """A connection string with EntityPath of a hub with four partitions of 100 events each."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, _COUNT)
    return hub_service.hub_connection_string(hub)


def _read(spark: SparkSession, connection_string: str, **options: str) -> DataFrame:
    reader = spark.read.format("eventhubs").option("eventhubs.connectionString", connection_string)
    return reader.options(**{f"eventhubs.{name}": value for name, value in options.items()}).load()


def test_a_batch_query_reads_every_column_of_every_event(spark: SparkSession, filled_hub: str) -> None:
    """Names, types and values are those of the JVM connector; nothing is missing and nothing double."""
    rows = _read(spark, filled_hub).collect()
    assert len(rows) == _COUNT
    assert {json.loads(row.body)["value"] for row in rows} == set(range(_COUNT))
    assert {(row.partition, row.sequenceNumber) for row in rows} == {
        (str(partition), number) for partition in range(4) for number in range(_COUNT // 4)
    }
    for row in rows:
        value = json.loads(row.body)["value"]
        assert row.partition == str(value % 4)
        assert row.offset == str(row.sequenceNumber)
        assert row.properties == {"parity": "odd" if value % 2 else "even"}
        assert (row.publisher, row.partitionKey, row.systemProperties) == (None, None, {})
        age_s = datetime.now(UTC).timestamp() - row.enqueuedTime.astimezone(UTC).timestamp()  # noqa: TID251
        assert -1 < age_s < 600


def test_positions_bound_a_batch_query(spark: SparkSession, filled_hub: str) -> None:
    """From and to sequence numbers, half open; per partition; and from a time that is an event's own."""
    rows = _read(
        spark,
        filled_hub,
        startingPosition='{"seqNo": 10}',
        endingPosition='{"seqNo": 20}',
        startingPositions='{"3": {"seqNo": 10, "isInclusive": false}}',
    )
    counts = {row.partition: row["count"] for row in rows.groupBy("partition").count().collect()}
    assert counts == {"0": 10, "1": 10, "2": 10, "3": 9}
    middle = _read(spark, filled_hub).where("partition = '1' and sequenceNumber = 50").first()
    assert middle is not None
    time = middle.enqueuedTime.astimezone(UTC).isoformat()
    from_time = _read(spark, filled_hub, startingPosition=json.dumps({"enqueuedTime": time}))
    first = from_time.where("partition = '1'").agg({"sequenceNumber": "min"}).first()
    assert first is not None
    # Events of one batch share their time, so the first one at that time may lie before the 50th.
    assert 0 <= first[0] <= 50
    assert from_time.where(f"enqueuedTime < timestamp '{time}'").count() == 0
    assert _read(spark, filled_hub, startingPosition="latest").count() == 0


def test_a_key_becomes_a_column(spark: SparkSession, hub_service: HubService, filled_hub: str) -> None:
    """Partition keys are read from the annotations of the stored event."""
    hub = hub_service.create_hub(partition_count=2)

    async def send() -> None:
        async with EventHubProducer.from_connection_string(hub_service.connection_string, hub) as producer:
            await producer.send([EventData(b"x", {"n": 1, "b": True})], partition_key="device-1")

    asyncio.run(send())
    (row,) = _read(spark, hub_service.hub_connection_string(hub)).collect()
    assert (row.partitionKey, row.properties) == ("device-1", {"n": "1", "b": "true"})


def test_a_private_authority_is_trusted_by_option(
    spark: SparkSession, hub_service: HubService, filled_hub: str
) -> None:
    """Over TLS, with the service's own certificate authority in `eventhubs.caFile`."""
    hub = ConnectionString.parse(filled_hub).entity_path
    assert hub is not None
    over_tls = ConnectionString.parse(hub_service.ready.connection_string).with_entity_path(hub).format()
    assert _read(spark, over_tls, caFile=str(hub_service.ready.ca_file)).count() == _COUNT


def test_a_stream_in_websockets(
    spark: SparkSession, hub_service: HubService, filled_hub: str, tmp_path: Path
) -> None:
    """By the connection string alone: where only the port of HTTPS leads outside."""
    assert hub_service.ready.https is not None
    parsed = ConnectionString.parse(hub_service.ready.connection_string)
    port = int(hub_service.ready.https.rpartition(":")[2])
    hub = ConnectionString.parse(filled_hub).entity_path
    string = replace(parsed, port=port, is_websocket=True, entity_path=hub).format()
    stream = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", string)
        .option("eventhubs.caFile", str(hub_service.ready.ca_file))
        .option("eventhubs.startingPosition", "earliest")
        .load()
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("websockets")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("websockets").count() == _COUNT


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingPositon": "latest"},
            "The format eventhubs has no option 'eventhubs.startingpositon'. Did you mean "
            "eventhubs.startingPosition? Its options are",
        ),
        ({"maxEventsPerTrigger": "5"}, "The option maxEventsPerTrigger is for streams"),
    ],
)
def test_a_bad_option_reaches_the_user_as_one_sentence(
    spark: SparkSession, filled_hub: str, options: dict[str, str], sentence: str
) -> None:
    """Spark wraps our error in a hundred lines; ``explain`` finds it, and no key is in it."""
    with pytest.raises(PySparkException) as caught:
        _read(spark, filled_hub, **options).count()
    assert explain(caught.value).startswith(sentence)


def test_an_unknown_hub_is_named(spark: SparkSession, hub_service: HubService) -> None:
    """A misspelt hub does not look like an empty one."""
    with pytest.raises(PySparkException) as caught:
        _read(spark, hub_service.hub_connection_string("nowhere")).count()
    assert "nowhere" in explain(caught.value)


def test_an_unknown_consumer_group_is_named_with_the_command(spark: SparkSession, filled_hub: str) -> None:
    """Whether a task finds it out, or planning, which asks for the first event at a time."""
    time = '{"enqueuedTime": "2020-01-01T00:00:00Z"}'
    for options in ({}, {"startingPosition": time}):
        with pytest.raises(PySparkException) as caught:
            _read(spark, filled_hub, consumerGroup="nobodys", **options).count()
        hub = ConnectionString.parse(filled_hub).entity_path
        sentence = explain(caught.value)
        assert f"'{hub}/consumergroups/nobodys' could not be found" in sentence
        assert f"`tidegate group create {hub} nobodys`" in sentence


def test_a_position_beyond_the_end_names_its_option(spark: SparkSession, filled_hub: str) -> None:
    """With what helps there: an ending waits for nothing."""
    for option, position, words in (
        ("endingPosition", '{"seqNo": 900}', "set this partition's own end in eventhubs.endingPositions."),
        ("endingPositions", '{"2": {"seqNo": 900}}', "Use latest to end at each partition's present end"),
        ("startingPosition", '{"seqNo": 900}', "Use latest to wait for new events"),
        (
            "startingPositions",
            '{"2": {"seqNo": 900}}',
            "set this partition's own start in eventhubs.startingPositions.",
        ),
    ):
        with pytest.raises(PySparkException) as caught:
            _read(spark, filled_hub, **{option: position}).count()
        sentence = explain(caught.value)
        assert sentence.startswith(f"The option eventhubs.{option} names the sequence number 900, ")
        assert words in sentence
    with pytest.raises(PySparkException) as caught:
        _read(spark, filled_hub, endingPositions='{"9": "latest"}').count()
    assert "eventhubs.endingPositions has a position for partition 9" in explain(caught.value)


def test_a_start_at_a_database_that_is_not_there_makes_none(
    spark: SparkSession, filled_hub: str, tmp_path: Path
) -> None:
    """A misspelt path would read everything from the start; tables without this group's checkpoint do."""
    path = tmp_path / "new.db"
    options = {"startingPosition": f"checkpoint:sqlite:///{path}"}
    with pytest.raises(PySparkException) as caught:
        _read(spark, filled_hub, **options).count()
    assert explain(caught.value).startswith(
        f"The option eventhubs.startingPosition names the SQLite database {path}, which does not exist."
    )
    with pytest.raises(PySparkException) as caught:
        _stream_counts(spark, filled_hub, tmp_path / "cp", **options)
    assert "which does not exist" in explain(caught.value)
    assert not list(tmp_path.glob("new.db*"))
    Database.open(f"sqlite:///{path}").close()
    assert _read(spark, filled_hub, **options).count() == _COUNT


def _stream_counts(
    spark: SparkSession, connection_string: str, checkpoint: Path, **options: str
) -> list[tuple[int, int]]:
    """(batch id, rows) of the micro-batches that an availableNow query runs."""
    batches: list[tuple[int, int]] = []
    query = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", connection_string)
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda rows, batch_id: batches.append((batch_id, rows.count())))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def test_a_stream_reads_in_limited_micro_batches_and_goes_on(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """maxEventsPerTrigger bounds each micro-batch, availableNow drains, and a restart reads what is new."""
    hub = hub_service.create_hub(partition_count=4)
    connection_string = hub_service.hub_connection_string(hub)
    publish(hub_service.connection_string, hub, 100)
    first = _stream_counts(spark, connection_string, tmp_path / "cp", maxEventsPerTrigger="40")
    assert first == [(0, 40), (1, 40), (2, 20)]
    publish(hub_service.connection_string, hub, 8)
    second = _stream_counts(spark, connection_string, tmp_path / "cp", maxEventsPerTrigger="40")
    assert second == [(3, 8)]


def test_added_partitions_are_read_from_their_beginning(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """With the next micro-batch of a stream that runs, and after a restart from an older checkpoint; also
    where the stream once began at the newest event.
    """
    hub = hub_service.create_hub(partition_count=1)
    connection_string = hub_service.hub_connection_string(hub)
    publish(hub_service.connection_string, hub, 3)
    seen: list[tuple[str, int]] = []

    def note(rows: DataFrame, batch_id: int) -> None:
        seen.extend((row.partition, row.sequenceNumber) for row in rows.collect())

    def stream() -> DataStreamWriter:
        reader = spark.readStream.format("eventhubs").option("eventhubs.connectionString", connection_string)
        rows = reader.option("eventhubs.startingPosition", "latest").load()
        return rows.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "cp"))

    def grow(count: int) -> None:
        hub_service.call(lambda server: server.broker.update_event_hub(hub, partition_count=count))
        publish(hub_service.connection_string, hub, count)

    def wait_seen(count: int) -> None:
        deadline = time.monotonic() + 120
        while len(seen) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)

    query = stream().start()
    try:
        while not query.recentProgress:  # the stream has its start
            time.sleep(0.05)
        publish(hub_service.connection_string, hub, 1)
        wait_seen(1)
        grow(3)
        wait_seen(4)
    finally:
        query.stop()
    earlier = {("0", 3), ("0", 4), ("1", 0), ("2", 0)}
    assert set(seen) == earlier
    grow(5)
    # Also repeats a micro-batch that the stop has interrupted.
    stream().trigger(availableNow=True).start().awaitTermination()
    assert set(seen) == earlier | {("0", 5), ("1", 1), ("2", 1), ("3", 0), ("4", 0)}


def test_a_stream_starts_after_a_kill_within_its_first_note(
    spark: SparkSession, filled_hub: str, tmp_path: Path
) -> None:
    """The temporary file of a driver that was killed while it wrote its first offsets stops no restart."""
    offsets = tmp_path / "cp" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.27e2c03f-4d2a-4f0e-9d5c-2c9f0a4e6b11.tmp").write_text("v1\n")
    assert _stream_counts(spark, filled_hub, tmp_path / "cp") == [(0, _COUNT)]


def test_a_stream_has_no_ending_position(spark: SparkSession, filled_hub: str, tmp_path: Path) -> None:
    """The option would be ignored silently otherwise."""
    with pytest.raises(PySparkException) as caught:
        _stream_counts(spark, filled_hub, tmp_path / "cp", **{"eventhubs.endingPosition": "latest"})
    assert "availableNow" in explain(caught.value)


def test_a_hub_made_anew_is_not_mistaken_for_the_old_one(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """Sequence numbers start again in the new hub: going on from the old offset would leave events out."""
    hub = hub_service.create_hub(partition_count=1)
    connection_string = hub_service.hub_connection_string(hub)
    publish(hub_service.connection_string, hub, 3)
    _stream_counts(spark, connection_string, tmp_path / "cp")

    async def replace(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)
        await server.broker.create_event_hub(hub, partition_count=1)

    hub_service.call(replace)
    publish(hub_service.connection_string, hub, 9)
    with pytest.raises(PySparkException) as caught:
        _stream_counts(spark, connection_string, tmp_path / "cp")
    assert "was deleted and created again" in explain(caught.value)

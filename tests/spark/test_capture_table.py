"""Capture as a table in a real Spark: equal to the live table, pruned, each event once, errors that name."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.eventhub import EventData as SdkEventData
from azure.eventhub import EventHubProducerClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.capture_support import START_S, azure_record, capture_to_end, write_file
from tests.support.azurite import AzuriteServer

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData, PropertyValue
from tidegate.spark import explain
from tidegate.testing.hub import HubService


def _capture(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("eventhubs-capture").options(path=str(path), **options).load()


def _numbers(frame: DataFrame) -> list[int]:
    return sorted(row.sequenceNumber for row in frame.select("sequenceNumber").collect())


def _publish_all_kinds(service: HubService, hub: str) -> None:
    """Events of our producer and of the official SDK, with keys, properties of every type, a publisher."""
    properties: dict[str, PropertyValue] = {"n": 7, "big": 2**62, "x": 1.5, "b": b"\xff", "": "é"}
    properties |= {"yes": True, "none": None, "at": datetime(2026, 11, 20, 12, 0, 0, 5000, tzinfo=UTC)}

    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            await producer.send([EventData(b"%d" % n, {"n": n}) for n in range(300)], partition_id="0")
            whole = EventData(b"whole", properties, "text/plain", "m-1", "c-1")
            await producer.send([whole, EventData(b"")], partition_key="device-1")

        async with EventHubProducer.from_connection_string(
            service.connection_string, hub, publisher="meter-7"
        ) as producer:
            await producer.send([EventData(b"named", {"n": 1})])

    asyncio.run(send())
    client = EventHubProducerClient.from_connection_string(service.hub_connection_string(hub))
    with client:
        batch = client.create_batch(partition_key="schlüssel")
        event = SdkEventData("text body")
        event.properties = {b"bytes": b"value", "n": 5, "x": 0.25, "yes": False, "none": None}
        event.message_id, event.content_type = "m-2", "application/json"
        batch.add(event)
        client.send_batch(batch)


@pytest.fixture(scope="module")
def captured_hub(hub_service: HubService, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A hub with events of all kinds, and where the service's Capture wrote them."""
    hub = hub_service.create_hub(partition_count=4)
    _publish_all_kinds(hub_service, hub)
    path = tmp_path_factory.mktemp("capture")
    capture_to_end(hub_service, hub, str(path), size_bytes=1000)
    return hub, path


@pytest.mark.programs
@pytest.mark.sdk
def test_captured_events_are_the_live_ones(
    spark: SparkSession, hub_service: HubService, captured_hub: tuple[str, Path]
) -> None:
    """Column by column, to the millisecond, whoever published and whatever the properties are."""
    hub, path = captured_hub
    order = ["partition", "sequenceNumber"]
    live = spark.read.format("eventhubs").option("connectionString", hub_service.hub_connection_string(hub))
    expected = live.load().orderBy(*order)
    found = _capture(spark, path).orderBy(*order)
    assert found.schema == expected.schema
    assert len(list(path.rglob("*.avro"))) > 4
    rows = found.collect()
    assert rows == expected.collect()
    assert len(rows) == 304
    chosen = spark.read.format("eventhubs-capture").schema("sequenceNumber LONG, partition STRING")
    few = chosen.option("path", str(path)).load()
    assert few.columns == ["sequenceNumber", "partition"]
    assert few.orderBy(*order).collect() == expected.select("sequenceNumber", "partition").collect()


@pytest.mark.sdk
def test_captured_events_in_blob_storage(
    spark: SparkSession,
    hub_service: HubService,
    azurite: AzuriteServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By URL; the account's key is in no plan and no error."""
    hub = hub_service.create_hub(partition_count=2)
    _publish_all_kinds(hub_service, hub)
    container = azurite.create_container()
    with monkeypatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
        capture_to_end(hub_service, hub, f"az://{container}/folder")
    secret = {"storageConnectionString": azurite.connection_string()}
    table = _capture(spark, f"az://{container}/folder", eventHubName=hub, namespace="ns-none", **secret)
    with pytest.raises(PySparkException) as caught:
        table.count()
    assert "There is nothing at az://" in explain(caught.value)
    assert azurite.account_key not in str(caught.value)
    table = _capture(spark, f"az://{container}/folder", tasksMax="1", **secret)
    assert table.count() == 304
    assert azurite.account_key not in table._jdf.queryExecution().toString()


def test_files_of_azure(spark: SparkSession, tmp_path: Path) -> None:
    """Its schema, sparse offsets, times of seconds, null bodies, both codecs, files without events."""
    records = [
        azure_record(n, START_S + n, Properties={"n": n, "x": 2.5}, Body=None if n == 3 else b"b")
        for n in range(9)
    ]
    write_file(tmp_path, records[:5], namespace="evh", codec="deflate")
    write_file(tmp_path, [], namespace="evh", time_s=START_S + 300)
    write_file(tmp_path, records[5:], namespace="evh", time_s=START_S + 600)
    write_file(tmp_path, [], namespace="evh", partition_id="1")
    rows = _capture(spark, tmp_path).orderBy("sequenceNumber").collect()
    assert [row.sequenceNumber for row in rows] == list(range(9))
    row = rows[3]
    assert (row.body, row.partition, row.offset) == (None, "0", "264")
    assert row.enqueuedTime.astimezone(UTC) == datetime.fromtimestamp(START_S + 3, UTC)
    assert (row.publisher, row.partitionKey, row.systemProperties) == (None, None, {})
    assert row.properties == {"n": "3", "x": "2.5"}


def test_times_partitions_and_filters(spark: SparkSession, tmp_path: Path) -> None:
    """Half open in time; what no query needs is not even opened: those files are no Avro."""
    for partition in range(3):
        for hour in range(4):
            time_s = START_S + hour * 3600
            events = [azure_record(hour * 10 + n, time_s + n) for n in range(10)]
            write_file(tmp_path, events, time_s=time_s, partition_id=str(partition))
    (tmp_path / "ns/hub/2/2026/11/20/12/00/00.avro").write_bytes(b"not to be opened")
    (tmp_path / "ns/hub/0/2026/11/20/12/00/00.avro").write_bytes(b"not to be opened")
    start, end = (datetime.fromtimestamp(START_S + s, UTC) for s in (2 * 3600 + 3, 3 * 3600 + 2))
    bounded = _capture(
        spark,
        tmp_path,
        partitions="0,1",
        startingTime=start.isoformat(),
        endingTime=end.isoformat(),
        retentionHours="1",
    )
    assert _numbers(bounded) == sorted([*range(23, 32)] * 2)
    table = _capture(spark, tmp_path, pushFilters="true")
    assert _numbers(table.where("partition = '1' and sequenceNumber between 8 and 11")) == [8, 9, 10, 11]
    later = f"enqueuedTime >= timestamp '{start.isoformat()}' and partition in ('0', '2')"
    assert len(_numbers(table.where(later))) == 34


def test_files_that_overlap_give_each_event_once(spark: SparkSession, tmp_path: Path) -> None:
    """As after a restart of Capture with an older state: also where a large partition is split over tasks."""
    for first in range(0, 3000, 300):
        records = [azure_record(n, START_S + n) for n in range(max(first - 100, 0), first + 300)]
        write_file(tmp_path, records, time_s=START_S + first)
    write_file(tmp_path, [azure_record(n, START_S + n) for n in range(3100, 3200)], time_s=START_S + 3100)
    table = _capture(spark, tmp_path, tasksMax="4")
    assert _numbers(table) == [*range(3000), *range(3100, 3200)]


def test_a_hub_made_anew_is_not_mixed_in(spark: SparkSession, tmp_path: Path) -> None:
    """Its numbers begin again, so one of its events would silently stand for another's."""
    write_file(tmp_path, [azure_record(n, START_S + n) for n in range(20)])
    write_file(tmp_path, [azure_record(n, START_S + 9000 + n) for n in range(30)], time_s=START_S + 9000)
    with pytest.raises(PySparkException) as caught:
        _capture(spark, tmp_path).count()
    assert "deleted and created again" in explain(caught.value)
    later = (datetime.fromtimestamp(START_S, UTC) + timedelta(hours=2)).isoformat()
    assert _capture(spark, tmp_path, startingTime=later).count() == 30


def test_a_bad_file_is_named_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """One error with the file's name; with skipBadFiles the rest is read, and what is before the damage."""
    write_file(tmp_path, [azure_record(n) for n in range(10)])
    events = [azure_record(n) for n in range(10, 500)]
    cut = write_file(tmp_path, events, time_s=START_S + 60, block_bytes=2000)
    cut.write_bytes(cut.read_bytes()[:-100])
    foreign = write_file(tmp_path, [], time_s=START_S + 120)
    foreign.write_bytes(b"PAR1")
    with pytest.raises(PySparkException) as caught:
        _capture(spark, tmp_path).count()
    assert "12/01/00.avro is truncated. Move it away" in explain(caught.value)
    numbers = _numbers(_capture(spark, tmp_path, skipBadFiles="true"))
    assert numbers == list(range(len(numbers)))
    assert 10 < len(numbers) < 500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startTime": "x"}, "The format eventhubs-capture has no option 'starttime'"),
        ({"startingTime": "2026-11-20"}, "The option startingTime has no time zone"),
        ({"partitions": "a"}, "The option partitions must be a list of partition ids"),
        ({"nameFormat": "{Year}"}, "The capture name format"),
        ({"path": "az://c/f?sig=secret"}, "The option path is a URL with a query or a password"),
        ({"storageOptions": "[]"}, "The option storageOptions is not a JSON object"),
        ({"path": "/nowhere/at/all"}, "There is nothing at /nowhere/at/all"),
        ({"path": "nosuch://x/y"}, "Cannot open nosuch://x/y"),
    ],
)
def test_bad_options_reach_the_user(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    """Each is refused by name, and no secret is repeated."""
    with pytest.raises(PySparkException) as caught:
        _capture(spark, **{"path": str(tmp_path), **options}).count()
    assert explain(caught.value).startswith(sentence)
    assert "sig=" not in str(caught.value)


def test_a_hub_or_partition_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A misspelt one does not look like one without events; a time without events is an empty table."""
    write_file(tmp_path, [azure_record(n) for n in range(3)], event_hub="telemetry")
    write_file(tmp_path, [azure_record(0)], event_hub="telemetry", partition_id="2")
    with pytest.raises(PySparkException) as caught:
        _capture(spark, tmp_path, eventHubName="telemtry").count()
    assert explain(caught.value).startswith(
        f"There are no files of the event hub telemtry at {tmp_path}. "
        "Correct the option eventHubName: there are files of ns/telemetry (namespace/event hub,"
    )
    with pytest.raises(PySparkException) as caught:
        _capture(spark, tmp_path, partitions="7").count()
    assert explain(caught.value) == (
        f"There are no files of partition 7 of the event hub 'telemetry' at {tmp_path}. "
        "Correct the option partitions: there are files of 0, 2."
    )
    assert _capture(spark, tmp_path, partitions="2,7").count() == 1
    assert _capture(spark, tmp_path, startingTime="2030-01-01T00:00:00Z").count() == 0
    assert _capture(spark, tmp_path).where("partition = '7'").count() == 0


def test_nothing_captured_yet_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    """Where there is no file at all, no name can be called wrong."""
    assert _capture(spark, tmp_path, eventHubName="telemetry", partitions="0").count() == 0


def test_a_stream_of_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """With the way that there is instead."""
    stream = spark.readStream.format("eventhubs-capture").option("path", str(tmp_path))
    with pytest.raises(PySparkException) as caught:
        stream.load().writeStream.format("noop").start().awaitTermination(30)
    assert "is a table, not a stream" in explain(caught.value)
    assert "tidegate pipeline replay" in explain(caught.value)

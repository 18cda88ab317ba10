"""The sink ``eventhubs`` against the real service: what arrives, what is refused, and what a repeat does."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.docs_support import write_programs
from tests.spark.support import publish

from tidegate.client import BlockingConsumer, BlockingProducer
from tidegate.model.errors import RepeatDiffersError
from tidegate.model.events import EventData
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.spark import explain
from tidegate.spark.hub_sink.options import HubSinkOptions
from tidegate.spark.hub_sink.writer import write_task
from tidegate.spark.runtime.workers import TaskIdentity
from tidegate.testing.hub import HubService
from tidegate.wire.event_codec import decode_event, encode_event

_DEADLINE_S = 240


def events_of(service: HubService, hub: str) -> dict[str, list[tuple[bytes, str | None, dict[str, object]]]]:
    """By partition: body, key and properties of every event, in order."""
    found: dict[str, list[tuple[bytes, str | None, dict[str, object]]]] = {}
    with BlockingConsumer(service.connection_string, hub) as consumer:
        for partition in consumer.get_all_partition_properties():
            chunks = consumer.read_encoded(partition.partition_id, 0, partition.next_sequence_number)
            events = [decode_event(message) for chunk in chunks for message in chunk.messages]
            found[partition.partition_id] = [
                (event.body, event.partition_key, dict(event.properties)) for event in events
            ]
    return found


def _bodies(service: HubService, hub: str) -> list[bytes]:
    return sorted(body for events in events_of(service, hub).values() for body, _, _ in events)


def _write(frame: DataFrame, service: HubService, hub: str, **options: str) -> None:
    writer = frame.write.format("eventhubs").mode("append")
    writer = writer.option("eventhubs.connectionString", service.hub_connection_string(hub))
    writer.options(**{f"eventhubs.{name}": value for name, value in options.items()}).save()


def _stream(
    spark: SparkSession,
    service: HubService,
    source: str,
    target: str,
    checkpoint: Path,
    *,
    tasks_max: int = 2,
    **options: str,
) -> None:
    """Copy what there is from one hub to another, keyed by the value's last digit."""
    value = sf.get_json_object(sf.col("body").cast("string"), "$.value")
    query = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", service.hub_connection_string(source))
        .option("eventhubs.maxEventsPerTrigger", "400")
        .option("eventhubs.tasksMax", str(tasks_max))
        .load()
        .select("body", sf.substring(value, -1, 1).alias("partitionKey"), "properties")
        .writeStream.format("eventhubs")
        .option("eventhubs.connectionString", service.hub_connection_string(target))
        .options(**{f"eventhubs.{name}": value for name, value in options.items()})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_DEADLINE_S)


def test_a_batch_query_writes_every_column(spark: SparkSession, hub_service: HubService) -> None:
    """Rows with a partition, with a key and with neither, with properties and without, in their order."""
    hub = hub_service.create_hub(partition_count=4)
    frame = spark.range(0, 300, 1, 3).select(
        sf.concat(sf.lit("body-"), sf.col("id").cast("string")).alias("body"),
        sf.when(sf.col("id") % 3 == 0, sf.lit("2")).alias("partition"),
        sf.when(sf.col("id") % 3 == 1, sf.concat(sf.lit("key-"), (sf.col("id") % 7).cast("string"))).alias(
            "partitionKey"
        ),
        sf.when(sf.col("id") % 2 == 0, sf.create_map(sf.lit("even"), sf.lit("yes"))).alias("properties"),
    )
    _write(frame, hub_service, hub)
    found = events_of(hub_service, hub)
    seen = set()
    for partition, events in found.items():
        numbers_by_key: dict[str | None, list[int]] = {}
        for body, key, properties in events:
            number = int(body.removeprefix(b"body-"))
            seen.add(number)
            assert properties == ({"even": "yes"} if number % 2 == 0 else {})
            assert key == (f"key-{number % 7}" if number % 3 == 1 else None)
            assert number % 3 != 0 or partition == "2"
            assert key is None or partition == str(partition_for_key(key, 4))
            numbers_by_key.setdefault(key, []).append(number // 100)
        # Order holds within a task, of which there are three with 100 rows each.
        assert sum(map(len, numbers_by_key.values())) == len(events)
    assert seen == set(range(300))
    assert sum(map(len, found.values())) == 300


def test_a_write_with_an_id_is_stored_once(spark: SparkSession, hub_service: HubService) -> None:
    """Run twice with a writeId: once in the log. Run without: another write. Other rows under it: refused."""
    hub = hub_service.create_hub(partition_count=2)
    frame = spark.range(0, 50, 1, 2).select(sf.col("id").cast("string").alias("body"))
    _write(frame, hub_service, hub, writeId="daily-2026-11-22")
    _write(frame, hub_service, hub, writeId="daily-2026-11-22")
    assert len(_bodies(hub_service, hub)) == 50
    with pytest.raises(Exception, match="was first sent with other rows") as caught:
        _write(
            frame.select(sf.concat("body", sf.lit("!")).alias("body")),
            hub_service,
            hub,
            writeId="daily-2026-11-22",
        )
    assert "eventhubs.idempotent=false" in explain(caught.value)
    _write(frame, hub_service, hub)
    assert len(_bodies(hub_service, hub)) == 100


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["id"], {}, "has no column 'id'"),
        (["partition"], {}, "requires the column body"),
        (
            ["id AS body"],
            {},
            "The column body is of type bigint; the sink eventhubs requires binary or string",
        ),
        (["'a' AS body", "map('a', 1) AS properties"], {}, "requires map<string,string>"),
        (["'a' AS body"], {"consumerGroup": "x"}, "has no option 'eventhubs.consumergroup'"),
        (["'a' AS body"], {"idempotent": "maybe"}, "eventhubs.idempotent must be true or false"),
        (["'a' AS body"], {"caFile": "/nowhere"}, "no such file"),
        (["cast(null AS string) AS body"], {}, "Row 0 of the task has no body"),
        (["repeat('a', 1200000) AS body"], {}, "is an event of 12000"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    spark: SparkSession,
    hub_service: HubService,
    columns: list[str],
    options: dict[str, str],
    words: str,
) -> None:
    """Columns, options and rows; nothing is stored and the sentence says what to do."""
    hub = hub_service.create_hub(partition_count=1)
    frame = spark.range(0, 3, 1, 1).withColumn("partition", sf.lit("0"))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which class Spark makes of it does not matter
        _write(frame.selectExpr(*columns), hub_service, hub, **options)
    assert words in explain(caught.value)
    assert _bodies(hub_service, hub) == []


@pytest.mark.programs
def test_a_micro_batch_that_is_run_again_stores_nothing_twice(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """Spark's record of the last commit is deleted, as if the driver had died before it: nothing changes.

    Where the repeat has other rows, it is refused, and passes with numbers turned off.
    """
    source, target = hub_service.create_hub(partition_count=4), hub_service.create_hub(partition_count=3)
    publish(hub_service.connection_string, source, 1000)
    checkpoint = tmp_path / "checkpoint"
    _stream(spark, hub_service, source, target, checkpoint)
    stored = events_of(hub_service, target)
    assert {json.loads(body)["value"] for body in _bodies(hub_service, target)} == set(range(1000))
    for tasks_max in (2, 1, 4):
        # Started again with other tasks: the micro-batch keeps those that it was planned with.
        _forget_last_commit(checkpoint)
        _stream(spark, hub_service, source, target, checkpoint, tasks_max=tasks_max)
        assert events_of(hub_service, target) == stored
    publish(hub_service.connection_string, source, 300, first_value=1000)
    _stream(spark, hub_service, source, target, checkpoint)
    assert len(_bodies(hub_service, target)) == 1300


@pytest.mark.slow
def test_added_partitions_are_used_from_the_next_micro_batch_on(hub_service: HubService) -> None:
    """An attempt that repeats a micro-batch in the same worker cuts it as the first one did."""
    hub = hub_service.create_hub(partition_count=2)
    connection_string = hub_service.hub_connection_string(hub)
    options = HubSinkOptions.parse({"eventhubs.connectionString": connection_string}, is_stream=True)
    keys = [f"device-{number}" for number in range(100)]
    rows = pa.RecordBatch.from_pydict({"body": keys, "partitionKey": keys})
    first, second = (TaskIdentity("query", batch_id, 0) for batch_id in range(2))
    assert write_task(options, first, iter([rows])).found_count == 0
    stored = events_of(hub_service, hub)
    hub_service.call(lambda server: server.broker.update_event_hub(hub, partition_count=5))
    assert write_task(options, first, iter([rows])).found_count == len(keys)
    assert events_of(hub_service, hub) == stored | {each: [] for each in ("2", "3", "4")}
    assert write_task(options, second, iter([rows])).found_count == 0
    for partition_id, events in events_of(hub_service, hub).items():
        added = [key for _, key, _ in events[len(stored.get(partition_id, ())) :]]
        assert added == [key for key in keys if partition_for_key(key, 5) == int(partition_id)]


def test_a_worker_with_a_tracer_provider_links_to_the_contexts_in_its_rows(
    hub_service: HubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One span per task; the rows' properties stay as they are, so that a repeat is recognised. Text that is
    not UTF-8, as Spark casts it from bytes, is sent with U+FFFD."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hub = hub_service.create_hub(partition_count=1)
    connection_string = hub_service.hub_connection_string(hub)
    options = HubSinkOptions.parse({"eventhubs.connectionString": connection_string}, is_stream=True)
    contexts = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]
    properties = [
        {"traceparent": contexts[0], "Diagnostic-Id": contexts[0], "tracestate": "a=b"},
        {"Diagnostic-Id": contexts[1]},
        {"traceparent": "invalid", "kind": "x"},
        {},
        None,
    ]
    schema = pa.schema([("body", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))])
    listed = [None if each is None else list(each.items()) for each in properties]
    rows = pa.RecordBatch.from_pydict({"body": list("abcde"), "properties": listed}, schema)
    starts: Any = pa.array([0, 1], pa.int32())
    cast = pa.MapArray.from_arrays(starts, pa.array(["traceparent"]), pa.array([b"\xff"]).view(pa.string()))
    strange = pa.RecordBatch.from_pydict({"body": ["f"], "properties": cast}, schema)
    identity = TaskIdentity("traced", 0, 0)
    write_task(options, identity, iter([rows, strange]))
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)  # set_tracer_provider works once in a process
        repeated = write_task(options, identity, iter([rows, strange, rows.select(["body"]).slice(0, 0)]))
    assert repeated.found_count == len(properties) + 1
    (span,) = exporter.get_finished_spans()
    assert span.name == f"send {hub}"
    assert sorted(link.context.span_id for link in span.links) == [1, 2]
    stored = [found for _, _, found in events_of(hub_service, hub)["0"]]
    assert stored == [*(each or {} for each in properties), {"traceparent": "\ufffd"}]
    provider.shutdown()


def test_a_micro_batch_cut_for_fewer_partitions_is_refused_before_anything_is_stored_twice(
    hub_service: HubService,
) -> None:
    """The driver died in a micro-batch, partitions were added, and the query is started again."""
    hub = hub_service.create_hub(partition_count=2)
    connection_string = hub_service.hub_connection_string(hub)
    options = HubSinkOptions.parse({"eventhubs.connectionString": connection_string}, is_stream=True)
    keys = [f"device-{number}" for number in range(100)]
    rows = pa.RecordBatch.from_pydict({"body": keys, "partitionKey": keys})
    identity = TaskIdentity("interrupted", 0, 0)
    write_task(options, identity, iter([rows]))
    hub_service.call(lambda server: server.broker.update_event_hub(hub, partition_count=5))
    write_task(options, TaskIdentity("another query", 0, 0), iter(()))  # so this worker knows of them
    with pytest.raises(RepeatDiffersError):
        write_task(options, identity, iter([rows]))
    assert sorted(_bodies(hub_service, hub)) == sorted(key.encode() for key in keys)


def test_the_example_of_the_reference_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted as it stands, in a session that there is already: both hubs then hold what the page says.

    So they do if others send events that the sink refuses, as it would with the same key or properties.
    """
    monkeypatch.chdir(write_programs(tmp_path))
    with HubService() as service:
        monkeypatch.setenv("TIDEGATE_CONNECTION_STRING", service.connection_string)
        for hub in ("telemetry", "warm"):
            service.create_hub(hub, partition_count=2)
        _send_what_the_sink_refuses(service, "telemetry", monkeypatch)
        runpy.run_path("copy_readings.py")
        spark.sparkContext.setLogLevel("OFF")
        assert sorted(_bodies(service, "telemetry"))[-2:] == [
            b'{"device":"a1","celsius":21.5}',
            b'{"device":"b2","celsius":19.0}',
        ]
        copied = [event for events in events_of(service, "warm").values() for event in events]
        assert sorted((body, key) for body, key, _ in copied) == [
            (b'{"celsius":30}', "k" * 128),
            (b'{"device":"a1","celsius":21.5}', "a1"),
        ]


def _send_what_the_sink_refuses(service: HubService, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long key within a batch, as any AMQP client may send it; and an event that grows over the limit."""
    with BlockingProducer(service.connection_string, hub) as producer, monkeypatch.context() as patch:
        start = b'{"celsius":31,"x":"'
        large = start + b"x" * (EVENT_BYTES_MAX - 1_700 - len(start)) + b'"}'
        producer.send([EventData(large, {f"p{number:03}": True for number in range(200)})], partition_id="0")
        for module in ("producer", "batching"):
            patch.setattr(
                f"tidegate.client.{module}.encode_event", lambda event, *_: encode_event(event, "k" * 129)
            )
        producer.send([EventData(b'{"celsius":30}')], partition_id="0")


def _forget_last_commit(checkpoint: Path) -> None:
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)

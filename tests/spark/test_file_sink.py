"""The sink ``eventhubs-files`` in a real Spark: on a disk and on Azurite, with micro-batches run again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.spark.support import publish
from tests.support.azurite import AzuriteServer

from tidegate.spark import explain
from tidegate.spark.file_sink.commits import published_files
from tidegate.spark.file_sink.storage import SinkFolder
from tidegate.testing.hub import HubService

_DEADLINE_S = 240


def _stream(spark: SparkSession, connection_string: str, checkpoint: Path, path: str, **options: str) -> str:
    """Write what there is; returns what Spark shows of the query: its plan, and its progress."""
    events = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", connection_string)
        .option("eventhubs.maxEventsPerTrigger", "200")
        .option("eventhubs.tasksMax", options.pop("tasksMax", "2"))
        .load()
    )
    value = sf.get_json_object(sf.col("body").cast("string"), "$.value").cast("long")
    query = (
        events.select(value.alias("value"), "partition", "sequenceNumber", "enqueuedTime", "properties")
        .writeStream.format("eventhubs-files")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(path)
    )
    assert query.awaitTermination(_DEADLINE_S)
    return f"{query._jsq.explainInternal(True)} {query.lastProgress}"


def _forget_last_commit(checkpoint: Path) -> None:
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def test_a_micro_batch_that_is_run_again_leaves_no_stray(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """Run again after its manifest was written, and before, with one task where there were two.

    Spark's own Parquet reader sees each row once, with the folders' column, and nothing that is hidden.
    """
    hub = hub_service.create_hub(partition_count=4)
    connection_string = hub_service.hub_connection_string(hub)
    publish(hub_service.connection_string, hub, 500)
    checkpoint, place = tmp_path / "checkpoint", tmp_path / "files"
    _stream(spark, connection_string, checkpoint, str(place), partitionColumns="partition")
    first = sorted(place.rglob("*.parquet"))
    _forget_last_commit(checkpoint)
    _stream(spark, connection_string, checkpoint, str(place), partitionColumns="partition")
    assert sorted(place.rglob("*.parquet")) == first
    # As if the driver had died while it published: some files moved, the manifest not yet marked.
    _forget_last_commit(checkpoint)
    last = sorted((place / "_tidegate/commits").iterdir())[-1]
    manifest = json.loads(last.read_text())
    moved_back = manifest["files"][0]
    (place / moved_back["staged"]).parent.mkdir(parents=True)
    (place / moved_back["name"]).rename(place / moved_back["staged"])
    last.write_text(json.dumps(manifest | {"is_published": False}))
    _stream(spark, connection_string, checkpoint, str(place), partitionColumns="partition", tasksMax="1")
    assert sorted(place.rglob("*.parquet")) == first
    rows = spark.read.parquet(str(place)).select("value", "partition", "properties").collect()
    assert sorted(row.value for row in rows) == list(range(500))
    assert all(int(row.partition) == row.value % 4 for row in rows)
    assert {row.properties["parity"] for row in rows} == {"odd", "even"}
    assert sorted(published_files(str(place))) == [str(path) for path in first]


def test_files_go_to_azure_blob_storage(
    spark: SparkSession, hub_service: HubService, azurite: AzuriteServer, tmp_path: Path
) -> None:
    """A container on Azurite: gzipped JSON lines by stream, Parquet by batch, and no key in any plan."""
    hub = hub_service.create_hub(partition_count=2)
    publish(hub_service.connection_string, hub, 300)
    path = f"az://{azurite.create_container()}/out"
    secrets = {"connection_string": azurite.connection_string()}
    connection_string = hub_service.hub_connection_string(hub)
    for _ in range(2):
        shown = _stream(
            spark,
            connection_string,
            tmp_path / "checkpoint",
            path,
            fileFormat="json",
            compression="gzip",
            storageConnectionString=azurite.connection_string(),
        )
        assert "eventhubs" in shown
        assert azurite.account_key not in shown
        _forget_last_commit(tmp_path / "checkpoint")
    files = published_files(path, secrets)
    folder = SinkFolder(path, secrets)
    assert [f"{path}/{name}" for name in folder.list("")] == sorted(files)
    values = []
    for name in folder.list(""):
        data = folder.read(name)
        assert data is not None
        values += [json.loads(line)["value"] for line in gzip.decompress(data).splitlines()]
    assert sorted(values) == list(range(300))


def _write(frame: DataFrame, path: Path, **options: str) -> None:
    frame.write.format("eventhubs-files").mode("append").options(**options).save(str(path))


def test_a_batch_query_appends_and_a_failed_one_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Twice is two writes; one whose task fails is as if it had not been."""
    place = tmp_path / "files"
    frame = spark.range(0, 20, 1, 2).select("id")
    _write(frame, place)
    _write(frame, place, compression="zstd")
    assert spark.read.parquet(str(place)).count() == 40
    failing = frame.select(
        sf.when(sf.col("id") == 19, sf.raise_error(sf.lit("on purpose"))).otherwise(sf.col("id")).alias("id")
    )
    with pytest.raises(Exception, match="on purpose"):
        _write(failing, place)
    assert spark.read.parquet(str(place)).count() == 40
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which class Spark makes of it does not matter
        _write(frame, place, partitionColumns="nobody")
    assert "names 'nobody', which is not a column" in explain(caught.value)

"""Capture: writing its files, and reading them as a table, against fastavro alone with the same events.

``python -m bench.capture_stages [EVENTS [EVENT_BYTES]]`` measures these stages by themselves, without Spark.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro

from bench.measure import Measurement, timed
from bench.report import print_table
from tidegate.capture.avro_file import AvroEncoder
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.capture import NAME_FORMAT_DEFAULT
from tidegate.model.events import EventData
from tidegate.spark.capture.files import list_capture_files, open_capture_files
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.plan import Piece
from tidegate.spark.capture.reader import CaptureReader, PiecesInputPartition
from tidegate.wire.batch import wrap_event
from tidegate.wire.capture import AVRO_SCHEMA, capture_file_name
from tidegate.wire.event_codec import encode_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES = 8
_START_MS = 1_700_000_000_000
_PROPERTIES = {"device": "d-1", "kind": "reading"}


def capture_write(bodies: Sequence[bytes], directory: Path) -> Measurement:
    """What Capture's threads do: stored events become files, 200 at a time as there; the disk included."""
    sections = [wrap_event(encode_event(EventData(body, _PROPERTIES))) for body in bodies]
    share = len(bodies) // _FILES
    with timed("Capture write", events=share * _FILES, payload_bytes=sum(map(len, bodies))) as measurement:
        for number in range(_FILES):
            path = directory / _name(number)
            path.parent.mkdir(parents=True)
            encoder = AvroEncoder(os.urandom(16))
            with path.open("wb") as file:
                for start in range(0, share, 200):
                    part = sections[number * share + start : number * share + min(start + 200, share)]
                    payload = memoryview(b"".join(part))
                    encoder.append(start, _START_MS + start, payload, list(map(len, part)))
                    file.write(encoder.take())
                file.write(encoder.finish())
    return measurement


def fastavro_read(
    directory: Path, events: int, payload_bytes: int
) -> tuple[Measurement, list[dict[str, Any]]]:
    """fastavro alone: the same files as Python objects, nothing else; one core. Also the records of one."""
    paths = sorted(directory.rglob("*.avro"))
    with timed("fastavro read", events=events, payload_bytes=payload_bytes) as measurement:
        for path in paths:
            with path.open("rb") as file:
                records = list(fastavro.reader(file))
    return measurement, records  # type: ignore[return-value]


def fastavro_write(records: list[dict[str, Any]], event_bytes: int, directory: Path) -> Measurement:
    """fastavro alone: records that are there already, to a file; one core."""
    payload_bytes = len(records) * event_bytes
    path = directory / "alone.avro"
    with (
        timed("fastavro write", events=len(records), payload_bytes=payload_bytes) as measurement,
        path.open("wb") as file,
    ):
        fastavro.writer(file, dict(AVRO_SCHEMA), records, sync_interval=64_000)
    path.unlink()
    return measurement


def capture_read(
    directory: Path, events: int, payload_bytes: int, columns: Sequence[str] = EVENT_COLUMNS
) -> Measurement:
    """What a task of the table does: files become Arrow columns; one core, no Spark around it."""
    options = CaptureOptions.parse({"path": str(directory)})
    files = list_capture_files(open_capture_files(options), options)
    piece = PiecesInputPartition(tuple(Piece(file.partition_id, (file,)) for file in files))
    names = "all columns" if columns is EVENT_COLUMNS else ", ".join(columns)
    # Imports and caches are paid once per worker, not per task.
    sum(1 for _ in CaptureReader(options, columns).read(PiecesInputPartition(piece.pieces[:1])))
    with timed(f"Capture read → Arrow ({names})", events=events, payload_bytes=payload_bytes) as measurement:
        rows = sum(batch.num_rows for batch in CaptureReader(options, columns).read(piece))
    assert rows == events
    return measurement


def spark_capture_read(spark: SparkSession, directory: Path, events: int, payload_bytes: int) -> Measurement:
    """All columns to Spark's ``noop`` sink, by all cores; Spark is warm."""
    from tidegate.spark import register

    register(spark)

    def read() -> None:
        frame = spark.read.format("eventhubs-capture").option("path", str(directory)).load()
        frame.write.format("noop").mode("overwrite").save()

    read()
    with timed(
        "Spark read of Capture → no-op", events=events, payload_bytes=payload_bytes, with_descendants=True
    ) as measurement:
        read()
    return measurement


def measure_capture(
    bodies: Sequence[bytes], directory: Path, spark: SparkSession | None
) -> tuple[list[Measurement], list[Measurement]]:
    """Baselines and stages, of the same run. spark: None leaves its stage out."""
    write = capture_write(bodies, directory)
    events, payload_bytes = write.events, write.payload_bytes
    alone, records = fastavro_read(directory, events, payload_bytes)
    alone_write = fastavro_write(records, len(bodies[0]), directory)
    stages = [
        write,
        capture_read(directory, events, payload_bytes),
        capture_read(directory, events, payload_bytes, ("partition", "sequenceNumber")),
    ]
    if spark is not None:
        stages.append(spark_capture_read(spark, directory, events, payload_bytes))
    write.compare_with(alone_write)
    for stage in stages[1:]:
        stage.compare_with(alone)
    return [alone, alone_write], stages


def _name(number: int) -> str:
    return capture_file_name(
        NAME_FORMAT_DEFAULT,
        namespace="bench",
        event_hub="bench",
        partition_id=str(number),
        time_s=_START_MS // 1000,
    )


if __name__ == "__main__":
    _events = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    _event_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as _directory:
        print_table(
            *measure_capture([os.urandom(_event_bytes) for _ in range(_events)], Path(_directory), None)
        )

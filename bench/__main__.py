"""Measure every stage and print events/s, MB/s, CPU per event, and ratios to baselines of the same run.

Run as ``make bench`` or ``python -m bench [--events N] [--event-bytes N] [--without-spark]
[--without-processor] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.support.postgresql import PostgresqlServer
from tests.support.servers import ServerMissingError

from bench import baselines, canned_service, processor_stages, stages
from bench.measure import Measurement
from bench.report import as_json, print_table
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.sql.handlers.batches import DEFAULT_COLUMNS
from tidegate.testing.hub import HubProcess

_PARTITIONS = 4
_HUB = "bench"
_SDK_HUB = "bench-sdk"
"""What the official SDK sends; the other hub then holds just what our producer sent."""
_PROCESSOR_HUB = "bench-processor"
_PROCESSOR_PARTITIONS = 16
_HOMES_EVENTS = 1_000_000
_progress = Console(stderr=True)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--events",
        type=int,
        default=200_000,
        help="events to publish, in all; Spark's stages have numbers of their own",
    )
    parser.add_argument("--event-bytes", type=int, default=1024, help="bytes of each event's body")
    parser.add_argument("--sdk-events", type=int, default=30_000, help="events for the official SDK's stages")
    parser.add_argument("--without-spark", action="store_true", help="leave the two Spark stages out")
    parser.add_argument(
        "--without-processor", action="store_true", help="leave the Event Processor Host's stages out"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, too ('-': stdout)"
    )
    arguments = parser.parse_args()
    events = arguments.events - arguments.events % _PARTITIONS
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        found_baselines, found_stages, homes = _measure(
            Path(name),
            events=events,
            event_bytes=arguments.event_bytes,
            sdk_events=min(arguments.sdk_events, events // _PARTITIONS),
            is_spark_used=not arguments.without_spark,
            is_processor_used=not arguments.without_processor,
        )
    if str(arguments.json) == "-":
        sys.stdout.write(as_json(found_baselines, found_stages, homes) + "\n")
        return
    print_table(found_baselines, found_stages)
    if arguments.json is not None:
        arguments.json.write_text(as_json(found_baselines, found_stages, homes))


def _measure(
    directory: Path,
    *,
    events: int,
    event_bytes: int,
    sdk_events: int,
    is_spark_used: bool,
    is_processor_used: bool,
) -> tuple[list[Measurement], list[Measurement], dict[str, object] | None]:
    """Baselines, stages, and what home security tells beside its rates (None: it was left out)."""
    # Random bodies, so that nothing on the way can compress or share them.
    bodies = [os.urandom(event_bytes) for _ in range(events)]
    payload_bytes = events * event_bytes
    _progress.print("measuring the baselines …")
    copy = baselines.loopback_copy(max(payload_bytes, 1 << 28), event_bytes)
    disk = baselines.disk_write(max(payload_bytes, 1 << 27), event_bytes, directory)
    encode = baselines.sdk_encode(bodies[:sdk_events])
    decode = baselines.sdk_decode(bodies[:sdk_events])
    rows = [
        (str(index % _PARTITIONS), index, "d-1", event_bytes, 1_700_000_000_000) for index in range(events)
    ]
    insert = baselines.sqlite_bulk_insert(rows, directory)
    found: list[Measurement] = []
    service = HubProcess(directory / "data")
    for hub in (_HUB, _SDK_HUB):
        service.create_hub(hub, partition_count=_PARTITIONS)
    service.create_hub(_PROCESSOR_HUB, partition_count=_PROCESSOR_PARTITIONS)
    with service:
        _progress.print("measuring ingest …")
        ingest = stages.ingest(service, _HUB, bodies, _PARTITIONS)
        ingest.compare_with(encode)
        ingest.compare_with(disk, by_bytes=True)
        ingest.compare_with(copy, by_bytes=True)
        _progress.print("measuring delivery …")
        delivery = stages.delivery(service, _HUB, event_bytes, _PARTITIONS)
        delivery.compare_with(decode)
        delivery.compare_with(copy, by_bytes=True)
        of_columns = [
            stages.arrow_delivery(service, _HUB, event_bytes, _PARTITIONS, columns)
            for columns in (EVENT_COLUMNS, DEFAULT_COLUMNS)
        ]
        for stage in of_columns:
            stage.compare_with(delivery)
            stage.compare_with(copy, by_bytes=True)
        _progress.print("measuring the official SDK …")
        sdk_bodies = bodies[:sdk_events]
        sdk_ingest = stages.sdk_ingest(
            "ingest, official SDK", service.connection_string, service.process_id, _SDK_HUB, sdk_bodies
        )
        sdk_delivery = stages.sdk_delivery(
            "delivery, official SDK",
            service.connection_string,
            service.process_id,
            _HUB,
            sdk_events,
            event_bytes,
        )
        sink, source = _measure_sdk_ceilings(sdk_bodies, event_bytes)
        sdk_ingest.compare_with(sink)
        sdk_ingest.compare_with(encode)
        sdk_delivery.compare_with(source)
        sdk_delivery.compare_with(decode)
        found += [ingest, delivery, *of_columns, sdk_ingest, sdk_delivery]
        processor_baselines: list[Measurement] = []
        if is_processor_used:
            _progress.print("measuring the Event Processor Host …")
            processor_baselines, hosts = _measure_processor(
                directory, service, bodies, sdk_events, event_bytes, rows, insert
            )
            found += hosts
        if is_spark_used:
            _progress.print("measuring Spark …")
            found += _measure_spark(directory, service, event_bytes, decode, ingest)
    homes: dict[str, object] | None = None
    if is_spark_used:
        stages_with_state, homes = _measure_spark_state(directory)
        found += stages_with_state
    capture_baselines: list[Measurement] = []
    if is_spark_used:
        _progress.print("measuring Capture …")
        capture_baselines, stages_of_capture = _measure_capture(directory / "capture", bodies)
        found += stages_of_capture
    all_baselines = [copy, disk, encode, decode, sink, source, insert]
    return [*all_baselines, *processor_baselines, *capture_baselines], found, homes


def _measure_sdk_ceilings(bodies: list[bytes], event_bytes: int) -> tuple[Measurement, Measurement]:
    """The official SDK against a peer that stores nothing and has everything ready."""
    with canned_service.running(event_bytes) as (connection_string, pid):
        sink = stages.sdk_ingest("official SDK → sink", connection_string, pid, _HUB, bodies)
        source = stages.sdk_delivery(
            "source → official SDK", connection_string, pid, _HUB, len(bodies), event_bytes
        )
    return sink, source


def _measure_processor(
    directory: Path,
    service: HubProcess,
    bodies: list[bytes],
    sdk_events: int,
    event_bytes: int,
    rows: Sequence[tuple[object, ...]],
    sqlite_insert: Measurement,
) -> tuple[list[Measurement], list[Measurement]]:
    """Baselines and stages of the Event Processor Host."""
    hub, count = _PROCESSOR_HUB, _PROCESSOR_PARTITIONS
    events = stages.ingest(service, hub, bodies, count).events
    official = processor_stages.official_processor(service, hub, sdk_events, event_bytes)
    host = processor_stages.directory_host(service, hub, events, event_bytes, directory)
    host.compare_with(official)
    baselines_found, found = [official], [host]
    with ExitStack() as stack:
        names = itertools.count()
        databases: list[tuple[str, Callable[[], str], list[Measurement]]] = [
            ("SQLite", lambda: f"sqlite:///{directory}/host-{next(names)}.db", [sqlite_insert])
        ]
        try:
            postgresql = stack.enter_context(PostgresqlServer(is_fsync_used=True))
        except ServerMissingError as error:
            _progress.print(f"without PostgreSQL: {error}")
        else:
            url = postgresql.create_schema()
            inserts = [baselines.postgresql_executemany(rows, url), baselines.postgresql_copy(rows, url)]
            baselines_found += inserts
            databases.append(("PostgreSQL", postgresql.create_schema, inserts))
        for kind, make_url, inserts in databases:
            for name, measure in (
                (f"host, Pipeline → {kind}", processor_stages.pipeline_host),
                (f"host, executemany → {kind}", processor_stages.statements_host),
            ):
                stage = measure(name, service, hub, events, event_bytes, make_url())
                for insert in inserts:
                    stage.compare_with(insert)
                found.append(stage)
    return baselines_found, found


def _measure_spark(
    directory: Path, service: HubProcess, event_bytes: int, decode: Measurement, ingest: Measurement
) -> list[Measurement]:
    """Stages of Spark over hubs of their own; pipelines into SQL beside the databases' own bulk loads."""
    # Imported here: a machine without the spark extra can still measure the rest.
    from bench import kafka, spark_stages
    from tidegate.spark.runtime.session import spark_session

    read_count, count, size = (
        spark_stages.READ_EVENTS,
        spark_stages.SMALL_EVENTS,
        spark_stages.SMALL_EVENT_BYTES,
    )
    rows = spark_stages.rows_expected(spark_stages.BULK_ROWS, size)
    spark = spark_session("tidegate-bench", configuration=kafka.spark_settings())
    try:
        reads: list[Measurement] = []
        for devices in spark_stages.DEVICES:
            hub = spark_stages.fill_hub(service, read_count, event_bytes, devices=devices)
            with kafka.reading(spark, read_count, event_bytes, devices=devices) as peer_read:
                rounds = spark_stages.spark_reads(
                    spark, service, hub, read_count, event_bytes, peer_read=peer_read, devices=devices
                )
            read, *of_kafka = spark_stages.median_round(rounds)
            read.compare_with(decode)
            reads += [read, *of_kafka]
        write = spark_stages.spark_write(spark, service, spark_stages.WRITE_EVENTS, event_bytes)
        write.compare_with(ingest)
        hub = spark_stages.fill_hub(service, count, size)

        def pipeline(name: str, **how: Any) -> Measurement:
            by_default = {"bulk_load": partial(baselines.sqlite_bulk_insert, rows, directory)}
            stage, *_ = spark_stages.exactly_once(
                spark, service, hub, count, size, directory, name=name, **by_default | how
            )
            return stage

        into_sqlite = pipeline("exactly-once → SQLite")
        columns_into_sqlite = pipeline(
            "exactly-once, Arrow function → SQLite", handler=spark_stages.ARROW_HANDLER
        )
        columns_into_sqlite.compare_with(baselines.sqlite_many_rows(rows, directory))
        found = [*reads, write, into_sqlite, columns_into_sqlite]
        try:
            with PostgresqlServer(is_fsync_used=True) as postgresql:
                url = postgresql.create_schema()
                into_postgresql = pipeline(
                    "exactly-once, Arrow function → PostgreSQL",
                    handler=spark_stages.ARROW_HANDLER,
                    make_url=postgresql.create_schema,
                    bulk_load=partial(baselines.postgresql_copy, rows, url),
                )
                into_postgresql.compare_with(baselines.postgresql_executemany(rows, url))
                found.append(into_postgresql)
        except ServerMissingError as error:
            _progress.print(f"without PostgreSQL: {error}")
    finally:
        spark.stop()
    return found


def _measure_spark_state(directory: Path) -> tuple[list[Measurement], dict[str, object] | None]:
    """Pipelines with state, in short: the ledger sink, and home security, whose state size and latency come
    beside its rates."""
    from bench import home_security, ledger_stages
    from tidegate.spark.runtime.session import spark_session

    found: list[Measurement] = []
    try:
        with PostgresqlServer(is_fsync_used=True) as postgresql:
            _progress.print("measuring the ledger sink …")
            spark = spark_session("tidegate-bench")
            try:
                for rows_per_batch in ledger_stages.BATCH_ROWS:
                    folder = directory / f"ledger-{rows_per_batch}"
                    folder.mkdir()
                    found += ledger_stages.measure_ledger(spark, postgresql, folder, rows_per_batch)
            finally:
                spark.stop()
    except ServerMissingError as error:
        _progress.print(f"without PostgreSQL: {error}")
        return found, None
    _progress.print("measuring home security …")
    runs, latency = home_security.measure(events=_HOMES_EVENTS, latency_s=10.0)
    home_security.print_runs(runs, latency, console=_progress)
    return found + home_security.measurements(runs), home_security.as_dict(runs, latency)


def _measure_capture(directory: Path, bodies: Sequence[bytes]) -> tuple[list[Measurement], list[Measurement]]:
    """Baselines and stages of Capture's files, and of the table over them."""
    from bench.capture_stages import measure_capture
    from tidegate.spark.runtime.session import spark_session

    spark = spark_session("tidegate-bench")
    try:
        return measure_capture(bodies, directory, spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

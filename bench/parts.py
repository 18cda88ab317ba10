"""The parts of ``make bench``: each starts what it needs, and can be measured by itself.

``PARTS`` is the list. A part is run in a process of its own (``bench.__main__``).
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from tests.support.postgresql import PostgresqlServer
from tests.support.servers import ServerMissingError

from bench import (
    baselines,
    canned_service,
    footprint,
    keyed_appends,
    peers,
    processor_stages,
    shapes,
    small_sends,
    stages,
)
from bench.measure import Figure, Found, Measurement, median, median_beside
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.sql.handlers.batches import DEFAULT_COLUMNS
from tidegate.testing.hub import HubProcess

_PARTITIONS: Final = 4
_HUB: Final = "bench"
_SDK_ROUNDS: Final = 3
_SENDS: Final = {"1 sender": 40.0, "64 senders, one link": 15.0}
"""Microseconds of user CPU that an event may cost the service."""
_P50_MS: Final = 2.0
_P99_MS: Final = 10.0
progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    events: int
    """Of each stage but Spark's, which have numbers of their own."""
    event_bytes: int
    is_quick: bool
    """Fewer events, and one round instead of three."""

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else 3

    @property
    def sdk_events(self) -> int:
        """For the official SDK."""
        return min(30_000, self.events // _PARTITIONS)

    def bodies(self) -> list[bytes]:
        """Random, so that nothing on the way can compress or share them."""
        return [os.urandom(self.event_bytes) for _ in range(self.events)]

    def rows(self) -> list[tuple[object, ...]]:
        """What a pipeline makes of them, for a database's own bulk load."""
        return [
            (str(number % _PARTITIONS), number, "d-1", self.event_bytes, 1_700_000_000_000)
            for number in range(self.events)
        ]


@dataclass(frozen=True, slots=True)
class Part:
    """One part."""

    name: str
    what: str
    measure: Callable[[Path, Load], Found]
    """Gets a folder of its own. May raise ServerMissingError: the machine lacks something."""


def _log(directory: Path, load: Load) -> Found:
    """Our producer and consumer, beside what memory, disk and the official SDK's codec can do."""
    bodies, size = load.bodies(), load.events * load.event_bytes
    copy = baselines.loopback_copy(max(size, 1 << 28), load.event_bytes)
    disk = baselines.disk_write(max(size, 1 << 27), load.event_bytes, directory)
    encode = baselines.sdk_encode(bodies[: load.sdk_events])
    decode = baselines.sdk_decode(bodies[: load.sdk_events])
    with _service(directory) as service:
        ingest = stages.ingest(service, _HUB, bodies, _PARTITIONS, is_warm=True)
        ingest.compare_with(encode)
        for baseline in (disk, copy):
            ingest.compare_with(baseline, by_bytes=True)
        delivery = stages.delivery(service, _HUB, load.event_bytes, _PARTITIONS)
        delivery.compare_with(decode)
        delivery.compare_with(copy, by_bytes=True)
        of_columns = [
            stages.arrow_delivery(service, _HUB, load.event_bytes, _PARTITIONS, columns)
            for columns in (EVENT_COLUMNS, DEFAULT_COLUMNS)
        ]
    for stage in of_columns:
        stage.compare_with(delivery)
        stage.compare_with(copy, by_bytes=True)
    return Found([copy, disk, encode, decode], [ingest, delivery, *of_columns])


def _shapes(directory: Path, load: Load) -> Found:
    """Properties, sizes, TLS, numbers of partitions. Always three rounds: one takes half a minute."""
    return shapes.measure(directory, load.events)


def _peers(directory: Path, load: Load) -> Found:
    """Ingest and delivery beside NATS, Redis and Kafka."""
    found = Found()
    for event_bytes in (load.event_bytes, 100):
        medians = peers.measure(load.events, event_bytes, load.rounds)
        if event_bytes == 100:
            for each in medians:
                each.name += ", 100 B"
                each.baselines = {f"{name}, 100 B": ratio for name, ratio in each.baselines.items()}
        found.stages += medians[:2]
        found.baselines += medians[2:]
    return found


def _sdk(directory: Path, load: Load) -> Found:
    """The official SDK, beside itself against a peer that stores nothing and has everything ready.

    Always three rounds, in turns: it reads in beats, so that one may be half as fast as the next.
    """
    bodies = load.bodies()[: load.sdk_events]
    count, size = len(bodies), load.event_bytes
    found: list[list[Measurement]] = []
    with canned_service.running(size) as canned, _service(directory) as service:
        ours = (service.connection_string, service.process_id)
        stages.ingest(service, _HUB, bodies * _PARTITIONS, _PARTITIONS)
        for _ in range(_SDK_ROUNDS):
            round_ = [
                stages.sdk_ingest("official SDK → sink", *canned, _HUB, bodies),
                stages.sdk_ingest("ingest, official SDK", *ours, _HUB, bodies),
                stages.sdk_delivery("source → official SDK", *canned, _HUB, count, size),
                stages.sdk_delivery("delivery, official SDK", *ours, _HUB, count, size),
            ]
            found.append(round_)
    sink, ingest, source, delivery = (list(each) for each in zip(*found, strict=True))
    return Found(
        [median(sink), median(source)], [median_beside(ingest, sink), median_beside(delivery, source)]
    )


def _processor(directory: Path, load: Load) -> Found:
    """Event Processor Hosts, beside the official one and the databases' own bulk loads."""
    bodies, rows = load.bodies(), load.rows()
    partitions = processor_stages.PARTITIONS
    with ExitStack() as stack:
        service = stack.enter_context(_service(directory, partitions))
        events = stages.ingest(service, _HUB, bodies, partitions).events
        official = processor_stages.official_processor(service, _HUB, load.sdk_events, load.event_bytes)
        host = processor_stages.directory_host(service, _HUB, events, load.event_bytes, directory)
        host.compare_with(official)
        found = Found([official], [host])
        names = itertools.count()
        databases: list[tuple[str, Callable[[], str], list[Measurement]]] = [
            (
                "SQLite",
                lambda: f"sqlite:///{directory}/host-{next(names)}.db",
                [baselines.sqlite_bulk_insert(rows, directory)],
            )
        ]
        try:
            postgresql = stack.enter_context(PostgresqlServer(is_fsync_used=True))
        except ServerMissingError as error:
            progress.print(f"without PostgreSQL: {error}")
        else:
            url = postgresql.create_schema()
            inserts = [baselines.postgresql_executemany(rows, url), baselines.postgresql_copy(rows, url)]
            databases.append(("PostgreSQL", postgresql.create_schema, inserts))
        for kind, make_url, inserts in databases:
            found.baselines += inserts
            for name, measure in (
                (f"host, Pipeline → {kind}", processor_stages.pipeline_host),
                (f"host, context.insert → {kind}", processor_stages.inserting_host),
                (f"host, executemany → {kind}", processor_stages.statements_host),
            ):
                stage = measure(name, service, _HUB, events, load.event_bytes, make_url())
                for insert in inserts:
                    stage.compare_with(insert)
                found.stages.append(stage)
    return found


def _small_sends(directory: Path, load: Load) -> Found:
    """What one event a send costs the service."""
    found = Found()
    cases = [case for case in small_sends.CASES if case.senders and not case.receivers]
    with HubProcess(directory / "data") as service:
        service.create_hub(_HUB, partition_count=small_sends.PARTITIONS)
        for case in cases:
            costs = [small_sends.measure(service, _HUB, case, 3.0) for _ in range(load.rounds)]
            user_us = statistics.median(cost.user_us for cost in costs)
            name = f"{case.name}, one event a send: user CPU"
            found.figures.append(Figure(name, user_us, "µs", _SENDS.get(case.name)))
    return found


def _keyed(directory: Path, load: Load) -> Found:
    """From publish to handler at 10,000 keyed events a second."""
    found = Found()
    for partitions in (4, 256) if load.is_quick else (4, 32, 256, 1024):
        runs = [
            keyed_appends.measure_service(directory, partitions=partitions, rate=10_000, seconds=5.0)
            for _ in range(load.rounds)
        ]
        for index, (name, wanted) in enumerate((("p50", _P50_MS), ("p99", _P99_MS))):
            what = f"publish → handler, 10,000 keyed events/s, {partitions:,} partitions: {name}"
            found.figures.append(Figure(what, statistics.median(run[index] for run in runs), "ms", wanted))
    return found


def _footprint(directory: Path, load: Load) -> Found:
    """Memory and start times."""
    footprint.allow_open_files()
    with HubProcess(directory / "data", is_tls_used=True) as service:
        numbers = (1.0, 100, 500) if load.is_quick else (20.0, 100, 5_000)
        return Found(figures=footprint.measure(service, *numbers))


def _spark(directory: Path, load: Load) -> Found:
    """Spark reads and writes, beside its own Kafka source; pipelines into SQL beside bulk loads."""
    # Imported where it is used: a machine without the spark extra can still measure the rest.
    from bench import kafka, spark_stages
    from tidegate.spark.runtime.session import spark_session

    share = 4 if load.is_quick else 1
    events = spark_stages.READ_EVENTS // share
    all_devices = (1, 20_000) if load.is_quick else spark_stages.DEVICES
    found = Found()
    spark = spark_session("tidegate-bench", configuration=kafka.spark_settings())
    try:
        with _service(directory) as service:
            for devices in all_devices:
                hub = spark_stages.fill_hub(service, events, load.event_bytes, devices=devices)
                with kafka.reading(spark, events, load.event_bytes, devices=devices) as peer_read:
                    rounds = spark_stages.spark_reads(
                        spark, service, hub, events, load.event_bytes,
                        peer_read=peer_read, devices=devices, rounds=load.rounds,
                    )  # fmt: skip
                read, *of_kafka = spark_stages.median_round(rounds)
                found.stages.append(read)
                found.baselines += of_kafka
            write = spark_stages.WRITE_EVENTS // share
            found.stages.append(spark_stages.spark_write(spark, service, write, load.event_bytes))
            _exactly_once(found, spark, service, directory, load)
    finally:
        spark.stop()
    return found


def _exactly_once(found: Found, spark: Any, service: HubProcess, directory: Path, load: Load) -> None:
    from bench import spark_stages

    share = 4 if load.is_quick else 1
    count, size = spark_stages.SMALL_EVENTS // share, spark_stages.SMALL_EVENT_BYTES
    rows = spark_stages.rows_expected(spark_stages.BULK_ROWS // share, size)
    hub = spark_stages.fill_hub(service, count, size)

    def pipeline(name: str, bulk_load: Callable[[], Measurement], **how: Any) -> Measurement:
        stage, bulk, *_ = spark_stages.exactly_once(
            spark, service, hub, count, size, directory,
            name=name, bulk_load=bulk_load, rounds=load.rounds,
            batch_events=spark_stages.SMALL_BATCH_EVENTS // share, **how,
        )  # fmt: skip
        found.stages.append(stage)
        found.baselines.append(bulk)
        return stage

    into_sqlite = partial(baselines.sqlite_bulk_insert, rows, directory)
    pipeline("exactly-once → SQLite", into_sqlite)
    columns = pipeline(
        "exactly-once, Arrow function → SQLite", into_sqlite, handler=spark_stages.ARROW_HANDLER
    )
    columns.compare_with(baselines.sqlite_many_rows(rows, directory))
    try:
        with PostgresqlServer(is_fsync_used=True) as postgresql:
            url = postgresql.create_schema()
            stage = pipeline(
                "exactly-once, Arrow function → PostgreSQL",
                partial(baselines.postgresql_copy, rows, url),
                handler=spark_stages.ARROW_HANDLER,
                make_url=postgresql.create_schema,
            )
            stage.compare_with(baselines.postgresql_executemany(rows, url))
    except ServerMissingError as error:
        progress.print(f"without PostgreSQL: {error}")


def _spark_state(directory: Path, load: Load) -> Found:
    """Pipelines with state: the ledger sink, and home security with its latency."""
    from bench import home_security, ledger_stages
    from tidegate.spark.runtime.session import spark_session

    found = Found()
    with PostgresqlServer(is_fsync_used=True) as postgresql:
        spark = spark_session("tidegate-bench")
        try:
            for rows_per_batch in ledger_stages.BATCH_ROWS[: load.rounds]:
                folder = directory / f"ledger-{rows_per_batch}"
                folder.mkdir()
                found.stages += ledger_stages.measure_ledger(spark, postgresql, folder, rows_per_batch)
        finally:
            spark.stop()
    runs, latency = home_security.measure(events=300_000 if load.is_quick else 1_000_000, latency_s=10.0)
    home_security.print_runs(runs, latency, console=progress)
    found.stages += home_security.measurements(runs)
    if latency is not None and latency.p50_ms is not None:
        found.figures.append(Figure("home security: p50", latency.p50_ms, "ms", 1_000.0))
    return found


def _spark_latency(directory: Path, load: Load) -> Found:
    """From an event's acceptance to its row's commit in PostgreSQL."""
    from bench import spark_latency
    from tidegate.spark.runtime.session import spark_session

    seconds, warm_up_s = (15.0, 15.0) if load.is_quick else (30.0, 45.0)
    found = Found()
    spark = spark_session("tidegate-bench")
    try:
        with PostgresqlServer(is_fsync_used=True) as server:
            for one in spark_latency.measure_latencies(
                spark, server, spark_latency.RATES, seconds, warm_up_s
            ):
                name = f"Spark → PostgreSQL, {one.rate:,} events/s"
                found.figures += [
                    Figure(f"{name}: a micro-batch", one.batch_ms, "ms", one.floor_ms + 50),
                    Figure(f"{name}: p50", one.p50_ms, "ms", one.by_hand_p50_ms),
                    Figure(f"{name}: p99", one.p99_ms, "ms", one.by_hand_p99_ms),
                ]
    finally:
        spark.stop()
    return found


def _capture(directory: Path, load: Load) -> Found:
    """Capture's files, and the table over them."""
    from bench.capture_stages import measure_capture
    from tidegate.spark.runtime.session import spark_session

    spark = spark_session("tidegate-bench")
    try:
        return Found(*measure_capture(load.bodies(), directory, spark))
    finally:
        spark.stop()


PARTS: Final = (
    Part("log", "our producer and consumer", _log),
    Part("shapes", "the same with other properties, sizes, TLS, numbers of partitions", _shapes),
    Part("peers", "ingest and delivery beside NATS, Redis and Kafka", _peers),
    Part("sdk", "the official SDK", _sdk),
    Part("processor", "Event Processor Hosts, also into SQLite and PostgreSQL", _processor),
    Part("small-sends", "one event a send", _small_sends),
    Part("keyed", "latency of keyed events over 4 to 1,024 partitions", _keyed),
    Part("footprint", "memory and start times", _footprint),
    Part("spark", "Spark reads beside Kafka's, writes, exactly once into SQL", _spark),
    Part("spark-state", "the ledger sink and home security", _spark_state),
    Part("spark-latency", "from an event to its row", _spark_latency),
    Part("capture", "Capture's files", _capture),
)


def _service(directory: Path, partitions: int = _PARTITIONS) -> HubProcess:
    service = HubProcess(directory / "data")
    service.create_hub(_HUB, partition_count=partitions)
    return service

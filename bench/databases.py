"""``python -m bench.databases``: what a host writes per second into each database, by its own bulk load,
measured in the same run.

A SQLite file, PostgreSQL and MariaDB, with fsync; small rows of 5 columns. Bulk loads commit each 16,000.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer

from bench import baselines, processor_stages, stages
from bench.measure import Measurement, timed
from bench.report import print_table
from tidegate.testing.hub import HubProcess

_HUB = "bench-databases"
_SPARK_EVENTS = 800_000
_progress = Console(stderr=True)
Loads = Sequence[Callable[[], Measurement]]


def mariadb_executemany(rows: Sequence[tuple[object, ...]], database_url: str) -> Measurement:
    """Its rows by PyMySQL's executemany, which makes one INSERT of many."""
    return _into_mariadb("MariaDB executemany", rows, database_url, is_file=False)


def mariadb_load_data(rows: Sequence[tuple[object, ...]], database_url: str) -> Measurement:
    """The same by LOAD DATA LOCAL INFILE; writing the files is in the time."""
    return _into_mariadb("MariaDB LOAD DATA", rows, database_url, is_file=True)


def _into_mariadb(
    name: str, rows: Sequence[tuple[object, ...]], database_url: str, *, is_file: bool
) -> Measurement:
    import pymysql

    url = sa.make_url(database_url)
    connection = pymysql.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, database=url.database,
        ssl_disabled=True, local_infile=True, charset="utf8mb4",
    )  # fmt: skip
    columns = "c0 varchar(8), c1 bigint, c2 varchar(16), c3 integer, c4 bigint, PRIMARY KEY (c0, c1)"
    with connection, connection.cursor() as cursor, tempfile.NamedTemporaryFile("w") as file:
        cursor.execute(f"CREATE OR REPLACE TABLE bulk ({columns})")
        with timed(name, events=len(rows), payload_bytes=0) as measurement:
            for start in range(0, len(rows), 16_000):
                part = rows[start : start + 16_000]
                if is_file:
                    file.seek(0)
                    file.truncate()
                    file.writelines("\t".join(map(str, row)) + "\n" for row in part)
                    file.flush()
                    cursor.execute(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE bulk")
                else:
                    cursor.executemany("INSERT INTO bulk VALUES (%s, %s, %s, %s, %s)", part)
                connection.commit()
    return measurement


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.databases", description=__doc__)
    parser.add_argument("--events", type=int, default=400_000, help="events for each of a host's stages")
    parser.add_argument("--event-bytes", type=int, default=100)
    parser.add_argument("--spark", action="store_true", help="a pipeline on Spark as well")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-")))
        service = HubProcess(folder / "data")
        service.create_hub(_HUB, partition_count=processor_stages.PARTITIONS)
        stack.enter_context(service)
        bodies = [os.urandom(arguments.event_bytes)] * arguments.events
        stages.ingest(service, _HUB, bodies, processor_stages.PARTITIONS)
        rows = [
            (str(number % 4), number, "d-1", arguments.event_bytes, 1_700_000_000_000)
            for number in range(arguments.events)
        ]
        names = itertools.count()
        postgresql = stack.enter_context(PostgresqlServer(is_fsync_used=True))
        mariadb = stack.enter_context(MariadbServer(is_fsync_used=True))
        mariadb.execute("SET GLOBAL local_infile = ON")
        databases: list[tuple[str, Callable[[], str], Loads]] = [
            (
                "SQLite",
                lambda: f"sqlite:///{folder}/{next(names)}.db",
                [partial(baselines.sqlite_bulk_insert, rows, folder)],
            ),
            (
                "PostgreSQL",
                postgresql.create_database,
                [
                    lambda: baselines.postgresql_copy(rows, postgresql.create_database()),
                    lambda: baselines.postgresql_executemany(rows, postgresql.create_database()),
                ],
            ),
            (
                "MariaDB",
                mariadb.create_database,
                [
                    lambda: mariadb_load_data(rows, mariadb.create_database()),
                    lambda: mariadb_executemany(rows, mariadb.create_database()),
                ],
            ),
        ]
        loads, found = [], []
        for kind, make_url, bulk in databases:
            _progress.print(f"measuring {kind} …")
            loaded = [load() for load in bulk]
            loads += loaded
            for name, measure in (
                (f"host, function per event → {kind}", processor_stages.pipeline_host),
                (f"host, handler per batch → {kind}", processor_stages.statements_host),
            ):
                stage = measure(name, service, _HUB, arguments.events, arguments.event_bytes, make_url())
                found.append(stage)
                for load in loaded:
                    stage.compare_with(load)
            target = f"{_HUB}-{next(names)}"
            service.create_hub(target, partition_count=processor_stages.PARTITIONS)
            numbers = (arguments.events, arguments.event_bytes, make_url(), target)
            name = f"host, handler per batch → {kind} → hub"
            both = processor_stages.publishing_host(name, service, _HUB, *numbers)
            both.compare_with(found[-1])
            found.append(both)
        if arguments.spark:
            found += _on_spark(service, databases, folder)
    print_table(loads, found)


def _on_spark(
    service: HubProcess, databases: Sequence[tuple[str, Callable[[], str], Loads]], folder: Path
) -> list[Measurement]:
    from bench import spark_stages
    from tidegate.spark.runtime.session import spark_session

    size = spark_stages.SMALL_EVENT_BYTES
    spark = spark_session("tidegate-bench")
    try:
        hub = spark_stages.fill_hub(service, _SPARK_EVENTS, size)
        return [
            spark_stages.exactly_once(
                spark, service, hub, _SPARK_EVENTS, size, folder,
                name=f"Spark, Arrow function → {kind}", handler=spark_stages.ARROW_HANDLER,
                make_url=make_url, bulk_load=bulk[0], batch_events=_SPARK_EVENTS // 4,
            )[0]
            for kind, make_url, bulk in databases
        ]  # fmt: skip
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

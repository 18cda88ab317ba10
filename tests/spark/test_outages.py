"""A query whose database, service or handler's dependency is away for a while continues by itself."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import BigInteger, Column, MetaData, String, Table, func, select
from tests.spark.support import assert_exact, has_reached, make_pipeline, outcome_of, publish, readings
from tests.support.mariadb import MariadbServer, required_mariadb
from tests.support.ports import free_ports
from tests.support.postgresql import PostgresqlServer, required_postgresql

from tidegate.model.events import ReceivedEvent
from tidegate.spark import LedgerSink, run_pipeline
from tidegate.sql import ArrowHandler, BatchHandler, Database, Handler, Pipeline
from tidegate.testing.hub import HubProcess, HubService

_WAIT_S = 180.0
"""A deadline, not a promise."""
_OUTAGE_S = 3.0
_LONG_OUTAGE_S = 40.0
"""More than a client's retries, after which the next micro-batch could not be planned."""

counted = Table(
    "counted", MetaData(), Column("partition", String(16), primary_key=True), Column("count", BigInteger)
)


@pytest.fixture(
    params=["postgresql", pytest.param("mariadb", marks=[pytest.mark.faults, pytest.mark.repeats])]
)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresqlServer | MariadbServer]:
    """A server of the test's own, which it stops."""
    server: PostgresqlServer | MariadbServer
    server = required_mariadb() if request.param == "mariadb" else required_postgresql()
    with server:
        yield server


def wait_until(is_reached: Callable[[], bool], query: StreamingQuery) -> None:
    """Fails if the query ends before."""
    deadline = time.monotonic() + _WAIT_S
    while not is_reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pass_time(seconds: float, query: StreamingQuery) -> None:
    """The outage itself: nothing can be waited for but its end."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, query)


@contextmanager
def stopped_at_end(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query, also where the test fails."""
    try:
        yield query
    finally:
        query.stop()


def test_the_database_is_stopped_under_a_pipeline(
    spark: SparkSession, hub_service: HubService, server: PostgresqlServer | MariadbServer, tmp_path: Path
) -> None:
    """Commits, and the plans of micro-batches, wait for it: the same query writes each event once."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, 400)
    url = server.create_schema()
    query = run_pipeline(
        spark,
        make_pipeline(hub),
        connection_string=hub_service.connection_string,
        database_url=url,
        checkpoint_location=tmp_path / "checkpoint",
    )
    with stopped_at_end(query):
        wait_until(lambda: has_reached(url, 400), query)
        server.stop()
        publish(hub_service.connection_string, hub, 400, first_value=400)
        pass_time(_OUTAGE_S, query)
        server.start()
        wait_until(lambda: has_reached(url, 800), query)
    assert_exact(url, 800)


@pytest.mark.faults
@pytest.mark.parametrize("driver_bytes_max", [pytest.param(2**20, marks=pytest.mark.repeats), 0])
def test_the_database_is_stopped_under_aggregates(
    spark: SparkSession,
    hub_service: HubService,
    server: PostgresqlServer | MariadbServer,
    tmp_path: Path,
    driver_bytes_max: int,
) -> None:
    """Whether the driver or tasks write rows first."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, 400)
    url = server.create_schema()

    def total() -> int:
        with Database.shared(url).read() as connection:
            return int(connection.execute(select(func.sum(counted.c.count))).scalar_one() or 0)

    Database.shared(url).ensure_table(counted)
    events = spark.readStream.format("eventhubs").option(
        "eventhubs.connectionString", hub_service.hub_connection_string(hub)
    )
    rows = events.option("eventhubs.startingPosition", "earliest").load().groupBy("partition").count()
    sink = LedgerSink(name=hub, database_url=url, table=counted, driver_bytes_max=driver_bytes_max)
    with stopped_at_end(sink.start(rows, checkpoint_location=tmp_path / "checkpoint")) as query:
        wait_until(lambda: total() == 400, query)
        server.stop()
        publish(hub_service.connection_string, hub, 400, first_value=400)
        pass_time(_OUTAGE_S, query)
        server.start()
        wait_until(lambda: total() == 800, query)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_service_is_killed_under_a_pipeline(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    """For longer than its client retries: reading and planning wait, and the same query continues."""
    service = HubProcess()
    try:
        hub = service.create_hub(partition_count=4)
        service.start()
        publish(service.connection_string, hub, 400)
        query = run_pipeline(
            spark,
            make_pipeline(hub),
            connection_string=service.connection_string,
            database_url=sqlite_url,
            checkpoint_location=tmp_path / "checkpoint",
        )
        with stopped_at_end(query):
            wait_until(lambda: has_reached(sqlite_url, 400), query)
            service.kill()
            pass_time(_LONG_OUTAGE_S, query)
            service.start()
            publish(service.connection_string, hub, 400, first_value=400)
            wait_until(lambda: has_reached(sqlite_url, 800), query)
        assert_exact(sqlite_url, 800)
    finally:
        service.close()


def _call(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=30).close()


def _handle(port: int, event: ReceivedEvent) -> dict[str, object]:
    _call(port)
    return {"partition": event.partition_id, "number": event.sequence_number, "value": 0}


def _handle_batch(port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    _call(port)
    numbers = batch.column("sequenceNumber").cast(pa.int32())
    return pa.RecordBatch.from_pydict(
        {
            "sequenceNumber": batch.column("sequenceNumber"),
            "partition": batch.column("partition"),
            "number": numbers,
            "value": numbers,
        }
    )


_BY_BATCH: Callable[[int], BatchHandler] = lambda port: ArrowHandler(  # noqa: E731
    partial(_handle_batch, port), ("partition", "sequenceNumber")
)


@pytest.mark.faults
@pytest.mark.parametrize(
    "make_handler",
    [lambda port: partial(_handle, port), pytest.param(_BY_BATCH, marks=pytest.mark.repeats)],
    ids=["event", "batch"],
)
def test_what_the_handler_calls_is_away(
    spark: SparkSession,
    hub_service: HubService,
    sqlite_url: str,
    tmp_path: Path,
    make_handler: Callable[[int], Handler | BatchHandler],
) -> None:
    """No event becomes a dead letter; all are rows once it answers."""
    (port,) = free_ports(1)
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, 500)
    query = run_pipeline(
        spark,
        Pipeline("calls", hub, readings, make_handler(port)),
        connection_string=hub_service.connection_string,
        database_url=sqlite_url,
        checkpoint_location=tmp_path / "checkpoint",
    )
    with stopped_at_end(query):
        wait_until(lambda: bool(query.status["isTriggerActive"]), query)
        pass_time(_OUTAGE_S, query)
        assert outcome_of(sqlite_url).position == 0
        with socketserver.ThreadingTCPServer(
            ("127.0.0.1", port), socketserver.BaseRequestHandler
        ) as answering:
            thread = threading.Thread(target=answering.serve_forever)
            thread.start()
            try:
                wait_until(lambda: has_reached(sqlite_url, 500), query)
            finally:
                answering.shutdown()
                thread.join()
    found = outcome_of(sqlite_url)
    assert (found.rows, found.distinct_rows, found.dead_letters) == (500, 500, 0)

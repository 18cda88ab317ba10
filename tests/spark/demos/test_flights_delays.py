"""Delays by carrier, route and hour: windows that are written again and again, held against the data set."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import orjson
import pytest
from examples.flights.data import FlightEvent, read_flights
from pyspark.sql import SparkSession
from sqlalchemy import select

from examples import flight_delays
from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.spark import HubSource, StreamPipeline, Trigger, start_stream_pipeline
from tidegate.sql import Database
from tidegate.testing.hub import HubService

FLIGHTS = 6_000
"""A week of January, and then a few of October to be early and of January to be late."""

Key = tuple[str, str, str, datetime]
Figures = tuple[int, int, int | None, int | None, float | None]


def _expected(flights: list[FlightEvent]) -> dict[Key, Figures]:
    found: dict[Key, list[int | None]] = defaultdict(list)
    for event in flights:
        flight = orjson.loads(event.body)
        hour = datetime.fromisoformat(flight["time_hour"]).replace(minute=0, second=0)
        found[flight["carrier"], flight["origin"], flight["dest"], hour].append(flight["arr_delay"])
    expected: dict[Key, Figures] = {}
    for key, values in found.items():
        arrived = [value for value in values if value is not None]
        expected[key] = (
            len(values),
            len(values) - len(arrived),
            sum(arrived) if arrived else None,
            max(arrived, default=None),
            sum(arrived) / len(arrived) if arrived else None,
        )
    return expected


def _found(database_url: str) -> dict[Key, Figures]:
    with Database.open(database_url) as database, database.read() as connection:
        rows = connection.execute(select(flight_delays.hourly_delay)).all()
    return {(*row[:3], row.hour.replace(tzinfo=row.hour.tzinfo or UTC)): tuple(row[4:]) for row in rows}


def _publish(connection_string: str, event_hub: str, flights: list[FlightEvent]) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(connection_string, event_hub) as producer:
            await producer.enqueue_many(
                [EventData(flight.body) for flight in flights],
                partition_keys=[flight.key for flight in flights],
            )
            await producer.enqueue(EventData(b"no flight"), partition_id="0")
            await producer.flush()

    asyncio.run(send())


def _run(
    spark: SparkSession, hub_service: HubService, pipeline: StreamPipeline, url: str, directory: Path
) -> int:
    """Runs over what is there; returns how many rows came behind the watermark."""
    query = start_stream_pipeline(
        spark,
        pipeline,
        connection_string=hub_service.connection_string,
        database_url=url,
        checkpoint_location=directory,
        trigger=Trigger(is_available_now=True),
    )
    query.awaitTermination()
    return sum(
        operator.numRowsDroppedByWatermark
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def test_what_is_no_flight_is_in_no_row(spark: SparkSession) -> None:
    """The tables' keys take no null, no NUL and nothing longer, so a sender could stop the query for good."""
    flight = {
        "carrier": "AA",
        "origin": "EWR",
        "dest": "ORD",
        "dep_time": 517,
        "time_hour": "2013-01-01T05:00:00Z",
        "arr_delay": 3,
    }
    strange: list[dict[str, str | None]] = [
        {"carrier": text} for text in ("AAA", "AA\n", "A\0", "A", "", None, "\ufffdA")
    ]
    strange += [{"origin": "NEWARK"}, {"origin": None}, {"dest": ""}, {"time_hour": None}]
    strange += [
        {"time_hour": "+120000-01-01T05:00:00Z"},
        {"time_hour": "2200-01-01T05:00:00Z"},
        {"time_hour": "0001-01-01T05:00:00Z"},
    ]
    bodies = [b"no flight", b"", b"[]", b"\xff", orjson.dumps(flight)]
    bodies += [orjson.dumps(flight | change) for change in strange]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    events = spark.createDataFrame(
        [("0", number, str(number), now, body) for number, body in enumerate(bodies)],
        "partition STRING, sequenceNumber LONG, offset STRING, enqueuedTime TIMESTAMP, body BINARY",
    )
    flights = flight_delays.parsed(events)
    carriers = flight_delays.by_carrier(flights).select("carrier", "flights").collect()
    of_other_places_or_times = sum("carrier" not in change for change in strange)
    assert [tuple(row) for row in carriers] == [("AA", 1 + of_other_places_or_times)]
    hours = flight_delays.by_hour(flights).select("carrier", "origin", "destination", "flights").collect()
    assert [tuple(row) for row in hours] == [("AA", "EWR", "ORD", 1)]


@pytest.mark.programs
@pytest.mark.repeats
def test_windows_hold_what_the_data_set_says(
    spark: SparkSession, hub_service: HubService, event_hub: str, tmp_path: Path
) -> None:
    """Each window's figures, over two runs and many micro-batches; months come out of order, and none of
    their flights is too late."""
    flights = list(islice(read_flights(), FLIGHTS))
    october = next(f for f in islice(read_flights(), 27_000, None) if orjson.loads(f.body)["month"] == 10)
    first, second = [*flights[: FLIGHTS // 2], october], flights[FLIGHTS // 2 :]
    pipeline = StreamPipeline(
        "delays-test",
        HubSource(event_hub, max_events_per_trigger=2_000),
        flight_delays.hourly.sink,
        flight_delays.hourly.steps,
    )
    url = f"sqlite:///{tmp_path}/delays.db"
    for part in (first, second):
        _publish(hub_service.connection_string, event_hub, part)
        assert _run(spark, hub_service, pipeline, url, tmp_path / "checkpoint") == 0
    found, expected = _found(url), _expected(first + second)
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key][:4] == figures[:4], key
        assert found[key][4] == pytest.approx(figures[4]), key


@pytest.mark.programs
@pytest.mark.repeats
def test_what_comes_behind_the_watermark_changes_no_window(
    spark: SparkSession,
    hub_service: HubService,
    event_hub: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a lateness of days, a flight of the week before last is left out, and Spark says so."""
    monkeypatch.setattr(flight_delays, "LATENESS", "2 days")
    flights = list(islice(read_flights(), FLIGHTS))
    late, others = flights[0], flights[FLIGHTS // 2 :]
    pipeline = StreamPipeline(
        "late-test", HubSource(event_hub), flight_delays.hourly.sink, flight_delays.hourly.steps
    )
    url = f"sqlite:///{tmp_path}/delays.db"
    dropped = 0
    for part in (others, [late]):
        _publish(hub_service.connection_string, event_hub, part)
        dropped += _run(spark, hub_service, pipeline, url, tmp_path / "checkpoint")
    assert dropped == 1
    assert {key: figures[0] for key, figures in _found(url).items()} == {
        key: figures[0] for key, figures in _expected(others).items()
    }

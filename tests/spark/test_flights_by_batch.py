"""The example of a function over Arrow batches does what the flights' handler per event does."""

from __future__ import annotations

import asyncio
import itertools
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from examples.flights.data import read_flights
from examples.flights.scoring import FlightNotScoredError, score_arrival
from pyspark.sql import SparkSession
from sqlalchemy import select

from tidegate.client import EventHubProducer
from tidegate.client.blocking.consumer import BlockingConsumer
from tidegate.model.events import EventContents, EventData, ReceivedEvent
from tidegate.sql import Database, DeadLetters, load_pipeline
from tidegate.testing.hub import HubService

_EXAMPLE = "examples/flights_by_batch.py"
_BODIES = [flight.body for flight in itertools.islice(read_flights(), 836, 1836)]
"""A thousand flights, of which some were cancelled."""


def _expected(number: int) -> tuple[object, ...] | str:
    """The row of the flight at ``number``, or its error, as the demo's handler gives them."""
    event = ReceivedEvent("0", number, str(number), 0, contents=EventContents(_BODIES[number]))
    try:
        row = score_arrival(event)
    except FlightNotScoredError as error:
        return str(error)
    names = ("flight_date", "carrier", "flight_number", "arrival_delay_minutes")
    return "0", number, *(row[name] for name in names)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (b"", b"{} {}"),
        (b" ", b"{}\n{}"),
        (b"", b"{}}{"),
        (b"", b'{}}{"flight":{}'),
        (b"", b'{}}\n{"flight":{}'),
        (b'{}}{"flight":{}', b"{}}\0"),
        (b'{}}{"flight":{}', b'{"carrier":"'),
        (b'{}}{"flight":{}', b'{},"a":['),
        (b'{"carrier":"', b'"}'),
    ],
)
def test_no_body_shifts_the_flights_of_others(first: bytes, last: bytes) -> None:
    """Too few objects in one body and too many in another: what is between would go to other events."""
    example = import_module("examples.flights_by_batch")
    bodies = pa.array([first, *_BODIES[:3], last, *_BODIES[3:6]], pa.binary())
    with pytest.raises(ValueError, match="JSON"):  # also Arrow's own error
        example.parse(pa.RecordBatch.from_arrays([bodies], ["body"]))


def test_the_example_scores_the_flights(
    spark: SparkSession,
    hub_service: HubService,
    tmp_path: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a body that is no flight among them; a redrive by its address records those that never came."""
    example = import_module("examples.flights_by_batch")
    hub = hub_service.create_hub(partition_count=1)
    pipeline = example.pipeline.__class__("arrivals", hub, example.arrivals, example.pipeline.handler)
    monkeypatch.setattr(example, "pipeline", pipeline)

    async def send() -> None:
        async with EventHubProducer.from_connection_string(hub_service.connection_string, hub) as producer:
            for body in [*_BODIES, b"{} {}"]:
                await producer.enqueue(EventData(body), partition_id="0")
            await producer.flush()

    asyncio.run(send())
    address = f"{Path(_EXAMPLE).absolute()}:corrected_pipeline"
    monkeypatch.chdir(tmp_path)
    example.run(spark, hub_service.connection_string, sqlite_url)
    expected = [_expected(number) for number in range(len(_BODIES))]
    failed = [item for item in expected if isinstance(item, str)]
    corrected = load_pipeline(address)
    object.__setattr__(corrected, "event_hub", hub)
    with Database.open(sqlite_url) as database, BlockingConsumer(hub_service.connection_string) as reader:
        with database.read() as connection:
            rows = [
                tuple(row) for row in connection.execute(select(example.arrivals).order_by("sequence_number"))
            ]
        assert rows == [item for item in expected if not isinstance(item, str)]
        assert DeadLetters(database).count() == len(failed) + 1 > 10
        report = DeadLetters(database).redrive(corrected, reader)
        assert (report.redriven, report.failed) == (len(failed), 1)

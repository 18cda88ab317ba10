"""The flights as events: the figures that the demo's promise rests on."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import PackageNotFoundError

import orjson
import pytest
from examples.flights import data
from examples.flights.data import FlightEvent, airline_names, airport_names, read_flights
from examples.flights.publish import PARTITION_COUNT, expected_events_by_partition

from tidegate.model.errors import NotFoundError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flights() -> list[FlightEvent]:
    """All of them, read once."""
    return list(read_flights())


@pytest.mark.slow
def test_the_figures_of_the_data_set(flights: list[FlightEvent]) -> None:
    """336,776 flights, 3,844 keys, 9,430 without an arrival delay: 8,255 cancelled and 1,175 diverted."""
    assert len(flights) == data.FLIGHT_COUNT == 336_776
    assert len({flight.key for flight in flights}) == data.DISTINCT_KEY_COUNT == 3_844
    kinds: Counter[str] = Counter()
    for flight in flights:
        values = orjson.loads(flight.body)
        if values["arr_delay"] is None:
            kinds["cancelled" if values["dep_time"] is None else "diverted"] += 1
    assert kinds == {"cancelled": 8_255, "diverted": 1_175}
    assert kinds.total() == data.UNSCORED_FLIGHT_COUNT == 9_430


@pytest.mark.slow
def test_the_first_event(flights: list[FlightEvent]) -> None:
    """An event is the data set's row as JSON: numbers as numbers, times as the data set writes them."""
    assert flights[0].key == "1545"
    assert orjson.loads(flights[0].body) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_missing_values_are_null(flights: list[FlightEvent]) -> None:
    """No event holds the data set's ``NA`` as text."""
    assert not any(b'"NA"' in flight.body for flight in flights)


def test_every_partition_gets_its_share(flights: list[FlightEvent]) -> None:
    """The keys spread over all partitions, and the counts are all of the flights."""
    counts = expected_events_by_partition(flights)
    assert list(counts) == [str(index) for index in range(PARTITION_COUNT)]
    assert sum(counts.values()) == data.FLIGHT_COUNT
    assert min(counts.values()) > data.FLIGHT_COUNT / PARTITION_COUNT / 2


def test_names_of_airlines_and_airports() -> None:
    """Reports show names instead of codes."""
    assert airline_names()["UA"] == "United Air Lines Inc."
    assert airport_names()["EWR"] == "Newark Liberty Intl"


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the data the error names the extra to install."""

    def nothing(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", nothing)
    with pytest.raises(NotFoundError, match=r"\[demos\]"):
        airline_names()

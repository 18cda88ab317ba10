"""Reads the demo's results back from SQL: the figures that must hold, and the tables people like to look
at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, func, select

from examples.flights.data import airline_names, airport_names
from examples.flights.scoring import flight_performance as flights

ROUTE_FLIGHTS_MIN = 365
"""Routes with fewer flights in the year than one a day are left out: a few bad days would put them on top."""
LATE_MINUTES = 15
"""From this arrival delay on a flight counts as late (the US Department of Transportation's measure)."""


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    """How late one airline's flights arrived."""

    carrier: str
    airline: str
    flights: int
    mean_delay_minutes: float
    late_percent: float


@dataclass(frozen=True, slots=True)
class RouteDelay:
    """How late the flights of one route arrived."""

    route: str
    """e.g. ``EWR-CAE``."""
    from_airport: str
    to_airport: str
    flights: int
    mean_delay_minutes: float
    late_percent: float


def rows_by_partition(connection: Connection) -> Mapping[str, int]:
    """Partition id → rows that came from its events."""
    found = connection.execute(select(flights.c.partition_id, func.count()).group_by(flights.c.partition_id))
    return dict(found.tuples().all())


def worst_carriers(connection: Connection, count_max: int = 10) -> list[CarrierDelay]:
    """The airlines whose flights arrived latest on average, worst first."""
    names = airline_names()
    mean, late = _delay_columns()
    found = connection.execute(
        select(flights.c.carrier, func.count(), mean, late)
        .where(flights.c.arrival_delay_minutes.is_not(None))
        .group_by(flights.c.carrier)
        .order_by(mean.desc())
        .limit(count_max)
    )
    return [
        CarrierDelay(carrier, names.get(carrier, carrier), count, float(mean_delay), float(late_percent))
        for carrier, count, mean_delay, late_percent in found
    ]


def worst_routes(connection: Connection, count_max: int = 10) -> list[RouteDelay]:
    """The routes whose flights arrived latest on average, worst first, of those flown daily."""
    names = airport_names()
    mean, late = _delay_columns()
    found = connection.execute(
        select(flights.c.origin, flights.c.destination, func.count(), mean, late)
        .where(flights.c.arrival_delay_minutes.is_not(None))
        .group_by(flights.c.origin, flights.c.destination)
        .having(func.count() >= ROUTE_FLIGHTS_MIN)
        .order_by(mean.desc())
        .limit(count_max)
    )
    return [
        RouteDelay(
            f"{origin}-{destination}",
            names.get(origin, origin),
            names.get(destination, destination),
            count,
            float(mean_delay),
            float(late_percent),
        )
        for origin, destination, count, mean_delay, late_percent in found
    ]


def _delay_columns() -> tuple[ColumnElement[float], ColumnElement[float]]:
    delay = flights.c.arrival_delay_minutes
    late_percent = 100.0 * func.avg(case((delay >= LATE_MINUTES, 1.0), else_=0.0))
    return func.avg(delay), late_percent

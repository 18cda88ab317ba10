"""Reads the demo's results from SQL: the figures that must add up, and tables for users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import Column, Connection, case, func, select

from examples.flights.data import airline_names, airport_names
from examples.flights.scoring import flight_performance as flights

ROUTE_FLIGHTS_MIN = 365
"""Routes with fewer flights than one per day are omitted: a few bad days would put them on top."""
LATE_MINUTES = 15
"""A flight counts as late from this arrival delay on (as the US Department of Transportation defines it)."""


def rows_by_partition(connection: Connection) -> Mapping[str, int]:
    """Partition id → rows that came from its events."""
    found = connection.execute(select(flights.c.partition_id, func.count()).group_by(flights.c.partition_id))
    return dict(found.tuples().all())


def worst_carriers(connection: Connection, count_max: int = 10) -> list[dict[str, object]]:
    """The airlines whose flights arrived latest on average, worst first, as rows of a table."""
    names = airline_names()
    return [
        {"carrier": carrier, "airline": names.get(carrier, carrier), **delay}
        for (carrier,), delay in _worst(connection, flights.c.carrier, count_max=count_max)
    ]


def worst_routes(connection: Connection, count_max: int = 10) -> list[dict[str, object]]:
    """The same for routes that are flown daily."""
    names = airport_names()
    ends = flights.c.origin, flights.c.destination
    return [
        {
            "route": f"{origin}-{destination}",
            "from": names.get(origin, origin),
            "to": names.get(destination, destination),
            **delay,
        }
        for (origin, destination), delay in _worst(
            connection, *ends, count_max=count_max, flights_min=ROUTE_FLIGHTS_MIN
        )
    ]


def _worst(
    connection: Connection, *columns: Column[str], count_max: int, flights_min: int = 1
) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
    """(values of the columns, figures of their flights that arrived), by mean delay."""
    delay = flights.c.arrival_delay_minutes
    mean, late_percent = func.avg(delay), 100.0 * func.avg(case((delay >= LATE_MINUTES, 1.0), else_=0.0))
    found = connection.execute(
        select(*columns, func.count(), mean, late_percent)
        .where(delay.is_not(None))
        .group_by(*columns)
        .having(func.count() >= flights_min)
        .order_by(mean.desc())
        .limit(count_max)
    )
    for *values, count, mean_delay, late in found:
        yield tuple(values), {"flights": count, "mean_delay_min": float(mean_delay), "late_%": float(late)}

"""Publishing: everything once, in order, also when an earlier run was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from examples.flights.data import FlightEvent, read_flights
from examples.flights.publish import PARTITION_COUNT, expected_events_by_partition, publish
from examples.flights.scoring import EVENT_HUB

from tidegate.client import BlockingConsumer
from tidegate.model.errors import AlreadyExistsError
from tidegate.testing.hub import HubService

FLIGHTS = list(islice(read_flights(), 3_000))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HubService]:
    """A service of its own: the demo's hub has a fixed name."""
    with HubService(tmp_path) as running:
        yield running


def _bodies(service: HubService, counts: dict[str, int]) -> dict[str, list[bytes]]:
    with BlockingConsumer(service.connection_string, EVENT_HUB) as consumer:
        return {
            partition_id: [
                event.body for event in consumer.read_events(EVENT_HUB, partition_id, range(count))
            ]
            for partition_id, count in counts.items()
        }


async def _publish(service: HubService, flights: list[FlightEvent]) -> dict[str, int]:
    progress: list[int] = []
    publication = await publish(service.connection_string, flights, lambda done, total: progress.append(done))
    assert progress == sorted(progress)
    return dict(publication.events_by_partition)


@pytest.mark.slow
async def test_an_interrupted_run_is_gone_on_with(service: HubService) -> None:
    """A second run sends what the first one did not: no event twice, each partition in the data's order."""
    await _publish(service, FLIGHTS[:1_000])
    counts = await _publish(service, FLIGHTS)
    assert counts == expected_events_by_partition(FLIGHTS)
    again = await publish(service.connection_string, FLIGHTS, lambda done, total: None)
    assert again.published_now == 0
    assert sum(again.events_by_partition.values()) == len(FLIGHTS)
    bodies = _bodies(service, counts)
    order = {flight.body: number for number, flight in enumerate(FLIGHTS)}
    for found in bodies.values():
        numbers = [order[body] for body in found]
        assert numbers == sorted(set(numbers))
    assert sum(map(len, bodies.values())) == len(FLIGHTS)


async def test_a_hub_that_holds_something_else_is_refused(service: HubService) -> None:
    """The demo adds nothing to a hub of somebody else's that has its name."""
    service.create_hub(EVENT_HUB, partition_count=2)
    with pytest.raises(AlreadyExistsError, match=f"2 partitions instead of {PARTITION_COUNT}"):
        await _publish(service, FLIGHTS[:10])


async def test_more_events_than_flights_is_refused(service: HubService) -> None:
    """A hub with more events than the flights make was filled by somebody else."""
    await _publish(service, FLIGHTS[:1_000])
    with pytest.raises(AlreadyExistsError, match="did not fill"):
        await _publish(service, FLIGHTS[:10])

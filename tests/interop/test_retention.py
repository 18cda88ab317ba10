"""Readers that retention has overtaken, with the official Python SDK: they go on silently, or are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.eventhub import EventData
from tests.interop.support import Reader, SdkTarget, read, target_of

from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

EVENTS = 10


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """A service of its own: a test changes what it does with overtaken readers."""
    with HubService() as service:
        yield service


@pytest.fixture
def target(service: HubService) -> SdkTarget:
    """How the SDK reaches it."""
    return target_of(service, "plain")


def _send(target: SdkTarget, hub: str, numbers: range) -> None:
    with target.producer(hub) as producer:
        for number in numbers:
            producer.send_event(EventData(str(number)))


def _delete_all(service: HubService, hub: str) -> None:
    async def apply(server: TidegateServer) -> None:
        await server.broker.event_hub(hub).partition("0").apply_retention(before_ms=2**60, bytes_max=None)

    service.call(apply)


def _set_strictness(service: HubService, is_refused: bool) -> None:
    async def change(server: TidegateServer) -> None:
        server.broker.is_lost_position_refused = is_refused

    service.call(change)


@pytest.fixture
def hub(service: HubService, target: SdkTarget) -> str:
    """A hub of one partition: of its fifteen events retention has deleted the first ten."""
    hub = service.create_hub(partition_count=1)
    _send(target, hub, range(EVENTS))
    _delete_all(service, hub)
    _send(target, hub, range(EVENTS, EVENTS + 5))
    return hub


@pytest.fixture
def strict(service: HubService) -> Iterator[None]:
    """The setting ``is_lost_position_refused``."""
    _set_strictness(service, True)
    yield
    _set_strictness(service, False)


@pytest.mark.parametrize("position", [3, "3"])
def test_an_overtaken_reader_goes_on_with_the_first_event_held(
    target: SdkTarget, hub: str, position: int | str
) -> None:
    """As in Event Hubs: the sequence numbers show what is missing."""
    events = read(target.consumer(hub), 5, starting_position=position)
    assert [event.sequence_number for event in events] == [10, 11, 12, 13, 14]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("position", [3, "3"])
def test_an_overtaken_reader_can_be_told(target: SdkTarget, hub: str, position: int | str) -> None:
    """With the setting, the SDK reports an error that names the event wanted and the first one held."""
    with Reader(target.consumer(hub), starting_position=position) as reader:
        error = reader.wait_error()
        assert "no longer holds sequence number 4: the first available is 10" in str(error)
        assert not reader.events


@pytest.mark.usefixtures("strict")
def test_a_position_that_is_held_is_served(target: SdkTarget, hub: str) -> None:
    """The last event deleted is where a checkpoint may well stand: the next one is held, nothing is lost."""
    events = read(target.consumer(hub), 5, starting_position=EVENTS - 1)
    assert events[0].sequence_number == EVENTS
    assert len(read(target.consumer(hub), 5, starting_position="-1")) == 5


@pytest.mark.usefixtures("strict")
def test_a_reader_that_is_overtaken_while_it_reads_is_told(
    service: HubService, target: SdkTarget, hub: str
) -> None:
    """Protects a slow reader: what it has not fetched yet goes away under it, and it hears of it."""
    large = 30
    with target.producer(hub) as producer:
        for _ in range(large):
            producer.send_event(EventData(b"x" * 200_000))  # more than the service reads ahead
    with Reader(target.consumer(hub), starting_position="-1", prefetch=1, max_batch_size=1) as reader:
        reader.wait_events(1)
        with reader.paused():
            _delete_all(service, hub)
            _send(target, hub, range(1))
        error = reader.wait_error()
    assert "no longer holds sequence number" in str(error)
    assert f"the first available is {EVENTS + 5 + large}" in str(error)

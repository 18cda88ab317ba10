"""Publishing by the official Python SDK beyond plain sends: publishers, keys, limits, throttling."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventDataSendError, EventHubError
from tests.interop.support import WAIT_S, SdkTarget, read, target_of

from tidegate.model.partition_key import partition_for_key
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.names import PARTITION_KEY, PUBLISHER


@pytest.fixture(scope="module")
def service() -> Iterator[HubService]:
    """One service for all tests; each makes a hub of its own."""
    with HubService() as service:
        yield service


@pytest.fixture
def target(service: HubService) -> SdkTarget:
    """How the SDK reaches it."""
    return target_of(service, "plain")


def _annotation(event: EventData, name: str) -> object:
    annotations = event.raw_amqp_message.annotations
    assert annotations is not None
    value = annotations[name.encode()]
    return value.decode() if isinstance(value, bytes) else value


def test_publisher(service: HubService, target: SdkTarget) -> None:
    """Events of a publisher carry its name and lie in the partition of its key, sent singly or in a batch."""
    hub = service.create_hub(partition_count=4)
    with target.publisher(hub, "device-1") as producer:
        producer.send_event(EventData("a"))
        producer.send_batch([EventData("b"), EventData("c")], partition_key="device-1")
    events = read(target.consumer(hub), 3, str(partition_for_key("device-1", 4)))
    assert [event.body_as_str() for event in events] == ["a", "b", "c"]
    for event in events:
        assert _annotation(event, PUBLISHER) == "device-1"
        assert _annotation(event, PARTITION_KEY) == "device-1"


def test_a_publisher_that_a_plain_sender_writes(service: HubService, target: SdkTarget) -> None:
    """Receivers see no publisher where none was proved; the sender's other annotations are theirs."""
    hub = service.create_hub(partition_count=1)
    forged = []
    for body in "abc":
        event = EventData(body)
        event.raw_amqp_message.annotations = {
            b"x-opt-publisher": "device-1",
            b"x-opt-sequence-number": 666,
            b"mine": "x",
        }
        forged.append(event)
    with target.producer(hub) as producer:
        producer.send_event(forged[0])
        producer.send_batch([*forged[1:]])
    events = read(target.consumer(hub), 3)
    assert [event.body_as_str() for event in events] == ["a", "b", "c"]
    assert [event.sequence_number for event in events] == [0, 1, 2]
    for event in events:
        assert b"x-opt-publisher" not in (event.raw_amqp_message.annotations or {})
        assert _annotation(event, "mine") == "x"


def test_publisher_with_another_key(service: HubService, target: SdkTarget) -> None:
    """A partition key that is not the publisher's name is an error that the SDK reports."""
    hub = service.create_hub(partition_count=1)
    with (
        target.publisher(hub, "device-1") as producer,
        pytest.raises(EventHubError, match="publisher's name"),
    ):
        producer.send_batch([EventData("a")], partition_key="device-2")


def test_publisher_revoked(service: HubService, target: SdkTarget) -> None:
    """A publisher that is revoked while it is connected gets an error, and others go on."""
    hub = service.create_hub(partition_count=1)

    async def revoke(server: TidegateServer) -> None:
        await server.broker.event_hub(hub).revoke_publisher("device-1")

    with target.publisher(hub, "device-1") as revoked, target.publisher(hub, "device-2") as other:
        revoked.send_event(EventData("a"))
        service.call(revoke)
        with pytest.raises(EventHubError, match="revoked"):
            revoked.send_event(EventData("b"))
        other.send_event(EventData("c"))
    assert [event.body_as_str() for event in read(target.consumer(hub), 2)] == ["a", "c"]


def test_buffered_keys(service: HubService, target: SdkTarget) -> None:
    """The SDK's buffered producer, which hashes keys itself and sends to partitions, is served."""
    hub = service.create_hub(partition_count=1)
    failures: list[object] = []
    with target.producer(
        hub,
        buffered_mode=True,
        on_success=lambda events, partition: None,
        on_error=lambda events, partition, error: failures.append(error),
    ) as producer:
        for number in range(5):
            producer.send_event(EventData(str(number)), partition_key="a")
        producer.flush(timeout=20)
    assert failures == []
    assert len(read(target.consumer(hub), 5)) == 5


def test_event_over_the_limit(service: HubService, target: SdkTarget) -> None:
    """The SDK sizes batches by the hub's limit; what is over it is refused, and the producer stays usable."""
    hub = service.create_hub(partition_count=1)

    async def limit(server: TidegateServer) -> None:
        await server.broker.update_event_hub(hub, event_bytes_max=20_000)

    service.call(limit)
    with target.producer(hub) as producer:
        assert producer.create_batch().max_size_in_bytes == 20_000
        with pytest.raises((EventDataSendError, EventHubError), match="exceeds the limit"):
            producer.send_event(EventData("x" * 30_000))
        producer.send_event(EventData("fits"))
    assert [event.body_as_str() for event in read(target.consumer(hub), 1)] == ["fits"]


def test_throttled_producer(service: HubService, target: SdkTarget) -> None:
    """Over the throughput units a send fails as server-busy and stores nothing; the same producer goes on.

    azure-eventhub 5.15.1 hands a refused send to its caller at once (azure-sdk-for-python#34266); the
    JavaScript client waits and repeats it.
    """
    hub = service.create_hub(partition_count=1)

    async def set_units(server: TidegateServer, units: int | None) -> None:
        await server.broker.set_throughput_units(units)

    service.call(lambda server: set_units(server, 1))
    refusals: list[str] = []
    deadline = time.monotonic() + WAIT_S
    try:
        with target.producer(hub) as producer:
            for number in range(4):
                is_stored = False
                while not is_stored:
                    assert time.monotonic() < deadline
                    try:
                        producer.send_event(EventData(str(number) + "x" * 600_000))
                        is_stored = True
                    except EventDataSendError as error:
                        refusals.append(str(error))
    finally:
        service.call(lambda server: set_units(server, None))
    assert refusals
    assert all("com.microsoft:server-busy" in refusal for refusal in refusals)
    assert [event.body_as_str()[0] for event in read(target.consumer(hub), 4)] == ["0", "1", "2", "3"]


def test_throttled_consumer_gets_everything(service: HubService, target: SdkTarget) -> None:
    """Over the throughput units a consumer is slowed, without an error, and gets all events in order."""
    hub = service.create_hub(partition_count=1)
    with target.producer(hub) as producer:
        for number in range(30):
            producer.send_event(EventData(f"{number:02}" + "x" * 150_000))

    async def set_units(server: TidegateServer, units: int | None) -> int:
        await server.broker.set_throughput_units(units)
        return server.broker.throughput.statistics().delayed_deliveries

    delayed_before = service.call(lambda server: set_units(server, 1))
    try:
        events = read(target.consumer(hub), 30)
    finally:
        delayed = service.call(lambda server: set_units(server, None))
    assert delayed > delayed_before
    assert [event.body_as_str()[:2] for event in events] == [f"{number:02}" for number in range(30)]

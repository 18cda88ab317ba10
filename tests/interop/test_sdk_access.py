"""The unmodified official SDK when keys change and when throughput units are used up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    EventDataSendError,
    EventHubError,
)
from tests.interop.support import Reader, SdkTarget

from tidegate.broker import Claim, EventHubStatistics, SharedAccessPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService


@pytest.fixture
def service() -> Iterator[HubService]:
    """A service of this test's own, because what is set here holds for a whole namespace."""
    with HubService() as service:
        yield service


def _target(service: HubService, policy: SharedAccessPolicy, *, is_secondary: bool = False) -> SdkTarget:
    where = ConnectionString.parse(service.connection_string)
    key = policy.secondary_key if is_secondary else policy.key
    return SdkTarget(
        ConnectionString(where.host, where.port, policy.name, key, use_development_emulator=True).format()
    )


def _make_policy(service: HubService, hub: str | None) -> SharedAccessPolicy:
    async def create(server: TidegateServer) -> SharedAccessPolicy:
        return await server.broker.create_policy(hub, "both", [Claim.SEND, Claim.LISTEN])

    return service.call(create)


@pytest.mark.parametrize("scope", ["namespace", "hub"])
def test_a_regenerated_key_ends_live_clients(service: HubService, scope: str) -> None:
    """Producer and receiver under way are told, and cannot come back; those with the other key go on."""
    hub = service.create_hub(partition_count=1)
    policy_scope = hub if scope == "hub" else None
    policy = _make_policy(service, policy_scope)

    async def regenerate(server: TidegateServer) -> SharedAccessPolicy:
        return await server.broker.regenerate_key(policy_scope, "both")

    first, second = _target(service, policy), _target(service, policy, is_secondary=True)
    with (
        first.producer(hub) as producer,
        second.producer(hub) as other_producer,
        Reader(first.consumer(hub)) as reader,
        Reader(second.consumer(hub)) as other_reader,
    ):
        producer.send_batch([EventData(b"before")])
        other_producer.send_batch([EventData(b"before, too")])
        reader.wait_events(2)
        other_reader.wait_events(2)
        renewed = service.call(regenerate)
        with pytest.raises((AuthenticationError, ConnectError)):
            producer.send_batch([EventData(b"after")])
        assert isinstance(reader.wait_error(), EventHubError)
        other_producer.send_batch([EventData(b"still here")])
        received = other_reader.wait_events(3)
        assert [event.body_as_str() for event in received] == ["before", "before, too", "still here"]
    with _target(service, renewed).producer(hub) as producer:
        producer.send_batch([EventData(b"with the new key")])


def test_a_throttled_producer_is_told_and_gets_its_events_in_later(service: HubService) -> None:
    """A refused batch is not stored and the link stays: who sends it again has it stored once.

    The Python SDK (5.15.1) opens its link again, tries once more, and then gives the refusal to its user.
    """
    hub = service.create_hub(partition_count=1)
    policy = _make_policy(service, None)

    async def use_up_units(server: TidegateServer) -> None:
        await server.broker.set_throughput_units(1)
        server.broker.throughput.use_up(600)  # longer than the test: the SDK may take its time to try again

    async def remove_limit(server: TidegateServer) -> None:
        await server.broker.set_throughput_units(None)

    async def statistics(server: TidegateServer) -> EventHubStatistics:
        return server.broker.event_hub(hub).statistics()

    service.call(use_up_units)
    batch: list[EventData | AmqpAnnotatedMessage] = [EventData(b"%d" % number) for number in range(800)]
    with _target(service, policy).producer(hub) as producer:
        with pytest.raises(EventDataSendError, match=r"com\.microsoft:server-busy") as refused:
            producer.send_batch(batch)
        assert "50002" in str(refused.value)
        service.call(remove_limit)
        producer.send_batch(batch)
    counted = service.call(statistics)
    assert counted.incoming_events == 800
    assert counted.throttled_requests >= 1

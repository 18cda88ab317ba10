"""The unmodified official SDK when keys change and when throughput units are used up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    EventDataSendError,
    EventHubError,
)
from tests.interop.support import WAIT_S, Reader, SdkTarget

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


def test_a_throttled_producer_is_told_and_gets_everything_in(service: HubService) -> None:
    """A refused batch is not stored and the link stays: who sends it again has it stored once.

    The Python SDK (5.15.1) gives the refusal to its user, and does not wait by itself.
    """
    hub = service.create_hub(partition_count=1)
    policy = _make_policy(service, None)

    async def throttle(server: TidegateServer) -> None:
        await server.broker.set_throughput_units(1)

    async def statistics(server: TidegateServer) -> EventHubStatistics:
        return server.broker.event_hub(hub).statistics()

    service.call(throttle)
    refusals: list[str] = []
    with _target(service, policy).producer(hub) as producer:
        deadline = time.monotonic() + WAIT_S
        for number in range(3):
            while True:
                assert time.monotonic() < deadline
                try:
                    producer.send_batch([EventData(b"%d" % number) for _ in range(800)])
                    break
                except EventDataSendError as error:
                    refusals.append(str(error))
    assert refusals
    assert all("com.microsoft:server-busy" in text and "50002" in text for text in refusals)
    counted = service.call(statistics)
    assert counted.incoming_events == 2400
    # Before it tells its user, the SDK opens its link anew and tries once more.
    assert counted.throttled_requests >= len(refusals)

"""Connections that nobody uses are closed with the service's words, however alive their clients keep them."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import ConnectionClosed
from tidegate.amqp.message import encode_message
from tidegate.broker import Broker, Claim
from tidegate.client import EventHubAdministrator
from tidegate.gateway.amqp.idle_guard import IdleLimits
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.transport.clock import SystemClock
from tidegate.wire.management import ManagementRequest, Operation


async def _closed_with(pair: Pair) -> str:
    await pair.wait_for(lambda: bool(pair.of_kind(ConnectionClosed)))
    error = pair.of_kind(ConnectionClosed)[0].error
    assert error is not None
    assert error.condition == "amqp:connection:forced"
    assert len(pair.owner.ended) == 1
    return error.description or ""


async def test_without_a_token(broker: Broker, clock: SetClock) -> None:
    """A client that presents no token is let go, also with links to $cbs, which anybody may have."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.05, 600.0))
    pair.request_links("$cbs")
    text = await _closed_with(pair)
    assert text.startswith(
        "The connection was inactive for more than the allowed 50 milliseconds and is closed by container "
        "'LinkTracker'. TrackingId:"
    )


async def test_with_a_token_that_was_refused(broker: Broker, clock: SetClock) -> None:
    """A wrong token is none."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.05, 600.0))
    assert pair.put_token(broker, f"sb://{HOST}/hub", key="wrong").status_code == 401
    assert "50 milliseconds" in await _closed_with(pair)


async def test_without_a_link(broker: Broker, clock: SetClock) -> None:
    """A client that has a token, and no link for events, has longer; then it is let go, too."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.02, 0.1))
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    assert "100 milliseconds" in await _closed_with(pair)


async def test_with_links(broker: Broker, clock: SetClock) -> None:
    """While there is a link for events, time does not count; when the last has gone, it begins anew."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.02, 0.05))
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    sender = pair.session.attach_sender("s", target="hub")
    receiver = pair.session.attach_receiver(
        "r", source="hub/ConsumerGroups/$Default/Partitions/0", target="client"
    )
    pair.exchange()
    other = Pair(broker, clock, idle_limits=IdleLimits(0.02, 0.05))
    assert other.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    sender.detach()
    pair.exchange()
    await _closed_with(other)  # began later, and is over: so the first's time would be, too
    assert receiver.is_open
    assert not pair.owner.ended
    receiver.detach()
    pair.exchange()
    assert "50 milliseconds" in await _closed_with(pair)


async def test_with_a_link_to_a_deleted_hub(broker: Broker, clock: SetClock) -> None:
    """A policy that is gone with its hub keeps no connection open: its links end."""
    policy = await broker.create_policy("hub", "senders", [Claim.SEND])
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.05, 600.0))
    audience = f"sb://{HOST}/hub"
    assert pair.put_token(broker, audience, key=policy.key, policy_name="senders").status_code == 202
    sender = pair.session.attach_sender("s", target="hub")
    pair.exchange()
    assert sender.is_open
    await broker.delete_event_hub("hub")
    assert "50 milliseconds" in await _closed_with(pair)
    error = pair.error_of(sender)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"


async def test_with_a_token_that_has_expired(broker: Broker, clock: SetClock) -> None:
    """A token that ran out is none, whatever the client asks since: others need the place."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.05, 600.0))
    expiry = int(clock.now.timestamp()) + 100
    assert pair.put_token(broker, f"sb://{HOST}/hub", expiry=expiry).status_code == 202
    assert not pair.handler.claims.is_empty
    clock.advance(101)
    pair.handler.on_rights_changed()  # as the token's timer does
    assert "50 milliseconds" in await _closed_with(pair)


async def test_with_another_token_in_time(broker: Broker, clock: SetClock) -> None:
    """A client that renews its token a little late keeps its connection."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.05, 600.0))
    other = Pair(broker, clock, idle_limits=IdleLimits(0.1, 600.0))
    expiry = int(clock.now.timestamp()) + 100
    assert pair.put_token(broker, f"sb://{HOST}/hub", expiry=expiry).status_code == 202
    clock.advance(101)
    pair.handler.on_rights_changed()
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    await _closed_with(other)
    assert not pair.owner.ended


async def test_changes_of_rights_prolong_nothing(broker: Broker, clock: SetClock) -> None:
    """A manager's changes leave a stranger, or one who has lost a right, no more time."""
    stranger = Pair(broker, clock, idle_limits=IdleLimits(600.0, 600.0), age_s=599.95)
    await broker.create_policy("hub", "other", [Claim.SEND])
    await _closed_with(stranger)


@pytest.mark.slow
async def test_requests_count_as_use(broker: Broker, clock: SetClock) -> None:
    """Whoever asks $management now and then is not let go."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(1.0, 1.0))
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    sender, receiver = pair.request_links("$management")
    other = Pair(broker, clock, idle_limits=IdleLimits(2.0, 2.0))
    assert other.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    request = encode_message(ManagementRequest(Operation.READ_EVENT_HUB, "hub").to_message())
    asked = 0
    while not other.owner.ended:
        if receiver.outstanding_credit > 0:
            sender.send(request)
            asked += 1
        pair.exchange()
        other.exchange()
        await asyncio.sleep(0.05)
    assert asked > 1
    assert not pair.owner.ended
    assert len(pair.deliveries(receiver)) == asked <= 100
    await _closed_with(pair)


async def _no_connection(gateway: AmqpGateway) -> None:
    while gateway.connection_counts().active:  # noqa: ASYNC110 - the gateway announces nothing
        await asyncio.sleep(0.01)


async def test_our_client_comes_back(broker: Broker) -> None:
    """A client whose idle connection was closed connects again when it is used."""
    gateway = AmqpGateway(
        broker,
        clock=SystemClock(),
        unacknowledged_bytes_max=1 << 20,
        idle_limits=IdleLimits(0.2, 0.2),
    )
    host, port = await gateway.listen("127.0.0.1", 0)
    policy = broker.policies()[0]
    connection_string = (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={policy.name};SharedAccessKey={policy.key};"
        "UseDevelopmentEmulator=true"
    )
    try:
        async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
            for _ in range(2):
                assert [hub.name for hub in await administrator.list_event_hubs()] == ["hub"]
                await asyncio.wait_for(_no_connection(gateway), 30.0)
    finally:
        await gateway.close()

"""The broker, and what is above it, over every engine: also over one that answers late."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.console.explorer_support import read_page
from tests.gateway.support import HOST, Pair
from tests.storage.engines import Memory, MemoryEngine, SlowEngine
from tests.support.clocks import SetClock

from tidegate.amqp.events import LinkDetached
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.message import Message, decode_message, encode_message
from tidegate.amqp.performatives import Source
from tidegate.broker import Broker, Claim, Partition
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.values import EventQuery
from tidegate.model.errors import (
    AlreadyExistsError,
    ClosedError,
    NotFoundError,
    PositionOutOfRangeError,
    QuotaExceededError,
)
from tidegate.model.position import EventPosition
from tidegate.model.sas import make_sas_token
from tidegate.model.times import milliseconds_of
from tidegate.storage.engine import LogEngine
from tidegate.storage.log_manager import LogManager
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.batch import wrap_event
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import ManagementRequest, Operation, partition_from_map
from tidegate.wire.names import EPOCH
from tidegate.wire.request_response import Response
from tidegate.wire.selector import selector_filter


class _Kept:
    """What outlives the engines of a test."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._memory = Memory()

    async def open(self) -> LogEngine:
        if self.kind == "file":
            return await LogManager.open(self._directory)
        return MemoryEngine(self._memory) if self.kind == "memory" else SlowEngine(self._memory)


@pytest.fixture(params=["file", "memory", "slow"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> _Kept:
    """Each engine in turn."""
    return _Kept(request.param, tmp_path)


@pytest.fixture
async def broker(kept: _Kept, clock: SetClock) -> AsyncIterator[Broker]:
    """A namespace on it with the hub ``hub`` of two partitions."""
    opened = await Broker.open(await kept.open(), clock=clock)
    await opened.create_event_hub("hub", partition_count=2)
    yield opened
    await opened.close()


def _event(text: str) -> bytes:
    return wrap_event(encode_message(Message(data=(text.encode(),))))


async def _append(broker: Broker, text: str, partition_id: str = "0") -> None:
    section = _event(text)
    await broker.event_hub("hub").partition(partition_id).append(section, array("I", (len(section),)))


async def test_a_namespace_survives_its_engine(kept: _Kept, clock: SetClock) -> None:
    """Hubs, groups, policies, limits, events and the audit trail."""
    broker = await Broker.open(await kept.open(), clock=clock)
    hub = await broker.create_event_hub("hub", partition_count=2, retention_hours=5)
    await hub.create_consumer_group("group")
    await hub.revoke_publisher("device")
    policy = await broker.create_policy("hub", "p", [Claim.SEND])
    await broker.set_throughput_units(3)
    await broker.create_event_hub("gone", partition_count=1)
    await broker.delete_event_hub("gone")
    await _append(broker, "event", "1")
    description, trail = hub.description, broker.audit.newest_first()
    await broker.close()
    broker = await Broker.open(await kept.open(), clock=clock)
    assert [each.description for each in broker.list_event_hubs()] == [description]
    assert broker.event_hub("hub").revoked_publishers == ("device",)
    assert broker.policies("hub") == (policy,)
    assert broker.throughput.units == 3
    assert len(trail) == 7
    assert {each.target for each in broker.audit.newest_first()} == {each.target for each in trail}
    batches = await broker.event_hub("hub").partition("1").read(0, bytes_max=1000)
    assert [bytes(batch.payload) for batch in batches] == [_event("event")]
    await broker.close()


async def test_changes_at_the_same_time_are_all_made(broker: Broker) -> None:
    """Each is computed from what the one before has left: none is lost, and limits hold."""
    hub = broker.event_hub("hub")
    outcomes = await asyncio.gather(
        *(broker.create_policy("hub", f"p{number}", [Claim.SEND]) for number in range(5)),
        *(hub.create_consumer_group(f"g{number}") for number in range(5)),
        broker.create_event_hub("twice", partition_count=1),
        broker.create_event_hub("twice", partition_count=1),
        broker.update_event_hub("hub", retention_hours=7),
        return_exceptions=True,
    )
    (failed,) = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert isinstance(failed, AlreadyExistsError)
    assert len(broker.policies("hub")) == 5
    assert len(hub.description.consumer_groups) == 6
    assert hub.description.retention_hours == 7
    more = (broker.create_policy("hub", f"q{number}", [Claim.SEND]) for number in range(10))
    refused = await asyncio.gather(*more, return_exceptions=True)
    assert sum(isinstance(outcome, QuotaExceededError) for outcome in refused) == 3
    assert len(broker.policies("hub")) == 12


async def test_positions_are_resolved(broker: Broker, clock: SetClock) -> None:
    """Every kind; what is beyond the end or not held is refused."""
    partition = broker.event_hub("hub").partition("0")
    for number in range(6):
        await _append(broker, str(number))
        clock.advance(1)
    begun = clock.now - timedelta(seconds=6)
    for position, expected in (
        (EventPosition.earliest(), 0),
        (EventPosition.latest(), 6),
        (EventPosition.from_sequence_number(3, is_inclusive=False), 4),
        (EventPosition.from_offset("3", is_inclusive=True), 3),
        (EventPosition.from_enqueued_time(begun + timedelta(seconds=2)), 2),
        (EventPosition.from_enqueued_time(begun + timedelta(hours=2)), 6),
    ):
        assert await partition.resolve(position) == expected
    with pytest.raises(PositionOutOfRangeError):
        await partition.resolve(EventPosition.from_sequence_number(17))
    ends = await partition.ends()
    assert (ends.begin_sequence_number, ends.last_enqueued_sequence_number) == (0, 5)
    assert partition.known_ends() == ends


async def test_waiting_for_events_ends_with_one_or_with_the_hub(broker: Broker) -> None:
    """As Capture waits."""
    partition = broker.event_hub("hub").partition("0")
    waiting = asyncio.gather(partition.wait_appended(1))
    await _append(broker, "0")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await _append(broker, "1")
    async with asyncio.timeout(10):
        await waiting
    waiting = asyncio.gather(partition.wait_appended(2))
    await asyncio.sleep(0)
    await broker.delete_event_hub("hub")
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(NotFoundError):
        broker.event_hub("hub")


async def test_amqp_receives_what_is_sent(broker: Broker, clock: SetClock) -> None:
    """A receiver that begins in the past, one at the end, a sender, and a request for the bounds."""
    await _append(broker, "before")
    pair = Pair(broker, clock)
    assert pair.put_token(broker, f"sb://{HOST}/hub").status_code == 202
    address = "hub/ConsumerGroups/$Default/Partitions/0"
    links = [
        pair.session.attach_receiver(
            name, source=Source(address=address, filter=selector_filter(position)), target="client"
        )
        for name, position in (("all", EventPosition.earliest()), ("new", EventPosition.latest()))
    ]
    for link in links:
        link.grant_credit(10)
    await pair.wait_for(lambda: all(link.is_open for link in links))
    sender = pair.session.attach_sender("s", target="hub/Partitions/0")
    pair.exchange()
    sender.send(encode_message(Message(data=(b"after",))))
    await pair.wait_for(lambda: [len(pair.deliveries(link)) for link in links] == [2, 1])
    bodies = [[delivery.payload[-6:] for delivery in pair.deliveries(link)] for link in links]
    assert [[body.lstrip(b"\x05") for body in some] for some in bodies] == [[b"before", b"after"], [b"after"]]
    requests, responses = pair.request_links("$management")
    request = ManagementRequest(Operation.READ_PARTITION, "hub", partition_id="0")
    requests.send(encode_message(request.to_message()))
    await pair.wait_for(lambda: bool(pair.deliveries(responses)))
    response = Response.from_message(decode_message(pair.deliveries(responses)[0].payload))
    assert partition_from_map(response.value).last_enqueued_sequence_number == 1
    await broker.delete_event_hub("hub")
    await pair.wait_for(lambda: not any(link.is_open for link in links))


async def _connect(broker: Broker, clock: SetClock, name: str, *claims: Claim) -> Pair:
    """A client with a token of a new policy of the hub."""
    policy = await broker.create_policy("hub", name, claims)
    audience = f"sb://{HOST}/hub"
    token = make_sas_token(audience=audience, key_name=name, key=policy.key, expiry=4_000_000_000)
    pair = Pair(broker, clock)
    sender, receiver = pair.request_links("$cbs", pair.client.begin_session())
    message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
    assert pair.request(sender, receiver, message).status_code == 202
    return pair


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_change_that_waits_is_not_made_without_its_right(
    broker: Broker, clock: SetClock, is_recreated: bool
) -> None:
    """A manager whose policy, or hub, is being deleted asks for another policy: it would outlast that."""
    pair = await _connect(broker, clock, "manager", Claim.MANAGE)
    requests, responses = pair.request_links("$management")
    ends = (
        [broker.delete_event_hub("hub"), broker.create_event_hub("hub", partition_count=2)]
        if is_recreated
        else [broker.delete_policy("hub", "manager")]
    )
    ending = asyncio.gather(*ends)
    await asyncio.sleep(0)  # begun
    values = {"name": "another", "claims": ["Manage"]}
    asked = AdministrationRequest("createEventHubPolicy", {"hub": "hub"}, values)
    requests.send(encode_message(asked.to_message()))
    await pair.wait_for(lambda: bool(pair.deliveries(responses)))
    await ending
    response = Response.from_message(decode_message(pair.deliveries(responses)[0].payload))
    assert response.status_code == 401
    assert broker.policies("hub") == ()


async def test_a_change_of_a_deleted_hub_is_refused(broker: Broker) -> None:
    """Not reported as made, and not made to the hub that has its name now."""
    hub = broker.event_hub("hub")
    _, _, outcome = await asyncio.gather(
        broker.delete_event_hub("hub"),
        broker.create_event_hub("hub", partition_count=2),
        hub.create_consumer_group("group"),
        return_exceptions=True,
    )
    assert isinstance(outcome, NotFoundError)
    assert broker.event_hub("hub").description.consumer_groups == ("$Default",)
    assert [each.action for each in broker.audit.newest_first()][:2] == ["createEventHub", "deleteEventHub"]


async def test_an_attach_that_waits_steals_nothing_without_its_right(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver with a higher owner level detaches others, but not if its policy ends before it is open."""

    def attach(pair: Pair, level: int) -> ReceiverLink:
        return pair.session.attach_receiver(
            "r",
            source="hub/ConsumerGroups/$Default/Partitions/0",
            target="client",
            properties={EPOCH: level},
        )

    may_go_on = asyncio.Event()
    resolve = Partition.resolve

    async def resolve_late(self: Partition, position: EventPosition, *, is_lost_refused: bool = False) -> int:
        await may_go_on.wait()
        return await resolve(self, position, is_lost_refused=is_lost_refused)

    older = await _connect(broker, clock, "older", Claim.LISTEN)
    newer = await _connect(broker, clock, "newer", Claim.LISTEN)
    link = attach(older, 1)
    await older.wait_for(lambda: link.is_open)
    monkeypatch.setattr(Partition, "resolve", resolve_late)
    refused = attach(newer, 2)
    newer.exchange()
    await broker.delete_policy("hub", "newer")
    may_go_on.set()
    await newer.wait_for(lambda: bool(newer.of_kind(LinkDetached)))
    error = newer.error_of(refused)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    older.exchange()
    assert link.is_open


async def test_the_explorer_reads_pages_both_ways(broker: Broker, clock: SetClock) -> None:
    """Over both partitions, newest first and oldest first."""
    begun = clock.now
    for number in range(20):
        await _append(broker, str(number), str(number % 2))
        clock.advance(1)
    events = BrokerEvents(broker)
    for is_newest_first, expected in ((False, range(15)), (True, range(5, 20))):
        page = await read_page(events, EventQuery("hub", is_newest_first=is_newest_first, count=15))
        found = sorted((event.place.enqueued_time_ms, event.place.partition_index) for event in page.events)
        assert len(found) == 15
        begun_ms = milliseconds_of(begun)
        assert [(time_ms - begun_ms) // 1000 for time_ms, _ in found] == list(expected)

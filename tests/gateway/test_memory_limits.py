"""What the gateway holds for a client is counted, given back when memory is short, and bounded."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar, cast

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.events import ConnectionClosed, DeliveriesSettled, LinkDetached
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.message import Message, MessageId, Properties, decode_message, encode_message
from tidegate.amqp.performatives import Accepted, Rejected
from tidegate.broker import Broker, Claim, Partition, attempts
from tidegate.gateway.amqp import claims, ingress
from tidegate.gateway.amqp.idle_guard import IdleLimits
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.model.audience import entity_path
from tidegate.model.errors import UnauthorizedError
from tidegate.model.position import EventPosition
from tidegate.model.sas import make_sas_token
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, wrap_event
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import ManagementRequest, Operation

T = TypeVar("T")

_EVENT = encode_message(Message(data=(bytes(1000),)))


async def _fill(pair: Pair, batches: int, *, events: int = 100, target: str = "hub/Partitions/0") -> None:
    sender = pair.session.attach_sender(f"fill {target}", target=target)
    pair.exchange()
    for _ in range(batches):
        sender.send(wrap_event(_EVENT) * events, message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: len(_settled_ids(pair, sender)) == batches)


def _settled_ids(pair: Pair, link: SenderLink) -> list[int]:
    return [
        number
        for event in pair.settled(link)
        for number in range(event.first_delivery_id, event.last_delivery_id + 1)
    ]


def _held(pair: Pair) -> int:
    return pair.held_bytes - pair.handler.claims._answers_bytes


def _receiver(pair: Pair, credit: int, partition: int = 0, name: str = "in") -> ReceiverLink:
    link = pair.session.attach_receiver(
        name, source=f"hub/ConsumerGroups/$Default/Partitions/{partition}", target="client"
    )
    link.grant_credit(credit)
    pair.exchange()
    return link


async def test_read_ahead_is_counted_and_given_back(pair: Pair) -> None:
    """A receiver without credit keeps what was read, until memory is short; then it is read again."""
    before = _held(pair)
    await _fill(pair, 1)
    link = _receiver(pair, 10)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 10)
    assert _held(pair) > 90_000
    (drop,) = pair.handler.on_memory_pressure(True)
    drop()
    assert not pair.handler.on_memory_pressure(False)
    assert _held(pair) == before
    link.grant_credit(200)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 100)
    assert _held(pair) == before


async def test_nothing_is_read_ahead_while_memory_is_short(pair: Pair) -> None:
    """Who fills memory asks first: a receiver keeps nothing that it could read again."""
    before = _held(pair)
    await _fill(pair, 1)
    pair.owner.budget = MemoryBudget(1000)
    pair.owner.budget.add_queued(900)
    link = _receiver(pair, 10)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 10)
    assert _held(pair) == before


async def test_a_receiver_that_is_gone_holds_nothing(pair: Pair) -> None:
    """The count goes down with the link, however it ends."""
    before = _held(pair)
    await _fill(pair, 1)
    link = _receiver(pair, 10)
    await pair.wait_for(lambda: len(pair.deliveries(link)) == 10)
    link.detach()
    pair.exchange()
    assert _held(pair) == before


async def test_a_burst_is_bounded_in_bytes(pair: Pair) -> None:
    """What a client that stops reading leaves unsent is one burst, not a thousand events of any size."""
    await _fill(pair, 1, events=900)
    pair.is_writable = False
    link = _receiver(pair, 1000)
    assert not pair.deliveries(link)
    pair.is_writable = True
    sent_before = pair.bytes_to_client
    pair.handler.on_writable()
    pair.handler.on_turn()
    pair.is_writable = False
    pair.exchange()
    assert 200_000 < pair.bytes_to_client - sent_before < 400_000


async def test_new_clients_are_refused_when_memory_is_exhausted(broker: Broker, clock: SetClock) -> None:
    """A client that connects while nothing is free is told so, with the condition for it."""
    pair = Pair(broker, clock)
    pair.owner.budget = MemoryBudget(1000)
    pair.owner.budget.add_queued(1000)
    pair.exchange()
    (closed,) = pair.of_kind(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"


async def test_tokens_are_counted(broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection keeps so many tokens; expired ones make room, renewed ones take none."""
    monkeypatch.setattr(claims, "GRANTS_MAX", 3)
    pair = Pair(broker, clock)
    sender, receiver = pair.request_links("$cbs")
    key = broker.policies()[0]
    soon = int(clock.now.timestamp()) + 60

    def put(audience: str, expiry: int = 4_000_000_000) -> int:
        token = make_sas_token(audience=audience, key_name=key.name, key=key.key, expiry=expiry)
        message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
        return pair.request(sender, receiver, message).status_code

    assert put(f"sb://{HOST}/hub/Partitions/0", soon) == 202
    assert put(f"sb://{HOST}/hub/Partitions/1") == 202
    assert put(f"sb://{HOST}/hub") == 202
    assert put(f"sb://{HOST}/") == 429
    assert put(f"sb://{HOST}/hub") == 202
    clock.advance(61)
    assert put(f"sb://{HOST}/") == 202
    assert put(f"sb://{HOST}/hub/{'x' * 3000}") == 401


async def test_what_tokens_take_is_counted(broker: Broker, clock: SetClock) -> None:
    """Protects memory: a token may be for a name of kilobytes, and a connection has thousands of tokens. What
    is remembered of lost ones is bounded, however often their key is regenerated."""
    pair = Pair(broker, clock)
    policy = await broker.create_policy("hub", "own", [Claim.MANAGE])
    sender, receiver = pair.request_links("$cbs")
    long = "\U0001f600" * 600

    def put(audience: str) -> None:
        key = broker.policy("hub", "own").key
        token = make_sas_token(audience=audience, key_name=policy.name, key=key, expiry=4_000_000_000)
        message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
        assert pair.request(sender, receiver, message).status_code == 202

    for place in "abc":
        put(f"sb://{HOST}/hub/{place}{long}")
        receiver.grant_credit(1)
    assert _held(pair) > 3 * 12_000
    before = _held(pair)
    put(f"sb://{HOST}/hub/c{long}")
    assert _held(pair) == before
    for number in range(10):
        await broker.regenerate_key("hub", "own")
        assert pair.handler.claims.is_empty
        assert _held(pair) == 0
        put(f"sb://{HOST}/hub/{number}")
    assert _held(pair) < 2000
    pair.client.close()
    pair.exchange()
    assert _held(pair) == 0


@pytest.mark.slow
async def test_lost_tokens_are_not_remembered_without_end(broker: Broker, clock: SetClock) -> None:
    """Protects memory: whoever manages a hub can lose tokens as often as they like."""
    await broker.create_policy("hub", "own", [Claim.MANAGE])
    kept = claims.ConnectionClaims(broker, clock, lambda: None)
    for number in range(100):
        key = broker.policy("hub", "own").key
        for place in range(10):
            audience = f"sb://{HOST}/hub/{number}-{place}"
            token = make_sas_token(audience=audience, key_name="own", key=key, expiry=4_000_000_000)
            kept.put_token(token, token_type=SAS_TOKEN_TYPE, audience=audience)
        await broker.regenerate_key("hub", "own")
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            kept.require(entity_path("hub", f"{number}-0"), Claim.SEND)
    assert len(kept._lost) <= 100
    kept.close()


async def test_time_before_the_handshake_counts(broker: Broker, clock: SetClock) -> None:
    """The time to authenticate runs from the connection on: a TLS handshake does not prolong it."""
    early = Pair(broker, clock, idle_limits=IdleLimits(600.0, 600.0), age_s=599.95)
    late = Pair(broker, clock, idle_limits=IdleLimits(600.0, 600.0))
    await early.wait_for(lambda: bool(early.of_kind(ConnectionClosed)))
    assert not late.owner.ended


async def test_requests_without_a_token_prolong_nothing(broker: Broker, clock: SetClock) -> None:
    """Who has no token cannot stay by asking $management over and over."""
    pair = Pair(broker, clock, idle_limits=IdleLimits(0.3, 600.0))
    sender, receiver = pair.request_links("$management")
    request = encode_message(ManagementRequest(Operation.READ_EVENT_HUB, "hub").to_message())
    async with asyncio.timeout(30.0):
        while not pair.of_kind(ConnectionClosed):
            if sender.credit > 0 and sender.is_open:
                receiver.grant_credit(1)
                sender.send(request, settled=True)
            pair.exchange()
            await asyncio.sleep(0.02)


async def test_large_batches_of_a_publisher_stay_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose events are rewritten in slices are stored, and answered, in the order they were sent; one
    that is refused in between is told so."""
    monkeypatch.setattr(ingress, "_EVENTS_AT_ONCE", 2)
    sender = pair.session.attach_sender("publisher", target="hub/Publishers/p")
    pair.exchange()
    bodies = [[f"{batch}-{number}" for number in range(1 + 3 * (batch % 2))] for batch in range(6)]
    for batch in bodies:
        events = b"".join(wrap_event(encode_message(Message(data=(body.encode(),)))) for body in batch)
        sender.send(events, message_format=BATCH_MESSAGE_FORMAT)
    garbled = wrap_event(b"\x00\x53\x72\xc1\x03") * 3
    sender.send(garbled, message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: len(_settled_ids(pair, sender)) == 7)
    assert _settled_ids(pair, sender) == sorted(_settled_ids(pair, sender))
    states = [event.state for event in pair.of_kind(DeliveriesSettled) if event.link is sender]
    assert isinstance(states[-1], Rejected)
    assert all(isinstance(state, Accepted) for state in states[:-1])
    stored = [
        bytes(batch.payload)
        for partition in pair.owner.broker.event_hub("hub").partitions
        for batch in (await partition.read(0, bytes_max=1 << 20))
    ]
    wanted = [body.encode() for batch in bodies for body in batch]
    found = b"".join(stored)
    positions = [found.index(body) for body in wanted]
    assert positions == sorted(positions)
    assert pair.owner.unacknowledged_bytes == 0


async def test_large_batches_that_arrive_one_by_one_are_stored_once_each(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that arrives when the one before it has just been stored, and slices wait for their turns."""
    collect = SlicedWork.collect

    async def collect_later(
        self: SlicedWork, items: Iterator[T | None], *, address: object = None
    ) -> list[T]:
        await asyncio.sleep(0)
        return await collect(self, items, address=address)

    monkeypatch.setattr(SlicedWork, "collect", collect_later)
    monkeypatch.setattr(ingress, "_EVENTS_AT_ONCE", 2)
    sender = pair.session.attach_sender("publisher", target="hub/Publishers/p")
    pair.exchange()
    for number in range(50):
        event = wrap_event(encode_message(Message(data=(b"number %d." % number,))))
        sender.send(event * 3, message_format=BATCH_MESSAGE_FORMAT)
        pair.exchange()
        for _ in range(number % 7):
            await asyncio.sleep(0)
    await pair.wait_for(lambda: len(_settled_ids(pair, sender)) == 50)
    states = [event.state for event in pair.of_kind(DeliveriesSettled) if event.link is sender]
    assert all(isinstance(state, Accepted) for state in states)
    stored = [
        bytes(batch.payload)
        for partition in pair.owner.broker.event_hub("hub").partitions
        for batch in await partition.read(0, bytes_max=1 << 20)
    ]
    found = b"".join(stored)
    assert [found.count(b"number %d." % number) for number in range(50)] == [3] * 50


async def test_sessions_share_what_waits_for_their_windows(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with closed windows in many sessions is sent little; what one of them frees, the next gets."""
    monkeypatch.setattr("tidegate.gateway.amqp.connection_handler._BLOCKED_BYTES_MAX", 10_000)
    filler = Pair(broker, clock)
    assert filler.put_token(broker, f"sb://{HOST}/").status_code == 202
    await _fill(filler, 2, events=50)
    pair = Pair(broker, clock, max_frame_size=512)
    assert pair.put_token(broker, f"sb://{HOST}/").status_code == 202
    sessions = [pair.client.begin_session(incoming_window=2) for _ in range(3)]
    # Batched delivery: one delivery is many frames of 512 bytes.
    links = [
        session.attach_receiver(
            f"in-{number}",
            source="hub/ConsumerGroups/$Default/Partitions/0",
            target="client",
            desired_capabilities=("tidegate:batch-delivery",),
        )
        for number, session in enumerate(sessions)
    ]
    for link in links:
        link.grant_credit(10)
    await pair.wait_for(lambda: all(len(pair.deliveries(link)) == 2 for link in links))
    assert 10_000 < pair.blocked_bytes_peak < 10_000 + 60_000  # and one delivery
    assert pair.server.blocked_bytes == 0
    assert not pair.of_kind(LinkDetached)


async def test_producers_share_what_waits_for_the_disk(broker: Broker) -> None:
    """The more is under way in all, the less each connection may have; a little is always allowed."""
    gateway = AmqpGateway(broker, clock=SystemClock(), unacknowledged_bytes_max=16 << 20)
    alone = gateway.unacknowledged_bytes_max
    gateway.add_unacknowledged(alone // 2)
    shared = gateway.unacknowledged_bytes_max
    assert shared == alone // 2
    gateway.add_unacknowledged(alone)
    assert gateway.unacknowledged_bytes_max == 64 * 1024
    assert gateway.budget.statistics().used_bytes == alone + alone // 2
    gateway.add_unacknowledged(-alone - alone // 2)
    assert gateway.unacknowledged_bytes_max == alone
    await gateway.close()


async def test_remembered_answers_count_as_memory(pair: Pair, broker: Broker) -> None:
    """Protects the memory budget: links to ever new publishers, each detached again, left 3 MB per connection
    that no limit counted."""
    pair.exchange()
    before = pair.held_bytes
    for number in range(50):
        pair.session.attach_sender(f"s{number}", target=f"hub/Publishers/{number}-{'x' * 100}").detach()
    pair.exchange()
    assert pair.held_bytes - before >= 50 * 356
    await broker.create_policy(None, "another", [Claim.SEND])
    pair.exchange()
    assert pair.held_bytes == before


async def test_events_that_are_rewritten_count_as_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the memory budget: the events of a publisher's batch of 1 MB take 28 MB until it is stored."""
    held: list[int] = []
    work_in_slices = pair.handler.work_in_slices

    async def noted(items: Iterator[bytes | None]) -> list[bytes]:
        held.append(_held(pair))
        return await work_in_slices(items)

    monkeypatch.setattr(pair.handler, "work_in_slices", noted)
    before = _held(pair)
    await _fill(pair, 1, events=300, target="hub/Publishers/p")
    assert max(held) - before > 300 * (len(_EVENT) + 160)
    assert _held(pair) == before


async def test_attaches_that_wait_for_the_disk_count_with_their_values(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects memory while a disk is stuck: decoded properties take twenty times their bytes."""
    is_answering, resolve = asyncio.Event(), Partition.resolve

    async def late(self: Partition, position: EventPosition, *, is_lost_refused: bool = False) -> int:
        await is_answering.wait()
        return await resolve(self, position, is_lost_refused=is_lost_refused)

    monkeypatch.setattr(Partition, "resolve", late)
    before = pair.held_bytes
    source = "hub/ConsumerGroups/$Default/Partitions/0"
    many: dict[str, object] = {"many": [[] for _ in range(3000)]}
    link = pair.session.attach_receiver("r", source=source, target="client", properties=many)
    pair.exchange()
    await asyncio.sleep(0)
    assert pair.held_bytes - before > 3000 * sys.getsizeof([])
    is_answering.set()
    await pair.wait_for(lambda: link.is_open)
    await asyncio.gather(*pair.owner.tasks)
    assert pair.held_bytes - before < 1000  # an answer about its rights


async def test_a_delayed_refusal_keeps_little_of_its_request(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects memory from who has no key: a wrong one is answered up to 10 s later, 200 may wait for each
    address, and a decoded request takes eighty times its bytes."""
    free = 2
    monkeypatch.setattr(attempts, "FREE_FAILURES", free)
    pair = Pair(broker, clock)
    sender, receiver = pair.request_links("$cbs")
    token = make_sas_token(audience=f"sb://{HOST}/hub", key_name="x", key="wrong", expiry=4_000_000_000)
    request = put_token_request(PutToken(SAS_TOKEN_TYPE, f"sb://{HOST}/hub", token))
    message_id = cast(MessageId, [[] for _ in range(1_000)])
    encoded = encode_message(replace(request, properties=Properties(message_id=message_id)))
    before = pair.held_bytes
    tracemalloc.start()
    try:
        for _ in range(free + 10):
            sender.send(encoded)
            pair.exchange()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(pair.deliveries(receiver)) == free
    assert pair.held_bytes == before + 10 * len(encoded)
    assert kept < 200_000  # 800 KB, if all was kept
    await pair.wait_for(lambda: len(pair.deliveries(receiver)) > free)
    assert pair.held_bytes < before + 10 * len(encoded)
    answered = decode_message(pair.deliveries(receiver)[-1].payload).properties
    assert answered is not None
    assert answered.correlation_id == message_id

"""Sender links: what is acknowledged is stored, in order; what is refused says why and harms nothing."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.link import SenderLink
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import Accepted, Rejected
from tidegate.amqp.transfers import accepted_frame
from tidegate.amqp.types import ULong
from tidegate.broker import AppendResult, Broker, Claim, Partition
from tidegate.gateway.amqp.ingress import IngressLink
from tidegate.model.errors import ClosedError
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.wire import batch as wire_batch
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope, iter_events, wrap_event
from tidegate.wire.names import IDEMPOTENT_BATCH_CAPABILITY, PARTITION_KEY


def _sender(pair: Pair, address: str, name: str = "sender", **kwargs: object) -> SenderLink:
    link = pair.session.attach_sender(name, target=address, **kwargs)  # type: ignore[arg-type]
    pair.exchange()
    assert link.is_open, pair.events
    return link


def _event(text: str) -> bytes:
    return encode_message(Message(data=(text.encode(),)))


def _batch(*texts: str, **envelope: object) -> bytes:
    return batch_envelope(**envelope) + b"".join(  # type: ignore[arg-type]
        wrap_event(_event(text)) for text in texts
    )


async def _stored(broker: Broker, partition_id: str) -> list[bytes]:
    partition = broker.event_hub("hub").partition(partition_id)
    stored: list[bytes] = []
    position = partition.begin_sequence_number
    while batches := await partition.read(position, bytes_max=1 << 20):
        for batch in batches:
            stored += [bytes(event) for event in iter_events(batch.payload, batch.lengths)]
            position = batch.until_sequence_number
    return stored


async def test_batches_and_single_messages_are_stored_byte_for_byte(pair: Pair, broker: Broker) -> None:
    """Whatever the form they were sent in, events lie in the log exactly as the client encoded them."""
    link = _sender(pair, "hub/Partitions/1")
    link.send(_event("one"))
    link.send(_batch("two", "three"), message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 1)
    assert all(isinstance(event.state, Accepted) for event in pair.settled(link))
    assert await _stored(broker, "1") == [_event("one"), _event("two"), _event("three")]
    assert await _stored(broker, "0") == []


async def test_acknowledgement_follows_durability_and_order(pair: Pair, broker: Broker) -> None:
    """Nothing is acknowledged before it is readable, and many in flight are answered in their order."""
    link = _sender(pair, "hub/Partitions/0")
    for number in range(50):
        link.send(_event(str(number)))
    pair.exchange()
    assert pair.settled(link) == []
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 49)
    firsts = [event.first_delivery_id for event in pair.settled(link)]
    assert firsts == sorted(firsts)
    assert await _stored(broker, "0") == [_event(str(number)) for number in range(50)]


async def test_too_large_batch_is_rejected_and_the_link_goes_on(pair: Pair, broker: Broker) -> None:
    """A refused batch does not take its neighbours with it: order and link survive."""
    link = _sender(pair, "hub/Partitions/0")
    link.send(_event("before"))
    link.send(b"\x00\x53\x99garbage", message_format=BATCH_MESSAGE_FORMAT)
    link.send(_event("after"))
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 2)
    states = [type(event.state) for event in pair.settled(link)]
    assert states == [Accepted, Rejected, Accepted]
    rejected = pair.settled(link)[1].state
    assert isinstance(rejected, Rejected)
    assert rejected.error is not None
    assert rejected.error.condition == "amqp:decode-error"
    assert await _stored(broker, "0") == [_event("before"), _event("after")]


async def test_over_the_limit(pair: Pair, broker: Broker) -> None:
    """A message over 1 MB is rejected as too large, nothing of it is stored, and the link goes on."""
    link = _sender(pair, "hub/Partitions/0")
    link.send(_event("x" * EVENT_BYTES_MAX))
    link.send(_event("fits"))
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 1)
    rejected, accepted = (event.state for event in pair.settled(link))
    assert isinstance(rejected, Rejected)
    assert rejected.error is not None
    assert rejected.error.condition == "amqp:link:message-size-exceeded"
    assert isinstance(accepted, Accepted)
    assert await _stored(broker, "0") == [_event("fits")]


async def test_the_hubs_own_limit(pair: Pair, broker: Broker) -> None:
    """A hub's limit is announced; lowered later, it refuses what is over it on open links, which go on."""
    await broker.update_event_hub("hub", event_bytes_max=20_000)
    link = _sender(pair, "hub/Partitions/0")
    assert link.remote_attach.max_message_size == 20_000
    await broker.update_event_hub("hub", event_bytes_max=10_000)
    link.send(_event("x" * 15_000))
    link.send(_batch("x" * 6_000, "x" * 6_000), message_format=BATCH_MESSAGE_FORMAT)
    link.send(_event("x" * 9_000))
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 2)
    states = [event.state for event in pair.settled(link)]
    for state in states[:2]:
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "amqp:link:message-size-exceeded"
    assert isinstance(states[2], Accepted)
    assert len(await _stored(broker, "0")) == 1


async def test_over_the_throughput_units_a_batch_is_refused(
    pair: Pair, broker: Broker, clock: SetClock
) -> None:
    """What exceeds the units is refused as server-busy and may come again; the link stays usable."""
    await broker.set_throughput_units(1)
    link = _sender(pair, "hub/Partitions/0")
    for number in range(3):
        link.send(_event(f"{number} " + "x" * 600_000))
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 2)
    states = [event.state for event in pair.settled(link)]
    refused = [state for state in states if isinstance(state, Rejected)]
    assert refused
    for state in refused:
        assert state.error is not None
        assert state.error.condition == "com.microsoft:server-busy"
    clock.advance(4.0)
    link.send(_event("again"))
    await pair.wait_for(lambda: pair.settled(link)[-1].last_delivery_id == 3)
    assert isinstance(pair.settled(link)[-1].state, Accepted)
    assert broker.throughput.statistics().throttled_requests == len(refused)


@pytest.mark.parametrize("is_batch", [True, False])
async def test_key_and_partition_together(pair: Pair, broker: Broker, is_batch: bool) -> None:
    """The link's partition wins over the key, which is stored: Java's buffered producer sends so."""
    link = _sender(pair, "hub/Partitions/1")  # "a" belongs to partition 0 of 2
    keyed = encode_message(Message(message_annotations={PARTITION_KEY: "a"}, data=(b"x",)))
    if is_batch:
        envelope = batch_envelope(partition_key="a")
        link.send(envelope + wrap_event(keyed), message_format=BATCH_MESSAGE_FORMAT)
    else:
        link.send(keyed)
    await pair.wait_for(lambda: bool(pair.settled(link)))
    assert isinstance(pair.settled(link)[0].state, Accepted)
    assert await _stored(broker, "1") == [keyed]
    assert not (await _stored(broker, "0"))


async def test_a_key_is_limited_on_a_partitions_link_too(pair: Pair, broker: Broker) -> None:
    """A key of 129 characters is refused whoever chooses the partition, and the link stays attached."""
    link = _sender(pair, "hub/Partitions/1")
    link.send(_batch("x", partition_key="k" * 129), message_format=BATCH_MESSAGE_FORMAT)
    link.send(_event("next"))
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 1)
    refused = pair.settled(link)[0].state
    assert isinstance(refused, Rejected)
    assert refused.error is not None
    assert refused.error.condition == "com.microsoft:argument-error"
    assert await _stored(broker, "1") == [_event("next")]


async def test_keys_inside_a_batch_for_a_partition(pair: Pair, broker: Broker) -> None:
    """Keys of the events in a batch are theirs to keep: who hashed them itself sends to the partition."""
    link = _sender(pair, "hub/Partitions/1")
    keyed = encode_message(Message(message_annotations={PARTITION_KEY: "a"}, data=(b"x",)))
    link.send(batch_envelope() + wrap_event(keyed), message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: bool(pair.settled(link)))
    assert await _stored(broker, "1") == [keyed]


async def test_partition_key_and_turns(pair: Pair, broker: Broker) -> None:
    """On the hub's own link, a key goes to the partition of its hash, and no key to each in turn."""
    link = _sender(pair, "amqps://host:5671/hub/")
    link.send(_batch("keyed", partition_key="a"), message_format=BATCH_MESSAGE_FORMAT)
    for text in ("t0", "t1"):
        link.send(_batch(text), message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 2)
    assert await _stored(broker, "0") == [
        _event("keyed"),
        _event("t0"),
    ]  # by the vectors "a" is 0 of 4, so 0 of 2
    assert await _stored(broker, "1") == [_event("t1")]


async def test_numbered_batches_are_stored_once(pair: Pair, broker: Broker) -> None:
    """A repeated batch of an idempotent producer is acknowledged and not stored again; a gap is refused."""
    link = _sender(pair, "hub/Partitions/0", desired_capabilities=(IDEMPOTENT_BATCH_CAPABILITY,))
    assert link.remote_attach.offered_capabilities == (IDEMPOTENT_BATCH_CAPABILITY,)
    for sequence in (0, 0, 2, 9):
        payload = _batch("a", "b", producer_id=7, producer_epoch=0, producer_sequence_number=sequence)
        link.send(payload, message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 3)
    last = pair.settled(link)[-1].state
    assert isinstance(last, Rejected)
    assert last.error is not None
    assert last.error.condition == "com.microsoft:out-of-order-sequence"
    assert len(await _stored(broker, "0")) == 4


@pytest.mark.parametrize(
    "number", [{"producer_id": ULong(2**64 - 1)}, {"producer_id": -1}, {"producer_epoch": -3}]
)
async def test_odd_producer_numbers_harm_nobody(pair: Pair, broker: Broker, number: dict[str, int]) -> None:
    """Whatever a client calls its producer, its batch is stored or refused, and the next one is stored."""
    link = _sender(pair, "hub/Partitions/0", desired_capabilities=(IDEMPOTENT_BATCH_CAPABILITY,))
    numbers = {"producer_id": 7, "producer_epoch": 0, "producer_sequence_number": 0}
    link.send(_batch("odd", **(numbers | number)), message_format=BATCH_MESSAGE_FORMAT)
    link.send(_batch("next", **numbers), message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 1)
    assert isinstance(pair.settled(link)[-1].state, Accepted)
    assert (await _stored(broker, "0"))[-1] == _event("next")


async def test_many_tiny_events_that_wait_count_for_what_they_take(pair: Pair) -> None:
    """Reading pauses for a slow disk also where payloads are almost nothing."""
    link = _sender(pair, "hub/Partitions/0")
    for _ in range(400):
        link.send(_event(""))
    pair.exchange()
    assert not pair.is_reading
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 399)
    assert pair.is_reading


@pytest.mark.slow
async def test_a_batch_of_very_many_events_is_stored_in_steps(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours from as many empty events as the official client for Python puts into a megabyte;
    they are stored all the same, and what was sent after them comes after them."""
    found = 0
    unpack = wire_batch._two_u32

    def counting_unpack(view: memoryview, offset: int) -> tuple[int, int]:
        nonlocal found
        found += 1
        return unpack(view, offset)

    monkeypatch.setattr(wire_batch, "_two_u32", counting_unpack)
    link = _sender(pair, "hub/Partitions/1")
    events = wrap_event(b"") * 104_000
    link.send(batch_envelope() + events, message_format=BATCH_MESSAGE_FORMAT)
    link.send(_batch("first", "last"), message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    assert 0 < found < 5_000
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 1)
    assert all(isinstance(event.state, Accepted) for event in pair.settled(link))
    stored = await _stored(broker, "1")
    assert (len(stored), stored[-1]) == (104_002, _event("last"))


async def test_small_batches_that_come_together_are_stored_in_steps(pair: Pair, broker: Broker) -> None:
    """Sixty batches of a thousand events are as much work as one of sixty thousand."""
    link = _sender(pair, "hub/Partitions/1")
    for _ in range(60):
        link.send(batch_envelope() + wrap_event(b"") * 1_000, message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    assert pair.handler is not None
    (node,) = (each for each in pair.handler._nodes.values() if isinstance(each, IngressLink))
    assert len(node._unwritten) >= 40
    await pair.wait_for(lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == 59)
    assert broker.event_hub("hub").partition("1").next_sequence_number == 60_000


async def test_reading_pauses_while_too_much_waits_for_the_disk(pair: Pair) -> None:
    """Memory stays bounded: beyond the limit the socket is left alone until the disk has caught up."""
    link = _sender(pair, "hub/Partitions/0")
    for number in range(60):
        link.send(_event(f"{number} " + "x" * 5000))
        pair.exchange()
        if not pair.is_reading:
            break
    assert not pair.is_reading
    await pair.wait_for(
        lambda: bool(pair.settled(link)) and pair.settled(link)[-1].last_delivery_id == number
    )
    assert pair.is_reading


async def test_paused_connection_asks_for_the_end_of_congestion(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that falls behind while a connection is paused for its own bytes does not leave it asleep."""
    is_congested = False
    monkeypatch.setattr(Broker, "is_congested", property(lambda broker: is_congested))
    link = _sender(pair, "hub/Partitions/0")
    link.send(_event("x" * 150_000))
    pair.exchange()
    assert not pair.is_reading
    is_congested = True
    await pair.wait_for(lambda: bool(pair.settled(link)))
    assert not pair.is_reading
    assert pair.owner.congestions > 0
    is_congested = False
    pair.handler.resume_reading()
    assert pair.is_reading


@pytest.mark.parametrize("address", ["hub", "hub/Partitions/0", "hub/Publishers/me"])
async def test_a_hub_is_deleted_and_created_again(pair: Pair, broker: Broker, address: str) -> None:
    """Protects producers that know nothing of it: each send in between is refused in clear words, and the hub
    that was created again takes what comes on the same link."""
    link = _sender(pair, address)
    link.send(_event("before"))
    await pair.wait_for(lambda: bool(pair.settled(link)))
    await broker.delete_event_hub("hub")
    for number in range(2):
        link.send(_event("between"))
        await pair.wait_for(lambda count=number + 2: len(pair.settled(link)) == count)  # type: ignore[misc]
    await broker.create_event_hub("hub", partition_count=1)
    link.send(_event("behind"))
    await pair.wait_for(lambda: len(pair.settled(link)) == 4)
    states = [event.state for event in pair.settled(link)]
    assert isinstance(states[0], Accepted)
    for state in states[1:3]:
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "amqp:not-found"
        assert state.error.description is not None
        assert "could not be found: event hub 'hub' was deleted" in state.error.description
    assert isinstance(states[3], Accepted)
    assert broker.event_hub("hub").partition("0").next_sequence_number == 1
    assert pair.owner.unacknowledged_bytes == 0


async def test_a_hub_created_again_without_the_partition(pair: Pair, broker: Broker) -> None:
    """Protects events of a partition that the new hub lacks: they are refused, and go nowhere else."""
    link = _sender(pair, "hub/Partitions/1")
    await broker.delete_event_hub("hub")
    await broker.create_event_hub("hub", partition_count=1)
    link.send(_event("lost"))
    await pair.wait_for(lambda: bool(pair.settled(link)))
    assert isinstance(pair.settled(link)[0].state, Rejected)
    assert await _stored(broker, "0") == []


async def test_numbered_batches_of_a_deleted_hub_end_their_link(pair: Pair, broker: Broker) -> None:
    """Protects exactly-once: numbers that counted the deleted hub's events count nothing in a new one."""
    capabilities = [IDEMPOTENT_BATCH_CAPABILITY]
    link = _sender(pair, "hub/Partitions/0", desired_capabilities=capabilities)
    await broker.delete_event_hub("hub")
    await broker.create_event_hub("hub", partition_count=1)
    link.send(_event("numbered"))
    await pair.wait_for(lambda: not link.is_open)
    assert isinstance(pair.settled(link)[0].state, Rejected)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert await _stored(broker, "0") == []


async def test_an_append_under_way_to_a_deleted_hub(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the sender's error: what the deletion overtook is not found, rather than a closed link."""
    link = _sender(pair, "hub/Partitions/0")
    hub = broker.event_hub("hub")
    appended: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(hub.partition("0"), "append_nowait", lambda *_, **__: appended)
    link.send(_event("overtaken"))
    pair.exchange()
    await broker.delete_event_hub("hub")
    appended.set_exception(ClosedError("The log is closed."))
    await pair.wait_for(lambda: bool(pair.settled(link)))
    (settled,) = pair.settled(link)
    assert isinstance(settled.state, Rejected)
    assert settled.state.error is not None
    assert settled.state.error.condition == "amqp:not-found"


async def test_a_policy_of_a_deleted_hub_is_good_for_no_other(prompt_broker: Broker, clock: SetClock) -> None:
    """Protects a hub that was created again: who held a policy of the deleted one sends nothing to it."""
    policy = await prompt_broker.create_policy("hub", "senders", [Claim.SEND])
    pair = Pair(prompt_broker, clock)
    audience = f"sb://{HOST}/hub"
    assert pair.put_token(prompt_broker, audience, key=policy.key, policy_name="senders").status_code == 202
    link = _sender(pair, "hub/Partitions/0")
    pair.owner.start_task(prompt_broker.delete_event_hub("hub"), "deletion")
    await asyncio.sleep(0)
    await prompt_broker.create_event_hub("hub", partition_count=1)
    link.send(_event("not allowed"))
    await pair.wait_for(lambda: not link.is_open)
    error = pair.error_of(link)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    await asyncio.gather(*pair.owner.tasks)
    assert await _stored(prompt_broker, "0") == []


async def test_stop_answers_what_came_in(pair: Pair, broker: Broker) -> None:
    """A service that stops acknowledges what it has taken before it closes the connection."""
    link = _sender(pair, "hub/Partitions/0")
    for number in range(20):
        link.send(_event(str(number)))
    pair.exchange()
    pair.handler.stop()
    await pair.wait_for(lambda: bool(pair.owner.ended))
    assert pair.settled(link)[-1].last_delivery_id == 19
    assert len(await _stored(broker, "0")) == 20


async def test_outcomes_that_arrive_together_are_answered_together(
    pair: Pair, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the cost of small batches: a round of the disk calls each link once, and one frame answers
    what all links of the connection sent, whatever order the partitions come in."""
    loop = asyncio.get_running_loop()
    outcomes: dict[str, list[asyncio.Future[AppendResult]]] = {"0": [], "1": []}

    def append(
        partition: Partition, payload: bytes, *_: object, **__: object
    ) -> asyncio.Future[AppendResult]:
        outcomes[partition.partition_id].append(loop.create_future())
        return outcomes[partition.partition_id][-1]

    monkeypatch.setattr(Partition, "append_nowait", append)
    called: list[IngressLink] = []
    on_appended = IngressLink._on_appended

    def counted(link: IngressLink, outcome: asyncio.Future[AppendResult]) -> None:
        called.append(link)
        on_appended(link, outcome)

    monkeypatch.setattr(IngressLink, "_on_appended", counted)
    links = [_sender(pair, f"hub/Partitions/{number}", f"s{number}") for number in range(2)]
    for number in range(20):
        links[number % 2].send(_batch("x"), message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    before, held = pair.bytes_to_client, pair.owner.unacknowledged_bytes
    assert held > 0
    for partition_id in ("1", "0"):
        for outcome in outcomes[partition_id]:
            outcome.set_result(AppendResult(0, 1, 0))
    await pair.wait_for(lambda: sum(map(len, map(pair.settled, links))) == 20)
    assert len(called) == 2
    assert pair.bytes_to_client - before == len(accepted_frame(0, 0, 19))
    assert pair.owner.unacknowledged_bytes == 0


async def test_an_outcome_that_comes_before_an_earlier_one_waits_for_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the order of outcomes: only the first that is missing is waited for, then the next one."""
    outcomes: list[asyncio.Future[AppendResult]] = []

    def append(*_: object, **__: object) -> asyncio.Future[AppendResult]:
        outcomes.append(asyncio.get_running_loop().create_future())
        return outcomes[-1]

    monkeypatch.setattr(Partition, "append_nowait", append)
    link = _sender(pair, "hub/Partitions/0")
    for _ in range(4):
        link.send(_batch("x"), message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    outcomes[1].set_exception(ClosedError("gone"))
    outcomes[3].set_result(AppendResult(0, 1, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pair.exchange()
    assert pair.settled(link) == []
    outcomes[0].set_result(AppendResult(0, 1, 0))
    await pair.wait_for(lambda: len(pair.settled(link)) == 2)
    assert [type(event.state) for event in pair.settled(link)] == [Accepted, Rejected]
    outcomes[2].set_result(AppendResult(0, 1, 0))
    await pair.wait_for(lambda: pair.settled(link)[-1].last_delivery_id == 3)
    assert pair.owner.unacknowledged_bytes == 0

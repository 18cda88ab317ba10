"""Named publishers: their address, their token, their key, and what receivers learn of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.gateway.support import HOST, Pair
from tests.support.clocks import SetClock

from tidegate.amqp.link import SenderLink
from tidegate.amqp.message import Header, Message, Properties, decode_message, encode_message
from tidegate.amqp.performatives import Accepted, Rejected
from tidegate.amqp.types import Short, Symbol
from tidegate.broker import Broker
from tidegate.gateway.amqp.ingress import IngressLink
from tidegate.model.partition_key import partition_for_key
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope, wrap_event
from tidegate.wire.names import PARTITION_KEY, PUBLISHER

ADDRESS = "hub/Publishers/device-1"


def _attach(pair: Pair, address: str = ADDRESS) -> SenderLink:
    link = pair.session.attach_sender(address, target=address)
    pair.exchange()
    return link


def _condition(pair: Pair, link: SenderLink) -> str:
    error = pair.error_of(link)
    assert error is not None
    return error.condition


async def _send(pair: Pair, link: SenderLink, payload: bytes, message_format: int = 0) -> str:
    """The condition of the refusal; empty where it was accepted."""
    seen = len(pair.settled(link))
    link.send(payload, message_format=message_format)
    await pair.wait_for(lambda: len(pair.settled(link)) > seen)
    state = pair.settled(link)[-1].state
    if isinstance(state, Accepted):
        return ""
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


def _settled_count(pair: Pair, link: SenderLink) -> int:
    return sum(each.last_delivery_id - each.first_delivery_id + 1 for each in pair.settled(link))


def _received(pair: Pair, partition: int) -> list[Message]:
    source = f"hub/ConsumerGroups/$Default/Partitions/{partition}"
    link = pair.session.attach_receiver(f"r{partition}", source=source, target="client")
    link.grant_credit(100)
    pair.exchange()
    return [decode_message(delivery.payload) for delivery in pair.deliveries(link)]


def _event(**annotations: object) -> bytes:
    named = {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in annotations.items()}
    return encode_message(Message(message_annotations=dict(named.items()), data=(b"body",)))


async def test_events_carry_their_publisher(pair: Pair) -> None:
    """Publisher and partition key are in every event, sent singly or in a batch, in the key's partition."""
    link = _attach(pair)
    assert await _send(pair, link, _event()) == ""
    batch = batch_envelope() + wrap_event(_event()) + wrap_event(_event(partition_key="device-1"))
    assert await _send(pair, link, batch, BATCH_MESSAGE_FORMAT) == ""
    messages = _received(pair, partition_for_key("device-1", 2))
    assert len(messages) == 3
    for message in messages:
        assert message.message_annotations[PUBLISHER] == "device-1"
        assert message.message_annotations[PARTITION_KEY] == "device-1"


async def test_the_rest_of_an_event_stays_as_it_is(pair: Pair) -> None:
    """Header, properties, other annotations with their types, and the body pass through unchanged."""
    sent = Message(
        header=Header(durable=True),
        message_annotations={Symbol("x-mine"): Short(5)},
        properties=Properties(message_id="m"),
        application_properties={"a": 1},
        data=(b"body",),
    )
    link = _attach(pair)
    assert await _send(pair, link, encode_message(sent)) == ""
    (received,) = _received(pair, partition_for_key("device-1", 2))
    assert received.header == sent.header
    assert received.properties == sent.properties
    assert received.application_properties == sent.application_properties
    assert received.data == sent.data
    assert isinstance(received.message_annotations[Symbol("x-mine")], Short)


async def test_a_publisher_cannot_pass_for_another(pair: Pair) -> None:
    """A publisher's name that the sender writes itself is replaced by that of its link."""
    link = _attach(pair)
    assert await _send(pair, link, _event(publisher="device-2")) == ""
    (received,) = _received(pair, partition_for_key("device-1", 2))
    assert received.message_annotations[PUBLISHER] == "device-1"


@pytest.mark.parametrize("address", ["hub", "hub/Partitions/0"])
async def test_nobody_else_can_pass_for_a_publisher(pair: Pair, address: str) -> None:
    """A publisher's name in events of a plain sender is taken out: sent singly, in a batch, and in one that
    is so large that others get their turns in between, with what follows behind it.
    """
    link = _attach(pair, address)
    forged, plain = _event(publisher="device-2"), _event()
    batch = batch_envelope() + wrap_event(forged) + wrap_event(plain) + wrap_event(forged)
    large = batch_envelope() + wrap_event(forged) * 300
    link.send(forged)
    for payload in (batch, large, batch_envelope() + wrap_event(plain), batch):
        link.send(payload, message_format=BATCH_MESSAGE_FORMAT)
    await pair.wait_for(lambda: _settled_count(pair, link) == 5)
    assert all(isinstance(each.state, Accepted) for each in pair.settled(link))
    messages = []
    for partition in (0, 1):
        source = f"hub/ConsumerGroups/$Default/Partitions/{partition}"
        receiver = pair.session.attach_receiver(f"r{partition}", source=source, target="client")
        receiver.grant_credit(1000)
        pair.exchange()
        messages += [decode_message(delivery.payload) for delivery in pair.deliveries(receiver)]
    assert len(messages) == 1 + 3 + 300 + 1 + 3
    assert not any(PUBLISHER in message.message_annotations for message in messages)
    assert {message.data for message in messages} == {(b"body",)}


async def test_what_the_service_writes_does_not_count(pair: Pair) -> None:
    """A batch as large as is allowed is stored, although publisher and key make it larger."""
    link = _attach(pair)
    events = b"".join(wrap_event(encode_message(Message(data=(b"x" * 1_000,)))) for _ in range(1_024))
    batch = batch_envelope() + events
    last = link.remote_attach.max_message_size
    assert last is not None
    filler = wrap_event(encode_message(Message(data=(b"x" * (last - len(batch) - 60),))))
    assert last - 60 < len(batch + filler) <= last
    assert await _send(pair, link, batch + filler, BATCH_MESSAGE_FORMAT) == ""


@pytest.mark.parametrize(
    ("payload", "message_format", "condition"),
    [
        (_event(partition_key="device-2"), 0, "com.microsoft:argument-error"),
        (
            batch_envelope(partition_key="other") + wrap_event(_event()),
            BATCH_MESSAGE_FORMAT,
            "com.microsoft:argument-error",
        ),
        (
            batch_envelope() + wrap_event(_event()) + wrap_event(_event(partition_key="other")),
            BATCH_MESSAGE_FORMAT,
            "com.microsoft:argument-error",
        ),
        (batch_envelope() + wrap_event(_event(partition_key=5)), BATCH_MESSAGE_FORMAT, "amqp:decode-error"),
        (batch_envelope() + wrap_event(b"\x00\x53\x99"), BATCH_MESSAGE_FORMAT, "amqp:decode-error"),
    ],
    ids=["single", "envelope", "inside a batch", "no text", "garbage"],
)
@pytest.mark.slow
async def test_another_key_is_refused(
    pair: Pair, payload: bytes, message_format: int, condition: str
) -> None:
    """A key that is not the publisher's name is refused wherever it stands; the link stays usable."""
    link = _attach(pair)
    assert await _send(pair, link, payload, message_format) == condition
    assert await _send(pair, link, _event()) == ""
    assert len(_received(pair, partition_for_key("device-1", 2))) == 1


async def test_a_publishers_token_opens_its_address_only(broker: Broker, clock: SetClock) -> None:
    """A token for one publisher opens neither the hub, nor a partition, nor another publisher."""
    pair = Pair(broker, clock)
    assert pair.put_token(broker, f"sb://{HOST}/hub/publishers/device-1").status_code == 202
    assert _attach(pair).is_open
    assert _attach(pair, f"amqps://{HOST}/hub/publishers/DEVICE-1").is_open
    for address in ("hub", "hub/Partitions/0", "hub/Publishers/device-10", "hub/Publishers/x"):
        assert _condition(pair, _attach(pair, address)) == "amqp:unauthorized-access", address


async def test_names_that_an_address_quotes(broker: Broker, clock: SetClock) -> None:
    """A name with blanks or letters beyond ASCII is one name, quoted in the address or not."""
    pair = Pair(broker, clock)
    assert pair.put_token(broker, f"sb://{HOST}/hub/publishers/Gerät 1").status_code == 202
    assert _attach(pair, "hub/Publishers/Ger%C3%A4t%201").is_open
    assert _attach(pair, "hub/Publishers/Gerät 1").is_open


async def test_a_name_that_none_can_have(pair: Pair) -> None:
    """What cannot be a partition key cannot be a publisher."""
    assert _condition(pair, _attach(pair, "hub/Publishers/" + "x" * 129)) == "com.microsoft:argument-error"


async def test_a_revoked_publisher(pair: Pair, broker: Broker) -> None:
    """Its links end at once, it cannot attach again, others go on; restored, it sends again."""
    hub = broker.event_hub("hub")
    link, other = _attach(pair), _attach(pair, "hub/Publishers/device-2")
    await hub.revoke_publisher("Device-1")
    pair.exchange()
    await pair.wait_for(lambda: not link.is_open)
    assert _condition(pair, link) == "com.microsoft:publisher-revoked"
    again = pair.session.attach_sender("again", target=ADDRESS)
    pair.exchange()
    assert _condition(pair, again) == "com.microsoft:publisher-revoked"
    assert await _send(pair, other, _event()) == ""
    await hub.restore_publisher("device-1")
    restored = pair.session.attach_sender("restored", target=ADDRESS)
    pair.exchange()
    assert await _send(pair, restored, _event()) == ""


async def test_who_publishes_is_counted_by_the_batch(pair: Pair, broker: Broker) -> None:
    """What was stored from a publisher's address, under its name; a name that a message to the hub's address
    says of itself is kept apart; of what names nobody, or was refused, nothing is noted.
    """
    own, plain = _attach(pair), _attach(pair, "hub")
    batch = batch_envelope() + wrap_event(_event()) + wrap_event(_event(publisher="device-9"))
    assert await _send(pair, own, batch, BATCH_MESSAGE_FORMAT) == ""
    assert await _send(pair, own, _event(publisher="device-2")) == ""
    assert await _send(pair, own, _event(partition_key="other")) != ""
    assert await _send(pair, plain, batch, BATCH_MESSAGE_FORMAT) == ""
    for said in ("device-3", 5, "no/name"):
        assert await _send(pair, plain, _event(publisher=said)) == ""
    hub = broker.event_hub("hub")
    found = hub.publishers.newest_first()
    assert {(each.name, each.is_own_address, each.events) for each in found} == {
        ("device-1", True, 3),
        ("device-3", False, 1),
    }
    first = hub.publishers.find("DEVICE-1")
    assert first is not None
    assert first.last_partition_id == str(partition_for_key("device-1", 2))
    stored = sum(size for _, size in (each.appended for each in hub.partitions))
    assert 0 < first.event_bytes < stored


async def _delete_root(broker: Broker) -> None:
    await broker.create_policy(None, "Owner", tuple(broker.policies()[0].claims))
    await broker.delete_policy(None, "RootManageSharedAccessKey")


async def _regenerate_root(broker: Broker) -> None:
    await broker.regenerate_key(None, "RootManageSharedAccessKey")


@pytest.mark.parametrize("change", [_delete_root, _regenerate_root])
async def test_links_end_with_the_key_that_opened_them(
    pair: Pair, broker: Broker, change: Callable[[Broker], Awaitable[None]]
) -> None:
    """When a policy is deleted or its key regenerated, links that nothing else covers end at once."""
    sender = _attach(pair, "hub")
    receiver = pair.session.attach_receiver(
        "r", source="hub/ConsumerGroups/$Default/Partitions/0", target="client"
    )
    pair.exchange()
    assert sender.is_open
    assert receiver.is_open
    await change(broker)
    await pair.wait_for(lambda: not sender.is_open and not receiver.is_open)
    for link in (sender, receiver):
        error = pair.error_of(link)
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
    assert _condition(pair, _attach(pair, "hub/Partitions/0")) == "amqp:unauthorized-access"


async def test_links_of_the_other_key_go_on(broker: Broker, clock: SetClock) -> None:
    """Regenerating the primary key does not touch links that were opened with the secondary one."""
    pair = Pair(broker, clock)
    secondary = broker.policies()[0].secondary_key
    assert pair.put_token(broker, f"sb://{HOST}/hub", key=secondary).status_code == 202
    link = _attach(pair, "hub")
    await broker.regenerate_key(None, "RootManageSharedAccessKey")
    pair.exchange()
    assert await _send(pair, link, _event()) == ""


async def test_a_hubs_own_policy_opens_that_hub(broker: Broker, clock: SetClock) -> None:
    """A policy of one hub is worth nothing on another."""
    await broker.create_event_hub("other", partition_count=1)
    policy = await broker.create_policy("hub", "root-of-hub", tuple(broker.policies()[0].claims))
    pair = Pair(broker, clock)
    refused = pair.put_token(broker, f"sb://{HOST}/other", key=policy.key, policy_name=policy.name)
    assert refused.status_code == 401
    taken = pair.put_token(broker, f"sb://{HOST}/hub", key=policy.key, policy_name=policy.name)
    assert taken.status_code == 202
    assert _attach(pair, "hub").is_open
    assert not _attach(pair, "other").is_open


@pytest.mark.parametrize("address", [ADDRESS, "hub/Partitions/0"])
async def test_little_is_rewritten_at_once(pair: Pair, broker: Broker, address: str) -> None:
    """Protects the event loop: 200 events of each batch that arrived took 24 ms. The order stays."""
    link = _attach(pair, address)
    for number in range(40):
        event = encode_message(Message(message_annotations={PUBLISHER: "device-1"}, data=(b"%d" % number,)))
        link.send(batch_envelope() + wrap_event(event) * 5, message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    assert len(_ingress(pair)._unwritten) >= 35
    await pair.wait_for(lambda: _settled_count(pair, link) == 40)
    sent = [b"%d" % number for number in range(40) for _ in range(5)]
    assert [message.data[0] for message in _received(pair, 0)][:100] == sent[:100]


@pytest.mark.parametrize("address", [ADDRESS, "hub/Partitions/0"])
async def test_a_short_event_of_many_sections_waits(pair: Pair, address: str) -> None:
    """Protects the event loop: 4 KB of empty sections are more work than one step."""
    link = _attach(pair, address)
    event = encode_message(Message(message_annotations={PUBLISHER: "device-1"}, data=(b"",) * 700))
    link.send(batch_envelope() + wrap_event(event), message_format=BATCH_MESSAGE_FORMAT)
    pair.exchange()
    assert len(_ingress(pair)._unwritten) == 1
    await pair.wait_for(lambda: _settled_count(pair, link) == 1)
    assert len(_received(pair, 0)[0].data) == 700


def _ingress(pair: Pair) -> IngressLink:
    assert pair.handler is not None
    (node,) = (each for each in pair.handler._nodes.values() if isinstance(each, IngressLink))
    return node

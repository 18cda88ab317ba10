"""Floods by somebody who has a key of the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.floods.amqp_peer import (
    CBS,
    CBS_LINKS,
    OPENED,
    AmqpPeer,
    attach_receiver,
    attach_sender,
    begin,
    delivery,
    flow,
    frame,
    half_message,
    on_channel,
    put_token,
)
from bench.floods.anonymous import colliding_maps
from bench.floods.attack import AUDIENCE, GROUPS, HUB, PARTITIONS, Attack, Flood, Program, saying
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import ROLE_RECEIVER, Accepted, Detach, Disposition
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT

_HALF_MESSAGES: Final = 60


def _event(size_bytes: int) -> bytes:
    return encode_message(Message(data=(bytes(size_bytes),)))


def _batch(size_bytes: int, event_bytes: int) -> bytes:
    return encode_message(Message(data=(_event(event_bytes),) * (size_bytes // event_bytes)))


def _partition(number: int) -> str:
    return f"{HUB}/Partitions/{number % PARTITIONS}"


def _reading(number: int) -> str:
    """A place to read from; each group's partitions take five readers, so there are a thousand."""
    return (
        f"{HUB}/ConsumerGroups/{GROUPS[number // PARTITIONS % len(GROUPS)]}/Partitions/{number % PARTITIONS}"
    )


def _sending(
    producers: int,
    payload: bytes,
    message_format: int = 0,
    *,
    ahead: int,
    address: Callable[[int], str] = _partition,
) -> Program:
    """Producers that send a message again and again, each with at most ``ahead`` undecided."""
    template = delivery(0, payload, message_format, channel=1)
    block = max(1, min(ahead // 4, 1_000))

    async def flood(attack: Attack) -> None:
        async def send(number: int) -> None:
            async with AmqpPeer.connected(attack, number, has_token=True) as peer:
                await peer.send(begin(1) + attach_sender(address(number), 0, 1))
                await peer.wait(attached=CBS_LINKS + 1)
                sent = 0
                while True:
                    until = sent + block
                    await peer.wait(settled=until - ahead, window=until * template.frames)
                    await peer.send(template.numbered(sent, block))
                    sent = until

        await attack.repeat(producers, send)

    return flood


def _repeating(prepare: bytes, then: bytes) -> Program:
    """One connection with a token that prepares something, and then says one thing again and again."""

    async def flood(attack: Attack) -> None:
        async def say(number: int) -> None:
            async with AmqpPeer.connected(attack, has_token=True) as peer:
                await peer.send(prepare)
                while True:
                    await peer.send(then)

        await attack.repeat(1, say)

    return flood


async def _colliding_event(attack: Attack) -> None:
    sections = (b"\x00\x53\x74", b"\x00\x53\x77", b"\x00\x53\x72")  # properties, a value, annotations
    messages = [section + found for section, found in zip(sections, colliding_maps(480_000), strict=True)]

    async def send(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            await peer.send(begin(1) + attach_sender(_partition(0), 0, 1))
            await peer.wait(attached=CBS_LINKS + 1)
            await peer.send(delivery(0, messages[number % len(messages)], channel=1).numbered(0))
            await peer.wait(settled=1)

    await attack.repeat(3, send)


async def _many_sessions(attack: Attack) -> None:
    session = begin() + b"".join(attach_sender(_partition(handle), handle) for handle in range(64))

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            for channel in range(1, 5_000):
                await peer.send(on_channel(session, channel))
            await peer.wait()

    await attack.repeat(1, begin_all)


async def _many_grants(attack: Attack) -> None:
    token = attack.target.token()

    async def put(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            sent = 1
            while True:
                until = sent + 100
                audiences = {at: f"{AUDIENCE}/{at}-{'x' * 400}" for at in range(sent, until)}
                await peer.send(
                    b"".join(put_token(token, at, audience) for at, audience in audiences.items())
                )
                await peer.wait(transfers=until)
                attack.tally["grants answered"] += until - sent
                sent = until

    await attack.repeat(4, put)


async def _unfinished_messages(attack: Attack) -> None:
    links = begin(1) + b"".join(
        attach_sender(_partition(number), number, 1) for number in range(_HALF_MESSAGES)
    )

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, number, has_token=True) as peer:
            await peer.send(links)
            await peer.wait(attached=CBS_LINKS + _HALF_MESSAGES)
            for handle in range(_HALF_MESSAGES):
                await peer.send(half_message(handle, 900_000, 1))
            await peer.wait()

    await attack.repeat(20, begin_all)


_LINKS: Final = begin(1) + b"".join(attach_sender(_partition(handle), handle, 1) for handle in range(255))
_READERS: Final = begin(1) + b"".join(attach_receiver(_reading(handle), handle, 1) for handle in range(64))
_CHURN: Final = attach_sender(_partition(0), 0, 1) + frame(Detach(0, closed=True), 1)
_DECIDE: Final = frame(Disposition(ROLE_RECEIVER, 0, 2_000_000, settled=True, state=Accepted()), 1)
_SLOW_READERS: Final = saying(
    1_000,
    OPENED + CBS,
    lambda attack, number: put_token(attack.target.token()),
    lambda attack, number: begin(1) + attach_receiver(_reading(number), 0, 1, credit=1_000_000),
    then=flow(channel=1),
    every_s=5.0,
)

FLOODS: Final = (
    Flood("colliding-event", 4, "events of 480 KB whose maps have keys of one hash", _colliding_event),
    Flood(
        "small-sends",
        5,
        "one producer's burst of small events, encoded beforehand",
        _sending(1, _event(32), ahead=4_000),
    ),
    Flood(
        "echo-flows",
        5,
        "flows that ask for an echo, on a session of 255 links",
        _repeating(_LINKS, flow(0, 1, credit=0, echo=True) * 5_000),
    ),
    Flood(
        "attach-detach",
        5,
        "a link that is attached and detached as fast as possible",
        _repeating(begin(1), _CHURN * 1_000),
    ),
    Flood(
        "dispositions",
        5,
        "dispositions of two million deliveries each, on a session of 64 readers",
        _repeating(_READERS, _DECIDE * 5_000),
    ),
    Flood("many-sessions", 7, "5,000 sessions of 64 links on one connection", _many_sessions),
    Flood("many-grants", 7, "tokens for ever new audiences", _many_grants),
    Flood(
        "slow-readers",
        7,
        "1,000 receivers that grant credit and do not read, over 100 MB",
        _SLOW_READERS,
        filled_mb=100,
        growth_mb_max=600.0,  # memory_max_bytes is 537 MB; what is freed comes back in pieces
    ),
    Flood(
        "unfinished-messages",
        7,
        "1,200 messages of 900 KB that do not end, on 20 connections",
        _unfinished_messages,
    ),
    Flood(
        "producers-1k", 7, "150 producers that send events of 1 KB", _sending(150, _event(1_000), ahead=200)
    ),
    Flood(
        "producers-100k",
        7,
        "150 producers that send batches of 100 KB",
        _sending(150, _batch(100_000, 1_000), BATCH_MESSAGE_FORMAT, ahead=8),
    ),
    Flood(
        "publisher-batches",
        7,
        "8 publishers that send batches of 10,000 events",
        _sending(
            8, _batch(640_000, 64), BATCH_MESSAGE_FORMAT, ahead=4, address=lambda n: f"{HUB}/Publishers/p{n}"
        ),
    ),
)

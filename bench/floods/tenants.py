"""Floods by somebody who has a key of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bench.floods.amqp_peer import (
    CBS_LINKS,
    OPENED,
    AmqpPeer,
    attach_receiver,
    attach_sender,
    begin,
    cbs_links,
    delivery,
    flow,
    frame,
    half_message,
    on_channel,
    put_token,
)
from bench.floods.anonymous import colliding_map
from bench.floods.attack import GROUPS, HUB, PARTITIONS, Attack, Flood, Program
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import ROLE_RECEIVER, Accepted, Detach, Disposition
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT

_RECEIVERS_PER_PLACE: Final = 5
"""How many readers without an epoch a partition takes in each consumer group."""


def _batch(size_bytes: int, event_bytes: int) -> bytes:
    event = encode_message(Message(data=(bytes(event_bytes),)))
    return encode_message(Message(data=(event,) * (size_bytes // event_bytes)))


def _sending(
    producers: int,
    message: Callable[[], bytes],
    message_format: int,
    *,
    ahead: int,
    address: str = "{hub}/Partitions/{n}",
) -> Program:
    """Producers that send a message again and again, each with at most ``ahead`` undecided."""

    async def flood(attack: Attack) -> None:
        payload = message()
        template = delivery(0, payload, message_format, channel=1)
        block = max(1, min(ahead // 4, 1_000))

        async def send(number: int) -> None:
            async with AmqpPeer.connected(
                attack, source=f"127.0.1.{1 + number % 50}", has_token=True
            ) as peer:
                node = address.format(hub=HUB, n=number % PARTITIONS)
                await peer.send(begin(1) + attach_sender(node, 0, 1))
                await peer.wait_attached(CBS_LINKS + 1)
                sent = 0
                while True:
                    until = sent + block
                    await peer.wait_settled(until - ahead)
                    await peer.wait_window(1, until * template.frames)
                    await peer.send(template.numbered(sent, block))
                    sent = until

        await attack.repeat(attack.count(producers), send)

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
    maps = [colliding_map(480_000, kind) for kind in ("uuid", "described", "array")]
    message = b"\x00\x53\x74" + maps[0], b"\x00\x53\x77" + maps[1], b"\x00\x53\x72" + maps[2]

    async def send(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            await peer.send(begin(1) + attach_sender(f"{HUB}/Partitions/0", 0, 1))
            await peer.wait_attached(CBS_LINKS + 1)
            await peer.send(delivery(0, message[number % 3], channel=1).numbered(0))
            await peer.wait_settled(1)

    await attack.repeat(attack.count(3), send)


async def _many_sessions(attack: Attack) -> None:
    session = begin() + b"".join(
        attach_sender(f"{HUB}/Partitions/{handle % 16}", handle) for handle in range(64)
    )

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            for channel in range(1, 5_000):
                await peer.send(on_channel(session, channel))
            await peer.hold()

    await attack.repeat(1, begin_all)


async def _many_grants(attack: Attack) -> None:
    token = attack.target.token()

    async def put(number: int) -> None:
        async with AmqpPeer.connected(attack, has_token=True) as peer:
            sent = 1
            while True:
                audiences = [f"sb://localhost/{HUB}/{sent + at}-{'x' * 400}" for at in range(100)]
                await peer.send(
                    b"".join(put_token(token, name, sent + at) for at, name in enumerate(audiences))
                )
                sent += 100
                await peer.wait_transfers(sent)
                attack.tally["grants answered"] += 100

    await attack.repeat(attack.count(4), put)


async def _slow_readers(attack: Attack) -> None:
    places = [
        f"{HUB}/ConsumerGroups/{group}/Partitions/{partition}"
        for group in GROUPS
        for partition in range(PARTITIONS)
    ] * _RECEIVERS_PER_PLACE

    async def hold(number: int) -> None:
        token = attack.target.token()
        _, writer = await attack.connect(attack.target.amqp, source=f"127.0.1.{1 + number % 50}")
        try:
            for step in (OPENED + cbs_links(), put_token(token, f"sb://localhost/{HUB}")):
                writer.write(step)
                await asyncio.sleep(1.0)  # the answers stay in the reader, which takes no more than its limit
            writer.write(begin(1) + attach_receiver(places[number % len(places)], 0, 1, credit=1_000_000))
            await asyncio.Future()
        finally:
            writer.transport.abort()

    await attack.repeat(attack.count(1_000), hold)


async def _unfinished_messages(attack: Attack) -> None:
    links = begin(1) + b"".join(attach_sender(f"{HUB}/Partitions/{n % PARTITIONS}", n, 1) for n in range(60))

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, source=f"127.0.1.{1 + number}", has_token=True) as peer:
            await peer.send(links)
            await peer.wait_attached(CBS_LINKS + 60)
            for handle in range(60):
                await peer.send(half_message(handle, 900_000, 1))
            await peer.hold()

    await attack.repeat(attack.count(20), begin_all)


_LINKS = begin(1) + b"".join(
    attach_sender(f"{HUB}/Partitions/{handle % 16}", handle, 1) for handle in range(255)
)
_READERS = begin(1) + b"".join(
    attach_receiver(f"{HUB}/ConsumerGroups/{GROUPS[handle // 16]}/Partitions/{handle % 16}", handle, 1)
    for handle in range(64)
)
_CHURN = attach_sender(f"{HUB}/Partitions/0", 0, 1) + frame(Detach(0, closed=True), 1)
_DECIDE = frame(Disposition(ROLE_RECEIVER, 0, 2_000_000, settled=True, state=Accepted()), 1)


FLOODS: Final = (
    Flood("colliding-event", 4, "events of 480 KB whose maps have keys of one hash", _colliding_event),
    Flood(
        "small-sends",
        5,
        "one producer's burst of small events, encoded beforehand",
        _sending(1, lambda: encode_message(Message(data=(bytes(32),))), 0, ahead=4_000),
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
        _slow_readers,
        filled_mb=100,
    ),
    Flood(
        "unfinished-messages",
        7,
        "1,200 messages of 900 KB that do not end, on 20 connections",
        _unfinished_messages,
    ),
    Flood(
        "producers-1k",
        7,
        "150 producers that send events of 1 KB",
        _sending(150, lambda: encode_message(Message(data=(bytes(1_000),))), 0, ahead=200),
    ),
    Flood(
        "producers-100k",
        7,
        "150 producers that send batches of 100 KB",
        _sending(150, lambda: _batch(100_000, 1_000), BATCH_MESSAGE_FORMAT, ahead=8),
    ),
    Flood(
        "publisher-batches",
        7,
        "8 publishers that send batches of 10,000 events",
        _sending(
            8, lambda: _batch(640_000, 64), BATCH_MESSAGE_FORMAT, ahead=4, address="{hub}/Publishers/p{n}"
        ),
    ),
)

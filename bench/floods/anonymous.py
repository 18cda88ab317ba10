"""Floods by peers that have no token, over AMQP."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from bench.floods.amqp_peer import (
    BEFORE_OPEN,
    OPENED,
    AmqpPeer,
    attach_sender,
    begin,
    cbs_links,
    half_message,
    put_token,
)
from bench.floods.attack import FROM_NETWORK, HUB, Attack, Flood, Program
from tidegate.amqp.frames import EMPTY_FRAME, encode_frame

_UUIDS_COLLIDE: Final = (1 << 61) - 1
"""Integers that differ by a multiple of it have the same hash, and a UUID has its integer's."""
_REQUEST_LINKS: Final = 31
_OPEN_PROPERTIES: Final = b"\x00\x53\x10\xd0"


def colliding_map(size_bytes: int, kind: str) -> bytes:
    """A map of about that many bytes, all of whose keys have the same hash.

    kind: ``uuid``, ``described`` or ``array``: what the keys are.
    """
    front, back = {
        "uuid": (b"\x98", b""),
        "described": (b"\x00\x44\x98", b""),
        "array": (b"\xe0\x12\x01\x98", b""),
    }[kind]
    entry_bytes = len(front) + 16 + len(back) + 1
    items = bytearray()
    for number in range(size_bytes // entry_bytes):
        items += front + (number * _UUIDS_COLLIDE).to_bytes(16, "big") + back + b"\x40"
    return b"\xd1" + struct.pack(">II", len(items) + 4, 2 * (size_bytes // entry_bytes)) + items


def _open_with(properties: bytes) -> bytes:
    """An open with the container's id, eight nulls and these properties."""
    fields = b"\xa1\x05flood" + b"\x40" * 8 + properties
    body = _OPEN_PROPERTIES + struct.pack(">II", len(fields) + 4, 10) + fields
    return BEFORE_OPEN + encode_frame(0, body)


async def _silent_sockets(attack: Attack) -> None:
    async def hold(number: int) -> None:
        reader, writer = await attack.connect(attack.target.amqp)
        try:
            while await reader.read(512):
                pass
            attack.tally["hung up"] += 1
        finally:
            writer.transport.abort()

    await attack.repeat(attack.count(4_200), hold, pause_s=0.5)


def _say(first: bytes, *, connections: int, then: bytes = b"", pause_s: float = 0.0) -> Program:
    """Connections that say something, then one thing again and again, or nothing more."""

    async def flood(attack: Attack) -> None:
        async def say(number: int) -> None:
            async with AmqpPeer.connected(attack, first=first) as peer:
                while then:
                    await peer.send(then)
                    await asyncio.sleep(pause_s)
                await peer.hold()

        await attack.repeat(attack.count(connections), say)

    return flood


async def _colliding_open(attack: Attack) -> None:
    opens = [_open_with(colliding_map(64_000, kind)) for kind in ("uuid", "described", "array")]

    async def open_once(number: int) -> None:
        async with AmqpPeer.connected(attack, first=opens[number % len(opens)]) as peer:
            await peer.wait_open()

    await attack.repeat(attack.count(6), open_once)


async def _churn(attack: Attack) -> None:
    async def come_and_go(number: int) -> None:
        _, writer = await attack.connect(attack.target.amqp)
        writer.write(OPENED)
        await writer.drain()
        writer.transport.abort()

    await attack.repeat(attack.count(16), come_and_go, pause_s=0.0)


async def _guess(attack: Attack) -> None:
    audience = f"sb://localhost/{HUB}"
    tokens = [attack.target.token(audience, key=f"guess-{number}") for number in range(100)]

    async def guess(number: int) -> None:
        async with AmqpPeer.connected(attack) as peer:
            await peer.open_cbs()
            sent = 0
            while True:
                await peer.send(
                    b"".join(put_token(token, audience, sent + at) for at, token in enumerate(tokens))
                )
                sent += len(tokens)
                await peer.wait_transfers(sent)
                attack.tally["guesses answered"] += len(tokens)

    await attack.repeat(attack.count(8), guess)


async def _unread_answers(attack: Attack) -> None:
    audience = "sb://localhost/" + "x" * 500
    requests = b"".join(put_token("SharedAccessSignature", audience, number) for number in range(500))

    async def ask(number: int) -> None:
        _, writer = await attack.connect(attack.target.amqp)
        try:
            writer.write(OPENED + cbs_links())
            await asyncio.sleep(0.5)
            while True:
                writer.write(requests)
                await writer.drain()
        finally:
            writer.transport.abort()

    await attack.repeat(attack.count(40), ask)


async def _unfinished_requests(attack: Attack) -> None:
    attaches = [attach_sender("$cbs", handle, padding_bytes=60_000) for handle in range(_REQUEST_LINKS)]
    links = begin() + b"".join(attaches)
    halves = b"".join(half_message(handle, 65_000) for handle in range(_REQUEST_LINKS))

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, first=OPENED + links) as peer:
            await peer.wait_attached(_REQUEST_LINKS)
            await peer.send(halves)
            await peer.hold()

    await attack.repeat(attack.count(200), begin_all)


FLOODS: Final = (
    Flood(
        "silent-sockets",
        3,
        "4,200 connections that say nothing, where 4,096 files may be open",
        _silent_sockets,
        open_files_max=4096,
    ),
    Flood(
        "silent-sockets-network",
        3,
        "the same, as from another machine",
        _silent_sockets,
        settings=FROM_NETWORK,
        open_files_max=4096,
    ),
    Flood("colliding-open", 4, "opens of 64 KB whose property names have one hash", _colliding_open),
    Flood(
        "heartbeats",
        5,
        "empty frames on one connection, as fast as they are taken",
        _say(OPENED, connections=1, then=EMPTY_FRAME * 32_768),
    ),
    Flood(
        "partial-frames",
        6,
        "200 connections with half a frame of 64 KB behind the open",
        _say(OPENED + b"\x00\x01\x00\x00\x02\x00\x00\x00" + bytes(65_000), connections=200),
    ),
    Flood(
        "unfinished-requests",
        6,
        "200 connections, each with 31 large attaches and half messages to $cbs",
        _unfinished_requests,
    ),
    Flood("unread-answers", 6, "40 connections that ask $cbs and do not read", _unread_answers),
    Flood("guess-cbs", 9, "wrong signatures to $cbs, as fast as they are answered", _guess),
    Flood("churn-amqp", 3, "connections that are opened and closed as fast as possible", _churn),
)

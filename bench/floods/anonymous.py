"""Floods by peers that have no token, over AMQP."""

from __future__ import annotations

import struct
from typing import Final

from bench.floods.amqp_peer import (
    BEFORE_OPEN,
    CBS,
    CBS_LINKS,
    OPENED,
    AmqpPeer,
    attach_sender,
    begin,
    half_message,
    put_token,
)
from bench.floods.attack import AUDIENCE, FROM_NETWORK, Attack, Flood, saying, source_of
from tidegate.amqp.frames import EMPTY_FRAME, encode_frame

_COLLIDING: Final = (1 << 61) - 1
"""Integers that differ by a multiple of it have the same hash, and a UUID has its integer's."""
_KEY_FRONTS: Final = (b"\x98", b"\x00\x44\x98", b"\xe0\x12\x01\x98")
"""A UUID; one that is described; an array of one."""
_REQUEST_LINKS: Final = 31
_HALF_A_FRAME: Final = b"\x00\x01\x00\x00\x02\x00\x00\x00" + bytes(65_000)


def colliding_maps(size_bytes: int) -> list[bytes]:
    """Maps of about that many bytes, all of whose keys have the same hash."""
    maps = []
    for front in _KEY_FRONTS:
        count = size_bytes // (len(front) + 17)
        keys = (front + (number * _COLLIDING).to_bytes(16, "big") for number in range(count))
        items = b"".join(key + b"\x40" for key in keys)
        maps.append(b"\xd1" + struct.pack(">II", len(items) + 4, 2 * count) + items)
    return maps


def _open_with(properties: bytes) -> bytes:
    """An open with the container's id, eight nulls and these properties."""
    fields = b"\xa1\x05flood" + b"\x40" * 8 + properties
    return BEFORE_OPEN + encode_frame(
        0, b"\x00\x53\x10\xd0" + struct.pack(">II", len(fields) + 4, 10) + fields
    )


async def _colliding_open(attack: Attack) -> None:
    opens = [_open_with(properties) for properties in colliding_maps(64_000)]

    async def open_once(number: int) -> None:
        async with AmqpPeer.connected(attack, first=opens[number % len(opens)]) as peer:
            await peer.wait(opens=1)

    await attack.repeat(6, open_once)


async def _unfinished_requests(attack: Attack) -> None:
    attaches = [attach_sender("$cbs", handle, padding_bytes=60_000) for handle in range(_REQUEST_LINKS)]
    halves = b"".join(half_message(handle, 65_000) for handle in range(_REQUEST_LINKS))

    async def begin_all(number: int) -> None:
        async with AmqpPeer.connected(attack, first=OPENED + begin() + b"".join(attaches)) as peer:
            await peer.wait(attached=_REQUEST_LINKS)
            await peer.send(halves)
            await peer.wait()

    await attack.repeat(200, begin_all)


async def _guess(attack: Attack) -> None:
    tokens = [attack.target.token(key=f"guess-{number}") for number in range(100)]

    async def guess(number: int) -> None:
        async with AmqpPeer.connected(attack, first=OPENED + CBS) as peer:
            await peer.wait(attached=CBS_LINKS)
            sent = 0
            while True:
                await peer.send(b"".join(put_token(token, sent + at) for at, token in enumerate(tokens)))
                sent += len(tokens)
                await peer.wait(transfers=sent)
                attack.tally["guesses answered"] += len(tokens)

    await attack.repeat(8, guess)


async def _churn(attack: Attack) -> None:
    async def come_and_go(number: int) -> None:
        async with attack.connected(attack.target.amqp, source=source_of(0)) as line:
            await line.send(OPENED)

    await attack.repeat(16, come_and_go, pause_s=0.0)


_ASK: Final = b"".join(
    put_token("SharedAccessSignature", number, AUDIENCE + "x" * 500) for number in range(500)
)

FLOODS: Final = (
    Flood(
        "silent-sockets",
        3,
        "4,200 connections that say nothing; 4,096 files may be open",
        saying(4_200),
        open_files_max=4096,
    ),
    Flood(
        "silent-sockets-network",
        3,
        "the same, as from another machine",
        saying(4_200),
        settings=FROM_NETWORK,
        open_files_max=4096,
    ),
    Flood("churn-amqp", 3, "connections that are opened and closed as fast as possible", _churn),
    Flood("colliding-open", 4, "opens of 64 KB whose property names have one hash", _colliding_open),
    Flood(
        "heartbeats",
        5,
        "empty frames on one connection, as fast as they are taken",
        saying(1, OPENED, then=EMPTY_FRAME * 32_768),
    ),
    Flood(
        "partial-frames",
        6,
        "200 connections with half a frame of 64 KB behind the open",
        saying(200, OPENED + _HALF_A_FRAME),
    ),
    Flood(
        "unfinished-requests",
        6,
        "200 connections, each with 31 large attaches and half messages to $cbs",
        _unfinished_requests,
    ),
    Flood(
        "unread-answers",
        6,
        "40 connections that ask $cbs and do not read",
        saying(40, OPENED + CBS, then=_ASK),
    ),
    Flood("guess-cbs", 9, "wrong signatures to $cbs, as fast as they are answered", _guess),
)

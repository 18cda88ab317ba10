"""Floods over HTTP, WebSocket and TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from typing import Final

from bench.floods.attack import FROM_NETWORK, HUB, Attack, Flood, Program

_FROM_ONE_PEER: Final = 1_100
_CLIENT_HELLO_BEGINS: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)
_WEBSOCKET_REQUEST: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\n\r\n"
)
_PING: Final = b"\x89\xfd" + bytes(4) + bytes(125)


async def _answer(attack: Attack, reader: asyncio.StreamReader) -> None:
    """Read an answer that has a length, and count its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    attack.tally["HTTP " + head.split(b" ", 2)[1].decode()] += 1
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))


def _dripping(face: str, first: bytes, then: bytes, *, connections: int, pause_s: float) -> Program:
    """Connections that say something, and then a little now and then."""

    async def flood(attack: Attack) -> None:
        async def drip(number: int) -> None:
            reader, writer = await attack.connect(getattr(attack.target, face))
            try:
                writer.write(first)
                while not reader.at_eof():
                    await asyncio.sleep(pause_s)
                    writer.write(then)
                    await writer.drain()
                attack.tally["hung up"] += 1
            finally:
                writer.transport.abort()

        await attack.repeat(attack.count(connections), drip, pause_s=0.2)

    return flood


def _requesting(request: bytes, *, connections: int, pause_s: float = 0.0, times: int = 1_000_000) -> Program:
    """Connections that send a request, read the answer and begin again, or are kept after some ``times``."""

    async def flood(attack: Attack) -> None:
        filled = request.replace(b"{token}", attack.target.token(f"http://localhost/{HUB}").encode())

        async def ask(number: int) -> None:
            reader, writer = await attack.connect(attack.target.http)
            try:
                for _ in range(times):
                    writer.write(filled)
                    await _answer(attack, reader)
                    await asyncio.sleep(pause_s)
                await reader.read()
                attack.tally["hung up"] += 1
            finally:
                writer.transport.abort()

        await attack.repeat(attack.count(connections), ask)

    return flood


def _websocket(connections: int, first: bytes, then: bytes = b"") -> Program:
    """WebSockets that send something, and then one thing again and again; what comes back is not read."""

    async def flood(attack: Attack) -> None:
        async def say(number: int) -> None:
            reader, writer = await attack.connect(attack.target.http)
            try:
                writer.write(_WEBSOCKET_REQUEST)
                await _answer(attack, reader)
                writer.write(first)
                while then:
                    writer.write(then)
                    await writer.drain()
                await writer.drain()
                await reader.read()
                attack.tally["hung up"] += 1
            finally:
                writer.transport.abort()

        await attack.repeat(attack.count(connections), say)

    return flood


async def _churn_tls(attack: Attack) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def shake_hands(number: int) -> None:
        address = attack.target.amqps if number % 2 else attack.target.https
        _, writer = await attack.connect(address, tls=context)
        writer.transport.abort()

    await attack.repeat(attack.count(16), shake_hands, pause_s=0.0)


def _post(body: bytes, content_type: bytes, token: bytes = b"{token}") -> bytes:
    lines = (
        b"POST /" + HUB.encode() + b"/messages HTTP/1.1",
        b"Host: localhost",
        b"Authorization: " + token,
        b"Content-Type: " + content_type,
        b"Content-Length: %d" % len(body),
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _json_batch() -> bytes:
    events = [{"Body": "x" * 10, "UserProperties": {"a": number, "b": "y"}} for number in range(8_000)]
    return _post(json.dumps(events).encode(), b"application/vnd.microsoft.servicebus.json")


_WRONG: Final = (
    b"SharedAccessSignature sr=http%3A%2F%2Flocalhost%2Fflood&sig=d3Jvbmc%3D&se=4000000000&skn=tenant"
)

FLOODS: Final = (
    Flood(
        "unfinished-websockets",
        6,
        "200 WebSockets with a frame of 4 MB that does not end",
        _websocket(200, b"\x82\xff" + (4 << 20).to_bytes(8, "big") + bytes(4 << 20)),
    ),
    Flood("websocket-pings", 8, "20 WebSockets that ping and do not read", _websocket(20, b"", _PING * 500)),
    Flood(
        "json-bodies",
        7,
        "10 connections that post batches of 8,000 events in JSON",
        _requesting(_json_batch(), connections=10),
    ),
    Flood(
        "slow-http",
        8,
        "1,100 connections that send a byte of a header each second",
        _dripping(
            "http",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            b"x",
            connections=_FROM_ONE_PEER,
            pause_s=1.0,
        ),
    ),
    Flood(
        "slow-http-network",
        8,
        "the same, as from another machine",
        _dripping(
            "http",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            b"x",
            connections=_FROM_ONE_PEER,
            pause_s=1.0,
        ),
        settings=FROM_NETWORK,
    ),
    Flood(
        "half-tls",
        8,
        "1,100 connections with half a TLS handshake",
        _dripping("https", _CLIENT_HELLO_BEGINS, b"", connections=_FROM_ONE_PEER, pause_s=1.0),
    ),
    Flood(
        "keep-alive",
        8,
        "1,100 connections that ask once and stay",
        _requesting(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", connections=_FROM_ONE_PEER, times=1),
    ),
    Flood(
        "guess-http",
        9,
        "wrong signatures over HTTP, as fast as they are answered",
        _requesting(_post(b"x", b"text/plain", _WRONG), connections=8),
    ),
    Flood("churn-tls", 8, "TLS handshakes, as fast as possible", _churn_tls),
)

"""Floods over HTTP, WebSocket and TLS."""

from __future__ import annotations

import base64
import json
import ssl
from typing import Final

from bench.floods.attack import FROM_NETWORK, HUB, Attack, Flood, Program, exchange, saying, source_of

_FROM_ONE_PEER: Final = 1_100
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
_SLOW: Final = saying(_FROM_ONE_PEER, _HEALTH + b"X-Slow: ", face="http", then=b"x", every_s=1.0)
_HALF_A_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)
_WEBSOCKET: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\n\r\n"
)
_PING: Final = b"\x89\xfd" + bytes(4) + bytes(125)
_UNFINISHED: Final = b"\x82\xff" + (4 << 20).to_bytes(8, "big") + bytes(4 << 20)
_WRONG_TOKEN: Final = (
    b"SharedAccessSignature sr=http%3A%2F%2Flocalhost%2Fflood&sig=d3Jvbmc%3D&se=4000000000&skn=tenant"
)
_TOKEN: Final = b"{token}"
_CHUNKED: Final = b"POST /flood/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
_MANY_HEADERS: Final = b"GET /flood HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
_MANY_PARAMETERS: Final = b"POST /flood/messages?" + b"a&" * 30_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _post(body: bytes, content_type: bytes, token: bytes = _TOKEN) -> bytes:
    return (
        b"POST /%b/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\nContent-Type: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (HUB.encode(), token, content_type, len(body), body)
    )


def _json_batch() -> bytes:
    events = [{"Body": "x" * 10, "UserProperties": {"a": number, "b": "y"}} for number in range(8_000)]
    return _post(json.dumps(events).encode(), b"application/vnd.microsoft.servicebus.json")


_SLOW_EVENT: Final = b'[{"Body": "x", "X": [' + b"[]," * 600_000 + b"0]}]"
"""It took the standard library's decoder 0.2 s."""


def _asking(connections: int, request: bytes, *, is_repeated: bool = True) -> Program:
    """Connections that send a request and read the answer, again and again or once."""

    async def flood(attack: Attack) -> None:
        filled = request.replace(_TOKEN, attack.target.token().encode())

        async def ask(number: int) -> None:
            async with attack.connected(attack.target.http, source=source_of(0)) as line:
                await exchange(attack, line, filled)
                while is_repeated:
                    await exchange(attack, line, filled)
                await line.hold()

        await attack.repeat(connections, ask)

    return flood


async def _churn_tls(attack: Attack) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def shake_hands(number: int) -> None:
        address = attack.target.amqps if number % 2 else attack.target.https
        async with attack.connected(address, source=source_of(0), tls=context):
            pass

    await attack.repeat(16, shake_hands, pause_s=0.0)


FLOODS: Final = (
    Flood(
        "tiny-chunks",
        5,
        "4 connections without a token whose bodies come in chunks of a byte",
        saying(4, _CHUNKED, face="http", then=b"1\r\na\r\n" * 10_000),
    ),
    Flood(
        "tiny-headers",
        5,
        "8 connections that send heads with 15,000 headers",
        _asking(8, _MANY_HEADERS, is_repeated=False),
    ),
    Flood(
        "tiny-parameters",
        5,
        "8 connections that send queries with 30,000 parameters",
        _asking(8, _MANY_PARAMETERS, is_repeated=False),
    ),
    Flood(
        "unfinished-websockets",
        6,
        "200 WebSockets with a frame of 4 MB that does not end",
        saying(200, _WEBSOCKET, _UNFINISHED, face="http"),
    ),
    Flood(
        "json-bodies",
        7,
        "10 connections that post batches of 8,000 events in JSON",
        _asking(10, _json_batch()),
    ),
    Flood(
        "slow-json",
        7,
        "10 connections that post an event of 2 MB with a list of lists",
        _asking(10, _post(_SLOW_EVENT, b"application/vnd.microsoft.servicebus.json")),
    ),
    Flood("slow-http", 8, "1,100 connections that send a byte of a header each second", _SLOW),
    Flood("slow-http-network", 8, "the same, as from another machine", _SLOW, settings=FROM_NETWORK),
    Flood(
        "half-tls",
        8,
        "1,100 connections with half a TLS handshake",
        saying(_FROM_ONE_PEER, _HALF_A_HELLO, face="https"),
    ),
    Flood(
        "keep-alive",
        8,
        "1,100 connections that ask once and stay",
        _asking(_FROM_ONE_PEER, _HEALTH + b"\r\n", is_repeated=False),
    ),
    Flood(
        "websocket-pings",
        8,
        "20 WebSockets that ping and do not read",
        saying(20, _WEBSOCKET, face="http", then=_PING * 500),
    ),
    Flood("churn-tls", 8, "TLS handshakes, as fast as possible", _churn_tls),
    Flood(
        "guess-http",
        9,
        "wrong signatures over HTTP, as fast as they are answered",
        _asking(8, _post(b"x", b"text/plain", _WRONG_TOKEN)),
    ),
)

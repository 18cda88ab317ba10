"""What a connection over HTTP leaves behind when it becomes a WebSocket, or ends."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.responses import Response
from tests.server.test_http import _serve
from tests.transport.test_websocket import Receiver
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.gateway.http.server import WEBSOCKET_PATH, HttpServer
from tidegate.server.certificates import ensure_server_certificate
from tidegate.transport.admission import Face, Ticket
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import parse_address
from tidegate.transport.websocket import WebSocketStream

_GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
_LARGE = b"".join(b"X-%d: %0150d\r\n" % (number, number) for number in range(60))
_UPGRADE = (
    (
        f"GET {WEBSOCKET_PATH} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Protocol: AMQPWSB10\r\n"
    ).encode()
    + _LARGE
    + b"\r\n"
)
"""Its head has 10 KB."""


@asynccontextmanager
async def _serving(budget: MemoryBudget) -> AsyncIterator[tuple[HttpServer, int]]:
    server, (_, port), tasks = await _serve(Response("done"), budget=budget)
    try:
        async with asyncio.timeout(60):
            yield server, port
    finally:
        await server.stop()
        await tasks.close()


async def _open(
    server: HttpServer, port: int, directory: Path | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """directory: for certificates, with TLS; None: without."""
    if directory is None:
        return await asyncio.open_connection("127.0.0.1", port)
    certificate = ensure_server_certificate(directory, [], clock=SystemClock())
    server.config.ssl = certificate.ssl_context()
    tls = ssl.create_default_context(cafile=str(certificate.ca_file))
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")


@pytest.mark.parametrize("ahead", [b"", _GET], ids=["alone", "sent ahead"])
async def test_a_websocket_leaves_no_account_of_its_request(tmp_path: Path, ahead: bytes) -> None:
    """Protects memory: what TLS keeps for a large head counted again after the connection had become a
    WebSocket, whose end closed no such account. 150 KB stayed of each, and 18 KB in the budget."""
    budget = MemoryBudget(1 << 30)
    async with _serving(budget) as (server, port):
        reader, writer = await _open(server, port, tmp_path)
        writer.write(ahead + _UPGRADE)
        await reader.readuntil(b" 101 ")
        await reader.readuntil(b"\r\n\r\n")
        assert not budget._accounts
        writer.transport.abort()
        while server.websockets:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        assert budget.statistics().used_bytes == 0


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
async def test_an_open_websocket_keeps_nothing_of_http(tmp_path: Path, is_tls: bool) -> None:
    """Protects memory: the head of the upgrade and what was made of it stayed until a full collection, over
    TLS as long as the WebSocket. Reference counting frees them."""
    async with _serving(MemoryBudget(1 << 30)) as (server, port):
        server._accept_websocket = Receiver
        reader, writer = await _open(server, port, tmp_path if is_tls else None)
        writer.write(_GET)
        await reader.readuntil(b"done")
        (kept,) = map(weakref.ref, server.server_state.connections)
        gc.disable()
        try:
            writer.write(_UPGRADE)
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(3):
                await asyncio.sleep(0)
            assert kept() is None
        finally:
            gc.enable()
        assert server.websockets
        writer.transport.abort()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
async def test_an_ended_connection_is_freed_without_a_collection(tmp_path: Path, is_tls: bool) -> None:
    """Protects memory: full collections are rare. Connections that had lived for a second and ended kept 20
    MB, over TLS 42, which counted nowhere."""
    async with _serving(MemoryBudget(1 << 30)) as (server, port):
        reader, writer = await _open(server, port, tmp_path if is_tls else None)
        writer.write(_GET)
        await reader.readuntil(b"done")
        (connection,) = server.server_state.connections
        assert isinstance(connection, H11Protocol)
        kept: list[weakref.ref[object]] = [weakref.ref(connection)]
        if is_tls:
            kept.append(weakref.ref(connection.transport))
        del connection
        gc.disable()
        try:
            writer.transport.abort()
            while server.server_state.connections:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
            for _ in range(3):
                await asyncio.sleep(0)
            assert [each() for each in kept] == [None] * len(kept)
        finally:
            gc.enable()


class _Behind(asyncio.Transport):
    """A transport with unsent bytes of an earlier answer."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self.has_closed = False
        self.protocol: asyncio.BaseProtocol | None = None
        self.written: list[tuple[bytes, asyncio.BaseProtocol | None]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue it, with the protocol that would be asked to pause."""
        self.written.append((bytes(data), self.protocol))

    def get_write_buffer_size(self) -> int:
        """Some less than would hold the next request back."""
        return 60_000

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """The protocol that is called from now on."""
        self.protocol = protocol

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """The same."""

    def is_closing(self) -> bool:
        """Whether it sends the rest, and ends."""
        return self.has_closed

    def close(self) -> None:
        """A test ends it."""
        self.has_closed = True

    def abort(self) -> None:
        """Close it."""
        self.close()


def _connect(server: HttpServer) -> tuple[_Behind, asyncio.Protocol]:
    ticket = server.admission.admit(parse_address("192.0.2.1"), Face.HTTP, now=0.0)
    assert isinstance(ticket, Ticket)
    transport, protocol = _Behind(), server._make_protocol(ticket)
    assert isinstance(protocol, asyncio.Protocol)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return transport, protocol


async def test_what_is_unsent_is_the_websockets() -> None:
    """Protects memory, and the WebSocket: its own stream counts the bytes, and pauses if the answer to the
    handshake is too much. The HTTP protocol's limit of time for a reader would have cut it off."""
    budget = MemoryBudget(1 << 30)
    async with _serving(budget) as (server, _):
        transport, protocol = _connect(server)
        protocol.data_received(_UPGRADE)
        assert transport.written[0][0].startswith(b"HTTP/1.1 101 ")
        assert all(isinstance(called, WebSocketStream) for _, called in transport.written)
        assert not budget._accounts
        assert isinstance(transport.protocol, WebSocketStream)
        transport.protocol.connection_lost(None)


async def test_a_reset_connection_leaves_nothing() -> None:
    """Protects memory: timers of connections that their clients had reset after an answer kept 150 KB of each
    for 65 s, in no account."""
    async with _serving(MemoryBudget(1 << 30)) as (server, _):
        transport, protocol = _connect(server)
        protocol.data_received(_GET)
        while not any(data.endswith(b"done") for data, _ in transport.written):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(ConnectionResetError())
        await asyncio.sleep(0)
        kept = weakref.ref(protocol)
        del protocol
        transport.written.clear()
        transport.set_protocol(asyncio.Protocol())
        gc.collect()
        assert kept() is None


async def test_a_refused_upgrade_behind_an_answer_leaves_nothing() -> None:
    """Protects memory: a timer that no callback would stop kept the connection for 60 s, in no account."""
    async with _serving(MemoryBudget(1 << 30)) as (server, _):
        transport, protocol = _connect(server)
        protocol.data_received(_GET + _UPGRADE.replace(WEBSOCKET_PATH.encode(), b"/x"))
        while not transport.has_closed:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.written[-1][0].startswith(b"HTTP/1.1 404 ")
        assert isinstance(transport.protocol, WebSocketStream)
        transport.protocol.connection_lost(None)
        kept = weakref.ref(transport)
        del protocol, transport
        gc.collect()
        assert kept() is None

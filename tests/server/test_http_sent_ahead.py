"""What waits behind an answer that its client has not read: requests that were sent ahead, and answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tests.server.test_http import _serve

from tidegate.gateway.http.server import HttpServer
from tidegate.server.certificates import ensure_server_certificate
from tidegate.transport.admission import Face, Ticket
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import parse_address

_LARGE = 16_777_216  # beyond all that sockets hold on the way
_GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
_UPGRADE = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
_TIMER_S = 0.05


@dataclass
class _Served:
    """A server whose answers are large, and a client that reads nothing by itself."""

    server: HttpServer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    begun: list[str] = field(default_factory=list)
    """Methods of the requests that the application was given."""
    answered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released when an answer was made, and is in the connection."""

    async def settle(self) -> None:
        """Until the server has done what it can; its timers are over as well."""
        await asyncio.sleep(4 * _TIMER_S)

    async def read_answer(self) -> bytes:
        """The status line of the next answer, whose body is read."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = (line[16:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self.reader.readexactly(int(length))
        return head.partition(b"\r\n")[0]


@asynccontextmanager
async def _served(
    directory: Path | None = None, *, keep_alive_s: int = 5, **limits: Any
) -> AsyncIterator[_Served]:
    """directory: for certificates, with TLS; None: without."""
    served: _Served

    async def answer(request: Request) -> Response:
        served.begun.append(request.method)
        return Response(bytes(_LARGE), background=BackgroundTask(served.answered.release))

    application = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    server, (host, port), tasks = await _serve(application, **limits)
    server.config.timeout_keep_alive = keep_alive_s
    tls = None
    if directory is not None:
        certificate = ensure_server_certificate(directory, [], clock=SystemClock())
        server.config.ssl = certificate.ssl_context()
        tls = ssl.create_default_context(cafile=str(certificate.ca_file))
    async with asyncio.timeout(60):
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
        served = _Served(server, reader, writer)
        try:
            yield served
        finally:
            writer.transport.abort()
            await server.stop()
            await tasks.close()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.slow
async def test_a_request_begins_when_earlier_answers_are_read(tmp_path: Path, is_tls: bool) -> None:
    """Protects memory: an answer that is made behind an unread one would wait in no account. A client that
    takes its time loses nothing, however short the times for a head and between requests."""
    directory = tmp_path if is_tls else None
    async with _served(directory, keep_alive_s=0, head_timeout_s=_TIMER_S) as served:
        served.writer.write(_GET * 3)
        for number in (1, 2, 3):
            await served.answered.acquire()
            await served.settle()
            assert len(served.begun) == number
            assert await served.read_answer() == b"HTTP/1.1 200 OK"
        assert await served.reader.read() == b""


@pytest.mark.slow
async def test_what_comes_later_waits_as_well() -> None:
    """As if it had come before the answer; also behind a body whose rest comes after its answer."""
    async with _served() as served:
        served.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n12")
        await served.answered.acquire()
        served.writer.write(b"34" + _GET)
        await served.settle()
        served.writer.write(_GET)
        await served.settle()
        assert served.begun == ["POST"]
        (connection,) = served.server.server_state.connections
        assert connection._head_timer is None  # type: ignore[union-attr]
        for _ in range(3):
            assert await served.read_answer() == b"HTTP/1.1 200 OK"
        assert served.begun == ["POST", "GET", "GET"]


async def test_half_a_request_holds_no_place() -> None:
    """Once the answer before is read, its rest must come in the time for a head."""
    async with _served(head_timeout_s=_TIMER_S) as served:
        served.writer.write(_GET + _GET[:-2])
        await served.answered.acquire()
        await served.settle()
        assert await served.read_answer() == b"HTTP/1.1 200 OK"
        assert await served.read_answer() == b"HTTP/1.1 408 Request Timeout"
        assert await served.reader.read() == b""
        assert served.begun == ["GET"]


async def test_who_never_reads_ends_with_all_it_has_sent() -> None:
    """A connection keeps its place for the time that an answer may take to be read, and no longer."""
    async with _served(write_timeout_s=0.5) as served:
        served.writer.write(_GET * 2)
        while served.server.server_state.connections:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        assert served.begun == ["GET"]


async def test_an_upgrade_waits_for_earlier_answers() -> None:
    """A WebSocket behind an unread answer takes no place over AMQP; it is answered when its turn comes."""
    async with _served() as served:
        served.writer.write(_GET + _UPGRADE)
        await served.answered.acquire()
        await served.settle()
        places = served.server.admission.statistics().open
        assert {face: count for (face, _), count in places.items() if count} == {Face.HTTP: 1}
        assert await served.read_answer() == b"HTTP/1.1 200 OK"
        assert await served.read_answer() == b"HTTP/1.1 404 Not Found"


async def test_a_stop_begins_nothing_more() -> None:
    """A client that reads after a stop has begun gets the answer that was made, whole, and no other."""
    async with _served() as served:
        served.writer.write(_GET * 2)
        await served.answered.acquire()
        (connection,) = served.server.server_state.connections
        async with asyncio.TaskGroup() as group:
            group.create_task(served.server.stop())
            while not connection.transport.is_closing():  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            assert await served.read_answer() == b"HTTP/1.1 200 OK"
            assert await served.reader.read() == b""
        assert served.begun == ["GET"]


async def _pieces(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(_LARGE), "more_body": True})
    await send({"type": "http.response.body", "body": bytes(4 * _LARGE), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(4 * _LARGE)})


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("answer", [_pieces, _whole])
@pytest.mark.slow
async def test_an_answer_that_waits_counts_as_memory(
    answer: Callable[[Send], Awaitable[None]], is_read: bool
) -> None:
    """Protects memory: what the application has made, and cannot send yet, is held for a client. Of an answer
    that is sent at once, even its beginning may find the connection full."""
    ended = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        (connection,) = server.server_state.connections
        if answer is _whole:
            connection.pause_writing()
        await answer(send)
        ended.set()

    budget = MemoryBudget(1 << 30)
    server, (host, port), tasks = await _serve(application, budget=budget)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        while budget.statistics().used_bytes < 4 * _LARGE:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        assert not ended.is_set()
        if is_read:
            (connection,) = server.server_state.connections
            if answer is _whole:
                connection.resume_writing()
            received = 0
            while data := await reader.read(1 << 20):
                received += len(data)
            assert received > 4 * _LARGE
        writer.transport.abort()
        await ended.wait()
        while budget.statistics().used_bytes:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    await server.stop()
    await tasks.close()


class _EndUnsent(asyncio.Transport):
    """A transport that sends all of a write but 10 bytes at once, and keeps it whole, as uvloop's."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self.unsent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it."""
        self.unsent = 10

    def get_write_buffer_size(self) -> int:
        """Of what was written, the bytes that are not sent."""
        return self.unsent

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def close(self) -> None:
        """A test ends it."""


async def test_an_answer_counts_until_all_of_it_is_sent() -> None:
    """Protects memory: uvloop keeps a write until its last byte is sent. 40 connections, each with some of
    8 MB unsent, held 300 MB of which 47 MB were counted."""
    budget = MemoryBudget(1 << 30)
    async with _served(budget=budget) as served:
        ticket = served.server.admission.admit(parse_address("192.0.2.1"), Face.HTTP, now=0.0)
        assert isinstance(ticket, Ticket)
        transport, protocol = _EndUnsent(), served.server._make_protocol(ticket)
        assert isinstance(protocol, asyncio.Protocol)
        protocol.connection_made(transport)
        protocol.data_received(_GET)
        await served.answered.acquire()
        assert budget.statistics().used_bytes == _LARGE
        protocol.resume_writing()  # uvloop says so when a write is done
        assert budget.statistics().used_bytes == 10
        protocol.data_received(_GET)
        await served.answered.acquire()
        assert budget.statistics().used_bytes == _LARGE
        transport.unsent = 0
        protocol.pause_writing()
        assert budget.statistics().used_bytes == 0
        protocol.connection_lost(None)

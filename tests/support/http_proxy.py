"""An HTTP proxy as companies have it: clients ask it for a tunnel (CONNECT), with a password or without."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

_WAIT_S: Final = 30.0
_CHUNK_BYTES: Final = 65536


class HttpProxy:
    """Listens on a free port of loopback; tunnels lead to this machine alone. ``async with`` it."""

    def __init__(self, *, credentials: str | None = None, ports: Mapping[int, int] | None = None) -> None:
        """credentials: ``user:password`` that it asks for; None: it asks nobody. ports: port that a client
        names → where that tunnel leads, for clients that only know the standard port.
        """
        self.address = ""
        """``host:port``, once it listens."""
        self.tunnels = 0
        """How many it has opened."""
        self._ports = ports or {}
        self._authorization = (
            None if credentials is None else "Basic " + base64.b64encode(credentials.encode()).decode()
        )
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._tunnel(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _request(reader)
        if self._authorization is not None and request.authorization is None:
            # Clients ask again on the same connection.
            writer.write(
                b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                b'Proxy-Authenticate: Basic realm="interop"\r\nContent-Length: 0\r\n\r\n'
            )
            request = await _request(reader)
        if request.method != "CONNECT" or request.authorization != self._authorization:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        port = int(request.address.rpartition(":")[2])
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._ports.get(port, port))
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.tunnels += 1
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
        finally:
            there_writer.close()


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    address: str
    authorization: str | None


async def _request(reader: asyncio.StreamReader) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, address, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return _Request(method, address, headers.get("proxy-authorization"))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@contextmanager
def running(*servers: AbstractAsyncContextManager[object]) -> Iterator[None]:
    """Enter ``servers`` on an event loop in a thread of its own; leave them, last first, at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="interop servers")
    thread.start()

    def call(step: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, loop).result(_WAIT_S)

    stack = AsyncExitStack()
    try:
        try:
            for server in servers:
                call(stack.enter_async_context(server))
            yield
        finally:
            call(stack.aclose())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_WAIT_S)
        loop.close()

"""A TCP proxy that misbehaves on purpose: cuts connections, refuses them, holds bytes back.

    async with CuttingProxy(host, port, seed=7, cut_after_bytes=(1_000, 50_000)) as proxy:
        client = … connect to proxy.host, proxy.port …

The seed determines after how many bytes (both directions together) each connection is cut, with a reset, so
that data in flight is lost on both sides. It also determines whether the bytes that reach the limit are lost,
or are forwarded and the following ones lost: a request that never arrived, or a lost answer. ``cut_now`` cuts
all connections at once; ``cut_at`` cuts where a given request passes, such as a COMMIT.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Self

_CHUNK_BYTES = 65536
_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: close sends a reset and drops buffered data."""


class CuttingProxy:
    """Listens on a free port of loopback and forwards to one address. An async context manager."""

    def __init__(
        self, host: str, port: int, *, seed: int = 0, cut_after_bytes: tuple[int, int] | None = None
    ) -> None:
        """cut_after_bytes: the range, ends included, of each connection's random limit; None: no limit."""
        self.host = "127.0.0.1"
        self.port = 0
        self.seed = seed
        self.connection_count = 0
        """Connections forwarded so far."""
        self.cut_count = 0
        """Connections cut so far."""
        self.marked_cut_count = 0
        """Those of them that ``cut_at`` found."""
        self._target = (host, port)
        self._random = random.Random(seed)
        self._cut_after_bytes = cut_after_bytes
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._marker = b""
        self._marked_cuts_left = 0
        self._may_accept = True
        self.delay_s = 0.0
        """How long each piece of data waits before it is forwarded, each way."""
        self._flow = asyncio.Event()
        self._flow.set()

    def cut_now(self) -> int:
        """Cut every connection; returns how many there were."""
        lines = list(self._lines)
        for line in lines:
            line.cut()
        return len(lines)

    def cut_at(self, marker: bytes, count: int = 1) -> None:
        """Cut the next ``count`` connections that send a piece with ``marker`` in it to the service.

        For each, the seed determines whether that piece is lost, or is forwarded and its answer lost. A
        marker that is split between two reads is not found. Another call replaces the marker and count.
        """
        self._marker, self._marked_cuts_left = marker, count

    def refuse(self, is_refused: bool = True) -> None:
        """Close new connections at once (True), or forward them again (False)."""
        self._may_accept = not is_refused

    def hold(self, is_held: bool = True) -> None:
        """Stop forwarding, both ways, without closing anything (True), or continue (False)."""
        if is_held:
            self._flow.clear()
        else:
            self._flow.set()

    def stop_cutting(self) -> None:
        """Cut no more connections, present or new."""
        self._cut_after_bytes = None
        self._marked_cuts_left = 0
        for line in self._lines:
            line.bytes_left = None

    async def start(self, port: int = 0) -> None:
        """Listen; port: 0 is any free one. Sets ``host`` and ``port``."""
        self._server = await asyncio.start_server(self._forward, self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut the remaining connections."""
        self._flow.set()
        if self._server is not None:
            self._server.close()
            self.cut_now()
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._may_accept:
            _reset(writer)
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        limits = self._cut_after_bytes
        bytes_left = self._random.randint(*limits) if limits else None
        line = _Line(writer, there_writer, bytes_left, is_last_passed=self._random.random() < 0.5)
        self.connection_count += 1
        self._lines.add(line)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, there_writer, line, is_outward=True))
                group.create_task(self._pump(there_reader, writer, line, is_outward=False))
        finally:
            self._lines.discard(line)
            self.cut_count += line.is_cut
            line.cut()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line, *, is_outward: bool
    ) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._flow.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if is_outward and self._marked_cuts_left and self._marker in data:
                    self._marked_cuts_left -= 1
                    self.marked_cut_count += 1
                    line.limit(0, is_last_passed=self._random.random() < 0.5)
                if not line.may_pass(len(data)):
                    break
                writer.write(data)
                await writer.drain()
            if not line.is_cut and writer.can_write_eof():
                writer.write_eof()
        except OSError:
            line.cut()


class _Line:
    """Both halves of one forwarded connection."""

    def __init__(
        self,
        here: asyncio.StreamWriter,
        there: asyncio.StreamWriter,
        bytes_left: int | None,
        *,
        is_last_passed: bool,
    ) -> None:
        self.bytes_left = bytes_left
        self._is_last_passed = is_last_passed
        self.is_cut = False
        self._writers = (here, there)

    def limit(self, bytes_left: int, *, is_last_passed: bool) -> None:
        """Cut after this many more bytes. is_last_passed: first forward the piece that exceeds them."""
        self.bytes_left, self._is_last_passed = bytes_left, is_last_passed

    def may_pass(self, size: int) -> bool:
        """Count bytes; cuts the connection and returns False if the limit is reached."""
        if self.bytes_left is not None:
            self.bytes_left -= size
            if self.bytes_left < 0 and self._is_last_passed:
                self.bytes_left, self._is_last_passed = 0, False
            elif self.bytes_left < 0:
                self.cut()
        return not self.is_cut

    def cut(self) -> None:
        """Reset both halves."""
        self.is_cut = True
        for writer in self._writers:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    writer.transport.abort()

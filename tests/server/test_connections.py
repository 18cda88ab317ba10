"""Limits of connections on real sockets: each address of loopback stands for a peer of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tidegate.client import EventHubAdministrator, EventHubProducer
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.server.settings import ServerSettings
from tidegate.transport.admission import Face, Refusal

_AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
_DEADLINE_S = 30.0


@asynccontextmanager
async def _serving(tmp_path: Path, **settings: object) -> AsyncIterator[TidegateServer]:
    ports = {"amqp_port": 0, "http_port": 0, "is_console_served": False}
    server = TidegateServer(ServerSettings(tmp_path / "data", **(ports | settings)))  # type: ignore[arg-type]
    await server.start()
    try:
        async with asyncio.timeout(_DEADLINE_S):
            yield server
    finally:
        await server.close()


class _Peer:
    """One address, and the connections that it has opened."""

    def __init__(self, server: TidegateServer, host: str, *, face: str = "amqp") -> None:
        address = getattr(server.ready, face)
        service, _, port = address.rpartition(":")
        self._address = (service, int(port))
        self._host = host
        self.sockets: list[socket.socket] = []

    async def connect(self, count: int, first: bytes = b"") -> None:
        """Open so many, each once the one before is open; send ``first`` on each."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((self._host, 0))
            await loop.sock_connect(connection, self._address)
            self.sockets.append(connection)
            if first:
                await loop.sock_sendall(connection, first)

    async def answer(self, index: int) -> bytes:
        """What comes on a connection; nothing where it was ended."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.sock_recv(self.sockets[index], 65_536)
        except ConnectionError:
            return b""

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()


async def _settled(server: TidegateServer, face: Face, count: int) -> None:
    """Wait until so many connections without a token are held."""
    while server.connection_statistics().open[face, False] != count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_silent_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    """A peer that connects and says nothing gets its share and no more; another is served meanwhile."""
    limits = {"connections_without_token_per_address_max": 3, "connections_without_token_max": 10}
    async with _serving(tmp_path, **limits) as server:
        with ExitStack() as stack:
            silent, other = (_Peer(server, f"127.0.0.{number}") for number in (2, 3))
            stack.callback(silent.close)
            stack.callback(other.close)
            await silent.connect(5)
            assert [await silent.answer(index) for index in (3, 4)] == [b"", b""]
            await _settled(server, Face.AMQP, 3)
            await other.connect(1, _AMQP_HEADER)
            assert (await other.answer(0))[:4] == b"AMQP"
            statistics = server.connection_statistics()
            assert statistics.refused[Refusal.WITHOUT_TOKEN_ADDRESS] == 2
        await _settled(server, Face.AMQP, 0)


async def test_a_newcomer_displaces_who_holds_most_in_silence(tmp_path: Path) -> None:
    """When all places without a token are taken, the next address gets one, and keeps it."""
    async with _serving(tmp_path, connections_without_token_max=4) as server:
        with ExitStack() as stack:
            silent, other = (_Peer(server, f"127.0.0.{number}") for number in (2, 3))
            stack.callback(silent.close)
            stack.callback(other.close)
            await silent.connect(4)
            await _settled(server, Face.AMQP, 4)
            await other.connect(1, _AMQP_HEADER)
            assert (await other.answer(0))[:4] == b"AMQP"
            assert await silent.answer(0) == b""
            assert server.connection_statistics().refused[Refusal.DISPLACED] == 1


async def test_a_token_gives_a_place_of_its_own(tmp_path: Path) -> None:
    """Clients that have shown a token no longer count with the silent, whatever those do, and the total and
    the address limit theirs."""
    limits = {"connections_without_token_max": 1, "connections_per_address_max": 3}
    async with _serving(tmp_path, **limits) as server:
        server.broker.create_event_hub("hub", partition_count=1)
        string = server.ready.connection_string
        with ExitStack() as stack:
            silent = _Peer(server, "127.0.0.1")
            stack.callback(silent.close)
            async with EventHubAdministrator.from_connection_string(string) as administrator:
                await administrator.get_event_hub("hub")
                assert server.connection_statistics().open[Face.AMQP, True] == 1
                async with EventHubProducer.from_connection_string(string, "hub") as producer:
                    await producer.send([EventData(b"1")])
                    assert server.connection_statistics().open[Face.AMQP, True] == 2
                    await silent.connect(2)
                    assert await silent.answer(1) == b""
                    assert server.connection_statistics().refused[Refusal.ADDRESS] == 1
                    await producer.send([EventData(b"2")])


@pytest.mark.parametrize("face", ["amqps", "https"])
async def test_a_silent_peer_before_its_tls_handshake_counts(tmp_path: Path, face: str) -> None:
    """TLS is no way around the limits: a place is taken before the handshake, and given back."""
    limits = {"connections_without_token_per_address_max": 2}
    async with _serving(tmp_path, amqps_port=0, https_port=0, **limits) as server:
        peer = _Peer(server, "127.0.0.2", face=face)
        await peer.connect(3)
        kind = Face.AMQP if face == "amqps" else Face.HTTP
        await _settled(server, kind, 2)
        # Over AMQP the newcomer is refused, over HTTP the oldest makes room.
        assert await peer.answer(2 if face == "amqps" else 0) == b""
        peer.close()
        await _settled(server, kind, 0)

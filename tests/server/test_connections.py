"""Limits of connections on real sockets: each address of loopback stands for a peer of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.broker import ROOT_POLICY_NAME
from tidegate.client import EventHubAdministrator, EventHubProducer
from tidegate.model.errors import LogFailedError
from tidegate.model.events import EventData
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings
from tidegate.storage.partition_log import FilePartitionLog
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

    def __init__(self, server: TidegateServer | ReadyInformation, host: str, *, face: str = "amqp") -> None:
        ready = server.ready if isinstance(server, TidegateServer) else server
        address = getattr(ready, face)
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
        await server.broker.create_event_hub("hub", partition_count=1)
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


async def test_a_token_or_a_session_counts_over_http(tmp_path: Path) -> None:
    """Publishers with a token and people who have signed in hold no place of those without; a WebSocket holds
    one of AMQP's.
    """
    key = "SAS_KEY_VALUE"
    async with _serving(tmp_path, is_console_served=True, root_key=key) as server:
        await server.broker.create_event_hub("hub", partition_count=1)
        token = make_sas_token(
            audience="sb://localhost/hub", key_name=ROOT_POLICY_NAME, key=key, expiry=2**31
        )
        peer = _Peer(server, "127.0.0.1", face="http")
        requests = (
            (f"POST /hub/messages HTTP/1.1\r\nAuthorization: {token}\r\nContent-Length: 0\r\n", b" 201 "),
            ("GET / HTTP/1.1\r\n", b" 200 "),
            (
                "GET /$servicebus/websocket HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n"
                f"Sec-WebSocket-Key: {'A' * 22}==\r\n",
                b" 101 ",
            ),
        )
        for index, (head, status) in enumerate(requests):
            await peer.connect(1, f"{head}Host: localhost\r\n\r\n".encode())
            assert status in await peer.answer(index)
        found = server.connection_statistics().open
        assert (found[Face.HTTP, True], found[Face.HTTP, False], found[Face.AMQP, False]) == (2, 0, 1)
        peer.close()
        while any(server.connection_statistics().open.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


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


async def test_slow_heads_of_one_peer_do_not_hide_the_health(tmp_path: Path) -> None:
    """Heads that never end make room for each other, and for the requests of others, /health among them."""
    limits = {"connections_without_token_max": 20}
    async with _serving(tmp_path, **limits) as server:
        slow = _Peer(server, "127.0.0.2", face="http")
        await slow.connect(60, b"GET /health HTTP/1.1\r\nX-Slow: ")
        for host in ("127.0.0.2", "127.0.0.3"):
            status, answer = await _get(server, host, "/health")
            assert (status, answer["status"]) == (200, "healthy")
        assert server.connection_statistics().open[Face.HTTP, False] <= 20
        assert server.connection_statistics().refused[Refusal.DISPLACED] >= 40
        slow.close()


async def test_health_and_metrics_tell_of_trouble(tmp_path: Path) -> None:
    """A limit that was reached, few descriptors and a failed partition are told; the status code stays 200,
    for a load balancer must not take all away because of a part."""
    async with _serving(tmp_path, connections_max=1) as server:
        hub = await server.broker.create_event_hub("hub", partition_count=2)
        async with EventHubAdministrator.from_connection_string(server.ready.connection_string) as client:
            await client.get_event_hub("hub")
            refused = _Peer(server, "127.0.0.2")
            await refused.connect(1)
            assert await refused.answer(0) == b""
            refused.close()
            status, answer = await _get(server, "127.0.0.2", "/health")
            assert (status, answer["status"], answer["event_hubs"]) == (200, "degraded", 1)
            assert "connections_max" in str(answer["problems"])
        while server.connection_statistics().open[Face.AMQP, True]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert server._amqp is not None
        admission = server._amqp.admission
        log = hub.partitions[1]._log
        assert isinstance(log, FilePartitionLog)
        log.writer.failure = LogFailedError("the disk")
        admission.limits = replace(admission.limits, descriptors_max=3)
        while "ulimit" not in str(answer["problems"]):  # an answer is reused for ten times as long as it took
            _, answer = await _get(server, "127.0.0.2", "/health")
        assert "1 partitions accept no events" in str(answer["problems"])
        admission.limits = replace(admission.limits, descriptors_max=None)
        status, text = await _get_text(server, "127.0.0.1", "/metrics")
        assert status == 200
        assert 'tidegate_refused_connections_total{limit="total"} ' in text
        assert 'tidegate_open_connections{speaks="amqp",token="yes"} 0.0' in text
        assert 'tidegate_failed_partitions{event_hub="hub"} 1.0' in text
        assert "tidegate_open_connections_max 1.0" in text


@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_silent_connections_fail_no_partition(tmp_path: Path) -> None:
    """The attack of issue 18: more silent sockets than the process may open files. A producer that was there
    before sends to every partition meanwhile, others do afterwards, and the log says so in few lines.
    """
    ready_file, log_file = tmp_path / "ready.json", tmp_path / "log"
    command = [sys.executable, "-m", "tidegate.cli", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--amqp-port", "0", "--http-port", "0", "--no-console", "--ready-file", str(ready_file)]
    with log_file.open("wb") as log:
        service = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"TIDEGATE_CONFIG_DIR": str(tmp_path)},
        )
    try:
        async with asyncio.timeout(90):
            while not ready_file.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await _attack(ReadyInformation.from_json(ready_file.read_text()))
    finally:
        service.terminate()
        await service.wait()
    told = log_file.read_text()
    assert "takes no more events" not in told
    assert "open files" not in told.lower()
    assert len([line for line in told.splitlines() if "refused" in line]) < 10


async def _attack(ready: ReadyInformation) -> None:
    string = ready.connection_string
    async with EventHubAdministrator.from_connection_string(string) as administrator:
        await administrator.create_event_hub("hub", partition_count=8)
    async with EventHubProducer.from_connection_string(string, "hub") as producer:
        await producer.send([EventData(b"x")], partition_id="0")
        peer = _Peer(ready, "127.0.0.1")
        try:
            await peer.connect(400)
            for partition in range(8):
                await producer.send([EventData(b"x")], partition_id=str(partition))
        finally:
            peer.close()
        health = _Peer(ready, "127.0.0.1", face="http")
        await health.connect(1, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await health.answer(0)
        health.close()
    async with EventHubProducer.from_connection_string(string, "hub") as producer:
        for partition in range(8):
            await producer.send([EventData(b"y")], partition_id=str(partition))


async def _get_text(server: TidegateServer, host: str, path: str) -> tuple[int, str]:
    """Status and body of a request from ``host``."""
    peer = _Peer(server, host, face="http")
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    await peer.connect(1, request.encode())
    answer = b""
    while part := await peer.answer(0):
        answer += part
    peer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def _get(server: TidegateServer, host: str, path: str) -> tuple[int, dict[str, object]]:
    status, text = await _get_text(server, host, path)
    return status, json.loads(text)

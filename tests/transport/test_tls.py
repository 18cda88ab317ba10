"""TLS of accepted connections, against the standard library's own clients on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.model.errors import TidegateError
from tidegate.server.certificates import ensure_server_certificate
from tidegate.transport.admission import Admission
from tidegate.transport.clock import SystemClock
from tidegate.transport.streams import SocketStream, serve_streams
from tidegate.transport.tls import HANDSHAKE_TIMEOUT_S, TlsServerConnection
from tidegate.transport.turns import Turns

_DEADLINE_S = 60.0


class Echo:
    """Sends back what it gets, and may refuse to read for a while."""

    def __init__(self, stream: SocketStream, *, is_pausing: bool) -> None:
        self.stream = stream
        self.received = 0
        self.has_eof = False
        self.ended = asyncio.Event()
        self.error: TidegateError | None = None
        self._is_pausing = is_pausing

    def data_received(self, data: memoryview) -> None:
        self.received += len(data)
        self.stream.write([bytes(data)])
        if self._is_pausing:
            self.stream.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self.stream.resume_reading)

    def held_changed(self) -> None:
        pass

    def eof_received(self) -> None:
        self.has_eof = True

    def stream_ended(self, error: TidegateError | None) -> None:
        self.error = error
        self.ended.set()

    def writing_resumed(self) -> None:
        pass


class Served:
    """A listening echo and what came to it."""

    def __init__(self, client_context: ssl.SSLContext, *, is_pausing: bool) -> None:
        self.client_context = client_context
        self.port = 0
        self.echoes: list[Echo] = []
        self._is_pausing = is_pausing

    def accept(self, stream: SocketStream) -> Echo:
        self.echoes.append(Echo(stream, is_pausing=self._is_pausing))
        return self.echoes[-1]

    def connect(self) -> ssl.SSLSocket:
        """A blocking client."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=_DEADLINE_S)
        return self.client_context.wrap_socket(plain, server_hostname="127.0.0.1")


@contextlib.asynccontextmanager
async def serving(
    directory: Path,
    *,
    is_pausing: bool = False,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> AsyncIterator[Served]:
    made = ensure_server_certificate(directory, ["127.0.0.1"], clock=SystemClock())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    client_context = ssl.create_default_context(cafile=str(made.ca_file))
    client_context.maximum_version = version
    served = Served(client_context, is_pausing=is_pausing)
    admission = Admission()
    server = await serve_streams(
        "127.0.0.1",
        0,
        ssl=context,
        on_connected=served.accept,
        admission=admission,
        handshake_timeout_s=handshake_timeout_s,
    )
    served.port = server.addresses[0][1]
    try:
        async with asyncio.timeout(_DEADLINE_S):
            yield served
    finally:
        server.close()
        async with asyncio.timeout(_DEADLINE_S):
            await server.wait_closed()
            # Each connection gives its place back, however it ended.
            while any(admission.statistics().open.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def _round_trip(client: ssl.SSLSocket, data: bytes) -> bytes:
    """Little data: it fits the buffers between."""
    client.sendall(data)
    return client.recv(len(data))


async def _large_round_trip(served: Served, pieces: Sequence[bytes]) -> bytes:
    """Write and read at once, so that neither side waits for the other's buffers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=served.client_context)

    async def write() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    try:
        received, _ = await asyncio.gather(reader.readexactly(sum(map(len, pieces))), write())
    finally:
        writer.close()
        await writer.wait_closed()
    return received


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("is_pausing", [False, True])
@pytest.mark.slow
async def test_bytes_of_all_sizes_come_through_in_order(
    tmp_path: Path, version: ssl.TLSVersion, is_pausing: bool
) -> None:
    """Protects the pieces and the pausing: records larger, smaller and cut across the buffers."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.choice([1, 100, 16_384, 70_000, 400_000])) for _ in range(30)]
    async with serving(tmp_path, is_pausing=is_pausing, version=version) as served:
        assert await _large_round_trip(served, pieces) == b"".join(pieces)


async def test_a_client_that_says_goodbye_is_answered(tmp_path: Path) -> None:
    """Protects the orderly end: the receiver hears of it, and the client gets the service's last word."""
    async with serving(tmp_path) as served:
        client = await asyncio.to_thread(served.connect)
        await asyncio.to_thread(_round_trip, client, b"hello")
        plain = await asyncio.to_thread(client.unwrap)  # raises where the service just hangs up
        plain.close()
        echo = served.echoes[0]
        await echo.ended.wait()
        assert echo.has_eof
        assert echo.error is None


async def test_what_is_written_before_closing_still_arrives(tmp_path: Path) -> None:
    """Protects the last frames of a connection, such as an AMQP close with its error."""
    async with serving(tmp_path) as served:
        with await asyncio.to_thread(served.connect) as client:
            await asyncio.to_thread(_round_trip, client, b"hello")
            served.echoes[0].stream.write([b"x" * 3_000_000])
            served.echoes[0].stream.close()
            served.echoes[0].stream.write([b"too late"])

            def read_all() -> bytes:
                return b"".join(iter(lambda: client.recv(1 << 18), b""))

            assert await asyncio.to_thread(read_all) == b"x" * 3_000_000


async def test_a_client_that_reads_too_slowly_is_noticed(tmp_path: Path) -> None:
    """Protects back-pressure: unsent bytes are counted as those of a plain stream are."""
    async with serving(tmp_path) as served:
        with await asyncio.to_thread(served.connect) as client:
            await asyncio.to_thread(_round_trip, client, b"hello")
            stream = served.echoes[0].stream
            written = 0
            while stream.is_writable:
                stream.write([b"y" * 100_000])
                written += 100_000
                await asyncio.sleep(0)

            def read(count: int) -> int:
                got = 0
                while got < count:
                    got += len(client.recv(1 << 18))
                return got

            assert await asyncio.to_thread(read, written) == written
            while not stream.is_writable:  # noqa: ASYNC110 - the stream tells its receiver, not us
                await asyncio.sleep(0.001)


async def test_what_is_written_at_once_is_sent_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call may be one of the system, which takes as long as to encrypt a piece."""
    sent: list[int] = []
    async with serving(tmp_path) as served:
        with await asyncio.to_thread(served.connect) as client:
            await asyncio.to_thread(_round_trip, client, b"hello")
            connection = served.echoes[0].stream._transport
            assert isinstance(connection, TlsServerConnection)
            below = connection._socket
            assert below is not None

            def writelines(pieces: list[bytes]) -> None:
                sent.append(sum(map(len, pieces)))
                below.writelines(pieces)

            watched = SimpleNamespace(is_closing=below.is_closing, writelines=writelines)
            monkeypatch.setattr(connection, "_socket", watched)
            connection.write(b"y" * 100_000)
            monkeypatch.setattr(connection, "_socket", below)
            assert len(sent) == 1
            assert sent[0] > 100_000

            def read() -> None:
                got = 0
                while got < 100_000:
                    got += len(client.recv(1 << 18))

            await asyncio.to_thread(read)


async def test_a_connection_keeps_little_and_it_counts(tmp_path: Path) -> None:
    """Protects memory: OpenSSL's pipes never shrink, and thousands may have sent and received much once."""
    async with serving(tmp_path) as served:
        await _large_round_trip(served, [bytes(400_000)])
        echo = served.echoes[0]
        assert echo.stream.held_bytes == 0  # it has ended
        with await asyncio.to_thread(served.connect) as client:
            await asyncio.to_thread(_round_trip, client, bytes(1000))
            small = served.echoes[1].stream.held_bytes
            assert 1000 < small < 10_000
            await asyncio.to_thread(client.sendall, bytes(100_000))
            while served.echoes[1].received < 101_000:  # noqa: ASYNC110 - the stream tells its receiver, not us
                await asyncio.sleep(0.001)

            def read() -> None:
                got = 0
                while got < 100_000:
                    got += len(client.recv(1 << 18))

            await asyncio.to_thread(read)
            assert 30_000 < served.echoes[1].stream.held_bytes < 50_000


@pytest.mark.parametrize(
    "sent", [b"AMQP\x03\x01\x00\x00" * 4, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00"]
)
async def test_what_is_no_handshake_is_hung_up_on(tmp_path: Path, sent: bytes) -> None:
    """Protects the service from clients of other protocols; others are served meanwhile."""
    async with serving(tmp_path) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=_DEADLINE_S) as client:
            client.sendall(sent)
            if not sent.startswith(b"\x16"):

                def read_to_the_end() -> None:
                    while client.recv(1000):
                        pass

                await asyncio.to_thread(read_to_the_end)
            with await asyncio.to_thread(served.connect) as other:
                assert await asyncio.to_thread(_round_trip, other, b"hello") == b"hello"
        assert len(served.echoes) == 1


async def test_a_handshake_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    """Protects the service's sockets from clients that connect and say nothing."""
    async with serving(tmp_path, handshake_timeout_s=0.05) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=_DEADLINE_S) as client:
            assert await asyncio.to_thread(client.recv, 1000) == b""
        assert not served.echoes


async def test_an_aborted_connection_tells_its_receiver_why(tmp_path: Path) -> None:
    """Protects cleaning up after a client that is gone without a word."""
    async with serving(tmp_path) as served:
        client = await asyncio.to_thread(served.connect)
        await asyncio.to_thread(_round_trip, client, b"hello")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # the end is a reset
        client.close()
        await served.echoes[0].ended.wait()
        assert served.echoes[0].error is not None


async def test_small_records_are_decrypted_in_turns(tmp_path: Path) -> None:
    """Sixteen at a time at most: the rest of what arrived together waits for the connection's next turn."""
    steps: list[int] = []

    class Steps(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            steps.append(len(data))

    made = ensure_server_certificate(tmp_path, ["127.0.0.1"], clock=SystemClock())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(made.ca_file)).wrap_bio(
        incoming, outgoing, server_hostname="127.0.0.1"
    )
    here, there = socket.socketpair()
    here.setblocking(False)
    clock = itertools.count()  # each look at it is a second later: a slice ends after its first piece
    turns = Turns(monotonic=lambda: float(next(clock)), call_soon=asyncio.get_running_loop().call_soon)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(
        lambda: TlsServerConnection(
            context,
            Steps,
            read_buffer=memoryview(bytearray(1 << 17)),
            plain_buffer=memoryview(bytearray(1 << 16)),
            turns=turns,
        ),
        there,
    )
    async with asyncio.timeout(_DEADLINE_S):
        while client.version() is None or incoming.pending:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            await loop.sock_sendall(here, outgoing.read())
            if client.version() is None:
                incoming.write(await loop.sock_recv(here, 1 << 16))
        for _ in range(1_000):
            client.write(b"x")
        await loop.sock_sendall(here, outgoing.read())
        while sum(steps) < 1_000:  # noqa: ASYNC110 (the protocol has no event of its own)
            await asyncio.sleep(0)
    here.close()
    assert max(steps) <= 16


async def test_a_client_that_only_renews_its_keys_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A few renewals are answered; more than thirty in a row without data end the connection."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    caplog.set_level(logging.INFO)
    async with serving(tmp_path) as served:
        client = await asyncio.create_subprocess_exec(
            *(openssl, "s_client", "-connect", f"127.0.0.1:{served.port}", "-CAfile", tmp_path / "ca.pem"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert client.stdin is not None
        for _ in range(20):
            client.stdin.write(b"K\n")  # a command of its own in each of its reads
            await asyncio.sleep(0.01)
        client.stdin.write(b"data\n")
        while not served.echoes or served.echoes[0].received < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        with contextlib.suppress(ConnectionError):
            while not served.echoes[0].ended.is_set():
                client.stdin.write(b"K\n")
                await asyncio.sleep(0.01)
        await client.wait()
    assert "too many records without data" in caplog.text


async def test_a_long_hello_is_not_read_to_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL compares each key in it with each group: 64 KB took a seventh of a second, in one step."""
    caplog.set_level(logging.INFO)
    begin = b"\x01\x00\xf0\x00\x03\x03" + bytes(4090)
    async with serving(tmp_path) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=_DEADLINE_S) as client:
            for fragment in (begin, bytes(4096), bytes(4096)):
                client.sendall(b"\x16\x03\x01\x10\x00" + fragment)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.to_thread(client.recv, 1000):
                    pass
    assert "the handshake is too long" in caplog.text

"""The WebSocket stream on real loopback sockets: bytes, back-pressure both ways, and every kind of end."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame
from websockets.typing import Subprotocol

from tidegate.model.errors import RemoteProtocolError, TidegateError
from tidegate.transport import websocket
from tidegate.transport.turns import PASS_S, SLICE_S, Turns
from tidegate.transport.websocket import FRAMES_AT_ONCE, MESSAGE_BYTES_MAX, WebSocketStream

WAIT_S = 60.0
HANDSHAKE = (
    "GET /path HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
    "Sec-WebSocket-Protocol: amqp\r\n\r\n"
).encode()


class Receiver:
    """Keeps what a stream reads, and how it ended."""

    def __init__(self, stream: WebSocketStream) -> None:
        self.stream = stream
        self.received = bytearray()
        self.resumed = 0
        self.held: list[int] = []
        self.ends: list[TidegateError | None] = []
        self.changed = asyncio.Event()

    def data_received(self, data: memoryview) -> None:
        """Bytes came."""
        self.received += data
        self.changed.set()

    def held_changed(self) -> None:
        """Bytes of an incomplete frame came."""
        self.held.append(self.stream.held_bytes)
        self.changed.set()

    def eof_received(self) -> None:
        """The peer sends no more."""

    def stream_ended(self, error: TidegateError | None) -> None:
        """The stream is gone."""
        self.ends.append(error)
        self.changed.set()

    def writing_resumed(self) -> None:
        """Writable again."""
        self.resumed += 1
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; it is looked at whenever something happened."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Service:
    """A listening socket; ``receivers`` are those of the streams that came in."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns
        self.receivers: list[Receiver] = []
        self.gone: list[WebSocketStream] = []
        self.port = 0
        self.came = asyncio.Event()

    def stream(self) -> WebSocketStream:
        """A stream for one more connection."""
        return WebSocketStream(
            path="/path", on_connected=self._on_connected, on_ended=self.gone.append,
            admits_origin=lambda origin, host: False,
            format_refusal=lambda status, detail: ("text/plain", detail),
            turns=self.turns,
        )  # fmt: skip

    def _on_connected(self, stream: WebSocketStream) -> Receiver:
        stream.admit_peer()
        self.receivers.append(Receiver(stream))
        self.came.set()
        return self.receivers[-1]

    async def receiver(self) -> Receiver:
        """That of the first stream, once it is there."""
        async with asyncio.timeout(WAIT_S):
            await self.came.wait()
        return self.receivers[0]


@asynccontextmanager
async def _serving(turns: Turns | None = None) -> AsyncIterator[Service]:
    service = Service(turns)
    server = await asyncio.get_running_loop().create_server(service.stream, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        for receiver in service.receivers:
            receiver.stream.abort()


def _connect(service: Service) -> connect:
    url = f"ws://127.0.0.1:{service.port}/path"
    return connect(url, subprotocols=[Subprotocol("amqp")], compression=None, max_queue=1)


async def _read(client: ClientConnection, size: int) -> tuple[bytes, int]:
    """So many bytes, and the largest message that they came in."""
    received, largest = bytearray(), 0
    async with asyncio.timeout(WAIT_S):
        while len(received) < size:
            message = await client.recv()
            assert isinstance(message, bytes)
            received += message
            largest = max(largest, len(message))
    return bytes(received), largest


async def test_bytes_both_ways() -> None:
    """What is written arrives, in messages that every client takes; several buffers are one run of bytes."""
    async with _serving() as service, _connect(service) as client:
        receiver = await service.receiver()
        data = os.urandom(3 * MESSAGE_BYTES_MAX + 17)
        await client.send(data)
        await client.send([data[:10], data[10:]])
        await receiver.until(lambda: len(receiver.received) == 2 * len(data))
        assert receiver.received == data * 2
        receiver.stream.write([data[:5], bytearray(data[5:100]), memoryview(data)[100:]])
        assert await _read(client, len(data)) == (data, MESSAGE_BYTES_MAX)
        assert receiver.stream.peer_name.endswith("(WebSocket)")


async def test_a_handshake_that_lists_much_is_refused() -> None:
    """Protects the loop from a stranger: the library took 12 ms for 8 KB of them, in one step."""
    async with _serving() as service:
        many = [Subprotocol("amqp"), *[Subprotocol("x")] * 40]
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{service.port}/path", subprotocols=many):
                pass
    assert refused.value.response.status_code == 400
    assert b"list more than" in (refused.value.response.body or b"")


@pytest.mark.slow
async def test_a_flood_of_small_frames_is_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects neighbours: 40,000 empty frames that come at once are not parsed in one go, and the bytes
    behind them arrive. The clock moves whenever it is read, so the machine does not matter."""
    loop = asyncio.get_running_loop()
    clock = itertools.count()
    in_pass: list[int] = [0]
    is_over = False

    def tick() -> None:
        in_pass.append(0)
        if not is_over:
            loop.call_soon(tick)

    tick()
    on_frame = WebSocketStream._on_frame

    def counted(stream: WebSocketStream, frame: Frame) -> None:
        in_pass[-1] += 1
        on_frame(stream, frame)

    monkeypatch.setattr(WebSocketStream, "_on_frame", counted)
    async with _serving(Turns(monotonic=lambda: next(clock) * 0.0005, call_soon=loop.call_soon)) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        # Large frames first: what they cost says nothing of what follows.
        writer.write((b"\x82\xfe\xf0\0\0\0\0\0" + bytes(0xF000)) * 2)
        writer.write(b"\x82\x80abcd" * 40_000 + b"\x82\x83\0\0\0\0end")
        receiver = await service.receiver()
        await receiver.until(lambda: receiver.received.endswith(b"end"))
        writer.close()
    is_over = True
    assert sum(in_pass) == 40_003
    assert max(in_pass) <= 2 * (PASS_S + SLICE_S) / 0.0005 * FRAMES_AT_ONCE


async def test_the_bytes_of_an_incomplete_frame_are_reported() -> None:
    """Protects memory: 4 MB may come before a frame ends, and nothing is passed on until then."""
    async with _serving() as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        receiver = await service.receiver()
        writer.write(b"\x82\xff" + (1 << 20).to_bytes(8) + bytes(4 + (1 << 20) - 1))
        await receiver.until(lambda: receiver.held and receiver.held[-1] == (1 << 20) - 1)
        writer.write(b"x")
        await receiver.until(lambda: len(receiver.received) == 1 << 20)
        assert receiver.stream.held_bytes == 0
        writer.write(b"\x82\xff" + (1 << 20).to_bytes(8) + bytes(1 << 20))
        await receiver.until(lambda: receiver.held[-1] == (1 << 20) - 4)
        receiver.stream.abort()
        await receiver.until(lambda: receiver.ends)
        assert not receiver.stream._protocol.reader.buffer
        writer.close()


async def test_a_peer_that_does_not_read_is_noticed() -> None:
    """Unsent bytes make the stream unwritable; once they are read it is writable again, nothing is lost."""
    async with _serving() as service, _connect(service) as client:
        receiver = await service.receiver()
        block, written = os.urandom(1_000_000), 0
        while receiver.stream.is_writable:
            receiver.stream.write([block])
            written += len(block)
            await asyncio.sleep(0)
            assert written < 200_000_000, "the stream takes whatever it is given"
        received, _ = await _read(client, written)
        assert received == block * (written // len(block))
        await receiver.until(lambda: receiver.resumed)
        assert receiver.stream.is_writable


async def test_a_paused_stream_makes_the_peer_wait() -> None:
    """While reading is paused the peer's sends stall; afterwards everything arrives."""
    async with _serving() as service, _connect(service) as client:
        receiver = await service.receiver()
        receiver.stream.pause_reading()
        blocks = [os.urandom(1_000_000) for _ in range(20)]

        async def send() -> None:
            for block in blocks:
                await client.send(block)

        async with asyncio.TaskGroup() as group:
            sending = group.create_task(send())
            done, _ = await asyncio.wait([sending], timeout=0.3)
            assert not done, "20 MB went into a stream that is not read"
            receiver.stream.resume_reading()
        await receiver.until(lambda: len(receiver.received) == 20_000_000)
        assert receiver.received == b"".join(blocks)


async def test_close_sends_what_is_queued() -> None:
    """What was written before the close arrives before it; what is written after it goes nowhere."""
    async with _serving() as service, _connect(service) as client:
        receiver = await service.receiver()
        data = os.urandom(500_000)
        receiver.stream.write([data])
        receiver.stream.close()
        receiver.stream.write([b"too late"])
        assert (await _read(client, len(data)))[0] == data
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        await receiver.until(lambda: receiver.ends)
        assert (receiver.ends, service.gone) == ([None], [receiver.stream])


async def test_a_close_from_the_peer_ends_the_stream() -> None:
    """A peer that closes the WebSocket in order is answered, and the stream has ended without an error."""
    async with _serving() as service:
        async with _connect(service) as client:
            receiver = await service.receiver()
        assert client.close_code == 1000
        await receiver.until(lambda: receiver.ends)
        assert (receiver.ends, service.gone) == ([None], [receiver.stream])
        receiver.stream.close()
        receiver.stream.write([b"nobody is there"])


async def test_a_stream_that_has_ended_is_not_kept() -> None:
    """Protects memory: closing a stream whose peer had left started a timer, which kept it for 5 s."""
    async with _serving() as service, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        receiver = await service.receiver()
        writer.transport.abort()
        await receiver.until(lambda: receiver.ends)
        receiver.stream.close()
        assert receiver.stream._abort_timer is None


async def test_a_peer_that_never_answers_the_close_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close frame that stays without an answer holds the transport only so long."""
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.1)
    async with _serving() as service, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        receiver = await service.receiver()
        receiver.stream.close()
        await receiver.until(lambda: receiver.ends)
        assert receiver.ends == [None]
        writer.close()


async def test_a_peer_that_breaks_the_protocol_is_told_whose_fault_it_is() -> None:
    """A frame without a mask ends the stream as the peer's mistake, with the code for that."""
    async with _serving() as service, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        receiver = await service.receiver()
        writer.write(b"\x82\x01x")
        answer = await reader.read()
        assert answer[:4] == b"\x88" + bytes([len(answer) - 2]) + (1002).to_bytes(2, "big")
        writer.close()
        await receiver.until(lambda: receiver.ends)
        assert isinstance(receiver.ends[0], RemoteProtocolError)


async def test_random_bytes_end_each_stream_once() -> None:
    """Whatever comes before or behind the handshake: the stream ends, once, and the next one is served."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    async with _serving() as service, asyncio.timeout(WAIT_S):
        for number in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            handshake = bytearray(HANDSHAKE)
            if number % 2:
                handshake[source.randrange(len(handshake))] = source.randrange(256)
            writer.write(bytes(handshake) + source.randbytes(source.randrange(200)))
            writer.write_eof()
            await reader.read()
            writer.close()
        async with _connect(service) as client:
            await client.send(b"still there")
            last = service.receivers[-1]
            await last.until(lambda: last.received)
            assert last.received == b"still there"
        await last.until(lambda: last.ends)
        assert all(len(receiver.ends) == 1 for receiver in service.receivers)
        assert len(set(map(id, service.gone))) == len(service.gone) == 61

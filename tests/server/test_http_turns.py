"""Requests over HTTP are parsed in turns: a crowd of them does not hold up who else is served by the loop."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from ipaddress import ip_address

import h11
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.gateway.http.parser import RequestParser
from tidegate.gateway.http.server import HttpServer, listening_socket
from tidegate.model.errors import ClosedError
from tidegate.transport.peers import site_of
from tidegate.transport.streams import StreamReceiver
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.turns import PASS_S, Share, Turns
from tidegate.transport.websocket import WebSocketStream

_CROWD = 200
_BODY = bytes(range(256)) * 2_000
_MS = 0.001


def _refuse(stream: WebSocketStream) -> StreamReceiver:
    raise ClosedError("There is no AMQP here.")


class _SteppingClock:
    """Passes a millisecond each time that somebody looks, and a little: sums of floats may be too small."""

    def __init__(self, step_s: float = 1.001 * _MS) -> None:
        self.now_s = 0.0
        self._step_s = step_s

    def monotonic(self) -> float:
        """Seconds."""
        self.now_s += self._step_s
        return self.now_s


@pytest.mark.slow
async def test_a_crowd_of_requests_is_parsed_in_turns_and_whole() -> None:
    """Protects the loop's other users: however many requests come at once, a pass parses a few of them, and
    no byte of a body is lost while it waits.
    """
    loop = asyncio.get_running_loop()
    turns = Turns(monotonic=_SteppingClock().monotonic, call_soon=loop.call_soon)
    parsed: Counter[int] = Counter()
    bodies: list[bytes] = []

    async def answer(request: Request) -> Response:
        bodies.append(await request.body())
        return Response("done")

    arrivals = turns.for_arrivals
    run = arrivals._run

    def counted(share: object) -> None:
        parsed[arrivals.pass_number] += 1
        run(share)  # type: ignore[arg-type]

    arrivals._run = counted  # type: ignore[method-assign]
    listener = listening_socket("127.0.0.1", 0)
    server = HttpServer(
        Starlette(routes=[Route("/", answer, methods=["POST"])]),
        ssl_context=None,
        accept_websocket=_refuse,
        turns=turns,
    )
    async with TaskOwner("test") as tasks:
        server.work = tasks.start(server.serve(sockets=[listener]), name="serve")
        await server.is_serving.wait()

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            writer.write(
                b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
            )
            writer.write(_BODY)
            text = await reader.read()
            writer.close()
            return text

        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(ask() for _ in range(_CROWD)))
        await server.stop()
    assert all(text.startswith(b"HTTP/1.1 200") for text in answers)
    assert bodies == [_BODY] * _CROWD
    assert max(parsed.values()) <= 3 * PASS_S / _MS  # those that wait, and those whose bytes come
    assert len(parsed) > _CROWD * _MS / PASS_S


class _Passes:
    """Counts the passes of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _Passes:
        self._handle = self._loop.call_soon(self._next)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()

    def _next(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._next)


@pytest.mark.parametrize("ahead", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
@pytest.mark.slow
async def test_the_chunks_of_a_body_are_parsed_in_turns(
    ahead: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the loop's other users from a stranger's body in chunks of a byte, which is answered before it
    is complete: also if it was sent ahead, so that its parsing begins as an answer ends.
    """
    loop = asyncio.get_running_loop()
    turns = Turns(monotonic=_SteppingClock().monotonic, call_soon=loop.call_soon)
    parsed: Counter[int] = Counter()

    async def answer(request: Request) -> Response:
        return Response("done")

    listener = listening_socket("127.0.0.1", 0)
    server = HttpServer(
        Starlette(routes=[Route("/", answer, methods=["GET", "POST"])]),
        ssl_context=None,
        accept_websocket=_refuse,
        turns=turns,
    )
    async with TaskOwner("test") as tasks:
        server.work = tasks.start(server.serve(sockets=[listener]), name="serve")
        await server.is_serving.wait()
        with _Passes() as passes:
            next_event = RequestParser.next_event

            def counted(parser: RequestParser) -> object:
                event = next_event(parser)
                parsed[passes.count] += isinstance(event, h11.Data)
                return event

            monkeypatch.setattr(RequestParser, "next_event", counted)
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(ahead + head + b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n")
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(60):
                text = await reader.read()
            writer.close()
        await server.stop()
    assert text.count(b"HTTP/1.1 200") == 2 + bool(ahead)
    assert parsed.total() == 10_000
    assert max(parsed.values()) <= 200


async def test_a_pass_begins_few_requests_whose_handlers_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the loop's other users: a request is parsed in a moment, and its handler, a task, runs in no
    turn. Its time counts for its connection, also what it takes after it has waited.
    """
    clock = _SteppingClock(step_s=0.01 * _MS)
    loop = asyncio.get_running_loop()
    turns = Turns(monotonic=clock.monotonic, call_soon=loop.call_soon)
    begun: Counter[int] = Counter()
    all_wait, released = asyncio.Event(), asyncio.Event()
    shares: list[Share] = []
    join = Share.join

    def joined(share: Share, address: object) -> None:
        join(share, address)
        if address is not None:
            shares.append(share)

    monkeypatch.setattr(Share, "join", joined)
    listener = listening_socket("127.0.0.1", 0)

    async def answer(request: Request) -> Response:
        begun[passes.count] += 1
        clock.now_s += 3 * _MS
        if begun.total() == _CROWD:
            all_wait.set()
        await released.wait()
        clock.now_s += 3 * _MS
        return Response("done")

    server = HttpServer(
        Starlette(routes=[Route("/", answer)]), ssl_context=None, accept_websocket=_refuse, turns=turns
    )
    async with TaskOwner("test") as tasks:
        server.work = tasks.start(server.serve(sockets=[listener]), name="serve")
        await server.is_serving.wait()
        peers = [await asyncio.open_connection(*listener.getsockname()[:2]) for _ in range(_CROWD)]
        with _Passes() as passes:
            for _, writer in peers:
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            async with asyncio.timeout(60):
                await all_wait.wait()
                before_s = [share.served_s for share in shares]
                released.set()
                for reader, _ in peers:
                    await reader.readuntil(b"done")
        for _, writer in peers:
            writer.close()
        await server.stop()
    assert max(begun.values()) <= 3  # of those that wait, and of those whose bytes come
    assert all(3 * _MS <= each < 4 * _MS for each in before_s)
    assert all(6 * _MS <= share.served_s < 8 * _MS for share in shares)
    assert len(shares) == _CROWD


class _Crowd:
    """Connections of this machine that have just come, a thousand and one more in each pass."""

    def __init__(self, arrivals: Turns) -> None:
        self._arrivals = arrivals
        self._shares: list[Share] = []
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for _ in range(1000):
            self._arrive()
        self._handle = self._loop.call_soon(self._more)

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()
        for share in self._shares:
            share.close()

    def _more(self) -> None:
        self._arrive()
        self._handle = self._loop.call_soon(self._more)

    def _arrive(self) -> None:
        share = Share(self._arrivals, lambda: True)
        share.join(site_of(ip_address("127.0.0.1")))
        share.served_s = -math.inf  # never counts as established
        share.serve()
        self._shares.append(share)


@pytest.mark.slow
async def test_health_is_answered_beside_a_crowd_of_arrivals() -> None:
    """Protects monitoring: ``/health`` has turns of its own, on new connections and kept ones; other requests
    of such a connection wait as everybody's do, also those sent ahead. A body would be parsed in these turns.
    """
    loop = asyncio.get_running_loop()
    turns = Turns(monotonic=_SteppingClock().monotonic, call_soon=loop.call_soon)

    async def answer(request: Request) -> Response:
        return Response("done")

    listener = listening_socket("127.0.0.1", 0)
    server = HttpServer(
        Starlette(routes=[Route("/health", answer), Route("/other", answer)]),
        ssl_context=None,
        accept_websocket=_refuse,
        turns=turns,
    )
    async with TaskOwner("test") as tasks:
        server.work = tasks.start(server.serve(sockets=[listener]), name="serve")
        await server.is_serving.wait()
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        passes: dict[str, int] = {}
        async with asyncio.timeout(60):
            for name, *paths in (
                ("new", "health"),
                ("other", "other"),
                ("kept", "health"),
                ("behind", "health", "other"),
            ):
                with _Crowd(turns.for_arrivals):
                    before = turns.for_arrivals.pass_number
                    writer.write(b"".join(b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % p.encode() for p in paths))
                    for _ in paths:
                        await reader.readuntil(b"done")
                    passes[name] = turns.for_arrivals.pass_number - before
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
            assert b" 400 " in await reader.readuntil(b"has no body.")
        writer.close()
        await server.stop()
    assert passes["new"] < 50
    assert passes["kept"] < 50
    assert passes["other"] > 500
    assert passes["behind"] > 500

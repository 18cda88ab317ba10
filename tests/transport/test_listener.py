"""Listening: on both event loops, without descriptors, and while connections are displaced."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import cast

import pytest

from tidegate.server.event_loop import new_event_loop
from tidegate.transport import listener as listener_module
from tidegate.transport.admission import Admission, ConnectionLimits, Face, Ticket
from tidegate.transport.listener import Listener, listening_sockets

_DEADLINE_S = 30.0
_LOOPS = [asyncio.new_event_loop, new_event_loop]


class _Echo(asyncio.Protocol):
    """Sends back what comes."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ticket.end()


def _run(make_loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[object, object, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(_DEADLINE_S):
            await work

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(limited())


async def _echoed(address: tuple[str, int], data: bytes = b"hello") -> bytes:
    """What comes back on a new connection; empty where it is refused or ended."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        return await reader.read(len(data))
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _idle(admission: Admission) -> None:
    """Wait until no connection is held."""
    while any(admission.statistics().open.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("make_loop", _LOOPS)
@pytest.mark.slow
def test_connections_come_in_bursts_and_give_their_places_back(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """More at once than one turn accepts are all served, and none keeps its place."""

    async def work() -> None:
        admission = Admission()
        listener = Listener(listening_sockets("127.0.0.1", 0), _Echo, admission=admission, face=Face.AMQP)
        for _ in range(2):
            count = 2 * listener_module.ACCEPTS_PER_TURN
            echoes = await asyncio.gather(*(_echoed(listener.addresses[0]) for _ in range(count)))
            assert set(echoes) == {b"hello"}
        await _idle(admission)
        listener.close()
        listener.close()
        await listener.wait_closed()
        assert listener.addresses == []

    _run(make_loop, work())


@pytest.mark.parametrize("make_loop", _LOOPS)
@pytest.mark.slow
def test_another_address_does_not_wait_behind_the_connections_of_one(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Protects a quiet user's new connection from hundreds that were there a moment earlier."""
    hosts: list[str] = []

    class Noting(_Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            hosts.append(transport.get_extra_info("peername")[0])

    async def work() -> None:
        admission = Admission()
        listener = Listener(listening_sockets("127.0.0.1", 0), Noting, admission=admission, face=Face.AMQP)
        address = listener.addresses[0]
        # All wait to be accepted before the loop runs again.
        sources = ["127.0.0.2"] * 300 + ["127.0.0.3"]
        clients = [socket.create_connection(address, source_address=(source, 0)) for source in sources]
        while len(hosts) < len(sources):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for client in clients:
            client.close()
        await _idle(admission)
        listener.close()
        await listener.wait_closed()

    _run(make_loop, work())
    passes = math.ceil(301 / listener_module.ACCEPTS_PER_TURN)
    assert hosts.index("127.0.0.3") <= (passes + 1) * listener_module.CONNECTS_PER_TURN


@pytest.mark.parametrize("accepts_per_turn", [1, 2, 64])
@pytest.mark.parametrize("make_loop", _LOOPS)
@pytest.mark.slow
def test_a_displaced_connection_ends_at_every_moment(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    accepts_per_turn: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one place for HTTP each newcomer ends the one before, which may not even have its protocol yet;
    the last is served, and nothing is left over.
    """

    async def work() -> None:
        monkeypatch.setattr(listener_module, "ACCEPTS_PER_TURN", accepts_per_turn)
        admission = Admission(ConnectionLimits(connections_without_token_max=1, health_max=0))
        listener = Listener(listening_sockets("127.0.0.1", 0), _Echo, admission=admission, face=Face.HTTP)
        host, port = listener.addresses[0]
        # All wait to be accepted before the loop runs again.
        silent = [socket.create_connection((host, port)) for _ in range(100)]
        assert await _echoed((host, port)) == b"hello"
        for client in silent:
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            client.close()
        await _idle(admission)
        assert admission.displaced == 100
        listener.close()
        await listener.wait_closed()

    _run(make_loop, work())


@pytest.mark.parametrize("make_loop", _LOOPS)
def test_accepting_goes_on_after_descriptors_ran_out(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the system gives no descriptor the loop is not kept busy, and clients that wait are served once
    it gives one.
    """
    tries: list[int] = []

    class Short(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            tries.append(1)
            if len(tries) <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def work() -> None:
        monkeypatch.setattr(listener_module, "PAUSE_S", 0.02)
        (listening,) = listening_sockets("127.0.0.1", 0)
        short = Short(fileno=listening.detach())
        listener = Listener([short], _Echo, admission=Admission(), face=Face.AMQP)
        assert await _echoed(listener.addresses[0]) == b"hello"
        assert len(tries) <= 6
        listener.close()
        await listener.wait_closed()

    with caplog.at_level(logging.WARNING):
        _run(make_loop, work())
    assert caplog.text.count("Too many open files") == 3


def test_a_mistake_in_a_protocol_costs_no_place(caplog: pytest.LogCaptureFixture) -> None:
    """A protocol that cannot be made leaves no connection behind that counts, and others are served."""
    made: list[Ticket] = []

    def make(ticket: Ticket) -> asyncio.Protocol:
        made.append(ticket)
        if len(made) == 1:
            raise ZeroDivisionError
        return _Echo(ticket)

    async def work() -> None:
        admission = Admission()
        listener = Listener(listening_sockets("127.0.0.1", 0), make, admission=admission, face=Face.AMQP)
        assert await _echoed(listener.addresses[0]) == b""
        assert await _echoed(listener.addresses[0]) == b"hello"
        await _idle(admission)
        listener.close()
        await listener.wait_closed()

    _run(asyncio.new_event_loop, work())
    assert "task failed" in caplog.text


def test_refusals_are_told_by_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first refusal is in the log at once, the others of a while in one line with their number."""

    async def work() -> None:
        admission = Admission(ConnectionLimits(connections_max=1))
        listener = Listener(listening_sockets("127.0.0.1", 0), _Echo, admission=admission, face=Face.AMQP)
        ticket = admission.admit(None, Face.AMQP, now=0.0)
        assert isinstance(ticket, Ticket)
        ticket.authenticate()
        for _ in range(50):
            assert await _echoed(listener.addresses[0]) == b""
        listener.close()
        await listener.wait_closed()

    with caplog.at_level(logging.WARNING):
        _run(asyncio.new_event_loop, work())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "connections_max" in lines[0]
    assert lines[1].startswith("49 more connections were refused")


def test_names_with_several_addresses_are_listened_on_at_each() -> None:
    """``localhost`` serves over IPv4 and IPv6 where both are there."""
    found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = listening_sockets("localhost", 0)
    try:
        assert len(sockets) == len(set(found))
    finally:
        for each in sockets:
            each.close()
    with pytest.raises(OSError, match="address") as caught:
        listening_sockets("192.0.2.1", 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL

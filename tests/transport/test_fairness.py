"""Connections of one event loop on real sockets: a flood on one of them leaves the loop to the others.

The service's clock moves by a fixed step each time it is read, so that what is done between two passes of the
event loop does not depend on the machine.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from tests.transport.test_driver import Recorder, Service, _tls_contexts

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.errors import ResourceLimitError
from tidegate.amqp.events import (
    ConnectionFailed,
    ConnectionOpened,
    CreditGranted,
    LinkAttached,
    LinkAttaching,
)
from tidegate.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from tidegate.amqp.limits import SLICE_COST, PeerLimits
from tidegate.amqp.link import SenderLink
from tidegate.amqp.performatives import (
    ROLE_SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    encode_performative,
)
from tidegate.amqp.session import Session
from tidegate.amqp.transfers import TAG_OF_4, Run, batch_front, batch_head, batch_tail
from tidegate.transport.clock import SystemClock
from tidegate.transport.driver import STRANGER_PASS_BYTES, AmqpDriver, AmqpServer, connect_amqp
from tidegate.transport.turns import PASS_S, SLICE_S

STEP_S = 0.0001
PIECES_MAX = int(2 * (PASS_S + 2 * SLICE_S) / STEP_S)
"""Pieces of work in one pass of the event loop: each reads the clock once at least."""


FLOODERS = 10


class StepClock:
    """Moves by STEP_S each time that it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """See ``Clock``."""
        self.now += STEP_S
        return self.now

    def now_utc(self) -> datetime:
        """See ``Clock``."""
        return datetime(2026, 1, 1, tzinfo=UTC)


class Passes:
    """Counts the passes of the event loop, and the most that was counted in one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.in_pass = 0
        self.most = 0
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self.most = max(self.most, self.in_pass)
        self.in_pass = 0
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        """Count no more."""
        self._handle.cancel()


def _frame(performative: Performative, payload: bytes = b"") -> bytes:
    return encode_frame(0, encode_performative(performative) + payload)


def _opening() -> bytes:
    """A client that pipelines its way to a link on which it sends."""
    begin = Begin(next_outgoing_id=1, incoming_window=100_000, outgoing_window=100, handle_max=20)
    attach = Attach("flood", 0, ROLE_SENDER, 2, 0, Source("here"), Target("there"), initial_delivery_count=0)
    return AMQP_HEADER.encode() + _frame(Open("flood")) + _frame(begin) + _frame(attach)


def _flows() -> bytes:
    flow = Flow(next_incoming_id=1, incoming_window=100_000, next_outgoing_id=1, outgoing_window=100)
    return _frame(flow) * 60_000


def _sends() -> bytes:
    front, tail = batch_front(0, 0), batch_tail(0, settled=True)
    return b"".join(batch_head(43, front, number, TAG_OF_4, number, tail) + b"x" for number in range(60_000))


async def _serve(service: Service, server_ssl: ssl.SSLContext | None, *, is_limited: bool) -> AmqpServer:
    limits = PeerLimits() if is_limited else None
    configuration = ConnectionConfiguration("service", idle_timeout_s=0.0, stranger_limits=limits)
    server = AmqpServer(configuration, clock=StepClock(), on_connection=service)
    await server.listen("127.0.0.1", 0, ssl=server_ssl)
    return server


async def _sender(server: AmqpServer, client_ssl: ssl.SSLContext | None) -> tuple[AmqpDriver, SenderLink]:
    recorder = Recorder()
    driver = await connect_amqp(
        "127.0.0.1",
        server.port,
        ssl=client_ssl,
        configuration=ConnectionConfiguration("quiet", sasl_mechanism="ANONYMOUS"),
        clock=SystemClock(),
        on_event=recorder,
    )
    link = driver.connection.begin_session().attach_sender("quiet", target="hub")
    driver.flush()
    await recorder.until(lambda: recorder.has(LinkAttached) and recorder.has(CreditGranted))
    return driver, link


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", ["flows", "sends"])
@pytest.mark.slow
async def test_a_flood_leaves_the_loop_to_others(
    kind: str, is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: megabytes of some peers are worked off a few hundred frames, or runs of messages,
    per pass of the loop, and who sends a message meanwhile has it delivered within some passes."""
    server_ssl, client_ssl = _tls_contexts(tmp_path) if is_tls else (None, None)
    service = Service()
    server = await _serve(service, server_ssl, is_limited=False)
    driver, link = await _sender(server, client_ssl)
    passes = Passes()
    receive_flow, receive_runs = Session._receive_flow, Session.receive_runs

    def counted_flow(session: Session, flow: Flow) -> None:
        passes.in_pass += 1
        receive_flow(session, flow)

    def counted_runs(session: Session, runs: list[Run]) -> None:
        passes.in_pass += sum(len(deliveries) for _, deliveries in runs)
        receive_runs(session, runs)

    monkeypatch.setattr(Session, "_receive_flow", counted_flow)
    monkeypatch.setattr(Session, "receive_runs", counted_runs)
    writers = []
    for _ in range(FLOODERS):  # of one alone, no more is read in a pass than a pass may take
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client_ssl)
        writers.append(writer)
        writer.write(_opening())
        await reader.readexactly(8)
    for writer in writers:
        writer.write(_flows() if kind == "flows" else _sends())
    seen = 0
    for number in range(5):
        before, text = passes.count, b"quiet %d" % number
        link.send(text, settled=True)
        driver.flush()
        await service.recorder.until(partial(service.recorder.payloads.__contains__, text))
        seen = max(seen, passes.count - before)
    for writer in writers:
        await writer.drain()
    assert seen <= 20
    assert 0 < passes.most <= PIECES_MAX * (16 if kind == "flows" else SLICE_COST)
    passes.stop()
    for writer in writers:
        writer.transport.abort()
    await driver.close()
    await server.close(timeout_s=1)
    assert server.drivers == set()


@pytest.mark.slow
async def test_readers_leave_half_of_the_loop_to_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects who sends beside many that receive: what is sent to these has turns of its own."""
    service = Service()
    server = await _serve(service, None, is_limited=False)
    receive_flow, flows, turns, is_over = Session._receive_flow, 0, 0, False

    def counted_flow(session: Session, flow: Flow) -> None:
        nonlocal flows
        flows += 1
        receive_flow(session, flow)

    def take_turn(driver: AmqpDriver) -> bool:
        nonlocal turns
        turns += 1
        for _ in range(int(SLICE_S / STEP_S)):
            driver.clock.monotonic()
        return not is_over

    monkeypatch.setattr(Session, "_receive_flow", counted_flow)
    writers = []
    for number in range(21):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        writer.write(_opening())
        await reader.readexactly(8)
        if number:
            service.drivers[number].on_turn = partial(take_turn, service.drivers[number])
            service.drivers[number].request_turn()
    writers[0].write(_flows())
    async with asyncio.timeout(60):
        while flows < 60_000:  # noqa: ASYNC110
            await asyncio.sleep(0)
    is_over = True
    assert turns < 3000  # 940 of them take as long as the flood; 7,300, where each reader has a share of it
    for writer in writers:
        writer.transport.abort()
    await server.close(timeout_s=1)


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_who_has_no_token_is_read_little_at_a_time(
    is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects everybody from anybody: 16 KB per pass of the event loop, until the peer is admitted."""
    server_ssl, client_ssl = _tls_contexts(tmp_path) if is_tls else (None, None)
    service = Service()
    server = await _serve(service, server_ssl, is_limited=True)
    passes = Passes()
    data_received = AmqpDriver.data_received

    def counted(driver: AmqpDriver, data: memoryview) -> None:
        if driver.connection.role.value == "server":
            passes.in_pass += len(data)
        data_received(driver, data)

    monkeypatch.setattr(AmqpDriver, "data_received", counted)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client_ssl)
    writer.write(_opening())
    await reader.readexactly(8)
    for is_admitted in (False, True):
        if is_admitted:
            service.drivers[0].admit_peer()
        writer.write(_sends())
        service.recorder.payloads.clear()
        await service.recorder.until(lambda: len(service.recorder.payloads) == 60_000)
        assert (passes.most > STRANGER_PASS_BYTES) is is_admitted
        passes.most = 0
    passes.stop()
    writer.transport.abort()
    await server.close(timeout_s=1)


async def test_a_flood_of_heartbeats_is_cut_off() -> None:
    """Protects neighbours: who sends nothing but empty frames, thousands at a time, is closed."""
    service = Service()
    server = await _serve(service, None, is_limited=False)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_opening() + EMPTY_FRAME * 500_000)
    await service.recorder.until(lambda: service.recorder.has(ConnectionFailed))
    (failed,) = (event for event in service.recorder.events if isinstance(event, ConnectionFailed))
    assert isinstance(failed.error, ResourceLimitError)
    assert service.recorder.has(ConnectionOpened)
    writer.transport.abort()
    await server.close(timeout_s=1)
    assert server.drivers == set()


@pytest.mark.slow
async def test_what_came_before_the_end_is_worked_off() -> None:
    """Protects those who send and leave: a burst counts to its last message."""
    service = Service()
    server = await _serve(service, None, is_limited=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_opening())
    await service.recorder.until(lambda: service.recorder.has(LinkAttaching))
    writer.write(_sends())
    writer.write_eof()
    await reader.read()
    await service.recorder.until(lambda: service.recorder.has(ConnectionFailed))
    assert len(service.recorder.payloads) == 60_000
    writer.close()
    await server.close(timeout_s=1)
    assert server.drivers == set()


@pytest.mark.slow
async def test_a_flood_cannot_prolong_a_stop() -> None:
    """Protects who stops the service: who floods on and never answers is cut off in time."""
    service = Service()
    server = await _serve(service, None, is_limited=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_opening())
    await reader.readexactly(8)
    for _ in range(10):
        writer.write(_flows())
    await service.recorder.until(lambda: service.recorder.has(LinkAttaching))
    async with asyncio.timeout(20):
        await server.close(timeout_s=0.2)
    assert server.drivers == set()
    writer.transport.abort()

"""The AMQP driver on real loopback sockets: TCP, TLS, back-pressure, cut lines, closing."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.clocks import SetClock

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import (
    ConnectionFailed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkAttaching,
)
from tidegate.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from tidegate.amqp.limits import HEARTBEAT_S_MIN, IDLE_GRACE
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.performatives import Open, encode_performative
from tidegate.amqp.transfers import Payload
from tidegate.model.errors import BrokenError, ClosedError, OperationTimeoutError
from tidegate.transport.clock import SystemClock
from tidegate.transport.driver import (
    TURN_BYTES_MAX,
    AmqpDriver,
    AmqpServer,
    InternalFailureError,
    connect_amqp,
)
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.streams import ByteStream, SocketStream, connect_stream
from tidegate.transport.turns import PASS_S, Share, Turns

CLIENT = ConnectionConfiguration("client", sasl_mechanism="ANONYMOUS")


class Recorder:
    """Collects events, and lets a test wait for what it looks for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.payloads: list[bytes] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, DeliveriesReceived):
            self.payloads += [delivery.payload for delivery in event.deliveries]
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; it is looked at after each event."""
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def has(self, kind: type[Event]) -> bool:
        """Whether such an event came."""
        return any(isinstance(event, kind) for event in self.events)


class Service:
    """Accepts every link, gives receivers credit, keeps what it gets."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.drivers: list[AmqpDriver] = []
        self.senders: list[SenderLink] = []
        self.fail_on: type[Event] | None = None

    def __call__(self, driver: AmqpDriver) -> Callable[[Event], None]:
        self.drivers.append(driver)
        return self.handle

    def handle(self, event: Event) -> None:
        """One event of any connection."""
        if self.fail_on is not None and isinstance(event, self.fail_on):
            raise ValueError("a mistake of the application")
        if isinstance(event, LinkAttaching):
            event.link.accept()
            if isinstance(event.link, ReceiverLink):
                event.link.grant_credit(1_000_000)
        elif isinstance(event, CreditGranted) and event.link not in self.senders:
            self.senders.append(event.link)
        self.recorder(event)


@asynccontextmanager
async def serving(service: Service, server_ssl: ssl.SSLContext | None = None) -> AsyncIterator[AmqpServer]:
    """The service on a free port."""
    server = AmqpServer(ConnectionConfiguration("service"), clock=SystemClock(), on_connection=service)
    await server.listen("127.0.0.1", 0, ssl=server_ssl)
    try:
        yield server
    finally:
        await server.close(timeout_s=1)
        assert server.drivers == set()


async def connecting(
    server: AmqpServer, recorder: Recorder, client_ssl: ssl.SSLContext | None = None
) -> AmqpDriver:
    """A client of it."""
    return await connect_amqp(
        "127.0.0.1", server.port, ssl=client_ssl, configuration=CLIENT, clock=SystemClock(), on_event=recorder
    )


def _tls_contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Server's and client's context around a certificate for 127.0.0.1 that is made here."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=40_000))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = directory / "both.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(pem)
    return server_context, ssl.create_default_context(cafile=str(pem))


@pytest.mark.parametrize("is_tls", [False, True])
async def test_messages_of_all_sizes_cross_real_sockets(is_tls: bool, tmp_path: Path) -> None:
    """Protects the whole path, TCP and TLS: small ones, and some of several frames and reads."""
    server_ssl, client_ssl = _tls_contexts(tmp_path) if is_tls else (None, None)
    service, recorder = Service(), Recorder()
    payloads = [b"%d" % number + bytes(number % 3 * 150_000) for number in range(40)]
    async with serving(service, server_ssl) as server:
        driver = await connecting(server, recorder, client_ssl)
        link = driver.connection.begin_session().attach_sender("out", target="hub")
        driver.flush()
        await recorder.until(lambda: link.sendable)
        for payload in payloads:
            link.send(payload, settled=True)
            driver.flush()
        await service.recorder.until(lambda: len(service.recorder.payloads) == len(payloads))
        assert service.recorder.payloads == payloads
        await driver.close()
        assert isinstance(driver.stop_reason, ClosedError)


async def test_an_untrusted_certificate_is_said_to_be_one(tmp_path: Path) -> None:
    """Protects users of self-made certificates: the error names the cause and the way out."""
    server_ssl, _ = _tls_contexts(tmp_path)
    async with serving(Service(), server_ssl) as server:
        with pytest.raises(BrokenError, match="CA file"):
            await connecting(server, Recorder(), ssl.create_default_context())


async def test_a_peer_that_does_not_read_holds_the_sender_back() -> None:
    """Protects memory: the driver says when the stream is full, and wakes its owner when it is not."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        driver = await connecting(server, recorder)
        receiver = driver.connection.begin_session().attach_receiver("in", source="hub")
        receiver.grant_credit(1000)
        driver.flush()
        await service.recorder.until(lambda: service.senders)
        driver.pause_reading()
        (sender,) = service.senders
        (service_driver,) = service.drivers
        woken = asyncio.Event()
        service_driver.on_writable = woken.set
        count = 0
        while service_driver.is_writable:
            sender.send(bytes(1_000_000), settled=True)
            service_driver.flush()
            count += 1
            assert count < 100, "nothing holds the sender back"
        assert not woken.is_set()
        driver.resume_reading()
        async with asyncio.timeout(60):
            await service_driver.wait_writable()
            await woken.wait()
        await recorder.until(lambda: len(recorder.payloads) == count)
        await driver.close()


async def test_a_cut_line_is_told_to_everyone_with_the_first_reason() -> None:
    """Protects waiters: they get the reason why the connection broke, on both sides, once."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        driver = await connecting(server, recorder)
        await recorder.until(lambda: recorder.has(ConnectionOpened))
        stream = driver._stream  # the line, to cut it
        assert stream is not None
        stream.abort()
        async with asyncio.timeout(60):
            await driver.wait_closed()
            await service.drivers[0].wait_closed()
        for each in (driver, service.drivers[0]):
            assert isinstance(each.stop_reason, BrokenError)
            with pytest.raises(BrokenError):
                await each.wait_writable()
        assert sum(isinstance(event, ConnectionFailed) for event in recorder.events) == 1
        await driver.close()  # does nothing any more


async def test_a_mistake_in_a_handler_ends_only_its_connection() -> None:
    """Protects the other connections of a service from a handler that raises on one of them."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        well = Recorder()
        await connecting(server, well)
        await well.until(lambda: well.has(ConnectionOpened))
        service.fail_on = LinkAttaching
        driver = await connecting(server, recorder)
        driver.connection.begin_session().attach_sender("out", target="hub")
        driver.flush()
        async with asyncio.timeout(60):
            await driver.wait_closed()
        assert "amqp:internal-error" in str(driver.stop_reason)
        assert isinstance(service.drivers[1].stop_reason, InternalFailureError)
        assert service.drivers[0].stop_reason is None


async def test_the_log_holds_nothing_of_an_event_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Protects tokens, which come in deliveries, and the log from as much as a client cares to send."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        service.fail_on = LinkAttaching
        configuration = ConnectionConfiguration("c" * 400, sasl_mechanism="ANONYMOUS")
        driver = await connect_amqp(
            "127.0.0.1",
            server.port,
            ssl=None,
            configuration=configuration,
            clock=SystemClock(),
            on_event=recorder,
        )
        driver.connection.begin_session().attach_sender("a-secret", target="a-secret")
        driver.flush()
        async with asyncio.timeout(60):
            await driver.wait_closed()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "handling LinkAttaching failed" in record.getMessage()
    assert "a-secret" not in caplog.text
    assert len(record.getMessage()) < 300


@pytest.mark.slow
async def test_idle_connections_are_kept_alive_by_the_timer() -> None:
    """Protects quiet connections: empty frames go out before the peer's idle time-out ends."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        impatient = ConnectionConfiguration("client", sasl_mechanism="ANONYMOUS", idle_timeout_s=1.6)
        driver = await connect_amqp(
            "127.0.0.1",
            server.port,
            ssl=None,
            configuration=impatient,
            clock=SystemClock(),
            on_event=recorder,
        )
        connection = driver.connection
        await recorder.until(lambda: recorder.has(ConnectionOpened))
        opened_at = connection._silence.received_at
        async with asyncio.timeout(30):
            # Something is heard later than the time-out allows it where nothing has been sent.
            late = opened_at + 1.6 * IDLE_GRACE
            while driver.stop_reason is None and connection._silence.received_at < late:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert driver.stop_reason is None
        await driver.close()


@pytest.mark.parametrize("size", [100, 10_000])
async def test_what_many_links_send_in_a_turn_shares_writes(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects receivers of few events, whose deliveries share a write whatever link each is on, and memory:
    of larger ones, no more than TURN_BYTES_MAX and a piece of work are left unwritten."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        client = await connecting(server, recorder)
        session = client.connection.begin_session()
        for number in range(60):
            session.attach_receiver(f"link {number}", source="hub").grant_credit(1)
        client.flush()
        await service.recorder.until(lambda: len(service.senders) == 60)
        (driver,) = service.drivers
        left, written = list(service.senders), list[int]()

        def take_turn() -> bool:
            left.pop().send(bytes(size), settled=True)
            return bool(left)

        stream = driver._stream
        assert stream is not None
        write = stream.write

        def counted(buffers: Sequence[Payload]) -> None:
            written.append(sum(map(len, buffers)))
            write(buffers)

        monkeypatch.setattr(stream, "write", counted)
        monkeypatch.setattr(server.turns, "monotonic", lambda: 0.0)  # a turn has time for all
        monkeypatch.setattr(server.turns.for_output, "monotonic", lambda: 0.0)
        driver.on_turn = take_turn
        driver.request_turn()
        await recorder.until(lambda: len(recorder.payloads) == 60)
        assert max(written) < TURN_BYTES_MAX + 2 * size
        assert len(written) == (1 if size == 100 else 9)
        await client.close()


class Written(ByteStream):
    """A stream whose peer reads everything."""

    def __init__(self) -> None:
        super().__init__(None)
        self.written: list[Payload] = []

    def write(self, buffers: Sequence[Payload]) -> None:
        """It is read at once."""
        self.written += buffers

    def close(self) -> None:
        """The end."""


class HalfAFrame(ByteStream):
    """A stream that holds bytes of a frame that does not end."""

    held_bytes = 100_000
    is_aborted = False

    def write(self, buffers: Sequence[Payload]) -> None:
        """Nothing is sent."""

    def close(self) -> None:
        """The peer does not answer."""

    def abort(self) -> None:
        """It is gone."""
        self.is_aborted = True


class _Unsent(asyncio.Transport):
    """A transport that keeps writes whole, as uvloop's, and sends as much as a test says."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self.unsent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        """Of what was written, the bytes that are not sent."""
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """A test pauses and resumes."""

    def is_closing(self) -> bool:
        """It stays open."""
        return False


async def test_a_write_counts_until_all_of_it_is_sent() -> None:
    """Protects memory: uvloop keeps a write until its last byte is sent. 200 connections, each with 18 KB of
    a megabyte unsent, held 260 MB of which 4 MB were counted."""
    transport = _Unsent()
    connection = Connection(ConnectionConfiguration("service"), role=Role.SERVER, now=0.0)
    driver = AmqpDriver(connection, clock=SystemClock(), on_event=lambda event: None)
    stream = SocketStream(lambda _: driver)
    stream.connection_made(transport)
    stream.write([bytes(600_000), bytes(400_000)])
    transport.unsent = 10
    assert stream.held_bytes == 1_000_000
    stream.write([bytes(90)])
    assert stream.held_bytes == 1_000_000
    stream.resume_writing()  # uvloop says so when a write is done
    assert stream.held_bytes == 100
    transport.unsent = 60
    assert stream.held_bytes == 100
    transport.unsent = 0
    assert stream.held_bytes == 0
    stream.write([bytes(600_000)])
    transport.unsent = 0
    stream.write([bytes(20)])
    assert stream.held_bytes == 20


async def test_empty_frames_are_sent_in_turns() -> None:
    """Protects neighbours: a client chooses how often an empty frame is due, on thousands of connections."""
    passes: list[Callable[[], None]] = []
    now = [0.0]
    turns = Turns(monotonic=lambda: now[0], call_soon=passes.append)
    clock = SetClock()
    connection = Connection(ConnectionConfiguration("service"), role=Role.SERVER, now=clock.monotonic())
    driver = AmqpDriver(connection, clock=clock, on_event=lambda event: None, turns=turns)
    stream = Written()
    driver.start(stream)
    opening = encode_frame(0, encode_performative(Open("client", idle_time_out=1)))
    driver.data_received(memoryview(AMQP_HEADER.encode() + opening))
    stream.written.clear()

    def work() -> bool:
        now[0] += PASS_S
        return False

    Share(turns.for_arrivals, work).serve()  # another connection uses this pass up
    clock.advance(HEARTBEAT_S_MIN)
    driver._timer_fired()
    assert not stream.written
    while passes and not stream.written:
        passes.pop(0)()
    assert stream.written == [EMPTY_FRAME]
    driver.stream_ended(None)


async def test_what_a_stream_holds_is_counted_and_freed() -> None:
    """Protects memory: a WebSocket's frame that never ends counts, and ends its connection at the limit."""
    budget = MemoryBudget(50_000)
    connection = Connection(ConnectionConfiguration("service"), role=Role.SERVER, now=0.0)
    driver = AmqpDriver(connection, clock=SystemClock(), on_event=lambda event: None, budget=budget)
    stream = HalfAFrame(None)
    stream.held_bytes = 0
    stream._peer_name = "192.0.2.1:4711"
    driver.start(stream)
    assert {account.address for account in budget._accounts} == {site_at("192.0.2.1")}
    stream.held_bytes = 100_000
    driver.held_changed()
    assert budget.statistics().used_bytes == 100_000
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stream.is_aborted
    assert budget.statistics().used_bytes == 0
    driver.stream_ended(None)


async def test_deadlines_are_not_looked_up_for_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the cost of small batches: once both sides have opened, the timer that is set comes first."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        client = await connecting(server, recorder)
        link = client.connection.begin_session().attach_sender("out", target="hub")
        client.flush()
        await recorder.until(lambda: recorder.has(CreditGranted))
        looked, next_deadline = list[Connection](), Connection.next_deadline

        def counted(connection: Connection) -> float | None:
            looked.append(connection)
            return next_deadline(connection)

        monkeypatch.setattr(Connection, "next_deadline", counted)
        for number in range(10):
            link.send(b"%d" % number, settled=True)
            client.flush()
            await service.recorder.until(partial(service.recorder.payloads.__contains__, b"%d" % number))
        assert looked == []
        await client.close()


async def test_closing_the_service_tells_its_clients_why() -> None:
    """Protects clients: they learn that the service stops, rather than find the line dead."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        driver = await connecting(server, recorder)
        await recorder.until(lambda: recorder.has(ConnectionOpened))
        await server.close()
        async with asyncio.timeout(60):
            await driver.wait_closed()
        assert "amqp:connection:forced" in str(driver.stop_reason)


async def test_a_cancelled_close_still_ends() -> None:
    """Protects against a stream that stays open because nobody waited for its end."""
    service, recorder = Service(), Recorder()
    async with serving(service) as server:
        driver = await connecting(server, recorder)
        await recorder.until(lambda: recorder.has(ConnectionOpened))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(driver.close(), 0)
        driver.start_closing()
        async with asyncio.timeout(60):
            await driver.wait_closed()


async def test_no_service_and_a_silent_one_are_told_apart() -> None:
    """Protects the first thing that goes wrong for a user: nothing listens, or nothing answers."""
    with pytest.raises(BrokenError, match="Is the service running"):
        await connect_stream("127.0.0.1", 1, ssl=None, on_connected=_unreachable)
    silent = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises((BrokenError, OperationTimeoutError)):
            await connect_stream(
                "127.0.0.1", port, ssl=ssl.create_default_context(), on_connected=_unreachable, timeout_s=5
            )


def _unreachable(stream: object) -> AmqpDriver:
    raise AssertionError("no stream should have come up")

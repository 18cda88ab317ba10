"""Over real sockets: what strangers, slow readers and senders of halves can hold, and how long."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    DeliveriesSettled,
    Event,
    LinkAttached,
)
from tidegate.amqp.frames import encode_frame
from tidegate.amqp.link import SenderLink
from tidegate.amqp.message import Message, Properties, encode_message
from tidegate.amqp.performatives import Flow, Transfer, encode_performative
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.gateway.http.app import HttpGateway
from tidegate.gateway.http.origins import AllowedOrigins
from tidegate.model.connection_string import ConnectionString
from tidegate.model.sas import make_sas_token
from tidegate.server.opening import open_broker
from tidegate.testing.hub import HubProcess, HubService
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import TrustedProxies
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, wrap_event
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request

_WAIT_S = 30.0
_MEMORY_MAX_BYTES = 16 * 1024 * 1024
_BATCH = wrap_event(encode_message(Message(data=(bytes(1000),)))) * 500


class Client:
    """A blocking client, as little as there can be: a test holds hundreds."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(_WAIT_S)
        self.socket.connect(("127.0.0.1", port))
        configuration = ConnectionConfiguration("c", hostname="localhost", sasl_mechanism="ANONYMOUS")
        self.connection = Connection(configuration, role=Role.CLIENT, now=0.0)
        self.connection.open()
        self.session = self.connection.begin_session()

    def wait(self, is_met: Callable[[Event], bool]) -> None:
        """Until an event is met; an OSError or EOFError where the service ends the connection."""
        while True:
            self.flush()
            while (event := self.connection.next_event()) is not None:
                if is_met(event):
                    self.flush()
                    return
            data = self.socket.recv(65536)
            if not data:
                raise EOFError("The service ended the connection.")
            self.connection.receive_data(data, now=0.0)

    def flush(self) -> None:
        """Write what the engine has to send."""
        if self.connection.has_data_to_send:
            self.socket.sendall(b"".join(self.connection.data_to_send()))

    def wait_end(self) -> float:
        """Read until the service ends the connection; returns the seconds that took."""
        began = time.monotonic()
        with suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        return time.monotonic() - began

    def authorize(self, connection_string: str, hub: str) -> None:
        """Put a token for the hub."""
        requests = self.session.attach_sender("requests", target="$cbs")
        responses = self.session.attach_receiver("responses", source="$cbs", target="c")
        responses.grant_credit(1)
        self.wait(lambda event: isinstance(event, CreditGranted))
        parsed = ConnectionString.parse(connection_string)
        assert parsed.shared_access_key_name is not None
        assert parsed.shared_access_key is not None
        audience = f"sb://localhost/{hub}"
        token = make_sas_token(
            audience=audience,
            key_name=parsed.shared_access_key_name,
            key=parsed.shared_access_key,
            expiry=4_000_000_000,
        )
        message = put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))
        properties = Properties(message_id="1")
        requests.send(
            encode_message(
                Message(
                    properties=properties,
                    application_properties=message.application_properties,
                    value=message.value,
                )
            )
        )
        self.wait(lambda event: isinstance(event, DeliveriesReceived))

    def attach_sender(self, target: str, name: str = "out") -> SenderLink:
        """A sender that has credit."""
        link = self.session.attach_sender(name, target=target)
        self.wait(lambda event: isinstance(event, CreditGranted) and event.link is link)
        return link

    def send_half(self, link: SenderLink, size: int, *, frame_bytes: int = 60_000) -> None:
        """The beginning of a message that never ends."""
        frames = []
        for start in range(0, size, frame_bytes):
            transfer = Transfer(
                handle=link.handle,
                delivery_id=0 if start == 0 else None,
                delivery_tag=b"t" if start == 0 else None,
                message_format=0,
                more=True,
            )
            body = encode_performative(transfer) + bytes(min(frame_bytes, size - start))
            frames.append(encode_frame(self.session.local_channel, body))
        self.session.next_outgoing_id += len(frames)
        self.socket.sendall(b"".join(frames))


def _port(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


def _wait_served(port: int, key: str, hub: str) -> None:
    """Until a newcomer is served, as it is once those who held most have been ended."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        client = Client(port)
        try:
            client.authorize(key, hub)
        except (EOFError, OSError):
            assert time.monotonic() < deadline, "newcomers are refused still"
            time.sleep(0.1)
        else:
            return
        finally:
            client.socket.close()


@pytest.fixture
def small_service(tmp_path: Path) -> Iterator[HubService]:
    """A service with little memory for its clients, and little time for those without a token."""
    config = tmp_path / "service.toml"
    config.write_text(f"authentication_timeout_s = 1.0\nmemory_max_bytes = {_MEMORY_MAX_BYTES}\n")
    with HubService(tmp_path / "data", is_tls_used=True, is_http_used=True, config=config) as service:
        yield service


def _metric(service: HubService, name: str) -> float:
    with urllib.request.urlopen(f"http://{service.ready.http}/metrics", timeout=_WAIT_S) as response:
        text = response.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith(f"tidegate_{name} "))
    return float(line.split()[1])


@pytest.mark.slow
def test_who_does_not_authenticate_is_let_go(small_service: HubService) -> None:
    """Whatever a stranger does or leaves undone, its connection ends within the one setting for it: nothing
    sent, no TLS handshake, TLS and nothing more, AMQP opened without a token, the same in a WebSocket."""
    ready = small_service.ready
    plain, secure = _port(ready.amqp), _port(ready.amqps)
    silent, handshaken, opened = Client(plain), Client(secure), Client(plain)
    context = ssl.create_default_context(cafile=ready.ca_file)
    without_handshake = Client(secure)
    handshaken.socket = context.wrap_socket(handshaken.socket, server_hostname="localhost")
    opened.wait(lambda event: isinstance(event, ConnectionOpened))
    upgraded = Client(_port(ready.http))
    upgraded.socket.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    for client in (silent, without_handshake, handshaken, opened, upgraded):
        assert client.wait_end() < _WAIT_S
        client.socket.close()


@pytest.mark.slow
def test_slow_readers_hold_no_more_than_may_be_held(small_service: HubService) -> None:
    """Receivers that grant credit and read nothing are ended before they hold more than the setting; a client
    that reads is served meanwhile."""
    hub = small_service.create_hub(partition_count=20)
    port = _port(small_service.ready.amqp)
    key = small_service.hub_connection_string(hub)
    with ExitStack() as stack:
        writer = Client(port)
        stack.callback(writer.socket.close)
        writer.authorize(key, hub)
        for partition in range(20):
            link = writer.attach_sender(f"{hub}/Partitions/{partition}", f"out-{partition}")
            settled = 0
            for _ in range(16):
                link.send(_BATCH, message_format=BATCH_MESSAGE_FORMAT)

            def is_all_settled(event: Event) -> bool:
                nonlocal settled
                if isinstance(event, DeliveriesSettled):
                    settled += event.last_delivery_id - event.first_delivery_id + 1
                return settled == 16

            writer.wait(is_all_settled)
        ended = 0
        for number in range(100):
            reader = Client(port, receive_buffer_bytes=4096)
            stack.callback(reader.socket.close)
            try:
                reader.authorize(key, hub)
                source = f"{hub}/ConsumerGroups/$Default/Partitions/{number // 5}"
                receiver = reader.session.attach_receiver("in", source=source, target="c")
                receiver.grant_credit(100_000)
                reader.wait(lambda event: isinstance(event, LinkAttached) and event.link.name == "in")
            except (EOFError, OSError):
                ended += 1
            assert _metric(small_service, "memory_held_bytes") < 1.25 * _MEMORY_MAX_BYTES
        ended += int(_metric(small_service, "memory_ended_connections_total"))
        assert ended > 0
        writer.attach_sender(hub, "still served")
        _wait_served(port, key, hub)


@pytest.mark.slow
def test_halves_of_messages_hold_no_more_than_may_be_held(small_service: HubService) -> None:
    """Messages that begin and never end are bounded per connection, and by the setting in total."""
    hub = small_service.create_hub()
    port = _port(small_service.ready.amqp)
    key = small_service.hub_connection_string(hub)
    with ExitStack() as stack:
        alone = Client(port)
        stack.callback(alone.socket.close)
        alone.authorize(key, hub)
        with suppress(OSError):
            for number in range(5):
                link = alone.attach_sender(hub, f"out-{number}")
                alone.send_half(link, 1_000_000)
        assert alone.wait_end() < _WAIT_S
        for _ in range(40):
            sender = Client(port)
            stack.callback(sender.socket.close)
            with suppress(EOFError, OSError):
                sender.authorize(key, hub)
                sender.send_half(sender.attach_sender(hub), 1_000_000)
        assert _metric(small_service, "memory_held_bytes") < 1.25 * _MEMORY_MAX_BYTES
        assert _metric(small_service, "memory_ended_connections_total") > 0
        _wait_served(port, key, hub)


async def test_publishing_is_refused_when_memory_is_exhausted(tmp_path: Path) -> None:
    """Over HTTP, too: 429 before the body is read, and served again once there is room."""
    broker = await open_broker(tmp_path, clock=SystemClock())
    await broker.create_event_hub("hub", partition_count=1)
    budget = MemoryBudget(1000)
    amqp = AmqpGateway(broker, clock=SystemClock(), unacknowledged_bytes_max=1 << 20, budget=budget)
    http = HttpGateway(
        amqp,
        is_ready=lambda: True,
        origins=AllowedOrigins.parse(()),
        proxies=TrustedProxies(),
    )
    try:
        host, port = await http.listen("127.0.0.1", 0)
        policy = broker.policies()[0]
        token = make_sas_token(
            audience=f"http://{host}:{port}/hub", key_name=policy.name, key=policy.key, expiry=4_000_000_000
        )

        async def publish() -> bytes:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(
                f"POST /hub/messages HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: {token}\r\n"
                "Content-Length: 1\r\nConnection: close\r\n\r\nx".encode()
            )
            answer = await asyncio.wait_for(reader.read(), _WAIT_S)
            writer.close()
            return answer[:12]

        budget.add_queued(1000)
        assert await publish() == b"HTTP/1.1 429"
        budget.add_queued(-1000)
        assert await publish() == b"HTTP/1.1 201"
    finally:
        await amqp.close()
        await http.close()
        await broker.close()


def _send_large_frame(client: Client) -> None:
    client.send_half(client.attach_sender("$cbs"), 17_000)


def _send_halves(client: Client) -> None:
    for number in range(5):
        client.send_half(client.attach_sender("$cbs", f"out-{number}"), 15_000)


def _attach_with_many_words(client: Client) -> None:
    client.session.attach_sender("out", target="$cbs", properties={"x": "y" * 5000})


def _send_many_frames(client: Client) -> None:
    client.attach_sender("$cbs")
    flow = Flow(next_incoming_id=1, incoming_window=100, next_outgoing_id=1, outgoing_window=100)
    client.socket.sendall(encode_frame(0, encode_performative(flow)) * 400)


def _begin_many_sessions(client: Client) -> None:
    for _ in range(20):
        client.connection.begin_session()


@pytest.mark.parametrize("is_known", [False, True], ids=["stranger", "known"])
@pytest.mark.parametrize(
    ("act", "condition"),
    [
        (_send_large_frame, "amqp:connection:framing-error"),
        (_send_halves, "amqp:resource-limit-exceeded"),
        (_attach_with_many_words, "amqp:resource-limit-exceeded"),
        (_send_many_frames, "amqp:resource-limit-exceeded"),
        (_begin_many_sessions, "amqp:resource-limit-exceeded"),
    ],
)
@pytest.mark.slow
def test_the_service_has_limits_for_strangers(
    hub_service: HubService, event_hub: str, act: Callable[[Client], None], condition: str, is_known: bool
) -> None:
    """Protects everybody from anybody: what official clients never do before their token ends a connection
    without one; with one it is nothing unusual."""
    client = Client(_port(hub_service.ready.amqp))
    ended: list[str] = []

    def is_over(event: Event) -> bool:
        if isinstance(event, ConnectionClosed) and event.error is not None:
            ended.append(event.error.condition)
        return bool(ended) or (isinstance(event, CreditGranted) and event.link.name == "last")

    try:
        if is_known:
            client.authorize(hub_service.connection_string, event_hub)
        act(client)
        if is_known:
            client.connection.begin_session().attach_sender("last", target=event_hub)
        client.wait(is_over)
    except ConnectionResetError:
        ended.append(condition)  # what it was told is lost where it has sent more than was read
    finally:
        client.socket.close()
    assert ended == ([] if is_known else [condition])


def _resident_mb(process_id: int) -> float:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Rss:"))
    return int(line.split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's account of memory")
def test_strangers_hold_little() -> None:
    """200 clients without a token that hold all they can grow the service by less than 100 MB (812 MB before
    there were limits), and what they held is given back."""
    with HubProcess() as service, ExitStack() as stack:
        port = _port(service.ready.amqp)
        before = _resident_mb(service.process_id)
        for number_of_client in range(200):
            client = Client(port)
            stack.callback(client.socket.close)
            with suppress(EOFError, OSError):
                words = {"x": "y" * 3500}
                links = [
                    client.session.attach_sender(f"s{number}", target="$cbs", properties=words)
                    for number in range(13)
                ]
                client.attach_sender("$cbs", "last")
                # Some are content with what they may hold.
                for link in links if number_of_client % 4 else links[:4]:
                    client.send_half(link, 15_000)
        grown = _resident_mb(service.process_id) - before
        print(f"{grown:.1f} MB for 200 connections without a token")
        assert grown < 100

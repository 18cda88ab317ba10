"""AMQP over WebSocket: the handshake, frames however they are cut, refusals, and the end of the service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import create_connection

import pytest
from azure.eventhub import EventData
from tests.interop.support import read, target_of
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import ConnectionClosed as AmqpClosed
from tidegate.amqp.events import (
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkDetached,
)
from tidegate.amqp.message import encode_message
from tidegate.broker import Claim
from tidegate.model.sas import make_sas_token
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.websocket import MESSAGE_BYTES_MAX, STRANGER_FRAME_BYTES_MAX
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request

PATH = "/$servicebus/websocket"
WAIT_S = 60.0


def _connect(
    service: HubService, path: str = PATH, *, subprotocols: Sequence[str] = ("AMQPWSB10",)
) -> ClientConnection:
    return connect(
        f"ws://{service.ready.http}{path}",
        subprotocols=[Subprotocol(name) for name in subprotocols] or None,
        compression=None,
        open_timeout=WAIT_S,
        close_timeout=WAIT_S,
    )


Cut = Callable[[bytes], Iterable[bytes | list[bytes]]]


def _whole(data: bytes) -> list[bytes]:
    return [data]


def _receive_to_end(socket: ClientConnection) -> tuple[bytes, int]:
    """What came until the service closed, and the code that it closed with."""
    received = b""
    try:
        while True:
            message = socket.recv(WAIT_S)
            assert isinstance(message, bytes)
            received += message
    except ConnectionClosed as closed:
        return received, 0 if closed.rcvd is None else closed.rcvd.code


class AmqpClient:
    """A client's engine on a WebSocket; ``cut`` says into which messages its bytes go."""

    def __init__(
        self,
        socket: ClientConnection,
        cut: Callable[[bytes], Iterable[bytes | list[bytes]]] = lambda data: [data],
    ) -> None:
        self._socket = socket
        self._cut = cut
        self.connection = Connection(
            ConnectionConfiguration("client", sasl_mechanism="ANONYMOUS"), role=Role.CLIENT, now=0.0
        )
        self.connection.open()
        self.message_bytes: list[int] = []

    def send(self) -> None:
        """What the engine has to say. A list of pieces goes as the fragments of one message."""
        for message in self._cut(b"".join(self.connection.data_to_send())):
            self._socket.send(message)

    def wait(self, kind: type[Event]) -> Event:
        """The next event of that kind."""
        while True:
            self.send()
            while (event := self.connection.next_event()) is not None:
                if isinstance(event, kind):
                    return event
            data = self._socket.recv(WAIT_S)
            assert isinstance(data, bytes)
            self.message_bytes.append(len(data))
            self.connection.receive_data(data, now=0.0)


@pytest.mark.parametrize("path", [PATH, PATH + "/", "/%24servicebus/WebSocket/?sb-hc-action=connect"])
@pytest.mark.parametrize("subprotocol", ["AMQPWSB10", "amqp"])
def test_handshake(hub_service: HubService, path: str, subprotocol: str) -> None:
    """With a slash at the end or without, and by either name of the subprotocol, AMQP opens."""
    with _connect(hub_service, path, subprotocols=["other", subprotocol]) as socket:
        assert socket.subprotocol == subprotocol
        AmqpClient(socket).wait(ConnectionOpened)


@pytest.mark.parametrize(
    "cut",
    [
        lambda data: (data[n : n + 1] for n in range(len(data))),
        lambda data: [[data[n : n + 3] for n in range(0, len(data), 3)]] if data else [],
        lambda data: [b"", data],
    ],
    ids=["byte by byte", "fragments", "after an empty message"],
)
def test_messages_mean_nothing(hub_service: HubService, cut: Cut) -> None:
    """AMQP frames may be split over messages and fragments, and several may share one."""
    with _connect(hub_service) as socket:
        AmqpClient(socket, cut).wait(ConnectionOpened)


@pytest.mark.parametrize(
    ("path", "subprotocols", "status", "detail"),
    [
        ("/other", ["AMQPWSB10"], 404, "/$servicebus/websocket"),
        (PATH, [], 400, "AMQPWSB10"),
        (PATH, ["mqtt"], 400, "AMQPWSB10"),
    ],
)
def test_refused_handshakes(
    hub_service: HubService, path: str, subprotocols: list[str], status: int, detail: str
) -> None:
    """What is no AMQP over WebSocket is told so, in the shape of every error."""
    with pytest.raises(InvalidStatus) as refused:
        _connect(hub_service, path, subprotocols=subprotocols)
    response = refused.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/xml; charset=utf-8"
    text = response.body.decode()
    assert text.startswith(f"<Error><Code>{status}</Code><Detail>")
    assert detail in text


def test_text_is_refused(hub_service: HubService) -> None:
    """A peer that sends text is told so with the code for it, and others are served on."""
    with _connect(hub_service) as socket:
        socket.send("text")
        assert _receive_to_end(socket)[1] == 1003
    with _connect(hub_service) as socket:
        AmqpClient(socket).wait(ConnectionOpened)


def test_too_large_a_frame_is_refused(hub_service: HubService) -> None:
    """Of a peer without a token the service keeps little: a frame that is too large ends the connection."""
    with _connect(hub_service) as socket:
        with suppress(ConnectionClosed):
            socket.send(bytes(STRANGER_FRAME_BYTES_MAX + 1))
        assert _receive_to_end(socket)[1] == 1009


@pytest.mark.slow
def test_pings_of_a_peer_that_reads_nothing_are_not_answered_forever(hub_service: HubService) -> None:
    """The answers stay in memory as long as nobody reads them: the service ends such a connection."""
    assert hub_service.ready.http is not None
    host, _, port = hub_service.ready.http.rpartition(":")
    request = (
        f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    ping = b"\x89\xfd\x00\x00\x00\x00" + bytes(125)
    with create_connection((host, int(port)), timeout=WAIT_S) as peer:
        peer.sendall(request.encode())
        assert peer.recv(12) == b"HTTP/1.1 101"
        with pytest.raises(ConnectionError):
            peer.sendall(ping * 262_144)  # beyond all that sockets hold on the way
    with _connect(hub_service) as websocket:
        AmqpClient(websocket).wait(ConnectionOpened)


def test_what_is_no_amqp_is_answered_with_the_version(hub_service: HubService) -> None:
    """Bytes that are no AMQP end the WebSocket in order, after the header that says what is spoken."""
    with _connect(hub_service) as socket:
        socket.send(b"GET / HTTP/1.1\r\n\r\n")
        received, code = _receive_to_end(socket)
    assert received.startswith(b"AMQP")
    assert code == 1000


def test_stop_ends_the_connection_in_order(tmp_path: Path) -> None:
    """When the service stops, AMQP is closed with its reason, then the WebSocket, and nothing hangs."""
    service = HubService(tmp_path / "data", is_http_used=True)
    with service, _connect(service) as socket:
        client = AmqpClient(socket)
        client.wait(ConnectionOpened)
        # In a thread of its own: the service waits for the client's answer to its close.
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        closed = client.wait(AmqpClosed)  # and the engine's answer has gone out
        received, code = _receive_to_end(socket)
        stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert isinstance(closed, AmqpClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert (received, code) == (b"", 1000)


@pytest.mark.sdk
@pytest.mark.parametrize("transport", ["websocket", "websocket plain"])
def test_large_events_arrive_whole(hub_service: HubService, event_hub: str, transport: str) -> None:
    """Events of many WebSocket messages arrive unaltered, both ways, with the official SDK."""
    assert MESSAGE_BYTES_MAX < 200_000
    target = target_of(hub_service, transport)
    sizes = [10, 65_000, 70_000, 1_000_000, 5] * 3
    with target.producer(event_hub) as producer:
        for size in sizes:
            producer.send_batch([EventData(bytes([size % 251]) * size)], partition_id="0")
    events = read(target.consumer(event_hub), len(sizes))
    received = [event.body_as_str("latin-1").encode("latin-1") for event in events]
    assert received == [bytes([size % 251]) * size for size in sizes]


@pytest.mark.parametrize("is_regenerated", [False, True])
def test_links_end_with_their_policy(hub_service: HubService, is_regenerated: bool) -> None:
    """A link in a WebSocket ends when the policy that opened it goes, or its key, as over TCP."""
    hub, name = hub_service.create_hub(), f"in-websockets-{is_regenerated}"

    async def create(server: TidegateServer) -> str:
        return (await server.broker.create_policy(hub, name, [Claim.LISTEN])).key

    async def take_away(server: TidegateServer) -> None:
        if is_regenerated:
            await server.broker.regenerate_key(hub, name)
        else:
            await server.broker.delete_policy(hub, name)

    audience = f"sb://localhost/{hub}"
    token = make_sas_token(
        audience=audience, key_name=name, key=hub_service.call(create), expiry=4_000_000_000
    )
    with _connect(hub_service) as socket:
        client = AmqpClient(socket)
        session = client.connection.begin_session()
        requests = session.attach_sender("requests", target="$cbs")
        answers = session.attach_receiver("answers", source="$cbs", target="client")
        answers.grant_credit(1)
        client.wait(CreditGranted)
        requests.send(encode_message(put_token_request(PutToken(SAS_TOKEN_TYPE, audience, token))))
        client.wait(DeliveriesReceived)
        link = session.attach_receiver("events", source=f"{hub}/ConsumerGroups/$Default/Partitions/0")
        while not link.is_open:
            client.wait(LinkAttached)
        hub_service.call(take_away)
        ended = client.wait(LinkDetached)
    assert isinstance(ended, LinkDetached)
    assert ended.link is link
    assert ended.error is not None
    assert ended.error.condition == "amqp:unauthorized-access"

"""The ways into a service: a request of the matrix goes in, whether it was let through comes out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import quote

from tests.access.matrix import ALPHA, BETA, GONE, Case, Endpoint, Signer
from tests.access.support import EXPIRY, WAIT_S, RawHttp
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import (
    ConnectionFailed,
    ConnectionOpened,
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkDetached,
)
from tidegate.amqp.link import Link, SenderLink
from tidegate.amqp.message import Message, Properties, decode_message, encode_message
from tidegate.gateway.administration.operations import OPERATIONS, PREFIX
from tidegate.gateway.http.atom import ATOM_OPERATIONS
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.cbs import SAS_TOKEN_TYPE, PutToken, put_token_request
from tidegate.wire.management import ManagementRequest, Operation
from tidegate.wire.request_response import Response

REFUSED: Final = (401, 403)

MANAGE, SEND, LISTEN = (frozenset({right}) for right in ("Manage", "Send", "Listen"))
SEE = MANAGE | LISTEN
ANY = SEE | SEND


def token_of(signer: Signer, encoded: str) -> str:
    """A token with ``sr`` as it is spelled."""
    signed = hmac.new(signer.key.encode(), f"{encoded}\n{EXPIRY}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(signed), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={EXPIRY}&skn={signer.policy}"


def account_of(scope: str) -> str:
    """The storage account of a hub, or of the namespace."""
    return f"{scope}.blob" if scope else "blob"


# --- HTTP -------------------------------------------------------------------------------------------------


def publishing() -> Iterator[Endpoint]:
    """Every form of POST of every hub, in some spellings."""
    for hub in (ALPHA, BETA, GONE):
        for spelled in (hub, hub.upper(), hub.replace("a", "%61")):
            for path, names in (
                ("messages", ("messages",)),
                ("partitions/0/messages", ("partitions", "0", "messages")),
                ("publishers/dev-1/messages", ("publishers", "dev-1", "messages")),
                ("publisher/dev%202/messages", ("publishers", "dev 2", "messages")),
                ("publishers/DEV%2d1/messages", ("publishers", "dev-1", "messages")),
            ):
                yield Endpoint("POST", f"/{spelled}/{path}", (hub, *names), SEND, "x")


def administration() -> Iterator[Endpoint]:
    """Every operation of the table, of every hub; bodies are such that nothing changes."""
    for operation in OPERATIONS:
        for hub in (ALPHA, BETA, GONE) if "{hub}" in operation.path else ("",):
            path = re.sub(r"\{(?!hub)\w+\}", "nothing", operation.path).replace("{hub}", hub)
            is_capture = (operation.method, operation.path) == ("PUT", "/event-hubs/{hub}/capture")
            entity = (hub,) if hub and not is_capture else ()
            is_seen = operation.method == "GET" and not operation.path.startswith(("/audit", "/backups"))
            is_seen |= operation.operation_id in ("reportConsumer", "addDeadLetters")
            # A redrive needs Send and Listen, which only the managers of the matrix have.
            rights = SEE if is_seen else MANAGE
            body = "{" if operation.request is not None else ""
            yield Endpoint(operation.method, PREFIX + path, entity, rights, body)
    for hub in (ALPHA, BETA):
        yield Endpoint("PATCH", f"{PREFIX}/event-hubs/{hub}", (), MANAGE, '{"partition_count": 99999}')


def atom() -> Iterator[Endpoint]:
    """Every operation of the Atom administration, of every hub; bodies are such that nothing changes."""
    for operation in ATOM_OPERATIONS:
        for hub in (ALPHA, BETA, GONE) if "{hub}" in operation.path else ("",):
            for spelled in (hub, hub.upper()) if hub else ("",):
                path = re.sub(r"\{(?!hub)\w+\}", "nothing", operation.path).replace("{hub}", spelled)
                rights = SEE if operation.method == "GET" else MANAGE
                body = "<" if operation.method == "PUT" else ""
                yield Endpoint(operation.method, path, (hub,) if hub else (), rights, body)


def metrics() -> Endpoint:
    """For who is not on this machine."""
    return Endpoint("GET", "/metrics", (), SEE)


def ask_http(http: RawHttp, case: Case) -> int:
    """The status of the answer."""
    endpoint = case.endpoint
    headers = [("Host", case.host), ("Authorization", token_of(case.signer, case.encoded))]
    if endpoint.target == "/metrics":
        headers.append(("X-Forwarded-For", "203.0.113.7"))
    return http.ask(endpoint.method, endpoint.target, headers, endpoint.body.encode())[0]


# --- AMQP -------------------------------------------------------------------------------------------------


def links() -> Iterator[Endpoint]:
    """What a connection can attach to or ask for."""
    for hub in (ALPHA, BETA, GONE):
        yield Endpoint("send", hub, (hub,), SEND)
        yield Endpoint(
            "send", f"amqps://elsewhere/{hub.upper()}/Partitions/0", (hub, "partitions", "0"), SEND
        )
        yield Endpoint("send", f"{hub}/Publishers/dev-1", (hub, "publishers", "dev-1"), SEND)
        yield Endpoint("send", f"/{hub}/publishers/Dev%202", (hub, "publishers", "dev 2"), SEND)
        group = (hub, "consumergroups", "$default", "partitions", "0")
        yield Endpoint("receive", f"{hub}/ConsumerGroups/$Default/Partitions/0", group, LISTEN)
        yield Endpoint("manage", "READ_EVENT_HUB", (hub, "$management"), ANY, hub)
        yield Endpoint("manage", "listConsumerGroups", (hub, "$management"), LISTEN, hub)
        yield Endpoint("manage", "listConsumers", (hub, "$management"), LISTEN, hub)
        yield Endpoint("manage", "reportConsumer", (hub, "$management"), LISTEN, hub)
        yield Endpoint("manage", "listRevokedPublishers", (hub, "$management"), MANAGE, hub)
    yield Endpoint("manage", "listEventHubs", ("$management",), MANAGE)


class Wire(Protocol):
    """A line that carries bytes of AMQP."""

    def send(self, data: bytes) -> None:
        """Send all."""
        ...

    def receive(self) -> bytes:
        """What came."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class TcpWire:
    """AMQP as it is."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        # Small writes follow each other: without it, each waits for the acknowledgement of the one before.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """Send all."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """What came."""
        data = self._socket.recv(65536)
        assert data, "the connection ended"
        return data

    def close(self) -> None:
        """End it."""
        self._socket.close()


class WebSocketWire:
    """AMQP in a WebSocket, whose Host header may be anything."""

    def __init__(self, address: str, host: str) -> None:
        raw, _, port = address.rpartition(":")
        self._stack = ExitStack()
        opening = connect(
            f"ws://{host}/$servicebus/websocket",
            sock=socket.create_connection((raw, int(port)), timeout=WAIT_S),
            subprotocols=[Subprotocol("AMQPWSB10")],
            compression=None,
            proxy=None,
        )
        self._socket = self._stack.enter_context(opening)

    def send(self, data: bytes) -> None:
        """Send all, in one message."""
        self._socket.send(data)

    def receive(self) -> bytes:
        """What came, message by message."""
        data = self._socket.recv(WAIT_S)
        assert isinstance(data, bytes)
        return data

    def close(self) -> None:
        """End it."""
        self._stack.close()


class AmqpClient:
    """A connection of a client that does one thing after another."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection = Connection(
            ConnectionConfiguration("matrix", hostname="localhost", sasl_mechanism="ANONYMOUS"),
            role=Role.CLIENT,
            now=0.0,
        )
        self._connection.open()
        self._wait(ConnectionOpened)
        self._session = self._connection.begin_session()
        self._count = 0
        self._requests = {node: self._open_requests(node) for node in ("$cbs", "$management")}

    def put_token(self, token: str, audience: str, *, token_type: str = SAS_TOKEN_TYPE) -> int:
        """The status of the answer."""
        return self._request("$cbs", put_token_request(PutToken(token_type, audience, token)))

    def administer(self, operation_id: str, parameters: Mapping[str, str]) -> int:
        """The status of the answer to an operation of the administration, without a body."""
        return self._request("$management", AdministrationRequest(operation_id, parameters).to_message())

    def is_let_through(self, endpoint: Endpoint) -> bool:
        """Whether a link was attached, or a request was not refused."""
        if endpoint.method == "manage":
            hub = endpoint.body
            if endpoint.target in Operation.__members__:
                message = ManagementRequest(Operation[endpoint.target], hub).to_message()
                return self._request("$management", message) not in REFUSED
            parameters = {"hub": hub} if hub else {}
            if endpoint.target == "reportConsumer":
                parameters["group"] = "nothing"
            return self.administer(endpoint.target, parameters) not in REFUSED
        self._count += 1
        if endpoint.method == "send":
            link: Link = self._session.attach_sender(f"link-{self._count}", target=endpoint.target)
        else:
            link = self._session.attach_receiver(f"link-{self._count}", source=endpoint.target)
        while True:
            event = self._wait(LinkAttached, LinkDetached)
            assert isinstance(event, (LinkAttached, LinkDetached))
            if event.link is link:
                return isinstance(event, LinkAttached)

    def close(self) -> None:
        """End it."""
        self._wire.close()

    def _open_requests(self, node: str) -> SenderLink:
        sender = self._session.attach_sender(f"{node}-sender", target=node)
        receiver = self._session.attach_receiver(f"{node}-receiver", source=node, target="client")
        receiver.grant_credit(1000)
        self._wait(LinkAttached)
        self._wait(LinkAttached)
        return sender

    def _request(self, node: str, message: Message) -> int:
        self._count += 1
        sent = Message(
            properties=Properties(message_id=f"id-{self._count}"),
            application_properties=message.application_properties,
            data=message.data,
            value=message.value,
        )
        self._requests[node].send(encode_message(sent))
        event = self._wait(DeliveriesReceived)
        assert isinstance(event, DeliveriesReceived)
        return Response.from_message(decode_message(event.deliveries[0].payload)).status_code

    def _wait(self, *kinds: type[Event]) -> Event:
        """The next event of one of these kinds."""
        while True:
            data = b"".join(self._connection.data_to_send())
            if data:
                self._wire.send(data)
            while (event := self._connection.next_event()) is not None:
                assert not isinstance(event, ConnectionFailed), event.error
                if isinstance(event, kinds):
                    return event
            self._connection.receive_data(self._wire.receive(), now=0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""A client that sends exactly the bytes that a case makes, over any transport, and reads what comes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol, Self
from urllib.parse import quote

from tests.interop.raw_amqp.codec import (
    ATTACH,
    BEGIN,
    DETACH,
    FALSE,
    FLOW,
    INIT,
    MIXED,
    NULL,
    OPEN,
    OUTCOME,
    RECEIVER,
    SENDER,
    SOURCE,
    TARGET,
    TRANSFER,
    Frame,
    binary,
    described,
    frame,
    parse_frame,
    symbol,
    text,
    uint,
)

from tidegate.model.connection_string import ConnectionString

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
WAIT_S: Final = 10.0
"""Longest wait for an answer that must come."""
QUIET_S: Final = 0.3
"""How long nothing must come where nothing may."""
WINDOW: Final = 5000


class Line(Protocol):
    """A byte stream."""

    def sendall(self, data: bytes, /) -> None:
        """Send everything."""

    def recv(self, size: int, /) -> bytes:
        """Some bytes; none at the end. Raises TimeoutError."""

    def settimeout(self, seconds: float, /) -> None:
        """For ``recv``."""

    def close(self) -> None:
        """End it."""


@dataclass(slots=True)
class Given:
    """What a case runs against."""

    connect: Callable[[], Line]
    policy: str
    key: str
    full: str
    """A hub of one partition, with the events 0 to 4, bodies ``event 0`` and so on."""
    sink: str
    """A hub of two partitions to send to."""

    @classmethod
    def of(cls, connection_string: str, connect: Callable[[], Line], full: str, sink: str) -> Self:
        """With the policy of a connection string."""
        parts = ConnectionString.parse(connection_string)
        assert parts.shared_access_key_name is not None
        assert parts.shared_access_key is not None
        return cls(connect, parts.shared_access_key_name, parts.shared_access_key, full, sink)

    @property
    def partition(self) -> str:
        """The address to receive the events of ``full``."""
        return f"{self.full}/ConsumerGroups/$Default/Partitions/0"

    def signature(self, resource: str, *, key: str | None = None, seconds: int = 600) -> str:
        """A shared access signature for ``resource`` exactly as written here."""
        now = datetime.now(UTC)  # noqa: TID251 - the service's clock is real
        until, encoded = str(int(now.timestamp()) + seconds), quote(resource, safe="")
        signed = hmac.new((key or self.key).encode(), f"{encoded}\n{until}".encode(), hashlib.sha256).digest()
        sig = quote(base64.b64encode(signed), safe="")
        return f"SharedAccessSignature sr={encoded}&sig={sig}&se={until}&skn={self.policy}"


@dataclass(slots=True)
class Peer:
    """One connection."""

    given: Given
    line: Line
    buffer: bytearray = field(default_factory=bytearray)
    handles: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def raw(cls, given: Given) -> Self:
        """A connection on which nothing was said yet."""
        return cls(given, given.connect())

    @classmethod
    def anonymous(cls, given: Given) -> Self:
        """SASL is done, with no rights; the header is exchanged."""
        peer = cls.raw(given)
        assert peer.sasl("ANONYMOUS") == 0
        peer.exchange_headers()
        return peer

    @classmethod
    def opened(cls, given: Given, **fields: bytes) -> Self:
        """Open with every right, by SASL PLAIN. fields: as in ``open``."""
        peer = cls.raw(given)
        response = f"\0{given.policy}\0{given.key}".encode()
        assert peer.sasl("PLAIN", binary(response)) == 0
        peer.exchange_headers()
        peer.open(**fields)
        assert peer.read(OPEN).code == OPEN
        return peer

    @classmethod
    def begun(
        cls, given: Given, *, incoming_window: int = WINDOW, first_id: int = 0, **fields: bytes
    ) -> Self:
        """As ``opened``, with a session on channel 0."""
        peer = cls.opened(given, **fields)
        peer.begin(incoming_window=incoming_window, first_id=first_id)
        peer.read(BEGIN)
        return peer

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.line.sendall(data)

    def perform(self, code: int, *fields: bytes, channel: int = 0, payload: bytes = b"") -> None:
        """Send a performative in a frame of its own."""
        self.send(frame(channel, described(code, *fields) + payload))

    def sasl(self, mechanism: str, response: bytes = NULL) -> int:
        """Go through SASL; returns the outcome's code."""
        self.send(SASL_HEADER)
        assert self.read_bytes(8) == SASL_HEADER
        self.read()
        self.send(frame(0, described(INIT, symbol(mechanism), response), kind=1))
        return int(self.read(OUTCOME).field(0))

    def exchange_headers(self) -> None:
        """Both sides' AMQP headers."""
        self.send(AMQP_HEADER)
        assert self.read_bytes(8) == AMQP_HEADER

    def open(
        self,
        *,
        container: bytes = text("raw"),
        max_frame: bytes = uint(65536),
        channel_max: bytes = NULL,
        idle: bytes = NULL,
    ) -> None:
        """Send an open."""
        self.perform(OPEN, container, NULL, max_frame, channel_max, idle)

    def begin(
        self, *, channel: int = 0, incoming_window: int = WINDOW, first_id: int = 0, handle_max: bytes = NULL
    ) -> None:
        """Send a begin."""
        windows = (uint(first_id), uint(incoming_window), uint(WINDOW))
        self.perform(BEGIN, NULL, *windows, handle_max, channel=channel)

    def attach(
        self,
        role: bytes,
        source: bytes,
        target: bytes,
        *,
        name: str | None = None,
        handle: int | None = None,
        snd_settle: bytes = MIXED,
        count: bytes | None = None,
        properties: bytes = NULL,
        max_message: bytes = NULL,
    ) -> int:
        """Send an attach; returns its handle. count: initial-delivery-count, 0 for senders."""
        handle = next(self.handles) if handle is None else handle
        if count is None:
            count = uint(0) if role == SENDER else NULL
        fields = (text(name or f"link-{handle}"), uint(handle), role, snd_settle, NULL, source, target)
        self.perform(ATTACH, *fields, NULL, NULL, count, max_message, NULL, NULL, properties)
        return handle

    def attach_sender(self, address: str, **options: object) -> int:
        """Send the attach of a link to send on."""
        return self.attach(SENDER, described(SOURCE), target(address), **options)  # type: ignore[arg-type]

    def attach_receiver(self, address: str, filters: bytes = NULL, **options: object) -> int:
        """Send the attach of a link to receive on."""
        return self.attach(RECEIVER, source(address, filters), target("raw"), **options)  # type: ignore[arg-type]

    def grant(
        self, handle: int, credit: int, *, drain: bytes = FALSE, echo: bytes = FALSE, count: int = 0
    ) -> None:
        """Send a link's credit."""
        self.flow(uint(handle), uint(count), uint(credit), NULL, drain, echo)

    def flow(self, *link_fields: bytes, next_id: bytes = uint(1), incoming_window: int = WINDOW) -> None:
        """Send a flow; next_id: the first of the service's transfers that has not come."""
        self.perform(FLOW, next_id, uint(incoming_window), uint(0), uint(WINDOW), *link_fields)

    def transfer(
        self,
        handle: int,
        payload: bytes,
        *,
        delivery_id: int | None = 0,
        tag: bytes | None = b"t",
        message_format: int = 0,
        settled: bytes = FALSE,
        more: bytes = FALSE,
        aborted: bytes = FALSE,
    ) -> None:
        """Send a transfer; None: the field is null, as in what continues a delivery."""
        fields = (
            NULL if delivery_id is None else uint(delivery_id),
            NULL if tag is None else binary(tag),
            NULL if delivery_id is None else uint(message_format),
        )
        last = (settled, more, NULL, NULL, FALSE, aborted, FALSE)
        self.perform(TRANSFER, uint(handle), *fields, *last, payload=payload)

    # --- reading ---

    def read_bytes(self, count: int) -> bytes:
        """Exactly so many bytes; fewer at the end of the stream."""
        self.line.settimeout(WAIT_S)
        while len(self.buffer) < count:
            piece = self.line.recv(65536)
            if not piece:
                break
            self.buffer += piece
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found

    def read(self, *codes: int) -> Frame:
        """The next frame with one of ``codes`` (none: any); others are passed over, but no errors are."""
        while True:
            head = self.read_bytes(8)
            assert len(head) == 8, "the service ended the connection"
            found = parse_frame(head + self.read_bytes(int.from_bytes(head[:4], "big") - 8))
            if not codes or found.code in codes:
                return found
            assert found.code not in (OUTCOME, DETACH, 0x17, 0x18), f"instead of {codes}: {found}"

    def attached(self) -> Frame:
        """The answer to an attach that is accepted."""
        found = self.read(ATTACH)
        assert found.field(6) is not None
        assert found.field(5) is not None
        return found

    def refused(self) -> Frame:
        """The detach that follows the answer to an attach that is refused."""
        self.read(ATTACH)
        found = self.read(DETACH)
        assert found.field(1) is True
        return found

    def transfers(self, at_most: int) -> list[Frame]:
        """The transfers that come until there are so many, or nothing comes for a while."""
        found: list[Frame] = []
        while len(found) < at_most and self.is_readable():
            following = self.read()
            if following.code == TRANSFER:
                found.append(following)
        return found

    def is_readable(self) -> bool:
        """Whether something comes soon."""
        if self.buffer:
            return True
        self.line.settimeout(QUIET_S)
        try:
            piece = self.line.recv(65536)
        except TimeoutError:
            return False
        self.buffer += piece
        return bool(piece)

    def check_ended(self) -> None:
        """The service ends the stream, and sends nothing more."""
        assert self.read_bytes(1) == b""

    def check_alive(self) -> None:
        """The connection works: a session begins on channel 9."""
        self.begin(channel=9)
        while self.read(BEGIN).field(0) != 9:
            pass

    def close(self) -> None:
        """End it."""
        self.line.close()


def equal(found: object, expected: object) -> None:
    """Fail with both values, which ``assert`` tells nobody outside pytest."""
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def source(address: str | None, filters: bytes = NULL) -> bytes:
    """A source."""
    name = NULL if address is None else text(address)
    return described(SOURCE, name, *[NULL] * 6, filters)


def target(address: str | None) -> bytes:
    """A target."""
    return described(TARGET, NULL if address is None else text(address))


def connector(transport: str, port: int, ca_file: str) -> Callable[[], Line]:
    """How a case connects over ``plain``, ``tls`` or ``websocket``."""
    if transport == "plain":
        return lambda: socket.create_connection(("localhost", port), WAIT_S)
    context = ssl.create_default_context(cafile=ca_file)

    def connect_tls() -> Line:
        line = socket.create_connection(("localhost", port), WAIT_S)
        return context.wrap_socket(line, server_hostname="localhost")

    return connect_tls if transport == "tls" else lambda: _WebSocketLine(port, connect_tls())


class _WebSocketLine:
    """By hand, too (RFC 6455): a binary message per call, masked with zeros."""

    def __init__(self, port: int, line: Line) -> None:
        self._line = line
        self._input = bytearray()
        path = "/$servicebus/websocket"
        line.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
            "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n".encode()
        )
        while (end := self._input.find(b"\r\n\r\n")) < 0:
            self._fill()
        assert self._input.startswith(b"HTTP/1.1 101 "), self._input
        del self._input[: end + 4]

    def sendall(self, data: bytes) -> None:
        self._line.sendall(struct.pack(">BBQI", 0x82, 0xFF, len(data), 0) + data)

    def recv(self, size: int) -> bytes:
        """A whole message; what is not whole when the time is over is kept."""
        self._need(2)
        short = self._input[1]
        extended = {126: 2, 127: 8}.get(short, 0)
        self._need(2 + extended)
        length = int.from_bytes(self._input[2 : 2 + extended], "big") if extended else short
        self._need(2 + extended + length)
        opcode, payload = self._input[0] & 0x0F, bytes(self._input[2 + extended : 2 + extended + length])
        del self._input[: 2 + extended + length]
        assert opcode in (0, 2, 8), f"the service sent the opcode {opcode}"
        return b"" if opcode == 8 else payload

    def settimeout(self, seconds: float) -> None:
        self._line.settimeout(seconds)

    def close(self) -> None:
        self._line.close()

    def _need(self, count: int) -> None:
        while len(self._input) < count:
            self._fill()

    def _fill(self) -> None:
        piece = self._line.recv(65536)
        assert piece, "the service ended the line without a close frame"
        self._input += piece

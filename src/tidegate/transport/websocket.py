"""A ``ByteStream`` in a WebSocket: for AMQP clients behind proxies that allow only HTTPS.

The server's end, on a transport whose HTTP request asked for the upgrade. How the peer splits its bytes into
messages and fragments has no meaning; our output is split at ``MESSAGE_BYTES_MAX``.

    request -> check path, origin, subprotocol -> 101 -> binary frames both ways -> close frames -> end

Source: RFC 6455; AMQP WebSocket Binding 1.0 (OASIS) names the subprotocol ``amqp``, Event Hubs' clients
request ``AMQPWSB10`` (azure-eventhub 5.15.1, @azure/core-amqp) and its Go client ``amqp``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast
from urllib.parse import unquote

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN, SEND_EOF, Protocol
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tidegate.model.errors import RemoteProtocolError, TidegateError
from tidegate.transport.admission import Ticket
from tidegate.transport.peers import peer_name_of, site_in
from tidegate.transport.pieces import Pieces
from tidegate.transport.streams import WRITE_HIGH_BYTES, ByteStream, Payload, StreamReceiver
from tidegate.transport.turns import Share, Turns

SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")
"""The first of these that a client offers is selected."""

MESSAGE_BYTES_MAX: Final = 65_536
"""Of our output. Our choice: an AMQP frame of the service's maximum size; aiohttp's client accepts messages
of at most 4 MB."""

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of a peer's WebSocket frame, which is held in memory until it is complete (our choice)."""

STRANGER_FRAME_BYTES_MAX: Final = 64 * 1024
"""The same before the peer has authenticated (our choice: requests to $cbs take some KB)."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a peer may take to answer our close frame (our choice)."""

PIECE_BYTES_MAX: Final = 64 * 1024
FRAMES_AT_ONCE: Final = 16
"""Bytes, and frames, that are parsed before others may have a turn (our choice: a frame takes some 10 us)."""

PINGS_MAX: Final = 1000
"""Pings that are answered while the peer does not read (our choice: clients send one every few seconds). Each
answer is up to 127 bytes, which stay in memory."""

_LISTED_MAX: Final = 32
"""Commas in the headers of a handshake that are lists (our choice: clients send three at most). The library
takes 4 us for each item, in one step of the event loop."""

_LISTS: Final = ("Connection", "Upgrade", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions")

_PROTOCOL_LOG = logging.getLogger(f"{__name__}.protocol")
# The library logs the contents of frames at debug level, including tokens.
_PROTOCOL_LOG.setLevel(logging.ERROR)

_TEXT_REFUSED: Final = 1003
_GOING_AWAY: Final = 1001
_NORMAL: Final = 1000


def _length_of(header: bytes) -> int:
    """Of what follows the header of a frame, as ``Pieces`` asks for it (RFC 6455 section 5.2)."""
    code = header[1] & 0x7F
    header_bytes = 2 + {126: 2, 127: 8}.get(code, 0)
    if len(header) < header_bytes:
        return len(header) - header_bytes
    length = int.from_bytes(header[2:], "big") if code > 125 else code
    return length + (4 if header[1] & 0x80 else 0)  # the mask


def send_messages(protocol: Protocol, buffers: Sequence[Payload]) -> None:
    """Queue the bytes in messages of at most ``MESSAGE_BYTES_MAX``."""
    joined = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
    for start in range(0, len(joined), MESSAGE_BYTES_MAX):
        protocol.send_binary(joined[start : start + MESSAGE_BYTES_MAX])


class WebSocketStream(ByteStream, asyncio.Protocol):
    """The server's end of one WebSocket, from its HTTP request on."""

    def __init__(
        self,
        *,
        path: str,
        on_connected: Callable[[WebSocketStream], StreamReceiver],
        on_ended: Callable[[WebSocketStream], None],
        format_refusal: Callable[[int, str], tuple[str, str]],
        admits_origin: Callable[[str, str], bool],
        ticket: Ticket | None = None,
        turns: Turns | None = None,
        client_name: str | None = None,
    ) -> None:
        """path: the only path served, in lower case, without a trailing slash.

        client_name: ``address:port`` of the client behind a trusted proxy; None: the connection's.
        admits_origin: whether a page of this origin may open the WebSocket, given the request's Host header;
        called only if a browser sends an origin.
        on_connected: called after the handshake; may raise a TidegateError to refuse it. on_ended: called
        once, when the transport is gone. format_refusal: content type and body for an error. ticket: of the
        connection. turns: for parsing; None: parse immediately.
        """
        super().__init__(ticket)
        self._path = path
        self._on_connected = on_connected
        self._on_ended = on_ended
        self._format_refusal = format_refusal
        self._admits_origin = admits_origin
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol(name) for name in SUBPROTOCOLS],
            max_size=(None, STRANGER_FRAME_BYTES_MAX),
            logger=_PROTOCOL_LOG,
        )
        self._error: TidegateError | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._is_reading_paused = False  # by the receiver
        self._is_transport_paused = False
        self._share = Share(None if turns is None else turns.for_arrivals, self._work)
        self._unparsed = memoryview(b"")
        self._frames = Pieces(2, _length_of, units_max=FRAMES_AT_ONCE)
        self._pings_unread = 0
        """Pings received since writing was paused."""
        self._is_closing = False
        self._client_name = client_name

    def __repr__(self) -> str:
        return f"<WebSocketStream {self._peer_name} {self._protocol.state.name.lower()}>"

    # --- ByteStream ---

    @property
    def peer_name(self) -> str:
        """``address:port``, marked as a WebSocket."""
        return f"{self._peer_name} (WebSocket)"

    @property
    def held_bytes(self) -> int:
        """Those of any stream, and of an incomplete frame."""
        if self._has_ended:
            return 0
        return super().held_bytes + len(self._unparsed) + len(self._protocol.reader.buffer)

    def admit_peer(self) -> None:
        super().admit_peer()
        self._protocol.max_fragment_size = FRAME_BYTES_MAX

    def write(self, buffers: Sequence[Payload]) -> None:
        if self._is_closing or self._has_ended or self._protocol.state is not OPEN:
            return
        send_messages(self._protocol, buffers)
        self._send()

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_reading_paused = True
            self._update_transport()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._update_transport()
        if self._unparsed:
            asyncio.get_running_loop().call_soon(self._share.serve)

    def close(self) -> None:
        """Send the queue and a close frame; the stream ends with the peer's answer, or with the peer.

        Closing the transport immediately would answer the peer's close frame with a reset, and the peer might
        lose bytes that it has not read yet.
        """
        self._start_closing(_NORMAL)

    def shutdown(self) -> None:
        """The HTTP server stops; the user of the stream was notified before."""
        self._start_closing(_GOING_AWAY)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is connected; its HTTP request is the first data."""
        self._transport = cast(asyncio.Transport, transport)
        # uvicorn does so only after the answer, which may pause writing.
        self._transport.set_protocol(self)
        self._connected_at = asyncio.get_running_loop().time()
        self._peer_name = self._client_name or peer_name_of(transport)
        self._share.join(site_in(self._peer_name))

    def data_received(self, data: bytes) -> None:
        """Process bytes: the request, or whole or partial frames."""
        if self._has_ended:
            return
        # Usually nothing is left of earlier bytes: the transport is paused while there is.
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._share.serve()
        self._update_transport()

    def eof_received(self) -> bool:
        if self._receiver is not None and not self._is_closing:
            self._receiver.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_ended:
            return
        self._share.close()
        self._unparsed = memoryview(b"")
        self._protocol.reader.buffer.clear()  # the library's cycles would keep it until they are collected
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if exc is not None and self._error is None:
            self._error = self._broken(exc)
        self._end(self._error)
        self._on_ended(self)

    def resume_writing(self) -> None:
        self._pings_unread = 0
        super().resume_writing()

    # --- helpers ---

    def _work(self) -> bool:
        """Parse the input, a piece at a time; returns whether more is left when the time is over."""
        while self._unparsed and not self._is_reading_paused:
            size = len(self._unparsed)
            if self._protocol.state is not CONNECTING:  # else it is the request, without frames behind it
                size, _ = self._frames.next_piece(self._unparsed[:PIECE_BYTES_MAX])
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._parse(bytes(piece))
            if self._share.is_time_over:
                break
        if self._protocol.reader.buffer and self._receiver is not None:
            self._receiver.held_changed()
        self._update_transport()
        return len(self._unparsed) > 0 and not self._is_reading_paused

    def _parse(self, piece: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(piece)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        if protocol.parser_exc is not None and self._error is None:
            self._error = RemoteProtocolError(f"The WebSocket of {self._peer_name}: {protocol.parser_exc}.")
        self._send()

    def _update_transport(self) -> None:
        """Pause or resume reading, so that only what can be parsed is read."""
        transport = self._transport
        is_paused = self._is_reading_paused or len(self._unparsed) > 0
        if transport is None or transport.is_closing() or is_paused is self._is_transport_paused:
            return
        self._is_transport_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _on_request(self, request: Request) -> None:
        """Answer the handshake; a refusal closes the transport."""
        assert self._transport is not None
        path = unquote(request.path.partition("?")[0]).rstrip("/").lower()
        if path != self._path:
            self._refuse(404, f"There is no WebSocket at {request.path[:200]}; use {self._path}.")
            return
        origins, hosts = request.headers.get_all("Origin"), request.headers.get_all("Host")
        if origins and not (len(origins) == len(hosts) == 1 and self._admits_origin(origins[0], hosts[0])):
            self._refuse(
                403, f"Pages of {origins[0][:200]} may not connect; see the setting allowed_origins."
            )
            return
        lists = (value for name in _LISTS for value in request.headers.get_all(name))
        if sum(value.count(",") for value in lists) > _LISTED_MAX:
            self._refuse(400, f"The headers of the handshake list more than {_LISTED_MAX} items.")
            return
        response = self._protocol.accept(request)
        if response.status_code != 101:
            offered = ", ".join(SUBPROTOCOLS)
            reason = f"{self._protocol.handshake_exc}. The subprotocols are: {offered}."
            self._refuse(response.status_code, reason)
            return
        self._protocol.send_response(response)
        self.limit_unsent(WRITE_HIGH_BYTES)
        try:
            self._receiver = self._on_connected(self)
        except TidegateError as error:
            self._error = error
            self._start_closing(_GOING_AWAY)

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PING and self._is_writing_paused:
            # The library has already queued the answer, and reading continues whatever is unsent.
            self._pings_unread += 1
            if self._pings_unread == PINGS_MAX:
                self._error = RemoteProtocolError(
                    f"The WebSocket of {self._peer_name} sends pings without reading."
                )
                self.abort()
        if self._is_closing or self._receiver is None:
            return
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._receiver.data_received(memoryview(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._error = RemoteProtocolError(f"The WebSocket of {self._peer_name} sent text.")
            self._start_closing(_TEXT_REFUSED)

    def _refuse(self, status: int, reason: str) -> None:
        content_type, body = self._format_refusal(status, reason)
        refusal = self._protocol.reject(status, body)
        headers = Headers(
            {"Connection": "close", "Content-Length": str(len(refusal.body)), "Content-Type": content_type}
        )
        self._protocol.send_response(Response(status, refusal.reason_phrase, headers, refusal.body))

    def _start_closing(self, code: int) -> None:
        if self._is_closing or self._has_ended or self._transport is None:
            return
        self._is_closing = True
        if self._protocol.state is OPEN:
            self._protocol.send_close(code)
            self._send()
            self.resume_reading()  # the peer's close frame must be read
        else:
            self._transport.close()
        self._abort_soon()

    def _send(self) -> None:
        transport = self._transport
        buffers = self._protocol.data_to_send()
        if not buffers or transport is None or transport.is_closing():
            return
        self._pass_on(buffers)
        if SEND_EOF not in buffers:
            return
        self._is_closing = True
        if self._protocol.parser_exc is not None and transport.can_write_eof():
            # The peer violated the protocol and may still be sending: read and drop its bytes for a while.
            # Closing the transport meanwhile would reset it, and the peer might lose our close frame.
            transport.write_eof()
        else:  # a refusal, or both close frames were sent
            transport.close()
        self._abort_soon()  # after a refusal, earlier HTTP responses may be unread

    def _abort_soon(self) -> None:
        if self._abort_timer is None:
            self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

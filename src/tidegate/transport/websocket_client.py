"""The client's end of a WebSocket that carries AMQP: for networks that let only HTTPS out (port 443).

Source: as for ``websocket``, its other end. Event Hubs serves ``/$servicebus/websocket``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable, Sequence
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import CONNECTING, OPEN, SEND_EOF
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tidegate.model.errors import BrokenError, OperationTimeoutError, RemoteProtocolError, TidegateError
from tidegate.transport.peers import peer_name_of
from tidegate.transport.proxy import HttpProxy
from tidegate.transport.streams import (
    WRITE_HIGH_BYTES,
    ByteStream,
    Payload,
    StreamReceiver,
    connect_transport,
)
from tidegate.transport.websocket import CLOSE_TIMEOUT_S, SUBPROTOCOLS, send_messages

PATH: Final = "/$servicebus/websocket"
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of the service's WebSocket frames (our choice: an AMQP frame of the largest size, many times over)."""

_LOG = logging.getLogger(f"{__name__}.protocol")
# The library logs the contents of frames at debug level, including tokens.
_LOG.setLevel(logging.ERROR)


class WebSocketClientStream(ByteStream, asyncio.Protocol):
    """One WebSocket to a service; ``opened`` ends with the handshake."""

    def __init__(self, address: str, on_connected: Callable[[WebSocketClientStream], StreamReceiver]) -> None:
        """address: ``wss://host:port``."""
        super().__init__(None)
        self._on_connected = on_connected
        self._protocol = ClientProtocol(
            parse_uri(address + PATH),
            subprotocols=[Subprotocol(name) for name in SUBPROTOCOLS],
            max_size=FRAME_BYTES_MAX,
            logger=_LOG,
        )
        self._error: TidegateError | None = None
        self._is_closing = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<WebSocketClientStream {self._peer_name} {self._protocol.state.name.lower()}>"

    # --- ByteStream ---

    def write(self, buffers: Sequence[Payload]) -> None:
        if self._is_closing or self._has_ended or self._protocol.state is not OPEN:
            return
        send_messages(self._protocol, buffers)
        self._send()

    def close(self) -> None:
        """Send the queue and a close frame; the stream ends with the service's answer."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        if self._protocol.state is OPEN:
            self._protocol.send_close(1000)
            self._send()
            self.resume_reading()  # the service's close frame must be read
        else:
            self._transport.close()
        self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected (TLS: after its handshake): ask for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        self._connected_at = asyncio.get_running_loop().time()
        self._peer_name = f"{peer_name_of(transport)} (WebSocket)"
        self.limit_unsent(WRITE_HIGH_BYTES)
        self._protocol.send_request(self._protocol.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        """Process bytes: the answer to the request, or whole or partial frames."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_response(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        if self._protocol.parser_exc is not None and self._error is None:
            self._error = RemoteProtocolError(
                f"The WebSocket of {self._peer_name}: {self._protocol.parser_exc}."
            )
        self._send()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        if self._receiver is not None and not self._is_closing:
            self._receiver.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if exc is not None and self._error is None:
            self._error = self._broken(exc)
        if not self.opened.done():
            self.opened.set_exception(
                self._error or BrokenError(f"{self._peer_name} closed the connection without an answer.")
            )
        self._end(self._error)

    # --- helpers ---

    def _on_response(self, response: Response) -> None:
        if self._protocol.handshake_exc is None:
            if not self.opened.done():  # else the caller was cancelled
                self._receiver = self._on_connected(self)
                self.opened.set_result(None)
            return
        self._error = BrokenError(
            f"{self._peer_name} opened no WebSocket: it answered {response.status_code} "
            f"({self._protocol.handshake_exc}).",
            next_step="Use the port on which the service serves HTTP or HTTPS.",
        )
        self.abort()

    def _on_frame(self, frame: Frame) -> None:
        if self._is_closing or self._receiver is None:
            return
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._receiver.data_received(memoryview(frame.data))

    def _send(self) -> None:
        buffers, transport = self._protocol.data_to_send(), self._transport
        if not buffers or transport is None or transport.is_closing():
            return
        transport.write(b"".join(buffers))
        if SEND_EOF in buffers and self._protocol.state is not CONNECTING:
            self._is_closing = True
            transport.close()


async def connect_websocket(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    on_connected: Callable[[WebSocketClientStream], StreamReceiver],
    proxy: HttpProxy | None = None,
    timeout_s: float = 30.0,
) -> WebSocketClientStream:
    """Open a WebSocket, with TLS if there is a context.

    proxy: None uses the one that the environment names, if any.
    Raises as ``connect_stream``, and BrokenError if the service answers no WebSocket.
    Cancellation: nothing stays open.
    """
    if proxy is None:
        proxy = HttpProxy.of_environment(host, port, is_tls_used=ssl is not None)
    name = f"[{host}]" if ":" in host else host
    address = f"{'ws' if ssl is None else 'wss'}://{name}:{port}"
    stream = await connect_transport(
        lambda: WebSocketClientStream(address, on_connected),
        host,
        port,
        ssl=ssl,
        proxy=proxy,
        timeout_s=timeout_s,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await stream.opened
    except TimeoutError as exc:
        stream.abort()
        raise OperationTimeoutError(f"{host}:{port} opened no WebSocket within {timeout_s:g} s.") from exc
    except BaseException:
        stream.abort()
        raise
    return stream

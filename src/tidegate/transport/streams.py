"""Byte streams: TCP and TLS over asyncio, behind an interface for other carriers of bytes.

A stream passes what it reads to its ``StreamReceiver``, in a buffer that the next read reuses, and writes
lists of buffers. Its queue is visible: ``is_writable`` and ``wait_writable`` show when the peer reads too
slowly, ``pause_reading`` slows the peer when we do.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from tidegate.model.errors import BrokenError, OperationTimeoutError, TidegateError, TlsError
from tidegate.transport.admission import Admission, Face, Ticket
from tidegate.transport.listener import Listener, listening_sockets
from tidegate.transport.peers import peer_name_of
from tidegate.transport.proxy import HttpProxy
from tidegate.transport.tls import CONNECTED_AT, HANDSHAKE_TIMEOUT_S, TlsServerConnection, held_by
from tidegate.transport.turns import Turns

READ_BUFFER_BYTES: Final = 256 * 1024
"""The most that one read returns. The streams of one listener share a read buffer, so that an idle connection
holds none: each read is passed on before the event loop does another."""

STRANGER_READ_BYTES: Final = 16 * 1024
"""The same before the peer has authenticated (our choice: the frames that do so take some KB)."""

WRITE_HIGH_BYTES: Final = 256 * 1024
WRITE_HIGH_BYTES_SHORT: Final = 64 * 1024
"""With more unsent bytes than this a stream is not writable, until a quarter is left; the second applies
while memory is short. Our choice: the kernel's own buffer, of some megabytes, keeps the line busy."""

_NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""OpenSSL's reason where a handshake gets an answer that is not TLS."""

Payload = bytes | bytearray | memoryview

P = TypeVar("P", bound=asyncio.BaseProtocol)


class StreamReceiver(Protocol):
    """Receives what a stream reads. All calls come from the event loop; none may block."""

    def data_received(self, data: memoryview) -> None:
        """Process bytes that are valid until this call returns."""
        ...

    def held_changed(self) -> None:
        """The stream's ``held_bytes`` have changed, and nothing was passed on."""
        ...

    def eof_received(self) -> None:
        """The peer sends no more; the stream closes once its queue is sent."""
        ...

    def stream_ended(self, error: TidegateError | None) -> None:
        """The stream has ended: closed by either side (None) or broken. Called once."""
        ...

    def writing_resumed(self) -> None:
        """The stream has become writable again."""
        ...


class ByteStream(ABC):
    """A stream as drivers use it, on an asyncio transport."""

    def __init__(self, ticket: Ticket | None) -> None:
        """ticket: of an accepted connection."""
        self._receiver: StreamReceiver | None = None
        self._transport: asyncio.Transport | None = None
        self._is_writing_paused = False
        self._has_ended = False
        self._peer_name = "?"
        self._connected_at = 0.0
        self._ticket = ticket
        self._unsent_peak = 0  # the most since there were none, or few

    @property
    def peer_name(self) -> str:
        """The peer, for logs: ``address:port``."""
        return self._peer_name

    @property
    def is_writable(self) -> bool:
        """Whether the unsent bytes are below the limit."""
        return not self._is_writing_paused and not self._has_ended

    @property
    def held_bytes(self) -> int:
        """Bytes kept for the peer: unsent ones, incomplete input, and the pipes of TLS.

        uvloop (0.23) keeps a write, and others of the same pass, until its last byte is sent: a peer that
        leaves one byte of a megabyte unread holds all of it. So the most that was unsent counts, until
        nothing is, or until the stream becomes writable again, which uvloop finds only when such a write is
        done.
        """
        if self._transport is None or self._has_ended:
            return 0
        unsent = self._transport.get_write_buffer_size()
        self._unsent_peak = max(unsent, self._unsent_peak) if unsent else 0
        return held_by(self._transport) - unsent + self._unsent_peak

    @property
    def age_s(self) -> float:
        """Seconds since the peer connected, its TLS handshake included, or asked for a WebSocket."""
        return asyncio.get_running_loop().time() - self._connected_at

    @abstractmethod
    def write(self, buffers: Sequence[Payload]) -> None:
        """Send or queue; the buffers may be reused when it returns. Does nothing after the end."""

    def limit_unsent(self, high: int) -> None:
        """Set the number of unsent bytes up to which the stream is writable."""
        if self._transport is not None and not self._has_ended and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=high, low=high // 4)

    def admit_peer(self) -> None:
        """The peer has authenticated, and may send larger pieces."""
        if self._ticket is not None:
            self._ticket.authenticate()

    def pause_reading(self) -> None:
        """Stop reading; the peer's sends will stall."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @abstractmethod
    def close(self) -> None:
        """Send the queue, then end the stream."""

    def abort(self) -> None:
        """End the stream immediately; queued bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    # --- for the transport ---

    def pause_writing(self) -> None:
        """The unsent bytes exceed the limit."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """The unsent bytes have fallen to a quarter of the limit."""
        self._is_writing_paused = False
        self._unsent_peak = 0
        if self._receiver is not None and not self._has_ended:
            self._receiver.writing_resumed()

    def _pass_on(self, buffers: Sequence[Payload]) -> None:
        """Write to the transport, in one piece: ``sendmsg`` accepts at most 1,024 slices."""
        assert self._transport is not None
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        is_first = not self._transport.get_write_buffer_size()
        self._unsent_peak = len(data) if is_first else max(self._unsent_peak, len(data))
        self._transport.write(data)

    def _end(self, error: TidegateError | None) -> None:
        """The transport is gone."""
        self._has_ended = True
        if self._ticket is not None:
            self._ticket.end()
        receiver, self._receiver = self._receiver, None  # break the reference cycle
        if receiver is not None:
            receiver.stream_ended(error)

    def _broken(self, cause: Exception) -> BrokenError:
        error = BrokenError(f"The connection to {self._peer_name} broke: {cause}.", next_step="Reconnect.")
        error.__cause__ = cause
        return error


class SocketStream(ByteStream, asyncio.BufferedProtocol):
    """A ``ByteStream`` on a TCP or TLS transport."""

    def __init__(
        self,
        on_connected: Callable[[SocketStream], StreamReceiver],
        *,
        read_buffer: memoryview | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """read_buffer: shared with streams of the same event loop; None: a separate one. ticket: of an
        accepted connection."""
        super().__init__(ticket)
        self._on_connected = on_connected
        self._buffer = new_read_buffer() if read_buffer is None else read_buffer
        self._used_buffer = self._buffer[:STRANGER_READ_BYTES]

    def __repr__(self) -> str:
        return f"<SocketStream {self._peer_name}{' ended' if self._has_ended else ''}>"

    # --- ByteStream ---

    def admit_peer(self) -> None:
        super().admit_peer()
        self._used_buffer = self._buffer

    def write(self, buffers: Sequence[Payload]) -> None:
        if self._transport is not None and not self._has_ended and not self._transport.is_closing():
            self._pass_on(buffers)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is connected (TLS: after the handshake)."""
        self._transport = cast(asyncio.Transport, transport)
        self.limit_unsent(WRITE_HIGH_BYTES)
        connected_at = transport.get_extra_info(CONNECTED_AT)
        self._connected_at = asyncio.get_running_loop().time() if connected_at is None else connected_at
        self._peer_name = peer_name_of(transport)
        self._receiver = self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The shared buffer: receivers copy what they keep, so it is free again after ``buffer_updated``."""
        return self._used_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._receiver is not None:
            self._receiver.data_received(self._buffer[:nbytes])

    def eof_received(self) -> bool:
        """Close: an AMQP peer that sends no more does not read either."""
        if self._receiver is not None:
            self._receiver.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(None if exc is None else self._broken(exc))


def new_read_buffer() -> memoryview:
    """A buffer for the reads of one event loop's streams."""
    return memoryview(bytearray(READ_BUFFER_BYTES))


async def connect_stream(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    on_connected: Callable[[SocketStream], StreamReceiver],
    proxy: HttpProxy | None = None,
    timeout_s: float = 30.0,
) -> SocketStream:
    """Connect over TCP, with TLS if there is a context, directly or through a proxy.

    Raises BrokenError if the connection fails (TlsError if the port has no TLS), OperationTimeoutError after
    ``timeout_s``. Cancellation: nothing stays open.
    """
    return await connect_transport(
        lambda: SocketStream(on_connected), host, port, ssl=ssl, proxy=proxy, timeout_s=timeout_s
    )


async def connect_transport(
    make: Callable[[], P],
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    proxy: HttpProxy | None,
    timeout_s: float,
) -> P:
    """As ``connect_stream``, for any protocol that ``make`` returns."""
    loop = asyncio.get_running_loop()
    server_name = host if ssl is not None else None
    try:
        async with asyncio.timeout(timeout_s):
            if proxy is None:
                _, stream = await loop.create_connection(
                    make, host, port, ssl=ssl, server_hostname=server_name
                )
            else:
                tunnel = await proxy.open_tunnel(host, port)
                _, stream = await loop.create_connection(
                    make, sock=tunnel, ssl=ssl, server_hostname=server_name
                )
    except TimeoutError as exc:
        raise OperationTimeoutError(f"{host}:{port} did not answer within {timeout_s:g} s.") from exc
    except ssl_module.SSLCertVerificationError as exc:
        raise BrokenError(
            f"The certificate of {host}:{port} is not trusted: {exc.verify_message}.",
            next_step="Pass the service's CA file (ca_file), or connect by a name that its certificate has.",
        ) from exc
    except ssl_module.SSLError as exc:
        if exc.reason != _NO_TLS:
            raise BrokenError(f"No TLS connection to {host}:{port}: {exc}.") from exc
        raise TlsError(
            f"{host}:{port} does not speak TLS.",
            next_step="For a service's plain port, add ;UseDevelopmentEmulator=true to the connection "
            "string; otherwise name its TLS port.",
        ) from exc
    except (OSError, ConnectionError) as exc:
        raise BrokenError(
            f"No connection to {host}:{port}: {exc}.", next_step="Is the service running there?"
        ) from exc
    return stream


async def serve_streams(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    on_connected: Callable[[SocketStream], StreamReceiver],
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    admission: Admission | None = None,
    turns: Turns | None = None,
) -> Listener:
    """Listen, and call ``on_connected`` for each connection (TLS: after its handshake). Port 0: any.

    handshake_timeout_s: for TLS. admission: shared with HTTP; None: a separate one. turns: for decryption;
    None: decrypt immediately.
    Raises BrokenError if it cannot listen on the address.
    """
    read_buffer, encrypted_buffer = new_read_buffer(), new_read_buffer()

    def accept(ticket: Ticket) -> asyncio.BufferedProtocol:
        accept_plain = partial(SocketStream, on_connected, read_buffer=read_buffer, ticket=ticket)
        if ssl is None:
            return accept_plain()
        return TlsServerConnection(
            ssl,
            accept_plain,
            read_buffer=encrypted_buffer,
            handshake_timeout_s=handshake_timeout_s,
            on_ended=ticket.end,
            turns=turns,
        )

    try:
        return Listener(
            listening_sockets(host, port), accept, admission=admission or Admission(), face=Face.AMQP
        )
    except OSError as exc:
        raise BrokenError(
            f"Cannot listen on {host}:{port}: {exc}.", next_step="Is another service using the port?"
        ) from exc

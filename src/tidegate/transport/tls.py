"""TLS for accepted connections, with shared buffers.

asyncio's TLS, and uvloop's, give each connection a read buffer of 256 KB. Recycled memory is resident even if
unused, so 5,000 idle connections took 63 KB each; here they take only what OpenSSL keeps. The TLS engine is
the standard library's ``SSLObject``; this module moves bytes between it, the socket and the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from tidegate.transport.peers import peer_name_of, site_in
from tidegate.transport.pieces import Pieces
from tidegate.transport.turns import Share, Turns

_logger = logging.getLogger(__name__)

_Inner = asyncio.BufferedProtocol | asyncio.Protocol

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A client that has not finished its handshake by then is disconnected; the service may set another time."""

CONNECTED_AT: Final = "connected_at"
"""Extra information of the inner transport: when the client connected, on the event loop's clock."""

_PIPE_BYTES: Final = 16 * 1024
"""Bytes given to OpenSSL at once, in either direction: its in-memory pipes never shrink, so a connection
keeps as much, and a third more, of each. Our choice: a record of TLS has at most this much."""

_ROUND_BYTES: Final = 64 * 1024
"""Received bytes that are decrypted before others may have a turn."""

_RECORDS_AT_ONCE: Final = 16
"""Records given to OpenSSL at once: however short they are, each costs. Our choice: one that renews the keys
(RFC 8446 section 4.6.3) has 27 bytes and takes 0.04 ms."""

_BARREN_RECORDS_MAX: Final = 32
"""Records in a row without data of the application. More are an attack on the processor: OpenSSL 3.0 has no
limit; BoringSSL's for new keys is the same (``kMaxKeyUpdates``)."""

_HANDSHAKE_BYTES_MAX: Final = 8 * 1024
"""Given to OpenSSL before a handshake is done. Our choice: usual clients send 2 KB; for lists of groups and
keys in 64 KB OpenSSL 3.0 took 0.15 s, in one step."""

_HANDSHAKE_PIECE_BYTES: Final = 4 * 1024
"""Of them at once: the last may have what follows the handshake."""

_HEADER_BYTES: Final = 5


def held_by(transport: asyncio.Transport) -> int:
    """Bytes that a connection keeps in its transport: unsent ones and, with TLS of this module, others."""
    unsent = transport.get_write_buffer_size()
    return unsent + transport.held_bytes if isinstance(transport, TlsServerConnection) else unsent


class HandshakeFailures:
    """Counts the failed handshakes of an SSL context."""

    def __init__(self, context: ssl.SSLContext) -> None:
        """Starts counting: clients without the certificate authority, without TLS, or without a common
        version. Handshakes that are cut off or never end are not counted."""
        self.count = 0
        failures = self
        usual: Any = context.sslobject_class

        class Counted(usual):  # type: ignore[misc]
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError:
                    failures.count += 1
                    raise

        context.sslobject_class = Counted


def _length_of(header: bytes) -> int:
    """Of what follows the header of a record: type, version, and this (RFC 8446 section 5.1)."""
    return int.from_bytes(header[3:], "big")


class TlsServerConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of an inner protocol without TLS.

    The inner protocol is created and connected after the handshake.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make_protocol: Callable[[], _Inner],
        *,
        read_buffer: memoryview,
        plain_buffer: memoryview | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        on_ended: Callable[[], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        """read_buffer: for encrypted bytes; shared with other connections of the same event loop.
        plain_buffer: the same for decrypted ones, of protocols without a buffer.

        on_ended: called when the socket has closed, even before the handshake is done. turns: for decryption;
        None: decrypt immediately.
        """
        asyncio.Transport.__init__(self)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_protocol = make_protocol
        self._buffer = read_buffer
        self._plain_buffer = plain_buffer
        self._on_ended = on_ended
        self._socket: asyncio.Transport | None = None
        self._protocol: _Inner | None = None
        """None during the handshake, and after the end."""
        self._handshake_timeout_s = handshake_timeout_s
        self._handshake_deadline: asyncio.TimerHandle | None = None
        self._connected_at = 0.0
        self._is_reading_paused = False
        self._is_socket_paused = False
        self._is_closing = False
        self._share = Share(None if turns is None else turns.for_arrivals, self._work)
        self._encrypted = memoryview(b"")  # received, and not given to OpenSSL yet
        self._round_bytes = 0  # of them, in this round
        self._records = Pieces(_HEADER_BYTES, _length_of, units_max=_RECORDS_AT_ONCE)
        self._handshake_bytes = 0  # given to OpenSSL
        self._barren_records = 0
        self._is_more_decrypted = False
        self._is_fed = False  # in this round
        self._fed_max = self._flushed_max = 0

    # --- the protocol of the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._share.join(site_in(peer_name_of(transport)))
        loop = asyncio.get_running_loop()
        self._connected_at = loop.time()
        self._handshake_deadline = loop.call_later(
            self._handshake_timeout_s, self._give_up, "it took too long"
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """The shared buffer: its bytes are given to OpenSSL before the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process encrypted bytes. No earlier ones are left: the socket is paused while there are."""
        self._encrypted = self._buffer[:nbytes]
        self._share.serve()
        if self._encrypted:  # the buffer is shared: keep a copy
            self._encrypted = memoryview(bytes(self._encrypted))
        self._update_socket()

    def eof_received(self) -> bool:
        """The client sends no more, with or without TLS's close_notify."""
        self._advance()  # process what arrived while reading was paused
        if self._protocol is not None and not self._is_closing:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._share.close()
        self._encrypted, self._round_bytes = memoryview(b""), 0
        self._end_handshake()
        if self._on_ended is not None:
            self._on_ended()
        protocol, self._protocol = self._protocol, None  # break the reference cycle
        if protocol is not None:
            protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # --- the transport of the inner protocol ---

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send, or queue in the socket's transport. Does nothing after the end."""
        if self._is_closing:
            return
        view = memoryview(data)
        sealed: list[bytes] = []
        try:
            for start in range(0, len(view), _PIPE_BYTES):
                self._ssl.write(view[start : start + _PIPE_BYTES])
                sealed.append(self._take_outgoing())
        except ssl.SSLError as error:
            self._break(error)
            return
        if sealed and not self._transport.is_closing():
            self._transport.writelines(sealed)  # at once: each call may be one of the system

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Limits of the socket's transport, in encrypted bytes."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that are not sent yet."""
        return self._transport.get_write_buffer_size() + self._outgoing.pending

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept beside unsent ones: received ones that wait, and OpenSSL's pipes."""
        return len(self._encrypted) + (self._fed_max + self._flushed_max) * 4 // 3

    def get_extra_info(self, name: str, default: object = None) -> Any:
        """The socket transport's information, CONNECTED_AT, and the context as asyncio's TLS names it."""
        if name == CONNECTED_AT:
            return self._connected_at
        if name == "sslcontext":
            return self._ssl.context
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(_Inner, protocol)

    def is_closing(self) -> bool:
        return self._is_closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        self._update_socket()

    def resume_reading(self) -> None:
        """Read again, first what is already decrypted."""
        if not self._is_reading_paused:
            return
        self._is_reading_paused = False
        self._is_more_decrypted = True
        self._update_socket()
        asyncio.get_running_loop().call_soon(self._share.serve)

    def close(self) -> None:
        """Send the queue and TLS's close_notify, then end."""
        if self._is_closing:
            return
        self._is_closing = True
        # The client's close_notify is not waited for (RFC 8446 section 6.1 allows this).
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    # --- between the two ---

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._socket is not None
        return self._socket

    def _work(self) -> bool:
        """Decrypt, a piece at a time; returns whether more is left when the time is over."""
        while self._has_work:
            self._is_more_decrypted = False
            self._round_bytes = min(_ROUND_BYTES, len(self._encrypted))
            self._is_fed = False
            self._advance()
            if self._share.is_time_over:
                break
        self._update_socket()
        return self._has_work

    @property
    def _has_work(self) -> bool:
        is_wanted = not self._is_reading_paused and not self._is_closing
        return is_wanted and (self._is_more_decrypted or len(self._encrypted) > 0)

    def _update_socket(self) -> None:
        """Pause or resume the socket, so that it reads only what can be passed on."""
        is_paused = self._is_reading_paused or len(self._encrypted) > 0
        if is_paused is self._is_socket_paused or self._transport.is_closing():
            return
        self._is_socket_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _advance(self) -> None:
        """Do the handshake, or pass on what can be decrypted."""
        if self._is_closing:
            return
        try:
            if self._protocol is None and not self._shake_hands():
                return
            self._hand_on()
        except ssl.SSLWantReadError:
            self._flush()  # renewed keys, or a part of the handshake
        except ssl.SSLZeroReturnError:
            if self._protocol is not None:
                self._protocol.eof_received()
            self.close()
        except ssl.SSLError as error:
            self._break(error)

    def _shake_hands(self) -> bool:
        """One step; returns True if it was the last. Raises SSLWantReadError if the client must send next."""
        try:
            while True:
                try:
                    self._ssl.do_handshake()
                except ssl.SSLWantReadError:
                    if not self._feed():
                        raise
                else:
                    break
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            self._flush()  # send the alert with the reason
            self._give_up(error.reason or str(error))
            return False
        self._flush()
        self._end_handshake()
        self._protocol = self._make_protocol()
        del self._make_protocol  # it may keep the first protocol, which another replaces
        self._protocol.connection_made(self)
        return True

    def _hand_on(self) -> None:
        """Pass decrypted bytes to the protocol, a buffer at a time, until more must arrive."""
        while not self._is_reading_paused and not self._is_closing:
            protocol, plain = self._protocol, self._plain_buffer  # the protocol may set another
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = cast(memoryview, protocol.get_buffer(-1))
            else:
                assert plain is not None
                buffer = plain
            filled = 0
            try:
                while filled < len(buffer):
                    filled += self._read(buffer[filled:])
            finally:
                if filled and isinstance(protocol, asyncio.BufferedProtocol):
                    protocol.buffer_updated(filled)
                elif filled:
                    cast(asyncio.Protocol, protocol).data_received(bytes(buffer[:filled]))

    def _read(self, buffer: memoryview) -> int:
        """Decrypt into ``buffer``, or give OpenSSL more. Raises SSLWantReadError if there is no more now."""
        try:
            count = cast(int, self._ssl.read(len(buffer), buffer))
        except ssl.SSLWantReadError:
            if self._barren_records > _BARREN_RECORDS_MAX:
                raise ssl.SSLError("too many records without data") from None
            if not self._feed():
                raise
            return 0
        if not count:
            raise ssl.SSLZeroReturnError
        self._barren_records = 0
        return count

    def _feed(self) -> bool:
        """Give OpenSSL the next received bytes of this round; returns whether there were any, and time.

        Raises SSLError for a handshake that is too long.
        """
        if not self._round_bytes or (self._is_fed and self._share.is_time_over):
            return False
        is_shaking = self._protocol is None
        bytes_max = min(self._round_bytes, _HANDSHAKE_PIECE_BYTES if is_shaking else _PIPE_BYTES)
        size, records = self._records.next_piece(self._encrypted[:bytes_max])
        if is_shaking:
            self._handshake_bytes += size
            if self._handshake_bytes > _HANDSHAKE_BYTES_MAX:
                raise ssl.SSLError("the handshake is too long")
        else:
            self._barren_records += records
        self._incoming.write(self._encrypted[:size])
        self._encrypted = self._encrypted[size:]
        self._round_bytes -= size
        self._is_fed = True
        self._fed_max = max(self._fed_max, size)
        return True

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._take_outgoing())

    def _take_outgoing(self) -> bytes:
        self._flushed_max = max(self._flushed_max, self._outgoing.pending)
        return self._outgoing.read()

    def _break(self, error: ssl.SSLError) -> None:
        _logger.info("TLS with %s failed: %s.", self.get_extra_info("peername"), error.reason or error)
        self._flush()
        self.abort()

    def _give_up(self, reason: str) -> None:
        self._end_handshake()
        _logger.info("The TLS handshake of %s failed: %s.", self.get_extra_info("peername"), reason)
        self._is_closing = True
        self._transport.close()

    def _end_handshake(self) -> None:
        if self._handshake_deadline is not None:
            self._handshake_deadline.cancel()
            self._handshake_deadline = None

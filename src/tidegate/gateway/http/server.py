"""uvicorn on the service's event loop, with limits, and with AMQP over WebSockets.

The resources of a peer without a token are bounded: connections (``transport.admission``; those without a
complete request make room for others), the time for a request to arrive and for its answer to be read, and
(in ``publish``) the time and the bytes of a body after a token. Behind answers that wait for their reader no
request begins. A connection beyond the limits may still request ``/health`` or ``/ready``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from http import HTTPStatus
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tidegate.gateway.http.errors import error_response, format_error
from tidegate.gateway.http.parser import LENGTHS, RequestParser
from tidegate.transport.admission import TICKET, Admission, Face, Ticket
from tidegate.transport.listener import Listener
from tidegate.transport.memory import MemoryAccount, MemoryBudget
from tidegate.transport.peers import IpAddress, parse_address, site_at, site_of
from tidegate.transport.streams import StreamReceiver, new_read_buffer
from tidegate.transport.tls import TlsServerConnection, held_by
from tidegate.transport.turns import Share, Turns
from tidegate.transport.websocket import WebSocketStream

HEAD_TIMEOUT_S: Final = 20.0
"""Time for the head of a request, since the connection or its first byte; without a token, for its body as
well (our choice)."""

HEALTH_TIMEOUT_S: Final = 2.0
"""The same if only ``/health`` is answered (our choice: a health check sends its request immediately)."""

HEALTH_PATHS: Final = ("/health", "/ready")
_HEALTH_REQUESTS: Final = (b"GET /health ", b"GET /ready ")

WRITE_TIMEOUT_S: Final = 60.0
"""Time that unsent bytes of answers may wait for their reader (our choice)."""

_UNCOUNTED_BYTES: Final = 4096
"""What may wait on a connection without being counted (our choice: most requests have less)."""

SHUTDOWN_TIMEOUT_S: Final = 5
"""Time for running requests to end when the service stops; then they are aborted (our choice)."""

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
"""The path of AMQP over WebSocket in official clients (azure-eventhub 5.15.1, @azure/core-amqp 4)."""

NO_PLACE: Final = "The service, or your address, has reached its connection limit. Try again later."

RETRY_AFTER_S: Final = 5
"""Our choice: idle connections end in seconds."""

HEADER_NAMES: Final = "header_names"
"""In the ``state`` of a request's scope: the names of its headers as sent, by lower-case name."""

_CLIENT: Final = "client"
"""There as well: the client, if a trusted proxy reported one."""

_log = logging.getLogger(__name__)


def _is_wanted(record: logging.LogRecord) -> bool:
    """uvicorn logs how many requests it cancels at a stop, and a traceback for each of them."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


_log.addFilter(_is_wanted)


class HttpServer(uvicorn.Server):
    """One listening port; signals are left to the owner of the service."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        ssl_context: ssl.SSLContext | None,
        accept_websocket: Callable[[WebSocketStream], StreamReceiver],
        admits_origin: Callable[[str, str], bool] = lambda origin, host: False,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        hsts_max_age_s: int | None = None,
        admission: Admission | None = None,
        turns: Turns | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """accept_websocket: gives the receiver of a WebSocket whose handshake is done. admits_origin: whether
        a page of that origin may open one, by a request with that Host header. admission: limits connections,
        shared with AMQP; None: one of its own. turns: in which requests are parsed and
        WebSockets are served; None: as bytes come. budget: counts what waits to be read; None: nothing.
        """
        self.turns = turns
        self.budget = budget
        self._accept_websocket = accept_websocket
        self._admits_origin = admits_origin
        self.admission = admission or Admission()
        self.health_application = _HealthOnly(application)
        self.head_timeout_s = head_timeout_s
        self.write_timeout_s = write_timeout_s
        self.is_serving = asyncio.Event()
        self._listener: Listener | None = None
        self.work: asyncio.Task[None] | None = None
        self.websockets: set[WebSocketStream] = set()
        """Those that are open."""
        self._encrypted_buffer, self._plain_buffer = new_read_buffer(), new_read_buffer()
        config = uvicorn.Config(
            application,
            http=_HttpProtocol,
            # uvicorn calls it with arguments of its own, once per upgrade.
            ws=self._make_websocket,  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            headers=_default_headers(ssl_context, hsts_max_age_s),
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        config.load()
        config.ssl = ssl_context
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, as uvicorn does, but each connection needs a ticket."""
        assert sockets is not None
        listener = Listener(
            sockets,
            self._make_protocol,
            admission=self.admission,
            face=Face.HTTP,
        )
        self._listener = listener
        self.servers = [listener]  # type: ignore[list-item]  # closed as uvicorn closes its own
        self.started = True
        self.is_serving.set()

    async def stop(self) -> None:
        """Stop listening and let running requests finish, for SHUTDOWN_TIMEOUT_S at most."""
        for stream in list(self.websockets):
            stream.shutdown()
        self.should_exit = True
        if self.work is not None:
            await asyncio.wait([self.work])
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        for stream in list(self.websockets):
            stream.abort()

    def _make_protocol(self, ticket: Ticket) -> asyncio.BaseProtocol:
        protocol = _HttpProtocol(self.config, self.server_state, {})
        protocol.owner, protocol.ticket = self, ticket
        if self.config.ssl is None:
            return protocol
        return TlsServerConnection(
            self.config.ssl,
            lambda: protocol,
            read_buffer=self._encrypted_buffer,
            plain_buffer=self._plain_buffer,
            handshake_timeout_s=self.head_timeout_s,
            on_ended=ticket.end,
            turns=self.turns,
        )

    def _make_websocket(self, *, app_state: dict[str, object], **_: object) -> WebSocketStream:
        ticket, client = app_state[TICKET], app_state.get(_CLIENT)
        assert isinstance(ticket, Ticket)
        stream = WebSocketStream(
            path=WEBSOCKET_PATH,
            on_connected=self._accept_websocket,
            on_ended=self.websockets.discard,
            format_refusal=format_error,
            admits_origin=self._admits_origin,
            ticket=ticket,
            turns=self.turns,
            client_name=None if client is None else str(client),
        )
        self.websockets.add(stream)
        return stream


def _default_headers(ssl_context: ssl.SSLContext | None, hsts_max_age_s: int | None) -> list[tuple[str, str]]:
    """Headers of every answer. Over plain HTTP, browsers ignore Strict-Transport-Security (RFC 6797)."""
    if ssl_context is None or hsts_max_age_s is None:
        return []
    return [("Strict-Transport-Security", f"max-age={hsts_max_age_s}")]


class _HttpProtocol(H11Protocol):
    """HTTP/1.1 with a ticket, and limits on the time for a request to arrive (for its body only while the
    peer has presented no token) and for its answer to be read.
    """

    owner: HttpServer
    ticket: Ticket
    _parser: RequestParser
    _peer: IpAddress | None = None
    _share: Share
    _is_behind = False
    """Whether reading is paused because received bytes wait to be parsed."""
    _is_health = False
    """Whether it is served in the turns of requests for ``/health``."""
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _waiting: MemoryAccount | None = None
    """Counts what waits, if it is much: answers for their reader, a body for the application, with the head
    of its request, requests sent ahead, and what TLS keeps."""
    _answer_bytes = 0
    """Of an answer, or a piece of one, that waits until its client has read what was sent before."""
    _unsent_peak = 0
    """The most unsent bytes since there were none, or few; see ``ByteStream.held_bytes``."""
    _is_over = False
    """Whether the connection has ended, or belongs to a WebSocket, which has an account of its own."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Ours: the service's log limits what clients can cause by the names of loggers.
        self.logger = _log
        self._peer = None if self.client is None else parse_address(self.client[0])
        turns = self.owner.turns
        self._share = Share(None if turns is None else turns.for_arrivals, self._parse)
        self._share.join(None if self._peer is None else site_of(self._peer))
        share = self._share
        self.conn = self._parser = RequestParser(self._on_head, lambda: share.is_time_over)
        is_health = self.ticket.face is Face.HEALTH
        self.app = partial(self._answer, self.owner.health_application if is_health else self.app)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._share.close()
        self._stop_timer()
        self._stop_write_timer()
        self._end_counting()
        self._unset_keepalive_if_required()  # uvicorn leaves it where a client resets the connection
        self.ticket.end()
        super().connection_lost(exc)
        self.loop.call_soon(self._let_go)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._parser.is_held = True
        self._follow_peer()
        self._start_write_timer()
        self._count_waiting()

    def resume_writing(self) -> None:
        self._unsent_peak = 0
        # A closing transport still waits until the rest is read.
        if not self.transport.is_closing():
            self._stop_write_timer()
        self._parser.is_held = False
        self._count_waiting()
        self._follow_peer()
        super().resume_writing()
        if not self.transport.is_closing():
            self.handle_events()  # what was sent ahead

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit_closing()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if not self._parser.has_received and self.conn.their_state is h11.IDLE:
            self._begin_turns(data)
        self._parser.receive_data(data)
        self._share.serve()
        self._follow_input()

    def handle_events(self) -> None:
        """Parse what was sent ahead: uvicorn calls it when the next request may begin."""
        if self._parser.has_rest:
            if self._is_health and self.conn.their_state is h11.IDLE:
                self._begin_turns(b"")  # what was sent ahead is not first in the turns of health checks
            self._share.serve()
            self._follow_input()

    def _begin_turns(self, data: bytes) -> None:
        """Serve the request that begins with ``data`` among requests for ``/health``, or among all.

        One for ``/health`` that has a body is refused: its pieces would be parsed before those of others.
        """
        is_health = data.startswith(_HEALTH_REQUESTS)
        turns = self.owner.turns
        if turns is not None and is_health is not self._is_health and not self._share.is_waiting:
            self._is_health = is_health
            self._share.move(turns.for_health if is_health else turns.for_arrivals)

    def _parse(self) -> bool:
        """Parse received bytes until the time is over; a request begins in a task, which is charged for."""
        if self.transport.is_closing():
            self._parser.discard_received()
            return False
        self._parser.begin_slice()
        # A request that was sent ahead would begin in the context of the one before, with its actor.
        Context().run(super().handle_events)
        if self.conn.their_state is not h11.IDLE:
            self._follow_body()
        elif self._parser.is_held and self._parser.has_rest:
            # The next request waits until its client has read the answer before, for which there is a limit.
            self._stop_timer()
            self._unset_keepalive_if_required()
        else:
            self._start_timer()
        self._follow_input()
        self._count_waiting()
        return self._parser.has_work and not self.transport.is_closing()

    def _follow_input(self) -> None:
        """Read only as fast as bytes are parsed."""
        if self._parser.has_received:
            # uvicorn resumes reading for reasons of its own.
            self._is_behind = True
            self.transport.pause_reading()
        elif self._is_behind:
            self._is_behind = False
            if not self.flow.read_paused:
                self.transport.resume_reading()

    def on_response_complete(self) -> None:
        # Not kept until the next request: what was not read, and the head, which counts only until now.
        self.cycle.body.clear()
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        self.app_state = {}
        self._follow_peer()
        super().on_response_complete()
        self._count_waiting()
        self._limit_closing()
        if self._is_discarding or self.conn.our_state is h11.SEND_RESPONSE:  # the next was sent ahead
            self._follow_body()

    def shutdown(self) -> None:
        if self.conn.their_state is h11.SEND_BODY and not self.ticket.request_has_token:
            self.transport.close()  # a stranger may never send the rest
            self._limit_closing()
        else:
            super().shutdown()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_timer()
        self._parser.discard_received()  # nothing may follow before our answer
        self._follow_input()
        if self.ticket.face is Face.HEALTH or self.ticket.become_amqp(self.loop.time()) is not None:
            self._refuse(503, NO_PLACE)
            return
        self._end_counting()
        super().handle_websocket_upgrade(event)
        self.loop.call_soon(self._let_go)  # what called this still needs it

    def _let_go(self) -> None:
        """Break the reference cycles: what was received is freed now, not in a full collection."""
        self._share.close()
        del self.app, self.conn, self._parser, self.cycle

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._parser.refusal or (400, msg)))

    async def _answer(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application; what it sends counts as memory while it waits for the client to read."""
        start: Message | None = None

        async def send_counted(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and self.flow.write_paused:
                start = message  # it waits with its body, whose size is known then
                return
            waiting_bytes = len(message.get("body", b""))
            if start is not None:
                await self._wait_writable(waiting_bytes)
                await send(start)
                start = None
            await self._wait_writable(waiting_bytes)
            is_first = not self.transport.get_write_buffer_size()
            self._unsent_peak = waiting_bytes if is_first else max(self._unsent_peak, waiting_bytes)
            await send(message)

        await self._share.charged(application(scope, receive, send_counted))

    async def _wait_writable(self, waiting_bytes: int) -> None:
        """Wait until the client has read what was sent; as many bytes wait behind that."""
        while self.flow.write_paused:
            self._answer_bytes = waiting_bytes
            self._count_waiting()
            try:
                await self.flow.drain()
            finally:
                self._answer_bytes = 0
                if self._waiting is not None:
                    self._waiting.update()

    def _follow_body(self) -> None:
        """Limit the time of a stranger's body; a complete request is no longer waited for."""
        if self._is_over:
            return
        is_arriving = self.conn.their_state is h11.SEND_BODY
        if is_arriving and not self._may_take_long:
            self._start_timer()
            return
        self._stop_timer()
        if not is_arriving:
            self._follow_peer()

    def _follow_peer(self) -> None:
        """Count the connection as waiting while its peer is next: to send a request, or to read an answer."""
        cycle: RequestResponseCycle | None = self.cycle
        is_answered = cycle is None or cycle.response_complete
        is_arriving = self.conn.their_state is h11.SEND_BODY
        self.ticket.set_waiting(is_answered or is_arriving or self._parser.is_held)

    @property
    def _may_take_long(self) -> bool:
        """Whether a body has no time limit here: its request has a token, and is not answered."""
        return self.ticket.request_has_token and not self._is_discarding

    @property
    def _is_discarding(self) -> bool:
        """Whether it reads the rest of a request that was answered before it was complete."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _on_head(self, request: h11.Request, names: dict[str, str]) -> None:
        self.app_state = {HEADER_NAMES: names, TICKET: self.ticket}
        self._share.reserve_step()
        if self._is_health and any(name in LENGTHS and value != b"0" for name, value in request.headers):
            self._parser.refuse(400, "A request for /health has no body.")
        refusal, now = None, self.loop.time()
        trusted = self.owner.admission.trusted
        if self._peer in trusted:
            headers = [(name.lower(), value) for name, value in request.headers]
            address = trusted.client_address(self._peer, headers)
            self._share.join(None if address is None else site_of(address))
            # All unknown clients share the limits of one address, also for wrong keys: as the proxy's, they
            # would have correct keys refused to those who share its address.
            name = f"unknown-behind-{self._peer}" if address is None else str(address)
            self.client = (name, 0)
            if self._waiting is not None:
                self._waiting.address = site_at(name)
            self.app_state[_CLIENT] = f"{name}:0"
            is_https = self.owner.config.ssl is not None or trusted.is_https(self._peer, headers)
            self.scheme = "https" if is_https else "http"
            refusal = self.ticket.move(address, now)
        if (refusal or self.ticket.begin_request(now)) is not None:
            self._parser.refuse(503, NO_PLACE)

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self._on_head_timeout)

    @property
    def _head_timeout_s(self) -> float:
        timeout_s = self.owner.head_timeout_s
        return min(timeout_s, HEALTH_TIMEOUT_S) if self.ticket.face is Face.HEALTH else timeout_s

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _limit_closing(self) -> None:
        if self.transport.is_closing():
            self._start_write_timer()

    def _start_write_timer(self) -> None:
        if self._write_timer is None and not self._is_over:
            self._write_timer = self.loop.call_later(self.owner.write_timeout_s, self.transport.abort)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.SEND_BODY and self._may_take_long:
            return  # the token came with the head
        self._refuse(408, f"No complete request came within {self._head_timeout_s:g} s.")

    def _count_waiting(self) -> None:
        if self._is_over:
            return  # no callback would close another account
        if self._waiting is not None:
            self._waiting.update()
        elif self.owner.budget is not None and self._measure_waiting() > _UNCOUNTED_BYTES:
            address = None if self.client is None else site_at(self.client[0])
            self._waiting = self.owner.budget.open_account(
                self._measure_waiting, address=address, end=self.transport.abort
            )
            self._waiting.update()

    def _measure_waiting(self) -> int:
        cycle: RequestResponseCycle | None = self.cycle
        request_bytes = 0 if cycle is None else len(cycle.body) + self._parser.head_held_bytes
        unsent = self.transport.get_write_buffer_size()
        self._unsent_peak = max(unsent, self._unsent_peak) if unsent else 0
        sent_bytes = held_by(self.transport) - unsent + self._unsent_peak
        return sent_bytes + request_bytes + self._parser.received_bytes + self._answer_bytes

    def _end_counting(self) -> None:
        """Close the account for good, with the connection or before it becomes a WebSocket."""
        self._is_over = True
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def _refuse(self, status: int, detail: str) -> None:
        """Answer without a request, and close; only close if an answer was already sent."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            self._limit_closing()
            return
        content_type, text = format_error(status, detail)
        body = text.encode()
        retry = f"Retry-After: {RETRY_AFTER_S}\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
        self._limit_closing()


class _HealthOnly:
    """The application of connections beyond the limits: health checks, and 503 for anything else."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._refusal = error_response(503, NO_PLACE, headers={"Retry-After": str(RETRY_AFTER_S)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        is_health = scope["path"] in HEALTH_PATHS
        await (self._application if is_health else self._refusal)(scope, receive, send_and_close)


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)

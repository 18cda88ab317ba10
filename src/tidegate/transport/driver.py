"""Drives an AMQP engine on a byte stream: feeds it, delivers its events, one write per turn, one timer.

    stream.data_received -> Connection.feed_data -> a slice -> on_event (each event, synchronously)
                                                       ^-------'
                         -> Connection.data_to_send -> stream.write (once)

A service processes slices in turns with its other connections (``turns``). While input is left over, the
stream is not read. Commands to the engine (``link.send…``, ``session.end`` …) are sent by the next ``flush``,
which is automatic inside ``on_event``. The first reason to stop is kept and raised to every waiter.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, ResourceLimitError
from tidegate.amqp.events import ConnectionClosed, ConnectionFailed, Event
from tidegate.amqp.performatives import Error
from tidegate.amqp.types import Symbol
from tidegate.model.clock import Clock
from tidegate.model.errors import BrokenError, ClosedError, TidegateError
from tidegate.transport.admission import Admission
from tidegate.transport.listener import Listener
from tidegate.transport.memory import MemoryAccount, MemoryBudget
from tidegate.transport.peers import site_in
from tidegate.transport.proxy import HttpProxy
from tidegate.transport.streams import (
    WRITE_HIGH_BYTES,
    WRITE_HIGH_BYTES_SHORT,
    ByteStream,
    connect_stream,
    serve_streams,
)
from tidegate.transport.turns import Share, Turns

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a peer may take to answer our close, or to read the remaining output (our choice)."""

PASS_BYTES: Final = 512 * 1024
STRANGER_PASS_BYTES: Final = 16 * 1024
"""Bytes read from one peer per pass of the event loop; the second before it has authenticated. Our choice:
time is the general limit (``turns``), so the first only limits memory."""

TURN_BYTES_MAX: Final = 64 * 1024
"""The owner's work is written between pieces if it has that many bytes. Our choice: a burst has more, and
small deliveries to all links of a connection share a write."""

EventHandler = Callable[[Event], None]
"""Handles one event. Called from the event loop; must not block."""


class InternalFailureError(TidegateError):
    """Our own code failed to handle an event. The connection was closed; the cause is chained."""

    condition: Final = INTERNAL_ERROR


class AmqpDriver:
    """Drives one ``Connection``. Created by ``connect_amqp`` and ``AmqpServer``."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        on_event: EventHandler,
        on_ended: Callable[[AmqpDriver], None] | None = None,
        budget: MemoryBudget | None = None,
        turns: Turns | None = None,
        age_s: float = 0.0,
    ) -> None:
        """on_ended: called once, after the stream has ended and all events were delivered. budget: counts
        memory held for the peer; None: not counted. turns: shared with other drivers of the event loop; None:
        all input is processed immediately. age_s: seconds since the peer connected."""
        self.connection = connection
        self.clock = clock
        self.on_event = on_event
        self.on_writable: Callable[[], None] | None = None
        """Called when the stream becomes writable again; None to ignore."""
        self.on_turn: Callable[[], bool] | None = None
        """Does up to a millisecond of the owner's work and returns whether there is more. Called in this
        connection's turn after ``request_turn``."""
        self._on_ended = on_ended
        self.on_memory_pressure: Callable[[bool], Iterable[Callable[[], None]]] | None = None
        """Called with True when memory becomes short, and with False when it no longer is; returns what is to
        be done about it, in short steps. None to ignore."""
        self.stop_reason: TidegateError | None = None
        """Why this driver stopped; None while it runs, ClosedError after ``close``."""
        self._stream: ByteStream | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_timer_early = False  # no deadline can come before the timer
        self._is_deadline_due = False
        self._abort_handle: asyncio.TimerHandle | None = None
        self._is_pumping = False
        self._is_closing = False
        self._is_reading_paused = False  # by the owner
        self._is_stream_paused = False
        self._is_stalled = False  # a server, and its peer does not read
        self._turns = turns
        self._share = Share(None if turns is None else turns.for_arrivals, self._work)
        self._output_share = Share(None if turns is None else turns.for_output, self._work_output)
        self._pass_number = 0
        self._pass_bytes = 0  # read in that pass
        self._pass_bytes_max = PASS_BYTES
        self._is_turn_wanted = False
        self._is_in_turn = False
        self._has_eof = False  # after what was fed
        self._has_stream_ended = False
        self._end_error: TidegateError | None = None
        self._owner_bytes = 0
        self._budget = budget
        self._account: MemoryAccount | None = None
        self.age_s = age_s
        """Seconds from the peer's connecting to this driver's start: a TLS handshake."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AmqpDriver {self.peer_name} {self.connection!r}>"

    # --- for the owner ---

    @property
    def peer_name(self) -> str:
        """The peer, for logs."""
        return self._stream.peer_name if self._stream is not None else "?"

    @property
    def is_writable(self) -> bool:
        """Whether more can be written without building up a queue."""
        return self._stream is not None and self._stream.is_writable

    def add_held(self, change: int) -> None:
        """Count bytes that the owner holds for the peer and only the peer can free."""
        self._owner_bytes += change

    def admit_peer(self) -> None:
        """The peer is authenticated: the limits of strangers no longer apply."""
        self.connection.admit_peer()
        self._pass_bytes_max = PASS_BYTES
        if self._stream is not None:
            self._stream.admit_peer()

    def flush(self) -> None:
        """Deliver events and write the engine's output. Automatic inside ``on_event``."""
        if self._is_pumping:
            return
        if self._has_work:
            self._share.serve()
            if not self._share.is_waiting:
                return  # that call has written
        self._write()

    def request_turn(self) -> None:
        """Schedule ``on_turn`` for this connection's next turn; its output is then written."""
        if self._is_turn_wanted:
            return
        self._is_turn_wanted = True
        if self._is_in_turn:
            return  # the turn checks for this at its end
        if self._turns is None:
            self._loop.call_soon(self._output_share.serve)
        else:
            self._output_share.wait()

    async def wait_writable(self) -> None:
        """Wait until the stream is writable. Raises the reason if the driver has stopped."""
        await self._writable.wait()
        if self.stop_reason is not None:
            raise self.stop_reason

    def pause_reading(self) -> None:
        """Stop reading: the peer's sends stall, and its silence does not count as idleness."""
        self._is_reading_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if not self._is_pumping and self.connection.has_input:
            self._share.serve()
        self._update_reading()

    async def close(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the connection and wait until the stream has ended, up to ``timeout_s``.

        Cancellation: the stream still ends within ``timeout_s``.
        """
        self.start_closing(error, timeout_s=timeout_s)
        await self._closed.wait()

    def start_closing(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """``close`` without waiting."""
        if self.stop_reason is None and not self._is_closing:
            self._is_closing = True
            self.resume_reading()  # the peer's answer must be read
            self.connection.close(error)
            self.flush()
        self._abort_after(timeout_s)

    async def wait_closed(self) -> None:
        """Wait until the stream has ended; ``stop_reason`` is then set."""
        await self._closed.wait()

    # --- StreamReceiver ---

    def start(self, stream: ByteStream) -> None:
        """Attach to the stream. A client opens its connection."""
        self._stream = stream
        site = site_in(stream.peer_name)
        for share in (self._share, self._output_share):
            share.join(site)
        if self._budget is not None:
            self._account = self._budget.open_account(
                self._measure,
                address=site,
                end=self._end_for_memory,
                on_pressure=self._on_memory_pressure,
            )
        if self.connection.configuration.stranger_limits is None:
            stream.admit_peer()
        else:
            self._pass_bytes_max = STRANGER_PASS_BYTES
        if self.connection.role is Role.CLIENT:
            self.connection.open()
        self.flush()

    def data_received(self, data: memoryview) -> None:
        self.connection.feed_data(data, now=self.clock.monotonic())
        if self._turns is not None:
            self._count_read(len(data))
        self._share.serve()
        if self._share.is_waiting:
            self._update_reading()

    def held_changed(self) -> None:
        if self._account is not None:
            self._account.update()

    def eof_received(self) -> None:
        self._has_eof = True
        self._share.serve()

    def stream_ended(self, error: TidegateError | None) -> None:
        self._has_eof = self._has_stream_ended = True
        self._end_error = error
        if self._is_closing:
            self.connection.drop_input()  # its events are no longer read
        self._share.serve()

    def _end(self) -> None:
        """End the driver: all input is processed, and all events were delivered."""
        self._share.close()
        self._output_share.close()
        self._stop(BrokenError("The connection has ended."))
        for handle in (self._timer, self._abort_handle):
            if handle is not None:
                handle.cancel()
        self._timer = self._abort_handle = None
        if self._account is not None:
            self._account.close()
            self._account = None
        self._closed.set()
        if self._on_ended is not None:
            self._on_ended(self)
        # Break reference cycles: thousands of ending connections must not burden the garbage collector.
        self.on_event, self._on_ended = _ignore, None
        self.on_writable = self.on_turn = self.on_memory_pressure = None

    def writing_resumed(self) -> None:
        self._writable.set()
        self._is_stalled = False
        self._update_reading()
        if self.on_writable is not None and self.stop_reason is None:
            self._call(self.on_writable)
        self.flush()

    # --- helpers ---

    def _work(self) -> bool:
        """Process input and events, a piece of each in turn, then write once. Returns whether more is left
        when the time is over."""
        is_outer = not self._is_pumping
        self._is_pumping = True
        try:
            while self._do_piece() and not self._share.is_time_over:
                pass
        finally:
            self._is_pumping = not is_outer
        self._write()
        self._update_reading()
        return self._has_work

    @property
    def _has_work(self) -> bool:
        connection = self.connection
        return (
            self._is_deadline_due
            or connection.has_events
            or (connection.has_input and self._may_process)
            or (self._has_eof and not connection.is_finished)
            or (self._has_stream_ended and not self._closed.is_set())
        )

    @property
    def _may_process(self) -> bool:
        """Whether to process fed input: not while reading is paused, unless nothing more will be read."""
        return not (self._is_reading_paused or self._is_stalled) or self._has_eof

    def _do_piece(self) -> bool:
        """Process one piece. Returns False if there was none."""
        connection = self.connection
        if self._is_deadline_due:
            self._meet_deadline()
            return True
        if connection.has_events:
            event = connection.next_event()
            assert event is not None
            if isinstance(event, (ConnectionClosed, ConnectionFailed)):
                self._stop(self._reason_of(event))
            self._call(self.on_event, event)
            return True
        has_input = connection.has_input and self._may_process
        if has_input:
            connection.process_slice()
            return True
        if self._has_eof and not connection.is_finished:
            connection.receive_eof(now=self.clock.monotonic(), error=self._end_error)
            return True
        if self._has_stream_ended and not self._closed.is_set():
            self._end()
        return False

    def _work_output(self) -> bool:
        """Do the owner's work and write its output; returns whether more is left when the time is over."""
        is_outer = not self._is_pumping
        self._is_pumping = self._is_in_turn = True
        counted = unwritten = 0  # buffers whose bytes were added up, and these bytes
        try:
            while self._is_turn_wanted and self.stop_reason is None:
                self._is_turn_wanted = False
                self._call(self._take_turn)
                if self._output_share.is_time_over:
                    break
                output = self.connection.output
                unwritten += sum(map(len, output[counted:]))
                if unwritten >= TURN_BYTES_MAX:
                    self._write()  # so that ``is_writable`` is up to date before the owner sends more
                    unwritten = 0
                counted = len(output)
        finally:
            self._is_pumping, self._is_in_turn = not is_outer, False
        self.flush()
        return self._is_turn_wanted and self.stop_reason is None

    def _take_turn(self) -> None:
        if self.on_turn is not None and self.on_turn():
            self._is_turn_wanted = True

    def _count_read(self, size: int) -> None:
        if self._pass_number != self._share.pass_number:
            self._pass_number, self._pass_bytes = self._share.pass_number, 0
        self._pass_bytes += size

    def _write(self) -> None:
        """Write the engine's output, and apply the other effects of its state."""
        connection = self.connection
        stream = self._stream
        if stream is None:
            return
        if connection.has_data_to_send:
            stream.write(connection.data_to_send())
            if not stream.is_writable and self.stop_reason is None:
                self._writable.clear()
                self._is_stalled = connection.role is Role.SERVER
                self._update_reading()
        if connection.is_finished:
            stream.close()
            self._abort_after(CLOSE_TIMEOUT_S)
        else:
            self._arm_timer()
        if self._account is not None and not self._closed.is_set():
            self._account.update()

    def _measure(self) -> int:
        held = self.connection.held_bytes + self._owner_bytes
        return held if self._stream is None else held + self._stream.held_bytes

    def _on_memory_pressure(self, is_short: bool) -> Iterator[None]:
        if self._stream is not None:
            self._stream.limit_unsent(WRITE_HIGH_BYTES_SHORT if is_short else WRITE_HIGH_BYTES)
        for step in self.on_memory_pressure(is_short) if self.on_memory_pressure is not None else ():
            self._call(step)
            yield

    def _end_for_memory(self) -> None:
        """Abort the connection: its bytes wait for a peer that does not read, or does not finish a frame."""
        self.connection.abort(
            ResourceLimitError(
                "The service's memory for clients is exhausted, and this connection holds much of it.",
                next_step="Read faster, finish the messages that have begun, or connect again later.",
            )
        )
        stream = self._stream
        is_stalled = stream is not None and not stream.is_writable
        self.flush()
        # What a stream still holds would otherwise stay until the peer answers its close.
        if stream is not None and (is_stalled or stream.held_bytes > WRITE_HIGH_BYTES_SHORT):
            stream.abort()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call the owner's code; an exception ends the connection, not the event loop's callback."""
        try:
            function(*arguments)
        except Exception as exc:
            # The event's contents are not logged: they may hold a token, and have any size.
            kinds = ", ".join(type(argument).__name__ for argument in arguments)
            logger.exception("%r: handling %s failed", self, kinds or "its turn")
            failure = InternalFailureError(f"Handling an event failed: {type(exc).__name__}.")
            failure.__cause__ = exc
            self._stop(failure)
            self.connection.abort(failure)

    def _reason_of(self, event: ConnectionClosed | ConnectionFailed) -> TidegateError:
        if isinstance(event, ConnectionFailed):
            return event.error
        if self._is_closing:
            return ClosedError("The connection was closed.")
        if event.error is None:
            return BrokenError("The peer closed the connection.", next_step="Reconnect.")
        return BrokenError(
            f"The peer closed the connection: {event.error.condition}: {event.error.description or ''}",
            next_step="Reconnect.",
        )

    def _stop(self, reason: TidegateError) -> None:
        """Keep the first reason, and wake all waiters."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._writable.set()
        self._is_stalled = False

    def _update_reading(self) -> None:
        """Pause the stream if the owner asks or, as a server, while the peer does not read.

        A client always reads, so that two busy sides cannot block each other.
        """
        if self._stream is None:
            return
        is_held_back = self._is_reading_paused or self._is_stalled
        is_share_used = False
        if self._turns is not None and not is_held_back:
            if self._pass_bytes >= self._pass_bytes_max and self._pass_number == self._share.pass_number:
                is_share_used = True
                self._share.wait()
            else:
                is_share_used = self.connection.has_input
        is_paused = is_held_back or is_share_used
        if is_paused and not self._is_stream_paused:
            self._stream.pause_reading()
        elif self._is_stream_paused and not is_paused:
            self.connection.excuse_silence(now=self.clock.monotonic())
            self._stream.resume_reading()
        self._is_stream_paused = is_paused

    def _arm_timer(self) -> None:
        """Set the one timer to fire no later than the next deadline; firing early is harmless."""
        if self._timer is not None and self._is_timer_early:
            return
        # Once both sides have opened, time and frames only move deadlines to later.
        self._is_timer_early = self.connection.remote_open is not None
        deadline = self.connection.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self.clock.monotonic()), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._is_deadline_due = True
        self._share.serve()  # a peer chooses how often, and has thousands of connections

    def _meet_deadline(self) -> None:
        self._is_deadline_due = False
        now = self.clock.monotonic()
        if self._is_stream_paused:
            self.connection.excuse_silence(now=now)
        self.connection.handle_deadline(now=now)

    def _abort_after(self, timeout_s: float) -> None:
        """Abort the stream if it has not ended by then."""
        if self._abort_handle is None and self._stream is not None and not self._closed.is_set():
            self._abort_handle = self._loop.call_later(timeout_s, self._stream.abort)


class AmqpServer:
    """The connections of an AMQP service, on any number of listening sockets.

    Streams accepted elsewhere are passed to ``accept``.
    """

    def __init__(
        self,
        configuration: ConnectionConfiguration,
        *,
        clock: Clock,
        on_connection: Callable[[AmqpDriver], EventHandler],
        budget: MemoryBudget | None = None,
    ) -> None:
        """on_connection: gives each new driver its event handler, before its first event. budget: counts
        memory held for clients."""
        self.drivers: set[AmqpDriver] = set()
        """Connections that have not ended."""
        self.turns = Turns(
            monotonic=clock.monotonic, call_soon=lambda call: asyncio.get_running_loop().call_soon(call)
        )
        """Shared by all connections."""
        self._listeners: list[Listener] = []
        self._configuration = configuration
        self._clock = clock
        self._on_connection = on_connection
        self._budget = budget

    async def listen(
        self,
        host: str,
        port: int,
        *,
        ssl: ssl_module.SSLContext | None = None,
        admission: Admission | None = None,
    ) -> tuple[str, int]:
        """Listen for connections, and return the address and port; port 0: any free one.

        The time limit of the opening applies to TLS too. admission: limits connections, shared with HTTP;
        None: a separate one. Raises BrokenError if it cannot listen on the address.
        """
        listener = await serve_streams(
            host,
            port,
            ssl=ssl,
            on_connected=self.accept,
            turns=self.turns,
            handshake_timeout_s=self._configuration.handshake_timeout_s,
            admission=admission,
        )
        self._listeners.append(listener)
        return listener.addresses[0]

    def accept(self, stream: ByteStream) -> AmqpDriver:
        """Serve a client on a connected stream; pass what it reads to the returned driver."""
        # The time to open starts when the client connected, before its TLS handshake.
        age_s = stream.age_s
        now = self._clock.monotonic() - age_s
        connection = Connection(self._configuration, role=Role.SERVER, now=now)
        driver = AmqpDriver(
            connection,
            clock=self._clock,
            on_event=_ignore,
            on_ended=self.drivers.discard,
            budget=self._budget,
            turns=self.turns,
            age_s=age_s,
        )
        self.drivers.add(driver)
        driver.on_event = self._on_connection(driver)
        driver.start(stream)
        return driver

    @property
    def port(self) -> int:
        """The port of the first listening socket."""
        return self._listeners[0].addresses[0][1]

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners:
            listener.close()

    async def close(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop listening and close all connections; ``error`` defaults to ``amqp:connection:forced``.

        Cancellation: the remaining connections end within ``timeout_s``.
        """
        self.stop_listening()
        if error is None:
            error = Error(Symbol(CONNECTION_FORCED), "The service is shutting down.")
        drivers = tuple(self.drivers)
        for driver in drivers:
            driver.start_closing(error, timeout_s=timeout_s)
        for driver in drivers:
            await driver.wait_closed()
        for listener in self._listeners:
            await listener.wait_closed()


async def connect_amqp(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    configuration: ConnectionConfiguration,
    clock: Clock,
    on_event: EventHandler,
    is_websocket: bool = False,
    proxy: HttpProxy | None = None,
    timeout_s: float = 30.0,
) -> AmqpDriver:
    """Connect and start to open; ``ConnectionOpened`` follows through ``on_event``.

    is_websocket: whether the connection is one in HTTP. proxy: None connects directly, over a WebSocket
    through the one that the environment names, if any.
    Sessions may be begun and links attached immediately: their frames are pipelined after the open.
    Raises BrokenError and OperationTimeoutError as ``connect_stream`` and ``connect_websocket`` do.
    Cancellation: nothing stays open.
    """
    connection = Connection(configuration, role=Role.CLIENT, now=clock.monotonic())
    driver = AmqpDriver(connection, clock=clock, on_event=on_event)

    def on_connected(stream: ByteStream) -> AmqpDriver:
        driver.start(stream)
        return driver

    if is_websocket:
        # Imported here: it takes longer than all else that a client imports.
        from tidegate.transport.websocket_client import connect_websocket

        await connect_websocket(
            host, port, ssl=ssl, on_connected=on_connected, proxy=proxy, timeout_s=timeout_s
        )
    else:
        await connect_stream(host, port, ssl=ssl, on_connected=on_connected, proxy=proxy, timeout_s=timeout_s)
    return driver


def _ignore(event: Event) -> None:
    """Handles events of a driver without an owner: there are none."""

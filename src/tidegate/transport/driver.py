"""One AMQP engine on one byte stream: reads into it, events out of it, one write per turn, one timer.

    stream.data_received -> Connection.receive_data -> on_event (each event, synchronously)
                         -> Connection.data_to_send -> stream.write (once)

Commands to the engine (``link.send…``, ``session.end`` …) go out with the next ``flush``; inside ``on_event``
that follows by itself. The first reason to stop is kept and given to everyone who waits.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Callable
from typing import Final

from tidegate.amqp.connection import Connection, ConnectionConfiguration, Role
from tidegate.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, ResourceLimitError
from tidegate.amqp.events import ConnectionClosed, ConnectionFailed, Event
from tidegate.amqp.performatives import Error
from tidegate.amqp.types import Symbol
from tidegate.model.clock import Clock
from tidegate.model.errors import BrokenError, ClosedError, TidegateError
from tidegate.transport.admission import Admission
from tidegate.transport.listener import Listener
from tidegate.transport.memory import MemoryAccount, MemoryBudget
from tidegate.transport.streams import (
    WRITE_HIGH_BYTES,
    WRITE_HIGH_BYTES_SHORT,
    ByteStream,
    SocketStream,
    connect_stream,
    serve_streams,
)

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a peer may take to answer our close, or to read what is left for it (our choice)."""

EventHandler = Callable[[Event], None]
"""Takes one event; called from the event loop; must not block."""


class InternalFailureError(TidegateError):
    """Code of ours raised while it handled an event: the connection was closed, the cause is chained."""

    condition: Final = INTERNAL_ERROR


class AmqpDriver:
    """Drives one ``Connection``. Made by ``connect_amqp`` and ``serve_amqp``."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        on_event: EventHandler,
        on_writable: Callable[[], None] | None = None,
        on_ended: Callable[[AmqpDriver], None] | None = None,
        budget: MemoryBudget | None = None,
        age_s: float = 0.0,
    ) -> None:
        """on_ended: called once, after the stream has ended and all events are out. budget: counts what is
        held for the peer; None: nobody counts. age_s: seconds since the peer has connected."""
        self.connection = connection
        self.clock = clock
        self.on_event = on_event
        self.on_writable = on_writable
        """Called when the stream takes more again after it did not; None: nobody minds."""
        self._on_ended = on_ended
        self.on_memory_pressure: Callable[[bool], None] | None = None
        """Called when memory becomes short, and when it no longer is; None: nobody minds."""
        self.stop_reason: TidegateError | None = None
        """Why this driver stopped; None while it runs. ClosedError after ``close``."""
        self._stream: ByteStream | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._abort_handle: asyncio.TimerHandle | None = None
        self._is_pumping = False
        self._is_closing = False
        self._is_reading_paused = False  # by the owner
        self._is_stream_paused = False
        self._owner_bytes = 0
        self._budget = budget
        self._account: MemoryAccount | None = None
        self.age_s = age_s
        """Seconds between the peer's connecting and this driver's beginning: a TLS handshake."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AmqpDriver {self.peer_name} {self.connection!r}>"

    # --- for the owner ---

    @property
    def peer_name(self) -> str:
        """Who is at the other end, for logs."""
        return self._stream.peer_name if self._stream is not None else "?"

    @property
    def is_writable(self) -> bool:
        """Whether the stream takes more without piling it up."""
        return self._stream is not None and self._stream.is_writable

    def add_held(self, change: int) -> None:
        """Count bytes that the owner holds for the peer and that only the peer can free."""
        self._owner_bytes += change

    def admit_peer(self) -> None:
        """The peer has proved who it is: the limits of strangers no longer hold for it."""
        self.connection.admit_peer()
        if self._stream is not None:
            self._stream.admit_peer()

    def flush(self) -> None:
        """Hand out events and write what the engine has to send. Inside ``on_event`` it happens by itself."""
        if self._is_pumping:
            return
        self._pump()

    async def wait_writable(self) -> None:
        """Wait until the stream takes more.

        Raises the reason why the driver stopped, if it did.
        """
        await self._writable.wait()
        if self.stop_reason is not None:
            raise self.stop_reason

    def pause_reading(self) -> None:
        """Read nothing more for now: the peer's sends stall, and its silence does not count as idleness."""
        self._is_reading_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_reading_paused = False
        self._update_reading()

    async def close(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the connection and wait until the stream has ended; at the latest after ``timeout_s``.

        Cancellation: the stream ends all the same, after ``timeout_s`` at the latest.
        """
        self.start_closing(error, timeout_s=timeout_s)
        await self._closed.wait()

    def start_closing(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """``close`` without the wait."""
        if self.stop_reason is None and not self._is_closing:
            self._is_closing = True
            self.resume_reading()  # the peer's answer must come through
            self.connection.close(error)
            self.flush()
        self._abort_after(timeout_s)

    async def wait_closed(self) -> None:
        """Wait until the stream has ended; ``stop_reason`` then says why."""
        await self._closed.wait()

    # --- StreamReceiver ---

    def start(self, stream: ByteStream) -> None:
        """Take the stream over. A client opens its connection."""
        self._stream = stream
        if self._budget is not None:
            self._account = self._budget.open_account(
                self._measure, end=self._end_for_memory, on_pressure=self._on_memory_pressure
            )
        if self.connection.role is Role.CLIENT:
            self.connection.open()
        self._pump()

    def data_received(self, data: memoryview) -> None:
        """Bytes from the stream."""
        self.connection.receive_data(data, now=self.clock.monotonic())
        self._pump()

    def eof_received(self) -> None:
        """The peer sends no more."""
        self.connection.receive_eof(now=self.clock.monotonic())
        self._pump()

    def stream_ended(self, error: TidegateError | None) -> None:
        """The stream has ended."""
        self.connection.receive_eof(now=self.clock.monotonic(), error=error)
        self._pump()
        self._stop(BrokenError("The connection has ended."))
        for handle in (self._timer, self._abort_handle):
            if handle is not None:
                handle.cancel()
        self._timer = self._abort_handle = None
        if self._account is not None:
            self._account.close()
        self._closed.set()
        if self._on_ended is not None:
            self._on_ended(self)

    def writing_resumed(self) -> None:
        """The stream takes more again."""
        self._writable.set()
        self._update_reading()
        if self.on_writable is not None and self.stop_reason is None:
            self._call(self.on_writable)
        self._pump()

    # --- helpers ---

    def _pump(self) -> None:
        """Events out, then one write, until neither makes more of the other."""
        connection = self.connection
        self._is_pumping = True
        try:
            event = connection.next_event()
            while event is not None:
                if isinstance(event, (ConnectionClosed, ConnectionFailed)):
                    self._stop(self._reason_of(event))
                self._call(self.on_event, event)
                event = connection.next_event()
        finally:
            self._is_pumping = False
        stream = self._stream
        if stream is None:
            return
        if connection.has_data_to_send:
            stream.write(connection.data_to_send())
            if not stream.is_writable and self.stop_reason is None:
                self._writable.clear()
                self._update_reading()
        if connection.is_finished:
            stream.close()
            self._abort_after(CLOSE_TIMEOUT_S)
        else:
            self._arm_timer()
        if self._account is not None:
            self._account.update()

    def _measure(self) -> int:
        held = self.connection.held_bytes + self._owner_bytes
        return held if self._stream is None else held + self._stream.held_bytes

    def _on_memory_pressure(self, is_short: bool) -> None:
        if self._stream is not None:
            self._stream.limit_unsent(WRITE_HIGH_BYTES_SHORT if is_short else WRITE_HIGH_BYTES)
        if self.on_memory_pressure is not None:
            self._call(self.on_memory_pressure, is_short)

    def _end_for_memory(self) -> None:
        """Give the peer up at once: what is unsent waits for a peer that does not read."""
        self.connection.abort(
            ResourceLimitError(
                "The service holds as much in memory for its clients as it may, and much of it for this one.",
                next_step="Read faster, finish the messages that have begun, or connect again later.",
            )
        )
        stream = self._stream
        is_stalled = stream is not None and not stream.is_writable
        self.flush()
        if stream is not None and is_stalled:
            stream.abort()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call code of the owner; what it raises ends the connection, not the event loop's callback."""
        try:
            function(*arguments)
        except Exception as exc:
            logger.exception("%r: handling %r failed", self, arguments)
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
        """Keep the first reason, and let everyone go who waits."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._writable.set()

    def _update_reading(self) -> None:
        """Pause the stream if the owner wants it, or, as a server, while the peer does not read.

        A client always reads: so whichever way both are busy, one side moves on.
        """
        if self._stream is None:
            return
        is_stalled = self.connection.role is Role.SERVER and not self._writable.is_set()
        is_paused = self._is_reading_paused or is_stalled
        if is_paused and not self._is_stream_paused:
            self._stream.pause_reading()
        elif self._is_stream_paused and not is_paused:
            self.connection.excuse_silence(now=self.clock.monotonic())
            self._stream.resume_reading()
        self._is_stream_paused = is_paused

    def _arm_timer(self) -> None:
        """Have the one timer fire no later than the next deadline; too early does no harm."""
        deadline = self.connection.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self.clock.monotonic()), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        now = self.clock.monotonic()
        if self._is_stream_paused:
            self.connection.excuse_silence(now=now)
        self.connection.handle_deadline(now=now)
        self._pump()

    def _abort_after(self, timeout_s: float) -> None:
        """End the stream the hard way if it has not ended by then."""
        if self._abort_handle is None and self._stream is not None and not self._closed.is_set():
            self._abort_handle = self._loop.call_later(timeout_s, self._stream.abort)


class AmqpServer:
    """A listening socket and the drivers of its connections. Made by ``serve_amqp``.

    Or without a socket: then ``accept`` is given the streams that came in elsewhere.
    """

    def __init__(
        self,
        configuration: ConnectionConfiguration,
        *,
        clock: Clock,
        on_connection: Callable[[AmqpDriver], EventHandler],
        budget: MemoryBudget | None = None,
    ) -> None:
        """on_connection: gives each new driver its event handler, before its first event. budget: counts what
        is held for clients."""
        self.drivers: set[AmqpDriver] = set()
        """Connections that have not ended."""
        self.listener: Listener | None = None
        self._configuration = configuration
        self._clock = clock
        self._on_connection = on_connection
        self._budget = budget

    def accept(self, stream: ByteStream) -> AmqpDriver:
        """Serve a client on a stream that is up; give what it reads to the driver that is returned."""
        # Time to open counts from when the client connected, before its TLS handshake.
        age_s = stream.age_s
        now = self._clock.monotonic() - age_s
        connection = Connection(self._configuration, role=Role.SERVER, now=now)
        driver = AmqpDriver(
            connection,
            clock=self._clock,
            on_event=_ignore,
            on_ended=self.drivers.discard,
            budget=self._budget,
            age_s=age_s,
        )
        self.drivers.add(driver)
        driver.on_event = self._on_connection(driver)
        driver.start(stream)
        return driver

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each listening socket; empty once closed."""
        return self.listener.addresses if self.listener is not None else []

    @property
    def port(self) -> int:
        """The port of the first listening socket."""
        return self.addresses[0][1]

    async def close(self, error: Error | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop listening and close all connections, with ``amqp:connection:forced`` unless told otherwise.

        Cancellation: connections that are not closed by then end within ``timeout_s``.
        """
        if self.listener is not None:
            self.listener.close()
        if error is None:
            error = Error(Symbol(CONNECTION_FORCED), "The service is shutting down.")
        drivers = tuple(self.drivers)
        for driver in drivers:
            driver.start_closing(error, timeout_s=timeout_s)
        for driver in drivers:
            await driver.wait_closed()
        if self.listener is not None:
            await self.listener.wait_closed()


async def connect_amqp(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    configuration: ConnectionConfiguration,
    clock: Clock,
    on_event: EventHandler,
    server_name: str | None = None,
    timeout_s: float = 30.0,
) -> AmqpDriver:
    """Connect and start to open; ``ConnectionOpened`` follows through ``on_event``.

    Sessions may be begun and links attached at once: their frames are pipelined behind the open.
    Raises BrokenError and OperationTimeoutError as ``connect_stream`` does. Cancellation: nothing stays open.
    """
    connection = Connection(configuration, role=Role.CLIENT, now=clock.monotonic())
    driver = AmqpDriver(connection, clock=clock, on_event=on_event)

    def on_connected(stream: SocketStream) -> AmqpDriver:
        driver.start(stream)
        return driver

    await connect_stream(
        host, port, ssl=ssl, on_connected=on_connected, server_name=server_name, timeout_s=timeout_s
    )
    return driver


async def serve_amqp(
    host: str,
    port: int,
    *,
    ssl: ssl_module.SSLContext | None,
    configuration: ConnectionConfiguration,
    clock: Clock,
    on_connection: Callable[[AmqpDriver], EventHandler],
    budget: MemoryBudget | None = None,
    admission: Admission | None = None,
) -> AmqpServer:
    """Listen for AMQP connections; port 0: any free one. A TLS handshake may take as long as the opening.

    on_connection: gives each new driver its event handler, before its first event. budget: counts what is
    held for clients. admission: limits connections, with those of other faces; None: of its own.
    Raises BrokenError when the address cannot be listened on.
    """
    server = AmqpServer(configuration, clock=clock, on_connection=on_connection, budget=budget)
    server.listener = await serve_streams(
        host,
        port,
        ssl=ssl,
        on_connected=server.accept,
        handshake_timeout_s=configuration.handshake_timeout_s,
        admission=admission,
    )
    return server


def _ignore(event: Event) -> None:
    """Handles the events of a driver that has no owner yet: there are none."""

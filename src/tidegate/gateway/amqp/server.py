"""The AMQP service: listeners, and the connections that they or the HTTP service accept.

Each connection is a ``ConnectionHandler`` over an engine and a driver. ``close`` stops listening, lets every
connection finish what it has sent, and aborts those that do not end in time.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.limits import PeerLimits
from tidegate.broker import Broker
from tidegate.gateway.amqp.connection_handler import ConnectionHandler
from tidegate.gateway.amqp.idle_guard import IdleLimits
from tidegate.gateway.amqp.management import ManagementService
from tidegate.gateway.counts import ConnectionCounts
from tidegate.model.capture import CaptureStatistics
from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError
from tidegate.model.limits import EVENT_BYTES_MAX
from tidegate.transport.admission import Admission
from tidegate.transport.driver import AmqpDriver, AmqpServer, EventHandler
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork, Visits
from tidegate.transport.streams import ByteStream, StreamReceiver
from tidegate.transport.tasks import Cancellations, TaskOwner

_PEER_LIMITS = PeerLimits(
    performative_bytes_max=16 * 1024, partial_bytes_max=4 * EVENT_BYTES_MAX, links_max=5000
)
"""For authenticated clients. Our choice: attaches of official clients take less than 2 KB; four of the
largest batches may be incomplete; and a connection can send to and receive from 1,024 partitions, with a
session per link as the official JavaScript client has it (rhea-promise 3, connection.ts, ``createReceiver``),
so neither 256 links nor 64 sessions would do."""

_STRANGER_LIMITS = PeerLimits(
    frame_bytes_max=16 * 1024,
    performative_bytes_max=4 * 1024,
    partial_bytes_max=64 * 1024,
    frames_per_s_max=200,
)
"""For clients without a token. Our choice: a token of any kind takes a few KB, and about eight frames."""

_UNACKNOWLEDGED_BYTES_TOTAL = 16 * 1024 * 1024
_UNACKNOWLEDGED_BYTES_MIN = 64 * 1024
"""Received bytes that are not durable yet: of all connections, and what each may have anyway (our choice)."""

_RESUMED_AT_ONCE = 8
"""Connections that resume reading in one turn of the event loop (our choice: half a megabyte)."""

_log = logging.getLogger(__name__)


class AmqpGateway:
    """The AMQP service of a broker; call ``listen`` for each port, and ``close`` once."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        unacknowledged_bytes_max: int,
        idle_limits: IdleLimits = IdleLimits(),  # noqa: B008 - frozen, therefore safe to share
        budget: MemoryBudget | None = None,
        admission: Admission | None = None,
        capture_statistics: Callable[[], Mapping[str, CaptureStatistics]] = dict,
    ) -> None:
        """unacknowledged_bytes_max: received bytes of one connection that are not durable yet; beyond it,
        reading pauses. idle_limits: how long a connection may be unused. budget: counts memory held for
        clients; None: without a limit. admission: limits connections, shared with HTTP; None: its own.
        capture_statistics: of each hub that is captured now, by name."""
        self.broker = broker
        self.clock = clock
        self.idle_limits = idle_limits
        self.admission = admission or Admission()
        self.budget = MemoryBudget(sys.maxsize) if budget is None else budget
        self._connection_unacknowledged_bytes_max = unacknowledged_bytes_max
        self._unacknowledged_bytes = 0
        self._tasks = TaskOwner("AMQP gateway")
        self.cancellations = Cancellations()
        configuration = ConnectionConfiguration(
            container_id=f"tidegate-{uuid.uuid4().hex}",
            # Twice the largest batch, for what a client wraps around it.
            message_bytes_max=2 * EVENT_BYTES_MAX,
            peer_limits=_PEER_LIMITS,
            stranger_limits=_STRANGER_LIMITS,
            handshake_timeout_s=idle_limits.unauthorized_s,
            properties={"product": "Tidegate"},
        )
        self._server = AmqpServer(
            configuration, clock=clock, on_connection=self._on_connection, budget=self.budget
        )
        self.turns = self._server.turns
        """The turns in which connections are served."""
        self.sliced_work = SlicedWork(self.turns, self.budget)
        """Runs long work of all clients, whatever their protocol."""
        self.capture_statistics = capture_statistics
        self.management = ManagementService(broker, self.sliced_work, capture_statistics)
        self._is_stopping = False
        self._opened_connections = 0
        self._handlers: set[ConnectionHandler] = set()
        visits = Visits(lambda: self._handlers, lambda handler: handler.on_rights_changed())
        self._stop_visits = broker.authorizer.add_change_listener(visits.start)
        self._is_waiting_for_disk = False
        self._waiting_for_disk: dict[ConnectionHandler, None] = {}
        self._all_over = asyncio.Event()

    async def listen(
        self, host: str, port: int, *, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Accept connections, with TLS if a context is given; returns the bound address and port.

        port: 0: any free one. Raises BrokenError if the address cannot be used.
        """
        return await self._server.listen(host, port, ssl=ssl_context, admission=self.admission)

    def accept(self, stream: ByteStream) -> StreamReceiver:
        """Serve a client over another stream: a WebSocket. Raises ClosedError after ``close``."""
        if self._is_stopping:
            raise ClosedError("The service is stopping.", next_step="Connect again later.")
        return self._server.accept(stream)

    def connection_counts(self) -> ConnectionCounts:
        """Connections over all transports, since the start and now."""
        return ConnectionCounts(self._opened_connections, len(self._handlers))

    async def close(self, *, drain_timeout_s: float = 5.0) -> None:
        """Stop listening and end all connections, each once what it has sent is durable and acknowledged.

        drain_timeout_s: then the remaining connections are closed. Cancellation: remaining connections still
        end.
        """
        self._is_stopping = True
        self._server.stop_listening()
        self._all_over.clear()
        for handler in list(self._handlers):
            handler.stop()
        if self._handlers:
            try:
                async with asyncio.timeout(drain_timeout_s):
                    await self._all_over.wait()
            except TimeoutError:
                _log.warning("%d connections did not end in time and are cut off", len(self._handlers))
        await self._server.close(timeout_s=1.0)
        self._stop_visits()
        await self._tasks.close()

    # -- for connections (``connection_handler.ConnectionOwner``)

    def on_connection_over(self, handler: ConnectionHandler) -> None:
        """The connection is gone."""
        self._handlers.discard(handler)
        self._waiting_for_disk.pop(handler, None)
        if not self._handlers:
            self._all_over.set()

    @property
    def unacknowledged_bytes_max(self) -> int:
        """Received bytes of one connection that may be not durable yet: as much as is left for all others.

        So N busy connections share the total in N + 1 parts, one of them free (dynamic thresholds: Choudhury
        and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
        """
        free = _UNACKNOWLEDGED_BYTES_TOTAL - self._unacknowledged_bytes
        return max(_UNACKNOWLEDGED_BYTES_MIN, min(self._connection_unacknowledged_bytes_max, free))

    def add_unacknowledged(self, change: int) -> None:
        """Count received bytes of all connections that are not durable yet."""
        self._unacknowledged_bytes += change
        self.budget.add_queued(change)

    def on_congestion(self, handler: ConnectionHandler) -> None:
        """The disk is behind: call ``resume_reading`` once it has caught up, in order of calls."""
        self._waiting_for_disk[handler] = None
        if not self._is_waiting_for_disk:
            self._is_waiting_for_disk = True
            self._tasks.start(self._resume_after_congestion(), name="wait for the disk")

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work that waits; it is completed even if the connection ends, unless the caller cancels it."""
        return self._tasks.start(work, name=name)

    def _on_connection(self, driver: AmqpDriver) -> EventHandler:
        handler = ConnectionHandler(self, age_s=driver.age_s)
        handler.attach_driver(driver, driver.connection)
        driver.on_writable = handler.on_writable
        driver.on_turn = handler.on_turn
        driver.on_memory_pressure = handler.on_memory_pressure
        self._handlers.add(handler)
        self._opened_connections += 1
        return handler.on_event

    async def _resume_after_congestion(self) -> None:
        try:
            while self._waiting_for_disk:
                await self.broker.wait_uncongested()
                await self._resume_some()
        finally:
            self._is_waiting_for_disk = False

    async def _resume_some(self) -> None:
        """Let connections read again, a few per turn of the event loop: their bytes must count before more
        read, or hundreds would queue megabytes each turn."""
        while self._waiting_for_disk and not self.broker.is_congested:
            for handler in list(self._waiting_for_disk)[:_RESUMED_AT_ONCE]:
                del self._waiting_for_disk[handler]
                handler.resume_reading()
            await asyncio.sleep(0)

"""Accepting connections: each is asked for a ticket before anything is spent on it.

Instead of ``loop.create_server``: asyncio accepts up to its whole backlog in one turn of the loop and makes a
transport for each before it can be refused; uvloop without descriptors accepts and drops connections, or
closes the listening socket for good (libuv ``uv__emfile_trick``). Here a refused connection costs an
``accept`` and a ``close``, and where the system has no descriptor accepting resumes PAUSE_S later.

The system's queue is in order of arrival: a client behind a thousand others waits for them all.
So a turn of the event loop takes ACCEPTS_PER_TURN out of it, which is quick, and begins CONNECTS_PER_TURN,
one of each address after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl as ssl_module
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from tidegate.transport.admission import Admission, Face, Refusal, Ticket
from tidegate.transport.peers import parse_address, site_of
from tidegate.transport.tasks import TaskOwner

ACCEPTS_PER_TURN: Final = 64
"""Our choice: some milliseconds of work, as each is about 0.05 ms."""

CONNECTS_PER_TURN: Final = 4
"""Our choice: some milliseconds of work, as each is 0.3 ms until it is up."""

PAUSE_S: Final = 0.25
"""Our choice: until accepting is tried again after the system gave no descriptor."""

REFUSALS_TOLD_EVERY_S: Final = 10.0
"""Our choice: one line of the log for all refusals of a while."""

BACKLOG: Final = 1024

_logger = logging.getLogger(__name__)


class Listener:
    """Listening sockets of AMQP or HTTP. ``close`` it; existing connections stay."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[Ticket], asyncio.BaseProtocol],
        *,
        admission: Admission,
        face: Face,
        ssl: ssl_module.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> None:
        """make_protocol: of a connection that has a ticket, which it ends when the connection is lost.

        ssl: has the event loop speak TLS; None where the protocol does it, or there is no TLS. HTTP
        connections over the limits are admitted as Face.HEALTH where there is room for that.
        """
        self.sockets = tuple(sockets)
        self._make_protocol = make_protocol
        self._admission = admission
        self._face = face
        self._ssl = ssl
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(f"listener for {face.value}")
        self._waiting: OrderedDict[object, deque[tuple[socket.socket, Ticket]]] = OrderedDict()
        """Accepted, without a protocol yet; by site, the next one first."""
        self._is_connecting = False
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._refused: Counter[Refusal] = Counter()
        self._telling: asyncio.TimerHandle | None = None
        self._is_closed = False
        for listening in self.sockets:
            listening.setblocking(False)
            self._loop.add_reader(listening, self._on_readable, listening)

    def __repr__(self) -> str:
        return f"<Listener {self._face.value} {[each.getsockname() for each in self.sockets]}>"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each listening socket; empty once closed."""
        if self._is_closed:
            return []
        names = [listening.getsockname() for listening in self.sockets]
        return [(str(name[0]), int(name[1])) for name in names]

    def close(self) -> None:
        """Accept no more. Harmless twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for pause in self._pauses.values():
            pause.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for accepted, ticket in chain.from_iterable(self._waiting.values()):
            accepted.close()
            ticket.end()
        self._waiting.clear()
        if self._telling is not None:
            self._telling.cancel()
            self._tell()

    async def wait_closed(self) -> None:
        """Give up connections whose protocol is not made yet; call ``close`` first."""
        await self._tasks.close()

    def _on_readable(self, listening: socket.socket) -> None:
        self._accept(listening)
        if not self._is_connecting:
            self._connect_next()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client has given up already
            except OSError as error:
                self._pause(listening, error)
                return
            self._on_accepted(accepted, address)

    def _on_accepted(self, accepted: socket.socket, address: object) -> None:
        accepted.setblocking(False)
        # asyncio leaves that to the socket's maker.
        with contextlib.suppress(OSError):  # macOS: the client has given up already
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host = parse_address(address[0] if isinstance(address, tuple) else None)
        now, descriptor = self._loop.time(), accepted.fileno()
        displaced = self._admission.displaced
        ticket = self._admission.admit(host, self._face, now=now, descriptor=descriptor)
        if isinstance(ticket, Refusal):
            self._note_refusal(ticket, address)
            if self._face is Face.HTTP:
                ticket = self._admission.admit(host, Face.HEALTH, now=now, descriptor=descriptor)
            if isinstance(ticket, Refusal):
                accepted.close()
                return
        if self._admission.displaced > displaced:
            self._note_refusal(Refusal.DISPLACED, "others")
        ticket.close = accepted.close
        site = None if host is None else site_of(host)
        self._waiting.setdefault(site, deque()).append((accepted, ticket))

    def _connect_next(self) -> None:
        """Begin some of the connections that wait, one of each site after the other."""
        for _ in range(CONNECTS_PER_TURN):
            if not self._waiting:
                return
            site, queue = self._waiting.popitem(last=False)
            accepted, ticket = queue.popleft()
            if queue:
                self._waiting[site] = queue
            task = self._tasks.start(self._connect(accepted, ticket), name="connect")
            task.add_done_callback(partial(_end_unless_done, ticket))
        self._is_connecting = True
        self._loop.call_soon(self._connect_more)

    def _connect_more(self) -> None:
        self._is_connecting = False
        self._connect_next()

    async def _connect(self, accepted: socket.socket, ticket: Ticket) -> None:
        """Have the event loop carry the connection, and TLS where it does that."""
        if accepted.fileno() < 0:
            return  # displaced before it began
        task = asyncio.current_task()
        assert task is not None
        # Without TLS there is a transport in the next turn of the loop, and with it something to abort.
        ticket.close = _do_nothing if self._ssl is None else task.cancel
        timeout_s = None if self._ssl is None else self._handshake_timeout_s
        try:
            protocol = self._make_protocol(ticket)
        except BaseException:
            accepted.close()  # no other owner yet
            raise
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._ssl,
                ssl_handshake_timeout=timeout_s,
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            _logger.info("A connection ended before it began: %s.", error)
            ticket.end()
        else:
            ticket.close = transport.abort
            if ticket.has_ended:
                transport.abort()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """The system gives no descriptor: come again when it may."""
        _logger.warning("No connection can be accepted: %s. Trying again.", error.strerror or error)
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._on_readable, listening)

    def _note_refusal(self, refusal: Refusal, address: object) -> None:
        """Log the first refusal at once, and then how many there are in a while."""
        if self._telling is None:
            _logger.warning("A connection of %s was refused or ended: %s.", address, refusal.words)
            self._telling = self._loop.call_later(REFUSALS_TOLD_EVERY_S, self._tell)
        else:
            self._refused[refusal] += 1

    def _tell(self) -> None:
        self._telling = None
        refused, self._refused = self._refused, Counter()
        if refused:
            reasons = "; ".join(f"{count}: {refusal.words}" for refusal, count in refused.most_common())
            _logger.warning("%d more connections were refused or ended. %s.", refused.total(), reasons)
            if not self._is_closed:
                self._telling = self._loop.call_later(REFUSALS_TOLD_EVERY_S, self._tell)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A listening socket on each address of ``host``. Port 0: any free one, of each.

    Raises OSError when an address cannot be listened on.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                # A system without IPv6 may still have a name for its loopback address.
                if error.errno != errno.EAFNOSUPPORT or not sockets:
                    raise
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _end_unless_done(ticket: Ticket, task: asyncio.Task[None]) -> None:
    """Give the place back where the connection was given up, or our own code failed."""
    if task.cancelled() or task.exception() is not None:
        ticket.end()


def _do_nothing() -> None:
    """Ends a connection that is not there yet."""

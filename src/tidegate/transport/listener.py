"""Accepts connections; each needs a ticket before anything is allocated for it.

Replaces ``loop.create_server``: asyncio accepts up to its whole backlog in one turn of the loop and creates a
transport for each before it can be refused; uvloop, out of descriptors, accepts and drops connections, or
closes the listening socket for good (libuv ``uv__emfile_trick``). Here a refused connection costs an
``accept`` and a ``close``, and when descriptors run out, accepting resumes PAUSE_S later.

The system's queue is in order of arrival, so a client behind a thousand others waits for all of them.
Therefore each turn of the event loop accepts ACCEPTS_PER_TURN connections, which is quick, and connects
CONNECTS_PER_TURN of them, alternating between addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from tidegate.transport.admission import Admission, Face, Refusal, Ticket
from tidegate.transport.peers import parse_address, site_of
from tidegate.transport.tasks import TaskOwner

ACCEPTS_PER_TURN: Final = 64
"""Our choice: some milliseconds of work, at about 0.05 ms each."""

CONNECTS_PER_TURN: Final = 4
"""Our choice: some milliseconds of work, at 0.3 ms until each is connected."""

PAUSE_S: Final = 0.25
"""Our choice: the pause before accepting again when the system has no descriptor."""

REFUSALS_TOLD_EVERY_S: Final = 10.0
"""Our choice: the interval of log lines about refusals."""

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
    ) -> None:
        """make_protocol: for a connection with a ticket, which the protocol ends when the connection is lost;
        it does TLS (``tls``). HTTP connections over the limits are admitted as Face.HEALTH while there is
        room for that.
        """
        self.sockets = tuple(sockets)
        self._make_protocol = make_protocol
        self._admission = admission
        self._face = face
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(f"listener for {face.value}")
        self._waiting: OrderedDict[object, deque[tuple[socket.socket, Ticket]]] = OrderedDict()
        """Accepted, without a protocol yet; by site, in the order of their turns."""
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
        """Stop accepting. Repeated calls do nothing."""
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
        """Close connections that have no protocol yet; call ``close`` first."""
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
                continue  # the client has already disconnected
            except OSError as error:
                self._pause(listening, error)
                return
            self._on_accepted(accepted, address)

    def _on_accepted(self, accepted: socket.socket, address: object) -> None:
        accepted.setblocking(False)
        # asyncio leaves this to the socket's creator.
        with contextlib.suppress(OSError):  # macOS: the client has already disconnected
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
        """Connect some of the waiting connections, alternating between sites."""
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
        """Create the event loop's transport."""
        if accepted.fileno() < 0:
            return  # displaced before it started
        ticket.close = lambda: None  # the transport exists in the next turn of the loop
        try:
            protocol = self._make_protocol(ticket)
        except BaseException:
            accepted.close()  # no other owner yet
            raise
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError as error:
            _logger.info("A connection ended before it began: %s.", error)
            ticket.end()
        else:
            ticket.close = transport.abort
            if ticket.has_ended:
                transport.abort()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Out of descriptors: accept again after PAUSE_S."""
        _logger.warning("No connection can be accepted: %s. Trying again.", error.strerror or error)
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._on_readable, listening)

    def _note_refusal(self, refusal: Refusal, address: object) -> None:
        """Log the first refusal immediately, later ones as a count per interval."""
        if self._telling is None:
            _logger.warning("A connection from %s was refused or ended: %s.", address, refusal.words)
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
    """A listening socket on each address of ``host``. Port 0: any free one for each.

    Raises OSError if it cannot listen on an address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                # A system without IPv6 may still resolve its loopback name to ::1.
                if error.errno != errno.EAFNOSUPPORT or not sockets:
                    raise
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _end_unless_done(ticket: Ticket, task: asyncio.Task[None]) -> None:
    """End the ticket if the connection attempt was cancelled or our code failed."""
    if task.cancelled() or task.exception() is not None:
        ticket.end()

"""Which connections the service holds at a time: in total, per address, and without a token.

Pure: no sockets, and the time is passed in. Theory of operation: each connection that is accepted has a
``Ticket``, whatever it speaks, and keeps it until it ends (a WebSocket that of its HTTP request).

    all tickets                    connections_max; per address connections_per_address_max
    without a token, AMQP | HTTP   connections_without_token_max each; per address
                                   connections_without_token_per_address_max
    HTTP beyond its limits         health_max more, which may only ask for /health

A ticket *waits* while its peer has not said what it wants: over AMQP until a token was accepted, over HTTP
while no complete request is there (without a token: its body included). Where a limit is reached, one that
waits makes room: the one that has waited longest, of the address that has most of them. So a client that
opens many connections and says nothing loses its own, not those of others. Over AMQP a newcomer displaces
none of its own address that came less than GRACE_S ago: otherwise a fleet of devices that reconnects would
never get through a handshake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tidegate.transport.peers import IpAddress, TrustedProxies, site_of

GRACE_S: Final = 2.0
"""How long an AMQP connection may have no token before others of its address take its place (our choice: four
round trips at 500 ms, which TLS, SASL and a token need)."""

CONNECTIONS_MAX_DEFAULT: Final = 20_000
PER_ADDRESS_MAX_DEFAULT: Final = 5_000
"""What Azure's standard tier allows a whole namespace ("Event Hubs quotas and limits", brokered connections):
a site behind one address is hardly larger, and four of them fit."""
WITHOUT_TOKEN_MAX_DEFAULT: Final = 1_000
WITHOUT_TOKEN_PER_ADDRESS_MAX_DEFAULT: Final = 100

_DESCRIPTORS_RESERVED: Final = 416
"""256 for segments that are read (``LogOptions.open_segments_max``), 32 for ``/health``, 128 for other files
or sockets: listening, Capture, the console's database (our choice)."""
_DESCRIPTORS_PER_PARTITION: Final = 2
"""Its segment open for writing, and a file that replaces another."""

TICKET: Final = "ticket"
"""Where the ``state`` of an ASGI request's scope has the ``Ticket`` of its connection."""


class Face(Enum):
    """What a connection speaks."""

    AMQP = "amqp"
    """Over TCP, TLS or WebSocket."""
    HTTP = "http"
    HEALTH = "health"
    """HTTP that is only answered what ``/health`` says."""


class Refusal(Enum):
    """Why a connection is not, or no longer, held."""

    DESCRIPTORS = "descriptors"
    """Those that are left are the log's."""
    TOTAL = "total"
    ADDRESS = "address"
    WITHOUT_TOKEN = "without_token"
    WITHOUT_TOKEN_ADDRESS = "without_token_address"
    DISPLACED = "displaced"
    """It had said nothing, and made room for another one."""

    @property
    def words(self) -> str:
        """The words for an operator, with the setting."""
        return _WORDS[self]

    @property
    def is_about_all(self) -> bool:
        """Whether it says that the service is full, not that one address has its share."""
        return self in (Refusal.DESCRIPTORS, Refusal.TOTAL, Refusal.WITHOUT_TOKEN)


_WORDS: Final = {
    Refusal.DESCRIPTORS: "the remaining file descriptors are reserved for the log (ulimit -n)",
    Refusal.TOTAL: "the service has reached its connection limit (connections_max)",
    Refusal.ADDRESS: "their address has reached its connection limit (connections_per_address_max)",
    Refusal.WITHOUT_TOKEN: "the service has reached its limit of connections without a token "
    "(connections_without_token_max)",
    Refusal.WITHOUT_TOKEN_ADDRESS: "their address has reached its limit of connections without a token "
    "(connections_without_token_per_address_max)",
    Refusal.DISPLACED: "they had presented nothing and made room for others",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at a time."""

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    connections_per_address_max: int = PER_ADDRESS_MAX_DEFAULT
    connections_without_token_max: int = WITHOUT_TOKEN_MAX_DEFAULT
    """Of AMQP and of HTTP, each."""
    connections_without_token_per_address_max: int = WITHOUT_TOKEN_PER_ADDRESS_MAX_DEFAULT
    loopback_connections_per_address_max: int | None = None
    """For addresses of loopback; None: no limit, as one of them is many programs."""
    loopback_connections_without_token_per_address_max: int | None = None
    health_max: int = 32
    descriptors_max: int | None = None
    """A socket with this number or a higher one is not taken: the system gives out the lowest that is free.
    None: no limit."""


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Connections now, and what was refused since the start."""

    limits: ConnectionLimits
    open: Mapping[tuple[Face, bool], int]
    """By what they speak, and whether they have shown a token."""
    refused: Mapping[Refusal, int]
    full_at: Mapping[Refusal, float]
    """When the service was last found full, on the clock of ``admit``, by what it had too many of."""


class _Address(NamedTuple):
    """An address as it counts."""

    version: int
    """4, 6, or 0 where it is not known."""
    bits: int
    """The whole address, or of IPv6 its network."""
    is_loopback: bool
    is_proxy: bool
    """Whether it is a trusted proxy, which has no limits of its own."""


class Ticket:
    """The place of one connection. ``end`` it with the connection; that is harmless twice."""

    __slots__ = ("_address", "_admission", "admitted_at", "close", "face", "has_token", "is_waiting")

    def __init__(self, admission: Admission, address: _Address, face: Face, admitted_at: float) -> None:
        """Use ``Admission.admit``."""
        self._admission: Admission | None = admission
        self._address = address
        self.face = face
        self.admitted_at = admitted_at
        self.has_token = False
        self.is_waiting = True
        self.close: Callable[[], object] = _do_nothing
        """Ends the connection at once; set it as soon as there is one to end."""

    def __repr__(self) -> str:
        state = "with a token" if self.has_token else "waiting" if self.is_waiting else "without a token"
        return f"<Ticket {self.face.value} {state}{'' if self._admission else ' ended'}>"

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended, or made room for another one."""
        return self._admission is None

    def authenticate(self) -> None:
        """A token of the peer was accepted."""
        if self._admission is not None and not self.has_token and self.face is not Face.HEALTH:
            self._admission._leave(self)
            self.has_token = True
            self._admission._enter(self)

    def begin_request(self) -> None:
        """HTTP: a request is complete."""
        self._set_waiting(False)

    def end_request(self) -> None:
        """HTTP: the request is answered, and the peer may begin another one."""
        self._set_waiting(True)

    def move(self, address: IpAddress | None, now: float) -> Refusal | None:
        """HTTP: the request comes from ``address``, as a trusted proxy says. Forgets an earlier one's token.

        Returns why the address may not have this connection; nothing is changed then.
        """
        return None if self._admission is None else self._admission._move(self, address, now)

    def become_amqp(self, now: float) -> Refusal | None:
        """The HTTP connection is a WebSocket from now on. Returns why that may not be."""
        return None if self._admission is None else self._admission._become_amqp(self, now)

    def end(self) -> None:
        """The connection is gone."""
        if self._admission is not None:
            self._admission._leave(self)
            self._admission = None

    def _set_waiting(self, is_waiting: bool) -> None:
        if self._admission is not None and self.is_waiting is not is_waiting:
            self._admission._leave(self)
            self.is_waiting = is_waiting
            self._admission._enter(self)


def authenticate_peer(scope: Mapping[str, Any]) -> None:
    """Count the connection of an ASGI request as one whose peer has shown who it is."""
    ticket = scope.get("state", {}).get(TICKET)
    if isinstance(ticket, Ticket):
        ticket.authenticate()


class Admission:
    """All connections of a service, over AMQP and HTTP."""

    def __init__(
        self, limits: ConnectionLimits | None = None, *, trusted: TrustedProxies | None = None
    ) -> None:
        """trusted: proxies, whose own address has no limits over HTTP: that of their clients counts."""
        self.limits = limits or ConnectionLimits()
        """May be replaced; connections that are there stay."""
        self.trusted = trusted or TrustedProxies()
        self._by_address: Counter[_Address] = Counter()
        self._total = 0
        self._open: Counter[tuple[Face, bool]] = Counter()
        self._refused: Counter[Refusal] = Counter()
        self._full_at: dict[Refusal, float] = {}
        self._pools = {face: _Pool() for face in Face}

    def admit(
        self, address: IpAddress | None, face: Face, *, now: float, descriptor: int = 0
    ) -> Ticket | Refusal:
        """A place for a connection from ``address``, or why there is none. May end another connection.

        now: seconds on a clock that does not go back. descriptor: the number of its socket.
        """
        ticket = Ticket(self, self._address_of(address, face), face, now)
        refusal = self._refusal(ticket, descriptor, now)
        if refusal is not None:
            self._note(refusal, now)
            return refusal
        self._enter(ticket)
        return ticket

    @property
    def displaced(self) -> int:
        """Connections that made room for others, since the start."""
        return self._refused[Refusal.DISPLACED]

    def statistics(self) -> AdmissionStatistics:
        """Connections now, and what was refused."""
        return AdmissionStatistics(
            self.limits,
            MappingProxyType({(face, has): self._open[face, has] for face in Face for has in (False, True)}),
            MappingProxyType({refusal: self._refused[refusal] for refusal in Refusal}),
            MappingProxyType(dict(self._full_at)),
        )

    # -- limits

    def _refusal(self, ticket: Ticket, descriptor: int, now: float) -> Refusal | None:
        """Why there is no place for a new connection, after those that wait have made what room they can."""
        limits = self.limits
        pool = self._pools[ticket.face]
        if ticket.face is Face.HEALTH:
            is_full = pool.count >= limits.health_max
            return Refusal.TOTAL if is_full and not self._displace((pool,), ticket, now) else None
        if limits.descriptors_max is not None and descriptor >= limits.descriptors_max:
            return Refusal.DESCRIPTORS
        if self._is_address_full(ticket._address):
            return Refusal.ADDRESS
        refusal = self._refusal_without_token(ticket, now)
        if refusal is not None:
            return refusal
        if self._total >= limits.connections_max:
            pools = (self._pools[Face.AMQP], self._pools[Face.HTTP])
            if not self._displace(pools, ticket, now):
                return Refusal.TOTAL
        return None

    def _refusal_without_token(self, ticket: Ticket, now: float) -> Refusal | None:
        limits, pool = self.limits, self._pools[ticket.face]
        if self._is_pool_full(pool, ticket._address):
            own = pool.oldest_waiting(ticket._address)
            if own is None or not _is_displaceable(own, now):
                return Refusal.WITHOUT_TOKEN_ADDRESS
            self._end(own)
        if pool.count >= limits.connections_without_token_max and not self._displace((pool,), ticket, now):
            return Refusal.WITHOUT_TOKEN
        return None

    def _displace(self, pools: tuple[_Pool, ...], newcomer: Ticket, now: float) -> bool:
        """End the one that has waited longest of the address that has most; False if none may go."""
        pool = max(pools, key=lambda each: each.waiting_max)
        if pool.waiting_max > pool.waiting_count_of(newcomer._address):
            self._end(pool.oldest_of_most())
            return True
        own = pool.oldest_waiting(newcomer._address)
        if own is None or not _is_displaceable(own, now):
            return False
        self._end(own)
        return True

    def _end(self, ticket: Ticket) -> None:
        self._refused[Refusal.DISPLACED] += 1
        ticket.end()
        ticket.close()

    def _note(self, refusal: Refusal, now: float) -> None:
        self._refused[refusal] += 1
        if refusal.is_about_all:
            self._full_at[refusal] = now

    def _is_address_full(self, address: _Address) -> bool:
        limits = self.limits
        most = limits.connections_per_address_max
        return _is_reached(
            self._by_address[address], address, most, limits.loopback_connections_per_address_max
        )

    def _is_pool_full(self, pool: _Pool, address: _Address) -> bool:
        limits = self.limits
        return _is_reached(
            pool.count_of(address),
            address,
            limits.connections_without_token_per_address_max,
            limits.loopback_connections_without_token_per_address_max,
        )

    # -- for tickets

    def _enter(self, ticket: Ticket) -> None:
        self._open[ticket.face, ticket.has_token] += 1
        if ticket.face is not Face.HEALTH:
            self._total += 1
            self._by_address[ticket._address] += 1
        if not ticket.has_token:
            self._pools[ticket.face].add(ticket)

    def _leave(self, ticket: Ticket) -> None:
        self._open[ticket.face, ticket.has_token] -= 1
        if ticket.face is not Face.HEALTH:
            self._total -= 1
            self._by_address[ticket._address] -= 1
            if not self._by_address[ticket._address]:
                del self._by_address[ticket._address]
        if not ticket.has_token:
            self._pools[ticket.face].remove(ticket)

    def _move(self, ticket: Ticket, address: IpAddress | None, now: float) -> Refusal | None:
        moved = self._address_of(address, ticket.face)
        if moved == ticket._address:
            return None
        self._leave(ticket)
        before = ticket._address, ticket.has_token
        ticket._address, ticket.has_token = moved, False
        refusal = None
        if ticket.face is not Face.HEALTH:
            is_full = self._is_address_full(moved)
            refusal = Refusal.ADDRESS if is_full else self._refusal_without_token(ticket, now)
        if refusal is not None:
            ticket._address, ticket.has_token = before
            self._note(refusal, now)
        self._enter(ticket)
        return refusal

    def _become_amqp(self, ticket: Ticket, now: float) -> Refusal | None:
        self._leave(ticket)
        before = ticket._address, ticket.has_token, ticket.is_waiting, ticket.admitted_at
        ticket._address = ticket._address._replace(is_proxy=False)
        ticket.face, ticket.has_token, ticket.is_waiting, ticket.admitted_at = Face.AMQP, False, True, now
        is_full = self._is_address_full(ticket._address)
        refusal = Refusal.ADDRESS if is_full else self._refusal_without_token(ticket, now)
        if refusal is not None:
            ticket.face = Face.HTTP
            ticket._address, ticket.has_token, ticket.is_waiting, ticket.admitted_at = before
            self._note(refusal, now)
        self._enter(ticket)
        return refusal

    def _address_of(self, address: IpAddress | None, face: Face) -> _Address:
        if address is None:
            return _Address(0, 0, False, False)
        version, bits = site_of(address)
        is_proxy = face is not Face.AMQP and address in self.trusted
        return _Address(version, bits, address.is_loopback, is_proxy)


@dataclass(slots=True)
class _Place:
    """One address in a pool."""

    count: int = 0
    waiting: dict[Ticket, None] = field(default_factory=dict)
    """Those that may be displaced, the oldest first."""


class _Pool:
    """Connections without a token over one protocol, by address, and which address has most that wait."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting_max = 0
        """How many wait at the address that has most of them."""
        self._places: dict[_Address, _Place] = {}
        self._by_waiting: dict[int, dict[_Address, None]] = {}
        """The addresses that have so many waiting, for each number above 0 that there is."""

    def add(self, ticket: Ticket) -> None:
        self.count += 1
        place = self._places.setdefault(ticket._address, _Place())
        place.count += 1
        if ticket.is_waiting:
            place.waiting[ticket] = None
            self._rank(ticket._address, len(place.waiting) - 1, len(place.waiting))

    def remove(self, ticket: Ticket) -> None:
        self.count -= 1
        place = self._places[ticket._address]
        place.count -= 1
        if ticket.is_waiting:
            del place.waiting[ticket]
            self._rank(ticket._address, len(place.waiting) + 1, len(place.waiting))
        if not place.count:
            del self._places[ticket._address]

    def count_of(self, address: _Address) -> int:
        place = self._places.get(address)
        return 0 if place is None else place.count

    def waiting_count_of(self, address: _Address) -> int:
        place = self._places.get(address)
        return 0 if place is None else len(place.waiting)

    def oldest_waiting(self, address: _Address) -> Ticket | None:
        place = self._places.get(address)
        return None if place is None else next(iter(place.waiting), None)

    def oldest_of_most(self) -> Ticket:
        address = next(iter(self._by_waiting[self.waiting_max]))
        return next(iter(self._places[address].waiting))

    def _rank(self, address: _Address, before: int, after: int) -> None:
        """An address has one more or one fewer that waits; ``waiting_max`` moves by one at most."""
        if before:
            same = self._by_waiting[before]
            del same[address]
            if not same:
                del self._by_waiting[before]
        if after:
            self._by_waiting.setdefault(after, {})[address] = None
        if after > self.waiting_max or self.waiting_max not in self._by_waiting:
            self.waiting_max = after


def connection_limits(
    *,
    descriptors: int,
    partitions: int,
    connections_max: int | None = None,
    connections_per_address_max: int | None = None,
    connections_without_token_max: int = WITHOUT_TOKEN_MAX_DEFAULT,
    connections_without_token_per_address_max: int | None = None,
) -> ConnectionLimits:
    """The limits of a process that may have so many descriptors open, with so many partitions.

    None is the default. A limit per address counts for loopback only where it is given. However many
    connections are asked for, there are no more than leave the log its descriptors; of few descriptors,
    connections get a quarter.
    """
    reserved = _DESCRIPTORS_RESERVED + _DESCRIPTORS_PER_PARTITION * partitions
    room = max(descriptors - reserved, descriptors // 4, 1)
    total = min(connections_max or CONNECTIONS_MAX_DEFAULT, room)
    without_token_per_address_max = connections_without_token_per_address_max
    return ConnectionLimits(
        connections_max=total,
        connections_per_address_max=connections_per_address_max
        or min(PER_ADDRESS_MAX_DEFAULT, -(-total // 2)),
        connections_without_token_max=connections_without_token_max,
        connections_without_token_per_address_max=without_token_per_address_max
        or WITHOUT_TOKEN_PER_ADDRESS_MAX_DEFAULT,
        loopback_connections_per_address_max=connections_per_address_max,
        loopback_connections_without_token_per_address_max=without_token_per_address_max,
        descriptors_max=descriptors - min(reserved // 4, descriptors // 8),
    )


def _is_reached(count: int, address: _Address, most: int, most_of_loopback: int | None) -> bool:
    """Whether an address has as many connections as it may have."""
    if address.is_proxy:
        return False
    if address.is_loopback:
        return most_of_loopback is not None and count >= most_of_loopback
    return count >= most


def _is_displaceable(ticket: Ticket, now: float) -> bool:
    return ticket.face is not Face.AMQP or now - ticket.admitted_at >= GRACE_S


def _do_nothing() -> None:
    """Closes a connection that is not there yet."""

"""Limits the service's connections: in total, per address, and without a token.

Pure: no sockets, and the time is passed in. Each accepted connection has a ``Ticket``, whatever its protocol,
and keeps it until it ends (a WebSocket keeps that of its HTTP request).

    all tickets                    connections_max; per address connections_per_address_max
    without a token, AMQP | HTTP   connections_without_token_max each; per address
                                   connections_without_token_per_address_max
    HTTP beyond its limits         health_max more, which may only request /health

A ticket *waits* while its peer is next: over AMQP until a token is accepted, over HTTP while a request
arrives, while its answer is to be read, and from its refusal until the next request. At a limit, a waiting
connection is displaced: the one that has waited longest, of the address with the most. So a client that opens
many connections and sends nothing loses its own, not those of others. Over AMQP, a new connection displaces
none of its own address that is younger than GRACE_S: otherwise a reconnecting fleet of devices would never
complete a handshake.
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
"""How long an AMQP connection without a token is safe from others of its address (our choice: four round
trips at 500 ms, which TLS, SASL and a token need)."""

CONNECTIONS_MAX_DEFAULT: Final = 20_000
PER_ADDRESS_MAX_DEFAULT: Final = 5_000
"""Azure's standard tier allows this for a whole namespace ("Event Hubs quotas and limits", brokered
connections): a site behind one address is hardly larger, and four of them fit."""
WITHOUT_TOKEN_MAX_DEFAULT: Final = 1_000
WITHOUT_TOKEN_PER_ADDRESS_MAX_DEFAULT: Final = 100

_DESCRIPTORS_RESERVED: Final = 416
"""256 for segments being read (``LogOptions.open_segments_max``), 32 for ``/health``, 128 for other files and
sockets: listening, Capture, the console's database (our choice)."""
_DESCRIPTORS_PER_PARTITION: Final = 2
"""The segment being written, and a file that replaces another."""

TICKET: Final = "ticket"
"""Key of a connection's ``Ticket`` in the ``state`` of an ASGI request's scope."""


class Face(Enum):
    """A connection's protocol."""

    AMQP = "amqp"
    """Over TCP, TLS or WebSocket."""
    HTTP = "http"
    HEALTH = "health"
    """HTTP that may only request ``/health``."""


class Refusal(Enum):
    """Why a connection is refused or ended: its name, and the reason for an operator, with the setting."""

    DESCRIPTORS = "descriptors", "the remaining file descriptors are reserved for the log (ulimit -n)"
    TOTAL = "total", "the service has reached its connection limit (connections_max)"
    ADDRESS = "address", "their address has reached its connection limit (connections_per_address_max)"
    WITHOUT_TOKEN = (
        "without_token",
        "the service has reached its limit of connections without a token (connections_without_token_max)",
    )
    WITHOUT_TOKEN_ADDRESS = (
        "without_token_address",
        "their address has reached its limit of connections without a token "
        "(connections_without_token_per_address_max)",
    )
    DISPLACED = "displaced", "they had presented nothing and made room for others"

    words: str

    def __new__(cls, name: str, words: str) -> Refusal:
        """A member whose value is its name."""
        member = object.__new__(cls)
        member._value_ = name
        member.words = words
        return member

    @property
    def is_about_all(self) -> bool:
        """Whether the whole service is full, not the share of one address."""
        return self in (Refusal.DESCRIPTORS, Refusal.TOTAL, Refusal.WITHOUT_TOKEN)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum numbers of connections."""

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    connections_per_address_max: int = PER_ADDRESS_MAX_DEFAULT
    connections_without_token_max: int = WITHOUT_TOKEN_MAX_DEFAULT
    """For AMQP and HTTP separately."""
    connections_without_token_per_address_max: int = WITHOUT_TOKEN_PER_ADDRESS_MAX_DEFAULT
    loopback_connections_per_address_max: int | None = None
    """For loopback addresses; None: no limit, because many programs share one."""
    loopback_connections_without_token_per_address_max: int | None = None
    health_max: int = 32
    descriptors_max: int | None = None
    """Sockets from this number on are refused; the system allocates the lowest free one. None: no limit."""


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Current connections, and refusals since the start."""

    limits: ConnectionLimits
    open: Mapping[tuple[Face, bool], int]
    """By protocol, and by whether they have a token."""
    refused: Mapping[Refusal, int]
    full_at: Mapping[Refusal, float]
    """When the service was last full, by exceeded limit, on the clock of ``admit``."""


class _Address(NamedTuple):
    """An address as the limits count it."""

    version: int
    """4, 6, or 0 if unknown."""
    bits: int
    """The whole address, or the network of an IPv6 address."""
    is_loopback: bool
    is_proxy: bool
    """Whether it is a trusted proxy, which has no limits of its own."""


class Ticket:
    """The place of one connection. Call ``end`` when the connection ends; more calls do nothing."""

    __slots__ = (
        "_address",
        "_admission",
        "admitted_at",
        "close",
        "face",
        "has_token",
        "is_waiting",
        "request_has_token",
        "stays_waiting",
    )

    def __init__(self, admission: Admission, address: _Address, face: Face, admitted_at: float) -> None:
        """Created by ``Admission.admit``."""
        self._admission: Admission | None = admission
        self._address = address
        self.face = face
        self.admitted_at = admitted_at
        self.has_token = False
        """Whether it counts as one with a token; over HTTP until a request begins behind one without."""
        self.request_has_token = False
        """HTTP: whether the token of the present request, or of the last one, was accepted."""
        self.stays_waiting = False
        """HTTP: whether that request is refused, or may be."""
        self.is_waiting = True
        self.close: Callable[[], object] = lambda: None
        """Aborts the connection. Set it as soon as there is one."""

    def __repr__(self) -> str:
        state = "with a token" if self.has_token else "waiting" if self.is_waiting else "without a token"
        return f"<Ticket {self.face.value} {state}{'' if self._admission else ' ended'}>"

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended or was displaced."""
        return self._admission is None

    def authenticate(self) -> None:
        """The peer's token was accepted."""
        if self.face is not Face.HEALTH:
            self.request_has_token = True
            self._count_as(has_token=True, is_waiting=self.is_waiting)

    def begin_request(self, now: float) -> Refusal | None:
        """HTTP: the head of a request has arrived, which needs a token of its own.

        Drops an earlier token if the request before had none. Returns the reason if there is no place without
        a token; it then stays where it was.
        """
        had_token, self.request_has_token, self.stays_waiting = self.request_has_token, False, False
        if self._admission is None or had_token or not self.has_token:
            return None
        return self._admission._enter_without_token(self, self._address, now)

    def keep_waiting(self) -> None:
        """HTTP: the request is refused, or may be; its answer may be delayed."""
        self.stays_waiting = True
        self.set_waiting(True)

    def set_waiting(self, is_waiting: bool) -> None:
        """HTTP: whether the peer is next, or the service."""
        self._count_as(has_token=self.has_token, is_waiting=is_waiting or self.stays_waiting)

    def move(self, address: IpAddress | None, now: float) -> Refusal | None:
        """HTTP: a trusted proxy says that the request comes from ``address``. Drops an earlier one's token.

        Returns the reason if the address is refused; nothing changes then.
        """
        return None if self._admission is None else self._admission._move(self, address, now)

    def become_amqp(self, now: float) -> Refusal | None:
        """The HTTP connection becomes a WebSocket. Returns the reason if refused."""
        return None if self._admission is None else self._admission._become_amqp(self, now)

    def end(self) -> None:
        if self._admission is not None:
            self._admission._leave(self)
            self._admission = None

    def _count_as(self, *, has_token: bool, is_waiting: bool) -> None:
        if self._admission is not None and (self.has_token, self.is_waiting) != (has_token, is_waiting):
            self._admission._leave(self)
            self.has_token, self.is_waiting = has_token, is_waiting
            self._admission._enter(self)


def authenticate_peer(scope: Mapping[str, Any]) -> None:
    """Count the connection of an ASGI request as authenticated."""
    ticket = scope.get("state", {}).get(TICKET)
    if isinstance(ticket, Ticket):
        ticket.authenticate()


def keep_waiting(scope: Mapping[str, Any]) -> None:
    """Let the connection of an ASGI request make room for others, if it must."""
    ticket = scope.get("state", {}).get(TICKET)
    if isinstance(ticket, Ticket):
        ticket.keep_waiting()


class Admission:
    """Admits all connections of a service, over AMQP and HTTP."""

    def __init__(
        self, limits: ConnectionLimits | None = None, *, trusted: TrustedProxies | None = None
    ) -> None:
        """trusted: proxies without limits of their own over HTTP; their clients' addresses count instead."""
        self.limits = limits or ConnectionLimits()
        """May be replaced; existing connections stay."""
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
        """A ticket for a connection, or the reason for refusing it. May displace another connection.

        now: seconds on a monotonic clock. descriptor: the number of its socket.
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
        """Connections displaced since the start."""
        return self._refused[Refusal.DISPLACED]

    def statistics(self) -> AdmissionStatistics:
        return AdmissionStatistics(
            self.limits,
            MappingProxyType({(face, has): self._open[face, has] for face in Face for has in (False, True)}),
            MappingProxyType({refusal: self._refused[refusal] for refusal in Refusal}),
            MappingProxyType(dict(self._full_at)),
        )

    # -- limits

    def _refusal(self, ticket: Ticket, descriptor: int, now: float) -> Refusal | None:
        """Why a new connection is refused, after displacing waiting ones as far as possible."""
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
        """End the longest-waiting connection of the address with the most; False if none may be ended."""
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
        return None if moved == ticket._address else self._enter_without_token(ticket, moved, now)

    def _enter_without_token(self, ticket: Ticket, address: _Address, now: float) -> Refusal | None:
        self._leave(ticket)
        before = ticket._address, ticket.has_token
        ticket._address, ticket.has_token = address, False
        refusal = None
        if ticket.face is not Face.HEALTH:
            is_full = self._is_address_full(address)
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
    """Connections without a token over one protocol, by address, and the address with the most waiting."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting_max = 0
        """The most connections that wait at one address."""
        self._places: dict[_Address, _Place] = {}
        self._by_waiting: dict[int, dict[_Address, None]] = {}
        """Number of waiting connections (above 0) → the addresses that have it."""

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
        """Move an address by one waiting connection; ``waiting_max`` changes by one at most."""
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
    """The limits of a process with this many descriptors and partitions.

    None is the default. A limit per address applies to loopback only if given. Connections never use the
    log's descriptors; if there are few descriptors, connections get a quarter.
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
    """Whether an address has reached its limit."""
    if address.is_proxy:
        return False
    if address.is_loopback:
        return most_of_loopback is not None and count >= most_of_loopback
    return count >= most


def _is_displaceable(ticket: Ticket, now: float) -> bool:
    return ticket.face is not Face.AMQP or now - ticket.admitted_at >= GRACE_S

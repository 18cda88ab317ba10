"""Admission: limits hold in every order of events, and who says nothing makes room for others."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from ipaddress import ip_address

import pytest

from tidegate.transport.admission import (
    GRACE_S,
    Admission,
    ConnectionLimits,
    Face,
    Refusal,
    Ticket,
    connection_limits,
)
from tidegate.transport.peers import TrustedProxies

A, B, C = (ip_address(f"192.0.2.{number}") for number in (1, 2, 3))
LOOPBACK = ip_address("127.0.0.1")


def _admit(admission: Admission, host: str, face: Face = Face.AMQP, now: float = 0.0) -> Ticket:
    ticket = admission.admit(ip_address(host), face, now=now)
    assert isinstance(ticket, Ticket), ticket
    return ticket


def _admit_with_token(admission: Admission, host: str) -> Ticket:
    """An HTTP connection whose first request had a token, and is answered."""
    ticket = _admit(admission, host, Face.HTTP)
    assert ticket.begin_request(0) is None
    ticket.authenticate()
    ticket.set_waiting(False)
    ticket.set_waiting(True)
    return ticket


def _closing(ticket: Ticket, closed: list[Ticket]) -> Ticket:
    ticket.close = lambda: closed.append(ticket)
    return ticket


def test_total_and_address_have_limits() -> None:
    """No address holds more than its share, all together no more than the service takes; ends make room."""
    admission = Admission(ConnectionLimits(connections_max=3, connections_per_address_max=2))
    tickets = [_admit(admission, "192.0.2.1"), _admit(admission, "192.0.2.1")]
    assert admission.admit(A, Face.AMQP, now=0) is Refusal.ADDRESS
    assert admission.admit(A, Face.HTTP, now=0) is Refusal.ADDRESS
    tickets.append(_admit(admission, "192.0.2.2"))
    for ticket in tickets:
        ticket.authenticate()
    assert admission.admit(C, Face.AMQP, now=100) is Refusal.TOTAL
    tickets[0].end()
    tickets[0].end()
    _admit(admission, "192.0.2.3")
    statistics = admission.statistics()
    assert statistics.open == {
        (Face.AMQP, False): 1,
        (Face.AMQP, True): 2,
        (Face.HTTP, False): 0,
        (Face.HTTP, True): 0,
        (Face.HEALTH, False): 0,
        (Face.HEALTH, True): 0,
    }
    assert statistics.refused[Refusal.ADDRESS] == 2
    assert statistics.full_at == {Refusal.TOTAL: 100}


def test_connections_without_a_token_have_smaller_limits_per_face() -> None:
    """Silent AMQP connections take no place from HTTP, nor from those that show a token."""
    admission = Admission(
        ConnectionLimits(connections_without_token_max=3, connections_without_token_per_address_max=2)
    )
    first = _admit(admission, "192.0.2.1")
    _admit(admission, "192.0.2.1")
    assert admission.admit(A, Face.AMQP, now=0) is Refusal.WITHOUT_TOKEN_ADDRESS
    _admit(admission, "192.0.2.1", Face.HTTP)
    first.authenticate()
    _admit(admission, "192.0.2.1")


def test_who_holds_most_in_silence_makes_room_for_others() -> None:
    """A newcomer from elsewhere gets in at once; one more of the same address only when the old had their
    time.
    """
    admission = Admission(ConnectionLimits(connections_without_token_max=4))
    closed: list[Ticket] = []
    silent = [_closing(_admit(admission, "192.0.2.1", now=0), closed) for _ in range(3)]
    _closing(_admit(admission, "192.0.2.2", now=0), closed)
    assert admission.admit(A, Face.AMQP, now=GRACE_S / 2) is Refusal.WITHOUT_TOKEN
    _admit(admission, "192.0.2.3", now=GRACE_S / 2)
    assert closed == silent[:1]
    _admit(admission, "192.0.2.1", now=GRACE_S)
    assert closed == silent[:2]
    assert admission.statistics().refused[Refusal.DISPLACED] == 2


def test_over_http_the_oldest_without_a_head_is_closed_first() -> None:
    """Slow heads of one address displace each other; requests under way are left alone."""
    admission = Admission(ConnectionLimits(connections_without_token_per_address_max=3))
    closed: list[Ticket] = []
    busy, slow, idle = (_closing(_admit(admission, "192.0.2.1", Face.HTTP), closed) for _ in range(3))
    busy.set_waiting(False)
    idle.set_waiting(False)
    idle.set_waiting(True)
    _admit(admission, "192.0.2.1", Face.HTTP).set_waiting(False)
    assert closed == [slow]
    _admit(admission, "192.0.2.1", Face.HTTP).set_waiting(False)
    assert closed == [slow, idle]
    assert admission.admit(A, Face.HTTP, now=0) is Refusal.WITHOUT_TOKEN_ADDRESS
    _admit(admission, "192.0.2.2", Face.HTTP)


def test_who_is_refused_waits_until_its_next_request() -> None:
    """The answer to a wrong key is delayed: meanwhile it makes room for others, whatever it still sends."""
    admission = Admission(ConnectionLimits(connections_without_token_max=1))
    closed: list[Ticket] = []
    refused = _closing(_admit(admission, "192.0.2.1", Face.HTTP), closed)
    refused.keep_waiting()
    refused.set_waiting(False)
    next_one = _closing(_admit(admission, "192.0.2.1", Face.HTTP), closed)
    assert closed == [refused]
    next_one.keep_waiting()
    assert next_one.begin_request(0) is None
    next_one.set_waiting(False)
    assert admission.admit(A, Face.HTTP, now=0) is Refusal.WITHOUT_TOKEN


def test_health_has_places_of_its_own() -> None:
    """When nothing else is taken any more, a check of the service's health is, and displaces only others."""
    admission = Admission(ConnectionLimits(connections_max=1, health_max=2))
    _admit(admission, "192.0.2.1").authenticate()
    assert admission.admit(A, Face.HTTP, now=0) is Refusal.TOTAL
    closed: list[Ticket] = []
    first, second = (_closing(_admit(admission, "192.0.2.1", Face.HEALTH), closed) for _ in range(2))
    _admit(admission, "192.0.2.2", Face.HEALTH)
    assert closed == [first]
    _admit(admission, "192.0.2.1", Face.HEALTH)
    assert closed == [first, second]


def test_descriptors_of_the_log_are_left_to_it() -> None:
    """A socket whose number shows that few are left is refused, whatever used the others."""
    admission = Admission(ConnectionLimits(descriptors_max=100))
    assert isinstance(admission.admit(A, Face.AMQP, now=0, descriptor=99), Ticket)
    assert admission.admit(A, Face.AMQP, now=0, descriptor=100) is Refusal.DESCRIPTORS
    assert isinstance(admission.admit(A, Face.HEALTH, now=0, descriptor=100), Ticket)


def test_loopback_has_limits_per_address_only_where_they_are_set() -> None:
    """Development and proxies on the same machine are not cut off by limits meant for a network."""
    limits = ConnectionLimits(connections_per_address_max=1, connections_without_token_per_address_max=1)
    admission = Admission(limits)
    for host in ("127.0.0.1", "127.0.0.1", "::1", "::1"):
        _admit(admission, host)
    given = connection_limits(descriptors=20_000, partitions=1, connections_per_address_max=1)
    admission = Admission(given)
    _admit(admission, "127.0.0.1")
    assert admission.admit(LOOPBACK, Face.AMQP, now=0) is Refusal.ADDRESS


def test_ipv6_addresses_of_one_site_are_one() -> None:
    """A peer that changes its address inside its own network does not get a new share."""
    admission = Admission(ConnectionLimits(connections_per_address_max=1))
    _admit(admission, "2001:db8:0:1::1")
    assert admission.admit(ip_address("2001:db8:0:1:ffff::2"), Face.AMQP, now=0) is Refusal.ADDRESS
    _admit(admission, "2001:db8:0:2::1")


def test_clients_of_a_trusted_proxy_have_their_own_shares() -> None:
    """The proxy's connections are not limited as one peer's; each request counts for who sent it."""
    limits = ConnectionLimits(connections_per_address_max=2, connections_without_token_per_address_max=1)
    admission = Admission(limits, trusted=TrustedProxies.parse(["10.0.0.0/8"]))
    first, second, third = (_admit(admission, "10.0.0.1", Face.HTTP) for _ in range(3))
    for ticket in (first, second, third):
        ticket.set_waiting(False)
    assert first.move(A, 0) is None
    assert second.move(A, 0) is Refusal.WITHOUT_TOKEN_ADDRESS
    first.authenticate()
    assert second.move(A, 0) is None
    assert third.move(A, 0) is Refusal.ADDRESS
    assert third.move(B, 0) is None
    assert first.move(C, 0) is None
    assert not first.has_token
    assert isinstance(admission.admit(ip_address("10.0.0.1"), Face.AMQP, now=0), Ticket)
    assert isinstance(admission.admit(ip_address("10.0.0.1"), Face.AMQP, now=0), Refusal)


def test_over_http_each_request_needs_a_token_of_its_own() -> None:
    """Who had a token once has no place to keep without one: the limits of those without are for him, too."""
    admission = Admission(ConnectionLimits(connections_without_token_per_address_max=1))
    ticket, other = (_admit_with_token(admission, "192.0.2.1") for _ in range(2))
    _admit(admission, "192.0.2.1", Face.HTTP).set_waiting(False)
    for _ in range(3):
        assert ticket.begin_request(0) is None
        ticket.authenticate()
        ticket.set_waiting(True)
    assert ticket.begin_request(0) is None
    assert (ticket.has_token, ticket.request_has_token) == (True, False)  # a token may still follow
    ticket.set_waiting(True)
    assert ticket.begin_request(0) is Refusal.WITHOUT_TOKEN_ADDRESS
    assert admission.statistics().open[Face.HTTP, True] == 2
    ticket.end()
    other.end()


def test_a_websocket_counts_as_amqp() -> None:
    """The upgrade gives AMQP without a token no way around its limits."""
    admission = Admission(ConnectionLimits(connections_without_token_per_address_max=1))
    _admit(admission, "192.0.2.1")
    ticket = _admit(admission, "192.0.2.1", Face.HTTP)
    ticket.set_waiting(False)
    assert ticket.become_amqp(0) is Refusal.WITHOUT_TOKEN_ADDRESS
    assert (ticket.face, ticket.is_waiting) == (Face.HTTP, False)
    other = _admit(admission, "192.0.2.2", Face.HTTP)
    other.set_waiting(False)
    assert other.become_amqp(0) is None
    assert admission.statistics().open[Face.AMQP, False] == 2


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 20_000, 1_000_000])
@pytest.mark.parametrize("partitions", [1, 32, 1000])
def test_connections_leave_descriptors_to_the_log(descriptors: int, partitions: int) -> None:
    """However many are asked for, and however few the system grants."""
    for asked in (None, 10, 10**9):
        limits = connection_limits(descriptors=descriptors, partitions=partitions, connections_max=asked)
        reserved = 416 + 2 * partitions
        assert 0 < limits.connections_max <= max(descriptors - reserved, descriptors // 4)
        assert limits.connections_max < (limits.descriptors_max or 0) < descriptors
        assert 0 < limits.connections_per_address_max <= limits.connections_max
    assert connection_limits(descriptors=4096, partitions=32).connections_max == 3616
    assert connection_limits(descriptors=1_000_000, partitions=32).connections_max == 20_000


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.slow
def test_limits_hold_in_every_order(seed: int) -> None:
    """After any sequence of arrivals, tokens, requests, moves and ends, counts are those of what is there."""
    rng = random.Random(seed)
    limits = ConnectionLimits(
        connections_max=rng.randint(1, 12),
        connections_per_address_max=rng.randint(1, 6),
        connections_without_token_max=rng.randint(1, 8),
        connections_without_token_per_address_max=rng.randint(1, 4),
        health_max=rng.randint(1, 3),
    )
    admission = Admission(limits, trusted=TrustedProxies.parse(["10.0.0.1"]))
    hosts = [ip_address(f"192.0.2.{number}") for number in range(5)]
    live: dict[Ticket, object] = {}
    now = 0.0
    for _ in range(400):
        now += rng.random()
        some = rng.choice(list(live)) if live else None
        action = rng.randrange(8)
        if action < 3 or some is None:
            address = rng.choice([*hosts, ip_address("10.0.0.1")])
            ticket = admission.admit(address, rng.choice(list(Face)), now=now)
            if isinstance(ticket, Ticket):
                live[ticket] = address
                ticket.close = partial(live.__delitem__, ticket)
        elif action == 3:
            some.authenticate()
        elif action == 4 and some.face is not Face.AMQP:
            if rng.randrange(3):
                some.set_waiting(rng.random() < 0.5)
            elif rng.randrange(2):
                some.keep_waiting()
            else:
                some.begin_request(now)
        elif action == 5 and some.face is Face.HTTP:
            address = rng.choice(hosts)
            if some.move(address, now) is None:
                live[some] = address
        elif action == 6 and some.face is Face.HTTP:
            some.become_amqp(now)
        else:
            some.end()
            some.end()
            del live[some]
        _check(admission, live, limits, seed)


def _check(admission: Admission, live: dict[Ticket, object], limits: ConnectionLimits, seed: int) -> None:
    expected = Counter((ticket.face, ticket.has_token) for ticket in live)
    statistics = admission.statistics()
    assert statistics.open == {(face, has): expected[face, has] for face in Face for has in (False, True)}, (
        seed
    )
    counted = {ticket: address for ticket, address in live.items() if ticket.face is not Face.HEALTH}
    assert len(counted) <= limits.connections_max, seed
    assert len(live) - len(counted) <= limits.health_max, seed
    proxy = ip_address("10.0.0.1")
    by_address = Counter(
        address for ticket, address in counted.items() if address != proxy or ticket.face is Face.AMQP
    )
    assert max(by_address.values(), default=0) <= limits.connections_per_address_max, seed
    for face in (Face.AMQP, Face.HTTP):
        silent = [live[ticket] for ticket in counted if ticket.face is face and not ticket.has_token]
        assert len(silent) <= limits.connections_without_token_max, seed
        most = Counter(address for address in silent if address != proxy or face is Face.AMQP)
        assert max(most.values(), default=0) <= limits.connections_without_token_per_address_max, seed

"""How long the answer to a wrong key is delayed: longer with each failure of an address for a policy. Pure.

A delay runs until its end, even if the peer no longer waits for the answer, so that reconnecting does not
shorten it.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

FREE_FAILURES: Final = 5
"""Failures that are answered immediately (our choice: a typing error, a program that is being set up)."""

DELAY_S_FIRST: Final = 0.1
DELAY_S_MAX: Final = 10.0
"""Delay in seconds of the first failure after those, which doubles with each further one, and its maximum."""

WINDOW_S: Final = 900.0
"""Seconds without a failure after which those before are forgotten."""

WAITING_MAX: Final = 32
"""Delayed answers to one address for one policy at a time. Thus it can try 3.2 keys per second, which cannot
find a random key, and this many programs with an old key do not yet block correct keys from their address."""

ADDRESSES_MAX: Final = 4_096
POLICIES_MAX: Final = 8
"""Maximum numbers of remembered addresses (the one that failed longest ago makes room) and of policies for
each, beyond which the others count as one: a few MB."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_at: float = 0.0
    answered_at: list[float] = field(default_factory=list)
    """When each current delay ends."""


class FailedAttempts:
    """The failures of all addresses. IPv6 addresses count by /64 network, because one machine has as much."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, dict[str, _Failures]] = OrderedDict()

    def __len__(self) -> int:
        """Addresses and policies that are remembered."""
        return sum(map(len, self._by_address.values()))

    def refused_for_s(self, address: str, policy: str, *, now: float) -> float:
        """Seconds for which keys of the policy are not checked; 0.0: they are checked."""
        if not self._by_address:  # The usual case costs nothing.
            return 0.0
        failures = self._remembered(_network(address), now)
        if (found := failures.get(self._name(failures, policy))) is None:
            return 0.0
        found.answered_at = [time for time in found.answered_at if time > now]
        return min(found.answered_at) - now if len(found.answered_at) >= WAITING_MAX else 0.0

    def note(self, address: str, policy: str, *, now: float) -> float:
        """Count a wrong key, and return the delay of its answer in seconds."""
        network = _network(address)
        failures = self._by_address[network] = self._remembered(network, now)
        self._by_address.move_to_end(network)
        found = failures.setdefault(self._name(failures, policy), _Failures())
        found.count += 1
        found.last_at = now
        if len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        # The exponent is bounded: a float ends at 2.0 ** 1023.
        doublings = min(found.count - FREE_FAILURES - 1, 32)
        if doublings < 0:
            return 0.0
        delay_s = min(DELAY_S_FIRST * 2.0**doublings, DELAY_S_MAX)
        found.answered_at.append(now + delay_s)
        return delay_s

    def _remembered(self, network: str, now: float) -> dict[str, _Failures]:
        """The failures of an address, by policy, without those of which the last is too long ago: their names
        would keep places from others.
        """
        failures = self._by_address.get(network, {})
        return {name: each for name, each in failures.items() if now - each.last_at <= WINDOW_S}

    @staticmethod
    def _name(failures: dict[str, _Failures], policy: str) -> str:
        """The name that a policy's failures are counted under; empty: together with others."""
        name = policy[:80]
        return name if name in failures or len(failures) < POLICIES_MAX - 1 else ""


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:80]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address

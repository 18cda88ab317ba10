"""Host names: how to compare them, and which of them are the service's own."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.~-]+))(?::([0-9]{0,5}))?")
"""An IPv6 address in brackets, a name or an IPv4 address, with or without a port; no user name."""

_WILDCARDS = frozenset({"0.0.0.0", "::"})
"""Wildcard addresses to listen on; not hosts."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """The service's own names and addresses; loopback is always included."""

    names: frozenset[str] = frozenset()
    """Normalised by ``normalise_host``; create it with ``of``."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Create it from names and addresses in any letter case. Wildcards are ignored."""
        return cls(frozenset(normalise_host(name) for name in names if "*" not in name) - _WILDCARDS)

    def __contains__(self, host: str) -> bool:
        return is_loopback(host) or normalise_host(host) in self.names


def host_of(authority: str) -> str | None:
    """The host of ``host[:port]``, in lower case and without brackets; None if there is none."""
    found = split_authority(authority)
    return None if found is None else found[0]


def split_authority(authority: str) -> tuple[str, int | None] | None:
    """Host, as from ``host_of``, and port of ``host[:port]``; None if ``authority`` has another form."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return (found[1] or found[2]).lower(), int(found[3]) if found[3] else None


def is_host(name: str) -> bool:
    """Whether ``name`` is a host's name or address, without brackets or a port."""
    return split_authority(f"[{name}]" if ":" in name else name) is not None


def normalise_host(host: str) -> str:
    """The canonical form of a host: lower case, and the shortest form of an address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def is_loopback(host: str) -> bool:
    """Whether a name or address is loopback, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

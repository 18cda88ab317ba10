"""Names of hosts: how they are compared, and which of them a service knows as its own."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.~-]+))(?::([0-9]{0,5}))?")
"""An address of IPv6 in brackets, or a name or an address of IPv4, with or without a port; no user name."""

_WILDCARDS = frozenset({"0.0.0.0", "::"})
"""Addresses to listen on that are no host's."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """The names and addresses that a service knows as its own; those of loopback are always among them."""

    names: frozenset[str] = frozenset()
    """As ``normalise_host`` writes them; build it with ``of``."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """From names and addresses in any letter case. Wildcards name no host and are left out."""
        return cls(frozenset(normalise_host(name) for name in names if "*" not in name) - _WILDCARDS)

    def __contains__(self, host: str) -> bool:
        return is_loopback(host) or normalise_host(host) in self.names


def host_of(authority: str) -> str | None:
    """The host of ``host[:port]``, in lower case and without brackets; None where there is none."""
    found = split_authority(authority)
    return None if found is None else found[0]


def split_authority(authority: str) -> tuple[str, int | None] | None:
    """Host, as ``host_of`` has it, and port of ``host[:port]``; None where ``authority`` is not that."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return (found[1] or found[2]).lower(), int(found[3]) if found[3] else None


def is_host(name: str) -> bool:
    """Whether ``name`` is a host's name or address, without brackets or a port."""
    return split_authority(f"[{name}]" if ":" in name else name) is not None


def normalise_host(host: str) -> str:
    """One spelling for each host: lower case, and the shortest form of an address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, that no other machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

"""Where a peer is, as far as its connection and its headers tell."""

from __future__ import annotations

import ipaddress
from collections.abc import Container
from typing import Final

_PROXY_HEADERS: Final = ("forwarded", "x-forwarded-for", "via")


def is_loopback_peer(host: str | None, headers: Container[str]) -> bool:
    """Whether an HTTP peer is on this machine, and no proxy, who may speak for anybody.

    host: the peer's address; None where it is not known. headers: names in lower case.
    """
    return host is not None and not any(name in headers for name in _PROXY_HEADERS) and is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, that no other machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

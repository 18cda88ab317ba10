"""Warns if the service listens without TLS on an address that other machines can reach. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

_FACES: Final = {
    "amqp": ("AMQP", "amqps_port", "events, tokens and the keys of SASL PLAIN"),
    "http": ("HTTP", "https_port", "events, tokens and what is typed into the console, keys included"),
}
"""By protocol without TLS: its title, the setting for the same with TLS, and what it exposes."""


def exposure_warnings(addresses: Mapping[str, str | None]) -> list[str]:
    """A sentence for each port without TLS that other machines can reach.

    addresses: ``host:port`` as bound, by protocol; None if it is not served.
    """
    found: list[str] = []
    for face, (title, secure, exposed) in _FACES.items():
        address = addresses.get(face)
        reach = None if address is None else _reach(address.rpartition(":")[0].strip("[]"))
        if reach is not None:
            found.append(
                f"{title} without TLS listens on {address}, {reach} on the way can read {exposed}. "
                f"Set {secure} instead of {face}_port, or host to 127.0.0.1"
                " if a proxy on this machine ends TLS."
            )
    return found


def _reach(host: str) -> str | None:
    """Who can read traffic to an address; None for loopback."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped if mapped is not None else address
    if address.is_loopback:
        return None
    if address.is_unspecified:
        return "which is every address of this machine, public ones included: anyone"
    if address.is_global:
        return "a public address: anyone"
    return "an address of a private network: anyone in that network and"

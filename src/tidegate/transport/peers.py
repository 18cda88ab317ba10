"""A peer's address, from its connection and its headers.

A header is trusted only if the connection comes from a trusted proxy, and then only the part that trusted
proxies have written.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hosts import host_of, is_loopback

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_PROXY_PREFIXES: Final = (
    *("x-forwarded", "x-original-", "x-envoy-", "x-arr-", "x-azure-"),
    *("cf-", "cdn-", "fly-"),
)
_PROXY_HEADERS: Final = frozenset(
    {
        *("forwarded", "forwarded-for", "forwarded-proto", "via", "max-forwards", "proxy-connection"),
        *(
            "x-real-ip",
            "x-client-ip",
            "x-cluster-client-ip",
            "x-remote-ip",
            "x-remote-addr",
            "x-proxyuser-ip",
        ),
        *("x-host", "x-http-host-override", "x-scheme", "x-url-scheme", "x-rewrite-url", "x-coming-from"),
        *("x-amzn-trace-id", "x-cloud-trace-context", "front-end-https", "client-ip", "proxy-client-ip"),
        *("true-client-ip", "x-proxyuser-ip", "fastly-client-ip", "wl-proxy-client-ip"),
    }
)
"""Headers that proxies, load balancers and CDNs add to requests, with the prefixes above: of RFC 9110, RFC
7239 and the manuals of nginx, HAProxy, Envoy, Traefik, Apache, IIS, AWS, Azure, Google, Cloudflare, Fastly,
Akamai and Fly."""

_PAIRS_MAX: Final = 32
"""Pairs of one element of ``Forwarded`` that are read (our choice: there are four)."""

_HOPS_MAX: Final = 32
"""Addresses that are read of one header (our choice: a chain has three, and each takes 8 us on the loop)."""

_IPV6_HOST_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Proxies that are trusted to report their clients' addresses; none by default."""

    networks: tuple[IpNetwork, ...] = ()

    @classmethod
    def parse(cls, names: Iterable[str]) -> TrustedProxies:
        """Parse addresses (``10.0.0.7``) and networks (``10.0.0.0/8``, ``fd00::/8``).

        Raises InvalidArgumentError for anything else.
        """
        try:
            return cls(tuple(ipaddress.ip_network(name) for name in names))
        except ValueError as error:
            raise InvalidArgumentError(
                f"A trusted proxy must be an address or a network: {error}.",
                next_step="Write 10.0.0.7 or 10.0.0.0/8; a network has no bits of a host set.",
            ) from error

    def __contains__(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self.networks)

    def client_address(
        self, peer: IpAddress | None, headers: Iterable[tuple[bytes, bytes]]
    ) -> IpAddress | None:
        """The address that a request came from, as far as trusted proxies report it.

        peer: the connection's. headers: names in lower case, in order of arrival. An untrusted peer's own
        address counts. Otherwise it is the rightmost address in ``X-Forwarded-For`` or ``Forwarded`` that is
        not a trusted proxy; without one, or if that entry is not an address, the last known proxy. None if
        both headers are present and differ: the client has set one of them, and it is unknown which.
        """
        if peer not in self:
            return peer
        plain, standard = _forwarded_for(headers)
        said = (_said_of("for", element) for element in reversed(standard))  # few are read of perhaps many
        address = self._nearest_client(peer, reversed(plain) if plain else said)
        if plain and standard and address != self._nearest_client(peer, said):
            return None
        return address

    def is_https(self, peer: IpAddress | None, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a trusted proxy reports that it received a request by HTTPS: in ``X-Forwarded-Proto``, or
        as ``proto`` in ``Forwarded``; of each, the last entry counts. False if both say it, and differ: the
        client has set one of them. Arguments as in ``client_address``."""
        if peer not in self:
            return False
        schemes: dict[bytes, str] = {}
        for name, value in headers:
            if name == b"x-forwarded-proto":
                schemes[name] = value.decode("latin-1").rpartition(",")[2].strip()
            elif name == b"forwarded":
                schemes[name] = _said_of("proto", _elements_in(value)[-1])
        return {each.lower() for each in schemes.values() if each} == {"https"}

    def _nearest_client(self, peer: IpAddress | None, forwarded_for: Iterable[str]) -> IpAddress | None:
        address = peer
        for text in islice(forwarded_for, _HOPS_MAX):
            nearer = parse_address(text)
            if nearer is None:
                break
            address = nearer
            if address not in self:
                break
        return address


def parse_address(host: str | None) -> IpAddress | None:
    """Parse an address from ``getpeername`` or a header, perhaps with brackets and a port; None if invalid.

    IPv4 inside IPv6 (``::ffff:192.0.2.1``) becomes IPv4; a link-local address's zone (``%eth0``) is dropped.
    """
    if host is None:
        return None
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def site_of(address: IpAddress) -> tuple[int, int]:
    """The unit that counts as one peer, as version and bits: an IPv4 address, or the /64 of an IPv6 address,
    because a single customer has that much."""
    bits = int(address)
    return address.version, bits if address.version == 4 else bits >> _IPV6_HOST_BITS


def site_at(host: str | None) -> tuple[int, int] | None:
    """``site_of`` an address that ``parse_address`` takes; None if invalid."""
    address = parse_address(host)
    return None if address is None else site_of(address)


def peer_name_of(transport: asyncio.BaseTransport) -> str:
    """The peer for logs: ``address:port``."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "local")


def address_in(peer_name: str) -> str:
    """The address in a stream's ``peer_name`` (``192.0.2.1:4711``, ``::1:4711 (WebSocket)``)."""
    name = peer_name.partition(" ")[0]
    return name.rpartition(":")[0] or name


def site_in(peer_name: str) -> tuple[int, int] | None:
    """``site_of`` the address in a stream's ``peer_name``; None without an address."""
    return site_at(address_in(peer_name))


def is_from_this_machine(
    peer: str | None, headers: Mapping[str, str], *, http_version: str, proxies: TrustedProxies
) -> bool:
    """Whether a local client sent an HTTP request, and not a proxy on behalf of another.

    peer: the connection's address; None if unknown. headers: names in lower case. A proxy is recognised by
    its headers, its address (``proxies``), or HTTP/1.0, the default of nginx before 1.29.7, which no browser
    uses. One on this machine that adds no header, passes ``Host`` on as loopback and is not in ``proxies``
    cannot be recognised.
    ``Host`` must also be loopback: a page of another site, whose name an attacker's name server points to
    this machine (DNS rebinding), sends that name.
    """
    address = parse_address(peer)
    return (
        address is not None
        and address.is_loopback
        and address not in proxies
        and http_version != "1.0"
        and not any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name in headers)
        and is_loopback(host_of(headers.get("host", "")) or "")
    )


def _forwarded_for(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[str], list[str]]:
    """The addresses in ``X-Forwarded-For``, and the elements of ``Forwarded``, the nearest proxy's last."""
    plain: list[str] = []
    standard: list[str] = []
    for name, value in headers:
        if name == b"x-forwarded-for":
            plain += [text.strip() for text in value.decode("latin-1").split(",")]
        elif name == b"forwarded":
            standard += _elements_in(value)
    return plain, standard


def _elements_in(value: bytes) -> list[str]:
    """The elements in ``Forwarded`` (RFC 7239), one per proxy: ``for="[2001:db8::17]:4711";proto=https``.

    No quoted separator is left in them: a proxy may quote the Host that its client has chosen. Quotations are
    counted from the right, because one that the client has begun further left may not end.
    """
    parts = value.decode("latin-1").replace(r"\\", "__").replace(r"\"", "__").split('"')
    parts[-2::-2] = [each.replace(",", "_").replace(";", "_") for each in parts[-2::-2]]
    return '"'.join(parts).split(",")


def _said_of(what: str, element: str) -> str:
    """The value of ``for`` or ``proto`` in an element of ``Forwarded``, or an empty string."""
    for pair in element.split(";", _PAIRS_MAX)[:_PAIRS_MAX]:
        name, _, value = pair.partition("=")
        if name.strip().lower() == what:
            return value.strip().strip('"')
    return ""

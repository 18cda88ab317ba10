"""Which destinations Capture may write to: prefixes that the service's operator allows.

A policy with Manage on the namespace chooses the destinations of its event hubs, and the service writes there
with its own rights and credentials. So the operator restricts them, and addresses that only have a meaning on
the machine itself (link-local addresses, a cloud's metadata) are always refused. Does no I/O: paths are
resolved by a function that the caller passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import unquote

from tidegate.model.errors import InvalidArgumentError

LOCAL_SCHEME: Final = "file"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_UNCLEAR = re.compile(r"[\x00-\x20\x7f%?#\\]")
"""Characters that fsspec's libraries interpret differently from the grammar of URLs."""

_METADATA_NAMES: Final = frozenset({"metadata.google.internal", "instance-data.ec2.internal"})
_METADATA_NETWORKS: Final = (
    ip_network("168.63.129.16"),  # Azure's WireServer ("What is IP address 168.63.129.16?", 2026-09)
    ip_network("fd00:ec2::/32"),  # AWS: "Instance metadata", "EKS Pod Identity", 2026-09
    ip_network("fd20:ce::254"),  # Google Cloud: instances with IPv6 only
    ip_network("100.100.100.200"),  # Alibaba Cloud, "Instance metadata", 2026-09
    ip_network("fd00:c1::a9fe:a9fe"),  # Oracle Cloud (its Python SDK's instance principals)
    ip_network("192.0.0.192"),  # Oracle Cloud Classic
    ip_network("fd00:42::42"),  # Scaleway
)
"""Metadata addresses that are not link-local, unlike 169.254.169.254."""


@dataclass(frozen=True, slots=True)
class CapturePlace:
    """A parsed destination."""

    scheme: str
    """In lower case; ``file`` for a directory of the service's machine."""
    authority: str
    """The part between ``://`` and the next ``/``, hosts with a dot in lower case (without one it may be a
    bucket, which is case-sensitive); empty for a directory."""
    path: str
    """A directory as given; the path of a URL without slashes at its ends."""

    @classmethod
    def parse(cls, destination: str) -> CapturePlace:
        """Raises InvalidArgumentError for an ambiguous destination, a password, and a forbidden host.

        Ambiguous are URLs within URLs (``::``), ``..``, empty folders (object stores have names that begin
        with ``/``), and characters with a meaning in URLs. Forbidden hosts: see ``check_host``.
        """
        scheme, separator, rest = destination.partition("://")
        if not separator:
            if not destination.startswith("/") or "\0" in destination:
                raise _refused(destination, "is neither an absolute path nor a URL")
            return cls(LOCAL_SCHEME, "", destination)
        if "::" in scheme or (_SCHEME.fullmatch(scheme) is None):
            raise _refused(destination, "is a URL within another, or not a URL")
        scheme = scheme.lower()
        if scheme in (LOCAL_SCHEME, "local"):
            path = unquote(rest)
            if not path.startswith("/") or "\0" in path:
                raise _refused(destination, "is a URL of a directory without an absolute path")
            return cls(LOCAL_SCHEME, "", path)
        authority, _, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        check_no_password(user)
        path = path.rstrip("/")
        is_misread = path != "" and not {"", ".", ".."}.isdisjoint(path.split("/"))
        # Colons in brackets belong to an address; elsewhere "::" is fsspec's URL within a URL.
        outside = re.sub(r"\[[0-9A-Fa-f:.]*\]", "", authority) + path
        if not host or "@" in user or _UNCLEAR.search(rest) or "::" in outside or is_misread:
            raise _refused(destination, "is an ambiguous URL")
        place = cls(scheme, f"{user}{at}{host.lower() if '.' in host else host}", path)
        check_host(place.host)
        return place

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of the service's machine."""
        return self.scheme == LOCAL_SCHEME

    @property
    def host(self) -> str:
        """The host of a URL, without user and port; the name of a container or bucket if there is no host."""
        host = self.authority.rpartition("@")[2]
        if host.startswith("["):
            return host[1:].partition("]")[0]
        return host.partition(":")[0]

    def is_within(self, prefix: CapturePlace, real_path: Callable[[str], str]) -> bool:
        """Whether it is the prefix itself, or below it.

        real_path: resolves symbolic links and ``..``, as ``os.path.realpath`` does.
        """
        if (self.scheme, self.authority) != (prefix.scheme, prefix.authority):
            return False
        mine, allowed = self.path, prefix.path
        if self.is_local:
            mine, allowed = real_path(mine), real_path(allowed)
        return f"{mine.strip('/')}/".startswith(f"{allowed.strip('/')}/".lstrip("/"))


@dataclass(frozen=True, slots=True)
class CaptureDestinations:
    """The prefixes below which Capture may write."""

    prefixes: tuple[str, ...]
    """Absolute directories, or URLs with scheme, host or container, and folder."""

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError, naming the setting."""
        for prefix in self.prefixes:
            try:
                CapturePlace.parse(prefix)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    f"The setting capture_destinations: {error.message}",
                    next_step="Use absolute directories, or URLs with a host or container and a folder.",
                ) from error

    def check(self, destination: str, *, real_path: Callable[[str], str]) -> None:
        """Raise InvalidArgumentError, with the allowed prefixes, for a destination outside them.

        real_path: see ``CapturePlace.is_within``.
        """
        place = CapturePlace.parse(destination)
        if any(place.is_within(CapturePlace.parse(prefix), real_path) for prefix in self.prefixes):
            return
        raise InvalidArgumentError(
            f"The capture destination {destination[:200]!r} is not allowed by this service. "
            f"Allowed: {', '.join(self.prefixes)}, and paths below.",
            next_step="Use one of these, or allow it in the service: tidegate serve "
            "--capture-destination PREFIX, or capture_destinations in its configuration "
            "file.",
        )


def check_no_password(user: str) -> None:
    """Raise InvalidArgumentError if ``user``, the part of a destination before ``@``, contains a password: it
    would be stored, and quoted in logs and errors. The error does not repeat it.
    """
    if ":" in user:
        raise InvalidArgumentError(
            "The capture destination contains a password.",
            next_step="Pass credentials to the service in its environment.",
        )


def check_host(host: str) -> None:
    """Raise InvalidArgumentError for a link-local or cloud metadata host, or an address of one in any form.

    Names are not resolved; pass the addresses that they resolve to.
    """
    name = host.strip("[]").rstrip(".").lower()
    address = _address(name)
    if name in _METADATA_NAMES or (
        address is not None
        and (address.is_link_local or any(address in network for network in _METADATA_NETWORKS))
    ):
        raise InvalidArgumentError(
            f"Capture does not write to link-local or cloud metadata addresses: {host[:80]}.",
            next_step="Use the storage account's own host.",
        )


def _refused(destination: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The capture destination {destination[:200]!r} {problem}.",
        next_step="Use /a/directory, or a URL such as abfs://container@account.dfs.core.windows.net/folder.",
    )


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """An address in any form that resolvers accept: IPv4 also as one to four numbers, decimal, octal or
    hexadecimal, as in ``inet_aton``, and within IPv6.
    """
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return _loose_ipv4(name)
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address.sixtofour or _last_32_bits(address) or address
    return address


def _last_32_bits(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address in one of NAT64 (``64:ff9b::/96``, RFC 6052) or of the compatible form (``::/96``)."""
    prefix, last = divmod(int(address), 1 << 32)
    return IPv4Address(last) if prefix == 0x64FF9B << 64 or (prefix == 0 and last > 1) else None


def _loose_ipv4(name: str) -> IPv4Address | None:
    parts = name.split(".")
    if len(parts) > 4:
        return None
    numbers: list[int] = []
    for part in parts:
        if not part.isascii() or not part.isalnum() or len(part.lstrip("0x")) > 12:
            return None
        base = 16 if part.startswith("0x") else 8 if part.startswith("0") else 10
        try:
            numbers.append(int(part, base))
        except ValueError:
            return None
    *heads, last = numbers
    if any(head > 255 for head in heads) or last >= 1 << 8 * (5 - len(parts)):
        return None
    value = last
    for index, head in enumerate(heads):
        value |= head << 8 * (3 - index)
    return IPv4Address(value)

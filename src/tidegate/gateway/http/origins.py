"""Which pages in browsers may open a WebSocket here: those of this service, and those that a setting names.

A browser lets every page open WebSockets to any host, that of its own machine among them, and says in
``Origin`` which site the page is of (RFC 6455 section 10.2). Programs send no such header, or the address
that they connect to (websocket-client, which azure-eventhub uses).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hosts import HostNames, split_authority

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.ASCII)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_Origin = tuple[str, str, int | None]
"""Scheme, host and port."""


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """Sites whose pages may use the service; build it with ``parse``. None by default."""

    origins: frozenset[tuple[str, str, int | None]] = frozenset()

    @classmethod
    def parse(cls, origins: Iterable[str]) -> Self:
        """From origins as browsers send them, ``https://app.example.org``.

        Raises InvalidArgumentError for anything else.
        """
        found = []
        for text in origins:
            origin = _parse(text)
            if origin is None:
                raise InvalidArgumentError(
                    f"An allowed origin must be a scheme and a host, got {text[:80]!r}.",
                    next_step="Write https://app.example.org, with a port where it has one, without a path.",
                )
            found.append(origin)
        return cls(frozenset(found))

    def admits(self, origin: str, host: str, own_names: HostNames) -> bool:
        """Whether a page of ``origin`` may open a WebSocket by a request whose ``Host`` header is ``host``.

        own_names: of the service. A page of the very address that it connects to is the service's own, if
        no foreign name server can have made that name point here (DNS rebinding): it came over TLS, is an
        address, has no dot, or is known.
        """
        parsed = _parse(origin)
        if parsed is None or parsed in self.origins:
            return parsed is not None
        scheme, name, _ = parsed
        is_own = scheme in _DEFAULT_PORTS and _parse(f"{scheme}://{host}") == parsed
        return is_own and (scheme == "https" or "." not in name or _is_address(name) or name in own_names)


def _parse(origin: str) -> _Origin | None:
    scheme, _, authority = origin.lower().partition("://")
    found = split_authority(authority)
    if _SCHEME.fullmatch(scheme) is None or found is None:
        return None
    host, port = found
    return scheme, host, _DEFAULT_PORTS.get(scheme) if port is None else port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""Audiences: what a token is for, in one comparable form whatever client wrote it.

Official clients name the same entity as ``sb://host/hub``, ``amqps://host:5671/hub``, ``http://host/hub/``
in lower case, or with ``ConsumerGroups/…`` and ``Partitions/…`` behind it (observed: azure-eventhub 5.15.1,
@azure/event-hubs 6.0.4, Azure/azure-event-hubs-dotnet), a publisher's name percent-encoded or not. Compared
are host and path; scheme, port, letter case, slashes at the ends and the encoding of names are not part of
the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote


@dataclass(frozen=True, slots=True)
class Audience:
    """A normalised audience; build it with ``parse``."""

    host: str
    """Lower case, without port; empty where the text named only a path."""
    path: str
    """Lower case, each part percent-encoded, no slashes at the ends; empty for the whole namespace."""

    @classmethod
    def parse(cls, text: str) -> Audience:
        """The audience that ``text`` (percent-decoded) names: a URI, or a path alone. Never raises."""
        _, separator, rest = text.strip().partition("://")
        if not separator:
            return cls("", _normalise_path(text))
        authority, _, path = rest.partition("/")
        authority = authority.rpartition("@")[2]
        is_ipv6 = authority.startswith("[")
        host = authority[1:].partition("]")[0] if is_ipv6 else authority.partition(":")[0]
        return cls(host.lower(), _normalise_path(path))

    def covers(self, other: Audience) -> bool:
        """Whether a token for this audience is good for ``other``: the same entity or one beneath it.

        Where one of the two names no host, only the paths count.
        """
        if self.host and other.host and self.host != other.host:
            return False
        return not self.path or other.path == self.path or other.path.startswith(f"{self.path}/")


def _normalise_path(path: str) -> str:
    # Part by part, so that an encoded slash within a name stays within it.
    parts = path.strip().partition("?")[0].split("/")
    return "/".join(quote(unquote(part).lower(), safe="$") for part in parts if part)

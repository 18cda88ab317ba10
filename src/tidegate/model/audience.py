"""Audiences: what a token is valid for, in one comparable form for all clients.

Official clients name the same entity as ``sb://host/hub``, ``amqps://host:5671/hub``, ``http://host/hub/``
in lower case, or followed by ``ConsumerGroups/…`` and ``Partitions/…`` (observed: azure-eventhub 5.15.1,
@azure/event-hubs 6.0.4, Azure/azure-event-hubs-dotnet), a publisher's name percent-encoded or not. Only host
and path are compared, without regard to letter case, slashes at the ends and the encoding of names.

The rule: an audience identifies one entity or is refused. So nothing is removed (``?``, ``#``) except the one
query that old SDKs sign with an address, nothing is decoded twice, and an event hub's name may not be
percent-encoded, because it never needs to be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NewType
from urllib.parse import quote, unquote

from tidegate.model.errors import UnauthorizedError
from tidegate.model.hosts import host_of
from tidegate.model.limits import ADDRESS_CHARACTERS_MAX

AUDIENCE_PARTS_MAX: Final = 16
"""Of the path of an audience, at most (our choice: twice what the longest address of any client has)."""

EntityPath = NewType("EntityPath", str)
"""The path of an entity in its namespace, made by ``entity_path``: equal only for the same entity."""

NAMESPACE: Final = EntityPath("")
"""The namespace itself, which contains every entity."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)
_FIRST_NAME = re.compile(r"\$?[A-Za-z0-9._-]+", re.ASCII)
"""An event hub, or ``$cbs`` and ``$management``."""

_API_VERSION = re.compile(r"\?api-version=[0-9]{4}-[0-9]{2}\Z")
"""At the end of a URI: azure-servicebus 0.21.1 signs whole addresses (ServiceBusSASAuthentication)."""

_NOT_IN_NAMES: Final = frozenset("/\\%?#")
"""Characters that would make the path of a name ambiguous."""


def entity_path(*names: str) -> EntityPath:
    """The path of an entity from its names, the event hub first: ``entity_path("hub", "Partitions", "0")``.

    names: plain, not percent-encoded; any delimiter in a name stays within its part of the path.
    """
    return EntityPath("/".join(quote(name.lower(), safe="$") for name in names))


def beneath(path: EntityPath, *names: str) -> EntityPath:
    """The path of the entity with these names within the entity at ``path``."""
    return EntityPath(f"{path}/{entity_path(*names)}" if path else entity_path(*names))


def lies_in(path: EntityPath, ancestor: EntityPath) -> bool:
    """Whether ``path`` is ``ancestor`` or beneath it."""
    return not ancestor or path == ancestor or path.startswith(f"{ancestor}/")


def containing(path: EntityPath) -> list[EntityPath]:
    """``path`` and every path that contains it, up to the namespace: each ``ancestor`` of ``lies_in``."""
    found = [path]
    while path:
        path = EntityPath(path.rpartition("/")[0])
        found.append(path)
    return found


def is_name_in_paths(name: str) -> bool:
    """Whether ``name`` has one spelling in an audience or address: no control characters or delimiters."""
    return name not in ("", ".", "..") and name.isprintable() and _NOT_IN_NAMES.isdisjoint(name)


@dataclass(frozen=True, slots=True)
class Audience:
    """A normalised audience; create it with ``parse``, or from a known path."""

    host: str
    """Lower case, without port; empty if the text was only a path."""
    path: EntityPath

    @classmethod
    def parse(cls, text: str, *, is_own_host: Callable[[str], bool] = lambda host: False) -> Audience:
        """The audience in ``text`` (percent-decoded, as ``sr`` is): a URI, or a path.

        is_own_host: whether the first part of a text without a scheme is a host. Names after the event hub's
        may be percent-encoded once. Raises UnauthorizedError for an ambiguous or invalid text.
        """
        if len(text) > ADDRESS_CHARACTERS_MAX:
            raise _invalid(text, f"has more than {ADDRESS_CHARACTERS_MAX} characters")
        scheme, separator, rest = text.partition("://")
        if not separator:
            first, _, path = text.partition("/")
            host = host_of(first)
            if host is None or not is_own_host(host):
                return cls("", _parse_path(text, text))
            return cls(host, _parse_path(path, text))
        authority, _, path = _API_VERSION.sub("", rest).partition("/")
        host = host_of(authority)
        if _SCHEME.fullmatch(scheme) is None or host is None:
            raise _invalid(text, "does not begin with a scheme and a host")
        return cls(host, _parse_path(path, text))

    def covers(self, other: Audience) -> bool:
        """Whether a token for this audience is valid for ``other``: the same entity or one beneath it.

        If one of the two has no host, only the paths are compared.
        """
        if self.host and other.host and self.host != other.host:
            return False
        return lies_in(other.path, self.path)


def _parse_path(path: str, text: str) -> EntityPath:
    parts = [part for part in path.split("/") if part]
    if len(parts) > AUDIENCE_PARTS_MAX:  # each costs some microseconds, and a check of it as many again
        raise _invalid(text, f"has more than {AUDIENCE_PARTS_MAX} parts")
    if parts and _FIRST_NAME.fullmatch(parts[0]) is None:
        raise _invalid(text, "has no name of an event hub where one should be")
    try:
        # Part by part, so that an encoded slash stays within its name.
        names = [*parts[:1], *(unquote(part, errors="strict") for part in parts[1:])]
    except UnicodeDecodeError:
        raise _invalid(text, "has something percent-encoded that is not UTF-8") from None
    if not all(map(is_name_in_paths, names)):
        raise _invalid(text, "has '?', '#', '\\', '.', '..', a control character or a name encoded twice")
    return entity_path(*names)


def _invalid(text: str, why: str) -> UnauthorizedError:
    return UnauthorizedError(
        f"InvalidAudience: The audience {text[:200]!r} {why}.",
        next_step="Create the token for sb://HOST, sb://HOST/HUB or a path below it.",
    )

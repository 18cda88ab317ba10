"""Atom documents of Event Hubs' REST administration: descriptions in entries, entries in feeds.

    <entry><id>…</id><title>hub</title>…<content><EventHubDescription>…</EventHubDescription></content></entry>

A document type is refused, because it could define entities that expand endlessly or name files.
Source: Azure "Event Hubs service REST", "Create Event Hub", "Get revoked publishers", "List consumer groups",
"List partition runtime metadata" (2026-09); azure-servicebus 0.21.1, _serialization.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser
from xml.sax.saxutils import escape, quoteattr

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.times import time_of

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"

_ATOM: Final = "http://www.w3.org/2005/Atom"
_SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
_ARRAYS: Final = "http://schemas.microsoft.com/2003/10/Serialization/Arrays"
_DEPTH_MAX: Final = 32
"""Nesting of elements (our choice: a description has six levels)."""
_ELEMENTS_MAX: Final = 1_000
"""Elements of a body (our choice: a description with twelve policies has some 200)."""

Value = str | int | Sequence[str]
"""Of a property. A sequence becomes an array of strings."""


@dataclass(frozen=True, slots=True)
class AtomEntry:
    """An entity as an entry."""

    path: str
    """Percent-encoded, with a leading slash: ``/hub/ConsumerGroups/group``."""
    title: str
    kind: str
    """The description's element: ``EventHubDescription``."""
    properties: Mapping[str, Value]
    """In the order that .NET's client expects."""
    updated_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""

    def format(self, host: str, *, is_whole: bool = True) -> str:
        """The XML. host: as the client named it. is_whole: a document of its own; False: part of a feed."""
        link, at = f"https://{host}{self.path}", format_time(self.updated_at_ms)
        properties = "".join(_format_property(name, value) for name, value in self.properties.items())
        namespace = f' xmlns="{_ATOM}"' if is_whole else ""
        return (
            f'<entry{namespace}><id>{escape(link)}</id><title type="text">{escape(self.title)}</title>'
            f"<published>{at}</published><updated>{at}</updated>"
            f'<link rel="self" href={quoteattr(link)}/><content type="application/xml">'
            f'<{self.kind} xmlns="{_SERVICE_BUS}" xmlns:i="{_INSTANCE}">{properties}</{self.kind}>'
            "</content></entry>"
        )


def feed_ends(host: str, path: str, title: str, updated_at_ms: int) -> tuple[str, str]:
    """What a feed has before and behind its formatted entries; ``path`` as in ``AtomEntry``."""
    link = f"https://{host}{path}"
    head = (
        f'<feed xmlns="{_ATOM}"><title type="text">{escape(title)}</title><id>{escape(link)}</id>'
        f"<updated>{format_time(updated_at_ms)}</updated>"
        f'<link rel="self" href={quoteattr(link)}/>'
    )
    return head, "</feed>"


def format_time(at_ms: int) -> str:
    """Format milliseconds since 1970-01-01 UTC as RFC 4287 section 3.3 requires."""
    return time_of(at_ms).isoformat().replace("+00:00", "Z")


def parse_description(body: bytes, kind: str) -> dict[str, str]:
    """The properties of the description in a body, with or without an entry around it: name → text.

    An empty body is a description without properties.
    Raises InvalidArgumentError for invalid XML, a document type (also as text that is not escaped), another
    encoding than UTF-8, or a body without a description of ``kind``.
    """
    if not body.strip():
        return {}
    # Expat would expand entities until the end of the body, even after an exception of ours.
    if b"<!DOCTYPE" in body:
        raise InvalidArgumentError(
            "The body has a document type, which is not allowed.", next_step="Remove the document type."
        )
    # Expat reads UTF-16 whatever it is given as the encoding; all markup in it has these.
    if b"\0" in body:
        raise InvalidArgumentError("The body is not XML in UTF-8: it has a zero byte.")
    # As clients' Content-Type says, whatever the body does: Python keeps each name of an encoding forever.
    parser = XMLParser(target=_Builder(), encoding="utf-8")
    try:
        parser.feed(body)
        root: Element = parser.close()
    except ParseError as error:
        raise InvalidArgumentError(f"The body is not XML: {error}.") from error
    description = next(root.iter(f"{{{_SERVICE_BUS}}}{kind}"), None)
    if description is None:
        raise InvalidArgumentError(f"The body has no {kind} in {_SERVICE_BUS}.")
    properties: dict[str, str] = {}
    for child in description:
        name = child.tag.rpartition("}")[2]
        properties[name] = properties.get(name, "") + "".join(text.strip() for text in child.itertext())
    return properties


class _Builder(TreeBuilder):
    """Builds the tree of a body, and limits its size."""

    _depth = _count = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidArgumentError(f"The body nests more than {_DEPTH_MAX} elements.")
        self._count += 1
        if self._count > _ELEMENTS_MAX:
            raise InvalidArgumentError(f"The body has more than {_ELEMENTS_MAX:,} elements.")
        return super().start(tag, attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)


def _format_property(name: str, value: Value) -> str:
    if isinstance(value, str | int):
        return f"<{name}>{escape(str(value))}</{name}>"
    items = "".join(f"<a:string>{escape(item)}</a:string>" for item in value)
    return f'<{name} xmlns:a="{_ARRAYS}">{items}</{name}>'

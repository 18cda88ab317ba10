"""Values for the explorer's pages: pages of events, single events, tails, and sending.

Events of all partitions are ordered by enqueued time, then partition, then sequence number; an ``EventPlace``
is a place in that order. Within a partition enqueued times never fall, so this is also the partition's own
order, and one place determines where to continue in all partitions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from tidegate.amqp.message import Message
from tidegate.amqp.types import Array, Described
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents
from tidegate.model.json_path import JsonPath
from tidegate.model.position import EventPosition
from tidegate.model.times import time_of

T = TypeVar("T")

EVENTS_PER_PAGE_MAX: Final = 500
"""Events on a page. Our choice: a browser draws that many rows in about 50 ms."""

LIVE_EVENTS_MAX: Final = 100
"""Events on a live page. Our choice: its rows are kept, and compared in one step. With 500 of the longest, 64
pages kept 0.2 to 0.7 GB, and a step took 15 to 25 ms."""

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a page's events: with large events it ends earlier."""

SCANNED_EVENTS_MAX: Final = 25_000
SCANNED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes that a page with a filter examines before it offers to continue. Our choice: about half a second."""

PROPERTIES_SHOWN_MAX: Final = 1_000
"""Properties of one event on its page. Our choice: an event may have 100,000, which take a second to draw."""
PROPERTY_CHARACTERS_MAX: Final = 10_000
"""Of a property there. Our choice: a list in it may have six million, which take long, too."""

SEND_RUNS_MAX: Final = 8
"""Concurrent runs. Our choice."""

SEND_LINES_MAX: Final = 100_000
SEND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limits of a set: its lines, and their total bytes, which are in memory while it is sent."""

SEND_EVENTS_MAX: Final = 10_000_000
"""Events of a run: lines times repeats. Our choice: at 1,000 a second three hours."""

SEND_RATE_MAX: Final = 20_000
"""Events per second of a run. Our choice: a fraction of the service's capacity."""

_PLACE = re.compile(r"([on])\.(\d{1,14})\.(\d{1,4})\.(\d{1,18})", re.ASCII)


class EventPlace(NamedTuple):
    """A place in the order of all events of a hub: at an event, or between two."""

    enqueued_time_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    partition_index: int
    """The partition's id as a number."""
    sequence_number: int

    @property
    def after(self) -> EventPlace:
        """The first place after the event at this one."""
        return EventPlace(self.enqueued_time_ms, self.partition_index, self.sequence_number + 1)


class Way(Enum):
    """The direction of reading."""

    NEWER = "n"
    OLDER = "o"


@dataclass(frozen=True, slots=True)
class EventCursor:
    """Where a page continues, and in which direction."""

    way: Way
    place: EventPlace
    """NEWER: the first event is at or after it; OLDER: before it."""

    def format(self) -> str:
        """The cursor for a URL."""
        return ".".join((self.way.value, *map(str, self.place)))

    @classmethod
    def parse(cls, text: str) -> EventCursor:
        """The inverse of ``format``. Raises InvalidArgumentError."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise InvalidArgumentError(
                f"Invalid page cursor {text[:40]!r}.", next_step="Start again from the first page."
            )
        return cls(Way(found[1]), EventPlace(*map(int, found.groups()[1:])))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to show: those that match every field that is not None."""

    partition_key: str | None = None
    property_name: str | None = None
    property_value: str | None = None
    """In the format of ``property_text``; None: the property must exist, with any value."""
    body_text: str | None = None
    """Text in the body; letters a to z match in either case."""
    json: Callable[[EventContents], bool] | None = None
    """A condition on the JSON of the body, such as a ``JsonTest``; equal ones are shared."""

    @property
    def is_empty(self) -> bool:
        """Whether every event matches."""
        is_plain = self.property_name is None and self.body_text is None
        return self.partition_key is None and is_plain and self.json is None

    def matches(self, contents: EventContents) -> bool:
        """Whether an event matches."""
        if self.partition_key is not None and contents.partition_key != self.partition_key:
            return False
        if self.property_name is not None:
            if self.property_name not in contents.properties:
                return False
            value, wanted = contents.properties[self.property_name], self.property_value
            if wanted is not None and property_text(value, len(wanted) + 1) != wanted:
                return False
        is_text_in = self.body_text is None or _is_text_in(contents, self.body_text)
        return is_text_in and (self.json is None or self.json(contents))


def _is_text_in(contents: EventContents, text: str) -> bool:
    if contents.body_value is not None:
        return text.lower() in property_text(contents.body_value).lower()
    return text.encode("utf-8", "replace").lower() in contents.body.lower()


def property_text(value: object, characters_max: int | None = None) -> str:
    """A property's value, as shown and as filters compare it, or only its first characters: a list may have
    millions."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value][:characters_max]
    if isinstance(value, bytes):
        return value[:characters_max].hex()[:characters_max]
    if isinstance(value, datetime):
        return value.isoformat()[:characters_max]
    if isinstance(value, _CONTAINERS):
        # No piece but the empty one has less than a character.
        return "".join(islice(filter(None, _pieces(value)), characters_max))[:characters_max]
    return str(value)[:characters_max]


_CONTAINERS: Final = (list, tuple, dict, Array, Described)


def _pieces(value: object) -> Iterator[str]:
    """``repr`` of a value in pieces. C code would hold up all other threads, for long if there are many."""
    if isinstance(value, dict):
        yield "{"
        for number, (name, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{name!r}: "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "[" if isinstance(value, list) else "("
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(item)
        yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
    elif isinstance(value, Array | Described):
        yield f"{type(value).__name__}("
        for number, field in enumerate(fields(value)):
            yield f"{', ' if number else ''}{field.name}="
            yield from _pieces(getattr(value, field.name))
        yield ")"
    else:
        yield repr(value)


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events a page shows."""

    hub: str
    partition_id: str | None = None
    """None: all partitions."""
    position: EventPosition | None = None
    """The first event to show, separately for each partition; None: all."""
    is_newest_first: bool = False
    """Whether a first page (one without a cursor) begins at the end of the log."""
    filter: EventFilter = EventFilter()
    count: int = 50
    """Events on a page, 1..EVENTS_PER_PAGE_MAX."""


@dataclass(frozen=True, slots=True)
class ExploredEvent:
    """One event of a page."""

    place: EventPlace
    size_bytes: int
    """As stored, with its properties."""
    contents: EventContents | None
    """None: the bytes are not a valid message (see ``problem``)."""
    problem: str = ""

    @property
    def partition_id(self) -> str:
        """The partition."""
        return str(self.place.partition_index)

    @property
    def sequence_number(self) -> int:
        """Its number in the partition."""
        return self.place.sequence_number

    @property
    def enqueued_time(self) -> datetime:
        """When the service accepted it."""
        return time_of(self.place.enqueued_time_ms)


class PageEnd(Enum):
    """Why a page ended."""

    FULL = "full"
    """It has the requested number of events, or a page's maximum of bytes."""
    END = "end"
    """There are no more in that direction now."""
    SCANNED = "scanned"
    """It has examined the allowed number of bytes: more events may match."""
    UNWANTED = "unwanted"
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class ShownEvent(Generic[T]):
    """What is kept of an event that fits."""

    place: EventPlace
    size_bytes: int
    """As stored, with its properties."""
    shown: T


@dataclass(frozen=True, slots=True)
class EventPage(Generic[T]):
    """Some events, oldest first."""

    events: Sequence[T]
    """What is shown of each."""
    ends: tuple[EventPlace, EventPlace] | None
    """The places of the first and the last; None without events."""
    looked_at: int
    """Events that were compared with the filter."""
    end: PageEnd
    older: EventCursor | None
    """The cursor of older events; None if there are none."""
    newer: EventCursor | None


@dataclass(frozen=True, slots=True)
class EventDetail:
    """One event in detail."""

    event: ExploredEvent
    message: Message | None
    """It with its annotations, and its properties with their types; None: not a message, or partly malformed.
    """
    is_first: bool
    """Whether it is the first that its partition still holds."""
    is_last: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an event; at most one field is set, and without any the partitions alternate."""

    partition_id: str | None = None
    partition_key: str | None = None
    key_path: JsonPath | None = None
    """Take the key from each body's JSON."""


@dataclass(frozen=True, slots=True)
class SingleEvent:
    """An event to send."""

    body: bytes
    message: Message
    """Its header and properties."""
    target: Target


@dataclass(frozen=True, slots=True)
class SendPlan:
    """A set of events to send, and how."""

    bodies: Sequence[bytes]
    """1..SEND_LINES_MAX."""
    target: Target
    message: Message = field(default_factory=Message)
    """The header and the properties of each event, with their types on the wire."""
    repeats: int = 1
    """How often the whole set is sent."""
    events_per_s: int = 100
    """1..SEND_RATE_MAX."""


class RunState(Enum):
    """The state of a run."""

    SENDING = "sending"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


Show = Callable[[Sequence[ExploredEvent]], Sequence[T]]
"""What is shown of each event; runs in threads. Nothing else is kept: 1 MB may be decoded to 14."""

Wanted = Callable[[], Awaitable[bool]]
"""Whether the client still waits for an answer."""

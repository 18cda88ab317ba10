"""Events as pages show them: by page, one by one, as they come; and what is sent.

Events of all partitions are told in one order: by enqueued time, then partition, then sequence number. An
``EventPlace`` is a place in that order. Within a partition enqueued times never fall, so it is also the
partition's own order, and a place in one partition says where all others go on.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from tidegate.amqp.message import Header, Properties
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents
from tidegate.model.json_path import JsonPath
from tidegate.model.position import EventPosition

EVENTS_PER_PAGE_MAX: Final = 500
"""Events on a page. Our choice: a browser draws that many rows in some 50 ms."""

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the events of a page: it ends earlier where they are large."""

SCANNED_EVENTS_MAX: Final = 25_000
SCANNED_BYTES_MAX: Final = 128 * 1024 * 1024
"""What a page with a filter examines before it offers to continue. Our choice: about half a second of
work."""

PROPERTIES_SHOWN_MAX: Final = 1_000
"""Properties of one event on its page. Our choice: an event may have 100,000, which take a second to draw."""

SEND_RUNS_MAX: Final = 8
"""Sets that are being sent at once. Our choice."""

SEND_LINES_MAX: Final = 100_000
SEND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a set: its lines, and their bytes together, which stay in memory while it is sent."""

SEND_EVENTS_MAX: Final = 10_000_000
"""Events of a run: lines times repeats. Our choice: at 1,000 a second three hours."""

SEND_RATE_MAX: Final = 20_000
"""Events per second of a run. Our choice: a fraction of what the service can store."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = re.compile(r"([on])\.(\d{1,14})\.(\d{1,4})\.(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class EventPlace:
    """A place in the order of all events of a hub; of an event, or between two."""

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
        """As an address holds it."""
        place = self.place
        return f"{self.way.value}.{place.enqueued_time_ms}.{place.partition_index}.{place.sequence_number}"

    @classmethod
    def parse(cls, text: str) -> EventCursor:
        """Raises InvalidArgumentError for what ``format`` never wrote."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise InvalidArgumentError(
                f"Invalid page cursor {text[:40]!r}.", next_step="Start again from the first page."
            )
        time_ms, partition_index, sequence_number = (int(part) for part in found.groups()[1:])
        return cls(Way(found[1]), EventPlace(time_ms, partition_index, sequence_number))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to show: those that match every field that is not None."""

    partition_key: str | None = None
    property_name: str | None = None
    property_value: str | None = None
    """As ``property_text`` writes it; None: any, so long as there is a property of that name."""
    body_text: str | None = None
    """Somewhere in the body, letters a to z in either case."""

    @property
    def is_empty(self) -> bool:
        """Whether every event matches."""
        return self.partition_key is None and self.property_name is None and self.body_text is None

    def matches(self, contents: EventContents) -> bool:
        """Whether an event matches."""
        if self.partition_key is not None and contents.partition_key != self.partition_key:
            return False
        if self.property_name is not None:
            if self.property_name not in contents.properties:
                return False
            value = contents.properties[self.property_name]
            if self.property_value is not None and property_text(value) != self.property_value:
                return False
        if self.body_text is None:
            return True
        if contents.body_value is not None:
            return self.body_text.lower() in str(contents.body_value).lower()
        return self.body_text.encode("utf-8", "replace").lower() in contents.body.lower()


def property_text(value: object) -> str:
    """A property's value as the console shows it, and as a filter compares it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events a page is about."""

    hub: str
    partition_id: str | None = None
    """None: all partitions."""
    position: EventPosition | None = None
    """Nothing before it is shown; it counts in each partition by itself. None: everything."""
    is_newest_first: bool = False
    """Whether a first page (one without a cursor) begins at the end of the log."""
    filter: EventFilter = EventFilter()
    count: int = 50
    """Events on a page, 1..EVENTS_PER_PAGE_MAX."""


@dataclass(frozen=True, slots=True)
class ExploredEvent:
    """One event of a page."""

    partition_id: str
    sequence_number: int
    enqueued_time_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    size_bytes: int
    """As stored, its properties included."""
    contents: EventContents | None
    """None: the bytes are not a message (``problem`` says why)."""
    problem: str = ""

    @property
    def enqueued_time(self) -> datetime:
        """When the service took it."""
        return _EPOCH + timedelta(milliseconds=self.enqueued_time_ms)

    @property
    def place(self) -> EventPlace:
        """Where it is among all events of the hub."""
        return EventPlace(self.enqueued_time_ms, int(self.partition_id), self.sequence_number)


class PageEnd(Enum):
    """Why a page ended."""

    FULL = "full"
    """As many as were asked for, or as many bytes as a page may have."""
    END = "end"
    """There are no more in that direction now."""
    SCANNED = "scanned"
    """It has examined as many as allowed: more may match."""
    UNWANTED = "unwanted"
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, oldest first."""

    events: Sequence[ExploredEvent]
    looked_at: int
    """Events that were compared with the filter."""
    end: PageEnd
    older: EventCursor | None
    """What to ask for older events with; None: there are none."""
    newer: EventCursor | None


@dataclass(frozen=True, slots=True)
class EventProperties:
    """An event's properties and header, with their types on the wire."""

    application: Mapping[object, object] = field(default_factory=dict)
    """Values of the types of ``amqp.types``; names are text."""
    standard: Properties = field(default_factory=Properties)
    header: Header = field(default_factory=Header)


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event to send. Its partition key is the target's."""

    body: bytes
    properties: EventProperties = field(default_factory=EventProperties)


@dataclass(frozen=True, slots=True)
class EventDetail:
    """One event with all there is to it."""

    event: ExploredEvent
    properties: EventProperties | None
    """None: not a message, or partly malformed."""
    beside: Sequence[str]
    """What it has that an ``OutgoingEvent`` of its body and properties has not, in words."""
    system: Mapping[str, str]
    """What the service and the sender's SDK said about it: annotations and standard properties by name."""
    is_first: bool
    """Whether it is the first that its partition still holds."""
    is_last: bool


@dataclass(frozen=True, slots=True)
class TailState:
    """The last events of a tail."""

    events: Sequence[ExploredEvent]
    """Newest first."""
    seen: int
    """Events that came since the tail began, including those that do not match."""
    skipped: int
    """Those of them that came too fast to be examined."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an event; at most one field is set, and without any the partitions take turns."""

    partition_id: str | None = None
    partition_key: str | None = None
    key_path: JsonPath | None = None
    """Take the key from each body's JSON."""


@dataclass(frozen=True, slots=True)
class SentEvent:
    """Where an event was stored."""

    partition_id: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class SendPlan:
    """A set of events to send, and how."""

    hub: str
    bodies: Sequence[bytes]
    """1..SEND_LINES_MAX."""
    target: Target
    properties: EventProperties = field(default_factory=EventProperties)
    repeats: int = 1
    """How often the whole set is sent."""
    events_per_s: int = 100
    """1..SEND_RATE_MAX."""


class RunState(Enum):
    """How a run is."""

    SENDING = "sending"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


Wanted = Callable[[], Awaitable[bool]]
"""Whether the client still waits for an answer."""

"""The fields of the explorer's form, as in its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from tidegate.console.explorer.json_test import JsonTest, parse_paths
from tidegate.console.explorer.values import (
    EVENTS_PER_PAGE_MAX,
    LIVE_EVENTS_MAX,
    EventCursor,
    EventFilter,
    EventQuery,
)
from tidegate.console.frame.forms import digits_of, sequence_number_of
from tidegate.console.frame.paging import PAGE_SIZE
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.json_path import JsonPath
from tidegate.model.position import EventPosition, parse_time

STARTS: Final = {
    "newest": "Newest first",
    "oldest": "Oldest first",
    "offset": "From offset",
    "sequence": "From sequence number",
    "time": "From enqueued time",
}
"""Where to begin, by name in a URL."""

COUNTS: Final = (25, PAGE_SIZE, 100, 250, EVENTS_PER_PAGE_MAX)

COLUMNS: Final = {
    "partition": "Partition",
    "enqueued": "Enqueued",
    "key": "Key",
    "properties": "Properties",
    "size": "Size",
    "body": "Body",
}
"""The columns besides the sequence number, by name in a URL."""

_FILTERS: Final = ("key", "property", "text", "json")
_FIELDS: Final = ("partition", "from", "value", *_FILTERS, "count", "columns", "paths")
_TEXT_CHARACTERS_MAX = 1000
_COUNT_DIGITS_MAX: Final = len(str(EVENTS_PER_PAGE_MAX))


@dataclass(frozen=True, slots=True)
class Columns:
    """What rows of a list show besides the sequence number."""

    names: tuple[str, ...] = tuple(COLUMNS)
    paths: tuple[JsonPath, ...] = ()
    """Values of JSON bodies."""


@dataclass(frozen=True, slots=True)
class ExplorerForm:
    """The fields as entered; missing ones are empty."""

    hub: str
    fields: Mapping[str, str]
    at: str = ""
    """The cursor."""

    @classmethod
    def of(cls, hub: str, parameters: Mapping[str, str]) -> ExplorerForm:
        """The form of a URL."""
        fields = {name: parameters.get(name, "").strip()[:_TEXT_CHARACTERS_MAX] for name in _FIELDS}
        fields["text"] = parameters.get("text", "")[:_TEXT_CHARACTERS_MAX]  # its blanks may be meant
        fields["from"] = fields["from"] or "newest"
        fields["count"] = fields["count"] or str(PAGE_SIZE)
        # The form repeats the parameter, the URLs of pages do not.
        given = parameters.getlist("columns") if isinstance(parameters, QueryParams) else [fields["columns"]]
        chosen = {each for one in given for each in one.split(",")}
        fields["columns"] = "" if chosen >= set(COLUMNS) else ",".join(filter(chosen.__contains__, COLUMNS))
        return cls(hub, fields, parameters.get("at", ""))

    def query(self, *, now_utc: datetime) -> EventQuery:
        """Raises InvalidArgumentError for invalid fields."""
        fields = self.fields
        name, has_value, value = fields["property"].partition("=")
        if has_value and not name:
            raise InvalidArgumentError(
                f"The property {fields['property']!r} has no name.", next_step="Write name=value, or a name."
            )
        return EventQuery(
            self.hub,
            fields["partition"] or None,
            _position(fields["from"], fields["value"], now_utc),
            fields["from"] == "newest",
            EventFilter(
                fields["key"] or None,
                name or None,
                value if has_value else None,
                fields["text"] or None,
                JsonTest.parse(fields["json"]) if fields["json"] else None,
            ),
            _count(fields["count"]),
        )

    def live_query(self, *, now_utc: datetime) -> EventQuery:
        """The same with the last ``LIVE_EVENTS_MAX`` at most. Raises InvalidArgumentError."""
        query = self.query(now_utc=now_utc)
        return replace(query, count=min(query.count, LIVE_EVENTS_MAX))

    @property
    def cursor(self) -> EventCursor | None:
        """The page's cursor; None for a first page. Raises InvalidArgumentError."""
        return EventCursor.parse(self.at) if self.at else None

    @property
    def is_filtered(self) -> bool:
        """Whether the form filters events."""
        return any(self.fields[name] for name in _FILTERS)

    @property
    def columns(self) -> Columns:
        """What rows show. Raises InvalidArgumentError."""
        names = [each for each in self.fields["columns"].split(",") if each]
        return Columns(tuple(names or COLUMNS), parse_paths(self.fields["paths"]))

    def address(self, *, page: str = "", cursor: EventCursor | None = None, **changed: str) -> str:
        """The URL of the same query, except for ``changed``. page: below the explorer's path."""
        return f"/hubs/{quote(self.hub, safe='')}/explorer{page}{self.asked(cursor=cursor, **changed)}"

    def asked(self, *, cursor: EventCursor | None = None, **changed: str) -> str:
        """The query part of a URL."""
        fields = {**self.fields, **changed}
        if cursor is not None:
            fields["at"] = cursor.format()
        given = {name: value for name, value in fields.items() if value}
        return f"?{urlencode(given)}" if given else ""

    def fixed(self, *, now_utc: datetime) -> ExplorerForm:
        """The same form with a relative time made absolute, so that its pages are consistent."""
        if self.fields["from"] != "time":
            return self
        time = parse_time(self.fields["value"], now_utc=now_utc)
        return ExplorerForm(self.hub, {**self.fields, "value": time.isoformat()}, self.at)


def _position(start: str, value: str, now_utc: datetime) -> EventPosition | None:
    if start in ("newest", "oldest"):
        return None
    if start not in STARTS:
        raise InvalidArgumentError(f"Events cannot be read from {start[:40]!r}.")
    if not value:
        raise InvalidArgumentError(
            f"{STARTS[start]}: which?", next_step="Fill in the field beside it: 4711, 2h or 2026-11-22T07:25."
        )
    if start == "time":
        return EventPosition.from_enqueued_time(parse_time(value, now_utc=now_utc))
    if start == "offset":
        return EventPosition.from_offset(value, is_inclusive=True)
    return EventPosition.from_sequence_number(sequence_number_of(value))


def _count(text: str) -> int:
    found = digits_of(text, _COUNT_DIGITS_MAX)
    if found is None or not 1 <= found <= EVENTS_PER_PAGE_MAX:
        raise InvalidArgumentError(f"A page has 1 to {EVENTS_PER_PAGE_MAX} events, not {text[:20]!r}.")
    return found

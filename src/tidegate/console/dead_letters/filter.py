"""The dead letter filter of a URL or a form, and the cursor of a page."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Self
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta

from tidegate.console.frame.rights import Rights
from tidegate.model.errors import InvalidArgumentError
from tidegate.sql import AuditEntry, DeadLetter, DeadLetterFilter
from tidegate.sql.dead_letters.pages import DeadLetterLine, DeadLetterPlace

_FIELDS = (
    "hub",
    "group",
    "partition",
    "error_type",
    "reason",
    "reason_is",
    "state",
    "from",
    "until",
    "number",
    "enqueued_from",
    "database",
)
"""The fields of ``DeadLetterFilter`` that pages offer, and the one that a form executing a dry run adds; and
the name of the database, empty for all."""
_TEXT_CHARACTERS_MAX = 2_000
"""As reasons are stored; a redrive's process gets them as arguments, which have a limit (128 KB in Linux)."""
_LINKS_CHARACTERS_MAX = 32_000
"""Of a table's links together (our choice: a few milliseconds of the event loop, and more than links of usual
filters and reasons have)."""
_LINK_CHARACTERS_MAX = 8_000
"""The service refuses a path and query of more than 8 KB."""

_NAME = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
_Place = tuple[
    Annotated[datetime, Meta(tz=True)],
    _NAME,
    _NAME,
    _NAME,
    Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)],
]
"""The fields of ``DeadLetterPlace``, as databases can hold them."""


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """The fields of the filter, as strings; empty: any."""

    fields: Mapping[str, str]
    since: datetime | None
    """Of the user's rights: only events enqueued since then, not those of an earlier hub of that name."""

    @classmethod
    def of(cls, given: Mapping[str, object], rights: Rights) -> Self:
        """The fields of a URL or a form. With a policy of one hub, the filter is limited to that hub."""
        # Names and reasons never contain NUL, which PostgreSQL does not allow in text.
        texts = {name: str(given.get(name, "")).replace("\0", "") for name in _FIELDS}
        fields = {name: text.strip()[:_TEXT_CHARACTERS_MAX] for name, text in texts.items()}
        # As stored: forms send each line end as two characters (WHATWG HTML, form submission).
        fields["reason_is"] = texts["reason_is"].replace("\r\n", "\n")[:_TEXT_CHARACTERS_MAX]
        if rights.hub is not None and not fields["hub"]:
            fields["hub"] = rights.hub
        return cls(fields, rights.since)

    @property
    def database(self) -> str:
        """The name of the database; empty: all."""
        return self.fields["database"]

    @property
    def hub(self) -> str | None:
        """The hub; None for all."""
        return self.fields["hub"] or None

    def filter(self, *, now_utc: datetime) -> DeadLetterFilter:
        """Raises InvalidArgumentError for an invalid time, number or state."""
        found = DeadLetterFilter.from_fields(self.fields, now_utc=now_utc)
        times = [time for time in (found.enqueued_from, self.since) if time is not None]
        return replace(found, enqueued_from=max(times, default=None))

    def query(self, **changes: str) -> str:
        """The filter as a URL query, with some fields changed."""
        fields = dict(self.fields)
        for name, value in changes.items():
            fields[name.rstrip("_")] = value
        return urlencode({name: value for name, value in fields.items() if value})

    def links(self, changes: Iterable[Mapping[str, str]]) -> Iterator[str]:
        """``query`` for each row of a table; empty: the row has no link, as it would be too long, or those
        before it are."""
        left = _LINKS_CHARACTERS_MAX
        for each in changes:
            query = self.query(**each) if left > 0 else ""
            left -= len(query)
            yield query if len(query) <= _LINK_CHARACTERS_MAX else ""

    @property
    def is_empty(self) -> bool:
        """Whether no field but the state is set."""
        return not any(value for name, value in self.fields.items() if name != "state")


def letter_address(
    letter: DeadLetter | DeadLetterLine | AuditEntry, database: str = "", *, part: str = ""
) -> str:
    """The URL of one dead letter's page, or of a part of it. database: its name, if there are several."""
    parts = (letter.event_hub, letter.consumer_group, letter.partition_id, str(letter.sequence_number))
    path = "/dead-letters/" + "/".join(quote(each, safe="") for each in parts) + part
    return f"{path}?{urlencode({'database': database})}" if database else path


def format_place(place: DeadLetterPlace) -> str:
    """A cursor for a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(astuple(place))).decode().rstrip("=")


def parse_place(text: str) -> DeadLetterPlace:
    """The inverse of ``format_place``. Raises InvalidArgumentError."""
    try:
        encoded = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        at, hub, group, partition_id, number = msgspec.json.decode(encoded, type=_Place)
        return DeadLetterPlace(at.astimezone(UTC), hub, group, partition_id, number)
    except (ValueError, OverflowError, RecursionError, msgspec.DecodeError) as error:
        raise InvalidArgumentError(
            f"Invalid page cursor {text[:40]!r}.", next_step="Start again from the first page."
        ) from error

"""Which dead letters an address means: the fields as people write them, and as the backend has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from urllib.parse import quote, urlencode

from tidegate.console.dead_letters.values import LetterFilter, LetterKey, LetterState
from tidegate.console.frame.rights import Rights
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position_text import parse_time

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
)
_TEXT_CHARACTERS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """The fields of the filter, as text; empty: left open."""

    fields: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, object], rights: Rights) -> Self:
        """Those of an address or a form. A policy of one hub means that hub, whatever else was left open."""
        # No name and no reason holds a NUL, which PostgreSQL takes in no text.
        texts = {name: str(given.get(name, "")).replace("\0", "") for name in _FIELDS}
        fields = {name: text.strip()[:_TEXT_CHARACTERS_MAX] for name, text in texts.items()}
        # As it is stored: forms send each end of a line as two characters (WHATWG HTML, form submission).
        fields["reason_is"] = texts["reason_is"].replace("\r\n", "\n")
        if rights.hub is not None and not fields["hub"]:
            fields["hub"] = rights.hub
        return cls(fields)

    @property
    def hub(self) -> str | None:
        """The hub that is meant; None: all."""
        return self.fields["hub"] or None

    def filter(self, *, now_utc: datetime) -> LetterFilter:
        """Raises InvalidArgumentError for a time, a number or a state that cannot be meant."""
        fields = self.fields
        state: LetterState | None = LetterState.OPEN
        if fields["state"]:
            try:
                state = None if fields["state"] == "all" else LetterState(fields["state"])
            except ValueError as error:
                raise InvalidArgumentError(
                    f"{fields['state'][:40]!r} is no state of a dead letter.",
                    next_step="Use open, redriven, discarded or all.",
                ) from error
        return LetterFilter(
            event_hub=fields["hub"] or None,
            consumer_group=fields["group"] or None,
            partition_id=fields["partition"] or None,
            error_type=fields["error_type"] or None,
            reason=fields["reason"] or None,
            reason_is=fields["reason_is"] or None,
            state=state,
            failed_from=parse_time(fields["from"], now_utc=now_utc) if fields["from"] else None,
            failed_until=parse_time(fields["until"], now_utc=now_utc) if fields["until"] else None,
            sequence_number=_number(fields["number"]),
        )

    def query(self, **changes: str) -> str:
        """The filter as part of an address, some fields changed."""
        fields = dict(self.fields)
        for name, value in changes.items():
            fields[name.rstrip("_")] = value
        return urlencode({name: value for name, value in fields.items() if value})

    @property
    def is_empty(self) -> bool:
        """Whether it leaves everything open but the state."""
        return not any(value for name, value in self.fields.items() if name != "state")


def letter_address(key: LetterKey) -> str:
    """The page of one dead letter."""
    parts = (key.event_hub, key.consumer_group, key.partition_id, str(key.sequence_number))
    return "/dead-letters/" + "/".join(quote(part, safe="") for part in parts)


def _number(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidArgumentError(
            f"{text[:40]!r} is not a sequence number.", next_step="Give a number, 0 or more."
        )
    return int(text)

"""Which events ``receive`` shows, and how: filters, and templates of ``--format``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Final, cast

from tidegate.cli.events.records import COLUMNS, event_record, remark_undecodable, shown_property
from tidegate.cli.shell.render import cell_text, csv_text
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent

_PROPERTY_PREFIX: Final = "properties."
_FIELDS: Final = tuple(name for name in COLUMNS if name not in ("property_types", "body_base64"))
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}


def parse_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Properties given as ``NAME=VALUE``. Raises InvalidArgumentError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidArgumentError(
                f"--property {pair!r:.60} is not NAME=VALUE.", next_step="Write --property device=a1."
            )
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Conditions that an event must all meet."""

    partition_key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """Values as ``receive`` shows them."""
    text: str | None = None
    """Somewhere in the body."""

    @property
    def is_open(self) -> bool:
        """Whether it has no condition."""
        return self.partition_key is None and not self.properties and self.text is None

    def accepts(self, event: ReceivedEvent) -> bool:
        """Whether the event meets all; one that is not a valid AMQP message does not."""
        return self._accepts(event) and event.decode_error is None

    def _accepts(self, event: ReceivedEvent) -> bool:
        if self.text is not None and self.text.encode() not in event.body:
            return False
        if self.partition_key is not None and event.partition_key != self.partition_key:
            return False
        return all(
            name in event.properties and csv_text(shown_property(event.properties[name])) == value
            for name, value in self.properties.items()
        )


class FormatWriter:
    """Writes a line per event by a template with ``{fields}``."""

    def __init__(self, template: str) -> None:
        """Raises InvalidArgumentError for an invalid template or a field that does not exist."""
        self.event_count = 0
        escaped = re.sub(r"\\[tnr0\\]", lambda found: _ESCAPES[found[0]], template)
        try:
            parts = list(Formatter().parse(escaped))
        except ValueError as error:
            raise InvalidArgumentError(f"Invalid --format: {error}.") from error
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, specification, conversion in parts:
            is_known = name is None or name in _FIELDS or name.startswith(_PROPERTY_PREFIX)
            if not is_known or specification or conversion:
                raise InvalidArgumentError(
                    f"--format has an unknown field {{{name}}}.",
                    next_step=f"The fields are: {', '.join(_FIELDS)}, {_PROPERTY_PREFIX}NAME.",
                )
            self._parts.append((literal, name))
        # An event must not control a terminal; a program gets it unchanged.
        self._text: Callable[[object], str] = cell_text if sys.stdout.isatty() else csv_text

    def write(self, events: Sequence[ReceivedEvent]) -> None:
        """Write events, and flush them to the reader of a pipe."""
        sys.stdout.buffer.write(b"".join(map(self._line, events)))
        sys.stdout.buffer.flush()
        self.event_count += len(events)

    def close(self) -> None:
        """There is nothing to complete."""

    def _line(self, event: ReceivedEvent) -> bytes:
        record = event_record(event)
        if record["decode_error"] is not None:
            remark_undecodable(record)
            record = {**record, "body": record["body_base64"]}
        properties = cast(Mapping[str, object], record["properties"])
        line = b""
        for literal, name in self._parts:
            line += literal.encode()
            if name is None:
                continue
            if name == "body" and record["body"] is None and self._text is csv_text:
                line += event.body
            elif name.startswith(_PROPERTY_PREFIX):
                line += self._text(properties.get(name.removeprefix(_PROPERTY_PREFIX))).encode()
            else:
                line += self._text(record[name]).encode()
        return line + b"\n"

"""Reads batches of events in JSON, in steps that are short whatever the text contains.

The standard library's decoder cannot be interrupted, and some characters are expensive: an event of 2 MB
with a list of ``[],[],…`` takes it 0.3 s. So it decodes at most ``VALUE_CHARACTERS_MAX`` characters at a
time, or a single string, whose characters cost 10 ns at most (escaped ones: 20 ms for 2 MB, in one step). A
larger event is read member by member.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.model.validation import utf8

VALUE_CHARACTERS_MAX: Final = 4096
"""Of a value in an event that is neither a string nor an object with such members (our choice: decoding it
takes 0.3 ms at most)."""

PROPERTIES_MAX: Final = 1000
"""Maximum UserProperties of one event (our choice: the maximum entries of a map over AMQP)."""

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOO_LARGE: Final = object()

Item = tuple[EventData, str | None]
"""An event and its partition key."""


def batch_text(body: bytes | bytearray) -> str:
    """The text of a batch. Raises InvalidArgumentError."""
    try:
        return body.decode(json.detect_encoding(body))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"The batch is not JSON: {error}.") from error


def batch_items(text: str) -> Iterator[Item | None]:
    """The events of a batch, one at a time; None after each step without one.

    Accepts what ``json.loads`` does, but for values above ``VALUE_CHARACTERS_MAX``. Raises
    InvalidArgumentError.
    """
    reader = _Reader(text)
    if reader.next_character() != "[":
        reader.value()
        raise InvalidArgumentError("The batch is not a JSON list of at least one event.")
    number = 0
    while reader.is_followed(number, "[", "]"):
        item = reader.value()
        if item is _TOO_LARGE:
            item = yield from reader.members(is_nested=False)
        yield _batch_item(number, item)
        number += 1
    if reader.next_character():
        raise reader.error("something follows its end")


def partition_key(broker_properties: object) -> str | None:
    """The PartitionKey in BrokerProperties, if any. Raises InvalidArgumentError."""
    if broker_properties is None:
        return None
    if not isinstance(broker_properties, dict):
        raise InvalidArgumentError("BrokerProperties is not a JSON object.")
    key = broker_properties.get("PartitionKey")
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidArgumentError("The PartitionKey must be a string.")
    utf8(key, "The PartitionKey")
    return key


class _Reader:
    """A position in a JSON text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def next_character(self) -> str:
        """The next character after whitespace; empty at the end."""
        match = _SPACE.match(self._text, self.position)
        assert match is not None  # it may be empty
        self.position = match.end()
        return self._text[self.position : self.position + 1]

    def expect(self, characters: str) -> str:
        """Go past one of these characters, which is the next after whitespace."""
        found = self.next_character()
        if not found or found not in characters:
            raise self.error(f"{' or '.join(map(repr, characters))} is missing")
        self.position += 1
        return found

    def is_followed(self, count: int, opening: str, closing: str) -> bool:
        """Whether another value follows ``count`` values of a list or object; go past what is before it, or
        past the end."""
        if count:
            return self.expect(f",{closing}") == ","
        self.expect(opening)
        is_empty = self.next_character() == closing
        self.position += is_empty
        return not is_empty

    def value(self) -> object:
        """Go past a value; ``_TOO_LARGE``, at its start, for an object that is."""
        first = self.next_character()
        try:
            if first == '"':
                found, self.position = _DECODER.raw_decode(self._text, self.position)
                return found
            window = self._text[self.position : self.position + VALUE_CHARACTERS_MAX]
            found, end = _DECODER.raw_decode(window)
        except (ValueError, RecursionError) as error:
            if len(self._text) - self.position <= VALUE_CHARACTERS_MAX or first == '"':
                problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise self.error(problem) from error
            if first == "{":
                return _TOO_LARGE
            raise self.error(f"no value of at most {VALUE_CHARACTERS_MAX} characters begins there") from error
        if end == VALUE_CHARACTERS_MAX and first not in "{[":
            raise self.error(f"the value has more than {VALUE_CHARACTERS_MAX} characters")
        self.position += end
        return found

    def members(self, *, is_nested: bool) -> Generator[None, None, dict[str, object]]:
        """Go past an object, a member at a time. is_nested: in another one: no member may be large."""
        found: dict[str, object] = {}
        count = 0
        while self.is_followed(count, "{", "}"):
            if self.next_character() != '"':
                raise self.error("'\"' is missing")
            name = str(self.value())
            self.expect(":")
            value = self.value()
            if value is _TOO_LARGE:
                if is_nested:
                    raise self.error(f"the object has more than {VALUE_CHARACTERS_MAX} characters")
                value = yield from self.members(is_nested=True)
            found[name] = value
            count += 1
            if count > PROPERTIES_MAX:
                raise self.error(f"the object has more than {PROPERTIES_MAX} members")
            yield
        return found

    def error(self, problem: str) -> InvalidArgumentError:
        """What to raise for a problem at this position."""
        return InvalidArgumentError(f"The batch is not JSON, or too large: at {self.position}, {problem}.")


def _batch_item(number: int, item: object) -> Item:
    if not isinstance(item, dict) or not isinstance(item.get("Body"), str):
        raise InvalidArgumentError(f"The Body of event {number} of the batch must be a string.")
    properties = item.get("UserProperties") or {}
    if not isinstance(properties, dict) or any(
        isinstance(value, (list, dict)) for value in properties.values()
    ):
        raise InvalidArgumentError(
            f"The UserProperties of event {number} of the batch are not an object of plain values."
        )
    if len(properties) > PROPERTIES_MAX:
        raise InvalidArgumentError(
            f"Event {number} of the batch has {len(properties)} UserProperties, more than {PROPERTIES_MAX}."
        )
    for text in (*properties, *properties.values()):
        if isinstance(text, str):
            utf8(text, f"A UserProperty of event {number}")
    event = EventData(utf8(item["Body"], f"The Body of event {number}"), properties)
    return event, partition_key(item.get("BrokerProperties"))

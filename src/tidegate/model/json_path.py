"""Paths into a JSON value, which find an event's key in its body: ``.carrier``, ``.items[0].name``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import orjson

from tidegate.model.errors import InvalidArgumentError

_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,9})\]|\[\"([^\"]*)\"\]")

MISSING: Final = object()
"""There is no value: not even null."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path: member names and list indexes, outermost first."""

    text: str
    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse ``.name``, ``[index]`` and ``["any name"]`` steps; raises InvalidArgumentError otherwise."""
        path, rest = cls.parse_start(text)
        if rest:
            raise _invalid(text)
        return path

    @classmethod
    def parse_start(cls, text: str) -> tuple[JsonPath, str]:
        """Parse as many steps as there are, at least one; returns the path, and what follows it."""
        steps: list[str | int] = []
        position = 0
        while position < len(text):
            match = _STEP.match(text, position)
            if match is None:
                break
            name, index, quoted = match.groups()
            steps.append(int(index) if index is not None else quoted if quoted is not None else name)
            position = match.end()
        if not steps:
            raise _invalid(text)
        return cls(text[:position], tuple(steps)), text[position:]

    def value_in(self, value: object) -> object:
        """The value at this path of a parsed document; MISSING if there is none."""
        for step in self.steps:
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step, MISSING)
            elif isinstance(step, int) and isinstance(value, list) and step < len(value):
                value = value[step]
            else:
                return MISSING
        return value

    def text_in(self, document: bytes) -> str:
        """The value at this path of a JSON document, as a string (numbers as in JSON).

        Raises InvalidArgumentError if the document is not JSON or has no string, number or boolean there.
        """
        try:
            value: object = orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"Invalid JSON: {error}.") from error
        value = self.value_in(value)
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return orjson.dumps(value).decode()
        raise InvalidArgumentError(f"There is no string or number at {self.text}.")


def _invalid(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text!r} is not a valid JSON path.",
        next_step='Write it like .carrier, .device.id, .items[0].name or ["any name"].',
    )

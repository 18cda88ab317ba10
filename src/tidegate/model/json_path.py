"""Paths into a JSON value, which find an event's key in its body: ``.carrier``, ``.items[0].name``."""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from tidegate.model.errors import InvalidArgumentError

_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,9})\]|\[\"([^\"]*)\"\]")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path: member names and list indexes, outermost first."""

    text: str
    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse ``.name``, ``[index]`` and ``["any name"]`` steps; raises InvalidArgumentError otherwise."""
        steps: list[str | int] = []
        position = 0
        while position < len(text):
            match = _STEP.match(text, position)
            if match is None:
                break
            name, index, quoted = match.groups()
            steps.append(int(index) if index is not None else quoted if quoted is not None else name)
            position = match.end()
        if not steps or position < len(text):
            raise InvalidArgumentError(
                f"{text!r} is not a valid JSON path.",
                next_step='Write it like .carrier, .device.id, .items[0].name or ["any name"].',
            )
        return cls(text, tuple(steps))

    def text_in(self, document: bytes) -> str:
        """The value at this path of a JSON document, as a string (numbers as in JSON).

        Raises InvalidArgumentError if the document is not JSON or has no string, number or boolean there.
        """
        try:
            value: object = orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"Invalid JSON: {error}.") from error
        for step in self.steps:
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list) and step < len(value):
                value = value[step]
            else:
                value = None
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            return orjson.dumps(value).decode()
        raise InvalidArgumentError(f"There is no string or number at {self.text}.")

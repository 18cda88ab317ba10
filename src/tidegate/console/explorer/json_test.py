"""A condition on the JSON of an event's body: ``$.carrier = LH``, ``$.items[0].price >= 9.5``.

Pure: runs in threads. Its time is linear in the body, and it holds up no other thread (see
``bodies.json_value``).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidegate.console.explorer.bodies import json_value, value_text
from tidegate.console.explorer.values import ExploredEvent
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents
from tidegate.model.json_path import MISSING, JsonPath

PATHS_MAX: Final = 6
"""Columns of one page. Our choice."""
COLUMN_BYTES_MAX: Final = 64 * 1024
"""Larger events have no such columns: a page may have 500 of them."""

_CONDITION: Final = re.compile(r"\s*((?>!=|<=|>=|==?|<|>|~))\s*(.+)", re.DOTALL)
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class JsonTest:
    """A path, and what its value must be."""

    path: JsonPath
    comparison: str = ""
    """``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` or ``~`` (contains the text); empty: any value fits."""
    text: str = ""
    """The value as written."""

    @classmethod
    def parse(cls, text: str) -> JsonTest:
        """Raises InvalidArgumentError."""
        path, rest = JsonPath.parse_start(text.strip().removeprefix("$"))
        if not rest:
            return cls(path)
        found = _CONDITION.fullmatch(rest)
        if found is None:
            raise InvalidArgumentError(
                f"{rest[:40]!r} after the path {path.text[:40]} is not a condition.",
                next_step="Write one like $.carrier = LH, $.delay >= 15, $.note ~ late, or only $.delay.",
            )
        return cls(path, "=" if found[1] == "==" else found[1], found[2])

    def __call__(self, contents: EventContents) -> bool:
        """Whether the body is JSON, and its value at the path fits; numbers compare as numbers."""
        found = value_at(self.path, contents)
        if found is MISSING:
            return False
        match self.comparison:
            case "":
                return True
            case "=" | "!=":
                return self._is_equal(found) == (self.comparison == "=")
            case "~":
                return isinstance(found, str) and self._wanted_text.lower() in found.lower()
        wanted = self._wanted_text if isinstance(found, str) else self._wanted
        is_ordered = isinstance(found, str) or (_is_number(found) and _is_number(wanted))
        return is_ordered and _ORDERS[self.comparison](found, wanted)

    def _is_equal(self, found: object) -> bool:
        if isinstance(found, str):
            return found == self._wanted_text
        wanted = self._wanted
        # In Python, 1 is True.
        return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted

    @property
    def _wanted(self) -> object:
        try:
            return orjson.loads(self.text)
        except orjson.JSONDecodeError:
            return self.text

    @property
    def _wanted_text(self) -> str:
        """What a string is compared with: the quotes of a JSON string are not a part of it."""
        wanted = self._wanted
        return wanted if isinstance(wanted, str) else self.text


def parse_paths(text: str) -> tuple[JsonPath, ...]:
    """Paths with commas between them: ``$.carrier, $.delay``. Raises InvalidArgumentError."""
    paths: list[JsonPath] = []
    rest = text.strip()
    while rest:
        path, rest = JsonPath.parse_start(rest.removeprefix("$"))
        paths.append(path)
        rest, has_more = rest.strip(), rest.strip().startswith(",")
        if (rest and not has_more) or len(paths) > PATHS_MAX:
            raise InvalidArgumentError(
                f"Columns are up to {PATHS_MAX} JSON paths with commas between them.",
                next_step="Write them like $.carrier, $.items[0].name.",
            )
        rest = rest.removeprefix(",").strip()
    return tuple(paths)


def value_at(path: JsonPath, contents: EventContents) -> object:
    """The value in an event's body; MISSING also if the body is not JSON."""
    try:
        body = json_value(contents.body) if contents.body_value is None else contents.body_value
    except ValueError:
        return MISSING
    return path.value_in(body)


def column_texts(paths: Sequence[JsonPath], event: ExploredEvent, characters_max: int) -> list[str]:
    """What columns of the paths show of an event: empty where there is nothing."""
    contents = event.contents
    if contents is not None and paths and event.size_bytes > COLUMN_BYTES_MAX:
        return ["too large"] * len(paths)
    body: object = MISSING
    if contents is not None and paths:
        with suppress(ValueError):
            body = json_value(contents.body) if contents.body_value is None else contents.body_value
    values = [path.value_in(body) for path in paths]
    return ["" if each is MISSING else value_text(each, characters_max) for each in values]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

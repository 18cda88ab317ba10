"""Takes typed values out of a table of TOML or JSON, and tells what is missing, mistyped or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tidegate.model.errors import InvalidArgumentError
from tidegate.server.declared import Switch


class PlainTable:
    """One table; used with ``with``, whose end refuses names that nobody asked for.

    Every method raises InvalidArgumentError naming the value and where it stands.
    """

    def __init__(self, value: object, where: str) -> None:
        """where: names the table to its author, such as ``event_hubs[0]``."""
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(f"{where} takes a table of names and values, not {_shown(value)}.")
        self.where = where
        self._values: dict[str, object] = {str(name): item for name, item in value.items()}
        self._known: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and (unknown := sorted(set(self._values) - set(self._known))):
            raise InvalidArgumentError(
                f"{self.where} has the unknown name {unknown[0]!r}.",
                next_step=f"Known: {', '.join(sorted(self._known))}.",
            )

    def optional(self, name: str) -> object:
        """Any value; None where there is none."""
        self._known.append(name)
        return self._values.get(name)

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.optional_text(name)
        if value is None:
            raise InvalidArgumentError(f"{self.where} lacks {name}.")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text; None where there is none."""
        value = self.optional(name)
        if value is None or isinstance(value, str):
            return value
        raise InvalidArgumentError(f"{self.place(name)} takes a text, not {_shown(value)}.")

    def integer(self, name: str) -> int:
        """A whole number that must be there."""
        value = self.optional_integer(name)
        if value is None:
            raise InvalidArgumentError(f"{self.where} lacks {name}.")
        return value

    def optional_integer(self, name: str) -> int | None:
        """A whole number; None where there is none."""
        value = self.optional(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise InvalidArgumentError(f"{self.place(name)} takes a whole number, not {_shown(value)}.")

    def integer_or_off(self, name: str) -> int | Switch | None:
        """A whole number, or ``"off"``; None where there is none."""
        if self._values.get(name) == Switch.OFF.value:
            self._known.append(name)
            return Switch.OFF
        return self.optional_integer(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise InvalidArgumentError(f"{self.place(name)} takes a list of texts, not {_shown(value)}.")
        return tuple(str(value) for value in values)

    def items(self, name: str) -> Sequence[object]:
        """A list of whatever; empty where there is none."""
        value = self.optional(name)
        if value is None:
            return ()
        if isinstance(value, list):
            return value
        raise InvalidArgumentError(f"{self.place(name)} takes a list, not {_shown(value)}.")

    def place(self, name: str, index: int | None = None) -> str:
        """What to call a value of this table, or an item of a list in it."""
        return f"{self.where}.{name}" if index is None else f"{self.where}.{name}[{index}]"


def _shown(value: object) -> str:
    # A kind rather than a value: what stands in the wrong place may be a key.
    return {bool: "true or false", str: "a text", list: "a list", dict: "a table"}.get(
        type(value), f"a {type(value).__name__}"
    )

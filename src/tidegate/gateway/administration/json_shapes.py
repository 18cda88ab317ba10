"""JSON objects as tables: one table checks what comes in and is what the OpenAPI document says.

A shape is its fields in order. What a request's shape does not know is refused, so that a misspelt setting is
never taken for one that was left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidegate.model.errors import InvalidArgumentError


class Kind(Enum):
    """What a field holds, with its name in texts."""

    INTEGER = "a whole number"
    TEXT = "a text"
    BOOLEAN = "true or false"
    TEXTS = "a list of texts"
    OBJECT = "an object"
    OBJECTS = "a list of objects"


_TYPES: Final[Mapping[Kind, type]] = {
    Kind.INTEGER: int,
    Kind.TEXT: str,
    Kind.BOOLEAN: bool,
    Kind.TEXTS: list,
    Kind.OBJECT: dict,
    Kind.OBJECTS: list,
}

_SCHEMAS: Final[Mapping[Kind, Mapping[str, object]]] = {
    Kind.INTEGER: {"type": "integer"},
    Kind.TEXT: {"type": "string"},
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.TEXTS: {"type": "array", "items": {"type": "string"}},
}


@dataclass(frozen=True, slots=True)
class Field:
    """One member of an object."""

    name: str
    kind: Kind
    description: str
    is_required: bool = True
    """Whether it is always there (in an answer), or must be (in a request)."""
    is_nullable: bool = False
    choices: tuple[str, ...] = ()
    """The only texts that there are; (): any."""
    shape: Shape | None = None
    """Of an object, or of the objects in a list."""

    def schema(self) -> dict[str, object]:
        """Its JSON Schema (2020-12, as OpenAPI 3.1 has it)."""
        if self.shape is not None:
            reference = {"$ref": f"#/components/schemas/{self.shape.name}"}
            inner: dict[str, object] = dict(reference)
            if self.kind is Kind.OBJECTS:
                inner = {"type": "array", "items": reference}
            if self.is_nullable:
                inner = {"oneOf": [inner, {"type": "null"}]}
            return {**inner, "description": self.description}
        found = dict(_SCHEMAS[self.kind])
        if self.choices and self.kind is Kind.TEXTS:
            found["items"] = {"type": "string", "enum": list(self.choices)}
        elif self.choices:
            found["enum"] = list(self.choices)
        if self.is_nullable:
            found["type"] = [found["type"], "null"]
        return {**found, "description": self.description}

    def check(self, value: object) -> None:
        """Raise InvalidArgumentError unless ``value`` may stand here."""
        if value is None and self.is_nullable:
            return
        is_meant = type(value) is _TYPES[self.kind]
        if is_meant and self.kind is Kind.TEXTS and isinstance(value, list):
            is_meant = all(isinstance(item, str) for item in value)
        if not is_meant:
            null = ", or null" if self.is_nullable else ""
            raise InvalidArgumentError(f"{self.name} is not {self.kind.value}{null}.")
        for text in value if isinstance(value, list) else [value]:
            if self.choices and text not in self.choices:
                raise InvalidArgumentError(
                    f"{self.name} cannot be {str(text)[:80]!r}.",
                    next_step=f"Known: {', '.join(self.choices)}.",
                )


@dataclass(frozen=True, slots=True)
class Shape:
    """An object."""

    name: str
    """In ``#/components/schemas``."""
    fields: tuple[Field, ...]

    def schema(self) -> dict[str, object]:
        """Its JSON Schema."""
        return {
            "type": "object",
            "properties": {field.name: field.schema() for field in self.fields},
            "required": [field.name for field in self.fields if field.is_required],
            "additionalProperties": False,
        }

    def parse(self, body: bytes) -> dict[str, object]:
        """A request's body, checked. Raises InvalidArgumentError, naming what is wrong."""
        try:
            values = json.loads(body or b"{}")
            # JSON can write half of a surrogate pair, which nothing that is stored or sent may hold.
            json.dumps(values, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"The body is not JSON: {str(error)[:200]}.") from error
        if not isinstance(values, dict):
            raise InvalidArgumentError("The body is not a JSON object.")
        return self.check(values)

    def check(self, values: Mapping[str, object]) -> dict[str, object]:
        """The values of a request. Raises InvalidArgumentError, naming what is wrong."""
        known = {field.name: field for field in self.fields}
        for name, value in values.items():
            if name not in known:
                raise InvalidArgumentError(
                    f"There is no {name[:80]!r} here.", next_step=f"Known: {', '.join(known) or 'nothing'}."
                )
            known[name].check(value)
        for field in self.fields:
            if field.is_required and field.name not in values:
                raise InvalidArgumentError(f"{field.name} is missing.")
        return dict(values)

"""JSON objects as tables: one table checks requests and makes their schema in the OpenAPI document.

A shape is its fields in order. A request with an unknown field is refused, so that a misspelt setting is
not mistaken for one that was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, defstruct
from msgspec.structs import asdict

from tidegate.model.validation import decoded, validated


class Kind(Enum):
    """What a field holds, with its name in the docs."""

    INTEGER = "an integer"
    TEXT = "a string"
    BOOLEAN = "true or false"
    STRINGS = "a list of strings"
    OBJECT = "an object"
    OBJECTS = "a list of objects"


_SCHEMAS: Final[Mapping[Kind, Mapping[str, object]]] = {
    Kind.INTEGER: {"type": "integer"},
    Kind.TEXT: {"type": "string"},
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.STRINGS: {"type": "array", "items": {"type": "string"}},
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
    """The only strings allowed; (): any."""
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
        if self.choices and self.kind is Kind.STRINGS:
            found["items"] = {"type": "string", "enum": list(self.choices)}
        elif self.choices:
            found["enum"] = list(self.choices)
        if self.is_nullable:
            found["type"] = [found["type"], "null"]
        return {**found, "description": self.description}

    def type(self) -> Any:
        """What msgspec checks a value of a request against."""
        text: Any = Literal[self.choices] if self.choices else str
        kinds = {Kind.INTEGER: int, Kind.TEXT: text, Kind.BOOLEAN: bool, Kind.STRINGS: list[text]}
        return kinds[self.kind] | None if self.is_nullable else kinds[self.kind]


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
        return _given(decoded(body or b"{}", _struct(self)))

    def check(self, values: Mapping[str, object]) -> dict[str, object]:
        """The values of a request, checked. Raises InvalidArgumentError, naming what is wrong."""
        return _given(validated(values, _struct(self)))


@cache
def _struct(shape: Shape) -> type[Struct]:
    fields: list[Any] = []
    for field in shape.fields:
        name, kind = field.name, field.type()
        fields.append((name, kind) if field.is_required else (name, kind | UnsetType, UNSET))
    return defstruct(shape.name, fields, forbid_unknown_fields=True, kw_only=True)


def _given(values: Struct) -> dict[str, object]:
    return {name: value for name, value in asdict(values).items() if value is not UNSET}

"""What msgspec refuses, as one sentence that names the field."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct, defstruct

from tidegate.model import validation
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.validation import decoded, validated


class _Switch(Enum):
    OFF = "off"


class _Item(Struct, forbid_unknown_fields=True):
    name: str
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    limit: int | _Switch | None = None
    names: tuple[str, ...] = ()
    folder: Path | None = None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "items[0].name is missing."),
        ({"name": 1}, "items[0].name must be a string, got an integer."),
        ({"name": "a", "port": -1}, "items[0].port must be an integer >= 0."),
        ({"name": "a", "port": "x"}, "items[0].port must be an integer or null, got a string."),
        ({"name": "a", "limit": True}, "must be an integer or a string or null, got true or false."),
        ({"name": "a", "limit": "on"}, "items[0].limit: invalid value 'on'. Known: an integer, off."),
        ({"name": "a", "names": "b"}, "items[0].names must be a list, got a string."),
        ({"name": "a", "names": [None]}, "items[0].names[0] must be a string, got null."),
        ({"name": "a", "folder": 5}, "items[0].folder must be a string"),
        (
            {"name": "a", "other": 1},
            "items[0]: unknown field 'other'. Known: name, port, limit, names, folder.",
        ),
        ("a", "items[0] must be an object, got a string."),
    ],
)
def test_a_refusal_names_the_field(value: object, sentence: str) -> None:
    """A user finds the mistake by its place, in words that are not Python's."""
    with pytest.raises(InvalidArgumentError) as caught:
        validated([value], tuple[_Item, ...], "items")
    assert sentence in str(caught.value)


def test_a_valid_value_has_the_declared_types() -> None:
    """Lists become tuples, strings of paths become paths."""
    found: Any = validated({"name": "a", "limit": "off", "names": ["b"], "folder": "c"}, _Item)
    assert found == _Item("a", limit=_Switch.OFF, names=("b",), folder=Path("c"))


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"name": "\\ud800"}'])
def test_bytes_that_are_not_json_are_refused(body: bytes) -> None:
    """Nothing but JSON gets as far as the check of its fields."""
    with pytest.raises(InvalidArgumentError, match="not JSON"):
        decoded(body, _Item)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"name": "a", f" - at `${'[' * 2_000}": 1}, "Unknown field ' - at `$[["),
        ({"name": "a", "limit": f"' - at `${'[' * 2_000}"}, "limit: invalid value"),
    ],
)
def test_no_value_passes_for_a_place(value: object, sentence: str) -> None:
    """A request quotes at most a line of its own, and its brackets are not searched: 64 KB took a minute."""
    with pytest.raises(InvalidArgumentError) as caught:
        validated(value, _Item)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 250


def test_a_place_is_looked_for_at_the_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the event loop: a field's name of 262 KB was searched from its beginning, which took 14 ms."""
    searched: list[int] = []
    path = validation._PATH

    class Counted:
        def search(self, message: str, start: int) -> re.Match[str] | None:
            searched.append(len(message) - start)
            return path.search(message, start)

    monkeypatch.setattr(validation, "_PATH", Counted())
    with pytest.raises(InvalidArgumentError, match=r"^items\[0\]: unknown field 'xxx"):
        validated([{"name": "a", "x" * 262_000: 1}], tuple[_Item, ...], "items")
    longest = "a" * 200
    with pytest.raises(InvalidArgumentError, match=rf"^{longest}: unknown field 'x"):
        validated({longest: {"x" * 262_000: 1}}, defstruct("Outer", [(longest, _Item)]))
    assert searched == [250, 250]

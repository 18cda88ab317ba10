"""Paths into JSON, as ``send --key`` takes them."""

from __future__ import annotations

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.json_path import JsonPath

DOCUMENT = b'{"device": {"id": "a1", "no": 7}, "items": [{"name": "x"}], "any name": true, "none": null}'


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".device.id", "a1"),
        (".device.no", "7"),
        (".items[0].name", "x"),
        ('["any name"]', "true"),
        ('.device["id"]', "a1"),
    ],
)
def test_values(path: str, value: str) -> None:
    """Text, numbers and booleans at a path become a key as JSON writes them."""
    assert JsonPath.parse(path).text_in(DOCUMENT) == value


@pytest.mark.parametrize(
    "path", ["", ".", "device", ".a..b", ".items[x]", ".items[0", "..", ".a b", f"[{'1' * 5_000}]"]
)
def test_bad_paths(path: str) -> None:
    """A path with a typing mistake is refused before anything is sent."""
    with pytest.raises(InvalidArgumentError, match="path"):
        JsonPath.parse(path)


@pytest.mark.parametrize("path", [".missing", ".device", ".items[1].name", ".none", ".device.id.more"])
def test_nothing_usable_at_the_path(path: str) -> None:
    """An object, a null or nothing at the path is an error, never a made-up key."""
    with pytest.raises(InvalidArgumentError, match="no string or number"):
        JsonPath.parse(path).text_in(DOCUMENT)


def test_not_json() -> None:
    """A line that is not JSON has no key."""
    with pytest.raises(InvalidArgumentError, match="Invalid JSON"):
        JsonPath.parse(".a").text_in(b"{")

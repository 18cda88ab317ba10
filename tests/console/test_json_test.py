"""Conditions on the JSON of events' bodies, and columns of its values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tidegate.amqp.types import Array
from tidegate.console.explorer.bodies import preview, value_text
from tidegate.console.explorer.json_test import JsonTest, column_texts, parse_paths
from tidegate.console.explorer.values import EventPlace, ExploredEvent
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents

BODY = (
    b'{"carrier": "LH", "delay": 15, "late": true, "gate": null, "legs": [{"to": "FRA"}], "a b": 1.5, '
    b'"no": "12"}'
)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("$.carrier", True),
        (".carrier = LH", True),
        ('$.carrier="LH"', True),
        ("$.carrier != LH", False),
        ("$.carrier ~ l", True),
        ("$.carrier > A", True),
        ("$.delay >= 15", True),
        ("$.delay>15", False),
        ("$.delay == 15.0", True),
        ("$.delay > x", False),
        ("$.delay ~ 15", False),
        ("$.no = 12", True),
        ("$.late = true", True),
        ("$.late = 1", False),
        ("$.late > 0", False),
        ("$.gate", True),
        ("$.gate = null", True),
        ("$.legs[0].to = FRA", True),
        ("$.legs[1].to", False),
        ("$.legs.to", False),
        ('$["a b"] < 2', True),
        ("$.none != 1", False),
        ("$.legs[0] = x", False),
    ],
)
def test_a_condition_fits(text: str, fits: bool) -> None:
    """Numbers as numbers, other values as they are written; what is not there fits nothing."""
    assert JsonTest.parse(text)(EventContents(BODY)) is fits


@pytest.mark.parametrize(
    "text", ["$", "carrier", "$.a >", "$.a >=", "$.a == ", "$.a b", "$..a", "$.a[x]", "$.*"]
)
def test_a_wrong_condition_is_the_users_error(text: str) -> None:
    """With what to write instead."""
    with pytest.raises(InvalidArgumentError) as caught:
        JsonTest.parse(text)
    assert caught.value.next_step


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"[" * 10, b"9" * 70_000])
def test_what_is_not_json_fits_nothing(body: bytes) -> None:
    """Also what is nested too deeply, in small and large bodies."""
    assert not JsonTest.parse("$.a")(EventContents(body))


def test_values_of_amqp_are_looked_into() -> None:
    """A body that is a map."""
    assert JsonTest.parse("$.a = 1")(EventContents(b"", body_value={"a": 1}))


@pytest.mark.slow
def test_a_large_body_is_read_by_code_that_others_can_interrupt() -> None:
    """Protects the event loop: C code would hold all threads up until its end."""
    body = b'{"rest": [' + b"[],[],[],[]," * 6_000 + b'1], "a": 2}'
    fits = JsonTest.parse("$.a = 2")
    assert _calls_of(lambda: fits(EventContents(body)), "scan_once") > 20_000


def test_columns() -> None:
    """Empty where there is nothing, shortened where there is much; not more than fit."""
    assert _texts(EventContents(BODY)) == ["LH", "15", '[{"to": "FRA']
    assert _texts(None) == _texts(EventContents(b"x")) == ["", "", ""]
    assert _texts(EventContents(b"", body_value={"delay": [1, 2]})) == ["", "[1, 2]", ""]
    # A value of AMQP has no body whose length would say so.
    assert _texts(EventContents(b"", body_value={"delay": 1}), size_bytes=70_000) == ["too large"] * 3
    assert parse_paths("") == ()
    for text in ("a", "$.a $.b", "$.a;", ",".join(["$.a"] * 7)):
        with pytest.raises(InvalidArgumentError):
            parse_paths(text)


@pytest.mark.parametrize(
    "value",
    [[0] * 20_000, [[]] * 20_000, {"a": [[0] * 50] * 400}, Array.of(int, [1] * 20_000), [b"x"] * 20_000],
)
def test_only_what_is_shown_of_a_value_is_written(value: object) -> None:
    """A page may have 500 events with six columns each: writing all of them took minutes."""
    whole = value_text(value)
    calls = _calls_of(lambda: value_text(value, 80))
    assert value_text(value, 80) == whole[:80]
    assert calls < 1_000
    body = EventContents(b"", body_value=value)
    assert _calls_of(lambda: preview(body)) < 4_000
    assert preview(body)[0].rstrip("…") == " ".join(whole.split())[:200]


def test_columns_write_only_what_they_show() -> None:
    """Whatever the path leads to."""
    legs = b'{"legs": [' + b"0," * 20_000 + b"0]}"
    assert _calls_of(lambda: _texts(EventContents(legs))) < 1_000
    assert _texts(EventContents(legs))[2] == "[0, 0, 0, 0,"


def _calls_of(work: Callable[[], object], name: str = "") -> int:
    """How often functions with that in their names are called, or continued."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and name in frame.f_code.co_name

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _texts(contents: EventContents | None, *, size_bytes: int = 100) -> list[str]:
    event = ExploredEvent(EventPlace(0, 0, 0), size_bytes, contents)
    return column_texts(parse_paths("$.carrier, .delay,$.legs"), event, 12)

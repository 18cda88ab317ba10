"""Events to send: what a body may be."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData


@pytest.mark.parametrize("body", ["é", b"\xc3\xa9", bytearray(b"\xc3\xa9"), memoryview(b"\xc3\xa9")])
def test_a_body_is_text_or_bytes(body: bytes | str) -> None:
    """Text is UTF-8; the event has bytes either way, and is an ordinary frozen dataclass."""
    event = EventData(body, {"a": 1})
    assert type(event.body) is bytes
    assert event == EventData("é".encode(), {"a": 1}, None)
    assert pickle.loads(pickle.dumps(event)) == event
    assert replace(event, message_id="m").body == event.body
    assert EventData("x").properties == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"a": 1}, r"text or bytes, not dict\. Encode it first, for example with json.dumps"),
        (None, "not NoneType"),
        (3, "not int"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_another_body_is_refused_where_the_event_is_made(body: object, words: str) -> None:
    """In the line at fault, not when a batch of events is sent."""
    with pytest.raises(InvalidArgumentError, match=words):
        EventData(body)  # type: ignore[arg-type]

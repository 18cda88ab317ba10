"""The extension is the Python code, only faster: byte for byte, value for value, error for error."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.absent import not_tested

from tidegate.amqp.errors import DecodeError
from tidegate.model.errors import TidegateError
from tidegate.model.events import EventContents, EventData, PropertyValue, ReceivedEvent
from tidegate.wire import event_codec
from tidegate.wire.event_codec import decode_event, encode_event, event_body, received_events


@pytest.fixture(autouse=True, scope="module")
def _is_compiled() -> None:
    if event_codec.usual_events is None:
        not_tested("NOT TESTED: the extension. Install gcc and run `make` again: hatch_build.py compiles it.")


_KEYS = st.one_of(st.text(max_size=9), st.text("kä", min_size=120, max_size=270))
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.sampled_from((-129, -128, 127, 128, -(2**31) - 1, -(2**31), 2**31 - 1, 2**31, -(2**63), 2**63 - 1)),
    st.floats(),
    st.text(max_size=9),
    st.text(min_size=120, max_size=270),
    st.just("\ud800"),
    st.binary(max_size=9),
    st.uuids(),
    st.datetimes(timezones=st.just(UTC)),
)
_EVENTS = st.builds(
    EventData,
    st.one_of(st.binary(max_size=9), st.binary(min_size=250, max_size=260)),
    st.one_of(
        st.dictionaries(_KEYS, _VALUES, max_size=4),
        st.integers(100, 140).map(lambda count: {str(number): number for number in range(count)}),
    ),
)
_PARTITION_KEYS = st.one_of(st.none(), st.text(max_size=9), st.text(min_size=100, max_size=300))


@contextmanager
def _in_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_codec, "usual_events", None)
        yield


def _outcome(function: Callable[..., object], *arguments: object) -> object:
    """The result, as what tells 1 from True and NaN from NaN, or the error."""
    try:
        found = function(*arguments)
    except (TidegateError, DecodeError) as error:
        return type(error), str(error)
    return repr(bytes(found) if isinstance(found, memoryview) else found)


@settings(max_examples=100)
@given(_EVENTS, _PARTITION_KEYS)
@pytest.mark.slow
def test_encoding(event: EventData, partition_key: str | None) -> None:
    """Whatever the event, also one that cannot be encoded."""
    found = _outcome(encode_event, event, partition_key)
    with _in_python():
        assert _outcome(encode_event, event, partition_key) == found


@settings(max_examples=150)
@given(
    _EVENTS,
    _PARTITION_KEYS,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2),
    st.integers(-12, 2),
)
@pytest.mark.slow
def test_decoding(
    event: EventData, partition_key: str | None, changes: list[tuple[int, int]], cut: int
) -> None:
    """Whatever bytes are changed or missing."""
    properties: dict[str, PropertyValue] = {
        name: value for name, value in event.properties.items() if _is_encodable(name, value)
    }
    encoded = bytearray(encode_event(EventData(event.body, properties), partition_key))
    for place, value in changes:
        encoded[place % len(encoded)] = value
    data = bytes(encoded[: len(encoded) + min(0, cut)]) + bytes(max(0, cut))
    decoded, body = _outcome(decode_event, data), _outcome(event_body, data)
    with _in_python():
        assert _outcome(decode_event, data) == decoded
        assert _outcome(event_body, data) == body


_BORDERS: list[PropertyValue] = [
    *("x" * 255, "x" * 256, "ä" * 127, "ä" * 128, None, True, False, 0.5, "\ud800", 2**63, -(2**63) - 1),
    *(-128, -129, 127, 128, -(2**31), -(2**31) - 1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1),
]


def _border_events() -> Iterator[EventData]:
    """Where an encoding changes: of a key, a value, the map and the body."""
    for value in _BORDERS:
        yield EventData(b"", {"n": value})
    for key in ("", "k" * 255, "k" * 256, "\ud800"):
        yield EventData(b"", {key: 1})
    yield EventData(b"", {1: 1})  # type: ignore[dict-item]
    for length in range(245, 260):
        yield EventData(b"", {"n": "x" * (length - 5)})  # entries of that many bytes
        yield EventData(b"x" * length)
    for count in (84, 85, 127, 128, 255, 256):
        yield EventData(b"", {chr(number): None for number in range(count)})
    yield EventData(bytearray(b"body"), {})  # type: ignore[arg-type]
    yield EventData(b"", MappingProxyType({"n": 1}))


@pytest.mark.parametrize("partition_key", [None, "k" * 233, "k" * 234])
def test_encoding_at_borders(partition_key: str | None) -> None:
    """Also a key of the size from which the annotations are no small map."""
    found = [_outcome(encode_event, event, partition_key) for event in _border_events()]
    with _in_python():
        assert [_outcome(encode_event, event, partition_key) for event in _border_events()] == found


_PLAIN: dict[str, PropertyValue] = {
    "s": "text",
    "i": -1,
    "j": 2**30,
    "k": -(2**40),
    "f": 1.5,
    "b": True,
    "n": None,
}


@pytest.mark.slow
@pytest.mark.parametrize(("key", "body"), [(None, b"body"), ("ä", b""), (None, b"b" * 256)])
def test_decoding_with_any_byte_changed(key: str | None, body: bytes) -> None:
    """Every byte up to the body, to every value; and cut after every byte, or with one behind it."""
    encoded = encode_event(EventData(body, _PLAIN), key)
    changed = [
        encoded[:place] + bytes((value,)) + encoded[place + 1 :]
        for place in range(len(encoded) - len(body))
        for value in range(256)
    ]
    changed += [encoded[:end] for end in range(len(encoded) + 1)] + [encoded + b"x"]
    found = [(_outcome(decode_event, data), _outcome(event_body, data)) for data in changed]
    with _in_python():
        for data, outcomes in zip(changed, found, strict=True):
            assert (_outcome(decode_event, data), _outcome(event_body, data)) == outcomes, data.hex()


def _is_encodable(name: str, value: PropertyValue) -> bool:
    return isinstance(_outcome(encode_event, EventData(b"", {name: value})), str)


def test_usual_events_are_decided_by_it() -> None:
    """Otherwise the tests above compare the Python code with itself."""
    event = EventData(b"body", {"s": "text", "i": 1, "j": 2**40, "f": 1.5, "b": True, "n": None})
    calls: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            function = getattr(event_codec_module, name)

            def call(*arguments: object) -> object:
                found = function(*arguments)
                calls.append(name if found is not None else f"{name}: not usual")
                return found

            return call

    event_codec_module = event_codec.usual_events
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_codec, "usual_events", Watched())
        for key in (None, "key"):
            encoded = encode_event(event, key)
            decode_event(encoded)
            event_body(encoded)
    assert calls == ["encode_usual", "decode_usual", "body_of_usual"] * 2


@pytest.mark.slow
@given(st.lists(_EVENTS, max_size=5))
def test_received_events(events: list[EventData]) -> None:
    """They are as their constructor makes them, and the contents that they decode as theirs."""
    messages = [encode_event(EventData(event.body, {"n": 1})) for event in events]
    count = len(messages)
    columns = range(count), [str(number) for number in range(count)], [10**12] * count, messages
    found = received_events("3", *columns)
    with _in_python():
        expected = received_events("3", *columns)
    assert [_slots(event) for event in found] == [_slots(event) for event in expected]
    for event, encoded in zip(found, messages, strict=True):
        assert event.body == bytes(event_body(encoded))
        assert event.contents == EventContents(event.body, {"n": 1})


def _slots(event: ReceivedEvent) -> list[object]:
    return [getattr(event, name, None) for name in ReceivedEvent.__slots__]


def test_the_garbage_collector_does_not_visit_them() -> None:
    """Thousands are in hand at once, and none is in a cycle."""
    (event,) = received_events("0", [1], ["1"], [2], [encode_event(EventData(b"body", {"n": 1}))])
    assert event.properties == {"n": 1}
    assert not gc.is_tracked(event)
    assert not gc.is_tracked(event.contents)

"""What reading a batch in JSON costs per step, whatever is in it: counted in characters that are decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.http import json_batch
from tidegate.gateway.http.json_batch import PROPERTIES_MAX, VALUE_CHARACTERS_MAX, batch_items, batch_text
from tidegate.model.errors import InvalidArgumentError

_SIZE = 100_000
_HOSTILE = {
    "a list": b'[{"Body":"a","X":[' + b"0," * _SIZE + b"0]}]",
    "lists": b'[{"Body":"a","X":[' + b"[]," * _SIZE + b"0]}]",
    "objects": b'[{"Body":"a","X":[' + b'{"a":1},' * _SIZE + b"0]}]",
    "nested lists": b'[{"Body":"a","X":' + b"[" * _SIZE + b"]" * _SIZE + b"}]",
    "properties": b'[{"Body":"a","UserProperties":{'
    + b",".join(b'"%x":1' % n for n in range(_SIZE))
    + b"}}]",
    "members": b'[{"Body":"a",' + b",".join(b'"%x":1' % n for n in range(_SIZE)) + b"}]",
    "one member": b'[{"Body":"a",' + b",".join([b'"x":1'] * _SIZE) + b"}]",
    "lists before the end": b'[{"Body":"a","X":[' + b"[]," * _SIZE,
    "an object of objects": b'[{"Body":"a","X":{"a":{' + b'"a":{},' * _SIZE + b'"b":0}}}]',
    "no list": b'{"Body":"a","X":[' + b"[]," * _SIZE + b"0]}",
    "no event": b"[[" + b"[]," * _SIZE + b"0]]",
    "a number": b'[{"Body":"a","X":' + b"9" * _SIZE + b"}]",
}


class _Counting(json.JSONDecoder):
    """Counts the characters of values other than strings."""

    def __init__(self) -> None:
        super().__init__()
        self.characters_max = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
        """Decode, and note how much there was to decode."""
        if s[idx : idx + 1] != '"':
            self.characters_max = max(self.characters_max, len(s) - idx)
        return super().raw_decode(s, idx)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> _Counting:
    """The decoder in use."""
    decoder = _Counting()
    monkeypatch.setattr(json_batch, "_DECODER", decoder)
    return decoder


@pytest.mark.parametrize("name", _HOSTILE)
def test_no_step_decodes_much(name: str, decoder: _Counting) -> None:
    """Protects the event loop from one event that is made to be slow: it is refused, after few steps."""
    steps = 0
    with pytest.raises(InvalidArgumentError):  # noqa: PT012
        for _ in batch_items(batch_text(_HOSTILE[name])):
            steps += 1
    assert decoder.characters_max <= VALUE_CHARACTERS_MAX
    assert steps <= PROPERTIES_MAX + 1


@pytest.mark.parametrize(
    "event",
    [
        {"Body": "x" * _SIZE},
        {"Body": json.dumps([{"a": [1, 2, {"b": []}]}] * 10_000)},
        {"Body": "x", "UserProperties": {f"name-{number}": "y" * 500 for number in range(PROPERTIES_MAX)}},
        {"Body": '\U0001f600\u00e9\\"' * _SIZE, "BrokerProperties": {"PartitionKey": "k"}},
        {"Body": "x", "X": {"a": [1, [2]], "b": "y" * _SIZE, "c": None}, "Y": [True, 1.5, {}]},
        {"Body": "x", "UserProperties": {"a": "y" * _SIZE, "n": -1, "f": 1e-9, "t": True, "z": None, "": ""}},
    ],
)
def test_honest_events_of_any_size_pass(event: dict[str, object], decoder: _Counting) -> None:
    """Protects senders: a long body, whatever is in it, and as many properties as are allowed."""
    for indent, ascii_only in ((None, True), (4, False)):
        text = json.dumps([event, {"Body": "next"}], indent=indent, ensure_ascii=ascii_only)
        (found, key), (following, _) = [item for item in batch_items(text) if item is not None]
        assert bytes(found.body).decode() == event["Body"]
        assert dict(found.properties) == event.get("UserProperties", {})
        assert key == ("k" if "BrokerProperties" in event else None)
        assert following.body == b"next"
    assert decoder.characters_max <= VALUE_CHARACTERS_MAX


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.sampled_from(["Body", "UserProperties", "X"]), _VALUES), max_size=3),
    st.integers(0, 200),
    st.sampled_from(["", ",", "]", "}", '"', " ", "1"]),
    st.sampled_from([VALUE_CHARACTERS_MAX, 40]),
)
def test_it_accepts_what_json_loads_does(
    values: list[object], at: int, extra: str, characters_max: int
) -> None:
    """Member by member or at once: the same events, and an error where the text is not JSON."""
    text = json.dumps([{"Body": "b", "X": values}, {"Body": "c", **dict.fromkeys("ab", values)}], indent=1)
    text = text[:at] + extra + text[at:]
    try:
        expected = len(json.loads(text))
    except ValueError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_batch, "VALUE_CHARACTERS_MAX", characters_max)
        found = _count(batch_items(text))
    # What is JSON may still not be a batch, or have a value that is too large.
    is_refused = found is None and (extra or len(text) > characters_max)
    assert found == expected or is_refused


def _count(items: Iterator[object]) -> int | None:
    try:
        return sum(item is not None for item in items)
    except InvalidArgumentError:
        return None

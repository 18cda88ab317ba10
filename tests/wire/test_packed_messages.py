"""Messages are found in their sections, cut out and joined as they are, whatever their sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.amqp.errors import DecodeError
from tidegate.wire.batch import wrap_event
from tidegate.wire.packed_messages import PackedMessages, messages_of_sections, packed

_PREFIX = b"annotations"
_message = st.one_of(st.binary(max_size=12), st.binary(min_size=250, max_size=260))
_some = st.lists(_message, max_size=6)
_of_one_size = st.tuples(st.integers(1, 6), st.sampled_from([1, 7, 255, 256])).flatmap(
    lambda drawn: st.lists(st.binary(min_size=drawn[1], max_size=drawn[1]), min_size=1, max_size=drawn[0])
)

_cut = st.slices(6).filter(lambda cut: (cut.step or 1) > 0)


def _sections(messages: list[bytes]) -> bytes:
    return b"".join(map(wrap_event, messages))


@given(st.one_of(_some, _of_one_size))
@pytest.mark.slow
def test_messages_are_found_in_their_sections(messages: list[bytes]) -> None:
    """Behind whatever comes first; cut out one by one, by number, and in slices."""
    found = messages_of_sections(_PREFIX + _sections(messages), len(_PREFIX))
    assert list(found) == messages
    assert [found[index] for index in range(len(found))] == messages
    assert list(found[1:4:2]) == messages[1:4:2]


@pytest.mark.slow
@given(st.lists(st.one_of(_some, _of_one_size), max_size=4), _cut)
def test_joined_they_are_what_they_were(groups: list[list[bytes]], cut: slice) -> None:
    """Parts of deliveries, and messages that were each by itself before."""
    parts = [
        messages_of_sections(_PREFIX + _sections(group), len(_PREFIX)) if index % 3 else packed(group)
        for index, group in enumerate(groups, start=1)
    ]
    joined = PackedMessages.joined([part[cut] for part in parts])
    assert list(joined) == [message for group in groups for message in group[cut]]


@pytest.mark.parametrize("size", [100, 255, 256])
def test_what_is_of_one_size_costs_nothing_per_message(size: int) -> None:
    """Its places are ranges, with short headers and with long ones, and stay ranges when joined."""
    messages = [bytes([index]) * size for index in range(9)]
    parts = [messages_of_sections(_sections(messages[at : at + 3]), 0) for at in (0, 3, 6)]
    joined = PackedMessages.joined([part[1:] for part in parts])
    assert list(joined) == [message for index, message in enumerate(messages) if index % 3]
    for part in (*parts, joined, PackedMessages.joined([joined, *parts])):
        assert isinstance(part.starts, range)
        assert isinstance(part.ends, range)


@given(st.one_of(_some.filter(bool), _of_one_size), st.data())
@pytest.mark.slow
def test_what_ends_too_early_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    """Wherever it is cut, but between two sections."""
    whole = _sections(messages)
    end = data.draw(st.integers(1, len(whole) - 1))
    ends = {len(_sections(messages[:count])) for count in range(len(messages))}
    if end in ends:
        assert list(messages_of_sections(whole[:end], 0)) == messages[: sorted(ends).index(end)]
        return
    with pytest.raises(DecodeError):
        messages_of_sections(whole[:end], 0)

"""Events of a named publisher: its name is written into each, and nothing else of the message changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.amqp.strategies import typed

from tidegate.amqp.message import Header, Message, Properties, decode_message, encode_message, iter_sections
from tidegate.amqp.types import Symbol, UInt
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.batch import iter_events, split_single
from tidegate.wire.publisher import as_published

_NAMED: dict[object, object] = {Symbol("x-opt-publisher"): "p", Symbol("x-opt-partition-key"): "p"}


@pytest.mark.parametrize(
    "message",
    [
        Message(data=(b"x",)),
        Message(Header(durable=True), {"d": UInt(1)}, {"m": 2}, data=(b"x",)),
        Message(
            Header(durable=True),
            {"d": 1},
            {"x-opt-publisher": "another", "x-opt-partition-key": "p", "m": UInt(2)},
            Properties(message_id="id"),
            {"a": "b"},
            (b"x", b"y"),
            footer={"f": 1},
        ),
        Message(delivery_annotations={"d": 1}, value=[1, None]),
    ],
    ids=["data", "annotations", "all", "value"],
)
def test_a_publishers_name_is_all_that_is_added(message: Message) -> None:
    """Protects every section of a publisher's event, and their order, in which receivers look for them."""
    original = decode_message(encode_message(message))
    published = as_published(split_single(encode_message(message)), "p")
    (event,) = iter_events(published.payload, published.lengths)
    codes = [code for code, *_ in iter_sections(event)]
    assert codes == sorted(codes)
    stored = decode_message(bytes(event))
    theirs = {key: value for key, value in original.message_annotations.items() if key not in _NAMED}
    assert typed(dict(stored.message_annotations)) == typed({**theirs, **_NAMED})
    assert typed(replace(stored, message_annotations={})) == typed(replace(original, message_annotations={}))
    assert published.partition_key == "p"


def test_an_event_with_anothers_key_is_refused() -> None:
    """Protects keys that are a publisher's name from events of another publisher."""
    encoded = encode_message(Message(message_annotations={"x-opt-partition-key": "q"}, data=(b"x",)))
    with pytest.raises(InvalidArgumentError, match="not the publisher's name"):
        as_published(split_single(encoded), "p")

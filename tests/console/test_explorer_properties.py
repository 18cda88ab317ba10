"""Properties as lines of the explorer's form: what is written is read as the same."""

from __future__ import annotations

import math
import struct
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.amqp.encode import encode_value
from tidegate.amqp.message import Header, Message, Properties, decode_message
from tidegate.amqp.types import (
    Byte,
    Char,
    Decimal,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tidegate.console.explorer.codec import EventEncoder, system_properties
from tidegate.console.explorer.properties import (
    MESSAGE_NAMES,
    TYPE_NAMES,
    format_message,
    format_properties,
    parse_message,
    parse_properties,
    type_name,
)
from tidegate.model.errors import InvalidArgumentError

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_ULONGS = st.integers(0, 2**64 - 1).map(ULong)
_TIMES = st.integers(-(2**63), 2**63 - 1).map(Timestamp)
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2**8 - 1).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    _ULONGS,
    st.integers(-(2**7), 2**7 - 1).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32).map(Float),
    st.floats(),
    st.sampled_from([4, 8, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)).map(Decimal),
    st.characters(exclude_categories=["Cs"]).map(Char),
    _TIMES,
    st.integers(-(10**13), 10**13).map(Timestamp),
    st.uuids(),
    st.binary(max_size=40),
    _TEXT,
    _TEXT.map(Symbol),
)
_NAMES = _TEXT | st.builds("{}:{}".format, _TEXT, st.sampled_from(TYPE_NAMES)) | st.text('"=: \n', max_size=5)
_IDS = st.none() | _TEXT | st.binary(max_size=20) | _ULONGS | st.uuids()
_STANDARD = st.builds(
    Properties,
    message_id=_IDS,
    user_id=st.none() | st.binary(max_size=20),
    to=st.none() | _TEXT,
    subject=st.none() | _TEXT,
    reply_to=st.none() | _TEXT,
    correlation_id=_IDS,
    content_type=st.none() | _TEXT.map(Symbol),
    content_encoding=st.none() | _TEXT.map(Symbol),
    absolute_expiry_time=st.none() | _TIMES,
    creation_time=st.none() | _TIMES,
    group_id=st.none() | _TEXT,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | _TEXT,
)
_HEADERS = st.builds(
    Header,
    durable=st.booleans(),
    priority=st.integers(0, 255),
    ttl=st.none() | st.integers(0, 2**32 - 1),
)


def _exact(value: object) -> tuple[type, object]:
    """What tells apart whatever AMQP tells apart; there is one NaN."""
    if isinstance(value, float):
        return type(value), "nan" if math.isnan(value) else struct.pack(">d", value)
    return type(value), value


def _through_a_browser(text: str) -> str:
    """What a text area gives back of what it was given."""
    assert "\x00" not in text
    assert "\r" not in text
    return text.replace("\n", "\r\n").replace("\r\n", "\n")


@given(st.dictionaries(_NAMES, _VALUES, max_size=6))
@example({"a": "b\nc", "a:int": "1", "": "", '"': '"', "=": "=", " a ": " b ", "\x00": "\r", "a:": ""})
@example({"a": Timestamp(2**63 - 1), "b": Timestamp(-62135596800000), "c": Timestamp(253402300799999)})
@example(
    {"a": Symbol('"x"'), "b": Char('"'), "c": Char("\n"), "d": '"x"', "e": Symbol(""), "f": b"", "g": -0.0}
)
@example({"a": b"", "b": -0.0, "c": "", "d : int": ":int", "int": "=", ":int": " "})
@pytest.mark.slow
def test_properties_are_read_as_they_were_written(properties: dict[object, Any]) -> None:
    """Every simple type, any name and any text comes back as the same value of the same type."""
    text, left_out = format_properties(properties)
    assert left_out == []
    read = parse_properties(_through_a_browser(text))
    assert {name: _exact(value) for name, value in read.items()} == {
        name: _exact(value) for name, value in properties.items()
    }


@given(_STANDARD, _HEADERS)
@example(Properties(content_type=Symbol("a\nb"), message_id=ULong(7), group_id=""), Header())
@example(Properties(content_type=Symbol(""), message_id='"x"', subject="a:int=1"), Header(priority=4, ttl=0))
@pytest.mark.slow
def test_standard_properties_are_read_as_they_were_written(standard: Properties, header: Header) -> None:
    """With the types that the specification leaves to the sender, and what the content type's field holds."""
    content_type, text, left_out = format_message(standard, header)
    assert left_out == []
    assert content_type.isprintable()
    read, read_header = parse_message(_through_a_browser(text), content_type)
    assert read_header == header
    assert read == standard
    assert [type(read.message_id), type(read.correlation_id)] == [
        type(standard.message_id),
        type(standard.correlation_id),
    ]


@given(
    st.dictionaries(_TEXT, _VALUES, max_size=4),
    _STANDARD,
    _HEADERS,
    st.binary(max_size=300),
    st.none() | _TEXT,
)
@pytest.mark.slow
def test_an_event_is_encoded_with_its_types(
    properties: dict[object, object], standard: Properties, header: Header, body: bytes, key: str | None
) -> None:
    """The message that is stored holds what was given, each value in its own type."""
    given = Message(header=header, properties=standard, application_properties=properties)
    message = decode_message(EventEncoder(given).encode(body, key))
    assert message.data == (body,)
    assert message.properties == (None if standard == Properties() else standard)
    assert message.header == (None if header == Header() else header)
    assert dict(message.message_annotations) == ({} if key is None else {"x-opt-partition-key": key})
    assert [(name, _exact(value)) for name, value in message.application_properties.items()] == [
        (name, _exact(value)) for name, value in properties.items()
    ]


@given(st.text(st.characters(), max_size=60) | st.text('"=:\\nintdouble 1', max_size=30))
@pytest.mark.slow
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    """Half characters and all; what is read is properties that can be sent, or refused for one reason."""
    refused: list[str] = []
    for parse in (parse_properties, lambda lines: parse_message(lines, "")):
        try:
            read = parse(text)
            if isinstance(read, dict):
                EventEncoder(Message(application_properties=read))
            else:
                EventEncoder(Message(properties=read[0], header=read[1]))
        except InvalidArgumentError as error:
            refused.append(error.message)
    assert all("propert" in message for message in refused)


def test_what_people_write() -> None:
    """Blanks around names and values of other types, and the forms that are not written here."""
    text = (
        'kind=a=b\n\n quoted = "x"\nn : int =1\nn2:int= 7 \nat:timestamp=2026-11-22T08:25:00+01:00\n'
        "ms:timestamp=5\nid:uuid={12345678-1234-5678-1234-567812345678}\nraw:binary=DE AD\n"
        'nothing:null=null\ncloudEvents:id=1\nfloat:float=1e-3\n"a=b" :int=1\nlines:string="a\\nb"'
    )
    assert {name: _exact(value) for name, value in parse_properties(text).items()} == {
        "kind": _exact("a=b"),
        "quoted": _exact(' "x"'),
        "n": _exact(Int(1)),
        "n2": _exact(Int(7)),
        "at": _exact(Timestamp(1795332300000)),
        "ms": _exact(Timestamp(5)),
        "id": _exact(UUID("12345678-1234-5678-1234-567812345678")),
        "raw": _exact(b"\xde\xad"),
        "nothing": _exact(None),
        "cloudEvents:id": _exact("1"),
        "float": _exact(Float(struct.unpack(">f", struct.pack(">f", 1e-3))[0])),
        "a=b": _exact(Int(1)),
        "lines": _exact("a\nb"),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1\nno value", "Line 2 of the properties is 'no value'"),
        ("=1", "Line 1 of the properties is '=1'"),
        (":int=1", "Line 1 of the properties is ':int=1'"),
        ('"a=1', "Line 1 of the properties is"),
        ('"a"b=1', "Line 1 of the properties is"),
        ('"a":lng=1', "AMQP has no type 'lng'"),
        ("a=1\na:int=1", "Line 2 of the properties repeats 'a'"),
        ("a:int=x", "'x' is not a valid int: expected an integer from -2147483648 to 2147483647"),
        ("a:ubyte=256", "'256' is not a valid ubyte"),
        ("a:long=9223372036854775808", "is not a valid long"),
        ("a:float=1e39", "'1e39' is not a valid float"),
        ("a:double=1_0", "'1_0' is not a valid double"),
        ("a:double=-1e309", "'-1e309' is not a valid double"),
        ("a:boolean=yes", "true or false"),
        ("a:null=x", "'x' is not a valid null"),
        ("a:char=xy", "one character"),
        ("a:decimal32=00", "4 bytes"),
        ("a:timestamp=2026-11-22T08:25:00", "no time zone"),
        ("a:timestamp=9223372036854775808", "is not a valid timestamp"),
        ("a:uuid=1", "'1' is not a valid uuid"),
        ("a:binary=0", "'0' is not a valid binary"),
        ('a:string="\\ud800"', "is not a valid string"),
        ('a:symbol="x', "is not a valid symbol"),
    ],
    ids=range(23),
)
def test_a_garbled_line_is_named(text: str, words: str) -> None:
    """Its number, what stands there and what would be right."""
    with pytest.raises(InvalidArgumentError) as refused:
        parse_properties(text)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("text", "content_type", "words"),
    [
        ("message_id=1", "", "'message_id', which is not a message property"),
        ("message-id:int=1", "", "message-id cannot have the type int"),
        ("message-id=1\nmessage-id=2", "", "Line 2 of the message properties repeats message-id"),
        ("content-type=a", "b", "repeats content-type"),
        ("user-id=x", "", "'x' is not a valid binary"),
        ("group-sequence=-1", "", "'-1' is not a valid uint"),
        ("durable=yes", "", "true or false"),
    ],
    ids=["unknown", "type", "twice", "content-type-twice", "garbled", "range", "header"],
)
def test_a_garbled_message_property_is_named(text: str, content_type: str, words: str) -> None:
    """So are those that AMQP does not know."""
    with pytest.raises(InvalidArgumentError) as refused:
        parse_message(text, content_type)
    assert words in refused.value.message


@pytest.mark.parametrize("kind", ["double", "timestamp"])
def test_a_long_value_is_not_quoted_whole(kind: str) -> None:
    """Errors are parts of pages: two megabytes of a wrong number were."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse_properties(f"a:{kind}={'x' * 1_000_000}")
    assert len(caught.value.message) < 400


def test_what_no_line_can_hold_is_told() -> None:
    """Lists and maps, which only careless senders put there."""
    text, left_out = format_properties({"a": [1], "b": {}, 7: "x", "c": Int(1)})
    assert text == "c:int=1"
    assert left_out == ["the property a (list)", "the property b (map)", "the property 7 (string)"]
    assert format_message(Properties(message_id=7, to="x"), Header())[1:] == (
        "to=x",
        ["the message-id (long)"],
    )


def test_what_a_sender_writes_is_not_shown_as_the_services() -> None:
    """Protects readers of an event's page from a publisher or a position in a part that anybody may write."""
    forged: dict[object, object] = {"x-opt-publisher": "forged", "x-opt-offset": "99"}
    message = Message(
        message_annotations={
            "x-opt-publisher": "alice",
            "x-opt-sequence-number": 99,
            "x-opt-offset": "99",
            "x-opt-enqueued-time": 99,
            "mine": "m",
        },
        delivery_annotations=forged,
        footer=forged,
    )
    assert system_properties(message) == {
        "x-opt-publisher": "alice",
        "annotation mine": "m",
        "delivery annotation x-opt-publisher": "forged",
        "delivery annotation x-opt-offset": "99",
        "footer x-opt-publisher": "forged",
        "footer x-opt-offset": "99",
    }


def test_every_type_is_named() -> None:
    """The names are those of AMQP, and every standard property can be told."""
    assert type_name(Decimal(bytes(16))) == "decimal128"
    assert encode_value(7)[0] == 0x55, "an int of Python is a long"
    assert type_name(7) == "long"
    assert {item.name.replace("_", "-") for item in fields(Properties)} <= set(MESSAGE_NAMES)

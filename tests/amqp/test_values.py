"""Values go to bytes and back as the type they are, and the official Python client agrees with the bytes."""

from __future__ import annotations

import enum
from uuid import UUID

import pytest
from azure.eventhub._pyamqp import _decode, _encode
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.strategies import BY_TYPE, typed, values

from tidegate.amqp.decode import (
    CONTENT_LIMITS,
    DEPTH_MAX,
    KEY_TYPES,
    PROTOCOL_LIMITS,
    decode_value,
    skip_value,
)
from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
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

UUID_VALUE = UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.slow
@settings(derandomize=True, max_examples=150)
@given(values)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    """Protects every type of AMQP, its edge values and their nesting; skipping must agree with decoding."""
    encoded = encode_value(value)
    decoded, end = decode_value(encoded)
    assert typed(decoded) == typed(value)
    assert end == len(encoded) == skip_value(encoded)


@pytest.mark.parametrize(
    "kind", [kind for kind in BY_TYPE if kind is not Decimal], ids=lambda kind: kind.__name__
)
def test_an_array_keeps_its_element_type_when_empty(kind: type) -> None:
    """Protects the type of an empty array, which only its constructor tells."""
    decoded, _ = decode_value(encode_value(Array((), kind)))
    assert typed(decoded) == typed(Array((), kind))


def test_an_array_of_described_values_shares_one_descriptor() -> None:
    """Protects arrays whose elements are described, such as the outcomes that some peers list."""
    items = (Described(Symbol("a"), 1), Described(Symbol("a"), 2))
    value = Array(items, Described)
    assert typed(decode_value(encode_value(value))[0]) == typed(value)
    with pytest.raises(EncodeError):
        encode_value(Array((items[0], Described(Symbol("b"), 2)), Described))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (None, {TYPE: AMQPTypes.null, VALUE: None}),
        (UByte(7), {TYPE: AMQPTypes.ubyte, VALUE: 7}),
        (UShort(700), {TYPE: AMQPTypes.ushort, VALUE: 700}),
        (UInt(0), {TYPE: AMQPTypes.uint, VALUE: 0}),
        (UInt(255), {TYPE: AMQPTypes.uint, VALUE: 255}),
        (UInt(256), {TYPE: AMQPTypes.uint, VALUE: 256}),
        (ULong(0), {TYPE: AMQPTypes.ulong, VALUE: 0}),
        (ULong(2**64 - 1), {TYPE: AMQPTypes.ulong, VALUE: 2**64 - 1}),
        (Byte(-128), {TYPE: AMQPTypes.byte, VALUE: -128}),
        (Short(-30000), {TYPE: AMQPTypes.short, VALUE: -30000}),
        (Int(-129), {TYPE: AMQPTypes.int, VALUE: -129}),
        (127, {TYPE: AMQPTypes.long, VALUE: 127}),
        (2**40, {TYPE: AMQPTypes.long, VALUE: 2**40}),
        (1.5, {TYPE: AMQPTypes.double, VALUE: 1.5}),
        (Timestamp(-62135596800000), {TYPE: AMQPTypes.timestamp, VALUE: -62135596800000}),
        (UUID_VALUE, {TYPE: AMQPTypes.uuid, VALUE: UUID_VALUE}),
        (b"x" * 255, {TYPE: AMQPTypes.binary, VALUE: b"x" * 255}),
        (b"x" * 256, {TYPE: AMQPTypes.binary, VALUE: b"x" * 256}),
        ("漢字", {TYPE: AMQPTypes.string, VALUE: "漢字"}),
        (Symbol("amqp:x"), {TYPE: AMQPTypes.symbol, VALUE: b"amqp:x"}),
        ({Symbol("k"): "v"}, {TYPE: AMQPTypes.map, VALUE: [({TYPE: AMQPTypes.symbol, VALUE: b"k"}, "v")]}),
        (Array.of(Symbol, ["a"]), {TYPE: AMQPTypes.array, VALUE: [{TYPE: AMQPTypes.symbol, VALUE: b"a"}]}),
    ],
)
def test_the_official_python_client_writes_what_we_read_and_reads_what_we_write(
    ours: object, theirs: dict[str, object]
) -> None:
    """Protects agreement with azure-eventhub 5.15.1's own codec, in both directions."""
    output = bytearray()
    _encode.encode_value(output, theirs)
    assert typed(decode_value(output)[0]) == typed(ours)
    encoded = memoryview(encode_value(ours))
    rest, theirs_decoded = _decode._DECODE_BY_CONSTRUCTOR[encoded[0]](encoded[1:])
    assert len(rest) == 0
    reread, rest_of_output = theirs_decoded, memoryview(output)
    assert _decode._DECODE_BY_CONSTRUCTOR[rest_of_output[0]](rest_of_output[1:])[1] == reread


def test_the_empty_array_of_the_official_client_has_no_constructor() -> None:
    """Protects reading the array8 of size 1 that azure-eventhub 5.15.1 writes for an empty list."""
    output = bytearray()
    _encode.encode_array(output, [])
    assert bytes(output) == b"\xe0\x01\x00"
    assert decode_value(output) == (Array((), type(None)), 3)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        ULong(2**64),
        2**63,
        Int(2**31),
        Char("ab"),
        Decimal(b"123"),
        NotImplemented,
        {1, 2},
        Array((1, "a"), int),
        "\ud800",
        enum.Enum("Colour", "RED").RED,  # type: ignore[attr-defined]
    ],
    ids=repr,
)
def test_what_has_no_encoding_is_refused(value: object) -> None:
    """Protects the peer from bytes that are not what the value means."""
    with pytest.raises(EncodeError):
        encode_value(value)


def test_a_list_that_contains_itself_is_refused() -> None:
    """Protects the process from endless recursion."""
    value: list[object] = []
    value.append(value)
    with pytest.raises(EncodeError):
        encode_value(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x3f",
        b"\xb0\x7f\xff\xff\xff",
        b"\xb0\xff\xff\xff\xff12345",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd0\x00\x00\x00\x04\x7f\xff\xff\xff",
        b"\xf0\x00\x00\x00\x05\x7f\xff\xff\xff\x40",
        b"\xf0\x00\x00\x00\x06\x7f\xff\xff\xff\x45\x00",
        b"\xe0\x01\x05",
        b"\xc1\x02\x01\x40",
        b"\xc1\x05\x02\xc0\x01\x00\x40",
        b"\xc0\x03\x01\x40\x40",
        b"\xc0\x02\x02\x40",
        b"\xa1\x01\xff",
        b"\x73\x00\x11\x00\x00",
        b"\x73\x00\x00\xd8\x00",
        b"\x56\x02",
        b"\x00\x00\x40\x40\x40",
        b"\x00" * 1000,
    ],
    ids=lambda data: data[:12].hex(),
)
def test_garbled_values_are_refused_before_anything_large_is_made(data: bytes) -> None:
    """Protects memory and the process: a declared size is never believed before it is checked."""
    with pytest.raises(DecodeError):
        decode_value(data)


@pytest.mark.parametrize(
    "key",
    [
        None,
        True,
        1.5,
        Float(1.5),
        UUID_VALUE,
        Decimal(b"1234"),
        Timestamp(5),
        Char("c"),
        Described(Symbol("d"), 1),
        Array.of(int, [1]),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_whose_hash_a_peer_can_choose_is_refused(key: object) -> None:
    """Protects processor time: 26,000 UUIDs with one hash as keys took 29 s. Skipping looks at none."""
    encoded = encode_value({key: "value"})
    with pytest.raises(DecodeError, match="as its key; symbols, strings, integers and binary"):
        decode_value(encoded)
    with pytest.raises(DecodeError, match="as its key"):
        decode_value(encode_value([{"nested": {key: "value"}}]), 0, CONTENT_LIMITS)
    assert skip_value(encoded) == len(encoded)


@pytest.mark.parametrize(
    "key",
    [
        *("k", Symbol("k"), b"k", 7),
        *(kind(7) for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int)),
    ],
    ids=lambda key: type(key).__name__,
)
def test_keys_of_the_other_types_come_back(key: object) -> None:
    """Protects maps as clients write them: symbols, strings, integers, binary."""
    assert type(key) in KEY_TYPES
    assert typed(decode_value(encode_value({key: 1}))[0]) == typed({key: 1})


def test_a_map_of_the_protocol_has_a_thousand_entries_at_most() -> None:
    """Protects the loop from long maps where short ones belong; a body may be as long as it likes."""
    most = PROTOCOL_LIMITS.map_entries_max
    assert most == 1000
    fits, over = ({f"k{number}": None for number in range(count)} for count in (most, most + 1))
    assert decode_value(encode_value(fits))[0] == fits
    with pytest.raises(DecodeError, match="1001 entries; 1000"):
        decode_value(encode_value(over))
    with pytest.raises(DecodeError, match="1001 entries; 1000"):
        decode_value(encode_value([over]))
    assert decode_value(encode_value(over), 0, CONTENT_LIMITS)[0] == over


def test_values_are_counted_at_all_levels_together() -> None:
    """Protects memory: a byte that means an empty list becomes 56, in as many lists as there may be."""
    most = PROTOCOL_LIMITS.values_max
    row: list[object] = [[]] * 63
    fits, over = [row] * (most // 64), [row] * (most // 64 + 1)
    assert decode_value(encode_value(fits))[0] == fits
    with pytest.raises(DecodeError, match=f"more than {most} values"):
        decode_value(encode_value(over))
    assert decode_value(encode_value(over), 0, CONTENT_LIMITS)[0] == over


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x45\x40",
        b"\x00\xc0\x03\x01\x50\x01\x40",
        b"\x00\x98" + bytes(16) + b"\x40",
        b"\xe0\x08\x01\x00\x53\x01\x00\x53\x02\x40",
        b"\xf0\x00\x00\x00\x89\x00\x00\x00\x01\x00\xa3\x7f" + b"s" * 127 + b"\x50\x01",
        b"\xe0\x02\x09\x45",
    ],
    ids=["a list", "a list with items", "a uuid", "two in an array", "a long one in an array", "no width"],
)
def test_descriptors_and_arrays_that_multiply_are_refused(data: bytes) -> None:
    """Protects time and memory: each element of an array has the descriptors again. Nothing sends these."""
    with pytest.raises(DecodeError):
        decode_value(data, 0, CONTENT_LIMITS)


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 10_000])
def test_deep_nesting_is_refused(levels: int) -> None:
    """Protects the stack: nesting is bounded, however short the bytes."""
    data = b"\x40"
    for _ in range(min(levels, 200)):
        data = b"\xd0" + (len(data) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + data
    with pytest.raises(DecodeError):
        decode_value(data)
    with pytest.raises(DecodeError):
        decode_value(b"\x00\x53\x01" * levels + b"\x40")


@pytest.mark.slow
@settings(derandomize=True, max_examples=30)
@given(values, st.binary(max_size=8))
def test_a_cut_value_is_refused_and_what_follows_is_left_alone(value: object, trailing: bytes) -> None:
    """Protects against reading past a value's end, or accepting a part of one."""
    encoded = encode_value(value)
    for end in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode_value(encoded[:end])
        with pytest.raises(DecodeError):
            skip_value(encoded[:end])
    assert decode_value(memoryview(encoded + trailing))[1] == len(encoded)

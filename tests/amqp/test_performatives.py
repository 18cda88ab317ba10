"""Performatives: every field is written, trimmed ones are read, and the official Python client agrees."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub._pyamqp import _decode, _encode, performatives
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.strategies import annotation_maps, errors, states, symbols, texts, typed

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Rejected,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from tidegate.amqp.types import Byte, Described, Symbol, UInt, ULong

uints = st.integers(0, 2**32 - 1)
ushorts = st.integers(0, 2**16 - 1)
ubytes = st.integers(0, 255)
flags = st.booleans()
names = st.lists(symbols, max_size=3).map(tuple)
sources = st.builds(
    Source,
    address=st.none() | texts,
    durable=uints,
    expiry_policy=symbols,
    timeout=uints,
    dynamic=flags,
    dynamic_node_properties=annotation_maps,
    distribution_mode=st.none() | symbols,
    filter=st.dictionaries(symbols, st.builds(Described, symbols, texts), max_size=2),
    default_outcome=st.none() | states,
    outcomes=names,
    capabilities=names,
)
targets = st.builds(
    Target,
    address=st.none() | texts,
    durable=uints,
    expiry_policy=symbols,
    timeout=uints,
    dynamic=flags,
    dynamic_node_properties=annotation_maps,
    capabilities=names,
)

STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    Open: st.builds(
        Open,
        texts,
        st.none() | texts,
        uints,
        ushorts,
        st.none() | uints,
        names,
        names,
        names,
        names,
        annotation_maps,
    ),
    Begin: st.builds(
        Begin,
        remote_channel=st.none() | ushorts,
        next_outgoing_id=uints,
        incoming_window=uints,
        outgoing_window=uints,
        handle_max=uints,
        offered_capabilities=names,
        desired_capabilities=names,
        properties=annotation_maps,
    ),
    Attach: st.builds(
        Attach,
        texts,
        uints,
        flags,
        ubytes,
        ubytes,
        st.none() | sources,
        st.none() | targets | st.builds(Coordinator, names),
        st.none() | st.dictionaries(st.binary(max_size=4), st.none(), max_size=2),
        flags,
        st.none() | uints,
        st.none() | st.integers(0, 2**64 - 1),
        names,
        names,
        annotation_maps,
    ),
    Flow: st.builds(
        Flow,
        next_incoming_id=st.none() | uints,
        incoming_window=uints,
        next_outgoing_id=uints,
        outgoing_window=uints,
        handle=st.none() | uints,
        delivery_count=st.none() | uints,
        link_credit=st.none() | uints,
        available=st.none() | uints,
        drain=flags,
        echo=flags,
        properties=annotation_maps,
    ),
    Transfer: st.builds(
        Transfer,
        uints,
        st.none() | uints,
        st.none() | st.binary(max_size=32),
        st.none() | uints,
        st.none() | flags,
        flags,
        st.none() | ubytes,
        st.none() | states,
        flags,
        flags,
        flags,
    ),
    Disposition: st.builds(Disposition, flags, uints, st.none() | uints, flags, st.none() | states, flags),
    Detach: st.builds(Detach, uints, flags, st.none() | errors),
    End: st.builds(End, st.none() | errors),
    Close: st.builds(Close, st.none() | errors),
}

FIELD_COUNTS = {
    Open: 10,
    Begin: 8,
    Attach: 14,
    Flow: 11,
    Transfer: 11,
    Disposition: 6,
    Detach: 3,
    End: 1,
    Close: 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
def test_a_performative_comes_back_and_the_official_client_can_read_it(kind: type) -> None:
    """Protects each performative with all its fields, and the lengths that azure-eventhub 5.15.1 needs."""

    @settings(derandomize=True, max_examples=20)
    @given(STRATEGIES[kind])
    def check(performative: Performative) -> None:
        encoded = encode_performative(performative)
        decoded, end = decode_performative(encoded + b"payload")
        assert typed(_plain(decoded)) == typed(_plain(performative))
        assert end == len(encoded)
        theirs = _decode.decode_frame(memoryview(encoded))
        assert len(theirs[1]) == FIELD_COUNTS[kind] + (kind is Transfer)  # its payload is one more there

    check()


def _plain(value: object) -> object:
    """Without the integer types of the wire, which a decoded performative does not keep at its fields."""
    return repr(value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (performatives.OpenFrame("c", "h", 1048576, 65535, *[None] * 6), Open("c", "h", 1048576, 65535)),
        (
            performatives.BeginFrame(None, 0, 65536, 65536, 4294967295, None, None, None),
            Begin(next_outgoing_id=0, incoming_window=65536, outgoing_window=65536),
        ),
        (
            performatives.DispositionFrame(True, 3, 4, True, None, None),
            Disposition(ROLE_RECEIVER, 3, 4, True),
        ),
        (performatives.DetachFrame(2, True, None), Detach(2, True)),
        (performatives.EndFrame(None), End()),
        (performatives.CloseFrame(None), Close()),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_the_official_client_sends_is_read(theirs: Any, ours: Performative) -> None:
    """Protects reading azure-eventhub 5.15.1's own frames, nulls for defaults included."""
    _, body = _encode.encode_frame(theirs)
    assert body is not None
    assert decode_performative(bytes(body))[0] == ours


def test_an_error_has_three_elements() -> None:
    """Protects the official Python client, which reads an error's third element."""
    encoded = encode_performative(Close(Error(Symbol("amqp:connection:forced"), "why")))
    assert _decode.decode_frame(memoryview(encoded))[1] == [[b"amqp:connection:forced", b"why", None]]


@pytest.mark.parametrize(
    ("data", "performative"),
    [
        ("00531745", End()),
        ("00531845", Close()),
        ("005315c00b04414301 41 005324c0 0100".replace(" ", ""), None),
        (
            "0053 15 c0 09 05 41 43 43 41 00 53 24 45".replace(" ", ""),
            Disposition(True, 0, 0, True, Accepted()),
        ),
        ("0080 0000000000000017 c00100".replace(" ", ""), End()),
        ("00a30d616d71703a656e643a6c69737445", End()),
    ],
    ids=[
        "end-list0",
        "close-list0",
        "cut",
        "disposition-list0-accepted",
        "wide-descriptor",
        "symbolic-descriptor",
    ],
)
def test_trimmed_lists_and_rarer_descriptors_are_read(data: str, performative: Performative | None) -> None:
    """Protects rhea's (JavaScript's) short forms, and descriptors in every form."""
    encoded = bytes.fromhex(data)
    if performative is None:
        with pytest.raises(DecodeError):
            decode_performative(encoded)
    else:
        assert decode_performative(encoded) == (performative, len(encoded))


def test_a_single_symbol_stands_for_an_array_of_one() -> None:
    """Protects reading ``multiple`` fields from peers that send one value bare (part 1 section 1.4)."""
    encoded = encode_value(
        Described(ULong(0x10), ["c", None, None, None, None, None, None, Symbol("x"), Symbol("y")])
    )
    performative = decode_performative(encoded)[0]
    assert isinstance(performative, Open)
    assert performative.offered_capabilities == ("x",)
    assert performative.desired_capabilities == ("y",)


@pytest.mark.parametrize(
    "value",
    [
        Described(ULong(0x10), []),
        Described(ULong(0x10), [1]),
        Described(ULong(0x17), [None, None]),
        Described(ULong(0x12), ["n", 0, True, None, None, Described(ULong(0x29), [])]),
        Described(ULong(0x18), [Described(ULong(0x24), [])]),
        Described(ULong(0x18), ["text"]),
        Described(ULong(0x18), {}),
        Described(ULong(0x99), []),
        Described([1], []),
        "no performative",
    ],
    ids=repr,
)
def test_what_is_no_performative_is_refused(value: object) -> None:
    """Protects the engine: a field of the wrong type never reaches it."""
    with pytest.raises(DecodeError):
        decode_performative(encode_value(value))


@pytest.mark.parametrize("key", [b"product", 5, ULong(5)], ids=repr)
def test_fields_have_symbols_or_strings_as_keys(key: object) -> None:
    """Protects what reads properties: keys are symbols (part 2 section 2.8.13), strings from some peers."""
    fields: list[object] = ["c", *[None] * 8, {key: "x"}]
    with pytest.raises(DecodeError, match="a map with symbols as keys"):
        decode_performative(encode_value(Described(ULong(0x10), fields)))
    fields[-1] = {"product": "x"}
    assert decode_performative(encode_value(Described(ULong(0x10), fields)))[0] == Open(
        "c", properties={"product": "x"}
    )


def test_a_state_that_nobody_knows_is_kept() -> None:
    """Protects dispositions with extension states, such as transactional ones: they are not an error."""
    state = Described(ULong(0x34), [b"tx"])
    assert decode_performative(encode_performative(Disposition(True, 1, state=state)))[0] == Disposition(
        True, 1, state=state
    )


def test_a_field_out_of_range_is_refused() -> None:
    """Protects the peer from a wrapped number."""
    with pytest.raises(EncodeError):
        encode_performative(Detach(2**32))
    with pytest.raises(EncodeError):
        encode_performative(Disposition(True, 1, state=Rejected(error="no")))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 256, Byte(-128), UInt(300)])
def test_a_number_that_does_not_fit_is_refused(value: int) -> None:
    """Protects the answer to an attach, which repeats what it was told, from a number without an encoding."""
    fields = encode_value(["link", UInt(0), False, value])
    with pytest.raises(DecodeError, match="snd_settle_mode should be ubyte"):
        decode_performative(b"\x00\x53\x12" + fields)

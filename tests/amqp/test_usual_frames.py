"""Usual frames: the short ways through the engine come to the same as the general one, byte for byte."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.pair import EnginePair

from tidegate.amqp import connection as connection_module
from tidegate.amqp import transfers
from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import DeliveriesReceived, DeliveriesSettled, LinkAttaching
from tidegate.amqp.frames import AMQP_HEADER, FrameSplitter, encode_frame
from tidegate.amqp.limits import PeerLimits
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Accepted,
    Attach,
    Begin,
    Disposition,
    Open,
    Performative,
    Rejected,
    Source,
    Target,
    decode_performative,
    encode_performative,
)

CONFIGURATION = ConnectionConfiguration(
    "server", incoming_window=20, message_bytes_max=600, peer_limits=PeerLimits(partial_bytes_max=2000)
)

# Fields as they stand on the wire: in the encodings that clients use, and in any other.
_NULL = b"\x40"
_UINTS = st.sampled_from([b"\x43", b"\x52\x01", b"\x52\xff", b"\x70\0\0\1\0", b"\x70\xff\xff\xff\xff"])
_IDS = st.sampled_from([b"\x43", b"\x52\x01", b"\x70\0\0\1\0"])
_BOOLEANS = st.sampled_from([_NULL, b"\x41", b"\x42"])
_TAGS = st.sampled_from([b"\xa0\x00", b"\xa0\x04abcd", b"\xa0\x20" + bytes(32)])
_HANDLES = st.sampled_from([b"\x43", b"\x52\x01", b"\x70\0\0\0\2"])
_FORMATS = st.sampled_from([_NULL, b"\x43", b"\x70\x80\x01\x37\x00"])
_ODD = st.sampled_from(
    [_NULL, b"\x41", b"\x43", b"\x45", b"\x50\x01", b"\x56\x01", b"\x60\0\1", b"\x80" + bytes(8), b"\xa1\1t"]
)
_GARBLED = st.sampled_from(
    [b"\xb0\0\0\0\1t", b"\x00\x53\x24\x45", b"\x52", b"\x09", b"\x52\x09", b"\xa0\xff"]
)


@st.composite
def _composites(draw: st.DrawFn, code: int, *fields: st.SearchStrategy[bytes]) -> bytes:
    """A performative of these fields, mostly a usual one; or a field is odd, or the list is cut or wide."""
    values = [draw(each) for each in fields]
    oddity = draw(st.integers(0, 60))
    if oddity < 8:
        values[draw(st.integers(0, len(values) - 1))] = draw(_GARBLED if oddity == 0 else _ODD)
    count = draw(st.one_of(st.just(len(values)), st.integers(5, len(values))))
    encoded = b"".join(values[:count])
    claimed = count if oddity != 8 else draw(st.integers(0, 12))
    if draw(st.integers(0, 8)):
        header = b"\xc0" + bytes((len(encoded) + 1, claimed))
    else:
        header = b"\xd0" + (len(encoded) + 4).to_bytes(4, "big") + claimed.to_bytes(4, "big")
    return bytes((0, 0x53, code)) + header + encoded


def _mostly(usual: bytes, *others: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([usual] * 10 + list(others))


_TRANSFERS = _composites(
    0x14,
    _HANDLES,
    _IDS,
    _TAGS,
    _FORMATS,
    _BOOLEANS,
    _mostly(b"\x42", _NULL, b"\x41"),
    _mostly(_NULL, b"\x50\x00"),
    st.just(_NULL),
    _mostly(b"\x42", _NULL),
    _mostly(b"\x42", _NULL, b"\x41"),
    _BOOLEANS,
)
_FLOWS = _composites(
    0x13,
    st.one_of(_UINTS, st.just(_NULL)),
    _UINTS,
    _UINTS,
    _UINTS,
    st.sampled_from([_NULL, b"\x43", b"\x52\x03", b"\x52\x04"]),
    st.one_of(_UINTS, st.just(_NULL)),
    st.one_of(_UINTS, st.just(_NULL)),
    st.just(_NULL),
    _BOOLEANS,
    _BOOLEANS,
    st.just(_NULL),
)
_FRAMES = st.builds(
    encode_frame,
    st.sampled_from([0, 0, 0, 0, 0, 1, 2]),
    st.one_of(
        st.builds(
            lambda transfer, payload: transfer + bytes(payload), _TRANSFERS, st.sampled_from([0, 1, 20, 700])
        ),
        _FLOWS,
    ),
)


def _begin() -> bytes:
    frames = [encode_frame(0, encode_performative(Open("client")))]
    for channel in range(2):
        performatives: list[Performative] = [Begin(next_outgoing_id=1, incoming_window=5, outgoing_window=9)]
        for handle in range(5):
            is_sender = handle < 3
            attach = Attach(
                name=f"link {handle}",
                handle=handle,
                role=ROLE_SENDER if is_sender else ROLE_RECEIVER,
                source=Source("here"),
                target=Target("there"),
                initial_delivery_count=0 if is_sender else None,
            )
            performatives.append(attach)
        frames += [encode_frame(channel, encode_performative(each)) for each in performatives]
    return AMQP_HEADER.encode() + b"".join(frames)


def _serve(data: bytes, cuts: list[int]) -> tuple[list[str], bytes, list[object]]:
    """Events, output and counters of a service that was sent this, in pieces."""
    server = Connection(CONFIGURATION, role=Role.SERVER, now=0.0)
    words: list[str] = []

    def collect() -> None:
        while (event := server.next_event()) is not None:
            if isinstance(event, DeliveriesReceived):
                words.extend(f"{event.link.name}: {delivery!r}" for delivery in event.deliveries)
                if not event.deliveries[-1].is_settled:
                    event.link.settle(event.deliveries[-1].delivery_id)
                continue
            words.append(f"{type(event).__name__} {getattr(getattr(event, 'link', None), 'name', '')}")
            words.append(f"{getattr(event, 'error', None)}")
            if isinstance(event, LinkAttaching):
                event.link.accept()

    server.receive_data(_begin(), now=0.0)
    collect()
    sessions = server.sessions
    links = [link for session in sessions for link in session.links]
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, until in pairwise(bounds):
        server.receive_data(data[start:until], now=0.0)
    collect()
    counters: list[object] = [(each.next_incoming_id, each.incoming_window, each.state) for each in sessions]
    counters += [(link.state, getattr(link, "delivery_count", None), link.strings_bytes) for link in links]
    return words, b"".join(server.data_to_send()), [*counters, server.held_bytes]


@pytest.mark.slow
@settings(derandomize=True)
@given(
    st.lists(_FRAMES, min_size=5, max_size=60),
    st.lists(st.integers(0, 10_000), max_size=4),
    st.one_of(st.just([]), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2)),
)
def test_usual_frames_are_read_as_the_general_decoder_reads_them(
    frames: list[bytes], cuts: list[int], noise: list[tuple[int, int]]
) -> None:
    """Protects every peer: the same events, answers and counters, whatever encodings it uses, also where it
    breaks the protocol; however its bytes arrive."""
    data = bytearray(b"".join(frames))
    for position, value in noise:
        data[position % len(data)] = value
    usual = _serve(bytes(data), cuts)
    with (
        mock.patch.object(connection_module, "is_usual_transfer", return_value=False),
        mock.patch.object(connection_module, "parse_flow", return_value=None),
        mock.patch.object(transfers, "_parse_usual", return_value=None),
    ):
        assert _serve(bytes(data), cuts) == usual


def test_usual_frames_take_the_short_ways() -> None:
    """Protects the cost of small batches: what official clients write is not left to the general decoder."""
    fields = b"\x52\x01\x70\0\0\1\0\xa0\x04abcd\x70\x80\x01\x37\x00\x42\x42"
    transfer = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 6)) + fields
    data = b"".join(encode_frame(7, transfer + bytes(40)) for _ in range(3))
    runs, until = transfers.take_usual(data, 0, 1 << 16, 10, 1 << 20)
    assert until == len(data)
    assert [(handle, len(deliveries)) for handle, deliveries in runs] == [(1, 3)]
    flow = b"\x00\x53\x13\xc0\x0c\x07\x52\x01\x52\x05\x43\x52\x09\x43\x43\x52\x0a"
    parsed = transfers.parse_flow(flow, 0, len(flow))
    assert parsed == decode_performative(flow)[0]


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF))
@pytest.mark.slow
def test_an_acceptance_is_encoded_as_any_disposition(channel: int, first: int, last: int) -> None:
    """Protects every client: the template's bytes are those of the general encoder."""
    general = Disposition(role=ROLE_RECEIVER, first=first, last=last, settled=True, state=Accepted())
    expected = encode_frame(channel, encode_performative(general))
    assert transfers.accepted_frame(channel, first, last) == expected


def _dispositions(output: bytes) -> list[Disposition]:
    splitter = FrameSplitter(frame_bytes_max=1 << 16)
    splitter.feed(output)
    found = []
    while (frame := splitter.next_frame()) is not None:
        performative, _ = decode_performative(frame.body)
        if isinstance(performative, Disposition):
            found.append(performative)
    return found


@settings(derandomize=True)
@given(
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=20).flatmap(
        lambda parts: st.tuples(st.just(parts), st.permutations(range(len(parts))))
    ),
)
@pytest.mark.slow
def test_accepted_deliveries_share_a_frame_with_their_neighbours(
    first: int, parts: tuple[list[tuple[int, bool]], list[int]]
) -> None:
    """Protects senders: in whatever order links accept, each id is accepted once, no other id with it, and
    neighbours come together, also where the ids begin again at 0."""
    pair = EnginePair()
    session = pair.open()
    links = [pair.attach_sender(session, f"link {number}")[1] for number in range(3)]
    pair.server.data_to_send()
    ranges, position = [], first
    for count, is_accepted in parts[0]:
        ids = [(position + step) & 0xFFFFFFFF for step in range(count)]
        position += count
        ranges.append((ids, is_accepted))
    for number in parts[1]:
        ids, is_accepted = ranges[number]
        if is_accepted:
            links[number % 3].settle(ids[0], ids[-1])
    found = _dispositions(b"".join(pair.server.data_to_send()))
    accepted = [
        [(each.first + step) & 0xFFFFFFFF for step in range(((each.last or 0) - each.first & 0xFFFFFFFF) + 1)]
        for each in found
    ]
    assert [each for ids in accepted for each in ids] == [
        each for ids, is_accepted in ranges if is_accepted for each in ids
    ]
    assert all(ids[-1] + 1 & 0xFFFFFFFF != following[0] for ids, following in pairwise(accepted))


def test_a_refusal_comes_after_what_was_accepted_before() -> None:
    """Protects the order of outcomes, which a link's sender may rely on."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    assert isinstance(receiver, ReceiverLink)
    pair.server.data_to_send()
    receiver.settle(4)
    receiver.settle(3)
    receiver.settle(5, state=Rejected())
    receiver.settle(6)
    receiver.settle(7, 8)
    found = _dispositions(b"".join(pair.server.data_to_send()))
    assert [(each.first, each.last, type(each.state)) for each in found] == [
        (3, 4, Accepted),
        (5, 5, Rejected),
        (6, 8, Accepted),
    ]


def test_one_frame_accepts_what_several_links_sent() -> None:
    """Protects senders of many partitions on one connection: a frame for all of them is understood."""
    pair = EnginePair()
    session = pair.open()
    ends = [pair.attach_sender(session, f"link {number}") for number in range(4)]
    for _, receiver in ends:
        receiver.grant_credit(10)
    pair.pump()
    for number in range(8):
        ends[number % 4][0].send(b"x")
    pair.pump()
    for event in pair.take(DeliveriesReceived, of_server=True)[::-1]:
        for delivery in event.deliveries:
            event.link.settle(delivery.delivery_id)
    output = b"".join(pair.server.data_to_send())
    assert [(each.first, each.last) for each in _dispositions(output)] == [(0, 7)]
    pair.client.receive_data(output, now=0.0)
    pair.pump()
    settled = pair.take(DeliveriesSettled)
    assert sorted((each.link.name, each.first_delivery_id) for each in settled) == sorted(
        (f"link {number % 4}", number) for number in range(8)
    )

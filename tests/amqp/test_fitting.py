"""Frames that the peer takes: nothing that is sent is larger than its max-frame-size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp import strategies
from tests.amqp.pair import EnginePair
from tests.amqp.raw_peer import RawPeer

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import (
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    INTERNAL_ERROR,
    MESSAGE_SIZE_EXCEEDED,
    FrameTooSmallError,
)
from tidegate.amqp.events import ConnectionFailed, LinkAttached, LinkAttaching, LinkDetached, SessionEnded
from tidegate.amqp.frames import (
    AMQP_HEADER,
    FRAME_BYTES_MIN,
    FRAME_HEADER_BYTES,
    FrameSplitter,
    encode_frame,
)
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from tidegate.amqp.types import Described, Symbol

_long_texts = st.integers(0, 900).map(lambda size: "é" * (size // 2)) | st.text("ab/$", max_size=20)
_maps = st.dictionaries(strategies.keys, strategies.values | _long_texts, max_size=4)
_attaches = st.builds(
    Attach,
    name=_long_texts,
    handle=st.just(0),
    role=st.booleans(),
    source=st.builds(
        Source, address=_long_texts, filter=_maps, capabilities=st.lists(strategies.symbols).map(tuple)
    ),
    target=st.builds(Target, address=_long_texts, dynamic_node_properties=_maps),
    initial_delivery_count=st.just(0),
    desired_capabilities=st.lists(strategies.symbols, max_size=3).map(tuple),
    properties=_maps,
)


@pytest.mark.slow
@given(_attaches, _long_texts, strategies.states)
def test_no_frame_is_larger_than_the_peer_takes(attach: Attach, text: str, state: object) -> None:
    """Protects peers with small buffers: any attach, error, message or disposition fits or ends the link."""
    peer = RawPeer()
    error = Error(INTERNAL_ERROR, text)
    peer.send(attach)
    sessions = peer.server.sessions
    if sessions and sessions[0].is_mapped:
        link = peer.link()
        link.accept(offered_capabilities=["one"])
        if link.is_open and isinstance(link, SenderLink):
            peer.grant(9)
            link.send(text.encode() * 3)
            peer.send(Disposition(ROLE_RECEIVER, 0, state=state))  # type: ignore[arg-type]
        elif link.is_open:
            assert isinstance(link, ReceiverLink)
            link.settle(0, state=Rejected(error))
        link.detach(error)
        sessions[0].end(error)
    peer.server.close(error)
    frames = peer.received()
    assert isinstance(frames[0], Open)
    assert isinstance(frames[-1], Close)


def test_the_longest_properties_are_left_out_of_an_answer() -> None:
    """Protects small peers: their own long link properties are not repeated, the service's are kept."""
    peer = RawPeer()
    peer.send(Attach("out", 0, ROLE_SENDER, target=Target("hub"), source=Source(), initial_delivery_count=0))
    peer.link().accept(properties={"id": "it", "long": "l" * 300, "longer": "l" * 400, "count": 3})
    attach = peer.received()[-1]
    assert isinstance(attach, Attach)
    assert attach.properties == {"id": "it", "long": "l" * 300, "count": 3}


def test_an_answer_whose_address_does_not_fit_refuses_the_link() -> None:
    """Protects small peers: a link that cannot be answered ends with its own error, and nothing else."""
    peer = RawPeer()
    peer.send(Attach("in", 0, ROLE_RECEIVER, source=Source("a" * 450), target=Target()))
    link = peer.link()
    link.accept()
    assert not link.is_open
    attach, detach = peer.received()[-2:]
    assert isinstance(attach, Attach)
    assert (attach.source, attach.target) == (None, None)
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == FRAME_SIZE_TOO_SMALL
    assert not peer.server.is_finished


def test_a_name_that_does_not_fit_ends_the_session() -> None:
    """Protects small peers: an attach has no answer without its name, so that the session ends instead."""
    peer = RawPeer()
    peer.send(Attach("n" * 460, 0, ROLE_RECEIVER, source=Source("hub"), target=Target()))
    end = peer.received()[-1]
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == FRAME_SIZE_TOO_SMALL


def test_error_descriptions_are_cut_short() -> None:
    """Protects small peers: the start of a long description arrives, and its condition."""
    peer = RawPeer()
    peer.send(Attach("out", 0, ROLE_SENDER, target=Target("hub"), source=Source(), initial_delivery_count=0))
    link = peer.link()
    assert isinstance(link, ReceiverLink)
    link.accept()
    error = Error(MESSAGE_SIZE_EXCEEDED, "ü" * 1000)
    link.settle(0, state=Rejected(error))
    link.detach(error)
    rejected, detach = peer.received()[-2:]
    assert isinstance(rejected, Disposition)
    assert isinstance(rejected.state, Rejected)
    assert isinstance(detach, Detach)
    for got in (rejected.state.error, detach.error):
        assert got is not None
        assert got.condition == MESSAGE_SIZE_EXCEEDED
        assert got.description is not None
        assert got.description.startswith("ü" * 150)
        assert got.description.endswith("ü…")


def test_the_peers_own_long_state_is_not_repeated() -> None:
    """Protects small peers: the answer to an undecided disposition may repeat a state of any size."""
    peer = RawPeer()
    peer.send(Attach("in", 0, ROLE_RECEIVER, source=Source("hub"), target=Target()))
    link = peer.link()
    assert isinstance(link, SenderLink)
    link.accept()
    peer.grant(9)
    for state in (
        Modified(message_annotations={Symbol("long"): "l" * 600}),
        Rejected(Error(Symbol("c" * 300), "d" * 300)),
        Described(Symbol("unknown"), ["l" * 600]),
    ):
        sent = link.send(b"x")
        peer.received()
        peer.send(Disposition(ROLE_RECEIVER, sent, state=state))
        (answer,) = peer.received()
        assert isinstance(answer, Disposition)
        assert (answer.settled, answer.first) == (True, sent)


def test_transfers_are_split() -> None:
    """Protects small peers: a message of any size, with the longest tag, comes in frames that they take."""
    peer = RawPeer()
    peer.send(Attach("in", 0, ROLE_RECEIVER, source=Source("hub"), target=Target()))
    link = peer.link()
    assert isinstance(link, SenderLink)
    link.accept()
    peer.grant(9)
    link.send(bytes(5000), delivery_tag=bytes(32))
    link.send_batch([bytes(471), bytes(470)])
    frames = peer.received()
    assert len([frame for frame in frames if isinstance(frame, Transfer)]) == 12 + 2 + 1


def test_our_own_attach_that_does_not_fit_is_our_error() -> None:
    """Protects clients: a link that the service could not read is an error at once, and takes no handle."""
    pair = EnginePair(server=ConnectionConfiguration("server", max_frame_size=512))
    session = pair.open()
    with pytest.raises(FrameTooSmallError, match="does not fit"):
        session.attach_sender("out", target="a" * 600)
    assert session.links == ()
    link = session.attach_sender("out", target="hub", properties={"long": "l" * 600, "short": 1})
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    assert attaching.attach.properties == {"short": 1}
    assert [event.link for event in pair.take(LinkAttached)] == [link]
    assert pair.take(LinkDetached) == []
    assert pair.take(SessionEnded) == []


def test_an_open_fits_into_the_smallest_frame() -> None:
    """Protects any peer: what it takes is unknown before its open, except that it takes 512 bytes."""
    client = Connection(
        ConnectionConfiguration("client", hostname="here", properties={"user-agent": "u" * 600}),
        role=Role.CLIENT,
        now=0.0,
    )
    client.open()
    header, open_frame = client.data_to_send()
    assert bytes(header) == AMQP_HEADER.encode()
    assert len(open_frame) <= FRAME_BYTES_MIN
    opened, _ = decode_performative(bytes(open_frame)[FRAME_HEADER_BYTES:])
    assert isinstance(opened, Open)
    assert (opened.hostname, opened.properties) == ("here", {})


@pytest.mark.parametrize("frame_bytes_max", [0, 1, 511])
def test_a_peer_with_frames_below_the_minimum_is_closed(frame_bytes_max: int) -> None:
    """Protects the smallest frame of all: less than 512 bytes is no size that AMQP knows."""
    server = Connection(ConnectionConfiguration("server"), role=Role.SERVER, now=0.0)
    opened = encode_frame(0, encode_performative(Open("client", max_frame_size=frame_bytes_max)))
    server.receive_data(AMQP_HEADER.encode() + opened, now=0.0)
    splitter = FrameSplitter(frame_bytes_max=FRAME_BYTES_MIN)
    splitter.feed(b"".join(server.data_to_send()))
    splitter.next_header()
    frames = [splitter.next_frame(), splitter.next_frame()]
    close, _ = decode_performative(frames[1].body if frames[1] else b"")
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == FRAMING_ERROR
    assert isinstance(server.next_event(), ConnectionFailed)

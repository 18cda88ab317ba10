"""Connections from header to close: negotiation, limits, time, and peers that misbehave."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.pair import EnginePair, random_cuts

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import CONNECTION_FORCED, FRAMING_ERROR
from tidegate.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    DeliveriesReceived,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    SaslReceived,
    SessionBegun,
    SessionEnded,
)
from tidegate.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, FrameSplitter, encode_frame
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.performatives import (
    Begin,
    Close,
    Detach,
    Error,
    Open,
    decode_performative,
    encode_performative,
)
from tidegate.amqp.types import Symbol
from tidegate.model.errors import (
    BrokenError,
    LocalProtocolError,
    OperationTimeoutError,
    RemoteProtocolError,
    UnauthorizedError,
)


def _server(**changes: object) -> Connection:
    configuration = ConnectionConfiguration("server", **changes)  # type: ignore[arg-type]
    return Connection(configuration, role=Role.SERVER, now=0.0)


def _sent(connection: Connection) -> bytes:
    return b"".join(connection.data_to_send())


def _events(connection: Connection) -> list[object]:
    events: list[object] = []
    while (event := connection.next_event()) is not None:
        events.append(event)
    return events


def _plain_open(**changes: object) -> bytes:
    opening = Open(container_id="peer", **changes)  # type: ignore[arg-type]
    return AMQP_HEADER.encode() + encode_frame(0, encode_performative(opening))


@pytest.mark.parametrize("most", [1, 7, 100_000])
def test_a_client_may_pipeline_everything(most: int) -> None:
    """Protects clients (the official Python SDK) that send open, begin, attach and credit before any reply,
    whatever pieces the bytes arrive in."""
    pair = EnginePair(cut=lambda: most)
    pair.client.open()
    session = pair.client.begin_session()
    link = session.attach_receiver("in", source="hub/0")
    link.grant_credit(5)
    pair.pump()
    assert [type(event) for event in pair.client_events] == [ConnectionOpened, SessionBegun, LinkAttached]
    other = pair.other_end(link)
    assert isinstance(other, SenderLink)
    assert other.sendable == 5
    assert pair.server.sasl_mechanism == "ANONYMOUS"


def test_a_peer_may_skip_sasl() -> None:
    """Protects peers that start with the AMQP header."""
    server = _server()
    server.receive_data(_plain_open(), now=0.0)
    assert isinstance(_events(server)[-1], ConnectionOpened)
    assert server.sasl_mechanism is None
    assert _sent(server).startswith(AMQP_HEADER.encode())


@pytest.mark.parametrize("is_accepted", [True, False])
def test_the_application_judges_plain(is_accepted: bool) -> None:
    """Protects PLAIN: nothing behind it is looked at before the verdict, and the client learns a refusal."""
    secret = b"\0name\0secret"
    client = ConnectionConfiguration("client", sasl_mechanism="PLAIN", sasl_initial_response=secret)
    pair = EnginePair(client=client)
    pair.client.open()
    pair.pump()
    (asked,) = pair.take(SaslReceived, of_server=True)
    assert (asked.mechanism, asked.initial_response, asked.is_decided) == ("PLAIN", secret, False)
    assert "secret" not in repr(asked)
    assert "secret" not in repr(client)
    assert pair.server_events == []
    pair.server.complete_sasl(is_accepted)
    pair.pump()
    if is_accepted:
        assert pair.take(ConnectionOpened, of_server=True)
        assert pair.take(ConnectionOpened)
    else:
        (failed,) = pair.take(ConnectionFailed)
        assert isinstance(failed.error, UnauthorizedError)
        assert pair.take(ConnectionFailed, of_server=True)


def test_a_plain_verdict_releases_what_was_pipelined_behind_it() -> None:
    """Protects bytes that came in the same read as the SASL response."""
    client = ConnectionConfiguration("client", sasl_mechanism="PLAIN", sasl_initial_response=b"\0a\0b")
    pair = EnginePair(client=client)
    pair.client.open()
    pair.pump()
    pair.server.receive_data(_plain_open(), now=0.0)
    assert pair.server.next_event() is None
    pair.server.complete_sasl(True)
    assert isinstance(pair.server.next_event(), ConnectionOpened)


def test_an_undecided_client_cannot_fill_memory() -> None:
    """Protects memory while the application judges a PLAIN response."""
    client = ConnectionConfiguration("client", sasl_mechanism="PLAIN")
    pair = EnginePair(client=client)
    pair.client.open()
    pair.pump()
    for _ in range(20):
        pair.server.receive_data(bytes(8192), now=0.0)
    assert isinstance(_events(pair.server)[-1], ConnectionFailed)


def test_mechanisms_that_are_not_offered_are_refused() -> None:
    """Protects both ends from going on without having agreed."""
    pair = EnginePair(server=ConnectionConfiguration("server", sasl_mechanisms=("PLAIN",)))
    pair.client.open()
    pair.pump()
    (failed,) = pair.take(ConnectionFailed)
    assert "PLAIN" in str(failed.error)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01"])
def test_a_wrong_header_is_answered_with_ours(data: bytes) -> None:
    """Protects peers of other versions, which learn from our header what is spoken here."""
    server = _server()
    server.receive_data(data, now=0.0)
    (failed,) = _events(server)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, RemoteProtocolError)
    assert _sent(server) == SASL_HEADER.encode()
    assert server.is_finished


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x04\x02\x00\x00\x00",
        b"\x7f\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x12\xff",
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x12\xff",
        encode_frame(0, b"\x00\x53\x14\xc0\x05\x0b\x70"),
        encode_frame(0, encode_performative(Close()) + b"more"),
        encode_frame(
            5000, encode_performative(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
        ),
    ],
    ids=lambda frame: frame.hex()[:40],
)
def test_a_garbled_frame_closes_the_connection_with_an_error(frame: bytes) -> None:
    """Protects against garbage: close frame with a condition, one ConnectionFailed, no exception."""
    server = _server()
    server.receive_data(_plain_open(), now=0.0)
    _sent(server)
    server.receive_data(frame, now=0.0)
    failed = _events(server)[-1]
    assert isinstance(failed, ConnectionFailed)
    close, _ = decode_performative(_sent(server)[8:])
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition.startswith("amqp:")
    server.receive_data(frame, now=0.0)  # more of it does nothing
    assert _events(server) == []


@pytest.mark.parametrize(
    "first",
    [b"\xff" * 8, encode_frame(0, encode_performative(Open(container_id="c", max_frame_size=511)))],
    ids=["garbled", "frames too small"],
)
def test_a_failure_before_our_open_still_sends_open_and_close(first: bytes) -> None:
    """Protects peers that would not read a close without an open (part 2 section 2.4.1)."""
    server = _server()
    server.receive_data(AMQP_HEADER.encode() + first, now=0.0)
    splitter = FrameSplitter(frame_bytes_max=65536)
    splitter.feed(_sent(server))
    splitter.next_header()
    sent = []
    while (frame := splitter.next_frame()) is not None:
        sent.append(decode_performative(frame.body)[0])
    opened, closed = sent
    assert isinstance(opened, Open)
    assert isinstance(closed, Close)
    assert closed.error is not None
    assert closed.error.condition == FRAMING_ERROR


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_no_bytes_make_the_engine_raise(data: st.DataObject) -> None:
    """Protects the service from every peer: damage anywhere in a conversation ends in events."""
    stream = bytearray(_recorded_conversation())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(stream) - 1))
        damage = data.draw(st.binary(min_size=1, max_size=8))
        stream[start : start + data.draw(st.integers(0, 8))] = damage
    server = _server()
    seed = data.draw(st.integers(0, 2**16))
    cut = random_cuts(seed, 400)
    position = 0
    while position < len(stream):
        size = cut()
        server.receive_data(stream[position : position + size], now=0.0)
        position += size
        _sent(server)
    server.receive_eof(now=1.0)
    assert isinstance(_events(server)[-1], (ConnectionFailed, ConnectionClosed))


def _recorded_conversation() -> bytes:
    """What a busy client sends, in order."""
    pair = EnginePair()
    sent = bytearray()
    receive = pair.server.receive_data

    def record(data: bytes | bytearray | memoryview, *, now: float) -> None:
        sent.extend(data)
        receive(data, now=now)

    pair.server.receive_data = record  # type: ignore[method-assign]
    session = pair.open()
    out, receiver = pair.attach_sender(session)
    back, sender = pair.attach_receiver(session)
    receiver.grant_credit(100)
    back.grant_credit(100)
    pair.pump()
    out.send_batch([b"small"] * 10)
    out.send(b"unsettled")
    out.send(bytes(100_000))
    sender.send_batch([b"x"] * 10)
    pair.pump()
    out.detach()
    session.end()
    pair.client.close()
    pair.pump()
    return bytes(sent)


def test_empty_frames_go_out_at_half_the_peers_idle_time_out() -> None:
    """Protects connections to the official Python client, which closes when it hears nothing."""
    server = _server(idle_timeout_s=0)
    server.receive_data(_plain_open(idle_time_out=10_000), now=0.0)
    _sent(server)
    for now in (5.0, 10.0, 15.0):
        assert server.next_deadline() == now
        server.handle_deadline(now=now - 0.1)
        assert not server.has_data_to_send
        server.handle_deadline(now=now)
        assert _sent(server) == EMPTY_FRAME


def test_a_silent_peer_is_closed() -> None:
    """Protects the service from connections whose peer is gone; any byte postpones it."""
    server = _server(idle_timeout_s=4.0)
    server.receive_data(_plain_open(), now=0.0)
    server.receive_data(EMPTY_FRAME, now=3.0)
    _sent(server)
    server.handle_deadline(now=7.9)
    assert not server.is_finished
    server.excuse_silence(now=7.9)
    server.handle_deadline(now=8.1)
    assert not server.is_finished
    assert server.next_deadline() == pytest.approx(12.9)
    server.handle_deadline(now=12.9)
    close, _ = decode_performative(_sent(server)[8:])
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == CONNECTION_FORCED
    failed = _events(server)[-1]
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, BrokenError)
    assert "5000 milliseconds" in str(failed.error)


def test_a_peer_that_never_opens_is_dropped() -> None:
    """Protects against connections that hang before the open."""
    server = _server(handshake_timeout_s=10.0)
    server.receive_data(SASL_HEADER.encode(), now=9.0)
    assert server.next_deadline() == 10.0
    server.handle_deadline(now=10.0)
    (failed,) = _events(server)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, OperationTimeoutError)


@pytest.mark.parametrize("is_by_server", [True, False])
def test_close_is_answered_and_everything_is_reported_once(is_by_server: bool) -> None:
    """Protects clean-up: links, then sessions, then the connection, each once, on both sides."""
    pair = EnginePair()
    session = pair.open()
    pair.attach_receiver(session)
    pair.client_events.clear()
    pair.server_events.clear()
    error = Error(Symbol("amqp:connection:forced"), "maintenance")
    (pair.server if is_by_server else pair.client).close(error)
    pair.pump()
    for events in (pair.client_events, pair.server_events):
        assert [type(event) for event in events] == [LinkDetached, SessionEnded, ConnectionClosed]
        closed = events[-1]
        assert isinstance(closed, ConnectionClosed)
        assert closed.error == error
    assert pair.client.is_finished
    assert pair.server.is_finished


def test_closing_before_the_open_ends_at_once() -> None:
    """Protects a service that stops while a peer has only just connected."""
    server = _server()
    server.close()
    assert isinstance(server.next_event(), ConnectionClosed)
    assert server.is_finished


def test_a_lost_line_is_a_failure_unless_we_had_closed() -> None:
    """Protects the difference between broken and closed."""
    pair = EnginePair()
    pair.open()
    pair.server.receive_eof(now=0.0)
    failed = _events(pair.server)[-1]
    assert isinstance(failed, ConnectionFailed)
    pair.client.close()
    pair.client.receive_eof(now=0.0)
    assert isinstance(_events(pair.client)[-1], ConnectionClosed)


def test_channels_are_limited_and_used_again() -> None:
    """Protects channel numbers over the life of a connection, and both sides' limits."""
    small = ConnectionConfiguration("server", channel_max=1)
    pair = EnginePair(server=small)
    first = pair.open()
    second = pair.client.begin_session()
    pair.pump()
    with pytest.raises(LocalProtocolError, match="channels"):
        pair.client.begin_session()
    first.end()
    pair.pump()
    third = pair.client.begin_session()
    pair.pump()
    assert (first.local_channel, second.local_channel, third.local_channel) == (0, 1, 0)
    assert len(pair.take(SessionBegun, of_server=True)) == 3
    (ended,) = pair.take(SessionEnded)
    assert ended.session is first


def test_frames_behind_a_sessions_end_are_dropped() -> None:
    """Protects the official Python client, which sends detaches behind its end; on a channel where no session
    ever was they are an error."""
    pair = EnginePair()
    session = pair.open()
    pair.attach_receiver(session)
    session.end()
    late = encode_frame(0, encode_performative(Detach(handle=0, closed=True)))
    pair.pump()
    pair.server.receive_data(late, now=0.0)
    assert not pair.server.is_finished
    pair.server.receive_data(late[:6] + b"\x00\x09" + late[8:], now=0.0)
    assert pair.server.is_finished


def test_sessions_may_be_begun_by_the_server() -> None:
    """Protects the symmetry of the protocol: either side begins sessions and attaches links."""
    pair = EnginePair()
    pair.open()
    session = pair.server.begin_session()
    link = session.attach_sender("back", target="client-node")
    pair.pump()
    assert session.is_mapped
    assert any(other.is_begun_by_peer for other in pair.client.sessions)
    assert not link.is_open  # the client's application has not accepted
    (attaching,) = pair.take(LinkAttaching)
    receiver = attaching.link
    assert isinstance(receiver, ReceiverLink)
    receiver.accept()
    receiver.grant_credit(1)
    pair.pump()
    link.send(b"hello", settled=True)
    pair.pump()
    (received,) = pair.take(DeliveriesReceived)
    assert received.deliveries[0].payload == b"hello"


def test_an_oversized_frame_is_a_framing_error() -> None:
    """Protects memory: a frame above the agreed size is refused from its header."""
    server = _server(max_frame_size=1024)
    server.receive_data(_plain_open(), now=0.0)
    _sent(server)
    server.receive_data((1025).to_bytes(4, "big") + b"\x02\x00\x00\x00", now=0.0)
    close, _ = decode_performative(_sent(server)[8:])
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == FRAMING_ERROR


def test_noise_in_performatives_does_no_harm() -> None:
    """Protects the frame loop from noise; a quick complement of the damage test."""
    for seed in range(200):
        chance = random.Random(seed)
        server = _server()
        server.receive_data(_plain_open(), now=0.0)
        body = chance.randbytes(chance.randint(1, 40))
        server.receive_data(
            encode_frame(0, b"\x00\x53" + bytes((chance.randint(0x10, 0x18),)) + body), now=0.0
        )
        server.receive_eof(now=0.0)
        assert server.is_finished, f"seed {seed}"

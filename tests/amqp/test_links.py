"""Links between two engines: credit, windows, deliveries of any size, dispositions, detach."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.pair import EnginePair, random_cuts

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.errors import MESSAGE_SIZE_EXCEEDED, RESOURCE_LIMIT_EXCEEDED
from tidegate.amqp.events import (
    ConnectionClosed,
    CreditGranted,
    DeliveriesReceived,
    DeliveriesSettled,
    Delivery,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkDrained,
    SessionEnded,
)
from tidegate.amqp.frames import EMPTY_FRAME, encode_frame
from tidegate.amqp.limits import PeerLimits
from tidegate.amqp.link import ReceiverLink, SenderLink
from tidegate.amqp.performatives import (
    Accepted,
    Attach,
    Disposition,
    Error,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from tidegate.amqp.session import Session
from tidegate.amqp.types import Symbol
from tidegate.model.errors import LocalProtocolError


def _deliveries(pair: EnginePair, *, of_server: bool = False) -> list[Delivery]:
    events = pair.take(DeliveriesReceived, of_server=of_server)
    return [delivery for event in events for delivery in event.deliveries]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_settled_batches_arrive_in_order_and_within_credit(seed: int | None) -> None:
    """Protects the hot path: order, tags, formats, credit, and grouping into few events."""
    pair = EnginePair(cut=None if seed is None else random_cuts(seed))
    receiver, sender = pair.attach_receiver(pair.open())
    receiver.grant_credit(7)
    pair.pump()
    assert pair.take(CreditGranted, of_server=True)[0].link is sender
    payloads: list[bytes | bytearray | memoryview | list[bytes | bytearray | memoryview]] = [
        b"event-%d" % number for number in range(10)
    ]
    payloads[3] = [b"eve", memoryview(b"nt-3")]
    assert sender.send_batch(payloads, message_format=0x80013700) == 7
    assert sender.send_batch(payloads) == 0
    pair.pump()
    received = _deliveries(pair)
    assert [delivery.payload for delivery in received] == [b"event-%d" % number for number in range(7)]
    assert [delivery.delivery_id for delivery in received] == list(range(7))
    assert {delivery.message_format for delivery in received} == {0x80013700}
    assert all(delivery.is_settled for delivery in received)
    assert received[5].delivery_tag == (5).to_bytes(4, "big")
    assert (receiver.outstanding_credit, sender.credit) == (0, 0)


def test_one_read_gives_one_event_per_run_of_a_link() -> None:
    """Protects the receiver from an event per message."""
    pair = EnginePair()
    session = pair.open()
    first, first_sender = pair.attach_receiver(session, "first")
    second, second_sender = pair.attach_receiver(session, "second")
    first.grant_credit(100)
    second.grant_credit(100)
    pair.pump()
    first_sender.send_batch([b"a"] * 50)
    second_sender.send_batch([b"b"] * 50)
    first_sender.send(b"a", message_format=3)
    pair.pump()
    events = pair.take(DeliveriesReceived)
    assert [(event.link.name, len(event.deliveries)) for event in events] == [
        ("first", 50),
        ("second", 50),
        ("first", 1),
    ]


@pytest.mark.parametrize("size", [0, 400, 470, 471, 2000, 100_000])
@pytest.mark.parametrize("is_batch", [True, False])
def test_payloads_of_any_size_arrive_whole(size: int, is_batch: bool) -> None:
    """Protects the splitting into frames at its edges, for small frames, and the joining."""
    small = ConnectionConfiguration("client", max_frame_size=512, sasl_mechanism="ANONYMOUS")
    pair = EnginePair(client=small, cut=random_cuts(size))
    receiver, sender = pair.attach_receiver(pair.open())
    receiver.grant_credit(10)
    pair.pump()
    payload = bytes(number * 7 % 251 for number in range(size))
    pieces: list[bytes | bytearray | memoryview] = [payload[:100], payload[100:101], b"", payload[101:]]
    if is_batch:
        assert sender.send_batch([b"before", pieces, payload, b"behind"]) == 4
    else:
        for item in (b"before", pieces, payload, b"behind"):
            sender.send(item, settled=True)
    pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair)] == [b"before", payload, payload, b"behind"]


def test_the_session_window_holds_frames_back_in_order() -> None:
    """Protects the peer's session window: never more frames than fit, nothing lost or reordered."""
    client = ConnectionConfiguration(
        "client", incoming_window=10, max_frame_size=512, sasl_mechanism="ANONYMOUS"
    )
    pair = EnginePair(client=client)
    receiver, sender = pair.attach_receiver(pair.open())
    receiver.grant_credit(1000)
    pair.pump()
    assert sender.sendable == 10
    big = bytes(range(256)) * 40
    sender.send(big, settled=True)
    assert sender.is_blocked
    assert sender.sendable == 0
    sender.send(b"second", settled=True)
    assert len(b"".join(pair.server.output)) <= 10 * 512
    pair.take(CreditGranted, of_server=True)
    pair.pump()  # the client tops its window up as it receives
    assert [delivery.payload for delivery in _deliveries(pair)] == [big, b"second"]
    assert not sender.is_blocked
    assert pair.take(CreditGranted, of_server=True)


def test_many_more_messages_than_the_window_get_through() -> None:
    """Protects long streams: both sides' windows are topped up without the applications' doing."""
    configuration = ConnectionConfiguration("client", incoming_window=16, sasl_mechanism="ANONYMOUS")
    pair = EnginePair(
        client=configuration, server=ConnectionConfiguration("server", incoming_window=16), cut=lambda: 300
    )
    session = pair.open()
    out, other = pair.attach_sender(session)
    other.grant_credit(1000)
    pair.pump()
    sent = 0
    while sent < 1000:
        sent += out.send_batch([b"%d" % number for number in range(sent, 1000)])
        pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair, of_server=True)] == [
        b"%d" % number for number in range(1000)
    ]


def test_a_sender_that_ignores_credit_is_received_all_the_same() -> None:
    """Protects the official Python client, whose senders ignore link credit."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    pair.client_events.clear()
    for number in range(3):
        transfer = Transfer(0, number, b"t", 0, False)
        frame = encode_frame(0, encode_performative(transfer) + b"payload")
        pair.server.receive_data(frame, now=0.0)
    pair.pump()
    assert len(_deliveries(pair, of_server=True)) == 3
    assert receiver.outstanding_credit == 0
    assert receiver.is_open


def test_a_senders_own_flow_gives_no_credit() -> None:
    """Protects receivers from the credit that the official Python client puts into a sender's flow."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    receiver.grant_credit(4)
    flow = Flow(
        next_incoming_id=1,
        incoming_window=100,
        next_outgoing_id=0,
        outgoing_window=9,
        handle=0,
        link_credit=99,
        delivery_count=50,
    )
    pair.server.receive_data(encode_frame(0, encode_performative(flow)), now=0.0)
    assert receiver.outstanding_credit == 4


@pytest.mark.parametrize(
    ("state", "is_settled"), [(Accepted(), True), (Rejected(Error(Symbol("x:y"), "no")), False)]
)
def test_dispositions_reach_the_sender_in_runs(state: Accepted | Rejected, is_settled: bool) -> None:
    """Protects acknowledgements: one event per run of ids of a link; unsettled outcomes are settled."""
    pair = EnginePair()
    session = pair.open()
    first, first_receiver = pair.attach_sender(session, "first")
    second, second_receiver = pair.attach_sender(session, "second")
    first_receiver.grant_credit(10)
    second_receiver.grant_credit(10)
    pair.pump()
    ids = [link.send(b"x") for link in (first, first, second, first, first)]
    pair.pump()
    received = _deliveries(pair, of_server=True)
    assert not any(delivery.is_settled for delivery in received)
    if is_settled:
        first_receiver.settle(ids[0], ids[-1], state)
    else:
        undecided = Disposition(role=True, first=ids[0], last=ids[-1], settled=False, state=state)
        pair.server.sessions[0].send_performative(undecided)
    pair.pump()
    settled = [
        (event.link, event.first_delivery_id, event.last_delivery_id)
        for event in pair.take(DeliveriesSettled)
    ]
    assert settled == [(first, ids[0], ids[1]), (second, ids[2], ids[2]), (first, ids[3], ids[4])]
    first_receiver.settle(ids[0], ids[-1])
    pair.pump()
    assert pair.take(DeliveriesSettled) == []


def test_a_hostile_range_of_a_disposition_costs_nothing() -> None:
    """Protects processor time: a range of four billion ids is compared with what is unsettled."""
    pair = EnginePair()
    link, receiver = pair.attach_sender(pair.open())
    receiver.grant_credit(3)
    pair.pump()
    link.send(b"a")
    pair.pump()
    receiver.settle(0, 0xFFFFFFFE)
    pair.pump()
    (settled,) = pair.take(DeliveriesSettled)
    assert (settled.first_delivery_id, settled.last_delivery_id) == (0, 0)


def test_drain_uses_credit_up() -> None:
    """Protects drain: what the sender still has comes first, then LinkDrained with no credit left."""
    pair = EnginePair()
    receiver, sender = pair.attach_receiver(pair.open())
    receiver.grant_credit(10)
    pair.pump()
    pair.take(CreditGranted, of_server=True)
    receiver.drain()
    pair.pump()
    (granted,) = pair.take(CreditGranted, of_server=True)
    assert granted.link.is_drain
    sender.send_batch([b"last"])
    sender.drained()
    pair.pump()
    assert [type(event) for event in pair.client_events[-2:]] == [DeliveriesReceived, LinkDrained]
    assert (receiver.outstanding_credit, sender.credit, receiver.delivery_count) == (0, 0, 10)
    receiver.grant_credit(1)
    pair.pump()
    assert sender.sendable == 1
    assert not sender.is_drain


@pytest.mark.parametrize("handle", [None, 0])
def test_echo_is_answered_with_a_flow(handle: int | None) -> None:
    """Protects peers that ask for our state."""
    pair = EnginePair()
    pair.attach_receiver(pair.open())
    flow = Flow(
        next_incoming_id=1,
        incoming_window=100,
        next_outgoing_id=1,
        outgoing_window=9,
        handle=handle,
        link_credit=None if handle is None else 1,
        delivery_count=None if handle is None else 0,
        echo=True,
    )
    pair.server.receive_data(encode_frame(0, encode_performative(flow)), now=0.0)
    assert len(pair.server.data_to_send()) == 1


def test_an_aborted_delivery_is_forgotten() -> None:
    """Protects against half a message, and the next one from being joined to it."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    receiver.grant_credit(5)
    stream = b""
    for transfer, payload in (
        (Transfer(0, 0, b"t", 0, False, more=True), b"half"),
        (Transfer(0, aborted=True), b""),
        (Transfer(0, 1, b"u", 0, False), b"whole"),
    ):
        stream += encode_frame(0, encode_performative(transfer) + payload)
    pair.server.receive_data(stream, now=0.0)
    pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair, of_server=True)] == [b"whole"]
    assert receiver.outstanding_credit == 3


def _partial(handle: int, payload: bytes, *, count: int = 1) -> bytes:
    """Frames of a delivery that does not end."""
    return (
        encode_frame(0, encode_performative(Transfer(handle, 0, b"t", 0, True, more=True)) + payload) * count
    )


@pytest.mark.slow
def test_pieces_of_a_delivery_do_not_keep_reads_alive() -> None:
    """Protects memory: frames of one byte, or none, between much else cost what they hold and no more."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    read = EMPTY_FRAME * 3_000 + _partial(0, b"x") + _partial(0, b"", count=50)
    tracemalloc.start()
    for second in range(40):
        pair.server.receive_data(read, now=float(second))
    # Other tests of the process may have left threads, which allocate, too.
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/tidegate/amqp/*")])
    tracemalloc.stop()
    assert 0 < sum(trace.size for trace in ours.traces) < len(read)
    end = encode_frame(0, encode_performative(Transfer(0, None, None, None, True)) + b"y")
    pair.server.receive_data(end, now=40.0)
    pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair, of_server=True)] == [b"x" * 40 + b"y"]
    assert receiver.is_open


def test_a_link_keeps_nothing_of_deliveries_that_were_taken() -> None:
    """Protects memory: each of thousands of links would hold a megabyte, which no account counts."""
    pair = EnginePair()
    _, receiver = pair.attach_sender(pair.open())
    frame = encode_frame(0, encode_performative(Transfer(0, 0, b"t", 0, True)) + bytes(10_000))
    tracemalloc.start()
    pair.server.receive_data(frame, now=0.0)
    event = pair.server.next_event()
    while not isinstance(event, DeliveriesReceived):
        event = pair.server.next_event()
    del event
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/tidegate/amqp/*")])
    tracemalloc.stop()
    assert sum(trace.size for trace in ours.traces) < 10_000
    assert receiver.is_open


def test_what_all_links_keep_of_deliveries_is_bounded() -> None:
    """Protects memory: many links with half a message each end the connection; ended ones do not count."""
    pair = EnginePair(
        server=ConnectionConfiguration("server", peer_limits=PeerLimits(partial_bytes_max=10_000))
    )
    session = pair.open()
    links = [pair.attach_sender(session, f"out-{number}")[0] for number in range(4)]
    for link in links[:3]:
        pair.server.receive_data(_partial(link.handle, bytes(4000)), now=0.0)
        link.detach()
        pair.pump()
    assert not pair.take(ConnectionClosed)
    links = [pair.attach_sender(session, f"again-{number}")[0] for number in range(3)]
    for link in links:
        pair.server.receive_data(_partial(link.handle, bytes(4000)), now=0.0)
    pair.pump()
    (closed,) = pair.take(ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == RESOURCE_LIMIT_EXCEEDED


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize("size", [1001, 200_000])
def test_an_oversized_delivery_ends_the_link_without_being_kept(size: int, is_settled: bool) -> None:
    """Protects memory and the limit that was advertised: the link ends, the session goes on."""
    pair = EnginePair()
    pair.is_accepting = False
    session = pair.open()
    link = session.attach_sender("out", target="hub")
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    attaching.link.accept(max_message_size=1000)
    receiver = pair.other_end(link)
    receiver.grant_credit(10)  # type: ignore[attr-defined]  # the receiving end
    pair.pump()
    assert link.remote_attach.max_message_size == 1000
    link.send(bytes(1000), settled=is_settled)
    link.send(bytes(size), settled=is_settled)
    link.send(b"behind", settled=is_settled)
    pair.pump()
    assert [len(delivery.payload) for delivery in _deliveries(pair, of_server=True)] == [1000]
    for of_server in (False, True):
        (detached,) = pair.take(LinkDetached, of_server=of_server)
        assert detached.error is not None
        assert detached.error.condition == MESSAGE_SIZE_EXCEEDED
    assert session.is_mapped
    assert session.links == ()


@pytest.mark.parametrize("size", [1001, 200_000])
def test_an_oversized_delivery_is_rejected_where_the_link_shall_go_on(size: int) -> None:
    """Protects senders that share a link: what is too large is rejected, not kept, and costs no credit."""
    pair = EnginePair()
    pair.is_accepting = False
    session = pair.open()
    link = session.attach_sender("out", target="hub")
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    attaching.link.accept(max_message_size=1000)
    receiver = pair.other_end(link)
    assert isinstance(receiver, ReceiverLink)
    receiver.is_oversized_rejected = True
    receiver.grant_credit(2)
    pair.pump()
    for number in range(5):
        link.send(bytes(size))
        pair.pump()
        (settled,) = pair.take(DeliveriesSettled)
        assert settled.first_delivery_id == settled.last_delivery_id == number
        assert isinstance(settled.state, Rejected)
        assert settled.state.error is not None
        assert settled.state.error.condition == MESSAGE_SIZE_EXCEEDED
        assert f"size:{size} bytes) exceeds the limit (1000 bytes)" in (settled.state.error.description or "")
    link.send(b"behind")
    pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair, of_server=True)] == [b"behind"]
    assert receiver.outstanding_credit == 1
    link.send(bytes(size), settled=True)  # which nobody could tell otherwise
    pair.pump()
    (detached,) = pair.take(LinkDetached)
    assert detached.error is not None
    assert detached.error.condition == MESSAGE_SIZE_EXCEEDED


def test_a_refused_link_is_detached_and_never_attached() -> None:
    """Protects clients: a refusal is an attach without source and target, then a detach with the reason."""
    pair = EnginePair()
    pair.is_accepting = False
    session = pair.open()
    link = session.attach_receiver("in", source="nowhere")
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    error = Error(Symbol("amqp:not-found"), "no such hub")
    attaching.link.refuse(error)
    pair.pump()
    assert pair.take(LinkAttached) == []
    (detached,) = pair.take(LinkDetached)
    assert (detached.link, detached.error, detached.closed) == (link, error, True)
    assert link.remote_attach.source is None
    assert len(pair.take(LinkDetached, of_server=True)) == 1
    assert session.attach_receiver("in", source="hub").handle == 0  # name and handle are free again


def test_a_peer_that_leaves_before_our_answer_is_let_go() -> None:
    """Protects slow accepts: the link is gone, a late accept or refuse does nothing."""
    pair = EnginePair()
    pair.is_accepting = False
    session = pair.open()
    link = session.attach_receiver("in", source="hub")
    link.grant_credit(3)
    link.detach()
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    assert len(pair.take(LinkDetached)) == 1
    assert len(pair.take(LinkDetached, of_server=True)) == 1
    attaching.link.accept()
    attaching.link.refuse(Error(Symbol("amqp:not-found")))
    assert not pair.server.has_data_to_send


@pytest.mark.parametrize("is_by_server", [True, False])
def test_detach_and_attach_again(is_by_server: bool) -> None:
    """Protects re-use of names and handles, and calls on a link that is gone."""
    pair = EnginePair()
    session = pair.open()
    for _ in range(3):
        receiver, sender = pair.attach_receiver(session)
        receiver.grant_credit(2)
        pair.pump()
        assert receiver.handle == 0
        (sender if is_by_server else receiver).detach(closed=False)
        pair.pump()
        for of_server in (False, True):
            (detached,) = pair.take(LinkDetached, of_server=of_server)
            assert not detached.closed
        receiver.grant_credit(5)
        receiver.settle(0)
        receiver.detach()
        assert sender.send_batch([b"x"]) == 0
        with pytest.raises(LocalProtocolError):
            sender.send(b"x")
    assert session.is_mapped


def test_sending_needs_credit() -> None:
    """Protects receivers from our own mistakes."""
    pair = EnginePair()
    _, sender = pair.attach_receiver(pair.open())
    with pytest.raises(LocalProtocolError, match="credit"):
        sender.send(b"x")


def test_what_waits_for_the_window_goes_with_its_link() -> None:
    """Protects other links of the session from frames of one that is gone."""
    client = ConnectionConfiguration(
        "client", incoming_window=4, max_frame_size=512, sasl_mechanism="ANONYMOUS"
    )
    pair = EnginePair(client=client)
    session = pair.open()
    first, first_sender = pair.attach_receiver(session, "first")
    second, second_sender = pair.attach_receiver(session, "second")
    first.grant_credit(5)
    second.grant_credit(5)
    pair.pump()
    first_sender.send(bytes(5000), settled=True)
    second_sender.send(b"mine", settled=True)
    assert first_sender.is_blocked
    assert second_sender.is_blocked
    first.detach()
    pair.pump()
    assert [delivery.payload for delivery in _deliveries(pair)][-1] == b"mine"


def test_handles_are_limited() -> None:
    """Protects both sides' handle-max: ours raises, the peer's too high handle closes the connection."""
    server = ConnectionConfiguration("server", handle_max=1)
    pair = EnginePair(server=server)
    session = pair.open()
    pair.attach_receiver(session, "one")
    pair.attach_receiver(session, "two")
    with pytest.raises(LocalProtocolError, match="handles"):
        session.attach_receiver("three", source="hub")
    attach = Attach("three", 2, True, source=Source(), target=Target())
    pair.server.receive_data(encode_frame(0, encode_performative(attach)), now=0.0)
    assert pair.server.is_finished


def test_ending_a_session_reports_its_links_on_both_sides() -> None:
    """Protects clean-up when a session ends with an error."""
    pair = EnginePair()
    session = pair.open()
    pair.attach_receiver(session)
    error = Error(Symbol("amqp:internal-error"), "gone")
    pair.server.sessions[0].end(error)
    pair.pump()
    for of_server in (False, True):
        (detached,) = pair.take(LinkDetached, of_server=of_server)
        (ended,) = pair.take(SessionEnded, of_server=of_server)
        assert detached.error == ended.error == error
    assert not session.is_mapped
    with pytest.raises(LocalProtocolError):
        session.attach_receiver("late", source="hub")


def test_a_delivery_count_passes_its_largest_value() -> None:
    """Protects links that live long: counts are serial numbers of 32 bits."""
    pair = EnginePair()
    receiver, sender = pair.attach_receiver(pair.open())
    for link in (receiver, sender):
        link.delivery_count = 0xFFFFFFFE
    sender.session.next_delivery_id = sender.session.next_outgoing_id = 0xFFFFFFFE
    receiver.session.send_performative(
        Flow(next_incoming_id=0xFFFFFFFE, incoming_window=100, next_outgoing_id=1, outgoing_window=9)
    )
    receiver.grant_credit(5)
    receiver.session.next_incoming_id = 0xFFFFFFFE  # type: ignore[attr-defined]  # of the session itself
    pair.pump()
    assert isinstance(sender, SenderLink)
    sender.session.remote_incoming_window = 100
    assert sender.send_batch([b"%d" % number for number in range(5)]) == 5
    pair.pump()
    assert [delivery.delivery_id for delivery in _deliveries(pair)] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2]
    assert receiver.delivery_count == sender.delivery_count == 3
    receiver.grant_credit(2)
    pair.pump()
    assert sender.credit == 2


def test_nothing_follows_a_detach() -> None:
    """Protects the peer from frames on a handle that it has freed: what waits for the window is dropped."""
    client = ConnectionConfiguration(
        "client", incoming_window=4, max_frame_size=512, sasl_mechanism="ANONYMOUS"
    )
    pair = EnginePair(client=client)
    session = pair.open()
    receiver, sender = pair.attach_receiver(session)
    receiver.grant_credit(5)
    pair.pump()
    sender.send(bytes(5000), settled=True)
    sender.detach()
    pair.pump()
    assert _deliveries(pair) == []
    assert session.is_mapped


_uints = st.integers(0, 0xFFFFFFFF)


@given(granted=_uints, seen=_uints, underway=_uints)
@pytest.mark.slow
def test_windows_and_credit_use_all_32_bits(granted: int, seen: int, underway: int) -> None:
    """Protects peers with windows or credit of 2^31 and more, as the official Rust SDK has: what remains is
    what was granted less what was under way, whatever the counts are.
    """
    pair = EnginePair()
    _, sender = pair.attach_receiver(pair.open())
    session = sender.session
    assert isinstance(sender, SenderLink)
    assert isinstance(session, Session)
    session.next_outgoing_id = sender.delivery_count = (seen + underway) & 0xFFFFFFFF
    flow = Flow(
        next_incoming_id=seen,
        incoming_window=granted,
        next_outgoing_id=1,
        outgoing_window=9,
        handle=sender.remote_handle,
        delivery_count=seen,
        link_credit=granted,
    )
    session.receive_performative(flow)
    expected = granted - underway if granted > underway else 0
    assert (session.remote_incoming_window, sender.credit) == (expected, expected)


def test_forgotten_deliveries_are_told_nobody() -> None:
    """Protects memory: unsettled deliveries, of one frame or of several, leave nothing behind on a link that
    forgets them, and a receiver that waits for an answer to its word still gets one."""
    pair = EnginePair()
    receiver, sender = pair.attach_receiver(pair.open())
    receiver.grant_credit(10)
    pair.pump()
    sender.forget_deliveries()
    assert sender.send_batch([b"small", bytes(100_000)], settled=False) == 2
    pair.pump()
    received = _deliveries(pair)
    assert [delivery.is_settled for delivery in received] == [False, False]
    receiver.settle(received[0].delivery_id, received[1].delivery_id)
    pair.pump()
    assert pair.take(DeliveriesSettled, of_server=True) == []

"""Slices: it means nothing how bytes are cut into reads and slices, and no frame pays for other links."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.pair import EnginePair
from tests.needs import MORE_SEEDS

from tidegate.amqp import connection as connection_module
from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import RESOURCE_LIMIT_EXCEEDED, ResourceLimitError
from tidegate.amqp.events import (
    ConnectionFailed,
    CreditGranted,
    DeliveriesReceived,
    Event,
    LinkAttaching,
    LinkDetached,
)
from tidegate.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, encode_frame
from tidegate.amqp.limits import HEARTBEATS_PER_S_MAX, SLICE_COST, FreeNumbers, PeerLimits
from tidegate.amqp.link import Link, ReceiverLink, SenderLink
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from tidegate.amqp.sasl import SaslInit, encode_sasl
from tidegate.amqp.session import Session
from tidegate.amqp.transfers import TAG_OF_4, batch_front, batch_head, batch_tail
from tidegate.amqp.types import Symbol

CONFIGURATION = ConnectionConfiguration(
    "server",
    incoming_window=40,
    handle_max=20,
    channel_max=5,
    message_bytes_max=3000,
    peer_limits=PeerLimits(partial_bytes_max=6000),
)


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=200), st.integers(0, 12))
@pytest.mark.slow
def test_the_lowest_free_number_is_given(steps: list[int | None], highest: int) -> None:
    """Protects handles and channels: as a search from 0 would find them, in whatever order they are freed."""
    numbers, taken = FreeNumbers(), set[int]()
    for step in steps:
        if step is None:
            expected = next((number for number in range(highest + 1) if number not in taken), None)
            assert numbers.take(highest) == expected
            if expected is not None:
                taken.add(expected)
        elif taken:
            number = sorted(taken)[step % len(taken)]
            taken.remove(number)
            numbers.give_back(number)


def _frame(channel: int, performative: Performative, payload: bytes = b"") -> bytes:
    return encode_frame(channel, encode_performative(performative) + payload)


def _begin() -> Begin:
    return Begin(next_outgoing_id=1, incoming_window=5, outgoing_window=100, handle_max=20)


def _flow(window: int, *, echo: bool = False, handle: int | None = None, credit: int | None = None) -> Flow:
    return Flow(
        next_incoming_id=1,
        incoming_window=window,
        next_outgoing_id=1,
        outgoing_window=100,
        handle=handle,
        delivery_count=None if handle is None else 0,
        link_credit=credit,
        echo=echo,
    )


def _own_transfers(channel: int, handle: int, first: int, payloads: list[bytes]) -> bytes:
    """What ``SenderLink.send_batch`` writes."""
    front, tail = batch_front(channel, handle), batch_tail(0, settled=True)
    return b"".join(
        batch_head(42 + len(payload), front, first + step, TAG_OF_4, first + step, tail) + payload
        for step, payload in enumerate(payloads)
    )


def _steps(chance: random.Random, *, count: int, kinds: int) -> list[bytes]:
    """What a client sends, much of it sensible; what stands in one step does not depend on our answers.

    kinds: 100 for all, 96 without attaches between the rest, which do.
    """
    sasl = SASL_HEADER.encode() + encode_frame(0, encode_sasl(SaslInit(Symbol("ANONYMOUS"), b"")), SASL_FRAME)
    steps = [sasl + AMQP_HEADER.encode() + _frame(0, Open("client", max_frame_size=600))]
    steps.append(b"".join(_frame(channel, _begin()) for channel in range(3)))
    steps += [_attaches(chance, channel) for channel in range(3)]
    for _ in range(count):
        steps.append(b"".join(_some_frame(chance, kinds) for _ in range(chance.randint(1, 20))))
    if chance.random() < 0.5:
        steps.append(_frame(0, Close()) + EMPTY_FRAME)
    return steps


def _attaches(chance: random.Random, channel: int) -> bytes:
    frames = []
    for handle in range(6):
        role = ROLE_SENDER if handle < 3 else ROLE_RECEIVER
        frames.append(
            _frame(
                channel,
                Attach(
                    name=f"link {handle}",
                    handle=handle,
                    role=role,
                    source=Source("here"),
                    target=Target("there"),
                    initial_delivery_count=0 if role is ROLE_SENDER else None,
                ),
            )
        )
    chance.shuffle(frames)
    return b"".join(frames)


def _some_frame(chance: random.Random, kinds: int) -> bytes:
    channel, handle = chance.randrange(3), chance.randrange(3)
    kind = chance.randrange(kinds)
    number = chance.randrange(1 << 16)
    if kind < 45:
        sizes = [chance.choice((0, 1, 20)) for _ in range(chance.choice((1, 3, 50, 150)))]
        return _own_transfers(channel, handle, number, [bytes(size) for size in sizes])
    if kind < 60:
        return EMPTY_FRAME * chance.choice((1, 2, 70, 200)) + b"\0\0\0\x08\x02\0\0\x07"
    if kind < 70:
        first = _frame(channel, Transfer(handle, number, b"t", 0, False, more=True), b"a" * 500)
        rest = _frame(channel, Transfer(handle, more=False), b"b" * chance.choice((1, 300)))
        return first + _frame(channel, Transfer(handle, more=True), b"c" * 700) * chance.randrange(4) + rest
    if kind < 80:
        return _frame(channel, _flow(chance.randrange(4), handle=3 + handle, credit=chance.randrange(9)))
    if kind < 88:
        return _frame(channel, _flow(chance.randrange(9), echo=chance.random() < 0.5))
    if kind < 93:
        return _frame(
            channel,
            Disposition(ROLE_RECEIVER, number, number + 3, True, Accepted()),
        )
    if kind < 96:
        return _frame(channel, Detach(handle=chance.randrange(6), closed=True))
    if kind < 97:
        return _attaches(chance, channel)
    if kind < 98:
        return _frame(channel, End(Error(Symbol("test:end"), "it ends")))
    if kind < 99:
        return _frame(channel, Transfer(19, number, b"u", 0, True), b"to nobody")
    return _frame(channel, _begin())


def _words(event: Event) -> list[str]:
    """An event in words; deliveries one by one, because how many come in one event means nothing."""
    if isinstance(event, DeliveriesReceived):
        return [f"{event.link.name} on {_channel(event.link)}: {delivery!r}" for delivery in event.deliveries]
    # Not their repr: it has the state of a link or session as it is by now.
    link = getattr(event, "link", None)
    name = "" if link is None else f"{link.name} on {_channel(link)} "
    about = {
        field: getattr(event, field)
        for field in ("attach", "error", "closed", "open", "mechanism")
        if hasattr(event, field)
    }
    return [f"{type(event).__name__} {name}{about}"]


def _channel(link: Link) -> int:
    assert isinstance(link.session, Session)
    return link.session.local_channel


def _serve(
    steps: list[bytes], *, cut: Callable[[], int] | None, has_slices: bool, is_answering: bool
) -> tuple[list[str], bytes]:
    """Events and output of a service that was sent this."""
    server = Connection(CONFIGURATION, role=Role.SERVER, now=0.0)
    words: list[str] = []
    output = bytearray()

    def collect() -> None:
        while (event := server.next_event()) is not None:
            words.extend(_words(event))
            if is_answering and isinstance(event, LinkAttaching):
                event.link.accept()
                if isinstance(event.link, ReceiverLink):
                    event.link.grant_credit(50)

    for second, step in enumerate(steps):
        position = 0
        while position < len(step):
            size = cut() if cut is not None else len(step)
            piece, position = step[position : position + size], position + size
            if not has_slices:
                server.receive_data(piece, now=float(second))
                continue
            server.feed_data(piece, now=float(second))
            while server.has_input:
                server.process_slice()
                collect()
        collect()
        output += b"".join(server.data_to_send())
    collect()
    return words, bytes(output)


@pytest.mark.parametrize(
    "seed", [seed if seed < 7 else pytest.param(seed, marks=MORE_SEEDS) for seed in range(25)]
)
@pytest.mark.parametrize("is_answering", [False, True])
@pytest.mark.slow
def test_slices_and_reads_of_any_size_come_to_the_same(
    seed: int, is_answering: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects every peer: the same events and bytes out, wherever reads and slices end, also where a peer
    breaks the protocol or sends noise."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    steps = _steps(chance, count=6, kinds=96 if is_answering else 100)
    if seed % 3 == 0:  # noise from somewhere behind the attaches on
        number = chance.randrange(5, len(steps))
        noisy = bytearray(steps[number])
        for _ in range(3):
            noisy[chance.randrange(len(noisy))] = chance.randrange(256)
        steps[number] = bytes(noisy)
    expected = _serve(steps, cut=None, has_slices=False, is_answering=is_answering)
    for cost, events in ((1, 1), (7, 3), (128, 64)):
        monkeypatch.setattr(connection_module, "SLICE_COST", cost)
        monkeypatch.setattr(connection_module, "SLICE_EVENTS_MAX", events)
        for most in (30, 400, 50_000):
            cut = partial(chance.randint, 1, most)
            assert _serve(steps, cut=cut, has_slices=True, is_answering=is_answering) == expected


def test_a_slice_is_bounded() -> None:
    """Protects neighbours: what is worked off at a time does not grow with what was sent at once."""
    pair = EnginePair()
    sender, _ = pair.attach_sender(pair.open())
    channel, handle = sender.session.local_channel, sender.handle
    server = pair.server
    server.feed_data(_own_transfers(channel, handle, 0, [b"x"] * 1000), now=0.0)
    counts = []
    while server.has_input:
        server.process_slice()
        event = server.next_event()
        if isinstance(event, DeliveriesReceived):
            counts.append(len(event.deliveries))
    assert sum(counts) == 1000
    assert max(counts) == SLICE_COST
    flows = _frame(channel, _flow(100, echo=True)) * 1000
    server.feed_data(flows, now=0.0)
    server.data_to_send()
    server.process_slice()
    assert server.has_input
    assert len(server.data_to_send()) <= SLICE_COST // 8


def test_a_frame_of_many_values_fills_a_slice() -> None:
    """Protects neighbours: 4 KB of an attach can be thousands of values, which take some milliseconds."""
    pair = EnginePair()
    pair.open()
    padding: dict[object, object] = {Symbol("x"): [[]] * 3_200}
    attaches = [Attach(str(number), number, ROLE_RECEIVER, properties=padding) for number in range(8)]
    pair.server.feed_data(b"".join(_frame(0, attach) for attach in attaches), now=1.0)
    slices = 0
    while pair.server.has_input:
        pair.server.process_slice()
        slices += 1
    assert slices >= 8


@pytest.mark.parametrize("settled", [True, False])
def test_a_slice_is_bounded_in_bytes(settled: bool) -> None:
    """Protects neighbours: what is in a delivery costs time, too, so few large ones make a slice."""
    pair = EnginePair()
    sender, _ = pair.attach_sender(pair.open())
    channel, handle = sender.session.local_channel, sender.handle
    server = pair.server
    payload = bytes(4000)
    if settled:
        data = _own_transfers(channel, handle, 0, [payload] * 100)
    else:
        transfers = [Transfer(handle, number, b"%d" % number, 0) for number in range(100)]
        data = b"".join(_frame(channel, transfer, payload) for transfer in transfers)
    server.feed_data(data, now=0.0)
    counts = []
    while server.has_input:
        server.process_slice()
        while (event := server.next_event()) is not None:
            assert isinstance(event, DeliveriesReceived)
            counts.append(len(event.deliveries))
    assert sum(counts) == 100
    assert max(counts) * len(payload) <= 36_000


@pytest.mark.parametrize("settled", [True, False])
def test_deliveries_that_are_much_work_come_one_by_one(settled: bool) -> None:
    """Protects neighbours: the owner gets no run of requests, each of which may take a millisecond."""
    pair = EnginePair()
    sender, receiver = pair.attach_sender(pair.open())
    assert isinstance(receiver, ReceiverLink)
    receiver.is_one_by_one = True
    channel, handle = sender.session.local_channel, sender.handle
    if settled:
        data = _own_transfers(channel, handle, 0, [b"x"] * 10)
    else:
        transfers = [Transfer(handle, number, b"%d" % number, 0) for number in range(10)]
        data = b"".join(_frame(channel, transfer, b"x") for transfer in transfers)
    pair.server.receive_data(data, now=0.0)
    events = pair.take(DeliveriesReceived, of_server=True)
    while (event := pair.server.next_event()) is not None:
        assert isinstance(event, DeliveriesReceived)
        events.append(event)
    assert [len(event.deliveries) for event in events] == [1] * 10


def test_a_run_of_heartbeats_is_one_step() -> None:
    """Protects neighbours: 30,000 empty frames are compared in bulk, and none of them is made a frame."""
    pair = EnginePair()
    pair.open()
    calls = 0
    next_frame = pair.server._splitter.next_frame

    def counted() -> object:
        nonlocal calls
        calls += 1
        return next_frame()

    pair.server._splitter.next_frame = counted  # type: ignore[method-assign,assignment]
    pair.server.receive_data(EMPTY_FRAME * 9_000 + EMPTY_FRAME[:5], now=1.0)
    assert calls == 2
    pair.server.receive_data(EMPTY_FRAME[5:] + _frame(0, Close()), now=1.0)
    assert pair.server.is_finished
    assert not pair.take(ConnectionFailed, of_server=True)


def test_too_many_heartbeats_end_the_connection() -> None:
    """Protects everybody from a peer that keeps the service busy with nothing: it is told, and closed."""
    pair = EnginePair()
    pair.open()
    for second in range(5):  # what piles up while we do not read is no offence
        pair.now = second + 1.0
        pair.server.receive_data(EMPTY_FRAME * HEARTBEATS_PER_S_MAX, now=pair.now)
    assert not pair.server.is_finished
    pair.server.receive_data(EMPTY_FRAME * 100, now=pair.now)
    pair.pump()
    (failed,) = pair.take(ConnectionFailed, of_server=True)
    assert isinstance(failed.error, ResourceLimitError)
    assert failed.error.condition == RESOURCE_LIMIT_EXCEEDED


def test_frames_of_anybody_are_limited_until_they_are_not() -> None:
    """Protects everybody: without a token a peer gets few frames per second; with one there is no limit."""
    configuration = ConnectionConfiguration("server", stranger_limits=PeerLimits(frames_per_s_max=200))
    for is_raised in (False, True):
        pair = EnginePair(server=configuration)
        session = pair.open()
        if is_raised:
            pair.server.admit_peer()
        flow = _frame(session.local_channel, _flow(100))
        for second in range(4):
            pair.server.receive_data(flow * 200, now=second + 1.0)
        assert not pair.server.is_finished
        pair.server.receive_data(flow * 100, now=4.0)
        assert pair.server.is_finished is not is_raised


@pytest.mark.slow
def test_a_flow_wakes_the_links_that_wait_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects neighbours of a connection with many links: 5,000 of them cost a flow nothing."""
    pair = EnginePair(
        client=ConnectionConfiguration(
            "client", handle_max=6000, incoming_window=1, sasl_mechanism="ANONYMOUS"
        ),
        server=ConnectionConfiguration("server", handle_max=6000),
    )
    session = pair.open()
    links = [session.attach_receiver(f"link {number}", source="hub") for number in range(5000)]
    pair.pump()
    for link in links:
        link.grant_credit(5)
    pair.pump()
    senders = [pair.other_end(link) for link in links[:3]]
    pair.take(CreditGranted, of_server=True)
    looked: list[SenderLink] = []
    wake = SenderLink.wake

    def counted(link: SenderLink) -> None:
        looked.append(link)
        wake(link)

    monkeypatch.setattr(SenderLink, "wake", counted)
    flow = _frame(session.local_channel, _flow(0))
    pair.server.receive_data(flow * 100, now=0.0)
    for sender in senders[:2]:
        assert isinstance(sender, SenderLink)
        assert sender.sendable == 0  # it wants to send, and meets the end of the window
    pair.server.receive_data(flow * 100, now=0.0)
    assert looked == []
    pair.server.receive_data(_frame(session.local_channel, _flow(9)) * 100, now=0.0)
    assert looked == senders[:2]
    pair.pump()
    assert [event.link for event in pair.take(CreditGranted, of_server=True)] == senders[:2]


def test_a_window_that_opens_with_a_link_s_flow_wakes_others() -> None:
    """Protects receivers that share a session: a flow's window is the session's, whatever link it names."""
    pair = EnginePair()
    session = pair.open()
    first, sender = pair.attach_receiver(session, "first")
    second, _ = pair.attach_receiver(session, "second")
    first.grant_credit(10)
    second.grant_credit(10)
    pair.pump()
    pair.server.receive_data(_frame(session.local_channel, _flow(0)), now=0.0)
    assert sender.sendable == 0
    pair.take(CreditGranted, of_server=True)
    flow = _flow(9, handle=second.handle, credit=10)
    pair.server.receive_data(_frame(session.local_channel, flow), now=0.0)
    pair.pump()
    assert sender in [event.link for event in pair.take(CreditGranted, of_server=True)]
    assert sender.sendable == 9


@pytest.mark.slow
def test_thousands_of_links_end_in_many_steps() -> None:
    """Protects neighbours: when a connection ends, its links are reported session by session."""
    pair = EnginePair()
    pair.client.open()
    sessions = [pair.client.begin_session() for _ in range(20)]
    for session in sessions:
        for number in range(50):
            session.attach_receiver(f"link {number}", source="hub")
    pair.pump()
    pair.server.receive_eof(now=0.0)
    assert pair.server.is_finished
    kinds = []
    most = 0
    while (event := pair.server.next_event()) is not None:
        kinds.append(type(event))
        most = max(most, len(pair.server.events))
    assert most <= 51
    assert kinds.count(LinkDetached) == 1000
    assert kinds[-1] is ConnectionFailed
    assert not pair.server.has_events

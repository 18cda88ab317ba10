"""What a peer may make this side hold: less before it has proved who it is, and all of it counted."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.pair import EnginePair

from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.errors import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED
from tidegate.amqp.events import ConnectionClosed, ConnectionFailed, LinkAttaching, SessionEnded
from tidegate.amqp.frames import AMQP_HEADER, encode_frame
from tidegate.amqp.limits import LINK_BYTES, PeerLimits
from tidegate.amqp.link import SenderLink
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    Attach,
    Begin,
    Detach,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Transfer,
    encode_performative,
)
from tidegate.amqp.types import Symbol

_STRANGER = PeerLimits(frame_bytes_max=4096, performative_bytes_max=2048, partial_bytes_max=10_000)
_KNOWN = PeerLimits(performative_bytes_max=8192, partial_bytes_max=40_000, links_max=4)


def _pair() -> EnginePair:
    return EnginePair(server=ConnectionConfiguration("server", peer_limits=_KNOWN, stranger_limits=_STRANGER))


def _partial(link: SenderLink, size: int) -> bytes:
    """A transfer frame of a message that does not end."""
    transfer = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    return encode_frame(0, encode_performative(transfer) + bytes(size))


def _error_of(pair: EnginePair) -> str | None:
    """With what the service closed the connection; None: it did not."""
    pair.pump()
    closed = pair.take(ConnectionClosed)
    return None if not closed or closed[0].error is None else str(closed[0].error.condition)


@pytest.mark.parametrize(("is_known", "condition"), [(False, "amqp:connection:framing-error"), (True, None)])
def test_frames_of_a_stranger_are_small(is_known: bool, condition: str | None) -> None:
    """Protects memory before a token: a frame that may be sent afterwards ends a stranger's connection."""
    pair = _pair()
    link, _ = pair.attach_sender(pair.open())
    if is_known:
        pair.server.admit_peer()
    pair.server.receive_data(_partial(link, 5000), now=0.0)
    assert _error_of(pair) == condition


@pytest.mark.parametrize("is_known", [False, True])
def test_unfinished_messages_are_bounded(is_known: bool) -> None:
    """Protects memory: what has begun and not ended may take little before a token, and more afterwards."""
    pair = _pair()
    session = pair.open()
    links = [pair.attach_sender(session, f"out-{number}")[0] for number in range(4)]
    if is_known:
        pair.server.admit_peer()
    for link in links:
        pair.server.receive_data(_partial(link, 3000), now=0.0)
    assert _error_of(pair) == (None if is_known else RESOURCE_LIMIT_EXCEEDED)


@pytest.mark.parametrize("is_known", [False, True])
def test_attaches_are_short(is_known: bool) -> None:
    """Protects memory: an attach is answered with its own words, and so may not have many."""
    pair = _pair()
    session = pair.open()
    if is_known:
        pair.server.admit_peer()
    session.attach_sender("out", target="hub", properties={"x": "y" * 3000})
    assert _error_of(pair) == (None if is_known else RESOURCE_LIMIT_EXCEEDED)
    if is_known:
        session.attach_sender("more", target="hub", properties={"x": "y" * 9000})
        assert _error_of(pair) == RESOURCE_LIMIT_EXCEEDED


def test_links_are_counted_over_all_sessions() -> None:
    """Protects memory: a connection cannot have 256 links in each of 5,000 sessions; ended ones are free."""
    pair = _pair()
    first = pair.open()
    pair.server.admit_peer()
    second = pair.client.begin_session()
    links = [pair.attach_sender(first, f"a{number}")[0] for number in range(2)]
    links += [pair.attach_sender(second, f"b{number}")[0] for number in range(2)]
    links[0].detach()
    pair.pump()
    pair.attach_sender(first, "in its place")
    second.attach_sender("one too many", target="hub")
    pair.pump()
    (ended,) = pair.take(SessionEnded)
    assert ended.session is second
    assert ended.error is not None
    assert ended.error.condition == RESOURCE_LIMIT_EXCEEDED
    assert pair.server.held_bytes == LINK_BYTES * (1 + 2)  # the first session and its links


def test_what_is_held_is_counted_and_freed() -> None:
    """Protects the count that the service's memory is governed by: it follows what is held, down to 0."""
    pair = EnginePair(server=ConnectionConfiguration("server", incoming_window=100))
    session = pair.open()
    idle = pair.server.held_bytes
    link, _ = pair.attach_sender(session)
    assert pair.server.held_bytes == idle + LINK_BYTES
    pair.server.receive_data(_partial(link, 20_000), now=0.0)
    assert pair.server.held_bytes == idle + LINK_BYTES + 20_000
    pair.server.receive_data(b"\x00\x00\xff\xff\x02\x00\x00\x00" + bytes(1000), now=0.0)  # half a frame
    assert pair.server.held_bytes == idle + LINK_BYTES + 20_000 + 1008
    pair.server.receive_eof(now=0.0)
    pair.pump()
    assert pair.server.held_bytes <= 1008


def test_long_names_of_links_are_counted() -> None:
    """Protects memory: a name of a few KB takes four times that where one letter of it is unusual, and a
    client has thousands of links."""
    pair = EnginePair()
    session = pair.open()
    before = pair.server.held_bytes
    long = "x" * 12_000 + "\U0001f600"
    links = [
        session.attach_receiver(long, source="a", target="t"),
        session.attach_receiver("short", source="a", target=long),
    ]
    pair.pump()
    for attaching in pair.take(LinkAttaching):
        attaching.link.accept()
    pair.pump()
    assert pair.server.held_bytes > before + 2 * 48_000
    for link in links:
        link.detach()
    pair.pump()
    assert pair.server.held_bytes == before


def test_frames_that_wait_for_a_window_are_counted() -> None:
    """Protects memory: what a client's closed session window keeps back counts, until it opens or ends."""
    pair = EnginePair(
        client=ConnectionConfiguration(
            "client", sasl_mechanism="ANONYMOUS", incoming_window=2, max_frame_size=512
        )
    )
    pair.is_accepting = False
    session = pair.open()
    link = session.attach_receiver("in", source="hub")
    link.grant_credit(10)
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    attaching.link.accept()
    pair.pump()
    sender = pair.other_end(link)
    assert isinstance(sender, SenderLink)
    sender.send(bytes(5000), settled=True)
    assert 3000 < pair.server.blocked_bytes < 5000
    assert pair.server.held_bytes > pair.server.blocked_bytes
    pair.pump()  # the client opens its window as it reads
    assert pair.server.blocked_bytes == 0
    sender.send(bytes(5000), settled=True)
    assert pair.server.blocked_bytes > 0
    link.detach()
    pair.pump()
    assert pair.server.blocked_bytes == 0


def test_a_frame_that_waits_for_a_window_keeps_nothing_else() -> None:
    """Protects memory: the last frame of a delivery kept the whole message, and counted alone. Windows of one
    frame less than a message made 800 sessions hold 800 MB."""
    pair = EnginePair(
        client=ConnectionConfiguration("client", sasl_mechanism="ANONYMOUS", max_frame_size=512)
    )
    link, sender = pair.attach_receiver(pair.open())
    link.grant_credit(1)
    pair.pump()
    read = bytearray(100_000)
    sender.session.remote_incoming_window = 10
    sender.send(memoryview(read)[-5000:], settled=True)
    pair.server.data_to_send()
    assert sender.is_blocked
    assert 0 < pair.server.blocked_bytes < 512
    read.clear()  # raises BufferError while a slice of it is kept


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 3000)),
            st.tuples(st.just("grant"), st.integers(0, 1), st.integers(0, 6)),
            st.tuples(st.just("detach"), st.integers(0, 2), st.booleans()),
            st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        ),
        max_size=30,
    )
)
@settings(deadline=None)
def test_what_waits_for_windows_is_counted_exactly(steps: list[tuple[str, int, int]]) -> None:
    """Protects the count: it is what is kept for closed windows after whatever a client does, and nothing is
    lost or left behind. Two links share a session, and one has its own."""
    pair = EnginePair(
        client=ConnectionConfiguration("client", sasl_mechanism="ANONYMOUS", max_frame_size=512)
    )
    first = pair.open()
    second = pair.client.begin_session()
    ends = [
        pair.attach_receiver(session, name) for session, name in ((first, "a"), (first, "b"), (second, "c"))
    ]
    for link, _ in ends:
        link.grant_credit(1000)
    pair.pump()
    senders = [sender for _, sender in ends]
    sessions = pair.server.sessions
    for session in sessions:
        session.remote_incoming_window = 3
    account = pair.server.account
    for what, place, amount in steps:
        before, sent = account.blocked_bytes, len(b"".join(pair.server.output))
        if what == "send" and senders[place].is_open and sessions[place // 2].is_mapped:
            senders[place].send(bytes(amount), settled=True)
            added = account.blocked_bytes - before + len(b"".join(pair.server.output)) - sent
            assert amount < added < amount + 60 * (amount // 450 + 1)
        elif what == "grant" and sessions[place].is_mapped:
            window = (sessions[place].next_outgoing_id, amount)
            sessions[place].receive_performative(
                Flow(
                    next_incoming_id=window[0],
                    incoming_window=window[1],
                    next_outgoing_id=0,
                    outgoing_window=9,
                )
            )
            assert before - account.blocked_bytes == len(b"".join(pair.server.output)) - sent
        elif what == "detach":
            senders[place].detach()
            assert not senders[place].is_blocked
        elif what == "end":
            sessions[place].end()
        kept = [frame for session in sessions for _, frame in session._blocked]
        assert account.blocked_bytes == sum(map(len, kept))
    for session in sessions:
        session.end()
    assert account.blocked_bytes == 0


def test_an_answered_attach_is_forgotten() -> None:
    """Protects memory: of thousands of links, properties and filters are not kept once they were read."""
    pair = EnginePair()
    pair.is_accepting = False
    session = pair.open()
    session.attach_sender("out", target="hub", properties={"x": "y"})
    pair.pump()
    (attaching,) = pair.take(LinkAttaching, of_server=True)
    assert attaching.link.remote_attach.properties
    attaching.link.accept()
    assert not attaching.link.remote_attach.properties
    assert attaching.link.remote_attach.target is not None


def test_what_a_client_pipelines_behind_an_undecided_response_is_bounded() -> None:
    """Protects memory before a token: 16 KB behind SASL PLAIN, while nobody has judged its key."""
    client = Connection(
        ConnectionConfiguration("client", sasl_mechanism="PLAIN", sasl_initial_response=b"\0policy\0key"),
        role=Role.CLIENT,
        now=0.0,
    )
    server = Connection(ConnectionConfiguration("server"), role=Role.SERVER, now=0.0)
    client.open()
    server.receive_data(b"".join(client.data_to_send()), now=0.0)
    client.receive_data(b"".join(server.data_to_send()), now=0.0)
    server.receive_data(b"".join(client.data_to_send()) + bytes(20_000), now=0.0)
    events = []
    while (event := server.next_event()) is not None:
        events.append(event)
    assert isinstance(events[-1], ConnectionFailed)


@pytest.mark.parametrize(("tag_bytes", "is_ended"), [(32, False), (33, True)])
def test_the_tag_of_an_unfinished_message_is_short(tag_bytes: int, is_ended: bool) -> None:
    """Protects memory: a tag is kept until its message ends, and 5,000 links can each begin one."""
    pair = EnginePair()
    session = pair.open()
    link, _ = pair.attach_sender(session)
    transfer = Transfer(link.handle, 0, bytes(tag_bytes), 0, more=True)
    pair.server.receive_data(encode_frame(0, encode_performative(transfer)), now=0.0)
    pair.pump()
    ended = pair.take(SessionEnded)
    assert [each.error and each.error.condition for each in ended] == [INVALID_FIELD] * is_ended


def test_only_short_parts_of_an_open_are_kept() -> None:
    """Protects memory: of what a client says of itself, 4 KB can take 0.3 MB as long as it is connected."""
    properties: dict[str, object] = {"x": [[]] * 10}
    pair = EnginePair(client=ConnectionConfiguration("c" * 300, properties=properties))
    pair.open()
    kept = pair.server.remote_open
    assert kept is not None
    assert (kept.container_id, kept.properties) == ("c" * 80, {})


@pytest.mark.slow
def test_what_was_given_back_takes_little() -> None:
    """Protects memory: a connection kept 1.1 MB, counted nowhere, of 5,000 sessions that had begun and
    ended, and a session likewise of its ended links."""
    # In a process of its own: what other threads of this one allocate is counted as well.
    program = f"from {__name__} import _kept_of_ended; print(min(_kept_of_ended() for _ in range(2)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert int(run.stdout) < 8192


def _kept_of_ended() -> int:
    """Bytes that a connection keeps of 149 sessions and links that have ended."""
    server = Connection(ConnectionConfiguration("server", handle_max=999), role=Role.SERVER, now=0.0)
    server.receive_data(AMQP_HEADER.encode(), now=0.0)

    def send(channel: int, performative: Performative) -> None:
        server.receive_data(encode_frame(channel, encode_performative(performative)), now=0.0)
        server.data_to_send()
        while (event := server.next_event()) is not None:
            if isinstance(event, LinkAttaching):
                event.link.refuse(Error(Symbol("amqp:not-found")))

    def use(numbers: range) -> None:
        for number in numbers:
            send(number, begin)
            send(0, Attach(f"{number}", number, ROLE_RECEIVER))
        for number in numbers:
            send(0, Detach(number, closed=True))
            send(number, End())

    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    send(0, Open("client"))
    send(0, begin)
    use(range(1, 20))
    tracemalloc.start()
    try:
        use(range(1, 150))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

"""Random conversations between two engines, cut anywhere: nothing lost, doubled or reordered."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.amqp.pair import EnginePair

from tidegate.amqp.configuration import ConnectionConfiguration
from tidegate.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    DeliveriesReceived,
    DeliveriesSettled,
    Event,
    LinkAttaching,
    LinkDetached,
    SessionEnded,
)
from tidegate.amqp.link import Link, ReceiverLink, SenderLink

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.sampled_from([0, 1, 30, 430, 480, 1200, 6000])


class Conversation(RuleBasedStateMachine):
    """A client and a server whose applications do what they may, between deliveries of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 1000
        self.pair = EnginePair(
            client=ConnectionConfiguration(
                "client", max_frame_size=512, incoming_window=6, sasl_mechanism="ANONYMOUS"
            ),
            server=ConnectionConfiguration("server", max_frame_size=600, incoming_window=8),
            cut=lambda: self.pieces,
        )
        self.session = self.pair.open()
        self.number = 0
        self.sent: dict[int, list[bytes]] = {}  # per incarnation of a link, by the sender's id()
        self.received: dict[int, list[bytes]] = {}
        self.links: list[Link] = []  # keeps them alive, so that id() stays theirs
        self.unsettled: Counter[int] = Counter()
        self.detached: Counter[int] = Counter()

    def _is_open(self, kind: type[Link]) -> list[Link]:
        connections = (self.pair.client, self.pair.server)
        return [
            link
            for connection in connections
            for session in connection.sessions
            for link in session.links
            if isinstance(link, kind) and link.is_open
        ]

    @rule(name=NAMES, is_sender=st.booleans(), credit=st.integers(0, 5))
    def attach(self, name: str, is_sender: bool, credit: int) -> None:
        """The client attaches, unless a link of that name and direction is there."""
        taken = {(link.name, isinstance(link, SenderLink)) for link in self.session.links}
        if (name, is_sender) in taken:
            return
        if is_sender:
            self.session.attach_sender(name, target="hub")
        else:
            link = self.session.attach_receiver(name, source="hub")
            if credit:
                link.grant_credit(credit)

    @rule(index=st.integers(0, 9), count=st.integers(1, 20))
    def grant(self, index: int, count: int) -> None:
        """A receiver gives credit."""
        receivers = self._is_open(ReceiverLink)
        if receivers:
            link = receivers[index % len(receivers)]
            assert isinstance(link, ReceiverLink)
            link.grant_credit(count)

    @rule(index=st.integers(0, 9), sizes=st.lists(SIZES, min_size=1, max_size=4), is_batch=st.booleans())
    def send(self, index: int, sizes: list[int], is_batch: bool) -> None:
        """A sender sends what its credit allows."""
        senders = self._is_open(SenderLink)
        if not senders:
            return
        link = senders[index % len(senders)]
        assert isinstance(link, SenderLink)
        payloads = [b"%d:" % (self.number + step) + bytes(size) for step, size in enumerate(sizes)]
        self.number += len(sizes)
        if is_batch:
            count = link.send_batch(payloads)
        else:
            count = min(len(payloads), link.credit)
            for payload in payloads[:count]:
                link.send(payload)
                self.unsettled[id(link)] += 1
        self.sent.setdefault(id(link), []).extend(payloads[:count])
        self.links.append(link)

    @rule(index=st.integers(0, 9))
    def detach(self, index: int) -> None:
        """Either side detaches some link."""
        links = self._is_open(Link)
        if links:
            links[index % len(links)].detach()

    @rule(pieces=st.sampled_from([1, 13, 100, 1000, 100_000]))
    def pump(self, pieces: int) -> None:
        """The bytes arrive."""
        self.pieces = pieces
        self.pair.pump()
        for events in (self.pair.client_events, self.pair.server_events):
            for event in events:
                self._take(event)
            events.clear()

    def _take(self, event: Event) -> None:
        assert not isinstance(event, (ConnectionFailed, ConnectionClosed, SessionEnded)), event
        if isinstance(event, LinkAttaching) or hasattr(event, "link"):
            self.links.append(event.link)
        if isinstance(event, DeliveriesReceived):
            payloads = [delivery.payload for delivery in event.deliveries]
            self.received.setdefault(id(event.link), []).extend(payloads)
            for delivery in event.deliveries:
                if not delivery.is_settled:
                    event.link.settle(delivery.delivery_id)
        elif isinstance(event, DeliveriesSettled):
            count = event.last_delivery_id - event.first_delivery_id + 1
            self.unsettled[id(event.link)] -= count
            assert self.unsettled[id(event.link)] >= 0
        elif isinstance(event, LinkDetached):
            self.detached[id(event.link)] += 1
            assert self.detached[id(event.link)] == 1

    @invariant()
    def what_arrived_was_sent_in_this_order(self) -> None:
        """Each receiver has a prefix of what one sender sent."""
        for payloads in self.received.values():
            assert any(sent[: len(payloads)] == payloads for sent in self.sent.values())

    def teardown(self) -> None:
        """When all is delivered, what an open pair of links sent has arrived whole."""
        self.pump(700)
        self.pump(700)  # the dispositions of what has just arrived
        for sender in self._is_open(SenderLink):
            sent = self.sent.get(id(sender), [])
            assert not sent or sent in self.received.values()
            assert self.unsettled[id(sender)] == 0
        self.pair.client.close()
        self.pair.pump()
        assert isinstance(self.pair.server_events[-1], ConnectionClosed)


Conversation.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestConversation = pytest.mark.slow(Conversation.TestCase)

"""A second link of the same name takes the first one's place (AMQP 1.0 part 2 section 2.6.1)."""

from __future__ import annotations

from tests.amqp.pair import EnginePair
from tests.amqp.raw_peer import RawPeer

from tidegate.amqp.errors import STOLEN
from tidegate.amqp.events import (
    DeliveriesReceived,
    LinkAttaching,
    LinkDetached,
    LinkStolen,
    SessionEnded,
)
from tidegate.amqp.link import ReceiverLink
from tidegate.amqp.performatives import ROLE_RECEIVER, Attach, Detach, End, Error, Flow, Source, Target
from tidegate.amqp.session import Session


def _forget_names(session: Session) -> None:
    """Make it a client's that does not keep its links' names apart."""
    session._links_by_name.clear()


def test_the_older_link_ends_and_the_newer_is_attached() -> None:
    """Protects clients that attach again after trouble: the older link is detached, the session lives on."""
    pair = EnginePair()
    session = pair.open()
    older = pair.attach_receiver(session, "same")[0]
    _forget_names(session)
    newer = session.attach_receiver("same", source="hub")
    pair.pump()
    (detached,) = pair.take(LinkDetached)
    assert detached.link is older
    assert detached.error is not None
    assert detached.error.condition == STOLEN
    assert newer.is_open
    (stolen,) = pair.take(LinkStolen, of_server=True)
    first, second = pair.take(LinkAttaching, of_server=True)
    assert stolen.link is first.link
    assert [event.link for event in pair.take(LinkDetached, of_server=True)] == [first.link]
    assert pair.server.sessions[0].links == (second.link,)
    assert pair.take(SessionEnded) == []
    # The name is the newer link's: it can be stolen from that one, too.
    _forget_names(session)
    session.attach_receiver("same", source="hub")
    pair.pump()
    assert [event.link for event in pair.take(LinkStolen, of_server=True)] == [second.link]


def test_the_owner_is_told_before_the_new_link_comes() -> None:
    """Protects what hangs on the older link: its owner can free it before it judges the newer one."""
    pair = EnginePair()
    session = pair.open()
    pair.attach_sender(session, "same")
    pair.server_events.clear()
    _forget_names(session)
    session.attach_sender("same", target="hub")
    pair.pump()
    assert [type(event) for event in pair.server_events] == [LinkStolen, LinkAttaching, LinkDetached]


def test_nothing_more_comes_on_the_older_link() -> None:
    """Protects the newer link's owner: what the peer still sends on the older one is dropped."""
    pair = EnginePair()
    session = pair.open()
    older, other = pair.attach_sender(session, "same")
    assert isinstance(other, ReceiverLink)
    other.grant_credit(10)
    pair.pump()
    _forget_names(session)
    newer = session.attach_sender("same", target="hub")
    older.send(b"late", settled=True)
    pair.pump()
    assert newer.is_open
    assert pair.take(DeliveriesReceived, of_server=True) == []


def test_a_link_that_was_not_answered_yet_can_be_stolen() -> None:
    """Protects attaches that take time: the older one is refused, the newer one answered."""
    peer = RawPeer()
    peer.send(Attach("same", 0, ROLE_RECEIVER, source=Source("hub"), target=Target()))
    older = peer.link()
    peer.send(Attach("same", 1, ROLE_RECEIVER, source=Source("hub"), target=Target()))
    peer.link().accept()
    older.accept()  # its owner has not seen yet that it ended
    older.refuse(Error(condition=STOLEN))
    refused, detach, accepted = peer.received()[-3:]
    assert isinstance(refused, Attach)
    assert (refused.handle, refused.source) == (0, None)
    assert isinstance(detach, Detach)
    assert detach.handle == 0
    assert detach.error is not None
    assert detach.error.condition == STOLEN
    assert isinstance(accepted, Attach)
    assert (accepted.handle, accepted.source) == (1, Source("hub"))


def test_a_name_is_free_while_its_link_is_being_detached() -> None:
    """Protects clients that attach again before they answer a detach: that is no protocol error."""
    pair = EnginePair()
    session = pair.open()
    older, other = pair.attach_receiver(session, "same")
    other.detach()
    _forget_names(session)
    newer = session.attach_receiver("same", source="hub")
    pair.pump()
    assert newer.is_open
    assert [event.link for event in pair.take(LinkDetached)] == [older]
    assert pair.take(LinkStolen, of_server=True) == []


def test_the_two_directions_and_two_sessions_have_names_of_their_own() -> None:
    """Protects clients that call their links alike: a sender, a receiver, and those of another session."""
    pair = EnginePair()
    session = pair.open()
    links = [
        session.attach_receiver("same", source="hub"),
        session.attach_sender("same", target="hub"),
        pair.client.begin_session().attach_receiver("same", source="hub"),
    ]
    pair.pump()
    assert all(link.is_open for link in links)


def test_credit_behind_a_detach_does_not_end_the_session() -> None:
    """Protects azure-eventhub 5.15.1's consumers: they answer a detach and grant credit on its handle, once.

    A handle that was never attached is still a violation.
    """
    peer = RawPeer()
    peer.send(
        Attach("in", 0, ROLE_RECEIVER, source=Source("hub"), target=Target("client"), max_message_size=1000)
    )
    link = peer.link()
    link.accept()
    link.detach()
    peer.send(Detach(0, closed=True))
    peer.received()
    peer.grant(300)
    assert peer.received() == []
    peer.send(Flow(incoming_window=1000, next_outgoing_id=0, outgoing_window=1, handle=7, link_credit=1))
    assert [type(performative) for performative in peer.received()] == [End]

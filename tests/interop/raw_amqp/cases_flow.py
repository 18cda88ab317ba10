"""Credit, windows and settlement of what the service sends."""

from __future__ import annotations

from functools import partial

from tests.interop.raw_amqp.codec import (
    ACCEPTED,
    BEGIN,
    DISPOSITION,
    END,
    FALSE,
    FLOW,
    MIXED,
    NULL,
    RECEIVER,
    REJECTED,
    RELEASED,
    SETTLED,
    TRANSFER,
    TRUE,
    UNSETTLED,
    described,
    uint,
)
from tests.interop.raw_amqp.peer import WINDOW, Given, Peer, equal
from tests.interop.raw_amqp.run import Cases

EVENTS = 5
"""In the hub."""


def receiving(
    given: Given, *, incoming_window: int = WINDOW, snd_settle: bytes = SETTLED
) -> tuple[Peer, int]:
    """A receiver of all events, without credit."""
    peer = Peer.begun(given, incoming_window=incoming_window)
    handle = peer.attach_receiver(given.partition, snd_settle=snd_settle)
    peer.attached()
    return peer, handle


def credit_brings(credit: int, count: int, given: Given) -> None:
    """As many deliveries as the credit allows; it is a whole number of 32 bits without a sign."""
    peer, handle = receiving(given)
    peer.grant(handle, credit)
    equal(len(peer.transfers(EVENTS + 1)), count)


def credit_bit_by_bit(given: Given) -> None:
    """Credit counts from the delivery-count that the client has seen."""
    peer, handle = receiving(given)
    for seen in range(EVENTS):
        peer.grant(handle, 1, count=seen)
        found = peer.transfers(2)
        equal([f"event {seen}".encode() in one.payload for one in found], [True])


def credit_is_not_added(given: Given) -> None:
    """The same flow twice allows the same deliveries once (part 2 section 2.6.7)."""
    peer, handle = receiving(given)
    peer.grant(handle, 2)
    peer.grant(handle, 2)
    equal(len(peer.transfers(EVENTS)), 2)


def credit_is_taken_back(given: Given) -> None:
    """Credit 0 stops what has not been sent."""
    peer, handle = receiving(given)
    peer.grant(handle, 0)
    equal(len(peer.transfers(1)), 0)


def drain(credit: int, given: Given) -> None:
    """What is there comes, and the rest of the credit is given back: it moves to the delivery-count."""
    peer, handle = receiving(given)
    peer.grant(handle, credit, drain=TRUE)
    equal(len(peer.transfers(min(credit, EVENTS))), min(credit, EVENTS))
    if credit > EVENTS:
        answer = peer.read(FLOW)
        equal((answer.field(5), answer.field(6)), (credit, 0))


def echo_of_link(given: Given) -> None:
    """A flow with echo is answered with the link's state."""
    peer, handle = receiving(given)
    peer.grant(handle, 0, echo=TRUE)
    answer = peer.read(FLOW)
    equal((answer.field(4) is not None, answer.field(6)), (True, 0))


def echo_of_session(given: Given) -> None:
    """Without a link, with the session's."""
    peer = Peer.begun(given)
    peer.flow(NULL, NULL, NULL, NULL, FALSE, TRUE)
    answer = peer.read(FLOW)
    equal((answer.field(1), answer.field(4)), (WINDOW, None))


def window_brings(window: int, count: int, given: Given) -> None:
    """As many transfers as the session's window allows, which has 32 bits without a sign, too."""
    peer, handle = receiving(given, incoming_window=window)
    link = (uint(handle), uint(0), uint(100))
    peer.flow(*link, incoming_window=window)
    equal(len(peer.transfers(EVENTS + 1)), count)


def window_opens_again(given: Given) -> None:
    """What the window held back comes when it opens, in order."""
    peer, handle = receiving(given, incoming_window=0)
    peer.flow(uint(handle), uint(0), uint(100), incoming_window=0)
    equal(peer.transfers(1), [])
    for seen in range(EVENTS):
        peer.flow(next_id=uint(1 + seen), incoming_window=1)
        found = peer.transfers(2)
        equal([f"event {seen}".encode() in one.payload for one in found], [True])


def window_counts_what_is_under_way(given: Given) -> None:
    """A flow sent before the last transfers came does not allow them twice (part 2 section 2.5.6)."""
    peer, handle = receiving(given, incoming_window=3)
    peer.flow(uint(handle), uint(0), uint(100), incoming_window=3)
    equal(len(peer.transfers(EVENTS)), 3)
    peer.flow(next_id=uint(1), incoming_window=4)
    equal(len(peer.transfers(EVENTS)), 1)


def window_behind(given: Given) -> None:
    """A window that ends before what was sent is closed, and not two thousand million wide."""
    peer, handle = receiving(given, incoming_window=3)
    peer.flow(uint(handle), uint(0), uint(100), incoming_window=3)
    equal(len(peer.transfers(EVENTS)), 3)
    peer.flow(next_id=uint(1), incoming_window=1)
    equal(len(peer.transfers(EVENTS)), 0)


def first_flow_without_next_id(given: Given) -> None:
    """Null where the client has not seen our begin yet: pipelined."""
    peer = Peer.opened(given)
    peer.begin()
    handle = peer.attach_receiver(given.partition)
    peer.flow(uint(handle), uint(0), uint(100), next_id=NULL)
    peer.read(BEGIN)
    peer.attached()
    equal(len(peer.transfers(EVENTS + 1)), EVENTS)


def flow_of_unknown_handle(given: Given) -> None:
    """Ends the session."""
    peer = Peer.begun(given)
    peer.grant(40, 1)
    equal(peer.read(END).condition, "amqp:session:unattached-handle")


def deliveries_are_settled(mode: bytes, is_settled: bool, given: Given) -> None:
    """Settled unless the client asks for ``unsettled``: the official Python client never settles any."""
    peer, handle = receiving(given, snd_settle=mode)
    peer.grant(handle, EVENTS)
    equal([one.field(4) for one in peer.transfers(EVENTS)], [is_settled] * EVENTS)


def client_settles(outcome: bytes, given: Given) -> None:
    """Each disposition settles, whatever it says: an event is not delivered again on the link."""
    peer, handle = receiving(given, snd_settle=UNSETTLED)
    peer.grant(handle, 2)
    first, last = (one.field(1) for one in peer.transfers(2))
    peer.perform(DISPOSITION, RECEIVER, uint(first), uint(last), TRUE, outcome)
    peer.grant(handle, 1, count=2)
    equal([b"event 2" in one.payload for one in peer.transfers(2)], [True])


def client_decides_first(given: Given) -> None:
    """An unsettled disposition is answered with a settled one (part 2 section 2.6.12)."""
    peer, handle = receiving(given, snd_settle=UNSETTLED)
    peer.grant(handle, 2)
    first, last = (one.field(1) for one in peer.transfers(2))
    peer.perform(DISPOSITION, RECEIVER, uint(first), uint(last), FALSE, described(ACCEPTED))
    answer = peer.read(DISPOSITION)
    equal(answer.fields[:4], (False, first, last, True))


def disposition_of_nothing(given: Given) -> None:
    """Deliveries that are settled or never were do no harm."""
    peer, handle = receiving(given)
    peer.grant(handle, 1)
    peer.read(TRANSFER)
    for first, last in ((0, 0), (7, 2**32 - 1), (2**32 - 1, 0)):
        peer.perform(DISPOSITION, RECEIVER, uint(first), uint(last), TRUE, described(ACCEPTED))
    peer.check_alive()


def transfer_has_all_fields(given: Given) -> None:
    """Eleven: the official Python client reads the payload behind the eleventh."""
    peer, handle = receiving(given)
    peer.grant(handle, 1)
    equal(len(peer.read(TRANSFER).fields), 11)


CASES: Cases = {
    **{
        f"credit {credit}": partial(credit_brings, credit, min(credit, EVENTS))
        for credit in (0, 1, 3, 100, 2**31 - 1, 2**31, 2**32 - 1)
    },
    "credit one by one": credit_bit_by_bit,
    "credit said twice": credit_is_not_added,
    "credit taken back": credit_is_taken_back,
    "drain with less credit than events": partial(drain, 3),
    "drain with more credit than events": partial(drain, 9),
    "drain with all the credit there is": partial(drain, 2**31),
    "echo of a link": echo_of_link,
    "echo of a session": echo_of_session,
    **{
        f"window {window}": partial(window_brings, window, min(window, EVENTS))
        for window in (0, 1, 4, 2**31 - 1, 2**31, 2**32 - 1)
    },
    "window opens again": window_opens_again,
    "window counts what is under way": window_counts_what_is_under_way,
    "window behind what was sent": window_behind,
    "flow before our begin has come": first_flow_without_next_id,
    "flow of an unknown handle": flow_of_unknown_handle,
    "settled for a client that does not mind": partial(deliveries_are_settled, MIXED, True),
    "settled for a client that asks": partial(deliveries_are_settled, SETTLED, True),
    "unsettled for a client that asks": partial(deliveries_are_settled, UNSETTLED, False),
    "disposition accepted": partial(client_settles, described(ACCEPTED)),
    "disposition rejected": partial(client_settles, described(REJECTED)),
    "disposition released": partial(client_settles, described(RELEASED)),
    "disposition without an outcome": partial(client_settles, NULL),
    "disposition before settlement": client_decides_first,
    "disposition of nothing": disposition_of_nothing,
    "transfer with all its fields": transfer_has_all_fields,
}

"""Attach and detach, addresses, positions."""

from __future__ import annotations

from functools import partial

from tests.interop.raw_amqp.codec import (
    ATTACH,
    COORDINATOR,
    DETACH,
    END,
    ERROR,
    FALSE,
    NULL,
    RECEIVER,
    SENDER,
    SOURCE,
    TRUE,
    described,
    described_value,
    map_of,
    symbol,
    text,
    uint,
    ulong,
)
from tests.interop.raw_amqp.peer import Given, Peer, equal, source, target
from tests.interop.raw_amqp.run import Cases

SELECTOR = "apache.org:selector-filter:string"
_ARGUMENT = "com.microsoft:argument-error"


def sender_attaches(address: str, given: Given) -> None:
    """{sink}: a hub. The limit of a message is announced: without it the official JavaScript client fails."""
    peer = Peer.begun(given)
    peer.attach_sender(address.format(sink=given.sink))
    answer = peer.attached()
    equal((len(answer.fields), answer.field(2), answer.field(10)), (14, True, 1048576))


def receiver_attaches(address: str, given: Given) -> None:
    """{full}: a hub with events. Source, target and initial-delivery-count are there."""
    peer = Peer.begun(given)
    peer.grant(peer.attach_receiver(address.format(full=given.full)), 1)
    answer = peer.attached()
    equal((answer.field(2), answer.field(9)), (False, 0))
    equal(len(peer.transfers(1)), 1)


def node_attaches(address: str, given: Given) -> None:
    """The service's own nodes."""
    peer = Peer.begun(given)
    peer.attach_sender(address)
    peer.attached()
    peer.attach_receiver(address)
    peer.attached()


def sender_is_refused(address: str, condition: str, given: Given) -> None:
    """Attached without a target, and detached with the reason (part 2 section 2.6.3)."""
    peer = Peer.begun(given)
    peer.attach_sender(address.format(sink=given.sink))
    assert peer.read(ATTACH).field(6) is None
    equal(peer.read(DETACH).condition, condition)
    peer.check_alive()


def receiver_is_refused(address: str, condition: str, given: Given) -> None:
    """Attached without a source, and detached with the reason."""
    peer = Peer.begun(given)
    peer.attach_receiver(address.format(full=given.full))
    assert peer.read(ATTACH).field(5) is None
    equal(peer.read(DETACH).condition, condition)
    peer.check_alive()


def attach_is_refused(role: bytes, from_: bytes, to: bytes, condition: str, given: Given) -> None:
    """As the two before, with any terminus."""
    peer = Peer.begun(given)
    peer.attach(role, from_, to)
    equal(peer.refused().condition, condition)
    peer.check_alive()


def dynamic_node_has_an_address(given: Given) -> None:
    """The service names it: answers of its nodes may go there (Qpid Proton's request and response)."""
    peer = Peer.begun(given)
    peer.attach(RECEIVER, described(SOURCE, NULL, NULL, NULL, NULL, TRUE), target("raw"))
    assert peer.attached().field(5)[1][0]


def no_token_no_link(address: str, given: Given) -> None:
    """Without a token nothing but the service's own nodes."""
    peer = Peer.anonymous(given)
    peer.open()
    peer.begin()
    peer.attach_sender(address.format(sink=given.sink))
    equal(peer.refused().condition, "amqp:unauthorized-access")


def partition_is_named(given: Given) -> None:
    """The SDKs tell their users the service's words for a partition that does not exist."""
    peer = Peer.begun(given)
    peer.attach_receiver(f"{given.full}/ConsumerGroups/$Default/Partitions/9")
    words = "The specified partition is invalid for an EventHub partition sender or receiver."
    assert words in peer.refused().description


def detach_is_answered(closed: bytes, given: Given) -> None:
    """In kind."""
    peer = Peer.begun(given)
    handle = peer.attach_receiver(given.partition)
    answer = peer.attached()
    peer.perform(DETACH, uint(handle), closed)
    detached = peer.read(DETACH)
    equal((detached.field(0), detached.field(1)), (answer.field(1), closed == TRUE))
    assert detached.condition is None


def detach_with_an_error(given: Given) -> None:
    """The client's error is nothing to the service."""
    peer = Peer.begun(given)
    error = described(ERROR, symbol("raw:failed"), text("It failed."))
    peer.perform(DETACH, uint(peer.attach_receiver(given.partition)), TRUE, error)
    assert peer.read(DETACH).condition is None
    peer.check_alive()


def session_ends_with(performative: int, fields: tuple[bytes, ...], condition: str, given: Given) -> None:
    """The session is over, the connection is not."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, handle=0)
    peer.attached()
    peer.perform(performative, *fields)
    equal(peer.read(END).condition, condition)
    peer.perform(END)
    peer.check_alive()


def handle_is_used_again(given: Given) -> None:
    """After its detach, also with the same name."""
    peer = Peer.begun(given)
    for _ in range(3):
        peer.attach_receiver(given.partition, handle=7, name="again")
        peer.attached()
        peer.perform(DETACH, uint(7), TRUE)
        peer.read(DETACH)


def handle_in_use(given: Given) -> None:
    """A handle has one link at a time."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, handle=7)
    peer.attached()
    peer.attach_receiver(given.partition, handle=7, name="other")
    equal(peer.read(END).condition, "amqp:session:handle-in-use")


def name_is_stolen(given: Given) -> None:
    """A second link of the same name and direction takes the first one's place (part 2 section 2.6.1)."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, name="one", handle=1)
    ours = peer.attached().field(1)
    peer.grant(peer.attach_receiver(given.partition, name="one", handle=2), 1)
    detached = peer.read(DETACH)
    equal((detached.field(0), detached.condition), (ours, "amqp:link:stolen"))
    peer.perform(DETACH, uint(1), TRUE)
    equal(len(peer.transfers(1)), 1)


def name_in_both_directions(given: Given) -> None:
    """A sender and a receiver may share a name."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, name="both")
    peer.attached()
    peer.attach_sender(given.sink, name="both")
    peer.attached()
    peer.check_alive()


def small_frames_fit(given: Given) -> None:
    """No frame exceeds the client's max-frame-size, whatever properties the client would have repeated."""
    peer = Peer.begun(given, max_frame=uint(512))
    properties = map_of({symbol("note"): text("n" * 300)})
    peer.attach_receiver(given.partition, properties=properties)
    head = peer.read_bytes(4)
    assert int.from_bytes(head, "big") <= 512
    peer.buffer[:0] = head
    peer.attached()


def properties_come_back(given: Given) -> None:
    """As Event Hubs repeats them, with a tracking id."""
    peer = Peer.begun(given)
    peer.attach_receiver(given.partition, properties=map_of({symbol("com.microsoft:epoch"): ulong(3)}))
    assert "com.microsoft:tracking-id" in peer.attached().field(13)


def sender_without_count(given: Given) -> None:
    """A sender must say where its deliveries begin (part 2 section 2.7.3)."""
    peer = Peer.begun(given)
    peer.attach_sender(given.sink, count=NULL)
    equal(peer.read(END).condition, "amqp:invalid-field")


def selector_starts_at(selector: str, first: int, given: Given) -> None:
    """The first sequence number that comes; 5: none."""
    for key, descriptor in ((SELECTOR, symbol(SELECTOR)), ("selector", ulong(0x468C00000004))):
        peer = Peer.begun(given)
        filters = map_of({symbol(key): described_value(descriptor, text(selector))})
        peer.grant(peer.attach_receiver(given.partition, filters), 1)
        echoed = peer.attached().field(5)[1][7]
        assert echoed is not None
        found = [f"event {number}".encode() for number in range(5)]
        arrived = [found.index(body) for one in peer.transfers(1) for body in found if body in one.payload]
        equal(arrived, ([first] if first < 5 else []))


def selector_is_refused(selector: str, condition: str, given: Given) -> None:
    """As an argument that is wrong, and no retry helps."""
    peer = Peer.begun(given)
    filters = map_of({symbol(SELECTOR): described_value(symbol(SELECTOR), text(selector))})
    peer.attach_receiver(given.partition, filters)
    equal(peer.refused().condition, condition)


def unknown_filter_is_not_repeated(given: Given) -> None:
    """What the service repeats is in force (part 3 section 3.5.1): events come unfiltered."""
    peer = Peer.begun(given)
    filters = map_of({symbol("raw:odd"): described_value(symbol("raw:odd"), text("x = 1"))})
    peer.grant(peer.attach_receiver(given.partition, filters), 5)
    assert not peer.attached().field(5)[1][7]
    equal(len(peer.transfers(5)), 5)


_NOT_FOUND, _RANGE = "amqp:not-found", "com.microsoft:argument-out-of-range"
_GROUP = "{full}/ConsumerGroups"
_OFFSET, _SEQUENCE, _TIME = (
    f"amqp.annotation.x-opt-{name}" for name in ("offset", "sequence-number", "enqueued-time")
)

CASES: Cases = {
    **{
        f"attach sender to {name}": partial(sender_attaches, address)
        for name, address in {
            "a hub": "{sink}",
            "a partition": "{sink}/Partitions/1",
            "a publisher": "{sink}/Publishers/me",
            "a URL": "amqps://localhost:5671/{sink}",
            "a path": "/{sink}/partitions/0",
        }.items()
    },
    **{
        f"attach receiver to {name}": partial(receiver_attaches, address)
        for name, address in {
            "a partition": f"{_GROUP}/$Default/Partitions/0",
            "a group in lower case": f"{_GROUP}/$default/Partitions/0",
            "a URL": f"sb://localhost/{_GROUP}/$Default/Partitions/0",
        }.items()
    },
    "attach to $cbs": partial(node_attaches, "$cbs"),
    "attach to $management": partial(node_attaches, "$management"),
    "attach sender to an unknown hub": partial(sender_is_refused, "nothing", _NOT_FOUND),
    "attach sender to an unknown partition": partial(sender_is_refused, "{sink}/Partitions/2", _RANGE),
    "attach sender to a garbled partition": partial(sender_is_refused, "{sink}/Partitions/x", _RANGE),
    "attach sender to nowhere": partial(
        attach_is_refused, SENDER, described(SOURCE), target(None), _ARGUMENT
    ),
    "attach sender to a coordinator": partial(
        attach_is_refused, SENDER, described(SOURCE), described(COORDINATOR), _ARGUMENT
    ),
    "attach sender to a group": partial(
        sender_is_refused, "{sink}/ConsumerGroups/$Default/Partitions/0", _ARGUMENT
    ),
    "attach receiver to an unknown hub": partial(
        receiver_is_refused, "nothing/ConsumerGroups/$Default/Partitions/0", _NOT_FOUND
    ),
    "attach receiver to an unknown group": partial(
        receiver_is_refused, f"{_GROUP}/no/Partitions/0", _NOT_FOUND
    ),
    "attach receiver to an unknown partition": partial(
        receiver_is_refused, f"{_GROUP}/$Default/Partitions/1", _RANGE
    ),
    "attach receiver to a hub": partial(receiver_is_refused, "{full}", _ARGUMENT),
    "attach receiver to nowhere": partial(
        attach_is_refused, RECEIVER, source(None), target("raw"), _ARGUMENT
    ),
    "attach receiver to a dynamic node": dynamic_node_has_an_address,
    "attach names what is wrong with a partition": partition_is_named,
    "attach without a token": partial(no_token_no_link, "{sink}"),
    "attach without a token to nothing": partial(no_token_no_link, "nothing"),
    "attach with a used handle": handle_in_use,
    "attach with a used name": name_is_stolen,
    "attach with one name in both directions": name_in_both_directions,
    "attach within frames of 512 bytes": small_frames_fit,
    "attach with properties": properties_come_back,
    "attach without an initial-delivery-count": sender_without_count,
    "detach and close": partial(detach_is_answered, TRUE),
    "detach and keep": partial(detach_is_answered, FALSE),
    "detach with an error": detach_with_an_error,
    "detach and attach again": handle_is_used_again,
    "detach of an unknown handle": partial(
        session_ends_with, DETACH, (uint(40), TRUE), "amqp:session:unattached-handle"
    ),
    **{
        f"selector {selector}": partial(selector_starts_at, selector, first)
        for selector, first in {
            f"{_OFFSET} > '-1'": 0,
            f"{_OFFSET} > '@latest'": 5,
            f"{_OFFSET} > '1'": 2,
            f"{_OFFSET} >= '1'": 1,
            f"{_OFFSET}>='1'": 1,
            f'{_OFFSET} > "1"': 2,
            f"{_OFFSET} > 1": 2,
            f"{_OFFSET.upper()} > '1'": 2,
            f"{_SEQUENCE} > '2'": 3,
            f"{_SEQUENCE} >= 2": 2,
            f"{_SEQUENCE} = '2'": 2,
            f"{_SEQUENCE} > '-1'": 0,
            f"{_SEQUENCE} > '1' AND {_OFFSET} > '2'": 3,
            f"{_TIME} > '0'": 0,
            f"{_TIME} >= '4102444800000'": 5,
        }.items()
    },
    "selector beyond the end": partial(selector_is_refused, f"{_SEQUENCE} > '400'", _RANGE),
    "selector of another annotation": partial(
        selector_is_refused, "amqp.annotation.x-opt-size > '1'", _ARGUMENT
    ),
    "selector garbled": partial(selector_is_refused, "drop table", _ARGUMENT),
    "selector empty": partial(selector_is_refused, "", _ARGUMENT),
    "filter unknown": unknown_filter_is_not_repeated,
}

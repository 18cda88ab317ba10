"""What the service takes in."""

from __future__ import annotations

from functools import partial

from tests.interop.raw_amqp.codec import (
    ACCEPTED,
    ATTACH,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    REJECTED,
    SETTLED,
    TRUE,
    data_section,
    described_value,
    map_of,
    symbol,
    text,
    uint,
)
from tests.interop.raw_amqp.peer import Given, Peer, equal
from tests.interop.raw_amqp.run import Cases

BATCH = 0x80013700
"""Event Hubs' message format of a batch: each data section is a message."""


def sending(
    given: Given, address: str = "{sink}/Partitions/0", *, first_id: int = 0, count: int = 0
) -> tuple[Peer, int]:
    """A link with credit."""
    peer = Peer.begun(given, first_id=first_id)
    handle = peer.attach_sender(address.format(sink=given.sink), count=uint(count))
    peer.attached()
    credit = peer.read(FLOW)
    equal((credit.field(5), credit.field(6) > 0), (count, True))
    return peer, handle


def is_accepted(message: bytes, message_format: int, given: Given) -> None:
    """By a settled disposition: the official Python client passes over unsettled ones."""
    peer, handle = sending(given)
    peer.transfer(handle, message, message_format=message_format)
    found = peer.read(DISPOSITION)
    equal(found.fields[:4], (True, 0, 0, True))
    equal(found.field(4)[0], ACCEPTED)


def is_rejected(message: bytes, message_format: int, given: Given) -> None:
    """With a reason; the link goes on."""
    peer, handle = sending(given)
    peer.transfer(handle, message, message_format=message_format)
    outcome, fields = peer.read(DISPOSITION).field(4)
    equal((outcome, fields[0] is not None), (REJECTED, True))
    peer.transfer(handle, data_section(b"good"), delivery_id=1, tag=b"u")
    equal(peer.read(DISPOSITION).field(4)[0], ACCEPTED)


def key_on_a_partition(given: Given) -> None:
    """The link's partition counts, and the key is kept: official SDKs send both."""
    key = described_value(b"\x53\x72", map_of({symbol("x-opt-partition-key"): text("device-1")}))
    is_accepted(key + data_section(b"keyed"), 0, given)


def settled_is_stored(given: Given) -> None:
    """Settled by the sender: stored, and no word about it."""
    peer, handle = sending(given)
    body = b"settled %d" % id(peer)
    peer.transfer(handle, data_section(body), settled=TRUE)
    peer.transfer(handle, data_section(b"after"), delivery_id=1, tag=b"u")
    found = peer.read(DISPOSITION)
    equal(found.field(1), 1)
    reader = peer.attach_receiver(f"{given.sink}/ConsumerGroups/$Default/Partitions/0")
    peer.attached()
    peer.grant(reader, 1000)
    equal(any(body in one.payload for one in peer.transfers(1000)), True)


def in_pieces(sizes: tuple[int, ...], given: Given) -> None:
    """A delivery of several transfers, which end anywhere."""
    peer, handle = sending(given)
    message, at = data_section(bytes(range(256)) * 8), 0
    for size in sizes:
        is_first = at == 0 and size == sizes[0]
        piece = message[at : at + size]
        peer.transfer(
            handle, piece, delivery_id=0 if is_first else None, tag=b"t" if is_first else None, more=TRUE
        )
        at += size
    peer.transfer(handle, message[at:], delivery_id=None, tag=None)
    equal(peer.read(DISPOSITION).field(4)[0], ACCEPTED)


def pieces_of_two_links(given: Given) -> None:
    """Deliveries of different links may alternate (part 2 section 2.6.14)."""
    peer, first = sending(given)
    second = peer.attach_sender(f"{given.sink}/Partitions/1")
    peer.attached()
    message = data_section(b"shared" * 50)
    for delivery_id, handle in enumerate((first, second)):
        peer.transfer(handle, message[:100], delivery_id=delivery_id, more=TRUE)
    for handle in (first, second):
        peer.transfer(handle, message[100:], delivery_id=None, tag=None)
    settled: set[int] = set()
    while len(settled) < 2:  # one disposition for both, if they are stored together
        found = peer.read(DISPOSITION)
        settled |= set(range(found.field(1), found.field(2) + 1))
    equal(settled, {0, 1})


def aborted(given: Given) -> None:
    """Forgotten, and no word about it (part 2 section 2.7.5)."""
    peer, handle = sending(given)
    peer.transfer(handle, data_section(b"half")[:6], more=TRUE)
    peer.transfer(handle, b"", delivery_id=None, tag=None, aborted=TRUE)
    peer.transfer(handle, data_section(b"whole"), delivery_id=1, tag=b"u")
    found = peer.read(DISPOSITION)
    equal((found.field(1), found.field(4)[0]), (1, ACCEPTED))


def too_large(given: Given) -> None:
    """More than max-message-size is rejected once it has ended, and the link goes on."""
    peer, handle = sending(given)
    piece = bytes(60_000)
    peer.transfer(handle, piece, more=TRUE)
    for _ in range(18):
        peer.transfer(handle, piece, delivery_id=None, tag=None, more=TRUE)
    peer.transfer(handle, piece, delivery_id=None, tag=None)
    outcome, fields = peer.read(DISPOSITION).field(4)
    equal((outcome, fields[0][1][0]), (REJECTED, "amqp:link:message-size-exceeded"))
    peer.transfer(handle, data_section(b"good"), delivery_id=1, tag=b"u")
    equal(peer.read(DISPOSITION).field(4)[0], ACCEPTED)


def batch_of_garbage(given: Given) -> None:
    """Events inside a batch are stored undecoded; what comes behind a garbled one is received."""
    peer, handle = sending(given, "{sink}/Partitions/1")
    peer.transfer(handle, data_section(b"\xff" * 10), message_format=BATCH)
    peer.transfer(handle, data_section(b"behind garbage"), delivery_id=1, tag=b"u")
    equal([peer.read(DISPOSITION).field(4)[0] for _ in range(2)], [ACCEPTED] * 2)
    reader = peer.attach_receiver(f"{given.sink}/ConsumerGroups/$Default/Partitions/1")
    peer.attached()
    peer.grant(reader, 1000)
    equal(any(b"behind garbage" in one.payload for one in peer.transfers(1000)), True)


def ids_wrap_around(first_id: int, given: Given) -> None:
    """Transfer and delivery ids have 32 bits, and 0 follows the last (RFC 1982)."""
    peer, handle = sending(given, first_id=first_id)
    for step in range(4):
        delivery_id = (first_id + step) % 2**32
        peer.transfer(handle, data_section(b"around"), delivery_id=delivery_id, tag=bytes([step]))
        equal(peer.read(DISPOSITION).field(1), delivery_id)


def delivery_count_wraps_around(given: Given) -> None:
    """So has the delivery-count, from which credit counts."""
    count = 2**32 - 2
    peer, handle = sending(given, count=count)
    for step in range(600):  # more than the first credit
        peer.transfer(handle, data_section(b"count"), delivery_id=step, tag=step.to_bytes(4, "big"))
    seen = -1
    while seen < 599:
        seen = peer.read(DISPOSITION).field(2)
    peer.check_alive()


def without_tag(given: Given) -> None:
    """Taken: the service has no use for tags."""
    peer, handle = sending(given)
    peer.transfer(handle, data_section(b"untagged"), tag=None)
    equal(peer.read(DISPOSITION).field(4)[0], ACCEPTED)


def session_ends_for(sent: dict[str, object], condition: str, given: Given) -> None:
    """A transfer that the protocol does not allow."""
    peer, handle = sending(given)
    options: dict[str, object] = {"handle": handle, **sent}
    peer.transfer(payload=data_section(b"wrong"), **options)  # type: ignore[arg-type]
    found = peer.read(END)
    equal(found.condition, condition)


def transfer_to_a_sender(given: Given) -> None:
    """On a link where the service sends."""
    peer = Peer.begun(given)
    handle = peer.attach_receiver(given.partition)
    peer.attached()
    peer.transfer(handle, data_section(b"wrong"))
    equal(peer.read(END).condition, "amqp:session:errant-link")


def transfer_after_detach(given: Given) -> None:
    """Under way when the service detached: dropped. A link that was refused takes nothing."""
    peer = Peer.begun(given)
    handle = peer.attach_sender("nothing")
    peer.transfer(handle, data_section(b"lost"), settled=TRUE)
    peer.read(ATTACH)
    equal(peer.read(DETACH).condition, "amqp:not-found")
    peer.perform(DETACH, uint(handle), TRUE)
    peer.check_alive()


def transfers_without_credit(given: Given) -> None:
    """The official Python client pays no heed to credit, so nobody is detached for that."""
    peer = Peer.begun(given)
    handle = peer.attach_sender(f"{given.sink}/Partitions/0", snd_settle=SETTLED)
    for step in range(100):
        peer.transfer(handle, data_section(b"early"), delivery_id=step, tag=bytes([step]), settled=TRUE)
    peer.attached()
    peer.check_alive()


_MESSAGE = data_section(b"inner")
_EVERYTHING = b"".join(
    (
        described_value(b"\x53\x70", b"\xc0\x02\x01\x41"),
        described_value(b"\x53\x71", map_of({symbol("x-raw"): text("delivery annotation")})),
        described_value(b"\x53\x72", map_of({symbol("x-raw"): text("message annotation")})),
        described_value(b"\x53\x73", b"\xc0\x04\x01\xa1\x01m"),
        described_value(b"\x53\x74", map_of({text("name"): uint(7)})),
        data_section(b"body"),
        described_value(b"\x53\x78", map_of({symbol("x-raw"): text("footer")})),
    )
)

CASES: Cases = {
    "transfer of a message": partial(is_accepted, data_section(b"one"), 0),
    "transfer of every section": partial(is_accepted, _EVERYTHING, 0),
    "transfer of a value": partial(is_accepted, described_value(b"\x53\x77", text("value")), 0),
    "transfer of a null value": partial(is_accepted, described_value(b"\x53\x77", b"\x40"), 0),
    "transfer of a sequence": partial(is_accepted, described_value(b"\x53\x76", b"\xc0\x03\x01\x54\x01"), 0),
    "transfer of several data sections": partial(is_accepted, _MESSAGE * 3, 0),
    "transfer of a batch": partial(is_accepted, data_section(_MESSAGE) * 3, BATCH),
    "transfer of a batch of one": partial(is_accepted, data_section(_MESSAGE), BATCH),
    "transfer with a key to a partition": key_on_a_partition,
    "transfer settled": settled_is_stored,
    "transfer of garbage": partial(is_rejected, b"\xff" * 10, 0),
    "transfer of a section cut off": partial(is_rejected, data_section(b"whole")[:-2], 0),
    "transfer of a batch of garbage": batch_of_garbage,
    "transfer of garbage for a batch": partial(is_rejected, b"\xff" * 10, BATCH),
    "transfer in two pieces": partial(in_pieces, (100,)),
    "transfer in pieces of a byte": partial(in_pieces, (1,) * 40),
    "transfer with a last piece of nothing": partial(in_pieces, (2056,)),
    "transfer in pieces of two links": pieces_of_two_links,
    "transfer aborted": aborted,
    "transfer too large": too_large,
    "transfer ids around 2^31": partial(ids_wrap_around, 2**31 - 2),
    "transfer ids around 2^32": partial(ids_wrap_around, 2**32 - 2),
    "transfer with a delivery-count around 2^32": delivery_count_wraps_around,
    "transfer on an unknown handle": partial(
        session_ends_for, {"handle": 40}, "amqp:session:unattached-handle"
    ),
    "transfer without a delivery-id": partial(session_ends_for, {"delivery_id": None}, "amqp:invalid-field"),
    "transfer without a delivery-tag": without_tag,
    "transfer to a sender": transfer_to_a_sender,
    "transfer on a refused link": transfer_after_detach,
    "transfer without credit": transfers_without_credit,
}

"""Events that hide annotations from a reader that goes by sizes, and show them to one that goes by counts."""

from __future__ import annotations

from array import array
from typing import Final

from tests.support.batches import split_batch

from tidegate.amqp.encode import encode_value
from tidegate.amqp.types import Symbol
from tidegate.wire.batch import batch_envelope, wrap_event
from tidegate.wire.delivery import event_deliveries
from tidegate.wire.publisher import rewritten_batch, unpublished_events

BODY: Final = b"\x00\x53\x75\xa0\x04body"


def masked(name: str) -> bytes:
    """A symbol whose first byte has its high bit set, which JavaScript's decoder of ASCII drops."""
    raw = name.encode()
    return b"\xa3" + bytes((len(raw), raw[0] | 0x80)) + raw[1:]


def map_of(entries: bytes, count: int) -> bytes:
    return b"\xc1" + bytes((len(entries) + 1, count)) + entries


def _list_of(values: bytes, count: int) -> bytes:
    return b"\xc0" + bytes((len(values) + 1, count)) + values


_VICTIM: Final = encode_value("victim")
_POSITIONS: Final = b"".join(
    (
        masked("x-opt-publisher") + _VICTIM,
        masked("x-opt-offset") + encode_value("99"),
        masked("x-opt-sequence-number") + encode_value(99),
    )
)
SECTIONS: Final = {
    "forged": b"\x00\x53\x72" + map_of(_POSITIONS, 6),
    "erased": b"\x00\x53\x72" + map_of(b"", 0),
    "null": b"\x00\x53\x72\x40",
    "key": b"\x00\x53\x72" + map_of(encode_value(Symbol("x-opt-partition-key")) + _VICTIM, 2),
    "other first bytes": b"zz\x72" + map_of(b"", 0),
}
"""What is hidden. The official Python client does not look at the first two bytes of a section."""


def hidden(section: bytes) -> dict[str, bytes]:
    """Events with this section, by where it is."""
    size = bytes((len(section) + 1, 0))
    key = encode_value(Symbol("k"))
    nested = key + b"\xc0" + size + section
    accepted = b"\x00\x53\x24" + _list_of(section, 1)
    inner = b"\xa0\x02\x50\x00" + section
    lists = b"\x01\x00" + bytes((len(inner), 2)) + inner
    within = b"\xe0" + bytes((len(section) + 2, 0, 0x41)) + section
    return {
        "header": b"\x00\x53\x70\xc0" + size + section + BODY,
        "delivery annotations": b"\x00\x53\x71\xc1" + size + section + BODY,
        "properties": b"\x00\x53\x73\xc0" + size + section + BODY,
        "application properties": b"\x00\x53\x74\xc1" + size + section + BODY,
        "half an entry": b"\x00\x53\x74" + map_of(b"\x41" * 2 + b"\x75" + section, 3) + BODY,
        "footer": BODY + b"\x00\x53\x78\xc1" + size + section,
        "value": b"\x00\x53\x77\xc0" + size + section,
        "described value": b"\x00\x53\x77\x00\x53\x01\xc0" + size + section,
        "array": b"\x00\x53\x77" + within,
        "accepted in delivery annotations": b"\x00\x53\x71" + map_of(key + accepted, 2) + BODY,
        "accepted in annotations": b"\x00\x53\x72" + map_of(key + accepted, 2) + BODY,
        "accepted by symbol": b"\x00\x53\x77\x00\xa3\x12AMQP:accepted:list" + accepted[3:],
        "fourteenth property": b"\x00\x53\x73" + _list_of(b"\x40" * 13 + section, 14) + BODY,
        "sixth field of a header": b"\x00\x53\x70" + _list_of(b"\x40" * 5 + section, 6) + BODY,
        "second list of an array": b"\x00\x53\x77\xe0" + bytes((len(lists) + 2, 2, 0xC0)) + lists,
        "list in properties": b"\x00\x53\x74" + map_of(nested, 2) + BODY,
        "list in annotations": b"\x00\x53\x72" + map_of(nested, 2) + BODY,
    }


HIDDEN: Final = {
    f"{what} in {where}": event
    for what, section in SECTIONS.items()
    for where, event in hidden(section).items()
}
EVENTS: Final = HIDDEN | {
    "prototype": b"\x00\x53\x72"
    + map_of(
        encode_value(Symbol("__proto__")) + map_of(encode_value(Symbol("x-opt-publisher")) + _VICTIM, 2), 2
    )
    + BODY
}


def delivered(event: bytes, metrics: bytes = b"") -> bytes:
    """As a receiver gets an event that was sent to the hub: with sequence number 5."""
    sections = split_batch(batch_envelope() + wrap_event(event))
    stored = rewritten_batch(sections, list(filter(None, unpublished_events(sections))), None)
    (delivery,) = event_deliveries(
        bytes(stored.payload),
        array("I", stored.lengths),
        first_sequence_number=5,
        enqueued_time_ms=0,
        metric_entries=metrics,
    )
    return delivery

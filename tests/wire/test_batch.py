"""Batches: boundaries, envelopes, and refusing what is garbled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from azure.eventhub._pyamqp.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batches import split_batch, split_single
from tests.support.calls import calls_of
from tests.wire.official_client import batch_payload, event, message_payload

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Section, decode_message, iter_sections
from tidegate.amqp.types import Int, Short, Symbol
from tidegate.wire import batch
from tidegate.wire.batch import (
    BATCH_MESSAGE_FORMAT,
    LONE_PARTITION_KEY,
    BatchSections,
    batch_envelope,
    iter_events,
    split_lone,
    split_message,
    unwrap,
    with_event_numbers,
    wrap_event,
)
from tidegate.wire.names import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQUENCE_NUMBER

_SECTIONS = st.sampled_from(
    [
        batch_envelope(),
        b"\x00\x53\x70\xc0\x07\x05\x56\x01\x40\x40\x40\x40",
        batch_envelope(partition_key="device-1"),
        batch_envelope(partition_key="k\u00e9" * 60)[7:],
        batch_envelope(producer_id=1, producer_epoch=1, producer_sequence_number=1),
        b"\x00\x53\x72\xc1" + bytes((len(LONE_PARTITION_KEY) + 3,)) + LONE_PARTITION_KEY + b"\xa1\x01\xff",
        wrap_event(b""),
        wrap_event(b"x" * 40),
        wrap_event(b"y" * 300),
        b"\x00\x80" + bytes(7) + b"\x75\xa0\x01z",
    ]
)

SIZES = [0, 1, 2, 3, 4, 247, 255, 256, 257, 70_000]
_ONCE = (0x70, 0x71, 0x72, 0x73, 0x74, 0x78)
"""Sections that are not of the body."""


def test_the_official_clients_batch_is_found_and_not_copied() -> None:
    """Protects ingest of azure-eventhub 5.15.1's batches: each event's bytes, in order, as views."""
    payload = batch_payload([event(b"x" * size, n=size) for size in SIZES], partition_key="device-1")
    (sections,) = split_message(payload, BATCH_MESSAGE_FORMAT)
    assert sections is not None
    assert sections.partition_key == "device-1"
    assert sections.producer_sequence_number is None
    assert sections.payload.obj is payload
    messages = [decode_message(item) for item in iter_events(sections.payload, sections.lengths)]
    assert [len(b"".join(message.data)) for message in messages] == SIZES
    assert [message.application_properties for message in messages] == [{"n": size} for size in SIZES]


@pytest.mark.slow
@settings(derandomize=True, max_examples=400)
@given(
    st.lists(_SECTIONS, max_size=3), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=1)
)
def test_a_lone_event_is_found_as_in_any_batch(parts: list[bytes], noise: list[tuple[int, int]]) -> None:
    """Protects small batches: the short way finds what the general one does, or leaves the message to it."""
    payload = bytearray(b"".join(parts))
    for position, value in noise:
        if payload:
            payload[position % len(payload)] = value
    lone = split_lone(bytes(payload), BATCH_MESSAGE_FORMAT)
    assert lone is None or lone == split_batch(bytes(payload))
    assert split_lone(bytes(payload), 0) is None


@pytest.mark.parametrize("key", [None, "device-1"])
@pytest.mark.parametrize("size", [10, 247, 255, 300])
def test_the_official_clients_lone_event_takes_the_short_way(key: str | None, size: int) -> None:
    """Protects the cost of small batches, as the official Python client encodes them."""
    payload = batch_payload([event(b"x" * size)], partition_key=key)
    lone = split_lone(payload, BATCH_MESSAGE_FORMAT)
    assert lone is not None
    assert lone == split_batch(payload)
    assert lone.payload.obj is payload


@pytest.mark.parametrize("sizes", [[size] for size in SIZES] + [SIZES, SIZES[::-1], [0] * 50])
def test_sections_of_any_size_are_found_wherever_they_end(sizes: list[int]) -> None:
    """Protects the hot loop's last steps, where fewer than eight bytes are left."""
    events = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    stored = b"".join(map(wrap_event, events))
    for payload in (stored, batch_envelope(partition_key="k") + stored, stored + b"\x00\x53\x71\xc1\x01\x00"):
        sections = split_batch(payload)
        assert sections.payload == stored
        assert sum(sections.lengths) == len(stored)
        assert sections.lengths.typecode == "I"
        assert [bytes(item) for item in iter_events(sections.payload, sections.lengths)] == events


@pytest.mark.parametrize(
    ("section", "most"),
    [
        (wrap_event(b""), 2 * batch.STEP_SECTIONS),
        (b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x00", batch.STEP_SECTIONS / 10),
    ],
    ids=["data", "in another encoding"],
)
@pytest.mark.slow
def test_many_sections_are_found_in_steps(
    section: bytes, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects neighbours: a message of 1 MB can have 200,000 events, the work of a tenth of a second."""
    counted = _counted(monkeypatch)
    count = 120_000 if section == wrap_event(b"") else 9_000
    work, steps = list[int](), list[BatchSections | None]()
    for step in split_message(section * count, BATCH_MESSAGE_FORMAT):
        steps.append(step)
        work.append(sum(counted) - sum(work))
    sections = steps[-1]
    assert sections is not None
    assert len(sections.lengths) == count
    assert max(work) <= most
    assert len(work) >= 30


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An item for each section looked at from now on."""
    counted = list[int]()
    unpack = batch._two_u32

    def counting_unpack(view: memoryview, offset: int) -> tuple[int, int]:
        counted.append(1)
        return unpack(view, offset)

    def counting_sections(payload: memoryview) -> Iterator[Section]:
        counted.append(1)
        return iter_sections(payload)

    monkeypatch.setattr(batch, "_two_u32", counting_unpack)
    monkeypatch.setattr(batch, "iter_sections", counting_sections)
    return counted


def test_a_batch_has_few_other_sections() -> None:
    """Those of a message are limited, and so are those of a batch."""
    with pytest.raises(DecodeError, match="more than 10000 sections in an unusual encoding"):
        split_batch(wrap_event(b"x") + b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x00" * 10_001)


def test_a_single_message_of_many_sections_is_looked_at_in_steps() -> None:
    """Protects neighbours: a single message of 1 MB has thousands of sections, too."""
    payload = wrap_event(b"") * 9_500
    steps = list(split_message(payload, 0))
    assert steps[:-1] == [None] * 9
    assert steps[-1] is not None
    assert unwrap(steps[-1].payload) == payload


@pytest.mark.parametrize("split", [split_batch, split_single])
@pytest.mark.parametrize(
    "section",
    [bytes((0, 0x53, code)) + (b"\x45" if code in (0x70, 0x73) else b"\xc1\x01\x00") for code in _ONCE],
    ids=lambda section: f"0x{section[2]:x}",
)
def test_a_section_that_may_occur_once_is_not_repeated(
    split: Callable[[bytes], BatchSections], section: bytes
) -> None:
    """Protects the event loop and readers: each is decoded at most once, and none differs from another."""
    assert len(split(section + wrap_event(b"x")).lengths) == 1
    with pytest.raises(DecodeError, match="a second section 0x"):
        split(section + wrap_event(b"x") + section)


@pytest.mark.parametrize("split", [split_batch, split_single])
@pytest.mark.parametrize(
    "value", [{Symbol(f"{key:03x}"): None for key in range(1_000)}, {Symbol("a"): [[]] * 4_000}]
)
def test_annotations_cost_little(
    split: Callable[[bytes], BatchSections], value: dict[object, object]
) -> None:
    """Protects neighbours: 1 MB of annotations, all of them decoded, held the loop for half a second."""
    section = b"\x00\x53\x72" + encode_value(value)
    payload = section * (1_000_000 // len(section)) + wrap_event(b"x")

    def run() -> None:
        with pytest.raises(DecodeError):
            split(payload)

    assert calls_of(run) < 20_000


@pytest.mark.parametrize("split", [split_batch, split_single])
def test_annotations_are_small(split: Callable[[bytes], BatchSections]) -> None:
    """Protects the event loop from a megabyte of strings; and large ones are a step of their own."""
    sections = [
        b"\x00\x53\x72" + encode_value({Symbol("x-opt-partition-key"): "k", Symbol("a"): bytes(size)})
        for size in (65_000, 66_000)
    ]
    assert split(sections[0] + wrap_event(b"x")).partition_key == "k"
    with pytest.raises(DecodeError, match="65536 are allowed"):
        split(sections[1] + wrap_event(b"x"))
    assert next(split_message(sections[0] + wrap_event(b"x"), BATCH_MESSAGE_FORMAT)) is None


def test_data_sections_that_lie_apart_are_brought_together() -> None:
    """Protects batches of peers that write other sections between the data, or rarer descriptors."""
    wide = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01c"
    payload = wrap_event(b"a") + b"\x00\x53\x78\xc1\x01\x00" + wrap_event(b"b") + wide
    sections = split_batch(payload)
    assert [bytes(item) for item in iter_events(sections.payload, sections.lengths)] == [b"a", b"b", b"c"]


def test_the_envelope_says_who_sent_it() -> None:
    """Protects idempotent producers' numbering of batches."""
    envelope = batch_envelope(
        partition_key="k", producer_id=2**40, producer_epoch=3, producer_sequence_number=70_000
    )
    sections = split_batch(envelope + wrap_event(b"x"))
    assert sections.partition_key == "k"
    assert (sections.producer_id, sections.producer_epoch, sections.producer_sequence_number) == (
        2**40,
        3,
        70_000,
    )


def test_a_single_message_becomes_one_section() -> None:
    """Protects messages of format 0: stored whole, the partition key read."""
    payload = message_payload(
        Message(data=[b"a", b"b"], message_annotations={b"x-opt-partition-key": "k"}, footer={b"f": 1})
    )
    (sections,) = split_message(payload, 0)
    assert sections is not None
    assert sections.partition_key == "k"
    assert list(sections.lengths) == [len(sections.payload)]
    assert unwrap(sections.payload) == payload


def test_an_events_numbers_are_looked_for_at_its_beginning() -> None:
    """Protects the event loop: two events of 9,999 sections before their annotations took 25 ms."""
    numbers = {
        Symbol(PRODUCER_ID): 1,
        Symbol(PRODUCER_EPOCH): Short(2),
        Symbol(PRODUCER_SEQUENCE_NUMBER): Int(3),
    }
    annotations, body = b"\x00\x53\x72" + encode_value(numbers), b"\x00\x53\x75\xa0\x00" * 9_998
    header = b"\x00\x53\x70\x45" + b"\x00\x53\x71\xc1\x01\x00"
    early, late = (
        split_batch(wrap_event(event)) for event in (header + annotations + body, body + annotations)
    )
    found = with_event_numbers(early)
    assert (found.producer_id, found.producer_epoch, found.producer_sequence_number) == (1, 2, 3)
    assert with_event_numbers(late).producer_id is None
    assert calls_of(lambda: with_event_numbers(late)) < 500


def test_every_cut_of_a_batch_is_refused_or_a_shorter_batch() -> None:
    """Protects the log from half an event: a cut batch never yields bytes that were not sent as an event."""
    events = [b"x" * 5, b"", b"y" * 300]
    envelope = batch_envelope(partition_key="k")
    whole = envelope + b"".join(map(wrap_event, events))
    ends = {len(envelope) + sum(len(wrap_event(item)) for item in events[:count]) for count in (1, 2, 3)}
    for end in range(len(whole)):
        if end in ends:
            assert list(iter_events(*_stored(whole[:end]))) == events[: sorted(ends).index(end) + 1]
        else:
            with pytest.raises(DecodeError):
                split_batch(whole[:end])


def _stored(payload: bytes) -> tuple[memoryview, list[int]]:
    sections = split_batch(payload)
    return sections.payload, list(sections.lengths)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        batch_envelope(partition_key="k"),
        b"\x00\x53\x77\xa1\x01x",
        wrap_event(b"x") + b"\x00\x53\x76\x45",
        wrap_event(b"x") + b"garbage",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff12345678",
        b"\x00\x53\x72" + encode_value({Symbol("x-opt-partition-key"): 5}) + wrap_event(b"x"),
        b"\x00\x53\x72" + encode_value({Symbol("com.microsoft:producer-id"): "5"}) + wrap_event(b"x"),
        b"\x00\x53\x72" + encode_value([1]) + wrap_event(b"x"),
        b"\x00\x53\x75\xa1\x01x",
    ],
    ids=lambda payload: payload[:16].hex(),
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    """Protects the log: an unclear batch is the sender's error, whole."""
    with pytest.raises(DecodeError):
        split_batch(payload)


def test_a_garbled_single_message_is_refused() -> None:
    """Protects the log from a single message that has no end."""
    with pytest.raises(DecodeError):
        split_single(b"\x00\x53\x75\xa0\x05x")


@pytest.mark.parametrize(
    "section", [b"", b"\x00\x53\x75\xa0", wrap_event(b"abc")[:-1], wrap_event(b"a" * 300) + b"x"]
)
def test_a_garbled_stored_section_is_refused(section: bytes) -> None:
    """Protects readers of the log from lengths that do not fit."""
    with pytest.raises(DecodeError):
        unwrap(section)


def test_random_bytes_are_refused_or_split_whole() -> None:
    """Protects the hot loop: nothing but DecodeError comes out, and nothing is counted twice."""
    chance = random.Random(1)
    good = batch_envelope(partition_key="k") + b"".join(wrap_event(bytes(size)) for size in (3, 300, 0))
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            sections = split_batch(bytes(data))
        except DecodeError:
            continue
        assert sum(sections.lengths) == len(sections.payload)

"""Every entry point that decodes what a peer sent, by the name of its corpus folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tests.support.batches import split_batch, split_single

from tidegate.amqp.decode import CONTENT_LIMITS, PROTOCOL_LIMITS, decode_value, skip_value
from tidegate.amqp.frames import FrameSplitter
from tidegate.amqp.message import decode_message, iter_sections
from tidegate.amqp.performatives import decode_performative
from tidegate.amqp.sasl import decode_sasl
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_properties import PartitionEnds
from tidegate.wire.batch import with_event_numbers
from tidegate.wire.capture import system_properties
from tidegate.wire.delivery import encode_runtime_metrics, event_deliveries
from tidegate.wire.encoded_events import events_of_batch, events_of_deliveries
from tidegate.wire.event_codec import decode_event, event_body
from tidegate.wire.event_texts import EventTexts, decode_whole
from tidegate.wire.publisher import published_events, unpublished_events
from tidegate.wire.request_response import Request

_METRICS = encode_runtime_metrics(PartitionEnds("hub", "0", 0, 2, "1", 2), retrieval_time_ms=3)


def _frames(data: bytes) -> None:
    splitter = FrameSplitter(frame_bytes_max=4096)
    if data.startswith(b"A"):
        splitter.feed(data[:4])
        splitter.feed(data[4:])
        if splitter.next_header() is None:
            return
    else:
        splitter.feed(data[: len(data) // 2])
        splitter.feed(data[len(data) // 2 :])
    while splitter.next_frame() is not None:
        pass


def _values(data: bytes) -> None:
    end = decode_value(data, 0, CONTENT_LIMITS)[1]
    assert skip_value(data) == end


def _messages(data: bytes) -> None:
    list(iter_sections(data))
    decode_message(data)


def _requests(data: bytes) -> None:
    with suppress(InvalidArgumentError):  # a message that asks for nothing
        Request.from_message(decode_message(data, PROTOCOL_LIMITS))


def _numbered(data: bytes) -> None:
    with_event_numbers(split_batch(data))


def _published(data: bytes) -> None:
    with suppress(InvalidArgumentError):  # another partition key
        list(published_events(split_batch(data), "publisher"))


def _unpublished(data: bytes) -> None:
    list(unpublished_events(split_batch(data)))


def _captured(data: bytes) -> None:
    system_properties(data, 0)


def _batches(data: bytes) -> None:
    for split in (split_batch, split_single):
        sections = split(data)
        assert sum(sections.lengths) == len(sections.payload)
        _deliver(sections.payload, list(sections.lengths))


def _events(data: bytes) -> None:
    contents = decode_event(data)
    assert event_body(data) == contents.body


def _deliver(stored: bytes | memoryview, lengths: list[int]) -> None:
    """Whatever was stored is delivered: garbage inside an event must not raise."""
    for metrics in (b"", _METRICS):
        event_deliveries(stored, lengths, first_sequence_number=1, enqueued_time_ms=1, metric_entries=metrics)


TARGETS: dict[str, tuple[Callable[[bytes], object], ...]] = {
    "value": (_values,),
    "performative": (decode_performative, decode_value),
    "sasl": (decode_sasl, decode_performative),
    "frames": (_frames,),
    "message": (_messages, _requests, decode_event, event_body, _captured, decode_whole, EventTexts.decode),
    "batch": (_batches, _numbered, _published, _unpublished, events_of_batch),
    "event": (
        _events,
        lambda data: events_of_deliveries([data]),
        decode_message,
        _captured,
        decode_whole,
        EventTexts.decode,
    ),
}

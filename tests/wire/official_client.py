"""Messages and batches as azure-eventhub 5.15.1 itself encodes them: the vectors of these tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.eventhub import EventData, EventDataBatch
from azure.eventhub._pyamqp import _decode, _encode
from azure.eventhub._pyamqp.message import Message


def batch_payload(events: Sequence[EventData], *, partition_key: str | None = None) -> bytes:
    """What the client's producer sends for a batch."""
    batch = EventDataBatch(max_size_in_bytes=1 << 20, partition_key=partition_key)
    for event in events:
        batch.add(event)
    output = bytearray()
    _encode.encode_payload(output, batch._message)
    return bytes(output)


def event(body: bytes, **properties: Any) -> EventData:
    """An event with application properties."""
    data = EventData(body)
    data.properties = {str(name): value for name, value in properties.items()}
    return data


def message_payload(message: Message) -> bytes:
    """What the client sends for a single message."""
    output = bytearray()
    _encode.encode_payload(output, message)
    return bytes(output)


def received(payload: bytes) -> EventData:
    """A delivery as the client's consumer gives it to its user."""
    return EventData._from_message(_decode.decode_payload(memoryview(payload)))

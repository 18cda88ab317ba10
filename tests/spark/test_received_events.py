"""What a handler per event is given in a task: the same events as everywhere."""

from __future__ import annotations

import random

import pyarrow as pa

from tidegate.amqp.message import Message, encode_message
from tidegate.columns.batches import event_batch
from tidegate.columns.schema import ENCODED_EVENT_ARROW_SCHEMA
from tidegate.model.events import EventData
from tidegate.spark.sql_sink.commits import received_events
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import decode_event, encode_event


def _messages(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    shapes = [
        lambda: encode_event(EventData(rng.randbytes(rng.choice((0, 3, 255, 256, 900))), {"n": 1}), "key"),
        lambda: encode_event(EventData(b"")),
        lambda: bytes(encode_message(Message(data=(b"two ", b"sections")))),
        lambda: bytes(encode_message(Message(value="text"))),
    ]
    return [rng.choice(shapes)() for _ in range(200)]


def test_events_are_those_that_decoding_gives() -> None:
    """For events of any shape, from the middle of a column, too."""
    for seed in range(20):
        messages = _messages(seed)
        events = EncodedEvents(range(7, 207), [5] * 200, [*map(str, range(7, 207))], messages)
        batch = event_batch("3", events, ENCODED_EVENT_ARROW_SCHEMA.names)
        batches = [batch.slice(0, 90), batch.slice(90)]
        received = received_events("3", pa.Table.from_batches(batches))
        assert [event.body for event in received] == [decode_event(message).body for message in messages]
        assert [event.sequence_number for event in received] == [*range(7, 207)]
        assert received[0].contents == decode_event(messages[0])
        assert (received[9].offset, received[9].enqueued_time_ms, received[9].partition_id) == ("16", 5, "3")

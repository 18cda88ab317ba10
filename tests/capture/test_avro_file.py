"""The bytes of capture files: what an event of very many properties costs others."""

from __future__ import annotations

import sys
from io import BytesIO
from types import FrameType

import fastavro

from tidegate.capture.avro_file import AvroEncoder
from tidegate.model.events import EventData
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event


def test_other_threads_run_while_many_properties_are_written() -> None:
    """Protects the event loop, which waits while C code has the interpreter: an event of a megabyte may have
    170,000 properties. Python code can be interrupted at each of its calls."""
    properties = {f"p{number}": number for number in range(5_000)}
    section = wrap_event(encode_event(EventData(b"x", properties)))
    encoder = AvroEncoder(b"a marker 16 long")
    calls = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal calls
        calls += "collections" in frame.f_code.co_filename  # the mapping that fastavro reads

    sys.setprofile(count)
    try:
        encoder.append(0, 0, memoryview(section), [len(section)])
    finally:
        sys.setprofile(None)
    assert calls > 5_000
    (record,) = fastavro.reader(BytesIO(encoder.finish()))
    assert isinstance(record, dict)
    assert record["Properties"] == properties

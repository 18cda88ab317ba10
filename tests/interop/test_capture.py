"""What official clients send is in capture files as Azure writes them: its schema, its names, the events' own
values.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from azure.eventhub import EventData
from tests.interop.support import SdkTarget, read

from tidegate.model.capture import CaptureSettings, CaptureStatistics
from tidegate.model.limits import CAPTURE_SIZE_WINDOW_BYTES_MIN
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

_AZURE_SCHEMA = json.loads(
    """
    {"type":"record","name":"EventData","namespace":"Microsoft.ServiceBus.Messaging","fields":[
        {"name":"SequenceNumber","type":"long"},
        {"name":"Offset","type":"string"},
        {"name":"EnqueuedTimeUtc","type":"string"},
        {"name":"SystemProperties","type":{"type":"map","values":["long","double","string","bytes"]}},
        {"name":"Properties","type":{"type":"map","values":["long","double","string","bytes"]}},
        {"name":"Body","type":["null","bytes"]}]}
    """
)
"""As avro-tools prints it for a capture file (Azure "Event Hubs Capture", 2017-08-21)."""
_NAME = re.compile(r"tidegate/telemetry/0/\d{4}/\d{2}/\d{2}/\d{2}/\d{2}/\d{2}\.avro")
_DEADLINE_S = 60.0


def _first_file(root: Path) -> Path:
    deadline = time.monotonic() + _DEADLINE_S
    while not (found := sorted(root.rglob("*.avro"))):
        assert time.monotonic() < deadline, "no file was captured"
        time.sleep(0.02)
    return found[0]


def test_captured_files_read_as_azures_do(tmp_path: Path) -> None:
    """Sequence numbers, offsets and times are those that the SDK's reader is given for the same events."""

    async def set_capture(server: TidegateServer) -> None:
        settings = CaptureSettings(str(tmp_path), size_window_bytes=CAPTURE_SIZE_WINDOW_BYTES_MIN)
        await server.broker.set_capture("telemetry", settings)

    async def statistics(server: TidegateServer) -> CaptureStatistics:
        return server.capture.statistics()["telemetry"]

    with HubService() as service:
        service.create_hub("telemetry", partition_count=1)
        service.call(set_capture)
        sdk = SdkTarget(service.connection_string)
        with sdk.producer("telemetry") as producer:
            first = EventData("text body")
            first.properties = {"count": 7, "ratio": 0.5, "name": "n", "raw": b"\xff", "is_new": True}
            first.message_id, first.content_type = "id-1", "text/plain"
            producer.send_batch([first], partition_key="device-7")
            for _ in range(CAPTURE_SIZE_WINDOW_BYTES_MIN // 1_000_000 + 1):
                producer.send_batch([EventData(b"x" * 1_000_000)])
        received = read(sdk.consumer("telemetry"), 2, starting_position="-1")
        path = _first_file(tmp_path)
        data = path.read_bytes()
        deadline = time.monotonic() + _DEADLINE_S
        while service.call(statistics).captured_files == 0:
            assert time.monotonic() < deadline, "the statistics do not tell of the file"
            time.sleep(0.02)
        counts = service.call(statistics)
    assert _NAME.fullmatch(str(path.relative_to(tmp_path)))
    reader = fastavro.reader(BytesIO(data))
    assert reader.metadata["avro.codec"] == "null"
    assert json.loads(reader.metadata["avro.schema"]) == _AZURE_SCHEMA
    records: list[dict[str, Any]] = [record for record in reader if isinstance(record, dict)]
    assert [record["SequenceNumber"] for record in records] == list(range(len(records)))
    assert (counts.captured_events, counts.missing_events, counts.is_failing) == (len(records), 0, False)
    for record, event in zip(records, received, strict=False):
        assert record["SequenceNumber"] == event.sequence_number
        assert record["Offset"] == event.offset
        time_utc = datetime.strptime(record["EnqueuedTimeUtc"], "%m/%d/%Y %I:%M:%S %p").replace(tzinfo=UTC)
        assert event.enqueued_time is not None
        assert time_utc == event.enqueued_time.replace(microsecond=0)
        assert record["Body"].decode() == event.body_as_str()
    assert records[0]["Properties"] == {
        "count": 7,
        "ratio": 0.5,
        "name": "n",
        "raw": b"\xff",
        "is_new": "true",
    }
    system_properties = records[0]["SystemProperties"]
    enqueued_time = received[0].enqueued_time
    assert enqueued_time is not None
    assert system_properties.pop("x-opt-enqueued-time") // 1000 == int(enqueued_time.timestamp())
    assert system_properties == {
        "x-opt-partition-key": "device-7",
        "message-id": "id-1",
        "content-type": "text/plain",
        "tidegate:property-types": '{"is_new":"boolean"}',
    }

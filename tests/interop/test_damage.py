"""A garbled segment as the official SDK meets it: told what is wrong, and given nothing that was altered."""

from __future__ import annotations

from pathlib import Path

from azure.eventhub import EventData
from tests.interop.support import Reader, target_of

from tidegate.testing.hub import HubService


def test_damaged_events_are_told_and_not_served(tmp_path: Path) -> None:
    """The consumer's error says what whoever runs the service must do, and no paths of its machine."""
    with HubService(data_dir=tmp_path) as service:
        hub = service.create_hub(partition_count=1)
        sdk = target_of(service, "plain")
        with sdk.producer(hub) as producer:
            producer.send_event(EventData(b"intact"), partition_id="0")
        (segment,) = tmp_path.glob("logs/*/*/*.log")
        segment.write_bytes(segment.read_bytes().replace(b"intact", b"INTACT"))
        reader = Reader(sdk.consumer(hub))
        try:
            told = str(reader.wait_error())
        finally:
            reader.close()
    assert "tidegate check" in told
    assert str(tmp_path) not in told
    assert reader.events == []

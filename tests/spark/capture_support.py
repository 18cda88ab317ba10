"""What the tests of Capture as a table share: capture files as Azure writes them, and as our service does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
from tests.spark.support import publish

from tidegate.capture.window import WindowLimits
from tidegate.model.capture import NAME_FORMAT_DEFAULT, CaptureSettings
from tidegate.model.capture_destination import CaptureDestinations
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.capture import AVRO_SCHEMA, capture_file_name

_DEADLINE_S = 60.0
START_S = int(datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC).timestamp())


def azure_time(time_s: float) -> str:
    """As Capture of Azure writes it: .NET's general date and time."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.strftime("%m/%d/%Y %I:%M:%S %p").lstrip("0").replace("/0", "/").replace(" 0", " ")


def azure_record(number: int, time_s: float = START_S, **changes: Any) -> dict[str, Any]:
    """A record as Azure documents it; offsets are sparse there."""
    return {
        "SequenceNumber": number,
        "Offset": str(number * 88),
        "EnqueuedTimeUtc": azure_time(time_s),
        "SystemProperties": {},
        "Properties": {},
        "Body": b"%d" % number,
        **changes,
    }


def write_file(
    root: Path,
    records: Iterable[Mapping[str, Any]],
    *,
    time_s: int = START_S,
    partition_id: str = "0",
    event_hub: str = "hub",
    namespace: str = "ns",
    name_format: str = NAME_FORMAT_DEFAULT,
    codec: str = "null",
    block_bytes: int = 16_000,
) -> Path:
    """An Avro file with Azure's schema under the name that Capture would give it."""
    name = capture_file_name(
        name_format, namespace=namespace, event_hub=event_hub, partition_id=partition_id, time_s=time_s
    )
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, dict(AVRO_SCHEMA), list(records), codec=codec, sync_interval=block_bytes)
    return path


def capture_to_end(
    service: HubService, hub: str, destination: str, *, size_bytes: int = 20_000, **settings: Any
) -> None:
    """Let the service's Capture write what the hub holds; the next call goes on where this one stopped.

    size_bytes: of a window; smaller than a user may set.
    """

    async def run(server: TidegateServer) -> None:
        capture, broker = server.capture, server.broker
        earlier, allowed = capture._limits_of, broker.capture_destinations
        broker.capture_destinations = CaptureDestinations((destination,))
        capture._limits_of = lambda chosen: WindowLimits(
            size_bytes, 200, chosen.is_empty_skipped, event_overhead_bytes=0
        )
        await broker.set_capture(hub, CaptureSettings(destination, is_empty_skipped=True, **settings))
        deadline = time.monotonic() + _DEADLINE_S
        try:
            while (found := capture.statistics().get(hub)) is None or found.backlog_events:
                assert time.monotonic() < deadline, found
                await asyncio.sleep(0.05)
        finally:
            await broker.set_capture(hub, None)
            while hub in capture.statistics():  # noqa: ASYNC110  the service looks when it is its turn
                await asyncio.sleep(0.05)
            capture._limits_of, broker.capture_destinations = earlier, allowed

    service.call(run)


def drop_all(service: HubService, hub: str) -> None:
    """What retention does when all events so far are too old; the logs then begin behind them."""

    async def apply(server: TidegateServer) -> None:
        for partition in server.broker.event_hub(hub).partitions:
            before = partition.next_sequence_number
            await partition.apply_retention(before_ms=2**60, bytes_max=None)
            assert partition.begin_sequence_number == before

    service.call(apply)


def captured_then_live(service: HubService, path: Path, captured: int, live: int) -> str:
    """A hub whose first events are in files alone; the rest is in the log."""
    hub = service.create_hub(partition_count=4)
    publish(service.connection_string, hub, captured)
    capture_to_end(service, hub, str(path), size_bytes=captured * 2)
    drop_all(service, hub)
    publish(service.connection_string, hub, live, first_value=captured)
    return hub

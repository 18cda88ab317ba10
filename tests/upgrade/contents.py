"""What a service holds: filled in by phases, and read back whole, with today's client."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from azure.storage.blob import ContainerClient
from tests.support.blob_storage import OwnStorage
from tests.upgrade.versions import ServiceProcess

from tidegate.client import BlockingConsumer, EventHubAdministrator, EventHubProducer
from tidegate.model.capture import CaptureSettings
from tidegate.model.events import EventData
from tidegate.model.limits import CAPTURE_SIZE_WINDOW_BYTES_MIN

CAPTURED: Final = "captured"
"""The hub whose events are captured; it is not part of ``contents``."""
_CONTAINER: Final = "checkpoints"
_BLOBS: Final = 24
_AT_ONCE: Final = 8
_EVENTS: Final = 300

Contents = dict[str, Any]


def create_captured(service: ServiceProcess, destination: str) -> None:
    """The hub ``CAPTURED``, with one partition, whose events go to files of 10 MB."""
    settings = CaptureSettings(
        destination, size_window_bytes=CAPTURE_SIZE_WINDOW_BYTES_MIN, is_empty_skipped=True
    )

    async def create() -> None:
        async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
            await administrator.create_event_hub(CAPTURED, partition_count=1)
            await administrator.set_capture(CAPTURED, settings)

    asyncio.run(create())


def fill(service: ServiceProcess, phase: str, *, has_accounts: bool) -> None:
    """Add a hub with a group, policies, a revoked publisher and settings; events to every hub; checkpoints of
    an official processor, many at once."""
    asyncio.run(_fill(service.connection_string, phase))
    if has_accounts:
        _fill_container(service, phase)


async def _fill(connection_string: str, phase: str) -> None:
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        hub = f"hub-{phase}"
        await administrator.create_event_hub(
            hub, partition_count=3, retention_hours=20, retention_bytes=10**9, user_metadata=f"of {phase}"
        )
        names = [each.name for each in await administrator.list_event_hubs() if each.name != CAPTURED]
        for name in names:
            await administrator.create_consumer_group(name, f"group-{phase}")
            await administrator.create_policy(f"policy-{phase}", ["Listen"], event_hub=name)
            await administrator.revoke_publisher(name, f"publisher-{phase}")
            await administrator.update_event_hub(name, event_bytes_max=100_000 + len(phase))
        await administrator.create_policy(f"policy-{phase}", ["Send", "Listen"])
    for name in names:
        async with EventHubProducer.from_connection_string(connection_string, name) as producer:
            for number in range(_EVENTS):
                body = f"{phase} {name} {number}".encode()
                event = EventData(body, {"number": number, "phase": phase})
                if number % 3:
                    await producer.enqueue(event, partition_key=f"key-{number % 7}")
                else:
                    await producer.enqueue(event, partition_id=str(number % 2))
            await producer.flush()


@contextmanager
def _container(service: ServiceProcess) -> Iterator[ContainerClient]:
    address = OwnStorage(service).connection_string()
    with ContainerClient.from_connection_string(address, _CONTAINER) as client:
        yield client


def _fill_container(service: ServiceProcess, phase: str) -> None:
    with _container(service) as client, ThreadPoolExecutor(_AT_ONCE) as threads:
        if not client.exists():
            client.create_container(metadata={"made": phase})

        def put(number: int) -> None:
            name = f"localhost/hub-{phase}/$default/checkpoint/{number}"
            client.upload_blob(name, b"", metadata={"sequencenumber": str(number), "offset": str(number)})

        list(threads.map(put, range(_BLOBS)))
        moved = client.get_blob_client("localhost/moved/$default/checkpoint/0")
        moved.upload_blob(b"", overwrite=True, metadata={"sequencenumber": str(len(phase)), "offset": phase})


def contents(service: ServiceProcess, *, has_accounts: bool) -> Contents:
    """Everything that the service holds, but for what is captured and what changes by itself."""
    found = asyncio.run(_administered(service.connection_string))
    for name in found["hubs"]:
        with BlockingConsumer(service.connection_string, name) as consumer:
            found[f"events of {name}"] = {
                ends.partition_id: _events(consumer, name, ends.partition_id, ends.next_sequence_number)
                for ends in consumer.get_all_partition_properties()
            }
    if has_accounts:
        with _container(service) as client:
            found["blobs"] = {
                blob.name: (blob.etag, blob.metadata)
                for blob in (client.list_blobs(include=["metadata"]) if client.exists() else ())
            }
    return found


def _events(consumer: BlockingConsumer, hub: str, partition_id: str, until: int) -> list[tuple[object, ...]]:
    return [
        (
            event.sequence_number,
            event.offset,
            event.enqueued_time_ms,
            hashlib.sha256(event.encoded or b"").hexdigest(),
            event.body,
        )
        for event in consumer.read_events(hub, partition_id, range(until))
    ]


async def _administered(connection_string: str) -> Contents:
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        hubs = [each for each in await administrator.list_event_hubs() if each.name != CAPTURED]
        found: Contents = {
            "hubs": {each.name: asdict(each) for each in hubs},
            "capture": await administrator.get_capture(CAPTURED),
            "tier": await administrator.get_tier(),
            "policies": await _policies(administrator, None),
        }
        for each in hubs:
            found[f"groups of {each.name}"] = await administrator.list_consumer_groups(each.name)
            found[f"policies of {each.name}"] = await _policies(administrator, each.name)
            found[f"revoked in {each.name}"] = await administrator.list_revoked_publishers(each.name)
    return found


async def _policies(administrator: EventHubAdministrator, hub: str | None) -> list[dict[str, object]]:
    """With their keys."""
    names = [each.name for each in await administrator.list_policies(hub)]
    return [asdict(await administrator.get_policy(name, event_hub=hub)) for name in names]

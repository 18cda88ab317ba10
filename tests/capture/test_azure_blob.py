"""Capture to Azure Blob Storage, as Azurite has it: files appear whole, failures are tried again."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import fastavro
import pytest
from azure.storage.blob import ContainerClient
from tests.capture.support import append_bodies, wait_until
from tests.support.azurite import AzuriteServer

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.model.capture import CaptureSettings
from tidegate.testing.proxy import CuttingProxy


def _contents(container: ContainerClient) -> dict[str, list[int]]:
    """The sequence numbers in each blob, by its name."""
    contents = {}
    for name in sorted(container.list_blob_names()):
        data = container.download_blob(name).readall()
        contents[name] = [
            record["SequenceNumber"] for record in fastavro.reader(BytesIO(data)) if isinstance(record, dict)
        ]
    return contents


async def test_files_go_to_a_container(
    broker: Broker, service: CaptureService, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials come from the environment; the container may be made later than the setting."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
    name = azurite.create_container()
    with ContainerClient.from_connection_string(azurite.connection_string(), name + "-later") as container:
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        settings = CaptureSettings(f"az://{name}-later/folder", is_empty_skipped=True)
        await broker.set_capture("hub", settings)
        await append_bodies(partition, [b"x" * 1000, b"y" * 1000])
        await wait_until(lambda: "hub" in service.statistics() and service.statistics()["hub"].is_failing)
        container.create_container()
        await wait_until(lambda: service.statistics()["hub"].captured_files == 2)
        assert _contents(container) == {
            "folder/ns/hub/0/2026/11/20/12/00/00.avro": [0],
            "folder/ns/hub/0/2026/11/20/12/00/01.avro": [1],
        }
        assert not service.statistics()["hub"].is_failing


async def test_an_upload_that_is_cut_is_made_again(
    broker: Broker, service: CaptureService, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line breaks within an upload; each event is in one blob all the same."""
    name = azurite.create_container()
    async with CuttingProxy("127.0.0.1", azurite.port, seed=7) as proxy:
        connection_string = azurite.connection_string(port=proxy.port)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string)
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await broker.set_capture("hub", CaptureSettings(f"az://{name}", is_empty_skipped=True))
        proxy.cut_at(b"x" * 900)
        await append_bodies(partition, [b"x" * 1000, b"y" * 1000, b"z" * 1000])
        await wait_until(lambda: "hub" in service.statistics() and _files(service) == 3, deadline_s=120.0)
        assert proxy.cut_count == 1
    with ContainerClient.from_connection_string(azurite.connection_string(), name) as container:
        assert list(_contents(container).values()) == [[0], [1], [2]]


async def test_a_name_that_somebody_gave_is_left_alone(
    broker: Broker,
    service: CaptureService,
    azurite: AzuriteServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Another service may capture a hub of the same name into the same container."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
    name = azurite.create_container()
    with ContainerClient.from_connection_string(azurite.connection_string(), name) as container:
        taken = "ns/hub/0/2026/11/20/12/00/00.avro"
        container.upload_blob(taken, b"somebody's")
        partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
        await broker.set_capture("hub", CaptureSettings(f"abfs://{name}", is_empty_skipped=True))
        await append_bodies(partition, [b"x" * 1000])
        await wait_until(lambda: service.statistics().get("hub") and _files(service) == 1)
        assert container.download_blob(taken).readall() == b"somebody's"
        assert list(container.list_blob_names()) == [taken, "ns/hub/0/2026/11/20/12/00/01.avro"]


def _files(service: CaptureService) -> int:
    return service.statistics()["hub"].captured_files

"""Capture whose state is of a partition that was restored from a backup since stops with an error."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.capture.conftest import small_limits
from tests.capture.support import append_bodies, capture_files, captured_numbers, wait_until
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.model.capture import CaptureSettings
from tidegate.server.opening import open_broker


@asynccontextmanager
async def _running(root: Path, clock: SetClock) -> AsyncIterator[tuple[Broker, CaptureService]]:
    broker = await open_broker(root / "data", clock=clock)
    service = CaptureService(
        broker, namespace="ns", directory=root / "data" / "capture", clock=clock, limits_of=small_limits
    )
    service.start()
    yield broker, service
    await service.close()
    await broker.close()


@pytest.mark.slow
async def test_capture_stops_at_a_restored_partition_that_has_grown_again(
    tmp_path: Path, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not one of the new events is in a file, or skipped; a plain restart and a whole backup stop nothing."""
    files = tmp_path / "files"

    async def capture(broker: Broker, service: CaptureService, count: int, file_count: int) -> None:
        await append_bodies(broker.event_hub("hub").partition("0"), [b"event"] * count)
        hub_id = broker.event_hub("hub").description.hub_id
        await wait_until(lambda: service.progress(hub_id) and service.progress(hub_id)[0].backlog_events)
        clock.advance(61)
        await wait_until(lambda: len(capture_files(files)) == file_count)
        await wait_until(lambda: service.progress(hub_id)[0].planned_file is None)

    async with _running(tmp_path, clock) as (broker, service):
        await broker.create_event_hub("hub", partition_count=1)
        settings = CaptureSettings.from_mapping({"destination": str(files), "is_empty_skipped": True})
        await broker.set_capture("hub", settings)
        await capture(broker, service, 5, 1)
        hub_id = broker.event_hub("hub").description.hub_id
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    for number in (1, 2):
        async with _running(tmp_path, clock) as (broker, service):
            await capture(broker, service, 5, 1 + number)
    partition = tmp_path / "data" / "logs" / hub_id / "0"
    shutil.rmtree(partition)
    shutil.copytree(tmp_path / "backup" / "logs" / hub_id / "0", partition)
    async with _running(tmp_path, clock) as (broker, service):
        await append_bodies(broker.event_hub("hub").partition("0"), [b"other"] * 20)
        await wait_until(lambda: "was read in the history" in caplog.text)
        clock.advance(61)
        assert "sequence number 14 was read in the history" in service.progress(hub_id)[0].last_error
    assert captured_numbers(files) == list(range(15))
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "backup", tmp_path / "data")
    async with _running(tmp_path, clock) as (broker, service):
        await capture(broker, service, 5, 4)
    assert captured_numbers(files) == [*range(15), *range(5, 10)]

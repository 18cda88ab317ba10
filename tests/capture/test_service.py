"""Capture of a broker's hubs: changed settings, deleted hubs, failing destinations, expired events."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.capture.conftest import small_limits
from tests.capture.support import (
    START,
    append_bodies,
    append_events,
    capture_files,
    captured_numbers,
    read_capture_file,
    wait_until,
)
from tests.support.busy_threads import busy_threads
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Partition
from tidegate.capture import CaptureService
from tidegate.capture.state import CAPTURE_KEYS
from tidegate.model.capture import CaptureSettings, CaptureStatistics, WindowEnd
from tidegate.model.capture_destination import CaptureDestinations
from tidegate.model.errors import InvalidArgumentError, LogFailedError
from tidegate.model.events import EventData
from tidegate.storage.control.reading import read_files
from tidegate.storage.files import OsFiles

_NONE = CaptureStatistics()


async def _wait_files(folder: Path, count: int) -> None:
    await wait_until(lambda: len(capture_files(folder)) == count)


def _settings(destination: object, **changes: object) -> CaptureSettings:
    return CaptureSettings.from_mapping(
        {"destination": str(destination), "is_empty_skipped": True, **changes}
    )


@pytest.mark.slow
async def test_added_partitions_are_captured(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path
) -> None:
    """From their first event, although it was sent before Capture saw the partition; the others go on."""
    hub = await broker.create_event_hub("grown", partition_count=1)
    await broker.set_capture("grown", _settings(tmp_path / "files"))
    await append_bodies(hub.partitions[0], [b"one"])
    hub_id = hub.description.hub_id
    await wait_until(lambda: len(service.progress(hub_id)) == 1)
    await broker.update_event_hub("grown", partition_count=3)
    await append_bodies(hub.partitions[2], [b"two", b"three"])
    await append_bodies(hub.partitions[0], [b"four"])
    await wait_until(lambda: len(service.progress(hub_id)) == 3)
    clock.advance(60)
    await _wait_files(tmp_path / "files", 2)
    for partition_id in "02":
        assert captured_numbers(tmp_path / "files" / "ns" / "grown" / partition_id) == [0, 1]


@pytest.mark.slow
async def test_a_long_destination_is_not_logged(
    broker: Broker, service: CaptureService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the disk: a destination has up to 64 KB, and each change of it was logged twice with all."""
    caplog.set_level(logging.INFO)
    await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings(tmp_path / "files" / "/".join(["x" * 100] * 300)))
    await wait_until(lambda: "started <HubCapture hub to" in caplog.text)
    assert max(len(each.getMessage()) for each in caplog.records if "started" in each.msg) < 400


@pytest.mark.slow
async def test_events_come_out_as_they_went_in(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path
) -> None:
    """Files of all partitions, with the documented names, schema and contents; also what was there before."""
    hub = await broker.create_event_hub("Telemetry", partition_count=2)
    first, second = hub.partitions
    await append_events(first, [EventData(b"one", {"n": 1}, content_type="text/plain")], "key")
    await broker.set_capture("telemetry", _settings(tmp_path / "files"))
    clock.advance(10)
    await append_bodies(first, [b"two", b"three"])
    await append_bodies(second, [b"four"])
    clock.advance(60)
    await wait_until(lambda: len(capture_files(tmp_path / "files")) == 2)
    names = [str(path.relative_to(tmp_path / "files")) for path in capture_files(tmp_path / "files")]
    assert names == [
        "ns/Telemetry/0/2026/11/20/12/00/00.avro",
        "ns/Telemetry/1/2026/11/20/12/00/10.avro",
    ]
    start_ms = int(START.timestamp() * 1000)
    later = {"x-opt-enqueued-time": start_ms + 10_000}
    standard = {"x-opt-enqueued-time": start_ms, "x-opt-partition-key": "key", "content-type": "text/plain"}
    assert read_capture_file(tmp_path / "files" / names[0]) == [
        {
            "SequenceNumber": number,
            "Offset": str(number),
            "EnqueuedTimeUtc": time,
            "SystemProperties": system,
            "Properties": properties,
            "Body": body,
        }
        for number, time, system, properties, body in (
            (0, "11/20/2026 12:00:00 PM", standard, {"n": 1}, b"one"),
            (1, "11/20/2026 12:00:10 PM", later, {}, b"two"),
            (2, "11/20/2026 12:00:10 PM", later, {}, b"three"),
        )
    ]
    await wait_until(lambda: service.statistics()["Telemetry"].backlog_events == 0)
    statistics = service.statistics()["Telemetry"]
    assert (statistics.captured_files, statistics.captured_events, statistics.missing_events) == (2, 4, 0)
    assert not statistics.is_failing


@pytest.mark.slow
async def test_size_closes_a_file_at_once(broker: Broker, service: CaptureService, tmp_path: Path) -> None:
    """Without the clock moving; files within one second get names of different seconds."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    for _ in range(3):
        await append_bodies(partition, [b"x" * 500, b"y" * 500])
    await wait_until(lambda: len(capture_files(tmp_path / "files")) == 3)
    assert [path.name for path in capture_files(tmp_path / "files")] == ["00.avro", "01.avro", "02.avro"]
    assert captured_numbers(tmp_path / "files") == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("is_skipped", [False, True])
async def test_empty_windows_leave_files_unless_skipped(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path, is_skipped: bool
) -> None:
    """The sign of life begins with the first event, and has the schema and no records."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    await broker.set_capture("hub", _settings(tmp_path / "files", is_empty_skipped=is_skipped))
    await append_bodies(partition, [b"x"])
    expected = [1]
    for _ in range(3):
        clock.advance(60)
        await _wait_files(tmp_path / "files", 1 if is_skipped else len(expected))
        expected += [] if is_skipped else [0]
    await append_bodies(partition, [b"y" * 1000])
    expected[-1] = 1
    if is_skipped:
        expected = [1, 1]
    await _wait_files(tmp_path / "files", len(expected))
    assert [len(read_capture_file(path)) for path in capture_files(tmp_path / "files")] == expected


@pytest.mark.slow
async def test_off_pauses_and_on_goes_on(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path
) -> None:
    """What came in between is captured, nothing twice; both ways of switching off."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    on = _settings(tmp_path / "files")
    for off in (None, _settings(tmp_path / "files", is_enabled=False)):
        await broker.set_capture("hub", on)
        await append_bodies(partition, [b"x" * 1000])
        await wait_until(
            lambda: captured_numbers(tmp_path / "files")[-1:] == [partition.next_sequence_number - 1]
        )
        await broker.set_capture("hub", off)
        await wait_until(lambda: service.statistics() == {})
        await append_bodies(partition, [b"x" * 1000])
    await broker.set_capture("hub", on)
    await wait_until(lambda: len(captured_numbers(tmp_path / "files")) == 4)
    assert captured_numbers(tmp_path / "files") == [0, 1, 2, 3]


@pytest.mark.slow
async def test_files_are_listed(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path
) -> None:
    """Of all partitions, the newest first, with what closed them; also by another service, and when the hub
    is captured no longer; with the hub the list goes.
    """
    hub = await broker.create_event_hub("hub", partition_count=2)
    hub_id = hub.description.hub_id
    assert await service.files(hub_id, start=0, count=10) == ([], 0)
    files = tmp_path / "files"
    await broker.set_capture("hub", _settings(files))
    await append_bodies(hub.partition("0"), [b"x" * 600, b"x" * 600])
    await _wait_files(files, 1)
    await append_bodies(hub.partition("1"), [b"y"])
    clock.advance(60)
    await wait_until(lambda: service.statistics()["hub"].captured_files == 2)
    await broker.set_capture("hub", None)
    await wait_until(lambda: service.statistics() == {})
    for teller in (
        service,
        CaptureService(broker, namespace="ns", directory=tmp_path / "data" / "capture", clock=clock),
    ):
        listed, total = await teller.files(hub_id, start=0, count=10)
        assert total == 2
        assert [(file.partition_id, file.event_count, file.closed_by) for file in listed] == [
            ("1", 1, WindowEnd.TIME),
            ("0", 2, WindowEnd.SIZE),
        ]
        assert [file.file_bytes for file in listed] == [(files / file.name).stat().st_size for file in listed]
        start_ms = int(START.timestamp() * 1000)
        assert (listed[0].window_start_ms, listed[0].window_end_ms) == (start_ms, start_ms + 60_000)
        assert listed[0].destination == str(files)
        assert (await teller.files(hub_id, start=1, count=10))[0] == listed[1:]
    await broker.delete_event_hub("hub")
    await wait_until(lambda: not (tmp_path / "data" / "capture" / hub_id).exists())


@pytest.mark.slow
async def test_a_service_goes_on_where_the_one_before_stopped(
    broker: Broker, clock: SetClock, tmp_path: Path
) -> None:
    """Stopping flushes nothing and loses nothing: the open window's events are in the log."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    for turn in range(3):
        service = CaptureService(
            broker, namespace="ns", directory=tmp_path / "capture", clock=clock, limits_of=small_limits
        )
        service.start()
        await append_bodies(partition, [b"x" * 600, b"y" * 600])
        await wait_until(lambda turn=turn: len(capture_files(tmp_path / "files")) == turn + 1)  # type: ignore[misc]
        await append_bodies(partition, [b"z"])
        await service.close()
        assert service.statistics() == {}
    numbers = captured_numbers(tmp_path / "files")
    assert numbers == list(range(len(numbers)))


@pytest.mark.slow
async def test_a_deleted_hub_leaves_its_files_and_no_state(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path
) -> None:
    """A hub made again under its name is captured from its first event on, to names that are free."""

    async def live_and_die(expected: list[str]) -> None:
        hub = await broker.create_event_hub("hub", partition_count=1)
        await broker.set_capture("hub", _settings(tmp_path / "files"))
        await append_bodies(hub.partition("0"), [b"x" * 1000])
        await wait_until(lambda: len(capture_files(tmp_path / "files")) == len(expected))
        assert [path.name for path in capture_files(tmp_path / "files")] == expected
        listed = tmp_path / "data" / "capture" / hub.description.hub_id
        await wait_until(listed.exists)
        key = f"{CAPTURE_KEYS}{hub.description.hub_id}/0"
        assert await broker.control.read(key) is not None
        await broker.delete_event_hub("hub")
        await wait_until(lambda: not listed.exists())
        data = tmp_path / "data"
        await wait_until(lambda: key not in read_files(OsFiles(), data, is_used=True).best().cells)

    await live_and_die(["00.avro"])
    await live_and_die(["00.avro", "01.avro"])
    assert captured_numbers(tmp_path / "files") == [0, 0]


@pytest.mark.slow
async def test_a_destination_that_fails_is_tried_again_and_stops_nothing_else(
    broker: Broker, service: CaptureService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once when it begins and once when it ends; no event is lost; another hub's files go on."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.write_text("a file where the directory should be")
    for name, destination in (("bad", bad), ("good", good)):
        hub = await broker.create_event_hub(name, partition_count=1)
        await broker.set_capture(name, _settings(destination))
        await append_bodies(hub.partition("0"), [b"x" * 1000, b"y" * 1000])
    await wait_until(lambda: len(capture_files(good)) == 2)
    await wait_until(lambda: service.statistics()["bad"].is_failing)
    statistics = service.statistics()["bad"]
    assert (statistics.backlog_events, statistics.captured_files) == (2, 0)
    assert str(bad) in statistics.last_error
    bad.unlink()
    await wait_until(lambda: len(capture_files(bad)) == 2)
    assert captured_numbers(bad) == [0, 1]
    await wait_until(lambda: not service.statistics()["bad"].is_failing)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["is blocked" in record.getMessage() for record in told].count(True) == 1
    assert "has resumed" in told[-1].getMessage()


@pytest.mark.parametrize("what", ["log", "spool"])
@pytest.mark.slow
async def test_an_error_does_not_show_where_the_services_data_is(
    broker: Broker,
    service: CaptureService,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Policies of the hub see the error. The log of the service has all of it."""
    if what == "spool":
        (tmp_path / "data" / "capture").mkdir(exist_ok=True)
        (tmp_path / "data" / "capture" / "spool").write_text("a file where the directory should be")
    else:
        failed = LogFailedError(f"Reading {tmp_path / 'data' / 'logs'} failed.")
        monkeypatch.setattr(Partition, "read", AsyncMock(side_effect=failed))
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings("memory://bucket/folder"))
    await append_bodies(hub.partition("0"), [b"x" * 1000])
    await wait_until(lambda: service.statistics().get("hub", _NONE).is_failing)
    last_error = service.statistics()["hub"].last_error
    assert last_error == service.progress(hub.description.hub_id)[0].last_error
    assert last_error
    assert str(tmp_path) not in last_error
    assert str(tmp_path / "data") in caplog.text


@pytest.mark.slow
async def test_an_unknown_kind_of_destination_is_told(
    broker: Broker, service: CaptureService, tmp_path: Path
) -> None:
    """A URL that no installed library knows holds up that hub alone, until the setting is right."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings("nosuch://x/y"))
    await append_bodies(hub.partition("0"), [b"x" * 1000])
    await wait_until(lambda: "nosuch" in service.statistics().get("hub", _NONE).last_error)
    assert service.statistics()["hub"].backlog_events == 1
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    await wait_until(lambda: captured_numbers(tmp_path / "files") == [0])


@pytest.mark.slow
async def test_a_destination_of_an_earlier_catalog_is_asked_about_again(
    broker: Broker, service: CaptureService, tmp_path: Path
) -> None:
    """It holds up the hub, saying which setting allows it; nothing is written there."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    broker.capture_destinations = CaptureDestinations((str(tmp_path / "allowed"),))
    await append_bodies(hub.partition("0"), [b"x" * 1000])
    await wait_until(lambda: "capture_destinations" in service.statistics().get("hub", _NONE).last_error)
    assert not (tmp_path / "files").exists()
    for refused in (tmp_path / "files", "sftp://169.254.169.254/x"):
        with pytest.raises(InvalidArgumentError):
            await broker.set_capture("hub", _settings(refused))
    broker.capture_destinations = None
    with pytest.raises(InvalidArgumentError, match="link-local"):
        await broker.set_capture("hub", _settings("sftp://169.254.169.254/x"))


@pytest.mark.slow
async def test_whatever_fsspec_names_is_a_destination(
    broker: Broker, service: CaptureService, tmp_path: Path
) -> None:
    """Here its file system in memory; nothing is left in the spool."""
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings("memory://bucket/folder"))
    await append_bodies(hub.partition("0"), [b"x" * 1000])
    name = "/bucket/folder/ns/hub/0/2026/11/20/12/00/00.avro"
    await wait_until(lambda: MemoryFileSystem().exists(name))
    await wait_until(lambda: service.statistics()["hub"].captured_files == 1)
    MemoryFileSystem().get_file(name, str(tmp_path / "copy.avro"))
    assert [record["Body"] for record in read_capture_file(tmp_path / "copy.avro")] == [b"x" * 1000]
    assert list((tmp_path / "data" / "capture" / "spool").iterdir()) == []


@pytest.mark.slow
async def test_an_event_that_is_no_message_is_captured_as_it_is(
    broker: Broker, service: CaptureService, tmp_path: Path
) -> None:
    """The service stores what it does not understand, and such an event must not hold Capture up."""
    partition = (await broker.create_event_hub("hub", partition_count=1)).partition("0")
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    garbage = b"\x00\x53\x75\xa0\x02\xde\xad"
    await partition.append(garbage + b"no section", [len(garbage), 10])
    await append_bodies(partition, [b"x" * 1000])
    await _wait_files(tmp_path / "files", 1)
    bodies = [record["Body"] for record in read_capture_file(capture_files(tmp_path / "files")[0])]
    assert bodies == [garbage, b"no section", b"x" * 1000]


@pytest.mark.slow
async def test_events_that_retention_took_are_told(
    broker: Broker, service: CaptureService, clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Capture was held up for longer than events are kept: it says what it lost, and goes on behind that."""
    bad = tmp_path / "bad"
    bad.write_text("in the way")
    hub = await broker.create_event_hub("hub", partition_count=1, retention_hours=1)
    partition = hub.partition("0")
    await broker.set_capture("hub", _settings(bad))
    await append_bodies(partition, [b"x" * 1000, b"x" * 1000, b"z"])
    await wait_until(lambda: service.statistics().get("hub", _NONE).is_failing)
    clock.advance(2 * 3600)
    assert await broker.apply_retention() == 1
    await append_bodies(partition, [b"y" * 1000])
    bad.unlink()
    await wait_until(lambda: captured_numbers(bad) == [3])
    assert service.statistics()["hub"].missing_events == 3
    assert "has lost" in caplog.text


async def test_closing_does_not_wait_for_a_destination_that_hangs(
    broker: Broker, clock: SetClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into a library may never return: the service stops all the same."""
    import threading

    from tidegate.capture.destination import DirectoryDestination

    entered, release = threading.Event(), threading.Event()

    def hang(self: DirectoryDestination, name: str) -> bool:
        entered.set()
        release.wait()
        return False

    monkeypatch.setattr(DirectoryDestination, "exists", hang)
    hub = await broker.create_event_hub("hub", partition_count=1)
    await broker.set_capture("hub", _settings(tmp_path / "files"))
    await append_bodies(hub.partition("0"), [b"x" * 1000])
    service = CaptureService(
        broker, namespace="ns", directory=tmp_path / "capture", clock=clock, limits_of=small_limits
    )
    service.start()
    try:
        await wait_until(entered.is_set)
        async with asyncio.timeout(30):
            await service.close()
    finally:
        release.set()


async def test_capture_begins_and_ends_beside_busy_pages(
    broker: Broker, tmp_path: Path, clock: SetClock
) -> None:
    """It waited for the console's threads, 16 s behind the forms of another hub."""
    with busy_threads():
        hub_id = (await broker.create_event_hub("hub", partition_count=1)).description.hub_id
        await broker.set_capture("hub", _settings(tmp_path / "files"))
        directory = tmp_path / "capture"
        service = CaptureService(
            broker, namespace="ns", directory=directory, clock=clock, limits_of=small_limits
        )
        await service._look()
        assert list(service.statistics()) == ["hub"]
        (directory / hub_id).mkdir(parents=True, exist_ok=True)
        await broker.delete_event_hub("hub")
        await service._look()
        assert not (directory / hub_id).exists()
        await service.close()

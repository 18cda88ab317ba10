"""The service is killed while it captures, again and again: every event is in one file, and none in two."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.capture.support import capture_files, read_capture_file

from tidegate.capture.file_journal import FileJournal
from tidegate.capture.state import CAPTURE_KEYS
from tidegate.client import EventHubProducer, RetryPolicy
from tidegate.model.capture import CaptureSettings
from tidegate.model.errors import TidegateError
from tidegate.model.events import EventData
from tidegate.model.limits import CAPTURE_SIZE_WINDOW_BYTES_MIN
from tidegate.server.app import TidegateServer
from tidegate.storage.control.reading import read_files
from tidegate.storage.files import OsFiles
from tidegate.testing.hub import HubProcess, HubService

_KILLS = 4
_BODY_BYTES = 20_000
_BATCH_EVENTS = 40
_DEADLINE_S = 120.0


class Sender(threading.Thread):
    """Sends numbered events to partition 0 until it is told to stop, or the line breaks."""

    def __init__(self, connection_string: str, hub: str, prefix: str) -> None:
        super().__init__(name=f"sender {prefix}", daemon=True)
        self._connection_string = connection_string
        self._hub = hub
        self._prefix = prefix
        self.stop_requested = False
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        """Each batch is acknowledged before the next is sent."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        try:
            async with EventHubProducer.from_connection_string(
                self._connection_string, self._hub, retry=RetryPolicy(retries_max=0)
            ) as producer:
                while not self.stop_requested:
                    start = len(self.acknowledged)
                    bodies = [f"{self._prefix}-{start + index}".encode() for index in range(_BATCH_EVENTS)]
                    padded = [body.ljust(_BODY_BYTES, b".") for body in bodies]
                    await producer.send([EventData(body) for body in padded], partition_id="0")
                    self.acknowledged += bodies
        except (TidegateError, OSError):
            pass  # the service was killed


def _is_planned(data_dir: Path) -> bool:
    """Whether a file is decided and not known to be complete."""
    cells = read_files(OsFiles(), data_dir, is_used=True).best().cells
    states = [cell.value for key, cell in cells.items() if key.startswith(CAPTURE_KEYS)]
    return any(json.loads(state)["planned"] is not None for state in states)


def _has_more_files(files: Path, count: int) -> bool:
    return len(capture_files(files)) > count


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not get on"
        time.sleep(0.001)


@pytest.mark.faults
def test_killed_while_writing_files(tmp_path: Path) -> None:
    """Files are of the smallest window that users have; kills come at random moments after a decision."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    files, data_dir = tmp_path / "files", tmp_path / "data"
    settings = CaptureSettings(
        str(files), size_window_bytes=CAPTURE_SIZE_WINDOW_BYTES_MIN, is_empty_skipped=True
    )

    async def set_capture(server: TidegateServer) -> None:
        await server.broker.set_capture("hub", settings)

    with HubService(data_dir) as service:
        service.create_hub("hub", partition_count=1)
        service.call(set_capture)
    acknowledged: list[bytes] = []
    with HubProcess(data_dir) as process:
        for kill in range(_KILLS):
            sender = Sender(process.connection_string, "hub", f"life{kill}")
            sender.start()
            _wait_until(partial(_has_more_files, files, len(capture_files(files))))
            _wait_until(lambda: _is_planned(data_dir))
            time.sleep(chance.uniform(0.0, 0.2))
            process.kill()
            sender.join(_DEADLINE_S)
            assert not sender.is_alive()
            acknowledged += sender.acknowledged
            process.start()
        # What is beyond the last full window would come with time: 10 MB more make it come now.
        sender = Sender(process.connection_string, "hub", "last")
        sender.start()
        _wait_until(lambda: len(sender.acknowledged) * _BODY_BYTES > 2 * CAPTURE_SIZE_WINDOW_BYTES_MIN)
        sender.stop_requested = True
        sender.join(_DEADLINE_S)
        assert not sender.is_alive()

        def is_all_there() -> bool:
            return set(acknowledged) <= {record["Body"].rstrip(b".") for record in _records(files)}

        deadline = time.monotonic() + _DEADLINE_S
        while not is_all_there():
            assert time.monotonic() < deadline, "events are missing from the files"
            time.sleep(0.5)
    numbers = [record["SequenceNumber"] for record in _records(files)]
    assert numbers == list(range(len(numbers)))
    assert len(capture_files(files)) > _KILLS
    (directory,) = (data_dir / "capture").glob("*/")
    listed, _ = FileJournal(directory).newest(start=0, count=10_000)
    written = [path.relative_to(files).as_posix() for path in capture_files(files)]
    assert [file.name for file in reversed(listed)] == written


def _records(files: Path) -> list[dict[str, Any]]:
    return [record for path in capture_files(files) for record in read_capture_file(path)]

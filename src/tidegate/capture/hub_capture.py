"""The capture of one event hub: its destination, and one ``PartitionCapture`` per partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tidegate.broker import ControlLog, EventHub
from tidegate.capture.destination import CaptureDestinationError, Destination, open_destination
from tidegate.capture.file_journal import FileJournal
from tidegate.capture.partition_capture import CaptureContext, PartitionCapture
from tidegate.capture.state import StateStore
from tidegate.capture.turns import EncodingShare, EncodingTurns
from tidegate.capture.window import WindowLimits
from tidegate.model.capture import CaptureProgress, CaptureSettings, CaptureStatistics
from tidegate.model.capture_destination import CaptureDestinations
from tidegate.model.clock import Clock
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads
from tidegate.wire.capture import capture_file_name

_FILES_AT_A_TIME = 2
"""Per hub. Our choice: one file is encoded while another is sent."""
_RETRY_S_MIN, _RETRY_S_MAX = 1.0, 60.0

_logger = logging.getLogger(__name__)


class HubCapture:
    """Captures one event hub from construction until ``close``."""

    def __init__(
        self,
        event_hub: EventHub,
        settings: CaptureSettings,
        *,
        control: ControlLog,
        namespace: str,
        directory: Path,
        journal: FileJournal,
        clock: Clock,
        encoding_turns: EncodingTurns,
        limits: WindowLimits,
        allowed: CaptureDestinations | None = None,
    ) -> None:
        """control: has the states. directory: for files in progress with a remote destination.
        journal: lists the finished files. allowed: where it may write; None: anywhere.
        """
        self.settings = settings
        self._event_hub = event_hub
        self._control = control
        self._directory = directory
        self._hub_id = event_hub.description.hub_id
        self._namespace = namespace
        self._allowed = allowed
        self._threads = Threads(_FILES_AT_A_TIME + 1, name=f"tidegate-capture {event_hub.name}")
        self._opened: asyncio.Future[Destination] = asyncio.get_running_loop().create_future()
        self._open_error = ""
        self._tasks = TaskOwner(f"capture of {event_hub.name}")
        self._tasks.start(self._open(), name="open")
        self._context = CaptureContext(
            destination=self._opened,
            destination_name=settings.destination,
            file_name=self._file_name,
            limits=limits,
            clock=clock,
            threads=self._threads,
            encoding=EncodingShare(encoding_turns),
            file_turns=asyncio.Semaphore(_FILES_AT_A_TIME),
            journal=journal,
            directory=directory,
        )
        self._partitions: list[PartitionCapture] = []
        self.start_partitions()  # before the destination is open, so that the backlog is reported

    async def close(self) -> None:
        """Stop: decided files are written when the hub is next captured; a running upload is abandoned."""
        await self._tasks.close()

    def progress(self) -> list[CaptureProgress]:
        """Of each partition, in order."""
        return [partition.progress() for partition in self._partitions]

    def statistics(self) -> CaptureStatistics:
        counts = [partition.counts for partition in self._partitions]
        failing = [each for each in counts if each.is_failing]
        errors = [each.last_error for each in (*failing, *counts) if each.last_error]
        return CaptureStatistics(
            captured_files=sum(each.captured_files for each in counts),
            captured_events=sum(each.captured_events for each in counts),
            captured_bytes=sum(each.captured_bytes for each in counts),
            backlog_events=sum(partition.backlog_events for partition in self._partitions),
            backlog_bytes=sum(partition.backlog_bytes for partition in self._partitions),
            missing_events=sum(each.missing_events for each in counts),
            is_failing=bool(failing or self._open_error),
            last_error=self._open_error or (errors[0] if errors else ""),
        )

    def start_partitions(self) -> None:
        """Capture those of the hub's partitions that are not captured yet."""
        for partition in self._event_hub.partitions[len(self._partitions) :]:
            partition_id = partition.partition_id
            state = StateStore(self._control, self._hub_id, partition_id)
            token = f"{self._hub_id}-{partition_id}"
            capture = PartitionCapture(partition, self._context, state_store=state, token=token)
            self._tasks.start(capture.run(), name=f"partition {partition_id}")
            self._partitions.append(capture)

    async def _open(self) -> None:
        """Open the destination; a missing library or credentials may be added later."""
        open_it: Callable[[], Destination] = partial(
            open_destination,
            self.settings.destination,
            spool_directory=self._directory / "spool",
            allowed=self._allowed,
        )
        pause_s = _RETRY_S_MIN
        while True:
            try:
                destination = await self._threads.run(open_it)
            except CaptureDestinationError as error:
                if self._open_error != str(error):
                    _logger.error("Capture of %s is blocked: %s", self._event_hub.name, error)
                self._open_error = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
            else:
                self._open_error = ""
                self._opened.set_result(destination)
                return

    def _file_name(self, partition_id: str, time_s: int) -> str:
        return capture_file_name(
            self.settings.name_format,
            namespace=self._namespace,
            event_hub=self._event_hub.name,
            partition_id=partition_id,
            time_s=time_s,
        )

    def __repr__(self) -> str:
        return f"<HubCapture {self._event_hub.name} to {self.settings.destination:.300}>"

"""Capture for all hubs of a broker: follows the catalog's settings while the service runs.

It reads the settings every second. No event is lost by that delay: a hub is captured from its first event,
or from where its capture stopped.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.broker import Broker
from tidegate.capture.file_journal import FileJournal
from tidegate.capture.state import remove_states
from tidegate.capture.turns import EncodingTurns
from tidegate.capture.window import WindowLimits
from tidegate.model.capture import CapturedFile, CaptureProgress, CaptureSettings, CaptureStatistics
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads

if TYPE_CHECKING:
    from tidegate.capture.hub_capture import HubCapture

_LOOK_S = 1.0

_logger = logging.getLogger(__name__)


class CaptureService:
    """Captures from ``start`` until ``close``; events in no file by then are captured later."""

    def __init__(
        self,
        broker: Broker,
        *,
        namespace: str,
        directory: Path,
        clock: Clock,
        limits_of: Callable[[CaptureSettings], WindowLimits] = WindowLimits.of,
    ) -> None:
        """namespace: the value of ``{Namespace}`` in names. directory: created when needed; for the list of
        each hub's files, and for files in progress. limits_of: tests use smaller windows than settings may.
        """
        self._broker = broker
        self._namespace = namespace
        self._directory = directory
        self._clock = clock
        self._limits_of = limits_of
        self._encoding_turns = EncodingTurns()
        self._hubs: dict[str, HubCapture] = {}
        """By hub id."""
        self._journals: dict[str, FileJournal] = {}
        """By hub id, including hubs that are no longer captured."""
        self._journal_threads = Threads(2, name="tidegate-capture files")
        self._own_thread = Threads(1, name="tidegate-capture")
        self._known: set[str] | None = None
        """Ids of the hubs that there were at the last look; None: it is the first."""
        self._tasks = TaskOwner("capture")

    def start(self) -> None:
        """Start following the settings; needs a running event loop."""
        self._tasks.start(self._follow(), name="follow the settings")

    async def close(self) -> None:
        """Stop all captures, even if cancelled."""
        await self._tasks.close()
        hubs, self._hubs = list(self._hubs.values()), {}
        for hub in hubs:
            await hub.close()

    def statistics(self) -> dict[str, CaptureStatistics]:
        """By the name of each hub that is being captured."""
        return {
            event_hub.name: self._hubs[event_hub.description.hub_id].statistics()
            for event_hub in self._broker.list_event_hubs()
            if event_hub.description.hub_id in self._hubs
        }

    def progress(self, hub_id: str) -> list[CaptureProgress]:
        """The progress of each partition of a hub, in order; empty if it is not being captured."""
        hub = self._hubs.get(hub_id)
        return [] if hub is None else hub.progress()

    async def files(self, hub_id: str, *, start: int, count: int) -> tuple[list[CapturedFile], int | None]:
        """The files written for a hub, captured now or not, from the ``start``-th newest on, at most
        ``count``.

        Also returns how many are listed (the oldest are dropped, see ``CAPTURE_FILES_LISTED_BYTES_MAX``);
        None if the list cannot be read, which is logged. Cancellation: leaves no trace.
        """
        journal = self._journal(hub_id)
        try:
            return await self._journal_threads.run(lambda: journal.newest(start=start, count=count))
        except OSError as error:
            _logger.warning("The list of captured files cannot be read: %s", error)
            return [], None

    def _journal(self, hub_id: str) -> FileJournal:
        journal = self._journals.get(hub_id)
        if journal is None:
            journal = self._journals[hub_id] = FileJournal(self._directory / hub_id)
        return journal

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        """Start, stop and replace captures to match the catalog, and capture added partitions."""
        wanted = {}
        known = set()
        for event_hub in self._broker.list_event_hubs():
            description = event_hub.description
            known.add(description.hub_id)
            if description.capture is not None and description.capture.is_enabled:
                wanted[description.hub_id] = (event_hub, description.capture)
        for hub_id, hub in list(self._hubs.items()):
            if hub_id not in wanted or wanted[hub_id][1] != hub.settings:
                del self._hubs[hub_id]
                await hub.close()
                _logger.info("stopped %r", hub)
        if wanted.keys() - self._hubs.keys():
            # Imported here: with it come the codecs of Avro, which few services need; in a thread, because it
            # takes a tenth of a second.
            await self._own_thread.run_whole(partial(import_module, "tidegate.capture.hub_capture"))
            from tidegate.capture.hub_capture import HubCapture
        for hub_id, (event_hub, settings) in wanted.items():
            if hub_id not in self._hubs:
                hub = self._hubs[hub_id] = HubCapture(
                    event_hub,
                    settings,
                    control=self._broker.control,
                    namespace=self._namespace,
                    directory=self._directory,
                    journal=self._journal(hub_id),
                    clock=self._clock,
                    encoding_turns=self._encoding_turns,
                    allowed=self._broker.capture_destinations,
                    limits=self._limits_of(settings),
                )
                _logger.info("started %r", hub)
            self._hubs[hub_id].start_partitions()
        gone = (self._known or set()) - known
        for hub_id in gone:
            self._journals.pop(hub_id, None)
            remove = partial(shutil.rmtree, self._directory / hub_id, ignore_errors=True)
            await self._own_thread.run_whole(remove)
        if gone or self._known is None:
            try:
                await remove_states(self._broker.control, known)
            except TidegateError as error:
                _logger.warning("States of deleted hubs are left for the next start: %s", error)
        self._known = known

    def __repr__(self) -> str:
        return f"<CaptureService hubs={len(self._hubs)}>"

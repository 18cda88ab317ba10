"""Reads the status files of a state directory every few seconds.

A file is read again when it has changed. The last minutes of each pipeline are kept, even without viewers, so
that a page that is opened after an incident shows what came before.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple, Self

from tidegate.broker import Action, AuditTrail
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, NotFoundError, StoreUnavailableError, TidegateError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus, ProcessIdentity
from tidegate.transport.status_files import PipelineFiles, ask_to_stop
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads

SAMPLE_EVERY_S: Final = 2.0
HISTORY_S: Final = 300.0
"""Seconds for which samples are kept."""
SILENCE_S: Final = 15.0
"""Three missing reports: a pipeline writes every 5 s (``spark.progress_report.HEARTBEAT_S``)."""
LOG_TAIL_BYTES: Final = 48 * 1024

_FRESH_S: Final = 0.5
"""Seconds for which a reading is shared by all viewers."""
_log = logging.getLogger(__name__)

_Look = dict[str, PipelineStatus | TidegateError]


class PipelineSample(NamedTuple):
    """The rates of a pipeline at one moment, by its status file. None: not known."""

    at: datetime
    input_events_per_s: float | None
    processed_events_per_s: float | None


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline that ran here at least once."""

    name: str
    status: PipelineStatus
    """The current status: ``killed`` if its process ended without reporting."""
    history: Sequence[PipelineSample]
    """Of the last minutes, the oldest first; empty if it has not run."""
    silent_s: float | None
    """Seconds since the last report of a running process, if it is overdue."""
    is_stop_asked: bool
    """Whether the console asked it to stop, and it has not stopped yet."""


@dataclass(frozen=True, slots=True)
class PipelineList:
    """All pipelines, by name."""

    entries: Sequence[PipelineEntry]
    unreadable: Mapping[str, TidegateError]
    """Pipelines whose status file cannot be read."""


class ReportedPipelines:
    """Pipelines that report below a state directory. An async context manager, which samples."""

    def __init__(self, files: PipelineFiles, clock: Clock, audit: AuditTrail) -> None:
        """audit: records who stops pipelines."""
        self._files = files
        self._clock = clock
        self._audit = audit
        self._threads = Threads(1, name="console-pipelines")
        self._tasks = TaskOwner("console: pipelines")
        self._over: dict[str, tuple[int, PipelineStatus]] = {}
        """Of ended pipelines: the file version (its time of change), and what was read. Only for the thread.
        """
        self._look: _Look = {}
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._history: dict[tuple[str, str], deque[PipelineSample]] = {}
        """By name and event hub: a name may be used again for another hub."""
        self._asked: dict[str, ProcessIdentity] = {}
        """Processes already asked to stop: a second signal would end them immediately."""

    async def __aenter__(self) -> Self:
        self._tasks.start(self._sample(), name="sampler")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.close()

    @property
    def directory(self) -> str:
        """The directory of the status files."""
        return str(self._files.root)

    async def pipelines(self) -> PipelineList:
        """All pipelines. Raises StoreUnavailableError if the directory cannot be read."""
        found = await self._fresh_look()
        return PipelineList(
            [self._entry(name, item) for name, item in found.items() if isinstance(item, PipelineStatus)],
            {name: item for name, item in found.items() if isinstance(item, TidegateError)},
        )

    async def pipeline(self, name: str, *, is_every_seen: bool) -> PipelineEntry:
        """One pipeline. Raises NotFoundError, InvalidArgumentError (a damaged file), StoreUnavailableError.

        is_every_seen: whether the user may see all pipelines; False: one that cannot be read is not found, as
        nothing says which hub it is of. Only names found in the directory are used as file names.
        """
        found = (await self._fresh_look()).get(name)
        if found is None or (isinstance(found, TidegateError) and not is_every_seen):
            raise absent_pipeline(name)
        if isinstance(found, TidegateError):
            raise found
        return self._entry(name, found)

    async def log_tail(self, entry: PipelineEntry) -> tuple[str, str]:
        """Path, and end, of Spark's log of that run; empty once another run of that name has begun.

        Raises StoreUnavailableError.
        """
        return await self._threads.run(partial(self._read_log, entry.name, entry.status))

    async def stop(
        self, name: str, require_right: Callable[[PipelineEntry], None], *, is_every_seen: bool
    ) -> bool:
        """Ask a pipeline to stop gracefully, without waiting; False if it does not run.

        require_right: called with what runs under that name now, directly before it is asked; raises if the
        user may not stop it. Does nothing while it is stopping, because a second signal would interrupt its
        work. Raises as ``pipeline``, and ForeignPipelineError if it cannot be reached from here.
        """
        self._looked_at = float("-inf")  # read the current state
        entry = await self.pipeline(name, is_every_seen=is_every_seen)
        require_right(entry)
        if entry.status.state.is_over:
            return False
        if entry.is_stop_asked or entry.status.state is PipelineState.STOPPING:
            return True
        # Not in a thread: the right could end while this waits for one. It reads two small files of /proc.
        is_asked = ask_to_stop(entry.status)
        if is_asked:
            self._asked[name] = entry.status.process
            self._audit.record(Action.STOP_PIPELINE, entry.status.event_hub, new={"pipeline": name})
        return is_asked

    def _entry(self, name: str, status: PipelineStatus) -> PipelineEntry:
        is_asked = self._asked.get(name) == status.process and not status.state.is_over
        silent_s: float | None = None
        if not status.state.is_over:
            silent_s = (self._clock.now_utc() - status.updated_at).total_seconds()
        return PipelineEntry(
            name,
            status,
            tuple(self._history.get((name, status.event_hub), ())),
            silent_s if silent_s is not None and silent_s > SILENCE_S else None,
            is_asked or status.state is PipelineState.STOPPING,
        )

    # --- reading ------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        complaint = ""
        while True:
            try:
                self._remember(await self._fresh_look(), self._clock.now_utc())
            except StoreUnavailableError as error:
                if error.message != complaint:
                    complaint = error.message
                    _log.warning("%s", error)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def _remember(self, found: _Look, now: datetime) -> None:
        for name, status in found.items():
            if isinstance(status, PipelineStatus) and not status.state.is_over:
                samples = self._history.setdefault((name, status.event_hub), deque())
                sample = PipelineSample(now, status.input_events_per_s, status.processed_events_per_s)
                samples.append(sample)
        for key, samples in list(self._history.items()):
            while samples and samples[0].at < now - timedelta(seconds=HISTORY_S):
                samples.popleft()
            if not samples:
                del self._history[key]
        for name in self._asked.keys() - found.keys():
            del self._asked[name]

    async def _fresh_look(self) -> _Look:
        async with self._looking:
            if self._clock.monotonic() - self._looked_at > _FRESH_S:
                self._look = await self._threads.run(self._look_now)
                self._looked_at = self._clock.monotonic()
            return self._look

    def _look_now(self) -> _Look:
        try:
            names = self._files.names()
        except OSError as error:
            raise StoreUnavailableError(
                f"The directory of the pipelines' status files cannot be read: {error.strerror}.",
                next_step="Check its permissions.",
            ) from error
        found: _Look = {}
        for name in names:
            try:
                found[name] = self._read(name)
            except NotFoundError:
                continue  # deleted
            except InvalidArgumentError as error:
                found[name] = error
            except OSError as error:
                found[name] = StoreUnavailableError(
                    f"The status of {name} cannot be read: {error.strerror}.",
                    next_step="Check its permissions.",
                )
        self._over = {name: read for name, read in self._over.items() if name in found}
        return found

    def _read(self, name: str) -> PipelineStatus:
        version = os.stat(self._files.root / name / "status.json").st_mtime_ns
        known = self._over.get(name)
        if known is not None and known[0] == version:
            return known[1]
        status = self._files.read(name)
        if status.state.is_over:
            self._over[name] = version, status
        return status

    def _read_log(self, name: str, status: PipelineStatus) -> tuple[str, str]:
        path = self._files.log_file(name)
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - LOG_TAIL_BYTES))
                content = file.read(LOG_TAIL_BYTES)
            # A run removes the log, writes its status, then its log: as long as the status is still of this
            # run, so is what was read.
            now = self._files.read(name)
        except (FileNotFoundError, NotFoundError, InvalidArgumentError):
            return str(path), ""
        except OSError as error:
            raise StoreUnavailableError(
                f"The log of {name} cannot be read: {error.strerror}.", next_step="Check its permissions."
            ) from error
        if _run_of(now) != _run_of(status):
            return str(path), ""
        if start:
            content = content.partition(b"\n")[2]
        return str(path), content.decode(errors="replace")


def absent_pipeline(name: str) -> NotFoundError:
    """The error for a pipeline that has not run here, or that the user may not see."""
    return NotFoundError(
        f"No pipeline of the name {name[:80]!r} has run on this machine.",
        next_step="Those that have are listed under Pipelines.",
    )


def _run_of(status: PipelineStatus) -> tuple[object, ...]:
    return status.event_hub, status.process, status.started_at

"""Keeps N host processes running: one that ends is started again, up to a limit; all end together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.cli.hosts.report import DECODER, HostReport
from tidegate.cli.shell.exit_codes import ExitCode
from tidegate.model.clock import Clock
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.server.log_format import LogFormat
from tidegate.transport.tasks import TaskOwner

_logger = logging.getLogger(__name__)

WINDOW_S: Final = 600.0
"""Restarts count for so long (our choice)."""
_PAUSE_S_MAX: Final = 30.0
_LINE_BYTES_MAX: Final = 1 << 24


class HostProcessFailedError(TidegateError):
    """A host process ended more often than it may be restarted; the others were stopped."""


@dataclass(slots=True)
class RestartPolicy:
    """When a process that ended is started again: after 1 s, 2 s, 4 s, … up to 30 s, and at most
    ``restarts_max`` times within ``WINDOW_S``. Pure: time is passed in.
    """

    restarts_max: int
    _restarted_at: deque[float] = field(default_factory=deque)

    def next_pause_s(self, now: float) -> float | None:
        """The pause before the next start, which counts as a restart; None: not again. now: monotonic."""
        while self._restarted_at and now - self._restarted_at[0] >= WINDOW_S:
            self._restarted_at.popleft()
        if len(self._restarted_at) >= self.restarts_max:
            return None
        self._restarted_at.append(now)
        return min(2.0 ** (len(self._restarted_at) - 1), _PAUSE_S_MAX)


class Supervisor:
    """Runs the processes; ``run`` it once."""

    def __init__(
        self, address: str, count: int, *, restarts_max: int, log_format: LogFormat, clock: Clock
    ) -> None:
        """address: of the host. restarts_max: of each process, see ``RestartPolicy``."""
        self.reports: dict[int, HostReport] = {}
        """The latest report of each running process, by its number."""
        self.restarts = 0
        self._address = address
        self._count = count
        self._restarts_max = restarts_max
        self._log_format = log_format
        self._clock = clock
        self._ending = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Keep all processes running until this is cancelled; returns when all have ended in order.

        Raises HostProcessFailedError when one has ended too often, and InvalidArgumentError when one refused
        its arguments (its own message says why); the others are ended first.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fail(error: BaseException) -> None:
            if not failed.done():
                failed.set_exception(error)

        # Not closed before the end: what it awaits is each process's orderly end.
        async with TaskOwner("host processes", on_failure=fail) as tasks:
            keepers = [
                tasks.start(self._keep(number), name=f"process {number}")
                for number in range(1, self._count + 1)
            ]
            try:
                await failed
            except asyncio.CancelledError:
                pass  # hosts ordinarily end by being stopped
            finally:
                self._end()
                await asyncio.wait(keepers)

    def _end(self) -> None:
        self._ending.set()
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def _keep(self, number: int) -> None:
        policy = RestartPolicy(self._restarts_max)
        for starts in range(sys.maxsize):
            if self._ending.is_set():
                return
            suffix = f"-{number}" if not starts else f"-{number}.{starts}"
            async with self._started(number, suffix) as process:
                code = await process.wait()
            if self._ending.is_set():
                return
            if code == ExitCode.USAGE:
                raise InvalidArgumentError(f"Process {number} could not start its host; see above.")
            pause_s = policy.next_pause_s(self._clock.monotonic())
            if pause_s is None:
                raise HostProcessFailedError(
                    f"Host process {number} has ended again, {_ending(code)}, after {self._restarts_max} "
                    f"restarts in {WINDOW_S / 60:.0f} min. The other processes were stopped.",
                    next_step="See the log above for the cause; --restarts allows more.",
                )
            _logger.warning(
                "Host process %d has ended, %s; it starts again in %.0f s", number, _ending(code), pause_s
            )
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()

    @asynccontextmanager
    async def _started(self, number: int, suffix: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A started process, whose reports are read while it runs."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tidegate.cli.hosts.process"),
                *(self._address, suffix, str(writing), self._log_format.value),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(writing,),
                # Ctrl-C reaches only the parent, which ends them in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        _logger.info("Host process %d has started: process id %d", number, process.pid)
        self._running[number] = process
        if self._ending.is_set():  # meanwhile
            self._end()
        async with TaskOwner(f"host process {number}") as tasks:
            tasks.start(self._read_reports(number, reading), name="reports")
            try:
                yield process
            finally:
                del self._running[number]
        self.reports.pop(number, None)

    async def _read_reports(self, number: int, descriptor: int) -> None:
        reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
        with os.fdopen(descriptor, "rb") as file:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), file
            )
            try:
                async for line in reader:
                    with contextlib.suppress(msgspec.DecodeError):  # cut off by the process's death
                        self.reports[number] = DECODER.decode(line)
            finally:
                transport.close()


def _ending(code: int) -> str:
    """How a process ended."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

"""Runs one host in this process until it is stopped, reports its progress, and ends it in order.

As a program (``python -m tidegate.cli.hosts.process``), it is a child of ``tidegate host run --processes``:
its reports go to the parent through a pipe. When the parent has ended, so does the host, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from tidegate.cli.hosts.report import ENCODER, HostReport
from tidegate.cli.shell.exit_codes import exit_code_of
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.render import counted, guard_standard_error, remark
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.limits import spelled_group
from tidegate.processor.declared import load_declared
from tidegate.server.log_format import LogFormat, start_logging
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner

if TYPE_CHECKING:
    from tidegate.processor import EventProcessorHost

_logger = logging.getLogger("tidegate.cli.hosts.process")  # a child is __main__

REPORT_INTERVAL_S: Final = 1.0
_REPORTS_PER_LINE: Final = 10
"""Reports per line of progress in the log."""


def load_host(address: str) -> EventProcessorHost:
    """The host at an address, or the one that the function there returns.

    Raises InvalidArgumentError, also if it has no handler.
    """
    from tidegate.processor import EventProcessorHost

    host = load_declared(address, (EventProcessorHost,), noun="host")
    assert isinstance(host, EventProcessorHost)
    if host.handler is None:
        raise InvalidArgumentError(
            f"The host {address} has no handler.", next_step="Write EventProcessorHost(…, handler=handle)."
        )
    return host


async def run_host(host: EventProcessorHost, report: Callable[[HostReport], None]) -> None:
    """Run a host until it is cancelled or unregistered; returns when its calls have ended, their checkpoints
    are written and its leases released.

    report: called now and then, and once at the end; if it raises BrokenPipeError, the host ends.
    Raises what ``EventProcessorHost.wait`` raises.
    """
    try:
        # A host ordinarily ends by being stopped.
        with contextlib.suppress(asyncio.CancelledError):
            async with (
                host.running(is_sigterm_handled=False),
                TaskOwner(f"reports of host {host.host_name}") as tasks,
            ):
                group = f"{host.group.event_hub}/{spelled_group(host.group.consumer_group)}"
                _logger.info("Host %s runs: %s", host.host_name, group)
                tasks.start(_report_forever(host, report), name="report")
                await host.wait()
    finally:
        async with contextlib.AsyncExitStack() as last:  # closes the rest whatever fails
            for manager in (host.leases, host.checkpoints, host.dead_letters):
                close = getattr(manager, "close", None)
                if close is not None:
                    last.push_async_callback(close)
        with contextlib.suppress(BrokenPipeError):
            report(HostReport.of(host))
    events = counted(host.statistics().events_total, "event")
    _logger.info("Host %s has stopped: %s processed", host.host_name, events)


async def _report_forever(host: EventProcessorHost, report: Callable[[HostReport], None]) -> None:
    logged = 0
    while True:
        for _ in range(_REPORTS_PER_LINE):
            try:
                report(HostReport.of(host))
            except BrokenPipeError:
                _logger.warning("Host %s: its parent process has ended; the host ends, too", host.host_name)
                await host.unregister()
                return
            await asyncio.sleep(REPORT_INTERVAL_S)
        found = host.statistics()
        if found.events_total != logged:
            rate = (found.events_total - logged) / (_REPORTS_PER_LINE * REPORT_INTERVAL_S)
            _logger.info(
                "Host %s: %s, %s, %.0f events/s",
                host.host_name,
                counted(len(found.partitions), "partition"),
                counted(found.events_total, "event"),
                rate,
            )
            logged = found.events_total


async def _run_child(host: EventProcessorHost, descriptor: int) -> None:
    pipe = _ParentPipe()
    with os.fdopen(descriptor, "wb") as file:
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: pipe, file)
        try:
            await run_host(host, pipe.report)
        finally:
            transport.close()
            with contextlib.suppress(TimeoutError):  # a parent that does not read
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await pipe.has_closed.wait()


class _ParentPipe(asyncio.Protocol):
    """The pipe to the parent. It never makes the host wait: without room for a report, it drops it."""

    def __init__(self) -> None:
        self.has_closed = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has no such class

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.has_closed.set()

    def report(self, report: HostReport) -> None:
        """Send a report. Raises BrokenPipeError once the parent no longer reads."""
        if self.has_closed.is_set():
            raise BrokenPipeError
        assert self._transport is not None
        if not self._transport.get_write_buffer_size():
            self._transport.write(ENCODER.encode(report) + b"\n")


def main() -> None:
    """Run a child: ``ADDRESS SUFFIX DESCRIPTOR LOG_FORMAT``."""
    address, suffix, descriptor, log_format = sys.argv[1:]
    guard_standard_error()
    try:
        start_logging(LogFormat(log_format), sys.stderr, clock=SystemClock())
        host = load_host(address)
        host.host_name += suffix
        run_interruptible(_run_child(host, int(descriptor)))
    except (TidegateError, OSError) as error:
        remark(f"Error: {error}")
        sys.exit(exit_code_of(error))


if __name__ == "__main__":
    main()

"""What the service needs, not how fast it is: resident memory and start times, by log size and connections.

Run as ``python -m bench.footprint [--gigabytes N] [--readers N] [--connections N] [--json FILE]``. It
writes that many gigabytes into a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Figure
from tidegate.client import EventHubAdministrator, EventHubConsumer, EventHubProducer
from tidegate.model.events import EventData
from tidegate.model.limits import NON_EPOCH_RECEIVERS_MAX
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess

_PARTITIONS = 16
_EVENT_BYTES = 16 * 1024
_BATCH_EVENTS = 60
_HUB = "footprint"
_progress = Console(stderr=True)


def main() -> None:
    """Parse the options, measure, print; exit code 4 where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the log")
    parser.add_argument("--readers", type=int, default=100, help="receivers that read at once")
    parser.add_argument("--connections", type=int, default=5000, help="idle connections to hold")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    allow_open_files()
    with HubProcess(is_tls_used=True) as service:
        findings = measure(service, arguments.gigabytes, arguments.readers, arguments.connections)
    _print(findings)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(finding) for finding in findings], indent=2))
    sys.exit(0 if all(finding.is_reached for finding in findings) else 4)


def measure(service: HubProcess, gigabytes: float, readers: int, connections: int) -> list[Figure]:
    service.create_hub(_HUB, partition_count=_PARTITIONS)
    findings = [Figure("resident, empty log", _resident_mb(service), "MB", 60)]
    _progress.print(f"writing {gigabytes:g} GB …")
    asyncio.run(_publish(service, gigabytes))
    findings.append(Figure(f"resident, {gigabytes:g} GB written", _resident_mb(service), "MB", 300))
    _progress.print(f"reading with {readers} receivers …")
    peak_mb = asyncio.run(_read(service, readers))
    findings.append(Figure(f"resident at most, {readers} readers", peak_mb, "MB", 200))
    for how, end, at_most in (("a clean stop", service.stop, 0.7), ("kill -9", service.kill, 1.0)):
        findings.append(
            Figure(f"start after {how}, {gigabytes:g} GB", _restart_s(service, end), "s", at_most)
        )
    findings.append(Figure(f"resident, started on {gigabytes:g} GB", _resident_mb(service), "MB", 300))
    _progress.print(f"holding {connections} connections …")
    for face in ("plain", "TLS"):
        each_kb = asyncio.run(_hold(service, connections, is_tls_used=face == "TLS"))
        findings.append(Figure(f"each of {connections} idle {face} connections", each_kb, "KB", 50))
    return findings


async def _publish(service: HubProcess, gigabytes: float) -> None:
    body = os.urandom(_EVENT_BYTES)
    batches = int(gigabytes * 1e9 / (_EVENT_BYTES * _BATCH_EVENTS))
    async with EventHubProducer.from_connection_string(service.connection_string, _HUB) as producer:

        async def fill(partition: int) -> None:
            for _ in range(partition, batches, _PARTITIONS):
                await producer.send(
                    [EventData(body) for _ in range(_BATCH_EVENTS)], partition_id=str(partition)
                )

        await asyncio.gather(*(fill(partition) for partition in range(_PARTITIONS)))


async def _read(service: HubProcess, readers: int) -> float:
    """Each reader on a connection of its own, five to a partition and group; returns the most MB seen."""
    peak_mb = 0.0
    async with AsyncExitStack() as stack:
        receivers = []
        administrator = await stack.enter_async_context(
            EventHubAdministrator.from_connection_string(service.connection_string)
        )
        for number in range(readers):
            group = f"readers-{number // (_PARTITIONS * NON_EPOCH_RECEIVERS_MAX)}"
            if number % (_PARTITIONS * NON_EPOCH_RECEIVERS_MAX) == 0:
                await administrator.create_consumer_group(_HUB, group)
            consumer = await stack.enter_async_context(
                EventHubConsumer.from_connection_string(service.connection_string, _HUB, consumer_group=group)
            )
            receivers.append(
                await consumer.open_receiver(str(number % _PARTITIONS), EventPosition.earliest())
            )
        for _ in range(20):
            await asyncio.gather(*(receiver.receive(500, 5.0) for receiver in receivers))
            peak_mb = max(peak_mb, _resident_mb(service))
    return peak_mb


async def _hold(service: HubProcess, connections: int, *, is_tls_used: bool) -> float:
    """KB of the service's memory that each connection costs that has a token and does nothing."""
    ready = service.ready
    connection_string = ready.connection_string if is_tls_used else service.connection_string
    service.restart()  # what earlier connections have left behind would hide what these take
    before_mb = _resident_mb(service)
    async with AsyncExitStack() as stack:
        for _ in range(connections):
            consumer = await stack.enter_async_context(
                EventHubConsumer.from_connection_string(connection_string, _HUB, ca_file=ready.ca_file)
            )
            await consumer.get_partition_properties("0")
        return (_resident_mb(service) - before_mb) * 1e3 / connections


def _restart_s(service: HubProcess, end: Callable[[], None]) -> float:
    end()
    started = time.perf_counter()
    service.start()
    return time.perf_counter() - started


def _resident_mb(service: HubProcess) -> float:
    """Anonymous memory of the service: file pages are the kernel's to take back."""
    status = Path(f"/proc/{service.process_id}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def allow_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print(findings: list[Figure]) -> None:
    table = Table(title="What the service needs", title_justify="left")
    table.add_column("what")
    for column in ("figure", "unit", "at most"):
        table.add_column(column, justify="right")
    for finding in findings:
        limit = "–" if finding.at_most is None else f"{finding.at_most:g}"
        mark = "" if finding.is_reached else " !"
        table.add_row(finding.what, f"{finding.value:,.1f}{mark}", finding.unit, limit)
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    main()

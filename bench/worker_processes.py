"""What worker processes could bring: one service against two that share nothing, under the same load.

    python -m bench.worker_processes [--rounds 3] [--seconds 3] [--json FILE]

Two services, each with half the clients and a log of its own, are the bound of any split of one service's
partitions between two processes: theirs have nothing to forward and nothing to agree on. Both arrangements
have the same two processes of clients, whose messages are made beforehand, on the same cores. What the
service would gain where its clients have machines of their own is in the last column: twice, or by how much
less a core does when the other one is in use, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.measure import process_cpu_s
from bench.small_sends import Case, run_case
from tidegate.client import EventHubAdministrator, EventHubProducer
from tidegate.model.events import EventData
from tidegate.testing.hub import HubProcess
from tidegate.wire.batch import batch_envelope, wrap_event
from tidegate.wire.event_codec import encode_event

_PARTITIONS: Final = 16
_CLIENTS: Final = 2
"""Processes of clients, in both arrangements."""
_BATCH_BYTES: Final = 256_000
_READ: Final = 4
"""Partitions that receivers read."""
_FILLED: Final = 200_000
"""Events of 1 KB in each of them."""


def _batch(body_bytes: int) -> tuple[bytes, int]:
    event = encode_event(EventData(bytes(body_bytes), {"device": "d-1", "kind": "reading"}))
    count = _BATCH_BYTES // len(event)
    return batch_envelope() + wrap_event(event) * count, count


def _cases() -> list[tuple[Case, int]]:
    """Each with the events of one of its messages."""
    bulk, small = _batch(1024), _batch(100)
    return [
        (Case("ingest of 1 KB in batches", senders=4, message=bulk[0]), bulk[1]),
        (Case("ingest of 100 B in batches", senders=4, message=small[0]), small[1]),
        (Case("delivery of 1 KB", receivers=_READ, credit=2_000), 1),
        (Case("one event a send, 32 senders in each process", senders=32), 1),
        (Case("one event a send, 32 connections in each process", senders=32, connections=32), 1),
    ]


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement of an arrangement."""

    events_per_s: float
    service_us: float
    """CPU of all its services per event."""
    cores: float
    """How many of them the services kept busy."""


def _client(connection_string: str, case: Case, seconds: float, begin_s: float) -> tuple[int, float]:
    """In a process of its own: messages that were acknowledged, or events received, and the seconds."""
    hub = "sent" if case.senders else "read"
    return run_case(connection_string, hub, case, seconds, filled=_FILLED, begin_s=begin_s)


def _measure(pool: ProcessPoolExecutor, services: Sequence[HubProcess], case: Case, seconds: float) -> Load:
    begin_s = time.monotonic() + 1.0
    futures: list[Future[tuple[int, float]]] = [
        pool.submit(_client, services[number % len(services)].connection_string, case, seconds, begin_s)
        for number in range(_CLIENTS)
    ]
    time.sleep(max(0.0, begin_s - time.monotonic()))
    before_s, started_s = _cpu_s(services), time.perf_counter()
    found = [future.result() for future in futures]
    cpu_s, elapsed_s = _cpu_s(services) - before_s, time.perf_counter() - started_s
    done = sum(count for count, _ in found)
    return Load(sum(count / took_s for count, took_s in found), cpu_s / done * 1e6, cpu_s / elapsed_s)


def _cpu_s(services: Sequence[HubProcess]) -> float:
    return sum(process_cpu_s(service.process_id) for service in services)


async def _prepare(service: HubProcess, *, is_read: bool) -> None:
    string = service.connection_string
    async with EventHubAdministrator.from_connection_string(string) as administrator:
        for hub in ("sent", "read"):
            await administrator.create_event_hub(hub, partition_count=_PARTITIONS)
        await administrator.create_consumer_group("read", "g0")
    if not is_read:
        return
    event = EventData(bytes(1024), {"device": "d-1", "kind": "reading"})
    async with EventHubProducer.from_connection_string(string, "read") as producer:
        for number in range(_READ):
            await producer.enqueue_many([event] * _FILLED, partition_id=str(number))
        await producer.flush()


def _run(case: Case, per_message: int, rounds: int, seconds: float) -> dict[str, list[Load]]:
    """Services are made for each case, so that a later one does not pay for an earlier one's log."""
    found: dict[str, list[Load]] = {"one service": [], "two services": []}
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory,
        HubProcess(Path(directory) / "0") as alone,
        HubProcess(Path(directory) / "1") as first,
        HubProcess(Path(directory) / "2") as second,
        ProcessPoolExecutor(_CLIENTS, get_context("spawn")) as pool,
    ):
        for service in (alone, first, second):
            asyncio.run(_prepare(service, is_read=case.receivers > 0))
        for _ in range(rounds):
            for name, services in zip(found, ([alone], [first, second]), strict=True):
                load = _measure(pool, services, case, seconds)
                found[name].append(
                    Load(load.events_per_s * per_message, load.service_us / per_message, load.cores)
                )
    return found


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", type=Path, help="write every measurement there, too")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[Load]]] = {}
    for case, per_message in _cases():
        if arguments.only in case.name:
            print(f"{case.name} …", file=sys.stderr, flush=True)
            found[case.name] = _run(case, per_message, arguments.rounds, arguments.seconds)
    if arguments.json is not None:
        rows = {
            name: {kind: [asdict(load) for load in loads] for kind, loads in kinds.items()}
            for name, kinds in found.items()
        }
        arguments.json.write_text(json.dumps(rows, indent=2))
    Console(width=None if sys.stdout.isatty() else 110).print(_table(found))


def _table(found: dict[str, dict[str, list[Load]]]) -> Table:
    table = Table(title="Median (least to most), and the ratio of rounds in turns", title_justify="left")
    table.add_column("load")
    for column in ("one service, events/s", "two", "ratio", "CPU µs, one", "two", "without clients"):
        table.add_column(column, justify="right")
    for name, kinds in found.items():
        one, two = kinds["one service"], kinds["two services"]
        ratios = [after.events_per_s / before.events_per_s for before, after in zip(one, two, strict=True)]
        us = [median(load.service_us for load in loads) for loads in (one, two)]
        table.add_row(
            name,
            f"{median(load.events_per_s for load in one):,.0f}",
            f"{median(load.events_per_s for load in two):,.0f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{us[0]:.1f}",
            f"{us[1]:.1f}",
            f"{2 * us[0] / us[1]:.2f}",
        )
    return table


if __name__ == "__main__":
    main()

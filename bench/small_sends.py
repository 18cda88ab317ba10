"""What a small batch costs the service: CPU per event of one-event sends, and of taking few events at a time.

    python -m bench.small_sends [--before ../old] [--rounds 3] [--seconds 3] [--only TEXT] [--json FILE]

The load is our engine on plain sockets, in this process: a sender waits for the outcome of its event before
it sends the next one, a receiver for its events before it grants credit for more. The figures are the
service's CPU, in user space and in the kernel; rates are of this load on the cores that are left.
``--before`` measures another checkout in turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from azure.eventhub import EventData as SdkEventData
from azure.eventhub import EventHubProducerClient
from rich.console import Console
from rich.table import Table

from bench.measure import process_times
from tidegate.amqp.configuration import ConnectionConfiguration, Role
from tidegate.amqp.connection import Connection
from tidegate.amqp.events import CreditGranted, DeliveriesReceived, DeliveriesSettled, Event
from tidegate.amqp.link import SenderLink
from tidegate.amqp.performatives import Accepted, Source
from tidegate.client import EventHubAdministrator, EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess
from tidegate.wire.addresses import NodeAddress
from tidegate.wire.batch import BATCH_MESSAGE_FORMAT, batch_envelope, wrap_event
from tidegate.wire.event_codec import encode_event
from tidegate.wire.selector import selector_filter

PARTITIONS: Final = 16
_GROUPS: Final = 4
_FILLED: Final = 60_000
"""Events of each partition that receivers read from the beginning."""
_BODY: Final = bytes(100)
_EVENT: Final = EventData(_BODY, {"device": "d-1", "kind": "reading"})
_MESSAGE: Final = batch_envelope() + wrap_event(encode_event(_EVENT))
_READ_BYTES: Final = 1 << 18
_WARM_UP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """Clients that all do the same."""

    name: str
    senders: int = 0
    receivers: int = 0
    connections: int = 1
    """They are spread over so many."""
    credit: int = 0
    """Events that a receiver takes at a time."""
    is_link_shared: bool = False
    """Whether the senders of a connection have one link."""
    message: bytes = _MESSAGE
    """What a sender sends at a time."""


CASES: Final = (
    Case("1 sender", senders=1),
    Case("64 senders, one link", senders=64, is_link_shared=True),
    Case("64 senders, one connection", senders=64),
    Case("64 senders, 64 connections", senders=64, connections=64),
    Case("64 senders, 16 receivers at the end", senders=64, receivers=16, credit=10),
    Case("1 receiver, 1 event at a time", receivers=1, credit=1),
    Case("1 receiver, 10 events at a time", receivers=1, credit=10),
    Case("64 receivers, 1 event at a time", receivers=64, credit=1),
    Case("64 receivers, 10 events at a time", receivers=64, credit=10),
)
_SDK: Final = "1 sender, official Python SDK"


@dataclass(frozen=True, slots=True)
class Cost:
    """One measurement of the service."""

    events_per_s: float
    user_us: float
    """CPU per event."""
    kernel_us: float


class _Meter:
    """The service's CPU from now on."""

    def __init__(self, service: HubProcess) -> None:
        self._pid = service.process_id
        self._user_s, self._kernel_s = process_times(self._pid)
        self.started_s = time.perf_counter()

    def cost(self, events: int) -> Cost:
        """The cost per event since the start."""
        elapsed_s = time.perf_counter() - self.started_s
        user_s, kernel_s = process_times(self._pid)
        return Cost(
            events / elapsed_s,
            (user_s - self._user_s) / events * 1e6,
            (kernel_s - self._kernel_s) / events * 1e6,
        )


class _Peer:
    """One connection, with the links of some clients."""

    def __init__(self, target: ConnectionString, hub: str, case: Case, number: int) -> None:
        response = f"\0{target.shared_access_key_name}\0{target.shared_access_key}".encode()
        configuration = ConnectionConfiguration(
            "bench",
            hostname=target.host,
            idle_timeout_s=0.0,
            sasl_mechanism="PLAIN",
            sasl_initial_response=response,
        )
        self.done = 0
        """Events that were acknowledged, or (if the case has no senders) received."""
        self.socket = socket.create_connection((target.host, target.effective_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._credit = case.credit
        self._are_received_counted = case.senders == 0
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._engine = Connection(configuration, role=Role.CLIENT, now=0.0)
        self._engine.open()
        session = self._engine.begin_session()
        senders = range(number, case.senders, case.connections)
        self._message = case.message
        self._unsent: dict[SenderLink, int] = {}
        """The senders of each link, until it has credit."""
        for index in senders[:1] if case.is_link_shared else senders:
            partition_id = None if case.is_link_shared else str(index % PARTITIONS)
            address = NodeAddress.for_sending(hub, partition_id=partition_id).format()
            link = session.attach_sender(f"s{index}", target=address)
            self._unsent[link] = len(senders) if case.is_link_shared else 1
        position = EventPosition.latest() if case.senders else EventPosition.earliest()
        for index in range(number, case.receivers, case.connections):
            group, partition_id = f"g{index // PARTITIONS}", str(index % PARTITIONS)
            path = NodeAddress.for_receiving(hub, consumer_group=group, partition_id=partition_id).format()
            source = Source(path, filter=selector_filter(position))
            session.attach_receiver(f"r{index}", source=source).grant_credit(case.credit)
        self._flush()

    def read(self) -> None:
        """Take what has come, and answer it in one write."""
        size = self.socket.recv_into(self._buffer)
        assert size, "the service closed the connection"
        self._engine.receive_data(self._buffer[:size], now=0.0)
        while (event := self._engine.next_event()) is not None:
            self._on_event(event)
        self._flush()

    def _flush(self) -> None:
        if self._engine.has_data_to_send:
            self.socket.sendall(b"".join(self._engine.data_to_send()))

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveriesSettled(link, first, last, state):
                assert isinstance(state, Accepted), state
                self.done += last - first + 1
                self._send(link, last - first + 1)
            case CreditGranted(link):
                self._send(link, self._unsent.pop(link, 0))
            case DeliveriesReceived(link, deliveries):
                self.done += len(deliveries) if self._are_received_counted else 0
                if link.outstanding_credit == 0:
                    link.grant_credit(self._credit)
            case _:
                assert getattr(event, "error", None) is None, event

    def _send(self, link: SenderLink, count: int) -> None:
        for _ in range(count):
            link.send(self._message, message_format=BATCH_MESSAGE_FORMAT)


def run_case(
    connection_string: str,
    hub: str,
    case: Case,
    seconds: float,
    *,
    filled: int = _FILLED,
    begin_s: float = 0.0,
    on_warm: Callable[[], None] = lambda: None,
) -> tuple[int, float]:
    """Run a case for so long, or until a receiver could have read everything.

    filled: events of each partition. begin_s: warm up until then, by ``time.monotonic``, which all processes
    of a machine share; half a second at least. on_warm: is called then.
    Returns the messages that were acknowledged (or, without senders, received) from then on, and the seconds.
    """
    target = ConnectionString.parse(connection_string)
    peers = [_Peer(target, hub, case, number) for number in range(case.connections)]
    most = sys.maxsize if case.senders else case.receivers * filled * 9 // 10
    try:
        with selectors.DefaultSelector() as selector:
            for peer in peers:
                selector.register(peer.socket, selectors.EVENT_READ, peer)

            def work(seconds: float) -> int:
                until_s, done = time.perf_counter() + seconds, 0
                while time.perf_counter() < until_s and done < most:
                    for key, _ in selector.select(1.0):
                        key.data.read()
                    done = sum(peer.done for peer in peers)
                return done

            warm = work(max(_WARM_UP_S, begin_s - time.monotonic()))
            on_warm()
            started_s = time.perf_counter()
            done = work(seconds) - warm
            return done, time.perf_counter() - started_s
    finally:
        for peer in peers:
            peer.socket.close()


def measure(service: HubProcess, hub: str, case: Case, seconds: float) -> Cost:
    """The cost of a case."""
    meters: list[_Meter] = []
    done, _ = run_case(
        service.connection_string, hub, case, seconds, on_warm=lambda: meters.append(_Meter(service))
    )
    return meters[0].cost(done)


def measure_sdk(service: HubProcess, hub: str, seconds: float) -> Cost:
    """The unmodified official SDK sends one event at a time to one partition."""
    client = EventHubProducerClient.from_connection_string(service.connection_string, eventhub_name=hub)
    with client:
        client.send_event(SdkEventData(_BODY), partition_id="0")
        meter, count = _Meter(service), 0
        while time.perf_counter() < meter.started_s + seconds:
            client.send_event(SdkEventData(_BODY), partition_id="0")
            count += 1
        return meter.cost(count)


class _Service:
    """A service from one checkout, with a hub to send to and a full one to read."""

    def __init__(self, tree: Path, directory: Path, *, is_read: bool) -> None:
        os.environ["PYTHONPATH"] = str(tree / "src")  # of the service's process
        try:
            self.process = HubProcess(directory).start()
        finally:
            del os.environ["PYTHONPATH"]
        asyncio.run(self._prepare(_FILLED if is_read else 0))

    async def _prepare(self, count: int) -> None:
        string = self.process.connection_string
        async with EventHubAdministrator.from_connection_string(string) as administrator:
            for hub in ("sent", "read"):
                await administrator.create_event_hub(hub, partition_count=PARTITIONS)
                for number in range(_GROUPS):
                    await administrator.create_consumer_group(hub, f"g{number}")
        async with EventHubProducer.from_connection_string(string, "read") as producer:
            for number in range(PARTITIONS):
                await producer.enqueue_many([_EVENT] * count, partition_id=str(number))
            await producer.flush()

    def measure(self, case: Case | None, seconds: float) -> Cost:
        """case: None is the official SDK."""
        if case is None:
            return measure_sdk(self.process, "sent", seconds)
        return measure(self.process, "sent" if case.senders else "read", case, seconds)


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", type=Path, help="write every measurement there, too")
    arguments = parser.parse_args()
    trees = {"now": Path(__file__).parents[1]}
    if arguments.before is not None:
        trees = {"before": arguments.before.resolve(), **trees}
    cases: dict[str, Case | None] = {case.name: case for case in CASES} | {_SDK: None}
    cases = {name: case for name, case in cases.items() if arguments.only in name}
    is_read = any(case is not None and case.senders == 0 for case in cases.values())
    found: dict[str, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory, ExitStack() as stack:
        services = {
            name: _Service(tree, Path(directory) / name, is_read=is_read) for name, tree in trees.items()
        }
        for service in services.values():
            stack.callback(service.process.close)
        for name, case in cases.items():
            costs = found[name] = {tree: [] for tree in services}
            for _ in range(arguments.rounds):
                for tree, service in services.items():
                    costs[tree].append(service.measure(case, arguments.seconds))
    if arguments.json is not None:
        rows = {
            name: {tree: [asdict(cost) for cost in costs] for tree, costs in trees.items()}
            for name, trees in found.items()
        }
        arguments.json.write_text(json.dumps(rows, indent=2))
    Console(width=None if sys.stdout.isatty() else 110).print(_table(found))


def _table(found: dict[str, dict[str, list[Cost]]]) -> Table:
    table = Table(title="CPU of the service per event, median (least to most)", title_justify="left")
    for column in ("clients", "tree"):
        table.add_column(column)
    for column in ("events/s", "user µs", "kernel µs"):
        table.add_column(column, justify="right")
    for name, trees in found.items():
        for tree, costs in trees.items():
            user = [cost.user_us for cost in costs]
            table.add_row(
                name,
                tree,
                f"{median(cost.events_per_s for cost in costs):,.0f}",
                f"{median(user):.1f} ({min(user):.1f} to {max(user):.1f})",
                f"{median(cost.kernel_us for cost in costs):.1f}",
            )
    return table


if __name__ == "__main__":
    main()

"""An event hub for one test: a connection string for any SDK, and fault injection.

    with TestedService() as service:
        with service.event_hub() as event_hub:
            … EventHubProducerClient.from_connection_string(event_hub.connection_string) …
            event_hub.faults.cut()

In pytest, use the fixture ``event_hub``; in other languages, ``python -m tidegate.testing``. SDKs connect
through a proxy in front of the service, which cuts and delays connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from tidegate.broker import EMULATOR_KEY
from tidegate.client import BlockingConsumer, EventHubProducer, run_blocking
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, NotFoundError, ReceiverStolenError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.testing.hub import HubService
from tidegate.testing.proxy import CuttingProxy
from tidegate.transport.tasks import TaskOwner

if TYPE_CHECKING:
    from tidegate.server.app import TidegateServer

T = TypeVar("T")

_EPOCH_MAX = 2**63 - 1


class TestedService:
    """A service in this process, and the proxy that clients reach it through. A context manager."""

    __test__ = False  # pytest takes classes of this name for tests

    def __init__(
        self, *, config: Path | None = None, root_key: str | None = None, port: int = 0, http_port: int = 0
    ) -> None:
        """config: as of ``HubService``; its entities exist from the start. root_key: None generates one, or
        is the emulator's if config is in the emulator's form. port, http_port: where clients connect, 0 is
        any free port; the emulator's are 5672 and 5300.
        """
        from tidegate.server.config_file import is_emulator_file  # testing.hub names the extra it needs

        if root_key is None and config is not None and is_emulator_file(config):
            root_key = EMULATOR_KEY
        self.service = HubService(is_http_used=True, config=config, root_key=root_key, http_port=http_port)
        self._port = port
        self._proxy: CuttingProxy | None = None
        self._removals = TaskOwner("removal of tested event hubs")

    @property
    def connection_string(self) -> str:
        """For plain AMQP through the proxy, without an event hub."""
        direct = ConnectionString.parse(self.service.connection_string)
        return replace(direct, port=self.proxy.port).format()

    @property
    def proxy(self) -> CuttingProxy:
        """The proxy that cuts connections; runs on the service's event loop."""
        assert self._proxy is not None, "the service is not running"
        return self._proxy

    def __enter__(self) -> Self:
        """Raises InvalidArgumentError if a port is not available."""
        self.service.start()

        async def start_proxy(server: TidegateServer) -> CuttingProxy:
            assert self.service.ready.amqp is not None
            host, _, port = self.service.ready.amqp.rpartition(":")
            proxy = CuttingProxy(host, int(port))
            await proxy.start(self._port)
            return proxy

        try:
            self._proxy = self.service.call(start_proxy)
        except OSError as error:
            self.service.close()
            raise InvalidArgumentError(
                f"Cannot listen on 127.0.0.1:{self._port}: {error.strerror or error}.",
                next_step="Give another port; 0 is any free one.",
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        proxy, self._proxy = self._proxy, None
        try:
            self.service.call(lambda server: self._removals.close())
            if proxy is not None:
                self.service.call(lambda server: proxy.close())
        finally:
            self.service.close()

    def event_hubs(self) -> Mapping[str, TestedEventHub]:
        """The existing event hubs, by name."""
        hubs = self.service.ask(lambda server: server.broker.list_event_hubs())
        return {hub.name: TestedEventHub(hub.name, len(hub.partitions), self) for hub in hubs}

    def create(
        self,
        name: str | None = None,
        *,
        partition_count: int = 4,
        retention_hours: int | None = None,
        consumer_groups: Sequence[str] = (),
    ) -> TestedEventHub:
        """Create an event hub; name: None generates one. Raises AlreadyExistsError, InvalidArgumentError."""
        made = self.service.create_hub(name, partition_count=partition_count, retention_hours=retention_hours)

        async def add_groups(server: TidegateServer) -> None:
            for group in consumer_groups:
                await server.broker.event_hub(made).create_consumer_group(group)

        self.service.call(add_groups)
        return TestedEventHub(made, partition_count, self)

    def delete(self, name: str) -> None:
        """Delete an event hub with its events, unless the test already has."""

        self.service.call(lambda server: _delete(server, name))

    @contextmanager
    def event_hub(
        self,
        name: str | None = None,
        *,
        partition_count: int = 4,
        retention_hours: int | None = None,
        consumer_groups: Sequence[str] = (),
    ) -> Iterator[TestedEventHub]:
        """As ``create``; at the end, mends the faults and deletes the hub."""
        made = self.create(
            name,
            partition_count=partition_count,
            retention_hours=retention_hours,
            consumer_groups=consumer_groups,
        )
        try:
            yield made
        finally:
            self._leave(made.name, is_awaited=name is not None)

    def _leave(self, name: str, *, is_awaited: bool) -> None:
        """Mend the faults and delete a hub. Not awaited: the next test need not wait for the deletion."""

        async def leave(server: TidegateServer) -> None:
            _mend(server, self.proxy)
            removal = self._removals.start(_delete(server, name), name=name)
            if is_awaited:
                await removal

        self.service.call(leave)


@dataclass(frozen=True)
class TestedEventHub:
    """One event hub."""

    __test__ = False

    name: str
    partition_count: int
    _owner: TestedService = field(repr=False)

    @property
    def connection_string(self) -> str:
        """For any SDK that speaks AMQP over TCP; includes ``EntityPath``, and does not use TLS."""
        return ConnectionString.parse(self._owner.connection_string).with_entity_path(self.name).format()

    @property
    def namespace_connection_string(self) -> str:
        """The same without ``EntityPath``."""
        return self._owner.connection_string

    @property
    def partition_ids(self) -> list[str]:
        """``"0"``, ``"1"``, …"""
        return [str(number) for number in range(self.partition_count)]

    @property
    def faults(self) -> Faults:
        """The faults to inject."""
        return Faults(self._owner, self.name)

    def send(
        self, *bodies: bytes | str, partition_id: str | None = None, partition_key: str | None = None
    ) -> None:
        """Send events in one batch, bypassing all faults; for example what the code under test is to read."""

        async def send() -> None:
            async with EventHubProducer.from_connection_string(
                self._owner.service.hub_connection_string(self.name)
            ) as producer:
                events = map(EventData, bodies)
                await producer.send(events, partition_id=partition_id, partition_key=partition_key)

        run_blocking(send)

    def events(self) -> list[ReceivedEvent]:
        """All events, bypassing all faults: partition by partition, in order."""
        found: list[ReceivedEvent] = []
        with BlockingConsumer(self._owner.service.hub_connection_string(self.name)) as consumer:
            for partition in consumer.get_all_partition_properties():
                wanted = range(partition.begin_sequence_number, partition.next_sequence_number)
                found += consumer.read_events(self.name, partition.partition_id, list(wanted))
        return found


@dataclass(frozen=True)
class Faults:
    """Faults for clients until ``mend``; those of connections and throughput affect the whole service."""

    _owner: TestedService = field(repr=False)
    _event_hub: str

    def cut(self) -> int:
        """Reset every connection, as a failing network does; returns how many there were."""
        return self._ask(lambda server: self._owner.proxy.cut_now())

    def refuse(self, is_refused: bool = True) -> None:
        """Reset new connections (as if the service were down), or accept them again."""
        self._ask(lambda server: self._owner.proxy.refuse(is_refused))

    def delay(self, seconds: float) -> None:
        """Delay all data by this long, each way."""
        self._owner.proxy.delay_s = seconds

    def hold(self, is_held: bool = True) -> None:
        """Forward nothing, without an error anywhere (a dead connection), or continue."""
        self._ask(lambda server: self._owner.proxy.hold(is_held))

    def throttle(self, seconds: float) -> None:
        """Refuse sends as server-busy, and send nothing to receivers, for this long."""

        def throttle(server: TidegateServer) -> None:
            throughput = server.broker.throughput
            throughput.set_units(throughput.units or 1)
            throughput.use_up(seconds)

        self._ask(throttle)

    def steal_epoch(self, partition_id: str, consumer_group: str = DEFAULT_CONSUMER_GROUP) -> None:
        """Disconnect the readers of a partition, as a new owner with a higher epoch does.

        They may reconnect at once. Raises NotFoundError, and ReceiverStolenError if one reads with the
        highest possible epoch.
        """

        def steal(server: TidegateServer) -> None:
            partition = server.broker.event_hub(self._event_hub).partition(partition_id)
            partition.open_receiver(
                consumer_group, name="tidegate.testing", owner_level=_EPOCH_MAX, on_stolen=_ignore
            ).close()

        self._ask(steal)

    def mend(self) -> None:
        """Undo all faults."""
        self._ask(lambda server: _mend(server, self._owner.proxy))

    def _ask(self, function: Callable[[TidegateServer], T]) -> T:
        return self._owner.service.ask(function)


def _mend(server: TidegateServer, proxy: CuttingProxy) -> None:
    proxy.refuse(False)
    proxy.hold(False)
    proxy.delay_s = 0.0
    server.broker.throughput.set_units(None)


async def _delete(server: TidegateServer, name: str) -> None:
    with suppress(NotFoundError):
        await server.broker.delete_event_hub(name)


def _ignore(error: ReceiverStolenError) -> None:
    """The receiver is closed at once, so there is no one to notify."""

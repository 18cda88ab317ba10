"""An event hub for one test of yours: a connection string for any SDK, and switches for faults.

    with TestedService() as service:
        with service.event_hub() as event_hub:
            … EventHubProducerClient.from_connection_string(event_hub.connection_string) …
            event_hub.faults.cut()

In pytest it is the fixture ``event_hub``; other languages get it from ``python -m tidegate.testing``. SDKs
connect through a proxy in front of the service, which is where lines are cut and delayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.client import BlockingConsumer, EventHubProducer, run_blocking
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, NotFoundError, ReceiverStolenError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.server.app import TidegateServer
from tidegate.server.config_file import is_emulator_file
from tidegate.server.emulator_config import EMULATOR_KEY
from tidegate.testing.hub import HubService
from tidegate.testing.proxy import CuttingProxy
from tidegate.transport.tasks import TaskOwner

_EPOCH_MAX = 2**63 - 1


class TestedService:
    """A service in this process, and the proxy that clients reach it through. ``with`` it."""

    __test__ = False  # pytest takes classes of this name for tests

    def __init__(
        self, *, config: Path | None = None, root_key: str | None = None, port: int = 0, http_port: int = 0
    ) -> None:
        """config: as of ``HubService``: what is declared there is there from the start. root_key: None makes
        one up, or is the official emulator's with a file of its form, as its users have it in their
        connection strings. port, http_port: where clients connect, 0 is any free port; the emulator's are
        5672 and 5300.
        """
        if root_key is None and config is not None and is_emulator_file(config):
            root_key = EMULATOR_KEY
        self.service = HubService(is_http_used=True, config=config, root_key=root_key, http_port=http_port)
        self._port = port
        self._proxy: CuttingProxy | None = None
        self._removals = TaskOwner("removal of tested event hubs")

    @property
    def connection_string(self) -> str:
        """Through the proxy, plain AMQP, without an event hub."""
        direct = ConnectionString.parse(self.service.connection_string)
        return replace(direct, port=self.proxy.port).format()

    @property
    def proxy(self) -> CuttingProxy:
        """Where lines are cut; lives on the service's event loop."""
        assert self._proxy is not None, "the service is not running"
        return self._proxy

    def __enter__(self) -> Self:
        """Raises InvalidArgumentError for a port that cannot be had."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        proxy, self._proxy = self._proxy, None
        try:
            self.service.call(lambda server: self._removals.close())
            if proxy is not None:
                self.service.call(lambda server: proxy.close())
        finally:
            self.service.close()

    def event_hubs(self) -> Mapping[str, TestedEventHub]:
        """Those that there are, by name."""

        async def find(server: TidegateServer) -> dict[str, int]:
            hubs = server.broker.list_event_hubs()
            return {hub.name: len(hub.partitions) for hub in hubs}

        return {name: TestedEventHub(name, count, self) for name, count in self.service.call(find).items()}

    def create(
        self,
        name: str | None = None,
        *,
        partition_count: int = 4,
        retention_hours: int | None = None,
        consumer_groups: Sequence[str] = (),
    ) -> TestedEventHub:
        """A new event hub; name: None makes one up. Raises AlreadyExistsError, InvalidArgumentError."""
        made = self.service.create_hub(name, partition_count=partition_count, retention_hours=retention_hours)

        async def add_groups(server: TidegateServer) -> None:
            for group in consumer_groups:
                server.broker.event_hub(made).create_consumer_group(group)

        self.service.call(add_groups)
        return TestedEventHub(made, partition_count, self)

    def delete(self, name: str) -> None:
        """Remove an event hub with its events; nothing where the test has removed it."""

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
        """As ``create``; at the end the faults are mended and the hub is removed."""
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
        """Mend the faults and remove a hub. Not awaited: the next test, whose hub has another name, need not
        wait until the disk has forgotten this one.
        """

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
        """For any SDK that speaks AMQP over TCP; names the event hub in ``EntityPath``, asks for no TLS."""
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
        """What can be made to go wrong."""
        return Faults(self._owner, self.name)

    def send(
        self, *bodies: bytes | str, partition_id: str | None = None, partition_key: str | None = None
    ) -> None:
        """Publish events past all faults, such as what the code under test is to read; one batch."""

        async def send() -> None:
            async with EventHubProducer.from_connection_string(
                self._owner.service.hub_connection_string(self.name)
            ) as producer:
                events = [EventData(body.encode() if isinstance(body, str) else body) for body in bodies]
                await producer.send(events, partition_id=partition_id, partition_key=partition_key)

        run_blocking(send())

    def events(self) -> list[ReceivedEvent]:
        """All events there are, past all faults, partition by partition, in order."""
        found: list[ReceivedEvent] = []
        with BlockingConsumer(self._owner.service.hub_connection_string(self.name)) as consumer:
            for partition in consumer.get_all_partition_properties():
                wanted = range(partition.begin_sequence_number, partition.next_sequence_number)
                found += consumer.read_events(self.name, partition.partition_id, list(wanted))
        return found


@dataclass(frozen=True)
class Faults:
    """What goes wrong for clients until ``mend``; lines and throughput are the service's, not one hub's."""

    _owner: TestedService = field(repr=False)
    _event_hub: str

    def cut(self) -> int:
        """Reset every connection, as a network does that fails; returns how many there were."""

        async def cut(server: TidegateServer) -> int:
            return self._owner.proxy.cut_now()

        return self._owner.service.call(cut)

    def refuse(self, is_refused: bool = True) -> None:
        """Reset new connections (the service is down), or take them again."""

        async def refuse(server: TidegateServer) -> None:
            self._owner.proxy.refuse(is_refused)

        self._owner.service.call(refuse)

    def delay(self, seconds: float) -> None:
        """Hold every piece of data back for so long, each way."""

        async def delay(server: TidegateServer) -> None:
            self._owner.proxy.delay_s = seconds

        self._owner.service.call(delay)

    def hold(self, is_held: bool = True) -> None:
        """Pass nothing on, without an error anywhere (a line that has gone dead), or go on."""

        async def hold(server: TidegateServer) -> None:
            self._owner.proxy.hold(is_held)

        self._owner.service.call(hold)

    def throttle(self, seconds: float) -> None:
        """Refuse what is sent as server-busy, and send receivers nothing, for so long."""

        async def throttle(server: TidegateServer) -> None:
            throughput = server.broker.throughput
            throughput.set_units(throughput.units or 1)
            throughput.use_up(seconds)

        self._owner.service.call(throttle)

    def steal_epoch(self, partition_id: str, consumer_group: str = DEFAULT_CONSUMER_GROUP) -> None:
        """Disconnect the readers of a partition, as a new owner with a higher epoch does.

        They may come back at once. Raises NotFoundError, and ReceiverStolenError where one reads with the
        highest epoch that there is.
        """

        async def steal(server: TidegateServer) -> None:
            partition = server.broker.event_hub(self._event_hub).partition(partition_id)
            partition.open_receiver(
                consumer_group, name="tidegate.testing", owner_level=_EPOCH_MAX, on_stolen=_ignore
            ).close()

        self._owner.service.call(steal)

    def mend(self) -> None:
        """Undo all of them."""

        async def mend(server: TidegateServer) -> None:
            _mend(server, self._owner.proxy)

        self._owner.service.call(mend)


def _mend(server: TidegateServer, proxy: CuttingProxy) -> None:
    proxy.refuse(False)
    proxy.hold(False)
    proxy.delay_s = 0.0
    server.broker.throughput.set_units(None)


async def _delete(server: TidegateServer, name: str) -> None:
    with suppress(NotFoundError):
        await server.broker.delete_event_hub(name)


def _ignore(error: ReceiverStolenError) -> None:
    """A receiver that is closed at once hears of nobody."""

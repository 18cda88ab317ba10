"""The host against the real service: handlers of all kinds, joining and leaving a group, and its failures."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.processor.hosts import PLAIN, QUICK, Journal, Recorder, checkpoint_all, publish, until

from tidegate.client import Namespace, RetryPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    ClockSkewError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    UnauthorizedError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    EventProcessor,
    EventProcessorHost,
    EventProcessorOptions,
    MemoryStore,
    PartitionContext,
    PartitionState,
    ProcessorStore,
    TransactionalProcessor,
)
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.sql import Database, SqlStore
from tidegate.sql.handlers.forms import form_of
from tidegate.testing.hub import HubService
from tidegate.testing.proxy import CuttingProxy
from tidegate.transport.clock import SystemClock

IMPATIENT = RetryPolicy(retries_max=3, delay_s=0.01, delay_s_max=0.05)


def _host(service: HubService, hub: str, store: ProcessorStore, **arguments: Any) -> EventProcessorHost:
    given: dict[str, Any] = {"manager_options": QUICK, "options": PLAIN, **arguments}
    return EventProcessorHost(connection_string=service.hub_connection_string(hub), store=store, **given)


# --- the group --------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_service_by_two_names_has_one_group(
    hub_service: HubService, event_hub: str, tmp_path: Path
) -> None:
    """Hosts share the partitions, each of which one of them owns: with the service's id, not its name."""
    text = hub_service.hub_connection_string(event_hub)
    hosts = [
        EventProcessorHost(
            connection_string=text.replace("127.0.0.1", name),
            store=DirectoryStore(tmp_path),
            manager_options=QUICK,
            options=PLAIN,
        )
        for name in ("127.0.0.1", "localhost")
    ]
    assert hosts[0].group != hosts[1].group
    journal = Journal()

    def owned() -> list[list[str]]:
        return [sorted(host.statistics().partitions) for host in hosts]

    async with (
        hosts[0].running(factory=lambda context: Recorder(journal)),
        hosts[1].running(factory=lambda context: Recorder(journal)),
    ):
        assert hosts[0].group == hosts[1].group
        assert hosts[0].group.namespace not in ("127.0.0.1", "localhost")
        await until(lambda: sorted(owned()) == [["0"], ["1"]])
    assert len(list(tmp_path.iterdir())) == 1


# --- kinds of handlers ------------------------------------------------------------------------------------


async def test_a_class_gets_an_instance_per_partition(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """Opened, given events and closed, each by its own instance."""
    made: list[EventProcessor] = []
    journal = Journal()

    class Mine(Recorder):
        def __init__(self) -> None:
            super().__init__(journal)
            made.append(self)

    await publish(hub_service, event_hub, 3, partition_id="0")
    await publish(hub_service, event_hub, 4, partition_id="1")
    async with _host(hub_service, event_hub, store).running(Mine):
        await until(lambda: journal.count == 7)
    assert len(made) == 2
    for partition_id, count in (("0", 3), ("1", 4)):
        calls = journal.of(partition_id)
        assert (calls[0], calls[-1]) == ("open", "close shutdown")
        assert journal.numbers[partition_id] == list(range(count))


@pytest.mark.parametrize("kind", ["function", "partial", "callable object", "factory", "methods only"])
@pytest.mark.slow
async def test_every_kind_of_plain_handler_is_given_the_events(
    hub_service: HubService, event_hub: str, store: MemoryStore, kind: str
) -> None:
    """What a user may write for at-least-once processing, besides a subclass."""
    seen: list[int] = []

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        seen.extend(event.sequence_number for event in events)

    async def handle_with(extra: str, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await handle(context, events)

    class Callable:
        async def __call__(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
            await handle(context, events)

    class MethodsOnly:
        async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
            await handle(context, events)

    handlers: dict[str, dict[str, Any]] = {
        "function": {"handler": handle},
        "partial": {"handler": functools.partial(handle_with, "extra")},
        "callable object": {"handler": Callable()},
        "factory": {"factory": lambda context: handle},
        "methods only": {"handler": MethodsOnly},
    }
    await publish(hub_service, event_hub, 5)
    async with _host(hub_service, event_hub, store).running(**handlers[kind]):
        await until(lambda: len(seen) == 5)


async def test_a_factory_may_share_one_processor(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """All partitions meet in it; for one partition the calls still never overlap."""
    journal = Journal()
    shared = Recorder(journal)
    await publish(hub_service, event_hub, 3, partition_id="0")
    await publish(hub_service, event_hub, 3, partition_id="1")
    async with _host(hub_service, event_hub, store).running(factory=lambda context: shared):
        await until(lambda: journal.count == 6)
    assert journal.overlaps == 0


class _Async(EventProcessor):
    async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        pass


class _Plain(TransactionalProcessor):
    def process_events(self, context: object, events: Sequence[ReceivedEvent]) -> None:
        pass


class _Misspelt(TransactionalProcessor):
    def process_event(self, context: object, events: Sequence[ReceivedEvent]) -> None:
        pass


class _DuckPlain:
    def process_events(self, context: object, events: Sequence[ReceivedEvent]) -> None:
        pass


class _Needy(_Async):
    def __init__(self, database: str) -> None:
        self.database = database


async def _async(context: object, events: object) -> None:
    pass


def _plain(context: object, events: object) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "is_transactional", "words"),
    [
        ({}, False, "either a handler or factory"),
        ({"handler": _async, "factory": lambda context: _async}, False, "either a handler or factory"),
        ({"handler": _plain}, False, "async"),
        ({"handler": _DuckPlain}, False, "async"),
        ({"handler": _Async()}, False, "Register the class"),
        ({"handler": _Needy}, False, "factory"),
        ({"handler": int}, False, "process_events"),
        ({"handler": "process"}, False, "process_events"),
        ({"factory": _async}, False, "plain function of a context"),
        ({"handler": _plain}, True, "MemoryStore cannot commit"),
        ({"handler": _Plain}, False, "MemoryStore cannot commit"),
        ({"handler": EventProcessor}, False, "EventProcessor does not define process_events"),
    ],
)
async def test_a_handler_of_the_wrong_kind_is_one_clear_error(
    hub_service: HubService,
    event_hub: str,
    store: MemoryStore,
    arguments: dict[str, Any],
    is_transactional: bool,
    words: str,
) -> None:
    """Before anything is connected, with what to write instead; and the host can be registered afterwards."""
    host = _host(hub_service, event_hub, store, transactional=is_transactional)
    with pytest.raises(InvalidArgumentError, match=words):
        await host.register(**arguments)
    assert not host.is_registered


async def test_a_misspelt_process_events_puts_nothing_aside(
    hub_service: HubService, event_hub: str, tmp_path: Path
) -> None:
    """It would fail for each event, and every one of them become a dead letter."""
    with Database.open(f"sqlite:///{tmp_path}/host.db") as database:
        transactional_store = SqlStore(database)
        host = _host(hub_service, event_hub, transactional_store)
        with pytest.raises(InvalidArgumentError, match="_Misspelt does not define process_events"):
            await host.register(_Misspelt)
        await transactional_store.close()
    with pytest.raises(InvalidArgumentError, match="_Misspelt does not define"):
        form_of(_Misspelt())


async def test_registering_twice_is_an_error(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """The first registration goes on; after unregister another is fine."""
    host = _host(hub_service, event_hub, store)
    with pytest.raises(ClosedError):
        await host.wait()
    async with host.running(_async):
        with pytest.raises(InvalidArgumentError, match="already registered"):
            await host.register(_async)
        assert host.is_registered
    async with host.running(_async):
        pass
    await host.unregister()


async def test_a_factory_that_makes_the_wrong_kind_fails_the_host(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """It would be wrong for every partition and every time, so waiting says so."""
    host = _host(hub_service, event_hub, store)
    await host.register(factory=lambda context: _plain)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgumentError, match="async"):
        await host.wait()
    await host.unregister()


def test_what_a_host_needs_is_asked_for_when_it_is_made(store: MemoryStore) -> None:
    """No store, no place, no name: each is its own error."""
    text = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    with pytest.raises(InvalidArgumentError, match="connection string or a namespace"):
        EventProcessorHost(event_hub="hub", store=store)
    with pytest.raises(InvalidArgumentError, match="store"):
        EventProcessorHost(event_hub="hub", connection_string=text)
    with pytest.raises(InvalidArgumentError, match="event hub"):
        EventProcessorHost(connection_string=text, store=store)
    with pytest.raises(InvalidArgumentError, match="name"):
        EventProcessorHost("", "hub", connection_string=text, store=store)
    hosts = [EventProcessorHost(None, "hub", "group", text, store) for _ in range(2)]
    assert hosts[0].host_name != hosts[1].host_name
    assert "SharedAccessKey" not in repr(hosts[0])


# --- several hosts ----------------------------------------------------------------------------------------


def _owned(host: EventProcessorHost) -> set[str]:
    return set(host.statistics().partitions)


@pytest.mark.slow
async def test_two_hosts_share_the_partitions(hub_service: HubService, store: MemoryStore) -> None:
    """The second asks for its share; each partition has one owner, and nothing is lost or out of order."""
    hub = hub_service.create_hub(partition_count=4)
    journals = Journal(), Journal()
    hosts = [_host(hub_service, hub, store, host_name=name) for name in ("first", "second")]
    for partition in range(4):
        await publish(hub_service, hub, 10, partition_id=str(partition))
    async with hosts[0].running(factory=lambda context: Recorder(journals[0], checkpoint_all)):
        await until(lambda: journals[0].count == 40)
        async with hosts[1].running(factory=lambda context: Recorder(journals[1], checkpoint_all)):
            await until(lambda: len(_owned(hosts[0])) == len(_owned(hosts[1])) == 2)
            assert not _owned(hosts[0]) & _owned(hosts[1])
            for partition in range(4):
                await publish(hub_service, hub, 10, partition_id=str(partition))
            await until(lambda: journals[0].count + journals[1].count == 80)
            for partition_id in _owned(hosts[1]):
                assert journals[1].numbers[partition_id] == list(range(10, 20))
                assert hosts[1].statistics().partitions[partition_id].epoch == 2
                assert journals[0].of(partition_id)[-1] == "close shutdown"
    assert journals[0].errors == journals[1].errors == []


async def test_unregister_hands_over_at_once(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """The batch that runs is finished and checkpointed, and the leases are free when unregister returns."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    journal = Journal()

    async def slowly(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        begun.set()
        await go_on.wait()
        await context.checkpoint()

    await publish(hub_service, event_hub, 10)
    host = _host(hub_service, event_hub, store)
    await host.register(factory=lambda context: Recorder(journal, slowly))
    await begun.wait()
    async with asyncio.TaskGroup() as group:
        group.create_task(host.unregister())
        await asyncio.sleep(0)
        go_on.set()
    leases = (await store.list_leases(host.group)).leases
    assert [lease.owner for lease in leases.values()] == ["", ""]
    assert (await store.list_checkpoints(host.group))["0"].sequence_number == 9
    assert journal.of("0") == ["open", "events", "close shutdown"]
    other = Journal()
    await publish(hub_service, event_hub, 1)
    async with _host(hub_service, event_hub, store).running(
        factory=lambda context: Recorder(other, checkpoint_all)
    ):
        await until(lambda: other.numbers == {"0": [10]})


async def test_a_handler_that_does_not_end_is_cancelled_when_its_time_is_over(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """Unregister returns although a handler hangs; its batch is not checkpointed and comes again."""
    begun = asyncio.Event()
    journal = Journal()

    async def hang(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        begun.set()
        await asyncio.Event().wait()

    await publish(hub_service, event_hub, 10)
    options = EventProcessorOptions(close_timeout_s=0.1, checkpoint_every_events=1)
    host = _host(hub_service, event_hub, store, options=options)
    await host.register(factory=lambda context: Recorder(journal, hang))
    await begun.wait()
    await host.unregister()
    assert journal.of("0")[-1] == "close shutdown"
    assert await store.list_checkpoints(host.group) == {}


# --- what fails a host, and what does not -----------------------------------------------------------------


async def test_a_hub_that_is_not_there_refuses_registration(
    hub_service: HubService, store: MemoryStore
) -> None:
    """A misspelt name is told at once, and the host can be registered again."""
    host = _host(hub_service, "nowhere", store)
    with pytest.raises(NotFoundError):
        await host.register(_async)
    assert not host.is_registered


async def test_a_wrong_key_refuses_registration_and_is_not_told(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """Whoever reads the error or the log does not learn the key."""
    text = ConnectionString.parse(hub_service.hub_connection_string(event_hub)).format()
    secret = "bm90IHRoZSBrZXk="
    parts = [
        f"SharedAccessKey={secret}" if part.startswith("SharedAccessKey=") else part
        for part in text.split(";")
    ]
    host = EventProcessorHost(connection_string=";".join(parts), store=store)
    with pytest.raises(UnauthorizedError) as caught:
        await host.register(_async)
    assert secret not in f"{caught.value}{host!r}"


async def test_a_consumer_group_that_is_not_there_fails_the_host(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """It only shows when a partition is read: then waiting raises, and every lease is free again."""
    host = _host(hub_service, event_hub, store, consumer_group="nobody")
    with pytest.raises(NotFoundError, match="nobody"):
        async with host.running(_async):
            await host.wait()
    leases = (await store.list_leases(host.group)).leases
    assert {lease.owner for lease in leases.values()} <= {""}


@pytest.mark.parametrize("make", [EventProcessorHost, EventProcessorHost.from_connection_string])
@pytest.mark.slow
async def test_a_host_trusts_the_services_own_authority(
    make: Callable[..., EventProcessorHost], hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """By ca_file, however the host is made; a namespace has its own."""
    ready = hub_service.ready
    text, ca_file = ready.connection_string, ready.ca_file
    host = make(connection_string=text, event_hub=event_hub, store=store, ca_file=ca_file)
    async with host.running(_async):
        assert host.is_registered
    untrusting = make(connection_string=text, event_hub=event_hub, store=store)
    with pytest.raises(UnauthorizedError, match="ca_file"):
        await untrusting.register(_async)
    namespace = Namespace.from_connection_string(text)
    with pytest.raises(InvalidArgumentError, match="ca_file"):
        EventProcessorHost(event_hub=event_hub, store=store, namespace=namespace, ca_file=ca_file)


@pytest.mark.slow
async def test_the_service_may_restart_under_a_host(store: MemoryStore) -> None:
    """Reading goes on where it was, without a new registration, in order and without loss."""
    journal = Journal()
    with HubService() as service:
        hub = service.create_hub(partition_count=1)
        await publish(service, hub, 10)
        namespace = Namespace.from_connection_string(service.connection_string, retry=IMPATIENT)
        host = EventProcessorHost(
            event_hub=hub, namespace=namespace, store=store, manager_options=QUICK, options=PLAIN
        )
        async with host.running(factory=lambda context: Recorder(journal, checkpoint_all)):
            await until(lambda: journal.count == 10)
            await asyncio.to_thread(service.stop)
            await until(lambda: bool(journal.errors))  # so long that the receiver gives up, too
            await asyncio.to_thread(service.start)
            await publish(service, hub, 10)
            await until(lambda: journal.count == 20)
            assert host.statistics().partitions["0"].state is PartitionState.RUNNING
    assert journal.numbers == {"0": list(range(20))}


@pytest.mark.slow
async def test_partitions_that_the_hub_gets_later_are_processed(
    hub_service: HubService, store: MemoryStore
) -> None:
    """From their beginning, also where the others start at the newest event: what was sent before the host
    looked at the hub again is not left out. Partitions that it has are not disturbed.
    """
    hub = hub_service.create_hub(partition_count=1)
    await publish(hub_service, hub, 1)
    journal = Journal()
    # The hub is looked at once per lease.
    host = _host(
        hub_service,
        hub,
        store,
        options=replace(PLAIN, initial_position=EventPosition.latest()),
        manager_options=replace(QUICK, lease_duration_s=4.0),
    )
    async with host.running(factory=lambda context: Recorder(journal)):
        await until(lambda: journal.of("0") == ["open"])
        hub_service.call(lambda server: server.broker.update_event_hub(hub, partition_count=3))
        for partition_id in "12":
            await publish(hub_service, hub, 2, partition_id=partition_id)
        await until(lambda: journal.numbers == {"1": [0, 1], "2": [0, 1]})
    assert journal.of("0") == ["open", "close shutdown"]


async def test_statistics_tell_how_each_partition_is_doing(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """Position, count, time and epoch of what was processed; nothing where the host is not registered."""
    journal = Journal()
    host = _host(hub_service, event_hub, store)
    assert host.statistics().partitions == {}
    await publish(hub_service, event_hub, 7)
    async with host.running(factory=lambda context: Recorder(journal)):
        await until(lambda: host.statistics().events_processed == 7 and len(_owned(host)) == 2)
        await until(
            lambda: all(
                each.state is PartitionState.RUNNING for each in host.statistics().partitions.values()
            )
        )
        statistics = host.statistics()
        busy, idle = statistics.partitions["0"], statistics.partitions["1"]
        assert (busy.next_sequence_number, busy.events_processed, busy.epoch) == (7, 7, 1)
        assert busy.last_progress_at is not None
        assert (idle.next_sequence_number, idle.events_processed, idle.last_progress_at) == (0, 0, None)
        assert busy.error is idle.error is None
        assert "2 partitions" in repr(host)


async def test_on_exception_may_raise(hub_service: HubService, event_hub: str, store: MemoryStore) -> None:
    """What the user's own reporting raises costs the report, never the host."""

    class Unclosable(Recorder):
        async def close(self, context: object, reason: object) -> None:
            raise OSError("cannot close")

    told: list[tuple[str, str | None]] = []

    def report(error: Exception, partition_id: str | None) -> None:
        told.append((str(error), partition_id))
        raise RuntimeError("cannot report")

    journal = Journal()
    await publish(hub_service, event_hub, 1)
    options = EventProcessorOptions(on_exception=report)
    async with _host(hub_service, event_hub, store, options=options).running(
        factory=lambda context: Unclosable(journal)
    ):
        await until(lambda: journal.count == 1 and len(journal.contexts) == 2)
    assert sorted(told) == [("cannot close", "0"), ("cannot close", "1")]


@pytest.mark.slow
async def test_a_clock_that_is_set_back_does_not_end_the_host(
    hub_service: HubService, event_hub: str, store: MemoryStore
) -> None:
    """D20: its new connections are refused until the clock is right again; it reports that, and goes on."""

    class Clock(SystemClock):
        behind = timedelta(0)

        def now_utc(self) -> datetime:
            return super().now_utc() - self.behind

    clock, errors, journal = Clock(), list[Exception](), Journal()
    text = ConnectionString.parse(hub_service.hub_connection_string(event_hub))
    options = replace(PLAIN, on_exception=lambda error, _: errors.append(error))
    assert text.port is not None
    async with CuttingProxy(text.host, text.port) as proxy:
        through = replace(text, host=proxy.host, port=proxy.port).format()
        host = EventProcessorHost(
            connection_string=through,
            store=store,
            options=options,
            manager_options=replace(QUICK, lease_duration_s=3.0, renew_interval_s=0.5),
            clock=clock,
        )
        await publish(hub_service, event_hub, 3)
        async with host.running(factory=lambda context: Recorder(journal)):
            await until(lambda: journal.count == 3)
            clock.behind = timedelta(days=3)
            proxy.cut_now()
            refused_at = clock.monotonic()
            await until(
                lambda: clock.monotonic() - refused_at > 4.0 and isinstance(errors[-1], ClockSkewError)
            )
            clock.behind = timedelta(0)
            await publish(hub_service, event_hub, 3)
            await until(lambda: set(journal.numbers["0"]) == set(range(6)))

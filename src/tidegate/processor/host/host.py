"""``EventProcessorHost``: processes an event hub's partitions, sharing them with its group's other hosts.

    store = MemoryStore()                         # or directory, SQL, blob
    host = EventProcessorHost(event_hub="trips", connection_string="Endpoint=sb://…", store=store)
    async with host.running(handle):              # async def handle(context, events)
        await host.wait()

The same code works against Tidegate and against Azure Event Hubs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random as random_module
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Self, Unpack

from tidegate.client import ConnectionOptions, EventHubConsumer, Namespace
from tidegate.client.namespace import event_hub_of
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ClosedError, InvalidArgumentError, TidegateError, loggable
from tidegate.model.hub_properties import EventHubProperties
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.processor.checkpoint import CheckpointManager
from tidegate.processor.dead_letters import DeadLetterManager
from tidegate.processor.handlers import EventHandler, ProcessorFactory, TransactionalHandler
from tidegate.processor.host.name_claim import NameClaim
from tidegate.processor.host.partition_manager import PartitionManager
from tidegate.processor.host.reports import ServiceReports
from tidegate.processor.host.termination import ended_by_sigterm
from tidegate.processor.host.watchdog import Watchdog
from tidegate.processor.lease import GroupKey, LeaseManager
from tidegate.processor.options import EventProcessorOptions, PartitionManagerOptions
from tidegate.processor.pump.pump import PartitionPump
from tidegate.processor.pump.session import PumpEnvironment
from tidegate.processor.pump.shared_reads import SharedRead
from tidegate.processor.raised import as_exception, is_of_call
from tidegate.processor.registration import Registration, check_registration
from tidegate.processor.statistics import HostStatistics, HostTotals, PartitionStatistics
from tidegate.processor.store import EventRelay, ProcessorStore, PublishingStore
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner

_logger = logging.getLogger(__name__)

Handler = type | EventHandler | TransactionalHandler | object
"""A class, a function, or what a transactional store accepts: see ``EventProcessorHost.register``."""


class EventProcessorHost:
    """Owns a share of an event hub's partitions and runs a handler for each.

    Call ``register``, or use ``running``. Not thread-safe: use it on one event loop.
    """

    def __init__(
        self,
        host_name: str | None = None,
        event_hub: str | None = None,
        consumer_group: str = DEFAULT_CONSUMER_GROUP,
        connection_string: str | ConnectionString | None = None,
        store: ProcessorStore | None = None,
        options: EventProcessorOptions = EventProcessorOptions(),  # noqa: B008 - frozen, therefore safe to share
        *,
        namespace: Namespace | None = None,
        manager_options: PartitionManagerOptions = PartitionManagerOptions(),  # noqa: B008
        leases: LeaseManager | None = None,
        checkpoints: CheckpointManager | None = None,
        dead_letters: DeadLetterManager | None = None,
        transactional: bool = False,
        handler: Handler | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        """Connects when ``register`` is called.

        host_name: unique among the group's live hosts; None: machine, process and a random part.
        event_hub: None uses the connection string's EntityPath. connection_string, namespace: give one of
        them. store: keeps leases and checkpoints, but what another manager is given for; the caller closes
        all. leases, checkpoints: keep these alone; every store can. dead_letters: keeps them instead of a
        SQL store of the checkpoints. transactional: each batch is one transaction of the store of the
        checkpoints; another keeper of dead letters gets these before the commit. handler: what ``register``
        uses unless it is given one. clock, random: for tests. connection: options of the connection string's
        namespace, such as ``ca_file``.

        Raises InvalidArgumentError, ConnectionStringError.
        """
        namespace, event_hub = _chosen_hub(namespace, connection_string, event_hub, connection)
        leases, checkpoints = _chosen_managers(store, leases, checkpoints)
        self._random = random if random is not None else random_module.Random()
        self._is_named = host_name is not None
        self.host_name = host_name if host_name is not None else _make_host_name(self._random)
        """Owner of its leases, unique among the group's live hosts; it may change before ``register``."""
        if not self.host_name:
            raise InvalidArgumentError("host_name must not be empty: it is the owner of the host's leases.")
        self.event_hub = event_hub
        self.consumer_group = consumer_group
        self.group = GroupKey(namespace.host, event_hub, consumer_group, namespace.authority)
        """The consumer group; its namespace is known by its id once ``register`` has read the hub."""
        self._namespace = namespace
        self.store = store
        """As given; the caller closes it."""
        self.leases: LeaseManager = leases
        """Keeps the leases: the store, unless another was given."""
        self.checkpoints: CheckpointManager = checkpoints
        """Keeps the checkpoints: the store, unless another was given."""
        self.dead_letters = dead_letters
        """Keeps the dead letters; None: the store of the checkpoints, if it can."""
        self.handler = handler
        """What ``register`` uses unless it is given one."""
        self._totals = HostTotals()
        self._options = options
        self._manager_options = manager_options
        self._is_transactional = transactional
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._is_registering = False
        self._run: _HostRun | None = None

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        store: ProcessorStore | None = None,
        consumer_group: str = DEFAULT_CONSUMER_GROUP,
        host_name: str | None = None,
        options: EventProcessorOptions = EventProcessorOptions(),  # noqa: B008 - frozen
        manager_options: PartitionManagerOptions = PartitionManagerOptions(),  # noqa: B008 - frozen
        leases: LeaseManager | None = None,
        checkpoints: CheckpointManager | None = None,
        dead_letters: DeadLetterManager | None = None,
        transactional: bool = False,
        handler: Handler | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> Self:
        """A host for ``event_hub`` (None: the connection string's EntityPath).

        The other arguments are those of the constructor.
        """
        return cls(
            host_name,
            event_hub,
            consumer_group,
            connection_string,
            store,
            options,
            manager_options=manager_options,
            leases=leases,
            checkpoints=checkpoints,
            dead_letters=dead_letters,
            transactional=transactional,
            handler=handler,
            clock=clock,
            random=random,
            **connection,
        )

    @property
    def is_registered(self) -> bool:
        """Whether a handler is registered."""
        return self._run is not None

    async def register(
        self, handler: Handler | None = None, *, factory: ProcessorFactory | None = None
    ) -> None:
        """Start processing with ``handler``; returns once the hub has answered and the host joins its group.

        handler: a class with the methods of ``EventProcessor`` (or ``TransactionalProcessor``, which makes
        the host transactional), instantiated for each partition; or ``async def handle(context, events)``; in
        transactional processing a plain function, or anything else that the store accepts. Without a handler
        or factory, the host's own handler.
        factory: instead of handler, called with each partition's context. If it returns the same processor
        each time, that gets concurrent calls for different partitions.

        Raises InvalidArgumentError (a handler of the wrong kind, or the host is already registered),
        NotFoundError, UnauthorizedError, BrokenError, OperationTimeoutError.
        Cancellation: the host is not registered.
        """
        if self._run is not None or self._is_registering:
            raise InvalidArgumentError(
                f"Host {self.host_name!r} is already registered.",
                next_step="Call unregister first, or create another host.",
            )
        if handler is None and factory is None:
            handler = self.handler
        registration = check_registration(
            handler,
            factory,
            is_transactional=self._is_transactional,
            store=self.checkpoints,
            group=self.group,
        )
        if registration.is_transactional and self._options.invoke_after_receive_timeout:
            raise InvalidArgumentError(
                "invoke_after_receive_timeout cannot be used with a transactional host: a transaction needs "
                "events."
            )
        self._is_registering = True
        consumer = EventHubConsumer(
            self._namespace, self.event_hub, consumer_group=self.consumer_group, clock=self._clock
        )
        try:
            properties = await consumer.get_event_hub_properties()
        except BaseException:
            await consumer.close()
            raise
        finally:
            self._is_registering = False
        self.group = GroupKey.of(
            properties,
            self.consumer_group,
            host=self._namespace.host,
            authority=self._namespace.authority,
        )
        self._run = _HostRun(self, consumer, registration, properties)
        self._run.start()

    async def unregister(self) -> None:
        """Let running handler calls finish, close all partitions, and release their leases to other hosts.

        Takes at most a few ``close_timeout_s``. Does nothing if nothing is registered; the host can be
        registered again. Only ``wait`` raises the host's failure. A handler must not call this: it would wait
        for itself and be cancelled; it should set an event for the caller of ``register`` instead.
        """
        run = self._run
        if run is None:
            return
        await run.finish()
        if self._run is run:
            self._run = None

    async def wait(self) -> None:
        """Return when the host is unregistered. If the host failed, it is closed first and the error raised.

        It fails permanently if the hub or consumer group does not exist, the credential is not accepted, a
        factory returns an invalid processor, or another live host of the group has its name
        (AlreadyExistsError). Everything else is retried.
        Raises ClosedError if nothing is registered. Cancellation: the host continues.
        """
        if self._run is None:
            raise ClosedError(f"Host {self.host_name!r} is not registered.", next_step="Call register first.")
        await self._run.wait()

    @contextlib.asynccontextmanager
    async def running(
        self,
        handler: Handler | None = None,
        *,
        factory: ProcessorFactory | None = None,
        is_sigterm_handled: bool = True,
    ) -> AsyncIterator[Self]:
        """``register`` on entry, ``unregister`` on exit, which raises the host's failure.

        is_sigterm_handled: on the main thread, SIGTERM ends the block: what it waits for is cancelled, and
        the program continues after it, when running calls have ended and the leases are released. A program
        that handles SIGTERM itself keeps its handler.
        """
        await self.register(handler, factory=factory)
        run = self._run
        assert run is not None
        with ended_by_sigterm() if is_sigterm_handled else contextlib.nullcontext():
            try:
                yield self
            finally:
                await self.unregister()
        if run.failure is not None:
            raise run.failure

    def statistics(self) -> HostStatistics:
        """The owned partitions and their progress."""
        run = self._run
        partitions = {} if run is None else run.statistics()
        totals = self._totals
        relay = None if run is None else run.relay
        return HostStatistics(
            self.host_name,
            self.group,
            partitions,
            totals.events,
            totals.dead_letters,
            None if relay is None else relay.statistics(),
        )

    def __repr__(self) -> str:
        state = "not registered" if self._run is None else f"{len(self._run.statistics())} partitions"
        return f"<EventProcessorHost {self.host_name} {self.group} {state}>"


class _HostRun:
    """The tasks and connections of one registration, from ``register`` to ``unregister``."""

    def __init__(
        self,
        host: EventProcessorHost,
        consumer: EventHubConsumer,
        registration: Registration,
        hub: EventHubProperties,
    ) -> None:
        """hub: as the host found it."""
        self.failure: Exception | None = None
        self._host = host
        self._consumer = consumer
        self._options = host._options
        self._clock = host._clock
        self._refused_since: float | None = None
        self._was_served = False
        self._ended = asyncio.Event()
        self._is_finishing = False
        self._watchdog: asyncio.Task[None] | None = None
        self._supervisors = TaskOwner(f"host {host.host_name}", on_failure=self._fail)
        self._pump_tasks = TaskOwner(f"pumps of {host.host_name}", on_failure=self._fail)
        self._last_tasks = TaskOwner(f"end of {host.host_name}")
        self._hub = SharedRead(consumer.get_event_hub_properties, self._pump_tasks, name="reading the hub")
        self._environment = self._make_environment(registration)
        self._manager = self._make_manager(hub.partition_ids)
        self._partition_ids = hub.partition_ids
        self._name_claim = self._make_name_claim() if host._is_named else None
        self.relay: EventRelay | None = None
        """Sends what transactions publish, if they can."""
        if registration.is_transactional and isinstance(host.checkpoints, PublishingStore):
            owned = self._manager.pumps.keys
            self.relay = host.checkpoints.open_relay(host.group, host._namespace, owned, self._report)
        self._hub_created_at_ms = hub.created_at_ms
        self._reports = None if hub.namespace_id is None else self._make_reports()
        self._stalls = Watchdog(
            self._environment,
            self._manager.pumps,
            stall_timeout_s=host._manager_options.effective_stall_timeout_s,
        )

    def _make_environment(self, registration: Registration) -> PumpEnvironment:
        host = self._host
        group, checkpoints, dead_letters = host.group, host.checkpoints, host.dead_letters
        if dead_letters is None and not registration.is_transactional:
            dead_letters = checkpoints if isinstance(checkpoints, DeadLetterManager) else None
        return PumpEnvironment(
            group=group,
            consumer=self._consumer,
            leases=host.leases,
            lease_reads=SharedRead(
                lambda: host.leases.list_leases(group), self._pump_tasks, name="reading leases"
            ),
            checkpoint_manager=checkpoints,
            dead_letters=dead_letters,
            registration=registration,
            options=self._options,
            clock=host._clock,
            random=host._random,
            tasks=self._pump_tasks,
            hub=self._hub,
            checkpoints=SharedRead(
                lambda: checkpoints.list_checkpoints(group), self._pump_tasks, name="reading checkpoints"
            ),
            report=self._report,
            refused=self._note_refused,
            served=self._note_served,
            totals=host._totals,
        )

    def _make_manager(self, partition_ids: Sequence[str]) -> PartitionManager:
        host = self._host
        return PartitionManager(
            group=host.group,
            store=host.leases,
            owner=host.host_name,
            partition_ids=partition_ids,
            options=host._manager_options,
            clock=host._clock,
            random=host._random,
            make_pump=lambda lease: PartitionPump(self._environment, lease, self._manager.reacquire),
            on_exception=self._report,
        )

    def _make_name_claim(self) -> NameClaim:
        host = self._host
        return NameClaim(
            host.host_name,
            f"{host._random.getrandbits(64):016x}",
            group=host.group,
            store=host.leases,
            options=host._manager_options,
            clock=host._clock,
            on_exception=self._report,
        )

    def _make_reports(self) -> ServiceReports:
        return ServiceReports(
            self._host.host_name,
            self._consumer,
            self._environment.checkpoints,
            self._manager.pumps.keys,
            lambda: self._hub_created_at_ms,
            interval_s=self._host._manager_options.renew_interval_s,
        )

    def statistics(self) -> dict[str, PartitionStatistics]:
        """Statistics of each pump, by partition id."""
        return {key: pump.statistics() for key, pump in sorted(self._manager.pumps.items())}

    def start(self) -> None:
        """Start the tasks that hold leases and watch the pumps and the hub."""
        self._supervisors.start(self._hold(), name="partition manager")
        self._supervisors.start(self._follow_hub(), name="partitions of the hub")
        self._watchdog = self._supervisors.start(self._stalls.watch(), name="watchdog")
        if self._reports is not None:
            self._supervisors.start(self._reports.run(), name="reports to the service")
        if self.relay is not None:
            self._supervisors.start(self.relay.run(), name="relay of published events")

    async def _hold(self) -> None:
        """Hold leases, under a name that no other live host has."""
        if self._name_claim is not None:
            await self._name_claim.take()
            self._supervisors.start(self._name_claim.keep(), name="host name")
        await self._manager.run()

    async def wait(self) -> None:
        """Return when it has ended. Raises its failure."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    async def finish(self) -> None:
        """End everything, in order; later calls wait for the first.

        Cancellation: closing continues; only the wait is cancelled.
        """
        self._begin_end(None)
        await self._ended.wait()

    def _begin_end(self, failure: Exception | None) -> None:
        if not self._is_finishing:
            self._is_finishing = True
            self.failure = failure
            self._last_tasks.start(self._finish(), name="closing")

    async def _follow_hub(self) -> None:
        """Include partitions that are added to the hub later, or by creating it again.

        They are read from their beginning, as their first events may be older than this look.
        """
        while True:
            await asyncio.sleep(self._host._manager_options.lease_duration_s)
            try:
                hub = await self._hub.read()
            except TidegateError:
                continue  # the receivers get the same error, and report it
            self._hub_created_at_ms = hub.created_at_ms
            self._environment.added_partitions.update({*hub.partition_ids} - {*self._partition_ids})
            self._manager.add_partitions(hub.partition_ids)

    async def _finish(self) -> None:
        async with contextlib.AsyncExitStack() as last:  # closes the rest whatever fails
            last.callback(self._ended.set)
            last.push_async_callback(self._consumer.close)
            last.push_async_callback(self._end_pump_tasks)
            if self.relay is not None:
                owned = tuple(self._manager.pumps)
                last.push_async_callback(self.relay.finish, owned, self._options.close_timeout_s)
            if self._reports is not None:
                last.push_async_callback(self._reports.end)
            if self._name_claim is not None:
                last.push_async_callback(self._name_claim.release)
            last.push_async_callback(self._supervisors.close)
            if self._watchdog is not None:
                self._watchdog.cancel()
            await self._manager.close()

    async def _end_pump_tasks(self) -> None:
        """Cancel the remaining tasks, which are abandoned calls; some may never end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.close_timeout_s):
                await self._pump_tasks.close()

    def _fail(self, error: BaseException) -> None:
        """Close the host, and let ``wait`` raise the error."""
        if not self._is_finishing:
            failure = as_exception(error)
            self._report(failure, None)
            self._begin_end(failure)

    def _note_served(self) -> None:
        self._was_served = True
        self._refused_since = None

    def _note_refused(self, error: TidegateError) -> None:
        """Fail at once if nothing was ever read, else after one lease duration: a hub may be created again,
        or a key replaced.
        """
        now = self._clock.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        patience_s = self._host._manager_options.lease_duration_s if self._was_served else 0.0
        if now - self._refused_since >= patience_s:
            self._fail(error)

    def _report(self, error: Exception, partition_id: str | None) -> None:
        """Log an error and call ``on_exception``, whose own errors are logged."""
        where = "" if partition_id is None else f", partition {partition_id}"
        _logger.warning("Host %s%s: %s: %s", self._host.host_name, where, type(error).__name__, error)
        on_exception = self._options.on_exception
        if on_exception is None:
            return
        try:
            on_exception(error, partition_id)
        except SystemExit as end:
            # It ends the program on purpose, also if a session called this, which may take it for a failure.
            asyncio.get_running_loop().call_soon(_raise, end)
        except BaseException as second:  # a user's function may raise anything
            if not is_of_call(second):
                raise
            name = self._host.host_name
            _logger.error("on_exception of host %s raised", name, exc_info=loggable(second))


def _raise(error: BaseException) -> None:
    raise error


def _make_host_name(random: random_module.Random) -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{random.getrandbits(32):08x}"


def _chosen_hub(
    namespace: Namespace | None,
    connection_string: str | ConnectionString | None,
    event_hub: str | None,
    connection: ConnectionOptions,
) -> tuple[Namespace, str]:
    """Raises InvalidArgumentError, ConnectionStringError."""
    if (connection_string is None) == (namespace is None):
        raise InvalidArgumentError(
            "Pass either a connection string or a namespace.",
            next_step="The first argument is the host's name: write connection_string=…, or "
            "EventProcessorHost.from_connection_string(…).",
        )
    if namespace is not None and connection:
        raise InvalidArgumentError(
            f"The namespace is given, and so are options of a connection: {', '.join(connection)}.",
            next_step="Pass them to Namespace.from_connection_string.",
        )
    if connection_string is not None:
        event_hub = event_hub_of(connection_string, event_hub)
        namespace = Namespace.from_connection_string(connection_string, **connection)
    if not event_hub:
        raise InvalidArgumentError("No event hub given.", next_step="Pass event_hub=….")
    assert namespace is not None
    return namespace, event_hub


def _chosen_managers(
    store: ProcessorStore | None, leases: LeaseManager | None, checkpoints: CheckpointManager | None
) -> tuple[LeaseManager, CheckpointManager]:
    leases = leases if leases is not None else store
    checkpoints = checkpoints if checkpoints is not None else store
    if leases is None or checkpoints is None:
        raise InvalidArgumentError(
            "No store given.",
            next_step="Pass store=…, which keeps leases and checkpoints, or leases=… and checkpoints=….",
        )
    for manager, method in ((leases, "list_leases"), (checkpoints, "list_checkpoints")):
        if isinstance(manager, type) or not hasattr(manager, method):
            kind = f"the class {manager.__name__}" if isinstance(manager, type) else type(manager).__name__
            raise InvalidArgumentError(
                f"The host's store is {kind}, which keeps no leases and checkpoints.",
                next_step="Pass an object such as SqlStore(Database.open(URL)), DirectoryStore(PATH) or "
                "MemoryStore().",
            )
    return leases, checkpoints

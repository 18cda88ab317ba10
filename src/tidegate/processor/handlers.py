"""The event handlers that users write, and the partition context that they get.

    class Scores(EventProcessor):
        async def process_events(self, context, events):
            ...
            await context.checkpoint()

    await host.register(Scores)          # an instance for each partition
    await host.register(handle)          # async def handle(context, events)
    await host.register(factory=make)    # make(context) -> EventProcessor, e.g. always the same one

Calls for one partition never overlap; partitions run concurrently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.lease import GroupKey, Lease

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


class CloseReason(StrEnum):
    """Why a partition's processing ended. The classic host has the first two."""

    SHUTDOWN = "shutdown"
    """The host was unregistered, or hands the partition over to a host that has less."""
    OWNERSHIP_LOST = "ownership_lost"
    """Another host owns the partition now, or the lease expired."""
    FAILED = "failed"
    """An error stopped the partition; ``process_error`` got it."""
    RESTARTED = "restarted"
    """It made no progress, or its receiver failed; the same host opens it again."""


@dataclass(eq=False, slots=True)
class _Partition:
    """What both kinds of context have."""

    group: GroupKey
    """Namespace, event hub and consumer group."""
    event_hub: str
    """The event hub's name as given."""
    consumer_group: str
    """The consumer group's name as given."""
    lease: Lease
    """The partition's lease, as last renewed."""

    @property
    def partition_id(self) -> str:
        """The partition's id."""
        return self.lease.partition_id

    @property
    def owner(self) -> str:
        """The host's name."""
        return self.lease.owner


class PartitionContext(_Partition):
    """The partition that a handler call is about."""

    async def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """Record that everything up to ``event``, inclusive, is processed; None: all events of this call.

        Never moves backwards. Raises FencedError (another host owns the partition), StoreError; and
        InvalidArgumentError in transactional processing, where the transaction moves the checkpoint.
        """
        raise NotImplementedError

    def dead_letter(self, event: ReceivedEvent, error: BaseException | str) -> None:
        """Dead-letter an event that this handler was given, with the reason, before the checkpoint passes it.

        The host's dead letter manager stores it, at least once, when the call returns and before each
        checkpoint; if it cannot, the batch comes again. If the call raises, its events come again, and those
        not stored yet are forgotten.
        Raises InvalidArgumentError if the host has none or the event is not such a one, and in transactional
        processing, whose calls get a ``TransactionContext``.
        """
        raise NotImplementedError


class TransactionContext(_Partition):
    """The partition that a handler call is about, within the transaction that moves its checkpoint."""

    @property
    def connection(self) -> Connection:
        """The transaction's SQLAlchemy connection; its changes are committed with the checkpoint.

        Do not commit, roll back or close it. You may use savepoints (``begin_nested``), and commit an ORM
        ``Session(context.connection)``: it joins the transaction in its own savepoint.
        """
        raise NotImplementedError

    def insert(self, table: Table, rows: Iterable[object]) -> int:
        """Insert rows in bulk: all or none of them. Returns how many.

        rows: mappings from column names to values, or instances of a dataclass (``table_of``). Those with
        the same columns are inserted together, in their order: by COPY on PostgreSQL, which takes a third of
        the time of ``connection.execute`` with a list; else many to a statement.
        Raises ValueError (a column that ``table`` lacks), TypeError (not a row) and RowsRefusedError (the
        database refuses one of them).
        """
        raise NotImplementedError

    def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """Have the transaction commit up to ``event``, inclusive; None: all events of this call, the default.

        The events after it come again in the next call. If there are any, everything written after this
        call of ``checkpoint`` is undone, and dead letters of those events are dropped: nothing happens twice,
        unless you wrote for them before it. Of several calls, the furthest counts. If the handler raises,
        nothing is committed.
        Raises InvalidArgumentError for an event that is not of this call, or inside a savepoint of yours.
        """
        raise NotImplementedError

    def dead_letter(self, event: ReceivedEvent, error: BaseException | str) -> None:
        """Dead-letter an event of this call, with the reason, without failing the others.

        What was written for it stays. If called twice for an event, the later reason is used.
        Raises InvalidArgumentError for an event that is not of this call.
        """
        raise NotImplementedError

    def publish(
        self,
        event_hub: str,
        event: EventData,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """Publish an event to a hub of the same namespace, once, if and only if the transaction commits.

        It is stored with the checkpoint, and sent after the commit; so it comes into the hub a little later,
        also if this host ends before. Events of one partition that are published with one key, or to one
        partition, keep their order. A savepoint that is rolled back takes back what was published in it.
        Tidegate stores each event once; Azure Event Hubs stores events again if an acknowledgement is lost.
        Raises EventTooLargeError, InvalidArgumentError (key and partition), NotFoundError (partition); and
        PartitionPausedError, which pauses the partition, if the hub cannot be asked for its partitions.
        """
        raise NotImplementedError


class _Processor:
    """What both kinds of processor have."""

    async def open(self, context: PartitionContext) -> None:
        """The partition is owned now. What it raises closes the partition; it is tried again later."""

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        """Something went wrong with this partition; the host then continues, restarts or closes it.

        error: what the handler raised, for example. An error that does not derive from Exception, such as
        BaseExceptionGroup, is the cause of a TidegateError. ``sys.exit`` in the main thread ends the host.
        """

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """No call follows. With SHUTDOWN a last ``checkpoint`` still counts, except in transactions."""


class EventProcessor(_Processor):
    """Handles the events of a partition, at least once. Override what you need."""

    async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        """Handle a batch, in order. What it raises goes to ``process_error``, and the batch comes again.

        events: one partition's, ascending; empty only with ``invoke_after_receive_timeout``.
        """
        raise NotImplementedError


class TransactionalProcessor(_Processor):
    """Handles the events of a partition, with exactly-once database effects. Override what you need."""

    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        """Handle a batch, in order, with ``context.connection``. A plain function, run in a thread.

        If it raises, its changes are rolled back and the batch is run again in halves until each failing
        event is alone; the failure policy applies to that. So it may run more than once for an event, but its
        database effects happen once. Effects elsewhere are not covered.
        """
        raise NotImplementedError


EventHandler = Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]]
"""The simplest handler: ``async def handle(context, events)``."""

TransactionalHandler = Callable[[TransactionContext, Sequence[ReceivedEvent]], None]
"""The same for transactional processing: a plain function."""

ProcessorFactory = Callable[[PartitionContext], EventProcessor | TransactionalProcessor]


def function_of(handler: object, *, is_transactional: bool) -> Callable[..., object]:
    """The function to call with ``(context, events)``: ``process_events`` of a processor, or ``handler``.

    handler: a function, a processor or its class. The function must be async, or plain for transactions,
    which run in a thread. Raises InvalidArgumentError for anything else, saying what to write instead.
    """
    name = getattr(handler, "__name__", None)
    name = name if isinstance(name, str) else type(handler).__name__
    function: object = getattr(handler, "process_events", handler)
    kind = handler if isinstance(handler, type) else type(handler)
    inherited = (EventProcessor.process_events, TransactionalProcessor.process_events)
    # With a misspelt method every event would fail, and a transactional host would dead-letter them all.
    if getattr(kind, "process_events", None) in inherited:
        raise InvalidArgumentError(
            f"{name} does not define process_events.",
            next_step="Check the spelling: def process_events(self, context, events).",
        )
    if not callable(function) or isinstance(function, type):
        raise InvalidArgumentError(
            f"{name} is not a function of (context, events), and has no process_events.",
            next_step="Write a function, or a class derived from EventProcessor or TransactionalProcessor. A "
            "pipeline needs a host with transactional=True and a SqlStore.",
        )
    if is_transactional and _is_async(function):
        raise InvalidArgumentError(
            f"{name} is async, and a transaction runs in a thread.",
            next_step="Write def instead of async def, and no await.",
        )
    if not is_transactional and not _is_async(function):
        raise InvalidArgumentError(
            f"{name} is not async: a plain handler would block every partition.",
            next_step="Write async def, or use transactional=True, which runs handlers in threads.",
        )
    return function


def _is_async(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function))))
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004

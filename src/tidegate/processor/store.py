"""The protocols of a host's store: leases, checkpoints and, optionally, transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import CheckpointManager, ProcessorCheckpoint
from tidegate.processor.dead_letters import DeadLetterManager
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease, LeaseManager
from tidegate.processor.policies import FailurePolicy

if TYPE_CHECKING:
    from tidegate.client.namespace import Namespace


class ProcessorStore(LeaseManager, CheckpointManager, Protocol):
    """Leases and checkpoints. ``tidegate.testing.stores`` has the tests that every store passes."""

    async def close(self) -> None:
        """Release what the store opened itself. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The outcome of one committed batch."""

    processed: int
    """Events whose effects were committed now."""
    dead_letters: int
    """New dead letters, without the parked events."""
    parked: int
    """Events parked because an earlier event of their key failed."""
    skipped: int
    """Events that an earlier transaction had already committed."""
    next_sequence_number: int
    """The new resume point: the first event not yet processed, before ``until`` if the handler's
    ``checkpoint``, or the time that its calls took, left events to the next transaction."""


class PartitionTransactions(Protocol):
    """Commits batches of one partition under one lease, each atomically."""

    async def begin(self) -> ProcessorCheckpoint | None:
        """Claim the checkpoint for this lease's epoch, so that no older owner can commit.

        Returns it, with a sequence number; None if nothing was ever committed.
        Raises FencedError (a higher epoch has it), EventHubReplacedError, DatabaseError.
        """
        ...

    async def process(
        self,
        events: Sequence[ReceivedEvent],
        *,
        start_sequence_number: int,
        until_sequence_number: int,
        is_gap_allowed: bool = False,
        history_id: str | None = None,
        is_one_history: bool = False,
    ) -> TransactionOutcome:
        """Run the handler over events in ``[start, until)`` and commit its effects, dead letters, checkpoint.

        is_gap_allowed: the events between the checkpoint and ``start`` are known to be lost. history_id: of
        the last event, for the checkpoint. is_one_history: whether it is that of the others as well.
        Raises FencedError (a newer owner has committed: nothing was written), ``PartitionStoppedError`` (the
        policy is to stop), PartitionPausedError (an outage, or too many dead letters: run the same batch
        again later, from the error's ``next_sequence_number``), DatabaseUnavailableError (nothing was written
        unless the message says so; the same batch may be run again), DatabaseError.
        Cancellation: waits for the running transaction to end, so that transactions never overlap.
        """
        ...

    def close(self) -> None:
        """Release resources; nothing is run afterwards. Does not wait."""
        ...

    def abandon(self) -> None:
        """Roll back the running transaction, whose handler does not return, so that it blocks no others.

        Its batch is never committed. Does not wait.
        """
        ...


@runtime_checkable
class TransactionalStore(Protocol):
    """A store that commits the checkpoint together with the handler's effects, such as ``sql.SqlStore``."""

    def form_of(self, group: GroupKey, handler: object) -> object:
        """The form of ``handler`` for ``open_transactions``. Called once for each handler.

        handler: what was registered with the host, or what its factory or class made: a
        ``TransactionalProcessor``, a plain function ``(context, events)``, or another kind that this store
        accepts. Raises InvalidArgumentError for a handler that it cannot run, or not for this group.
        """
        ...

    def open_transactions(
        self,
        group: GroupKey,
        lease: Lease,
        form: object,
        context: PartitionContext,
        *,
        policy: FailurePolicy,
        event_hub_created_at_ms: int | None,
        max_batch_size: int | None = None,
        dead_letters: DeadLetterManager | None = None,
    ) -> PartitionTransactions:
        """Transactions for one owned partition. form: from ``form_of``.

        max_batch_size: events per call of the handler, at most: a batch may need several calls; None: no
        limit. dead_letters: gets dead letters before each commit, instead of this store's own table. Raises
        HandlerRefusedError if the policy needs that.
        """
        ...


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """A relay of published events, at one moment."""

    waiting: int = 0
    """Events of the host's partitions that are stored, and not known to be in their hubs."""
    relayed_total: int = 0
    """Events that it found or brought into their hubs since it started."""
    error: Exception | None = None
    """Why some or all of them wait; None: nothing fails."""


class EventRelay(Protocol):
    """Sends the events that one host's transactions have published."""

    async def run(self) -> None:
        """Send what is committed until cancelled."""
        ...

    async def finish(self, partition_ids: Collection[str], timeout_s: float) -> None:
        """After the last transaction: send what these partitions have stored, and disconnect.

        It takes at most ``timeout_s``; the partitions' next owners send the rest.
        """
        ...

    def statistics(self) -> RelayStatistics:
        """As of its last look."""
        ...


@runtime_checkable
class PublishingStore(Protocol):
    """A transactional store in whose transactions handlers can publish events, such as ``sql.SqlStore``."""

    def open_relay(
        self,
        group: GroupKey,
        namespace: Namespace,
        owned: Callable[[], Collection[str]],
        report: Callable[[Exception, str | None], None],
    ) -> EventRelay:
        """A relay for a host of ``group``; call it on the host's event loop.

        namespace: of the hubs that are published to. owned: the partitions that the host owns now. report:
        gets errors, with the partition whose events wait.
        """
        ...

"""The one transaction that commits batches of partitions.

Theory of operation. Lock the checkpoints, skip what is done (a retried task, an overtaken owner's second
attempt), write, add the dead letters, move the checkpoints by compare-and-set, COMMIT. The caller decides
what is written: rows computed before anything was locked (``batch``), or the statements of a handler that
runs inside (``transactions``). If the database refuses rows, the transaction is rolled back, and a careful
one halves the batch behind savepoints to find the events at fault (``repeat_carefully``).

A Spark micro-batch whose rows belong to no partition has no checkpoint; ``ledger.commit`` records it in the
ledger instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tidegate.model.errors import CheckpointGapError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.checkpoint import check_same_hub
from tidegate.sql.core.checkpoint_rows import CheckpointStep, LockedCheckpoint
from tidegate.sql.core.database import Database
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import ConsumerKey, EventPlace, NewDeadLetter


@dataclass(frozen=True, slots=True)
class BatchScope:
    """Which events a batch covers, and who commits it."""

    consumer: ConsumerKey
    partition_id: str
    start: int
    until: int
    """One past the last sequence number: the new checkpoint."""
    event_hub_created_at_ms: int | None = None
    """Which hub of this name; None: not checked."""
    is_gap_allowed: bool = False
    """True: the batch may start beyond the checkpoint; the events between are known to be lost."""
    owner: str | None = None
    """Recorded with the checkpoint; None: ``host:process``."""
    lease_epoch: int | None = None
    """Of the owner's lease; None: it has none. A checkpoint with a higher epoch refuses the batch."""
    pipeline_name: str = ""
    """Recorded in dead letters."""
    history_id: str | None = None
    """Of the log, in which the batch's last event was read; None: unknown."""
    is_one_history: bool = False
    """Whether its other events were read in the same one."""

    def __post_init__(self) -> None:
        if self.until < self.start:
            raise InvalidArgumentError(f"The batch [{self.start}, {self.until}) ends before it starts.")

    def history_at(self, until: int) -> str | None:
        """The history of the last event before ``until``; None: unknown."""
        # An earlier event may be of another: the service may have started again between them.
        return self.history_id if self.is_one_history or until == self.until else None

    def check_events(self, events: Sequence[ReceivedEvent]) -> None:
        """Raises InvalidArgumentError unless ``events`` ascend and are within the batch."""
        if not events:
            return
        self.check_range(events[0].sequence_number, events[-1].sequence_number)
        previous = self.start - 1
        for event in events:
            number = event.sequence_number
            if number <= previous:
                raise InvalidArgumentError(f"The batch holds event {number} after event {previous}.")
            previous = number

    def check_range(self, first: int, last: int) -> None:
        """Raises InvalidArgumentError unless the events ``first`` to ``last`` are within the batch."""
        if first < self.start or last >= self.until:
            raise InvalidArgumentError(
                f"The batch [{self.start}, {self.until}) holds events from {first} to {last}.",
                next_step="Give the range that the events were read for.",
            )

    def check_checkpoint(self, locked: LockedCheckpoint) -> None:
        """Raises EventHubReplacedError or CheckpointGapError if the batch may not follow ``locked``."""
        stored_ms = locked.event_hub_created_at_ms
        check_same_hub(self.consumer, self.partition_id, stored_ms, self.event_hub_created_at_ms)
        number = locked.next_sequence_number
        if number is not None and number < self.start and not self.is_gap_allowed:
            raise CheckpointGapError(
                f"The batch [{self.start}, {self.until}) of partition {self.partition_id} of {self.consumer} "
                f"starts beyond the checkpoint: events {number} to {self.start - 1} were never processed.",
                next_step="Start from the checkpoint. If retention has deleted those events, accept the gap "
                "explicitly.",
            )


@dataclass(slots=True)
class Share:
    """One batch's part of a transaction that has locked its checkpoint."""

    scope: BatchScope
    checkpoint: int | None
    """Its state when it was locked."""
    first: int
    """The first event that is not done yet."""
    until: int
    """The new checkpoint; a writer that stops early lowers it."""
    is_moved: bool = True
    """False: nothing was done, and the checkpoint stays."""
    last: EventPlace | None = None
    """The place of the last event before ``until``, for the checkpoint; None: unknown."""
    dead_letters: Sequence[NewDeadLetter] = ()
    """Ascending."""
    rows: int = 0

    @property
    def is_done(self) -> bool:
        """Whether an earlier transaction committed the whole batch."""
        return self.checkpoint is not None and self.checkpoint >= self.scope.until

    def step(self) -> CheckpointStep:
        """How to move the checkpoint."""
        return CheckpointStep(
            self.scope.partition_id,
            self.checkpoint,
            self.until,
            offset=None if self.last is None else self.last.offset,
            enqueued_time_ms=None if self.last is None else self.last.enqueued_time_ms,
            event_hub_created_at_ms=self.scope.event_hub_created_at_ms,
            history_id=self.scope.history_at(self.until),
        )


WriteShares = Callable[[UnitOfWork, list[Share]], None]
"""Writes what is not done yet, and sets ``rows``, ``dead_letters`` and ``last`` of each share."""


def run_transaction(
    database: Database,
    scopes: Sequence[BatchScope],
    write: WriteShares,
    *,
    guard: Callable[[UnitOfWork], AbstractContextManager[object]] = nullcontext,
) -> list[Share]:
    """Commit batches of different partitions together; returns their results in the same order.

    scopes: at least one, ascending by partition id (the order of locks), all with the same consumer, owner,
    lease, pipeline and hub. guard: entered while the transaction is open.
    Raises CheckpointGapError, EventHubReplacedError, FencedError, RowsRefusedError, DatabaseError,
    DatabaseUnavailableError, and what ``write`` raises.
    """
    scope = scopes[0]
    unit = UnitOfWork(
        database,
        scope.consumer,
        pipeline_name=scope.pipeline_name,
        owner=scope.owner,
        lease_epoch=scope.lease_epoch,
    )
    with unit, guard(unit):
        locked = unit.lock_checkpoints([each.partition_id for each in scopes])
        shares: list[Share] = []
        for scope in scopes:
            found = locked[scope.partition_id]
            scope.check_checkpoint(found)
            number = found.next_sequence_number
            first = scope.start if number is None else max(scope.start, number)
            shares.append(Share(scope, number, first, scope.until))
        due = [share for share in shares if not share.is_done]
        if due:
            write(unit, due)
        moved = [share for share in due if share.is_moved]
        if moved:
            for share in moved:
                unit.add_dead_letters(share.scope.partition_id, share.dead_letters)
            unit.advance_all([share.step() for share in moved])
            unit.commit()
        else:
            unit.rollback()
    return shares

"""Locks one consumer's checkpoints inside a transaction, and moves them by compare-and-set.

Each statement is built once, because SQLAlchemy builds it from Python objects and visits all of them to find
its compiled form: for a transaction of a few events, that takes as long as the database itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from sqlalchemy import Connection, Update, and_, bindparam, or_, select, update

from tidegate.model.clock import Clock
from tidegate.model.errors import FencedError
from tidegate.sql.core.dialects import changed_rows, dialect_of
from tidegate.sql.core.dialects.base import locking
from tidegate.sql.core.schema import checkpoint, of_consumer
from tidegate.sql.core.values import ConsumerKey

_ROW: Final = checkpoint.c
_MINE: Final = and_(
    _ROW.event_hub == bindparam("at_event_hub"), _ROW.consumer_group == bindparam("at_consumer_group")
)
_AT: Final = and_(_MINE, _ROW.partition_id == bindparam("at_partition_id"))
_LOCKED: Final = (
    _ROW.next_sequence_number,
    _ROW.event_hub_created_at_ms,
    _ROW.transaction_token,
    _ROW.owner,
    _ROW.lease_epoch,
    _ROW.history_id,
)
_LOCK: Final = locking(select(*_LOCKED).where(_AT), checkpoint)
_LOCK_SEVERAL: Final = locking(
    select(_ROW.partition_id, *_LOCKED)
    .where(_MINE, _ROW.partition_id.in_(bindparam("at_partition_ids", expanding=True)))
    .order_by(_ROW.partition_id),
    checkpoint,
)


@cache
def _advance(changed: tuple[str, ...], *, has_epoch: bool) -> Update:
    """Moves a checkpoint that is still where it was.

    changed: the columns to set, each by the parameter ``new_`` plus its name. has_epoch: only if no owner has
    a higher lease epoch than ``new_lease_epoch``.
    """
    here = and_(_AT, _ROW.next_sequence_number.is_not_distinct_from(bindparam("from_sequence_number")))
    if has_epoch:
        here = and_(here, or_(_ROW.lease_epoch.is_(None), _ROW.lease_epoch <= bindparam("held_epoch")))
    return update(checkpoint).where(here).values({name: bindparam(f"new_{name}") for name in changed})


@dataclass(frozen=True, slots=True)
class LockedCheckpoint:
    """A checkpoint's row when it was locked; the fields are those of ``Checkpoint``."""

    next_sequence_number: int | None
    event_hub_created_at_ms: int | None
    transaction_token: str | None
    owner: str | None
    lease_epoch: int | None
    history_id: str | None


@dataclass(frozen=True, slots=True)
class CheckpointStep:
    """From where to where a checkpoint moves."""

    partition_id: str
    from_sequence_number: int | None
    """Where it must be before; None: nothing was ever committed."""
    until_sequence_number: int
    offset: str | None = None
    """Of the last event before ``until_sequence_number``, like ``enqueued_time_ms``."""
    enqueued_time_ms: int | None = None
    event_hub_created_at_ms: int | None = None
    """Which hub; None leaves what is stored."""
    history_id: str | None = None
    """In which the last event was read; None: unknown."""

    def changes(self) -> dict[str, object]:
        """The columns to set."""
        changes: dict[str, object] = {
            "next_sequence_number": self.until_sequence_number,
            "offset": self.offset,
            "enqueued_time_ms": self.enqueued_time_ms,
            "history_id": self.history_id,
        }
        if self.event_hub_created_at_ms is not None:
            changes["event_hub_created_at_ms"] = self.event_hub_created_at_ms
        return changes


class CheckpointRows:
    """The statements for one consumer. All methods raise SQLAlchemy's own errors."""

    def __init__(self, consumer: ConsumerKey, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._mine: dict[str, object] = {
            "at_event_hub": consumer.event_hub,
            "at_consumer_group": consumer.consumer_group,
        }

    def lock_existing(
        self, connection: Connection, partition_ids: Sequence[str]
    ) -> dict[str, LockedCheckpoint]:
        """Wait for the existing rows and lock them. partition_ids: ascending (the order of locks)."""
        if len(partition_ids) == 1:
            found = self._lock_one(connection, partition_ids[0])
            return {} if found is None else {partition_ids[0]: found}
        rows = connection.execute(_LOCK_SEVERAL, self._mine | {"at_partition_ids": list(partition_ids)})
        return {row[0]: LockedCheckpoint(*row[1:]) for row in rows}

    def lock(self, connection: Connection, partition_id: str) -> LockedCheckpoint:
        """Wait for one row and lock it, creating it if it is missing."""
        found = self._lock_one(connection, partition_id)
        if found is None:
            # Waits for a competitor that is creating the same row, and then sees it.
            row = {
                "event_hub": self._consumer.event_hub,
                "consumer_group": self._consumer.consumer_group,
                "partition_id": partition_id,
                "updated_at": self._clock.now_utc(),
            }
            connection.execute(dialect_of(connection).insert_or_lock(checkpoint, row))
            found = self._lock_one(connection, partition_id)
        assert found is not None
        return found

    def advance(
        self, connection: Connection, steps: Sequence[CheckpointStep], mark: Mapping[str, object]
    ) -> None:
        """Move each checkpoint that is still where its step begins.

        mark: other columns to set; if it has a ``lease_epoch``, checkpoints with a higher one are not moved.
        Raises FencedError if one was not moved.
        """
        has_epoch = "lease_epoch" in mark
        # All steps set the same columns: they are of the same hub, or all of an unknown one.
        statement = _advance((*steps[0].changes(), *mark), has_epoch=has_epoch)
        parameters = []
        for step in steps:
            changes = {f"new_{name}": value for name, value in {**step.changes(), **mark}.items()}
            compared = {"from_sequence_number": step.from_sequence_number}
            if has_epoch:
                changes["held_epoch"] = mark["lease_epoch"]
            parameters.append(self._at(step.partition_id) | compared | changes)
        moved = changed_rows(connection, statement, parameters)
        if moved != len(steps):
            raise self._fenced(connection, steps, mark["transaction_token"])

    def _lock_one(self, connection: Connection, partition_id: str) -> LockedCheckpoint | None:
        found = connection.execute(_LOCK, self._at(partition_id)).one_or_none()
        return None if found is None else LockedCheckpoint(*found)

    def _at(self, partition_id: str) -> dict[str, object]:
        return self._mine | {"at_partition_id": partition_id}

    def _fenced(self, connection: Connection, steps: Sequence[CheckpointStep], token: object) -> FencedError:
        """Why the first failed step failed."""
        for step in steps:
            here = of_consumer(checkpoint, self._consumer, step.partition_id)
            found = connection.execute(select(checkpoint).where(here)).one_or_none()
            if found is None or found.transaction_token != token:
                break
        start = step.from_sequence_number
        what = (
            f"The checkpoint of partition {step.partition_id} of {self._consumer} could not move from "
            f"{start if start is not None else 'nothing'} to {step.until_sequence_number}"
        )
        if found is None:
            return FencedError(
                f"{what}: it does not exist.", next_step="Call lock(partition_id) before advance."
            )
        lease = "" if found.lease_epoch is None else f" under lease epoch {found.lease_epoch}"
        return FencedError(
            f"{what}: {found.owner} moved it to {found.next_sequence_number} at "
            f"{found.updated_at:%Y-%m-%d %H:%M:%S} UTC{lease}.",
            next_step="Nothing of this batch was written; continue from the checkpoint, or leave it to that "
            "owner.",
        )

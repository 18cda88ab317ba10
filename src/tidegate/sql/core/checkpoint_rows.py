"""Locks one consumer's checkpoints inside a transaction, and moves them by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.model.clock import Clock
from tidegate.model.errors import FencedError
from tidegate.sql.core import checkpoint_statements, schema
from tidegate.sql.core.values import ConsumerKey


@dataclass(frozen=True, slots=True)
class LockedCheckpoint:
    """A checkpoint's row when it was locked; the fields are those of ``Checkpoint``."""

    next_sequence_number: int | None
    event_hub_created_at_ms: int | None
    transaction_token: str | None
    owner: str | None
    lease_epoch: int | None


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


class CheckpointRows:
    """The statements for one consumer. All methods raise SQLAlchemy's own errors."""

    def __init__(self, consumer: ConsumerKey, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock

    def lock_existing(
        self, connection: Connection, partition_ids: Sequence[str]
    ) -> dict[str, LockedCheckpoint]:
        """Wait for the existing rows and lock them. partition_ids: ascending (the order of locks)."""
        if len(partition_ids) == 1:
            found = self._lock_one(connection, partition_ids[0])
            return {} if found is None else {partition_ids[0]: found}
        rows = connection.execute(
            checkpoint_statements.LOCK_SEVERAL,
            checkpoint_statements.at_several(self._consumer, partition_ids),
        )
        return {row[0]: LockedCheckpoint(*row[1:]) for row in rows}

    def lock(self, connection: Connection, partition_id: str) -> LockedCheckpoint:
        """Wait for one row and lock it, creating it if it is missing."""
        found = self._lock_one(connection, partition_id)
        if found is None:
            # Waits for a competitor that is creating the same row, and then sees it.
            insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(schema.checkpoint)
            key = {
                "event_hub": self._consumer.event_hub,
                "consumer_group": self._consumer.consumer_group,
                "partition_id": partition_id,
            }
            connection.execute(
                insert.values(**key, updated_at=self._clock.now_utc()).on_conflict_do_nothing()
            )
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
        parameters = [self._parameters(step, mark) for step in steps]
        # All steps set the same columns: they are of the same hub, or all of an unknown one.
        changed = ("next_sequence_number", "offset", "enqueued_time_ms", *mark)
        if steps[0].event_hub_created_at_ms is not None:
            changed = (*changed, "event_hub_created_at_ms")
        statement = checkpoint_statements.advance(changed, has_epoch="lease_epoch" in mark)
        moved = connection.execute(statement, parameters if len(steps) > 1 else parameters[0]).rowcount
        if moved != len(steps):
            raise self._fenced(connection, steps, mark["transaction_token"])

    def _lock_one(self, connection: Connection, partition_id: str) -> LockedCheckpoint | None:
        at = checkpoint_statements.at(self._consumer, partition_id)
        found = connection.execute(checkpoint_statements.LOCK, at).one_or_none()
        return None if found is None else LockedCheckpoint(*found)

    def _parameters(self, step: CheckpointStep, mark: Mapping[str, object]) -> dict[str, object]:
        parameters = checkpoint_statements.at(self._consumer, step.partition_id)
        parameters |= {f"new_{name}": value for name, value in mark.items()}
        parameters |= {
            "from_sequence_number": step.from_sequence_number,
            "new_next_sequence_number": step.until_sequence_number,
            "new_offset": step.offset,
            "new_enqueued_time_ms": step.enqueued_time_ms,
        }
        if step.event_hub_created_at_ms is not None:
            parameters["new_event_hub_created_at_ms"] = step.event_hub_created_at_ms
        if "lease_epoch" in mark:
            parameters["held_epoch"] = mark["lease_epoch"]
        return parameters

    def _fenced(self, connection: Connection, steps: Sequence[CheckpointStep], token: object) -> FencedError:
        """Why the first failed step failed."""
        row = schema.checkpoint.c
        columns = (
            row.transaction_token,
            row.next_sequence_number,
            row.owner,
            row.updated_at,
            row.lease_epoch,
        )
        for step in steps:
            here = checkpoint_statements.is_of(self._consumer, step.partition_id)
            found = connection.execute(select(*columns).where(here)).one_or_none()
            if found is None or found[0] != token:
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
        _, number, owner, updated_at, epoch = found
        lease = "" if epoch is None else f" under lease epoch {epoch}"
        return FencedError(
            f"{what}: {owner} moved it to {number} at {updated_at:%Y-%m-%d %H:%M:%S} UTC{lease}.",
            next_step="Nothing of this batch was written; continue from the checkpoint, or leave it to that "
            "owner.",
        )

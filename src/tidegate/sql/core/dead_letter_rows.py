"""Dead letters in the database: filters as conditions, rows as values, actions as audit rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, func, select

from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.schema import dead_letter, dead_letter_audit
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import (
    ConsumerKey,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterStatus,
    storable_text,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

IN_LIST_MAX = 1_000
"""Sequence numbers per IN list (our choice; SQLite accepts 32,766 parameters, older versions 999)."""


def conditions_of(filter_: DeadLetterFilter) -> list[ColumnElement[bool]]:
    """The conditions that select rows matching ``filter_``."""
    row = dead_letter.c
    conditions: list[ColumnElement[bool]] = []
    if filter_.event_hub is not None:
        conditions.append(row.event_hub == ConsumerKey(filter_.event_hub).event_hub)
    if filter_.consumer_group is not None:
        conditions.append(row.consumer_group == ConsumerKey("any", filter_.consumer_group).consumer_group)
    for column, value in (
        (row.pipeline, filter_.pipeline),
        (row.partition_id, filter_.partition_id),
        (row.error_type, filter_.error_type),
        (row.reason, filter_.reason_is),
    ):
        if value is not None:
            conditions.append(column == value)
    if filter_.status is not None:
        conditions.append(row.status == filter_.status.value)
    if filter_.sequence_numbers is not None:
        conditions.append(row.sequence_number.in_(filter_.sequence_numbers))
    if filter_.reason_contains is not None:
        conditions.append(func.lower(row.reason).contains(filter_.reason_contains.lower(), autoescape=True))
    if filter_.failed_from is not None:
        conditions.append(row.last_failed_at >= filter_.failed_from)
    if filter_.failed_until is not None:
        conditions.append(row.last_failed_at < filter_.failed_until)
    if filter_.enqueued_from is not None:
        # In whole milliseconds, rounded up.
        conditions.append(row.enqueued_time_ms >= -((_EPOCH - filter_.enqueued_from) // _MILLISECOND))
    return conditions


def consumer_is(consumer: ConsumerKey, partition_id: str) -> ColumnElement[bool]:
    """The condition for one consumer's dead letters in one partition."""
    row = dead_letter.c
    return and_(
        row.event_hub == consumer.event_hub,
        row.consumer_group == consumer.consumer_group,
        row.partition_id == partition_id,
    )


def in_order() -> tuple[ColumnElement[object], ...]:
    """The order by hub, group, partition (2 before 10) and sequence number."""
    row = dead_letter.c
    return (
        row.event_hub,
        row.consumer_group,
        func.length(row.partition_id),
        row.partition_id,
        row.sequence_number,
    )


def dead_letter_of(row: Mapping[str, object]) -> DeadLetter:
    """The dead letter in a complete row of the table."""
    values = {**row, "status": DeadLetterStatus(str(row["status"]))}
    return DeadLetter(**values)  # type: ignore[arg-type]  # the columns are the fields, see test_schema


def lock_open(unit: UnitOfWork, partition_id: str, sequence_numbers: Sequence[int]) -> list[int]:
    """Lock the dead letters that are still open, and return their sequence numbers."""
    row = dead_letter.c
    statement = (
        select(row.sequence_number)
        .where(consumer_is(unit.consumer, partition_id), row.sequence_number.in_(sequence_numbers))
        .where(row.status == DeadLetterStatus.OPEN.value)
        .order_by(row.sequence_number)
        .with_for_update()
    )
    return list(unit.connection.execute(statement).scalars())


def write_audit(
    unit: UnitOfWork, partition_id: str, action: str, actor: str, details: Iterable[tuple[int, str]]
) -> None:
    """Record an action for each (sequence number, detail), which is also the witness for a lost COMMIT."""
    now = unit.database.clock.now_utc()
    records = [
        {
            "event_hub": unit.consumer.event_hub,
            "consumer_group": unit.consumer.consumer_group,
            "partition_id": partition_id,
            "sequence_number": sequence_number,
            "action": action,
            "actor": storable_text(actor),
            "at": now,
            "detail": storable_text(detail, 2_000),
            "transaction_token": unit.token,
        }
        for sequence_number, detail in details
    ]
    if not records:
        return
    unit.connection.execute(dead_letter_audit.insert(), records)
    first = records[0]["sequence_number"]

    def outcome(connection: Connection) -> CommitOutcome:
        # The lost transaction holds the dead letter's row lock until its outcome is decided.
        row = dead_letter.c
        connection.execute(
            select(row.status)
            .where(consumer_is(unit.consumer, partition_id), row.sequence_number == first)
            .with_for_update()
        )
        found = connection.execute(
            select(dead_letter_audit.c.id).where(dead_letter_audit.c.transaction_token == unit.token).limit(1)
        ).first()
        return CommitOutcome.ROLLED_BACK if found is None else CommitOutcome.COMMITTED

    unit.set_witness(outcome)

"""Dead letters in the database: filters as conditions, rows as values, actions as audit rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, func, select, update

from tidegate.model.times import next_millisecond
from tidegate.processor.lease import SHADOW_MARK
from tidegate.sql.core.dialects.base import locking
from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.schema import dead_letter, dead_letter_audit, of_consumer
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import (
    ConsumerKey,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterStatus,
    storable_text,
)

IN_LIST_MAX = 1_000
"""Sequence numbers per IN list (our choice; SQLite accepts 32,766 parameters, older versions 999)."""

_IN_PATTERNS = str.maketrans({character: f"/{character}" for character in "/%_["})
"""For LIKE, which takes any escaped character as it is. SQL Server also has patterns such as ``[a-z]``."""


def shown_conditions_of(
    filter_: DeadLetterFilter, *, are_names_hidden: bool = False
) -> list[ColumnElement[bool]]:
    """As ``conditions_of``, without the dead letters of shadows unless the filter names their group."""
    conditions = conditions_of(filter_, are_names_hidden=are_names_hidden)
    if filter_.consumer_group is None:
        conditions.append(dead_letter.c.consumer_group.not_like(f"%{SHADOW_MARK}%"))
    return conditions


def conditions_of(filter_: DeadLetterFilter, *, are_names_hidden: bool = False) -> list[ColumnElement[bool]]:
    """The conditions that select rows matching ``filter_``.

    are_names_hidden: names are compared in a form for which the database uses no index.
    """
    row = dead_letter.c
    hub, group = filter_.event_hub, filter_.consumer_group
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (row.event_hub, None if hub is None else ConsumerKey(hub).event_hub),
        (row.consumer_group, None if group is None else ConsumerKey("any", group).consumer_group),
        (row.pipeline, filter_.pipeline),
        (row.partition_id, filter_.partition_id),
    ):
        if value is not None:
            conditions.append((column.concat("") if are_names_hidden else column) == value)
    for column, value in ((row.error_type, filter_.error_type), (row.reason, filter_.reason_is)):
        if value is not None:
            # With an end, as SQL Server compares strings without their trailing blanks.
            conditions.append(column.concat(".") == f"{value}.")
    if filter_.status is not None:
        conditions.append(row.status == filter_.status.value)
    if filter_.sequence_numbers is not None:
        conditions.append(row.sequence_number.in_(filter_.sequence_numbers))
    if filter_.reason_contains is not None:
        pattern = filter_.reason_contains.lower().translate(_IN_PATTERNS)
        conditions.append(func.lower(row.reason).contains(pattern, escape="/"))
    if filter_.failed_from is not None:
        conditions.append(row.last_failed_at >= filter_.failed_from)
    if filter_.failed_until is not None:
        conditions.append(row.last_failed_at < filter_.failed_until)
    if filter_.enqueued_from is not None:
        conditions.append(row.enqueued_time_ms >= next_millisecond(filter_.enqueued_from))
    return conditions


def dead_letter_of(row: Mapping[str, object]) -> DeadLetter:
    """The dead letter in a complete row of the table."""
    values = {**row, "status": DeadLetterStatus(str(row["status"]))}
    return DeadLetter(**values)  # type: ignore[arg-type]  # the columns are the fields, see test_schema


def lock_open(unit: UnitOfWork, partition_id: str, enqueued_times_ms: Mapping[int, int]) -> list[int]:
    """Lock the dead letters that are still open, and return their sequence numbers.

    enqueued_times_ms: by sequence number, as they were chosen. A dead letter with another time is one of a
    recreated hub that has replaced the chosen one since.
    """
    row = dead_letter.c
    statement = (
        select(row.sequence_number, row.enqueued_time_ms)
        .where(of_consumer(dead_letter, unit.consumer, partition_id))
        .where(row.sequence_number.in_(enqueued_times_ms), row.status == DeadLetterStatus.OPEN.value)
        .order_by(row.sequence_number)
    )
    found = unit.connection.execute(locking(statement, dead_letter))
    return [number for number, time_ms in found if time_ms == enqueued_times_ms[number]]


def close_letters(
    unit: UnitOfWork,
    partition_id: str,
    numbers: Sequence[int],
    status: DeadLetterStatus,
    *,
    actor: str,
    detail: str = "",
) -> None:
    """Give locked dead letters a new status, with an audit row each. detail: for the audit trail."""
    unit.connection.execute(
        update(dead_letter)
        .where(of_consumer(dead_letter, unit.consumer, partition_id))
        .where(dead_letter.c.sequence_number.in_(numbers))
        .values(status=status.value)
    )
    write_audit(unit, partition_id, status.value, actor, [(number, detail) for number in numbers])


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
        here = of_consumer(dead_letter, unit.consumer, partition_id)
        chosen = select(row.status).where(here, row.sequence_number == first)
        connection.execute(locking(chosen, dead_letter)).all()
        found = connection.execute(
            select(dead_letter_audit.c.id).where(dead_letter_audit.c.transaction_token == unit.token).limit(1)
        ).first()
        return CommitOutcome.ROLLED_BACK if found is None else CommitOutcome.COMMITTED

    unit.set_witness(outcome)

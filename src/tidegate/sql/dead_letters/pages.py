"""Reads dead letters by page and by hour, however many there are, for the console.

Rule: a page costs only its own rows. It is read along the index ``tidegate_dead_letter_time`` from the end of
the previous page, never by an offset. Sums read only that index, unless the filter has an error type, a
reason or a time of enqueuing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import ColumnElement, Select, func, or_, select, union_all

from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_rows import conditions_of, shown_conditions_of
from tidegate.sql.core.parked_keys import is_open
from tidegate.sql.core.schema import dead_letter, of_consumer
from tidegate.sql.core.values import ConsumerKey, DeadLetterFilter, DeadLetterStatus

_ROW = dead_letter.c
_KEY: Final = (
    _ROW.last_failed_at,
    _ROW.event_hub,
    _ROW.consumer_group,
    _ROW.partition_id,
    _ROW.sequence_number,
)
_LINE: Final = (
    *_KEY,
    _ROW.partition_key,
    _ROW.error_type,
    _ROW.reason,
    _ROW.status,
    _ROW.attempts,
    _ROW.pipeline,
)


@dataclass(frozen=True, slots=True)
class DeadLetterPlace:
    """The end of a page: its last dead letter."""

    last_failed_at: datetime
    event_hub: str
    consumer_group: str
    partition_id: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class DeadLetterLine(DeadLetterPlace):
    """A dead letter as a list shows it: without traceback and payload."""

    partition_key: str | None
    error_type: str
    reason: str
    status: DeadLetterStatus
    attempts: int
    pipeline: str

    @property
    def place(self) -> DeadLetterPlace:
        """The place after which the next page begins."""
        return DeadLetterPlace(
            self.last_failed_at, self.event_hub, self.consumer_group, self.partition_id, self.sequence_number
        )


@dataclass(frozen=True, slots=True)
class HourCount:
    """The number of dead letters that failed last within one hour."""

    start: datetime
    """The start of the hour, aware, in UTC."""
    count: int


class DeadLetterPages:
    """Reads a database's dead letters in pages, and counts them by hour.

    Every method raises DatabaseError and DatabaseUnavailableError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, filter: DeadLetterFilter, *, behind: DeadLetterPlace | None = None, limit: int = 50
    ) -> list[DeadLetterLine]:
        """Up to ``limit`` dead letters that match ``filter``, the latest failure first.

        behind: the end of the previous page; None: start with the latest. A dead letter that fails again
        meanwhile moves to the front; no other is skipped or shown twice.
        """
        parts = [self._part(filter, status, behind, limit) for status in _statuses(filter)]
        if len(parts) == 1:
            statement = parts[0].order_by(*(column.desc() for column in _KEY)).limit(limit)
        else:
            # Each status has its own range of the index; the database merges them.
            merged = union_all(*(select(part.subquery()) for part in parts)).subquery()
            statement = (
                select(merged).order_by(*(merged.c[column.name].desc() for column in _KEY)).limit(limit)
            )
        with self._database.read() as connection:
            found = connection.execute(statement).mappings().all()
        return [DeadLetterLine(**{**row, "status": DeadLetterStatus(row["status"])}) for row in found]

    def counts_by_hour(self, filter: DeadLetterFilter) -> list[HourCount]:
        """The number that failed last in each hour (UTC) that has any, in order; they add up to all."""
        hour = self._database.dialect.hour_of(_ROW.last_failed_at).label("hour")
        statement = (
            select(hour, func.count())
            .select_from(dead_letter)
            .where(*self._conditions(filter), _status_in(filter))
            .group_by(hour)
            .order_by(hour)
        )
        with self._database.read() as connection:
            return [HourCount(_hour_of(found), count) for found, count in connection.execute(statement)]

    def open_counts(
        self,
        consumer: ConsumerKey | None = None,
        *,
        enqueued_from: datetime | None = None,
        failed_from: datetime | None = None,
    ) -> dict[ConsumerKey, int]:
        """Open dead letters by consumer, for those that have any. consumer: None: all.

        enqueued_from, failed_from: only those that were enqueued, or failed last, then or later.
        """
        filter = DeadLetterFilter(status=None, enqueued_from=enqueued_from, failed_from=failed_from)
        conditions = [is_open(), *conditions_of(filter)]
        if consumer is not None:
            conditions.append(of_consumer(dead_letter, consumer))
        return self._counts(conditions)

    def open_by_partition(
        self, consumer: ConsumerKey, *, failed_from: datetime | None = None
    ) -> dict[str, int]:
        """A consumer's open dead letters by partition, for those that have any. failed_from: see above."""
        filter = DeadLetterFilter(status=None, failed_from=failed_from)
        conditions = [is_open(), of_consumer(dead_letter, consumer), *conditions_of(filter)]
        statement = select(_ROW.partition_id, func.count()).where(*conditions).group_by(_ROW.partition_id)
        with self._database.read() as connection:
            return {str(partition_id): count for partition_id, count in connection.execute(statement)}

    def all_counts(self) -> dict[ConsumerKey, int]:
        """All dead letters by consumer, whatever their status."""
        return self._counts([])

    def _counts(self, conditions: Sequence[ColumnElement[bool]]) -> dict[ConsumerKey, int]:
        names = (_ROW.event_hub, _ROW.consumer_group)
        statement = select(*names, func.count()).where(*conditions).group_by(*names)
        with self._database.read() as connection:
            return {
                ConsumerKey(event_hub, consumer_group): count
                for event_hub, consumer_group, count in connection.execute(statement)
            }

    def _part(
        self, filter: DeadLetterFilter, status: DeadLetterStatus, behind: DeadLetterPlace | None, limit: int
    ) -> Select[tuple[object, ...]]:
        """The first rows of one status, read in one walk along the index."""
        statement = select(*_LINE).where(*self._conditions(filter), _ROW.status == status.value)
        if behind is not None:
            is_beyond = self._database.dialect.is_beyond
            statement = statement.where(is_beyond(_KEY, astuple(behind), is_descending=True))
        return statement.order_by(*(column.desc() for column in _KEY)).limit(limit)

    def _conditions(self, filter: DeadLetterFilter) -> list[ColumnElement[bool]]:
        """The filter's conditions without its status; those on names keep SQLite on the time index."""
        # Without statistics, SQLite would use the primary key and sort all rows of the hub.
        return shown_conditions_of(replace(filter, status=None), are_names_hidden=self._database.is_sqlite)


def _statuses(filter: DeadLetterFilter) -> Sequence[DeadLetterStatus]:
    return tuple(DeadLetterStatus) if filter.status is None else (filter.status,)


def _status_in(filter: DeadLetterFilter) -> ColumnElement[bool]:
    return or_(*(_ROW.status == status.value for status in _statuses(filter)))


def _hour_of(found: object) -> datetime:
    if isinstance(found, datetime):
        return found.astimezone(UTC)
    return datetime.fromisoformat(f"{found}:00").replace(tzinfo=UTC)

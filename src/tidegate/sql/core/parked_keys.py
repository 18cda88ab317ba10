"""Parked partition keys: an event waits while an earlier one of its key is an open dead letter.

Rule: read under the checkpoint's lock, which a partition's pump and a redrive both hold, so that no later
event of a key overtakes an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, func, literal_column, select

from tidegate.model.events import ReceivedEvent
from tidegate.sql.core.dialects import dialect_of
from tidegate.sql.core.schema import dead_letter, of_consumer
from tidegate.sql.core.values import ConsumerKey, NewDeadLetter, place_of, storable_key

PARKED: Final = "ParkedKeyError"
"""The error type of a parked event, which was not run; never raised."""


def stored_key_of(event: ReceivedEvent) -> str | None:
    """The event's partition key as stored in dead letters; None: it has none, or cannot be decoded."""
    key = place_of(event).partition_key
    return None if key is None else storable_key(key)


class KeyOrder:
    """Decides which events must wait for which, while a batch is run in order."""

    def __init__(
        self,
        first_open: Mapping[str, int],
        *,
        key_of: Callable[[ReceivedEvent], str | None],
        is_held: Callable[[ReceivedEvent], bool] = lambda event: True,
    ) -> None:
        """first_open: the sequence number of each key's first open dead letter.

        is_held: whether an event waits for its key at all.
        """
        self._first_open = dict(first_open)
        self._key_of = key_of
        self._is_held = is_held

    def waits_behind(self, event: ReceivedEvent) -> int | None:
        """The sequence number of the open dead letter for which ``event`` waits; None: it may run."""
        if not self._first_open or not self._is_held(event):
            return None
        key = self._key_of(event)
        first = None if key is None else self._first_open.get(key)
        return first if first is not None and first < event.sequence_number else None

    def failed(self, event: ReceivedEvent) -> None:
        """Record that ``event`` became a dead letter, so that later events of its key wait."""
        key = self._key_of(event)
        if key is not None:
            number = event.sequence_number
            self._first_open[key] = min(self._first_open.get(key, number), number)

    def is_overtaken(self, dead_lettered: Container[int], events: Sequence[ReceivedEvent]) -> bool:
        """Whether one of ``events``, ascending, should have waited for one that was dead-lettered."""
        keys: set[str | None] = set()
        for event in events:
            if keys and self._is_held(event) and self._key_of(event) in keys:
                return True
            if event.sequence_number in dead_lettered:
                keys.add(self._key_of(event))
                keys.discard(None)
        return False


def first_open_by_key(
    connection: Connection, consumer: ConsumerKey, partition_id: str, *, event_hub_created_at_ms: int | None
) -> dict[str, int]:
    """The first open dead letter of each partition key in one partition, by one statement.

    event_hub_created_at_ms: dead letters of an earlier hub of this name do not count; None: unknown, all do.
    Where the database can (``has_index_walks``), it walks an index from key to key: one look-up per parked
    key, however many events are parked.
    """
    row = dead_letter.c
    here = and_(of_consumer(dead_letter, consumer, partition_id), is_open(), row.partition_key.is_not(None))
    if event_hub_created_at_ms is not None:
        here = and_(here, row.enqueued_time_ms >= event_hub_created_at_ms)
    if not dialect_of(connection).has_index_walks:
        each_key = select(row.partition_key, func.min(row.sequence_number)).where(here)
        found = connection.execute(each_key.group_by(row.partition_key))
        return {str(key): int(number) for key, number in found}
    # ORDER BY … LIMIT 1, not min(): without statistics, PostgreSQL would read all of them for min().
    smallest = select(row.partition_key).where(here).order_by(row.partition_key).limit(1)
    keys = select(smallest.scalar_subquery().label("key")).cte("parked", recursive=True)
    following = smallest.where(row.partition_key > keys.c.key).scalar_subquery()
    keys = keys.union_all(select(following).where(keys.c.key.is_not(None)))
    first = (
        select(row.sequence_number)
        .where(here, row.partition_key == keys.c.key)
        .order_by(row.sequence_number)
        .limit(1)
        .scalar_subquery()
    )
    found = connection.execute(select(keys.c.key, first).where(keys.c.key.is_not(None)))
    return {str(key): int(number) for key, number in found}


def is_open() -> ColumnElement[bool]:
    """Selects open dead letters by the partial index's own condition; a bound value would not match it."""
    return dead_letter.c.status == literal_column("'open'")


def parked_letter(event: ReceivedEvent, behind: int, *, is_payload_copied: bool) -> NewDeadLetter:
    return NewDeadLetter.from_text(
        event,
        PARKED,
        f"Waits behind event {behind} of the same partition key, which is an open dead letter.",
        is_payload_copied=is_payload_copied,
    )

"""Dead letters of consumers in any language, which have neither a pipeline here nor this database: added
once, and redriven by publishing their copies.

An event is published within the transaction that closes its dead letter, as its last step. If the transaction
then fails to commit, the dead letter stays open, and the next redrive publishes the event a second time: at
least once, never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import delete, func, select

from tidegate.model.errors import AlreadyExistsError, QuotaExceededError
from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_rows import close_letters, conditions_of, lock_open
from tidegate.sql.core.parked_keys import is_open
from tidegate.sql.core.schema import (
    checkpoint,
    dead_letter,
    in_partition_order,
    letters_of_handlers,
    of_consumer,
)
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import (
    OVER_HTTP,
    ConsumerKey,
    DeadLetterFilter,
    DeadLetterStatus,
    NewDeadLetter,
)

Publish = Callable[[str, Sequence[bytes]], None]
"""Stores encoded events in a partition, in order; returns once they are durable."""


def add_once(
    database: Database,
    consumer: ConsumerKey,
    partition_id: str,
    letters: Sequence[NewDeadLetter],
    *,
    open_max: int,
    event_hub_created_at_ms: int,
) -> int:
    """Write those that are not open yet, in one transaction; returns how many.

    A closed one that was added here is reopened with one more attempt. letters: of different events.
    event_hub_created_at_ms: those of an earlier hub of this name do not count, as who uses the hub now can
    neither see nor close them. Writes none and raises AlreadyExistsError for an event of which a handler's
    dead letter is closed (reopened, a redrive would process it again), and QuotaExceededError if the consumer
    would have more than ``open_max`` open.
    """
    times_ms = {letter.sequence_number: letter.enqueued_time_ms for letter in letters}
    some = select(dead_letter.c.sequence_number).where(
        of_consumer(dead_letter, consumer),
        is_open(),
        dead_letter.c.enqueued_time_ms >= event_hub_created_at_ms,
    )
    # Before the lock, for which handlers wait: it may count a hundred thousand.
    with database.read() as connection:
        counted = select(func.count()).select_from(some.limit(open_max + 1).subquery())
        open_count = connection.execute(counted).scalar_one()
    unit = UnitOfWork(database, consumer, pipeline_name=OVER_HTTP)
    with unit, unit.translating("adding dead letters"):
        # Handlers write theirs under this lock: none appears between the look and the writing.
        is_created = _lock(unit, partition_id)
        known = set(lock_open(unit, partition_id, times_ms))
        new = [letter for letter in letters if letter.sequence_number not in known]
        _refuse_closed(unit, partition_id, new)
        room = max(0, open_max - len(new))
        if new and open_count > room:
            raise QuotaExceededError(
                f"{consumer} has more than {room:,} open dead letters; {open_max:,} are allowed.",
                next_step="Redrive or discard some. If every event fails, stop the consumer instead.",
            )
        count = unit.add_dead_letters(partition_id, new)
        if is_created:
            # Nothing else deletes it: clients could fill the table with those of groups that are gone. For
            # others it is as if this transaction had been rolled back, as none has ever seen the row.
            unit.connection.execute(delete(checkpoint).where(of_consumer(checkpoint, consumer, partition_id)))
        return count


def _lock(unit: UnitOfWork, partition_id: str) -> bool:
    """Lock the checkpoint; returns whether this transaction has created it.

    It does if there is none, because a pipeline's first batch creates it in the transaction that writes its
    dead letters. Whose a new row is, not every database says, but its token does.
    """
    row = {
        "event_hub": unit.consumer.event_hub,
        "consumer_group": unit.consumer.consumer_group,
        "partition_id": partition_id,
        "transaction_token": unit.token,
        "updated_at": unit.database.clock.now_utc(),
    }
    unit.connection.execute(unit.database.dialect.insert_or_lock(checkpoint, row))
    return unit.lock_checkpoint(partition_id).transaction_token == unit.token


def _refuse_closed(unit: UnitOfWork, partition_id: str, letters: Sequence[NewDeadLetter]) -> None:
    """Raises AlreadyExistsError if a handler's dead letter of one of these events, none open, is there."""
    if not letters:
        return
    times_ms = {letter.sequence_number: letter.enqueued_time_ms for letter in letters}
    row = dead_letter.c
    statement = (
        select(row.sequence_number, row.enqueued_time_ms, row.status)
        .where(letters_of_handlers(unit.consumer, partition_id), row.sequence_number.in_(times_ms))
        .order_by(row.sequence_number)
    )
    for number, time_ms, status in unit.connection.execute(statement):
        if time_ms == times_ms[number]:
            raise AlreadyExistsError(
                f"A pipeline or host of {unit.consumer} has a dead letter of event {number} of partition "
                f"{partition_id}, which was {status}.",
                next_step="Give this consumer a consumer group of its own.",
            )


def republish_next(
    database: Database,
    consumer: ConsumerKey,
    filter: DeadLetterFilter,
    publish: Publish,
    *,
    events_max: int,
    bytes_max: int,
    actor: str,
) -> int | None:
    """Publish the copies of some open dead letters of one partition, and close them, in one transaction.

    Considers dead letters of ``consumer`` that match ``filter``, have a copy, and no pipeline whose redrive
    would run them; in the order of their sequence numbers. bytes_max: of copies together; one may be larger.
    Returns how many; 0 if others have closed these meanwhile. None: there are no more.
    """
    row = dead_letter.c
    size = func.length(row.payload)
    candidates = (
        select(row.partition_id, row.sequence_number, row.enqueued_time_ms, size)
        .where(*conditions_of(filter), of_consumer(dead_letter, consumer), is_open())
        .where(row.pipeline.in_(("", OVER_HTTP)), row.payload.is_not(None))
        .order_by(*in_partition_order(dead_letter), row.sequence_number)
        .limit(events_max)
    )
    with database.read() as connection:
        found = connection.execute(candidates).all()
    if not found:
        return None
    partition_id, room = str(found[0][0]), bytes_max
    times_ms: dict[int, int] = {}
    for each_partition_id, number, time_ms, size_bytes in found:
        room -= size_bytes
        if each_partition_id != partition_id or (times_ms and room < 0):
            break
        times_ms[number] = time_ms
    unit = UnitOfWork(database, consumer)
    with unit, unit.translating("redriving dead letters"):
        numbers = lock_open(unit, partition_id, times_ms)
        if numbers:
            close_letters(unit, partition_id, numbers, DeadLetterStatus.REDRIVEN, actor=actor)
            copies = (
                select(row.payload)
                .where(of_consumer(dead_letter, consumer, partition_id), row.sequence_number.in_(numbers))
                .order_by(row.sequence_number)
            )
            # Last, because the log cannot take it back.
            publish(partition_id, [bytes(copy) for copy in unit.connection.execute(copies).scalars()])
    return len(numbers)

"""Lanes: what a relay knows of published events, and where it continues. Statements, and one decision.

Theory of operation. A lane is what one partition of a consumer publishes to one partition of a hub. Its
events are numbered by the transaction that stores them, behind the lock of the checkpoint, so a number means
the same events always; a row is one batch, so a repeat has the same bytes. The service stores a producer's
numbers once. Therefore nothing depends on who relays: two relays complete each other.

    base_number ≤ relayed_until ≤ sent_until, next_number

    base_number       the event that the producer counts as 0, under this epoch
    relayed_until     events before it are acknowledged, and their rows deleted
    sent_until        events before it may have been sent
    next_number       the next event to be published

A partition remembers the 1,000 producers that sent last. For one that it has forgotten, it would store number
0 again. So a relay raises ``sent_until`` before it sends, and knows whether a batch may be stored already;
the service says since which event it knows all producers; ``find_start`` refuses to guess.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, case, delete, select, update
from sqlalchemy.exc import SQLAlchemyError

from tidegate.model.errors import (
    FencedError,
    OutboxInDoubtError,
    PartitionNotFoundError,
    ProducerEpochStolenError,
    TidegateError,
)
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects.base import locking_free
from tidegate.sql.core.failures import translate
from tidegate.sql.core.schema import of_consumer, outbox, outbox_hub, outbox_lane
from tidegate.sql.core.values import ConsumerKey

EPOCHS: Final = 1 << 15
_STEPS_MAX: Final = 1_000
"""In a transaction; SQL Server's statements have up to 2,099 parameters (our choice)."""
NUMBERS_MAX: Final = 1 << 30
_lane = outbox_lane.c


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of ``tidegate_outbox_lane``."""

    lane_id: str
    partition_id: str
    """Of the consumer's hub."""
    target_hub: str
    target_partition_id: str
    next_number: int
    relayed_until: int
    sent_until: int
    producer_id: int
    producer_epoch: int
    """0: no producer was begun."""
    base_number: int
    base_sequence_number: int
    """The end of the target partition before the producer was begun."""

    @property
    def waiting(self) -> int:
        """Events that are not acknowledged."""
        return self.next_number - self.relayed_until

    def is_as_relayed(self, other: Lane) -> bool:
        """Whether it is the same lane, and no relay has noted anything between the two looks."""
        return replace(self, next_number=other.next_number) == other

    @property
    def may_send_until(self) -> int:
        """Until where this producer may send; the first so many events of it: its numbers are 31 bits."""
        is_short = self.next_number - self.base_number <= NUMBERS_MAX
        return max(self.sent_until, self.next_number) if is_short else self.sent_until

    @property
    def is_used_up(self) -> bool:
        """Whether this producer has sent what it may, and all of it is acknowledged."""
        return self.may_send_until < self.next_number and self.relayed_until >= self.sent_until


_COLUMNS: Final = [_lane[name] for name in Lane.__slots__]


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A batch."""

    number: int
    event_count: int
    until_byte: int
    sections: bytes

    @property
    def until(self) -> int:
        """One past its last event's number."""
        return self.number + self.event_count


@dataclass(frozen=True, slots=True)
class LaneStep:
    """What to note of a lane."""

    lane_id: str
    producer_epoch: int
    """Under which its events are sent."""
    relayed_until: int = 0
    """Until where it is acknowledged; what is noted never goes back."""
    relayed_bytes: int = 0
    sent_until: int = 0
    """Until where events may be sent from now on."""


def read_lanes(database: Database, consumer: ConsumerKey, partition_ids: Collection[str]) -> list[Lane]:
    """The lanes of these partitions in which events wait, by lane id."""
    statement = (
        select(*_COLUMNS)
        .where(of_consumer(outbox_lane, consumer), _lane.partition_id.in_(sorted(partition_ids)))
        .where(_lane.next_number > _lane.relayed_until)
        .order_by(_lane.lane_id)
    )
    with database.read() as connection:
        return [Lane(*row) for row in connection.execute(statement)]


def read_rows(database: Database, lane_ids: Sequence[str], rows_max: int) -> dict[str, list[OutboxRow]]:
    """The first rows of lanes, in order."""
    row = outbox.c
    statement = (
        select(row.lane_id, row.number, row.event_count, row.until_byte, row.sections)
        .where(row.lane_id.in_(lane_ids))
        .order_by(row.lane_id, row.number)
        .limit(rows_max)
    )
    found: dict[str, list[OutboxRow]] = {}
    with database.read() as connection:
        for lane_id, number, event_count, until_byte, sections in connection.execute(statement):
            found.setdefault(lane_id, []).append(OutboxRow(number, event_count, until_byte, bytes(sections)))
    return found


def _further(name: str) -> ColumnElement[int]:
    # By itself alone: MariaDB assigns one column after the other.
    column, new = _lane[name], bindparam(f"new_{name}", type_=BigInteger)
    return case((column < new, new), else_=column)


_STEP: Final = (
    update(outbox_lane)
    .where(_lane.lane_id == bindparam("at_lane_id"))
    .values({name: _further(name) for name in ("relayed_until", "relayed_bytes", "sent_until")})
)
_FORGET: Final = delete(outbox).where(
    outbox.c.lane_id == bindparam("at_lane_id"), outbox.c.number < bindparam("new_relayed_until")
)


def take_steps(database: Database, steps: Iterable[LaneStep]) -> set[str]:
    """Note the steps, and delete the rows that are acknowledged, in one transaction; returns their lanes.

    Lanes that another transaction has locked, because it publishes to them, are left out: a handler may hold
    many, in any order (that of its savepoints), and for long. Raises FencedError, and notes nothing, if
    another relay has begun another producer for one of the others.
    """
    with _writing(database) as connection:
        wanted = sorted(steps, key=lambda step: step.lane_id)[:_STEPS_MAX]
        free = _lock_free(connection, {step.lane_id: step.producer_epoch for step in wanted})
        ordered = [step for step in wanted if step.lane_id in free]
        if ordered:
            _note(connection, ordered)
    return free


def _lock_free(connection: Connection, epochs: Mapping[str, int]) -> set[str]:
    """Lock the lanes that are free. epochs: by lane id. Raises FencedError."""
    statement = select(_lane.lane_id, _lane.producer_epoch).where(_lane.lane_id.in_(epochs))
    free = {
        row.lane_id: row.producer_epoch for row in connection.execute(locking_free(statement, outbox_lane))
    }
    found = dict(free)
    if len(found) < len(epochs):
        found = {row.lane_id: row.producer_epoch for row in connection.execute(statement)}
    if found != epochs:
        raise FencedError(
            "Another relay has begun a new producer for events that this one was sending.",
            next_step="None: what is stored already is looked up, and the rest is sent.",
        )
    return set(free)


def _note(connection: Connection, ordered: Sequence[LaneStep]) -> None:
    parameters = [
        {
            "at_lane_id": step.lane_id,
            "new_relayed_until": step.relayed_until,
            "new_relayed_bytes": step.relayed_bytes,
            "new_sent_until": step.sent_until,
        }
        for step in ordered
    ]
    deleted = [
        {"at_lane_id": step.lane_id, "new_relayed_until": step.relayed_until}
        for step in ordered
        if step.relayed_until
    ]
    connection.execute(_STEP, parameters)
    if deleted:
        connection.execute(_FORGET, deleted)


def begin_producer(database: Database, lane: Lane, end_sequence_number: int) -> bool:
    """Let the lane's producer count from 0 at the lane's first row, under a new epoch.

    lane: as read; nothing of it may have been sent. end_sequence_number: the target partition's, read before.
    Does nothing if the lane's row has changed since, or if a transaction has locked it: then it is False.
    """
    is_last = lane.producer_epoch + 1 == EPOCHS
    changes: dict[str, Any] = {
        "producer_id": new_producer_id() if is_last else lane.producer_id,
        "producer_epoch": 1 if is_last else lane.producer_epoch + 1,
        "base_number": lane.relayed_until,
        "sent_until": lane.relayed_until,
        "base_sequence_number": end_sequence_number,
    }
    here = (
        _lane.lane_id == lane.lane_id,
        _lane.producer_epoch == lane.producer_epoch,
        _lane.sent_until == lane.sent_until,
        _lane.relayed_until == lane.relayed_until,
    )
    with _writing(database) as connection:
        free = locking_free(select(_lane.lane_id).where(_lane.lane_id == lane.lane_id), outbox_lane)
        if connection.execute(free).one_or_none() is None:
            return False
        connection.execute(update(outbox_lane).where(*here).values(changes))
    return True


def save_hub(database: Database, target_hub: str, partition_ids: Sequence[str], batch_bytes_max: int) -> None:
    """Keep a target hub's partitions and limit for programs that start while it does not answer."""
    values = {
        "target_hub": target_hub,
        "partition_ids": ",".join(partition_ids),
        "batch_bytes_max": batch_bytes_max,
    }
    statements = database.dialect.upsert_values(
        outbox_hub, lambda new: {name: new[name] for name in ("partition_ids", "batch_bytes_max")}
    )
    with _writing(database) as connection:
        for statement in statements:
            connection.execute(statement, {f"new_{name}": value for name, value in values.items()})


def read_hub(database: Database, target_hub: str) -> tuple[tuple[str, ...], int] | None:
    """What ``save_hub`` kept; None: nothing."""
    hub = outbox_hub.c
    statement = select(hub.partition_ids, hub.batch_bytes_max).where(hub.target_hub == target_hub)
    with database.read() as connection:
        found = connection.execute(statement).one_or_none()
    return None if found is None else (tuple(found.partition_ids.split(",")), found.batch_bytes_max)


def new_producer_id() -> int:
    """63 random bits: a database that is created again must not repeat a producer."""
    return secrets.randbits(63)


@contextmanager
def _writing(database: Database) -> Iterator[Connection]:
    with database.writing() as connection:
        try:
            with connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise translate(error, doing="relaying published events", where=database.url) from error


def find_start(lane: Lane, stored_count: int, known_since: int | None) -> int | None:
    """The number of the first event to be sent; None: begin a new producer first.

    stored_count: how many events the service has of the lane's producer and epoch. known_since: a producer
    that has written at this sequence number or beyond is known to it; None: it does not say. Raises
    OutboxInDoubtError.

        the service has              of them              then
        more than may be sent        any                  in doubt: the database is older than the hub
        as many as are acknowledged,
        or more                      one or more          continue after them
        fewer                        all acknowledged     a new producer: no event is lost or repeated
        fewer, but some              some may be sent     a new producer: an earlier log was restored
        none                         first batch may be   send it, if the producer would be known since
                                     sent                 it was begun, else in doubt
        none                         later ones may be    in doubt: the producer was forgotten; a new producer
                                     sent                 if none ever was: it is another log than before
    """
    if not lane.producer_epoch:
        return None
    stored_until = lane.base_number + stored_count
    if stored_until > lane.sent_until:
        raise _in_doubt(
            lane,
            f"the hub has {stored_until - lane.sent_until} events more of it than this database has sent",
        )
    if stored_until >= lane.relayed_until and (stored_count or lane.sent_until == lane.base_number):
        return stored_until
    if lane.sent_until <= lane.relayed_until:
        return None
    if stored_count or (known_since == 0 and lane.relayed_until > lane.base_number):
        return None
    is_first = lane.relayed_until == lane.base_number
    if is_first and known_since is not None and known_since <= lane.base_sequence_number:
        return lane.base_number
    raise _in_doubt(
        lane,
        f"the service has forgotten their producer, and up to {lane.sent_until - lane.relayed_until} of its "
        "events may be stored already",
    )


def explained(lane: Lane, error: TidegateError) -> TidegateError:
    """What an error of the service means for a lane that no other relay has continued."""
    if isinstance(error, ProducerEpochStolenError):
        return _in_doubt(lane, "their producer has a later epoch in the hub: this database is older")
    if isinstance(error, PartitionNotFoundError):
        return PartitionNotFoundError(
            f"{_said(lane)} wait: the hub has no such partition now (lane {lane.lane_id}).",
            next_step="Add the missing partitions, and they are sent; new events go to those that there are.",
        )
    return error


def _said(lane: Lane) -> str:
    return (
        f"The events from number {lane.relayed_until} that partition {lane.partition_id} has published to "
        f"partition {lane.target_partition_id} of {lane.target_hub!r}"
    )


def _in_doubt(lane: Lane, why: str) -> OutboxInDoubtError:
    return OutboxInDoubtError(
        f"{_said(lane)} are not sent: {why} (lane {lane.lane_id}).",
        next_step="Compare the rows of tidegate_outbox with the hub's last events, and either delete those "
        "that it has or allow them to be sent: see the documentation of publishing.",
    )

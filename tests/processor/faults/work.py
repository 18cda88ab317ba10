"""What the fault tests process: numbered events, what is to become of each, and where hosts write it down.

Event ``number`` goes to partition ``number % PARTITION_COUNT``, so its sequence number there is
``number // PARTITION_COUNT``: whoever knows how many events there are knows every row that has to be. The
tables have no key that would refuse a second row for one event: that is for the checker to find.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.handlers import (
    CloseReason,
    EventProcessor,
    PartitionContext,
    TransactionalProcessor,
    TransactionContext,
)
from tidegate.sql import ConsumerKey

PARTITION_COUNT: Final = 16
CONSUMER_GROUP: Final = "$Default"
RAISED_ONE_IN: Final = 1009
"""The handler raises for one event in so many: the batch is undone and run again in halves."""
PUT_ASIDE_ONE_IN: Final = 101
"""The handler puts one event in so many aside by itself."""
_PLAIN_RAISED_SHARE: Final = 0.02

metadata = MetaData()

sink = Table(
    "chaos_sink",
    metadata,
    Column("partition_id", String(8), nullable=False),
    Column("sequence_number", BigInteger, nullable=False),
    Column("event_number", BigInteger, nullable=False),
)
"""One row for each event that is neither raised for nor put aside."""

committed_calls = Table(
    "chaos_committed_calls",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("partition_id", String(8), nullable=False),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
)
"""One row for each handler call whose transaction was committed: who it was, and its range of events."""


class Fate(Enum):
    """What is to become of an event in transactional processing."""

    ROW = "row"
    RAISED = "raised"
    PUT_ASIDE = "put aside"


def fate_of(number: int) -> Fate:
    """What is to become of event ``number``."""
    if number % RAISED_ONE_IN == 0:
        return Fate.RAISED
    return Fate.PUT_ASIDE if number % PUT_ASIDE_ONE_IN == 0 else Fate.ROW


def partition_ids() -> list[str]:
    """All partitions."""
    return [str(number) for number in range(PARTITION_COUNT)]


def events_of(partition_id: str, start: int, until: int) -> list[EventData]:
    """The events ``start <= sequence number < until`` of a partition, to be sent."""
    index = int(partition_id)
    return [EventData(b"%d" % (number * PARTITION_COUNT + index)) for number in range(start, until)]


def consumer_of(event_hub: str) -> ConsumerKey:
    """The consumer that all hosts of a run are."""
    return ConsumerKey(event_hub, CONSUMER_GROUP)


def key_of(number: int) -> str:
    """The key under which event ``number`` is published: all of a key come from one partition."""
    return str(number % (3 * PARTITION_COUNT))


class PoisonError(Exception):
    """What the handlers raise on purpose."""


class TransactionalWork(TransactionalProcessor):
    """Rows, dead letters and a note of who did it, all in the transaction that it is given."""

    def __init__(self, journal: Journal, target_hub: str = "") -> None:
        """target_hub: where each event that becomes a row is published as well; empty: nowhere."""
        self._journal = journal
        self._target_hub = target_hub

    async def open(self, context: PartitionContext) -> None:
        """Note it."""
        self._journal.write(context, "open")

    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        """See the class."""
        rows: list[dict[str, object]] = []
        for event in events:
            number = int(event.body)
            fate = fate_of(number)
            if fate is Fate.RAISED:
                raise PoisonError(f"Event {number} is raised for.")
            if fate is Fate.PUT_ASIDE:
                context.dead_letter(event, f"event {number} is put aside")
            else:
                rows.append(
                    {
                        "partition_id": event.partition_id,
                        "sequence_number": event.sequence_number,
                        "event_number": number,
                    }
                )
                if self._target_hub:
                    event_out = EventData(event.body)
                    context.publish(self._target_hub, event_out, partition_key=key_of(number))
        if rows:
            context.connection.execute(sink.insert(), rows)
        call = {"partition_id": context.partition_id, "owner": context.owner, "epoch": context.lease.epoch}
        place = {"start": events[0].sequence_number, "until": events[-1].sequence_number + 1}
        context.connection.execute(committed_calls.insert(), call | place)

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Note it."""
        self._journal.write(context, "close", reason.value)


class PlainWork(EventProcessor):
    """Notes what it sees, checkpoints after each call; raises for some calls, before or after its work."""

    def __init__(self, journal: Journal, random_numbers: random.Random) -> None:
        self._journal = journal
        self._random = random_numbers

    async def open(self, context: PartitionContext) -> None:
        """Note it."""
        self._journal.write(context, "open")

    async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        """See the class."""
        if self._random.random() < _PLAIN_RAISED_SHARE:
            raise PoisonError("This call is raised for before it did anything.")
        start, until = events[0].sequence_number, events[-1].sequence_number + 1
        self._journal.write(context, "seen", start, until, len(events))
        if self._random.random() < _PLAIN_RAISED_SHARE:
            raise PoisonError("This call is raised for after its work.")
        await context.checkpoint()
        self._journal.write(context, "checkpointed", until)

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Note it."""
        self._journal.write(context, "close", reason.value)


class Journal:
    """One file for each partition, to which all hosts append: the order of its lines is what happened.

    A line is one write to a file opened for appending, so it is whole, behind all earlier ones, and outlives
    the process that wrote it.
    """

    def __init__(self, folder: Path, instance: str) -> None:
        """instance: names the handler instance that writes, unique in the folder."""
        self._folder = folder
        self._instance = instance
        self._descriptor: int | None = None

    def write(self, context: PartitionContext, what: str, *values: object) -> None:
        """Append one line: what happened, owner, epoch, instance, values."""
        if self._descriptor is None:
            path = self._folder / context.partition_id
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        words = [what, context.owner, context.lease.epoch, self._instance, *values]
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

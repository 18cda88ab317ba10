"""Contexts, leases and handlers for the tests of a host's transactions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, MetaData, Table, Text, insert
from tests.sql.support import CONSUMER

from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.processor.handlers import PartitionContext, TransactionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.policies import FailurePolicy
from tidegate.sql import Database
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.handlers.forms import form_of

effects = Table(
    "effects",
    MetaData(),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Text),
)
"""What the handlers of these tests write: one row per event."""


class Partition(PartitionContext):
    """The context that a host would give."""

    def __init__(self, lease: Lease) -> None:
        group = GroupKey("localhost", CONSUMER.event_hub, CONSUMER.consumer_group)
        super().__init__(group, CONSUMER.event_hub, CONSUMER.consumer_group, lease)

    async def checkpoint(self, event: ReceivedEvent | None = None) -> None:
        """Nobody may come here from a transaction."""
        raise AssertionError


def lease_of(epoch: int, *, partition_id: str = "0") -> Lease:
    """The lease of the host that got this epoch."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Lease(partition_id, f"host-{epoch}", epoch, now, now, str(epoch))


def transactions_of(
    database: Database,
    handler: object,
    *,
    epoch: int = 1,
    policy: FailurePolicy | None = None,
    event_hub_created_at_ms: int | None = None,
    max_batch_size: int | None = None,
) -> SqlTransactions:
    """What a host with this epoch's lease would get for partition 0."""
    lease = lease_of(epoch)
    return SqlTransactions(
        database,
        CONSUMER,
        lease,
        form_of(handler, CONSUMER),
        Partition(lease),
        policy=policy or FailurePolicy(),
        event_hub_created_at_ms=event_hub_created_at_ms,
        max_batch_size=max_batch_size,
    )


def keyed(sequence_number: int, key: str | None, *, is_bad: bool = False) -> ReceivedEvent:
    """An event with a partition key; a bad one makes ``write_effects`` fail."""
    return ReceivedEvent(
        partition_id="0",
        sequence_number=sequence_number,
        offset=str(sequence_number),
        enqueued_time_ms=1_700_000_000_000 + sequence_number,
        contents=EventContents(body=json.dumps({"is_bad": is_bad}).encode(), partition_key=key),
    )


def bad_at(numbers: Iterable[int], until: int, *, start: int = 0) -> list[ReceivedEvent]:
    """Events without keys, those with these numbers bad."""
    bad = set(numbers)
    return [keyed(number, None, is_bad=number in bad) for number in range(start, until)]


def write_effect(context: TransactionContext, event: ReceivedEvent) -> None:
    """One row for one event."""
    values = {"sequence_number": event.sequence_number, "key": ascii(event.partition_key)}
    context.connection.execute(insert(effects).values(**values))


def write_effects(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    """One row per event; a bad event fails after its row is written."""
    for event in events:
        write_effect(context, event)
        if json.loads(event.body)["is_bad"]:
            raise ValueError(f"event {event.sequence_number} is bad")

"""Replays a log into a shadow up to the live pipeline's checkpoint, as a host would process it.

A handler needs no Spark for this. Pipelines of steps, and events that only Capture still has, are replayed by
a query on Spark, which ends at the same positions (``spark.source.reader``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sqlalchemy import select

from tidegate.client import EventHubConsumer
from tidegate.model.errors import OperationTimeoutError, PositionOutOfRangeError
from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.position import EventPosition
from tidegate.processor.checkpoint import check_same_hub
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.policies import FailurePolicy
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.core.database import Database
from tidegate.sql.core.unit_of_work import default_owner
from tidegate.sql.handlers.forms import form_of
from tidegate.sql.handlers.pipeline import Pipeline
from tidegate.sql.shadows.shadow import Shadow, ShadowError
from tidegate.sql.stores.checkpoints import CheckpointReader, highest_epoch

_EVENTS: Final = 1_000
"""Events per transaction (our choice: as many as a host's default batch)."""
_WAIT_S: Final = 60.0
"""Longest wait for events that the log has."""


def prepare_shadow(database: Database, shadow: Shadow) -> None:
    """Create the shadow's table. Raises ShadowError if it has rows, and the shadow no checkpoint."""
    table = shadow.shadow_table()
    database.ensure_table(table)
    if CheckpointReader(database).read(shadow.consumer):
        return
    with database.read() as connection:
        if connection.execute(select(table).limit(1)).first() is not None:
            raise ShadowError(
                f"The table {table.name} has rows, and its shadow has no checkpoint.",
                next_step="Run `tidegate pipeline drop` and replay again, or use another name.",
            )


async def replay_into_shadow(
    database: Database,
    shadow: Shadow,
    pipeline: Pipeline,
    consumer: EventHubConsumer,
    until: Mapping[str, int],
    *,
    progress: Callable[[int], None] = lambda events: None,
) -> dict[str, int]:
    """Process each partition from the shadow's checkpoint, or the log's beginning, up to a sequence number.

    pipeline: the next version, whose table and consumer group are replaced by the shadow's. consumer: of the
    hub; it reads beside hosts. until: by partition id; others are left alone. progress: called with the
    number of events processed, after each transaction.

    Returns where partitions began whose log no longer has its first events, by partition id. Raises
    PositionOutOfRangeError if retention has deleted the next event, EventHubReplacedError,
    PartitionPausedError (an outage of what the handler calls), PartitionStoppedError (its policy is to stop),
    and as reading and ``SqlTransactions``.
    Cancellation: what is committed stays, and the next replay continues there.
    """
    policy = replace(pipeline.policy or FailurePolicy(), dead_letters_per_minute=None)
    own = replace(
        pipeline,
        table=shadow.shadow_table(),
        consumer_group=shadow.consumer.consumer_group,
        policy=policy,
    )
    hub = await consumer.get_event_hub_properties()
    for partition_id, stored in CheckpointReader(database).read(shadow.live).items():
        check_same_hub(shadow.live, partition_id, stored.event_hub_created_at_ms, hub.created_at_ms)
    epoch = _next_epoch(database, shadow)
    late: dict[str, int] = {}
    for ends in await consumer.get_all_partition_properties(hub):
        if ends.partition_id not in until:
            continue
        lease = Lease(ends.partition_id, default_owner(), epoch, None, database.clock.now_utc(), "")
        group = GroupKey("shadow", shadow.consumer.event_hub, shadow.consumer.consumer_group)
        transactions = SqlTransactions(
            database,
            shadow.consumer,
            lease,
            form_of(own),
            PartitionContext(group, pipeline.event_hub, pipeline.consumer_group, lease),
            policy=policy,
            event_hub_created_at_ms=hub.created_at_ms,
        )
        try:
            begin = await _replay_partition(transactions, consumer, ends, until[ends.partition_id], progress)
        finally:
            transactions.close()
        if begin:
            late[ends.partition_id] = begin
    return late


async def _replay_partition(
    transactions: SqlTransactions,
    consumer: EventHubConsumer,
    ends: PartitionEnds,
    until: int,
    progress: Callable[[int], None],
) -> int:
    """Returns where it began if there was no checkpoint; otherwise 0."""
    if until > ends.next_sequence_number:
        raise PositionOutOfRangeError(
            f"Partition {ends.partition_id}: the live checkpoint is {until}, and the log ends at "
            f"{ends.next_sequence_number}: it has lost events that were already processed.",
            next_step="Check that the database and the service belong together.",
        )
    done = await transactions.begin()
    start = done.resume_point if done is not None else None
    begin = min(ends.begin_sequence_number, until) if start is None else 0
    if start is None and begin == until:
        await transactions.process([], start_sequence_number=until, until_sequence_number=until)
    number = begin if start is None else start
    if number >= until:
        return begin
    async with await consumer.open_receiver(
        ends.partition_id,
        EventPosition.from_sequence_number(number),
        must_start_at_position=True,
        until_sequence_number=until,
        is_peeking=True,
    ) as receiver:
        while number < until:
            found = await receiver.receive(min(_EVENTS, until - number), max_wait_s=_WAIT_S)
            if not found:
                raise OperationTimeoutError(
                    f"Partition {ends.partition_id} returned no event from {number} on in {_WAIT_S:.0f} s.",
                    next_step="Run the replay again: it continues there.",
                )
            last = found[-1].sequence_number + 1
            await transactions.process(found, start_sequence_number=number, until_sequence_number=last)
            progress(last - number)
            number = last
    return begin


def _next_epoch(database: Database, shadow: Shadow) -> int:
    """One more than that of any earlier replay, which it fences."""
    with database.read() as connection:
        return highest_epoch(connection, shadow.consumer) + 1

"""``tidegate lag``: how far consumer groups are behind the end of the log, and who works on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import impatient_namespace, resolve_connection
from tidegate.cli.options import (
    BlobContainerOption,
    CaFileOption,
    CheckpointDirOption,
    ConnectionStringOption,
    DatabaseOption,
    GroupsOption,
    NamespaceOption,
    with_output,
)
from tidegate.cli.render import Output, OutputFormat
from tidegate.cli.stores import (
    LEASE_COLUMNS,
    GroupView,
    StoreChoice,
    milliseconds_of,
    time_of,
    view_groups,
)
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.client import EventHubConsumer, EventHubProperties, PartitionProperties
    from tidegate.processor.checkpoint import ProcessorCheckpoint

_COLUMNS = (
    *LEASE_COLUMNS,
    "checkpoint",
    "end_of_log",
    "lag_events",
    "lag_s",
    "lost_events",
)
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a checkpoint is behind the end of its partition's log."""

    events: int | None
    """Still to be read. None: unknown, for the checkpoint has no sequence number or is not of this log."""
    seconds: float | None
    """Enqueued time of the log's last event minus that of the last processed one; 0 when caught up. None:
    unknown, for nothing was processed yet, or when it was enqueued is not stored."""
    lost_events: int | None
    """Those that retention removed before they were read; None as for ``events``."""
    is_beyond_log: bool = False
    """The checkpoint is not of this log: it lies beyond its end, or counts in another hub of this name."""


def lag_of(
    partition: PartitionProperties,
    checkpoint: ProcessorCheckpoint | None,
    *,
    event_hub_created_at_ms: int | None = None,
) -> Lag:
    """The lag of one partition; without a checkpoint everything that is held is to be read.

    event_hub_created_at_ms: which hub the log is of; None: not compared with the checkpoint's.
    """
    # An empty partition of Azure may say -1; ours says where its next event will be.
    begin = partition.next_sequence_number if partition.is_empty else max(0, partition.begin_sequence_number)
    until = partition.next_sequence_number
    if checkpoint is None:
        return Lag(until - begin, 0.0 if begin == until else None, 0)
    stored_ms = checkpoint.event_hub_created_at_ms
    if None not in (stored_ms, event_hub_created_at_ms) and stored_ms != event_hub_created_at_ms:
        return Lag(None, None, None, is_beyond_log=True)
    if checkpoint.sequence_number is None:
        is_at_end = checkpoint.offset is not None and checkpoint.offset == partition.last_enqueued_offset
        return Lag(0, 0.0, 0) if is_at_end else Lag(None, _seconds(partition, checkpoint), None)
    # -1, nothing is processed yet, asks for the first event there is: none is lost to it.
    following = checkpoint.sequence_number + 1 if checkpoint.sequence_number >= 0 else begin
    if following > until:
        return Lag(None, None, None, is_beyond_log=True)
    events = until - max(begin, following)
    return Lag(
        events,
        _seconds(partition, checkpoint) if events else 0.0,
        max(0, begin - following),
    )


def _seconds(partition: PartitionProperties, checkpoint: ProcessorCheckpoint) -> float | None:
    processed = time_of(checkpoint.enqueued_time_ms)
    if processed is None or partition.last_enqueued_time is None:
        return None
    return max(0.0, (partition.last_enqueued_time - processed).total_seconds())


@with_output()
def lag(
    output: Output,
    hub: Annotated[str, typer.Argument(metavar="HUB", help="The event hub.")],
    group: GroupsOption = None,
    database: DatabaseOption = None,
    checkpoint_dir: CheckpointDirOption = None,
    blob_container: BlobContainerOption = None,
    namespace: NamespaceOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C; with --nl or a terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds between two looks with --watch.")
    ] = 2.0,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show, for each consumer group and partition, how far it is behind the end of the log.

    The lease table (consumer group, partition, owner, acquired, offset), with the age of the lease, its
    epoch, and: checkpoint: the sequence number of the last processed event (-1: none yet); end_of_log: that
    of the last event in the log; lag_events: how many are still to be read, all that are held where there is
    no checkpoint; lag_s: enqueued time of the last event minus that of the last processed one, 0 when caught
    up; lost_events: removed by retention before they were read. What is not known is left empty; a blob
    container keeps no times. A table ends with the totals: of seconds, the most, where all are known.

    \b
    Examples:
      tidegate lag telemetry --database sqlite:///reports.db
      tidegate lag telemetry --group reports --group alarms --checkpoint-dir ./checkpoints --json
      tidegate lag telemetry --database postgresql://user@host/name --watch
    """
    from tidegate.cli.interrupt import run_interruptible

    is_redrawn = output.is_table and output.is_terminal
    if watch and not is_redrawn and output.format is not OutputFormat.NL:
        raise InvalidArgumentError("--watch needs a terminal, or --nl.", next_step="Add --nl.")
    choice = StoreChoice(database, checkpoint_dir, blob_container, namespace)
    connection = resolve_connection(connection_string, ca_file, os.environ)
    group_namespace = choice.group_namespace(connection_string, ca_file)

    async def work() -> None:
        import asyncio

        from tidegate.client import EventHubConsumer

        async with choice.open() as store, EventHubConsumer(impatient_namespace(connection), hub) as consumer:
            while True:
                # The groups first: the log only grows meanwhile, so no checkpoint seems to be beyond its end.
                views = await view_groups(store, group_namespace, hub, group)
                properties = await consumer.get_event_hub_properties()
                partitions = await _read_partitions(consumer, properties)
                if watch and is_redrawn:
                    output.line(_CLEAR_SCREEN)
                _write(output, views, properties, partitions)
                if not watch:
                    return
                output.stream.flush()
                await asyncio.sleep(interval)

    async def work_until_interrupted() -> None:
        import asyncio

        try:
            await work()
        except asyncio.CancelledError:
            if not watch:
                raise

    run_interruptible(work_until_interrupted())


async def _read_partitions(
    consumer: EventHubConsumer, properties: EventHubProperties
) -> list[PartitionProperties]:
    import asyncio

    return list(
        await asyncio.gather(
            *(consumer.get_partition_properties(partition_id) for partition_id in properties.partition_ids)
        )
    )


def _write(
    output: Output,
    views: Sequence[GroupView],
    properties: EventHubProperties,
    partitions: Sequence[PartitionProperties],
) -> None:
    created_at_ms = milliseconds_of(properties.created_at)
    records: list[dict[str, object]] = []
    lags: list[Lag] = []
    for view in views:
        for partition in partitions:
            checkpoint = view.checkpoints.get(partition.partition_id)
            lag = lag_of(partition, checkpoint, event_hub_created_at_ms=created_at_ms)
            lags.append(lag)
            records.append(
                view.lease_record(partition.partition_id)
                | {
                    "checkpoint": None if checkpoint is None else checkpoint.sequence_number,
                    "end_of_log": partition.last_enqueued_sequence_number,
                    "lag_events": lag.events,
                    "lag_s": lag.seconds,
                    "lost_events": lag.lost_events,
                }
            )
            if lag.is_beyond_log:
                sys.stderr.write(
                    f"Partition {partition.partition_id} of {view.name}: the checkpoint is not of this log, "
                    "which was restored or made anew. `tidegate checkpoint set --rewind` sets it.\n"
                )
    if output.is_table:
        records.append(_totals(lags))
    output.records(records, columns=_COLUMNS, title=f"Lag of {properties.name}")


def _totals(lags: Sequence[Lag]) -> dict[str, object]:
    # Where one partition's time is not known, "the most" of the others would look like good news.
    seconds = [lag.seconds for lag in lags]
    known = [each for each in seconds if each is not None]
    return {
        "consumer_group": "total",
        "lag_events": sum(lag.events or 0 for lag in lags),
        "lag_s": max(known, default=None) if len(known) == len(seconds) else None,
        "lost_events": sum(lag.lost_events or 0 for lag in lags),
    }

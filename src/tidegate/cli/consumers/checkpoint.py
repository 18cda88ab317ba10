"""``tidegate checkpoint``: where each consumer group goes on, and how a person moves it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.consumers.checkpoint_moves import Target, compared_with, plan_moves, refuse_moves
from tidegate.cli.shell.connection import ServiceConnection, impatient_namespace, resolve_connection
from tidegate.cli.shell.options import (
    BlobContainerOption,
    CaFileOption,
    CheckpointDirOption,
    ConnectionStringOption,
    DatabaseOption,
    GroupsOption,
    HubArgument,
    NamespaceOption,
    with_output,
)
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import StoreChoice, time_of, view_groups
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP

if TYPE_CHECKING:
    from tidegate.processor.moves import MovePlan

checkpoint_app = typer.Typer(help="List checkpoints, and move them.", no_args_is_help=True)

_LIST_COLUMNS = ("consumer_group", "partition", "checkpoint", "offset", "enqueued_time", "event_hub_created")
_MOVE_COLUMNS = ("consumer_group", "partition", "before", "after", "events", "is_set")


class CheckpointNotMovedError(TidegateError):
    """A checkpoint that was to be set is somewhere else now."""


@checkpoint_app.command("list")
@with_output()
def list_checkpoints(
    output: Output,
    hub: HubArgument,
    group: GroupsOption = None,
    database: DatabaseOption = None,
    checkpoint_dir: CheckpointDirOption = None,
    blob_container: BlobContainerOption = None,
    namespace: NamespaceOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the last processed event of each partition.

    checkpoint is its sequence number (-1: none yet). A partition without a checkpoint is not listed. The
    service is not contacted.

    \b
    Example:
      tidegate checkpoint list telemetry --group reports --database sqlite:///reports.db
    """
    from tidegate.cli.shell.interrupt import run_interruptible

    choice = StoreChoice(database, checkpoint_dir, blob_container, namespace)
    group_namespace = choice.group_namespace(connection_string, ca_file)

    async def work() -> list[dict[str, object]]:
        async with choice.open() as store:
            return [
                {
                    "consumer_group": name,
                    "partition": partition_id,
                    "checkpoint": checkpoint.sequence_number,
                    "offset": checkpoint.offset,
                    "enqueued_time": time_of(checkpoint.enqueued_time_ms),
                    "event_hub_created": time_of(checkpoint.event_hub_created_at_ms),
                }
                for name, view in await view_groups(store, group_namespace, hub, group)
                for partition_id in view.partition_ids
                if (checkpoint := view.checkpoints.get(partition_id)) is not None
            ]

    output.records(run_interruptible(work()), columns=_LIST_COLUMNS, title=f"Checkpoints of {hub}")


@checkpoint_app.command("set")
@with_output()
def set_checkpoint(
    output: Output,
    hub: HubArgument,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="ID", help="A partition; repeatable."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All partitions.")] = False,
    group: Annotated[str, typer.Option(metavar="NAME", help="The consumer group.")] = DEFAULT_CONSUMER_GROUP,
    sequence_number: Annotated[
        int | None,
        typer.Option(
            "--sequence-number",
            min=0,
            metavar="N",
            help="Continue with the event that has this sequence number.",
        ),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(metavar="O", help="Continue after the event with this offset, as a checkpoint does."),
    ] = None,
    enqueued_time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Continue with the first event enqueued at or after this time: ISO 8601, or an age (90s, "
            "15m, 2h, 7d).",
        ),
    ] = None,
    earliest: Annotated[
        bool, typer.Option("--earliest", help="Continue with the oldest retained event.")
    ] = False,
    latest: Annotated[
        bool, typer.Option("--latest", help="Continue after the last event in the log.")
    ] = False,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Allow moving backwards; events are processed again.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Move it even if a host owns the partition.")
    ] = False,
    lease_duration: Annotated[
        float,
        typer.Option(
            min=0, metavar="S", help="Seconds without renewal after which a lease counts as expired."
        ),
    ] = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would change, and change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation. Without a terminal, it never asks.")
    ] = False,
    database: DatabaseOption = None,
    checkpoint_dir: CheckpointDirOption = None,
    blob_container: BlobContainerOption = None,
    namespace: NamespaceOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Move a group's checkpoints, and report skipped and repeated events.

    before and after are the next events to process; events is the number skipped or, if negative,
    reprocessed. Moving backwards requires --rewind: rows that already exist are written again, unless the
    table rejects them. A partition with a running host requires --force. Stop the hosts first if you can: a
    running host uses the new checkpoint only from its next batch on and, without transactions, may overwrite
    it. If one partition cannot be moved, none is.

    \b
    Examples:
      tidegate checkpoint set telemetry --all --latest --database sqlite:///reports.db --dry-run
      tidegate checkpoint set telemetry --partition 0 --partition 3 --enqueued-time 2h --rewind
    """
    from tidegate.cli.shell.interrupt import run_interruptible
    from tidegate.transport.clock import SystemClock

    if bool(partition) == is_all:
        raise InvalidArgumentError("Which partitions?", next_step="Use --partition ID or --all.")
    target = Target.of_options(
        sequence_number=sequence_number,
        offset=offset,
        enqueued_time=enqueued_time,
        is_earliest=earliest,
        is_latest=latest,
        now_utc=SystemClock().now_utc(),
    )
    choice = StoreChoice(database, checkpoint_dir, blob_container, namespace)
    change = _Change(
        choice,
        resolve_connection(connection_string, ca_file, os.environ),
        choice.group_namespace(connection_string, ca_file),
        hub,
        group,
        is_rewind_allowed=rewind,
    )
    plan = run_interruptible(
        change.plan(
            partition, target, may_create=not dry_run, is_forced=force, lease_duration_s=lease_duration
        )
    )
    done: set[str] = set()
    if not dry_run:
        if not yes and sys.stdin.isatty():
            typer.confirm(f"{_words(plan)} Set {len(plan.moves)} checkpoints?", abort=True, err=True)
        done = run_interruptible(change.make(plan))
    output.records(
        (
            {
                "consumer_group": group,
                "partition": move.partition_id,
                "before": move.resume_point_before,
                "after": move.resume_point,
                "events": move.events,
                "is_set": move.partition_id in done,
            }
            for move in plan.moves
        ),
        columns=_MOVE_COLUMNS,
        title=f"Checkpoints of {hub}" + (" (dry run: nothing changed)" if dry_run else ""),
    )
    sys.stderr.write(f"{_words(plan)}{' (Dry run: nothing changed.)' if dry_run else ''}\n")
    left = [move.partition_id for move in plan.moves if move.partition_id not in done]
    if left and not dry_run:
        raise CheckpointNotMovedError(
            f"The checkpoints of partitions {', '.join(left)} were changed by another process in the "
            "meantime.",
            next_step="Stop the hosts of this group first, then try again.",
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What is to be changed where: first planned as a whole, then made."""

    choice: StoreChoice
    connection: ServiceConnection
    namespace: str
    """As the store's keys have it."""
    hub: str
    group: str
    is_rewind_allowed: bool

    async def plan(
        self,
        partition_ids: list[str] | None,
        target: Target,
        *,
        may_create: bool,
        is_forced: bool,
        lease_duration_s: float,
    ) -> MovePlan:
        """The moves, one per partition (None: all); raises where one of them may not be made.

        may_create: hosts that have never run may be told where to begin, so the store may be new.
        """
        from tidegate.client import EventHubConsumer
        from tidegate.processor.moves import MovePlan

        async with (
            self.choice.open(may_create=may_create) as store,
            EventHubConsumer(
                impatient_namespace(self.connection), self.hub, consumer_group=self.group
            ) as consumer,
        ):
            moves = await plan_moves(
                consumer, partition_ids, target, is_offset_needed=self.choice.is_offset_needed
            )
            ((_, view),) = await view_groups(store, self.namespace, self.hub, [self.group])
        plan = MovePlan(tuple(compared_with(move, view, lease_duration_s=lease_duration_s) for move in moves))
        refuse_moves(plan, is_rewind_allowed=self.is_rewind_allowed, is_forced=is_forced)
        return plan

    async def make(self, plan: MovePlan) -> set[str]:
        """Set the checkpoints; returns the ids of the partitions whose checkpoint is there then."""
        from tidegate.processor.lease import GroupKey

        key = GroupKey(self.namespace, self.hub, self.group)
        async with self.choice.open(may_create=True) as store:
            for move in plan.moves:
                await store.update_checkpoint(
                    key, move.after, lease=None, is_rewind_allowed=self.is_rewind_allowed
                )
            found = await store.list_checkpoints(key)
        return {
            move.partition_id
            for move in plan.moves
            if (stored := found.get(move.partition_id)) is not None
            and stored.sequence_number == move.after.sequence_number
        }


def _words(plan: MovePlan) -> str:
    return f"{plan.skipped:,} events are skipped, {plan.repeated:,} are processed again."

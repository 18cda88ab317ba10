"""``tidegate checkpoint``: where each consumer group continues, and how to move it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from tidegate.cli.consumers.checkpoint_moves import compared_with, plan_moves, refuse_moves, target_of
from tidegate.cli.consumers.lag import CHECKPOINT_HEADINGS
from tidegate.cli.shell.connection import Service, impatient_namespace, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import (
    group_option,
    groups_option,
    hub_argument,
    with_output,
    with_store,
    yes_option,
)
from tidegate.cli.shell.render import Output, attributes, columns_of, counted, remark
from tidegate.cli.shell.stores import StoreChoice, view_groups
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.times import time_of

if TYPE_CHECKING:
    from tidegate.model.position import EventPosition
    from tidegate.processor.moves import MovePlan

checkpoint_group = CommandGroup("checkpoint", help="List checkpoints, and move them.")

_LIST_COLUMNS = (
    "consumer_group",
    "partition",
    "checkpoint",
    "offset",
    "enqueued_time",
    "event_hub_created",
    "history",
)
_MOVE_ATTRIBUTES = columns_of("partition=partition_id before=resume_point_before after=resume_point events")
_MOVE_COLUMNS = ("consumer_group", *_MOVE_ATTRIBUTES, "is_set")


class CheckpointNotMovedError(TidegateError):
    """A checkpoint that was to be set was changed by another process."""


@checkpoint_group.command("list")
@hub_argument
@groups_option
@with_store
@with_service
@with_output()
def list_checkpoints(
    output: Output, service: Service, store: StoreChoice, hub: str, groups: tuple[str, ...]
) -> None:
    """List the last processed event of each partition.

    checkpoint is its sequence number (-1: none yet), in a table under "last processed". A partition without a
    checkpoint is not listed. The service is contacted only for its namespace's id, which a directory or a
    container needs.

    Example:
      tidegate checkpoint list telemetry --group reports --database sqlite:///reports.db
    """
    records = [
        {
            "consumer_group": name,
            "partition": partition_id,
            "checkpoint": checkpoint.sequence_number,
            "offset": checkpoint.offset,
            "enqueued_time": _time(checkpoint.enqueued_time_ms),
            "event_hub_created": _time(checkpoint.event_hub_created_at_ms),
            "history": checkpoint.history_id,
        }
        for name, view in store.read(service, hub, groups)
        for partition_id in view.partition_ids
        if (checkpoint := view.checkpoints.get(partition_id)) is not None
    ]
    output.records(
        records,
        columns=_LIST_COLUMNS,
        title=f"Checkpoints of {hub}",
        first="partition checkpoint",
        headings=CHECKPOINT_HEADINGS,
    )


@checkpoint_group.command("set")
@hub_argument
@option("--partition", "ID", "A partition; repeatable.", argument="partitions", multiple=True)
@flag("--all", "All partitions.", "is_all")
@group_option("The consumer group.")
@option(
    "--sequence-number", "N", "Continue with the event that has this sequence number.", click.IntRange(min=0)
)
@option("--offset", "O", "Continue after the event with this offset, as a checkpoint does.")
@option(
    "--enqueued-time",
    "T",
    "Continue with the first event enqueued at or after this time: ISO 8601, or an age (90s, 15m, 2h, 7d).",
)
@flag("--earliest", "Continue with the oldest retained event.")
@flag("--latest", "Continue after the last event in the log.")
@flag("--rewind", "Allow moving backwards; events are processed again.")
@flag("--force", "Move it even if a host owns the partition.")
@option(
    "--lease-duration",
    "S",
    "Seconds without renewal after which a lease counts as expired.",
    click.FloatRange(min=0),
    default=30.0,
)
@flag("--dry-run", "Report what would change, and change nothing.")
@yes_option
@with_store
@with_service
@with_output()
def set_checkpoint(
    output: Output,
    service: Service,
    store: StoreChoice,
    hub: str,
    partitions: tuple[str, ...],
    is_all: bool,
    group: str,
    sequence_number: int | None,
    offset: str | None,
    enqueued_time: str | None,
    earliest: bool,
    latest: bool,
    rewind: bool,
    force: bool,
    lease_duration: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a group's checkpoints, and report skipped and repeated events.

    before and after are the next events to process; events is the number skipped or, if negative,
    reprocessed. Moving backwards requires --rewind: rows that already exist are written again, unless the
    table rejects them. A partition with a running host requires --force. Stop the hosts first if you can: a
    running host uses the new checkpoint only from its next batch on and, without transactions, may overwrite
    it. If one partition cannot be moved, none is.

    Examples:
      tidegate checkpoint set telemetry --all --latest --database sqlite:///reports.db --dry-run
      tidegate checkpoint set telemetry --partition 0 --partition 3 --enqueued-time 2h --rewind
    """
    if bool(partitions) == is_all:
        raise InvalidArgumentError("Which partitions?", next_step="Use --partition ID or --all.")
    target = target_of(
        sequence_number=sequence_number,
        offset=offset,
        enqueued_time=enqueued_time,
        is_earliest=earliest,
        is_latest=latest,
    )
    plan = run_interruptible(
        _find_plan(
            service,
            store,
            (hub, group),
            partitions,
            target,
            may_create=not dry_run,
            lease_duration_s=lease_duration,
        )
    )
    refuse_moves(plan, is_rewind_allowed=rewind, is_forced=force)
    summary = f"{counted(plan.skipped, 'event')} skipped, {plan.repeated:,} processed again."
    if plan.unknown:
        unknown = counted(len(plan.unknown), "partition")
        summary += f" Not known for {unknown}, without a checkpoint that can be compared."
    done: set[str] = set()
    if not dry_run:
        if not yes and sys.stdin.isatty():
            question = f"{summary} Set {counted(len(plan.moves), 'checkpoint')}?"
            click.confirm(question, abort=True, err=True)
        done = run_interruptible(_carry_out(service, store, (hub, group), plan, is_rewind_allowed=rewind))
    records = (
        attributes(each, _MOVE_ATTRIBUTES) | {"consumer_group": group, "is_set": each.partition_id in done}
        for each in plan.moves
    )
    title = f"Checkpoints of {hub}" + (" (dry run: nothing changed)" if dry_run else "")
    output.records(records, columns=_MOVE_COLUMNS, title=title)
    remark(f"{summary}{' (Dry run: nothing changed.)' if dry_run else ''}")
    if not dry_run:
        _check_done(plan, done)


def _check_done(plan: MovePlan, done: set[str]) -> None:
    """Raises CheckpointNotMovedError unless every checkpoint of the plan is set."""
    left = [each.partition_id for each in plan.moves if each.partition_id not in done]
    if left:
        raise CheckpointNotMovedError(
            f"The checkpoints of partitions {', '.join(left)} were changed by another process in the "
            "meantime.",
            next_step="Stop the hosts of this group first, then try again.",
        )


async def _find_plan(
    service: Service,
    store: StoreChoice,
    of: tuple[str, str],
    partitions: tuple[str, ...],
    target: EventPosition,
    *,
    may_create: bool,
    lease_duration_s: float,
) -> MovePlan:
    """What moving a group's checkpoints would change. of: hub and group. partitions: empty means all.

    may_create: the store may be new, so that the starting point of hosts that have never run can be set.
    """
    from tidegate.client import EventHubConsumer
    from tidegate.processor.moves import MovePlan

    hub, group = of
    async with (
        store.open(may_create=may_create) as opened,
        EventHubConsumer(impatient_namespace(service.connection()), hub, consumer_group=group) as consumer,
    ):
        moves = await plan_moves(
            consumer, partitions or None, target, is_offset_needed=store.is_offset_needed
        )
        key = await store.key(service, hub, group)
        ((_, view),) = await view_groups(opened, key, [group])
    return MovePlan(tuple(compared_with(move, view, lease_duration_s=lease_duration_s) for move in moves))


async def _carry_out(
    service: Service, store: StoreChoice, of: tuple[str, str], plan: MovePlan, *, is_rewind_allowed: bool
) -> set[str]:
    """Set the checkpoints; the partitions whose checkpoint then has the new value. of: hub and group."""
    key = await store.key(service, *of)
    async with store.open(may_create=True) as opened:
        for each in plan.moves:
            await opened.update_checkpoint(key, each.after, lease=None, is_rewind_allowed=is_rewind_allowed)
        found = await opened.list_checkpoints(key)
    numbers = {partition_id: checkpoint.sequence_number for partition_id, checkpoint in found.items()}
    return {
        each.partition_id
        for each in plan.moves
        if numbers.get(each.partition_id) == each.after.sequence_number
    }


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else time_of(milliseconds)

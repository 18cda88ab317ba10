"""Moves of checkpoints from the console: finds their targets in the log, and executes them one by one.

The rules are those of ``tidegate checkpoint set``: moving backwards, and moving while a host owns the
partition, must be allowed explicitly; a move to a hub created again under the same name counts as backwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.broker import EventHub, Partition
from tidegate.console.consumers.progress import LEASE_DURATION_S
from tidegate.console.jobs.jobs import Job, JobCancelledError, JobState, JobTable
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.history import history_of
from tidegate.model.position import EventPosition
from tidegate.model.times import time_of
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import GroupView
from tidegate.processor.moves import MovePlan, PlannedMove, resume_point_of
from tidegate.sql import ConsumerKey

if TYPE_CHECKING:
    from tidegate.sql import Database

_COLUMNS: Final = ("Partition", "From", "To", "Events", "Result")


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which checkpoints to move, and where to."""

    event_hub: str
    consumer_group: str
    partition_id: str | None
    """None: all partitions."""
    position: EventPosition
    """Where processing continues: earliest, latest, a sequence number or a time."""
    database: str = ""
    """Its name; empty: the one that has the group, else the first."""

    @property
    def consumer(self) -> ConsumerKey:
        """The consumer group."""
        return ConsumerKey(self.event_hub, self.consumer_group)


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A dry run, kept for a limited time."""

    plan_id: str
    request: MoveRequest
    plan: MovePlan


async def plan_moves(hub: EventHub, request: MoveRequest) -> list[PlannedMove]:
    """Find the target in the log of each requested partition.

    Raises NotFoundError (no such partition), PositionOutOfRangeError (not in the log).
    """
    partition_id = request.partition_id
    partitions = hub.partitions if partition_id is None else [hub.partition(partition_id)]
    moves = []
    for partition in partitions:
        await asyncio.sleep(0)  # reading a batch of very many events takes 2 ms
        resume_point = await _resume_point(partition, request.position)
        created_at_ms = hub.description.created_at_ms
        moves.append(PlannedMove(await _checkpoint_before(partition, resume_point, created_at_ms)))
    return moves


def _held(group: GroupView, move: PlannedMove) -> str | None:
    """Which host has the partition; None: none has. A host that was started for an earlier hub of this name
    is not named: who sees the job need not know it."""
    owner = group.owner(move.partition_id, lease_duration_s=LEASE_DURATION_S)
    lease, created_at_ms = group.lease(move.partition_id), move.after.event_hub_created_at_ms
    if owner is None or lease is None:
        return None
    is_named = created_at_ms is None or lease.renewed_at >= time_of(created_at_ms)
    return f"{move.partition_id} by {owner if is_named else 'a host of an earlier hub of this name'}"


def carry_out(
    database: Database,
    consumer: ConsumerKey,
    plan: MovePlan,
    job: Job,
    update: Callable[..., None],
    *,
    check: Callable[[], None],
    is_rewind_allowed: bool,
    is_forced: bool,
) -> None:
    """Move the checkpoints, each in its own transaction. Runs in a thread; ends early if the job is
    cancelled. update: sets fields of the job. check: called in each transaction once it has its lock; raises
    if nothing more may be moved.

    A checkpoint that has moved since the plan is skipped unless ``is_forced``.
    Raises InvalidArgumentError, before any move, if a host owns a partition, unless ``is_forced``.
    """
    from tidegate.sql import move_checkpoint
    from tidegate.sql.stores.group_views import read_group_view

    group = read_group_view(database, consumer)
    held = [words for move in plan.moves if (words := _held(group, move)) is not None]
    if held and not is_forced:
        said = ", ".join(held[:5])
        raise InvalidArgumentError(
            f"{len(held)} partitions are processed now ({said}); no checkpoint was moved.",
            next_step="Stop those hosts first, or say that they may be moved all the same.",
        )
    results: list[tuple[object, ...]] = []
    moved = left = 0
    for done, move in enumerate(plan.moves):
        if job.is_cancelled:
            break
        stored = group.checkpoints.get(move.partition_id)
        now = None if stored is None else stored.resume_point
        result = "left: it has moved since the dry run"
        if now == move.resume_point_before or is_forced:
            try:
                outcome = move_checkpoint(
                    database,
                    consumer,
                    move.after,
                    owner=job.actor,
                    is_rewind_allowed=is_rewind_allowed,
                    check=check,
                )
            except JobCancelledError:
                break
            is_there = outcome.is_moved or outcome.next_sequence_number == move.resume_point
            result = "moved" if is_there else "left: it is already further"
        is_moved = result == "moved"
        moved, left = moved + is_moved, left + (not is_moved)
        # A number of another hub's log says nothing about this one, and is not for this one's users.
        before = None if move.is_other_hub else move.resume_point_before
        results.append((move.partition_id, before, move.resume_point, move.events, result))
        if done % 16 == 15:
            update(done=done + 1, total=len(plan.moves))
    update(
        done=len(results),
        total=len(plan.moves),
        counts={"moved": moved, "left": left},
        tables=(JobTable("Checkpoints", _COLUMNS, results),),
    )
    if left:
        update(state=JobState.INCOMPLETE)


async def _resume_point(partition: Partition, position: EventPosition) -> int:
    begin, until = partition.begin_sequence_number, partition.next_sequence_number
    found = resume_point_of(position, partition.partition_id, begin=begin, until=until)
    return await partition.resolve(position) if found is None else found


async def _checkpoint_before(
    partition: Partition, resume_point: int, created_at_ms: int
) -> ProcessorCheckpoint:
    """The checkpoint of the event before ``resume_point``, with offset and time if the log still has it."""
    last = resume_point - 1
    offset = time_ms = None
    if last >= partition.begin_sequence_number:
        batches = await partition.read(last, bytes_max=1)
        if batches and batches[0].base_sequence_number <= last:
            offset, time_ms = str(last), batches[0].enqueued_time_ms
    return ProcessorCheckpoint(
        partition.partition_id,
        last,
        offset,
        time_ms,
        created_at_ms,
        history_id=history_of(last, partition.known_ends().histories),
    )

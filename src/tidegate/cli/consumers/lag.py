"""``tidegate lag`` and ``lease``: how far consumer groups are behind, and who owns their partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidegate.cli.consumers.kept import views_of
from tidegate.cli.shell.connection import (
    Service,
    check_event_hub,
    impatient_namespace,
    open_administrator,
    with_service,
)
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import flag
from tidegate.cli.shell.frames import Frames
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import groups_option, hub_argument, interval_option, with_output, with_store
from tidegate.cli.shell.render import Output, OutputFormat, attributes, columns_of, remark
from tidegate.cli.shell.stores import DATABASE_VARIABLE, StoreChoice, missing_words, view_groups
from tidegate.model.errors import InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.limits import spelled_group
from tidegate.model.times import milliseconds_of

if TYPE_CHECKING:
    from tidegate.cli.shell.stores import Store
    from tidegate.client import EventHubAdministrator, EventHubProperties, PartitionEnds
    from tidegate.processor.group_view import GroupView, Lag

_LEASE_COLUMNS = ("consumer_group", "partition", "owner", "acquired", "offset", "lease_age_s", "epoch")
_LEASE_FIRST = "partition owner consumer_group lease_age_s"
_LAG_ATTRIBUTES = columns_of("lag_events=events lag_s=seconds lost_events")
_LETTERS = ("open_dead_letters", "new_dead_letters")
_COLUMNS = (*_LEASE_COLUMNS, "checkpoint", "end_of_log", *_LAG_ATTRIBUTES, *_LETTERS)
CHECKPOINT_HEADINGS = {"checkpoint": "last processed"}
"""Of a table: `tidegate audit` counts a checkpoint as the event after it."""


class _Group(NamedTuple):
    name: str
    view: GroupView
    letters: tuple[Mapping[str, int], Mapping[str, int]] | None = None
    """Open dead letters by partition, and those of them that failed within the last hour; None: unknown."""

    def letters_of(self, partition_id: str) -> dict[str, int | None]:
        """The columns of a partition."""
        if self.letters is None:
            return dict.fromkeys(_LETTERS)
        counts = (each.get(partition_id, 0) for each in self.letters)
        return dict(zip(_LETTERS, counts, strict=True))


lease_group = CommandGroup("lease", help="List the leases of Event Processor Hosts.")


@lease_group.command("list")
@hub_argument
@groups_option
@with_store
@with_service
@with_output()
def list_leases(
    output: Output, service: Service, store: StoreChoice, hub: str, groups: tuple[str, ...]
) -> None:
    """List each partition's owner, and the age of its lease.

    A partition that was never owned is not listed; a released one has no owner. The service is contacted
    only for its namespace's id, which a directory or a container needs.

    Example:
      tidegate lease list telemetry --group reports --database sqlite:///reports.db
    """
    records = [
        _lease_record(name, view, partition_id)
        for name, view in store.read(service, hub, groups)
        for partition_id in view.partition_ids
        if partition_id in view.leases.leases
    ]
    output.records(records, columns=_LEASE_COLUMNS, title=f"Leases of {hub}", first=_LEASE_FIRST)


@click.command()
@hub_argument
@groups_option
@with_store
@flag("--watch", "Refresh until Ctrl-C; requires a terminal or --nl.")
@interval_option("Seconds between refreshes with --watch.")
@with_service
@with_output()
def lag(
    output: Output,
    service: Service,
    store: StoreChoice,
    hub: str,
    groups: tuple[str, ...],
    watch: bool,
    interval: float,
) -> None:
    """Show how far consumer groups are behind the log.

    Columns: consumer group, partition, the lease (owner, acquired, age, epoch, offset), and: checkpoint:
    sequence number of the last processed event (-1: none yet), in a table under "last processed"; end_of_log:
    sequence number of the last event in the log; lag_events: events still to be read (all retained events if
    there is no checkpoint); lag_s: enqueued time of the last event minus that of the last processed event, 0
    when caught up; lost_events: events that retention removed before they were read; with a database,
    open_dead_letters, and new_dead_letters: those of them that failed within the last hour. Unknown values
    are empty, in a table "-"; a blob container stores no times. A table ends with totals; the total of lag_s
    is the maximum, shown if all values are known.

    Without a database, directory or container: the groups of official processors that keep their checkpoints
    in the service, and those of hosts, which report to it.

    Examples:
      tidegate lag telemetry
      tidegate lag telemetry --database sqlite:///reports.db
      tidegate lag telemetry --group reports --group alarms --checkpoint-dir ./checkpoints --json
      tidegate lag telemetry --database postgresql://user@host/name --watch
    """
    frames = Frames(output, is_live=watch)
    if watch and not frames.is_redrawn and output.format is not OutputFormat.NL:
        raise InvalidArgumentError("--watch requires a terminal or --nl.", next_step="Add --nl.")
    connection = service.connection()

    async def work() -> None:
        import asyncio

        from tidegate.client import EventHubConsumer

        # Watching ordinarily ends by being interrupted.
        with closing(frames), suppress(asyncio.CancelledError) if watch else nullcontext():
            async with (
                _source(store, service, hub, groups, is_watched=watch) as look,
                EventHubConsumer(impatient_namespace(connection), hub) as consumer,
            ):
                while True:
                    # The groups first: the log only grows, so no checkpoint appears to be beyond its end.
                    views = await look()
                    properties = await consumer.get_event_hub_properties()
                    partitions = await consumer.get_all_partition_properties(properties)
                    if not watch:
                        _write(output, views, properties, partitions)
                        return
                    frames.show(_write, views, properties, partitions, frames)
                    await asyncio.sleep(interval)

    run_interruptible(work())


@asynccontextmanager
async def _source(
    store: StoreChoice, service: Service, hub: str, groups: Sequence[str], *, is_watched: bool
) -> AsyncIterator[Callable[[], Awaitable[Sequence[_Group]]]]:
    """Reads the groups, each with its name. Unless they are watched, remarks which of them are not there, and
    which are. Raises NotFoundError for one that the hub does not have either."""
    async with open_administrator(service.connection()) as administrator:
        if not store.is_given:
            kept = views_of(await administrator.list_consumers(hub))
            if not kept:
                await _check_groups(groups, administrator, hub)
                raise InvalidArgumentError(
                    f"No database given, and the service keeps no leases and checkpoints of {hub}.",
                    next_step=f"Use --database ({DATABASE_VARIABLE}), --checkpoint-dir or --blob-container. "
                    + await _existing(administrator, hub),
                )
            missing = [name for name in groups if name.lower() not in kept]
            if missing and not is_watched:
                await _remark_missing(missing, "the service", administrator, hub)

            async def look() -> Sequence[_Group]:
                found = views_of(await administrator.list_consumers(hub))
                names = [name for name in groups or found if name.lower() in found]
                return [_Group(spelled_group(name), found[name.lower()]) for name in names]

            yield look
            return
        key = await store.key(service, hub)
        async with store.open() as opened:
            first = await view_groups(opened, key, groups)
            found = {name.lower(): view for name, view in first if view.partition_ids}
            where = f"{store.kind}, as {key.namespace}," if store.is_named else store.kind
            missing = [name for name, _ in first if name.lower() not in found]
            if missing and not is_watched:
                await check_event_hub(service.connection(), hub)
                there = [
                    spelled_group(each.consumer_group) + (f" as {each.namespace}" if store.is_named else "")
                    for each in await opened.groups_of(hub)
                ]
                await _remark_missing(missing, where, administrator, hub, there=there)

            async def look_in_store() -> Sequence[_Group]:
                views = await view_groups(opened, key, groups)
                if store.is_named:
                    return [_Group(*each) for each in views]
                return [_Group(name, view, await _letters(opened, hub, name)) for name, view in views]

            yield look_in_store


async def _letters(store: Store, hub: str, group: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
    import asyncio

    from tidegate.sql import ConsumerKey, SqlStore
    from tidegate.sql.dead_letters.pages import DeadLetterPages

    assert isinstance(store, SqlStore)
    pages, consumer = DeadLetterPages(store.database), ConsumerKey(hub, group)
    hour_ago = store.database.clock.now_utc() - timedelta(hours=1)
    return (
        await asyncio.to_thread(pages.open_by_partition, consumer),
        await asyncio.to_thread(pages.open_by_partition, consumer, failed_from=hour_ago),
    )


async def _remark_missing(
    missing: Sequence[str],
    where: str,
    administrator: EventHubAdministrator,
    hub: str,
    *,
    there: Sequence[str] = (),
) -> None:
    words = missing_words(where, missing, hub, there)
    words = f"{words} {await _existing(administrator, hub)}".rstrip()
    await _check_groups(missing, administrator, hub, words)
    remark(words)


async def _check_groups(
    groups: Sequence[str], administrator: EventHubAdministrator, hub: str, words: str | None = None
) -> None:
    """Raise NotFoundError for those that the hub does not have. words: what to say then; None: those that it
    has."""
    names: list[str] = []
    with suppress(TidegateError):  # Azure does not say
        names = [each.lower() for each in await administrator.list_consumer_groups(hub)]
    if absent := [each for each in groups if names and each.lower() not in names]:
        raise NotFoundError(
            f"The event hub {hub!r} has no consumer group {', '.join(absent)}.",
            next_step=await _existing(administrator, hub) if words is None else words,
        )


async def _existing(administrator: EventHubAdministrator, hub: str) -> str:
    """The groups that there are; empty if the service does not say so (Azure)."""
    with suppress(TidegateError):
        names = ", ".join(await administrator.list_consumer_groups(hub))
        kept = await administrator.list_consumers(hub)
        places = dict.fromkeys(
            f"{spelled_group(each.consumer_group)} in {each.store} as {each.namespace}" for each in kept
        )
        here = f" The service keeps checkpoints of {', '.join(places)}." if places else ""
        return f"Consumer groups of {hub}: {names}.{here}"
    return ""


def _write(
    output: Output,
    groups: Sequence[_Group],
    properties: EventHubProperties,
    partitions: Sequence[PartitionEnds],
    frames: Frames | None = None,
) -> None:
    from tidegate.processor.group_view import UNKNOWN_LAG, total_of

    note = remark if frames is None else frames.note(output)
    created_at_ms = milliseconds_of(properties.created_at)
    records: list[dict[str, Any]] = []
    lags: list[Lag] = []
    for group in groups:
        name, view = group.name, group.view
        for partition in partitions:
            checkpoint = view.checkpoints.get(partition.partition_id)
            lag = view.lag(partition, event_hub_created_at_ms=created_at_ms)
            lags.append(lag)
            records.append(
                _lease_record(name, view, partition.partition_id)
                | {
                    "checkpoint": None if checkpoint is None else checkpoint.sequence_number,
                    "end_of_log": partition.last_enqueued_sequence_number,
                }
                | attributes(lag, _LAG_ATTRIBUTES)
                | group.letters_of(partition.partition_id)
            )
            if lag.is_beyond_log:
                note(
                    f"Partition {partition.partition_id} of {name}: the checkpoint belongs to another "
                    "log; this one was restored or recreated. `tidegate checkpoint set --rewind` moves it."
                )
    if output.is_table:
        total: dict[str, Any] = {"consumer_group": "total", "partition": "all"}
        # Of no partition at all nothing is known.
        total |= attributes(total_of(lags) if lags else UNKNOWN_LAG, _LAG_ATTRIBUTES)
        for name in _LETTERS:
            counts = [each[name] for each in records]
            total[name] = None if None in counts or not counts else sum(counts)
        records.append(total)
    first = "partition lag_events consumer_group lag_s owner open_dead_letters lost_events checkpoint"
    first += " end_of_log"
    title = f"Lag of {properties.name}"
    output.records(records, columns=_COLUMNS, title=title, first=first, headings=CHECKPOINT_HEADINGS)
    if output.is_table and all(group.letters is None for group in groups):
        note("Dead letters are not known here: they are in a database, which --database names.")


def _lease_record(group: str, view: GroupView, partition_id: str) -> dict[str, object]:
    """A partition's row of the lease table; a released lease has no owner."""
    lease, checkpoint = view.lease(partition_id), view.checkpoints.get(partition_id)
    owned = lease if lease is not None and lease.owner else None
    return {
        "consumer_group": group,
        "partition": partition_id,
        "owner": owned and owned.owner,
        "acquired": owned and owned.acquired_at,
        "offset": checkpoint and checkpoint.offset,
        "lease_age_s": owned and view.lease_age_s(partition_id),
        "epoch": (lease and lease.epoch) or None,  # 0: what keeps the lease has none
    }

"""What ``tidegate top`` shows: rates of the service's counters, and groups with their lag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, Final

from tidegate.cli.consumers.kept import views_of
from tidegate.cli.shell.connection import Service, open_administrator
from tidegate.cli.shell.frames import Frames
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import StoreChoice
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, NotFoundError, OperationTimeoutError
from tidegate.model.limits import spelled_group
from tidegate.processor.group_view import GroupView, total_of, view_group
from tidegate.processor.options import PartitionManagerOptions
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator, EventHubProperties, PartitionEnds, StatisticsProperties

_COUNTS: Final = (
    "incoming_events",
    "incoming_bytes",
    "outgoing_events",
    "outgoing_bytes",
    "throttled_requests",
)
_HUB_COLUMNS: Final = {
    "hub": ("hub", None),
    "in/s": ("incoming_events_per_s", 1),
    "in_KB/s": ("incoming_bytes_per_s", 1000),
    "out/s": ("outgoing_events_per_s", 1),
    "out_KB/s": ("outgoing_bytes_per_s", 1000),
    "throttled/s": ("throttled_requests_per_s", 1),
    "partitions": ("partitions", None),
    "events": ("stored_events", None),
    "size_MB": ("stored_bytes", 1_000_000),
}
"""Of the table: the field of a record, and what it is divided by."""
_HUBS_FIRST: Final = "hub in/s out/s in_KB/s out_KB/s size_MB partitions events"
_GROUP_COLUMNS: Final = ("hub", "group", "lag_events", "lag_s", "lost_events", "owned", "hosts", "owners")
_GROUPS_FIRST: Final = "group lag_events hub owned hosts lag_s lost_events"
_KEPT_LEASE_S: Final = 120.0
"""After which official processors take a partition; hosts report every few seconds."""
_LINES_BESIDE_ROWS: Final = 14
"""Titles, headings, rules, the sum, and what is not shown."""

_Group = tuple[str, GroupView, float]
"""Its name, and how long its leases last in seconds."""
_Groups = Callable[["EventHubProperties"], Awaitable[list[_Group]]]


async def watch(
    output: Output,
    service: Service,
    store: StoreChoice,
    hubs: Sequence[str],
    interval_s: float,
    *,
    is_once: bool,
) -> None:
    """Show snapshots until cancelled, or one. hubs: empty: all that the connection string is for."""
    frames, connection = Frames(output, is_live=not is_once), service.connection()
    entity = ConnectionString.parse(connection.connection_string).entity_path
    # It ordinarily ends by being interrupted.
    with closing(frames), suppress(asyncio.CancelledError):
        async with open_administrator(connection) as administrator, _stored(store, service) as stored:
            look = _Look(administrator, hubs or ((entity,) if entity else ()), stored)
            first = await look.read()
            if frames.is_redrawn:
                frames.show(_write, first, frames)
            while True:
                await asyncio.sleep(interval_s)
                await _refresh(look, frames)
                if is_once:
                    return


async def _refresh(look: _Look, frames: Frames) -> None:
    try:
        snapshot = await look.read()
    except (BrokenError, OperationTimeoutError) as error:
        if not frames.is_redrawn:
            raise
        # A service that is restarted comes back while a person watches.
        text = f"Error: {error}"
        frames.show(lambda out: frames.note(out)(text))
        return
    frames.show(_write, snapshot, frames)


class _Look:
    """Reads the hubs and their groups, and makes rates of counters."""

    def __init__(
        self, administrator: EventHubAdministrator, names: Sequence[str], stored: _Groups | None
    ) -> None:
        """names: of the hubs; empty: all. stored: reads the groups of a hub that a store has."""
        self._administrator = administrator
        self._names = names
        self._stored = stored
        self._before: dict[str, tuple[float, StatisticsProperties]] = {}

    async def read(self) -> dict[str, Any]:
        """A snapshot; its rates are since the last one, and None in the first."""
        hubs: list[dict[str, Any]] = []
        groups: list[dict[str, Any]] = []
        ask = self._administrator
        found = [await ask.get_event_hub(each) for each in self._names] or await ask.list_event_hubs()
        for hub in found:
            try:
                ends = await ask.list_partitions(hub)
                hubs.append(self._hub_record(hub.name, await ask.get_statistics(hub.name), ends))
                groups += [_group_record(hub, ends, *each) for each in await self._groups(hub)]
            except NotFoundError:
                # Deleted meanwhile.
                if self._names:
                    raise
        hubs.sort(
            key=lambda each: -(each["incoming_events_per_s"] or 0) - (each["outgoing_events_per_s"] or 0)
        )
        groups.sort(key=lambda each: -(each["lag_events"] or 0))
        return {"at": SystemClock().now_utc(), "hubs": hubs, "groups": groups}

    async def _groups(self, hub: EventHubProperties) -> list[_Group]:
        found = [] if self._stored is None else await self._stored(hub)
        known = {name.lower() for name, _, _ in found}
        kept = views_of(await self._administrator.list_consumers(hub.name))
        return found + [(name, view, _KEPT_LEASE_S) for name, view in kept.items() if name not in known]

    def _hub_record(
        self, name: str, statistics: StatisticsProperties, ends: Sequence[PartitionEnds]
    ) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        before_at, before = self._before.get(name, (now, None))
        self._before[name] = now, statistics
        rates: dict[str, float | None] = {}
        for count in _COUNTS:
            grown = -1 if before is None else getattr(statistics, count) - getattr(before, count)
            # A service that was started in between counts from 0.
            rates[f"{count}_per_s"] = round(grown / (now - before_at), 1) if grown >= 0 else None
        held = sum(each.next_sequence_number - max(each.begin_sequence_number, 0) for each in ends)
        return {
            "hub": name,
            **rates,
            "partitions": len(ends),
            "stored_events": held,
            "stored_bytes": statistics.stored_bytes,
        }


@asynccontextmanager
async def _stored(store: StoreChoice, service: Service) -> AsyncIterator[_Groups | None]:
    """Reads the groups of a hub in the store; None: no store is given."""
    if not store.is_given:
        yield None
        return
    lease_s = PartitionManagerOptions().lease_duration_s
    async with store.open() as opened:

        async def groups_of(hub: EventHubProperties) -> list[_Group]:
            key = await store.key(service, hub.name)
            return [
                (group.consumer_group, await view_group(opened, group), lease_s)
                for group in await opened.groups_of(hub.name)
                if group.namespace == key.namespace or not store.is_named
            ]

        yield groups_of


def _group_record(
    hub: EventHubProperties, ends: Sequence[PartitionEnds], name: str, view: GroupView, lease_s: float
) -> dict[str, Any]:
    lags = [view.lag(each, event_hub_created_at_ms=hub.created_at_ms) for each in ends]
    total = total_of(lags)
    owners = [view.owner(each.partition_id, lease_duration_s=lease_s) for each in ends]
    owned = [owner for owner in owners if owner]
    return {
        "hub": hub.name,
        "group": spelled_group(name),
        "lag_events": total.events,
        "lag_s": total.seconds,
        "lost_events": total.lost_events,
        "partitions": len(ends),
        "owned_partitions": len(owned),
        "owners": sorted({*owned}),
    }


def _write(output: Output, snapshot: Mapping[str, Any], frames: Frames) -> None:
    if not output.is_table:
        output.record(snapshot)
        return
    hubs, groups = snapshot["hubs"], snapshot["groups"]
    # Both tables share a terminal's lines.
    most = None if frames.height is None else max(3, (frames.height - _LINES_BESIDE_ROWS) // 2)
    rows = [_hub_row(each) for each in hubs[:most]]
    if len(hubs) > 1:
        fields = [field for field, _ in _HUB_COLUMNS.values() if field != "hub"]
        sums = {field: _sum(each[field] for each in hubs) for field in fields}
        rows.append(_hub_row({"hub": f"all {len(hubs)}", **sums}))
    title = f"Event hubs at {snapshot['at'].astimezone():%H:%M:%S}"
    output.records(rows, columns=[*_HUB_COLUMNS], title=title, first=_HUBS_FIRST)
    output.line("")
    if not hubs:
        frames.note(output)("There is no event hub yet: tidegate hub create NAME.")
        return
    if not groups:
        frames.note(output)(
            "No group keeps its checkpoints in the service; --database shows those in a database."
        )
        return
    shown = [_group_row(each) for each in groups[:most]]
    title = "Consumer groups" + (f", {len(shown)} of {len(groups)}" if len(groups) > len(shown) else "")
    output.records(shown, columns=_GROUP_COLUMNS, title=title, first=_GROUPS_FIRST)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown if one of them is."""
    known = [*values]
    return None if None in known else sum(each or 0 for each in known)


def _hub_row(record: Mapping[str, Any]) -> dict[str, object]:
    return {
        column: record[field] if not divisor or record[field] is None else record[field] / divisor
        for column, (field, divisor) in _HUB_COLUMNS.items()
    }


def _group_row(record: Mapping[str, Any]) -> dict[str, object]:
    owned = f"{record['owned_partitions']}/{record['partitions']}"
    return {**record, "owned": owned, "hosts": len(record["owners"])}

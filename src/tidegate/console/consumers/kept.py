"""Consumer groups of official processors that keep their checkpoints in the service, as views of groups."""

from __future__ import annotations

import asyncio
from datetime import datetime

from tidegate.broker import Broker, EventHub, KeptGroup
from tidegate.model.times import time_of
from tidegate.processor.group_view import GroupView, KeptRow, view_of_rows
from tidegate.sql import ConsumerKey


async def kept_views(
    broker: Broker, event_hub: str | None, consumer_group: str | None = None
) -> dict[ConsumerKey, GroupView]:
    """The groups of a hub (in lower case), or (None) of all, a group at a time. consumer_group: the only one
    that is wanted; None: all are."""
    found = {}
    for hub in broker.list_event_hubs():
        if event_hub in (None, hub.name.lower()):
            for group in broker.kept_groups(hub, is_newest_only=True, consumer_group=consumer_group):
                found[ConsumerKey(hub.name, group.consumer_group)] = _view(broker, hub, group)
                await asyncio.sleep(0)
    return found


def _view(broker: Broker, hub: EventHub, group: KeptGroup) -> GroupView:
    rows = (
        KeptRow(
            each.partition_id,
            each.owner,
            _time(each.renewed_at_ms),
            each.sequence_number,
            _time(each.checkpoint_at_ms),
        )
        for each in group.partitions.values()
    )
    now = time_of(broker.blobs.now_ms())
    return view_of_rows(rows, now, event_hub_created_at_ms=hub.description.created_at_ms)


def _time(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else time_of(time_ms)

"""Consumer groups of official processors that keep their checkpoints in the service, as views of groups."""

from __future__ import annotations

from tidegate.broker import Broker, EventHub, KeptGroup
from tidegate.model.times import time_of
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import GroupView
from tidegate.processor.lease import Lease, LeaseSnapshot
from tidegate.sql import ConsumerKey


def kept_views(broker: Broker, event_hub: str | None) -> dict[ConsumerKey, GroupView]:
    """The groups of a hub (in lower case), or (None) of all."""
    return {
        ConsumerKey(hub.name, group.consumer_group): _view(broker, hub, group)
        for hub in broker.list_event_hubs()
        if event_hub in (None, hub.name.lower())
        for group in broker.kept_groups(hub, is_newest_only=True)
    }


def _view(broker: Broker, hub: EventHub, group: KeptGroup) -> GroupView:
    partitions = group.partitions.values()
    leases = {
        each.partition_id: Lease(each.partition_id, each.owner, 0, None, time_of(each.renewed_at_ms), "")
        for each in partitions
        if each.renewed_at_ms is not None
    }
    checkpoints = {
        each.partition_id: ProcessorCheckpoint(
            each.partition_id,
            each.sequence_number,
            str(each.sequence_number),
            event_hub_created_at_ms=hub.description.created_at_ms,
            moved_at=time_of(each.checkpoint_at_ms),
        )
        for each in partitions
        if each.sequence_number is not None and each.checkpoint_at_ms is not None
    }
    return GroupView(LeaseSnapshot(leases, time_of(broker.blobs.now_ms())), checkpoints)

"""The rows of ``listConsumers``: what official processors keep in the service of an event hub's groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.broker import Broker, EventHub
from tidegate.broker.blobs.accounts import account_of
from tidegate.model.times import time_of

_CHARACTERS_MAX: Final = 260
"""Of what processors call the service (our choice: a host name with a port)."""


def consumer_rows(broker: Broker, hub: EventHub) -> Iterator[dict[str, object]]:
    """One row for each partition of each group with a lease or a checkpoint; see ``shapes.Consumer``. Of a
    group in several containers, the one that was written last: what else clients write adds no rows."""
    ends = {each.partition_id: each.known_ends() for each in hub.partitions if each.open_error is None}
    now_ms = broker.blobs.now_ms()
    for group in broker.kept_groups(hub, is_newest_only=True):
        store = f"{account_of(group.account_id, hub.name)}/{group.container}"
        for partition in group.partitions.values():
            end, renewed_ms = ends.get(partition.partition_id), partition.renewed_at_ms
            lag_events, lost_events = (None if end is None else partition.behind(end)) or (None, None)
            yield {
                "consumer_group": group.consumer_group,
                "store": store,
                "namespace": group.namespace[:_CHARACTERS_MAX],
                "partition_id": partition.partition_id,
                "owner": partition.owner,
                "renewed_at": _text(renewed_ms),
                "lease_age_ms": None if renewed_ms is None else max(0, now_ms - renewed_ms),
                "sequence_number": partition.sequence_number,
                "checkpoint_at": _text(partition.checkpoint_at_ms),
                "lag_events": lag_events,
                "lost_events": lost_events,
            }


def _text(time_ms: int | None) -> str | None:
    return None if time_ms is None else time_of(time_ms).isoformat(timespec="milliseconds")

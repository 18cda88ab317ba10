"""Consumer groups of official processors that keep their checkpoints in the service, as views of groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidegate.model.times import time_of

if TYPE_CHECKING:
    from tidegate.client.entities import ConsumerProperties
    from tidegate.processor.group_view import GroupView


def views_of(rows: Sequence[ConsumerProperties]) -> dict[str, GroupView]:
    """Each group, by name."""
    groups: dict[str, list[ConsumerProperties]] = {}
    for row in rows:
        groups.setdefault(row.consumer_group, []).append(row)
    return {group: _view(found) for group, found in groups.items()}


def _newest(rows: Sequence[ConsumerProperties]) -> datetime:
    """When anything was written last; without a time nothing is compared with it."""
    times = (time for each in rows for time in (each.renewed_at, each.checkpoint_at) if time is not None)
    return max(times, default=time_of(0))


def _view(rows: Sequence[ConsumerProperties]) -> GroupView:
    from tidegate.processor.group_view import KeptRow, view_of_rows

    nows = (
        each.renewed_at + timedelta(milliseconds=each.lease_age_ms)
        for each in rows
        if each.renewed_at is not None and each.lease_age_ms is not None
    )
    kept = (
        KeptRow(each.partition_id, each.owner, each.renewed_at, each.sequence_number, each.checkpoint_at)
        for each in rows
    )
    return view_of_rows(kept, max(nows, default=_newest(rows)))

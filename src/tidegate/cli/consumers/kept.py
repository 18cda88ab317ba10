"""Consumer groups of official processors that keep their checkpoints in the service, as views of groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client.entities import ConsumerProperties
    from tidegate.processor.group_view import GroupView


def views_of(rows: Sequence[ConsumerProperties]) -> dict[str, GroupView]:
    """Each group, by name; of one in several containers, the one that was written last."""
    from tidegate.processor.checkpoint import ProcessorCheckpoint
    from tidegate.processor.group_view import GroupView
    from tidegate.processor.lease import Lease, LeaseSnapshot

    places: dict[str, dict[tuple[str, str], list[ConsumerProperties]]] = {}
    for row in rows:
        places.setdefault(row.consumer_group, {}).setdefault((row.store, row.namespace), []).append(row)

    def newest(its: Sequence[ConsumerProperties]) -> datetime:
        times: list[datetime | None] = [
            time for each in its for time in (each.renewed_at, each.checkpoint_at)
        ]
        return max(time for time in times if time is not None)

    def view(its: Sequence[ConsumerProperties]) -> GroupView:
        leases = {
            each.partition_id: Lease(each.partition_id, each.owner, 0, None, each.renewed_at, "")
            for each in its
            if each.renewed_at is not None
        }
        now = max(
            (
                each.renewed_at + timedelta(milliseconds=each.lease_age_ms)
                for each in its
                if each.renewed_at is not None and each.lease_age_ms is not None
            ),
            default=newest(its),
        )
        checkpoints = {
            each.partition_id: ProcessorCheckpoint(
                each.partition_id, each.sequence_number, str(each.sequence_number)
            )
            for each in its
            if each.sequence_number is not None
        }
        return GroupView(LeaseSnapshot(leases, now), checkpoints)

    return {group: view(max(found.values(), key=newest)) for group, found in places.items()}

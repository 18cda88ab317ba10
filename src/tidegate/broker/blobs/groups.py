"""The consumer groups of official processors, as their leases and checkpoints in the accounts show them.

An index by event hub and group that each change of a blob updates. The account of a hub counts for that hub
alone; those of the namespace and of development count for the hub that a blob names, if the blob is not older
than the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.blobs.blob import Blob
from tidegate.broker.blobs.checkpoint_names import RecordKind, RecordName
from tidegate.model.hub_properties import PartitionEnds

_NUMBER: Final = re.compile(r"-1|[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeptPartition:
    """What official processors keep of one partition; None or empty: nothing of that kind."""

    partition_id: str
    owner: str = ""
    """The processor that has claimed it last; empty: none, or it was released."""
    renewed_at_ms: int | None = None
    """When it was claimed or renewed last."""
    sequence_number: int | None = None
    """Of the last processed event."""
    checkpoint_at_ms: int | None = None

    def behind(self, end: PartitionEnds) -> tuple[int, int] | None:
        """As ``PartitionEnds.behind``; without a checkpoint, all events held are to be read."""
        number = self.sequence_number
        return end.behind(end.begin_sequence_number if number is None or number < 0 else number + 1)


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """A consumer group in one container, under one name of the namespace."""

    account_id: str
    container: str
    namespace: str
    """The host name, perhaps with a port, by which its processors reach the service."""
    event_hub: str
    """In lower case, as the next."""
    consumer_group: str
    partitions: Mapping[str, KeptPartition]
    """By id."""

    @property
    def moved_at_ms(self) -> int:
        """When anything of it was written last."""
        times = [
            time
            for each in self.partitions.values()
            for time in (each.renewed_at_ms, each.checkpoint_at_ms)
            if time is not None
        ]
        return max(times, default=0)


_Key = tuple[str, str, str, str]
"""Account id, container, namespace and consumer group."""


@dataclass(slots=True)
class _Records:
    """The blobs of a group, by kind and partition."""

    blobs: dict[RecordKind, dict[str, Blob]] = field(
        default_factory=lambda: {kind: {} for kind in RecordKind}
    )


class GroupIndex:
    """The groups of all accounts."""

    def __init__(self) -> None:
        self._hubs: dict[str, dict[_Key, _Records]] = {}
        """By the event hub that the blobs name."""

    def note(self, account_id: str, container: str, name: str, blob: Blob | None) -> None:
        """A blob was written, or (None) deleted."""
        record = RecordName.parse(name.lower())
        if record is None:
            return
        groups = self._hubs.setdefault(record.event_hub, {})
        key = (account_id, container, record.namespace, record.consumer_group)
        blobs = groups.setdefault(key, _Records()).blobs
        if blob is not None:
            blobs[record.kind][record.partition_id] = blob
            return
        blobs[record.kind].pop(record.partition_id, None)
        if not any(blobs.values()):
            del groups[key]
        if not groups:
            del self._hubs[record.event_hub]

    def of_hub(
        self, event_hub: str, hub_id: str, created_at_ms: int, shared: frozenset[str]
    ) -> Iterator[KeptGroup]:
        """The groups of a hub. shared: ids of accounts that are of no hub."""
        for (account_id, container, namespace, group), records in self._hubs.get(
            event_hub.lower(), {}
        ).items():
            if account_id != hub_id and account_id not in shared:
                continue
            blobs = {
                kind: {each: blob for each, blob in found.items() if blob.modified_at_ms >= created_at_ms}
                for kind, found in records.blobs.items()
            }
            ids = sorted({*blobs[RecordKind.OWNERSHIP], *blobs[RecordKind.CHECKPOINT]}, key=int)
            if ids:
                partitions = {each: _partition(each, blobs) for each in ids}
                yield KeptGroup(account_id, container, namespace, event_hub.lower(), group, partitions)


def newest_of_each(groups: Iterable[KeptGroup]) -> dict[str, KeptGroup]:
    """By consumer group, the one that was written last: it is in use, if one is."""
    found: dict[str, KeptGroup] = {}
    for each in groups:
        known = found.get(each.consumer_group)
        if known is None or known.moved_at_ms < each.moved_at_ms:
            found[each.consumer_group] = each
    return found


def _partition(partition_id: str, blobs: Mapping[RecordKind, Mapping[str, Blob]]) -> KeptPartition:
    lease = blobs[RecordKind.OWNERSHIP].get(partition_id)
    checkpoint = blobs[RecordKind.CHECKPOINT].get(partition_id)
    values = (
        {} if checkpoint is None else {name.lower(): value for name, value in checkpoint.metadata.items()}
    )
    # Where a processor keeps no number, the offset is one: this service's offsets are.
    number = next((each for each in (values.get("sequencenumber"), values.get("offset")) if each), "")
    owner = (
        ""
        if lease is None
        else next((value for name, value in lease.metadata.items() if name.lower() == "ownerid"), "")
    )
    return KeptPartition(
        partition_id,
        owner,
        None if lease is None else lease.modified_at_ms,
        int(number) if _NUMBER.fullmatch(number) else None,
        None if checkpoint is None else checkpoint.modified_at_ms,
    )

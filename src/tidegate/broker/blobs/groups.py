"""The consumer groups of official processors, as their leases and checkpoints in the accounts show them.

An index by event hub that each change of a blob updates. The account of a hub counts for that hub alone;
those of the namespace and of development count for the hub that a blob names, if the blob is not older than
the hub. Only consumer groups and partitions that exist count: whatever else clients write costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


GROUPS_MAX: Final = 1_000
"""Groups of an event hub that are known from one account (our choice: as many as a hub may have, in one
container). Those that come later are not shown."""

_Place = tuple[str, str, str]
"""Container, namespace and consumer group."""


@dataclass(slots=True)
class _Records:
    """What there is of a group."""

    partitions: dict[str, KeptPartition] = field(default_factory=dict)
    moved_at_ms: int = 0
    """When anything of it was written last."""


class GroupIndex:
    """The groups of all accounts."""

    def __init__(self) -> None:
        self._hubs: dict[str, dict[str, dict[_Place, _Records]]] = {}
        """By the event hub that the blobs name, and the account's id."""

    def note(self, account_id: str, container: str, name: str, blob: Blob | None) -> None:
        """A blob was written, or (None) deleted."""
        record = RecordName.parse(name.lower())
        if record is None:
            return
        accounts = self._hubs.setdefault(record.event_hub, {})
        groups = accounts.setdefault(account_id, {})
        place = (container, record.namespace, record.consumer_group)
        records = groups.get(place)
        if records is None and blob is not None and len(groups) < GROUPS_MAX:
            records = groups[place] = _Records()
        if records is not None:
            _change(records, record, blob)
            if not records.partitions:
                del groups[place]
        if not groups:
            del accounts[account_id]
        if not accounts:
            del self._hubs[record.event_hub]

    def of_hub(self, hub: IndexedHub, *, is_newest_only: bool = False) -> Iterator[KeptGroup]:
        """The groups of an event hub, each when it is asked for.

        is_newest_only: of each consumer group, in several containers, the one that was written last.
        """
        accounts = self._hubs.get(hub.name, {})
        found = [
            (records, account_id, *place)
            for account_id in (hub.hub_id, *hub.shared)
            for place, records in accounts.get(account_id, {}).items()
            if place[2] in hub.consumer_groups and records.moved_at_ms >= hub.created_at_ms
        ]
        if is_newest_only:
            found.sort(key=lambda each: each[0].moved_at_ms)
            found = [*{group: each for each in found for group in each[4:]}.values()]
        for records, account_id, container, namespace, group in found:
            partitions = {
                each: kept
                for each in hub.partition_ids
                if (kept := _since(records.partitions.get(each), hub.created_at_ms)) is not None
            }
            if partitions:
                yield KeptGroup(account_id, container, namespace, hub.name, group, partitions)


@dataclass(frozen=True, slots=True)
class IndexedHub:
    """Which records count for an event hub."""

    name: str
    """In lower case."""
    hub_id: str
    created_at_ms: int
    """Older blobs are of an earlier hub of that name."""
    consumer_groups: Collection[str]
    """In lower case."""
    partition_ids: Sequence[str]
    shared: Sequence[str]
    """Ids of accounts that are of no hub."""


def _change(records: _Records, record: RecordName, blob: Blob | None) -> None:
    """Take in what a blob says of a partition, or (None) no longer says."""
    known = records.partitions.get(record.partition_id) or KeptPartition(record.partition_id)
    values = {} if blob is None else {name.lower(): value for name, value in blob.metadata.items()}
    time_ms = None if blob is None else blob.modified_at_ms
    if record.kind is RecordKind.OWNERSHIP:
        changed = replace(known, owner=values.get("ownerid", ""), renewed_at_ms=time_ms)
    else:
        # Where a processor keeps no number, the offset is one: this service's offsets are.
        number = values.get("sequencenumber") or values.get("offset") or ""
        sequence_number = int(number) if _NUMBER.fullmatch(number) else None
        changed = replace(known, sequence_number=sequence_number, checkpoint_at_ms=time_ms)
    if changed.renewed_at_ms is None and changed.checkpoint_at_ms is None:
        records.partitions.pop(record.partition_id, None)
    else:
        records.partitions[record.partition_id] = changed
    records.moved_at_ms = max(records.moved_at_ms, time_ms or 0)


def _since(kept: KeptPartition | None, time_ms: int) -> KeptPartition | None:
    """What of it was written since; None: nothing."""
    if kept is None:
        return None
    if (kept.renewed_at_ms or 0) < time_ms:
        kept = replace(kept, owner="", renewed_at_ms=None)
    if (kept.checkpoint_at_ms or 0) < time_ms:
        kept = replace(kept, sequence_number=None, checkpoint_at_ms=None)
    return None if kept.renewed_at_ms is None and kept.checkpoint_at_ms is None else kept

"""The consumer groups of official processors, as their leases and checkpoints in the accounts show them.

An index by event hub that each change of a blob updates. The account of a hub counts for that hub alone;
those of the namespace and of development count for the hub that a blob names, if the blob is not older than
the hub. Only consumer groups and partitions that exist count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT_ID
from tidegate.broker.blobs.blob import Blob, text_bytes
from tidegate.broker.blobs.checkpoint_names import RecordKind, RecordName
from tidegate.broker.blobs.contents import Contents
from tidegate.model.hub_properties import PartitionEnds

REPORTS: Final = "reported"
"""The container of what hosts report of stores elsewhere."""

OWNER_CHARACTERS_MAX: Final = 260
"""Of a processor's name (our choice): a blob's metadata may have 8,000, and pages repeat it in each row."""

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
        """When a partition was claimed, or a checkpoint written, last."""
        times = ((each.renewed_at_ms, each.checkpoint_at_ms) for each in self.partitions.values())
        return max(time or 0 for pair in times for time in pair)


GROUPS_MAX: Final = 1_000
"""Groups of an event hub that are known from one account (our choice: as many as a hub may have, in one
container). The one that was written longest ago makes room."""

_GROUP_BYTES: Final = 1_200
_PARTITION_BYTES: Final = 300
"""In memory, besides a group's names (CPython 3.11, measured by a test)."""

_Place = tuple[Contents, str, str]
"""Container, namespace and consumer group."""


@dataclass(slots=True)
class _Records:
    """What there is of a group."""

    partitions: dict[str, KeptPartition] = field(default_factory=dict)
    moved_at_ms: int = 0
    """When anything of it was written last."""
    removed: int = 0
    """Partitions of which the table still has the space."""

    @property
    def held_bytes(self) -> int:
        return _PARTITION_BYTES * len(self.partitions)


class GroupIndex:
    """The groups of all accounts."""

    def __init__(self) -> None:
        self._hubs: dict[str, dict[str, dict[_Place, _Records]]] = {}
        """By the event hub that the blobs name, and the account's id."""

    def note(self, contents: Contents, name: str, blob: Blob | None) -> int:
        """A blob of the container was written, or (None) deleted. Returns the bytes that it takes."""
        record = RecordName.parse(name.lower())
        if record is None:
            return 0
        hub, account_id = record.event_hub, contents.account_id
        accounts = self._hubs.setdefault(hub, {})
        groups = accounts.setdefault(account_id, {})
        place = (contents, record.namespace, record.consumer_group)
        records = groups.get(place)
        more = 0
        if records is None and blob is not None:
            if len(groups) >= GROUPS_MAX:
                oldest = min(groups, key=lambda each: (not each[0].is_deleted, groups[each].moved_at_ms))
                more -= _place_bytes(hub, oldest) + groups.pop(oldest).held_bytes
            records = groups[place] = _Records()
            more += _place_bytes(hub, place)
        if records is not None:
            more -= records.held_bytes
            _change(records, record, blob)
            more += records.held_bytes
            if not records.partitions:
                more -= _place_bytes(hub, place)
                accounts[account_id] = groups = {each: groups[each] for each in groups if each != place}
        if not groups:
            del accounts[account_id]
        if not accounts:
            del self._hubs[hub]
        return more

    def of_hub(self, hub: IndexedHub, *, is_newest_only: bool = False) -> Iterator[KeptGroup]:
        """The groups of an event hub, each when it is asked for.

        is_newest_only: of each consumer group, in several containers, the one that was written last: of the
        hub's own account if it has the group, or else of the first in ``shared``. Reports of hosts give way
        to a store in this service that has moved since, but for one whose key is public.
        """
        accounts = self._hubs.get(hub.name, {})
        found = [
            (records, account_id, *place)
            for account_id in (hub.hub_id, *hub.shared)
            for place, records in accounts.get(account_id, {}).items()
            if place[2] in hub.consumer_groups
            and records.moved_at_ms >= hub.created_at_ms
            and not place[0].is_deleted
        ]
        if is_newest_only:
            moved_ms: dict[str, int] = {}  # by group, of its stores
            for records, account_id, contents, _, group in found:
                if contents.container.name != REPORTS and account_id != DEVELOPMENT_ACCOUNT_ID:
                    moved_ms[group] = max(records.moved_at_ms, moved_ms.get(group, 0))
            found = [
                each
                for each in found
                if each[2].container.name != REPORTS or each[0].moved_at_ms >= moved_ms.get(each[4], 0)
            ]
            # The last one of a group stays, of the first account that has the group.
            ranks = {account_id: rank for rank, account_id in enumerate((hub.hub_id, *hub.shared))}
            found.sort(key=lambda each: (-ranks[each[1]], each[0].moved_at_ms))
            found = [*{each[4]: each for each in found}.values()]
        for records, account_id, contents, namespace, group in found:
            partitions = {
                each: kept
                for each in hub.partition_ids
                if (kept := _since(records.partitions.get(each), hub.created_at_ms)) is not None
            }
            if partitions:
                yield KeptGroup(account_id, contents.container.name, namespace, hub.name, group, partitions)


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
    """Ids of accounts that are of no hub, those that are trusted more first: the key of one may be public."""


def _place_bytes(hub: str, place: _Place) -> int:
    _, namespace, group = place
    return _GROUP_BYTES + text_bytes(hub) + text_bytes(namespace) + text_bytes(group)


def _change(records: _Records, record: RecordName, blob: Blob | None) -> None:
    """Take in what a blob says of a partition, or (None) no longer says."""
    known = records.partitions.get(record.partition_id) or KeptPartition(record.partition_id)
    values = {} if blob is None else {name.lower(): value for name, value in blob.metadata.items()}
    time_ms = None if blob is None else blob.modified_at_ms
    if record.kind is RecordKind.OWNERSHIP:
        changed = replace(
            known, owner=values.get("ownerid", "")[:OWNER_CHARACTERS_MAX], renewed_at_ms=time_ms
        )
    else:
        # Where a processor keeps no number, the offset is one: this service's offsets are.
        number = values.get("sequencenumber") or values.get("offset") or ""
        sequence_number = int(number) if _NUMBER.fullmatch(number) else None
        changed = replace(known, sequence_number=sequence_number, checkpoint_at_ms=time_ms)
    if changed.renewed_at_ms is None and changed.checkpoint_at_ms is None:
        if records.partitions.pop(record.partition_id, None) is not None:
            records.removed += 1
        if records.removed > len(records.partitions):  # as ``Contents.remove``
            records.partitions, records.removed = dict(records.partitions), 0
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

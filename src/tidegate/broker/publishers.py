"""The publishers of an event hub since the service started, in bounded memory.

The name of a publisher with its own address was checked by its token. Names that only events to the hub's
address state are unchecked, and kept separately, so that they cannot displace the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

from tidegate.broker.names import validate_publisher_name
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import PUBLISHERS_SEEN_MAX, PUBLISHERS_STATED_MAX
from tidegate.storage.record import AppendResult


@dataclass(frozen=True, slots=True)
class PublisherActivity:
    """A publisher's activity since it was first seen."""

    name: str
    """As last spelled."""
    is_own_address: bool
    """True: it sends to its own address. False: events to the hub's address name it."""
    last_enqueued_time_ms: int
    """Of its last batch: milliseconds since 1970-01-01 UTC."""
    last_partition_id: str
    """That batch's partition. The name as spelled is the partition key, so another spelling of the same
    publisher may be in another partition."""
    events: int
    event_bytes: int
    """As stored."""


class PublisherRecords:
    """The publishers of one event hub; of each kind, the one not seen for longest is forgotten first."""

    def __init__(
        self, *, own_max: int = PUBLISHERS_SEEN_MAX, stated_max: int = PUBLISHERS_STATED_MAX
    ) -> None:
        """own_max: of publishers with their own address; stated_max: of names that only events state."""
        self.own_max = own_max
        self.stated_max = stated_max
        self.own_forgotten = 0
        """Number of forgotten ones; one that returns is counted from 0."""
        self.stated_forgotten = 0
        # By the name in lower case, since revocations ignore case; the last one seen is last.
        self._own: OrderedDict[str, PublisherActivity] = OrderedDict()
        self._stated: OrderedDict[str, PublisherActivity] = OrderedDict()

    def note_when_stored(
        self,
        appended: asyncio.Future[AppendResult],
        name: str,
        partition_id: str,
        *,
        event_bytes: int,
        is_own_address: bool,
    ) -> None:
        """Count a batch once it is stored, unless it repeats a stored one or the name is invalid."""
        try:
            validate_publisher_name(name)
        except InvalidArgumentError:
            return
        appended.add_done_callback(partial(self._note, name, partition_id, event_bytes, is_own_address))

    def newest_first(self) -> list[PublisherActivity]:
        """All publishers, the last one seen first."""
        # Both are nearly in order, so sorting is fast.
        known = [*self._own.values(), *self._stated.values()]
        return sorted(known, key=lambda each: each.last_enqueued_time_ms, reverse=True)

    def find(self, name: str, *, is_own_address: bool = True) -> PublisherActivity | None:
        """The activity of one, ignoring case."""
        return (self._own if is_own_address else self._stated).get(name.lower())

    def _note(
        self,
        name: str,
        partition_id: str,
        event_bytes: int,
        is_own_address: bool,
        appended: asyncio.Future[AppendResult],
    ) -> None:
        if appended.cancelled() or appended.exception() is not None:
            return
        stored = appended.result()
        if stored.is_duplicate:
            return
        known = self._own if is_own_address else self._stated
        key = name.lower()
        before = known.pop(key, None)
        known[key] = PublisherActivity(
            name,
            is_own_address,
            stored.enqueued_time_ms,
            partition_id,
            (before.events if before else 0) + stored.until_sequence_number - stored.start_sequence_number,
            (before.event_bytes if before else 0) + event_bytes,
        )
        if len(known) > (self.own_max if is_own_address else self.stated_max):
            known.popitem(last=False)
            self.own_forgotten += is_own_address
            self.stated_forgotten += not is_own_address

    def __repr__(self) -> str:
        return (
            f"<PublisherRecords own={len(self._own)} stated={len(self._stated)} "
            f"forgotten={self.own_forgotten}+{self.stated_forgotten}>"
        )

"""What the store has in memory: containers with their blobs, and what each account holds."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.blobs.blob import Blob, Container, Held
from tidegate.broker.blobs.lease import Lease
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal

BLOB_KEYS: Final = "blob/"
"""Before the id of a container, ``/`` and the name of a blob."""

_FIRST: Final = chr(0)
_LAST: Final = chr(0x10FFFF)
"""Before and after every character of a name."""


@dataclass(slots=True)
class Usage:
    """What an account holds, and the changes of it that wait."""

    blobs: int = 0
    held_bytes: int = 0
    """In memory, at most; what is deleted counts until its values have left the control log."""
    waiting: int = 0
    waiting_bytes: int = 0
    """By which the waiting changes will add to ``held_bytes``."""


@dataclass(slots=True, eq=False)
class Contents:
    """A container with its blobs."""

    account_id: str
    container: Container
    usage: Usage
    """Of its account."""
    blobs: dict[str, Blob] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Of the blobs, in order."""
    leases: dict[str, Lease] = field(default_factory=dict)
    """By the name of the blob."""
    is_deleted: bool = False
    removed: int = 0
    """Blobs of which the tables still have the space."""

    def key(self, name: str) -> str:
        """A blob's key in the control log."""
        return f"{BLOB_KEYS}{self.container.container_id}/{name}"

    def put(self, blob: Blob, now: float) -> None:
        """Take in a blob; its lease is as if it began now."""
        if blob.name not in self.blobs:
            insort(self.names, blob.name)
        self.blobs[blob.name] = blob
        if blob.stored_lease is None:
            self.leases.pop(blob.name, None)
        else:
            self.leases[blob.name] = blob.stored_lease.lease(now)

    def remove(self, name: str) -> None:
        """Forget a blob that is there."""
        del self.blobs[name], self.names[bisect_left(self.names, name)]
        self.leases.pop(name, None)
        self.removed += 1
        if self.removed > len(self.blobs):
            # A dict never shrinks: containers that once were full would keep the space of all these blobs.
            self.blobs, self.leases, self.removed = dict(self.blobs), dict(self.leases), 0


@dataclass(slots=True)
class Page:
    """A page of a list of blobs; see ``BlobStore.page``. Iterate over it once, in slices: a blob may have 85
    names of metadata. Blobs may change between two entries, and each entry is as it is then."""

    contents: Contents
    prefix: str
    delimiter: str
    start: str
    count: int
    bytes_max: int
    following: str | None = None
    """The name at which the next page starts, after the last entry; None: there is none."""

    def __iter__(self) -> Iterator[Held | str]:
        contents, position = self.contents, max(self.prefix, self.start)
        found = size = 0
        while True:
            if contents.is_deleted:
                raise BlobRefusedError(Refusal.CONTAINER_NOT_FOUND)  # some of its blobs are gone already
            index = bisect_left(contents.names, position)
            name = contents.names[index] if index < len(contents.names) else None
            if name is None or not name.startswith(self.prefix):
                return
            blob = contents.blobs[name]
            size += blob.listed_bytes
            if found >= self.count or (size > self.bytes_max and found):
                self.following = name
                return
            found += 1
            end = name.find(self.delimiter, len(self.prefix)) if self.delimiter else -1
            if end < 0:
                position = name + _FIRST
                yield Held(blob, contents.leases.get(name))
            else:
                common = name[: end + len(self.delimiter)]
                position = common + _LAST
                yield common

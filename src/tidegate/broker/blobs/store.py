"""The containers and blobs of all accounts, in memory and in the control log.

    container/ACCOUNT ID/NAME        a container; the account's id is that of its event hub
    blob/CONTAINER ID/NAME           a blob

The rule: memory changes only after the control log, and one request at a time changes a blob. So what is
answered is durable, and a backup, which copies the control log before the logs of events, has no checkpoint
beyond them. A deleted container loses its record at once, and its blobs' values when there is time.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from typing import Final

import msgspec

from tidegate.broker.blobs import lease as leases
from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT_ID, NAMESPACE_ACCOUNT_ID
from tidegate.broker.blobs.blob import (
    CONTENT_TYPE_DEFAULT,
    Blob,
    Conditions,
    Container,
    Held,
    encoded,
    new_etag,
    parse_blob,
    parse_container,
)
from tidegate.broker.blobs.contents import BLOB_KEYS, Contents, Page, Usage
from tidegate.broker.blobs.groups import GroupIndex
from tidegate.broker.blobs.lease import Lease
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.broker.blobs.writer import ChangeWriter, Removal
from tidegate.model.clock import Clock
from tidegate.model.times import milliseconds_of
from tidegate.storage.engine import ControlLog

_CONTAINER_KEYS: Final = "container/"
_CONTAINER_ID_BYTES: Final = 8

CONTENT_BYTES_MAX: Final = 4 * 1024
"""Of a blob (our choice: official checkpoints have none, leases of older processors some 200 bytes)."""

METADATA_BYTES_MAX: Final = 8 * 1024
"""Names and values of a blob's metadata (Azure "Setting and retrieving properties and metadata", 2026-09)."""

LIST_BYTES_MAX: Final = 256 * 1024
"""Names and metadata of one page of a list (our choice: less than 2 MB of XML, whatever is escaped)."""

NAME_CHARACTERS_MAX: Final = 1024
"""Of a blob (Azure "Naming and referencing containers, blobs, and metadata", 2026-09)."""

CONTAINERS_MAX: Final = 1_000
BLOBS_MAX: Final = 20_000
BYTES_MAX: Final = 32 * 1024 * 1024
"""Of an account, in memory (our choice: leases and checkpoints of eight groups of 1,000 partitions, at some
1,900 bytes each)."""

BLOBS_TOTAL_MAX: Final = 100_000
BYTES_TOTAL_MAX: Final = 128 * 1024 * 1024
"""Of all accounts together (our choice)."""

WAITING_MAX: Final = 256
"""Changes of an account that may wait; further ones are refused (our choice: a hub's partitions at once)."""

_BUSY_RETRY_AFTER_S: Final = 1.0
_CONTAINER_NAME: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_METADATA_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class BlobStore:
    """All accounts. Open it with ``await BlobStore.open(...)``; everything is called on one event loop."""

    def __init__(self, control: ControlLog, clock: Clock, versions: Mapping[str, int]) -> None:
        """Use ``open``."""
        self._clock = clock
        self._writer = ChangeWriter(control, versions)
        self._accounts = {NAMESPACE_ACCOUNT_ID, DEVELOPMENT_ACCOUNT_ID}
        """Ids of those that there are."""
        self._containers: dict[str, dict[str, Contents]] = {}
        """By the account's id and the name."""
        self._usages: dict[str, Usage] = {}
        self._total = Usage()
        self._turns: dict[str, _Turn] = {}
        self.groups: Final = GroupIndex()
        """The consumer groups whose leases and checkpoints these are."""

    @classmethod
    async def open(cls, control: ControlLog, clock: Clock, *, hub_ids: Collection[str]) -> BlobStore:
        """Read everything. hub_ids: of all event hubs; accounts of others are removed.

        Raises LogCorruptError (a value of a later version), LogFailedError, ServerBusyError.
        """
        cells = {**await control.read_all(_CONTAINER_KEYS), **await control.read_all(BLOB_KEYS)}
        store = cls(control, clock, {key: cell.version for key, cell in cells.items()})
        store._accounts.update(hub_ids)
        by_id: dict[str, Contents] = {}
        for key, cell in cells.items():
            kind, owner, _ = key.split("/", 2)
            if kind == "container" and owner in store._accounts:
                found = store._add(owner, parse_container(cell.value, control.place(key)))
                by_id[found.container.container_id] = found
            elif kind == "blob" and owner in by_id:
                blob = parse_blob(cell.value, control.place(key))
                store._apply(by_id[owner], blob.name, blob)
            else:
                store._writer.remove_later([Removal(key)])
        return store

    def set_check_actor(self, check_actor: Callable[[], None]) -> None:
        """Call ``check_actor`` before a change that has waited: it raises UnauthorizedError if the current
        actor has lost its rights meanwhile."""
        self._writer.check_actor = check_actor

    async def close(self) -> None:
        """Finish the changes that have begun."""
        await self._writer.close()

    # -- containers

    def container(self, account_id: str, name: str) -> Container:
        """A container. Raises BlobRefusedError."""
        return self._contents(account_id, name).container

    async def create_container(self, account_id: str, name: str, metadata: Mapping[str, str]) -> Container:
        """Create a container; durable on return. Raises BlobRefusedError, and as ``ControlLog.change``."""
        if not 3 <= len(name) <= 63 or _CONTAINER_NAME.fullmatch(name) is None:
            raise BlobRefusedError(
                Refusal.INVALID_NAME, "Use 3 to 63 lower-case letters, digits and single hyphens."
            )
        _check_metadata(metadata)
        key = f"{_CONTAINER_KEYS}{account_id}/{name}"
        async with self.turn(account_id, key):
            if account_id not in self._accounts:
                raise BlobRefusedError(Refusal.RESOURCE_NOT_FOUND)
            containers = self._containers.get(account_id, {})
            if name in containers:
                raise BlobRefusedError(Refusal.CONTAINER_EXISTS)
            if len(containers) >= CONTAINERS_MAX:
                raise BlobRefusedError(
                    Refusal.QUOTA_EXCEEDED, f"{CONTAINERS_MAX} containers are the maximum."
                )
            container_id = secrets.token_hex(_CONTAINER_ID_BYTES)
            container = Container(container_id, name, new_etag(), self.now_ms(), dict(metadata))

            def apply() -> None:
                if account_id in self._accounts:
                    self._add(account_id, container)
                else:
                    self._writer.remove_later([Removal(key)])

            with self._room(self._usage(account_id), container.held_bytes):
                await self._writer.write(key, encoded(container), apply)
        return container

    async def delete_container(self, account_id: str, name: str) -> int:
        """Delete a container with its blobs; durable on return. Returns how many blobs it had. Raises as
        ``create_container``."""
        key = f"{_CONTAINER_KEYS}{account_id}/{name}"
        async with self.turn(account_id, key):
            contents = self._contents(account_id, name)
            count = len(contents.blobs)
            await self._writer.write(key, None, lambda: self._drop(contents))
        return count

    def add_account(self, hub_id: str) -> None:
        """Serve the account of a new event hub."""
        self._accounts.add(hub_id)

    def forget_account(self, hub_id: str) -> None:
        """Remove the account of a deleted event hub, when there is time; it is no longer served."""
        for name, contents in [*self._containers.get(hub_id, {}).items()]:
            self._drop(contents)
            self._writer.remove_later([Removal(f"{_CONTAINER_KEYS}{hub_id}/{name}")])
        self._accounts.discard(hub_id)
        self._containers.pop(hub_id, None)
        self._usages.pop(hub_id, None)

    # -- blobs

    def read(
        self, account_id: str, container: str, name: str, conditions: Conditions, *, lease_id: str | None
    ) -> Held:
        """A blob, with its lease. Raises BlobRefusedError."""
        contents = self._contents(account_id, container)
        held = self._held(contents, name)
        if held is None:
            raise BlobRefusedError(Refusal.BLOB_NOT_FOUND)
        conditions.check_read(held.blob.etag, held.blob.modified_at_ms)
        leases.check_read(held.lease, self.now, lease_id=lease_id)
        return held

    def find(self, account_id: str, container: str, name: str) -> Blob | None:
        """A blob; None if it does not exist. Raises BlobRefusedError (the container)."""
        return self._contents(account_id, container).blobs.get(name)

    async def put(
        self,
        account_id: str,
        container: str,
        name: str,
        conditions: Conditions,
        *,
        lease_id: str | None,
        content: bytes,
        content_type: str = CONTENT_TYPE_DEFAULT,
        metadata: Mapping[str, str],
        is_new_only: bool = False,
    ) -> Blob:
        """Create or replace a blob; durable on return. is_new_only: an existing one is not replaced.

        Raises BlobRefusedError, and as ``ControlLog.change``.
        """
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise BlobRefusedError(
                Refusal.INVALID_NAME, f"Use 1 to {NAME_CHARACTERS_MAX} printable characters for a blob."
            )
        if len(content) > CONTENT_BYTES_MAX:
            raise BlobRefusedError(Refusal.BODY_TOO_LARGE, f"{CONTENT_BYTES_MAX} bytes are the maximum.")
        _check_metadata(metadata)
        contents = self._contents(account_id, container)
        async with self.turn(account_id, contents.key(name)):
            held = self._changeable(contents, name, conditions, lease_id)
            if held is not None and is_new_only:
                raise BlobRefusedError(
                    Refusal.AUTHORIZATION_FAILURE, "The blob exists, and replacing it needs the permission w."
                )
            now_ms = self.now_ms()
            return await self._store(
                contents,
                Blob(
                    name,
                    new_etag(),
                    now_ms if held is None else held.blob.created_at_ms,
                    now_ms,
                    dict(metadata),
                    content,
                    content_type,
                ),
                None if held is None else held.lease,
            )

    async def set_metadata(
        self,
        account_id: str,
        container: str,
        name: str,
        conditions: Conditions,
        *,
        lease_id: str | None,
        metadata: Mapping[str, str],
    ) -> Blob:
        """Replace a blob's metadata; durable on return. Raises as ``put``."""
        _check_metadata(metadata)
        contents = self._contents(account_id, container)
        async with self.turn(account_id, contents.key(name)):
            held = self._existing(contents, name, conditions, lease_id)
            changes = {"etag": new_etag(), "modified_at_ms": self.now_ms(), "metadata": dict(metadata)}
            return await self._store(contents, msgspec.structs.replace(held.blob, **changes), held.lease)

    async def delete(
        self, account_id: str, container: str, name: str, conditions: Conditions, *, lease_id: str | None
    ) -> None:
        """Delete a blob; durable on return. Raises as ``put``."""
        contents = self._contents(account_id, container)
        async with self.turn(account_id, contents.key(name)):
            self._existing(contents, name, conditions, lease_id)
            await self._writer.write(contents.key(name), None, lambda: self._apply(contents, name, None))

    async def change_lease(
        self,
        account_id: str,
        container: str,
        name: str,
        conditions: Conditions,
        change: Callable[[Lease | None, float], Lease | None],
    ) -> Held:
        """Change a blob's lease; durable on return, but for the time of renewal. Raises as ``put``.

        change: takes the lease and the time (``now``), and returns the new lease.
        """
        contents = self._contents(account_id, container)
        async with self.turn(account_id, contents.key(name)):
            held = self._held(contents, name)
            if held is None:
                raise BlobRefusedError(Refusal.BLOB_NOT_FOUND)
            conditions.check_change(held.blob.etag, held.blob.modified_at_ms)
            lease = change(held.lease, self.now)
            if lease is not None and lease.stored == held.blob.stored_lease:
                contents.leases[name] = lease
                return Held(held.blob, lease)
            return Held(await self._store(contents, held.blob, lease), lease)

    def page(
        self, account_id: str, container: str, *, prefix: str, delimiter: str, start: str, count: int
    ) -> Page:
        """At most ``count`` blobs in the order of their names, from the name ``start`` on. A page has at most
        ``LIST_BYTES_MAX`` of names and metadata, but at least one blob.

        delimiter: names that have it behind the prefix make one entry, the part that they have in common;
        empty: there is none. Raises BlobRefusedError, as iterating over it does.
        """
        contents = self._contents(account_id, container)
        return Page(contents, prefix, delimiter, start, count, LIST_BYTES_MAX)

    @property
    def now(self) -> float:
        """The time of leases."""
        return self._clock.monotonic()

    # -- below requests

    def now_ms(self) -> int:
        """The time of blobs: milliseconds since 1970-01-01 UTC."""
        return milliseconds_of(self._clock.now_utc().astimezone(UTC))

    def _contents(self, account_id: str, name: str) -> Contents:
        found = self._containers.get(account_id, {}).get(name)
        if found is None:
            raise BlobRefusedError(Refusal.CONTAINER_NOT_FOUND)
        return found

    def _held(self, contents: Contents, name: str) -> Held | None:
        if contents.is_deleted:
            raise BlobRefusedError(Refusal.CONTAINER_NOT_FOUND)
        blob = contents.blobs.get(name)
        return None if blob is None else Held(blob, contents.leases.get(name))

    def _changeable(
        self, contents: Contents, name: str, conditions: Conditions, lease_id: str | None
    ) -> Held | None:
        """A blob that may be changed; None: there is none."""
        held = self._held(contents, name)
        blob, lease = (None, None) if held is None else (held.blob, held.lease)
        conditions.check_change(
            None if blob is None else blob.etag, 0 if blob is None else blob.modified_at_ms
        )
        leases.check_change(lease, self.now, lease_id=lease_id)
        is_over = lease is not None and not lease.is_held(self.now)
        return Held(held.blob) if held is not None and is_over else held

    def _existing(self, contents: Contents, name: str, conditions: Conditions, lease_id: str | None) -> Held:
        if self._held(contents, name) is None:
            raise BlobRefusedError(Refusal.BLOB_NOT_FOUND)
        held = self._changeable(contents, name, conditions, lease_id)
        assert held is not None
        return held

    async def _store(self, contents: Contents, blob: Blob, lease: Lease | None) -> Blob:
        before = contents.blobs.get(blob.name)
        blob = msgspec.structs.replace(
            blob,
            name=blob.name if before is None else before.name,  # of equal ones, only one is held
            stored_lease=None if lease is None else lease.stored,
        )

        def apply() -> None:
            self._apply(contents, blob.name, blob)
            if lease is not None:
                contents.leases[blob.name] = lease

        more = blob.held_bytes - (0 if before is None else before.held_bytes)
        with self._room(contents.usage, more, is_new_blob=before is None):
            await self._writer.write(contents.key(blob.name), encoded(blob), apply)
        if contents.is_deleted:
            raise BlobRefusedError(Refusal.CONTAINER_NOT_FOUND)
        return blob

    @contextmanager
    def _room(self, usage: Usage, more: int, *, is_new_blob: bool = False) -> Iterator[None]:
        """Hold room for a value that is written within the block. more: bytes. Raises BlobRefusedError."""
        for held, blobs_max, bytes_max, whose in (
            (usage, BLOBS_MAX, BYTES_MAX, "an account"),
            (self._total, BLOBS_TOTAL_MAX, BYTES_TOTAL_MAX, "all accounts together"),
        ):
            is_full = more > 0 and held.held_bytes + held.waiting_bytes + more > bytes_max
            if is_full or (is_new_blob and held.blobs + held.waiting > blobs_max):
                self._writer.try_removals_again()
                raise BlobRefusedError(
                    Refusal.QUOTA_EXCEEDED,
                    f"{blobs_max:,} blobs and {bytes_max:,} bytes of memory are the maximum of {whose}.",
                )
        more = max(0, more)
        for held in (usage, self._total):
            held.waiting_bytes += more
        try:
            yield
        finally:
            for held in (usage, self._total):
                held.waiting_bytes -= more

    def _add(self, account_id: str, container: Container) -> Contents:
        """Serve a container that is written."""
        contents = Contents(account_id, container, self._usage(account_id))
        self._containers.setdefault(account_id, {})[container.name] = contents
        self._count(contents, container.held_bytes)
        return contents

    def _apply(self, contents: Contents, name: str, blob: Blob | None) -> None:
        """Make a written change."""
        if contents.is_deleted:
            self._writer.remove_later([Removal(contents.key(name))])
            return
        before = contents.blobs.get(name)
        if blob is not None:
            contents.put(blob, self.now)
        elif before is not None:
            contents.remove(name)
        self._count_blob(contents, name, before, blob)

    def _count_blob(self, contents: Contents, name: str, before: Blob | None, after: Blob | None) -> None:
        """Count a blob that was written or (None) deleted; before: what there was."""
        more = self.groups.note(contents, name, after)
        more += (0 if after is None else after.held_bytes) - (0 if before is None else before.held_bytes)
        self._count(contents, more, blobs=(after is not None) - (before is not None))

    def _count(self, contents: Contents, held_bytes: int, *, blobs: int = 0) -> None:
        for usage in (contents.usage, self._total):
            usage.blobs += blobs
            usage.held_bytes += held_bytes

    def _usage(self, account_id: str) -> Usage:
        return self._usages.setdefault(account_id, Usage())

    def _drop(self, contents: Contents) -> None:
        """Forget a container whose record is removed."""
        if contents.is_deleted:
            return  # with its account, while its own deletion waited
        contents.is_deleted = True
        self._containers.get(contents.account_id, {}).pop(contents.container.name, None)
        self._writer.remove_later(self._remains(contents))

    def _remains(self, contents: Contents) -> Iterator[Removal]:
        """What a dropped container leaves, each when there is time for it: it may have 20,000 blobs."""
        while contents.names:
            name = contents.names.pop()
            blob = contents.blobs.pop(name)
            contents.leases.pop(name, None)
            yield Removal(contents.key(name), partial(self._count_blob, contents, name, blob, None))
        self._count(contents, -contents.container.held_bytes)

    @asynccontextmanager
    async def turn(self, account_id: str, key: str) -> AsyncIterator[None]:
        """Let no other request change the value of ``key`` within the block. Raises BlobRefusedError;
        UnauthorizedError if the actor's rights ended while it waited."""
        usage = self._usage(account_id)
        if usage.waiting >= WAITING_MAX:
            raise BlobRefusedError(Refusal.SERVER_BUSY, retry_after_s=_BUSY_RETRY_AFTER_S)
        usage.waiting += 1
        self._total.waiting += 1
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                self._writer.check_actor()
                yield
        finally:
            usage.waiting -= 1
            self._total.waiting -= 1
            turn.users -= 1
            if not turn.users:
                del self._turns[key]


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in metadata.items()) > METADATA_BYTES_MAX:
        raise BlobRefusedError(Refusal.METADATA_TOO_LARGE, f"{METADATA_BYTES_MAX} bytes are the maximum.")
    for name, value in metadata.items():
        if _METADATA_NAME.fullmatch(name) is None or not (value.isascii() and value.isprintable()):
            raise BlobRefusedError(
                Refusal.INVALID_METADATA, "Names are identifiers of C#, and values are printable ASCII."
            )

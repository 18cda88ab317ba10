"""What hosts report of a consumer group whose leases and checkpoints are in a store elsewhere.

The rule: it is kept as official processors keep theirs, in a container of the event hub's account. So lag and
owners of all groups are known in one way, after a restart as well, and an account's limits hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT_ID
from tidegate.broker.blobs.blob import NO_CONDITIONS, Blob
from tidegate.broker.blobs.checkpoint_names import RecordKind, RecordName
from tidegate.broker.blobs.groups import OWNER_CHARACTERS_MAX, REPORTS, IndexedHub
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.broker.blobs.store import BlobStore
from tidegate.model.errors import QuotaExceededError, ServerBusyError

_RENEWED_EACH_MS: Final = 30_000
"""An owner that stays the same is written again after so long (our choice: a third of the writes)."""

_SHOWN_MS: Final = 60_000
"""A group that moved in another container since is shown from there, and reports of it are ignored: its
hosts' store is in this service (our choice: six renewals)."""

_TOGETHER: Final = 16
"""Changes of a report that wait (our choice: some 5 ms of the event loop)."""


@dataclass(frozen=True, slots=True)
class ConsumerReport:
    """The partitions of one host."""

    namespace: str
    """The id of the service's namespace."""
    consumer_group: str
    """In lower case."""
    owner: str
    """The host's name."""
    sequence_numbers: Mapping[str, int | None]
    """By each partition that it owns: of the last processed event; None: unknown."""
    released: Collection[str]
    """Partitions that it owns no longer; what another host has reported of them stays. One that is in
    ``sequence_numbers`` as well has its last number."""


Change = tuple[str, dict[str, str]]
"""Name and metadata of a blob to write."""

Collect = Callable[[Iterator[Change | None]], Awaitable[list[Change]]]
"""Makes all of an iterator but None, a step without one."""


async def keep_report(blobs: BlobStore, hub: IndexedHub, report: ConsumerReport, collect: Collect) -> None:
    """Keep what has changed of it; durable on return. hub: with this consumer group alone. collect: in
    slices.

    Raises QuotaExceededError (the account is full), ServerBusyError, and as ``ControlLog.change``.
    """
    try:
        # One report of an account at a time: together they would take all places of its changes.
        async with blobs.turn(hub.hub_id, f"report/{hub.hub_id}"):
            await _create_container(blobs, hub.hub_id)
            changes = iter(await collect(_changes(blobs, hub, report)))
            while some := [*islice(changes, _TOGETHER)]:
                puts = (_put(blobs, hub, name, values) for name, values in some)
                # All are waited for, also if one fails.
                for result in await asyncio.gather(*puts, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
    except BlobRefusedError as error:
        if error.refusal is Refusal.QUOTA_EXCEEDED:
            raise QuotaExceededError(str(error)) from error
        if error.refusal is Refusal.SERVER_BUSY:
            raise ServerBusyError(str(error), retry_after_s=error.retry_after_s) from error
        raise


async def _create_container(blobs: BlobStore, account_id: str) -> None:
    try:
        blobs.container(account_id, REPORTS)
    except BlobRefusedError:
        try:
            await blobs.create_container(account_id, REPORTS, {})
        except BlobRefusedError as error:
            if error.refusal is not Refusal.CONTAINER_EXISTS:  # created by another report meanwhile
                raise


async def _put(blobs: BlobStore, hub: IndexedHub, name: str, metadata: Mapping[str, str]) -> None:
    await blobs.put(hub.hub_id, REPORTS, name, NO_CONDITIONS, lease_id=None, content=b"", metadata=metadata)


def _changes(blobs: BlobStore, hub: IndexedHub, report: ConsumerReport) -> Iterator[Change | None]:
    """What is to be written; each partition is a step."""
    for shown in blobs.groups.of_hub(hub, is_newest_only=True):
        if shown.container == REPORTS or shown.account_id == DEVELOPMENT_ACCOUNT_ID:
            continue  # the key of that account is public: what it keeps does not silence hosts
        if shown.moved_at_ms > blobs.now_ms() - _SHOWN_MS:
            return
    owner = report.owner.encode("unicode_escape").decode("ascii")[:OWNER_CHARACTERS_MAX]
    claimed, released = {"ownerid": owner}, {"ownerid": ""}
    renewed_after_ms = blobs.now_ms() - _RENEWED_EACH_MS
    for partition_id in report.released:
        yield None
        name, kept = _kept(blobs, hub, report, RecordKind.OWNERSHIP, partition_id)
        if kept is not None and kept.metadata == claimed:
            yield name, released
            yield from _moved(blobs, hub, report, partition_id)
    for partition_id in report.sequence_numbers:
        yield None
        if partition_id in report.released:
            continue
        name, kept = _kept(blobs, hub, report, RecordKind.OWNERSHIP, partition_id)
        if kept is None or kept.metadata != claimed or kept.modified_at_ms < renewed_after_ms:
            yield name, claimed
        yield from _moved(blobs, hub, report, partition_id)


def _moved(blobs: BlobStore, hub: IndexedHub, report: ConsumerReport, partition_id: str) -> Iterator[Change]:
    """The checkpoint of a partition, if one is reported and it has changed."""
    number = report.sequence_numbers.get(partition_id)
    if number is not None:
        checkpoint = {"sequencenumber": str(number)}
        name, kept = _kept(blobs, hub, report, RecordKind.CHECKPOINT, partition_id)
        if kept is None or kept.metadata != checkpoint:
            yield name, checkpoint


def _kept(
    blobs: BlobStore, hub: IndexedHub, report: ConsumerReport, kind: RecordKind, partition_id: str
) -> tuple[str, Blob | None]:
    name = RecordName(report.namespace, hub.name, report.consumer_group, kind, partition_id).text
    return name, blobs.find(hub.hub_id, REPORTS, name)

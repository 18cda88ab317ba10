"""Leases and checkpoints in Azure Blob Storage, in the layout of the official processors.

    store = BlobStore.from_connection_string(connection_string, "checkpoints")

Tidegate's hosts can thus share a consumer group with .NET, Java, JavaScript and Python processors. Needs the
extra ``azure``. The layout, with names in lower case and all blobs empty:

    {namespace}/{hub}/{group}/ownership/{partition}     metadata: ownerid, and ours: requestedby
    {namespace}/{hub}/{group}/checkpoint/{partition}    metadata: offset, sequencenumber,
                                                        and ours: tidegate_history
    {namespace}/{hub}/{group}/request/{partition}       ours; metadata: ownerid, requestedby
    tidegate.names/{id}/{hub}/{group}                   ours; metadata: namespace, as in the other names

A lease's version is its blob's ETag, its time of renewal Last-Modified, in seconds; all times are the
service's. A released lease has an empty ownerid. There are no epochs, and no time of acquisition. Source:
azure-eventhub-checkpointstoreblob-aio 1.2.0 with Azurite 3.35, 2026-11.

A request for a lease is a blob beside it, because official processors do not read it and the lease keeps its
ETag. An owner that knows requests has the name ``requestedby`` in its metadata, empty until the lease is
released to the host that asked. Official processors replace all metadata, and thus show that they do not.

By default, official processors renew a lease every 30 s (Python: up to 36 s) and treat it as expired after 2
minutes (.NET) or 3 (Python): hosts that share their group need a ``lease_duration_s`` of about 120, not 30.

They write checkpoints unconditionally, and so may move them backwards. Tidegate's hosts only move them
forward: a write is conditional on the ETag last seen, which costs one request, as theirs does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from tidegate.extras import not_installed
from tidegate.model.errors import ClosedError, InvalidArgumentError, StoreError, StoreUnavailableError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import NAMES_SUFFIX, GroupKey, Lease, LeaseSnapshot
from tidegate.processor.stores.blob_names import (
    chosen_name,
    is_same_machine,
    warn_of_others,
    without_port,
)

try:
    from azure.core import MatchConditions
    from azure.core.exceptions import (
        AzureError,
        HttpResponseError,
        ResourceExistsError,
        ResourceModifiedError,
        ResourceNotFoundError,
    )
    from azure.core.pipeline import PipelineResponse
    from azure.storage.blob import BlobProperties
    from azure.storage.blob.aio import BlobClient, ContainerClient, ExponentialRetry
except ModuleNotFoundError as error:
    raise not_installed(error, "The blob store of the Event Processor Host", "azure") from error

_REQUESTS_AT_ONCE: Final = 16
_ATTEMPTS_MAX: Final = 20
"""Attempts at one checkpoint while other hosts move it; normally at most two hosts do, for a moment."""
_TIMEOUT_S: Final = 10
"""Time-out of connections and responses: a lease must not expire while a request waits (our choice)."""
_BUSY: Final = (408, 429)
_NAMES: Final = "tidegate.names"
_NAME: Final = "namespace"
_START: Final = "-1"
"""The offset before the first event, as official processors write it."""


class BlobStore:
    """A ``ProcessorStore`` without epochs, in an existing blob container."""

    has_epochs: bool = False
    """Receivers need owner level 0, as those of official processors."""

    def __init__(
        self, container_client: ContainerClient, *, fully_qualified_namespace: str | None = None
    ) -> None:
        """container_client: has its own retries and time-outs; the caller closes it.

        fully_qualified_namespace: as in the blob names of the group's official processors. None: the name
        under which the group is in the container already, with any port, or any name if both are of this
        machine; and else that of the connection string, with the port if it gives one, as the official
        packages for Python and Go name it (JavaScript's leaves the port out; on Azure there is none). Hosts
        of one namespace agree on it, whatever their connection strings. Official processors always use their
        own: those that come later must have the same host and port, or a warning is logged at the next start.
        """
        self._container = container_client
        self._is_container_owned = False
        self._is_closed = False
        self._namespace = fully_qualified_namespace
        self._names: dict[GroupKey, str] = {}
        """The names of namespaces in blobs' names, by group."""
        self._naming = asyncio.Lock()
        self._slots = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        self._known: dict[str, _KnownCheckpoint] = {}
        self._requested: set[str] = set()
        """Names of blobs with requests that this store has seen."""

    @classmethod
    def from_connection_string(
        cls, connection_string: str, container: str, *, fully_qualified_namespace: str | None = None
    ) -> Self:
        """A store for the storage account's connection string and the container's name."""
        try:
            client = ContainerClient.from_connection_string(
                connection_string, container, **_transport_options()
            )
        except ValueError as exc:
            raise InvalidArgumentError(f"Invalid connection string of a storage account: {exc}") from exc
        return cls._owning(client, fully_qualified_namespace)

    @classmethod
    def from_container_url(cls, url: str, *, fully_qualified_namespace: str | None = None) -> Self:
        """A store for the container's URL, which contains a shared access signature."""
        try:
            client = ContainerClient.from_container_url(url, **_transport_options())
        except ValueError:
            # Azure's message and its cause would contain the URL, and so its signature.
            raise InvalidArgumentError(
                "Invalid URL of a blob container.",
                next_step="Write https://ACCOUNT.blob.core.windows.net/CONTAINER?SIGNATURE.",
            ) from None
        return cls._owning(client, fully_qualified_namespace)

    @classmethod
    def _owning(cls, client: ContainerClient, fully_qualified_namespace: str | None) -> Self:
        store = cls(client, fully_qualified_namespace=fully_qualified_namespace)
        store._is_container_owned = True
        return store

    def __repr__(self) -> str:
        return f"<BlobStore {self._container.account_name}/{self._container.container_name}>"

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the Date of the service's response."""
        leases: dict[str, Lease] = {}
        clock = _ServiceClock()
        # Requests first, so that none is seen with a lease that is older.
        requests = {_last_name(blob): blob async for blob in self._list(group, "request", clock)}
        prefix = await self._prefix(group, "request")
        self._requested |= {prefix + partition_id.lower() for partition_id in requests}
        async for blob in self._list(group, "ownership", clock):
            partition_id = _last_name(blob)
            metadata = _metadata(blob)
            lease = _lease(partition_id, metadata, str(blob.etag), blob.last_modified)
            leases[partition_id] = _with_request(lease, requests.get(partition_id))
        if clock.now is None:
            raise StoreError(
                f"The answer of {self._where} has no Date header, so leases cannot be checked for expiry."
            )
        return LeaseSnapshot(leases, max([clock.now, *(lease.renewed_at for lease in leases.values())]))

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """See ``LeaseManager``. None, although ``owner`` has it now, if a response was lost and retried."""
        lease = await self._claim(group, partition_id, {"ownerid": owner, "requestedby": ""}, expected)
        name = await self._name(group, "request", partition_id)
        if lease is not None and name in self._requested:
            self._requested.discard(name)
            # Else it would count again if the former owner got the partition back, at the cost of a move.
            with contextlib.suppress(StoreError):
                await self._delete(name)
        return lease

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        """See ``LeaseManager``. The request names the owner, and counts only for that."""
        if not lease.owner or lease.requested_by is None:
            return
        blob = self._container.get_blob_client(await self._name(group, "request", lease.partition_id))
        metadata = {"ownerid": lease.owner, "requestedby": requester}
        async with self._slots:
            with self._translated_errors():
                await blob.upload_blob(b"", overwrite=True, metadata=metadata)

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """See ``LeaseManager``; one request for each lease, some at a time."""
        claims = [
            self._claim(group, lease.partition_id, {"ownerid": lease.owner, "requestedby": ""}, lease)
            for lease in leases
            if lease.owner
        ]
        renewed = {lease.partition_id: lease for lease in await _gather(claims) if lease is not None}
        # Requests stay, as they are in other blobs.
        return {
            old.partition_id: replace(
                renewed[old.partition_id], requested_by=old.requested_by, requested_at=old.requested_at
            )
            for old in leases
            if old.partition_id in renewed
        }

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """See ``LeaseManager``; one request for each lease, some at a time."""
        await _gather(
            [
                self._claim(
                    group, each.partition_id, {"ownerid": "", "requestedby": each.requested_by or ""}, each
                )
                for each in leases
            ]
        )

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        """The lease's epoch: official processors' checkpoints have none."""
        return lease.epoch

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        """The group's checkpoints by partition id, without enqueued times. Raises StoreError."""
        return {
            _last_name(blob): self._parse_checkpoint(blob)
            async for blob in self._list(group, "checkpoint", _ServiceClock())
        }

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        """Move a checkpoint; see ``CheckpointManager``, and this module's docstring on official processors.

        One request, if no other process has moved it. Never fenced, as there are no epochs.
        Raises InvalidArgumentError if the offset or the sequence number is unknown: official processors need
        both (-1 needs no offset).
        """
        metadata = _checkpoint_metadata(checkpoint)
        name = await self._name(group, "checkpoint", checkpoint.partition_id)
        known = self._known.setdefault(name, _KnownCheckpoint())
        async with known.lock:
            for _ in range(_ATTEMPTS_MAX):
                if known.checkpoint is None or checkpoint.is_behind(known.checkpoint):
                    # It may have been moved backwards since it was read.
                    await self._read_checkpoint(name, known)
                current = known.checkpoint
                if current is not None and not is_rewind_allowed and checkpoint.is_behind(current):
                    return
                version = await self._write(name, metadata, known.version)
                if version is not None:
                    known.checkpoint, known.version = checkpoint, version[0]
                    return
                known.checkpoint = known.version = None
        raise StoreUnavailableError(
            f"The checkpoint {name} was moved by other processors in each of {_ATTEMPTS_MAX} attempts.",
            next_step="Check which processors share this consumer group.",
        )

    async def groups_of(self, event_hub: str) -> list[GroupKey]:
        """The groups of a hub of this name that have a lease or a checkpoint here, under all names of
        namespaces. Raises StoreError."""
        found: list[GroupKey] = []
        with self._translated_errors():
            async for namespace in self._container.walk_blobs(delimiter="/"):
                if namespace.name != f"{_NAMES}/":
                    prefix = f"{namespace.name}{event_hub.lower()}/"
                    async for group in self._container.walk_blobs(prefix, delimiter="/"):
                        names = group.name.rstrip("/").rsplit("/", 2)
                        if not names[-1].endswith(NAMES_SUFFIX):
                            found.append(GroupKey(*names))
        return found

    async def close(self) -> None:
        """Close the store's own connections; other methods then raise ClosedError. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_container_owned:
            await self._container.close()

    @property
    def _where(self) -> str:
        return f"the blob container {self._container.container_name}"

    async def _prefix(self, group: GroupKey, kind: str) -> str:
        namespace = self._namespace or await self._namespace_of(group)
        return f"{namespace}/{group.event_hub}/{group.consumer_group}/{kind}/".lower()

    async def _name(self, group: GroupKey, kind: str, partition_id: str) -> str:
        return await self._prefix(group, kind) + partition_id.lower()

    async def _namespace_of(self, group: GroupKey) -> str:
        """The name of the namespace in the names of the group's blobs: the same for all hosts."""
        async with self._naming:
            if group not in self._names:
                self._names[group] = await self._agree_on_name(group)
            return self._names[group]

    async def _agree_on_name(self, group: GroupKey) -> str:
        used = await self._used_names(group)
        name = chosen_name(group, used)
        if group.namespace in (group.authority, without_port(group.authority)):
            return name  # it has no id by which hosts could agree
        place = f"{_NAMES}/{group.namespace}/{group.event_hub}/{group.consumer_group}"
        blob = self._container.get_blob_client(place)
        async with self._slots:
            with contextlib.suppress(_RefusedError), self._translated_errors():
                await blob.upload_blob(b"", overwrite=False, metadata={_NAME: name})
                return name
            with contextlib.suppress(_RefusedError), self._translated_errors():
                agreed = _metadata(await blob.get_blob_properties()).get(_NAME)
                if not agreed:
                    raise StoreError(
                        f"The blob {place} in {self._where} names no namespace.",
                        next_step="Delete it: the hosts of the group then agree on a name again.",
                    )
                warn_of_others(group, agreed, used)
                return agreed
        raise StoreUnavailableError(f"The blob {place} in {self._where} appeared, and is not there.")

    async def _used_names(self, group: GroupKey) -> dict[str, datetime]:
        """The names of this machine under which the group has blobs, and when each was last used."""
        used: dict[str, datetime] = {}
        suffix = f"/{group.event_hub}/{group.consumer_group}"
        with self._translated_errors():
            names = [each.name.rstrip("/") async for each in self._container.walk_blobs(delimiter="/")]
            for name in names:
                if name != _NAMES and is_same_machine(name, group.authority):
                    prefix = f"{name}{suffix}/"
                    async for blob in self._container.list_blobs(name_starts_with=prefix):
                        used[name] = max(used.get(name, blob.last_modified), blob.last_modified)
            if used:
                agreements = self._container.list_blobs(name_starts_with=f"{_NAMES}/", include=["metadata"])
                async for blob in agreements:
                    is_others = (
                        blob.name.endswith(suffix) and blob.name != f"{_NAMES}/{group.namespace}{suffix}"
                    )
                    taken = _metadata(blob).get(_NAME, "")
                    if is_others and taken not in (group.authority, without_port(group.authority)):
                        used.pop(taken, None)
        return used

    async def _list(self, group: GroupKey, kind: str, clock: _ServiceClock) -> AsyncIterator[BlobProperties]:
        prefix = await self._prefix(group, kind)
        with self._translated_errors():
            blobs = self._container.list_blobs(
                name_starts_with=prefix, include=["metadata"], raw_response_hook=clock.hear
            )
            async for blob in blobs:
                yield blob

    async def _claim(
        self, group: GroupKey, partition_id: str, metadata: dict[str, str], expected: Lease | None
    ) -> Lease | None:
        """Write a lease if it is as expected; None if it is not."""
        name = await self._name(group, "ownership", partition_id)
        version = None if expected is None else expected.version
        written = await self._write(name, metadata, version)
        return None if written is None else _lease(partition_id, metadata, *written)

    async def _delete(self, name: str) -> None:
        async with self._slots:
            with contextlib.suppress(_RefusedError), self._translated_errors():
                await self._container.get_blob_client(name).delete_blob()

    async def _write(
        self, name: str, metadata: dict[str, str], version: str | None
    ) -> tuple[str, datetime] | None:
        """Set a blob's metadata if it still has that version (None: if the blob does not exist).

        Returns its new version and time; None if it has changed.
        """
        blob = self._container.get_blob_client(name)
        async with self._slots:
            try:
                with self._translated_errors():
                    return await _send(blob, metadata, version)
            except _RefusedError:
                return None

    async def _read_checkpoint(self, name: str, known: _KnownCheckpoint) -> None:
        """Read the stored checkpoint, if there is one."""
        async with self._slots:
            try:
                with self._translated_errors():
                    blob = await self._container.get_blob_client(name).get_blob_properties()
            except _RefusedError:
                known.checkpoint = known.version = None
            else:
                known.checkpoint, known.version = self._parse_checkpoint(blob), _version(str(blob.etag))

    def _parse_checkpoint(self, blob: BlobProperties) -> ProcessorCheckpoint:
        metadata = _metadata(blob)
        offset = metadata.get("offset") or None
        number = metadata.get("sequencenumber") or None
        try:
            sequence_number = None if number is None else int(number)
        except ValueError:
            sequence_number = offset = None
        if sequence_number is None and offset is None:
            raise StoreError(
                f"The blob {blob.name} in {self._where} holds no checkpoint: its metadata is {metadata}.",
                next_step="Delete the blob: the partition then starts at the initial position, or where its "
                "checkpoint is set.",
            )
        return ProcessorCheckpoint(
            _last_name(blob), sequence_number, offset, history_id=metadata.get("tidegate_history")
        )

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate Azure's errors; a failed condition of the request raises _RefusedError."""
        if self._is_closed:
            raise ClosedError(f"The store in {self._where} is closed.")
        try:
            yield
        except (ResourceModifiedError, ResourceExistsError, ResourceNotFoundError) as exc:
            if getattr(exc, "error_code", None) == "ContainerNotFound":
                raise StoreError(
                    f"There is no {self._where.removeprefix('the ')} in {self._container.account_name}.",
                    next_step="Create it: processors do not create containers.",
                ) from exc
            raise _RefusedError from exc
        except HttpResponseError as exc:
            status = exc.status_code or 0
            words = f"The service refused a request to {self._where}: {status} {exc.reason}."
            if status in _BUSY or status >= 500:
                raise StoreUnavailableError(words) from exc
            raise StoreError(words, next_step="Check the credentials and their permissions.") from exc
        except AzureError as exc:
            raise StoreUnavailableError(
                f"The service of {self._where} did not answer: {exc.message}."
            ) from exc


class _RefusedError(Exception):
    """A blob has changed since it was read."""


@dataclass(slots=True)
class _KnownCheckpoint:
    """A checkpoint as this store last read or wrote it."""

    checkpoint: ProcessorCheckpoint | None = None
    version: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during an update: of two concurrent ones, one would be refused."""


class _ServiceClock:
    """The service's time, taken from its responses."""

    def __init__(self) -> None:
        self.now: datetime | None = None

    def hear(self, response: PipelineResponse[Any, Any]) -> None:
        """Note the Date of a response."""
        text = response.http_response.headers.get("Date")
        if text is not None:
            self.now = parsedate_to_datetime(text).astimezone(UTC)


async def _send(blob: BlobClient, metadata: dict[str, str], version: str | None) -> tuple[str, datetime]:
    if version is None:
        answer = await blob.upload_blob(b"", overwrite=False, metadata=metadata)
    else:
        answer = await blob.set_blob_metadata(
            metadata, etag=f'"{version}"', match_condition=MatchConditions.IfNotModified
        )
    time = answer["last_modified"]
    assert isinstance(time, datetime)
    return _version(str(answer["etag"])), time


async def _gather(claims: Sequence[Coroutine[object, object, Lease | None]]) -> list[Lease | None]:
    """All results; after a failure the others still end, so that none continues unseen."""
    results = await asyncio.gather(*claims, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _lease(partition_id: str, metadata: Mapping[str, str], etag: str, renewed_at: datetime) -> Lease:
    owner, requested_by = metadata.get("ownerid", ""), metadata.get("requestedby")
    return Lease(partition_id, owner, 0, None, renewed_at.astimezone(UTC), _version(etag), requested_by)


def _with_request(lease: Lease, request: BlobProperties | None) -> Lease:
    """A lease with the request for it; one to an earlier owner does not count."""
    if request is None or lease.requested_by is None:
        return lease
    metadata = _metadata(request)
    if not lease.owner or metadata.get("ownerid") != lease.owner:
        return lease
    requested_at = request.last_modified.astimezone(UTC)
    return replace(lease, requested_by=metadata.get("requestedby", ""), requested_at=requested_at)


def _version(etag: str) -> str:
    """An ETag without quotes, which headers have and listings may omit."""
    return etag.strip('"')


def _metadata(blob: BlobProperties) -> dict[str, str]:
    """Metadata with lower-case names, as they are compared; listings may return empty values as None."""
    return {str(name).lower(): str(value or "") for name, value in (blob.metadata or {}).items()}


def _last_name(blob: BlobProperties) -> str:
    return str(blob.name).rpartition("/")[2]


def _checkpoint_metadata(checkpoint: ProcessorCheckpoint) -> dict[str, str]:
    number, offset = checkpoint.sequence_number, checkpoint.offset
    if offset is None and number == -1:
        offset = _START
    if offset is None or number is None:
        raise InvalidArgumentError(
            f"The checkpoint of partition {checkpoint.partition_id} needs an offset and a sequence number, "
            f"because official processors need both; it has {offset!r} and {number!r}."
        )
    metadata = {"offset": offset, "sequencenumber": str(number)}
    # Official processors replace all metadata: a history is never left with another's number.
    return (
        metadata if checkpoint.history_id is None else {**metadata, "tidegate_history": checkpoint.history_id}
    )


def _transport_options() -> dict[str, Any]:
    """Options with short retry waits: the default's first wait is as long as half a lease."""
    retry = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=2, random_jitter_range=1)
    return {"retry_policy": retry, "connection_timeout": _TIMEOUT_S, "read_timeout": _TIMEOUT_S}

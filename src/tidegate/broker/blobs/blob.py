"""A blob and a container as values: what the control log holds of them, and the conditions of requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from tidegate.broker.blobs.lease import Lease, StoredLease
from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal
from tidegate.model.errors import LATER_VERSION, LogCorruptError
from tidegate.model.times import time_of
from tidegate.model.validation import from_json

T = TypeVar("T")

_ETAG_BYTES: Final = 8
_BLOB_BYTES: Final = 900
_LEASE_BYTES: Final = 400
_CONTAINER_BYTES: Final = 2000
_METADATA_BYTES: Final = 138
"""Objects and places in tables in the store and in the control log, besides strings: of a blob, its lease, a
container, and a name of metadata with its value (CPython 3.11, measured by a test)."""

CONTENT_TYPE_DEFAULT: Final = "application/octet-stream"


def new_etag() -> str:
    """An ETag, without quotes; random, so that it is never repeated."""
    return f"0x{secrets.token_hex(_ETAG_BYTES).upper()}"


class Blob(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A blob; each change makes another."""

    name: str
    etag: str
    created_at_ms: int
    modified_at_ms: int
    """Milliseconds since 1970-01-01 UTC; changes of the lease do not count."""
    metadata: Mapping[str, str] = {}
    """By name as spelled."""
    content: bytes = b""
    content_type: str = CONTENT_TYPE_DEFAULT
    stored_lease: StoredLease | None = None

    @property
    def listed_bytes(self) -> int:
        """Its name and metadata."""
        return len(self.name.encode()) + sum(len(name) + len(value) for name, value in self.metadata.items())

    @property
    def held_bytes(self) -> int:
        """What it takes in memory at most: in the store, and as key and value in the control log."""
        return (
            _BLOB_BYTES
            + (0 if self.stored_lease is None else _LEASE_BYTES)
            + 2 * text_bytes(self.name)
            + len(self.content)
            + len(self.content_type)
            + _metadata_bytes(self.metadata)
            + len(msgspec.json.encode(self))
        )


class Container(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A container's record."""

    container_id: str
    """In the keys of its blobs: a container of the same name has another one later."""
    name: str
    etag: str
    created_at_ms: int
    metadata: Mapping[str, str] = {}

    @property
    def held_bytes(self) -> int:
        """As of a blob."""
        return _CONTAINER_BYTES + _metadata_bytes(self.metadata) + len(msgspec.json.encode(self))


def text_bytes(text: str) -> int:
    """What a string takes in memory at most: up to 4 bytes a character, and as many for its UTF-8."""
    return 56 + len(text) if text.isascii() else 80 + 8 * len(text)


def encoded(value: Blob | Container) -> bytes:
    """A value of the control log."""
    # A copy: what msgspec returns has up to half of its length in reserve, and would be held as it is.
    return bytes(memoryview(msgspec.json.encode(value)))


def parse_blob(value: bytes, place: str) -> Blob:
    """A blob from a value of the control log. Raises LogCorruptError."""
    return _parse(value, Blob, place)


def parse_container(value: bytes, place: str) -> Container:
    """A container from a value of the control log. Raises LogCorruptError."""
    return _parse(value, Container, place)


def _metadata_bytes(metadata: Mapping[str, str]) -> int:
    return sum(_METADATA_BYTES + len(name) + len(value) for name, value in metadata.items())


def _parse(value: bytes, kind: type[T], place: str) -> T:
    try:
        return from_json(value, kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise LogCorruptError(
            f"Cannot parse the checkpoints in {place}: {error}.",
            next_step=LATER_VERSION,
        ) from error


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must hold of a blob for a request to be served. None: no such condition."""

    if_match: str | None = None
    """An ETag without quotes, or ``*``: any blob."""
    if_none_match: str | None = None
    """An ETag without quotes, or ``*``: no blob."""
    if_modified_since: datetime | None = None
    if_unmodified_since: datetime | None = None

    def check_change(self, etag: str | None, modified_at_ms: int) -> None:
        """Raise BlobRefusedError unless a blob with this ETag may be changed. etag: None: there is none."""
        if etag is None:
            if self.if_match is not None:
                raise BlobRefusedError(Refusal.CONDITION_NOT_MET)
            return
        if self.if_none_match == "*":
            raise BlobRefusedError(Refusal.BLOB_EXISTS)
        if not self._holds(etag, modified_at_ms) or not self._is_other(etag, modified_at_ms):
            raise BlobRefusedError(Refusal.CONDITION_NOT_MET)

    def check_read(self, etag: str, modified_at_ms: int) -> None:
        """Raise BlobRefusedError unless a blob with this ETag is wanted."""
        if not self._holds(etag, modified_at_ms):
            raise BlobRefusedError(Refusal.CONDITION_NOT_MET)
        if not self._is_other(etag, modified_at_ms):
            raise BlobRefusedError(Refusal.NOT_MODIFIED)

    def _holds(self, etag: str, modified_at_ms: int) -> bool:
        time = _seconds(modified_at_ms)
        return self.if_match in (None, "*", etag) and (
            self.if_unmodified_since is None or time <= self.if_unmodified_since
        )

    def _is_other(self, etag: str, modified_at_ms: int) -> bool:
        time = _seconds(modified_at_ms)
        return self.if_none_match not in ("*", etag) and (
            self.if_modified_since is None or time > self.if_modified_since
        )


NO_CONDITIONS: Final = Conditions()


@dataclass(frozen=True, slots=True)
class Held:
    """A blob with its lease as of now."""

    blob: Blob
    lease: Lease | None = None


def _seconds(time_ms: int) -> datetime:
    """As headers have it: without fractions."""
    return time_of(time_ms).replace(microsecond=0)

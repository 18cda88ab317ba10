"""Which home is in which blob of pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from examples.home_security.page_files import MalformedPagesError, homes_of
from examples.home_security.summaries import Blob, SummaryStore

BLOB_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest blob to read: 32 blocks of 1,500,000 homes stay below two fifths of it."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Index:
    """Which home is in which blob."""

    blobs: Mapping[str, Blob] = field(default_factory=dict)
    """As last listed, by path, in the order of writing: if two have a home, the later one counts."""
    homes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The homes in each blob, by path, when it was last read and well-formed."""
    path_of: Mapping[str, str] = field(default_factory=dict)
    """By home."""
    names: tuple[str, ...] = ()
    """All homes, sorted."""
    malformed: tuple[str, ...] = ()
    """Paths of malformed blobs."""


def updated_index(before: Index, store: SummaryStore) -> Index:
    """List the blobs, and read the names in those that have changed or were malformed.

    Raises what the storage raises.
    """
    listed = sorted(store.blobs(), key=lambda blob: blob.written_at or _EARLIEST)
    blobs = {blob.path: blob for blob in listed}
    homes = {path: before.homes[path] for path in blobs if path in before.homes}
    changed = [
        blob
        for blob in listed
        if blob.path in before.malformed or not blob.is_same(before.blobs.get(blob.path))
    ]
    malformed = [blob.path for blob in changed if blob.size > BLOB_BYTES_MAX]
    for blob, content in store.contents([blob for blob in changed if blob.size <= BLOB_BYTES_MAX]):
        try:
            homes[blob.path] = tuple(homes_of(content))
        except MalformedPagesError:
            malformed.append(blob.path)
    if homes == before.homes and len(before.names) == sum(map(len, homes.values())):
        # Only pages changed, and each home is in one blob: the names are as they were.
        return Index(blobs, homes, before.path_of, before.names, tuple(malformed))
    path_of = {home: path for path in blobs for home in homes.get(path, ())}
    return Index(blobs, homes, path_of, tuple(sorted(path_of)), tuple(malformed))

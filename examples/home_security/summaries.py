"""The homes' summaries as blobs, for the residents' pages: a file, or Azure blob, for each block of homes.

    <url>/7-2.json

A blob has the pages of all homes of its block (``page_files``), and a micro-batch replaces those that it
changes. So a micro-batch costs a read and a write per block, not per home: 32 of each, where 200,000 events
change 50,000 pages. Writing the same pages again gives the same bytes, so it is harmless.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from examples.home_security.page_files import (
    FILE_ENDING,
    MalformedPagesError,
    file_name,
    merge_pages,
    pages_of,
)

_BLOBS_PER_READ: Final = 16
_BYTES_PER_READ: Final = 32 * 1024 * 1024
_TEMPORARY: Final = re.compile(rf"{re.escape(FILE_ENDING)}\.[0-9a-f]{{32}}\Z")
"""The end of the name of an incomplete file; readers look for ``FILE_ENDING`` and ignore it."""
_MARKS: Final = ("etag", "ETag", "ino", "mtime", "last_modified", "LastModified")


@dataclass(frozen=True, slots=True)
class Blob:
    """What the storage lists of a blob, without reading it."""

    path: str
    size: int
    written_at: datetime | None
    """None: unknown to the storage."""
    mark: tuple[object, ...]
    """Changes whenever the blob is written. Empty if the storage has no such value."""

    @classmethod
    def of(cls, listed: Mapping[str, Any]) -> Blob:
        """listed: a file system's description of a file, with names of its own."""
        mark = tuple((name, listed[name]) for name in _MARKS if listed.get(name) is not None)
        times = (_time_of(listed.get(name)) for name in ("mtime", "last_modified", "LastModified"))
        return cls(listed["name"], listed.get("size") or 0, next(filter(None, times), None), mark)

    def is_same(self, other: Blob | None) -> bool:
        """Whether the other has the same content."""
        return self == other and bool(self.mark)


class SummaryStore:
    """Where the summaries are stored. Spark's tasks get a copy each, which connects when it first writes.

    A block has one writer at a time: its task, since it is a key of Spark's state. A task that Spark or a new
    driver has abandoned may still write the changes of the same micro-batch, which give the same bytes. The
    trap: if it writes after the next micro-batch has, it restores older pages, each until its home's next
    change. Only pages can become outdated in this way; SQL has its ledger.
    """

    def __init__(self, url: str, **storage_options: str) -> None:
        """url: as fsspec names it. storage_options: the file system's, such as its connection string; secret,
        and can come from the environment instead."""
        self.url = url
        self._storage_options = storage_options

    def __repr__(self) -> str:
        return f"<SummaryStore {self.url}>"

    def write(self, changes: Mapping[str, Mapping[str, bytes]]) -> None:
        """Merge pages into the blobs of their blocks. changes: block → home → page.

        A blob is replaced as a whole: a reader sees the old one or the new one. Raises MalformedPagesError
        for a blob that does not contain pages, and what the file system raises; some blobs may have been
        written by then.

        A malformed blob is not replaced: the pages in it of homes without new events would be silently lost,
        the cause may have damaged other blobs, and it may not be this pipeline's.
        """
        if not changes:
            return
        files, root = self._opened
        paths = {f"{root}/{file_name(block)}": pages for block, pages in changes.items()}
        contents: dict[str, bytes] = {}
        for (path, pages), before in zip(paths.items(), self._read(list(paths)), strict=True):
            with _named(path):
                contents[path] = merge_pages(before, pages)
        if isinstance(files, LocalFileSystem):
            _write_files(root, contents)
        else:
            files.pipe(contents)  # many at a time, each blob as a whole

    def read(self) -> dict[str, bytes]:
        """All pages, by home. Raises MalformedPagesError, also if two blobs have a page of the same home."""
        pages: dict[str, bytes] = {}
        for blob, content in self.contents(self.blobs()):
            with _named(blob.path):
                found = pages_of(content)
            if twice := pages.keys() & found.keys():
                raise MalformedPagesError(
                    f"{blob.path} has a page of {min(twice)[:80]!r}, and so has another blob: pipelines with "
                    "different numbers of blocks wrote them.",
                    next_step="Start again in an empty place.",
                )
            pages |= found
        return pages

    def has_files(self) -> bool:
        """Whether any file has the ending of blobs. None is read."""
        return bool(self.blobs())

    def blobs(self) -> list[Blob]:
        """All blobs, by path."""
        return [Blob.of(each) for each in self._list() if each["name"].endswith(FILE_ENDING)]

    def contents(self, blobs: Sequence[Blob]) -> Iterator[tuple[Blob, bytes]]:
        """Each blob with its content, without those that no longer exist. Reads some at a time."""
        for group in _groups_of(blobs):
            for blob, content in zip(group, self._read([blob.path for blob in group]), strict=True):
                if content is not None:
                    yield blob, content

    def clear(self) -> bool:
        """Delete all blobs, and incomplete ones of killed writers; returns whether there were blobs.

        It does not know whose they are: the caller must. Raises MalformedPagesError, and deletes nothing,
        if another file with the same ending is among them.
        """
        paths: list[str] = []
        for blob, content in self.contents(self.blobs()):
            with _named(blob.path):
                pages_of(content)
            paths.append(blob.path)
        leftovers = [each["name"] for each in self._list() if _TEMPORARY.search(each["name"])]
        for path in (*paths, *leftovers):
            self._opened[0].rm_file(path)
        return bool(paths)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and the location in it."""
        # fsspec's cached listings would hide what other processes write, and it caches instances by thread.
        files, root = fsspec.core.url_to_fs(
            self.url, skip_instance_cache=True, use_listings_cache=False, **self._storage_options
        )
        return files, root.rstrip("/") or root

    def _list(self) -> list[dict[str, Any]]:
        """The description of every file in the location, by path."""
        files, root = self._opened
        try:
            # Not recursively: subfolders may contain anything; listing 100,000 files takes seconds.
            listed = files.ls(root, detail=True)
        except FileNotFoundError:
            return []  # nothing has been written yet
        return sorted((each for each in listed if each["type"] == "file"), key=lambda each: str(each["name"]))

    def _read(self, paths: Sequence[str]) -> list[bytes | None]:
        """The contents of blobs; None for a missing one. Raises the file system's error for any other reason:
        a blob that could not be read must not count as empty, or its pages would be lost."""
        # Not ``cat``: asked to omit missing blobs, it omits any error; for Azure it reads blobs one by one.
        found = self._opened[0].cat_ranges(list(paths), None, None, on_error="return")
        for content in found:
            if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                raise content
        return [content if isinstance(content, bytes) else None for content in found]


def _time_of(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else None


def _groups_of(blobs: Sequence[Blob]) -> Iterator[list[Blob]]:
    """Blobs to read in parallel: few, and not too many bytes together."""
    group: list[Blob] = []
    for blob in blobs:
        size = sum(each.size for each in group) + blob.size
        if group and (len(group) == _BLOBS_PER_READ or size > _BYTES_PER_READ):
            yield group
            group = []
        group.append(blob)
    if group:
        yield group


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add the blob's path and the next step to a MalformedPagesError."""
    try:
        yield
    except MalformedPagesError as error:
        raise MalformedPagesError(
            f"{path} is not a complete file of homes' pages: it was truncated or changed by "
            "something else than the pipeline, or is not its.",
            next_step="Put an earlier version of it back and start again. Without one, delete it: each of "
            "its homes gets a page again at its next change.",
        ) from error


def _write_files(root: str, contents: dict[str, bytes]) -> None:
    """Write each file under another name, then rename it: readers never see an incomplete one.

    It is synced before, since after a power failure an incomplete file would stop the pipeline at the next
    micro-batch. The temporary name is random: two attempts to write a block, on machines that share the
    directory, may have the same process id.
    """
    os.makedirs(root, exist_ok=True)
    for path, content in contents.items():
        temporary = Path(f"{path}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)  # if it was not renamed

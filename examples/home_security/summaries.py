"""The homes' summaries as blobs, for the residents' pages: for each block of homes a file in a directory, or
a blob in Azure.

    <url>/7-2.json

A blob has the pages of all homes of its block (``page_files``), and a micro-batch replaces those that
it changes. So a micro-batch costs a read and a write per block, and not per home: 32 of each, where 200,000
events change 50,000 pages. Writing the same pages twice gives the same bytes, so it does no harm.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""At a time, where all are read."""
_TEMPORARY: Final = re.compile(rf"{re.escape(FILE_ENDING)}\.[0-9a-f]{{32}}\Z")
"""How the name of a file ends that is not whole yet; readers go by ``FILE_ENDING`` and pass it over."""


class SummaryStore:
    """Where the summaries are stored. Spark's tasks get a copy each, which connects when it first writes.

    A block has one writer at a time: its task, as the key of Spark's state. A task that Spark or a new driver
    has given up may still be on its way, with the changes of the same micro-batch, which give the same bytes.
    The trap: one that comes to write only after the next micro-batch has written puts pages of that one back,
    each until its home's next change. Nothing but pages can become old so; SQL has its ledger.
    """

    def __init__(self, url: str, **storage_options: str) -> None:
        """url: as fsspec names it. storage_options: the file system's, such as its connection string; secret,
        and the environment serves as well."""
        self.url = url
        self._storage_options = storage_options

    def __repr__(self) -> str:
        return f"<SummaryStore {self.url}>"

    def write(self, changes: Mapping[str, Mapping[str, bytes]]) -> None:
        """Put pages into the blobs of their blocks. changes: block → home → page.

        A blob is replaced whole: a reader sees the old one or the new one. Raises MalformedPagesError where a
        blob is none of these, and what the file system raises; some blobs may have been written by then.

        Such a blob is not replaced. It holds pages of homes that nothing may happen in for days, and they
        would be silently lost; what broke it may have broken others; and it may not be this pipeline's.
        """
        if not changes:
            return
        files, root = self._open()
        paths = {f"{root}/{file_name(block)}": pages for block, pages in changes.items()}
        contents: dict[str, bytes] = {}
        for (path, pages), before in zip(paths.items(), _read(files, list(paths)), strict=True):
            with _named(path):
                contents[path] = merge_pages(before, pages)
        if isinstance(files, LocalFileSystem):
            _write_files(root, contents)
        else:
            files.pipe(contents)  # many at a time; a blob is put whole

    def read(self) -> dict[str, bytes]:
        """All pages, by home. Raises MalformedPagesError, also where two blobs have a page of one home."""
        files, root = self._open()
        pages: dict[str, bytes] = {}
        for path, content in _all_of(files, root):
            with _named(path):
                found = pages_of(content)
            if twice := pages.keys() & found.keys():
                raise MalformedPagesError(
                    f"{path} has a page of {min(twice)[:80]!r}, and so has another blob: pipelines with "
                    "different numbers of blocks wrote them.",
                    next_step="Start again in an empty place.",
                )
            pages |= found
        return pages

    def has_files(self) -> bool:
        """Whether there is any file with the ending of blobs. None is read."""
        files, root = self._open()
        return any(name.endswith(FILE_ENDING) for name in _names_in(files, root))

    def clear(self) -> bool:
        """Delete all blobs, and what writers that were killed left of them; returns whether there were blobs.

        It does not know whose they are: the caller must. Raises MalformedPagesError, and deletes nothing,
        where a file beside them has the same ending and is not one of them.
        """
        files, root = self._open()
        paths: list[str] = []
        for path, content in _all_of(files, root):
            with _named(path):
                pages_of(content)
            paths.append(path)
        leftovers = [name for name in _names_in(files, root) if _TEMPORARY.search(name)]
        for path in (*paths, *leftovers):
            files.rm_file(path)
        return bool(paths)

    def _open(self) -> tuple[Any, str]:
        # Lists that fsspec kept would hide what other processes write.
        files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **self._storage_options)
        return files, root.rstrip("/")


def _read(files: Any, paths: Sequence[str]) -> list[bytes | None]:
    """Blobs as they are; None: it is not there. Raises what the file system raises for any other reason: a
    blob that could not be read must not be taken for one that is empty, or its pages would be lost."""
    # Not ``cat``: it can only omit all errors, and for Azure it reads one blob after the other.
    found = files.cat_ranges(list(paths), None, None, on_error="return")
    for content in found:
        if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
            raise content
    return [content if isinstance(content, bytes) else None for content in found]


def _names_in(files: Any, root: str) -> list[str]:
    """Paths of all files in the place."""
    try:
        listed = files.ls(root, detail=True)
    except FileNotFoundError:
        return []  # nothing was written yet
    return sorted(entry["name"] for entry in listed if entry["type"] == "file")


def _all_of(files: Any, root: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of each blob, by path."""
    paths = [name for name in _names_in(files, root) if name.endswith(FILE_ENDING)]
    for start in range(0, len(paths), _BLOBS_PER_READ):
        some = paths[start : start + _BLOBS_PER_READ]
        yield from (
            (path, content)
            for path, content in zip(some, _read(files, some), strict=True)
            if content is not None
        )


@contextmanager
def _named(path: str) -> Iterator[None]:
    """MalformedPagesError says which blob it is about, and what to do."""
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
    """Each file is renamed into its place: fsspec would write it there, and a reader could see a half.

    It is synced before: else a power failure could leave a half one, and the next micro-batch would end the
    pipeline over it. Its name until then is its own: of two attempts to write a block, on machines that share
    the directory, each may have the same process number.
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
            temporary.unlink(missing_ok=True)  # where it was not renamed

"""The files of homes' pages below a URL, and the homes in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from examples.home_security.page_files import FILE_ENDING, MalformedPagesError, homes_of

FILE_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest file to read: 32 blocks of 1,500,000 homes stay below two fifths of it."""

_FILES_PER_READ = 8


@dataclass(frozen=True, slots=True)
class Version:
    """What is known of a file without reading it."""

    size: int | None
    written_at: datetime | None
    """None: unknown to the storage."""
    mark: tuple[object, ...]
    """Changes whenever the file is written. Empty if the storage has no such value."""

    def is_same(self, other: Version | None) -> bool:
        """Whether a file with the other version has the same content."""
        return other is not None and self == other and bool(self.mark)


@dataclass(frozen=True, slots=True)
class PagesFile:
    """A file as it was read."""

    content: bytes
    written_at: datetime | None
    """When the pipeline last wrote it; None if the storage does not record it."""


@dataclass(frozen=True, slots=True)
class HomesOfFile:
    """The homes in a file when it was last read."""

    version: Version
    homes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Which home is in which file."""

    files: Mapping[str, HomesOfFile] = field(default_factory=dict)
    """By path."""
    path_of: Mapping[str, str] = field(default_factory=dict)
    """By home."""
    names: tuple[str, ...] = ()
    """All homes, sorted."""
    malformed: tuple[str, ...] = ()
    """Malformed files; their earlier homes are kept."""


class PagesFiles:
    """The files below a URL. Can be used from several threads."""

    def __init__(self, url: str) -> None:
        """url: as fsspec names it; credentials come from the environment, as its library defines."""
        self._url = url
        self._opened: tuple[Any, str] | None = None
        """The file system and the root in it."""
        self._opening = threading.Lock()

    def index(self, before: Index) -> Index:
        """List the files and read those that have changed; returns ``before`` itself if none has.

        Raises what the storage raises.
        """
        versions = self._list()
        changed = [
            path for path, version in versions.items() if not version.is_same(_version_in(before, path))
        ]
        if not changed and not before.malformed and len(versions) == len(before.files):
            return before
        files = dict(before.files)
        malformed: list[str] = []
        for paths in _groups_of(changed, versions):
            for path, content in zip(paths, self._read_many(paths, versions), strict=True):
                if content is None:
                    continue
                try:
                    files[path] = _homes_of_file(versions[path], content, files.get(path))
                except MalformedPagesError:
                    malformed.append(path)
        in_order = {path: files[path] for path in versions if path in files}
        return _index_of(in_order, tuple(malformed), before)

    def read(self, path: str) -> PagesFile | None:
        """A file; None if it does not exist.

        Raises MalformedPagesError if it is too large, and what the storage raises.
        """
        files, _ = self._open()
        try:
            version = _version_of(files.info(path))
            if (version.size or 0) > FILE_BYTES_MAX:
                raise MalformedPagesError(f"The file has more than {FILE_BYTES_MAX:,} bytes.")
            return PagesFile(files.cat_file(path), version.written_at)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def _list(self) -> dict[str, Version]:
        """The files by path, in the order of writing: if two contain a home, the later one counts."""
        files, root = self._open()
        try:
            # Not recursively: subfolders may contain anything; listing 100,000 files takes seconds.
            found = files.ls(root, detail=True)
        except FileNotFoundError:
            return {}  # nothing has been written yet
        # Incomplete files have another ending.
        versions = {
            entry["name"]: _version_of(entry)
            for entry in found
            if entry["type"] == "file" and entry["name"].endswith(FILE_ENDING)
        }
        return dict(sorted(versions.items(), key=lambda item: (item[1].written_at or _EARLIEST, item[0])))

    def _read_many(self, paths: list[str], versions: Mapping[str, Version]) -> list[bytes | None]:
        """The contents of files, in parallel if possible; None for one that is gone. One that is too large is
        empty here, which is malformed."""
        files, _ = self._open()
        small = [path for path in paths if (versions[path].size or 0) <= FILE_BYTES_MAX]
        contents: dict[str, bytes | None] = dict.fromkeys(paths, b"")
        for path, content in zip(small, files.cat_ranges(small, None, None, on_error="return"), strict=True):
            if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                raise content
            contents[path] = content if isinstance(content, bytes) else None
        return [contents[path] for path in paths]

    def _open(self) -> tuple[Any, str]:
        with self._opening:
            if self._opened is None:
                from fsspec.core import url_to_fs

                # fsspec's cached listings would hide what the pipeline writes.
                files, root = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
                self._opened = files, root.rstrip("/") or root
            return self._opened


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_MARKS: Final = ("etag", "ETag", "ino", "mtime", "last_modified", "LastModified")


def _version_in(index: Index, path: str) -> Version | None:
    known = index.files.get(path)
    return None if known is None else known.version


def _groups_of(paths: list[str], versions: Mapping[str, Version]) -> Iterator[list[str]]:
    """Files to read in parallel: few, and together no larger than one may be."""
    group: list[str] = []
    size = 0
    for path in paths:
        mine = versions[path].size or 0
        if group and (len(group) == _FILES_PER_READ or size + mine > FILE_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(path)
        size += mine
    if group:
        yield group


def _version_of(found: Mapping[str, Any]) -> Version:
    """found: a file system's description of a file, with names of its own."""
    mark = tuple((name, found[name]) for name in _MARKS if found.get(name) is not None)
    return Version(found.get("size"), _time_of(found), mark)


def _time_of(found: Mapping[str, Any]) -> datetime | None:
    for key in ("mtime", "last_modified", "LastModified"):
        value = found.get(key)
        if isinstance(value, datetime):
            return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
    return None


def _homes_of_file(version: Version, content: bytes, before: HomesOfFile | None) -> HomesOfFile:
    homes = tuple(homes_of(content))
    return HomesOfFile(version, before.homes if before is not None and before.homes == homes else homes)


def _index_of(files: Mapping[str, HomesOfFile], malformed: tuple[str, ...], before: Index) -> Index:
    """The index of files. If all have the same homes as before, as when only pages changed, the names are not
    merged again."""
    is_same = files.keys() == before.files.keys() and all(
        known.homes is before.files[path].homes for path, known in files.items()
    )
    if is_same and len(before.names) == sum(len(known.homes) for known in files.values()):
        return replace(before, files=files, malformed=malformed)
    path_of = {home: path for path, known in files.items() for home in known.homes}
    return Index(files, path_of, tuple(sorted(path_of)), malformed)

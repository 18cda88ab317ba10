"""Where capture files lie: listing them and opening them, on this machine or wherever fsspec reaches.

Everything blocks. Whatever a file system raises becomes a CaptureFileError with the place and no secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.spark.capture.container import CaptureFileError
from tidegate.spark.capture.names import CaptureFile, NameFormat, check_one_hub
from tidegate.spark.capture.options import CaptureOptions
from tidegate.wire.capture import FILE_SUFFIX

_READ_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Our choice: a remote file is asked for in pieces of this size."""
_CONNECTIONS_MAX: Final = 8
_HUBS_SHOWN_MAX: Final = 10
"""Our choice: what an error names of the event hubs at a place."""


class CaptureStorageError(CaptureFileError):
    """The place where capture files lie could not be reached."""

    is_transient = True


class CaptureFiles(Protocol):
    """The files below a path."""

    def list(self, folder: str) -> list[tuple[str, int]]:
        """(name below the path, size in bytes) of every Avro file below ``folder`` (empty: everywhere)."""
        ...

    def open(self, name: str) -> BinaryIO:
        """The file of that name, at its beginning."""
        ...


def open_capture_files(options: CaptureOptions) -> CaptureFiles:
    """The files below the options' path. Raises CaptureStorageError where no library knows its scheme."""
    parts = urlsplit(options.path)
    if "://" not in options.path:
        return _DirectoryFiles(Path(options.path))
    if parts.scheme == "file":
        return _DirectoryFiles(Path(unquote(parts.path)))
    return _fsspec_files(options)


def list_capture_files(
    files: CaptureFiles, options: CaptureOptions, *, event_hub: str | None = None
) -> list[CaptureFile]:
    """The capture files of the one event hub that the options choose, by partition and time.

    event_hub: to be taken where they choose none, in any case of its letters; None: the only one there is.

    Raises InvalidArgumentError where an Avro file is not named as they say, or where several hubs remain.
    """
    names = options.names()
    found: list[CaptureFile] = []
    for name, size_bytes in files.list(names.folder):
        try:
            file = names.parse(name, size_bytes)
        except InvalidArgumentError:
            if options.is_bad_file_skipped:
                continue
            raise
        if file is not None and (
            event_hub is None or options.event_hub or file.event_hub.lower() == event_hub.lower()
        ):
            found.append(file)
    check_one_hub(found)
    return sorted(found, key=lambda file: (int(file.partition_id), file.time_s, file.name))


def list_chosen_files(files: CaptureFiles, options: CaptureOptions) -> list[CaptureFile]:
    """The same, where the options' event hub and partitions have none: an error that names those that have.

    A misspelt name would look like a hub without events. No file at all is no error: Capture may not have
    written yet. Raises InvalidArgumentError.
    """
    found = list_capture_files(files, options)
    if not found:
        _check_hub_is_there(files, options)
    ids = options.partition_ids
    if found and ids is not None and not any(file.partition_id in ids for file in found):
        wanted = ", ".join(sorted(ids, key=int))
        there = dict.fromkeys(file.partition_id for file in found)
        raise InvalidArgumentError(
            f"There is nothing of the partition {wanted} of the event hub {found[0].event_hub!r} at "
            f"{options.path}.",
            next_step=f"Correct the option partitions: there are files of {', '.join(there)}.",
        )
    return found


def _check_hub_is_there(files: CaptureFiles, options: CaptureOptions) -> None:
    """Raise InvalidArgumentError where there are files, and all are of other hubs than the options name."""
    any_hub = NameFormat(options.name_format)
    hubs: set[str] = set()
    for name, size_bytes in files.list(options.names().folder):
        try:
            file = any_hub.parse(name, size_bytes)
        except InvalidArgumentError:
            continue  # a bad file, and to be skipped: else it was refused before
        if file is not None:
            hubs.add(f"{file.namespace}/{file.event_hub}")
    if hubs:
        named = {"namespace": options.namespace, "eventHubName": options.event_hub}
        given = {option: value for option, value in named.items() if value is not None}
        more = f" and {len(hubs) - _HUBS_SHOWN_MAX} more" if len(hubs) > _HUBS_SHOWN_MAX else ""
        raise InvalidArgumentError(
            f"There is nothing of the event hub {'/'.join(given.values())} at {options.path}.",
            next_step=f"Correct the option {' or '.join(given)}: there are files of "
            f"{', '.join(sorted(hubs)[:_HUBS_SHOWN_MAX])}{more} (namespace/event hub, letter case counts).",
        )


@contextmanager
def opened(files: CaptureFiles, name: str) -> Iterator[BinaryIO]:
    """The file, closed in the end. Raises CaptureStorageError for what its file system raises."""
    try:
        with files.open(name) as file:
            yield file
    except TidegateError:
        raise
    except Exception as error:  # libraries of other people raise what they like: this is the boundary
        raise _storage_error(f"read {name}", error) from error


class _DirectoryFiles:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, folder: str) -> list[tuple[str, int]]:
        """See ``CaptureFiles``."""
        root = str(self._root)
        start = os.path.join(root, folder)
        if not os.path.isdir(start):
            raise _nothing_there(start)
        found: list[tuple[str, int]] = []
        pending = [start]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir():
                        if not entry.name.startswith("."):  # where a service builds its files
                            pending.append(entry.path)
                    elif entry.name.endswith(FILE_SUFFIX) and not entry.name.startswith("."):
                        found.append((os.path.relpath(entry.path, root), entry.stat().st_size))
        return found

    def open(self, name: str) -> BinaryIO:
        """See ``CaptureFiles``."""
        return (self._root / name).open("rb")


class _FsspecFiles:
    """A URL that fsspec knows."""

    def __init__(self, url: str, storage_options: Mapping[str, object]) -> None:
        try:
            from fsspec.core import url_to_fs

            # An instance of our own: a cached one would keep the credentials of somebody else.
            self._fs, root = url_to_fs(url, skip_instance_cache=True, **storage_options)
        except Exception as error:
            raise _storage_error(f"open {url}", error) from error
        self._url = url
        self._root: str = root.rstrip("/")

    def list(self, folder: str) -> list[tuple[str, int]]:
        """See ``CaptureFiles``."""
        start = f"{self._root}/{folder}".rstrip("/")
        try:
            self._fs.invalidate_cache()
            found: dict[str, dict[str, Any]] = self._fs.find(start, detail=True)
            if not found and not self._fs.exists(start):
                raise _nothing_there(f"{self._url}/{folder}")
        except TidegateError:
            raise
        except Exception as error:
            raise _storage_error(f"list {self._url}/{folder}", error) from error
        names = ((path.removeprefix(self._root).lstrip("/"), entry) for path, entry in found.items())
        return [
            (name, int(entry.get("size") or 0))
            for name, entry in names
            if name.endswith(FILE_SUFFIX) and not any(part.startswith(".") for part in name.split("/"))
        ]

    def open(self, name: str) -> BinaryIO:
        """See ``CaptureFiles``."""
        file = self._fs.open(f"{self._root}/{name}", "rb", block_size=_READ_AHEAD_BYTES)
        return cast(BinaryIO, file)


_connections: dict[tuple[int, str, str], _FsspecFiles] = {}


def _fsspec_files(options: CaptureOptions) -> _FsspecFiles:
    """This process's connection; the process id is in the key because workers are forked."""
    key = (os.getpid(), options.path, json.dumps(dict(options.storage_options), sort_keys=True))
    if key not in _connections:
        while len(_connections) >= _CONNECTIONS_MAX:
            _connections.pop(next(iter(_connections)))
        _connections[key] = _FsspecFiles(options.path, options.storage_options)
    return _connections[key]


def _nothing_there(place: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"There is nothing at {place}.",
        next_step="Correct the option path (what {Namespace}/… of the names is below), namespace or "
        "eventHubName.",
    )


def _storage_error(what: str, error: Exception) -> CaptureStorageError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return CaptureStorageError(
        f"Cannot {what}: {reason.rstrip('.')}.",
        next_step="Check that it exists, that its library is installed, and that the credentials let you in.",
    )

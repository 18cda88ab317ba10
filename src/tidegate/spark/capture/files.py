"""Lists and opens capture files, on this machine or any storage that fsspec supports.

Everything blocks. Any file system error becomes a CaptureFileError with the location and without secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote, urlsplit

from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.spark.capture.container import CaptureFileError
from tidegate.spark.capture.names import CaptureFile, check_one_hub
from tidegate.spark.capture.options import CaptureOptions
from tidegate.wire.capture import FILE_SUFFIX

_READ_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""The size of reads of a remote file (our choice)."""
_CONNECTIONS_MAX: Final = 8
_HUBS_SHOWN_MAX: Final = 10
"""The most event hubs that an error names (our choice)."""


class CaptureStorageError(CaptureFileError):
    """The storage of capture files cannot be reached."""

    is_transient = True


def open_capture_files(options: CaptureOptions) -> CaptureFiles:
    """The files below the options' path. Raises CaptureStorageError if no library supports its scheme."""
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

    event_hub: used, in any letter case, if the options name none; None: the only one. No files are not an
    error: Capture may not have written yet. Raises InvalidArgumentError for an Avro file whose name does not
    match, if several hubs remain, and, without ``event_hub``, if there are files, but none of the chosen hub
    or partitions: otherwise a misspelt name would look like a hub without events.
    """
    names = options.names()
    found: list[CaptureFile] = []
    others: set[str] = set()
    for name, size_bytes in files.list(names.folder):
        try:
            file = names.parse(name, size_bytes)
        except InvalidArgumentError:
            if options.is_bad_file_skipped:
                continue
            raise
        if not names.is_wanted(file):
            others.add(f"{file.namespace}/{file.event_hub}")
        elif event_hub is None or options.event_hub or file.event_hub.lower() == event_hub.lower():
            found.append(file)
    check_one_hub(found)
    if event_hub is None:
        _check_chosen(found, others, options)
    return sorted(found, key=lambda file: (int(file.partition_id), file.time_s, file.name))


def _check_chosen(found: Sequence[CaptureFile], others: set[str], options: CaptureOptions) -> None:
    if others and not found:
        named = {"namespace": options.namespace, "eventHubName": options.event_hub}
        given = {option: value for option, value in named.items() if value is not None}
        more = f" and {len(others) - _HUBS_SHOWN_MAX} more" if len(others) > _HUBS_SHOWN_MAX else ""
        raise InvalidArgumentError(
            f"There are no files of the event hub {'/'.join(given.values())} at {options.path}.",
            next_step=f"Correct the option {' or '.join(given)}: there are files of "
            f"{', '.join(sorted(others)[:_HUBS_SHOWN_MAX])}{more} (namespace/event hub, case-sensitive).",
        )
    ids = options.partition_ids
    if found and ids is not None and not any(file.partition_id in ids for file in found):
        there = sorted({file.partition_id for file in found}, key=int)
        raise InvalidArgumentError(
            f"There are no files of partition {', '.join(sorted(ids, key=int))} of the event hub "
            f"{found[0].event_hub!r} at {options.path}.",
            next_step=f"Correct the option partitions: there are files of {', '.join(there)}.",
        )


@contextmanager
def opened(files: CaptureFiles, name: str) -> Iterator[BinaryIO]:
    """The open file. Raises CaptureStorageError for any error of its file system."""
    try:
        with files.open(name) as file:
            yield file
    except TidegateError:
        raise
    except Exception as error:  # third-party libraries may raise anything
        raise _storage_error(f"read {name}", error) from error


class _DirectoryFiles:
    """The files below a directory on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, folder: str) -> list[tuple[str, int]]:
        """(name below the path, size in bytes) of every Avro file below ``folder`` (empty: everywhere)."""
        root = str(self._root)
        start = os.path.join(root, folder)
        if not os.path.isdir(start):
            raise _nothing_there(start)
        found: list[tuple[str, int]] = []
        for parent, folders, names in os.walk(start, onerror=_raise, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]  # a service's spool
            for name in names:
                if name.endswith(FILE_SUFFIX) and not name.startswith("."):
                    path = os.path.join(parent, name)
                    found.append((os.path.relpath(path, root), os.path.getsize(path)))
        return found

    def open(self, name: str) -> BinaryIO:
        """The file, positioned at its start."""
        return (self._root / name).open("rb")


class _FsspecFiles:
    """The files below a URL that fsspec supports."""

    def __init__(self, url: str, storage_options: Mapping[str, object]) -> None:
        try:
            from fsspec.core import url_to_fs

            # Not a cached instance, which could have another query's credentials.
            self._fs, root = url_to_fs(url, skip_instance_cache=True, **storage_options)
        except Exception as error:
            raise _storage_error(f"open {url}", error) from error
        self._url = url
        self._root: str = root.rstrip("/")

    def list(self, folder: str) -> list[tuple[str, int]]:
        """See ``_DirectoryFiles``."""
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
        """See ``_DirectoryFiles``."""
        file = self._fs.open(f"{self._root}/{name}", "rb", block_size=_READ_AHEAD_BYTES)
        return cast(BinaryIO, file)


CaptureFiles = _DirectoryFiles | _FsspecFiles

_connections: dict[tuple[int, str, str], _FsspecFiles] = {}


def _fsspec_files(options: CaptureOptions) -> _FsspecFiles:
    """This process's connection; the cache key includes the process id because workers are forked."""
    key = (os.getpid(), options.path, json.dumps(dict(options.storage_options), sort_keys=True))
    if key not in _connections:
        while len(_connections) >= _CONNECTIONS_MAX:
            _connections.pop(next(iter(_connections)))
        _connections[key] = _FsspecFiles(options.path, options.storage_options)
    return _connections[key]


def _raise(error: OSError) -> None:
    raise error


def _nothing_there(place: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"There is nothing at {place}.",
        next_step="Correct the option path (the parent of {Namespace}/… in the names), namespace or "
        "eventHubName.",
    )


def _storage_error(what: str, error: Exception) -> CaptureStorageError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return CaptureStorageError(
        f"Cannot {what}: {reason.rstrip('.')}.",
        next_step="Check that it exists, that its library is installed, and that the credentials allow "
        "access.",
    )

"""Where capture files go: a directory of this machine, or whatever fsspec knows (Azure, S3, SFTP, …).

A destination turns a finished local file into a named one. Every method blocks, belongs in a thread, and
fails with CaptureDestinationError alone, whatever went wrong.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar

from tidegate.capture.state import sync_directory
from tidegate.model.capture_destination import CaptureDestinations, CapturePlace, check_host
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.transport.private_files import make_private_directory, open_private

T = TypeVar("T")

_SPOOL_NAME: Final = ".tidegate-capture"
_IN_STEPS: Final = frozenset({"ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs"})
"""Kinds of file system where a file appears before it is whole, and a rename is one step. (Object stores show
nothing before an upload is complete, and copy to rename.)"""

_IN_BUCKETS: Final = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oss", "s3", "s3a"})
"""Kinds of file system whose URLs may have a bucket or container where others have a host."""


class CaptureDestinationError(TidegateError):
    """A capture file could not be written where it belongs; it is tried again, and no event is lost by it."""

    is_transient = True


class Destination(Protocol):
    """See the module's docstring."""

    def spool(self, token: str) -> Path:
        """Where to build the next file, to be given to ``publish``. token: no other file has it."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        ...

    def publish(self, spool: Path, name: str) -> None:
        """Give the finished file at ``spool`` its name, replacing another; the spool is gone then."""
        ...

    def discard(self, token_prefix: str) -> None:
        """Remove what earlier attempts left in the spool under tokens that begin so."""
        ...


class Spool:
    """A file while it is being written, before it has its name. Used by one thread at a time.

    ``write`` and ``finish`` raise CaptureDestinationError.
    """

    def __init__(self, path: Path) -> None:
        """path: made anew, for this user alone. Raises CaptureDestinationError."""
        self.path = path
        self.size_bytes = 0
        """What was written so far."""
        self._file = _guarded(str(path.parent), "write to", lambda: _create(path))

    def write(self, data: bytes) -> None:
        """Add bytes."""
        _guarded(str(self.path.parent), "write to", lambda: self._file.write(data))
        self.size_bytes += len(data)

    def finish(self, data: bytes) -> None:
        """Add the last bytes, and return once all is on the disk."""
        _guarded(str(self.path.parent), "write to", lambda: self._finish(data))
        self.size_bytes += len(data)

    def _finish(self, data: bytes) -> None:
        with self._file as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Give it up; harmless where it is gone, or failed."""
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def open_destination(
    destination: str, *, spool_directory: Path, allowed: CaptureDestinations | None = None
) -> Destination:
    """The destination that ``CaptureSettings.destination`` names; nothing is made yet, and only its host is
    looked up.

    spool_directory: where files are built that go to another machine. allowed: what it must be within,
    symbolic links followed; None: it may be anywhere. Raises CaptureDestinationError where it is outside,
    where its host is a cloud's metadata, and where no library knows the URL's scheme.
    """
    try:
        place = CapturePlace.parse(destination)
        if allowed is not None:
            allowed.check(destination, real_path=os.path.realpath)
        for address in _addresses_of(place):
            check_host(address)
    except InvalidArgumentError as error:
        raise CaptureDestinationError(error.message, next_step=error.next_step) from error
    if place.is_local:
        return DirectoryDestination(Path(place.path))
    return FsspecDestination(destination, spool_directory=spool_directory)


def _addresses_of(place: CapturePlace) -> set[str]:
    """What the host's name resolves to; nothing where it does not, or is a bucket's or a container's."""
    if not place.is_local and (place.scheme not in _IN_BUCKETS or "." in place.host):
        with contextlib.suppress(OSError, UnicodeError):
            return {str(found[4][0]) for found in socket.getaddrinfo(place.host, None)}
    return set()


class DirectoryDestination:
    """A directory of this machine, made when missing. A file appears whole and survives a power loss. What is
    made is for this user alone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_root_durable = False

    def spool(self, token: str) -> Path:
        """See ``Destination``. Below the destination, so that a rename can give the file its name."""
        return _guarded(str(self.root), "make room in", lambda: _spool_file(self.root / _SPOOL_NAME, token))

    def exists(self, name: str) -> bool:
        """See ``Destination``."""
        return _guarded(str(self.root), "look into", (self.root / name).exists)

    def publish(self, spool: Path, name: str) -> None:
        """See ``Destination``. ``spool`` was synced by who wrote it."""
        _guarded(str(self.root), f"write {name} to", lambda: self._publish(spool, self.root / name))

    def _publish(self, spool: Path, target: Path) -> None:
        directory = target.parent
        make_private_directory(directory)
        spool.replace(target)
        # All of them, whoever made them: another partition may be about to sync them, and an attempt that
        # failed did not come to it.
        sync_directory(directory)
        while directory != self.root:
            directory = directory.parent
            sync_directory(directory)
        if not self._is_root_durable:
            for directory in self.root.parents:
                with contextlib.suppress(PermissionError):  # then it was not made by this service
                    sync_directory(directory)
            self._is_root_durable = True

    def discard(self, token_prefix: str) -> None:
        """See ``Destination``."""
        _guarded(str(self.root), "clear", lambda: _discard(self.root / _SPOOL_NAME, token_prefix))

    def __repr__(self) -> str:
        return f"<DirectoryDestination {self.root}>"


class FsspecDestination:
    """A URL that fsspec knows. Credentials come from the environment, as that file system's library has it.

    In an object store a file appears whole. On a remote file system it is written beside its place first, and
    then renamed.
    """

    def __init__(self, url: str, *, spool_directory: Path) -> None:
        """Raises CaptureDestinationError where no installed library knows the URL."""
        self.url = url
        self._spool_directory = spool_directory
        self._fs, self._root = _guarded(
            url,
            "open",
            lambda: _file_system(url),
            next_step="Install the missing package, or correct the URL.",
        )
        protocol = self._fs.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_in_steps = bool(protocols & _IN_STEPS)

    def spool(self, token: str) -> Path:
        """See ``Destination``."""
        return _guarded(str(self._spool_directory), "make room in", lambda: self._spool(token))

    def _spool(self, token: str) -> Path:
        return _spool_file(self._spool_directory, token)

    def exists(self, name: str) -> bool:
        """See ``Destination``."""
        return _guarded(self.url, "look into", lambda: self._exists(self._path(name)))

    def _exists(self, path: str) -> bool:
        # ``exists`` itself takes any failure for an absence.
        self._fs.invalidate_cache()
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def publish(self, spool: Path, name: str) -> None:
        """See ``Destination``."""
        _guarded(self.url, f"write {name} to", lambda: self._publish(spool, self._path(name)))
        with contextlib.suppress(OSError):
            spool.unlink(missing_ok=True)

    def _publish(self, spool: Path, path: str) -> None:
        if not self._is_in_steps:
            self._fs.put_file(str(spool), path)
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        temporary = f"{path}.part"
        self._fs.put_file(str(spool), temporary)
        if self._exists(path):
            self._fs.rm_file(path)
        self._fs.mv(temporary, path)

    def discard(self, token_prefix: str) -> None:
        """See ``Destination``."""
        _guarded(str(self._spool_directory), "clear", lambda: _discard(self._spool_directory, token_prefix))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def __repr__(self) -> str:
        return f"<FsspecDestination {self.url}>"


class _FileSystem(Protocol):
    """What is used of fsspec's ``AbstractFileSystem``."""

    protocol: str | tuple[str, ...]

    def invalidate_cache(self) -> None: ...
    def info(self, path: str) -> object: ...
    def put_file(self, lpath: str, rpath: str) -> None: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def rm_file(self, path: str) -> None: ...
    def mv(self, path1: str, path2: str) -> None: ...


def _file_system(url: str) -> tuple[_FileSystem, str]:
    from fsspec.core import url_to_fs

    # An instance of our own: a cached one would keep the credentials of the first hub that used it.
    file_system, path = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    return file_system, path


def _spool_file(directory: Path, token: str) -> Path:
    make_private_directory(directory)
    return directory / f"{token}.tmp"


def _create(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)  # left by an earlier version, it would keep the mode that it has
    return open(path, "xb", opener=open_private)


def _discard(directory: Path, token_prefix: str) -> None:
    if not directory.exists():
        return
    for name in os.listdir(directory):
        if name.startswith(token_prefix):
            (directory / name).unlink(missing_ok=True)


_CHECK = "Check that it exists, has space and allows the service to write. Capture tries again."


def _guarded(place: str, what: str, call: Callable[[], T], *, next_step: str = _CHECK) -> T:
    try:
        return call()
    except Exception as error:  # libraries of other people raise what they like: this is the boundary
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CaptureDestinationError(
            f"Capture cannot {what} {place}: {reason.rstrip('.')}.",
            next_step=next_step,
        ) from error

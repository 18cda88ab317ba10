"""Where capture files go: a directory of this machine, or anything that fsspec supports (Azure, S3, SFTP, …).

A destination gives a finished local file its name. Every method blocks, belongs in a thread, and raises only
CaptureDestinationError.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tidegate.files import make_private_directory, open_private, sync_directory
from tidegate.model.capture_destination import CaptureDestinations, CapturePlace, check_host
from tidegate.model.errors import InvalidArgumentError, TidegateError

_SPOOL_NAME: Final = ".tidegate-capture"
_IN_STEPS: Final = frozenset({"ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs"})
"""File systems where a file appears before it is complete, and a rename is atomic. (Object stores show a file
only after its upload, and rename by copying.)"""

_IN_BUCKETS: Final = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oss", "s3", "s3a"})
"""File systems whose URLs may have a bucket or container instead of a host."""


class CaptureDestinationError(TidegateError):
    """A capture file could not be written to its destination; Capture retries, and no event is lost."""

    is_transient = True


class Destination:
    """See the module's docstring."""

    spool_directory: Path
    """Where files are built. Created when needed."""

    def spool(self, token: str) -> Path:
        """A path for building the next file, for ``publish``. token: unique to this file."""
        with _guarded("create a file in", str(self.spool_directory)):
            make_private_directory(self.spool_directory)
            return self.spool_directory / f"{token}.tmp"

    def exists(self, name: str) -> bool:
        raise NotImplementedError

    def publish(self, spool: Path, name: str) -> None:
        """Give the finished file at ``spool`` its name, replacing any other; ``spool`` is gone afterwards."""
        raise NotImplementedError

    def discard(self, token_prefix: str) -> None:
        """Delete spool files of earlier attempts whose tokens begin with this."""
        with _guarded("clear", str(self.spool_directory)):
            for path in self.spool_directory.iterdir() if self.spool_directory.exists() else ():
                if path.name.startswith(token_prefix):
                    path.unlink(missing_ok=True)


class Spool:
    """A file that is being written, before it has its name. Used by one thread at a time.

    ``write`` and ``finish`` raise CaptureDestinationError.
    """

    def __init__(self, path: Path) -> None:
        """path: created, for this user alone. Raises CaptureDestinationError."""
        self.path = path
        self.size_bytes = 0
        with self._guarded():
            path.unlink(missing_ok=True)  # a leftover of an earlier version would keep its mode
            self._file = open(path, "xb", opener=open_private)  # noqa: SIM115 - closed by finish or discard

    def write(self, data: bytes) -> None:
        with self._guarded():
            self._file.write(data)
        self.size_bytes += len(data)

    def finish(self, data: bytes) -> None:
        """Add the last bytes; the file is durable on return."""
        with self._guarded(), self._file as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.size_bytes += len(data)

    def discard(self) -> None:
        """Delete it; harmless if it is gone, or failed."""
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return _guarded("write to", str(self.path.parent))


def open_destination(
    destination: str, *, spool_directory: Path, allowed: CaptureDestinations | None = None
) -> Destination:
    """Create the destination that ``CaptureSettings.destination`` names; only its host is resolved so far.

    spool_directory: where files for other machines are built. allowed: what it must be within, with symbolic
    links resolved; None: anywhere. Raises CaptureDestinationError if it is outside, if its host is a cloud's
    metadata service, or if no library supports the URL's scheme.
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
    """The addresses of the host's name; empty if it does not resolve, or is a bucket or container."""
    if not place.is_local and (place.scheme not in _IN_BUCKETS or "." in place.host):
        with contextlib.suppress(OSError, UnicodeError):
            return {str(found[4][0]) for found in socket.getaddrinfo(place.host, None)}
    return set()


class DirectoryDestination(Destination):
    """A private local directory, created when missing. Files appear complete, and survive power loss."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Below the destination, so that a rename can give the file its name.
        self.spool_directory = root / _SPOOL_NAME
        self._is_root_durable = False

    def exists(self, name: str) -> bool:
        with _guarded("read", str(self.root)):
            return (self.root / name).exists()

    def publish(self, spool: Path, name: str) -> None:
        with _guarded(f"write {name} to", str(self.root)):
            directory = (self.root / name).parent
            make_private_directory(directory)
            spool.replace(self.root / name)
            # Also those that others created: another partition may not have synced them yet, and a failed
            # attempt never did.
            sync_directory(directory)
            while directory != self.root:
                directory = directory.parent
                sync_directory(directory)
            if not self._is_root_durable:
                for directory in self.root.parents:
                    with contextlib.suppress(PermissionError):  # then this service did not create it
                        sync_directory(directory)
                self._is_root_durable = True

    def __repr__(self) -> str:
        return f"<DirectoryDestination {self.root}>"


class FsspecDestination(Destination):
    """A URL that fsspec supports. Credentials come from the environment, as its library defines.

    In an object store a file appears when it is complete. On a remote file system it is first written under
    another name, then renamed.
    """

    def __init__(self, url: str, *, spool_directory: Path) -> None:
        """Raises CaptureDestinationError if no installed library supports the URL."""
        self.url = url
        self.spool_directory = spool_directory
        with _guarded("open", url, next_step="Install the missing package, or correct the URL."):
            from fsspec.core import url_to_fs

            # Not a cached instance, which would keep the credentials of the first hub that used it.
            file_system, self._root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
            self._fs: Any = file_system
            protocol = self._fs.protocol
        self._is_in_steps = bool(_IN_STEPS & ({protocol} if isinstance(protocol, str) else set(protocol)))

    def exists(self, name: str) -> bool:
        with _guarded("read", self.url):
            return self._exists(self._path(name))

    def _exists(self, path: str) -> bool:
        # fsspec's ``exists`` reports any failure as an absence.
        self._fs.invalidate_cache()
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def publish(self, spool: Path, name: str) -> None:
        path = self._path(name)
        with _guarded(f"write {name} to", self.url):
            if self._is_in_steps:
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.put_file(str(spool), f"{path}.part")
                if self._exists(path):
                    self._fs.rm_file(path)
                self._fs.mv(f"{path}.part", path)
            else:
                self._fs.put_file(str(spool), path)
        with contextlib.suppress(OSError):
            spool.unlink(missing_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def __repr__(self) -> str:
        return f"<FsspecDestination {self.url}>"


@contextlib.contextmanager
def _guarded(
    what: str,
    place: str,
    *,
    next_step: str = "Check that it exists, has space and allows the service to write. Capture tries again.",
) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # third-party libraries may raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CaptureDestinationError(
            f"Capture cannot {what} {place}: {reason.rstrip('.')}.", next_step=next_step
        ) from error

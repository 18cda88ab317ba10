"""The file sink's folder, on this machine or any storage that fsspec supports.

Any file system error becomes a FileSinkError with the location and without secrets.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from tidegate.model.errors import TidegateError

_COPY_BYTES: Final = 8 * 1024 * 1024
_BY_UPLOAD: Final = frozenset({"az", "abfs", "abfss", "adl", "s3", "s3a", "gs", "gcs"})
"""Object stores: a file appears only when its upload is complete, and cannot be renamed."""


class FileSinkError(TidegateError):
    """The files' location cannot be reached, or refused access; the micro-batch is repeated."""

    is_transient = True


class SinkFolder:
    """A folder; names are relative to it, with ``/`` between their parts. Everything blocks."""

    def __init__(self, path: str, storage_options: Mapping[str, object]) -> None:
        """Raises FileSinkError if no library supports the path's scheme, or refuses its options."""
        from fsspec.core import url_to_fs

        self.path = path
        with _guarded(path, "reach"):
            file_system, root = url_to_fs(path, **storage_options)
        self._fs: Any = file_system
        self._root = str(root).rstrip("/")
        protocol = self._fs.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_renamed = not names & _BY_UPLOAD

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Create or replace a file, not to be read before it is closed."""
        with _guarded(self.path, f"write {name}"):
            target = self._at(name)
            if self._is_renamed:
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            with self._fs.open(target, "wb") as file:
                yield cast(BinaryIO, file)

    def write_whole(self, name: str, data: bytes) -> None:
        """Write a small file, which appears only when it is complete."""
        if not self._is_renamed:
            with _guarded(self.path, f"write {name}"):
                self._fs.pipe_file(self._at(name), data)
            return
        temporary = f"{name}.{uuid.uuid4().hex}.tmp"
        with self.writing(temporary) as file:
            file.write(data)
        self.move(temporary, name)

    def move(self, source: str, target: str) -> None:
        """Rename a file, replacing the target. If only ``target`` exists, it was already moved."""
        with _guarded(self.path, f"move {source} to {target}"):
            from_, to = self._at(source), self._at(target)
            if not self._fs.exists(from_):
                if self._fs.exists(to):
                    return
                raise FileNotFoundError(f"neither {source} nor {target} is there")
            if self._is_renamed:
                self._fs.makedirs(to.rpartition("/")[0], exist_ok=True)
                self._fs.mv(from_, to)
                return
            # Copy through this process: a copy within the store may end after the call that started it.
            with self._fs.open(from_, "rb") as reading, self._fs.open(to, "wb") as writing:
                shutil.copyfileobj(reading, writing, _COPY_BYTES)
            self._fs.rm_file(from_)

    def read(self, name: str) -> bytes | None:
        """A small file's content; None if it does not exist."""
        with _guarded(self.path, f"read {name}"):
            self._fs.invalidate_cache()
            try:
                return bytes(self._fs.cat_file(self._at(name)))
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[str]:
        """The names of the files directly in a folder; empty if it does not exist."""
        with _guarded(self.path, f"list {folder}"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
            return sorted(item["name"].rpartition("/")[2] for item in found if item["type"] == "file")

    def delete_tree(self, folder: str) -> None:
        """Delete a folder and everything in it, if it exists."""
        with _guarded(self.path, f"delete {folder}"):
            self._fs.invalidate_cache()
            if self._fs.exists(self._at(folder)):
                self._fs.rm(self._at(folder), recursive=True)

    def url(self, name: str) -> str:
        """The name in a form that others can open."""
        return f"{self.path.rstrip('/')}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _guarded(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:  # third-party libraries may raise anything
        # Messages may contain a signed URL; the class and, for OSErrors, the reason are enough.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else ""
        raise FileSinkError(
            f"The file sink at {path} could not {what}: {type(error).__name__} {reason}".rstrip() + ".",
            next_step="Check that it exists, and that the storage options allow writing to it.",
        ) from None

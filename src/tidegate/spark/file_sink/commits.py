"""Commits an ``eventhubs-files`` sink's files with one atomically written manifest per micro-batch.

Theory of operation. Below the sink's folder are:

    _tidegate/staging/QUERY/BATCH/…     what tasks write, under names that no two attempts share
    _tidegate/commits/QUERY-BATCH.json  the manifest: staged name → final name
    [COLUMN=VALUE/]part-QUERY-BATCH-…   the files

The manifest is the point of no return. Without it, staged files do not count, and a repeat of the micro-batch
stages again, with any number of tasks. With it, repeated tasks write nothing; the driver moves what is still
staged, marks the manifest as published, and deletes what failed and speculative attempts left. So a file has
its final name only if it counts, and a listing of the folder shows no row twice. Spark, Hive, pyarrow and
DuckDB all ignore names that begin with ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from tidegate.model.errors import LATER_VERSION, InvalidArgumentError
from tidegate.model.validation import from_json
from tidegate.spark.file_sink.storage import SinkFolder

_COMMITS: Final = "_tidegate/commits"
_STAGING: Final = "_tidegate/staging"
_MOVES_AT_ONCE: Final = 8
_VERSION: Final = 1


class StagedFile(msgspec.Struct, frozen=True):
    """A file written by a task."""

    staged: str
    name: str
    """The final name; both are relative to the sink's folder."""
    rows: int


class _Versioned(msgspec.Struct, frozen=True):
    version: int = _VERSION


class Manifest(msgspec.Struct, frozen=True):
    """The files of one micro-batch."""

    query: str
    batch_id: int
    is_published: bool
    """Whether all of them have their final names."""
    files: tuple[StagedFile, ...]
    version: int = _VERSION


class FileCommits:
    """The manifests of one sink and query."""

    def __init__(self, folder: SinkFolder, query: str) -> None:
        """query: the Spark query's id, or the name of a batch query."""
        self._folder = folder
        self._query = query

    def staging(self, batch_id: int) -> str:
        """Where a micro-batch's tasks write."""
        return f"{_STAGING}/{self._query}/{batch_id:010}"

    def find(self, batch_id: int) -> Manifest | None:
        """The micro-batch's manifest; None until it is committed. Raises as ``commit``."""
        data = self._folder.read(self._name(batch_id))
        return None if data is None else _decode(data, self._name(batch_id))

    def commit(self, batch_id: int, files: Sequence[StagedFile]) -> Manifest:
        """Decide which files the micro-batch has, unless that was already decided, and publish them.

        files: staged by this run's tasks; ignored if an earlier run was committed. May be repeated after a
        failure at any point. Raises FileSinkError, and InvalidArgumentError
        (a manifest of a newer version).
        """
        manifest = self.find(batch_id)
        if manifest is None:
            manifest = Manifest(self._query, batch_id, False, tuple(files))
            self._folder.write_whole(self._name(batch_id), msgspec.json.encode(manifest))
        if not manifest.is_published:
            with ThreadPoolExecutor(_MOVES_AT_ONCE) as threads:
                moves = [threads.submit(self._folder.move, each.staged, each.name) for each in manifest.files]
                for move in moves:
                    move.result()
            manifest = msgspec.structs.replace(manifest, is_published=True)
            self._folder.write_whole(self._name(batch_id), msgspec.json.encode(manifest))
        self._folder.delete_tree(self.staging(batch_id))
        return manifest

    def _name(self, batch_id: int) -> str:
        return f"{_COMMITS}/{self._query}-{batch_id:010}.json"


def published_files(path: str, storage_options: Mapping[str, object] | None = None) -> list[str]:
    """The files of a file sink's completed micro-batches, by query and micro-batch.

    path: the sink's. storage_options: for fsspec. A micro-batch is included completely or not at all, unlike
    in a listing of the folder while one is being published. Raises FileSinkError, and InvalidArgumentError (a
    manifest of a newer version).
    """
    folder = SinkFolder(path, storage_options or {})
    names: list[str] = []
    for commit in folder.list(_COMMITS):
        data = folder.read(f"{_COMMITS}/{commit}") if commit.endswith(".json") else None
        if data is None:
            continue
        manifest = _decode(data, commit)
        if manifest.is_published:
            names += [folder.url(each.name) for each in manifest.files]
    return names


def _decode(data: bytes, name: str) -> Manifest:
    version = from_json(data, _Versioned).version
    if version > _VERSION:
        raise InvalidArgumentError(
            f"The file sink's manifest {name} has version {version}; this Tidegate reads up to version "
            f"{_VERSION}.",
            next_step=LATER_VERSION,
        )
    return from_json(data, Manifest)

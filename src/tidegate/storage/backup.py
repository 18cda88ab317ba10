"""Online backups: copies of all logs and of the control log as they were at one moment.

    <data directory>/backups/<name>/        a data directory
    <data directory>/backups/<name>.new/    being made or deleted, or left by a kill, until the next start

Theory of operation. The moment is a command for all partitions: while it takes their manifests, no event is
stored, and what was acknowledged before is in them. Directly behind it in the queue, each partition links its
segments into the backup, before anything that comes later (retention, the deletion of a hub) can remove them.
Then the writers are done with it. Another thread keeps the links of sealed segments, which never change,
replaces that of an active one by a copy up to the end that it had, and writes the manifests: as if the
service had stopped at that moment. The directory gets its name once all of it is durable.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from tidegate.model.errors import LogFailedError, NotFoundError, ServerBusyError, TidegateError
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.control.records import ControlFile
from tidegate.storage.engine import Backup, BackupState
from tidegate.storage.files import Files, write_all
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.manifest import Manifest, ManifestFiles
from tidegate.storage.partition_writer import PartitionWriter
from tidegate.storage.segments.segment import Segment
from tidegate.storage.write_errors import step_error

BACKUPS_NAME: Final = "backups"
_NEW_SUFFIX: Final = ".new"
_WHOLE_SUFFIX: Final = ".whole"
"""Of the link to an active segment, until the part of it that counts is copied."""

_MOMENT_TIMEOUT_S: Final = 10.0
"""Our choice: the moment comes within milliseconds, unless a partition's file is stuck."""

_LINKED_TOGETHER: Final = 32
"""Partitions whose segments one command links (our choice: a command costs more than some links, and other
partitions do not wait for one that is stuck)."""

_CHUNK_BYTES: Final = 1024 * 1024
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})

T = TypeVar("T")
Writers = Mapping[tuple[str, str], PartitionWriter]
"""By hub id and partition id."""


@dataclass(slots=True)
class _Making:
    """The backup that is being made, or was made last."""

    name: str
    new: Path
    control: ControlFile
    writers: Writers
    manifests: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    """Until the backup has ended, as the writers."""
    partition_count: int = 0
    event_count: int = 0
    bytes_total: int = 0
    state: BackupState = BackupState.COPYING
    bytes_copied: int = 0
    failure: TidegateError | None = None
    is_given_up: bool = False
    end: asyncio.Future[None] | None = None
    """Done when the copying has ended."""

    def directory(self, key: tuple[str, str]) -> Path:
        """A partition's."""
        return self.new / "logs" / key[0] / key[1]

    def fail(self, error: TidegateError) -> None:
        if self.failure is None:
            self.failure = error
        self.state, self.is_given_up = BackupState.FAILED, True

    def shown(self, place: Path) -> Backup:
        return Backup(
            self.name,
            str(place),
            self.state,
            partition_count=self.partition_count,
            event_count=self.event_count,
            bytes_total=self.bytes_total,
            bytes_copied=self.bytes_copied,
            failure=None if self.failure is None else str(self.failure),
        )


class FileBackups:
    """The ``Backups`` of a data directory."""

    def __init__(
        self,
        files: Files,
        data_directory: Path,
        control: FileControlLog,
        commit: GroupCommit,
        writers: Callable[[], Writers],
    ) -> None:
        """writers: those of all partitions now. Raises LogFailedError if one could not be opened."""
        self._files = files
        self._data_directory = data_directory
        self._directory = data_directory / BACKUPS_NAME
        self._control = control
        self._commit = commit
        self._writers = writers
        self._threads = ThreadPoolExecutor(2, "tidegate-backup")
        """One copies; the other answers meanwhile."""
        self._current: _Making | None = None

    # -- on the loop

    async def create(self, name: str) -> Backup:
        """See ``Backups``."""
        if self._current is not None and self._current.state is BackupState.COPYING:
            raise ServerBusyError(
                f"The backup {self._current.name} is being made.", next_step="Wait for its end, or delete it."
            )
        new = self._directory / (name + _NEW_SUFFIX)
        making = self._current = _Making(name, new, self._control.snapshot(), self._writers())
        try:
            await self._in_thread(partial(self._prepare, making))
            while making.writers.keys() != (writers := self._writers()).keys():  # hubs came or went meanwhile
                making.writers = writers
                await self._in_thread(partial(self._prepare, making))
            making.control = self._control.snapshot()
            await self._take_moment(making)
        except BaseException as error:
            given_up = LogFailedError("The request for the backup was given up.")
            making.fail(error if isinstance(error, TidegateError) else given_up)
            await self._in_thread(partial(self._remove_new, new))
            raise
        making.partition_count = len(making.manifests)
        making.event_count = sum(map(_event_count, making.manifests.values()))
        making.bytes_total = sum(
            each.file_bytes for manifest in making.manifests.values() for each in _files_of(manifest)
        )
        loop = asyncio.get_running_loop()
        making.end = loop.run_in_executor(self._threads, self._finish, making)
        return self._shown(making)

    async def list_all(self) -> list[Backup]:
        """See ``Backups``."""
        current = self._current
        was_complete = current is not None and current.state is BackupState.COMPLETE
        names = await self._in_thread(self._names)
        found = [
            Backup(name, str(self._directory / name), BackupState.COMPLETE)
            for name in names
            if current is None or name != current.name
        ]
        # A complete one may have been moved away.
        if current is not None and (current.name in names or not was_complete):
            found.append(self._shown(current))
        return found

    async def delete(self, name: str) -> None:
        """See ``Backups``."""
        if name not in {each.name for each in await self.list_all()}:
            raise NotFoundError(f"There is no backup {name!r}.")
        current = self._current
        if current is not None and current.name == name:
            current.is_given_up = True
            if current.end is not None:
                await asyncio.wait([current.end])
            self._current = None
        await self._in_thread(partial(self._delete, name))

    async def close(self) -> None:
        """Give up a backup that is being made. Harmless twice."""
        if self._current is not None:
            self._current.is_given_up = True
        await asyncio.to_thread(self._threads.shutdown)

    def _shown(self, making: _Making) -> Backup:
        return making.shown(self._directory / making.name)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise step_error(error, "use the backups", self._directory) from error

    async def _take_moment(self, making: _Making) -> None:
        """Take the manifests, and link the files. Raises ServerBusyError, LogFailedError."""
        writers = making.writers
        # All in one turn of the loop: nothing comes between.
        commands = [self._commit.put_command(partial(_take_manifests, making), [*writers.values()])]
        for keys in _batched(writers, _LINKED_TOGETHER):
            link = partial(self._link_segments, making, keys)
            commands.append(self._commit.put_command(link, [writers[key] for key in keys]))
        done, late = await asyncio.wait(commands, timeout=_MOMENT_TIMEOUT_S)
        for each in late:
            each.add_done_callback(_ignore)
        for error in [each.exception() for each in done]:
            if isinstance(error, OSError):
                raise _link_error(error, self._directory) from error
            if error is not None:
                raise error
        if late:
            raise ServerBusyError(
                f"A partition's file did not answer within {_MOMENT_TIMEOUT_S:g} s.",
                next_step="See the service's log for the file, check the disk, and try again.",
                retry_after_s=_MOMENT_TIMEOUT_S,
            )

    # -- on the writer's thread

    def _link_segments(self, making: _Making, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            manifest = making.manifests.get(key)
            if making.is_given_up or manifest is None:
                raise ServerBusyError("The backup was given up: another partition's file is stuck.")
            self._link(making, key, manifest)

    def _link(self, making: _Making, key: tuple[str, str], manifest: Manifest) -> None:
        directory = making.directory(key)
        for segment in _files_of(manifest):
            suffix = _WHOLE_SUFFIX if segment is _active_of(manifest) else ""
            self._files.link(segment.path, directory / (segment.path.name + suffix))
        for segment in manifest.segments:
            if segment.is_sealed:
                with suppress(FileNotFoundError):  # it is built again when it is needed
                    self._files.link(segment.index_path, directory / segment.index_path.name)

    # -- in the thread

    def _names(self) -> list[str]:
        try:
            names = self._files.list_names(self._directory)
        except FileNotFoundError:
            return []
        return [name for name in names if not name.endswith(_NEW_SUFFIX)]

    def _prepare(self, making: _Making) -> None:
        remove_leftovers(self._files, self._data_directory)
        for key in making.writers:
            self._files.make_directory(making.directory(key))
        self._files.make_directory(making.new / "logs")

    def _finish(self, making: _Making) -> None:
        try:
            self._copy(making)
        except OSError as error:
            making.fail(step_error(error, f"make the backup {making.name}", making.new))
        except TidegateError as error:
            making.fail(error)
        except Exception as error:
            making.fail(LogFailedError(f"The backup {making.name} failed: {error!r}."))
        if making.state is BackupState.FAILED:
            self._remove_new(making.new)
        making.manifests, making.writers = {}, {}

    def _copy(self, making: _Making) -> None:
        files, logs = self._files, making.new / "logs"
        for key, manifest in making.manifests.items():
            directory = making.directory(key)
            for segment in _files_of(manifest):
                target = directory / segment.path.name
                if segment is _active_of(manifest):
                    self._copy_active(making, target, segment.end_position)
                else:
                    _sync(files, target)
                    making.bytes_copied += segment.file_bytes
                self._check_given_up(making)
            ManifestFiles(files, directory).save(manifest, is_both=True)
            files.sync_directory(directory)
        for hub_id in {hub_id for hub_id, _ in making.manifests}:
            files.sync_directory(logs / hub_id)
        FileControlLog.write(files, making.new, making.control)
        for directory in (logs, making.new):
            files.sync_directory(directory)
        self._check_given_up(making)
        files.rename_durably(making.new, self._directory / making.name)
        files.sync_directory(self._data_directory)
        making.state = BackupState.COMPLETE

    def _copy_active(self, making: _Making, target: Path, size: int) -> None:
        whole = target.with_name(target.name + _WHOLE_SUFFIX)
        source = self._files.open_readable(whole)
        try:
            copy = self._files.create(target)
            try:
                position = 0
                while position < size:
                    self._check_given_up(making)
                    chunk = source.read_at(min(_CHUNK_BYTES, size - position), position)
                    if not chunk:
                        raise LogFailedError(f"The segment {target.name} ends before the events in it.")
                    position = write_all(copy, [chunk], position)
                    making.bytes_copied += len(chunk)
                copy.sync()
            finally:
                copy.close()
        finally:
            source.close()
        self._files.remove(whole)

    def _check_given_up(self, making: _Making) -> None:
        if making.is_given_up:
            raise LogFailedError(f"The backup {making.name} was given up.")

    def _remove_new(self, new: Path) -> None:
        with suppress(OSError):  # the next backup, or the next start, tries again
            self._files.remove_tree(new)

    def _delete(self, name: str) -> None:
        # Renamed first: what a kill leaves must not look complete.
        path = self._directory / name
        if self._files.exists(path):
            new = path.with_name(name + _NEW_SUFFIX)
            self._files.rename_durably(path, new)
            self._files.remove_tree(new)


def remove_leftovers(files: Files, data_directory: Path) -> None:
    """Remove backups that were not completed. Raises OSError."""
    directory = data_directory / BACKUPS_NAME
    if files.exists(directory):
        for name in files.list_names(directory):
            if name.endswith(_NEW_SUFFIX):
                files.remove_tree(directory / name)


def _batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def _take_manifests(making: _Making) -> None:
    if not making.is_given_up:
        making.manifests = {key: writer.snapshot() for key, writer in making.writers.items()}


def _active_of(manifest: Manifest) -> Segment | None:
    return manifest.segments[-1] if manifest.is_last_active else None


def _files_of(manifest: Manifest) -> list[Segment]:
    """One segment for each file: after a repair, several may be parts of one."""
    return list({segment.path: segment for segment in manifest.segments}.values())


def _event_count(manifest: Manifest) -> int:
    return sum(each.until_sequence_number - each.base_sequence_number for each in manifest.segments)


def _sync(files: Files, path: Path) -> None:
    file = files.open_writable(path)
    try:
        file.sync()
    finally:
        file.close()


def _link_error(error: OSError, directory: Path) -> TidegateError:
    if error.errno not in _NO_LINKS:
        return step_error(error, "link the segments for a backup", directory)
    return LogFailedError(
        f"Cannot link the segments into {directory}: {error.strerror}.",
        next_step="The directory must be on the file system of the logs, and that must support hard links. "
        "Otherwise stop the service and copy the data directory.",
    )


def _ignore(command: asyncio.Future[object]) -> None:
    command.exception()  # read it, so that asyncio does not report it as unretrieved

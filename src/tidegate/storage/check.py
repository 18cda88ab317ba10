"""Verifies every byte of the logs in a data directory, and repairs damage.

Both are ``examination``: a check with no permission to change anything, a repair with all of them. A repair
discards no bytes and copies none: it saves a manifest in which the intact parts of damaged segments are the
log, and the numbers between them are gaps, so that readers know they are missing on purpose. It writes a
damaged header again, and renames files that are no part of the log. After a crash at any point of a repair,
the directory can be repaired again, with the same result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogCorruptError, LogFormatError
from tidegate.storage.control.reading import read_files
from tidegate.storage.examination.examiner import examine
from tidegate.storage.examination.findings import Damage, Examination, TornTail
from tidegate.storage.files import Files, OsFiles, write_all
from tidegate.storage.journal.journal import reset
from tidegate.storage.journal.overlay import OverlaidFiles
from tidegate.storage.journal.reading import JOURNAL_NAMES
from tidegate.storage.journal.replay import read_replay, write
from tidegate.storage.log_manager import LOCK_NAME, LOGS_NAME
from tidegate.storage.manifest import ManifestFiles, with_history
from tidegate.storage.options import LogOptions
from tidegate.storage.recovery import NEW_SUFFIX
from tidegate.storage.segments.segment import LOG_ID_BYTES, encode_segment_header

DAMAGED_SUFFIX: Final = ".damaged"


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    events: int = 0
    bytes_read: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn_tails: list[TornTail] = field(default_factory=list)
    """Incomplete writes, of which at most the last second's may have been acknowledged; the next start
    truncates them."""
    unproved: list[tuple[Path, int]] = field(default_factory=list)
    """Logs whose service was killed, and the end that they have: nothing shows whether more was acknowledged
    in the last second before that."""
    notes: list[tuple[Path, str]] = field(default_factory=list)
    """Files that a kill or a power loss may leave incomplete, and a start makes again: nothing is lost."""
    strays: list[Path] = field(default_factory=list)
    """Files where only directories belong: unused, and not changed."""
    is_repaired: bool = False
    """Whether there was damage, and all of it was repaired."""

    @property
    def is_sound(self) -> bool:
        """Whether no acknowledged data is damaged."""
        return not self.damages


def check_log_directory(
    data_directory: Path,
    *,
    repair: bool = False,
    files: Files | None = None,
    on_progress: Callable[[int], None] = lambda bytes_read: None,
) -> CheckReport:
    """Read and verify all logs of a data directory; with ``repair``, make damaged ones usable again.

    on_progress: called with the number of bytes of segments checked so far.

    Raises DirectoryInUseError if a service is using it, FileNotFoundError if it is not a data directory,
    OSError.
    """
    files = files or OsFiles()
    report = CheckReport()
    logs_directory = data_directory / LOGS_NAME
    hub_ids = files.list_names(logs_directory)
    lock = files.lock(data_directory / LOCK_NAME)
    try:
        files = _replayed(files, data_directory, report, repair=repair)
        for hub_directory in (logs_directory / hub_id for hub_id in hub_ids):
            for partition_id in _names_in(files, hub_directory, report) or ():
                directory = hub_directory / partition_id
                if not partition_id.endswith(NEW_SUFFIX) and _names_in(files, directory, report) is not None:
                    _check_partition(directory, files, report, on_progress, repair=repair)
    finally:
        lock.release()
    is_repairable = all(damage.is_repairable for damage in report.damages)
    report.is_repaired = repair and bool(report.damages) and is_repairable
    return report


def _replayed(files: Files, data_directory: Path, report: CheckReport, *, repair: bool) -> Files:
    """The files as they are with what the journal has; a repair writes that first, as a start does."""
    try:
        owner = bytes.fromhex(read_files(files, data_directory, is_used=False).best().log_id)
    except LogCorruptError:
        owner = None
    try:
        replay = read_replay(files, data_directory, data_directory / LOGS_NAME, owner)
    except LogFormatError as error:
        report.damages.append(
            Damage(data_directory / JOURNAL_NAMES[0], 0, error.message, is_repairable=False)
        )
        return files
    # A backup has no journal: its logs are closed.
    is_there = any(files.exists(data_directory / name) for name in JOURNAL_NAMES)
    if replay.problem is not None and (is_there or replay.doubted):
        report.notes.append(replay.problem)
    if not repair:
        return OverlaidFiles(files, replay.patches)
    write(files, replay)
    for failure in replay.failed.values():
        if isinstance(failure, OSError):
            raise failure
    if replay.is_used and not replay.failed and owner is not None:
        reset(files, data_directory, owner)
    return files


def _names_in(files: Files, directory: Path, report: CheckReport) -> list[str] | None:
    """The names in a directory; None if it is a file, which is then reported as a stray."""
    try:
        return files.list_names(directory)
    except NotADirectoryError:
        report.strays.append(directory)
        return None


def _check_partition(
    directory: Path,
    files: Files,
    report: CheckReport,
    on_progress: Callable[[int], None],
    *,
    repair: bool,
) -> None:
    report.partitions += 1
    bytes_before = report.bytes_read
    try:
        found = examine(
            directory,
            files=files,
            options=LogOptions(),
            is_deep=True,
            on_progress=lambda bytes_read: on_progress(bytes_before + bytes_read),
        )
    except LogFormatError as error:
        report.damages.append(Damage(directory, 0, error.message, is_repairable=False))
        return
    damages = found.damages
    if repair and (damages or found.notes) and all(damage.is_repairable for damage in damages):
        damages = _repair(found, files)
    report.damages += damages
    report.notes += found.notes
    report.segments += found.segment_files
    report.batches += found.batches
    report.events += found.events
    report.bytes_read += found.bytes_read
    if found.torn is not None:
        report.torn_tails.append(found.torn)
    elif not found.is_end_proved:
        report.unproved.append((directory, found.next_sequence_number))


def _repair(found: Examination, files: Files) -> list[Damage]:
    """Make the log what the examination found it to be; returns the damages, with where their bytes are."""
    for path, header in found.headers.items():
        file = files.open_writable(path)
        try:
            write_all(file, [encode_segment_header(header)], 0)
            file.sync()
        finally:
            file.close()
    manifest = with_history(found.result(), os.urandom(LOG_ID_BYTES).hex())
    if not any(manifest.log_id):
        manifest = replace(manifest, log_id=os.urandom(LOG_ID_BYTES))
    manifest_files = ManifestFiles(files, found.directory)
    manifest_files.read()
    manifest_files.save(manifest, is_both=True)
    # Renamed last: until then, another repair finds the same.
    names = set(files.list_names(found.directory))
    places: dict[Path, Path] = {}
    for path in found.unlisted:
        places[path] = _free_name(path, names)
        files.rename(path, places[path])
    for path in found.stale_indexes:
        files.remove(path)
    files.sync_directory(found.directory)
    return [
        replace(damage, set_aside=places.get(damage.path, damage.path))
        if damage.path.name in names
        else damage
        for damage in found.damages
    ]


def _free_name(path: Path, names: set[str]) -> Path:
    name, number = path.name + DAMAGED_SUFFIX, 1
    while name in names:
        number += 1
        name = f"{path.name}.{number}{DAMAGED_SUFFIX}"
    names.add(name)
    return path.with_name(name)

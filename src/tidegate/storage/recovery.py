"""Opening a partition's log: ``examination`` with the permissions of a start.

A start may remove what an interrupted creation left, truncate a torn tail, and save a copy of the manifest
again. Damage raises LogCorruptError and changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.storage.examination.examiner import examine
from tidegate.storage.examination.findings import Examination, TornTail
from tidegate.storage.files import Files, write_all
from tidegate.storage.manifest import MANIFEST_NAMES, Manifest, ManifestFiles, place_of
from tidegate.storage.manifest_writer import ManifestWriter
from tidegate.storage.options import LogOptions
from tidegate.storage.producers import ProducerTable
from tidegate.storage.segments.segment import INDEX_SUFFIX, LogView, Segment, corrupt_error

NEW_SUFFIX: Final = ".new"
"""Of the directory of a log that is being created."""

_CHUNK_BYTES = 1024 * 1024
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """A log as found on disk: all of it durable, its end known."""

    view: LogView
    manifest: ManifestWriter
    producers: ProducerTable
    gaps: tuple[tuple[int, int], ...]
    """Ranges of numbers that a repair gave up."""
    unsaved_bytes: int = 0
    """Bytes of log that the manifest does not cover yet."""


def recover_log(directory: Path, *, files: Files, options: LogOptions) -> RecoveredLog:
    """Open the log in ``directory``. Raises LogCorruptError, LogFormatError, OSError."""
    found = examine(directory, files=files, options=options, is_deep=False)
    if found.damages:
        damage = found.damages[0]
        path = directory / MANIFEST_NAMES[0] if damage.path == directory else damage.path
        raise corrupt_error(path, damage.position, damage.description)
    for path in found.leftovers:
        files.remove(path)
        files.remove(path.with_suffix(INDEX_SUFFIX))
    unsaved_bytes = 0
    if found.is_last_active:
        active = found.segments[-1]
        active.is_sealed = False
        if found.torn is not None:
            _cut_off(files, found.torn)
        unsaved_bytes = active.end_position - found.read_from
        if unsaved_bytes > 0:
            # Batches that were perhaps never synced are about to be served: make them durable first.
            _write_again(files, active, found.read_from)
        if found.torn is not None:
            _seal(files, found, active)
    if not found.is_end_proved:
        _logger.info(
            "The log %s was not closed. It ends before %d; nothing shows whether more was acknowledged in "
            "the last second before the service stopped.",
            directory,
            found.next_sequence_number,
        )
    manifest = found.result()
    manifest_files = ManifestFiles(files, directory)
    manifest_files.read()
    if found.notes:
        for path, description in found.notes:
            _logger.warning("%s: %s; it is saved again.", path, description)
    if found.notes or found.torn is not None:
        manifest_files.save(manifest, is_both=True)
    return RecoveredLog(
        _view(found),
        ManifestWriter(manifest, manifest_files),
        found.producers,
        found.manifest.gaps,
        unsaved_bytes,
    )


def create_log(directory: Path, log_id: bytes, *, files: Files) -> None:
    """Create an empty log, whole or not at all. It is durable once the directory above is synced.

    Raises OSError.
    """
    new = directory.with_name(directory.name + NEW_SUFFIX)
    files.remove_tree(new)
    files.make_directory(new)
    manifest = Manifest(revision=1, place=place_of(directory), log_id=log_id)
    ManifestFiles(files, new).save(manifest, is_both=True)
    files.rename(new, directory)


def _view(found: Examination) -> LogView:
    return LogView(
        tuple(found.segments),
        found.segments[-1].end_position if found.segments else 0,
        found.next_sequence_number,
        found.last_enqueued_time_ms,
        found.chain,
    )


def _cut_off(files: Files, torn: TornTail) -> None:
    _logger.warning(
        "Truncated %d bytes of %s at byte %d: an incomplete write, of which at most %d bytes may have been "
        "acknowledged, within the last second before the service stopped.",
        torn.length,
        torn.path,
        torn.position,
        torn.length,
    )
    file = files.open_writable(torn.path)
    try:
        file.truncate(torn.position)
        file.sync()
    finally:
        file.close()


def _seal(files: Files, found: Examination, active: Segment) -> None:
    """Begin another segment after a cut: bytes that were cut off and come back later do not pass there."""
    found.is_last_active = False
    active.is_sealed = True
    active.file_bytes = active.end_position
    if active.until_sequence_number == active.base_sequence_number:
        found.segments.pop()
        files.remove(active.path)


def _write_again(files: Files, active: Segment, start: int) -> None:
    """Make what follows ``start`` durable. After a failed sync the kernel takes its pages for written: a sync
    alone would not write them."""
    source = files.open_readable(active.path)
    try:
        file = files.open_writable(active.path)
        try:
            for position in range(start, active.end_position, _CHUNK_BYTES):
                chunk = source.read_at(min(_CHUNK_BYTES, active.end_position - position), position)
                write_all(file, [chunk], position)
            file.sync()
        finally:
            file.close()
    finally:
        source.close()

"""What a journal says about the logs: the bytes that their files must have.

A record is in the journal only if its bytes were written to the segment first, and what was written there is
never replaced by something else. So a record may be written again at any time: what the segment then has is
what it had. A replay consists of three things, all of them bytes at a place of a file:

    the batches of each record, in its segment
    a mark in the manifest that says how far the log went
    a doubt in the manifest of each log that was not closed, if the journal is damaged

A start and a repair write them (``write``), a check sees the files through them (``ReplayedFiles``): then all
of them examine the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogCorruptError
from tidegate.storage.files import Files, ReadableFile, write_all
from tidegate.storage.journal.overlay import Patches
from tidegate.storage.journal.reading import read_journal
from tidegate.storage.journal.records import JournalRecord
from tidegate.storage.manifest import FoundManifest, ManifestFiles, mark_patch, with_doubt
from tidegate.storage.segments.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    segment_bases,
    segment_path,
)

_MOVED_BYTES_MAX: Final = 64 * 1024
"""Our choice: what an editor or a script may insert or remove."""
_SKIPPED_SUFFIXES: Final = (".new", ".deleted")


@dataclass(slots=True)
class Replay:
    """What a journal says; see the module."""

    patches: Patches = field(default_factory=dict)
    problem: tuple[Path, str] | None = None
    """Which file of the journal is damaged, and how."""
    is_used: bool = False
    """Whether it has records, or is damaged: it must begin again."""
    doubted: int = 0
    """Logs that get a doubt."""
    failed: dict[Path, Exception] = field(default_factory=dict)
    """Directories of logs for which it may have records that cannot be written, and why: it must stay."""


def read_replay(files: Files, data_directory: Path, logs_directory: Path, owner: bytes | None) -> Replay:
    """What the journal of a data directory says. It changes nothing.

    Raises LogFormatError for a journal of another format, OSError.
    """
    found = read_journal(files, data_directory, owner)
    replay = Replay(problem=found.problem, is_used=bool(found.records) or found.problem is not None)
    if not replay.is_used:
        return replay
    by_log: dict[bytes, list[JournalRecord]] = {}
    for record in found.records:
        by_log.setdefault(record.part.log_id, []).append(record)
    for directory in _log_directories(files, logs_directory):
        try:
            _Log(files, directory, replay).take(by_log)
        except (LogCorruptError, OSError) as error:
            replay.failed[directory] = error
    return replay


def write(files: Files, replay: Replay) -> None:
    """Write what the journal says, durably; what fails is noted in ``replay.failed``."""
    for path, runs in replay.patches.items():
        try:
            is_there = files.exists(path)
            file = (files.open_writable if is_there else files.create)(path)
            try:
                for position, data in runs:
                    write_all(file, [data], position)
                file.sync()
            finally:
                file.close()
            if not is_there:
                files.sync_directory(path.parent)
        except OSError as error:
            replay.failed[path.parent] = error


def _log_directories(files: Files, logs_directory: Path) -> list[Path]:
    found = []
    try:
        for hub_id in files.list_names(logs_directory):
            if not hub_id.endswith(_SKIPPED_SUFFIXES):
                hub = logs_directory / hub_id
                found += [
                    hub / name for name in _names_in(files, hub) if not name.endswith(_SKIPPED_SUFFIXES)
                ]
    except FileNotFoundError:
        return []
    return found


def _names_in(files: Files, directory: Path) -> list[str]:
    try:
        return files.list_names(directory)
    except NotADirectoryError:
        return []


class _Log:
    """One partition's log, whose records are looked for."""

    def __init__(self, files: Files, directory: Path, replay: Replay) -> None:
        self._files = files
        self._directory = directory
        self._replay = replay
        self._headers: dict[Path, SegmentHeader | None] = {}

    def take(self, by_log: dict[bytes, list[JournalRecord]]) -> None:
        names = _names_in(self._files, self._directory)
        if not names:
            return
        found = ManifestFiles(self._files, self._directory).read()
        if found.manifest is not None:
            log_ids = {found.manifest.log_id}
        else:
            self._read_headers(names)
            log_ids = {header.log_id for header in self._headers.values() if header is not None}
        records = [record for log_id in log_ids for record in by_log.get(log_id, ())]
        if found.manifest is None and found.foreign_place is not None and records:
            raise LogCorruptError(f"{self._directory} is the log of the partition {found.foreign_place}.")
        if records:
            self._take_batches(records, found, names)
        self._note_end(records, found)

    def _take_batches(self, records: list[JournalRecord], found: FoundManifest, names: list[str]) -> None:
        places: dict[tuple[bytes, int, int], tuple[Path, int | None] | None] = {}
        moved: set[Path] = set()
        for part in (record.part for record in records):
            identity = part.log_id, part.base_sequence_number, part.salt
            if identity not in places:
                places[identity] = self._place_of(identity, found, names)
            place = places[identity]
            body = part.buffers[0]
            # What retention or a repair has removed since is not there, or behind the end.
            if place is None or (place[1] is not None and part.position + len(body) > place[1]):
                continue
            found_at, rest = self._find_moved(place[0], part.position, body, place[1])
            if found_at > part.position:
                continue  # bytes were inserted before it: what was moved must not be overwritten
            runs = self._replay.patches.setdefault(place[0], [])
            if found_at < part.position and place[0] not in moved:
                # Bytes were removed before it. What follows it goes back as well: the journal may lack some.
                moved.add(place[0])
                runs.append((part.position, rest))
            runs.append((part.position, body))

    def _place_of(
        self, identity: tuple[bytes, int, int], found: FoundManifest, names: list[str]
    ) -> tuple[Path, int | None] | None:
        """The file of a segment, and where it ended when it was sealed; None: it is not there."""
        segments = () if found.manifest is None else found.manifest.segments
        is_last_active = found.manifest is not None and found.manifest.is_last_active
        listed = [each for each in segments if _identity_of(each.header) == identity]
        end = None
        if listed and not (is_last_active and listed[-1] is segments[-1]):
            end = listed[-1].end_position
        path = segment_path(self._directory, identity[1])
        if path.name in names:
            header = self._header(path)
            if (header is None and listed) or (header is not None and _identity_of(header) == identity):
                return path, end
        self._read_headers(names)
        for other, header in self._headers.items():
            if header is not None and _identity_of(header) == identity:
                return other, end
        return None

    def _find_moved(self, path: Path, position: int, body: bytes, end: int | None) -> tuple[int, bytes]:
        """Where the batches are intact, and if that is before their place, the bytes from there that belong
        before ``end``; their place if they are nowhere."""
        file = self._files.open_readable(path)
        try:
            if file.read_at(len(body), position) == body:
                return position, b""
            start = max(0, position - _MOVED_BYTES_MAX)
            found = file.read_at(position - start + len(body) + _MOVED_BYTES_MAX, start).find(body)
            if found < 0:
                return position, b""
            at = start + found
            rest = file.size() if end is None else end - (position - at)
            return at, file.read_at(rest - at, at) if at < position else b""
        finally:
            file.close()

    def _note_end(self, records: list[JournalRecord], found: FoundManifest) -> None:
        manifest, mark = found.manifest, found.mark
        if manifest is None or mark is None:
            return
        last = max((each.part for each in records), key=lambda part: part.until_sequence_number, default=None)
        if last is not None and last.until_sequence_number > mark.next_sequence_number:
            mark = type(mark)(mark.revision, last.until_sequence_number, last.chain)
        problem = self._replay.problem
        if problem is not None and not manifest.is_closed and not manifest.doubt:
            path, text = problem
            doubt = f"{path.name}: {text}; it is not known how far the log went"
            self._replay.doubted += 1
            self._replay.patches.update(with_doubt(self._directory, found, mark, doubt))
        elif mark is not found.mark:
            path, run = mark_patch(self._directory, found, mark)
            self._replay.patches[path] = [run]

    def _read_headers(self, names: list[str]) -> None:
        for base in segment_bases(names):
            self._header(segment_path(self._directory, base))

    def _header(self, path: Path) -> SegmentHeader | None:
        if path not in self._headers:
            file: ReadableFile = self._files.open_readable(path)
            try:
                self._headers[path] = decode_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0))
            finally:
                file.close()
        return self._headers[path]


def _identity_of(header: SegmentHeader) -> tuple[bytes, int, int]:
    return header.log_id, header.base_sequence_number, header.salt

"""The one opinion on a partition's log: what is damaged, what is lost, and what the log is without it.

A start, ``tidegate check`` and ``tidegate check --repair`` all call ``examine``; they differ in how much they
read, and in what they may change. It changes nothing itself.

Theory of operation. The manifest says which segments there are and how far each went; what follows its
number is read and verified. A batch counts if its checksum fits this log and segment, its number follows the
one before it, and it names that one's checksum. Where that ends, at byte X of the last segment, there are two
cases:

    damage      the manifest's number (or its mark's) was not reached; or an intact batch behind X was written
                when X was durable; or another segment follows
    torn tail   nothing shows that the bytes behind X were ever durable: a round that a kill or a power loss
                interrupted. A mark is saved within a second of a write, so at most what was acknowledged
                since can be among them, and that is said

Damage leaves a gap in the numbers. What is intact behind it is kept, as a segment of its own in the same
file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogFormatError
from tidegate.storage.examination.findings import Damage, Examination, TornTail
from tidegate.storage.examination.walk import End, Hole, Walk, beginning_of
from tidegate.storage.files import Files
from tidegate.storage.manifest import FoundManifest, Manifest, ManifestFiles, Mark, place_of
from tidegate.storage.options import LogOptions
from tidegate.storage.producers import ProducerTable
from tidegate.storage.record import NO_PRODUCER_ID, BatchHeader, ProducerBatch
from tidegate.storage.segments.segment import (
    FIRST_FORMAT_MAGIC,
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    decode_segment_header,
    first_format_error,
    segment_bases,
    segment_path,
)
from tidegate.storage.segments.sparse_index import SparseIndex

UNKNOWN_NUMBERS: Final = 1_000_000_000
"""Our choice: so many numbers are left out where it is not known how many were given, so that none is given
twice."""


def examine(
    directory: Path,
    *,
    files: Files,
    options: LogOptions,
    is_deep: bool,
    on_progress: Callable[[int], None] = lambda bytes_read: None,
) -> Examination:
    """Look at the log in ``directory``; see the module.

    is_deep: read everything; otherwise what the manifest does not cover, and the sizes of the files. Deep
    damage then shows when it is read. on_progress: called with the bytes of segments read so far.

    Raises LogFormatError for a format or feature that is not known, OSError.
    """
    try:
        names = files.list_names(directory)
    except FileNotFoundError:
        result = Examination(directory, Manifest(0, place_of(directory), bytes(16)), Mark(0, 0, 0))
        text = "the partition's whole directory is missing"
        result.damages.append(Damage(directory, 0, text, (0, None), is_repairable=False))
        return result
    try:
        found = ManifestFiles(files, directory).read()
        return _Examiner(directory, files, options, names, found, on_progress, is_deep=is_deep).run()
    except LogFormatError as error:
        raise LogFormatError(f"{error.message} The log is {directory}.", next_step=error.next_step) from None


class _Examiner:
    def __init__(
        self,
        directory: Path,
        files: Files,
        options: LogOptions,
        names: list[str],
        found: FoundManifest,
        on_progress: Callable[[int], None],
        *,
        is_deep: bool,
    ) -> None:
        self._directory = directory
        self._files = files
        self._options = options
        self._names = frozenset(names)
        self._bases = segment_bases(names)
        self._found = found
        self._on_progress = on_progress
        self._is_deep = is_deep
        self._is_rebuilt = found.manifest is None
        manifest = found.manifest or Manifest(0, place_of(directory), bytes(16))
        self._manifest = manifest
        self.result = Examination(directory, manifest, found.mark or manifest.mark)
        self._headers: dict[SegmentHeader, Path] | None = None
        self._sizes: dict[Path, int] = {}
        self._expected = manifest.removed_until
        """One past the last number accounted for."""

    def run(self) -> Examination:
        result, manifest = self.result, self._manifest
        if self._is_rebuilt and self._found.foreign_place is not None:
            text = f"this is the log of the partition {self._found.foreign_place}: move it back there"
            result.damages.append(Damage(self._directory, 0, text, (0, None), is_repairable=False))
            return result
        if self._is_rebuilt:
            manifest = self._begin_without_manifest()
        else:
            result.notes += self._found.problems
        result.producers = ProducerTable(self._options.producers_max)
        for producer_id, state in (manifest.producers or {}).items():
            result.producers.restore(producer_id, state)
        result.chain, result.last_enqueued_time_ms = manifest.chain, manifest.last_enqueued_time_ms
        sealed = manifest.segments[:-1] if manifest.is_last_active else manifest.segments
        for number, segment in enumerate(sealed):
            self._take_sealed(segment, sealed[number + 1 : number + 2])
        following = self._unlisted_after()
        if manifest.is_last_active:
            self._take_active(manifest.segments[-1], is_followed=bool(following))
        for number, segment in enumerate(following):
            self._take_unlisted(segment, is_followed=number + 1 < len(following))
        self._conclude()
        return result

    def _conclude(self) -> None:
        result = self.result
        last = result.segments[-1] if result.segments else None
        end = last.until_sequence_number if last is not None else 0
        if last is not None and last.index is None:
            last.index = self._manifest.index
        self._skip_known_gaps()
        self._lose(self._directory, 0, "the newest events are missing", result.mark.next_sequence_number)
        if self._is_rebuilt or self._manifest.doubt:
            text = self._manifest.doubt or "it is not known how far the log went"
            lost = Damage(self._directory, 0, text, (self._expected, None))
            result.damages.append(lost)
            result.gaps.append((self._expected, self._expected + UNKNOWN_NUMBERS))
            self._expected += UNKNOWN_NUMBERS
        result.next_sequence_number = max(self._expected, end)
        if last is not None:
            result.chain = last.last_chain
            if last.last_time_ms is not None:
                result.last_enqueued_time_ms = last.last_time_ms
        if end != result.next_sequence_number:
            result.is_last_active = False
        self._sort_out_files()

    def _begin_without_manifest(self) -> Manifest:
        """What can be known if both copies are missing or damaged: the log's id, from its segments."""
        headers = list(self._headers_found())
        if not headers:
            for base in self._bases:
                if self._read(segment_path(self._directory, base), 8) == FIRST_FORMAT_MAGIC:
                    raise first_format_error()
            if self._files.exists(self._directory / "state"):
                raise first_format_error()
        ids = [header.log_id for header in headers]
        log_id = max(ids, key=ids.count) if ids else bytes(16)
        self._manifest = replace(self._manifest, log_id=log_id, is_closed=False)
        self.result.manifest = self._manifest
        for path, description in self._found.problems:
            self.result.damages.append(Damage(path, 0, description))
        self._expected = next((h.base_sequence_number for h in headers if h.log_id == log_id), 0)
        return self._manifest

    # -- segments

    def _take_sealed(self, segment: Segment, after: tuple[Segment, ...]) -> None:
        """A segment whose end is known. after: the next one, which may be of the same file."""
        self._skip_known_gaps()
        path = self._locate(segment)
        until = segment.until_sequence_number
        self._expected = max(self._expected, segment.base_sequence_number)
        if path is None:
            self._lose(segment.path, 0, "the segment's file is missing", until)
            return
        size = self._size(path)
        if not self._is_deep:
            if size != segment.file_bytes:
                text = f"the file has {size} bytes and had {segment.file_bytes}"
                self.result.damages.append(Damage(path, min(size, segment.file_bytes), text))
            self.result.segments.append(segment)
            self._expected = until
            return
        shares_file = bool(after) and after[0].path == segment.path
        limit = after[0].start_position if shares_file else size
        begin = self._beginning_of(segment, path)
        damages_before = len(self.result.damages)
        parts = self._walk(begin, limit, End((until, segment.last_chain), until))
        self._lose(path, min(size, segment.end_position), "the file ends too early", until)
        if size != segment.file_bytes and not shares_file and len(self.result.damages) == damages_before:
            text = f"the file has {size} bytes and had {segment.file_bytes}"
            self.result.damages.append(Damage(path, min(size, segment.file_bytes), text))
        for part in parts:
            part.file_bytes = size
        self._check_index(segment, parts)
        if parts:
            self._check_header(segment, path)
        self.result.segments += parts

    def _take_active(self, segment: Segment, *, is_followed: bool) -> None:
        self._skip_known_gaps()
        self._expected = max(self._expected, segment.base_sequence_number)
        path = self._locate(segment)
        if path is None:
            until = self.result.mark.next_sequence_number
            self._lose(segment.path, 0, "the segment's file is missing", until)
            return  # without a loss: a creation that failed, or whose file was empty
        index = self._manifest.index
        if self._is_deep or index is None or index.end_position != segment.end_position:
            segment = self._beginning_of(segment, path)
        else:
            segment.index = index
            self._expected = segment.until_sequence_number
        self._take_open_end(segment, path, is_followed=is_followed)

    def _take_unlisted(self, segment: Segment, *, is_followed: bool) -> None:
        """A segment behind those of the manifest: the copy that lists it is damaged."""
        base = segment.base_sequence_number
        is_first = self._is_rebuilt and not self.result.segments
        is_linked = is_first or base > self._expected or segment.chain == self._last_chain()
        if base < self._expected or not is_linked:
            return  # no part of this log
        self._lose(segment.path, 0, "the events before it are missing", base)
        self._expected = base
        begin = self._beginning_of(segment, segment.path)
        self._take_open_end(begin, segment.path, is_followed=is_followed)

    def _take_open_end(self, begin: Segment, path: Path, *, is_followed: bool) -> None:
        """A segment that may have further batches than the manifest knows of."""
        size = self._size(path)
        result, damages_before = self.result, len(self.result.damages)
        result.read_from = begin.end_position
        is_empty = begin.until_sequence_number == begin.base_sequence_number
        if size < begin.end_position and not is_empty:
            text = f"the file ends there and had {begin.end_position} durable bytes"
            result.damages.append(Damage(path, size, text))
        pin = (result.mark.next_sequence_number, result.mark.chain)
        parts = self._walk(begin, size, End(pin, is_followed=is_followed))
        if self._is_deep and parts:
            self._check_header(begin, path)
        is_whole = len(result.damages) == damages_before
        if not parts and is_whole and self._header(path) == begin.header:
            parts = [begin]  # nothing was written to it yet
        for part in parts:
            part.file_bytes = size
        result.segments += parts
        result.is_last_active = len(parts) == 1 and is_whole

    def _walk(self, begin: Segment, limit: int, end: End) -> list[Segment]:
        """The intact parts of a segment's file; damage is noted, and a torn tail."""
        result = self.result
        file = self._files.open_readable(begin.path)
        try:
            walk = Walk(
                file,
                begin,
                limit,
                end,
                known_until=result.mark.next_sequence_number,
                interval_bytes=self._options.index_interval_bytes,
                cuts=self._manifest.cuts,
            )
            for found in walk.run():
                if isinstance(found, Hole):
                    self._note_hole(begin, found, end)
                else:
                    self._take_in(*found)
        finally:
            file.close()
        is_first = begin.start_position == SEGMENT_HEADER_BYTES
        result.bytes_read += max(limit - (0 if is_first else begin.start_position), 0)
        self._on_progress(result.bytes_read)
        return [part for part in walk.parts if part.until_sequence_number > part.base_sequence_number]

    def _beginning_of(self, segment: Segment, path: Path) -> Segment:
        return beginning_of(segment, path, interval_bytes=self._options.index_interval_bytes)

    def _note_hole(self, begin: Segment, hole: Hole, end: End) -> None:
        self._expected = min(self._expected, hole.number)
        if hole.is_torn:
            length = hole.end_position - hole.position
            self.result.torn = TornTail(begin.path, hole.position, length)
        elif hole.until is not None:
            length = hole.end_position - hole.position
            text = f"{length} bytes are damaged" if length else "batches are missing"
            self._lose(begin.path, hole.position, text, hole.until, is_always=True)
        else:
            until = self.result.mark.next_sequence_number if end.until is None else end.until
            is_foreign = self._header(begin.path) not in (begin.header, None)
            text = "the file is another segment's" if is_foreign else "the rest of the segment is damaged"
            self._lose(begin.path, hole.position, text, until, is_always=end.until is None)

    def _take_in(self, position: int, header: BatchHeader) -> None:
        result = self.result
        self._expected = header.until_sequence_number
        result.batches += 1
        result.events += header.event_count
        self._on_progress(result.bytes_read + position)
        if header.base_sequence_number < self._manifest.next_sequence_number and not self._is_rebuilt:
            return  # the manifest has it
        if header.producer_id != NO_PRODUCER_ID:
            batch = ProducerBatch(header.producer_id, header.producer_epoch, header.producer_sequence)
            result.producers.record(
                batch,
                header.event_count,
                header.base_sequence_number,
                header.enqueued_time_ms,
                header.body_crc,
            )
            result.producers.trim()

    # -- files

    def _unlisted_after(self) -> list[Segment]:
        """Segments behind those that the manifest lists; by their headers, as nothing else names them."""
        listed = self._manifest.segments
        last = listed[-1].header.base_sequence_number if listed else -1
        found = []
        for base in self._bases:
            path = segment_path(self._directory, base)
            if base <= last or any(path == segment.path for segment in listed):
                continue
            header = self._header(path)
            if header is None and self._size(path) > SEGMENT_HEADER_BYTES:
                text = "the segment's header is damaged"
                if self._is_rebuilt:
                    self.result.damages.append(Damage(path, 0, text, (base, None)))
            is_ours = header is not None and header.log_id == self._manifest.log_id
            if header is not None and is_ours and header.base_sequence_number == base:
                found.append(Segment(path, header))
        while found and self._size(found[-1].path) <= SEGMENT_HEADER_BYTES:
            found.pop()  # a segment whose creation was interrupted
        return found

    def _sort_out_files(self) -> None:
        result = self.result
        used = {segment.path for segment in result.segments}
        for base in self._bases:
            path = segment_path(self._directory, base)
            if path in used:
                continue
            is_removed = base < self._manifest.removed_until
            if is_removed or self._size(path) <= SEGMENT_HEADER_BYTES:
                result.leftovers.append(path)
            else:
                result.unlisted.append(path)
                result.bytes_read += self._size(path)
                if not any(damage.path == path for damage in result.damages):
                    result.damages.append(Damage(path, 0, "the file is not a part of this log"))
        result.segment_files = len(used)

    def _locate(self, segment: Segment) -> Path | None:
        """The file of a listed segment: under its name, or, if that is another's, wherever it is."""
        exists = segment.path.name in self._names
        if exists and not self._is_deep:
            return segment.path
        if exists and self._header(segment.path) in (segment.header, None):
            return segment.path
        moved = self._headers_found().get(segment.header)
        if moved is not None and moved != segment.path:
            text = f"the segment is in the file {moved.name}"
            self.result.damages.append(Damage(segment.path, 0, text))
            return moved
        return segment.path if exists else None

    def _headers_found(self) -> dict[SegmentHeader, Path]:
        if self._headers is None:
            paths = [segment_path(self._directory, base) for base in self._bases]
            headers = [(self._header(path), path) for path in paths]
            self._headers = {header: path for header, path in headers if header is not None}
        return self._headers

    def _check_header(self, segment: Segment, path: Path) -> None:
        if self._header(path) != segment.header and path not in self.result.headers:
            self.result.damages.append(Damage(path, 0, "the segment's header is damaged"))
            self.result.headers[path] = segment.header

    def _check_index(self, segment: Segment, parts: list[Segment]) -> None:
        for part in parts:
            try:
                data = self._read(part.index_path, None)
            except FileNotFoundError:
                continue
            index = SparseIndex.decode(data, segment.seed)
            if index is None or (index.end_position, index.until_sequence_number) != (
                part.end_position,
                part.until_sequence_number,
            ):
                self.result.notes.append((part.index_path, "the index is incomplete or damaged"))
                self.result.stale_indexes.append(part.index_path)

    def _header(self, path: Path) -> SegmentHeader | None:
        return decode_segment_header(self._read(path, SEGMENT_HEADER_BYTES))

    def _size(self, path: Path) -> int:
        if path not in self._sizes:
            file = self._files.open_readable(path)
            try:
                self._sizes[path] = file.size()
            finally:
                file.close()
        return self._sizes[path]

    def _read(self, path: Path, count: int | None) -> bytes:
        file = self._files.open_readable(path)
        try:
            return file.read_at(file.size() if count is None else count, 0)
        finally:
            file.close()

    # -- numbers

    def _lose(
        self, path: Path, position: int, description: str, until: int, *, is_always: bool = False
    ) -> None:
        """Give up the numbers from the last one accounted for up to ``until``."""
        if self._expected < until:
            self.result.damages.append(Damage(path, position, description, (self._expected, until)))
            self.result.gaps.append((self._expected, until))
            self._expected = until
        elif is_always:
            self.result.damages.append(Damage(path, position, description))

    def _skip_known_gaps(self) -> None:
        for start, until in self._manifest.gaps:
            if start <= self._expected < until:
                self._expected = until

    def _last_chain(self) -> int:
        segments = self.result.segments
        return segments[-1].last_chain if segments else self._manifest.chain

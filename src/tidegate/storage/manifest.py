"""The manifest of a partition's log: what it is, and how far it went.

Segments show that their bytes are intact; the manifest says which segments there are and how far each went,
so that nothing is missing without notice. It also holds the state at its number (producers, and the index of
the last segment), so that a start reads only what comes after. There are two copies, ``manifest.0`` and
``manifest.1``, from the creation of the partition on; a save overwrites the older one in place:

    0       a mark (see ``Mark``): how far the log went since the copy was saved; zeros if there is none
    4096    magic b"TIDEMAN2", CRC32C of the rest (4 bytes), length of the JSON (4), of the index (4),
            revision (8), JSON, index of the last segment

A save that is interrupted leaves the other copy; a save in place also works on a full disk. If both copies
are missing or damaged, the log is damaged: it is never taken for a new one.
"""

from __future__ import annotations

import json
import logging
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import google_crc32c

from tidegate.model.errors import LogFormatError
from tidegate.model.history import HISTORIES_MAX, History
from tidegate.storage.files import Files, read_whole, write_all
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import OTHER_VERSION
from tidegate.storage.segments.segment import Segment, SegmentHeader
from tidegate.storage.segments.sparse_index import SparseIndex

MANIFEST_NAMES: Final = ("manifest.0", "manifest.1")
_COPY_START: Final = 4096
_COPY_MULTIPLE: Final = 4096
"""A copy is filled up to a multiple of this, so that most saves do not change the file's size."""
_MAGIC = b"TIDEMAN2"
_HEADER = struct.Struct("<8sIIIq")
_CRC_START = 12
_MARK = struct.Struct("<8sqqI")
_MARK_MAGIC = b"TIDEMRK2"
_CRC = struct.Struct("<I")
_INDEX_SEED = 0
"""The copy has a checksum of its own around the index."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the log went: everything before it was durable, and perhaps acknowledged."""

    revision: int
    """Of the manifest at that time."""
    next_sequence_number: int
    chain: int
    """The checksum of the last batch before it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a copy."""

    revision: int
    place: str
    """"<hub id>/<partition id>": another partition's manifest is not taken for this one's."""
    log_id: bytes
    segments: tuple[Segment, ...] = ()
    """Intact parts of segment files, oldest first."""
    is_last_active: bool = False
    """Whether the last segment takes further batches."""
    next_sequence_number: int = 0
    chain: int = 0
    """The checksum of the last batch; 0 if there was none."""
    last_enqueued_time_ms: int | None = None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
    removed_until: int = 0
    """Retention removed every segment that begins before this number."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of numbers that a repair gave up."""
    histories: tuple[History, ...] = ()
    """A random id for each start and each repair after which events were stored, with the first number."""
    cuts: tuple[int, ...] = ()
    """Numbers from which on a write was taken back, ascending; the oldest of many are left out."""
    is_closed: bool = True
    """Whether nothing was appended since: a stopped service closed the log."""
    doubt: str = ""
    """Why it is not known how far the log went: the journal was damaged while it was not closed."""
    features: tuple[str, ...] = ()
    """Features without which the log cannot be read."""
    optional_features: tuple[str, ...] = ()
    producers: dict[int, ProducerState] | None = None
    index: SparseIndex | None = None
    """Of the last segment, up to its end."""

    @property
    def mark(self) -> Mark:
        """How far the log went when it was saved."""
        return Mark(self.revision, self.next_sequence_number, self.chain)


@dataclass(slots=True)
class FoundManifest:
    """What was read of the two copies."""

    manifest: Manifest | None = None
    """The newest; None if neither is intact."""
    copy: int = 0
    """Which one it is."""
    mark: Mark | None = None
    """The farthest."""
    problems: tuple[tuple[Path, str], ...] = ()
    """Copies that are missing, incomplete or another partition's."""
    foreign_place: str | None = None
    """Whose manifest was found instead."""


class ManifestFiles:
    """The two files of a partition."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._next_copy = 0
        """The one to overwrite next: the older, or the one whose overwriting failed."""
        self._mark_copy = 0

    def read(self) -> FoundManifest:
        """Read both copies. Raises LogFormatError for a feature that is not known, OSError."""
        found = FoundManifest()
        marks: list[bytes] = []
        problems = []
        for copy, name in enumerate(MANIFEST_NAMES):
            path = self._directory / name
            try:
                data = read_whole(self._files, path)
            except FileNotFoundError:
                problems.append((path, "the copy of the manifest is missing"))
                continue
            manifest = decode_manifest(data, self._directory)
            if manifest is None:
                problems.append((path, "the copy of the manifest is incomplete or damaged"))
            elif manifest.place != place_of(self._directory):
                found.foreign_place = manifest.place
                problems.append((path, f"it is the manifest of the partition {manifest.place}"))
            else:
                marks.append(data[: _MARK.size + _CRC.size])
                if found.manifest is None or manifest.revision > found.manifest.revision:
                    found.manifest, found.copy = manifest, copy
                continue
            marks.append(data[: _MARK.size + _CRC.size])
        found.problems = tuple(problems)
        if found.manifest is not None:
            found.mark = _farthest(found.manifest, marks)
            self._next_copy = 1 - found.copy
        return found

    def save(self, manifest: Manifest, *, is_both: bool = False) -> None:
        """Save durably, over the older copy. Raises OSError: the other copy then still stands.

        is_both: both copies, for what may not be forgotten with one of them.
        """
        data = encode_manifest(manifest)
        for _ in range(2 if is_both else 1):
            self._write(self._next_copy, data)
            self._next_copy = 1 - self._next_copy

    def save_mark(self, log_id: bytes, mark: Mark) -> None:
        """Note how far the log went. It survives a kill; a power loss once the system has written it.

        Raises OSError.
        """
        self._mark_copy = 1 - self._mark_copy
        file = self._files.open_writable(self._directory / MANIFEST_NAMES[self._mark_copy])
        try:
            # Within a sector: it is replaced as a whole.
            write_all(file, [_encode_mark(log_id, mark)], 0)
        finally:
            file.close()

    def _write(self, copy: int, data: bytes) -> None:
        path = self._directory / MANIFEST_NAMES[copy]
        is_new = not self._files.exists(path)
        file = self._files.create(path) if is_new else self._files.open_writable(path)
        try:
            write_all(file, [data], _COPY_START)
            file.sync()
        finally:
            file.close()
        if is_new:
            self._files.sync_directory(self._directory)


def mark_patch(directory: Path, found: FoundManifest, mark: Mark) -> tuple[Path, tuple[int, bytes]]:
    """The file, position and bytes of a mark that is farther than the one found."""
    assert found.manifest is not None
    data = _encode_mark(found.manifest.log_id, replace(mark, revision=found.manifest.revision))
    return directory / MANIFEST_NAMES[found.copy], (0, data)


def with_doubt(
    directory: Path, found: FoundManifest, mark: Mark, doubt: str
) -> dict[Path, list[tuple[int, bytes]]]:
    """The file, positions and bytes of a copy with a doubt, and of its mark; over the older copy."""
    assert found.manifest is not None
    manifest = replace(found.manifest, revision=mark.revision + 1, doubt=doubt)
    data = _encode_mark(manifest.log_id, replace(mark, revision=manifest.revision))
    return {directory / MANIFEST_NAMES[1 - found.copy]: [(0, data), (_COPY_START, encode_manifest(manifest))]}


def place_of(directory: Path) -> str:
    """The name of a partition: "<hub id>/<partition id>"."""
    return f"{directory.parent.name}/{directory.name.removesuffix('.new')}"


def encode_manifest(manifest: Manifest) -> bytes:
    """A copy as bytes, from ``_COPY_START`` on."""
    document = {
        "place": manifest.place,
        "log_id": manifest.log_id.hex(),
        "features": manifest.features,
        "optional_features": manifest.optional_features,
        "segments": [_encode_segment(segment) for segment in manifest.segments],
        "is_last_active": manifest.is_last_active,
        "next_sequence_number": manifest.next_sequence_number,
        "chain": manifest.chain,
        "last_enqueued_time_ms": manifest.last_enqueued_time_ms,
        "removed_until": manifest.removed_until,
        "gaps": manifest.gaps,
        "histories": manifest.histories,
        "cuts": manifest.cuts,
        "is_closed": manifest.is_closed,
        "doubt": manifest.doubt,
    }
    # In parts: one call for thousands of batches would hold the interpreter, and the event loop, for 14 ms.
    producers = ",".join(
        f"[{producer_id},{state.epoch},{state.next_sequence},[{state.batches}]]"
        for producer_id, state in (manifest.producers or {}).items()
    )
    text = f'{json.dumps(document, separators=(",", ":"))[:-1]},"producers":[{producers}]}}'.encode()
    index = b"" if manifest.index is None else manifest.index.encode(_INDEX_SEED)
    content = _HEADER.pack(_MAGIC, 0, len(text), len(index), manifest.revision) + text + index
    crc: int = google_crc32c.value(content[_CRC_START:])
    data = content[:8] + _CRC.pack(crc) + content[_CRC_START:]
    return data + bytes(-len(data) % _COPY_MULTIPLE)


def decode_manifest(data: bytes, directory: Path) -> Manifest | None:
    """The copy in the contents of a file; None if it is not intact. Raises LogFormatError for a feature that
    is needed and not known."""
    if len(data) < _COPY_START + _HEADER.size:
        return None
    magic, crc, text_length, index_length, revision = _HEADER.unpack_from(data, _COPY_START)
    text_start = _COPY_START + _HEADER.size
    end = text_start + text_length + index_length
    if magic != _MAGIC or end > len(data) or google_crc32c.value(data[_COPY_START + _CRC_START : end]) != crc:
        return None
    document = json.loads(data[text_start : text_start + text_length])
    if document["features"]:
        raise LogFormatError(
            f"The log needs the feature {', '.join(document['features'])}, which this version of Tidegate "
            "does not know.",
            next_step=OTHER_VERSION,
        )
    log_id = bytes.fromhex(document["log_id"])
    return Manifest(
        revision=revision,
        place=document["place"],
        log_id=log_id,
        segments=tuple(_decode_segment(each, log_id, directory) for each in document["segments"]),
        is_last_active=document["is_last_active"],
        next_sequence_number=document["next_sequence_number"],
        chain=document["chain"],
        last_enqueued_time_ms=document["last_enqueued_time_ms"],
        removed_until=document["removed_until"],
        gaps=tuple((start, until) for start, until in document["gaps"]),
        histories=tuple(History(*each) for each in document["histories"]),
        cuts=tuple(document["cuts"]),
        is_closed=document["is_closed"],
        doubt=document.get("doubt", ""),
        optional_features=tuple(document["optional_features"]),
        producers={
            producer_id: ProducerState(epoch, following, json.dumps(recent, separators=(",", ":"))[1:-1])
            for producer_id, epoch, following, recent in document["producers"]
        },
        index=SparseIndex.decode(data[text_start + text_length : end], _INDEX_SEED),
    )


def with_history(manifest: Manifest, history: str) -> Manifest:
    """The manifest with a history that begins at its next number.

    Left out: histories without an event, those whose events retention has removed, and the oldest of more
    than ``HISTORIES_MAX``.
    """
    first = manifest.next_sequence_number
    histories = [each for each in manifest.histories if each.first_sequence_number < first]
    ends = [*(each.first_sequence_number for each in histories), first][1:]
    kept = [each for each, end in zip(histories, ends, strict=True) if end > manifest.removed_until]
    return replace(manifest, histories=(*kept, History(history, first))[-HISTORIES_MAX:])


def merged(gaps: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Ranges in order; those that touch are one."""
    result: list[tuple[int, int]] = []
    for start, until in sorted(gaps):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], until))
        else:
            result.append((start, until))
    return tuple(result)


def _encode_segment(segment: Segment) -> list[object]:
    header = segment.header
    return [
        segment.path.name,
        [header.base_sequence_number, header.salt, header.chain, header.compatible, header.incompatible],
        [segment.base_sequence_number, segment.start_position, segment.chain],
        [segment.until_sequence_number, segment.end_position, segment.last_chain, segment.last_time_ms],
        segment.file_bytes,
    ]


def _decode_segment(document: list[object], log_id: bytes, directory: Path) -> Segment:
    name, header, begin, end, file_bytes = document
    assert isinstance(name, str)
    assert isinstance(header, list)
    assert isinstance(begin, list)
    assert isinstance(end, list)
    assert isinstance(file_bytes, int)
    segment = Segment(
        directory / name,
        SegmentHeader(log_id, *header),
        base_sequence_number=begin[0],
        start_position=begin[1],
        chain=begin[2],
    )
    segment.until_sequence_number, segment.end_position, segment.last_chain, segment.last_time_ms = end
    segment.file_bytes = file_bytes
    return segment


def _farthest(manifest: Manifest, marks: list[bytes]) -> Mark:
    best = manifest.mark
    for data in marks:
        if len(data) < _MARK.size + _CRC.size:
            continue
        content = data[: _MARK.size]
        magic, revision, following, chain = _MARK.unpack(content)
        (crc,) = _CRC.unpack_from(data, _MARK.size)
        is_intact = magic == _MARK_MAGIC and crc == _mark_crc(manifest.log_id, content)
        # A mark of an earlier manifest says nothing that this one does not.
        if is_intact and revision >= manifest.revision and following > best.next_sequence_number:
            best = Mark(revision, following, chain)
    return best


def _encode_mark(log_id: bytes, mark: Mark) -> bytes:
    content = _MARK.pack(_MARK_MAGIC, mark.revision, mark.next_sequence_number, mark.chain)
    return content + _CRC.pack(_mark_crc(log_id, content))


def _mark_crc(log_id: bytes, content: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(log_id), content)
    return crc

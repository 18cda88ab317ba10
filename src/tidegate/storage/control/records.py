"""The records of a control log's file, without any I/O.

    header      the log's id, format and features, and how many values follow
    values      the value of each key when the file was written, in the order of the keys' creation
    changes     each later change, of one key or of several together, numbered without gaps

Each record proves itself (a digest of all its bytes) and its place (it repeats the digest of the record
before it), so no record can be altered, omitted, exchanged or moved unnoticed.

    4  marker                         16  digest of the record before; zeros in the header
    4  length of the body              n  body: a line of JSON, then the value, or the values end to end
    8  revision                       16  BLAKE2b of everything before it
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tidegate.model.errors import LATER_VERSION, LogFormatError
from tidegate.storage.engine import Cell, ControlChange

FORMAT: Final = 1
FEATURES: Final[frozenset[str]] = frozenset()
"""Features without which a file cannot be read; none yet."""

_CHANGE_FIELDS: Final = frozenset({"key", "removed", "changes"})
"""What a change says of itself."""

_MARKER: Final = b"TGcr"
_HEAD: Final = struct.Struct("<4sIQ16s")
_DIGEST_BYTES: Final = 16
RECORD_BYTES_MIN: Final = _HEAD.size + _DIGEST_BYTES
NO_DIGEST: Final = bytes(_DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose digest is right."""

    start: int
    """Where it begins in its file, bytes."""
    end: int
    revision: int
    """Of the log after this change; of the header, of the log when the file was written."""
    previous: bytes
    """Digest of the record before it."""
    digest: bytes
    about: Mapping[str, object]
    """Of the header: ``format``, ``features``, ``log_id``, ``count``. Of others: ``key``, and ``removed``; or
    ``changes``, a list of [key, length of its value, or null where it is removed]."""
    value: bytes

    @property
    def is_header(self) -> bool:
        return "log_id" in self.about

    def changes(self) -> Iterator[tuple[str, bytes | None]]:
        """The changed keys and their values; None: the key is removed."""
        together: Sequence[tuple[str, int | None]] | None = self.about.get("changes")  # type: ignore[assignment]
        if together is None:
            yield str(self.about["key"]), None if self.about.get("removed") is True else self.value
            return
        start = 0
        for key, length in together:
            yield key, None if length is None else self.value[start : start + length]
            start += length or 0

    @property
    def count(self) -> int:
        """Of a header: the values that follow."""
        return int(str(self.about["count"]))


@dataclass(slots=True)
class ControlFile:
    """What a file of a control log holds, as far as it is sound."""

    path: Path
    log_id: str = ""
    """Empty: the header is damaged."""
    revision: int = 0
    """After the last sound change."""
    revision_seen: int = 0
    """The highest of any record that is whole, also behind damage."""
    cells: dict[str, Cell] = field(default_factory=dict)
    last: Record | None = None
    last_bytes: bytes = b""
    """The last record, as it stands in the file."""
    end: int = 0
    """One past the last sound record."""
    values_missing: int = 0
    """Values that the header announces and that are not there."""
    is_sound: bool = False
    """Whether every byte belongs to a sound record."""

    def apply(self, record: Record) -> None:
        """Make a change's effect that of the newest one."""
        for key, value in record.changes():
            if value is None:
                self.cells.pop(key, None)
            else:
                self.cells[key] = Cell(record.revision, value)


def encode_header(log_id: str, revision: int, count: int) -> bytes:
    """The first record of a file. revision: of the log; count: of the values that follow."""
    about = {"format": FORMAT, "features": sorted(FEATURES), "log_id": log_id, "count": count}
    return _encode(revision, NO_DIGEST, about, b"")


def encode_change(revision: int, previous: bytes, key: str, value: bytes | None) -> bytes:
    """A record of a key's value; None: the key is removed."""
    about = {"key": key} if value is not None else {"key": key, "removed": True}
    return _encode(revision, previous, about, value or b"")


def encode_changes(revision: int, previous: bytes, changes: Sequence[ControlChange]) -> bytes:
    """A record of several changes, which are made all or not at all."""
    if len(changes) == 1:
        return encode_change(revision, previous, changes[0].key, changes[0].value)
    lengths = [[each.key, None if each.value is None else len(each.value)] for each in changes]
    return _encode(revision, previous, {"changes": lengths}, b"".join(each.value or b"" for each in changes))


def size_of(key: str, value: bytes) -> int:
    """About the bytes of a record of one key."""
    return RECORD_BYTES_MIN + len(key.encode()) + len(value)


def digest_of(record: bytes) -> bytes:
    """The digest that ends an encoded record."""
    return record[-_DIGEST_BYTES:]


def decode_record(data: bytes, start: int) -> Record | None:
    """The record at a position; None if it is not whole. data: the contents of a file."""
    if len(data) - start < RECORD_BYTES_MIN:
        return None
    marker, length, revision, previous = _HEAD.unpack_from(data, start)
    end = start + _HEAD.size + length + _DIGEST_BYTES
    if marker != _MARKER or end > len(data):
        return None
    digest = data[end - _DIGEST_BYTES : end]
    if _digest(memoryview(data)[start : end - _DIGEST_BYTES]) != digest:
        return None
    line, _, value = data[start + _HEAD.size : end - _DIGEST_BYTES].partition(b"\n")
    return Record(start, end, revision, previous, digest, json.loads(line), value)


def whole_records(data: bytes, start: int = 0) -> Iterator[Record]:
    """All records that are whole from a position on, wherever they begin."""
    while (start := data.find(_MARKER, start)) >= 0:
        record = decode_record(data, start)
        if record is not None:
            yield record
        start = start + 1 if record is None else record.end


def read_file(path: Path, data: bytes) -> ControlFile:
    """The sound part of a file, and what is known of the rest. data: its contents.

    Raises LogFormatError if the file is of a format, needs a feature, or has a change of a form that this
    version does not know.
    """
    file = ControlFile(path)
    header = decode_record(data, 0)
    if header is None or not header.is_header:
        file.revision_seen = max(_revisions(data, 0, path), default=0)
        return file
    check_features(header, path)
    file.log_id = str(header.about["log_id"])
    file.revision, file.last, file.end = header.revision, header, header.end
    file.values_missing = header.count
    while (record := decode_record(data, file.end)) is not None:
        is_value = file.values_missing > 0
        expected = record.revision <= header.revision if is_value else record.revision == file.revision + 1
        if record.is_header or record.previous != file.last.digest or not expected:
            break
        _check_change(record, path)
        file.apply(record)
        file.values_missing -= is_value
        file.revision = max(file.revision, record.revision)
        file.last, file.end = record, record.end
    file.last_bytes = data[file.last.start : file.end]
    file.is_sound = file.end == len(data) and not file.values_missing
    file.revision_seen = max((file.revision, *_revisions(data, file.end, path)))
    return file


def check_features(header: Record, path: Path) -> None:
    """Raise LogFormatError for a header of a later version, naming what is not known."""
    unknown = [f"the format {header.about.get('format')!r}"] if header.about.get("format") != FORMAT else []
    features = header.about.get("features")
    names = features if isinstance(features, list) else [features]
    unknown += [f"the feature {name!r}" for name in names if name not in FEATURES]
    _check_known(unknown, path)


def _revisions(data: bytes, start: int, path: Path) -> Iterator[int]:
    """Of all records that are whole, which a repair may use."""
    for record in whole_records(data, start):
        if not record.is_header:
            _check_change(record, path)
        yield record.revision


def _check_change(record: Record, path: Path) -> None:
    _check_known([f"the field {name!r}" for name in sorted(record.about.keys() - _CHANGE_FIELDS)], path)


def _check_known(unknown: Sequence[str], path: Path) -> None:
    if unknown:
        raise LogFormatError(
            f"{path} uses {' and '.join(unknown)}, which this version does not know.",
            next_step=LATER_VERSION,
        )


def _encode(revision: int, previous: bytes, about: Mapping[str, object], value: bytes) -> bytes:
    body = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" + value
    record = _HEAD.pack(_MARKER, len(body), revision, previous) + body
    return record + _digest(record)


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()

"""Checks the two files of a control log, and keeps what is whole if neither can be used as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogCorruptError
from tidegate.storage.control.reading import ControlFiles
from tidegate.storage.control.records import ControlFile, Record, decode_record, whole_records
from tidegate.storage.files import Files, read_whole, replace_whole

DAMAGED_SUFFIX: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class ControlDamage:
    """A damaged place in the control log."""

    path: Path
    position: int
    """Byte offset in the file."""
    description: str
    set_aside: Path | None = None
    """The repair's copy of the damaged file; None if nothing was repaired."""


def damages_of(files: ControlFiles) -> list[ControlDamage]:
    """All damages. The write that a crash interrupted is none."""
    present = [file for file in files.found if file is not None]
    damaged = [file for file in present if not file.is_sound]
    try:
        best = files.best()
    except LogCorruptError as error:
        places = [ControlDamage(file.path, file.end, "the control log is damaged") for file in damaged]
        return places or [ControlDamage(present[0].path, 0, error.message)]
    return [
        ControlDamage(file.path, file.end, f"damaged; {best.path.name} has all of it")
        for file in damaged
        if file.revision < best.revision - 1 or file.revision_seen > file.revision
    ]


def merge(files: Files, directory: Path, found: ControlFiles) -> tuple[ControlFile, str]:
    """What can be kept of two files that are both damaged, and what is lost, as a sentence ("": nothing).

    Raises LogCorruptError if they do not belong together, and OSError.
    """
    present = [file for file in found.found if file is not None]
    ids = {file.log_id for file in present if file.log_id}
    contents = [read_whole(files, file.path) for file in present]
    records: dict[int, Record] = {}
    is_one = len(ids) <= 1 and not all(file.is_sound for file in present)
    for record in (record for data in contents for record in _changes(data)):
        other = records.setdefault(record.revision, record)
        is_one &= (other.about, other.value) == (record.about, record.value)
    if not is_one:
        raise LogCorruptError(
            f"The files of the control log in {directory} do not belong together.",
            next_step="Restore both from one backup.",
        )
    revision = max(file.revision_seen for file in present)
    merged, missing = ControlFile(directory), None
    for file, data in zip(present, contents, strict=True):
        if file.log_id and not file.values_missing:
            base, values = _values(data)
            lost = [number for number in range(base + 1, revision + 1) if number not in records]
            if missing is None or len(lost) < len(missing):
                later = [records[number] for number in sorted(records) if number > base]
                merged, missing = _applied(directory, [*values, *later]), lost
    if missing is None:
        merged = _applied(directory, [records[number] for number in sorted(records)])
    merged.log_id, merged.revision = next(iter(ids), ""), revision
    # A file that ends with the last change known was not cut off, unless at the end of a record.
    is_end_known = any(
        record.end == len(data) and record.revision == revision
        for data in contents
        for record in _changes(data)
    )
    return merged, _loss(missing, revision, is_end_known=is_end_known)


def set_aside(files: Files, path: Path) -> Path:
    """Copy a damaged file beside it. Raises OSError."""
    side = path.with_name(path.name + DAMAGED_SUFFIX)
    replace_whole(files, side, read_whole(files, path), is_durable=True)
    return side


def _changes(data: bytes) -> Iterator[Record]:
    return (record for record in whole_records(data) if not record.is_header)


def _values(data: bytes) -> tuple[int, list[Record]]:
    """What a file with a sound header and sound values begins with: the log's revision then, and these."""
    header = decode_record(data, 0)
    assert header is not None
    return header.revision, list(islice(_changes(data), header.count))


def _applied(directory: Path, records: Iterable[Record]) -> ControlFile:
    state = ControlFile(directory)
    for record in records:
        state.apply(record)
    return state


def _loss(missing: list[int] | None, revision: int, *, is_end_known: bool) -> str:
    if missing is None:
        return (
            "What had not changed for long may be missing or outdated. Look through event hubs and policies."
        )
    losses = []
    if missing:
        numbers = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        losses.append(f"Of {revision} changes, {len(missing)} are lost (number {numbers}).")
    if not is_end_known:
        losses.append(f"Changes after number {revision} may be lost.")
    return " ".join((*losses, "Look through event hubs and policies.") if losses else ())

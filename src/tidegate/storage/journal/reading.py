"""Reads the two files of a journal, and says whether anything of it is missing. Writes nothing.

<data directory>/journal.0, journal.1    one takes the records of rounds, until it is full; then the other

A round is synced before the next one is written, so only the last one can be incomplete. Everything else that
is not there or not intact is damage: what it held is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.storage.files import Files, read_whole
from tidegate.storage.journal.records import (
    RECORDS_START,
    JournalHeader,
    JournalRecord,
    decode_header,
    iter_records,
)

JOURNAL_NAMES: Final = ("journal.0", "journal.1")


@dataclass(slots=True)
class FoundFile:
    """One of the two files."""

    path: Path
    header: JournalHeader | None = None
    """None: the file is missing, or its header is damaged."""
    records: list[JournalRecord] = field(default_factory=list)
    """All that are intact."""
    problem: tuple[Path, str] | None = None

    @property
    def number(self) -> int:
        """See ``JournalHeader``; 0 if it is not known."""
        return 0 if self.header is None else self.header.number


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """What was found."""

    files: tuple[FoundFile, ...]
    """The older one first."""
    problem: tuple[Path, str] | None
    """Which file is damaged, and how; None: nothing of it is missing."""

    @property
    def records(self) -> list[JournalRecord]:
        """In the order in which they were written."""
        return [record for file in self.files for record in file.records]


def read_journal(files: Files, data_directory: Path, owner: bytes | None) -> FoundJournal:
    """Read both files. owner: the id of the control log; None: not known.

    Raises LogFormatError, OSError.
    """
    found = [_read(files, data_directory / name, owner) for name in JOURNAL_NAMES]
    found.sort(key=lambda file: file.number)
    problems = [file.problem for file in found if file.problem is not None]
    return FoundJournal(tuple(found), problems[0] if problems else _break_between(*found))


def _read(files: Files, path: Path, owner: bytes | None) -> FoundFile:
    found = FoundFile(path)
    try:
        data = read_whole(files, path)
    except FileNotFoundError:
        found.problem = path, "the file of the journal is missing"
        return found
    header = decode_header(data, path)
    if header is None:
        found.problem = path, "the header of the journal is damaged"
    elif owner is not None and header.owner != owner:
        found.problem = path, "it is the journal of another data directory"
    else:
        found.header = header
        found.records = list(iter_records(data, header))
        found.problem = _hole_in(found)
    return found


def _hole_in(found: FoundFile) -> tuple[Path, str] | None:
    """The first place that is not intact although a later round was written."""
    last_round = found.records[-1].round_number if found.records else 0
    end, round_number = RECORDS_START, 1
    for record in found.records:
        if record.start != end and round_number < last_round:
            return found.path, f"the journal is damaged at byte {end}"
        end = record.end
        round_number = record.round_number + record.is_last_of_round
    return None


def _break_between(older: FoundFile, newer: FoundFile) -> tuple[Path, str] | None:
    if newer.number != older.number + 1:
        path = newer.path if newer.number == older.number else older.path
        return path, "it is a copy of the journal from another time"
    if newer.records:
        last = older.records[-1] if older.records else None
        complete = 0 if last is None else last.round_number - (not last.is_last_of_round)
        if complete != newer.records[0].rounds_before:
            return older.path, "the end of the journal is missing"
    return None

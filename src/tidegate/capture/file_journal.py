"""Which files Capture has written for a hub: lines of JSON, the newest last, for people to look at.

Nothing is decided by it. A line is written when its file is complete and before the partition goes on, so a
service that is killed forgets none; a power loss may take the last ones, since nothing is synced. When half
of the bytes allowed are full, what was there before them is dropped:

    files.jsonl          appended to
    files.before.jsonl   the half before, replaced as a whole

Every method blocks, belongs in a thread, and may be called by several at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidegate.capture.state import PlannedFile
from tidegate.model.capture import CapturedFile, WindowEnd
from tidegate.model.limits import CAPTURE_FILES_LISTED_BYTES_MAX
from tidegate.transport.private_files import make_private_directory, open_private

_TEXTS = ("name", "destination", "partition_id")
_NUMBERS = ("start_sequence_number", "until_sequence_number")
_TIMES = ("window_start_ms", "window_end_ms", "written_at_ms")
_MAYBE_NUMBERS = ("event_count", "file_bytes")
_NUMBER_UNTIL: Final = 2**63
_TIME_UNTIL_MS: Final = 253_402_300_800_000
"""The year 10000, which no datetime reaches."""

_logger = logging.getLogger(__name__)


class FileJournal:
    """The files of one hub."""

    def __init__(self, directory: Path, *, bytes_max: int = CAPTURE_FILES_LISTED_BYTES_MAX) -> None:
        """directory: made when needed. bytes_max: of both halves together."""
        self.path: Final = directory / "files.jsonl"
        self._before: Final = directory / "files.before.jsonl"
        self._half_bytes: Final = bytes_max // 2
        self._lock = threading.Lock()

    def append(self, file: CapturedFile, *, is_again: bool) -> None:
        """Add a file. is_again: it may be there already, from before a restart; then nothing is added.

        Raises OSError; the journal is whole then, but for the file.
        """
        line = json.dumps(asdict(file) | {"closed_by": file.closed_by.value}).encode() + b"\n"
        with self._lock:
            if is_again and any(_place(file) in data for data in self._read()):
                return
            make_private_directory(self.path.parent)
            if _size(self.path) + len(line) > self._half_bytes:
                self.path.replace(self._before)
            with open(self.path, "a+b", opener=open_private) as journal:
                # A line that was cut by a crash is ended, so that it takes no other with it.
                end = journal.seek(0, os.SEEK_END)
                journal.seek(max(0, end - 1))
                is_torn = journal.read(1) not in (b"", b"\n")
                journal.write(b"\n" + line if is_torn else line)

    def newest(self, *, start: int, count: int) -> tuple[list[CapturedFile], int]:
        """The files from the ``start``-th newest on, at most ``count``; and how many there are.

        Lines that do not parse are left out. Raises OSError.
        """
        with self._lock:
            lines = [line for data in self._read() for line in data.splitlines() if line]
        until = max(0, len(lines) - start)
        wanted = lines[max(0, until - count) : until]
        return [file for line in reversed(wanted) if (file := _parse(line)) is not None], len(lines)

    def _read(self) -> list[bytes]:
        """Both halves, the older one first."""
        return [path.read_bytes() for path in (self._before, self.path) if path.exists()]

    def __repr__(self) -> str:
        return f"<FileJournal {self.path}>"


@dataclass(frozen=True, slots=True)
class FileNotes:
    """Puts the files of one destination into a hub's journal."""

    journal: FileJournal
    destination: str

    def add(
        self,
        planned: PlannedFile,
        *,
        partition_id: str,
        window_start_ms: int,
        is_full: bool,
        event_count: int | None,
        file_bytes: int | None,
        written_at_ms: int,
        is_again: bool,
    ) -> None:
        """Add a finished file; see ``CapturedFile`` and ``FileJournal.append``. A failure goes to the log."""
        file = CapturedFile(
            name=planned.name,
            destination=self.destination,
            partition_id=partition_id,
            start_sequence_number=planned.start_sequence_number,
            until_sequence_number=planned.until_sequence_number,
            event_count=event_count,
            file_bytes=file_bytes,
            window_start_ms=window_start_ms,
            window_end_ms=planned.next_start_ms,
            written_at_ms=written_at_ms,
            closed_by=WindowEnd.SIZE if is_full else WindowEnd.TIME,
        )
        try:
            self.journal.append(file, is_again=is_again)
        except OSError as error:
            _logger.warning("%s was captured, but cannot be added to the list of files: %s", file.name, error)


def _place(file: CapturedFile) -> bytes:
    """What the line of that file holds, and no other: its name and destination, as ``append`` writes them."""
    return f'"name": {json.dumps(file.name)}, "destination": {json.dumps(file.destination)},'.encode()


def _parse(line: bytes) -> CapturedFile | None:
    try:
        values = json.loads(line)
        texts = {name: values[name] for name in _TEXTS}
        numbers = {name: values[name] for name in (*_NUMBERS, *_TIMES, *_MAYBE_NUMBERS)}
        closed_by = WindowEnd(values["closed_by"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_sound = all(map(_is_text, texts.values())) and all(
        _is_number(number, until=_TIME_UNTIL_MS if name in _TIMES else _NUMBER_UNTIL)
        or (number is None and name in _MAYBE_NUMBERS)
        for name, number in numbers.items()
    )
    return CapturedFile(**texts, **numbers, closed_by=closed_by) if is_sound else None


def _is_text(value: object) -> bool:
    """Whether it is text that a page can hold: JSON can name half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object, *, until: int) -> bool:
    return type(value) is int and 0 <= value < until


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

"""The list of files that Capture has written for a hub: lines of JSON, the newest last, for people to view.

Nothing depends on it. A line is written when its file is complete and before the partition continues, so a
killed service loses none; a power loss may lose the last ones, since nothing is synced. When half of the
allowed bytes are used, the older half is dropped:

    files.jsonl          appended to
    files.before.jsonl   the older half, replaced as a whole

Every method blocks, belongs in a thread, and may be called by several at once.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from tidegate.files import make_private_directory, open_private
from tidegate.model.capture import CapturedFile
from tidegate.model.limits import CAPTURE_FILES_LISTED_BYTES_MAX
from tidegate.model.validation import from_json

_ANSWERS_MAX: Final = 8
"""Answers that are kept for a hub (our choice: some kilobytes each)."""

_NUMBER_UNTIL: Final = 2**63
_TIME_UNTIL_MS: Final = 253_402_300_800_000
"""The year 10000, which no datetime reaches."""


class FileJournal:
    """The files of one hub."""

    def __init__(self, directory: Path, *, bytes_max: int = CAPTURE_FILES_LISTED_BYTES_MAX) -> None:
        """directory: created when needed. bytes_max: of both files together."""
        self.path: Final = directory / "files.jsonl"
        self._before: Final = directory / "files.before.jsonl"
        self._half_bytes: Final = bytes_max // 2
        self._lock = threading.Lock()
        self._answers: dict[tuple[int, int], tuple[list[CapturedFile], int]] = {}
        """Of ``newest``: live pages ask every second, and each answer reads megabytes."""
        self._answered: tuple[object, ...] = ()
        """The state of the files that they are of."""

    def append(self, file: CapturedFile, *, is_again: bool) -> None:
        """Add a file. is_again: it may be listed already, from before a restart; it is then not added again.

        Raises OSError; the journal is intact then, but lacks the file.
        """
        line = json.dumps(asdict(file) | {"closed_by": file.closed_by.value}).encode() + b"\n"
        with self._lock:
            if is_again and any(_place(file) in data for data in self._read()):
                return
            make_private_directory(self.path.parent)
            if _size(self.path) + len(line) > self._half_bytes:
                self.path.replace(self._before)
            with open(self.path, "a+b", opener=open_private) as journal:
                # End a line that a crash cut off, so that it does not corrupt the next one.
                end = journal.seek(0, os.SEEK_END)
                journal.seek(max(0, end - 1))
                is_torn = journal.read(1) not in (b"", b"\n")
                journal.write(b"\n" + line if is_torn else line)

    def newest(self, *, start: int, count: int) -> tuple[list[CapturedFile], int]:
        """The files from the ``start``-th newest on, at most ``count``; and how many there are.

        Invalid lines are omitted. Raises OSError.
        """
        with self._lock:
            state = _state(self._before), _state(self.path)
            if state != self._answered or len(self._answers) == _ANSWERS_MAX:
                self._answers.clear()
                self._answered = state
            if (start, count) in self._answers:
                return self._answers[start, count]
            lines = [line for data in self._read() for line in data.splitlines() if line]
            until = max(0, len(lines) - start)
            wanted = lines[max(0, until - count) : until]
            answer = [file for line in reversed(wanted) if (file := _parse(line)) is not None], len(lines)
            self._answers[start, count] = answer
            return answer

    def _read(self) -> list[bytes]:
        """The lines of both files, the older one first."""
        return [path.read_bytes() for path in (self._before, self.path) if path.exists()]

    def __repr__(self) -> str:
        return f"<FileJournal {self.path}>"


def _place(file: CapturedFile) -> bytes:
    """The part of a file's line that is unique to it: its name and destination, as ``append`` writes them."""
    return f'"name": {json.dumps(file.name)}, "destination": {json.dumps(file.destination)},'.encode()


def _parse(line: bytes) -> CapturedFile | None:
    try:
        file = from_json(line, CapturedFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    numbers = (file.start_sequence_number, file.until_sequence_number, file.event_count, file.file_bytes)
    times = (file.window_start_ms, file.window_end_ms, file.written_at_ms)
    is_sound = all(number is None or 0 <= number < _NUMBER_UNTIL for number in numbers)
    return file if is_sound and all(0 <= time < _TIME_UNTIL_MS for time in times) else None


def _size(path: Path) -> int:
    return _state(path)[1]


def _state(path: Path) -> tuple[int, int]:
    """Changes with a file: its time, and its size."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size

"""The service's log: one line per event of note, for people or as JSON, on standard error.

Two rules. No secret is ever handed to a logger, so no format has to hide one. And nobody fills the disk with
lines by doing wrong things fast: of lines that clients can cause, so many of a kind pass in a while, and then
their number is told; and what is long in them is cut.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final, TextIO

from tidegate.model.clock import Clock


class LogFormat(Enum):
    """How the lines of the log are written."""

    TEXT = "text"
    """Time, level, where, what. An unexpected failure is followed by its traceback."""
    JSON = "json"
    """One JSON object per line, tracebacks included."""


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record has; the rest came with ``extra``."""

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


_CLIENT_LOGGERS: Final = (
    "tidegate.console.",
    "tidegate.gateway.",
    "tidegate.transport.",
    "tidegate.storage.write_errors",
    "tidegate.broker.key_guard",
)
_LINES_MAX: Final = 20
_WINDOW_S: Final = 10.0
"""Lines of one kind that clients may cause in a window (our choice: enough to see what is going on)."""
_KINDS_MAX: Final = 1000
_CHARACTERS_MAX: Final = 2_000
"""Of the message of such a line (our choice: the longest of ours, with the longest names, have some 800)."""


def start_logging(log_format: LogFormat, stream: TextIO, *, clock: Clock) -> None:
    """Write Tidegate's log, and other libraries' warnings, to ``stream``.

    Ours from INFO up (what a service does and refuses), others' from WARNING up. Replaces what was set up
    before.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler.addFilter(FloodFilter(clock))
    root = logging.getLogger()
    for earlier in list(root.handlers):
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("tidegate").setLevel(logging.INFO)


@dataclass(slots=True)
class _Window:
    """Lines of one kind since a moment."""

    started_at: float
    passed: int = 0
    left_out: int = 0


class FloodFilter(logging.Filter):
    """Drops lines that clients cause, beyond ``_LINES_MAX`` of one kind in ``_WINDOW_S``, and cuts long
    ones.

    The next line of the kind reports how many. Errors count too: if a client can cause one, the first few are
    enough. Changes by administrators, logged by ``tidegate.audit``, always pass.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; its message may have been added to."""
        if not record.name.startswith(_CLIENT_LOGGERS):
            return True
        now = self._clock.monotonic()
        # The message without its values: one kind is one place in the code.
        kind = record.name, str(record.msg)
        window = self._windows.get(kind)
        if window is None or now - window.started_at >= _WINDOW_S:
            if window is not None and window.left_out:
                record.msg = f"{record.msg} (since the last such line, {window.left_out} were left out)"
            if len(self._windows) >= _KINDS_MAX:
                self._windows.clear()
            window = self._windows[kind] = _Window(now)
        if window.passed >= _LINES_MAX:
            window.left_out += 1
            return False
        window.passed += 1
        message = record.getMessage()
        if len(message) > _CHARACTERS_MAX:
            record.msg, record.args = f"{message[:_CHARACTERS_MAX]}…", ()
        return True


class TextFormatter(logging.Formatter):
    """``2026-09-01T12:00:00.123Z INFO tidegate.server.app: message``; the message never breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = record.getMessage().translate(_CONTROLS)
        if (audit := getattr(record, "audit", None)) is not None:
            message += f" {json.dumps(audit)}"
        line = f"{_time_text(record)} {record.levelname} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """An object with ``time`` (UTC), ``level``, ``logger``, ``message``, what the record was given as
    ``extra``, and ``exception`` where there was one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        entry: dict[str, object] = {
            "time": _time_text(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # ASCII: no line separator of Unicode, and nothing that the stream's encoding lacks.
        return json.dumps(entry, default=str)


def _time_text(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""The service's log: one line per event of note, for people or as JSON, on standard error.

Two rules. Secrets are never passed to a logger, so no format has to hide them. And clients cannot fill the
disk by repeating errors: the number of lines of one kind per window is limited (the rest are counted), and
long messages are cut.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from textwrap import indent
from typing import Final, TextIO

from tidegate.model.clock import Clock
from tidegate.model.events import VISIBLE_CONTROLS
from tidegate.model.times import time_text


class LogFormat(Enum):
    """How the lines of the log are written."""

    TEXT = "text"
    """Time, level, where, what. An unexpected failure is followed by its traceback."""
    JSON = "json"
    """One JSON object per line, tracebacks included."""


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every record; others came with ``extra``."""

_CONTROLS_IN_LINES: Final = {code: text for code, text in VISIBLE_CONTROLS.items() if chr(code) != "\n"}


_CLIENT_LOGGERS: Final = (
    "tidegate.console.",
    "tidegate.gateway.",
    "tidegate.transport.",
    "tidegate.storage.write_errors",
    "tidegate.broker.key_guard",
    "tidegate.server.dead_letters",
    "tidegate.server.stored_groups",
    "asyncio",
)
_LINES_MAX: Final = 20
_WINDOW_S: Final = 10.0
"""Lines of one kind that clients may cause in a window (our choice: enough to see the problem)."""
_KINDS_MAX: Final = 1000
_CHARACTERS_MAX: Final = 2_000
"""Length limit of such a message (our choice: our longest, with the longest names, have about 800)."""


def start_logging(log_format: LogFormat, stream: TextIO, *, clock: Clock) -> None:
    """Log to ``stream``: Tidegate from INFO, other libraries from WARNING. Replaces earlier handlers."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler.addFilter(FloodFilter(clock))
    root = logging.getLogger()
    for earlier in list(root.handlers):
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("tidegate").setLevel(logging.INFO)
    # It says of each garbled form, which a stranger may send, what is wrong with it.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(slots=True)
class _Window:
    """Lines of one kind since a moment."""

    started_at: float
    passed: int = 0
    left_out: int = 0


class FloodFilter(logging.Filter):
    """Limits lines that clients cause to ``_LINES_MAX`` of one kind per ``_WINDOW_S``, and cuts long ones.

    The next line of the kind reports how many were dropped. Errors are limited too: the first few are enough.
    Administrators' changes, logged by ``tidegate.audit``, always pass.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; may extend its message."""
        if not record.name.startswith(_CLIENT_LOGGERS):
            return True
        now = self._clock.monotonic()
        # The unformatted message: one kind is one place in the code.
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
        message = record.getMessage().translate(VISIBLE_CONTROLS)
        if (audit := getattr(record, "audit", None)) is not None:
            message += f" {json.dumps(audit)}"
        time = time_text(datetime.fromtimestamp(record.created, UTC))
        line = f"{time} {record.levelname} {record.name}: {message}"
        if not record.exc_info:
            return line
        # An error may quote a peer or an event: its lines are indented, so that none passes for another line.
        traceback = self.formatException(record.exc_info).translate(_CONTROLS_IN_LINES)
        return f"{line}\n{indent(traceback, '  ')}"


class JsonFormatter(logging.Formatter):
    """An object with ``time`` (UTC), ``level``, ``logger``, ``message``, the record's ``extra`` values, and
    ``exception`` if there was one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        entry: dict[str, object] = {
            "time": time_text(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # ASCII: no Unicode line separators, and nothing that the stream's encoding cannot represent.
        return json.dumps(entry, default=str)

"""The service's log: one line per event of note, for people or as JSON, on standard error.

The rule: no secret is ever handed to a logger, so no format has to hide one.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import Enum
from typing import Final, TextIO


class LogFormat(Enum):
    """How the lines of the log are written."""

    TEXT = "text"
    """Time, level, where, what. A failure that nobody expected is followed by its traceback."""
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


def start_logging(log_format: LogFormat, stream: TextIO) -> None:
    """Have everything that Tidegate logs, and what other libraries warn of, written to ``stream``.

    Ours from INFO up (what a service does and refuses), others' from WARNING up. Replaces what was set up
    before.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    for earlier in list(root.handlers):
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("tidegate").setLevel(logging.INFO)


class TextFormatter(logging.Formatter):
    """``2026-09-01T12:00:00.123Z INFO tidegate.server.app: message``; the message never breaks the line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = record.getMessage().translate(_CONTROLS)
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

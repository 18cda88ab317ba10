"""The one renderer: records out as a table, one JSON value, JSON lines or CSV.

A command passes records (mappings of plain values) and never formats them itself. Results go to standard
output; progress and remarks go to standard error, so that a pipe holds only the result. Without a format
option, a terminal gets a drawn table, and a pipe the same columns as plain aligned text.
"""

from __future__ import annotations

import base64
import csv
import io
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, TextIO

import click
import orjson

from tidegate.cli.shell.table import Column, fields, fit, whole
from tidegate.files import open_private
from tidegate.model.errors import InvalidArgumentError, traceback_of
from tidegate.model.events import VISIBLE_CONTROLS
from tidegate.model.times import time_text
from tidegate.transport.clock import SystemClock

Record = Mapping[str, object]
"""Names to plain values: strings, numbers, booleans, times, bytes, None, and lists and mappings of them."""

_VISIBLE_CONTROLS_IN_LINES = {
    code: text for code, text in VISIBLE_CONTROLS.items() if chr(code) not in "\t\n"
}


def visible_lines(text: str) -> str:
    """Text for a terminal: control characters made visible, but for ends of lines and tabs."""
    return text.translate(_VISIBLE_CONTROLS_IN_LINES)


def remark(text: str) -> None:
    """Write lines to standard error, for people, with control characters made visible: an error may quote an
    event, which must not control the terminal.
    """
    sys.stderr.write(visible_lines(text) + "\n")
    sys.stderr.flush()


class _LastResort(logging.Handler):
    """Writes log records for which there is no other handler."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            remark(self.format(record))
        except Exception:  # as of any handler: what logs must not fail
            self.handleError(record)


def _remark_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    remark(traceback_of(error).rstrip("\n"))


def guard_standard_error() -> None:
    """Make control characters visible also in what Python itself writes: log records of a command without a
    log, and tracebacks of unexpected errors. Both may quote a service or an event.
    """
    logging.lastResort = _LastResort(logging.WARNING)
    sys.excepthook = _remark_unexpected


def columns_of(text: str) -> dict[str, str]:
    """Columns with the attributes that fill them: ``column=attribute``, or ``name`` if they are the same."""
    return {column: name or column for column, _, name in (each.partition("=") for each in text.split())}


def attributes(value: object, names: Mapping[str, str]) -> dict[str, object]:
    """A record of attributes of ``value``, by ``columns_of``."""
    return {column: getattr(value, name) for column, name in names.items()}


class OutputFormat(Enum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"
    """One JSON array, or one object if the command shows one thing."""
    NL = "nl"
    """One JSON object per line."""
    CSV = "csv"


class Output:
    """Where and how a command writes its result."""

    def __init__(
        self, output_format: OutputFormat, *, stream: TextIO | None = None, is_wide: bool = False
    ) -> None:
        """stream: None for this process's standard output. is_wide: show all of a table on a terminal."""
        self.format = output_format
        self._is_wide = is_wide
        self._stream = stream

    @property
    def stream(self) -> TextIO:
        """Where the result goes."""
        return sys.stdout if self._stream is None else self._stream

    @contextmanager
    def into(self, path: Path | None) -> Iterator[Output]:
        """An output that writes a file, readable only by this user, atomically; without a path, this output.

        A file whose name ends in .gz is compressed. Raises InvalidArgumentError if it cannot be written.
        """
        if path is None:
            yield self
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            with open(temporary, "xb", opener=open_private) as raw, _text_file(raw, path) as file:
                yield Output(self.format, stream=file)
            os.replace(temporary, path)
        except OSError as error:
            raise InvalidArgumentError(
                f"Cannot write {path}: {error.strerror or error}.",
                next_step="Choose a file in a directory that you can write to.",
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def on(self, stream: TextIO) -> Output:
        """As this output, written to another stream."""
        return Output(self.format, stream=stream, is_wide=self._is_wide)

    @property
    def is_terminal(self) -> bool:
        """Whether the result goes to a terminal."""
        return self.stream.isatty()

    @property
    def is_table(self) -> bool:
        """Whether the result is for people to read."""
        return self.format is OutputFormat.TABLE

    def records(
        self,
        records: Iterable[Record],
        *,
        columns: Sequence[str],
        title: str | None = None,
        first: str = "",
        is_whole: bool = False,
        headings: Mapping[str, str] = {},
    ) -> None:
        """Write a list. columns: the fields and their order, also without any record.

        title: shown only above a table on a terminal. first: the fields, separated by spaces, that a narrow
        terminal shows before others, most important first; "": as in ``columns``. is_whole: it shows each
        record by itself instead, so that nothing is cut, and without fields that have no value. headings: of
        a table's columns that are not headed by their names.
        """
        if self.format is OutputFormat.JSON:
            rows = [{column: record.get(column) for column in columns} for record in records]
            self._write_json(rows)
        elif self.format is OutputFormat.TABLE:
            self._table(list(records), columns, title, first.split(), is_whole=is_whole, headings=headings)
        else:
            stream = self.record_stream(columns)
            for record in records:
                stream.write(record)
            stream.close()

    def objects(
        self, values: Iterable[object], names: Mapping[str, str], *, title: str, first: str = ""
    ) -> None:
        """Write a list of ``attributes``. first: as for ``records``."""
        records = (attributes(each, names) for each in values)
        self.records(records, columns=tuple(names), title=title, first=first)

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a list of rows with these columns."""
        self.records((dict(zip(columns, row, strict=True)) for row in rows), columns=columns)

    def record(self, record: Record, *, title: str | None = None) -> None:
        """Write one thing: a table with a line per field, one JSON object, or one CSV row."""
        if self.format is OutputFormat.JSON:
            self._write_json(record)
        elif self.format is OutputFormat.TABLE:
            if title is not None and self.is_terminal:
                self.line(_bold(cell_text(title)))
            width = self._width if self.is_terminal and not self._is_wide else None
            values = [self._field_text(value) for value in record.values()]
            for line in fields(tuple(record), values, width, bold=_bold if self.is_terminal else str):
                self.line(line)
        else:
            self.record_stream(tuple(record)).write(record)

    def record_stream(self, columns: Sequence[str]) -> RecordStream:
        """Write records one at a time as they arrive (a tail); a table is tab-separated text."""
        return RecordStream(self, columns)

    def lines(self, heading: str, text: str) -> None:
        """Write text of several lines, indented under a heading; for people, after a table."""
        visible = visible_lines(text).strip("\n")
        # Not splitlines(): it splits at characters that do not end a line on a terminal.
        self.line("\n".join((heading, *(f"  {line}".rstrip() for line in visible.split("\n")))))

    def line(self, text: str) -> None:
        """Write one line of text unchanged."""
        self.stream.write(text + "\n")

    def _write_json(self, value: object) -> None:
        # One line for programs, which then is also the last line; indented for people.
        self.stream.write(json_text(value, is_indented=self.is_terminal) + "\n")

    def _table(
        self,
        rows: Sequence[Record],
        columns: Sequence[str],
        title: str | None,
        first: Sequence[str],
        *,
        is_whole: bool,
        headings: Mapping[str, str],
    ) -> None:
        is_fitted = self.is_terminal and not self._is_wide
        now = SystemClock().now_utc() if is_fitted else None
        shown = [
            Column(
                headings.get(name) or name.replace("_", " "),
                [_cell(row.get(name), now) for row in rows],
                _is_number(rows, name),
            )
            for name in columns
        ]
        if not self.is_terminal:
            for line in whole(shown):
                self.line(line)
            return
        if title is not None:
            self.line(_bold(cell_text(title)))
        ranks = [columns.index(name) for name in (*first, *(each for each in columns if each not in first))]
        width = self._width if is_fitted else sys.maxsize
        fitted = fit(shown, ranks, width, bold=_bold, is_plain=not self._can_draw)
        if is_whole and (fitted.left_out or fitted.is_cut):
            self._apart(rows, columns, width)
            return
        remarks = [f"Not shown: {', '.join(fitted.left_out)}."] if fitted.left_out else []
        remarks += ["Some values are cut."] if fitted.is_cut else []
        for line in fitted.lines:
            self.line(line)
        if remarks:
            self.line(textwrap.fill(f"{' '.join(remarks)} --wide shows all.", width, break_on_hyphens=False))

    def _apart(self, rows: Sequence[Record], columns: Sequence[str], width: int) -> None:
        for number, row in enumerate(rows):
            names = [name for name in columns if row.get(name) is not None]
            if number:
                self.line("")
            for line in fields(names, [cell_text(row[name]) for name in names], width, bold=_bold):
                self.line(line)

    def _field_text(self, value: object) -> str:
        """The value of one thing's field; on a terminal, a time with its age."""
        if not isinstance(value, datetime) or not self.is_terminal:
            return cell_text(value)
        return f"{time_text(value)} ({relative_text(value, SystemClock().now_utc())})"

    @property
    def _width(self) -> int:
        return shutil.get_terminal_size().columns

    @property
    def _can_draw(self) -> bool:
        """Whether the stream's encoding has the characters that tables are drawn with."""
        try:
            "─…".encode(self.stream.encoding or "utf-8")
        except UnicodeEncodeError:
            return False
        return True


class RecordStream:
    """Records written one at a time, each complete on its own line; ``close`` it."""

    def __init__(self, output: Output, columns: Sequence[str]) -> None:
        self._stream = output.stream
        self._columns = columns
        self._format = output.format
        self._csv = csv.writer(self._stream, lineterminator="\n")
        self._count = 0
        if self._format is OutputFormat.CSV:
            self._csv.writerow(columns)
        elif self._format is OutputFormat.JSON:
            self._stream.write("[")

    def write(self, record: Record) -> None:
        """Write one record; fields that are not columns are ignored."""
        values = [record.get(column) for column in self._columns]
        if self._format is OutputFormat.CSV:
            self._csv.writerow([csv_text(value) for value in values])
        elif self._format is OutputFormat.TABLE:
            self._stream.write("\t".join(cell_text(value) for value in values) + "\n")
        else:
            fields = dict(zip(self._columns, values, strict=True))
            comma = ",\n" if self._count and self._format is OutputFormat.JSON else ""
            end = "\n" if self._format is OutputFormat.NL else ""
            self._stream.write(comma + json_text(fields) + end)
        self._count += 1

    def flush(self) -> None:
        """Flush what was written so far to the reader of a pipe."""
        self._stream.flush()

    def close(self) -> None:
        """Complete the output: a JSON array is closed, also when a tail is interrupted."""
        if self._format is OutputFormat.JSON:
            self._stream.write("]\n")
        self.flush()


def _text_file(raw: BinaryIO, path: Path) -> TextIO:
    if path.suffix != ".gz":
        return io.TextIOWrapper(raw, encoding="utf-8")
    import gzip

    return gzip.open(raw, "wt", compresslevel=6, encoding="utf-8")


def json_text(value: object, *, is_indented: bool = False) -> str:
    """A value as JSON, converted by ``plain``."""
    option = orjson.OPT_PASSTHROUGH_DATETIME | (orjson.OPT_INDENT_2 if is_indented else 0)
    return orjson.dumps(value, default=plain, option=option).decode()


def plain(value: object) -> object:
    """A field for JSON: times in ISO 8601 with ``Z``, bytes in base64, an enum's value, UUIDs as strings."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value)  # JSON has no subclasses of it
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def cell_text(value: object) -> str:
    """A field for people: ``-`` for None, yes/no, one decimal, control characters made visible."""
    value = plain(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        value = " ".join(f"{name}={item}" for name, item in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(str, value))
    # An event's body must not control the terminal that shows it.
    return str(value).translate(VISIBLE_CONTROLS)


def counted(count: int, noun: str, ending: str = "s") -> str:
    """``1 row``, ``1,024 rows``; ending: what makes the noun a plural."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def csv_text(value: object) -> str:
    """A field for CSV: empty for None, true/false, lists and mappings as JSON."""
    value = plain(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _cell(value: object, now: datetime | None) -> str:
    """A cell of a table. now: times are shown as ages; None: as they are."""
    if now is not None and isinstance(value, datetime):
        return relative_text(value, now)
    return cell_text(value)


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _is_number(rows: Sequence[Record], column: str) -> bool:
    values = [row[column] for row in rows if row.get(column) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def relative_text(time: datetime, now: datetime) -> str:
    """A time as an age: ``12 s ago``, ``3 min ago``, ``in 2 h``, ``40 d ago``."""
    seconds = (now - time).total_seconds()
    size = int(abs(seconds))
    unit, length = next((each for each in _UNITS if size >= 2 * each[1]), ("s", 1))
    text = f"{size // length} {unit}"
    return f"{text} ago" if seconds >= 0 else f"in {text}"


_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60))

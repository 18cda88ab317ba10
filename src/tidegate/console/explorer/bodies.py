"""Renders event bodies: a line in a list, or whole as JSON, text or bytes. Pure: runs in threads.

No body breaks a page: non-text is shown as bytes, control characters as symbols, and compressed bodies are
decompressed up to a limit. Nor does one hold up the event loop: JSON is read and written by Python code,
which lets other threads run, and not by C code, which does that only at its end.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice, repeat
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in typeshed
from typing import Final

import orjson

from tidegate.console.explorer.values import property_text
from tidegate.model.events import EventContents

PREVIEW_CHARACTERS: Final = 200
"""Length of a body in a list."""

UNPACKED_BYTES_MAX: Final = 1024 * 1024
"""Limit of decompression: a small body can expand to a gigabyte. Our choice: as the largest event."""

PRETTY_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""JSON that would be longer when indented is shown unchanged."""

HEX_BYTES: Final = 8192
"""Bytes of a body on one page."""

_HEX_LINE: Final = 16
_PARSED_AT_ONCE_BYTES: Final = 64 * 1024
"""Parsed by C code, which holds up other threads for less than a millisecond."""
_INDENT_DEPTH_MAX: Final = 20
# Possessive, since each repetition that could be taken back would be kept: some 100 bytes for a character.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_PACKED_STARTS: Final = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")

ENCODER: Final = json.JSONEncoder(ensure_ascii=False)
"""Its ``iterencode`` is Python code, and its ``encode`` C code."""


class _Decoder(json.JSONDecoder):
    """The standard library's without its C code."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = py_make_scanner(self)


class Look(Enum):
    """How a body is shown."""

    JSON = "json"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body, shown one way."""

    look: Look
    looks: Sequence[Look]
    """The looks that the body can be shown in."""
    text: str
    note: str
    """A remark about it, or empty."""
    next_at: int | None = None
    """HEX: the offset of the next page in bytes."""
    previous_at: int | None = None


def preview(contents: EventContents) -> tuple[str, bool]:
    """A body in one line, and whether it is text; other bytes are in hexadecimal."""
    if contents.body_value is not None:
        return _one_line(value_text(contents.body_value, PREVIEW_CHARACTERS * 2)), True
    start = contents.body[: PREVIEW_CHARACTERS * 4]
    text = _text_of(start, is_whole=len(start) == len(contents.body))
    if text is None:
        return contents.body[:24].hex(" "), False
    return _one_line(text), True


def body_view(contents: EventContents, wanted: Look | None, at: int) -> BodyView:
    """A body in the wanted look, or (None) the most suitable. at: the offset of a page of bytes."""
    raw = body_bytes(contents)
    opened, note = _opened(raw)
    text = _text_of(opened)
    pretty = None if text is None else pretty_json(text)
    looks = [Look.HEX]
    if text is not None:
        looks.insert(0, Look.TEXT)
    if pretty is not None:
        looks.insert(0, Look.JSON)
    look = wanted if wanted in looks else looks[0]
    if contents.body_value is not None:
        note = "The body is an AMQP value, not bytes; this is how it reads in JSON."
    elif not raw:
        note = "The body is empty."
    if look is Look.HEX:
        start = min(at, max(0, len(raw) - 1)) // _HEX_LINE * _HEX_LINE
        until = start + HEX_BYTES
        return BodyView(
            look,
            looks,
            hex_lines(raw[start:until], start),
            "" if opened is raw else "These are the bytes as they were sent, compressed.",
            next_at=until if until < len(raw) else None,
            previous_at=max(0, start - HEX_BYTES) if start else None,
        )
    shown = pretty if look is Look.JSON else text
    assert shown is not None
    return BodyView(look, looks, shown, note)


def body_bytes(contents: EventContents) -> bytes:
    """A body as file contents; an AMQP value as JSON."""
    if contents.body_value is None:
        return contents.body
    return value_text(contents.body_value).encode("utf-8", "replace")


def value_text(value: object, characters_max: int | None = None) -> str:
    """An AMQP value as JSON, including types that JSON does not have; or only its first characters, whatever
    follows."""
    if isinstance(value, str):
        return value[:characters_max]
    # Each item has at least one character.
    items = repeat(None) if characters_max is None else repeat(None, characters_max)
    try:
        pieces = ENCODER.iterencode(_plain(value, 0, items, characters_max))
        return "".join(islice(pieces, characters_max))[:characters_max]
    except ValueError:
        return str(value)[:characters_max]


def json_value(body: bytes) -> object:
    """A body's JSON; of a large one by Python code, which lets other threads run. Raises ValueError."""
    if len(body) <= _PARSED_AT_ONCE_BYTES:
        return orjson.loads(body)
    try:
        return _Decoder().decode(body.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def pretty_json(text: str) -> str | None:
    """JSON indented, with every token unchanged; None if it is not JSON or would be too long. Keeps numbers,
    order and repeated names, which a parser would change.
    """
    try:
        _Decoder().decode(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = size = 0
    previous = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "}]":
            depth -= 1
            if previous not in "{[":
                parts.append(_new_line(depth))
        elif previous and previous in "{[,":
            parts.append(_new_line(depth))
        parts.append(": " if token == ":" else token)
        if token in "{[":
            depth += 1
        previous = token
        size += len(token) + 2 * min(depth, _INDENT_DEPTH_MAX)
        if size > PRETTY_CHARACTERS_MAX:
            return None
    return "".join(parts)


def hex_lines(data: bytes, start: int) -> str:
    """Bytes in the format of ``hexdump -C``. start: the offset of the first."""
    lines: list[str] = []
    for at in range(0, len(data), _HEX_LINE):
        part = data[at : at + _HEX_LINE]
        left, right = part[:8].hex(" "), part[8:].hex(" ")
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start + at:08x}  {left:<23}  {right:<23}  |{shown}|")
    return "\n".join(lines)


def _opened(raw: bytes) -> tuple[bytes, str]:
    """A gzip or zlib body decompressed, with a remark; any other body unchanged."""
    if not raw.startswith(_PACKED_STARTS):
        return raw, ""
    machine = zlib.decompressobj(wbits=47)  # detects either format
    try:
        opened = machine.decompress(raw, UNPACKED_BYTES_MAX)
    except zlib.error:
        return raw, ""
    if not machine.eof and len(opened) < UNPACKED_BYTES_MAX:
        return raw, ""
    words = f"The body is compressed: {len(raw):,} bytes, which hold {len(opened):,}"
    return opened, f"{words}." if machine.eof else f"{words} and more."


def _text_of(data: bytes, *, is_whole: bool = True) -> str | None:
    """The text of bytes; None if they are not UTF-8 or contain a zero byte.

    is_whole: False drops an incomplete character at the end.
    """
    if b"\x00" in data:
        return None
    try:
        return codecs.utf_8_decode(data, "strict", is_whole)[0]
    except UnicodeDecodeError:
        return None


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[:PREVIEW_CHARACTERS]}…"


def _new_line(depth: int) -> str:
    return "\n" + "  " * min(depth, _INDENT_DEPTH_MAX)


def _plain(value: object, depth: int, items: Iterator[None], characters_max: int | None) -> object:
    """items: one for each item of a list or map, of all depths, that is taken."""
    if depth > 100:
        return "…"
    if isinstance(value, dict):
        return {
            property_text(name, characters_max): _plain(item, depth + 1, items, characters_max)
            for (name, item), _ in zip(value.items(), items, strict=False)
        }
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1, items, characters_max) for item, _ in zip(value, items, strict=False)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    return property_text(value, characters_max)

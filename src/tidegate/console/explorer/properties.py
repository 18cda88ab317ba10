"""Converts an event's properties to lines of a form, and back, with their AMQP types. Pure.

    name=value                text, unchanged
    name:TYPE=value           of that AMQP type: seats:int=180, at:timestamp=2026-11-22T07:25:00Z
    name:TYPE="text"          a quoted JSON string, if a line cannot hold the text, symbol or character
    "name"=value              a quoted JSON name, if it contains "=" or a line end, or ends in ":int"

``parse_properties`` restores values and types from the output of ``format_properties``.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from io import StringIO
from typing import Any, Final
from uuid import UUID

from tidegate.amqp import types as amqp
from tidegate.amqp.message import MESSAGE_ID, Header, Properties
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import PropertyValue
from tidegate.model.times import milliseconds_of, time_of, time_text

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_SHOWN_CHARACTERS: Final = 40
_REASON_CHARACTERS: Final = 200
_JSON: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of AMQP's simple types."""

    name: str
    """The specification's (part 1 section 1.6)."""
    type: type | None
    """Of its decoded values; None: ``type_name`` decides by the width."""
    write: Callable[[Any], str]
    """Formats a value."""
    read: Callable[[str], object]
    """Parses the output of ``write`` or a user's input. Raises ValueError, OverflowError."""
    is_text: bool = False
    """Whether its text may need quotes, and surrounding blanks matter."""


def _integer(kind: type[int], bits: int, *, is_signed: bool) -> Callable[[str], int]:
    low, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if is_signed else (0, 2**bits)

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) < end:
            raise ValueError(f"expected an integer from {low} to {end - 1}")
        return kind(text)

    return read


def _float(text: str) -> float:
    if not text.isascii() or "_" in text:
        raise ValueError("expected a number such as 21.5, 1e-3, inf or nan")
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError("it is too large; inf is infinity")
    return value


def _float32(text: str) -> amqp.Float:
    return amqp.Float(struct.unpack(">f", struct.pack(">f", _float(text)))[0])


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"


def _null(text: str) -> None:
    if text not in ("", "null"):
        raise ValueError("expected nothing after the =")


def _character(text: str) -> amqp.Char:
    if len(text) != 1:
        raise ValueError("expected one character")
    return amqp.Char(text)


def _decimal(width: int) -> Callable[[str], amqp.Decimal]:
    def read(text: str) -> amqp.Decimal:
        value = amqp.Decimal(bytes.fromhex(text))
        if len(value) != width:
            raise ValueError(f"expected {width} bytes in hexadecimal")
        return value

    return read


def _time_text(value: int) -> str:
    """A time in ISO 8601 to the millisecond; milliseconds since 1970 beyond the range of datetime."""
    try:
        return time_text(time_of(value))
    except OverflowError:
        return str(int(value))


def _time(text: str) -> amqp.Timestamp:
    if _INTEGER.fullmatch(text):
        return amqp.Timestamp(_integer(int, 64, is_signed=True)(text))
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("it has no time zone; append Z for UTC")
    return amqp.Timestamp(milliseconds_of(time))


def _repr(value: float) -> str:
    return repr(float(value))


def _digits(value: int) -> str:
    return str(int(value))


_KINDS: Final = {
    kind.name: kind
    for kind in (
        _Kind("null", type(None), lambda value: "", _null),
        _Kind("boolean", bool, lambda value: "true" if value else "false", _boolean),
        _Kind("ubyte", amqp.UByte, _digits, _integer(amqp.UByte, 8, is_signed=False)),
        _Kind("ushort", amqp.UShort, _digits, _integer(amqp.UShort, 16, is_signed=False)),
        _Kind("uint", amqp.UInt, _digits, _integer(amqp.UInt, 32, is_signed=False)),
        _Kind("ulong", amqp.ULong, _digits, _integer(amqp.ULong, 64, is_signed=False)),
        _Kind("byte", amqp.Byte, _digits, _integer(amqp.Byte, 8, is_signed=True)),
        _Kind("short", amqp.Short, _digits, _integer(amqp.Short, 16, is_signed=True)),
        _Kind("int", amqp.Int, _digits, _integer(amqp.Int, 32, is_signed=True)),
        _Kind("long", int, _digits, _integer(int, 64, is_signed=True)),
        _Kind("float", amqp.Float, _repr, _float32),
        _Kind("double", float, _repr, _float),
        _Kind("decimal32", None, bytes.hex, _decimal(4)),
        _Kind("decimal64", None, bytes.hex, _decimal(8)),
        _Kind("decimal128", None, bytes.hex, _decimal(16)),
        _Kind("char", amqp.Char, str, _character, is_text=True),
        _Kind("timestamp", amqp.Timestamp, _time_text, _time),
        _Kind("uuid", UUID, str, UUID),
        _Kind("binary", bytes, bytes.hex, bytes.fromhex),
        _Kind("string", str, str, str, is_text=True),
        _Kind("symbol", amqp.Symbol, str, amqp.Symbol, is_text=True),
    )
}

_TYPE_NAMES: Final[Mapping[type, str]] = {
    kind.type: kind.name for kind in _KINDS.values() if kind.type is not None
} | {list: "list", dict: "map", amqp.Array: "array", amqp.Described: "described value"}

TYPE_NAMES: Final = tuple(_KINDS)
"""The types allowed in a line."""


def _types_of(part: type[Properties | Header]) -> dict[str, tuple[str, ...]]:
    """The types that each field of a section may have, by its name in AMQP."""
    kinds = {each.name.replace("_", "-"): each.metadata["kind"] for each in fields(part)}
    ids = ("string", "binary", "ulong", "uuid")
    return {name: ids if kind is MESSAGE_ID else (kind.name,) for name, kind in kinds.items()}


_STANDARD_TYPES: Final = _types_of(Properties)
_HEADER_TYPES: Final = {name: _types_of(Header)[name] for name in ("durable", "priority", "ttl")}
_MESSAGE_TYPES: Final = {**_STANDARD_TYPES, **_HEADER_TYPES}
"""The types that each may have; the first is the default."""

MESSAGE_NAMES: Final = tuple(_MESSAGE_TYPES)
"""The standard properties and the sender's header fields (part 3 sections 3.2.4 and 3.2.1)."""


def type_name(value: object) -> str:
    """The AMQP type name of a decoded value."""
    if isinstance(value, amqp.Decimal):
        return f"decimal{8 * len(value)}"
    return _TYPE_NAMES[type(value)]


def format_properties(properties: Mapping[object, object]) -> tuple[str, list[str]]:
    """Application properties as lines, and a remark on each that no line can hold, such as lists and maps."""
    lines: list[str] = []
    left_out: list[str] = []
    for name, value in properties.items():
        kind = type_name(value)
        if isinstance(name, str) and kind in _KINDS:
            lines.append(_line(_name_text(name), kind, "string", value))
        else:
            left_out.append(f"the property {str(name)[:_SHOWN_CHARACTERS]} ({kind})")
    return "\n".join(lines), left_out


def typed_properties(properties: Mapping[str, PropertyValue]) -> dict[object, object]:
    """Plain values with AMQP types that can hold them; the producer may have chosen others."""
    return {name: _typed(value) for name, value in properties.items()}


def _typed(value: PropertyValue) -> object:
    if isinstance(value, datetime):
        return amqp.Timestamp(milliseconds_of(value))
    return amqp.ULong(value) if isinstance(value, int) and value >= 2**63 else value


def parse_properties(text: str, *, count_max: int | None = None) -> dict[object, object]:
    """Application properties from lines; empty lines are skipped.

    Raises InvalidArgumentError naming an invalid line, one with a repeated name, or one beyond the maximum.
    """
    found: dict[object, object] = {}
    for where, name, kind, value in _lines(text, "properties"):
        if name in found:
            raise InvalidArgumentError(f"{where} repeats {name[:_SHOWN_CHARACTERS]!r}.")
        if len(found) == count_max:
            raise InvalidArgumentError(
                f"{where} is beyond {count_max:,} properties, more than an event can have here.",
                next_step="Send fewer.",
            )
        found[name] = _value(kind, value, where) if kind is not None else value
    return found


def format_message(standard: Properties, header: Header) -> tuple[str, str, list[str]]:
    """Standard properties and header: the content type for its own field, the others as lines, and a remark
    on each whose type differs from the specification's.
    """
    content_type = standard.content_type or ""
    lines: list[str] = []
    left_out: list[str] = []
    if not content_type.isprintable():  # its field has one line
        content_type = ""
    for name, types in _MESSAGE_TYPES.items():
        part = standard if name in _STANDARD_TYPES else header
        value = getattr(part, name.replace("-", "_"))
        is_said = value != getattr(type(part)(), name.replace("-", "_"))
        if not is_said or (name == "content-type" and content_type):
            continue
        kind = type_name(value) if len(types) > 1 else types[0]
        if kind in types:
            lines.append(_line(name, kind, types[0], value))
        else:
            left_out.append(f"the {name} ({kind})")
    return content_type, "\n".join(lines), left_out


def parse_message(text: str, content_type: str) -> tuple[Properties, Header]:
    """Standard properties and header from lines, with the content type from its own field if not empty.

    Raises InvalidArgumentError naming a line that is invalid, repeats a name or has a wrong type.
    """
    found: dict[str, Any] = {"content_type": amqp.Symbol(content_type)} if content_type else {}
    for where, name, kind, value in _lines(text, "message properties"):
        types = _MESSAGE_TYPES.get(name)
        if types is None:
            raise InvalidArgumentError(
                f"{where} is about {name[:_SHOWN_CHARACTERS]!r}, which is not a message property.",
                next_step=f"Known: {', '.join(MESSAGE_NAMES)}.",
            )
        if kind is not None and kind not in types:
            raise InvalidArgumentError(
                f"{where}: {name} cannot have the type {kind}.", next_step=f"It is {_either(types)}."
            )
        field = name.replace("-", "_")
        if field in found:
            raise InvalidArgumentError(f"{where} repeats {name}.")
        found[field] = _value(kind or types[0], value, where, is_quotable=kind is not None)
    header = {name: found.pop(name) for name in _HEADER_TYPES if name in found}
    return Properties(**found), Header(**header)


# --- lines ---------------------------------------------------------------------------------------------


def _line(name: str, kind: str, usual_kind: str, value: object) -> str:
    text = _KINDS[kind].write(value)
    if not _KINDS[kind].is_text:
        return f"{name}={text}" if kind == usual_kind else f"{name}:{kind}={text}"
    if not text.isprintable():
        return f"{name}:{kind}={json.dumps(text)}"
    if kind == usual_kind:
        return f"{name}={text}"
    return f"{name}:{kind}={json.dumps(text)}" if text.startswith('"') else f"{name}:{kind}={text}"


def _name_text(name: str) -> str:
    """A name, in quotes if it would otherwise be parsed differently."""
    is_plain = name.isprintable() and name == name.strip() and name != "" and "=" not in name
    if is_plain and not name.startswith('"') and name.rpartition(":")[2].strip() not in _KINDS:
        return name
    return json.dumps(name)


def _lines(text: str, what: str) -> Iterator[tuple[str, str, str | None, str]]:
    """Each line: words for its place, its name, its type (None if not given) and the text after the ``=``."""
    # Not split at once: two megabytes of line ends take 100 ms of C code, which lets no other thread run.
    for number, line in enumerate(StringIO(text, newline="\n"), 1):
        if line.strip():
            where = f"Line {number} of the {what}"
            yield where, *_parts(line.removesuffix("\n"), where)


def _parts(line: str, where: str) -> tuple[str, str | None, str]:
    """Name, type (None if not given) and the text after the ``=``."""
    start = line.lstrip()
    if start.startswith('"'):
        try:
            name, end = _JSON.raw_decode(start)
        except ValueError as error:
            raise _garbled(line, where) from error
        behind, has_value, value = start[end:].partition("=")
        between, colon, kind = (part.strip() for part in behind.partition(":"))
        if between or not has_value:
            raise _garbled(line, where)
        if colon and kind not in _KINDS:
            raise InvalidArgumentError(
                f"{where}: AMQP has no type {kind[:_SHOWN_CHARACTERS]!r} for it.",
                next_step=f"Known: {', '.join(TYPE_NAMES)}.",
            )
        return name, kind if colon else None, value
    name, has_value, value = line.partition("=")
    name = name.strip()
    if not has_value or not name:
        raise _garbled(line, where)
    before, colon, kind = (part.strip() for part in name.rpartition(":"))
    if not colon or kind not in _KINDS:
        return name, None, value
    if not before:
        raise _garbled(line, where)
    return before, kind, value


def _value(kind: str, text: str, where: str, *, is_quotable: bool = True) -> object:
    try:
        if _KINDS[kind].is_text:
            if is_quotable and text.startswith('"'):
                text = json.loads(text)
                text.encode()  # JSON can escape half of a surrogate pair
            return _KINDS[kind].read(text)
        return _KINDS[kind].read(text.strip())
    except (ValueError, OverflowError) as error:
        shown = text.strip()[:_SHOWN_CHARACTERS]
        # Errors of float and of datetime quote the whole text.
        why = str(error)[:_REASON_CHARACTERS]
        raise InvalidArgumentError(f"{where}: {shown!r} is not a valid {kind}: {why}.") from error


def _garbled(line: str, where: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{where} is {line[:_SHOWN_CHARACTERS]!r}.",
        next_step="Write name=value or name:type=value, one a line.",
    )


def _either(types: tuple[str, ...]) -> str:
    return types[0] if len(types) == 1 else f"{', '.join(types[:-1])} or {types[-1]}"

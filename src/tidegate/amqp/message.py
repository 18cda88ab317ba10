"""Messages: iterating their sections without decoding, and whole messages as values.

The data path uses ``iter_sections``. ``Message`` is for the few messages that are read or written as a whole:
requests, responses, and events whose contents are needed. Sections are accepted in any order: the official
Python client writes its delivery-annotations after the footer.
Source: AMQP 1.0 part 3 section 3.2.
"""

# ruff: noqa: RUF009  (``composite_field`` makes dataclass fields, which ruff cannot see)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

from tidegate.amqp.decode import (
    CONTENT_LIMITS,
    PROTOCOL_LIMITS,
    Buffer,
    Limits,
    Room,
    decode_value,
    decode_value_until,
    skip_value,
)
from tidegate.amqp.encode import append_binary, append_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.performatives import (
    BINARY,
    BOOLEAN,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Kind,
    append_composite,
    composite,
    composite_field,
    from_described,
)
from tidegate.amqp.types import Described, Symbol, ULong

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
_NULL: Final = 0x40
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78
"""Descriptors of the sections."""

_CONTENT: Final = frozenset({APPLICATION_PROPERTIES, DATA, AMQP_SEQUENCE, AMQP_VALUE})
"""Sections that belong to the application."""

SECTIONS_MAX: Final = 10_000
"""Per message (our choice: a body may have many data sections, and each costs time to skip)."""

T = TypeVar("T")

MessageId = str | bytes | int | UUID
"""An int is a ULong on the wire (part 3 section 3.2.11)."""


class _NoValue:
    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE: Final = _NoValue()
"""No amqp-value section; None is a section that holds null."""


MESSAGE_ID: Final = Kind(
    "message-id",
    lambda value: ULong(value) if type(value) is int and value >= 0 else value,
    lambda value: value,
)


@composite(0x70, "header")
@dataclass(frozen=True, slots=True)
class Header:
    """How the network should treat the message (part 3 section 3.2.1)."""

    durable: bool = composite_field(BOOLEAN, False)
    priority: int = composite_field(UBYTE, 4)
    ttl: int | None = composite_field(UINT, None)
    """Milliseconds."""
    first_acquirer: bool = composite_field(BOOLEAN, False)
    delivery_count: int = composite_field(UINT, 0)


@composite(0x73, "properties")
@dataclass(frozen=True, slots=True)
class Properties:
    """The message's standard properties (part 3 section 3.2.4)."""

    message_id: MessageId | None = composite_field(MESSAGE_ID, None)
    """Keeps its AMQP type, so that a reply's correlation-id has the type of the request's message-id."""
    user_id: bytes | None = composite_field(BINARY, None)
    to: str | None = composite_field(STRING, None)
    subject: str | None = composite_field(STRING, None)
    reply_to: str | None = composite_field(STRING, None)
    correlation_id: MessageId | None = composite_field(MESSAGE_ID, None)
    content_type: Symbol | None = composite_field(SYMBOL, None)
    content_encoding: Symbol | None = composite_field(SYMBOL, None)
    absolute_expiry_time: int | None = composite_field(TIMESTAMP, None)
    """Milliseconds since 1970-01-01 UTC."""
    creation_time: int | None = composite_field(TIMESTAMP, None)
    """Milliseconds since 1970-01-01 UTC."""
    group_id: str | None = composite_field(STRING, None)
    group_sequence: int | None = composite_field(UINT, None)
    reply_to_group_id: str | None = composite_field(STRING, None)


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message. Its body is ``data``, ``sequences`` or ``value``, or missing."""

    header: Header | None = None
    delivery_annotations: Mapping[object, object] = field(default_factory=dict)
    message_annotations: Mapping[object, object] = field(default_factory=dict)
    properties: Properties | None = None
    application_properties: Mapping[object, object] = field(default_factory=dict)
    data: tuple[bytes, ...] = ()
    """One item per data section."""
    sequences: tuple[list[object], ...] = ()
    """One item per amqp-sequence section."""
    value: object = NO_VALUE
    footer: Mapping[object, object] = field(default_factory=dict)


Section = tuple[int, int, int, int]
"""(code, start, value_start, end): the section is ``payload[start:end]``, and its value with constructor is
``payload[value_start:end]``."""


def iter_sections(payload: Buffer) -> Iterator[Section]:
    """The sections of an encoded message in order, found from sizes alone.

    A data section of null counts as a value of null: the standard has none, but JavaScript's SDK sends one
    for a body of null (@azure/event-hubs 5 and 6).

    Raises DecodeError at the first bytes that are not a section, after yielding the valid ones before.
    """
    offset, end_of_payload, count = 0, len(payload), 0
    while offset < end_of_payload:
        count += 1
        if count > SECTIONS_MAX:
            raise DecodeError(f"A message has more than {SECTIONS_MAX} sections.")
        if payload[offset : offset + 2] == b"\x00\x53" and offset + 3 < end_of_payload:
            code, value_start = payload[offset + 2], offset + 3
        else:
            code, value_start = _slow_descriptor(payload, offset)
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"0x{code:x} at byte {offset} is not a message section.")
        end = skip_value(payload, value_start)
        if code == DATA and payload[value_start] == _NULL:
            code = AMQP_VALUE
        yield code, offset, value_start, end
        offset = end


_SECTION_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": AMQP_SEQUENCE,
    "amqp:amqp-value:*": AMQP_VALUE,
    "amqp:footer:map": FOOTER,
}


def _slow_descriptor(payload: Buffer, offset: int) -> tuple[int, int]:
    """A section's descriptor in an unusual encoding: a wide ulong or a symbol."""
    if payload[offset] != 0:
        raise DecodeError(f"Byte {offset} of a message is 0x{payload[offset]:02x}, where a section starts.")
    descriptor, value_start = decode_value(payload, offset + 1)
    if isinstance(descriptor, Symbol):
        return _SECTION_NAMES.get(descriptor, 0), value_start
    if isinstance(descriptor, ULong):
        return int(descriptor), value_start
    raise DecodeError(
        f"A section of a message at byte {offset} has a {type(descriptor).__name__} descriptor."
    )


def encode_message(message: Message) -> bytes:
    """Encode a message, its sections in the specification's order, without empty ones.

    Raises EncodeError for a value that has no encoding.
    """
    output = bytearray()
    if message.header is not None:
        append_composite(output, message.header)
    _append_map_section(output, DELIVERY_ANNOTATIONS, message.delivery_annotations)
    _append_map_section(output, MESSAGE_ANNOTATIONS, message.message_annotations)
    if message.properties is not None:
        append_composite(output, message.properties)
    if message.application_properties:
        _append_section(output, APPLICATION_PROPERTIES, dict(message.application_properties))
    for data in message.data:
        output += b"\x00\x53\x75"
        append_binary(output, data)
    for sequence in message.sequences:
        _append_section(output, AMQP_SEQUENCE, sequence)
    if message.value is not NO_VALUE:
        _append_section(output, AMQP_VALUE, message.value)
    _append_map_section(output, FOOTER, message.footer)
    return bytes(output)


def _append_map_section(output: bytearray, code: int, annotations: Mapping[object, object]) -> None:
    """Append a section whose str keys are encoded as symbols; nothing if it is empty."""
    if annotations:
        symbolic = {Symbol(key) if type(key) is str else key: item for key, item in annotations.items()}
        _append_section(output, code, symbolic)


def _append_section(output: bytearray, code: int, value: object) -> None:
    output += bytes((0, 0x53, code))
    append_value(output, value)


def decode_message(
    payload: Buffer, limits: Limits | None = None, *, content_limits: Limits = CONTENT_LIMITS
) -> Message:
    """Decode a message with sections in any order.

    limits: for the whole message; each section counts as a value, and none that may occur once is repeated.
    None: each section has the protocol's limits, but body and application properties together have
    ``content_limits``; of a section that may occur once, the last one counts.
    Raises DecodeError if the bytes are not a message.
    """
    whole = None if limits is None else Room(limits)
    content = Room(content_limits)
    once: dict[int, object] = {}
    data: list[bytes] = []
    sequences: list[list[object]] = []
    for code, _, value_start, end in iter_sections(payload):
        if whole is None:
            room = content if code in _CONTENT else Room(PROTOCOL_LIMITS)
        elif code in once:
            raise DecodeError(f"A message has a second section 0x{code:x}.")
        else:
            room = whole
            room.enter(1)  # an empty section costs time, too
            room.depth += 1
        value = decode_value_until(payload, value_start, end, room)
        if code == DATA:
            data.append(_typed(value, bytes, "data"))
        elif code == AMQP_SEQUENCE:
            sequences.append(_typed(value, list, "amqp-sequence"))
        else:
            once[code] = value
    return Message(
        header=_composite_section(once, HEADER, Header),
        delivery_annotations=_map_section(once, DELIVERY_ANNOTATIONS),
        message_annotations=_map_section(once, MESSAGE_ANNOTATIONS),
        properties=_composite_section(once, PROPERTIES, Properties),
        application_properties=_map_section(once, APPLICATION_PROPERTIES),
        data=tuple(data),
        sequences=tuple(sequences),
        value=once.get(AMQP_VALUE, NO_VALUE),
        footer=_map_section(once, FOOTER),
    )


def _typed(value: object, kind: type[T], name: str) -> T:
    if not isinstance(value, kind):
        raise DecodeError(f"A section {name} holds a {type(value).__name__}.")
    return value


def _map_section(once: dict[int, object], code: int) -> dict[object, object]:
    value = once.get(code)
    return {} if value is None else _typed(value, dict, f"0x{code:x}")


def _composite_section(once: dict[int, object], code: int, kind: type[T]) -> T | None:
    value = once.get(code)
    if value is None:
        return None
    return _typed(from_described(Described(ULong(code), value)), kind, f"0x{code:x}")

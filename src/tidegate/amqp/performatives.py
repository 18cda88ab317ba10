"""The performatives of AMQP 1.0 part 2, with their sources, targets, states and errors, as values.

Encoded with *every* field, absent ones as explicit nulls: the official Python client reads fields by index
and crashes on a trimmed list. Decoded leniently: trimmed lists, ``list0``, symbolic descriptors, a single
symbol in place of an array. Field names are the specification's; a null becomes the field's default.

    field kind      in Python                 on the wire
    UINT, …         int                       that integer type
    SYMBOLS         tuple[Symbol, …]          array of symbols, null when empty
    FIELDS          dict[object, object]      map, null when empty
    a class here    that class, or None       described list
"""

# ruff: noqa: RUF009  (``composite_field`` makes dataclass fields, which ruff cannot see)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, TypeVar

from tidegate.amqp.decode import Buffer, decode_value
from tidegate.amqp.encode import append_list, append_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.types import (
    Array,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True
"""Values of ``role`` (part 2 section 2.8.1)."""

SND_UNSETTLED: Final = 0
SND_SETTLED: Final = 1
SND_MIXED: Final = 2
"""Values of ``snd_settle_mode`` (part 2 section 2.8.2)."""


# --- kinds of fields -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """How a field is converted to and from the wire."""

    name: str
    to_wire: Callable[[Any], object]
    """Converts a Python value to one for ``encode_value``; never called with None."""
    from_wire: Callable[[object], object]
    """Converts a decoded value to the field's; raises TypeError or ValueError for a wrong type."""


def _integer(name: str, wire_type: type[int], bits: int, *, is_signed: bool = False) -> Kind:
    """An integer of any type: some peers do not use the standard's. It must fit into the standard's type,
    because many are echoed."""
    lowest, until = (-(1 << (bits - 1)), 1 << (bits - 1)) if is_signed else (0, 1 << bits)

    def from_wire(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(value)
        if not lowest <= value < until:
            raise ValueError(value)
        return int(value)

    return Kind(name, wire_type, from_wire)


def _exactly(name: str, wanted: type) -> Kind:
    def from_wire(value: object) -> object:
        if not isinstance(value, wanted):
            raise TypeError(value)
        return value

    return Kind(name, lambda value: value, from_wire)


def _text_from_wire(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return str(value)


def _symbol_from_wire(value: object) -> Symbol:
    if not isinstance(value, str):
        raise TypeError(value)
    return Symbol(value)


def _symbols_to_wire(value: Sequence[str]) -> object:
    return Array.of(Symbol, value) if value else None


def _symbols_from_wire(value: object) -> tuple[Symbol, ...]:
    items = value.items if isinstance(value, Array) else (value,)
    return tuple(_symbol_from_wire(item) for item in items)


def _fields_to_wire(value: Mapping[object, object]) -> object:
    """A map whose str keys are encoded as symbols."""
    if not value:
        return None
    return {Symbol(key) if type(key) is str else key: item for key, item in value.items()}


def _composite_to_wire(value: object) -> object:
    return value if isinstance(value, Described) else to_described(value)


def _one_of(name: str, *classes: type) -> Kind:
    """A field that holds one of these composite classes."""

    def from_wire(value: object) -> object:
        if isinstance(value, Described):
            value = from_described(value)
        if not isinstance(value, classes):
            raise TypeError(value)
        return value

    return Kind(name, _composite_to_wire, from_wire)


def _fields_from_wire(value: object) -> dict[object, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(value)  # keys are symbols (part 2 section 2.8.13); some peers write strings
    return value


BOOLEAN: Final = _exactly("boolean", bool)
UBYTE: Final = _integer("ubyte", UByte, 8)
USHORT: Final = _integer("ushort", UShort, 16)
UINT: Final = _integer("uint", UInt, 32)
ULONG: Final = _integer("ulong", ULong, 64)
TIMESTAMP: Final = _integer("timestamp", Timestamp, 64, is_signed=True)
STRING: Final = Kind("string", str, _text_from_wire)
SYMBOL: Final = Kind("symbol", Symbol, _symbol_from_wire)
SYMBOLS: Final = Kind("symbols", _symbols_to_wire, _symbols_from_wire)
BINARY: Final = _exactly("binary", bytes)
MAP: Final = _exactly("map", dict)
FIELDS: Final = Kind("a map with symbols as keys", _fields_to_wire, _fields_from_wire)


def composite_field(kind: Kind, default: Any = MISSING) -> Any:
    """A dataclass field of this kind; without a default it must be on the wire."""
    if default is MISSING:
        return field(metadata={"kind": kind})
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})


# --- the machinery -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """The wire layout of a composite class."""

    code: int
    kind: type
    fields: tuple[tuple[str, Kind, bool], ...]
    """(name, kind, whether it must be present), in wire order."""


_LAYOUTS: dict[type, _Layout] = {}
_LAYOUTS_BY_DESCRIPTOR: dict[object, _Layout] = {}

T = TypeVar("T")


def composite(code: int, name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: a frozen dataclass that is a described list with this descriptor.

    ``sasl`` and ``message`` also use it.
    """

    def register(cls: type[T]) -> type[T]:
        described = tuple(
            (item.name, item.metadata["kind"], item.default is MISSING and item.default_factory is MISSING)
            for item in fields(cls)  # type: ignore[arg-type]  # applied above @dataclass only
        )
        layout = _Layout(code, cls, described)
        _LAYOUTS[cls] = layout
        _LAYOUTS_BY_DESCRIPTOR[code] = layout
        _LAYOUTS_BY_DESCRIPTOR[f"amqp:{name}:list"] = layout
        return cls

    return register


def to_described(value: object) -> Described:
    """A composite value as a described list of all its fields."""
    layout = _LAYOUTS.get(type(value))
    if layout is None:
        raise EncodeError(f"A {type(value).__name__} is not an AMQP composite type.")
    return Described(ULong(layout.code), list(_wire_fields(layout, value)))


def _wire_fields(layout: _Layout, value: object) -> list[object]:
    wire: list[object] = []
    for name, kind, _ in layout.fields:
        item = getattr(value, name)
        wire.append(None if item is None else kind.to_wire(item))
    return wire


def append_composite(output: bytearray, value: object) -> None:
    """Append a composite value with all its fields.

    Raises EncodeError if it is not one, or a field does not fit its type.
    """
    layout = _LAYOUTS.get(type(value))
    if layout is None:
        raise EncodeError(f"A {type(value).__name__} is not an AMQP composite type.")
    items = bytearray()
    for item in _wire_fields(layout, value):
        append_value(items, item)
    output.append(0)
    append_value(output, ULong(layout.code))
    append_list(output, items, len(layout.fields))


def encode_composite(value: object) -> bytes:
    """Encode a composite value with all its fields."""
    output = bytearray()
    append_composite(output, value)
    return bytes(output)


def from_described(described: Described) -> object:
    """The composite value of a described list, or ``described`` itself if it is not one of ours.

    Raises DecodeError if the descriptor is known and the list does not fit it.
    """
    try:
        layout = _LAYOUTS_BY_DESCRIPTOR.get(described.descriptor)
    except TypeError:  # an unhashable descriptor is not one of ours
        return described
    if layout is None:
        return described
    if not isinstance(described.value, list):
        raise DecodeError(f"{layout.kind.__name__} is not a list.")
    return _from_list(layout, described.value)


def _from_list(layout: _Layout, wire: list[object]) -> object:
    if len(wire) > len(layout.fields):
        raise DecodeError(
            f"{layout.kind.__name__} has {len(wire)} fields, and at most {len(layout.fields)} are defined."
        )
    values: dict[str, object] = {}
    for (name, kind, _), item in zip(layout.fields, wire, strict=False):
        if item is None:
            continue
        try:
            values[name] = kind.from_wire(item)
        except (TypeError, ValueError) as exc:
            raise DecodeError(
                f"{layout.kind.__name__}.{name} should be {kind.name}, not {type(item).__name__}."
            ) from exc
    for name, _, is_mandatory in layout.fields:
        if is_mandatory and name not in values:
            raise DecodeError(f"{layout.kind.__name__} lacks its {name}.")
    return layout.kind(**values)


# --- errors and delivery states ------------------------------------------------------------------------


@composite(0x1D, "error")
@dataclass(frozen=True, slots=True)
class Error:
    """Why a link, session or connection ended, or a delivery was rejected (part 2 section 2.8.14)."""

    condition: Symbol = composite_field(SYMBOL)
    description: str | None = composite_field(STRING, None)
    info: dict[object, object] = composite_field(FIELDS, {})


_ERROR = _one_of("error", Error)


@composite(0x23, "received")
@dataclass(frozen=True, slots=True)
class Received:
    """How far a delivery got (part 3 section 3.4.1)."""

    section_number: int = composite_field(UINT)
    section_offset: int = composite_field(ULONG)


@composite(0x24, "accepted")
@dataclass(frozen=True, slots=True)
class Accepted:
    """The delivery was accepted (part 3 section 3.4.2)."""


@composite(0x25, "rejected")
@dataclass(frozen=True, slots=True)
class Rejected:
    """The delivery was invalid (part 3 section 3.4.3)."""

    error: Error | None = composite_field(_ERROR, None)


@composite(0x26, "released")
@dataclass(frozen=True, slots=True)
class Released:
    """The delivery was not and will not be processed (part 3 section 3.4.4)."""


@composite(0x27, "modified")
@dataclass(frozen=True, slots=True)
class Modified:
    """The delivery goes back, changed (part 3 section 3.4.5)."""

    delivery_failed: bool = composite_field(BOOLEAN, False)
    undeliverable_here: bool = composite_field(BOOLEAN, False)
    message_annotations: dict[object, object] = composite_field(FIELDS, {})


DeliveryState = Accepted | Rejected | Released | Modified | Received | Described
"""``Described``: an unsupported state, such as a transactional one."""

_STATE = _one_of("delivery state", Accepted, Rejected, Released, Modified, Received, Described)


# --- terminuses ----------------------------------------------------------------------------------------


@composite(0x28, "source")
@dataclass(frozen=True, slots=True)
class Source:
    """The source of a link's messages (part 3 section 3.5.3)."""

    address: str | None = composite_field(STRING, None)
    durable: int = composite_field(UINT, 0)
    expiry_policy: Symbol = composite_field(SYMBOL, Symbol("session-end"))
    timeout: int = composite_field(UINT, 0)
    """Seconds."""
    dynamic: bool = composite_field(BOOLEAN, False)
    dynamic_node_properties: dict[object, object] = composite_field(FIELDS, {})
    distribution_mode: Symbol | None = composite_field(SYMBOL, None)
    filter: dict[object, object] = composite_field(FIELDS, {})
    """Name (Symbol) to ``Described`` filter."""
    default_outcome: DeliveryState | None = composite_field(_STATE, None)
    outcomes: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())


@composite(0x29, "target")
@dataclass(frozen=True, slots=True)
class Target:
    """The target of a link's messages (part 3 section 3.5.4)."""

    address: str | None = composite_field(STRING, None)
    durable: int = composite_field(UINT, 0)
    expiry_policy: Symbol = composite_field(SYMBOL, Symbol("session-end"))
    timeout: int = composite_field(UINT, 0)
    """Seconds."""
    dynamic: bool = composite_field(BOOLEAN, False)
    dynamic_node_properties: dict[object, object] = composite_field(FIELDS, {})
    capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())


@composite(0x30, "coordinator")
@dataclass(frozen=True, slots=True)
class Coordinator:
    """The target of a link that controls transactions (part 4 section 4.5.1); no node of ours accepts it."""

    capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())


_SOURCE = _one_of("source", Source)
_TARGET = _one_of("target", Target, Coordinator)


# --- performatives -------------------------------------------------------------------------------------


@composite(0x10, "open")
@dataclass(frozen=True, slots=True)
class Open:
    """The first frame of a connection (part 2 section 2.7.1)."""

    container_id: str = composite_field(STRING)
    hostname: str | None = composite_field(STRING, None)
    max_frame_size: int = composite_field(UINT, 4294967295)
    """Bytes; the largest frame that the sender of this accepts."""
    channel_max: int = composite_field(USHORT, 65535)
    idle_time_out: int | None = composite_field(UINT, None)
    """Milliseconds; None: the sender of this never times out."""
    outgoing_locales: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    incoming_locales: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    offered_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    desired_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    properties: dict[object, object] = composite_field(FIELDS, {})


@composite(0x11, "begin")
@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Starts a session on a channel (part 2 section 2.7.2)."""

    remote_channel: int | None = composite_field(USHORT, None)
    """None: this side begins; otherwise the channel on which the peer began."""
    next_outgoing_id: int = composite_field(UINT)
    incoming_window: int = composite_field(UINT)
    """Transfer frames."""
    outgoing_window: int = composite_field(UINT)
    """Transfer frames."""
    handle_max: int = composite_field(UINT, 4294967295)
    offered_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    desired_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    properties: dict[object, object] = composite_field(FIELDS, {})


@composite(0x12, "attach")
@dataclass(frozen=True, slots=True)
class Attach:
    """Attaches a link to a session (part 2 section 2.7.3)."""

    name: str = composite_field(STRING)
    handle: int = composite_field(UINT)
    role: bool = composite_field(BOOLEAN)
    """Of the side that sends this: ROLE_SENDER or ROLE_RECEIVER."""
    snd_settle_mode: int = composite_field(UBYTE, SND_MIXED)
    rcv_settle_mode: int = composite_field(UBYTE, 0)
    """0 first, 1 second."""
    source: Source | None = composite_field(_SOURCE, None)
    target: Target | Coordinator | None = composite_field(_TARGET, None)
    unsettled: dict[object, object] | None = composite_field(MAP, None)
    incomplete_unsettled: bool = composite_field(BOOLEAN, False)
    initial_delivery_count: int | None = composite_field(UINT, None)
    """Must not be None from a sender, except when it refuses the link."""
    max_message_size: int | None = composite_field(ULONG, None)
    """Bytes; None and 0: no limit."""
    offered_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    desired_capabilities: tuple[Symbol, ...] = composite_field(SYMBOLS, ())
    properties: dict[object, object] = composite_field(FIELDS, {})


@composite(0x13, "flow")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Updates the windows of a session, and the credit of a link when ``handle`` is set (2.7.4)."""

    next_incoming_id: int | None = composite_field(UINT, None)
    incoming_window: int = composite_field(UINT)
    next_outgoing_id: int = composite_field(UINT)
    outgoing_window: int = composite_field(UINT)
    handle: int | None = composite_field(UINT, None)
    delivery_count: int | None = composite_field(UINT, None)
    link_credit: int | None = composite_field(UINT, None)
    available: int | None = composite_field(UINT, None)
    drain: bool = composite_field(BOOLEAN, False)
    echo: bool = composite_field(BOOLEAN, False)
    properties: dict[object, object] = composite_field(FIELDS, {})


@composite(0x14, "transfer")
@dataclass(frozen=True, slots=True)
class Transfer:
    """Carries a delivery, or one part of it; the payload follows the performative (part 2 section 2.7.5)."""

    handle: int = composite_field(UINT)
    delivery_id: int | None = composite_field(UINT, None)
    """Mandatory in the first transfer of a delivery."""
    delivery_tag: bytes | None = composite_field(BINARY, None)
    message_format: int | None = composite_field(UINT, None)
    settled: bool | None = composite_field(BOOLEAN, None)
    more: bool = composite_field(BOOLEAN, False)
    rcv_settle_mode: int | None = composite_field(UBYTE, None)
    state: DeliveryState | None = composite_field(_STATE, None)
    resume: bool = composite_field(BOOLEAN, False)
    aborted: bool = composite_field(BOOLEAN, False)
    batchable: bool = composite_field(BOOLEAN, False)


@composite(0x15, "disposition")
@dataclass(frozen=True, slots=True)
class Disposition:
    """The outcome of the deliveries ``first`` to ``last``, both included (part 2 section 2.7.6)."""

    role: bool = composite_field(BOOLEAN)
    first: int = composite_field(UINT)
    last: int | None = composite_field(UINT, None)
    """None: the same as ``first``."""
    settled: bool = composite_field(BOOLEAN, False)
    state: DeliveryState | None = composite_field(_STATE, None)
    batchable: bool = composite_field(BOOLEAN, False)


@composite(0x16, "detach")
@dataclass(frozen=True, slots=True)
class Detach:
    """Detaches a link; ``closed`` ends it for good (part 2 section 2.7.7)."""

    handle: int = composite_field(UINT)
    closed: bool = composite_field(BOOLEAN, False)
    error: Error | None = composite_field(_ERROR, None)


@composite(0x17, "end")
@dataclass(frozen=True, slots=True)
class End:
    """Ends a session (part 2 section 2.7.8)."""

    error: Error | None = composite_field(_ERROR, None)


@composite(0x18, "close")
@dataclass(frozen=True, slots=True)
class Close:
    """Closes a connection (part 2 section 2.7.9)."""

    error: Error | None = composite_field(_ERROR, None)


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close

_PERFORMATIVES = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)


def encode_performative(performative: Performative) -> bytes:
    """Encode a frame's performative: every field written, absent ones as nulls.

    Raises EncodeError if a field does not fit its type.
    """
    return encode_composite(performative)


def decode_performative(data: Buffer, offset: int = 0) -> tuple[Performative, int]:
    """The performative at ``offset``, and the offset after it, where a transfer's payload starts.

    Raises DecodeError if the bytes are not a performative.
    """
    value, end = decode_composite(data, offset)
    if not isinstance(value, _PERFORMATIVES):
        raise DecodeError(f"A frame starts with {type(value).__name__}, which is not a performative.")
    return value, end


def decode_composite(data: Buffer, offset: int = 0) -> tuple[object, int]:
    """The described value at ``offset`` as its class here (or as ``Described``), and the offset after it.

    Raises DecodeError if the bytes are not a described value.
    """
    value, end = decode_value(data, offset)
    if not isinstance(value, Described):
        raise DecodeError(f"Expected a described value, got {type(value).__name__}.")
    return from_described(value), end


__all__ = [
    "ROLE_RECEIVER",
    "ROLE_SENDER",
    "SND_MIXED",
    "SND_SETTLED",
    "SND_UNSETTLED",
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Coordinator",
    "DeliveryState",
    "Detach",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Performative",
    "Received",
    "Rejected",
    "Released",
    "Source",
    "Target",
    "Transfer",
    "decode_performative",
    "encode_performative",
]

"""AMQP's types as Python values: a decoded value is encoded as its original type again.

Python's own types represent the AMQP type closest to them; the others are small subclasses:

    null      None            string    str          list      list
    boolean   bool            symbol    Symbol       map       dict
    long      int             char      Char         array     Array
    double    float           binary    bytes        described Described
    uuid      uuid.UUID       timestamp Timestamp    decimal*  Decimal
    ubyte, ushort, uint, ulong, byte, short, int     UByte, UShort, UInt, ULong, Byte, Short, Int
    float     Float

The subclasses compare and hash like their base (``Symbol("a") == "a"``), so most callers can ignore them.
Source: AMQP 1.0 part 1 section 1.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Symbol(str):
    """A name from a constrained domain: capabilities, annotation keys, error conditions."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class UByte(int):
    """0 <= value < 2**8."""

    __slots__ = ()


class UShort(int):
    """0 <= value < 2**16."""

    __slots__ = ()


class UInt(int):
    """0 <= value < 2**32."""

    __slots__ = ()


class ULong(int):
    """0 <= value < 2**64."""

    __slots__ = ()


class Byte(int):
    """-2**7 <= value < 2**7."""

    __slots__ = ()


class Short(int):
    """-2**15 <= value < 2**15."""

    __slots__ = ()


class Int(int):
    """-2**31 <= value < 2**31 (a plain ``int`` is a long)."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970-01-01 UTC; negative before it."""

    __slots__ = ()


class Float(float):
    """A 32-bit float (a plain ``float`` is a double)."""

    __slots__ = ()


class Decimal(bytes):
    """A decimal32, decimal64 or decimal128 as its 4, 8 or 16 bytes; not interpreted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor: a filter, a state or an extension without a class here."""

    descriptor: object
    """Usually a Symbol or a ULong."""
    value: object


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value that is encoded already, with its constructor."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence whose elements share one AMQP type."""

    items: tuple[object, ...]
    element_type: type
    """One of this module's types or Python's own (``str``, ``dict``, …), so that an empty array keeps its
    type. ``type(None)``: an empty array without a type."""

    @classmethod
    def of(cls, element_type: type, items: Iterable[object] = ()) -> Array:
        """An array of ``items``, each converted to ``element_type`` where it is not one yet."""
        return cls(
            tuple(item if type(item) is element_type else element_type(item) for item in items), element_type
        )

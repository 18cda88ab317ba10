"""Annotations of encoded messages, read entry by entry and copied as bytes, so that every type survives."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Final

from tidegate.amqp.decode import PROTOCOL_LIMITS, check_key, decode_value, skip_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import DELIVERY_ANNOTATIONS, FOOTER, HEADER, MESSAGE_ANNOTATIONS, Section

ANNOTATIONS_32: Final = 0x005372D1
DELIVERY_ANNOTATIONS_32: Final = 0x005371D1
"""The first bytes of a section of message annotations, or delivery annotations, with 32-bit lengths."""

_REPLACED: Final = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS)
_DESCRIPTORS: Final = {code: bytes((0, 0x53, code)) for code in range(HEADER, FOOTER + 1)}

pack_map32: Final = struct.Struct(">III").pack
"""What precedes the entries of such a section: section and constructor, size, count."""


def annotations_section(word: int, entries: bytes, count: int) -> bytes:
    """A section of ``count`` encoded keys and values, or nothing; ``word`` is one of the constants above."""
    return pack_map32(word, len(entries) + 4, count) + entries if count else b""


def merged_entries(
    message: bytes, sections: Sequence[Section], wanted: int, without: Collection[str]
) -> tuple[bytes, int]:
    """The encoded entries of all sections of one code, except those named ``without``.

    Returns the bytes and the count of keys and values. Raises DecodeError if a section is not a map, a key is
    of a type that decoders refuse, or there are more entries than they accept.
    """
    count = 0
    kept: list[bytes] = []
    for code, _, value_start, end in sections:
        if code != wanted or message[value_start] == 0x40:
            continue
        if message[value_start] not in (0xC1, 0xD1):
            raise DecodeError(f"Annotations at byte {value_start} are not a map.")
        at = value_start + (3 if message[value_start] == 0xC1 else 9)
        while at < end:
            count += 1
            if count > PROTOCOL_LIMITS.map_entries_max:
                raise DecodeError(f"There are more than {PROTOCOL_LIMITS.map_entries_max} annotations.")
            key, value_at = decode_value(message, at)
            check_key(key)
            value_end = skip_value(message, value_at)
            if value_end > end:
                raise DecodeError(f"Annotations at byte {value_start} end inside an entry.")
            # Clients treat a binary key as the same name: the official Python one reads symbols as bytes.
            if (key.decode("latin-1") if isinstance(key, bytes) else key) not in without:
                kept.append(message[at:value_end])
            at = value_end
    return b"".join(kept), 2 * len(kept)


def reassembled(
    message: bytes, sections: Sequence[Section], annotations: bytes, delivery_annotations: bytes
) -> bytes:
    """The message with other annotations, in the order that Java's client needs, and with one header.

    Rust's client reads seven sections. Each gets a descriptor of the only form that Python's client reads.
    """
    header = b""
    others: list[bytes] = []
    for code, _, value_start, end in sections:
        if code == HEADER:
            header = _DESCRIPTORS[code] + message[value_start:end]
        elif code not in _REPLACED:
            others += _DESCRIPTORS[code], message[value_start:end]
    return b"".join((header, delivery_annotations, annotations, *others))

"""Which partition a key belongs to: Event Hubs' own hash, so that a key gets the same partition as in Azure.

Source: Bob Jenkins' lookup3 (``hashlittle2``, public domain) over the UTF-8 bytes, folded to 16 bits, as
the official .NET, Java and JavaScript clients do it; checked against 31 keys x 11 partition counts that
@azure/event-hubs 6.0.4 computed (``tests/vectors/partition_key_vectors.json``).
"""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF


_KEPT_CHARACTERS_MAX = 40
"""Hashes of longer keys are computed again: in a service, clients choose them. A GUID has 36."""


def partition_key_hash(partition_key: str) -> int:
    """The signed 16-bit hash of a key."""
    return (_kept_hash if len(partition_key) <= _KEPT_CHARACTERS_MAX else _hash)(partition_key)


def _hash(partition_key: str) -> int:
    b, c = _lookup3(partition_key.encode())
    folded = (c ^ b) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


_kept_hash = lru_cache(maxsize=65536)(_hash)


def partition_for_key(partition_key: str, partition_count: int) -> int:
    """The index of the partition, 0 <= index < partition_count, that a key belongs to."""
    # abs() before the modulus is the same as the official clients' truncating remainder followed by abs().
    return abs(partition_key_hash(partition_key)) % partition_count


def _lookup3(data: bytes) -> tuple[int, int]:
    length = len(data)
    a = b = c = (_SEED + length) & _MASK
    if length == 0:
        return b, c
    position = 0
    while length - position > 12:
        a = (a + int.from_bytes(data[position : position + 4], "little")) & _MASK
        b = (b + int.from_bytes(data[position + 4 : position + 8], "little")) & _MASK
        c = (c + int.from_bytes(data[position + 8 : position + 12], "little")) & _MASK
        a, b, c = _mix(a, b, c)
        position += 12
    tail = data[position:].ljust(12, b"\0")
    a = (a + int.from_bytes(tail[0:4], "little")) & _MASK
    b = (b + int.from_bytes(tail[4:8], "little")) & _MASK
    c = (c + int.from_bytes(tail[8:12], "little")) & _MASK
    return _final(a, b, c)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = ((a - c) & _MASK) ^ _rotate(c, 4)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotate(a, 6)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotate(b, 8)
    b = (b + a) & _MASK
    a = ((a - c) & _MASK) ^ _rotate(c, 16)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rotate(a, 19)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rotate(b, 4)
    b = (b + a) & _MASK
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int]:
    c = ((c ^ b) - _rotate(b, 14)) & _MASK
    a = ((a ^ c) - _rotate(c, 11)) & _MASK
    b = ((b ^ a) - _rotate(a, 25)) & _MASK
    c = ((c ^ b) - _rotate(b, 16)) & _MASK
    a = ((a ^ c) - _rotate(c, 4)) & _MASK
    b = ((b ^ a) - _rotate(a, 14)) & _MASK
    c = ((c ^ b) - _rotate(b, 24)) & _MASK
    return b, c

"""Finds bodies and partition keys in a buffer of encoded events, in all events at once.

Theory of operation. An encoded event is a prefix (header, annotations, properties) and a body, usually one
data section at the end. The sections of all events are walked in parallel, by operations on whole arrays;
events that a step cannot handle are left to the full decoder.

Events with a key are usually sent with no other annotation, and if every device has its own key, they differ
in nothing else before their bodies. So all keys are cut out, and the rest is decoded once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from tidegate.wire.batch import DATA_SECTION_8, DATA_SECTION_32
from tidegate.wire.names import PARTITION_KEY

Int64s = npt.NDArray[np.int64]
if TYPE_CHECKING:
    Column = pa.Array[Any]

_BINARY_BYTES_MAX: Final = 2**31 - 1

_SECTIONS_MAX: Final = 6
"""Most sections before a body: header, two kinds of annotations, properties, application properties, and one
more for encoders that repeat one. Events with more are left to the full decoder."""
_PROPERTIES: Final = 0x005374
"""The first three bytes of application properties."""


@dataclass(frozen=True, slots=True)
class BodyPlaces:
    """For each event, where its prefix ends and its body starts (it ends with the event); -1: not found."""

    prefix_ends: Int64s
    body_starts: Int64s
    properties_starts: Int64s
    """Where its application properties start, which end with the prefix; ``prefix_ends`` without any."""

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        """Which events have a body that is one data section and the last section."""
        return self.prefix_ends >= 0


def words_of(payload: bytes) -> npt.NDArray[np.int64]:
    """For each position in the payload except the last seven, the eight bytes from there as one number.

    A view: reading numbers from it by position costs a third of reading eight single bytes each.
    """
    return np.ndarray((max(0, len(payload) - 7),), dtype=">i8", buffer=payload, strides=(1,))


def locate_bodies(payload: bytes, starts: Int64s, ends: Int64s) -> BodyPlaces:
    """Find the bodies of the events ``payload[start:end]`` that are one data section at the event's end.

    Events of any other shape, including garbled ones, are not found. Bytes beyond an event's end are ignored.
    Source: AMQP 1.0 part 1 section 1.6 (sizes of binary, list and map), part 3 section 3.2.
    """
    words = words_of(payload)
    prefix_ends, body_starts, properties_starts = np.full((3, len(starts)), -1, dtype=np.int64)
    which, at = np.arange(len(starts)), starts
    for _ in range(_SECTIONS_MAX):
        # Five bytes identify a short section; the word's bytes of the following event are ignored then.
        is_inside = at <= np.minimum(ends[which] - 5, len(payload) - 8)
        if not is_inside.all():
            which, at = which[is_inside], at[is_inside]
        if not len(which):
            break
        both = words[at].astype(np.int64)
        word, size = both >> 32, both & 0xFFFFFFFF
        for section, header_bytes, body_bytes in (
            (DATA_SECTION_32, 8, size),
            (DATA_SECTION_8, 5, size >> 24),
        ):
            is_body = word == section
            if not is_body.any():
                continue
            is_body &= at + header_bytes + body_bytes == ends[which]
            prefix_ends[which[is_body]] = at[is_body]
            body_starts[which[is_body]] = at[is_body] + header_bytes
        # Sections 0x70 to 0x74 are a list or a map, its size of one byte or, where bit 4 is set, of four.
        code = word >> 8
        is_walked = (code >= 0x005370) & (code <= _PROPERTIES) & (word & 0xC0 == 0xC0)
        is_walked &= properties_starts[which] < 0  # only a body may follow application properties
        length = np.where(word & 0x10, 8 + size, 5 + (size >> 24))
        is_last = is_walked & (code == _PROPERTIES)
        properties_starts[which[is_last]] = at[is_last]
        which, at = which[is_walked], (at + length)[is_walked]
    has_none = (properties_starts < 0) | (prefix_ends < 0)  # what follows may be another body
    return BodyPlaces(prefix_ends, body_starts, np.where(has_none, prefix_ends, properties_starts))


def cut(payload: bytes, starts: Int64s, ends: Int64s) -> Column:
    """``payload[start:end]`` of each pair, ascending and disjoint, as binary values, copied by Arrow.

    Values and the gaps between them form one column over the existing buffer, of which every second value is
    taken.
    """
    if not len(starts):
        return pa.array([], type=pa.binary())
    assert len(payload) <= _BINARY_BYTES_MAX
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    whole = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.data), pa.py_buffer(payload)]
    )
    return whole.take(pa.array(np.arange(0, len(offsets), 2), type=pa.int32()))


_NAME: Final = PARTITION_KEY.encode("ascii")
_HEAD: Final = np.frombuffer(
    bytes((0x00, 0x53, 0x72, 0xC1, 0, 2, 0xA3, len(_NAME))) + _NAME + bytes((0xA1, 0)), dtype=np.uint8
)
"""Message annotations: a small map of two values, a symbol and a short string. Two bytes, left 0 here, are
sizes. Source: AMQP 1.0 part 1 section 1.6, part 3 section 3.2.3."""
_FIRST_WORD: Final = int.from_bytes(_HEAD[:4].tobytes(), "big")
"""Its first four bytes, which rule out most other events."""
_MAP_SIZE_AT: Final = 4
_KEY_SIZE_AT: Final = len(_HEAD) - 1
_KEY_SIZE_MORE: Final = len(_HEAD) - 5
"""How much larger the map's size is than the key's."""
_FIXED: Final = np.setdiff1d(np.arange(len(_HEAD)), (_MAP_SIZE_AT, _KEY_SIZE_AT))
_ANNOTATIONS: Final = 0x72
"""The last section code that may not follow annotations."""


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """For each event, where its partition key starts and ends; -1: not found."""

    starts: Int64s
    ends: Int64s

    @property
    def is_found(self) -> npt.NDArray[np.bool_]:
        """Which events begin with annotations that hold only a partition key."""
        return self.starts >= 0


def locate_keys(payload: bytes, starts: Int64s, ends: Int64s) -> KeyPlaces:
    """Find the partition keys in the prefixes ``payload[start:end]``."""
    key_starts, key_ends = np.full((2, len(starts)), -1, dtype=np.int64)
    data = np.frombuffer(payload, dtype=np.uint8)
    which = np.flatnonzero(starts + len(_HEAD) <= ends)
    which = which[words_of(payload)[starts[which]] >> 32 == _FIRST_WORD]
    if not len(which):
        return KeyPlaces(key_starts, key_ends)
    heads = sliding_window_view(data, len(_HEAD))[starts[which]]
    sizes = heads[:, _KEY_SIZE_AT].astype(np.int64)
    is_key = (heads[:, _FIXED] == _HEAD[_FIXED]).all(axis=1)
    is_key &= heads[:, _MAP_SIZE_AT] == sizes + _KEY_SIZE_MORE
    found_ends = starts[which] + len(_HEAD) + sizes
    is_last = found_ends == ends[which]
    # A later section; the decoder checks whether it is valid.
    section = data[np.minimum(found_ends + 2, len(data) - 1)]
    is_key &= is_last | (found_ends + 3 <= ends[which]) & (section > _ANNOTATIONS)
    which, found_ends = which[is_key], found_ends[is_key]
    key_starts[which], key_ends[which] = starts[which] + len(_HEAD), found_ends
    return KeyPlaces(key_starts, key_ends)

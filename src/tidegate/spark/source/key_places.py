"""Finds the partition keys in a buffer of encoded events, for events with no other annotation.

Events with a key are usually sent that way, and if every device has its own key, they differ in nothing else
before their bodies. So the keys of all events are cut out at once, and the rest is decoded once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from tidegate.spark.source.body_places import Int64s, words_of
from tidegate.wire.names import PARTITION_KEY

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

"""Finds application properties in a buffer of encoded events, in all events at once, as text.

Theory of operation. The first properties of all events are found by operations on whole arrays, then all
second ones, and so on. Keys and values are cut out of the buffer in columns, by type, so properties that
differ from event to event cost as much as equal ones. Events that a step cannot handle are left to the full
decoder, whose values these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from tidegate.amqp.errors import DecodeError
from tidegate.columns.places import Int64s, cut, words_of
from tidegate.wire.alike import is_text
from tidegate.wire.event_codec import decode_property
from tidegate.wire.event_texts import cached_when_short, text_of

if TYPE_CHECKING:
    from tidegate.columns.places import Column

_arrow: Any = pa  # their stubs know less than they do
_compute: Any = pyarrow.compute

_ENTRIES_MAX: Final = 64
"""Properties of an event that are found so. Events with more are left to the full decoder."""
_CONSTRUCTOR_AT: Final = 3
_FIRST_ENTRY_AT: Final = {0xC1: 6, 0xD1: 12}
"""Where a section's first entry starts, by the map's constructor (AMQP 1.0 part 1 section 1.6.23)."""

_STRING_8: Final = 0xA1
_DOUBLE: Final = 0x82
_CONSTANTS: Final = {0x40: None, 0x41: "true", 0x42: "false"}
_SIGNED_BITS: Final = {0x54: 8, 0x55: 8, 0x71: 32, 0x81: 64}
"""Bits of an integer that is written in two's complement, by its constructor."""

_WIDTHS: Final = np.full(256, 1 << 40, dtype=np.int64)
"""Bytes between a value's constructor and its content's variable part. Values with other constructors, as
described ones, extend beyond any event."""
for _kind, _width in enumerate((0, 1, 2, 4, 8, 16, 1, 4, 1, 4, 1, 4), 4):
    _WIDTHS[_kind << 4 : (_kind + 1) << 4] = _width
_IS_SIZED_8: Final = np.isin(np.arange(256) >> 4, (0xA, 0xC, 0xE))
_IS_SIZED_32: Final = np.isin(np.arange(256) >> 4, (0xB, 0xD, 0xF))


@dataclass(frozen=True, slots=True)
class EntryPlaces:
    """The properties of all events, in order."""

    counts: Int64s
    """For each event, the number of its properties; -1: left to the full decoder, and not below."""
    key_starts: Int64s
    key_ends: Int64s
    """Of each property: a string. The value's constructor follows."""
    value_ends: Int64s


def locate_entries(payload: bytes, starts: Int64s, ends: Int64s) -> EntryPlaces:
    """Find the entries of the sections of application properties ``payload[start:end]``; none where empty.

    Bytes must follow each section, as a body does.
    """
    data = np.frombuffer(payload, dtype=np.uint8)
    counts = np.zeros(len(starts), dtype=np.int64)
    which = np.flatnonzero(ends > starts)
    at, until = starts[which], ends[which]
    constructors = data[at + _CONSTRUCTOR_AT]
    at = at + _FIRST_ENTRY_AT[0xC1]
    at[constructors == 0xD1] += _FIRST_ENTRY_AT[0xD1] - _FIRST_ENTRY_AT[0xC1]
    is_good = (constructors == 0xC1) | (constructors == 0xD1)
    found: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
    for _ in range(_ENTRIES_MAX):
        is_inside = is_good & (at < until)
        if not is_inside.all():
            counts[which[~is_good | (at > until)]] = -1
            which, at, until = which[is_inside], at[is_inside], until[is_inside]
        if not len(which):
            break
        key_ends = at + 2 + data[at + 1]
        is_good = (data[at] == _STRING_8) & (key_ends < until)
        if not is_good.all():
            counts[which[~is_good]] = -1
            which, at, until, key_ends = which[is_good], at[is_good], until[is_good], key_ends[is_good]
        value_ends = _value_ends(data, payload, key_ends)
        is_good = value_ends <= until
        found.append((which, at + 2, key_ends, value_ends))
        at = value_ends
    counts[which] = -1
    return _in_order(found, counts)


def _value_ends(data: npt.NDArray[np.uint8], payload: bytes, at: Int64s) -> Int64s:
    """Where the values end whose constructors are at these places; beyond any event if it is not known."""
    codes = data[at]
    ends = at + 1 + _WIDTHS[codes]
    is_sized = _IS_SIZED_8[codes]
    ends += np.where(is_sized, data[at + 1], 0)
    if (is_sized := _IS_SIZED_32[codes]).any():
        places = np.minimum(at[is_sized] + 1, len(payload) - 8)
        ends[is_sized] += words_of(payload)[places] >> 32 & 0xFFFFFFFF
        # A size so near the end of the buffer cannot be one.
        ends[at + 9 > len(payload)] += np.where(is_sized[at + 9 > len(payload)], 1 << 40, 0)
    return ends


def _in_order(found: list[tuple[Int64s, Int64s, Int64s, Int64s]], counts: Int64s) -> EntryPlaces:
    """All entries by event, without those of events that are left out."""
    if not found:
        empty = np.zeros(0, dtype=np.int64)
        return EntryPlaces(counts, empty, empty, empty)
    is_regular = all(len(slot[0]) == len(found[0][0]) for slot in found) and (counts >= 0).all()
    if is_regular:
        # The usual case: all have the same number, so a matrix turned over is in order.
        columns = [np.stack(slots, axis=1).ravel() for slots in zip(*found, strict=True)]
    else:
        columns = [np.concatenate(slots) for slots in zip(*found, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        order = order[counts[columns[0][order]] >= 0]
        columns = [column[order] for column in columns]
    events, key_starts, key_ends, value_ends = columns
    counts += np.where(counts >= 0, np.bincount(events, minlength=len(counts)), 0)
    return EntryPlaces(counts, key_starts, key_ends, value_ends)


@dataclass(frozen=True, slots=True)
class EntryTexts:
    """The properties of all events as text, in order."""

    counts: Int64s
    """For each event, the number of its properties; -1: left to the full decoder, and not below."""
    keys: Column
    values: Column

    def maps(self, kind: pa.DataType) -> Column:
        """Of each event, the map of its properties; an empty one if they are left to the full decoder."""
        offsets = np.zeros(len(self.counts) + 1, dtype=np.int32)
        np.cumsum(np.maximum(self.counts, 0), out=offsets[1:])
        maps: Column = _arrow.MapArray.from_arrays(offsets, self.keys, self.values, type=kind)
        return maps

    def values_of(self, key: str) -> Column:
        """Of each event, the value of that key; null where it has none."""
        found = np.flatnonzero(_compute.equal(self.keys, key).to_numpy(zero_copy_only=False))
        places = np.full(len(self.counts), -1, dtype=np.int64)
        places[_events_of(self.counts)[found]] = found
        return self.values.take(_arrow.array(places, mask=places < 0))


def decode_entries(payload: bytes, starts: Int64s, ends: Int64s) -> EntryTexts:
    """The entries of the sections ``payload[start:end]`` as text; arguments as for ``locate_entries``."""
    entries = locate_entries(payload, starts, ends)
    while True:
        keys, are_keys_bad = _strings(payload, entries.key_starts, entries.key_ends)
        values, are_values_bad = _value_texts(payload, entries)
        is_bad = are_keys_bad | are_values_bad
        if not is_bad.any():
            is_bad = _are_repeated(entries.counts, keys)
        if not is_bad.any():
            return EntryTexts(entries.counts, keys, values)
        entries = _without(entries, _events_of(entries.counts)[is_bad])


def _events_of(counts: Int64s) -> Int64s:
    """The event of each entry."""
    return np.repeat(np.arange(len(counts)), np.maximum(counts, 0))


def _without(entries: EntryPlaces, events: Int64s) -> EntryPlaces:
    """Leave these events to the full decoder."""
    counts = entries.counts.copy()
    counts[events] = -1
    is_kept = counts[_events_of(entries.counts)] >= 0
    return EntryPlaces(
        counts, entries.key_starts[is_kept], entries.key_ends[is_kept], entries.value_ends[is_kept]
    )


def _are_repeated(counts: Int64s, keys: Column) -> npt.NDArray[np.bool_]:
    """Which entries have a key that their event has twice; of each pair at least one."""
    numbers = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    is_repeated = np.zeros(len(numbers), dtype=bool)
    each = int(counts[0]) if len(counts) else 0
    if each > 0 and (counts == each).all():
        rows = numbers.reshape(-1, each)
        if (rows == rows[0]).all():  # the usual case: all events have the same keys
            is_repeated[:] = len(set(rows[0].tolist())) < each
            return is_repeated
    pairs = _events_of(counts) << 32 | numbers
    order = np.argsort(pairs)
    is_repeated[order[1:]] = pairs[order[1:]] == pairs[order[:-1]]
    return is_repeated


def _strings(payload: bytes, starts: Int64s, ends: Int64s) -> tuple[Column, npt.NDArray[np.bool_]]:
    """The strings at these places, and which of them are not UTF-8."""
    found = cut(payload, starts, ends)
    is_bad = np.zeros(len(starts), dtype=bool)
    try:
        return found.cast(pa.string()), is_bad
    except pa.ArrowInvalid:
        is_bad[:] = [not is_text(value or b"") for value in found.to_pylist()]
        return pa.nulls(len(starts), pa.string()), is_bad


def _value_texts(payload: bytes, entries: EntryPlaces) -> tuple[Column, npt.NDArray[np.bool_]]:
    """The values as text, and which of them the full decoder must decide."""
    data = np.frombuffer(payload, dtype=np.uint8)
    at, ends = entries.key_ends, entries.value_ends
    codes = data[at]
    is_string = codes == _STRING_8
    if is_string.all():
        return _strings(payload, at + 2, ends)
    is_bad = np.zeros(len(codes), dtype=bool)
    is_left = ~is_string
    pieces: list[Column] = []
    places: list[Int64s] = []
    if is_string.any():
        which = np.flatnonzero(is_string)
        texts, is_bad[which] = _strings(payload, at[which] + 2, ends[which])
        pieces.append(texts)
        places.append(which)
    for code in np.unique(codes[is_left]).tolist():
        which = np.flatnonzero(codes == code)
        if code in _CONSTANTS:
            texts = pa.repeat(pa.scalar(_CONSTANTS[code], pa.string()), len(which))
        elif code in _SIGNED_BITS:
            # The eight bytes that end with the value; those before it are shifted out.
            unused = 64 - _SIGNED_BITS[code]
            numbers = words_of(payload)[ends[which] - 8].astype(np.int64)
            texts = pa.array(numbers << unused >> unused).cast(pa.string())
        elif code == _DOUBLE:
            words = words_of(payload)[ends[which] - 8].astype(np.int64)
            texts = pa.array([*map(text_of, words.view(np.float64).tolist())], type=pa.string())
        else:
            texts, is_bad[which] = _decoded(cut(payload, at[which], ends[which]))
        pieces.append(texts)
        places.append(which)
    order = np.empty(len(codes), dtype=np.int64)
    order[np.concatenate(places)] = np.arange(len(codes))
    return pa.concat_arrays(pieces).take(order), is_bad


def _decoded(encoded: Column) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Values of rarer types, each distinct one decoded once; and which of them are not valid."""
    distinct = encoded.dictionary_encode()
    texts: list[str | None] = []
    bad: list[int] = []
    for number, value in enumerate(distinct.dictionary.to_pylist()):
        try:
            texts.append(_text_of_encoded(value or b""))
        except (DecodeError, ValueError, OverflowError):
            texts.append(None)
            bad.append(number)
    numbers = distinct.indices
    return pa.array(texts, pa.string()).take(numbers), np.isin(numbers.to_numpy(), bad)


@cached_when_short
def _text_of_encoded(value: bytes) -> str | None:
    return text_of(decode_property(value))

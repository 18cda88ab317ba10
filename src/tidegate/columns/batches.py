"""Turns encoded events into Arrow columns, by whole columns, without a Python object per event.

Theory of operation. A chunk of events is one buffer and the positions of its messages. ``places`` finds
where all their bodies, partition keys and application properties are, and ``entries`` those properties'
keys and values; Arrow cuts them out of the buffer. What is left around a body (header, other annotations,
standard properties) is mostly the same in all events of a producer: each distinct one is decoded once per
chunk, and its columns are spread over the events. Only events of another shape (a value body, a footer,
several data sections) are decoded individually.

Only requested columns are computed: without ``body`` no body is cut out, without the columns around it
nothing is decoded, and without either no message is examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from tidegate.amqp.errors import DecodeError
from tidegate.columns.entries import EntryTexts, decode_entries
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.columns.places import BodyPlaces, Int64s, cut, locate_bodies, locate_keys
from tidegate.columns.schema import EVENT_ARROW_SCHEMA, arrow_schema
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_texts import EventTexts, cached_when_short, decode_whole, property_of
from tidegate.wire.packed_messages import packed

_BINARY_BYTES_MAX = 2**31 - 1
_compute: Any = pyarrow.compute  # its stubs know less than it does

if TYPE_CHECKING:
    Column = pa.Array[Any]


def event_batch(
    partition_id: str, events: EncodedEvents, names: Sequence[str] = EVENT_COLUMNS
) -> pa.RecordBatch:
    """The columns of these names, in their order: any of ``columns.schema``, and ``properties.NAME``."""
    contents = _Contents(events)
    columns = [
        _POSITION_COLUMNS[name](partition_id, events) if name in _POSITION_COLUMNS else contents.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(tuple(names)))


def batch_reader(names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """A reader of record batches of these columns."""
    return pa.RecordBatchReader.from_batches(arrow_schema(tuple(names)), batches)


def event_batches(
    parts: Sequence[tuple[str, EncodedEvents]], names: Sequence[str] = EVENT_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """As ``event_batch``, for several partitions together, because small columns cost as much as large
    ones."""
    if not parts:
        return
    whole = event_batch("", EncodedEvents.joined([events for _, events in parts]), names)
    start = 0
    for partition_id, events in parts:
        batch = whole.slice(start, len(events))
        if "partition" in names:
            index = list(names).index("partition")
            batch = batch.set_column(
                index, batch.schema.field(index), _partition_column(partition_id, events)
            )
        start += len(events)
        yield batch


def binary_column(values: Sequence[bytes | memoryview]) -> Column:
    """Concatenate values in one buffer; together less than 2 GiB."""
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    data = b"".join(values)
    assert len(data) <= _BINARY_BYTES_MAX
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    )


_SAMPLE: Final = 64
"""Events of a chunk whose properties are compared: most have the same, or most have their own."""


class _Contents:
    """The contents of a chunk's messages; each part is computed when first needed."""

    def __init__(self, events: EncodedEvents) -> None:
        self._events = events
        self._messages: tuple[bytes, Int64s, Int64s] | None = None
        self._places: BodyPlaces | None = None
        self._distinct: tuple[list[EventTexts], npt.NDArray[np.int32]] | None = None
        self._keys: Column | None = None
        """Once ``_texts`` is known: the partition keys that it leaves out; null for other events."""
        self._entries: EntryTexts | None = None
        """Likewise the application properties; of other events none. None if most events have the same: they
        are then in ``_distinct``."""
        self._alone: list[int] = []
        """Likewise the events that are decoded individually, ascending."""
        self._decoded: dict[int, tuple[EventTexts, bytes | None]] = {}

    def column(self, name: str) -> Column:
        """The column of that name."""
        wanted = property_of(name)
        if wanted is None:
            return _CONTENT_COLUMNS[name](self)

        def value_of(texts: EventTexts) -> object:
            return texts.properties.get(wanted)

        entries = self._properties()
        if entries is None:
            return self.spread(value_of)
        return self._with_those_alone(entries.values_of(wanted), value_of)

    def encoded(self) -> Column:
        """The messages themselves."""
        return cut(*self._buffer())

    def body(self) -> Column:
        """The bodies; null if they were neither found nor decoded."""
        payload, _, ends = self._buffer()
        places = self._located()
        if places.is_found.all():
            return cut(payload, places.body_starts, ends)
        bodies = [
            self._decode_whole(index)[1] if start < 0 else payload[start:end]
            for index, (start, end) in enumerate(zip(places.body_starts, ends, strict=True))
        ]
        return pa.array(bodies, type=pa.binary())

    def spread(self, value_of: Callable[[EventTexts], object], kind: pa.DataType | None = None) -> Column:
        """A column made from what is around each body, properties left out. kind: its type; None: string."""
        texts, indices = self._texts()
        values: Column = pa.array([value_of(item) for item in texts], type=kind or pa.string())
        return values.take(pa.array(indices, type=pa.int32()))

    def partition_key(self) -> Column:
        """The partition keys: cut out if they were found, else decoded."""
        decoded = self.spread(lambda texts: texts.partition_key)
        return decoded if self._keys is None else _compute.coalesce(self._keys, decoded)

    def properties(self) -> Column:
        """The maps of application properties."""
        kind, entries = EVENT_ARROW_SCHEMA.field("properties").type, self._properties()
        if entries is None:
            return self.spread(_items_of, kind)
        return self._with_those_alone(entries.maps(kind), _items_of)

    def _with_those_alone(self, found: Column, value_of: Callable[[EventTexts], object]) -> Column:
        """The column, with the values of events that are decoded individually."""
        if not self._alone:
            return found
        places = np.arange(len(found))
        places[self._alone] = len(found) + np.arange(len(self._alone))
        alone = pa.array([value_of(self._decode_whole(index)[0]) for index in self._alone], type=found.type)
        whole: Column = pa.concat_arrays([found, alone])
        return whole.take(places)

    def _buffer(self) -> tuple[bytes, Int64s, Int64s]:
        """One buffer, and where each message starts and ends in it."""
        if self._messages is None:
            messages = packed(self._events.messages)
            self._messages = messages.payload, _int64s(messages.starts), _int64s(messages.ends)
        return self._messages

    def _located(self) -> BodyPlaces:
        if self._places is None:
            self._places = locate_bodies(*self._buffer())
        return self._places

    def _properties(self) -> EntryTexts | None:
        self._texts()
        return self._entries

    def _texts(self) -> tuple[list[EventTexts], npt.NDArray[np.int32]]:
        """The distinct surroundings of bodies, decoded, and for each event the index of its own."""
        if self._distinct is None:
            self._distinct = self._decode_around()
        return self._distinct

    def _decode_around(self) -> tuple[list[EventTexts], npt.NDArray[np.int32]]:
        (payload, starts, _), places = self._buffer(), self._located()
        # An event that was not found has an empty range, and so no entries.
        sections = places.properties_starts, places.prefix_ends
        is_found, rest_ends = places.is_found.copy(), places.prefix_ends
        if not _are_alike(payload, *sections):
            self._entries, rest_ends = decode_entries(payload, *sections), places.properties_starts
            is_found &= self._entries.counts >= 0
        found = np.flatnonzero(is_found)
        self._keys, starts_behind = self._cut_keys(found)
        texts: list[EventTexts] = []
        indices = np.zeros(len(starts), dtype=np.int32)
        if (starts_behind == rest_ends[found]).all():
            texts.append(EventTexts())
        else:
            rests = cut(payload, starts_behind, rest_ends[found]).dictionary_encode()
            assert isinstance(rests, pa.DictionaryArray)
            numbers = rests.indices.to_numpy()
            indices[found] = numbers
            for number, rest in enumerate(rests.dictionary.to_pylist()):
                try:
                    texts.append(_decode_rest(bytes(rest or b"")))
                except (DecodeError, ValueError, OverflowError):  # garbage, or a time that no calendar has
                    texts.append(EventTexts())
                    is_found[found[numbers == number]] = False
        if self._keys is not None and not is_found[found].all():
            self._keys = _compute.if_else(pa.array(is_found), self._keys, None)
        self._alone = np.flatnonzero(~is_found).tolist()
        for index in self._alone:
            indices[index] = len(texts)
            texts.append(self._decode_whole(index)[0])
        return texts, indices

    def _cut_keys(self, found: Int64s) -> tuple[Column | None, Int64s]:
        """The partition keys, and where these events continue after them."""
        payload, starts, _ = self._buffer()
        starts = starts[found]
        keys = locate_keys(payload, starts, self._located().prefix_ends[found])
        is_key = np.zeros(len(self._events), dtype=bool)
        is_key[found] = keys.is_found
        if not is_key.any():
            return None, starts
        texts = cut(payload, keys.starts[keys.is_found], keys.ends[keys.is_found])
        try:
            texts = texts.cast(pa.string())
        except pa.ArrowInvalid:
            return None, starts  # one of them is not valid UTF-8, as the decoder will report
        if is_key.all():
            return texts, keys.ends
        column = _compute.replace_with_mask(pa.nulls(len(is_key), pa.string()), pa.array(is_key), texts)
        return column, np.maximum(starts, keys.ends)

    def _decode_whole(self, index: int) -> tuple[EventTexts, bytes | None]:
        if index not in self._decoded:
            self._decoded[index] = decode_whole(self._events.messages[index])
        return self._decoded[index]


def _are_alike(payload: bytes, starts: Int64s, ends: Int64s) -> bool:
    """Whether at most a quarter of these sections are distinct, going by a few of them."""
    some = slice(None, None, max(1, len(starts) // _SAMPLE))
    pairs = zip(starts[some].tolist(), ends[some].tolist(), strict=True)
    sample = [payload[start:end] for start, end in pairs]
    return 4 * len(set(sample)) <= len(sample)


def _items_of(texts: EventTexts) -> list[tuple[str, str | None]]:
    return list(texts.properties.items())


@cached_when_short
def _decode_rest(rest: bytes) -> EventTexts:
    """Cached across chunks, because a device sends the same again."""
    return EventTexts.decode(rest) if rest else EventTexts()


def _int64s(numbers: Sequence[int]) -> Int64s:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.fromiter(numbers, dtype=np.int64, count=len(numbers))


def _time_column(_: str, events: EncodedEvents) -> Column:
    times_us = _int64s(events.enqueued_times_ms) * 1000
    return pa.array(times_us).cast(EVENT_ARROW_SCHEMA.field("enqueuedTime").type)


def _offset_column(_: str, events: EncodedEvents) -> Column:
    numbers, offsets = events.sequence_numbers, events.offsets
    if isinstance(numbers, range) and offsets[0] == str(numbers[0]) and offsets[-1] == str(numbers[-1]):
        # Only Tidegate delivers batches, and its offsets are its sequence numbers.
        return pa.array(_int64s(numbers)).cast(pa.string())
    return pa.array(offsets, type=pa.string())


def _partition_column(partition_id: str, events: EncodedEvents) -> Column:
    return pa.repeat(pa.scalar(partition_id, pa.string()), len(events))


_POSITION_COLUMNS: Final[Mapping[str, Callable[[str, EncodedEvents], Column]]] = {
    "partition": _partition_column,
    "offset": _offset_column,
    "sequenceNumber": lambda _, events: pa.array(_int64s(events.sequence_numbers)),
    "enqueuedTime": _time_column,
}
"""Columns that need no look at any message."""

_CONTENT_COLUMNS: Final[Mapping[str, Callable[[_Contents], Column]]] = {
    "body": _Contents.body,
    "encodedEvent": _Contents.encoded,
    "publisher": lambda contents: contents.spread(lambda texts: texts.publisher),
    "partitionKey": _Contents.partition_key,
    "properties": _Contents.properties,
    "systemProperties": lambda contents: contents.spread(
        lambda texts: list(texts.system_properties.items()), EVENT_ARROW_SCHEMA.field("systemProperties").type
    ),
}

"""Turns records of capture files into the Arrow columns of the format ``eventhubs``, with equal values.

docs/reference/spark-capture.md lists what a capture file lacks. Its enqueued times are truncated to seconds;
Tidegate's own files also have the exact times in ``SystemProperties``.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.columns.batches import binary_column
from tidegate.columns.schema import EVENT_ARROW_SCHEMA, arrow_schema
from tidegate.spark.capture.container import CaptureFileError, Record
from tidegate.wire.capture import PROPERTY_TYPES, Values, encoded_event, typed_properties
from tidegate.wire.event_texts import DECODE_ERROR_PROPERTY, property_of, text_of
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER

if TYPE_CHECKING:
    Column = pa.Array[Any]

_NOT_A_COLUMN: Final = frozenset(
    (*map(str, (ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER)), PROPERTY_TYPES)
)
"""Not in ``systemProperties``: it has its own column, or is the file writer's note."""
_ALWAYS: Final = ("SequenceNumber", "EnqueuedTimeUtc", "SystemProperties")
"""Needed for every event: its number and its time (which is in two places)."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CaptureRows:
    """One partition's records, with their numbers, times and system properties.

    Events enqueued together have the same time and usually the same ``SystemProperties``, so each distinct
    pair is parsed once.
    """

    records: Sequence[Record]
    sequence_numbers: Int64s
    times_ms: Int64s
    """Enqueued times: milliseconds since 1970-01-01 UTC."""
    systems: Sequence[Values]
    """The distinct ``SystemProperties``."""
    system_of: npt.NDArray[np.int32]
    """For each record, the index of its own among them."""

    def chosen(self, mask: npt.NDArray[np.bool_]) -> CaptureRows:
        """The rows for which ``mask`` is true."""
        return self if mask.all() else self.at(np.flatnonzero(mask))

    def at(self, places: npt.NDArray[np.intp]) -> CaptureRows:
        """The rows at these indices."""
        return replace(
            self,
            records=[self.records[place] for place in places.tolist()],
            sequence_numbers=self.sequence_numbers[places],
            times_ms=self.times_ms[places],
            system_of=self.system_of[places],
        )


def fields_for(columns: Sequence[str]) -> tuple[str, ...]:
    """The fields of a capture file from which these columns are made."""
    columns = ["properties" if property_of(column) is not None else column for column in columns]
    wanted = {name for column in columns for name in _COLUMNS[column][0]} | set(_ALWAYS)
    return tuple(sorted(wanted))


def capture_rows(records: Sequence[Record], file_name: str) -> CaptureRows:
    """Parse records' numbers and times. Raises CaptureFileError for an invalid time."""
    count = len(records)
    places: dict[tuple[str, bytes], int] = {}
    systems: list[Values] = []
    times: list[int] = []
    system_of: list[int] = []
    try:
        numbers = np.fromiter((record["SequenceNumber"] for record in records), np.int64, count)
        for record in records:
            system = record["SystemProperties"]
            # As bytes, where 1 and 1.0 differ.
            key = (record["EnqueuedTimeUtc"], marshal.dumps(system))
            place = places.get(key)
            if place is None:
                place = places[key] = len(systems)
                systems.append(system)
                times.append(_time_ms(key[0], system))
            system_of.append(place)
    except (ValueError, TypeError, OverflowError) as error:
        raise CaptureFileError(f"{file_name} does not hold captured events: {error}.") from error
    indices = np.array(system_of, np.int32)
    times_ms = np.array(times, np.int64)[indices] if count else np.zeros(0, np.int64)
    return CaptureRows(records, numbers, times_ms, systems, indices)


def capture_batch(partition_id: str, rows: CaptureRows, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows as these columns, in this order."""
    arrays = [_column(name, partition_id, rows) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(tuple(columns)))


def _column(name: str, partition_id: str, rows: CaptureRows) -> Column:
    wanted = property_of(name)
    if wanted is None:
        return _COLUMNS[name][1](partition_id, rows)
    return _text_column([text_of(properties.get(wanted)) for properties in _typed_properties(rows)])


def _time_ms(text: str, system_properties: Mapping[str, object]) -> int:
    time_ms = _parsed_time_ms(text)
    exact = system_properties.get("x-opt-enqueued-time")
    # Only if it agrees, because no other writer defines what this property means.
    return exact if type(exact) is int and exact // 1000 == time_ms // 1000 else time_ms


@lru_cache(maxsize=4096)
def _parsed_time_ms(text: str) -> int:
    """Parse ``6/12/2020 6:32:34 PM`` (Capture) or ISO 8601 (IoT Hub's routing), both in UTC."""
    if text[:4].isdigit():
        head, _, fraction = text.removesuffix("Z").partition(".")
        time = datetime.fromisoformat(head).replace(tzinfo=UTC)
        return int(time.timestamp()) * 1000 + int(fraction[:3].ljust(3, "0") or 0)
    time = datetime.strptime(text, "%m/%d/%Y %I:%M:%S %p").replace(tzinfo=UTC)
    return int(time.timestamp()) * 1000


def _enqueued_times(_: str, rows: CaptureRows) -> Column:
    return pa.array(rows.times_ms * 1000).cast(EVENT_ARROW_SCHEMA.field("enqueuedTime").type)


def _text_column(values: Sequence[str | None]) -> Column:
    return pa.array(values, pa.string())


def _bodies(_: str, rows: CaptureRows) -> Column:
    bodies = [record["Body"] for record in rows.records]
    bad = [place for place, system in enumerate(rows.systems) if DECODE_ERROR_PROPERTY in system]
    if bad:
        # An event that is not an AMQP message has no body in the live table either.
        for place in np.flatnonzero(np.isin(rows.system_of, bad)).tolist():
            bodies[place] = None
    return pa.array(bodies, pa.binary()) if None in bodies else binary_column(bodies)


def _map_column(maps: Sequence[Mapping[str, object]]) -> Column:
    """Convert maps of typed values to maps of strings."""
    lengths = np.fromiter(map(len, maps), np.int32, len(maps))
    offsets = np.zeros(len(maps) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    names = [name for each in maps for name in each]
    texts = [
        value if type(value) is str else text_of(value) for each in maps if each for value in each.values()
    ]
    column: Column = pa.MapArray.from_arrays(  # type: ignore[call-overload]  # 32-bit offsets, as it has them
        pa.array(offsets), _text_column(names), _text_column(texts)
    )
    return column


def _properties(_: str, rows: CaptureRows) -> Column:
    return _map_column(_typed_properties(rows))


def _typed_properties(rows: CaptureRows) -> list[Values]:
    """Each record's properties, with the types that Tidegate's files note for them."""
    maps = [record["Properties"] for record in rows.records]
    typed = [place for place, system in enumerate(rows.systems) if PROPERTY_TYPES in system]
    for place in np.flatnonzero(np.isin(rows.system_of, typed)).tolist() if typed else ():
        maps[place] = typed_properties(maps[place], rows.systems[rows.system_of[place]])
    return maps


def _system_properties(_: str, rows: CaptureRows) -> Column:
    maps = [
        {name: value for name, value in system.items() if name not in _NOT_A_COLUMN}
        for system in rows.systems
    ]
    return _spread(_map_column(maps), rows)


def _system_text(name: str) -> Callable[[str, CaptureRows], Column]:
    def make(_: str, rows: CaptureRows) -> Column:
        return _spread(_text_column([text_of(system.get(name)) for system in rows.systems]), rows)

    return make


def _spread(column: Column, rows: CaptureRows) -> Column:
    """Expand a column of the distinct ``SystemProperties`` to one of the records."""
    return column.take(pa.array(rows.system_of, pa.int32()))


def _encoded_events(_: str, rows: CaptureRows) -> Column:
    return binary_column(
        [
            encoded_event(record["Body"], record["Properties"], record["SystemProperties"])
            for record in rows.records
        ]
    )


_COLUMNS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[str, CaptureRows], Column]]]] = {
    "body": (("Body", "SystemProperties"), _bodies),
    "partition": ((), lambda partition_id, rows: pa.repeat(pa.scalar(partition_id), len(rows.records))),
    "offset": (("Offset",), lambda _, rows: _text_column([record["Offset"] for record in rows.records])),
    "sequenceNumber": ((), lambda _, rows: pa.array(rows.sequence_numbers)),
    "enqueuedTime": ((), _enqueued_times),
    "publisher": (("SystemProperties",), _system_text(str(PUBLISHER))),
    "partitionKey": (("SystemProperties",), _system_text(str(PARTITION_KEY))),
    "properties": (("Properties", "SystemProperties"), _properties),
    "systemProperties": (("SystemProperties",), _system_properties),
    "encodedEvent": (("Body", "Properties", "SystemProperties"), _encoded_events),
}
"""Column → the fields of a record from which it is made, besides ``_ALWAYS``, and what makes it."""

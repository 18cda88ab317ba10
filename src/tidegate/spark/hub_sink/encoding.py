"""Encodes Arrow columns as events, by whole columns, without a Python object per event.

Each row becomes one data section that holds one encoded message, byte for byte as ``wire.event_codec`` would
encode the event (``tests/spark/test_hub_sink_encoding.py`` checks this). NumPy makes columns of headers from
the lengths of what follows, and Arrow joins the pieces row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wire.names import PARTITION_KEY

_compute: Any = pc
"""The stubs lack functions that accept arrays of any type."""

if TYPE_CHECKING:
    _Column = Any  # in the stubs, an array of any type has no methods
    Lengths = npt.NDArray[np.int64]
    ByteMatrix = npt.NDArray[np.uint8]

_NOTHING: Final = pa.scalar(b"", pa.binary())
_NULL: Final = pa.scalar(b"\x40", pa.binary())
_DATA_8, _DATA_32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_TEXT_8, _TEXT_32 = b"\xa1", b"\xb1"
_MAP_8, _MAP_32 = b"\xc1", b"\xd1"
_ANNOTATIONS: Final = b"\x00\x53\x72"
_PROPERTIES: Final = b"\x00\x53\x74"
_KEY_NAME: Final = b"\xa3" + bytes((len(PARTITION_KEY),)) + PARTITION_KEY.encode()
"""The annotation's name as an AMQP symbol. Source of all codes: AMQP 1.0 part 1 section 1.6, part 3 section
3.2."""


def encode_sections(
    body: pa.Array[Any], partition_key: pa.Array[Any] | None, properties: pa.Array[Any] | None
) -> pa.Array[Any]:
    """One data section per row, as a binary column.

    body: binary or string, without nulls. partition_key: string. properties: map of string to string. A null
    key, map or value is left out of the event. Together they hold less than 1 GiB.
    """
    body = body.cast(pa.binary())
    pieces: list[_Column] = []
    if partition_key is not None and partition_key.null_count < len(partition_key):
        pieces.append(_key_sections(partition_key))
    if properties is not None and properties.null_count < len(properties):
        pieces.append(_property_sections(properties))
    pieces += [_sized_headers(_DATA_8, _DATA_32, _lengths(body)), body]
    event_lengths = _lengths(pieces[0])
    for piece in pieces[1:]:
        event_lengths = event_lengths + _lengths(piece)
    return _joined(_sized_headers(_DATA_8, _DATA_32, event_lengths), *pieces)


def _key_sections(keys: _Column) -> _Column:
    """The message annotations with the partition key; empty for a null key."""
    texts = _text_values(keys)
    sections = _maps(
        _ANNOTATIONS, _joined(pa.repeat(_KEY_NAME, len(keys)), texts), np.ones(len(keys), np.int64)
    )
    return _compute.if_else(keys.is_valid(), sections, _NOTHING)


def _property_sections(properties: _Column) -> _Column:
    """The application properties; empty if there are none."""
    offsets = properties.offsets.to_numpy().astype(np.int64)
    first, until = int(offsets[0]), int(offsets[-1])
    names, values = properties.keys[first:until], properties.items[first:until]
    encoded_values = _compute.if_else(values.is_valid(), _text_values(values), _NULL)
    entries = pa.ListArray.from_arrays(
        pa.array(offsets - first, pa.int32()), _joined(_text_values(names), encoded_values)
    )
    counts = np.diff(offsets)
    sections = _maps(_PROPERTIES, _compute.binary_join(entries, _NOTHING), counts)
    has_any = _compute.and_(properties.is_valid(), pa.array(counts > 0))
    return _compute.if_else(has_any, sections, _NOTHING)


def _maps(descriptor: bytes, entries: _Column, pair_counts: Lengths) -> _Column:
    """Sections whose value is a map with these encoded entries."""
    sizes, counts = _lengths(entries), 2 * pair_counts
    short = _side_by_side(descriptor + _MAP_8, _u8(sizes + 1), _u8(counts))
    long = _side_by_side(descriptor + _MAP_32, _u32(sizes + 4), _u32(counts))
    return _joined(_choose((sizes >= 255) | (counts >= 256), short, long), entries)


def _text_values(texts: _Column) -> _Column:
    """Strings in AMQP encoding; null becomes an empty string."""
    values = texts.cast(pa.binary()).fill_null(b"")
    return _joined(_sized_headers(_TEXT_8, _TEXT_32, _lengths(values)), values)


def _sized_headers(short: bytes, long: bytes, lengths: Lengths) -> _Column:
    """``short`` and a one-byte length, or ``long`` and a four-byte length, as the length requires."""
    return _choose(lengths >= 256, _side_by_side(short, _u8(lengths)), _side_by_side(long, _u32(lengths)))


def _choose(is_long: npt.NDArray[np.bool_], short: ByteMatrix, long: ByteMatrix) -> _Column:
    """A binary column with rows of ``short`` or, where ``is_long``, of ``long``, the wider one."""
    if is_long.all():
        return _column(np.full(len(long), long.shape[1]), long.tobytes())
    if not is_long.any():
        return _column(np.full(len(short), short.shape[1]), short.tobytes())
    rows = long.copy()
    rows[~is_long, : short.shape[1]] = short[~is_long]
    widths: Lengths = np.full(len(long), long.shape[1])
    widths[~is_long] = short.shape[1]
    return _column(widths, rows[np.arange(long.shape[1]) < widths[:, None]].tobytes())


def _column(lengths: Lengths, data: bytes) -> _Column:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )


def _joined(*pieces: _Column) -> pa.Array[Any]:
    joined: pa.Array[Any] = _compute.binary_join_element_wise(*pieces, _NOTHING)
    return joined


def _lengths(values: _Column) -> Lengths:
    return np.asarray(
        _compute.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64
    )


def _side_by_side(prefix: bytes, *columns: ByteMatrix) -> ByteMatrix:
    count = len(columns[0])
    constant = np.broadcast_to(np.frombuffer(prefix, dtype=np.uint8), (count, len(prefix)))
    return np.hstack((constant, *columns))


def _u8(values: Lengths) -> ByteMatrix:
    return values.astype(np.uint8)[:, None]


def _u32(values: Lengths) -> ByteMatrix:
    return values.astype(">u4").view(np.uint8).reshape(len(values), 4)

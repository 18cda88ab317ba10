"""Reads Avro object containers, the format of capture files, block by block.

Every block is checked (sizes, sync marker, number of records), so a truncated or damaged file is an error
that names the file, never a short table. (fastavro's ``block_reader`` takes a file cut within a block's count
for a complete one, and inflates without a limit.) Only a file cut exactly between two blocks looks complete,
because the format has no end mark. What a block may decode to is bounded, so that a small file takes little
memory. fastavro decodes the header, the numbers and the records. Source: Apache Avro 1.12 specification,
"Object Container Files" and "Binary Encoding".
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import SEEK_CUR, BytesIO
from typing import Any, BinaryIO, Final

import fastavro
from fastavro.types import Schema

from tidegate.model.errors import TidegateError
from tidegate.wire.capture import AVRO_SCHEMA

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_LONG: Final = fastavro.parse_schema("long")
_HEADER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "metadata", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC_BYTES}},
        ],
    }
)
"""What follows ``_MAGIC``."""
_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
"""Our choice, of stored and of inflated bytes: a larger size indicates damage. Services end a block after
some 64 KB and an event of at most 20 MB."""
_INFLATED_BYTES: Final = 24 * 1024 * 1024
_INFLATED_SHARE_MAX: Final = 100
"""Our choice: a block that inflates to more than both is not one of events. Deflate can reach 1,000 times,
which one event of equal bytes may."""
_VALUES_MAX: Final = 2_000_000
"""Of a block, those that take no bytes included (our choice: 333,333 events; 120 MB without contents). As
many entries of maps, too, which take some 95 bytes each."""
_ENTRY_BYTES_MIN: Final = 2
"""A key's length and one character; without one it is the same key again, and takes no memory."""
_RECORD_BYTES_MIN: Final = 12
"""The shortest time in ISO 8601 has seven characters and its length; four other fields have a byte each."""
_SCHEMA_BYTES_MAX: Final = 64 * 1024
"""Our choice: Capture's schema has less than 1 KB."""

Record = dict[str, Any]
"""A record as fastavro returns it: names of ``AVRO_SCHEMA`` → values."""

FIELD_NAMES: Final = tuple(field["name"] for field in AVRO_SCHEMA["fields"])  # type: ignore[attr-defined]

_MAPS: Final = frozenset({"SystemProperties", "Properties"})
_PLAIN: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_MAPS_OF_PLAIN: Final = frozenset(f"map of {kind}" for kind in _PLAIN)
_FIELD_TYPES: Final = {
    "SequenceNumber": frozenset({"int", "long"}),
    "Offset": frozenset({"string"}),
    "EnqueuedTimeUtc": frozenset({"string"}),
    "SystemProperties": _MAPS_OF_PLAIN,
    "Properties": _MAPS_OF_PLAIN,
    "Body": frozenset({"null", "bytes"}),
}
"""The types of a field's values that this package reads, in the notation of ``_types_of``."""


class CaptureFileError(TidegateError):
    """A capture file cannot be read: it is truncated, damaged, not a capture file, or its storage failed."""


@dataclass(frozen=True, slots=True)
class ContainerHeader:
    """The part of a file before its blocks."""

    schema_text: str
    codec: str
    sync_marker: bytes


def read_header(file: BinaryIO, name: str) -> ContainerHeader:
    """Read the header, leaving the file positioned after it. Raises CaptureFileError."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise CaptureFileError(f"{name} is not an Avro file.", next_step=_SKIP)
    header = _read(file, _HEADER, name)
    metadata: dict[str, bytes] = header["metadata"]
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in ("null", "deflate"):
        raise CaptureFileError(
            f"{name} is compressed with {codec!r}; only null and deflate are supported.", next_step=_SKIP
        )
    encoded_schema = metadata.get("avro.schema", b"")
    if len(encoded_schema) > _SCHEMA_BYTES_MAX:
        raise _not_of_capture(name, f"its schema has {len(encoded_schema):,} bytes")
    schema_text = encoded_schema.decode("utf-8", "replace")
    _check_schema(schema_text, name)
    return ContainerHeader(schema_text, codec, header["sync"])


def iter_blocks(file: BinaryIO, header: ContainerHeader, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number of records, their bytes) per block from the file's position. Raises CaptureFileError."""
    while file.read(1):
        file.seek(-1, SEEK_CUR)
        count, size = _read(file, _LONG, name), _read(file, _LONG, name)
        if count < 0 or not 0 <= size <= _BLOCK_BYTES_MAX:
            raise _damaged(name, "a block has an impossible size")
        data = _read_exactly(file, size, name)
        if _read_exactly(file, _SYNC_BYTES, name) != header.sync_marker:
            raise _damaged(name, "a block does not end where it says")
        yield count, _decompressed(data, header, name)


def decode_records(
    header: ContainerHeader, count: int, data: bytes, name: str, fields: tuple[str, ...] = FIELD_NAMES
) -> list[Record]:
    """The records of a block, with at least these fields. Raises CaptureFileError."""
    if count * _RECORD_BYTES_MIN > len(data):
        raise _damaged(name, "a block holds fewer records than it says")
    written, wanted, field_count = _schemas(header.schema_text, fields)
    if count * field_count > _VALUES_MAX:
        raise _damaged(name, f"a block says that it holds {count:,} records of {field_count:,} fields")
    if len(data) > _ENTRY_BYTES_MIN * _VALUES_MAX:
        _check_entries(header.schema_text, count, data, name)
    # A block's records plus an array's end mark form an array, so one call decodes them all.
    array = BytesIO()
    if count:
        fastavro.schemaless_writer(array, _LONG, count)
    array.writelines((data, b"\0") if count else (b"\0", data))
    array.seek(0)
    try:
        records = fastavro.schemaless_reader(array, written, wanted)
    except MemoryError:  # not of a length that the file gives: all of the block is there
        raise
    except Exception as error:  # fastavro raises IndexError, UnicodeDecodeError, …
        raise _damaged(name, f"a record does not parse ({type(error).__name__}: {error})") from error
    if array.read(1):
        raise _damaged(name, "a block holds more than its records")
    return records  # type: ignore[return-value]


_SKIP: Final = "Move it away, or set the option skipBadFiles to true to skip such files."


def _damaged(name: str, what: str) -> CaptureFileError:
    return CaptureFileError(f"{name} is damaged: {what}.", next_step=_SKIP)


def _read_exactly(file: BinaryIO, size: int, name: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise CaptureFileError(f"{name} is truncated.", next_step=_SKIP)
    return data


def _read(file: BinaryIO, schema: Schema, name: str) -> Any:
    try:
        return fastavro.schemaless_reader(file, schema, None)
    except (EOFError, IndexError) as error:
        raise CaptureFileError(f"{name} is truncated.", next_step=_SKIP) from error
    except (ValueError, OverflowError, MemoryError) as error:  # others are the storage's
        raise _damaged(name, "its header does not parse") from error


def _decompressed(data: bytes, header: ContainerHeader, name: str) -> bytes:
    if header.codec == "null":
        return data
    inflate = zlib.decompressobj(-15)  # a raw stream, by the specification
    bytes_max = min(_BLOCK_BYTES_MAX, max(_INFLATED_BYTES, _INFLATED_SHARE_MAX * len(data)))
    try:
        inflated = inflate.decompress(data, bytes_max)
    except zlib.error as error:
        raise _damaged(name, f"a block does not decompress ({error})") from error
    # fastavro writes three bytes of a checksum after the stream, so trailing bytes are ignored.
    used = len(data) - len(inflate.unused_data)
    bytes_max = min(bytes_max, max(_INFLATED_BYTES, _INFLATED_SHARE_MAX * used))
    if not inflate.eof or len(inflated) > bytes_max:
        what = f"to at most {bytes_max:,} bytes" if len(inflated) >= bytes_max else "to its end"
        raise _damaged(name, f"a block of {len(data):,} bytes does not decompress {what}")
    return inflated


def _check_entries(schema_text: str, count: int, data: bytes, name: str) -> None:
    """Raises CaptureFileError if the maps of a block's records have too many entries; decodes none."""
    kinds = [field["type"] for field in _plain_schema(schema_text)["fields"]]
    walk = _Walk(data)
    try:
        for _ in range(count):
            for kind in kinds:
                walk.skip(kind)
                if walk.entry_count > _VALUES_MAX:
                    raise _damaged(name, f"a block has more than {_VALUES_MAX:,} entries of maps")
    except (IndexError, ValueError) as error:
        raise _damaged(name, f"a record does not parse ({error})") from error
    if walk.place != len(data):
        raise _damaged(name, "a record does not parse (it does not end with its block)")


@dataclass(slots=True)
class _Walk:
    """Counts the entries of maps in encoded records of the types that ``_check_types`` accepts."""

    data: bytes
    place: int = 0
    entry_count: int = 0

    def skip(self, kind: Any) -> None:
        """One value. Raises IndexError and ValueError."""
        if isinstance(kind, list):
            self.skip(kind[self._length()])
        elif isinstance(kind, dict) and kind["type"] == "map":
            self._skip_map(kind["values"])
        elif isinstance(kind, dict):
            self.skip(kind["type"])
        elif kind in ("int", "long"):
            self._long()
        elif kind in ("bytes", "string"):
            length = self._length()
            self.place += length
        else:
            self.place += _SIZES[kind]

    def _skip_map(self, kind: Any) -> None:
        while count := self._long():
            if count < 0:  # the block's size in bytes follows
                self._long()
            self.entry_count += abs(count)
            if self.entry_count > _VALUES_MAX:
                return
            for _ in range(abs(count)):
                self.skip("string")
                self.skip(kind)

    def _length(self) -> int:
        length = self._long()
        if length < 0:
            raise ValueError("a negative length")
        return length

    def _long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.data[self.place]
            self.place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
        raise ValueError("a number of more than ten bytes")


_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
"""In bytes, of the types whose values all have the same."""


def _check_schema(schema_text: str, name: str) -> None:
    try:
        _check_types(schema_text)
    except _NotOfCaptureError as problem:
        raise _not_of_capture(name, str(problem)) from problem


def _not_of_capture(name: str, problem: str) -> CaptureFileError:
    return CaptureFileError(f"{name} is an Avro file, but not one of Capture: {problem}.", next_step=_SKIP)


class _NotOfCaptureError(Exception):
    """Why a file with a schema is not read."""


@lru_cache(maxsize=64)
def _check_types(schema_text: str) -> None:
    """Raises _NotOfCaptureError, which the cache does not keep: a deep call's RecursionError is one, too.

    Only single values and maps of them, also in fields that Capture may get. Values of other types could
    ruin the process before anything is seen of them: fastavro decodes records within records without a limit
    of depth, and an array of nulls takes no bytes.
    """
    try:
        schema = _plain_schema(schema_text)
        fields = schema["fields"] if schema["type"] == "record" else []
        types = [(field["name"], _types_of(field["type"])) for field in fields]
        missing = set(FIELD_NAMES).difference(name for name, _ in types)
        if missing:
            raise _NotOfCaptureError(f"its records lack {min(missing, key=FIELD_NAMES.index)}")
        if not all(kinds <= _FIELD_TYPES.get(name, _PLAIN | _MAPS_OF_PLAIN) for name, kinds in types):
            raise _NotOfCaptureError("its fields have other types")
        fastavro.parse_schema(schema)
    except (_NotOfCaptureError, MemoryError):  # the memory's state says nothing about the file
        raise
    except Exception as error:  # RecursionError, and whatever a schema that is not one makes fastavro raise
        raise _NotOfCaptureError("its schema does not parse") from error


def _plain_schema(schema_text: str) -> Any:
    """The schema without logical types, which a reader may ignore by the specification.

    fastavro would convert their values, and fail on those that Python does not have, in fields that are not
    even asked for.
    """
    return json.loads(
        schema_text, object_hook=lambda found: {key: found[key] for key in found if key != "logicalType"}
    )


def _types_of(written: object) -> set[str]:
    """The types of values that an Avro type allows, those in a map as "map of …"."""
    if isinstance(written, list):
        return set().union(*map(_types_of, written))
    if not isinstance(written, dict):
        return {str(written)}
    if written["type"] == "map":
        return {f"map of {kind}" for kind in _types_of(written["values"])}
    return _types_of(written["type"])


@lru_cache(maxsize=64)
def _schemas(schema_text: str, fields: tuple[str, ...]) -> tuple[Schema, Schema | None, int]:
    """The schema of an array of the file's records, and of the requested fields (None: of all); the number
    of the records' fields.

    All if one of them is a map: given a second schema, fastavro picks the first type of a union that can hold
    a value, and so turns bytes into strings.
    """
    record = _plain_schema(schema_text)
    written = fastavro.parse_schema({"type": "array", "items": record})
    field_count = len(record["fields"])
    if _MAPS.intersection(fields) or {field["name"] for field in record["fields"]} == set(fields):
        return written, None, field_count
    projected = {**record, "fields": [field for field in record["fields"] if field["name"] in fields]}
    return written, fastavro.parse_schema({"type": "array", "items": projected}), field_count

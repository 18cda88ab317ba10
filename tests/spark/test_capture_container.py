"""Avro files block by block: both codecs, damaged and cut ones, those of others, and what they cover."""

from __future__ import annotations

import json
import random
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.spark.capture_support import START_S, azure_record, write_file

from tidegate.columns.names import EVENT_COLUMNS
from tidegate.spark.capture.container import CaptureFileError, decode_records, iter_blocks, read_header
from tidegate.spark.capture.files import CaptureFiles, open_capture_files
from tidegate.spark.capture.names import CaptureFile
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.reader import CaptureReader, probe_file
from tidegate.wire.capture import AVRO_SCHEMA, guessable_marker


def _read(data: bytes, *fields: str) -> list[dict[str, Any]]:
    file = BytesIO(data)
    header = read_header(file, "f.avro")
    chosen = (fields,) if fields else ()
    return [
        record
        for count, block in iter_blocks(file, header, "f.avro")
        for record in decode_records(header, count, block, "f.avro", *chosen)
    ]


_RECORDS = [
    azure_record(
        number,
        Properties={"n": number, "x": 0.5, "s": "é", "b": b"\xff"} if number % 3 else {},
        SystemProperties={"x-opt-partition-key": "k"} if number % 2 else {},
        Body=None if number == 4 else b"b" * number,
    )
    for number in range(40)
]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_both_codecs_and_all_unions(tmp_path: Path, codec: str) -> None:
    """Files in Azure's schema, in several blocks, as fastavro itself reads them."""
    data = write_file(tmp_path, _RECORDS, codec=codec, block_bytes=200).read_bytes()
    assert _read(data) == _RECORDS == list(fastavro.reader(BytesIO(data)))
    assert _read(data, "SequenceNumber") == [{"SequenceNumber": number} for number in range(40)]


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.slow
def test_a_file_that_is_cut_is_never_a_short_one(tmp_path: Path, codec: str) -> None:
    """Cut at any byte, it is an error with its name; but between blocks, where the format has no mark."""
    data = write_file(tmp_path, _RECORDS, codec=codec, block_bytes=300).read_bytes()
    marker = data[-16:]
    ends = {place + 16 for place in range(len(data)) if data.startswith(marker, place)}
    assert len(ends) > 3
    for length in range(len(data)):
        if length in ends:
            assert len(_read(data[:length])) < 40
        else:
            with pytest.raises(CaptureFileError, match=r"^f\.avro is (truncated|damaged|not an Avro)"):
                _read(data[:length])


@pytest.mark.slow
def test_random_damage_is_an_error_or_another_value(tmp_path: Path) -> None:
    """No byte makes the reader hang, die of memory or raise anything but its own error."""
    data = write_file(tmp_path, _RECORDS, block_bytes=300).read_bytes()
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 4))):
            damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            _read(bytes(damaged))
        except CaptureFileError as error:
            assert "f.avro" in error.message, seed  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def _avro(schema: Any, records: list[Any], codec: str = "null") -> bytes:
    file = BytesIO()
    fastavro.writer(file, schema, records, codec=codec)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an Avro file"),
        (b"PAR1....", "not an Avro file"),
        (
            _avro({"type": "record", "name": "E", "fields": [{"name": "x", "type": "int"}]}, []),
            "not one of Capture",
        ),
        (_avro("string", ["x"]), "not one of Capture"),
        (_avro(dict(AVRO_SCHEMA), [azure_record(0)], "bzip2"), "compressed with 'bzip2'"),
    ],
    ids=["empty", "Parquet", "other fields", "no record", "other codec"],  # the bytes hold a random marker
)
def test_files_of_others_are_named(data: bytes, words: str) -> None:
    """Parquet, another schema, a codec that neither service writes."""
    with pytest.raises(CaptureFileError, match=words):
        _read(data)


def test_a_schema_that_has_grown_is_read(tmp_path: Path) -> None:
    """A field more, and another type in the unions: the file's own schema says how it is to be read."""
    values = ["boolean", "string"]
    schema = _schema(
        Properties={"type": "map", "values": values}, Body={"type": "bytes"}, More=["null", "int"]
    )
    record = azure_record(3, Properties={"on": True}) | {"More": 5}
    assert _read(_avro(schema, [record])) == [record]
    assert _read(_avro(schema, [record]), "SequenceNumber") == [{"SequenceNumber": 3}]


@pytest.mark.parametrize("kind", ["timestamp-millis", "timestamp-of-tomorrow"])
def test_fields_of_a_logical_type_are_read(kind: str) -> None:
    """As the numbers that they are, also those that are no times of Python's."""
    record = azure_record(3) | {"More": 2**62}
    written = {"type": "long", "logicalType": kind}
    data = _avro(_schema(SequenceNumber=written, More=written), [record])
    assert _read(data) == [record]


def _schema(**types: object) -> dict[str, Any]:
    """Capture's schema, with other types of these fields, or more fields."""
    fields: Any = AVRO_SCHEMA["fields"]
    merged = {field["name"]: field["type"] for field in fields} | types
    return {**AVRO_SCHEMA, "fields": [{"name": name, "type": kind} for name, kind in merged.items()]}


_NODE = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("SequenceNumber", "double", 1.5),
        ("Offset", "long", 3),
        ("EnqueuedTimeUtc", "long", 3),
        ("SystemProperties", "string", "x"),
        ("SystemProperties", ["null", {"type": "map", "values": "string"}], None),
        ("Properties", {"type": "array", "items": "string"}, ["x"]),
        ("Properties", {"type": "map", "values": {"type": "map", "values": "string"}}, {"a": {"b": "c"}}),
        ("Body", "string", "x"),
        ("More", {"type": "array", "items": "null"}, [None]),
        ("More", _NODE, {"next": {"next": None}}),
    ],
)
def test_a_file_whose_fields_have_other_types_is_a_bad_one(
    tmp_path: Path, field: str, kind: Any, value: object
) -> None:
    """Its values would end the query as errors of another kind, which skipBadFiles does not skip; records in
    records could end the process, and an array of nulls take its memory."""
    data = _avro(_schema(**{field: kind}), [azure_record(5) | {field: value}])
    with pytest.raises(CaptureFileError, match=r"^f\.avro is an Avro file, but not one of Capture"):
        _read(data)
    write_file(tmp_path, [azure_record(number) for number in range(3)])
    write_file(tmp_path, [], time_s=START_S + 60).write_bytes(data)
    reader = CaptureReader(
        CaptureOptions.parse({"path": str(tmp_path), "skipBadFiles": "true"}), EVENT_COLUMNS
    )
    assert sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part)) == 3


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_schema_of_very_many_levels_is_a_bad_one(depth: int) -> None:
    """fastavro decodes each level within the one before, without a limit."""
    deep = '{"type":"array","items":' * depth + '"long"' + "}" * depth
    schema = json.dumps(_schema(More="MORE")).replace('"MORE"', deep)
    header = BytesIO(b"Obj\x01")
    header.seek(4)
    metadata = {"avro.schema": schema.encode(), "avro.codec": b"null"}
    fastavro.schemaless_writer(header, {"type": "map", "values": "bytes"}, metadata)
    with pytest.raises(CaptureFileError, match="not one of Capture"):
        _read(header.getvalue() + b"a marker 16 long")


@pytest.mark.parametrize(
    ("error", "raised"), [(MemoryError, MemoryError), (RecursionError, CaptureFileError)]
)
def test_what_the_process_lacked_once_spoils_no_schema(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], raised: type[Exception]
) -> None:
    """skipBadFiles would skip each later file of that schema; a lack of memory says nothing of any file."""

    def fail(_: object) -> None:
        raise error

    record = azure_record(3) | {error.__name__: 5}  # so that no test has read the schema before
    data = _avro(_schema(**{error.__name__: "int"}), [record])
    with monkeypatch.context() as patch:
        patch.setattr(fastavro, "parse_schema", fail)
        with pytest.raises(raised):
            _read(data)
    assert _read(data) == [record]


def _number(value: int) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema("long"), value)
    return file.getvalue()


def _bomb(codec: str, count: int, data: bytes, padding: bytes = b"", /, **types: object) -> bytes:
    """A file of one block, as no writer makes it."""
    stored = data
    if codec == "deflate":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = deflate.compress(data) + deflate.flush() + padding
    file = BytesIO()
    metadata = {"avro.schema": json.dumps(_schema(**types)).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(file, {"type": "map", "values": "bytes"}, metadata)
    sizes = _number(count) + _number(len(stored))
    return b"Obj\x01" + file.getvalue() + bytes(16) + sizes + stored + bytes(16)


_SHORTEST = b"\x02\x021\x142020-01-01\0\0\0"
"""A record without contents, as bytes."""
_NULLS = {"type": "map", "values": "null"}


def _with_entries(count: int, *, value: bytes = b"", is_sized: bool = False) -> bytes:
    """A record with a map of as many entries. is_sized: the map's block says how many bytes it has."""
    entries = b"".join(b"\x06" + number.to_bytes(3, "big") + value for number in _ascii(count))
    sizes = _number(-count) + _number(len(entries)) if is_sized else _number(count)
    return _SHORTEST[:-2] + sizes + entries + b"\0\0"


def _ascii(count: int) -> list[int]:
    """Numbers of three bytes, each below 128."""
    return [(number >> 14) << 16 | (number >> 7 & 127) << 8 | (number & 127) for number in range(count)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_bomb("deflate", 100_000, bytes(600_000)), "fewer records than it says"),
        (_bomb("deflate", 400_000, bytes(32_000_000)), "does not decompress to at most 25,165,824 bytes"),
        (_bomb("deflate", 400_000, bytes(32_000_000), bytes(400_000)), "to at most 25,165,824 bytes"),
        (_bomb("deflate", 3, _with_entries(700_000) * 3, Properties=_NULLS), "more than 2,000,000 entries"),
        (_bomb("null", 3, _with_entries(700_000) * 3, Properties=_NULLS), "more than 2,000,000 entries"),
        (_bomb("null", 400_000, _SHORTEST * 400_000), "400,000 records of 6 fields"),
        (
            _bomb("null", 3_000, _SHORTEST * 3_000, **dict.fromkeys(map(str, range(1_000)), "null")),
            "of 1,006 f",
        ),
        (_bomb("null", 1, _SHORTEST, **dict.fromkeys(map(str, range(9_999)), "null")), "its schema has"),
    ],
    ids=[
        "shorter records",
        "inflated",
        "padded",
        "entries inflated",
        "entries",
        "records",
        "fields of records",
        "fields",
    ],
)
def test_a_small_file_of_very_much_is_a_bad_one(data: bytes, words: str) -> None:
    """A few kilobytes would take gigabytes of a task that skips bad files."""
    with pytest.raises(CaptureFileError, match=words):
        _read(data)


def test_a_block_of_very_many_events_is_read() -> None:
    """More than a service writes at once, and compressed as well as equal events are."""
    for codec in ("null", "deflate"):
        assert len(_read(_bomb(codec, 200_000, _SHORTEST * 200_000), "SequenceNumber")) == 200_000


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_the_largest_event_is_read(codec: str) -> None:
    """Also one of equal bytes, which deflate makes a thousandth of."""
    body = bytes(20_000_000)
    record = _SHORTEST[:-1] + b"\x02" + _number(len(body)) + body
    assert _read(_bomb(codec, 1, record))[0]["Body"] == body


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("null", b""),
        ("boolean", b"\1"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"),
        ("float", bytes(4)),
        ("double", bytes(8)),
        ("string", b"\x02a"),
        (["null", "int", "bytes"], b"\2\3"),
        ({"type": "int"}, b"\3"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_sized", [False, True], ids=["", "sized"])
def test_a_large_block_of_maps_is_read(kind: object, value: bytes, *, is_sized: bool) -> None:
    """Its entries are counted without decoding them, whatever their type."""
    body = b"\x02" + _number(5_000_000) + bytes(5_000_000)
    records = (_with_entries(300, value=value, is_sized=is_sized)[:-1] + body) * 2
    data = _bomb("null", 2, records, Properties={"type": "map", "values": kind})
    assert [len(record["Properties"]) for record in _read(data)] == [300, 300]
    with pytest.raises(CaptureFileError, match="a record does not parse"):
        _read(_bomb("null", 2, records[:-1], Properties={"type": "map", "values": kind}))


def test_a_block_of_an_impossible_size_is_not_read() -> None:
    """Larger than all that a writer makes: the file may be damaged anywhere."""
    data = _bomb("null", 1, _SHORTEST)
    size = _number(1) + _number(len(_SHORTEST))
    huge = _number(1) + _number(64 * 1024 * 1024 + 1)
    assert data.count(size) == 1
    with pytest.raises(CaptureFileError, match="an impossible size"):
        _read(data.replace(size, huge))


def test_a_lack_of_memory_is_not_the_files_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """skipBadFiles would leave out a good file's events."""
    data = write_file(tmp_path, _RECORDS).read_bytes()
    read = fastavro.schemaless_reader

    def fail(file: Any, schema: Any, wanted: Any) -> Any:
        if isinstance(schema, dict) and schema["type"] == "array":
            raise MemoryError
        return read(file, schema, wanted)

    monkeypatch.setattr(fastavro, "schemaless_reader", fail)
    with pytest.raises(MemoryError):
        _read(data)


@pytest.fixture
def files(tmp_path: Path) -> CaptureFiles:
    """The files below the test's directory."""
    return open_capture_files(CaptureOptions.parse({"path": str(tmp_path)}))


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize(("count", "body_bytes"), [(1, 10), (500, 30), (40, 50_000), (3, 400_000)])
def test_a_probe_finds_what_a_file_covers(
    tmp_path: Path, files: CaptureFiles, codec: str, count: int, body_bytes: int
) -> None:
    """By its first and last block, however large blocks are."""
    body = random.Random(1).randbytes(body_bytes)
    records = [azure_record(100 + number, Body=body) for number in range(count)]
    path = write_file(tmp_path, records, codec=codec)
    file = CaptureFile(str(path.relative_to(tmp_path)), "ns", "hub", "0", 0, path.stat().st_size)
    found = probe_file(files, file)
    assert found is not None
    assert (found.start_sequence_number, found.until_sequence_number) == (100, 100 + count)


def _block(number: int) -> bytes:
    """A block of one record, without the marker that ends it."""
    record = BytesIO()
    fastavro.schemaless_writer(record, fastavro.parse_schema(dict(AVRO_SCHEMA)), azure_record(number))
    return _number(1) + _number(len(record.getvalue())) + record.getvalue()


@pytest.mark.parametrize(
    "forged", [b"?", _block(120), _block(10**6)], ids=["no block", "too few", "too many"]
)
def test_an_event_with_the_files_marker_does_not_change_what_a_file_covers(
    tmp_path: Path, files: CaptureFiles, forged: bytes
) -> None:
    """Protects files that exist: their marker is a hash of their name. An event could make a good file
    unreadable, hide the events after a number, or claim events that the file does not have."""
    path = write_file(tmp_path, [])
    name = str(path.relative_to(tmp_path))
    marker = guessable_marker(name)
    records = [azure_record(100 + number, Body=b"x" * 900) for number in range(200)]
    records.append(azure_record(300, Body=b"x" * 90 + marker + forged))
    with path.open("wb") as stream:
        fastavro.writer(stream, dict(AVRO_SCHEMA), records, sync_interval=64_000, sync_marker=marker)
    found = probe_file(files, CaptureFile(name, "ns", "hub", "0", 0, path.stat().st_size))
    assert found is not None
    assert (found.start_sequence_number, found.until_sequence_number) == (100, 301)


def test_a_marker_in_an_event_of_a_renamed_file(tmp_path: Path, files: CaptureFiles) -> None:
    """The marker alone does not make a good file unreadable, whatever the file's name is by now."""
    path = write_file(tmp_path, [])
    records = [azure_record(number, Body=b"x" * 900 + b"a marker 16 long?") for number in range(200)]
    with path.open("wb") as stream:
        fastavro.writer(stream, dict(AVRO_SCHEMA), records, sync_marker=b"a marker 16 long")
    name = str(path.relative_to(tmp_path))
    found = probe_file(files, CaptureFile(name, "ns", "hub", "0", 0, path.stat().st_size))
    assert found is not None
    assert found.until_sequence_number == 200


def test_a_probe_of_a_file_without_events(tmp_path: Path, files: CaptureFiles) -> None:
    """Capture writes them when nothing came."""
    path = write_file(tmp_path, [])
    assert probe_file(files, CaptureFile(str(path.relative_to(tmp_path)), "ns", "hub", "0", 0, 1)) is None

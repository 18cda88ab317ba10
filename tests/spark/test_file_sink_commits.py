"""A file sink's commits under crashes at any step, with any number of tasks in each run; no Spark."""

from __future__ import annotations

import errno
import gc
import gzip
import hashlib
import io
import json
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.file_sink.commits import FileCommits, StagedFile, published_files
from tidegate.spark.file_sink.files import TaskFiles
from tidegate.spark.file_sink.options import FileSinkOptions
from tidegate.spark.file_sink.storage import FileSinkError, SinkFolder

_SCHEMA = StructType([StructField("home", StringType()), StructField("value", LongType())])


class _Crash(BaseException):
    """As a SIGKILL: nothing after it happens, and nothing catches it."""


class _CrashingFolder(SinkFolder):
    """Ends before, or after, the step whose number comes up."""

    steps_left: int | None = None
    is_after = False

    def _step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise _Crash

    def write_whole(self, name: str, data: bytes) -> None:
        if not self.is_after:
            self._step()
        super().write_whole(name, data)
        if self.is_after:
            self._step()

    def move(self, source: str, target: str) -> None:
        if not self.is_after:
            self._step()
        super().move(source, target)
        if self.is_after:
            self._step()

    def delete_tree(self, folder: str) -> None:
        self._step()
        super().delete_tree(folder)


def _stage(folder: SinkFolder, commits: FileCommits, batch_id: int, tasks: list[str]) -> list[StagedFile]:
    """What the tasks of one run stage: a file with a word each, under names of this run alone."""
    if commits.find(batch_id) is not None:
        return []
    staged = []
    for task, word in enumerate(tasks):
        name = f"{commits.staging(batch_id)}/{task}-{uuid.uuid4().hex}/00000.json"
        with folder.writing(name) as file:
            file.write(word.encode())
        staged.append(StagedFile(name, f"part-q-{batch_id}-{task}.json", 1))
    return staged


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(
        st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(0, 8)), st.booleans()), max_size=4
    ),
    is_renamed=st.booleans(),
)
def test_crashes_at_any_step_leave_no_row_twice(
    tmp_path: Path, runs: list[tuple[int, int | None, bool]], is_renamed: bool
) -> None:
    """Whatever run was first to write the manifest is what a listing shows: whole at the end, never mixed."""
    place = tmp_path / uuid.uuid4().hex
    place.mkdir()
    first_words: set[str] | None = None
    for number, (task_count, steps, is_after) in enumerate([*runs, (2, None, False)]):
        folder = _CrashingFolder(str(place), {"auto_mkdir": True})
        folder._is_renamed = is_renamed  # as in an object store: written whole, copied to be renamed
        commits = FileCommits(folder, "q")
        words = [f"run {number} task {task}" for task in range(task_count)]
        staged = _stage(folder, commits, 7, words)
        folder.steps_left, folder.is_after = steps, is_after
        try:
            commits.commit(7, staged)
        except _Crash:
            pass
        else:
            assert {Path(file).read_text() for file in published_files(str(place))} == (
                first_words or set(words)
            )
        if first_words is None and commits.find(7) is not None:
            first_words = set(words)
        visible = [path.read_text() for path in place.glob("*.json")]
        assert len(visible) == len(set(visible))
        assert set(visible) <= (first_words or set())
    assert first_words == {path.read_text() for path in place.glob("*.json")}
    assert not (place / "_tidegate/staging/q/0000000007").exists()


def _write_task(place: Path, options: dict[str, str], rows: list[dict[str, object]]) -> list[StagedFile]:
    parsed = FileSinkOptions.parse({"path": str(place), **options}, _SCHEMA)
    fields: dict[str, pa.DataType] = {"home": pa.string(), "value": pa.int64()}
    schema = pa.schema(fields)
    batches = [
        pa.RecordBatch.from_pylist(rows[start : start + 3], schema) for start in range(0, len(rows), 3)
    ]
    folder = SinkFolder(parsed.path, {})
    staged = TaskFiles(folder, parsed, "_tidegate/staging/a", "part-q").write(iter(batches))
    FileCommits(folder, "q").commit(0, staged)
    return staged


_ROWS: list[dict[str, object]] = [
    {"home": home, "value": value} for value, home in enumerate(["a/b", "c", None, "c", "", "a/b", "c=d"])
]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_json_lines(tmp_path: Path, compression: str) -> None:
    """One object per line and row, in order, compressed or not."""
    (file,) = _write_task(tmp_path, {"fileFormat": "json", "compression": compression}, _ROWS)
    data = (tmp_path / file.name).read_bytes()
    text = gzip.decompress(data) if compression == "gzip" else data
    assert [json.loads(line) for line in text.splitlines()] == _ROWS
    assert (file.rows, file.name.endswith(".gz")) == (7, compression == "gzip")


def test_partition_columns_become_folders(tmp_path: Path) -> None:
    """Names and values as Hive and Spark write them, so that readers find the column again."""
    files = _write_task(tmp_path, {"partitionColumns": "home"}, _ROWS)
    assert sorted(file.name for file in files) == [
        "home=__HIVE_DEFAULT_PARTITION__/part-q-00002.parquet",
        "home=a%2Fb/part-q-00000.parquet",
        "home=c%3Dd/part-q-00003.parquet",
        "home=c/part-q-00001.parquet",
    ]
    read = pq.read_table(tmp_path, partitioning="hive").to_pylist()
    expected = [dict(row) | {"home": row["home"] or None} for row in _ROWS]
    assert sorted(read, key=lambda row: row["value"]) == expected


def test_folders_have_names_that_file_systems_take(tmp_path: Path) -> None:
    """Whatever senders write into a partition column: else the query could never publish the micro-batch."""
    homes = ["x" * 300, "x" * 300 + "y", "ü" * 90, "\x1f", "", "..", "a ", "x" * 195, "/" * 65]
    rows: list[dict[str, object]] = [{"home": home, "value": number} for number, home in enumerate(homes)]
    files = _write_task(tmp_path, {"partitionColumns": "home"}, rows)
    folders = [Path(file.name).parent.name for file in files]
    assert len(set(folders)) == len(homes)
    assert max(map(len, folders)) == 200
    assert {"home=%1F", "home=.%2E", "home=a%20", f"home={'x' * 195}", f"home={'%2F' * 65}"} <= {*folders}
    assert sorted(name for name in folders if "!" in name) == [
        f"home={'%C3%BC' * 27}!{hashlib.sha256(('ü' * 90).encode()).hexdigest()[:32]}",
        *sorted(f"home={'x' * 54}!{hashlib.sha256(home.encode()).hexdigest()[:32]}" for home in homes[:2]),
    ]
    read = pq.read_table(tmp_path, partitioning="hive").to_pylist()
    assert sorted(row["value"] for row in read) == [*range(len(homes))]


def _invalid(*values: bytes | None) -> pa.Array[Any]:
    """Strings as Spark casts them from bytes: unchecked."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_text_that_is_not_utf8_is_written(tmp_path: Path, file_format: str) -> None:
    """Spark casts any body to a string; neither Python nor a reader of the files takes it."""
    texts = _invalid(b"\xffx", None, b"ok")
    starts: Any = pa.array([0, 1, 2, 3], pa.int32())
    columns: dict[str, Any] = {
        "home": _invalid(b"a\xff", b"b", b"b"),
        "value": texts,
        "of_struct": pa.StructArray.from_arrays([texts, pa.array([1, 2, 3])], ["text", "number"]),
        "of_list": pa.ListArray.from_arrays(starts, texts),
        "of_map": pa.MapArray.from_arrays(starts, pa.array(["k"] * 3), texts),
        "bytes": pa.array([b"\xff"] * 3),
    }
    rows = pa.RecordBatch.from_arrays([*columns.values()], [*columns]).slice(0, 3)
    folder = SinkFolder(str(tmp_path), {})
    files = _task(folder, tmp_path, fileFormat=file_format).write(iter([rows]))
    FileCommits(folder, "q").commit(0, files)
    assert sorted({file.name.partition("/")[0] for file in files}) == ["home=a%EF%BF%BD", "home=b"]
    found = []
    for file in sorted(files, key=lambda each: each.name):
        if file_format == "json":
            found += [json.loads(line) for line in (tmp_path / file.name).read_text().splitlines()]
        else:
            found += pq.ParquetFile(tmp_path / file.name).read().to_pylist(maps_as_pydicts="lossy")
    for row, text in zip(found, ["\ufffdx", None, "ok"], strict=True):
        assert (row["value"], row["of_struct"]["text"]) == (text, text)
        assert (row["of_list"], row["of_map"]) == ([text], {"k": text})
        assert row["bytes"] == ("/w==" if file_format == "json" else b"\xff")


def test_times_that_python_lacks_are_null_in_json(tmp_path: Path) -> None:
    """Spark has years up to 294247, and a sender may choose them."""
    far = 2**60
    columns: dict[str, Any] = {
        "home": pa.array(["a", "a"]),
        "at": pa.array([far, 0], pa.timestamp("us", "Europe/Berlin")),
        "days": pa.array([2**30, 0], pa.date32()),
        "many": pa.array([[far], [0]], pa.list_(pa.timestamp("us"))),
    }
    folder = SinkFolder(str(tmp_path), {})
    (file,) = _task(folder, tmp_path, fileFormat="json").write(
        iter([pa.RecordBatch.from_arrays([*columns.values()], [*columns])])
    )
    lines = [json.loads(line) for line in (tmp_path / file.staged).read_text().splitlines()]
    assert lines[0] == {"at": None, "days": None, "many": [None]}
    assert lines[1]["days"] == "1970-01-01"
    assert None not in (lines[1]["at"], *lines[1]["many"])


def test_rows_of_many_columns_values_stay_apart(tmp_path: Path) -> None:
    """With 64 values in each of eleven columns, the numbers of combinations exceed 64 bits."""
    names = "abcdefghijk"
    schema = StructType([StructField(name, StringType()) for name in (*names, "value")])
    options = FileSinkOptions.parse({"path": str(tmp_path), "partitionColumns": ",".join(names)}, schema)
    rows = [dict.fromkeys((*names, "value"), str(number)) for number in range(64)]
    rows += [dict.fromkeys((*names, "value"), "7") | {"a": first} for first in ("20", "36")]
    task = TaskFiles(SinkFolder(str(tmp_path), {}), options, "_tidegate/staging/a", "part-q")
    assert len(task.write(iter([pa.RecordBatch.from_pylist(rows)]))) == 66


class _CountingFolder(SinkFolder):
    """Counts the files that are open; ``is_full`` makes each write fail."""

    open_count = open_count_max = 0
    is_full = False

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        with super().writing(name) as file:
            self.open_count += 1
            self.open_count_max = max(self.open_count, self.open_count_max)
            try:
                yield cast(BinaryIO, _Full(file)) if self.is_full else file
            finally:
                self.open_count -= 1


class _Full(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def _task(folder: SinkFolder, place: Path, **options: str) -> TaskFiles:
    parsed = FileSinkOptions.parse({"path": str(place), "partitionColumns": "home", **options}, _SCHEMA)
    return TaskFiles(folder, parsed, "_tidegate/staging/a", "part-q")


def _batch_of(homes: Iterable[str]) -> pa.RecordBatch:
    names = [*homes]
    return pa.RecordBatch.from_pydict({"home": pa.array(names), "value": pa.array(range(len(names)))})


def _values(path: Path) -> list[int]:
    if path.suffix == ".json":
        return [json.loads(line)["value"] for line in path.read_text().splitlines()]
    return [row["value"] for row in pq.ParquetFile(path).read().to_pylist()]


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_any_number_of_values_is_written(tmp_path: Path, file_format: str) -> None:
    """Senders choose them: a limit would fail the same micro-batch at each start of the query."""
    folder = _CountingFolder(str(tmp_path), {})
    rounds = [_batch_of(str(home) for home in range(300)) for _ in range(3)]
    files = _task(folder, tmp_path, fileFormat=file_format).write(iter(rounds))
    assert folder.open_count_max == 256
    assert folder.open_count == 0
    # A round closes no file of which it has more rows: 44 continue in another file.
    assert len(files) == len({file.name for file in files}) == 300 + 2 * 44
    assert sum(file.rows for file in files) == 900
    FileCommits(folder, "q").commit(0, files)
    found = [
        (path.parent.name, value)
        for path in tmp_path.glob(f"home=*/*.{file_format}")
        for value in _values(path)
    ]
    assert sorted(found) == sorted((f"home={home}", home) for home in range(300) for _ in rounds)


@pytest.mark.parametrize("is_full", [True, False], ids=["the disk is full", "the rows fail"])
def test_after_an_error_no_file_is_open(
    tmp_path: Path, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is deleted open fails then, and fills the executor's log with its traceback."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: unraisable.append(given.exc_value))
    folder = _CountingFolder(str(tmp_path), {})

    def batches() -> Iterator[pa.RecordBatch]:
        yield _batch_of("abcd")
        folder.is_full = is_full
        if not is_full:
            raise ValueError("of the rows")
        yield _batch_of("efgh")

    with pytest.raises(FileSinkError if is_full else ValueError):
        _task(folder, tmp_path).write(batches())
    assert folder.open_count == 0
    gc.collect()
    assert unraisable == []


def test_values_that_differ_in_case_only_have_files_of_their_own(tmp_path: Path) -> None:
    """Storage without case has one folder for both, where one file would replace the other."""
    files = _write_task(
        tmp_path,
        {"partitionColumns": "home"},
        [{"home": home, "value": value} for value, home in enumerate(["alarm", "Alarm", "ALARM"])],
    )
    assert len({file.name.lower() for file in files}) == 3


def test_the_folders_of_many_columns_have_short_names(tmp_path: Path) -> None:
    """Azure and S3 take 1,024 characters for a whole name, also when senders choose long values."""
    columns = "abcde"
    schema = StructType([StructField(name, StringType()) for name in (*columns, "value")])
    options = FileSinkOptions.parse({"path": str(tmp_path), "partitionColumns": ",".join(columns)}, schema)
    rows = [dict.fromkeys(columns, character * 190) | {"value": character} for character in "xyü"]
    folder = SinkFolder(str(tmp_path), {})
    files = TaskFiles(folder, options, "_tidegate/staging/a", "part-q").write(
        iter([pa.RecordBatch.from_pylist(rows)])
    )
    assert len({file.name.rpartition("/")[0] for file in files}) == 3
    assert all(len(part) <= 120 for file in files for part in file.name.split("/"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "csv"}, "no option 'format'"),
        ({"fileFormat": "csv"}, "must be one of parquet, json, not 'csv'"),
        ({"compression": "lzo"}, "must be one of snappy, gzip, zstd, none"),
        ({"partitionColumns": "street"}, "names 'street', which is not a column"),
        ({"partitionColumns": "home,value"}, "names all columns"),
        ({"partitionColumns": "raw"}, "names 'raw', whose type binary has no text"),
        ({"path": "memory://x"}, "memory of one process"),
        ({"path": "az://user:secretword@place"}, "a URL with a query or a password"),
        ({"storageOptions": "account_key=secretword"}, "not a JSON object"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], words: str) -> None:
    """By name, and without repeating what may be a secret."""
    schema = StructType(
        [*_SCHEMA.fields, *([StructField("raw", BinaryType())] * ("raw" in options.values()))]
    )
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        FileSinkOptions.parse({"path": "/tmp/x"} | options, schema)
    assert "secretword" not in str(caught.value)


def test_long_names_of_many_partition_columns_are_refused() -> None:
    """When the query is planned: a file could not have them all in its name."""
    names = [f"column_number_{number:02}" for number in range(13)]
    schema = StructType([StructField(name, StringType()) for name in (*names, "value")])
    with pytest.raises(InvalidArgumentError, match="'column_number_00', which is too long"):
        FileSinkOptions.parse({"path": "/tmp/x", "partitionColumns": ",".join(names)}, schema)


def test_what_a_file_system_raises_says_where_and_no_secret(tmp_path: Path) -> None:
    """A place that is a file, and a storage account that refuses its key."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileSinkError, match="could not write x/y"):
        SinkFolder(str(tmp_path / "file"), {}).write_whole("x/y", b"")
    with pytest.raises(FileSinkError) as caught:
        SinkFolder("nosuchscheme://x", {"account_key": "secretword"})
    assert "secretword" not in str(caught.value)


def test_a_manifest_of_a_newer_version_says_so(tmp_path: Path) -> None:
    """A repeat of its micro-batch must not take its files for none, and write them again."""
    commits = FileCommits(SinkFolder(str(tmp_path), {}), "q")
    commits.commit(0, [])
    (path,) = (tmp_path / "_tidegate" / "commits").iterdir()
    path.write_text('{"version": 2, "parts": []}')
    for attempt in (
        lambda: commits.find(0),
        lambda: commits.commit(0, []),
        lambda: published_files(str(tmp_path)),
    ):
        with pytest.raises(InvalidArgumentError, match=r"q-0000000000\.json has version 2.*a later one"):
            attempt()

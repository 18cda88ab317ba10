"""Whose a checkpoint directory is: a small file beside Spark's own, written at the first start.

Spark takes any checkpoint directory for that of the query it is given, and goes on at its offsets. With
another pipeline's that reads too little and says nothing; so the directory is asked first. What makes a
pipeline another one: its name, the hub (by name and by when it was made), the consumer group, and what it
writes to. Its steps, its trigger and the address of the service may change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlparse

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import EventHubReplacedError, InvalidArgumentError, TidegateError
from tidegate.spark.pipelines.stream_pipeline import StreamPipeline
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_NAME = "tidegate-pipeline.json"
SPARKS_FILE = "metadata"
"""Where Spark keeps the query's id; it writes this first."""
_VERSION = 1

_WORDS = {
    "pipeline": "the pipeline {}",
    "event_hub": "a pipeline over the event hub {}",
    "consumer_group": "the consumer group {}",
    "sink": "a sink of the kind {}",
    "target": "a pipeline that writes to {}",
}


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """What may not change between two starts on one checkpoint directory, and what is noted beside it."""

    pipeline: str
    event_hub: str
    event_hub_created_at_ms: int
    consumer_group: str
    sink: str
    target: str
    namespace: str
    """The service's host, noted for people: it may move."""

    def to_json(self) -> str:
        """One JSON object, for the file."""
        return json.dumps({"version": _VERSION, **asdict(self)}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PipelineIdentity:
        """The inverse of ``to_json``. Raises ValueError or KeyError where it is something else."""
        values: Any = json.loads(text)
        if not isinstance(values, dict) or values.get("version") != _VERSION:
            raise ValueError("another version")
        return cls(**{item.name: values[item.name] for item in fields(cls)})

    def check(self, found: PipelineIdentity, location: str) -> None:
        """Raise where ``found``, in the directory ``location``, is another pipeline's or another hub's."""
        for name, words in _WORDS.items():
            before, now = str(getattr(found, name)), str(getattr(self, name))
            if before.lower() != now.lower():
                raise InvalidArgumentError(
                    f"The checkpoint directory {location} belongs to {words.format(repr(before))}, and this "
                    f"is {now!r}.",
                    next_step="Give this pipeline a directory of its own with --checkpoint-dir.",
                )
        if found.event_hub_created_at_ms != self.event_hub_created_at_ms:
            raise EventHubReplacedError(
                f"The checkpoint directory {location} counts in the event hub {self.event_hub!r} of "
                f"{_time_text(found.event_hub_created_at_ms)}, which was deleted; the one of today was made "
                f"at {_time_text(self.event_hub_created_at_ms)}.",
                next_step="Delete the directory, and take a new consumer group where the pipeline writes to "
                "SQL, to read the new one from its start.",
            )


class _Directory(Protocol):
    """A checkpoint directory, wherever it lies."""

    def read(self, name: str) -> str | None:
        """A file's text; None: there is none."""
        ...

    def write(self, name: str, text: str) -> None:
        """Make a file."""
        ...


def identity_of(
    pipeline: StreamPipeline, *, connection_string: str, ca_file: str | None = None
) -> PipelineIdentity:
    """What makes this pipeline this one; asks the service when the hub was made.

    Raises what the service says.
    """
    hub_string = hub_connection_string(connection_string, pipeline.source.event_hub)
    given = {
        "eventhubs.connectionString": hub_string,
        "eventhubs.consumerGroup": pipeline.source.consumer_group,
    }
    if ca_file is not None:
        given["eventhubs.caFile"] = ca_file
    options = SourceOptions.parse(given)
    return PipelineIdentity(
        pipeline=pipeline.name,
        event_hub=pipeline.source.event_hub,
        event_hub_created_at_ms=HubReader(options).describe().created_at_ms,
        consumer_group=pipeline.source.consumer_group,
        sink=pipeline.sink.kind,
        target=pipeline.sink.target,
        namespace=options.connection_string.host,
    )


def hub_connection_string(connection_string: str, event_hub: str) -> str:
    """The connection string with the hub in it. Raises InvalidArgumentError where it names another one."""
    parsed = ConnectionString.parse(connection_string)
    if parsed.entity_path is not None and parsed.entity_path.lower() != event_hub.lower():
        raise InvalidArgumentError(
            f"The connection string's EntityPath says {parsed.entity_path!r}, and the pipeline reads "
            f"{event_hub!r}.",
            next_step="Leave EntityPath out of the connection string.",
        )
    return parsed.with_entity_path(event_hub).format()


def claim_checkpoint(location: str, identity: PipelineIdentity, spark: SparkSession | None = None) -> None:
    """Write the identity into a new checkpoint directory, or compare it with what is there.

    location: a path of this machine, or an address that Spark's file systems know. spark: None: do nothing
    where the directory can only be reached through it.
    Raises InvalidArgumentError where the directory is another pipeline's or does not say whose it is, and
    EventHubReplacedError where it counts in a hub that is no more.
    """
    path = local_path(location)
    directory: _Directory
    if path is not None:
        directory = _LocalDirectory(path)
    elif spark is not None:
        directory = HadoopDirectory(spark, location)
    else:
        return
    check_directory(directory.read, directory.write, location, identity)


def check_directory(
    read: Callable[[str], str | None],
    write: Callable[[str, str], None],
    location: str,
    identity: PipelineIdentity,
) -> None:
    """``claim_checkpoint`` over any storage."""
    text = read(FILE_NAME)
    if text is not None:
        try:
            found = PipelineIdentity.from_json(text)
        except (ValueError, KeyError) as error:
            raise _unknown(location, f"its {FILE_NAME} cannot be read") from error
        identity.check(found, location)
        return
    if read(SPARKS_FILE) is not None:
        raise _unknown(location, "it holds a query that was not started as a declared pipeline")
    write(FILE_NAME, identity.to_json())


def _unknown(location: str, why: str) -> TidegateError:
    return InvalidArgumentError(
        f"The checkpoint directory {location} does not say which pipeline it belongs to: {why}.",
        next_step="Give a directory that is new or empty with --checkpoint-dir.",
    )


def local_path(location: str) -> Path | None:
    """The path that a checkpoint location means on this machine; None where it is elsewhere."""
    parsed = urlparse(location)
    if parsed.scheme == "":
        return Path(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


class _LocalDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._path / f".{name}.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._path / name)


class HadoopDirectory:
    """A checkpoint directory through the file systems that Spark itself writes it with."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """location: as ``checkpoint_path`` gives it."""
        self._jvm: Any = spark.sparkContext._jvm
        self._location = location
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr,unused-ignore]
        self._system = self._path("").getFileSystem(configuration)

    def _path(self, name: str) -> Any:  # a Java object
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._location.rstrip('/')}/{name}")

    def read(self, name: str) -> str | None:
        """A file's text; None: there is none."""
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Make a file, which must not be there."""
        stream = self._system.create(self._path(name), False)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")

"""Records which pipeline owns a checkpoint directory, in a small file next to Spark's own.

Spark continues at the offsets of whichever checkpoint directory a query is given. With another pipeline's
directory that would silently skip events, so this file is checked first. A pipeline is identified by its
name, hub (name and creation time), consumer group and target. Its steps, trigger and service address may
change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidegate.files import replace_file
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import LATER_VERSION, EventHubReplacedError, InvalidArgumentError, TidegateError
from tidegate.model.times import time_of, time_text
from tidegate.model.validation import from_values
from tidegate.spark.pipelines.stream_pipeline import HubSource, StreamPipeline
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.journal import local_path
from tidegate.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_NAME = "tidegate-pipeline.json"
SPARKS_FILE = "metadata"
"""Spark's own first file, which holds the query's id."""
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
    """What must not change between starts with one checkpoint directory, and the namespace."""

    pipeline: str
    event_hub: str
    event_hub_created_at_ms: int
    consumer_group: str
    sink: str
    target: str
    namespace: str
    """The service's host, recorded for people; it may change."""

    def to_json(self) -> str:
        """One JSON object, for the file."""
        return json.dumps({"version": _VERSION, **asdict(self)}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PipelineIdentity:
        """The inverse of ``to_json``. Raises InvalidArgumentError for that of a newer version, ValueError for
        anything else."""
        values = msgspec.json.decode(text, type=dict[str, object])
        version = values.get("version")
        if isinstance(version, int) and version > _VERSION:
            raise InvalidArgumentError(
                f"The checkpoint directory holds a {FILE_NAME} of version {version}; this Tidegate reads up "
                f"to version {_VERSION}.",
                next_step=LATER_VERSION,
            )
        if version != _VERSION:
            raise ValueError("no version")
        return from_values(values, cls)

    def check(self, found: PipelineIdentity, location: str) -> None:
        """Raise if ``found``, in the directory ``location``, is another pipeline's or another hub's."""
        for name, words in _WORDS.items():
            before, now = str(getattr(found, name)), str(getattr(self, name))
            if before.lower() != now.lower():
                raise InvalidArgumentError(
                    f"The checkpoint directory {location} belongs to {words.format(repr(before))}, but this "
                    f"is {now!r}.",
                    next_step="Give this pipeline a directory of its own with --checkpoint-dir.",
                )
        if found.event_hub_created_at_ms != self.event_hub_created_at_ms:
            old, new = time_of(found.event_hub_created_at_ms), time_of(self.event_hub_created_at_ms)
            raise EventHubReplacedError(
                f"The checkpoint directory {location} counts in the event hub {self.event_hub!r} of "
                f"{time_text(old)}, which was deleted; the present one was created at {time_text(new)}.",
                next_step="To read the new one from its start, delete the directory, and use a new consumer "
                "group if the pipeline writes to SQL.",
            )


def identity_of(
    pipeline: StreamPipeline, *, connection_string: str, ca_file: str | Path | None = None
) -> PipelineIdentity:
    """The pipeline's identity. Asks the service when the hub was created, and raises what that raises."""
    source = pipeline.source
    options = SourceOptions.parse(hub_options(source, connection_string, ca_file))
    return PipelineIdentity(
        pipeline=pipeline.name,
        event_hub=source.event_hub,
        event_hub_created_at_ms=HubReader(options).describe().created_at_ms,
        consumer_group=source.consumer_group,
        sink=pipeline.sink.kind,
        target=pipeline.sink.target,
        namespace=options.connection_string.host,
    )


def hub_options(
    source: HubSource, connection_string: str, ca_file: str | Path | None = None
) -> dict[str, str]:
    """A source as options of the format ``eventhubs``, without ``source.options``.

    Raises InvalidArgumentError if the connection string names another hub.
    """
    options = {
        "eventhubs.connectionString": hub_connection_string(connection_string, source.event_hub),
        "eventhubs.consumerGroup": source.consumer_group,
        "eventhubs.startingPosition": source.starting_position,
        "eventhubs.failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "eventhubs.maxEventsPerTrigger": str(source.max_events_per_trigger),
    }
    if ca_file is not None:
        options["eventhubs.caFile"] = str(ca_file)
    return options


def hub_connection_string(connection_string: str, event_hub: str) -> str:
    """Add the hub to the connection string. Raises InvalidArgumentError if it names another hub."""
    parsed = ConnectionString.parse(connection_string)
    if parsed.entity_path is not None and parsed.entity_path.lower() != event_hub.lower():
        raise InvalidArgumentError(
            f"The connection string's EntityPath is {parsed.entity_path!r}, but the pipeline reads "
            f"{event_hub!r}.",
            next_step="Leave EntityPath out of the connection string.",
        )
    return parsed.with_entity_path(event_hub).format()


def claim_checkpoint(location: str, identity: PipelineIdentity, spark: SparkSession | None = None) -> None:
    """Write the identity into a new checkpoint directory, or compare it with the one there.

    location: a path on this machine, or an address that Spark's file systems support. spark: None: skip the
    check for such an address. Raises InvalidArgumentError if the directory is another pipeline's or does not
    say whose it is, and EventHubReplacedError if it refers to a deleted hub.
    """
    path = local_path(location)
    if spark is None:
        if path is not None:
            check_directory(_LocalDirectory(path), location, identity)
        return
    from tidegate.spark.runtime.connect import is_connect, is_server_here

    directory: _Directory
    if path is not None and (not is_connect(spark) or is_server_here(spark)):
        directory = _LocalDirectory(path)
    else:
        directory = (_ConnectDirectory if is_connect(spark) else HadoopDirectory)(spark, location)
    check_directory(directory, location, identity)


def check_directory(directory: _Directory, location: str, identity: PipelineIdentity) -> None:
    """``claim_checkpoint`` over any storage."""
    text = directory.read(FILE_NAME)
    if text is not None:
        try:
            found = PipelineIdentity.from_json(text)
        except ValueError as error:
            raise _unknown(location, f"its {FILE_NAME} cannot be read") from error
        identity.check(found, location)
        return
    if directory.read(SPARKS_FILE) is not None:
        raise _unknown(location, "it holds a query that was not started as a declared pipeline")
    directory.write(FILE_NAME, identity.to_json())


def _unknown(location: str, why: str) -> TidegateError:
    return InvalidArgumentError(
        f"The checkpoint directory {location} does not say which pipeline it belongs to: {why}.",
        next_step="Set --checkpoint-dir to a new or empty directory.",
    )


class _Directory(Protocol):
    """A checkpoint directory; ``HadoopDirectory`` says what its methods do."""

    def read(self, name: str) -> str | None: ...

    def write(self, name: str, text: str) -> None: ...


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
        replace_file(self._path / name, text.encode(), mode=0o666)


class _ConnectDirectory:
    """The same through Spark Connect, which has files only as the parts of tables: each is a folder."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location.rstrip("/")

    def read(self, name: str) -> str | None:
        from pyspark.errors import PySparkException

        try:
            row = self._spark.read.text(f"{self._location}/{name}", wholetext=True).first()
        except PySparkException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        return None if row is None else str(row[0])

    def write(self, name: str, text: str) -> None:
        rows = self._spark.createDataFrame([(text,)], "value string").coalesce(1)
        rows.write.text(f"{self._location}/{name}")


class HadoopDirectory:
    """A checkpoint directory, accessed through Spark's own file systems."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """location: as ``checkpoint_path`` returns it."""
        self._jvm: Any = spark.sparkContext._jvm
        self._location = location
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr,unused-ignore]
        self._system = self._path("").getFileSystem(configuration)

    def _path(self, name: str) -> Any:  # a Java object
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._location.rstrip('/')}/{name}")

    def read(self, name: str) -> str | None:
        """A file's text; None: it does not exist."""
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Create a file, which must not exist."""
        stream = self._system.create(self._path(name), False)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()

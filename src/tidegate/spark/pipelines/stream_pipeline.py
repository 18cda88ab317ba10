"""A pipeline declared in one Python file: source, steps, sink, trigger, and what becomes of rows that fail.

    pipeline = StreamPipeline(
        name="delays",
        source=HubSource("flights", max_events_per_trigger=100_000),
        steps=[parse, mean_delay_per_carrier],
        sink=SqlBatchSink(delays),
    )

Plain values: declaring one starts no Spark and imports none of it. ``start_stream_pipeline`` starts it, and
so does ``tidegate pipeline run FILE.py:pipeline``. What contradicts itself is refused here, by name, and not
when the first micro-batch has run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.sql import ConsumerKey, Handler, Pipeline
from tidegate.sql.handlers.batches import BatchHandler
from tidegate.sql.handlers.pipeline import Redrivable
from tidegate.sql.ledger.rows import LedgerTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_EVENTS_PER_TRIGGER = 500_000
"""Events of one micro-batch at most, unless said otherwise; bounds what one failure repeats."""

Step = Callable[["DataFrame"], "DataFrame"]
"""Takes the DataFrame that the source, or the step before, gives, and returns the next."""

OWN_FILE_FORMAT = "eventhubs-files"
"""The format of files that Tidegate brings."""

OutputMode = Literal["append", "update", "complete"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OWN_OPTIONS = {
    "connectionstring": "the connection string is given when the pipeline is started",
    "eventhubname": "it is HubSource.event_hub",
    "consumergroup": "it is HubSource.consumer_group",
    "startingposition": "it is HubSource.starting_position",
    "maxeventspertrigger": "it is HubSource.max_events_per_trigger",
    "failondataloss": "it is HubSource.fail_on_data_loss",
    "cafile": "the certificate authority is given when the pipeline is started",
    "encodedevents": "the sink decides it",
    "endingposition": "a stream has no end",
    "endingpositions": "a stream has no end",
}


class OnFailure(StrEnum):
    """What becomes of an event that cannot be processed.

    That is: a step has given its row a reason in the column ``_error``. What a handler raises, and a row that
    the database refuses, becomes a dead letter in any case.
    """

    DEAD_LETTER = "dead-letter"
    """It is put aside with its reason, in the transaction of the rows: for SQL sinks, and their default."""
    STOP = "stop"
    """The query ends with that reason and nothing of the transaction is written: the default elsewhere."""
    SKIP = "skip"
    """It is left out, without a trace."""


def check_name(name: str) -> None:
    """Raises InvalidArgumentError for a pipeline's name that cannot also name a directory."""
    if _NAME.fullmatch(str(name)) is None:
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a pipeline.",
            next_step="Take up to 100 letters, digits, dots, dashes and underscores, beginning with a letter "
            "or digit.",
        )


@dataclass(frozen=True, slots=True)
class HubSource:
    """The event hub that the pipeline reads."""

    event_hub: str
    consumer_group: str = DEFAULT_CONSUMER_GROUP
    starting_position: str = "earliest"
    """Where a partition starts that has no checkpoint: as the source's option ``startingPosition``."""
    max_events_per_trigger: int = MAX_EVENTS_PER_TRIGGER
    """Events of one micro-batch at most."""
    fail_on_data_loss: bool = True
    """False: where retention has overtaken the pipeline, go on with what is there."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format ``eventhubs``; not together with a ``SqlSink``."""

    def __post_init__(self) -> None:
        ConsumerKey(self.event_hub, self.consumer_group)
        if self.max_events_per_trigger < 1:
            raise InvalidArgumentError(
                f"HubSource.max_events_per_trigger is {self.max_events_per_trigger}.",
                next_step="Give a number of at least 1.",
            )
        for name in self.options:
            reason = _OWN_OPTIONS.get(name.lower().removeprefix("eventhubs."))
            if reason is not None:
                raise InvalidArgumentError(
                    f"HubSource.options names {name!r}: {reason}.", next_step="Leave it out of the options."
                )


@dataclass(frozen=True, slots=True)
class SqlSink:
    """A table, written per hub partition: rows, dead letters and checkpoint in one transaction each.

    For pipelines that turn each event into rows by itself. Either a handler, or steps whose last returns
    ``partition``, ``sequenceNumber``, the table's columns and, where wanted, ``_error`` and ``_skip``.
    """

    table: Table
    handler: Handler | BatchHandler | None = None
    """Called with each event where there are no steps; with steps, only for redrives of dead letters."""
    is_payload_copied: bool = False
    """True: a dead letter keeps a copy of its event, so that it outlives the log's retention."""

    @property
    def kind(self) -> str:
        """What it is, in one word, for people and for the identity of a checkpoint directory."""
        return "sql"

    @property
    def target(self) -> str:
        """What it writes to."""
        return self.table.fullname


@dataclass(frozen=True, slots=True)
class SqlBatchSink:
    """Tables, written per micro-batch with a ledger row in the transaction: for aggregates and all else that
    shuffles.
    """

    table: Table | LedgerTable | Mapping[str, LedgerTable]
    """A plain table is upserted by its primary key. Several, by names of your own: each row's column
    ``_table`` says which it is for."""
    output_mode: OutputMode = "update"
    """Spark's output mode."""

    def __post_init__(self) -> None:
        if not self.tables:
            raise InvalidArgumentError("SqlBatchSink has no table.", next_step="Give it one.")

    @property
    def tables(self) -> dict[str, LedgerTable]:
        """All tables, by the names that rows have for them."""
        if isinstance(self.table, Table):
            return {self.table.name: LedgerTable(self.table)}
        if isinstance(self.table, LedgerTable):
            return {self.table.table.name: self.table}
        return dict(self.table)

    @property
    def kind(self) -> str:
        """What it is, in one word, for people and for the identity of a checkpoint directory."""
        return "sql-batch"

    @property
    def target(self) -> str:
        """What it writes to."""
        return ", ".join(sorted(item.table.fullname for item in self.tables.values()))


@dataclass(frozen=True, slots=True)
class HubSink:
    """Another event hub: the steps return ``body`` and, where wanted, the other columns of the format."""

    event_hub: str
    connection_string: str | None = field(default=None, repr=False)
    """Of the namespace that it is in; None: the source's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the writer of the format ``eventhubs``."""

    def __post_init__(self) -> None:
        if not self.event_hub:
            raise InvalidArgumentError("HubSink.event_hub is empty.", next_step="Name the event hub.")

    @property
    def kind(self) -> str:
        """What it is, in one word, for people and for the identity of a checkpoint directory."""
        return "hub"

    @property
    def target(self) -> str:
        """What it writes to."""
        return self.event_hub


@dataclass(frozen=True, slots=True)
class FileSink:
    """Files in a directory: ``eventhubs-files``, or a format of Spark's such as ``parquet`` and ``json``."""

    path: str
    """A directory, or what the format takes for one: ``abfss://…``, ``s3a://…``."""
    format: str = OWN_FILE_FORMAT
    partition_by: Sequence[str] = ()
    """Columns of which directories are made."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format."""

    def __post_init__(self) -> None:
        if not self.path:
            raise InvalidArgumentError("FileSink.path is empty.", next_step="Name a directory.")
        if isinstance(self.partition_by, str):
            raise InvalidArgumentError(
                f"FileSink.partition_by is the text {self.partition_by!r}.",
                next_step="Give a list of column names.",
            )

    @property
    def kind(self) -> str:
        """What it is, in one word, for people and for the identity of a checkpoint directory."""
        return "files"

    @property
    def target(self) -> str:
        """What it writes to."""
        return self.path


Sink = SqlSink | SqlBatchSink | HubSink | FileSink


@dataclass(frozen=True, slots=True)
class StreamPipeline(Redrivable):
    """One streaming query, declared. Raises InvalidArgumentError for what contradicts itself."""

    name: str
    """Names the query, its dead letters, its checkpoint directory and its status; keep it when steps
    change."""
    source: HubSource
    sink: Sink
    steps: Sequence[Step] = ()
    """Applied one after the other to what the source gives."""
    trigger: Trigger = AS_SOON_AS_POSSIBLE
    on_failure: OnFailure | None = None
    """None: dead letters where the sink is SQL, else the query stops."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark that the pipeline needs, such as the state store that its steps ask for."""

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_types()
        self._check_steps()
        self._check_on_failure()
        if isinstance(self.sink, SqlSink) and self.source.options:
            raise self._refused(
                f"HubSource.options ({', '.join(self.source.options)}) do not reach a SqlSink.",
                "Leave them out, or take a SqlBatchSink.",
            )
        if (
            isinstance(self.sink, HubSink)
            and self.sink.connection_string is None
            and self.sink.event_hub.lower() == self.source.event_hub.lower()
        ):
            raise self._refused(
                f"it would publish to {self.source.event_hub!r}, which it reads: every event would come "
                "round again.",
                "Name another event hub in HubSink.",
            )

    @property
    def failure_policy(self) -> OnFailure:
        """``on_failure``, or the sink's default."""
        if self.on_failure is not None:
            return self.on_failure
        return OnFailure.DEAD_LETTER if isinstance(self.sink, SqlSink | SqlBatchSink) else OnFailure.STOP

    @property
    def consumer(self) -> ConsumerKey:
        """Hub and consumer group, as checkpoints and dead letters have them."""
        return ConsumerKey(self.source.event_hub, self.source.consumer_group)

    def redrivable(self) -> Pipeline:
        """What ``tidegate dlq redrive`` runs dead letters through: the ``SqlSink``'s handler.

        Raises InvalidArgumentError where there is none.
        """
        if not isinstance(self.sink, SqlSink) or self.sink.handler is None:
            raise self._refused(
                "its dead letters cannot be redriven, for it has no handler.",
                "Give its SqlSink a handler, a function from an event to rows.",
            )
        return self.sql_pipeline(self.sink.handler)

    def sql_pipeline(self, handler: Handler | BatchHandler) -> Pipeline:
        """The ``tidegate.sql.Pipeline`` that a ``SqlSink`` stands for, with this handler."""
        assert isinstance(self.sink, SqlSink)
        return Pipeline(
            self.name,
            self.source.event_hub,
            self.sink.table,
            handler,
            consumer_group=self.source.consumer_group,
            is_payload_copied=self.sink.is_payload_copied,
        )

    def _check_types(self) -> None:
        for name, value, kinds in (
            ("source", self.source, HubSource),
            ("sink", self.sink, Sink),
            ("trigger", self.trigger, Trigger),
        ):
            if not isinstance(value, kinds):
                wanted = getattr(kinds, "__name__", "SqlSink, SqlBatchSink, HubSink or FileSink")
                raise self._refused(f"its {name} is a {type(value).__name__}.", f"Give a {wanted}.")

    def _check_steps(self) -> None:
        if callable(self.steps):
            raise self._refused("its steps are one function.", "Put it into a list: steps=[…].")
        for position, step in enumerate(self.steps, start=1):
            if not callable(step):
                raise self._refused(
                    f"its step {position} is a {type(step).__name__}.",
                    "Give functions that take a DataFrame and return one.",
                )
        if isinstance(self.sink, SqlSink) and not self.steps and self.sink.handler is None:
            raise self._refused(
                "its SqlSink has no handler, and there are no steps: nothing says what a row is.",
                "Give SqlSink(table, handler), or steps.",
            )

    def _check_on_failure(self) -> None:
        if self.on_failure is not None and not isinstance(self.on_failure, OnFailure):
            raise self._refused(
                f"on_failure is {self.on_failure!r}.",
                f"Take one of {', '.join('OnFailure.' + item.name for item in OnFailure)}.",
            )
        if self.on_failure is OnFailure.DEAD_LETTER and isinstance(self.sink, HubSink | FileSink):
            raise self._refused(
                f"on_failure is dead-letter, and a {type(self.sink).__name__} has no database to put dead "
                "letters into.",
                "Take OnFailure.STOP or OnFailure.SKIP, or a SQL sink.",
            )
        if self.on_failure in (OnFailure.STOP, OnFailure.SKIP) and not self.steps:
            raise self._refused(
                f"on_failure is {self.on_failure}, which is about the column _error, and no step makes one.",
                "Leave it out: what a handler raises is a dead letter, and None from it is no row.",
            )

    def _refused(self, what: str, next_step: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"The pipeline {self.name}: {what}", next_step=next_step)


def declared_pipeline(pipeline: StreamPipeline | Pipeline) -> StreamPipeline:
    """A plain ``tidegate.sql.Pipeline`` as a declaration; a declaration as it is.

    Raises InvalidArgumentError for a name that cannot also name a directory.
    """
    if isinstance(pipeline, StreamPipeline):
        return pipeline
    check_name(pipeline.name)
    return StreamPipeline(
        pipeline.name,
        HubSource(pipeline.event_hub, pipeline.consumer_group),
        SqlSink(pipeline.table, pipeline.handler, pipeline.is_payload_copied),
    )

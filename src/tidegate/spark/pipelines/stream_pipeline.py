"""A pipeline declared in one Python file: source, steps, sink, trigger and failure policy.

    pipeline = StreamPipeline(
        name="delays",
        source=HubSource("flights", max_events_per_trigger=100_000),
        steps=[parse, mean_delay_per_carrier],
        sink=SqlBatchSink(delays),
    )

Declaring a pipeline neither starts nor imports Spark. ``start_stream_pipeline`` and ``tidegate pipeline run
FILE.py:pipeline`` start it. Contradictions are refused here, by name, instead of after the first micro-batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.processor.policies import FailurePolicy
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.sql import ConsumerKey, Handler, Pipeline
from tidegate.sql.handlers.batches import BatchHandler
from tidegate.sql.handlers.pipeline import AnyPipeline, Redrivable, returning_rows
from tidegate.sql.ledger.rows import LedgerTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_EVENTS_PER_TRIGGER = 500_000
"""Default limit of events per micro-batch, which limits what one failure repeats."""

Step = Callable[["DataFrame"], "DataFrame"]
"""Turns the DataFrame of the source or previous step into the next one."""

OWN_FILE_FORMAT = "eventhubs-files"
"""Tidegate's own file format."""

OutputMode = Literal["append", "update", "complete"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AT_START = "it is given when the pipeline is started"
_NO_END = "a stream has no end"
_OWN_OPTIONS = {
    "connectionstring": _AT_START,
    "eventhubname": "use HubSource.event_hub",
    "consumergroup": "use HubSource.consumer_group",
    "startingposition": "use HubSource.starting_position",
    "maxeventspertrigger": "use HubSource.max_events_per_trigger",
    "failondataloss": "use HubSource.fail_on_data_loss",
    "cafile": _AT_START,
    "encodedevents": "the sink sets it",
    "endingposition": _NO_END,
    "endingpositions": _NO_END,
}


class OnFailure(StrEnum):
    """What happens to an event for whose row a step set a reason in the column ``_error``.

    ``SqlSink.policy`` decides about an event whose handler raises. A row of steps that the database refuses
    always becomes a dead letter.
    """

    DEAD_LETTER = "dead-letter"
    """It is stored with its reason in the rows' transaction; only for SQL sinks, their default."""
    STOP = "stop"
    """The query ends with that reason, and its transaction is not written; the default for other sinks."""
    SKIP = "skip"
    """It is skipped without a trace."""


def check_name(name: str) -> None:
    """Raises InvalidArgumentError for a pipeline name that cannot also name a directory."""
    if _NAME.fullmatch(str(name)) is None:
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a pipeline.",
            next_step="Use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter "
            "or digit.",
        )


@dataclass(frozen=True, slots=True)
class HubSource:
    """The event hub that the pipeline reads."""

    event_hub: str
    consumer_group: str = DEFAULT_CONSUMER_GROUP
    starting_position: str = "earliest"
    """Where a partition without a checkpoint starts, as in the source's option ``startingPosition``."""
    max_events_per_trigger: int = MAX_EVENTS_PER_TRIGGER
    """Most events in one micro-batch."""
    fail_on_data_loss: bool = True
    """False: skip events that retention has deleted before they were read."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format ``eventhubs``; not with a ``SqlSink``."""

    def __post_init__(self) -> None:
        ConsumerKey(self.event_hub, self.consumer_group)
        if self.max_events_per_trigger < 1:
            raise InvalidArgumentError(
                f"HubSource.max_events_per_trigger is {self.max_events_per_trigger}.",
                next_step="Set it to at least 1.",
            )
        for name in self.options:
            reason = _OWN_OPTIONS.get(name.lower().removeprefix("eventhubs."))
            if reason is not None:
                raise InvalidArgumentError(
                    f"HubSource.options cannot hold {name!r}: {reason}.", next_step="Leave it out."
                )


@dataclass(frozen=True, slots=True)
class SqlSink:
    """A table, written per hub partition: one transaction holds rows, dead letters and checkpoint.

    For pipelines that turn each event into rows independently, by a handler or by steps. The last step
    returns
    ``partition``, ``sequenceNumber``, the table's columns and, optionally, ``_error`` and ``_skip``.
    """

    table: Table
    handler: Handler | BatchHandler | None = None
    """Called with each event if there are no steps; otherwise only for redrives of dead letters."""
    is_payload_copied: bool = False
    """True: a dead letter keeps a copy of its event, which outlives the log's retention."""
    policy: FailurePolicy | None = None
    """What happens to an event for which the handler fails; None: the default one. Not with steps."""

    kind: ClassVar = "sql"
    """For status reports, and for the identity of a checkpoint directory."""

    @property
    def target(self) -> str:
        """The sink's target, for the same purposes."""
        return self.table.fullname


@dataclass(frozen=True, slots=True)
class SqlBatchSink:
    """Tables, written per micro-batch with a ledger row in the same transaction: for aggregates and
    everything else that shuffles.
    """

    table: Table | LedgerTable | Mapping[str, LedgerTable]
    """A plain table is upserted by its primary key. With several tables, by names of your choice, each row's
    column ``_table`` names its table."""
    output_mode: OutputMode = "update"
    """Spark's output mode."""

    def __post_init__(self) -> None:
        if not self.tables:
            raise InvalidArgumentError("SqlBatchSink has no table.", next_step="Pass a table.")

    @property
    def tables(self) -> dict[str, LedgerTable]:
        """All tables, by the names that rows use for them."""
        if isinstance(self.table, Table):
            return {self.table.name: LedgerTable(self.table)}
        if isinstance(self.table, LedgerTable):
            return {self.table.table.name: self.table}
        return dict(self.table)

    kind: ClassVar = "sql-batch"
    """See ``SqlSink``."""

    @property
    def target(self) -> str:
        """See ``SqlSink``."""
        return ", ".join(sorted(item.table.fullname for item in self.tables.values()))


@dataclass(frozen=True, slots=True)
class HubSink:
    """Another event hub: the steps return ``body`` and, optionally, the other columns of the format."""

    event_hub: str
    connection_string: str | None = field(default=None, repr=False)
    """Of its namespace; None: the source's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the writer of the format ``eventhubs``."""

    def __post_init__(self) -> None:
        if not self.event_hub:
            raise InvalidArgumentError("HubSink.event_hub is empty.", next_step="Name the event hub.")

    kind: ClassVar = "hub"
    """See ``SqlSink``."""

    @property
    def target(self) -> str:
        """See ``SqlSink``."""
        return self.event_hub


@dataclass(frozen=True, slots=True)
class FileSink:
    """Files in a directory, of the format ``eventhubs-files`` or one of Spark's, such as ``parquet`` and
    ``json``.
    """

    path: str
    """A directory, or a URL that the format accepts: ``abfss://…``, ``s3a://…``."""
    format: str = OWN_FILE_FORMAT
    partition_by: Sequence[str] = ()
    """Columns that become directories."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the format."""

    def __post_init__(self) -> None:
        if not self.path:
            raise InvalidArgumentError("FileSink.path is empty.", next_step="Name a directory.")
        if isinstance(self.partition_by, str):
            raise InvalidArgumentError(
                f"FileSink.partition_by must be a list of column names, got {self.partition_by!r}.",
            )

    kind: ClassVar = "files"
    """See ``SqlSink``."""

    @property
    def target(self) -> str:
        """See ``SqlSink``."""
        return self.path


Sink = SqlSink | SqlBatchSink | HubSink | FileSink


@dataclass(frozen=True, slots=True)
class StreamPipeline(Redrivable):
    """One declared streaming query. Raises InvalidArgumentError for contradictions."""

    name: str
    """Names the query, its dead letters, its checkpoint directory and its status; keep it when steps change.
    """
    source: HubSource
    sink: Sink
    steps: Sequence[Step] = ()
    """Applied to the source's DataFrame in order."""
    trigger: Trigger = AS_SOON_AS_POSSIBLE
    on_failure: OnFailure | None = None
    """None: dead letters if the sink is SQL, else the query stops."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that the pipeline needs, such as the state store of its steps."""

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_types()
        self._check_steps()
        self._check_on_failure()
        if isinstance(self.sink, SqlSink) and self.source.options:
            raise self._refused(
                f"HubSource.options ({', '.join(self.source.options)}) are not used by a SqlSink.",
                "Leave them out, or use a SqlBatchSink.",
            )
        if (
            isinstance(self.sink, HubSink)
            and self.sink.connection_string is None
            and self.sink.event_hub.lower() == self.source.event_hub.lower()
        ):
            raise self._refused(
                f"it would publish to {self.source.event_hub!r}, which it reads: an endless loop.",
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
        """Hub and consumer group, the key of checkpoints and dead letters."""
        return ConsumerKey(self.source.event_hub, self.source.consumer_group)

    def redrivable(self) -> Pipeline:
        """The ``SqlSink``'s handler as a pipeline, for ``tidegate dlq redrive``.

        Raises InvalidArgumentError if there is none.
        """
        if not isinstance(self.sink, SqlSink) or self.sink.handler is None:
            raise self._refused(
                "its dead letters cannot be redriven, because it has no handler.",
                "Pass its SqlSink a handler, a function from an event to rows.",
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
            policy=self.sink.policy,
        )

    def _check_types(self) -> None:
        for name, value, kinds in (
            ("source", self.source, HubSource),
            ("sink", self.sink, Sink),
            ("trigger", self.trigger, Trigger),
        ):
            if not isinstance(value, kinds):
                wanted = getattr(kinds, "__name__", "SqlSink, SqlBatchSink, HubSink or FileSink")
                raise self._refused(f"its {name} is a {type(value).__name__}.", f"Use a {wanted}.")

    def _check_steps(self) -> None:
        if callable(self.steps):
            raise self._refused("its steps must be a list, got a function.", "Write steps=[…].")
        for position, step in enumerate(self.steps, start=1):
            if not callable(step):
                raise self._refused(
                    f"its step {position} is a {type(step).__name__}.",
                    "Use functions that take a DataFrame and return one.",
                )
        if isinstance(self.sink, SqlSink) and not self.steps and self.sink.handler is None:
            raise self._refused(
                "its SqlSink has no handler, and there are no steps: nothing makes rows.",
                "Add SqlSink(table, handler), or steps.",
            )

    def _check_on_failure(self) -> None:
        if isinstance(self.sink, SqlSink) and self.sink.policy is not None and self.steps:
            raise self._refused(
                "SqlSink.policy is for its handler, which is not called where there are steps.",
                "Leave it out; on_failure says what happens to rows with _error.",
            )
        if self.on_failure is not None and not isinstance(self.on_failure, OnFailure):
            raise self._refused(
                f"on_failure is {self.on_failure!r}.",
                f"Use one of {', '.join('OnFailure.' + item.name for item in OnFailure)}.",
            )
        if self.on_failure is OnFailure.DEAD_LETTER and isinstance(self.sink, HubSink | FileSink):
            raise self._refused(
                f"on_failure is dead-letter, but a {type(self.sink).__name__} has no database for them.",
                "Use OnFailure.STOP or OnFailure.SKIP, or a SQL sink.",
            )
        if self.on_failure in (OnFailure.STOP, OnFailure.SKIP) and not self.steps:
            raise self._refused(
                f"on_failure is {self.on_failure}, which applies to the column _error, but no step sets it.",
                "Leave it out: an event whose handler raises is a dead letter; for None it has no row.",
            )

    def _refused(self, what: str, next_step: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"The pipeline {self.name}: {what}", next_step=next_step)


def declared_pipeline(pipeline: StreamPipeline | AnyPipeline) -> StreamPipeline:
    """Convert a plain ``tidegate.sql.Pipeline`` to a declaration; returns a declaration unchanged.

    Raises InvalidArgumentError for a name that cannot also name a directory, and for a
    ``TransactionalPipeline``.
    """
    if isinstance(pipeline, StreamPipeline):
        return pipeline
    pipeline = returning_rows(pipeline)
    check_name(pipeline.name)
    return StreamPipeline(
        pipeline.name,
        HubSource(pipeline.event_hub, pipeline.consumer_group),
        SqlSink(pipeline.table, pipeline.handler, pipeline.is_payload_copied, pipeline.policy),
    )

"""The writers of the format ``eventhubs``: rows become events, each in the log once where the log can tell.

What makes a repeat recognisable is who sends: a task has the identity (query, task), the micro-batch is its
epoch, and its events are numbered in the order of its rows (``client.repeatable``).

    the micro-batch is run again         goes on where the log stands, task by task
    two attempts of a task at once       help each other along
    an attempt of an earlier micro-batch is shut out by the epoch
    the rows are not the same ones       refused (RepeatDiffersError) where the log can tell
    a batch query                        as one micro-batch: tasks that are retried repeat nothing; the query
                                         run again is another, unless ``eventhubs.writeId`` says otherwise

Nothing is left to the driver: what tasks have sent is in the log, and neither ``commit`` nor ``abort`` of a
micro-batch changes that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.client import ProducerIdentity, RepeatableProducer
from tidegate.model.errors import InvalidArgumentError, ProducerEpochStolenError, RepeatDiffersError
from tidegate.spark.hub_sink.batches import BatchCutter, HubBatch
from tidegate.spark.hub_sink.options import HubSinkOptions, check_columns
from tidegate.spark.runtime.certificates import certificates_file
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.spark.source.hub import make_credential

_logger = logging.getLogger(__name__)

_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Our choice: a task of up to this size sends nothing before all of its rows have been checked."""
_EPOCHS: Final = 1 << 15
_PRODUCERS_MAX: Final = 8


@dataclass
class HubCommitMessage(WriterCommitMessage):
    """What one task did."""

    event_count: int
    found_count: int
    """Events of the task that were in the log before this attempt began."""
    is_repeat_safe: bool


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which piece of which write a task does."""

    write: str
    """The query's id, or what names a batch query."""
    batch_id: int
    """The micro-batch; 0 in a batch query."""
    task: int
    """The task's partition within it."""

    def producer(self) -> ProducerIdentity:
        """A producer per query and task, whose epochs are the micro-batches.

        The service remembers a bounded number of producers per partition: were each micro-batch one of its
        own, a query would soon push out everybody else's.
        """
        text = f"tidegate-spark\0{self.write}\0{self.task}\0{self.batch_id // _EPOCHS}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return ProducerIdentity(int.from_bytes(digest, "big") >> 1, self.batch_id % _EPOCHS)


class HubStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: HubSinkOptions) -> None:
        self._options = options

    # The Arrow writer's parameter differs from its base class's in pyspark, too.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> HubCommitMessage:  # type: ignore[override]
        """Send the rows of one task. Raises what ``write_task`` raises."""
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert query_id is not None
        assert batch_id is not None
        return write_task(
            self._options, TaskIdentity(query_id, int(batch_id), context.partitionId()), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do; says once what a service without numbered batches means."""
        if batchId == 0:
            _report(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what is in the log stays, and the micro-batch run again goes on behind it."""


class HubBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one batch query."""

    def __init__(self, options: HubSinkOptions) -> None:
        self._options = options
        self._write_id = f"write\0{options.write_id}" if options.write_id is not None else str(uuid.uuid4())
        """Made on the driver, once per query: its tasks and their retries share it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HubCommitMessage:  # type: ignore[override]
        """Send the rows of one task. Raises what ``write_task`` raises."""
        context = TaskContext.get()
        assert context is not None
        return write_task(self._options, TaskIdentity(self._write_id, 0, context.partitionId()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do; says what a service without numbered batches means."""
        _report(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what is in the log stays there."""


def hub_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HubStreamWriter:
    """The writer of a streaming query. Raises InvalidArgumentError (option, column, output mode)."""
    _check_appends(overwrite, '.outputMode("append")')
    check_columns(schema)
    freeze_loaded_modules()
    return HubStreamWriter(HubSinkOptions.parse(options, is_stream=True))


def hub_batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HubBatchWriter:
    """The writer of a batch query. Raises InvalidArgumentError (option, column, save mode)."""
    _check_appends(overwrite, '.mode("append")')
    check_columns(schema)
    return HubBatchWriter(HubSinkOptions.parse(options, is_stream=False))


def write_task(
    options: HubSinkOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> HubCommitMessage:
    """Send a task's rows, and return once the service has stored them. A failure costs the kept connection.

    Raises InvalidArgumentError, NotFoundError, EventTooLargeError for a row (before anything is sent, where
    the task holds less than 16 MB); RepeatDiffersError, ProducerEpochStolenError; what the client raises.
    """
    freeze_loaded_modules()
    try:
        return _write_task(options, identity, batches)
    except BaseException:
        # What is remembered of the hub, such as its partitions, may be what is wrong.
        _forget_producer(options)
        raise


def _write_task(
    options: HubSinkOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> HubCommitMessage:
    producer = _producer(options)
    layout = producer.layout
    sender = identity.producer()
    cutter = BatchCutter(
        layout.partition_ids, layout.batch_bytes_max, first_turn=sender.producer_id + sender.epoch
    )
    event_count = 0
    try:
        with producer.begin(sender) as work:
            for batch in _held_back(_cut(cutter, batches)):
                work.submit(layout.partition_ids[batch.partition_index], batch.sections, batch.event_count)
                event_count += batch.event_count
            found_count = work.flush()
    except RepeatDiffersError as error:
        raise RepeatDiffersError(
            f"Micro-batch {identity.batch_id} was begun with other rows in task {identity.task}: "
            f"{error.message}",
            next_step="Run it with the same number of tasks (cores, tasksMax, shuffle partitions) and the "
            "same order of rows as before; or pass this micro-batch with the option "
            "eventhubs.idempotent=false, which stores again what is stored of it.",
        ) from error
    except ProducerEpochStolenError as error:
        raise ProducerEpochStolenError(
            f"The event hub {producer.event_hub!r} has events of a later micro-batch of this query than "
            f"{identity.batch_id}: {error.message}",
            next_step="Two drivers run with one checkpoint directory: stop one. Or it was put back to an "
            "earlier state: use a new one, which writes again what is written.",
        ) from error
    if found_count:
        _logger.info("%s: %d of %d events were stored already.", identity, found_count, event_count)
    return HubCommitMessage(event_count, found_count, layout.is_repeat_safe)


def _cut(cutter: BatchCutter, batches: Iterator[pa.RecordBatch]) -> Iterator[HubBatch]:
    for rows in batches:
        if rows.num_rows:
            yield from cutter.add(rows)
    yield from cutter.finish()


def _held_back(batches: Iterator[HubBatch]) -> Iterator[HubBatch]:
    """The same, but the first megabytes of them only once they are all made: see ``_HELD_BYTES_MAX``."""
    held: list[HubBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += len(batch.sections)
        if held_bytes >= _HELD_BYTES_MAX:
            break
    yield from held
    yield from batches


_Key = tuple[int, str, str | None, str | None, bool]
_producers: dict[_Key, RepeatableProducer] = {}


def _producer(options: HubSinkOptions) -> RepeatableProducer:
    """This process's producer for the options, kept over tasks."""
    key = _key(options)
    producer = _producers.get(key)
    if producer is None:
        if len(_producers) >= _PRODUCERS_MAX:
            _producers.pop(next(iter(_producers))).close()
        producer = _producers[key] = RepeatableProducer(
            options.connection_string,
            ca_file=key[2],
            credential=make_credential(options.credential),
            is_idempotent=options.is_idempotent,
        )
    return producer


def _forget_producer(options: HubSinkOptions) -> None:
    producer = _producers.pop(_key(options), None)
    if producer is not None:
        producer.close()


def _key(options: HubSinkOptions) -> _Key:
    """The process id is in it because workers are forked."""
    ca_file = None if options.ca_certificates is None else certificates_file(options.ca_certificates)
    return (
        os.getpid(),
        options.connection_string.format(),
        ca_file,
        options.credential,
        options.is_idempotent,
    )


def _check_appends(overwrite: bool, how: str) -> None:
    if overwrite:
        raise InvalidArgumentError("An event hub is appended to, never overwritten.", next_step=f"Use {how}.")


def _report(options: HubSinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    if options.is_idempotent and any(
        isinstance(each, HubCommitMessage) and not each.is_repeat_safe for each in messages
    ):
        _logger.warning(
            "The service of %s does not recognise repeated batches: events are stored at least once, and "
            "those of a task or micro-batch that is run again a second time.",
            options.connection_string.entity_path,
        )

"""The writers of the format ``eventhubs``: send each row as an event, stored once if the service supports it.

The service recognises a repeat by its sender: the producer is (query, task), its epoch is the micro-batch,
and its events are numbered in the order of the rows (``client.repeatable``).

    the micro-batch is repeated          continues after what the log has, task by task
    two attempts of a task at once       complete each other's work
    an attempt of an earlier micro-batch is shut out by the epoch
    the rows differ                      refused (RepeatDiffersError) if the log can detect it
    a batch query                        as one micro-batch: retried tasks repeat nothing; the same query run
                                         again is another, unless ``eventhubs.writeId`` says otherwise

The driver does nothing: what tasks have sent is in the log, and ``commit`` and ``abort`` do not change that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.client import HubLayout, ProducerIdentity, RepeatableProducer, RepeatableWork
from tidegate.model.errors import ProducerEpochStolenError, RepeatDiffersError
from tidegate.spark.hub_sink.batches import BatchCutter, HubBatch, sendable_rows
from tidegate.spark.hub_sink.options import HubSinkOptions, check_columns
from tidegate.spark.runtime.options import check_appends
from tidegate.spark.runtime.versions import ArrowWriter
from tidegate.spark.runtime.workers import TaskIdentity, freeze_loaded_modules
from tidegate.spark.source.hub import make_credential, ssl_context_of
from tidegate.tracing import DIAGNOSTIC_ID, TRACE_PARENT, TRACE_STATE, TraceContext, find_tracing

_logger = logging.getLogger(__name__)

_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""A task of up to this size sends nothing until all of its rows are checked (our choice)."""
_EPOCHS: Final = 1 << 15
_compute: Any = pc
_PRODUCERS_MAX: Final = 8


@dataclass
class HubCommitMessage(WriterCommitMessage):
    """What one task did."""

    event_count: int
    found_count: int
    """The task's events that were already in the log when this attempt began."""
    is_repeat_safe: bool


def hub_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> HubWriter:
    """The writer of a query. Raises InvalidArgumentError (option, column, mode)."""
    check_appends(overwrite, "An event hub", is_stream=is_stream)
    check_columns(schema)
    parsed = HubSinkOptions.parse(options, is_stream=is_stream)
    if is_stream:
        return HubWriter(parsed, None)
    return HubWriter(parsed, str(uuid.uuid4()) if parsed.write_id is None else f"write\0{parsed.write_id}")


class HubWriter(ArrowWriter):
    """Sends rows in tasks. A batch query is a single micro-batch."""

    def __init__(self, options: HubSinkOptions, write: str | None) -> None:
        """write: names a batch query's write, for its tasks and their retries; None: a stream."""
        self._options = options
        self._write = write

    # The Arrow writer's parameter differs from its base class's in pyspark as well.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> HubCommitMessage:  # type: ignore[override]
        """Send the rows of one task. Raises as ``write_task``."""
        return write_task(self._options, TaskIdentity.of_this_task(self._write), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Log once if the service does not recognise repeats."""
        if batchId == 0 and self._options.is_idempotent and not all(map(_is_repeat_safe, messages)):
            _logger.warning(
                "The service of %s does not recognise repeated batches: events are stored at least once, and "
                "again when a task or micro-batch is repeated.",
                self._options.connection_string.entity_path,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what is in the log stays, and a repeated micro-batch continues after it."""


def _is_repeat_safe(message: WriterCommitMessage | None) -> bool:
    return not isinstance(message, HubCommitMessage) or message.is_repeat_safe


def producer_of(identity: TaskIdentity) -> ProducerIdentity:
    """One producer per query and task, with micro-batches as epochs.

    The service remembers a limited number of producers per partition; with one per micro-batch, a query would
    soon displace all others.
    """
    text = f"tidegate-spark\0{identity.write}\0{identity.task}\0{identity.batch_id // _EPOCHS}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return ProducerIdentity(int.from_bytes(digest, "big") >> 1, identity.batch_id % _EPOCHS)


def write_task(
    options: HubSinkOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> HubCommitMessage:
    """Send a task's rows, and return once the service has stored them.

    Raises InvalidArgumentError, NotFoundError, EventTooLargeError for a row (before anything is sent, if the
    task holds less than 16 MB); RepeatDiffersError, ProducerEpochStolenError; the client's errors. After a
    failure the next task connects again.
    """
    freeze_loaded_modules()
    batches = map(sendable_rows, batches)
    tracing = find_tracing()
    try:
        if tracing is None:
            return _write_task(options, identity, batches)
        with tracing.sending(options.connection_string.entity_path or "") as link:
            return _write_task(options, identity, _linked(batches, link))
    except BaseException:
        # The cached layout of the hub may be outdated.
        _forget_producer(options)
        raise


def _write_task(
    options: HubSinkOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> HubCommitMessage:
    producer = _producer(options, (identity.write, identity.batch_id))
    layout = producer.layout
    sender = producer_of(identity)
    cutter = BatchCutter(
        layout.partition_ids, layout.batch_bytes_max, first_turn=sender.producer_id + sender.epoch
    )
    try:
        with producer.begin(sender) as work:
            event_count = _submit(work, layout, _cut(cutter, batches))
            found_count = work.flush()
    except RepeatDiffersError as error:
        raise RepeatDiffersError(
            f"Micro-batch {identity.batch_id} was first sent with other rows in task {identity.task}: "
            f"{error.message}",
            next_step="Run it with the same number of tasks (cores, tasksMax, shuffle partitions) and the "
            "same order of rows as before; or get past it with the option eventhubs.idempotent=false, which "
            "stores its events again.",
        ) from error
    except ProducerEpochStolenError as error:
        raise ProducerEpochStolenError(
            f"The event hub {producer.event_hub!r} has events of a later micro-batch of this query than "
            f"{identity.batch_id}: {error.message}",
            next_step="If two drivers run with one checkpoint directory, stop one. If the directory was "
            "reset to an earlier state, use a new one, which stores its events again.",
        ) from error
    if found_count:
        _logger.info("%s: %d of %d events were already stored.", identity, found_count, event_count)
    return HubCommitMessage(event_count, found_count, layout.is_repeat_safe)


def _linked(
    batches: Iterator[pa.RecordBatch], link: Callable[[Iterable[TraceContext]], None]
) -> Iterator[pa.RecordBatch]:
    """Link to the contexts in the rows. The rows stay as they are, or a repeat would differ."""
    for rows in batches:
        if "properties" in rows.schema.names:
            names = (TRACE_PARENT, DIAGNOSTIC_ID, TRACE_STATE)
            columns = (_compute.map_lookup(rows.column("properties"), name, "first") for name in names)
            found = zip(*(column.to_pylist() for column in columns), strict=True)
            link({(parent or older, state or "") for parent, older, state in found if parent or older})
        yield rows


def _cut(cutter: BatchCutter, batches: Iterator[pa.RecordBatch]) -> Iterator[HubBatch]:
    for rows in batches:
        if rows.num_rows:
            yield from cutter.add(rows)
    yield from cutter.finish()


def _submit(work: RepeatableWork, layout: HubLayout, batches: Iterator[HubBatch]) -> int:
    """Submit all batches; returns how many events they hold.

    The first megabytes are held back until all of them are made: see ``_HELD_BYTES_MAX``. If that is the
    whole task, partitions that an earlier attempt wrote to come first: if it was cut for fewer partitions,
    because some have been added since, it is refused before the others get a part of it again.
    """
    held: list[HubBatch] = []
    held_bytes = 0
    while held_bytes < _HELD_BYTES_MAX and (batch := next(batches, None)) is not None:
        held.append(batch)
        held_bytes += len(batch.sections)
    ids = layout.partition_ids
    repeated: frozenset[str] = frozenset()
    if held_bytes < _HELD_BYTES_MAX and layout.is_repeat_safe:
        repeated = work.find_stored({ids[each.partition_index] for each in held})
        held.sort(key=lambda each: ids[each.partition_index] not in repeated)
    event_count = 0
    for batch in chain(held, batches):
        partition_id = ids[batch.partition_index]
        if repeated and partition_id not in repeated:
            work.flush()
            repeated = frozenset()
        work.submit(partition_id, batch.sections, batch.event_count)
        event_count += batch.event_count
    return event_count


@dataclass(slots=True)
class _Connected:
    """A producer that is kept between tasks."""

    producer: RepeatableProducer
    micro_batch: tuple[str, int]
    """The last one that it worked for: its attempts need the same partitions, even if some are added."""


_connected: dict[tuple[int, HubSinkOptions], _Connected] = {}


def _producer(options: HubSinkOptions, micro_batch: tuple[str, int]) -> RepeatableProducer:
    """This process's producer for the options, with the hub's partitions at the micro-batch's beginning."""
    key = _key(options)
    found = _connected.get(key)
    if found is None:
        if len(_connected) >= _PRODUCERS_MAX:
            _connected.pop(next(iter(_connected))).producer.close()
        producer = RepeatableProducer(
            options.connection_string,
            ssl_context=ssl_context_of(options.ca_certificates),
            credential=make_credential(options.credential),
            is_idempotent=options.is_idempotent,
        )
        found = _connected[key] = _Connected(producer, micro_batch)
    elif found.micro_batch != micro_batch:
        found.producer.read_partitions()
        found.micro_batch = micro_batch
    return found.producer


def _forget_producer(options: HubSinkOptions) -> None:
    found = _connected.pop(_key(options), None)
    if found is not None:
        found.producer.close()


def _key(options: HubSinkOptions) -> tuple[int, HubSinkOptions]:
    """The same for all writes over one connection; with the process id because workers are forked."""
    return os.getpid(), replace(options, write_id=None)

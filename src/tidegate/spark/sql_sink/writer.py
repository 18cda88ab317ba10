"""The writing task, which turns every event into rows, a dead letter or nothing, exactly once.

A task has all of a micro-batch's events of some hub partitions. If these are many, each partition has its own
transactions; if they are few, the partitions share one. Each continues at the SQL checkpoint, so a task that
is killed, retried or run twice repeats nothing and skips nothing.

    task's thread      read, run the handler │ read, run the handler │ …
    commits' thread                          │ first transaction     │ second …

PostgreSQL writes one transaction while the next is prepared, because most of a transaction is waiting for the
server. SQLite transactions do not overlap: they run in this process and would compete with the handler.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from tidegate.model.errors import CheckpointGapError, FencedError, InvalidArgumentError
from tidegate.spark.runtime.patience import patiently
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.processing import ENDS_KEY
from tidegate.spark.sql_sink.accounting import (
    Gap,
    PendingRows,
    find_gaps,
    sequence_numbers_of,
    split_by_partition,
)
from tidegate.spark.sql_sink.careful import CarefulCommits, budget_of
from tidegate.spark.sql_sink.commits import rare_collections, to_batch
from tidegate.spark.sql_sink.plan import SinkPlan, policy_of
from tidegate.sql import BatchResult, Database
from tidegate.sql.commit.batch import TooManyDeadLettersError, commit_batches
from tidegate.sql.commit.partition_batch import PartitionBatch
from tidegate.sql.handlers.outages import OutageError

_Attempt = Callable[[Mapping[str, pa.Table], bool], dict[str, int]]
"""Commits rows by hub partition, perhaps behind a gap; returns how many of their events were done before."""

_logger = logging.getLogger(__name__)

_WAIT_S_MIN = 1.0
_WAIT_SHARE_MIN = 0.25
"""Waits for SQLite are reported from this many seconds and this share of a micro-batch (our choice)."""


@dataclass(frozen=True, slots=True)
class WriterWait:
    """How long tasks waited to be SQLite's one writer, and how long they took in total, in seconds."""

    waited_s: float = 0.0
    of_s: float = 0.0

    def plus(self, other: WriterWait) -> WriterWait:
        """The sum of both."""
        return WriterWait(self.waited_s + other.waited_s, self.of_s + other.of_s)

    def warning(self) -> str | None:
        """A warning for the user if the database limits the pipeline; None: it does not."""
        if self.waited_s < _WAIT_S_MIN or self.waited_s < _WAIT_SHARE_MIN * self.of_s:
            return None
        return (
            f"Tasks waited {self.waited_s:.1f} s of {self.of_s:.1f} s to be SQLite's one writer: the "
            "database is the limit. PostgreSQL runs the transactions of several tasks at once."
        )


@dataclass(frozen=True, slots=True)
class _Committing:
    """A transaction that runs in the commit thread."""

    rows: Mapping[str, pa.Table]
    """By hub partition."""
    outcome: Future[list[BatchResult]]
    """In the order of the partitions."""


class TaskWriter:
    """Commits one task's rows; used once, in one thread."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._database = patiently(lambda: Database.shared(plan.database_url), "Opening the database")
        self._careful = CarefulCommits(plan, self._database)
        self.wait = WriterWait()
        """What ``write`` waited for SQLite, once it is done."""
        self._pending: dict[str, PendingRows] = {}
        self._skipped: Counter[str] = Counter()
        self._passed: dict[str, int] = {}
        """Hub partition → the first event that this task has not yet given to a transaction."""
        self._ends: dict[str, tuple[int, str]] = {}
        """Hub partition → where the task's range ends, and the history of the log there, if that is known."""
        self._committing: _Committing | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Mapping[str, int]:
        """Commit everything that ``batches`` holds.

        Returns for each hub partition how many of its events an earlier attempt had committed already.
        Raises FencedError if another driver has taken over, CheckpointGapError if events are missing, and
        what the database raises. What was committed before stays committed, and no transaction is left
        running.
        """
        started, waited_before = time.monotonic(), self._database.writer_wait_s
        with (
            closing(self._careful),
            rare_collections(),
            ThreadPoolExecutor(1, "tidegate commits") as executor,
        ):
            try:
                self._write(batches, executor)
            except Exception as error:
                self._raise_failed_commit(error)
                raise
        self.wait = WriterWait(self._database.writer_wait_s - waited_before, time.monotonic() - started)
        return self._skipped

    def _write(self, batches: Iterator[pa.RecordBatch], executor: ThreadPoolExecutor) -> None:
        for batch in batches:
            if not self._ends and (ends := (batch.schema.metadata or {}).get(ENDS_KEY)) is not None:
                self._ends = msgspec.json.decode(ends, type=dict[str, tuple[int, str]])
            if self._committing is not None and self._committing.outcome.done():
                self._settle()  # if it failed, handle nothing more
            for partition_id, part in split_by_partition(batch):
                pending = self._pending.get(partition_id)
                if pending is None:
                    pending = self._pending[partition_id] = PendingRows(
                        self._plan.transaction_rows_max,
                        self._plan.transaction_bytes_max,
                        are_gaps_filtered=self._plan.may_filter,
                    )
                pending.add(part)
                ready = pending.take_ready()
                if ready is not None:
                    self._begin({partition_id: ready}, executor)
        for together in self._rests():
            self._begin(together, executor)
        self._settle()

    def _raise_failed_commit(self, error: Exception) -> None:
        """Raise the running transaction's failure if it is more precise: another driver took over."""
        if self._committing is None:
            return
        failure = self._committing.outcome.exception()
        # A gap may be acceptable, and refused rows may be too many; the next attempt decides.
        if failure is not None and not isinstance(failure, (CheckpointGapError, TooManyDeadLettersError)):
            raise failure from error

    def _rests(self) -> Iterator[dict[str, pa.Table]]:
        """The rest of the partitions, as many together as fit into a transaction."""
        together: dict[str, pa.Table] = {}
        rows_left, bytes_left = self._plan.transaction_rows_max, self._plan.transaction_bytes_max
        for partition_id, pending in self._pending.items():
            rows = pending.take_rest()
            if rows is None:
                continue
            if together and (rows.num_rows > rows_left or rows.nbytes > bytes_left):
                yield together
                together = {}
                rows_left, bytes_left = self._plan.transaction_rows_max, self._plan.transaction_bytes_max
            together[partition_id] = rows
            rows_left, bytes_left = rows_left - rows.num_rows, bytes_left - rows.nbytes
        if together:
            yield together

    def _begin(self, rows: Mapping[str, pa.Table], executor: ThreadPoolExecutor) -> None:
        """Begin to commit the next rows of some partitions, once those before them are committed."""
        for partition_id, table in rows.items():
            self._check_whole(partition_id, table)
            self._passed[partition_id] = int(sequence_numbers_of(table)[-1]) + 1
        prepared = self._prepared(rows, is_gap_allowed=self._plan.may_filter)
        self._settle()
        if prepared is None:
            for partition_id, table in rows.items():
                self._skipped.update(self._behind_gap({partition_id: table}, self._commit_carefully))
            return
        self._committing = _Committing(rows, executor.submit(self._run, prepared))
        if self._database.is_sqlite:
            self._settle()

    def _settle(self) -> None:
        """Wait for the running transaction; retry by partition if events before it were lost, or the database
        refuses more than may become dead letters."""
        if self._committing is None:
            return
        rows, outcome = self._committing.rows, self._committing.outcome
        self._committing = None
        try:
            self._skipped.update(self._done(rows, outcome.result()))
        except (CheckpointGapError, TooManyDeadLettersError):
            for partition_id, table in rows.items():
                self._skipped.update(self._behind_gap({partition_id: table}, self._attempt))

    def _check_whole(self, partition_id: str, rows: pa.Table) -> None:
        """Raise if rows came after those of later events, or events between them are missing."""
        numbers = sequence_numbers_of(rows)
        first = int(numbers[0])
        if first < self._passed.get(partition_id, 0):
            raise split_error(partition_id, "after those of later events")
        for gap in () if self._plan.may_filter else find_gaps(numbers):
            check_lost(self._plan, partition_id, gap)

    def _behind_gap(self, rows: Mapping[str, pa.Table], attempt: _Attempt) -> dict[str, int]:
        """One partition alone; the events before its rows may be missing if they are lost for good."""
        try:
            return attempt(rows, False)
        except CheckpointGapError:
            ((partition_id, table),) = rows.items()
            first = int(sequence_numbers_of(table)[0])
            check_lost(self._plan, partition_id, Gap(self._plan.checkpoints()[partition_id], first))
            return attempt(rows, True)

    def _attempt(self, rows: Mapping[str, pa.Table], is_gap_allowed: bool) -> dict[str, int]:
        prepared = self._prepared(rows, is_gap_allowed=is_gap_allowed)
        with suppress(TooManyDeadLettersError):
            if prepared is not None:
                return self._done(rows, self._run(prepared))
        return self._commit_carefully(rows, is_gap_allowed)

    def _commit_carefully(self, rows: Mapping[str, pa.Table], is_gap_allowed: bool) -> dict[str, int]:
        with self._naming_drivers():
            return {
                key: self._careful.commit(
                    key, table, self._history_id(key, table), is_gap_allowed=is_gap_allowed
                )
                for key, table in rows.items()
            }

    def _prepared(
        self, rows: Mapping[str, pa.Table], *, is_gap_allowed: bool = False
    ) -> list[PartitionBatch] | None:
        """What to commit; None: the handler's failure policy has to decide about single events."""
        plan = self._plan
        if not (plan.is_transformed or policy_of(plan.pipeline).is_plain):
            return None
        try:
            batches = [
                to_batch(plan, partition_id, table, is_gap_allowed, self._history_id(partition_id, table))
                for partition_id, table in rows.items()
            ]
        except OutageError:
            return None
        if plan.is_transformed:
            return batches
        now = self._database.clock.monotonic()
        within: list[PartitionBatch] = []
        for batch in batches:
            left = budget_of(plan, batch.scope.partition_id).left(now)
            if left is not None and len(batch.dead_letters) > left:
                return None
            within.append(replace(batch, dead_letters_max=left))
        return within

    def _done(self, rows: Iterable[str], results: Sequence[BatchResult]) -> dict[str, int]:
        """How many events of each partition were done before."""
        done = dict(zip(rows, results, strict=True))
        if not self._plan.is_transformed:
            now = self._database.clock.monotonic()
            for partition_id, result in done.items():
                budget_of(self._plan, partition_id).spend(result.dead_letters, now)
        return {partition_id: result.skipped for partition_id, result in done.items()}

    def _history_id(self, partition_id: str, rows: pa.Table) -> str | None:
        """The history of the last event; None: unknown."""
        until, history_id = self._ends.get(partition_id, (None, None))
        return history_id if int(sequence_numbers_of(rows)[-1]) + 1 == until else None

    def _run(self, batches: Sequence[PartitionBatch]) -> list[BatchResult]:
        partitions = ", ".join(batch.scope.partition_id for batch in batches)
        what = f"Committing {partitions} of {self._plan.pipeline.consumer}"
        with self._naming_drivers():
            return patiently(lambda: commit_batches(self._database, batches), what)

    @contextmanager
    def _naming_drivers(self) -> Iterator[None]:
        try:
            yield
        except FencedError as exc:
            pipeline, owner = self._plan.pipeline, self._plan.claim.owner
            raise FencedError(
                f"Another driver took over the pipeline {pipeline.name} ({pipeline.consumer}) from this one "
                f"({owner}): {exc.message}",
                next_step="Nothing of the batch was written here. Run one driver per consumer group.",
            ) from exc


def commit_events(plan: SinkPlan, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Commit a task's events in the worker that reads them; yields no rows. Raises as ``TaskWriter.write``.

    What a task cannot see, such as a database restored to an older state, is checked when the next
    micro-batch is planned.
    """
    writer = TaskWriter(plan)
    writer.write(events)
    if (warning := writer.wait.warning()) is not None:
        _logger.warning("%s: %s", plan.pipeline.name, warning)
    yield from ()


def check_lost(plan: SinkPlan, partition_id: str, gap: Gap) -> None:
    """Raise CheckpointGapError, unless the missing events are lost for good and may be skipped."""
    if not plan.source.fail_on_data_loss:
        begin = HubReader(plan.source).describe().bounds[partition_id].begin_sequence_number
        if gap.until_sequence_number <= begin:
            _logger.warning("Partition %s: %s skipped, because retention has deleted it.", partition_id, gap)
            return
    raise CheckpointGapError(
        f"Partition {partition_id} of {plan.pipeline.consumer}: {gap} did not come out of the query, so "
        "nothing after it was written.",
        next_step="A transformation that shuffles, or runs on a cluster, must return every event: instead of "
        "filtering one, set `_skip` to true "
        "(it writes no row) or `_error` to a reason (it becomes a dead letter). After a shuffle, repartition "
        "by `partition`."
        if plan.is_transformed
        else "The Spark checkpoint directory is ahead of the database (a database restored from a backup?): "
        "delete the directory and start again; the SQL checkpoint is authoritative.",
    )


def check_partitions_whole(tasks: Sequence[Mapping[str, int]]) -> None:
    """Raise InvalidArgumentError if tasks of a micro-batch shared a hub partition and one skipped events
    as done, because another task had committed other rows of them.

    tasks: what ``TaskWriter.write`` returned in each.
    """
    counts = Counter(partition_id for skipped in tasks for partition_id in skipped)
    for partition_id, skipped_count in (item for skipped in tasks for item in skipped.items()):
        if counts[partition_id] > 1 and skipped_count:
            raise split_error(partition_id, "in more than one task")


def split_error(partition_id: str, how: str) -> InvalidArgumentError:
    """The error for a transformation that separated rows of a partition, so that rows may be missing."""
    return InvalidArgumentError(
        f"Partition {partition_id}: the transformation returned rows of it {how}; their events were already "
        "done, so these rows were not written.",
        next_step='Let all rows of a partition come together, such as with `.repartition("partition")` and '
        '`.sortWithinPartitions("partition", "sequenceNumber")` at the end; then start over with an empty '
        "table, a new consumer group and a new checkpoint directory.",
    )

"""Keeps a running pipeline's status and reports it to its file, Prometheus and a watcher.

Everything slow (file, database, terminal) runs in a separate thread, fed by a bounded queue, so reporting a
micro-batch never waits, and no failure here reaches the query.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import TidegateError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.spark.progress.batches import BatchProgress
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import this_process

if TYPE_CHECKING:
    from tidegate.sql import ConsumerKey

HEARTBEAT_S = 5.0
"""The longest time between writes of the status, by which a reader sees that the process is alive."""
DEAD_LETTERS_EVERY_S = 5.0
"""How often dead letters are counted, by a query over an index that is noticeable on large tables."""
_WRITES_EVERY_S = 0.5
_REPORTS_QUEUED_MAX = 1000
_CLOSE_TIMEOUT_S = 10.0

_logger = logging.getLogger(__name__)

Watch = Callable[[PipelineStatus, bool], None]
"""Called after each change with the status, and whether it is a micro-batch that read something."""
CountDeadLetters = Callable[[], int]

_Change = Callable[[PipelineStatus], PipelineStatus]


def first_status(
    name: str,
    *,
    event_hub: str,
    consumer_group: str,
    connection_string: str,
    sink: str,
    target: str,
    checkpoint: str,
) -> PipelineStatus:
    """The status of a pipeline that this process is starting. Raises ConnectionStringError."""
    now = SystemClock().now_utc()
    return PipelineStatus(
        name=name,
        state=PipelineState.STARTING,
        process=this_process(),
        event_hub=event_hub,
        consumer_group=consumer_group,
        namespace=ConnectionString.parse(connection_string).host,
        sink=sink,
        target=target,
        checkpoint=checkpoint,
        started_at=now,
        updated_at=now,
    )


@contextmanager
def counting_dead_letters(database_url: str, consumer: ConsumerKey) -> Iterator[CountDeadLetters]:
    """Counts a consumer's open dead letters, on connections of its own. Raises DatabaseError."""
    from tidegate.sql import Database, DeadLetterFilter, DeadLetters

    chosen = DeadLetterFilter(event_hub=consumer.event_hub, consumer_group=consumer.consumer_group)
    with Database.open(database_url) as database:
        yield partial(DeadLetters(database).count, chosen)


class PipelineReporter:
    """One pipeline's status while its process runs. Enter it before the query starts, leave it after its end.

    Its methods may be called from any thread and return immediately.
    """

    def __init__(
        self,
        status: PipelineStatus,
        *,
        clock: Clock,
        write: Callable[[PipelineStatus], None],
        watch: Watch | None = None,
        count_dead_letters: CountDeadLetters | None = None,
    ) -> None:
        """write: replaces the status file."""
        self._status = status
        self._clock = clock
        self._write = write
        self._watch = watch
        self._count_dead_letters = count_dead_letters
        self._changes: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pipeline-reporter", daemon=True)
        self._written_at = self._counted_at = float("-inf")
        self._written_update_at = status.updated_at
        self._complaints: set[str] = set()
        self._rows: dict[int, int] = {}
        """Rows by micro-batch, from sinks that report them, until the micro-batch is reported."""

    @property
    def status(self) -> PipelineStatus:
        """As of the last report."""
        return self._status

    def __enter__(self) -> Self:
        self._write_file()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._changes.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def report_progress(self, text: str) -> None:
        """A micro-batch is complete. text: ``StreamingQueryProgress.json``."""
        if self._changes.qsize() < _REPORTS_QUEUED_MAX:
            batch = BatchProgress.parse(text)
            self._changes.put(lambda status: self._with_rows(batch).applied_to(status))

    def report_rows(self, batch_id: int, rows: int) -> None:
        """The sink has written this many rows of a micro-batch; call it before the progress."""
        if len(self._rows) < _REPORTS_QUEUED_MAX:
            self._rows[batch_id] = rows

    def _with_rows(self, batch: BatchProgress) -> BatchProgress:
        return replace(batch, rows=self._rows.pop(batch.batch_id, batch.rows))

    def report_idle(self) -> None:
        """There has been nothing to read for a while."""
        self._change(is_idle=True, input_events_per_s=0.0, processed_events_per_s=0.0)

    def report_metrics_address(self, address: str) -> None:
        """Metrics are served at this address."""
        self._change(metrics_address=address)

    def report_restart(self, error: str) -> None:
        """The query has ended with this error, and is started again."""
        self._change(state=PipelineState.STARTING, error=error)

    def _change(self, **fields: Any) -> None:
        self._changes.put(lambda status: replace(status, **fields))

    def report_state(self, state: PipelineState, *, error: str | None = None) -> None:
        """The state has changed; a final state never changes again."""

        def change(status: PipelineStatus) -> PipelineStatus:
            if status.state.is_over:
                return status
            if not state.is_over:
                return replace(status, state=state)
            return replace(
                status,
                state=state,
                error=error,
                ended_at=self._clock.now_utc(),
                is_idle=False,
                input_events_per_s=None,
                processed_events_per_s=None,
            )

        self._changes.put(change)

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                change = self._changes.get(timeout=_WRITES_EVERY_S)
            except queue.Empty:
                change = _unchanged
            try:
                is_open = change is not None
                if change is not None:
                    self._apply(change)
                self._count(is_last=not is_open)
                self._write_file(is_last=not is_open)
            except Exception as error:  # no failure here may end a pipeline
                self._complain(f"{type(error).__name__}: {error}")

    def _apply(self, change: _Change) -> None:
        before = self._status
        self._status = change(before)
        if self._status is before:
            return
        self._status = replace(self._status, updated_at=self._clock.now_utc())
        if self._watch is not None:
            self._watch(self._status, self._status.batches > before.batches)
        if self._status.state is not before.state:
            self._written_at = float("-inf")

    def _count(self, *, is_last: bool) -> None:
        now = self._clock.monotonic()
        is_due = is_last or now - self._counted_at >= DEAD_LETTERS_EVERY_S
        if self._count_dead_letters is None or not is_due:
            return
        self._counted_at = now
        try:
            self._status = replace(self._status, dead_letters_open=self._count_dead_letters())
        except TidegateError as error:
            self._complain(f"The dead letters could not be counted: {error}")

    def _write_file(self, *, is_last: bool = False) -> None:
        """Write the file after changes, at most every half second, and as a heartbeat."""
        now = self._clock.monotonic()
        age_s = now - self._written_at
        is_changed = age_s >= _WRITES_EVERY_S and self._status.updated_at > self._written_update_at
        if not (is_last or is_changed or age_s >= HEARTBEAT_S):
            return
        self._status = replace(self._status, updated_at=self._clock.now_utc())
        self._written_at, self._written_update_at = now, self._status.updated_at
        try:
            self._write(self._status)
        except OSError as error:
            self._complain(f"The pipeline's status could not be written: {error}")

    def _complain(self, text: str) -> None:
        """Log once what might recur every second."""
        if text not in self._complaints and len(self._complaints) < 100:
            self._complaints.add(text)
            _logger.warning("%s", text)


def _unchanged(status: PipelineStatus) -> PipelineStatus:
    return status

"""One run of a pipeline in this process: Spark starts, the query runs, and it stops in order.

    signal          the first SIGINT or SIGTERM            the second
    what happens    the running micro-batch may finish     the process ends at once
                    within STOP_GRACE_S, else it is
                    abandoned; exit code 0                 128 + the signal's number

Abandoning is harmless: what the micro-batch has committed stays, and the next start repeats the rest.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tidegate.cli.shell.metrics_server import metrics_server
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.client.retry import RetryPolicy
from tidegate.files import open_private
from tidegate.model.errors import TidegateError
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.processor.declared import FILE_MODULE_PREFIX
from tidegate.spark.progress.metrics import PipelineCollector
from tidegate.spark.progress.report import PipelineReporter, Watch, counting_dead_letters, first_status
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline
    from tidegate.spark.progress.listener import ProgressListener

_RESTARTS = RetryPolicy(delay_s=1.0, delay_s_max=60.0)
"""Waits before restarts of a query (our choice)."""
STOP_GRACE_S = 5.0
"""How long a micro-batch may continue after the first signal."""
STOP_TIMEOUT_S = 30.0
"""How long Spark may take to stop a query before the process exits without it."""
REPORTS_SILENCE_S = 20.0
"""Longest wait for the next report of a query that has ended."""
_POLL_S = 0.05
_POLLS_PER_QUESTION = 40


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A pipeline to run, and how."""

    pipeline: StreamPipeline
    connection: ServiceConnection
    database_url: str | None = field(repr=False)
    checkpoint: str
    master: str | None
    is_available_now: bool
    restarts_max: int
    """Most restarts of the query in a row, without a finished micro-batch between them."""
    metrics_at: tuple[str, int] | None
    """Host and port for Prometheus; None: no metrics."""
    log_level: str
    adopt: str | None
    """The token of a ledger's refusal that the user overrides."""
    watch: Watch
    capture: Mapping[str, str] | None = field(default=None, repr=False)
    """Options of the format ``eventhubs-capture``, which reads what retention has removed from the log."""

    def run(self, files: PipelineFiles) -> PipelineStatus:
        """Run it until it ends or a signal stops it; returns its last status.

        Raises DirectoryInUseError if it is already running, and the TidegateError that it fails with.
        """
        with ExitStack() as stack:
            stack.enter_context(files.owned(self.pipeline.name))
            stop = stack.enter_context(StopSignals())
            pipeline, sink, count = self.pipeline, self.pipeline.sink, None
            if self.database_url is not None:
                count = stack.enter_context(counting_dead_letters(self.database_url, pipeline.consumer))
            first = first_status(
                pipeline.name,
                event_hub=pipeline.source.event_hub,
                consumer_group=pipeline.source.consumer_group,
                connection_string=self.connection.connection_string,
                sink=sink.kind,
                target=sink.target,
                checkpoint=self.checkpoint,
            )
            reporter = PipelineReporter(
                first, clock=SystemClock(), write=files.write, watch=self.watch, count_dead_letters=count
            )
            if self.metrics_at is not None:
                host, port = self.metrics_at
                address = stack.enter_context(
                    metrics_server(host, port, PipelineCollector(lambda: reporter.status))
                )
                reporter.report_metrics_address(address)
            files.delete_log(self.pipeline.name)
            with reporter:
                self._run_reported(reporter, stop, files.log_file(self.pipeline.name))
        return reporter.status

    def _run_reported(self, reporter: PipelineReporter, stop: StopSignals, log_file: Path) -> None:
        """Run it, and report the state that it ends in."""
        try:
            self._run_spark(reporter, stop, log_file)
        except (Exception, KeyboardInterrupt) as exception:  # anything that ends a query or Spark
            if stop.is_requested or isinstance(exception, KeyboardInterrupt):
                # A signal that also reaches Java can end it at any point.
                reporter.report_state(PipelineState.STOPPED)
                return
            error = self._error_of(exception, log_file)
            reporter.report_state(PipelineState.FAILED, error=str(error))
            raise error from exception
        state = PipelineState.STOPPED if stop.is_requested else PipelineState.ENDED
        reporter.report_state(state)

    def _error_of(self, exception: BaseException, log_file: Path) -> TidegateError:
        if isinstance(exception, TidegateError):
            return exception
        from tidegate.spark.pipelines.failures import PipelineFailedError, StepFailedError, error_of

        error = error_of(exception, steps=self.pipeline.steps)
        if isinstance(error, PipelineFailedError) and not isinstance(error, StepFailedError):
            error.next_step = f"See Spark's log for details: {log_file}."
        return error

    def _run_spark(self, reporter: PipelineReporter, stop: StopSignals, log_file: Path) -> None:
        from tidegate.spark.pipelines.identity import claim_checkpoint, identity_of

        # Before Spark starts, which takes seconds: an unreachable service, another pipeline's directory.
        identity = identity_of(
            self.pipeline,
            connection_string=self.connection.connection_string,
            ca_file=self.connection.ca_file,
        )
        claim_checkpoint(self.checkpoint, identity)
        from tidegate.spark.runtime.session import spark_session

        _let_files_travel()
        # Java and its Python workers inherit standard error permanently.
        with _standard_error_to(log_file):
            spark = spark_session(
                f"tidegate pipeline {self.pipeline.name}",
                master=self.master,
                configuration=self.pipeline.spark_settings,
                log_level=self.log_level,
            )
        # Spark's context has installed its own handler for SIGINT, which ends the program.
        stop.install()
        with _errors_until_stop(log_file, stop):
            try:
                self._run_queries(spark, reporter, stop, log_file)
            finally:
                # If Java has exited there is nothing to stop, and the cause is already reported.
                with contextlib.suppress(Exception):
                    spark.stop()

    def _run_queries(
        self, spark: SparkSession, reporter: PipelineReporter, stop: StopSignals, log_file: Path
    ) -> None:
        """Run the query, again after an error that may pass. Raises the error that ends it for good."""
        from tidegate.spark.pipelines.failures import may_pass

        restarts = 0
        while not stop.is_requested:
            batches = reporter.status.batches
            try:
                self._run_query(spark, reporter, stop)
                return
            except Exception as exception:
                if reporter.status.batches > batches:
                    restarts = 0
                if not self.restarts_max or not may_pass(exception):
                    raise
                error = self._error_of(exception, log_file)
                if restarts == self.restarts_max:
                    error.message += f" Restarts without success: {restarts}."
                    raise error from exception
                restarts += 1
                delay_s = _RESTARTS.delay_before(restarts, jitter_fraction=random.Random().random())
                reporter.report_restart(
                    f"{error} Restart {restarts} of {self.restarts_max} in {delay_s:.1f} s."
                )
            stop.wait(delay_s)

    def _run_query(self, spark: SparkSession, reporter: PipelineReporter, stop: StopSignals) -> None:
        from tidegate.spark.pipelines.start import start_stream_pipeline
        from tidegate.spark.progress.listener import listening
        from tidegate.spark.runtime.trigger import Trigger

        with listening(spark, self.pipeline.name, reporter) as listener:
            query = start_stream_pipeline(
                spark,
                self.pipeline,
                connection_string=self.connection.connection_string,
                database_url=self.database_url,
                checkpoint_location=self.checkpoint,
                trigger=Trigger(is_available_now=True) if self.is_available_now else None,
                ca_file=self.connection.ca_file,
                adopt=self.adopt,
                on_written=lambda result: reporter.report_rows(result.batch_id, result.rows),
                capture=self.capture,
            )
            reporter.report_state(PipelineState.RUNNING)
            for poll in itertools.count(1):
                if stop.wait(_POLL_S):
                    break
                # Now and then ask Spark itself: a Java that has died reports nothing to listeners.
                if listener.is_over.is_set() or (poll % _POLLS_PER_QUESTION == 0 and not query.isActive):
                    # Spark informs its listeners late: the last report may be outstanding.
                    listener.wait_over(silence_s=REPORTS_SILENCE_S)
                    query.awaitTermination()  # raises its error
                    return
            reporter.report_state(PipelineState.STOPPING)
            _end_micro_batch(query, listener, reporter)
            _stop_query(query, listener)


def _end_micro_batch(query: StreamingQuery, listener: ProgressListener, reporter: PipelineReporter) -> None:
    """Wait until no micro-batch runs, one has finished, or the time is up."""
    batches = reporter.status.batches
    clock = SystemClock()
    deadline = clock.monotonic() + STOP_GRACE_S
    while clock.monotonic() < deadline and reporter.status.batches == batches:
        if not query.status["isTriggerActive"] or listener.is_over.wait(_POLL_S):
            return


def _stop_query(query: StreamingQuery, listener: ProgressListener) -> None:
    """Stop the query and wait for its last reports; if Spark does not stop it in time, give up."""
    has_stopped = threading.Event()

    def stop() -> None:
        # If the signal also reached Java, there may be nothing left to stop.
        with contextlib.suppress(Exception):
            query.stop()
            has_stopped.set()

    thread = threading.Thread(target=stop, name="stop-query", daemon=True)
    thread.start()
    thread.join(STOP_TIMEOUT_S)
    if thread.is_alive():
        assert sys.__stderr__ is not None
        sys.__stderr__.write(f"Spark did not stop the query within {STOP_TIMEOUT_S:.0f} s; exiting anyway.\n")
    elif has_stopped.is_set():
        listener.wait_over(silence_s=REPORTS_SILENCE_S)


def _let_files_travel() -> None:
    """Pickle the functions of pipeline files by value: workers cannot import them by their module names."""
    from pyspark import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(FILE_MODULE_PREFIX):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Redirect file descriptor 2 to a file for the block; processes started in it keep the file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open(path, "wb", opener=open_private) as file:  # its errors may quote events
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def _errors_until_stop(log_file: Path, stop: StopSignals) -> Iterator[None]:
    """Send ``sys.stderr`` to Spark's log once a stop is requested, then for the rest of the process, whose
    other threads notice late that Java has exited."""
    seen = sys.stderr
    with log_file.open("a", encoding="utf-8") as log:
        sys.stderr = _StandardErrorUntilStop(seen, log, stop)
        try:
            yield
        finally:
            if not stop.is_requested:
                sys.stderr = seen


class _StandardErrorUntilStop(io.TextIOBase):
    """Standard error, until a stop is requested; then Spark's log.

    A signal that also reaches Java makes everything that waits for Java in this process (py4j's logging, the
    server of PySpark's accumulators) print tracebacks, each in its own way.
    """

    def __init__(self, seen: TextIO, log: TextIO, stop: StopSignals) -> None:
        self._seen, self._log, self._stop = seen, log, stop

    def write(self, text: str) -> int:
        """Write to the current destination; to none once the log is closed: logging may keep this object."""
        if not self._stop.is_requested:
            return self._seen.write(text)
        return len(text) if self._log.closed else self._log.write(text)

    def flush(self) -> None:
        """Flush the current destination."""
        if not self._stop.is_requested:
            self._seen.flush()
        elif not self._log.closed:
            self._log.flush()

    def fileno(self) -> int:
        """The descriptor of standard error."""
        return self._seen.fileno()


class StopSignals:
    """SIGINT and SIGTERM as a request to stop; the second signal ends the process."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._earlier: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        self._earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def install(self) -> None:
        """Install the handlers; again, if other code has replaced one."""
        for number in self._earlier:
            signal.signal(number, self._on_signal)

    @property
    def is_requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._requested.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal; returns whether one arrived."""
        return self._requested.wait(timeout_s)

    def _on_signal(self, number: int, _: object) -> None:
        if self.is_requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._requested.set()

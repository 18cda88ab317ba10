"""Shows a running pipeline: one line that is updated, a line per micro-batch, or records."""

from __future__ import annotations

import os
import sys
import threading
from typing import Final, TextIO

from tidegate.cli.shell.render import Output, RecordStream, attributes, cell_text, columns_of, counted
from tidegate.model.pipeline_status import PipelineState, PipelineStatus

_ATTRIBUTES: Final = columns_of(
    "pipeline=name at=updated_at batch=batch_id events input_events_per_s processed_events_per_s batch_ms "
    "lag_events rows dead_letters_open"
)
_CLEAR_LINE = "\r\x1b[2K"


class PipelineScreen:
    """Shows a pipeline's progress. ``watch`` is called in a thread of the reporter."""

    def __init__(self, output: Output, *, errors: TextIO | None = None) -> None:
        """errors: the stream for people; None: the current standard error, even if it is redirected later."""
        self._is_closed_here = errors is None
        self._errors = errors or os.fdopen(os.dup(sys.stderr.fileno()), "w")
        self._records: RecordStream | None = None
        if not output.is_table:
            self._records = output.record_stream(tuple(_ATTRIBUTES))
            self._records.flush()
        # Records on a terminal would continue the line.
        self._is_redrawn = self._errors.isatty() and (output.is_table or not output.is_terminal)
        self._lock = threading.Lock()

    def watch(self, status: PipelineStatus, is_batch: bool) -> None:
        """Show a change."""
        with self._lock:
            if is_batch and self._records is not None:
                self._records.write(batch_record(status))
                self._records.flush()
            if self._is_redrawn:
                self._errors.write(_CLEAR_LINE + progress_line(status))
            elif (is_batch and self._records is None) or _is_restarting(status):
                self._errors.write(progress_line(status) + "\n")
            self._errors.flush()

    def close(self, status: PipelineStatus | None) -> None:
        """Complete the output, and report how the pipeline ended; None: it did not start."""
        with self._lock:
            if self._is_redrawn:
                self._errors.write(_CLEAR_LINE)
            if self._records is not None:
                self._records.close()
            if status is not None and status.state is not PipelineState.FAILED:
                self._errors.write(ending(status) + "\n")
            self._errors.flush()
            if self._is_closed_here:
                self._errors.close()


def batch_record(status: PipelineStatus) -> dict[str, object]:
    """The last micro-batch, for programs; rates with one decimal."""
    record = attributes(status, _ATTRIBUTES)
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in record.items()}


def progress_line(status: PipelineStatus) -> str:
    """The pipeline now, for people."""
    if _is_restarting(status):
        return f"{status.name}  {cell_text(status.error)}"  # which may quote an event
    if status.batch_id is None:
        words = {PipelineState.STARTING: "starting Spark …", PipelineState.RUNNING: "waiting for events …"}
        return f"{status.name}  {words.get(status.state, status.state.value)}"
    parts = [f"batch {status.batch_id}", counted(status.events, "event")]
    if status.is_idle:
        parts[1] = "idle"
    if status.input_events_per_s:
        parts.append(f"{status.input_events_per_s:,.0f}/s in")
    if status.processed_events_per_s:
        parts.append(f"{status.processed_events_per_s:,.0f}/s done")
    if status.batch_ms is not None:
        parts.append(f"{status.batch_ms:,} ms")
    if status.lag_events is not None:
        parts.append(f"lag {status.lag_events:,}")
    if status.rows is not None:
        parts.append(counted(status.rows, "row"))
    if status.dead_letters_open:
        parts.append(counted(status.dead_letters_open, "dead letter"))
    if status.state is PipelineState.STOPPING:
        parts.append("stopping …")
    return f"{status.name}  " + " · ".join(parts)


def ending(status: PipelineStatus) -> str:
    """How it ended, for people."""
    done = "Done" if status.state is PipelineState.ENDED else "Stopped"
    events, batches = counted(status.events_total, "event"), counted(status.batches, "micro-batch", "es")
    text = f"{done}: {events} in {batches}"
    if status.lag_events:
        text += f", {counted(status.lag_events, 'event')} behind"
    if status.dead_letters_open:
        text += f", {counted(status.dead_letters_open, 'dead letter')} open"
    return f"{text}. The next run continues from there."


def _is_restarting(status: PipelineStatus) -> bool:
    return status.state is PipelineState.STARTING and status.error is not None

"""A pipeline as others see it: a process that keeps a status, and stops when it is asked to.

    python -m tests.console.pipeline_process STATE_DIR NAME EVENT_HUB

It tells a micro-batch of 100 events every 50 ms. The first SIGTERM ends it in order once its standard input
is closed; a second one ends it at once, as with ``tidegate pipeline run``.
"""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles, this_process

STOPPED_AT_ONCE = 7


def status_of(name: str, event_hub: str) -> PipelineStatus:
    """A status that begins now, of this process."""
    now = SystemClock().now_utc()
    return PipelineStatus(
        name=name,
        state=PipelineState.RUNNING,
        process=this_process(),
        event_hub=event_hub,
        consumer_group="$Default",
        namespace="127.0.0.1",
        sink="sql",
        target="scores",
        checkpoint="/checkpoints/one",
        started_at=now,
        updated_at=now,
    )


def main() -> int:
    """Run until a signal; returns the exit code."""
    files, status = PipelineFiles(Path(sys.argv[1])), status_of(*sys.argv[2:])
    signals: list[int] = []
    is_asked = threading.Event()

    def on_signal(number: int, _: object) -> None:
        signals.append(number)
        is_asked.set()

    signal.signal(signal.SIGTERM, on_signal)
    while not is_asked.wait(0.05):
        status = replace(
            status,
            batch_id=status.batches,
            batches=status.batches + 1,
            events=100,
            events_total=status.events_total + 100,
            input_events_per_s=1_234.0,
            processed_events_per_s=2_345.0,
            batch_ms=43,
            lag_events=777,
            lag_by_partition={"0": 700, "1": 77},
            updated_at=SystemClock().now_utc(),
        )
        files.write(status)
    sys.stdin.read()
    if len(signals) > 1:
        return STOPPED_AT_ONCE
    files.write(replace(status, state=PipelineState.STOPPED, ended_at=SystemClock().now_utc()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

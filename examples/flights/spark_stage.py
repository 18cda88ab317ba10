"""The pipeline stage: a Spark driver that is killed once in mid-batch, and one that completes the work."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.flights.crash import MidBatch, find_mid_batch
from examples.flights.results import processed_events
from examples.support.screen import Screen
from examples.support.service import ExampleService
from tidegate import DatabaseUnavailableError

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """The result of the stage."""

    events: int
    """Events that this stage committed."""
    elapsed_s: float
    """Seconds during which a query ran, without the start of Spark."""
    crash: MidBatch | None


class SparkStage:
    """Runs the driver until everything in the hub is committed in SQL."""

    def __init__(self, service: ExampleService, events_per_trigger: int, screen: Screen) -> None:
        self._service = service
        self._database = service.database
        self._events_per_trigger = events_per_trigger
        self._screen = screen
        self._crash: MidBatch | None = None
        self._elapsed_s = 0.0

    def run(self, events_by_partition: Mapping[str, int]) -> PipelineRun:
        """Start the driver, kill it once, start it again, and wait for its end.

        There is no crash if too little is left: it needs batches before and after it. Raises ChildFailedError
        if the driver fails.
        """
        total = sum(events_by_partition.values())
        before = sum(processed_events(self._database).values())
        if before >= total:
            return PipelineRun(0, 0.0, None)
        # A new journal for each demo: SQL says where to continue, so Spark's journal is disposable.
        with tempfile.TemporaryDirectory(prefix="spark-", dir=self._service.files_dir) as checkpoint_dir:
            while crash := self._run_driver(Path(checkpoint_dir), total):
                self._crash = crash
                self._screen.note(
                    f"Killed the Spark driver with SIGKILL while {crash.describe()}. Starting it again."
                )
        after = sum(processed_events(self._database).values())
        return PipelineRun(after - before, self._elapsed_s, self._crash)

    def _run_driver(self, checkpoint_dir: Path, total: int) -> MidBatch | None:
        """Run a driver until it ends, or until the moment to kill it; returns that moment."""
        started_file = self._service.files_dir / "driver-started"
        started_file.unlink(missing_ok=True)
        options = ["--checkpoint-dir", str(checkpoint_dir), "--started-file", str(started_file)]
        options += ["--events-per-trigger", str(self._events_per_trigger)]
        started: float | None = None
        crash: MidBatch | None = None
        with self._service.start("Spark driver", "examples.flights.driver", *options) as driver:
            while crash is None and driver.exit_code is None:
                if started is None and started_file.exists():
                    started = time.monotonic()
                self._screen.progress(sum(processed_events(self._database).values()), total)
                if self._crash is None:
                    crash = driver.kill_at(lambda: self._moment_to_crash(checkpoint_dir, total))
                time.sleep(_POLL_S)
            if crash is None and driver.exit_code != 0:
                raise driver.failure()
        self._elapsed_s += 0.0 if started is None else time.monotonic() - started
        return crash

    def _moment_to_crash(self, checkpoint_dir: Path, total: int) -> MidBatch | None:
        """In mid-batch, but not in the last batch: the crash must leave work to do."""
        try:
            found = find_mid_batch(checkpoint_dir, processed_events(self._database))
        except DatabaseUnavailableError:
            return None  # stopped while it locked SQLite's file: wait for another moment
        return found if found is not None and sum(found.until.values()) < total else None

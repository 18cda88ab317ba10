"""The live part of the demo: generator and Spark driver side by side, one crash, and progress reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select

from examples.home_security.generator import GeneratorPlan
from examples.home_security.status import read_status
from examples.home_security.tables import NAME, home_alarm
from examples.support.journal import running_batch_id
from examples.support.processes import ChildSession
from examples.support.screen import Screen
from examples.support.service import ExampleService
from tidegate import OperationTimeoutError
from tidegate.sql import next_batch_id

_LOOK_EVERY_S = 0.5
_CRASH_LOOK_EVERY_S = 0.01
_STANDSTILL_MAX_S = 600.0
"""The run counts as hanging after this long without a micro-batch."""
_CRASH_AFTER_SHARE = 0.6
_GENERATOR_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Crash:
    """Where the driver was killed."""

    batch_id: int
    is_in_sql: bool
    """Whether the micro-batch was in SQL, and only missing from Spark's journal."""

    def describe(self) -> str:
        """The end of a sentence for people."""
        state = "already" if self.is_in_sql else "not yet"
        return f"micro-batch {self.batch_id} was running and {state} in SQL"


@dataclass(frozen=True, slots=True)
class StageRun:
    """The result of the live part."""

    published: int
    generated: dict[str, Any]
    """The generator's own figures."""
    driver: dict[str, Any]
    """The last driver's figures at its end."""
    crash: Crash | None
    elapsed_s: float
    """From the first event to the last commit."""


class LiveStage:
    """Runs generator and driver until everything is in SQL."""

    def __init__(
        self,
        service: ExampleService,
        plan: GeneratorPlan,
        duration_s: float,
        driver_options: Sequence[str],
        screen: Screen,
    ) -> None:
        """driver_options: for every start of the driver."""
        self._service = service
        self._plan = plan
        self._duration_s = duration_s
        self._driver_options = driver_options
        self._screen = screen
        files_dir = service.files_dir
        self._checkpoint_dir = files_dir / "spark-checkpoint"
        self._driver_status = files_dir / "driver.json"
        self._generator_status = files_dir / "generator.json"
        self._stop_file = files_dir / "stop"
        self._crash: Crash | None = None
        self._is_crash_wanted = False
        self._is_crash_due = False
        self._is_interrupted = False
        self._moved = time.monotonic()
        self._position = -1

    def run(self, *, is_crash_wanted: bool) -> StageRun:
        """Return once everything published is in SQL and the driver has ended.

        is_crash_wanted: kill the driver once in mid-batch. The first Ctrl-C ends the generator, and the rest
        is processed; a second one propagates. Raises ChildFailedError, OperationTimeoutError.
        """
        self._is_crash_wanted = is_crash_wanted
        self._driver = self._start_driver()
        try:
            self._wait(lambda: bool(self._status_of_driver()), "Spark did not start")
            started = time.monotonic()
            with self._start_generator() as generator:
                self._watch(generator, started)
            published = int(read_status(self._generator_status).get("events", 0))
            self._screen.step("Bringing the rest to SQL")
            self._wait(lambda: self._is_done(published), "The pipeline does not progress")
            elapsed_s = time.monotonic() - started
            self._stop_file.touch()
            self._wait(self._has_driver_ended, "Spark did not end")
            generated = read_status(self._generator_status)
            return StageRun(published, generated, self._status_of_driver(), self._crash, elapsed_s)
        finally:
            self._driver.kill()

    # --- children -----------------------------------------------------------------------------------------

    def _start_driver(self) -> ChildSession:
        self._driver_status.unlink(missing_ok=True)
        options = ["--checkpoint-dir", str(self._checkpoint_dir), "--stop-file", str(self._stop_file)]
        options += ["--status-file", str(self._driver_status), *self._driver_options]
        return self._service.start("Spark driver", "examples.home_security.driver", *options)

    def _start_generator(self) -> ChildSession:
        options = ["--status-file", str(self._generator_status), "--duration", str(self._duration_s)]
        given = {name: value for name, value in asdict(self._plan).items() if value is not None}
        for name, value in given.items():
            options += [f"--{name.removesuffix('_s').replace('_', '-')}", str(value)]
        return self._service.start("generator", "examples.home_security.publish", *options)

    # --- watching -----------------------------------------------------------------------------------------

    def _watch(self, generator: ChildSession, started: float) -> None:
        """Watch until the generator has ended."""
        is_co_told = False
        while generator.exit_code is None:
            elapsed_s = time.monotonic() - started
            try:
                if not is_co_told and elapsed_s > self._plan.co_after_s:
                    is_co_told = True
                    self._screen.note("From now on the homes have carbon monoxide detectors.")
                self._is_crash_due |= elapsed_s > _CRASH_AFTER_SHARE * self._duration_s
                self._look_for(_LOOK_EVERY_S)
            except KeyboardInterrupt:
                if self._is_interrupted:
                    raise
                self._is_interrupted = True
                self._screen.note("Interrupted: no more events; those sent are still processed.")
                generator.terminate(timeout_s=_GENERATOR_STOP_S)
        if generator.exit_code != 0 and not self._is_interrupted:
            raise generator.failure()

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        self._moved = time.monotonic()
        while not condition():
            self._look_for(_LOOK_EVERY_S)
            if time.monotonic() - self._moved > _STANDSTILL_MAX_S:
                raise OperationTimeoutError(
                    f"{problem}: no progress for {_STANDSTILL_MAX_S:.0f} s.",
                    next_step=f"The driver's log is {self._driver.log_file}.",
                )

    def _look_for(self, seconds: float) -> None:
        """Report progress for some time and, if a crash is due, look for its moment."""
        self._look()
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            is_due = self._is_crash_due and self._is_crash_wanted and self._crash is None
            if is_due and not self._is_interrupted and self._kill_in_mid_batch():
                self._driver = self._start_driver()
            time.sleep(min(left_s, _CRASH_LOOK_EVERY_S if is_due else left_s))

    def _look(self) -> None:
        if not self._stop_file.exists():
            self._driver.check_running()
        status = self._status_of_driver()
        position = int(status.get("position", 0))
        if position != self._position:
            self._position, self._moved = position, time.monotonic()
        generated = read_status(self._generator_status)
        if not generated:
            return
        published = int(generated["events"])
        with self._service.database.read() as connection:
            alarms = connection.execute(select(func.count()).select_from(home_alarm)).scalar_one()
        p50_ms, p99_ms = status.get("recent_p50_ms"), status.get("recent_p99_ms")
        latency = "" if p50_ms is None else f"  event to SQL p50 {p50_ms:,.0f} ms, p99 {p99_ms:,.0f} ms"
        self._screen.figures(
            f"{published:,} events, {published / max(generated['elapsed_s'], 0.1):,.0f}/s  "
            f"{alarms:,} alarms  lag {max(0, published - position):,}{latency}"
        )

    def _status_of_driver(self) -> dict[str, Any]:
        return read_status(self._driver_status)

    def _is_done(self, published: int) -> bool:
        return int(self._status_of_driver().get("position", 0)) >= published

    def _has_driver_ended(self) -> bool:
        if self._driver.exit_code:
            raise self._driver.failure()
        return self._driver.exit_code is not None

    # --- the crash ----------------------------------------------------------------------------------------

    def _kill_in_mid_batch(self) -> bool:
        batch_id = self._driver.kill_at(lambda: running_batch_id(self._checkpoint_dir))
        if batch_id is None:
            return False
        # Not earlier: stopped while it locks SQLite's file, the driver would block readers.
        self._crash = Crash(batch_id, is_in_sql=batch_id < (next_batch_id(self._service.database, NAME) or 0))
        self._screen.note(
            f"Killed the Spark driver with SIGKILL while {self._crash.describe()}. Starting it again."
        )
        return True

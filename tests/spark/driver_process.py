"""A Spark driver as a process of its own, which a test waits for and kills with all that belongs to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 300


class DriverProcess:
    """A running driver."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    def check_running(self) -> None:
        """Fail with what the driver wrote where it has ended."""
        assert self._process.poll() is None, self._said()

    def wait_until(self, is_met: Callable[[], bool], *, poll_s: float = 0.05) -> None:
        """Return once ``is_met``; fail where the driver ends before, or it takes too long.

        poll_s: between two looks; more where each opens a connection.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while not is_met():
            self.check_running()
            assert time.monotonic() < deadline, f"the driver did not get there: {self._said()}"
            time.sleep(poll_s)

    def wait_done(self) -> None:
        """Return once the driver has ended well; fail with what it wrote where it has not."""
        assert self._process.wait(_TIMEOUT_S) == 0, self._said()

    def _said(self) -> str:
        return self._log_file.read_text(errors="replace")[-4000:]


@contextmanager
def driver_process(
    log_file: Path, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[DriverProcess]:
    """Run ``python *words``; at the end SIGKILL for its process group, Java included, where it still runs.

    log_file: gets what it writes, behind what there is. environment: variables beside this process's.
    """
    with (
        log_file.open("ab") as log,
        subprocess.Popen(
            [sys.executable, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | (environment or {}),
        ) as process,
    ):
        try:
            yield DriverProcess(process, log_file)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

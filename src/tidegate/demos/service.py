"""The demo's service: ``tidegate serve`` as a process of its own, on a free port of loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.demos.processes import ChildSession
from tidegate.model.errors import OperationTimeoutError
from tidegate.server.ready import ReadyInformation

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02


@contextmanager
def running_service(data_dir: Path, files_dir: Path) -> Iterator[ReadyInformation]:
    """Run the service over ``data_dir``, and stop it at the end.

    files_dir: where its log and its ready file go. The user's profile is left alone.
    Raises ChildFailedError where it does not start (e.g. the directory is in use), with what it said.
    """
    ready_file = files_dir / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tidegate.cli", "serve", "--data-dir", str(data_dir)]
    command += ["--amqp-port", "0", "--ready-file", str(ready_file)]
    log_file = files_dir / "service.log"
    with ChildSession(
        "service", command, log_file=log_file, environment={"TIDEGATE_CONFIG_DIR": str(files_dir)}
    ) as child:
        yield _wait_until_ready(child, ready_file)
        child.terminate(timeout_s=STOP_TIMEOUT_S)


def _wait_until_ready(child: ChildSession, ready_file: Path) -> ReadyInformation:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        child.check_running()
        if ready_file.exists():
            return ReadyInformation.from_json(ready_file.read_text(encoding="utf-8"))
        time.sleep(_POLL_S)
    raise OperationTimeoutError(
        f"The service was not ready after {START_TIMEOUT_S:.0f} s.",
        next_step=f"Its log is {child.log_file}.",
    )

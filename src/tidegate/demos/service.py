"""The demo's service: ``tidegate serve`` with its console as a process, on free ports of loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.demos.observer import DemoObserver
from tidegate.demos.processes import ChildSession
from tidegate.model.errors import OperationTimeoutError
from tidegate.server.emulator_config import EMULATOR_KEY
from tidegate.server.ready import ReadyInformation

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
STATE_VARIABLE: Final = "TIDEGATE_STATE_DIR"
"""Where the demo's pipeline reports, and its console looks."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """What the console of a demo's service is given."""

    database_url: str = field(repr=False)
    redrive_pipelines: tuple[str, ...] = ()


@contextmanager
def running_service(
    data_dir: Path, files_dir: Path, console: ConsoleOptions, observer: DemoObserver
) -> Iterator[ReadyInformation]:
    """Run the service over ``data_dir``, tell where it is, and stop it at the end.

    files_dir: where its log, its ready file and the pipelines' status go. The user's profile is left alone.
    A new data directory gets the development key, so that the console lets in who is on this machine.
    Raises ChildFailedError where it does not start (e.g. the directory is in use), with what it said.
    """
    ready_file = files_dir / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tidegate.cli", "serve", "--data-dir", str(data_dir)]
    command += ["--amqp-port", "0", "--http-port", "0", "--ready-file", str(ready_file)]
    for name in console.redrive_pipelines:
        command += ["--redrive-pipeline", name]
    # Secrets not on the command line, which everybody on the machine can read.
    environment = {
        "TIDEGATE_CONFIG_DIR": str(files_dir),
        "TIDEGATE_DATABASE": console.database_url,
        STATE_VARIABLE: str(files_dir),
    }
    if not (data_dir / "catalog.json").exists():
        environment["TIDEGATE_ROOT_KEY"] = EMULATOR_KEY
    log_file = files_dir / "service.log"
    with ChildSession("service", command, log_file=log_file, environment=environment) as child:
        ready = _wait_until_ready(child, ready_file)
        observer.note(f"The service listens on {ready.amqp}; its data lies in {data_dir}.")
        observer.note(f"Watch it in a browser: {ready.console}")
        yield ready
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

"""An example's service: ``tidegate serve`` with its console, in a child process on free loopback ports."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from examples.support.observer import Observer
from examples.support.processes import ChildSession
from tidegate import OperationTimeoutError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
CONNECTION_STRING_VARIABLE: Final = "TIDEGATE_CONNECTION_STRING"
DATABASE_VARIABLE: Final = "TIDEGATE_DATABASE"
STATE_VARIABLE: Final = "TIDEGATE_STATE_DIR"
"""Where the example's pipeline reports its status, for its console."""
_DEVELOPMENT_KEY: Final = "SAS_KEY_VALUE"
"""The official emulator's key. With it, the console needs no sign-in on this machine."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Options of the console of an example's service."""

    database_url: str = field(repr=False)
    redrive_pipelines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The addresses of the service, from its ready file."""

    amqp: str
    connection_string: str = field(repr=False)
    console: str
    """For a browser on this machine."""


def make_data_dir(data_dir: Path | None, name: str) -> tuple[Path, Path]:
    """The data directory (None: a new temporary one), and its subdirectory for the example's own files, such
    as its children's logs and Spark's journal."""
    if data_dir is None:
        data_dir = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
    data_dir.mkdir(parents=True, exist_ok=True)
    files_dir = data_dir.resolve() / f"example-{name}"
    files_dir.mkdir(mode=0o700, exist_ok=True)
    return data_dir.resolve(), files_dir


def driver_environment(connection_string: str, database_url: str, files_dir: Path) -> dict[str, str]:
    """The environment of child processes, which other users cannot read, unlike command lines."""
    return {
        CONNECTION_STRING_VARIABLE: connection_string,
        DATABASE_VARIABLE: database_url,
        STATE_VARIABLE: str(files_dir),
    }


@contextmanager
def running_service(
    data_dir: Path, files_dir: Path, console: ConsoleOptions, observer: Observer
) -> Iterator[ServiceAddress]:
    """Run the service over ``data_dir``, yield its address, and stop it at the end.

    files_dir: for its log, its ready file and the pipelines' status. The user's profile is not touched.
    Raises ChildFailedError, with the end of its log, if it does not start (e.g. the directory is in use).
    """
    ready_file = files_dir / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [tidegate_program(), "serve", "--data-dir", str(data_dir)]
    command += ["--amqp-port", "0", "--http-port", "0", "--ready-file", str(ready_file)]
    for name in console.redrive_pipelines:
        command += ["--redrive-pipeline", name]
    # Secrets are not on the command line, which every user of the machine can read.
    environment = {
        "TIDEGATE_CONFIG_DIR": str(files_dir),
        DATABASE_VARIABLE: console.database_url,
        STATE_VARIABLE: str(files_dir),
    }
    if not (data_dir / "catalog.json").exists():
        environment["TIDEGATE_ROOT_KEY"] = _DEVELOPMENT_KEY
    log_file = files_dir / "service.log"
    with ChildSession("service", command, log_file=log_file, environment=environment) as child:
        address = _wait_until_ready(child, ready_file)
        observer.note(f"The service listens on {address.amqp}; its data is in {data_dir}.")
        observer.note(f"Watch it in a browser: {address.console}")
        yield address
        child.terminate(timeout_s=STOP_TIMEOUT_S)


def tidegate_program() -> str:
    """The command ``tidegate`` of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("tidegate")
    return str(beside) if beside.exists() else shutil.which("tidegate") or "tidegate"


def _wait_until_ready(child: ChildSession, ready_file: Path) -> ServiceAddress:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        child.check_running()
        if ready_file.exists():
            ready = json.loads(ready_file.read_text(encoding="utf-8"))
            return ServiceAddress(ready["amqp"], ready["connection_string"], ready["console"])
        time.sleep(_POLL_S)
    raise OperationTimeoutError(
        f"The service was not ready after {START_TIMEOUT_S:.0f} s.",
        next_step=f"Its log is {child.log_file}.",
    )

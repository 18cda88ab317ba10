"""An example's service: ``tidegate serve`` with its console, in a child process on free loopback ports."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url

from examples.support.processes import ChildSession
from examples.support.screen import Screen
from tidegate import OperationTimeoutError
from tidegate.sql import Database

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
class ExampleService:
    """A running service, and where an example keeps its results."""

    data_dir: Path
    files_dir: Path
    """For the example's own files, such as its children's logs and Spark's journal."""
    database: Database
    database_url: URL
    """As a string it has no password."""
    connection_string: str = field(repr=False)

    def start(self, name: str, module: str, *options: str) -> ChildSession:
        """Start ``python -m MODULE``, which finds service and database in its environment.

        name: for messages. Its log is named after the module.
        """
        environment = {
            # Other users of the machine cannot read an environment, unlike a command line.
            CONNECTION_STRING_VARIABLE: self.connection_string,
            DATABASE_VARIABLE: self.database_url.render_as_string(hide_password=False),
            STATE_VARIABLE: str(self.files_dir),
        }
        log_file = self.files_dir / f"{module.rpartition('.')[2]}.log"
        command = [sys.executable, "-m", module, *options]
        return ChildSession(name, command, log_file=log_file, environment=environment)


@contextmanager
def running_service(
    example: str,
    screen: Screen,
    *,
    data_dir: Path | None,
    database_url: str | None,
    database_file: str,
    redrive_pipelines: Sequence[str] = (),
) -> Iterator[ExampleService]:
    """Run ``tidegate serve`` for an example, with its console, and open the database; stop it at the end.

    data_dir: where everything is stored; None: a new temporary directory, which is kept. database_url: None
    is the SQLite file ``database_file`` in it. The user's profile is not touched. Raises ChildFailedError,
    with the end of its log, if the service does not start (e.g. the directory is in use), and what opening
    the database raises.
    """
    data_dir = (data_dir or Path(tempfile.mkdtemp(prefix=f"tidegate-{example}-"))).resolve()
    files_dir = data_dir / f"example-{example}"
    files_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = database_url or f"sqlite:///{data_dir / database_file}"
    ready_file = files_dir / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [tidegate_program(), "serve", "--data-dir", str(data_dir)]
    command += ["--amqp-port", "0", "--http-port", "0", "--ready-file", str(ready_file)]
    for name in redrive_pipelines:
        command += ["--redrive-pipeline", name]
    environment = {
        "TIDEGATE_CONFIG_DIR": str(files_dir),
        DATABASE_VARIABLE: url,
        STATE_VARIABLE: str(files_dir),
    }
    if not (data_dir / "control.log").exists():
        environment["TIDEGATE_ROOT_KEY"] = _DEVELOPMENT_KEY
    screen.step("Starting the service")
    with (
        Database.open(url) as database,
        ChildSession(
            "service", command, log_file=files_dir / "service.log", environment=environment
        ) as child,
    ):
        ready = _wait_until_ready(child, ready_file)
        screen.note(f"The service listens on {ready['amqp']}; its data is in {data_dir}.")
        screen.note(f"Watch it in a browser: {ready['console']}")
        yield ExampleService(data_dir, files_dir, database, make_url(url), ready["connection_string"])
        child.terminate(timeout_s=STOP_TIMEOUT_S)


def tidegate_program() -> str:
    """The command ``tidegate`` of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("tidegate")
    return str(beside) if beside.exists() else shutil.which("tidegate") or "tidegate"


def _wait_until_ready(child: ChildSession, ready_file: Path) -> dict[str, str]:
    """The addresses of the service, from its ready file."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        child.check_running()
        if ready_file.exists():
            ready: dict[str, str] = json.loads(ready_file.read_text(encoding="utf-8"))
            return ready
        time.sleep(_POLL_S)
    raise OperationTimeoutError(
        f"The service was not ready after {START_TIMEOUT_S:.0f} s.",
        next_step=f"Its log is {child.log_file}.",
    )

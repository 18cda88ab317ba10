"""A throw-away PostgreSQL server for tests: its own cluster, in a temporary folder, on a free loopback port.

PostgreSQL refuses to run as root, so as root it runs as the user ``postgres``, else ``nobody``. Binaries are
looked for on PATH and in ``/usr/lib/postgresql/*/bin`` (Debian's place), the newest first.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.absent import not_tested
from tests.support.ports import free_ports

PASSWORD: Final = "tidegate-test-password"
"""The superuser's password; loopback connections need it, so that tests see authentication at work."""
_START_S_MAX: Final = 60.0


class PostgresqlMissingError(Exception):
    """There are no PostgreSQL server binaries on this machine."""


def find_binaries() -> Path:
    """The folder that holds ``initdb`` and ``postgres``. Raises PostgresqlMissingError."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    candidates += sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresqlMissingError("no initdb and postgres on PATH or in /usr/lib/postgresql/*/bin")


class PostgresqlServer:
    """A running server; a context manager that leaves nothing behind."""

    def __init__(self, *, is_fsync_used: bool = False) -> None:
        """is_fsync_used: True for measurements, with the memory that PostgreSQL takes by itself; False is
        faster, takes less of it, and is enough where no power fails."""
        self._binaries = find_binaries()
        self._is_fsync_used = is_fsync_used
        self._user = _unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-postgresql-"))
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)

    def start(self) -> None:
        """Make the cluster when there is none, start the server, and wait until it takes connections."""
        if not (self._folder / "data").exists():
            self._make_cluster()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    *("-D", str(self._folder / "data")),
                    *("-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)),
                    *("-c", "max_connections=60"),
                    *(() if self._is_fsync_used else ("-c", "fsync=off", "-c", "shared_buffers=64MB")),
                ],
                stdout=log,
                stderr=log,
                cwd="/",
                user=self._user,
                start_new_session=True,
            )
        self._wait_ready()

    def stop(self) -> None:
        """Stop at once, breaking every connection; the data stays until ``close``."""
        if self._process is not None:
            # SIGQUIT is PostgreSQL's immediate shutdown: the next start recovers from the log.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """Stop, and remove the cluster."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The SQLAlchemy URL of a database; port: another way in, such as a proxy's."""
        return f"postgresql://tidegate:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def create_database(self) -> str:
        """A fresh database's URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def create_schema(self) -> str:
        """The URL of a fresh, empty schema: as good as a database of its own, and made in milliseconds."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f'CREATE SCHEMA "{name}"')
        return f"{self.url()}?options=-csearch_path%3D{name}"

    @property
    def process_id(self) -> int:
        """Of the running server's first process, the parent of all others."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def execute(self, statement: str) -> None:
        """Run one statement as superuser, outside a transaction."""
        import psycopg

        with psycopg.connect(self._conninfo(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def __enter__(self) -> PostgresqlServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=tidegate password={PASSWORD} dbname=postgres"

    def _make_cluster(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        if self._user is not None:
            for path in (self._folder, password_file):
                shutil.chown(path, self._user)
        made = subprocess.run(
            [
                str(self._binaries / "initdb"),
                *("-D", str(self._folder / "data"), "-U", "tidegate", "-E", "UTF8", "--locale=C"),
                *("--auth=scram-sha-256", f"--pwfile={password_file}", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            cwd="/",
            user=self._user,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace')}")

    def _wait_ready(self) -> None:
        import psycopg

        assert self._process is not None
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                psycopg.connect(self._conninfo(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{log}") from error
                time.sleep(0.02)
            else:
                return


@contextmanager
def required_postgresql(*, is_fsync_used: bool = False) -> Iterator[PostgresqlServer]:
    """The body of a session fixture: a server, or a loud skip where PostgreSQL is not installed.

    With ``CI=true`` in the environment the tests fail instead: a build machine must have it.
    """
    try:
        server = PostgresqlServer(is_fsync_used=is_fsync_used)
    except PostgresqlMissingError as error:
        not_tested(f"NOT TESTED ON POSTGRESQL: {error}. Install the package postgresql to run these tests.")
    with server:
        yield server


def _unprivileged_user() -> str | None:
    """The user to run as when this process is root; None: this user will do."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise PostgresqlMissingError("this is root, and there is no user postgres or nobody to run it as")

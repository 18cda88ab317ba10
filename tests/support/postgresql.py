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
import uuid
from pathlib import Path
from typing import Final

from tests.support.absent import not_tested
from tests.support.ports import free_ports
from tests.support.servers import ServerMissingError, TemporaryServer

PASSWORD: Final = "tidegate-test-password"
"""The superuser's password; loopback connections need it, so that tests see authentication at work."""


def find_binaries() -> Path:
    """The folder that holds ``initdb`` and ``postgres``. Raises ServerMissingError."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    candidates += sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise ServerMissingError("no initdb and postgres on PATH or in /usr/lib/postgresql/*/bin")


class PostgresqlServer(TemporaryServer):
    """A running server."""

    def __init__(self, *, is_fsync_used: bool = False) -> None:
        """is_fsync_used: True for measurements, with the memory that PostgreSQL takes by itself; False is
        faster, takes less of it, and is enough where no power fails."""
        self._binaries = find_binaries()
        super().__init__("postgresql")
        self._is_fsync_used = is_fsync_used
        self._user = _unprivileged_user()
        (self.port,) = free_ports(1)

    def start(self) -> None:
        """Make the cluster when there is none, start the server, and wait until it accepts connections."""
        if not (self._folder / "data").exists():
            if self._user is not None:
                shutil.chown(self._folder, self._user)
            self._make_data(self._binaries / "initdb", self._make_cluster)
        command = [
            str(self._binaries / "postgres"),
            *("-D", str(self._folder / "data")),
            *("-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)),
            *("-c", "max_connections=60"),
            *(() if self._is_fsync_used else ("-c", "fsync=off", "-c", "shared_buffers=64MB")),
        ]
        self._run("postgres", command, cwd="/", user=self._user, start_new_session=True)
        self._wait(self._accepts, "PostgreSQL did not start")

    def stop(self) -> None:
        """Stop at once, breaking every connection; the data stays until ``close``."""
        if self._processes:
            process = self._processes.pop("postgres")
            # SIGQUIT is PostgreSQL's immediate shutdown: the next start recovers from the log.
            process.send_signal(signal.SIGQUIT)
            process.wait(30)

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
        return self._processes["postgres"].pid

    def execute(self, statement: str) -> None:
        """Run one statement as superuser, outside a transaction."""
        import psycopg

        with psycopg.connect(self._conninfo(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=tidegate password={PASSWORD} dbname=postgres"

    def _make_cluster(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        if self._user is not None:
            shutil.chown(password_file, self._user)
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

    def _accepts(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._conninfo(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def required_postgresql(*, is_fsync_used: bool = False) -> PostgresqlServer:
    """The server of a session fixture; skips the test loudly where PostgreSQL is not installed."""
    try:
        return PostgresqlServer(is_fsync_used=is_fsync_used)
    except ServerMissingError as error:
        not_tested(f"NOT TESTED ON POSTGRESQL: {error}. Install the package postgresql to run these tests.")


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
    raise ServerMissingError("this is root, and there is no user postgres or nobody to run it as")

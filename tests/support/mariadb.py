"""A throw-away MariaDB server for tests: its own data, in a temporary folder, on a free loopback port.

As root it runs as root, which MariaDB does when told. A ``DATETIME`` keeps no fractions of a second:
where these tests declare ``DateTime``, they get ``DATETIME(6)``, as a user's table should have.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import DateTime
from sqlalchemy.ext.compiler import compiles
from tests.support.absent import not_tested
from tests.support.ports import free_ports
from tests.support.servers import ServerMissingError, TemporaryServer

PASSWORD: Final = "tidegate-test-password"
_PLACES: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


@compiles(DateTime, "mariadb")
def _with_microseconds(element: Any, compiler: Any, **options: Any) -> str:
    return "DATETIME(6)"


def find_programs() -> tuple[str, str]:
    """The paths of ``mariadb-install-db`` and ``mariadbd``. Raises ServerMissingError."""
    found = [shutil.which(name, path=_PLACES) for name in ("mariadb-install-db", "mariadbd")]
    if found[0] is None or found[1] is None:
        raise ServerMissingError("no mariadb-install-db and mariadbd on PATH or in /usr/sbin")
    try:
        import pymysql  # noqa: F401
    except ModuleNotFoundError:
        raise ServerMissingError("no driver (pip install pymysql)") from None
    return found[0], found[1]


class MariadbServer(TemporaryServer):
    """A running server."""

    def __init__(self, *, is_fsync_used: bool = False) -> None:
        """is_fsync_used: True for measurements; False is faster, and enough where no power fails."""
        self._install, self._server = find_programs()
        super().__init__("mariadb")
        # Its own: a server that starts deletes what it takes for its last run's files in a shared one.
        self._temporary = self._folder / "tmp"
        self._temporary.mkdir()
        self._is_fsync_used = is_fsync_used
        (self.port,) = free_ports(1)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Make the data when there is none, start the server, and wait until it accepts connections."""
        is_new = not self._data.exists()
        if is_new:
            self._make_data(Path(self._server), self._install_data)
        command = [
            self._server,
            "--no-defaults",
            *self._as_root(),
            f"--datadir={self._data}",
            f"--tmpdir={self._temporary}",
            f"--socket={self._folder / 'socket'}",
            f"--pid-file={self._folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=80",
            "--innodb-use-native-aio=0",
            *(
                ()
                if self._is_fsync_used
                else (
                    # Written at each commit, so that a killed server keeps it; the disk may have it later.
                    *("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"),
                    "--innodb-file-per-table=0",  # a test creates a dozen
                )
            ),
        ]
        self._run("mariadbd", command, start_new_session=True)
        self._wait(self._accepts, "MariaDB did not start")
        if is_new:
            with self._connected(self._of_root()) as connection:
                connection.query(f"CREATE USER tidegate@127.0.0.1 IDENTIFIED BY '{PASSWORD}'")
                connection.query("GRANT ALL ON *.* TO tidegate@127.0.0.1")

    def stop(self) -> None:
        """Kill it, breaking every connection; the data stays until ``close``."""
        if self._processes:
            process = self._processes.pop("mariadbd")
            process.kill()
            process.wait(30)

    def url(self, database: str, *, port: int | None = None) -> str:
        """The SQLAlchemy URL of a database; port: another way in, such as a proxy's.

        Without TLS, which this server lacks: the driver would load all of the system's authorities for each
        connection, 30 ms of CPU.
        """
        return f"mariadb://tidegate:{PASSWORD}@127.0.0.1:{port or self.port}/{database}?ssl_disabled=true"

    def create_database(self) -> str:
        """A fresh database's URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")
        return self.url(name)

    create_schema = create_database

    @property
    def process_id(self) -> int:
        """Of the running server."""
        return self._processes["mariadbd"].pid

    def execute(self, statement: str) -> None:
        """Run one statement with all rights, outside a transaction."""
        with self._connected(self._of_user()) as connection:
            connection.query(statement)

    @contextmanager
    def _connected(self, arguments: dict[str, Any]) -> Iterator[Any]:
        import pymysql

        connection = pymysql.connect(autocommit=True, connect_timeout=5, ssl_disabled=True, **arguments)
        try:
            yield connection
        finally:
            connection.close()

    def _of_root(self) -> dict[str, Any]:
        return {"user": "root", "unix_socket": str(self._folder / "socket")}

    def _of_user(self) -> dict[str, Any]:
        return {"user": "tidegate", "password": PASSWORD, "host": "127.0.0.1", "port": self.port}

    def _install_data(self) -> None:
        made = subprocess.run(
            [
                self._install,
                "--no-defaults",
                *self._as_root(),
                f"--datadir={self._data}",
                f"--tmpdir={self._temporary}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--innodb-use-native-aio=0",
            ],
            capture_output=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"mariadb-install-db failed: {made.stderr.decode(errors='replace')}")

    @staticmethod
    def _as_root() -> tuple[str, ...]:
        return ("--user=root",) if os.geteuid() == 0 else ()

    def _accepts(self) -> bool:
        # Not by the driver, which leaves the socket open if it cannot connect.
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            # The server listens here after the port: a slow one refused `start`'s connection.
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(str(self._folder / "socket"))
        except OSError:
            return False
        return True


def required_mariadb(*, is_fsync_used: bool = False) -> MariadbServer:
    """The server of a session fixture; skips the test loudly where MariaDB is not installed."""
    try:
        return MariadbServer(is_fsync_used=is_fsync_used)
    except ServerMissingError as error:
        not_tested(f"NOT TESTED ON MARIADB: {error}. Install the package mariadb-server to run these tests.")

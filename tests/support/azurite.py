"""A throw-away Azure Blob Storage for tests: Azurite, in memory, on a free loopback port.

Azurite is Microsoft's emulator, an npm package. Its program ``azurite-blob`` is looked for in a folder where
``npm ci`` installed it, then on PATH; in a clone of Tidegate, ``make npm`` installs it in
``tests/azurite``. It talks to nobody: its telemetry is off.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
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

_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_LISTENS: Final = re.compile(r"successfully listens on https?://127\.0\.0\.1:(\d+)")


class AzuriteMissingError(Exception):
    """Azurite, or Node.js that runs it, is not on this machine."""


def find_azurite(folder: Path | None = None) -> Path:
    """The program ``azurite-blob``. folder: where ``npm ci`` was run. Raises AzuriteMissingError."""
    if shutil.which("node") is None:
        raise AzuriteMissingError("there is no node on PATH")
    if folder is not None:
        program = folder / "node_modules" / ".bin" / "azurite-blob"
        if program.exists():
            return program
    on_path = shutil.which("azurite-blob")
    if on_path is None:
        raise AzuriteMissingError("azurite-blob is neither installed with npm nor on PATH")
    return Path(on_path)


class AzuriteServer:
    """A running blob service; a context manager that leaves nothing behind."""

    def __init__(self, folder: Path | None = None, *, certificate: tuple[Path, Path] | None = None) -> None:
        """folder: where ``npm ci`` was run; None looks on PATH alone. certificate: with this certificate and
        its key (PEM) it serves HTTPS, and takes bearer tokens whoever signed them.
        """
        self._program = find_azurite(folder)
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-azurite-"))
        self._certificate = certificate
        self._process: subprocess.Popen[bytes] | None = None
        self.account_name = "tidegate"
        self.account_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.port = 0

    def start(self) -> None:
        """Start the service, and wait until it takes connections."""
        secure: list[str] = []
        if self._certificate is not None:
            certificate_file, key_file = map(str, self._certificate)
            secure = ["--cert", certificate_file, "--key", key_file, "--oauth", "basic"]
        log_file = self._folder / "log"
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(self._program),
                    *("--blobHost", "127.0.0.1", "--blobPort", "0"),
                    *("--inMemoryPersistence", "--extentMemoryLimit", "64"),
                    # Clients are newer than it is: they ask for API versions that it has not heard of.
                    *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
                    *secure,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | {"AZURITE_ACCOUNTS": f"{self.account_name}:{self.account_key}"},
            )
        deadline = time.monotonic() + _START_S_MAX
        while True:
            has_ended = self._process.poll() is not None  # before reading: nothing is written after it
            said = log_file.read_text(errors="replace")
            listens = _LISTENS.search(said)
            if listens is not None:
                self.port = int(listens[1])
                return
            if has_ended or time.monotonic() > deadline:
                raise RuntimeError(f"Azurite did not start. It wrote: {said}")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop it; what it held is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def connection_string(self, *, port: int | None = None) -> str:
        """The storage account's connection string. port: another way in, such as a proxy's."""
        endpoint = self.endpoint.replace(f":{self.port}/", f":{port or self.port}/")
        return (
            f"DefaultEndpointsProtocol={endpoint.partition(':')[0]};AccountName={self.account_name};"
            f"AccountKey={self.account_key};BlobEndpoint={endpoint};"
        )

    @property
    def endpoint(self) -> str:
        """The blob service's URL."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}/{self.account_name}"

    def create_container(self) -> str:
        """The name of a fresh, empty container."""
        from azure.storage.blob import ContainerClient

        name = f"test-{uuid.uuid4().hex[:12]}"
        with ContainerClient.from_connection_string(self.connection_string(), name) as client:
            client.create_container()
        return name

    def __enter__(self) -> AzuriteServer:
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


@contextmanager
def required_azurite(folder: Path | None = None) -> Iterator[AzuriteServer]:
    """The body of a session fixture: a server, or a loud skip where Azurite is not installed.

    With ``CI=true`` in the environment the tests fail instead: a build machine must have it.
    """
    try:
        server = AzuriteServer(folder)
    except AzuriteMissingError as error:
        not_tested(f"NOT TESTED ON AZURE BLOB STORAGE: {error}. Install Node.js and run `make npm`.")
    with server:
        yield server

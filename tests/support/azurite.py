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
import uuid
from pathlib import Path
from typing import Final

from tests.support.absent import not_tested
from tests.support.servers import ServerMissingError, TemporaryServer

_STOP_S_MAX: Final = 30.0
_LISTENS: Final = re.compile(r"successfully listens on https?://127\.0\.0\.1:(\d+)")


def find_azurite(folder: Path | None = None) -> Path:
    """The program ``azurite-blob``. folder: where ``npm ci`` was run. Raises ServerMissingError."""
    if shutil.which("node") is None:
        raise ServerMissingError("there is no node on PATH")
    if folder is not None:
        program = folder / "node_modules" / ".bin" / "azurite-blob"
        if program.exists():
            return program
    on_path = shutil.which("azurite-blob")
    if on_path is None:
        raise ServerMissingError("azurite-blob is neither installed with npm nor on PATH")
    return Path(on_path)


class AzuriteServer(TemporaryServer):
    """A running blob service."""

    def __init__(self, folder: Path | None = None, *, certificate: tuple[Path, Path] | None = None) -> None:
        """folder: where ``npm ci`` was run; None looks on PATH alone. certificate: with this certificate and
        its key (PEM) it serves HTTPS, and takes bearer tokens whoever signed them.
        """
        self._program = find_azurite(folder)
        super().__init__("azurite")
        self._certificate = certificate
        self.account_name = "tidegate"
        self.account_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.port = 0

    def start(self) -> None:
        """Start the service, and wait until it accepts connections."""
        secure: list[str] = []
        if self._certificate is not None:
            certificate_file, key_file = map(str, self._certificate)
            secure = ["--cert", certificate_file, "--key", key_file, "--oauth", "basic"]
        command = [
            str(self._program),
            *("--blobHost", "127.0.0.1", "--blobPort", "0"),
            *("--inMemoryPersistence", "--extentMemoryLimit", "64"),
            # Clients are newer than it is: they ask for API versions that it has not heard of.
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
            *secure,
        ]
        accounts = {"AZURITE_ACCOUNTS": f"{self.account_name}:{self.account_key}"}
        self._run("azurite", command, cwd=self._folder, env=os.environ | accounts)
        self._wait(self._listens, "Azurite did not start")

    def _listens(self) -> bool:
        found = _LISTENS.search((self._folder / "azurite.log").read_text(errors="replace"))
        self.port = int(found[1]) if found is not None else 0
        return found is not None

    def stop(self) -> None:
        """Stop it; its data is gone."""
        for process in self._processes.values():
            process.terminate()
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

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


def required_azurite(folder: Path | None = None) -> AzuriteServer:
    """The server of a session fixture; skips the test loudly where Azurite is not installed."""
    try:
        return AzuriteServer(folder)
    except ServerMissingError as error:
        not_tested(f"NOT TESTED ON AZURE BLOB STORAGE: {error}. Install Node.js and run `make npm`.")

"""A real Tidegate service for tests: in a thread of this process, or in a process of its own.

    with HubService() as service:
        hub = service.create_hub(partition_count=2)
        producer = EventHubProducer.from_connection_string(service.connection_string, hub)

Both kinds listen on free ports of loopback, keep them across restarts, and finally delete the data directory
if they created it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Self, TypeVar

from tidegate.client import EventHubAdministrator
from tidegate.client.blocking.background import BackgroundLoop
from tidegate.extras import not_installed
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, OperationTimeoutError
from tidegate.model.limits import RETENTION_HOURS_DEFAULT

try:
    from tidegate.server.app import TidegateServer
    from tidegate.server.config_file import load_settings
    from tidegate.server.event_loop import new_event_loop
    from tidegate.server.ready import ReadyInformation
    from tidegate.server.settings import ServerSettings
except ModuleNotFoundError as error:
    raise not_installed(error, "tidegate.testing") from error

T = TypeVar("T")

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0
_CAPTURE_DESTINATIONS = (tempfile.gettempdir(), "memory://captured")
"""Where Capture may write in tests."""


class _Hub(ABC):
    """What both kinds share: the data directory, the ports, and the connection strings."""

    def __init__(
        self, data_dir: Path | None = None, *, is_tls_used: bool = False, is_http_used: bool = False
    ) -> None:
        self._cleanup = ExitStack()
        if data_dir is None:
            data_dir = Path(tempfile.mkdtemp(prefix="tidegate-hub-"))
            self._cleanup.callback(shutil.rmtree, data_dir, ignore_errors=True)
        self.data_dir = data_dir
        """Where the log is; kept across ``stop`` and ``start``."""
        self._ports: dict[str, int | None] = {
            "amqp_port": 0,
            "amqps_port": 0 if is_tls_used else None,
            "http_port": 0 if is_http_used else None,
            "https_port": 0 if is_tls_used and is_http_used else None,
        }
        self._ready: ReadyInformation | None = None

    @property
    def ready(self) -> ReadyInformation:
        """Addresses and connection strings of the running service."""
        if self._ready is None:
            raise BrokenError("The service is not running.", next_step="Call start() first.")
        return self._ready

    @property
    def connection_string(self) -> str:
        """For plain AMQP, without an event hub."""
        assert self.ready.connection_string_plain is not None
        return self.ready.connection_string_plain

    def hub_connection_string(self, event_hub: str) -> str:
        """For plain AMQP, with ``EntityPath``."""
        return ConnectionString.parse(self.connection_string).with_entity_path(event_hub).format()

    @abstractmethod
    def start(self) -> Self:
        """Start, and return once the service is ready; a restarted service has the same ports as before."""

    @abstractmethod
    def stop(self) -> None:
        """Stop in order; harmless if it is not running."""

    def restart(self) -> None:
        """``stop`` and ``start``, with the same data directory and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and delete the data directory unless it was given."""
        with self._cleanup:
            self.stop()

    def _remember(self, ready: ReadyInformation) -> None:
        self._ready = ready
        for face in ("amqp", "amqps", "http", "https"):
            address = getattr(ready, face)
            if address is not None:
                self._ports[f"{face}_port"] = int(address.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()


class HubService(_Hub):
    """The service on an event loop of its own, in a background thread of this process."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        is_tls_used: bool = False,
        is_http_used: bool = False,
        config: Path | None = None,
        root_key: str | None = None,
        http_port: int = 0,
    ) -> None:
        """data_dir: None is a temporary one. config: a configuration file as for ``tidegate serve``, or the
        official emulator's; its ports and data directory are ignored. root_key: None is the file's, or a
        generated one. http_port: 0 is any free one. Nothing runs before ``start`` (or ``with``).
        """
        super().__init__(data_dir, is_tls_used=is_tls_used, is_http_used=is_http_used)
        if is_http_used:
            self._ports["http_port"] = http_port
        self._config = config
        self._root_key = root_key
        self._loop: BackgroundLoop | None = None
        self._server: TidegateServer | None = None

    def start(self) -> Self:
        """Start, and return once the service is ready; raises the service's error if it fails to start."""
        assert self._loop is None, "the service is running already"
        loop, server = BackgroundLoop("tidegate-hub", new_event_loop), TidegateServer(self._settings())
        try:
            self._remember(loop.run(server.start, _START_TIMEOUT_S))
        except BaseException:
            loop.close()
            raise
        self._loop, self._server = loop, server
        return self

    def stop(self) -> None:
        """Stop in order; raises the error that the service failed with, if it did."""
        loop, server = self._loop, self._server
        self._loop = self._server = None
        if loop is not None and server is not None:
            try:
                loop.run(server.close, _STOP_TIMEOUT_S)
            finally:
                loop.close()
                self._ready = None

    def call(self, function: Callable[[TidegateServer], Awaitable[T]]) -> T:
        """The result of ``function(server)``, run on the service's own loop."""
        loop, server = self._loop, self._server
        if loop is None or server is None:
            raise BrokenError("The service is not running.", next_step="Call start() first.")

        async def run() -> T:
            return await function(server)

        return loop.run(run, _START_TIMEOUT_S)

    def ask(self, function: Callable[[TidegateServer], T]) -> T:
        """As ``call``, for a plain function."""

        async def run(server: TidegateServer) -> T:
            return function(server)

        return self.call(run)

    def create_hub(
        self, name: str | None = None, *, partition_count: int = 4, retention_hours: int | None = None
    ) -> str:
        """Create an event hub and return its name; None generates one."""
        chosen = name if name is not None else _make_name()
        hours = RETENTION_HOURS_DEFAULT if retention_hours is None else retention_hours
        self.call(
            lambda server: server.broker.create_event_hub(
                chosen, partition_count=partition_count, retention_hours=hours
            )
        )
        return chosen

    def _settings(self) -> ServerSettings:
        settings = ServerSettings(self.data_dir)
        if self._config is not None:
            settings = load_settings(self._config, data_dir=self.data_dir)
        settings = replace(
            settings, capture_destinations=(*settings.capture_destinations, *_CAPTURE_DESTINATIONS)
        )
        if self._root_key is not None:
            settings = replace(settings, root_key=self._root_key)
        return replace(settings, data_dir=self.data_dir, **self._ports)  # type: ignore[arg-type]


class HubProcess(_Hub):
    """The service in a process of its own, which ``kill`` ends without warning."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        is_tls_used: bool = False,
        is_http_used: bool = False,
        tls_names: Sequence[str] = (),
    ) -> None:
        """data_dir: None is a temporary one. tls_names: as for ``--tls-name``; connection strings use the
        first. Nothing runs before ``start`` (or ``with``).
        """
        super().__init__(data_dir, is_tls_used=is_tls_used, is_http_used=is_http_used)
        self._tls_names = tuple(tls_names)
        self._process: subprocess.Popen[bytes] | None = None
        self._work_dir = Path(tempfile.mkdtemp(prefix="tidegate-process-"))
        self._cleanup.callback(shutil.rmtree, self._work_dir, ignore_errors=True)
        self.log_file = self._work_dir / "service.log"
        """The standard output and error of the service, across restarts."""

    @property
    def process_id(self) -> int:
        """The process id of the running service."""
        assert self._process is not None, "the service is not running"
        return self._process.pid

    def create_hub(
        self, name: str | None = None, *, partition_count: int = 4, retention_hours: int | None = None
    ) -> str:
        """Create an event hub and return its name; None generates one. Also works before ``start``."""
        if self._process is None:
            with HubService(self.data_dir) as service:
                return service.create_hub(
                    name, partition_count=partition_count, retention_hours=retention_hours
                )
        chosen = name if name is not None else _make_name()

        async def create() -> None:
            async with EventHubAdministrator.from_connection_string(self.connection_string) as administrator:
                await administrator.create_event_hub(
                    chosen, partition_count=partition_count, retention_hours=retention_hours
                )

        # In a thread of its own, because the caller may be on an event loop.
        with ThreadPoolExecutor(1) as executor:
            executor.submit(asyncio.run, create()).result(_START_TIMEOUT_S)
        return chosen

    def start(self) -> Self:
        """Start the process; returns once it is ready. Raises BrokenError, with its output, if that fails."""
        assert self._process is None, "the service is running already"
        ready_file = self._work_dir / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tidegate.cli", "serve", "--data-dir", str(self.data_dir)]
        for name, port in self._ports.items():
            if port is not None:
                command += [f"--{name.replace('_', '-')}", str(port)]
        command += ["--ready-file", str(ready_file)]
        command += [f"--tls-name={name}" for name in self._tls_names]
        command += [f"--capture-destination={each}" for each in _CAPTURE_DESTINATIONS]
        with self.log_file.open("ab") as log:
            self._process = self._launch(
                command, log, os.environ | {"TIDEGATE_CONFIG_DIR": str(self._work_dir)}
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                output = self.log_file.read_text(errors="replace")[-2000:]
                raise BrokenError(f"The service did not start. It wrote: {output}")
            time.sleep(0.02)
        self._remember(ReadyInformation(**json.loads(ready_file.read_text())))
        return self

    def _launch(
        self, command: list[str], log: IO[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        """End the process with SIGKILL: nothing is flushed, closed or reported. Harmless if none runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process with SIGTERM and wait for it."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._ready = None
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise OperationTimeoutError(f"The service did not stop within {_STOP_TIMEOUT_S:.0f} s.") from None


def _make_name() -> str:
    return f"hub-{uuid.uuid4().hex[:12]}"

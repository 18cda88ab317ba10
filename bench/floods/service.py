"""The service as a process of its own, run from any checkout, and what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.floods.attack import GROUPS, HUB, PARTITIONS, POLICY, Flood, Target
from bench.floods.canary import CANARY_HUB, CANARY_PARTITIONS
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError
from tidegate.server.ready import ReadyInformation

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_STOPPING: Final = "the service stops"
"""What its log says when a stop begins."""
_POLL_S: Final = 0.02
_KNOWN_SETTINGS: Final = (
    "import dataclasses, json; from tidegate.server.settings import ServerSettings; "
    "print(json.dumps([field.name for field in dataclasses.fields(ServerSettings)]))"
)


class FloodedService:
    """A service on free ports of loopback, with a hub for the canary and one for the flood."""

    def __init__(self, tree: Path, directory: Path, flood: Flood) -> None:
        """tree: the checkout that it runs from. directory: for its data, configuration and log."""
        self.log_file = directory / "service.log"
        self._directory = directory
        self._environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "TIDEGATE_CONFIG_DIR": str(directory),
            "TIDEGATE_ROOT_KEY": secrets.token_hex(32),
        }
        self._flood = flood
        self._key = secrets.token_hex(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: ReadyInformation | None = None

    @property
    def process_id(self) -> int:
        """Of the running service."""
        assert self._process is not None, "the service is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has neither been stopped nor ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> ReadyInformation:
        """Where it listens."""
        assert self._ready is not None, "the service is not running"
        return self._ready

    @property
    def target(self) -> Target:
        """What attackers know of it."""
        ready = self.ready
        return Target(str(ready.amqp), str(ready.amqps), str(ready.http), str(ready.https), self._key)

    @property
    def connection_string(self) -> str:
        """The root policy's, for plain AMQP."""
        assert self.ready.connection_string_plain is not None
        return replace(ConnectionString.parse(self.ready.connection_string_plain), host="127.0.0.1").format()

    def __enter__(self) -> Self:
        configuration, ready_file = self._directory / "service.json", self._directory / "ready.json"
        configuration.write_text(json.dumps(self._configuration()))
        command = [sys.executable, "-m", "tidegate.cli", "serve", "--config", str(configuration)]
        command += ["--ready-file", str(ready_file)]
        for face in ("amqp", "amqps", "http", "https"):
            command += [f"--{face}-port", "0"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._environment,
                preexec_fn=partial(_limit_open_files, self._flood.open_files_max),
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready_file.exists():
            if not self.is_running or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise BrokenError(f"The service did not start. It wrote: {self.log_file.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        values = json.loads(ready_file.read_text())
        self._ready = ReadyInformation(**{name: values.get(name) for name in ReadyInformation.__slots__})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            assert self._process is not None
            self._process.kill()
            self._process.wait()

    def stop(self) -> tuple[float | None, float | None]:
        """Send SIGTERM; seconds until its log says that it stops, and until it has ended. None: never."""
        assert self._process is not None
        known_bytes = self.log_file.stat().st_size
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        begun_s: float | None = None
        while self.is_running and time.monotonic() - started < _STOP_TIMEOUT_S:
            if begun_s is None and self._has_logged(_STOPPING, after_bytes=known_bytes):
                begun_s = time.monotonic() - started
            time.sleep(_POLL_S)
        if begun_s is None and self._has_logged(_STOPPING, after_bytes=known_bytes):
            begun_s = time.monotonic() - started
        return begun_s, None if self.is_running else time.monotonic() - started

    def resident_mb(self) -> float:
        """Anonymous memory: file pages are the kernel's to take back. 0.0 once it has ended."""
        try:
            status = Path(f"/proc/{self.process_id}/status").read_text()
        except OSError:
            return 0.0
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found[1]) * 1024 / 1e6 if found is not None else 0.0

    def _has_logged(self, text: str, *, after_bytes: int) -> bool:
        with self.log_file.open("rb") as log:
            log.seek(after_bytes)
            return text.encode() in log.read()

    def _configuration(self) -> dict[str, object]:
        known = subprocess.run(
            [sys.executable, "-c", _KNOWN_SETTINGS],
            env=self._environment,
            capture_output=True,
            check=True,
        )
        names = set(json.loads(known.stdout))
        policy = {"name": POLICY, "key": self._key, "claims": ["Send", "Listen"]}
        return {
            "data_dir": str(self._directory / "data"),
            "event_hubs": [
                {"name": CANARY_HUB, "partition_count": CANARY_PARTITIONS},
                {"name": HUB, "partition_count": PARTITIONS, "policies": [policy], "consumer_groups": GROUPS},
            ],
            **{
                name: value.replace("{directory}", str(self._directory)) if isinstance(value, str) else value
                for name, value in self._flood.settings.items()
                if name in names
            },
        }


def _limit_open_files(number: int | None) -> None:
    if number is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))

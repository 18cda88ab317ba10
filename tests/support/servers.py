"""What servers that run for tests have in common: a temporary folder, processes, a start that is awaited."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_START_S_MAX: Final = 60.0
_POLL_S: Final = 0.02
_FORMAT: Final = 1
"""Of the data that the servers make: changes with their options."""
_TEMPLATES: Final = Path(__file__).parents[2] / "build" / "servers"


class ServerMissingError(Exception):
    """The server's program is not on this machine."""


class TemporaryServer(ABC):
    """A server whose data is in a temporary folder. A context manager that leaves nothing behind."""

    def __init__(self, name: str) -> None:
        """name: of the folder."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """By name."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server; harmless if it is not running."""

    def close(self) -> None:
        """Stop it, and delete its data."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
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

    def _make_data(self, program: Path, make: Callable[[], None]) -> None:
        """Have the folder ``data``: ``make`` makes the first one for a program, and others are its copies."""
        data, found = self._folder / "data", program.stat()
        facts = [_FORMAT, program, found.st_mtime_ns, found.st_size]
        template = _TEMPLATES / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        template.parent.mkdir(parents=True, exist_ok=True)
        with template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                make()
                begun = template.with_suffix(".begun")
                shutil.rmtree(begun, ignore_errors=True)
                _copy(data, begun)
                begun.rename(template)
                return
        _copy(template, data)

    def logs(self) -> str:
        """The ends of what its processes wrote, for a failure's message."""
        ends = [(path.name, path.read_text(errors="replace")[-2000:]) for path in self._log_files()]
        return "\n".join(f"--- {name}\n{text}" for name, text in ends[-8:])

    def _log_files(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))

    def _run(self, name: str, command: Sequence[str], **options: Any) -> None:
        """Start a process. options: of Popen."""
        assert name not in self._processes, f"{name} is running already"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
            )

    def _wait(self, is_ready: Callable[[], bool], failure: str) -> None:
        """Raises RuntimeError, with the logs, once a process has ended or it takes too long."""
        deadline = time.monotonic() + _START_S_MAX
        while True:
            # First: if the port was taken, its other server would answer.
            has_ended = any(process.poll() is not None for process in self._processes.values())
            if has_ended or time.monotonic() > deadline:
                raise RuntimeError(f"{failure}. {self.logs()}")
            if is_ready():
                return
            time.sleep(_POLL_S)


def _copy(source: Path, target: Path) -> None:
    """With owners and modes."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)

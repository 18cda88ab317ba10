"""Programs in four languages that run until they are killed: what mixed_group and long_runs start.

A program prints one JSON object per line on standard output, which is kept here with the time when it came;
everything else that it writes (the SDK's own log lines) goes to a file in build/interop/logs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.interop.node import FOLDER as JAVASCRIPT
from tests.interop.suites.service import BUILD, ROOT
from tests.interop.suites.suite import ToolMissingError

LOGS: Final = BUILD / "logs"
_INTEROP: Final = ROOT / "tests" / "interop"
_GO: Final = BUILD / "go-lasting"
_JAVA: Final = BUILD / "java-lasting"
_BUILD_S_MAX: Final = 300.0

COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "python": (sys.executable, "-m", "tests.interop.lasting"),
    "javascript": ("node", str(JAVASCRIPT / "lasting.mjs")),
    "go": (str(_GO),),
    "java": ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"@{_JAVA / 'arguments'}", "Lasting"),
}
"""Language → how its programs are started; the name of the program follows."""

_SETTINGS: Final = {
    "TIDEGATE_EVENT_BYTES": "0",
    "TIDEGATE_SEND_INTERVAL_MS": "100",
    "TIDEGATE_RECEIVE_DELAY_MS": "0",
    "TIDEGATE_LEASE_S": "8",
    "TIDEGATE_TOKEN_S": "0",
    # Each SDK's switch for log lines; Python's program has none.
    "AZURE_LOG_LEVEL": "verbose",
    "AZURE_SDK_GO_LOGGING": "all",
}
"""What the programs read, besides TIDEGATE_CONNECTION_STRING, TIDEGATE_HUB and, for members of a group,
AZURITE_CONNECTION_STRING, TIDEGATE_CONTAINER and TIDEGATE_NAMESPACE."""


def prepare_python() -> None:
    """Nothing to build."""


def prepare_javascript() -> None:
    """Raise ToolMissingError where Node.js or the SDK is not there."""
    if shutil.which("node") is None or not (JAVASCRIPT / "node_modules" / "@azure" / "event-hubs").exists():
        raise ToolMissingError("Install Node.js and run `make npm`.")


def prepare_go() -> None:
    """Build the Go program."""
    go = _required("go")
    _run([go, "build", "-o", str(_GO), "./lasting"], _INTEROP / "go")


def prepare_java() -> None:
    """Fetch the Java SDK and compile the program."""
    maven, compiler = _required("mvn"), _required("javac")
    source = _INTEROP / "java" / "src" / "main" / "java" / "Lasting.java"
    target = _JAVA / "Lasting.class"
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return
    _JAVA.mkdir(parents=True, exist_ok=True)
    listed = _JAVA / "class-path"
    command = [maven, "-q", "-B", "-f", str(_INTEROP / "java" / "pom.xml"), "dependency:build-classpath"]
    _run([*command, f"-Dmdep.outputFile={listed}"], _JAVA)
    path = listed.read_text().strip()
    _run([compiler, "-encoding", "UTF-8", "-cp", path, "-d", str(_JAVA), str(source)], _JAVA)
    (_JAVA / "arguments").write_text(f'-cp "{path}:{_JAVA}"\n')


PREPARE: Final[Mapping[str, Callable[[], None]]] = {
    "python": prepare_python,
    "javascript": prepare_javascript,
    "go": prepare_go,
    "java": prepare_java,
}
"""Language → what builds its program; raises ToolMissingError."""


@dataclass(frozen=True, slots=True)
class Line:
    """One object that a program printed."""

    at: float
    """By time.monotonic."""
    said: Mapping[str, Any]


class LastingProgram:
    """A program in a process of its own; a context manager that kills it."""

    def __init__(self, language: str, program: str, environment: Mapping[str, str], *, log: str) -> None:
        """log: the name of the file for what the SDK writes; it is appended to."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log_file = LOGS / f"{log}.log"
        self._log: IO[bytes] = self.log_file.open("ab")
        self._process = subprocess.Popen(
            [*COMMANDS[language], program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, **_SETTINGS, **environment},
        )
        self._lines: list[Line] = []
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"{language} {program}")
        self._reader.start()

    def lines(self) -> list[Line]:
        """What it has printed so far."""
        with self._lock:
            return list(self._lines)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, or was killed."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it with SIGKILL; what it has printed stays. Harmless twice."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._keep(line)

    def _keep(self, line: bytes) -> None:
        try:
            said = json.loads(line) if line.startswith(b"{") else None
        except ValueError:  # it was killed within the line
            said = None
        if said is None or "error" in said:
            self._log.write(line)
            self._log.flush()
        if said is not None:
            with self._lock:
                self._lines.append(Line(time.monotonic(), said))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _required(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise ToolMissingError(f"There is no {tool} on PATH.")
    return found


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_BUILD_S_MAX)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")[-500:]
        raise ToolMissingError(f"{Path(command[0]).name} failed: {said}")

"""Runs a Python program as a process of its own, forked from one that has imported what the program needs.

Starting Python and importing the command line is most of the time of a short command. The child is a real
process: its arguments, environment, streams and exit code are its own. What differs from ``python -m``: its
modules are loaded already, so a test of what a program imports, or of its start, must start it itself.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidegate.testing.hub import HubProcess

_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")
"""What variables begin with that a Python which runs already does not read again."""
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.preloaded"])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it wrote."""

    code: int
    """Its exit code, or minus the number of the signal that ended it."""
    out: bytes
    err: bytes


def run_module(
    module: str, *arguments: str, environment: Mapping[str, str], input_bytes: bytes, timeout_s: float
) -> Ended:
    """Run ``python -m module arguments`` to its end.

    Raises subprocess.TimeoutExpired, having killed it.
    """
    words = (sys.executable, "-m", module, *arguments)
    if _read_at_start(environment) != _read_at_start(os.environ):
        found = subprocess.run(
            words, env=environment, input=input_bytes, capture_output=True, timeout=timeout_s, check=False
        )
        return Ended(found.returncode, found.stdout, found.stderr)
    with TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("in", "out", "err")]
        for stream, content in zip(streams, (input_bytes, b"", b""), strict=True):
            stream.write_bytes(content)
        process = Forked([module, *arguments], environment, streams)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return Ended(code, streams[1].read_bytes(), streams[2].read_bytes())


class Forked:
    """A running program, as ``subprocess.Popen`` has it."""

    def __init__(self, words: list[str], environment: Mapping[str, str], streams: Sequence[Path]) -> None:
        """words: a module and its arguments. streams: files for input, output and errors."""
        self.args = words
        request = (words, dict(environment), os.getcwd(), streams)
        self._process = _FORKS.Process(target=_become, args=request)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel
        """A descriptor that is readable once it has ended."""

    def poll(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def fork_services() -> None:
    """Let ``HubProcess`` fork services whose modules are loaded: 0.05 s of CPU for a start, not 0.8."""
    if (hub := sys.modules.get("tidegate.testing.hub")) is None:
        return
    launch, read = hub.HubProcess._launch, _read_at_start(os.environ)

    def fork(
        service: HubProcess, command: list[str], log: IO[bytes], environment: dict[str, str]
    ) -> Forked | subprocess.Popen[bytes]:
        if _read_at_start(environment) != read:
            started: subprocess.Popen[bytes] = launch(service, command, log, environment)
            return started
        return Forked(command[2:], environment, [Path(os.devnull), Path(log.name), Path(log.name)])

    hub.HubProcess._launch = fork


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _become(words: list[str], environment: dict[str, str], folder: str, streams: Sequence[Path]) -> None:
    """In the child: take over streams, environment, directory and arguments, and run the module."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the server has for itself
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has closed it
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends without them

"""Runs a Python program as a process of its own, forked from one that has imported what the program needs.

Starting Python and importing the command line is most of the time of a short command. The child is a real
process: its arguments, environment, streams and exit code are its own. What differs from ``python -m``: its
modules are loaded already, so a test of what a program imports, or of its start, must start it itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidegate.testing.hub import HubProcess

_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")
"""What variables begin with that a Python which runs already does not read again."""
_UNBUFFERED: Final = "PYTHONUNBUFFERED"
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.preloaded"])
_LOCK: Final = threading.Lock()
"""Who starts a process asks how the others are: of two that read an end, one would find none."""
_CLIENT: Final = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({place!r})
    request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(line, [len(request).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(request)
    sys.exit(int(line.recv(9)))
"""


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
    pipe = subprocess.PIPE
    words = (sys.executable, "-m", module, *arguments)
    with Forked(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate(input_bytes, timeout_s)
        except BaseException:
            process.kill()
            raise
        return Ended(process.returncode, out, err)


class Forked(subprocess.Popen[Any]):
    """A running program. It is forked where its words are those of a Python program; else it is started."""

    _process: Any = None
    _ended_descriptor: int | None = None

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Mapping[str, str] | None,
        *rest: Any,
    ) -> None:
        environment = os.environ if env is None else env
        words = _python_words(args)
        if words is None or pass_fds or _read_at_start(environment) != _STARTED_WITH:
            launch: Any = super()
            launch._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        pipes, is_session = rest[3:9], bool(rest[14])
        ends = [number if end == -1 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = (words, dict(environment), os.path.abspath(cwd or "."), _Descriptors(ends), is_session)
        try:
            self._process = _FORKS.Process(target=_become, args=request)
            with _LOCK:
                self._process.start()
            self.pid = self._process.pid
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once it has ended."""
        if self._process is not None:
            number: int = self._process.sentinel
            return number
        if self._ended_descriptor is None:
            self._ended_descriptor = os.pidfd_open(self.pid)
            weakref.finalize(self, os.close, self._ended_descriptor)
        return self._ended_descriptor

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._process is None:
            started: Any = super()
            code: int | None = started._internal_poll(*given, **named)
            return code
        with _LOCK:
            if self.returncode is None:
                self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._process is None:
            started: Any = super()
            code: int = started._wait(timeout=timeout)
            return code
        if not wait([self.sentinel], timeout) or self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


class _Descriptors:
    """Open files that the child gets."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, (*map(DupFd, self.numbers),)


def _taken(*given: Any) -> list[int]:
    return [each.detach() for each in given]


@contextlib.contextmanager
def forking_program(path: Path, *words: str) -> Iterator[None]:
    """Have a program at a path: for shells, whose commands are forked like those of tests.

    words: what stands behind ``python`` and before the arguments.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            size, streams, _, _ = socket.recv_fds(self.request, 8, 3)
            with self.request.makefile("rb") as file:
                arguments, environment, folder = json.loads(file.read(int.from_bytes(size, "big")))
            command = [sys.executable, *words, *arguments]
            inside, outside, errors = streams
            with Forked(
                command, stdin=inside, stdout=outside, stderr=errors, env=environment, cwd=folder
            ) as process:
                for stream in streams:
                    os.close(stream)
                self.request.sendall(b"%d" % process.wait())

    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        place = f"{folder}/socket"
        with socketserver.ThreadingUnixStreamServer(place, Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            path.write_text(_CLIENT.format(python=sys.executable, place=place))
            path.chmod(0o755)
            try:
                yield
            finally:
                server.shutdown()


def fork_services() -> None:
    """Let ``HubProcess`` fork services whose modules are loaded: 0.05 s of CPU for a start, not 0.8."""
    if (hub := sys.modules.get("tidegate.testing.hub")) is None:
        return

    def fork(
        service: HubProcess, command: list[str], log: IO[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        return Forked(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    hub.HubProcess._launch = fork


def _python_words(command: Any) -> list[str] | None:
    """A module, a program's file, or ``-c`` and a text, and arguments; None: the command is another one."""
    if isinstance(command, str | os.PathLike):
        return None
    words = [*map(os.fsdecode, command)]
    if len(words) < 2 or words[0] != sys.executable:
        return None
    if words[1] == "-m":
        return words[2:]
    return words[1:] if words[1] == "-c" or words[1].endswith(".py") else None


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != _UNBUFFERED
    }


_STARTED_WITH: Final = _read_at_start(os.environ)
"""What the process that forks reads, too: a test that changes its environment afterwards starts programs."""


def _become(
    words: list[str], environment: dict[str, str], folder: str, streams: list[int], is_session: bool
) -> None:
    """In the child: take over streams, environment, directory and arguments, and run the program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the server has for itself
    if is_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    _open_streams(is_unbuffered=bool(environment.get(_UNBUFFERED)))
    sys.argv = words
    try:
        with _ended_by_ctrl_c():
            _run(words)
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends without them


def _open_streams(*, is_unbuffered: bool) -> None:
    """Python's own are the server's, and multiprocessing has closed one of them."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, errors="backslashreplace")  # type: ignore[misc]  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True)
    if is_unbuffered:
        sys.stdout.reconfigure(line_buffering=True)


def _run(words: list[str]) -> None:
    first = words[0]
    sys.path[0] = os.path.dirname(os.path.abspath(first)) if first.endswith(".py") else os.getcwd()
    if first == "-c":
        text = words.pop(1)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), vars(main))
    elif first.endswith(".py"):
        runpy.run_path(first, run_name="__main__")
    else:
        runpy.run_module(first, run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """What nobody catches ends Python by the signal."""
    try:
        yield
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

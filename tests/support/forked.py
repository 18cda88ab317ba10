"""Runs a Python program as a process of its own, forked from one that has imported what the program needs.

Starting Python and importing the command line is most of the time of a short command. The child is a real
process: its arguments, environment, streams and exit code are its own. What differs from ``python -m``: its
modules are loaded already, so a test of what a program imports, or of its start, must start it itself.

    test process -- socket --> server: one per test process, without threads
                               \\-- a fork per command, which becomes the program
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

_IS_SUPPORTED: Final = hasattr(os, "pidfd_open")
"""Linux; elsewhere every program starts a Python."""
_PRELOADED: Final = (
    "tidegate.cli.app",
    "tidegate.client",
    "tidegate.processor",
    "tidegate.sql",
    "uvloop",
    "zoneinfo",
)
_REQUEST_BYTES_MAX: Final = 1 << 20
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG")
"""What variables begin with that a Python which runs already does not read again."""


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
    if not _IS_SUPPORTED or _read_at_start(environment) != _read_at_start(os.environ):
        found = subprocess.run(
            words, env=environment, input=input_bytes, capture_output=True, timeout=timeout_s, check=False
        )
        return Ended(found.returncode, found.stdout, found.stderr)
    request = {"words": [module, *arguments], "environment": dict(environment), "folder": os.getcwd()}
    their_input, our_input = os.pipe()
    pipes = [os.pipe() for _ in range(3)]  # its output, its errors, the server's answers
    theirs = [their_input, *(pipe[1] for pipe in pipes)]
    try:
        socket.send_fds(_server(), [json.dumps(request).encode()], theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    with ThreadPoolExecutor(4) as threads:
        threads.submit(_feed, our_input, input_bytes)
        out, err = (threads.submit(_drain, pipe[0]) for pipe in pipes[:2])
        with open(pipes[2][0], encoding="ascii") as answers:
            pid = int(answers.readline())
            ended = threads.submit(answers.readline)
            try:
                code = int(ended.result(timeout_s))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                ended.result()
                raise subprocess.TimeoutExpired(words, timeout_s) from None
        return Ended(code, out.result(), err.result())


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _feed(descriptor: int, data: bytes) -> None:
    # A program that does not read to the end is a program's right.
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb", buffering=0) as stream:
        while data:
            data = data[stream.write(data) :]


def _drain(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.read()


@cache
def _server() -> socket.socket:
    """The socket to this process's server, which ends once it is closed: at the latest with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            # Like what programs get: no terminal, and nothing to seek in.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )

    def close() -> None:
        ours.close()
        process.communicate()

    atexit.register(close)
    return ours


def _serve(requests: socket.socket) -> str | None:
    """Fork for each request. Returns in the child, with the module that it is to run, and at the end with
    None.
    """
    running: dict[int, tuple[int, int]] = {}
    """By a descriptor of a child: its process id, and where its exit code goes."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                pid, answers = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(answers)
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 4)
            if not data:
                return None
            *streams, answers = descriptors
            pid = os.fork()
            if pid == 0:
                selector.close()
                requests.close()
                for descriptor in (*running, *(other for _, other in running.values()), answers):
                    os.close(descriptor)
                return _become(json.loads(data), streams)
            for descriptor in streams:
                os.close(descriptor)
            os.write(answers, b"%d\n" % pid)
            child = os.pidfd_open(pid)
            running[child] = (pid, answers)
            selector.register(child, selectors.EVENT_READ)


def _become(request: dict[str, object], streams: list[int]) -> str:
    """Take over the request's streams, environment, directory and arguments; returns its module."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, environment, folder = request["words"], request["environment"], request["folder"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    assert isinstance(folder, str)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = words
    return str(words[0])


if __name__ == "__main__":
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    module = _serve(socket.socket(fileno=int(sys.argv[1])))
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)

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
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_READ_AT_START: Final = ("PYTHON", "LC_", "LANG")
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
        request = ([module, *arguments], dict(environment), os.getcwd(), streams)
        process = _FORKS.Process(target=_become, args=request)
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout_s)
        assert process.exitcode is not None
        return Ended(process.exitcode, streams[1].read_bytes(), streams[2].read_bytes())


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _become(words: list[str], environment: dict[str, str], folder: str, streams: Sequence[Path]) -> None:
    """In the child: take over streams, environment, directory and arguments, and run the module."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the server has for itself
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR)
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

"""Runs the command line as users do, in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked import Forked, run_module

COMMAND = (sys.executable, "-m", "tidegate.cli")


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> object:
        """What it wrote to standard output, as JSON."""
        return json.loads(self.out)


def environment_without_service(config_dir: Path) -> dict[str, str]:
    """This process's environment, with no trace of any service of this user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return kept | {"TIDEGATE_CONFIG_DIR": str(config_dir), "XDG_DATA_HOME": str(config_dir)}


def run_tidegate(
    *arguments: str, environment: dict[str, str], input_bytes: bytes = b"", timeout_s: float = 240.0
) -> Result:
    """Run ``tidegate`` with these words to its end."""
    found = run_module(
        "tidegate.cli", *arguments, environment=environment, input_bytes=input_bytes, timeout_s=timeout_s
    )
    return Result(found.code, found.out.decode(), found.err.decode())


def run_on_terminal(
    *arguments: str, environment: dict[str, str], columns: int = 80, typed: str = ""
) -> Result:
    """Run ``tidegate`` on a terminal of that width, in which a person has ``typed`` ahead.

    ``out`` is everything that the terminal showed, with its escape sequences.
    """
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {
        name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = Forked(
        [*COMMAND, *arguments], env=kept | {"TERM": "xterm-256color"}, stdin=side, stdout=side, stderr=side
    )
    os.write(terminal, typed.encode())
    shown = bytearray()
    while process.poll() is None:
        if terminal in select.select([terminal, process.sentinel], [], [])[0]:
            shown += os.read(terminal, 65_536)
    os.close(side)
    with suppress(OSError):  # until all is read that it has written
        while True:
            shown += os.read(terminal, 65_536)
    os.close(terminal)
    return Result(process.wait(), shown.decode().replace("\r\n", "\n"), "")

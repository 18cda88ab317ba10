"""A program that was forked is a process like one that was started: its own streams, environment and end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.forked import Ended, run_module

PROGRAM = """
import os, sys, threading
match sys.argv[1]:
    case "echo":
        print(sys.argv[2:], os.getcwd(), sorted(os.environ), __name__, flush=True)
        sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])
        print("said", file=sys.stderr)
    case "exit":
        sys.exit(int(sys.argv[2]))
    case "fail":
        raise ValueError("no")
    case "die":
        os.kill(os.getpid(), int(sys.argv[2]))
    case "hang":
        threading.Event().wait()
    case "descriptors":
        print(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's directory, with the program in it."""
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, input_bytes: bytes = b"", timeout_s: float = 60) -> Ended:
    """Run the program."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
    return run_module(
        "forked_program",
        *words,
        environment=kept | {"ONLY": "1"},
        input_bytes=input_bytes,
        timeout_s=timeout_s,
    )


def test_words_environment_directory_and_streams(folder: Path) -> None:
    """All of them are what was asked for, and nothing of the server's."""
    data = os.urandom(1 << 20)  # more than a pipe holds
    ended = run("echo", "a", "b c", input_bytes=data)
    said, _, rest = ended.out.partition(b"\n")
    assert said.startswith(f"['a', 'b c'] {folder} [".encode())
    assert b"'ONLY'" in said
    assert b"HOME" not in said
    assert said.endswith(b" __main__")
    assert (ended.code, ended.err) == (0, b"said\n")
    assert rest == data[::-1]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("exit", "7"), 7), (("die", str(int(signal.SIGTERM))), -signal.SIGTERM), (("fail",), 1)],
)
def test_ends(folder: Path, words: tuple[str, ...], code: int) -> None:
    """Exit codes, signals and tracebacks arrive."""
    ended = run(*words)
    assert ended.code == code
    assert (b"ValueError: no" in ended.err) is (words == ("fail",))


def test_time_is_limited(folder: Path) -> None:
    """One that hangs is killed, and the next one runs."""
    with pytest.raises(subprocess.TimeoutExpired):
        run("hang", timeout_s=0.2)
    assert run("exit", "3").code == 3


def test_nothing_is_inherited(folder: Path) -> None:
    """Three streams (and the listing's own), one thread; a program that ignores its input is no trouble."""
    assert run("descriptors", input_bytes=bytes(1 << 20)).out.split() == [b"4", b"1"]

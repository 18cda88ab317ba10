"""A program that was forked is a process like one that was started: its own streams, environment and end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked import Ended, Forked, run_module

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


@pytest.mark.parametrize("words", [["-m", "forked_program"], ["forked_program.py"], ["-c", PROGRAM]])
def test_every_form_of_a_program_is_forked(words: list[str], folder: Path, forked_python: None) -> None:
    """By subprocess's own functions: a module, a file, a text, with pipes and a folder of its own."""
    own = folder / "own"
    own.mkdir()
    (own / "forked_program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, *words, "echo", "a"], cwd=own, input=b"xy", capture_output=True)
    assert done.stdout.startswith(f"['a'] {own} [".encode())
    assert (done.stdout[-2:], done.stderr, done.returncode) == (b"yx", b"said\n", 0)
    for is_started in (False, True):  # as where Python reads the environment when it starts
        environment = os.environ | {"PYTHONHASHSEED": "1"} if is_started else None
        command = [sys.executable, *words, "hang"]
        with subprocess.Popen(command, start_new_session=True, env=environment) as process:
            assert isinstance(process, Forked)
            sentinel = process.sentinel
            while os.getsid(process.pid) != process.pid:
                pass
            process.send_signal(signal.SIGKILL)
            assert select.select([sentinel], [], [], 60)[0] == [sentinel]
            assert process.wait(60) == -signal.SIGKILL


def test_a_line_is_written_at_once_and_ctrl_c_ends_it(folder: Path, forked_python: None) -> None:
    """As with ``python -u``, and by the signal."""
    text = "print('begun')\nimport threading\nthreading.Event().wait()"
    words, pipe = [sys.executable, "-c", text], subprocess.PIPE
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.endswith(b"KeyboardInterrupt\n")


def test_another_program_is_started(folder: Path, forked_python: None) -> None:
    """Also Python, where its variables differ."""
    assert subprocess.check_output(["echo", "a"]) == b"a\n"
    code = "import sys; print(sys.flags.optimize)"
    environment = os.environ | {"PYTHONOPTIMIZE": "2"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment) == b"2\n"


def test_nothing_is_inherited(folder: Path) -> None:
    """Three streams (and the listing's own), one thread; a program that ignores its input is no trouble."""
    assert run("descriptors", input_bytes=bytes(1 << 20)).out.split() == [b"4", b"1"]

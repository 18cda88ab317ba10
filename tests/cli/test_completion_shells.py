"""Shell completion in the shells themselves: keys are typed, and a line is what became of them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem
from tests.cli.support import run_tidegate
from tests.support.absent import not_tested
from tests.support.forked import forking_program

from tidegate.cli.shell.completion_shells import SHELLS, bash_text
from tidegate.testing.hub import HubService

_WAIT_S = 60.0
_FIRST = b"\x01"  # Ctrl-A goes to the beginning of the line
_LAST = b"\x05"

_OWN_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
"""Makes standard input the terminal of its session, which fish insists on, and becomes the shell."""


_ARGUMENTS = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
    "fish": ("-i",),
}
_PRINT_LINE = {
    "bash": """print-line() { echo LINE"<$*>"; }""",
    "zsh": """print-line() { print -r -- LINE"<$*>"; }""",
    "fish": """function print-line; echo LINE"<$argv>"; end""",
}
_SOURCE = {
    "bash": "source <(tidegate completion bash)",
    "zsh": "autoload -Uz compinit; compinit -u -D; source <(tidegate completion zsh)",
    "fish": "tidegate completion fish | source",
}


def _find(shell: str) -> str:
    """Where a shell is. Skips loudly where there is none."""
    program = shutil.which(shell)
    if program is None:
        not_tested(f"NOT TESTED WITH {shell.upper()}: there is none. Install it (apt-get install {shell}).")
    return program


class _Typist:
    """Types into a shell, and reads what it shows."""

    def __init__(self, shell: str, environment: dict[str, str], directory: Path) -> None:
        """Begins the shell, in that directory. Skips loudly where there is none."""
        self._shell = shell
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))  # rows, columns
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, _find(shell), *_ARGUMENTS[shell]],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environment | {"TERM": "xterm", "HOME": str(directory), "INPUTRC": "/dev/null"},
            cwd=directory,
            start_new_session=True,
        )
        os.close(inside)
        self._shown = b""

    def run(self, line: str) -> None:
        """Type a line, and wait until it was carried out."""
        os.write(self._terminal, line.encode() + b"\r" + b'echo CARRIED-"OUT"\r')
        self._wait_shown(re.compile(rb"CARRIED-OUT"))

    def completed(self, line: str) -> str:
        """What a line becomes by the tabulator: its words with single blanks between."""
        keys = line.encode() + b"\t" + _FIRST + b"print-line " + _LAST + b" END\r"
        os.write(self._terminal, keys)
        found = self._wait_shown(re.compile(rb"LINE<(.*?) END>", re.DOTALL))
        return found[1].decode()

    def close(self) -> None:
        """End the shell and what it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._terminal)

    def _wait_shown(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        deadline = time.monotonic() + _WAIT_S
        while (found := pattern.search(self._shown)) is None:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._terminal], [], [], left_s)
            assert ready, f"{self._shell} shows {self._shown[-2000:]!r}"
            try:
                self._shown += os.read(self._terminal, 4096)
            except OSError as error:  # EIO: it has ended
                pytest.fail(f"{self._shell} has ended ({error}): {self._shown[-2000:]!r}")
        self._shown = self._shown[found.end() :]
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where the shells are at home: ``bin/tidegate`` is that of these sources, ``lines.jsonl`` a file."""
    program = tmp_path / "bin" / "tidegate"
    program.parent.mkdir()
    (tmp_path / "lines.jsonl").touch()
    with forking_program(program, "-m", "tidegate.cli"):
        yield tmp_path


@pytest.fixture
def type_into(directory: Path, environment: dict[str, str]) -> Iterator[Callable[[str], _Typist]]:
    """Begins a shell by its name that can call ``print-line``; all are ended with the test."""
    path = f"{directory / 'bin'}{os.pathsep}{environment['PATH']}"
    config = {"PATH": path, "XDG_CONFIG_HOME": str(directory / "config"), "XDG_DATA_HOME": str(directory)}
    config["_TIDEGATE_COMPLETION_S"] = str(_WAIT_S / 2)
    with ExitStack() as stack:

        def begin(shell: str) -> _Typist:
            typist = _Typist(shell, environment | config, directory)
            stack.callback(typist.close)
            typist.run(_PRINT_LINE[shell])
            return typist

        yield begin


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_what_is_typed(
    shell: str, type_into: Callable[[str], _Typist], environment: dict[str, str], hub_service: HubService
) -> None:
    """Commands, options, files, and names of the service and of this machine, by the tabulator."""
    hub = hub_service.create_hub(f"shell-{shell}-hub")
    string = environment["TIDEGATE_CONNECTION_STRING"].encode()
    saved = run_tidegate("profile", "save", "mine", environment=environment, input_bytes=string)
    assert saved.code == 0, saved.err
    typist = type_into(shell)
    typist.run(_SOURCE[shell])
    for line, expected in (
        ("tidegate comp", "tidegate completion"),
        ("tidegate hub d", "tidegate hub delete"),
        ("tidegate hub list --cs", "tidegate hub list --csv"),
        (f"tidegate hub show shell-{shell[:2]}", f"tidegate hub show {hub}"),
        ("tidegate tier show --profile m", "tidegate tier show --profile mine"),
        ("tidegate tier show --profile=m", "tidegate tier show --profile=mine"),
        ("tidegate check li", "tidegate check lines.jsonl"),
    ):
        assert typist.completed(line) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "place", "prepare"),
    [
        ("zsh", "functions/_tidegate", "fpath=(~/functions $fpath); autoload -Uz compinit; compinit -u -D"),
        ("fish", "config/fish/completions/tidegate.fish", "true"),
    ],
    ids=["zsh", "fish"],
)
def test_a_script_that_the_shell_loads_by_itself(
    shell: str,
    place: str,
    prepare: str,
    type_into: Callable[[str], _Typist],
    directory: Path,
    environment: dict[str, str],
) -> None:
    """Where it lies among the shell's own, it completes from the first time on, and ever after."""
    script = directory / place
    script.parent.mkdir(parents=True)
    script.write_text(run_tidegate("completion", shell, environment=environment).out)
    typist = type_into(shell)
    typist.run(prepare)
    assert [typist.completed("tidegate comp") for _ in range(3)] == ["tidegate completion"] * 3


def test_fish_is_told_descriptions_as_a_whole(directory: Path, environment: dict[str, str]) -> None:
    """Long ones are not folded, and not cut off at a comma."""
    path = f"{directory / 'bin'}{os.pathsep}{environment['PATH']}"
    script = "tidegate completion fish | source; complete -C 'tidegate hub list --prof'"
    found = subprocess.run(
        [_find("fish"), "--no-config", "-c", script],
        env=environment | {"PATH": path, "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
        check=True,
    )
    name, _, words = found.stdout.strip().partition("\t")
    assert name == "--profile"
    assert words.endswith("the one written by `tidegate serve`.")


def test_nothing_in_a_name_is_run_by_zsh(directory: Path) -> None:
    """Names come from a service: wherever zsh evaluates them, they are plain text."""
    zsh = _find("zsh")
    touch = ("$(touch a)", "`touch a`")
    names = [before + text for before in ("", "\\", '"', "'", "\\\\", ")") for text in touch] + ["a\\", "a:b"]
    shell = SHELLS["zsh"](click.Command("tidegate"), {}, "tidegate", "_TIDEGATE_COMPLETE")
    items = [item for name in names for item in (CompletionItem(name), CompletionItem("a:b", help=name))]
    (directory / "answer").write_text("\n".join(map(shell.format_completion, items)))
    (directory / "bin" / "tidegate").write_text("#!/bin/sh\ncat answer\n")
    script = (
        f"path=({directory / 'bin'} $path)\n"
        "compdef() { }\n"
        "_describe() { print -rl -- $completions_with_descriptions }\n"
        "compadd() { print -rl -- $completions }\n"
        f"{shell.source()}\n{shell.func_name}\n"
    )
    found = subprocess.run(
        [zsh, "-f", "-c", script], cwd=directory, capture_output=True, text=True, timeout=_WAIT_S
    )
    assert found.stderr == ""
    assert not (directory / "a").exists()
    assert found.stdout.splitlines() == [*(f"a\\:b:{name}" for name in names), *names]


def test_nothing_in_a_name_is_run_by_bash(directory: Path) -> None:
    """What bash puts into the command line is one word that stands for the name, however it was begun."""
    signs = ("", "'", '"', "\\", "~", "*", "; ", " # ", "hub-1")
    names = [before + text for before in signs for text in ("$(touch a)", "`touch a`", ";touch a", "x&", "h")]
    (directory / "answer").write_text("\n".join(bash_text(CompletionItem(name), "h") for name in names))
    script = (
        "IFS=$'\\n'; COMPREPLY=( $(cat answer) ); unset IFS\n"  # as the script for bash does
        'for line in "${COMPREPLY[@]}"; do eval "printf \'%s\\n\' $line"; done\n'
    )
    found = subprocess.run(
        [_find("bash"), "--norc", "-c", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
    )
    assert found.stderr == ""
    assert not (directory / "a").exists()
    assert found.stdout.splitlines() == names
    for name in ("two\nlines", "two\rlines", "\x1b[2J"):
        assert bash_text(CompletionItem(name), "") == ""
    assert [bash_text(CompletionItem(name), "'h") for name in ("hub-1", "hub;touch a")] == ["hub-1", ""]

"""Child processes that are ended completely: each has its own session, and signals go to all of the session.

A process group would not be enough for Spark, whose Python daemon creates its own: a signal to the driver's
group would leave the workers running, and able to commit. The session contains all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from tidegate import TidegateError

ROOT: Final = Path(__file__).resolve().parents[2]
"""The repository's directory, from which children import ``examples``."""
_POLL_S = 0.02

T = TypeVar("T")


class ChildFailedError(TidegateError):
    """A child process ended unexpectedly."""


class ChildSession:
    """A child process and its descendants, as one session. A context manager that leaves none running."""

    def __init__(
        self, name: str, command: Sequence[str], *, log_file: Path, environment: Mapping[str, str]
    ) -> None:
        """Start ``command``; its standard error is appended to ``log_file``, its standard output discarded.

        name: for messages. environment: added to this process's, with the path of ``examples``; for secrets
        as well, because every user of the machine can read command lines.
        """
        self.name = name
        self.log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environment, "PYTHONPATH": _python_path()},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def check_running(self) -> None:
        """Raise ChildFailedError, with the end of its log, if the child has ended."""
        if self.exit_code is not None:
            raise self.failure()

    def failure(self) -> ChildFailedError:
        """The error with its exit code and the end of its log."""
        return ChildFailedError(
            f"The {self.name} ended with code {self.exit_code}. Its log ends:\n{self.log_end()}",
            next_step=f"\nThe complete log is {self.log_file}.",
        )

    def log_end(self, lines_max: int = 15) -> str:
        """The last lines of its log."""
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-lines_max:])

    def kill_at(self, look: Callable[[], T | None]) -> T | None:
        """Kill the session (SIGKILL) if ``look`` finds a moment for it; returns what it found, or None.

        It must find it twice, the second time with every process of the session stopped (SIGSTOP): that is
        the state that the crash leaves. Without it, the session continues.
        """
        if look() is None:
            return None
        self._signal(signal.SIGSTOP)
        found = look()
        if found is None:
            self._signal(signal.SIGCONT)
        else:
            self.kill()
        return found

    def kill(self) -> None:
        """End every process of the session (SIGKILL) and wait until the child is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        # The child's own children have no parent to wait for them: poll until none is left.
        while session_members(self._process.pid):
            self._signal(signal.SIGKILL)
            time.sleep(_POLL_S)

    def terminate(self, *, timeout_s: float) -> None:
        """Ask the child to end (SIGTERM), and kill it after ``timeout_s`` seconds."""
        if self.exit_code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def _signal(self, signal_number: signal.Signals) -> None:
        # The id of a child that has ended may be reused: signal only the members found in /proc.
        members = session_members(self._process.pid)
        if self._process.poll() is None:
            members.add(self._process.pid)
        for process_id in members:
            try:
                os.kill(process_id, signal_number)
            except ProcessLookupError:
                continue


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def session_members(session_id: int) -> set[int]:
    """The running processes of a session; without /proc (macOS), of the process group with its number."""
    if not Path("/proc/self/stat").exists():
        return group_members(session_id)
    members: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The second field is the command in parentheses, and may contain anything: count from its end.
        state, _parent, _group, session = text.rpartition(")")[2].split()[:4]
        if int(session) == session_id and state not in "ZX":
            members.add(int(entry))
    return members


def group_members(group_id: int) -> set[int]:
    """The running processes of a process group, without zombies."""
    found = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,pgid=,state="], capture_output=True, text=True, check=True
    )
    fields = (line.split() for line in found.stdout.splitlines())
    return {int(pid) for pid, group, state in fields if int(group) == group_id and not state.startswith("Z")}

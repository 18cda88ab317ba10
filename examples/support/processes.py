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

import psutil

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
        signal_session(self._process, signal.SIGSTOP)
        found = look()
        if found is None:
            signal_session(self._process, signal.SIGCONT)
        else:
            self.kill()
        return found

    def kill(self) -> None:
        """End every process of the session (SIGKILL) and wait until the child is gone."""
        kill_session(self._process)

    def terminate(self, *, timeout_s: float) -> None:
        """Ask the child to end (SIGTERM), and kill it after ``timeout_s`` seconds."""
        if self.exit_code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """End every process of a session (SIGKILL), and wait until none is left. leader: the first of them."""
    signal_session(leader, signal.SIGKILL)
    leader.wait()
    # The child's own children have no parent to wait for them: poll until none is left.
    while session_members(leader.pid):
        signal_session(leader, signal.SIGKILL)
        time.sleep(_POLL_S)


def signal_session(leader: subprocess.Popen[bytes], signal_number: signal.Signals) -> None:
    """Send a signal to every process of a session."""
    # The id of a child that has ended may be reused: signal only members.
    members = session_members(leader.pid)
    if leader.poll() is None:
        members.add(leader.pid)
    for process_id in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal_number)


def session_members(session_id: int) -> set[int]:
    """The running processes of a session."""
    return {process_id for process_id in psutil.pids() if _is_member(process_id, session_id)}


def _is_member(process_id: int, session_id: int) -> bool:
    try:
        if os.getsid(process_id) != session_id:
            return False
        return psutil.Process(process_id).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False  # it has ended, or is another user's

"""Child sessions: stopped, continued and ended whole, grandchildren in other groups included."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from examples.support.processes import ChildFailedError, ChildSession

# Like Spark's Python daemon: a grandchild in a process group of its own, which counts as long as it lives.
COUNTING_GRANDCHILD = """
import os, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
    number = 0
    while True:
        number += 1
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(number))
        os.replace(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(0.001)
time.sleep(1000)
"""


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def count_file(tmp_path: Path) -> Path:
    """Where the grandchild counts."""
    return tmp_path / "count"


def _start(count_file: Path) -> ChildSession:
    command = [sys.executable, "-c", COUNTING_GRANDCHILD, str(count_file)]
    child = ChildSession("counter", command, log_file=count_file.with_name("log"), environment={})
    _wait_until(count_file.exists)
    return child


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_kill_reaches_a_grandchild_in_another_group(count_file: Path) -> None:
    """Spark's workers leave the driver's group: killing the session must end them nevertheless."""
    with _start(count_file):
        grandchild = int(count_file.with_name("count.pid").read_text())
        assert _is_alive(grandchild)
    assert not _is_alive(grandchild)


def test_a_session_is_stopped_while_its_moment_is_confirmed(count_file: Path) -> None:
    """What is looked at the second time does not move; a session whose moment has passed continues."""
    with _start(count_file) as child:
        grandchild = int(count_file.with_name("count.pid").read_text())
        seen: list[str] = []

        def look() -> str | None:
            if not seen:
                seen.append("running")
                return "now"
            # A stop is carried out when the process is next scheduled: let the last count appear.
            _wait_until(lambda: _is_stopped(grandchild))
            seen.append(count_file.read_text())
            time.sleep(0.05)
            assert count_file.read_text() == seen[-1]
            return None

        assert child.kill_at(look) is None
        assert len(seen) == 2
        _wait_until(lambda: count_file.read_text() != seen[-1])


def test_a_session_is_killed_at_its_moment(count_file: Path) -> None:
    """The moment that is confirmed is returned; a session without one is not touched."""
    with _start(count_file) as child:
        assert child.kill_at(lambda: None) is None
        assert child.exit_code is None
        moments = iter(["seen", "confirmed"])
        assert child.kill_at(lambda: next(moments)) == "confirmed"
        assert child.exit_code == -signal.SIGKILL


def _is_stopped(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_child_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    """A child's own failure comes through with what it said last."""
    command = [sys.executable, "-c", "import sys; sys.exit('out of luck')"]
    with ChildSession("gambler", command, log_file=tmp_path / "log", environment={}) as child:
        _wait_until(lambda: child.exit_code is not None)
        with pytest.raises(ChildFailedError, match=r"(?s)gambler ended with code 1.*out of luck"):
            child.check_running()

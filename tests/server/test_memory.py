"""What the service asks of its process takes effect, and is harmless where it cannot."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.server.memory import memory_max_bytes_default
from tidegate.server.settings import MEMORY_BYTES_MIN

_PROGRAM = """
import resource
from tidegate.server.memory import keep_freed_memory
print(keep_freed_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    block = b"".join((b"x" * 1_000_000, b"y" * 1_000_000))
before = faults()
for _ in range(100):
    block = b"".join((b"x" * 1_000_000, b"y" * 1_000_000))
print(faults() - before)
"""


def test_large_buffers_are_reused() -> None:
    """A hundred buffers of 2 MB, one after the other, cost next to no page faults (else 500 each)."""
    completed = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    is_tuned, faults = completed.stdout.split()
    assert is_tuned == str(platform.libc_ver()[0] == "glibc")
    if is_tuned == "True":
        assert int(faults) < 5_000


_LIMITS = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from tidegate.server.memory import allow_open_files
print(allow_open_files() == hard, resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)
"""


def test_connections_are_not_limited_by_the_shell() -> None:
    """A shell's soft limit on open files, often 1,024, does not decide how many clients can be served."""
    completed = subprocess.run(
        [sys.executable, "-c", _LIMITS], capture_output=True, text=True, check=True, timeout=60
    )
    assert completed.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("group", ["", "system.slice/tidegate.service"])
def test_the_limit_of_a_container_or_unit_counts(tmp_path: Path, group: str) -> None:
    """A service that systemd allows 400 MB does not hold more for its clients than it may have altogether."""

    def default(limit: str | None) -> int:
        directory = tmp_path / "sys/fs/cgroup" / group
        directory.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/\n0::/{group}\n")
        if limit is not None:
            (directory / "memory.max").write_text(limit)
        return memory_max_bytes_default(root=tmp_path)

    of_the_machine = default(None)
    assert of_the_machine > 100_000_000
    assert default("400000000\n") == 100_000_000
    assert default("max\n") == of_the_machine
    assert default("1000000\n") == MEMORY_BYTES_MIN


_SERVING = """
import asyncio, gc, sys
from pathlib import Path
from tidegate.server.app import run_server
from tidegate.server.settings import ServerSettings

async def serve():
    served = asyncio.get_running_loop().create_future()
    settings = ServerSettings(Path(sys.argv[1]), amqp_port=0, http_port=None)
    task = asyncio.get_running_loop().create_task(run_server(settings, on_ready=served.set_result))
    await served
    print(gc.get_freeze_count() > 20_000, len(gc.get_objects()) < 20_000)
    task.cancel()
    await asyncio.wait([task])
    print(gc.get_freeze_count())

asyncio.run(serve())
"""


@pytest.mark.slow
def test_collections_do_not_walk_what_the_start_has_made(tmp_path: Path) -> None:
    """While it serves, a full collection is about what clients have left, and not about all modules."""
    completed = subprocess.run(
        [sys.executable, "-c", _SERVING, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert completed.stdout.split() == ["True", "True", "0"]

"""What the service asks of its process takes effect, and is harmless where it cannot."""

from __future__ import annotations

import platform
import subprocess
import sys

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

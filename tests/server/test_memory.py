"""The allocator's tuning takes effect where there is a glibc, and is harmless where there is none."""

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

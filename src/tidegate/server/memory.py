"""Process settings for a service with megabyte buffers and thousands of connections."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from tidegate.server.settings import MEMORY_BYTES_MIN

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_TRIM_BYTES = 64 * 1024 * 1024
_MMAP_BYTES = 32 * 1024 * 1024
"""The maximum that glibc accepts (malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)."""


_MEMORY_BYTES_DEFAULT_MAX: Final = 512 * 1024 * 1024
_NEVER: Final = 1 << 30
_COLLECT_INTERVAL_S: Final = 0.5
_OTHER_BLOCKS_MIN: Final = 30_000
"""Blocks of memory that may be garbage before a full collection: 10 ms of it. Our choice."""
_BYTES_PER_BLOCK: Final = 128
"""Of what clients hold, as the budget counts it. Our choice: half of what links have (252 bytes, 0.4 objects
that a collection walks), so that clients alone are never a reason to collect."""
_BLOCKS_PER_CONNECTION: Final = 200
"""Beyond those for its bytes. Measured: an idle one over AMQP has 208 blocks, counted as 9.5 KB."""
_OPEN_FILES_MAX: Final = 1 << 20
"""Our choice, used if the system's limit is larger or absent."""


def keep_freed_memory() -> bool:
    """Make glibc keep up to 64 MB of freed memory instead of returning every large buffer to the kernel.

    Otherwise each 1 MB batch costs 256 page faults: serving batches to our client took 2.4 µs of CPU per 1 KB
    event without it, and 1.2 µs with it (measured on 2 shared cores). Affects the whole process, so only its
    owner should call this. Returns False, and changes nothing, without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES))


@contextlib.contextmanager
def full_collections_put_off() -> Iterator[None]:
    """Within the block, only ``Collections`` makes full garbage collections, which exclude what exists now.

    A full collection walks every object and blocks the event loop meanwhile: 0.1 s for the modules and
    startup objects alone, and 0.5 s for 100,000 links of clients (measured on 2 shared cores). Python makes
    one whenever there are a quarter more objects. Affects the whole process, so only its owner should call
    this.
    """
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    if sys.getallocatedblocks():  # 0 with PYTHONMALLOC=malloc: nothing says how much there is
        gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Collections:
    """Collects garbage: of new objects often, of all objects only when there may be much of it.

    What ended connections leave is freed without (``AmqpDriver``). So old garbage is rare, and the number of
    objects beyond what clients hold bounds it: it may double before all of them are walked. Where clients
    hold large messages, garbage may take about as much memory as those.
    """

    def __init__(self, held_bytes: Callable[[], int], connections: Callable[[], int]) -> None:
        """held_bytes: what clients hold now, as the memory budget counts it. connections: the open ones."""
        self._held_bytes = held_bytes
        self._connections = connections
        self._blocks_at_start = sys.getallocatedblocks()
        self._other_blocks_max = 2 * _OTHER_BLOCKS_MIN
        self._is_due = False

    async def run(self) -> NoReturn:
        """Collect until cancelled."""
        while True:
            await asyncio.sleep(_COLLECT_INTERVAL_S)
            self.collect()

    def collect(self) -> None:
        """Collect garbage among new objects, and among all not frozen if that is due, and was before."""
        # Not left to Python, which counts objects that are freed against new ones: where as many clients come
        # as go, it would collect nothing, and then walk all of them as new.
        gc.collect(1)
        was_due, self._is_due = self._is_due, self._other_blocks > self._other_blocks_max
        # Not at once: what connections held that have just ended is freed a moment later.
        if was_due and self._is_due:
            gc.collect()
            self._other_blocks_max = 2 * max(_OTHER_BLOCKS_MIN, self._other_blocks)
            self._is_due = False

    @property
    def _other_blocks(self) -> int:
        """Blocks of memory for objects since the start, but for those that clients hold."""
        blocks = sys.getallocatedblocks() - self._blocks_at_start
        of_connections = self._connections() * _BLOCKS_PER_CONNECTION
        return blocks - self._held_bytes() // _BYTES_PER_BLOCK - of_connections


def give_back_freed_memory() -> None:
    """Make glibc return all freed memory to the kernel; may take 0.1 s. Does nothing without glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def memory_max_bytes_default(*, root: Path = Path("/")) -> int:
    """The default limit of memory for clients: a quarter of the memory available to this process.

    That is the machine's memory, or the limit of its container or systemd's MemoryMax=.
    """
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
        available = min(available, int((_cgroup(root) / "memory.max").read_text()))
    return max(MEMORY_BYTES_MIN, min(available // 4, _MEMORY_BYTES_DEFAULT_MAX))


def _cgroup(root: Path) -> Path:
    """The directory of this process's control group (Linux, Documentation/admin-guide/cgroup-v2.rst).

    Raises OSError or ValueError where there is none.
    """
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    (path,) = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return root / "sys/fs/cgroup" / path


def allow_open_files() -> int:
    """Raise this process's limit on open files as far as permitted, and return the new limit.

    Each connection is an open file, and a shell's usual limit is 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports a hard limit that it does not grant; the previous limit then stays.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_max()


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, _OPEN_FILES_MAX)

"""Whose fault an error is: the event's, or that of a process that is ended or at its limit of memory. It asks
the system."""

from __future__ import annotations

import mmap
import os
from typing import Final

from tidegate.processor.raised import is_of_call

_ROOM_BYTES_MAX: Final = 1024 * 1024 * 1024
_ROOM_SHARE: Final = 4
"""A process that can have 1 GiB at once is not short of memory; if a quarter of its limit of address space
or of the machine's memory is less, that (our choice: more than a handler needs for an event)."""


def is_of_event(error: BaseException) -> bool:
    """Whether what a user's code raises for an event may be that event's fault."""
    return is_of_call(error) and not (isinstance(error, MemoryError) and is_memory_short())


def is_memory_short() -> bool:
    """Whether this process is at its limit of memory; otherwise a MemoryError is the event's fault.

    A few bytes of an event can ask for terabytes, as the header of a NumPy array does.
    """
    try:
        # Not written to, so it takes some microseconds; Python's allocator would, in its debug mode.
        with mmap.mmap(-1, _room_bytes()):
            return False
    except (MemoryError, OSError):
        return True


def _room_bytes() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # on Windows
        return _ROOM_BYTES_MAX
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    # Linux refuses at once what is larger than the machine's memory.
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = memory if limit == resource.RLIM_INFINITY else min(limit, memory)
    return min(_ROOM_BYTES_MAX, most // _ROOM_SHARE)

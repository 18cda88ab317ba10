"""Long work on the event loop, a millisecond at a time, so that other connections do not wait longer.

A thread would not help: such work holds the interpreter's lock, and each turn of the event loop would wait 5
ms for it (``sys.getswitchinterval``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final, TypeVar
from weakref import WeakValueDictionary

SLICE_S: Final = 0.001
"""Work between two turns of the event loop (our choice)."""

T = TypeVar("T")


class SlicedWork:
    """Consumes iterators in turn, a slice of each, so that many cost no more per turn than one, and a short
    one does not wait for the end of a long one. Addresses take turns, and then the iterators of each.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._lock_of_address: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()

    async def collect(self, items: Iterator[T], *, address: object = None) -> list[T]:
        """All items of an iterator. Each step should be short; a slice runs without interruption.

        address: any hashable; the peer whose work it is. None: of no peer in particular.
        Raises what ``items`` raises. Cancellation: ``items`` is not advanced further.
        """
        found: list[T] = []
        own_turn = self._lock_of_address.setdefault(address, asyncio.Lock())
        append, clock = found.append, time.perf_counter
        while True:
            # In this order: of each address, one waits for the common lock, and they get it in turn.
            async with own_turn, self._lock:
                until = clock() + SLICE_S
                for item in items:
                    append(item)
                    if clock() >= until:
                        break
                else:
                    return found
                # Within the lock: one slice per turn of the event loop, for all callers together.
                await asyncio.sleep(0)

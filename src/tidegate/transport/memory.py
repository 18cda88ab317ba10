"""The memory that a service holds for its peers, as one count, and the measures over the limit.

An account belongs to one peer and counts bytes that only the peer can free, by reading or by finishing what
it began; bytes that wait for the disk are added (``add_queued``). An account is measured once per read or
write, so a silent peer costs nothing.

    used                      state        what happens
    below half of the limit   plenty       nothing
    from half on, until it    short        accounts are measured again and free what can be read again;
    is below a quarter                     work that fills memory checks ``is_short`` and holds less
    from the limit on         exhausted    new peers are refused, and peers are ended until a tenth is free:
                                           always one of the address that holds most in all, which has held
                                           most for longest (up to 1 s) without progress
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from tidegate.model.errors import ServerBusyError

RELIEF_INTERVAL_S: Final = 0.25
"""How often accounts are measured while memory is short (our choice: 5,000 take about 10 ms)."""

_STEPS_AT_ONCE: Final = 25
"""Steps that free memory, in one pass of the event loop (our choice: a receiver that drops what it has read
takes 18 to 33 us, and a connection has thousands)."""

_SHORT_PART: Final = 0.5
_PLENTY_PART: Final = 0.25
"""Separate limits, because freed memory fills again immediately: with one limit, each crossing would leave
more to peers that do not read."""

_RELIEVED_PART: Final = 0.9
_PROGRESS_PART: Final = 0.75
"""An account has made progress when it holds this part of its maximum since the last time, or less."""
_STANDSTILL_S_MAX: Final = 1.0
"""Seconds without progress that count; then bytes decide. A quiet client keeps its links for days."""


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    bytes_max: int
    used_bytes: int
    """Held for peers, and queued for the disk."""
    ended_peers: int
    """Ended since the start because memory was exhausted."""


class MemoryBudget:
    """One per service, used from its event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used_bytes = 0
        self._peak_bytes = 0
        self._accounts: set[MemoryAccount] = set()
        self._ended_peers = 0
        self._was_short = False
        self._adapting: Iterator[None] | None = None
        """Steps with which accounts adapt to ``_was_short``; None: all are done."""
        self._relief: asyncio.Handle | None = None
        self._is_relief_soon = False

    def __repr__(self) -> str:
        return f"<MemoryBudget {self._used_bytes} of {self.bytes_max} accounts={len(self._accounts)}>"

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics(self.bytes_max, self._used_bytes, self._ended_peers)

    def take_peak_bytes(self) -> int:
        """The most that was used since the last call."""
        peak, self._peak_bytes = self._peak_bytes, self._used_bytes
        return peak

    @property
    def is_short(self) -> bool:
        """Whether to hold as little as possible."""
        part = _PLENTY_PART if self._was_short else _SHORT_PART
        return self._used_bytes >= self.bytes_max * part

    @property
    def is_exhausted(self) -> bool:
        """Whether to refuse new peers and new work."""
        return self._used_bytes >= self.bytes_max

    def require_room(self) -> None:
        """Raise ServerBusyError while memory is exhausted."""
        if self.is_exhausted:
            raise ServerBusyError(
                "The service's memory for clients is exhausted.",
                next_step="Try again later.",
                retry_after_s=4.0,
            )

    def open_account(
        self,
        measure: Callable[[], int],
        *,
        address: Hashable,
        end: Callable[[], None],
        on_pressure: Callable[[bool], Iterator[None]] | None = None,
    ) -> MemoryAccount:
        """An account for one peer; ``close`` it with the peer.

        measure: returns the bytes that only the peer can free. address: the peer's, as of ``peers.site_of``;
        all of unknown address (None) count as one. end: ends the peer, and frees them.
        on_pressure: called with True when memory becomes short, and with False when it no longer is; adapts
        in steps of some microseconds each, and may be left before the last. Must not raise.
        """
        account = MemoryAccount(self, measure, address, end, on_pressure, asyncio.get_running_loop().time)
        self._accounts.add(account)
        if self._was_short:
            for _ in account.adapt(True):
                pass
        return account

    def add_queued(self, change: int) -> None:
        """Count bytes that wait for the disk; accounts count theirs in the same way."""
        self._used_bytes += change
        if self._used_bytes > self._peak_bytes:
            self._peak_bytes = self._used_bytes
        if change > 0 and self._used_bytes >= self.bytes_max * _SHORT_PART:
            if self._used_bytes >= self.bytes_max and not self._is_relief_soon:
                if self._relief is not None:
                    self._relief.cancel()
                self._is_relief_soon = True
                self._relief = asyncio.get_running_loop().call_soon(self._relieve)
            elif self._relief is None:
                self._relief = asyncio.get_running_loop().call_soon(self._relieve)

    # -- helpers

    def _relieve(self) -> None:
        self._relief = None
        self._is_relief_soon = False
        # Whether the kernel has accepted more of a socket's unsent bytes shows only when it is measured.
        for account in tuple(self._accounts):
            account.update()
        self._set_short(self.is_short)
        if self.is_exhausted and self._adapting is not None:
            for _ in self._adapting:  # at once: it may free enough
                pass
        if self.is_exhausted:
            self._end_largest()
        if self.is_short:
            if self._relief is None:
                loop = asyncio.get_running_loop()
                self._relief = loop.call_later(RELIEF_INTERVAL_S, self._relieve)
        else:
            self._set_short(False)

    def _set_short(self, is_short: bool) -> None:
        if is_short is self._was_short:
            return
        self._was_short = is_short
        is_under_way = self._adapting is not None
        self._adapting = self._adapt_all(is_short)
        if not is_under_way:
            self._adapt_some()

    def _adapt_all(self, is_short: bool) -> Iterator[None]:
        for account in tuple(self._accounts):
            yield from account.adapt(is_short)
        self._adapting = None

    def _adapt_some(self) -> None:
        for _ in islice(self._adapting or (), _STEPS_AT_ONCE):
            pass
        if self._adapting is not None:
            asyncio.get_running_loop().call_soon(self._adapt_some)

    def _end_largest(self) -> None:
        """End peers until there is room. However many an address has, another one that holds less than its
        equal part keeps its own: a quiet client's links, sessions and tokens never make progress."""
        by_address: defaultdict[Hashable, list[MemoryAccount]] = defaultdict(list)
        for account in self._accounts:
            if account.held_bytes:
                by_address[account.address].append(account)
        addresses = []
        for number, accounts in enumerate(by_address.values()):
            accounts.sort(key=lambda account: account.burden)
            addresses.append((-sum(account.held_bytes for account in accounts), number, accounts))
        heapify(addresses)
        while addresses and self._used_bytes >= self.bytes_max * _RELIEVED_PART:
            negative_bytes, number, accounts = heappop(addresses)
            account = accounts.pop()
            if accounts:
                heappush(addresses, (negative_bytes + account.held_bytes, number, accounts))
            self._ended_peers += 1
            account.end()


class MemoryAccount:
    """The memory held for one peer. Created by ``MemoryBudget.open_account``."""

    __slots__ = (
        "_budget",
        "_end",
        "_is_closed",
        "_measure",
        "_on_pressure",
        "_peak",
        "_progress_at",
        "_time",
        "address",
        "held_bytes",
    )

    def __init__(
        self,
        budget: MemoryBudget,
        measure: Callable[[], int],
        address: Hashable,
        end: Callable[[], None],
        on_pressure: Callable[[bool], Iterator[None]] | None,
        time: Callable[[], float],
    ) -> None:
        self.address = address
        """May be set where the connection of a proxy has another client."""
        self.held_bytes = 0
        """At the last measurement."""
        self._budget = budget
        self._measure = measure
        self._end = end
        self._on_pressure = on_pressure
        self._time = time
        self._peak = 0
        self._progress_at = time()
        self._is_closed = False

    def update(self) -> None:
        """Measure again. Call it once per read or write, not per event."""
        if self._is_closed:
            return
        held = self._measure()
        change = held - self.held_bytes
        if change:
            self._set(held)
            self._budget.add_queued(change)

    @property
    def burden(self) -> float:
        """Bytes held without progress times how long, in byte seconds."""
        return self.held_bytes * min(self._time() - self._progress_at, _STANDSTILL_S_MAX)

    def end(self) -> None:
        """End the peer. Its bytes are about to be freed, and no longer count."""
        self._end()
        self.close()

    def adapt(self, is_short: bool) -> Iterator[None]:
        """Adapt, in steps, to memory that has become short, or no longer is."""
        if self._on_pressure is not None and not self._is_closed:
            yield from self._on_pressure(is_short)
            self.update()
        yield

    def close(self) -> None:
        """The peer is gone, with all it held. Repeated calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.add_queued(-self.held_bytes)
            self._budget._accounts.discard(self)
            self.held_bytes = 0

    def _set(self, held: int) -> None:
        self.held_bytes = held
        if held <= self._peak * _PROGRESS_PART or not self._peak:
            self._peak = held
            self._progress_at = self._time()
        elif held > self._peak:
            self._peak = held

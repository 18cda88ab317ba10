"""The memory that is held for peers: counted, given back when short, taken from the right ones when gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidegate.model.errors import ServerBusyError
from tidegate.transport.memory import MemoryAccount, MemoryBudget


class Peer:
    """A peer that holds what a test says."""

    def __init__(self, budget: MemoryBudget, address: str = "here", *, steps: int = 0) -> None:
        """steps: in which it adapts to a shortage, each of which frees a byte."""
        self.held = 0
        self.steps = steps
        self.is_ended = False
        self.pressures: list[bool] = []
        self.account: MemoryAccount = budget.open_account(
            lambda: self.held, address=address, end=self._end, on_pressure=self._adapt
        )

    def hold(self, size: int) -> None:
        """Hold so much from now on."""
        self.held = size
        self.account.update()

    def _adapt(self, is_short: bool) -> Iterator[None]:
        self.pressures.append(is_short)
        for _ in range(self.steps if is_short else 0):
            self.held -= 1
            yield

    def _end(self) -> None:
        self.held = 0
        self.is_ended = True


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_accounts_add_up() -> None:
    """What is used is what all hold and what is queued; a peer that is gone holds nothing."""
    budget = MemoryBudget(1000)
    first, second = Peer(budget), Peer(budget)
    first.hold(100)
    second.hold(50)
    first.hold(70)
    budget.add_queued(30)
    assert budget.statistics().used_bytes == 150
    assert budget.take_peak_bytes() == 150
    first.account.close()
    first.account.close()
    first.hold(999)
    budget.add_queued(-30)
    assert budget.statistics().used_bytes == 50
    assert budget.take_peak_bytes() == 150
    assert budget.take_peak_bytes() == 50


async def test_shortage_is_told_once_each_way() -> None:
    """From half of the limit on everybody is asked to hold less, late comers, too, until it is over."""
    budget = MemoryBudget(1000)
    first = Peer(budget)
    first.hold(499)
    await _settle()
    assert not budget.is_short
    first.hold(500)
    await _settle()
    assert budget.is_short
    second = Peer(budget)
    assert (first.pressures, second.pressures) == ([True], [True])
    first.held = 0  # the kernel took it: nobody measures until the budget does
    async with asyncio.timeout(30.0):
        while second.pressures != [True, False]:  # noqa: ASYNC110 - the budget announces it to peers only
            await asyncio.sleep(0.01)
    assert not budget.is_short
    assert not first.is_ended


async def test_peers_adapt_to_a_shortage_in_pieces() -> None:
    """Protects the event loop: 8,000 receivers that dropped what they had read took 0.26 s in one step."""
    budget = MemoryBudget(10_000)
    peers = [Peer(budget, steps=1000) for _ in range(5)]
    for peer in peers:
        peer.hold(1001)
    freed, left = [0], 5005
    while left > 5:
        await asyncio.sleep(0)
        freed.append(left - sum(peer.held for peer in peers))
        left -= freed[-1]
    assert max(freed) < 100
    await _settle()
    assert budget.statistics().used_bytes == 5


async def test_memory_is_freed_at_once_before_peers_are_ended() -> None:
    """Protects who holds only what can be read again: where memory is exhausted before all have dropped that,
    they do so first."""
    budget = MemoryBudget(10_000)
    peers = [Peer(budget, steps=1000) for _ in range(5)]
    for peer in peers:
        peer.hold(1001)
    await asyncio.sleep(0)
    assert budget.is_short
    assert sum(peer.held for peer in peers) > 4000
    budget.add_queued(6000)
    await _settle()
    assert sum(peer.held for peer in peers) == 5
    assert not any(peer.is_ended for peer in peers)


async def test_who_holds_most_without_progress_is_ended() -> None:
    """At the limit those go who sit on memory, not who works through as much, until there is room."""
    budget = MemoryBudget(1000)
    idlers = [Peer(budget) for _ in range(3)]
    for idler in idlers:
        idler.hold(200)
    await asyncio.sleep(0.05)
    reader = Peer(budget)
    reader.hold(300)
    budget.require_room()
    reader.hold(100)
    reader.hold(420)
    assert budget.is_exhausted
    with pytest.raises(ServerBusyError):
        budget.require_room()
    await _settle()
    assert not reader.is_ended
    assert [idler.is_ended for idler in idlers].count(True) == 1
    assert budget.statistics().used_bytes == 820
    assert budget.statistics().ended_peers == 1


async def test_a_quiet_peer_of_yesterday_stays_where_others_fill_memory() -> None:
    """What its links take counts as held since it came: a day of little was more than seconds of much."""
    budget = MemoryBudget(1000)
    quiet, filling = Peer(budget), Peer(budget)
    quiet.hold(20)
    filling.hold(900)
    quiet.account._progress_at -= 86_400.0
    filling.account._progress_at -= 2.0
    filling.hold(990)
    await _settle()
    assert filling.is_ended
    assert not quiet.is_ended


async def test_an_address_with_little_keeps_all_of_it_where_another_fills_memory() -> None:
    """Protects a quiet client with a link for each partition: it was ended first, whenever it came back, by
    one address with many connections of little each."""
    budget = MemoryBudget(1000)
    quiet, also_quiet = Peer(budget, "quiet"), Peer(budget, "quiet")
    quiet.hold(200)
    also_quiet.hold(20)
    for peer in (quiet, also_quiet):
        peer.account._progress_at -= 86_400.0
    fillers = [Peer(budget, "filling") for _ in range(78)]
    for filler in fillers:
        filler.hold(10)
    await _settle()
    assert not any(peer.is_ended for peer in (quiet, also_quiet))
    assert [filler.is_ended for filler in fillers].count(True) == 11
    assert budget.statistics().used_bytes == 890


async def test_addresses_that_hold_most_are_cut_to_one_size() -> None:
    """Protects who holds less than an equal part from several addresses that fill memory. In each of them,
    who makes least progress goes first."""
    budget = MemoryBudget(1000)
    quiet = Peer(budget, "quiet")
    quiet.hold(200)
    fillers = {name: [Peer(budget, name) for _ in range(4)] for name in ("one", "another")}
    slow = [peers[2] for peers in fillers.values()]
    for peer in (*fillers["one"], *fillers["another"][:3]):
        peer.hold(100)
    for peer in (quiet, *slow):
        peer.account._progress_at -= 10.0
    fillers["another"][3].hold(100)
    await _settle()
    assert not quiet.is_ended
    for peers in fillers.values():
        assert [peer.is_ended for peer in peers] == [False, False, True, False]


async def test_what_waits_for_the_disk_ends_nobody() -> None:
    """Bytes that go by themselves are no peer's fault, and peers that hold nothing are left alone."""
    budget = MemoryBudget(1000)
    peer = Peer(budget)
    budget.add_queued(2000)
    await _settle()
    assert budget.is_exhausted
    assert not peer.is_ended

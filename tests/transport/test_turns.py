"""Turns on a fake clock and a fake event loop: who is served when, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise

import pytest

from tidegate.transport.turns import (
    ARRIVAL_S,
    CREDIT_S,
    HEALTH_PASS_S,
    PASS_S,
    REST_AFTER_S,
    SLICE_S,
    Rests,
    Share,
    Turns,
)


class Loop:
    """Time that passes only where work is done, and passes that are made by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        self.rested_at: list[float] = []
        self.turns = Turns(
            monotonic=lambda: self.now,
            call_soon=self.due.append,
            rests=Rests(lambda: self.rested_at.append(self.now)),
        )

    def run_pass(self) -> float:
        """One pass of the event loop; returns how long it took."""
        started = self.now
        due, self.due[:] = list(self.due), []
        for function in due:
            function()
        return self.now - started


class Peer:
    """Somebody with pieces of work that take ``piece_s`` each."""

    def __init__(
        self,
        loop: Loop,
        *,
        piece_s: float = 0.0003,
        has_turns: bool = True,
        turns: Turns | None = None,
        address: str = "192.0.2.1",
    ) -> None:
        self.loop = loop
        self.pieces = 0
        self.done = 0
        self.piece_s = piece_s
        self.share = Share((turns or loop.turns) if has_turns else None, self.work)
        self.share.join(address)

    def ask(self, pieces: int) -> None:
        """More work has come."""
        self.pieces += pieces
        self.share.serve()

    def work(self) -> bool:
        """See ``Share``."""
        while self.pieces:
            self.pieces -= 1
            self.done += 1
            self.loop.now += self.piece_s
            if self.share.is_time_over:
                break
        return self.pieces > 0


def test_work_is_done_at_once_where_nobody_else_has_any() -> None:
    """Protects latency: a request on a quiet service waits for no pass of the loop."""
    loop = Loop()
    peer = Peer(loop)
    peer.ask(2)
    assert peer.done == 2
    loop.run_pass()
    assert loop.due == []  # nothing goes on where there is nothing to do


def test_without_turns_everything_is_done_at_once() -> None:
    """Protects clients, which have one connection and nobody to be fair to."""
    peer = Peer(Loop(), has_turns=False)
    peer.ask(10_000)
    assert peer.done == 10_000


def test_one_busy_peer_has_the_whole_loop_and_no_pass_is_long() -> None:
    """Protects throughput, and everything else on the loop: a pass ends after its time."""
    loop = Loop()
    peer = Peer(loop)
    peer.ask(1000)
    longest = 0.0
    passes = 0
    while loop.due:
        longest = max(longest, loop.run_pass())
        passes += 1
    assert peer.done == 1000
    assert longest <= PASS_S + SLICE_S + peer.piece_s
    assert passes <= 1000 * peer.piece_s / PASS_S + 2


def test_a_quiet_peer_is_answered_in_the_next_pass_behind_any_number_of_busy_ones() -> None:
    """Protects quiet users: 500 floods do not make them wait longer than one flood does."""
    loop = Loop()
    busy = [Peer(loop) for _ in range(500)]
    quiet = Peer(loop)
    for peer in busy:
        peer.ask(1_000_000)
    for _ in range(4000):
        loop.run_pass()
        before = quiet.done
        asked_at = loop.now
        # From when everybody was served once on, half of a fair share.
        if loop.now - 100.0 > 1.0 + 2 * 501 * quiet.piece_s * (quiet.done + 1):
            quiet.ask(1)
            for _ in range(2):
                if quiet.done == before:
                    loop.run_pass()
            assert quiet.done == before + 1
            assert loop.now - asked_at <= PASS_S + 3 * SLICE_S
    assert quiet.done > 5
    shares = [peer.done for peer in busy]
    assert max(shares) <= min(shares) + 10


def test_an_active_peer_waits_for_no_thousand_that_come_back_from_idleness() -> None:
    """Protects who has been active: each of the others has had less, and all together had 5 s before it."""
    loop = Loop()
    active, others = Peer(loop), [Peer(loop) for _ in range(1000)]
    for _ in range(100):
        active.ask(1)
        loop.run_pass()
    for peer in others:
        peer.ask(100)
    loop.run_pass()
    for number in range(100):
        active.ask(1)
        assert active.done == 101 + number
        loop.run_pass()
    assert sum(peer.done for peer in others) > 300  # and they get on


def test_who_is_active_waits_for_no_thousand_of_another_address() -> None:
    """Protects a quiet user with work all the time from a thousand connections that come at once: each of
    them has had less than it, but their address soon has had more.
    """
    loop = Loop()
    active = Peer(loop, address="192.0.2.2")
    others = [Peer(loop) for _ in range(1000)]
    for _ in range(100):
        active.ask(1)
        loop.run_pass()
    for peer in others:
        peer.ask(1)
    filler = Peer(loop)
    for number in range(100):
        filler.ask(100)  # before it in each pass
        active.ask(3)
        asked_at = loop.now
        while active.pieces:
            loop.run_pass()
        assert loop.now - asked_at <= 2 * PASS_S + CREDIT_S, number
    while loop.due:
        loop.run_pass()
    assert [peer.done for peer in others] == [1] * 1000


def test_who_is_there_already_waits_for_no_thousand_that_arrive() -> None:
    """Protects established users from a thousand addresses whose connections come at once, and those from
    waiting for ever: they have a fifth of the time or more.
    """
    loop = Loop()
    active = Peer(loop, turns=loop.turns.for_arrivals, address="192.0.2.2")
    while active.share.served_s < ARRIVAL_S:
        active.ask(1)
        loop.run_pass()
    arriving = [
        Peer(loop, turns=loop.turns.for_arrivals, address=f"198.51.100.{number}") for number in range(1000)
    ]
    busy = Peer(loop)
    busy.ask(100_000)
    for peer in arriving:
        peer.ask(3)
    for number in range(100):
        active.ask(3)
        asked_at = loop.now
        while active.pieces:
            loop.run_pass()
        # Two passes of those that arrive, and of those that are there.
        assert loop.now - asked_at <= 2 * 2 * (PASS_S + busy.piece_s) + 3 * active.piece_s, number
    assert any(peer.pieces for peer in arriving)
    assert sum(peer.done for peer in arriving) * 3e-4 > (loop.now - 100.0) / 5


def test_a_health_check_does_not_wait_behind_arrivals() -> None:
    """Protects monitoring: beside a thousand new connections of fifty addresses, a request for ``/health`` is
    served within two passes; and many such requests leave the others their time.
    """
    loop = Loop()
    arriving = [
        Peer(loop, turns=loop.turns.for_arrivals, address=f"198.51.100.{number % 50}")
        for number in range(1000)
    ]
    for peer in arriving:
        peer.ask(10)
    for number in range(50):
        check = Peer(loop, turns=loop.turns.for_health, address="192.0.2.2")
        asked_at = loop.now
        check.ask(1)
        while check.pieces:
            loop.run_pass()
        assert loop.now - asked_at <= 2 * (PASS_S + HEALTH_PASS_S + SLICE_S), number
    before = sum(peer.done for peer in arriving)
    checks = [Peer(loop, turns=loop.turns.for_health) for _ in range(100)]
    for peer in checks:
        peer.ask(100)
    for _ in range(100):
        loop.run_pass()
    assert sum(peer.done for peer in checks) < (sum(peer.done for peer in arriving) - before) / 2


def test_addresses_share_time_whatever_number_of_connections_they_have() -> None:
    """Protects an address with one busy connection from another with a hundred; and within one, its own."""
    loop = Loop()
    alone = Peer(loop, address="192.0.2.2")
    many = [Peer(loop) for _ in range(100)]
    for peer in (alone, *many):
        peer.ask(100_000)
    for _ in range(1000):
        loop.run_pass()
    done = [peer.done for peer in many]
    assert 0.9 < alone.done / sum(done) < 1.1
    assert max(done) <= min(done) + 10


def _busy_addresses(loop: Loop) -> None:
    """Fifty with a backlog without end, each some time into it."""
    for number in range(50):  # of different lengths, so that no two have the same tag
        Peer(loop, address=f"198.51.100.{number}", piece_s=0.0003 + number * 1e-6).ask(1_000_000)
    for _ in range(500):
        loop.run_pass()


def test_who_is_served_out_of_turn_puts_nobody_behind_those_that_wait() -> None:
    """Protects a quiet address beside busy ones: another whose bytes come first in each pass is served at
    once, and its time must not become the time from which others start.
    """
    loop = Loop()
    _busy_addresses(loop)
    first, quiet = Peer(loop, address="192.0.2.2"), Peer(loop, address="192.0.2.3")
    for number in range(2000):
        first.ask(4)
        assert not first.pieces  # it was not put behind the others
        if number >= 1000 and number % 100 == 0:
            quiet.ask(1)
            asked_at = loop.now
            while quiet.pieces:
                loop.run_pass()
                first.ask(4)
            assert loop.now - asked_at <= 4 * (PASS_S + SLICE_S), number
        loop.run_pass()


def test_requests_that_come_alone_wait_for_no_backlog_at_twice_a_fair_share() -> None:
    """Protects a quiet user, whose requests cost more than others' because they come alone."""
    loop = Loop()
    _busy_addresses(loop)
    quiet, first = Peer(loop, address="192.0.2.2"), Peer(loop)
    due = loop.now
    for number in range(300):
        due += 51 * quiet.piece_s / 2
        while loop.now < due:
            loop.run_pass()
        asked_at = loop.now
        first.ask(4)  # so that it is not served at once
        quiet.ask(1)
        while quiet.pieces:
            loop.run_pass()
        assert loop.now - asked_at <= 4 * (PASS_S + SLICE_S), number


@pytest.mark.slow
def test_requests_that_come_alone_are_not_free() -> None:
    """Protects who has a backlog from another address with a thousand connections of short requests."""
    loop = Loop()
    backlog = Peer(loop, address="192.0.2.2")
    backlog.ask(1_000_000)
    many = [Peer(loop) for _ in range(1000)]
    for _ in range(3000):
        for peer in many:
            if not peer.pieces:
                peer.ask(1)
        loop.run_pass()
    assert backlog.done > 0.2 * 0.9 * sum(peer.done for peer in (backlog, *many))


def test_receivers_take_no_time_from_requests_and_the_other_way_round() -> None:
    """Protects sends beside a thousand receivers who come at once, and receivers beside a flood of sends."""
    loop = Loop()
    senders = [Peer(loop) for _ in range(100)]
    receivers = [Peer(loop, turns=loop.turns.for_output) for _ in range(1000)]
    for peer in (*senders, *receivers):
        peer.ask(100_000)
    for _ in range(600):  # all have had their turn more than once by then
        assert loop.run_pass() <= 2 * (PASS_S + SLICE_S + 0.0003)
    sent, received = (sum(peer.done for peer in peers) for peers in (senders, receivers))
    assert 0.9 < sent / received < 1.1


def test_bytes_that_come_in_a_pass_cannot_prolong_it() -> None:
    """Protects the loop: what comes of 1,000 peers at once is worked off in passes, not in one go."""
    loop = Loop()
    peers = [Peer(loop) for _ in range(1000)]
    started = loop.now
    for peer in peers:
        peer.ask(10)
    assert loop.now - started <= PASS_S + SLICE_S + 0.0003
    while loop.due:
        assert loop.run_pass() <= PASS_S + SLICE_S + 0.0003
    assert [peer.done for peer in peers] == [10] * 1000


def test_who_waits_is_called_in_the_next_pass_and_not_before() -> None:
    """Protects the limit of bytes per pass: reading again in the same pass would not be one."""
    loop = Loop()
    calls: list[int] = []
    share: Share

    def work() -> bool:
        calls.append(loop.turns.pass_number)
        if len(calls) < 4:
            share.wait()
        return False

    share = Share(loop.turns, work)
    share.serve()
    while loop.due:
        loop.run_pass()
    assert calls == [calls[0], calls[0] + 1, calls[0] + 2, calls[0] + 3]


@pytest.mark.slow
def test_waiting_does_not_make_service_free() -> None:
    """Protects others from who always asks to be called again: what a slice took is counted all the same."""
    loop = Loop()
    greedy = Peer(loop)

    def work() -> bool:
        Peer.work(greedy)
        greedy.share.wait()
        return True

    greedy.share = Share(loop.turns, work)
    other = Peer(loop)
    greedy.pieces = other.pieces = 1_000_000
    greedy.share.serve()
    other.share.serve()
    for _ in range(400):
        loop.run_pass()
    assert other.done >= 0.9 * greedy.done


def test_idling_earns_no_more_than_a_small_credit() -> None:
    """Protects busy users from who comes back after an hour: it gets no hour in advance."""
    loop = Loop()
    early, late = Peer(loop), Peer(loop)
    early.ask(100_000)
    for _ in range(500):
        loop.run_pass()
    late.ask(100_000)
    before = early.done
    for _ in range(100):
        loop.run_pass()
    ahead_s = (late.done - (early.done - before)) * early.piece_s
    assert 0 <= ahead_s <= CREDIT_S + 2 * SLICE_S


def test_the_steps_of_a_task_count_and_its_waits_do_not() -> None:
    """Protects an address from another's tasks: what they take out of turn is taken from its turns."""
    loop = Loop()
    slow, quick = Peer(loop, piece_s=SLICE_S), Peer(loop, piece_s=SLICE_S, address="192.0.2.2")

    async def answer() -> str:
        loop.now += 0.02
        await _Pause()
        loop.now += 0.03
        return "answer"

    steps = slow.share.charged(answer()).__await__()
    next(steps)
    loop.now += 1.0
    with pytest.raises(StopIteration, match="answer"):
        steps.send(None)
    assert slow.share.served_s == pytest.approx(0.05)
    slow.ask(200)
    quick.ask(200)
    while quick.done < 28:  # the second step, which nothing of another address came before
        loop.run_pass()
    assert slow.done <= 1


def test_a_task_that_fails_or_is_cancelled_counts_as_well() -> None:
    """What is thrown into the task, and what it raises, passes through unchanged."""
    loop = Loop()
    peer = Peer(loop)

    async def answer() -> None:
        try:
            await _Pause()
        finally:
            loop.now += 0.01

    steps = peer.share.charged(answer()).__await__()
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError("thrown"))
    assert peer.share.served_s == pytest.approx(0.01)
    steps = peer.share.charged(answer()).__await__()
    next(steps)
    steps.close()
    assert loop.now == pytest.approx(100.02)


def test_a_pass_starts_as_many_tasks_as_it_has_slices_for() -> None:
    """Protects the next pass, in which the tasks run: starting one takes next to nothing."""
    loop = Loop()
    begun: list[int] = []

    def begin(number: int) -> bool:
        begun.append(number)
        share.reserve_step()
        return False

    for number in range(50):
        share = Share(loop.turns, partial(begin, number))
        share.join(number)
        share.serve()
    assert len(begun) == PASS_S / SLICE_S
    for _ in range(20):
        before = len(begun)
        loop.run_pass()
        assert len(begun) - before == PASS_S / SLICE_S


class _Pause:
    """Waits once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_work_that_raises_costs_nobody_else_a_turn() -> None:
    """Protects neighbours from a mistake of ours: it is the loop's handler that is told."""
    loop = Loop()

    def fail() -> bool:
        raise ValueError("a mistake")

    broken, peer = Share(loop.turns, fail), Peer(loop)
    broken.wait()
    peer.pieces = 1
    peer.share.wait()
    with pytest.raises(ValueError, match="a mistake"):
        loop.run_pass()
    loop.run_pass()
    assert peer.done == 1


def test_who_is_closed_is_served_no_more() -> None:
    """Protects what has ended: a connection that waited for its turn is not worked on after its end."""
    loop = Loop()
    peer = Peer(loop)
    peer.ask(100)
    done = peer.done
    peer.share.close()
    while loop.due:
        loop.run_pass()
    assert peer.done == done


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_all_work_is_done_and_time_is_shared(seed: int) -> None:
    """Protects everybody: no work is forgotten, whatever comes when, and inside what."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    loop = Loop()
    peers = [Peer(loop, piece_s=chance.choice((1e-5, 3e-4, 2e-3))) for _ in range(20)]
    asked = [0] * len(peers)
    for _ in range(300):
        for _ in range(chance.randrange(4)):
            number = chance.randrange(len(peers))
            pieces = chance.choice((1, 5, 200))
            asked[number] += pieces
            peers[number].ask(pieces)
        if chance.random() < 0.8:
            assert loop.run_pass() <= PASS_S + SLICE_S + 2e-3
    while loop.due:
        loop.run_pass()
    assert [peer.done for peer in peers] == asked
    assert all(not peer.share.is_waiting for peer in peers)


def test_the_loop_rests_after_some_work_in_whatever_turns() -> None:
    """Protects the writer of the log, which gets the interpreter lock only while a busy loop rests."""
    loop = Loop()
    turns = loop.turns
    for peer in (Peer(loop), Peer(loop, turns=turns.for_output), Peer(loop, turns=turns.for_arrivals)):
        peer.ask(200)
    while loop.due:
        loop.run_pass()
    rests = [later - earlier for earlier, later in pairwise([100.0, *loop.rested_at])]
    assert len(rests) >= 600 * 0.0003 / (REST_AFTER_S + SLICE_S)
    assert max(rests) <= REST_AFTER_S + SLICE_S + 0.0003
    assert min(rests) >= REST_AFTER_S - 1e-9

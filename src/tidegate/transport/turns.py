"""Turns: connections share their event loop, so that none monopolises it.

Any work that a peer can cause goes through a ``Share``, in slices of about a millisecond.

    a share has work         one slice runs immediately if this pass of the event loop has time left;
                             otherwise, or if work is left after the slice, the share waits
    a pass of the loop       waiting shares get slices until the pass's time is used up

So work shorter than a slice never waits for a backlog of others. The next waiting share belongs to the
address that has had least time, and is the one of its shares that has had least. Each has a tag that grows
with the time it was served; after a pause it starts at the others' current tag, less a small credit
(start-time fair queueing, in two levels: Goyal, Vin and Cheng, IEEE/ACM Transactions on Networking 5(5),
1997). A single busy connection has the whole loop, and a thousand connections of one address get no more of
it than the only one of another. Work that leaves nothing to do counts less (``LONE_S``).

Some work has separate turns. Output to receivers (``for_output``), and work of connections that have been
served for less than ARRIVAL_S (``for_arrivals``), get up to a third of the time each: a thousand connections
that arrive together each have a right to their share, and would leave nothing to the established ones.
Requests for ``/health`` (``for_health``) get a little extra time: behind all those arrivals a monitor's new
connection would time out and report a busy service as dead.

A request that may wait is a task, whose steps the loop runs in no turn. Their time counts as the share's
(``Share.charged``), and the work that starts the task reserves some for its first step
(``Share.reserve_step``): starting is cheap, and a pass would start more tasks than the loop runs in 50 ms.

The loop rests briefly after each REST_AFTER_S of such work, for other threads, such as the log's writer. A
busy loop keeps Python's global interpreter lock from them: each system call releases it, but returns before a
waiting thread wakes up, and that thread's request for the lock (``sys.setswitchinterval``) then starts again
(CPython 3.11, Python/ceval_gil.h, ``take_gil``). Without rests, a round of the writer took 0.1 to 2 s beside
a single connection that attached link after link.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from tidegate.transport.at_once import run_on

SLICE_S: Final = 0.001
"""After this time, work must stop at the next opportunity."""

ARRIVAL_SLICE_S: Final = 0.00025
"""The same for arriving connections: a short request waits for one slice of each connection that arrives with
it (our choice: about the time for a frame or a request's head)."""

PASS_S: Final = 0.001
"""Time per pass of the event loop for waiting shares, and again for those whose bytes arrive in it. Our
choice: an answer takes some passes, of three kinds of turns each. A pass costs some 0.04 ms."""

HEALTH_PASS_S: Final = 0.00025
"""The same for requests for ``/health`` (our choice: one that begins reserves more than that for its first
step, so that no other begins after it)."""

REST_AFTER_S: Final = 0.004
"""Our choice: a round of the writer needs the lock some five times."""

REST_S: Final = 0.00005
"""The requested sleep: with the system's own delay about 0.1 ms, enough for a thread to wake up."""

CREDIT_S: Final = 0.005
"""How far ahead of other connections of its address a returning one may start: some requests in a row.
Addresses have no credit: a hundred in sequence would add up to half a second."""

ARRIVAL_S: Final = 0.01
"""Service time during which a connection counts as arriving (our choice: opening it, a token and a link take
about 2 ms, and several times that beside a flood; what is over would count against the established
connections of its address)."""


LONE_S: Final = 0.0005
"""Of work that leaves nothing to do, this much does not count, but a quarter always does.

A request that comes alone finds nothing of the service in the processor's caches: beside 150 producers, an
event took 0.35 to 0.58 ms of processor time where one in a row of theirs took 0.07. Charged for that, a quiet
user of 50 events a second needed more than its 51st of the loop, and waited seconds.
"""

_LONE_CHARGE: Final = 0.25
"""Our choice: requests in a row keep at least a fifth of the loop beside lone ones without end."""


class _Tagged:
    """A member of a ``_FairQueue``."""

    __slots__ = ("is_waiting", "tag_s")

    def __init__(self, tag_s: float) -> None:
        self.tag_s = tag_s
        """Grows with the time that it was served."""
        self.is_waiting = False


_T = TypeVar("_T", bound=_Tagged)
_Result = TypeVar("_Result")


class _FairQueue(Generic[_T]):
    """Waiting members, in the order of their tags."""

    __slots__ = ("_credit_s", "_heap", "_puts", "start_s")

    def __init__(self, credit_s: float) -> None:
        self._credit_s = credit_s
        self.start_s = 0.0
        """The tag of the member whose turn it was last; new members start here."""
        self._heap: list[tuple[float, int, _T]] = []
        self._puts = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, item: _T) -> None:
        item.is_waiting = True
        self._puts += 1
        heappush(self._heap, (self._tag(item), self._puts, item))

    def take(self) -> _T:
        """Remove and return the next member."""
        while True:
            tag_s, _, item = heappop(self._heap)
            if item.tag_s <= tag_s:
                item.is_waiting = False
                return item
            self.put(item)  # served while it waited: an address has many shares

    def enter(self, item: _T) -> None:
        """Update the tags as a member is about to be served."""
        earliest_s = self.start_s - self._credit_s
        if item.tag_s < earliest_s:
            item.tag_s = earliest_s
        # What is served out of its turn is ahead of those that wait. From its tag, who comes next would start
        # behind them all.
        due_s = min(item.tag_s, self._heap[0][0]) if self._heap else item.tag_s
        self.start_s = max(self.start_s, due_s)

    def _tag(self, item: _T) -> float:
        return max(item.tag_s, self.start_s - self._credit_s)


class _Party(_Tagged):
    """The shares of one address."""

    __slots__ = ("__weakref__", "queue")

    def __init__(self, tag_s: float) -> None:
        super().__init__(tag_s)
        self.queue: _FairQueue[Share] = _FairQueue(CREDIT_S)


class Share(_Tagged):
    """One connection's share of the event loop's time."""

    __slots__ = ("_address", "_turns", "_until_s", "_work", "is_closed", "party", "served_s")

    def __init__(self, turns: Turns | None, work: Callable[[], bool]) -> None:
        """work: works until ``is_time_over``; returns whether to call it again.

        turns: None does all work immediately.
        """
        super().__init__(0.0)
        self._turns = turns
        self._work = work
        self._until_s = 0.0
        self.is_closed = False
        self.served_s = 0.0
        self.party: _Party | None = None
        self.join(None)

    def join(self, address: object) -> None:
        """Join the shares of an address (any hashable), before the first work."""
        self._address = address
        if self._turns is not None:
            self.move(self._turns)

    def move(self, turns: Turns) -> None:
        """Continue in other turns; not while it waits."""
        assert not self.is_waiting
        self._turns = turns
        self.party = turns.party(self._address)
        self.tag_s = self.party.queue.start_s

    @property
    def pass_number(self) -> int:
        """Counts the passes of the event loop with work; 0 without turns."""
        return 0 if self._turns is None else self._turns.pass_number

    def serve(self) -> None:
        """Do the available work now, or when its turn comes."""
        if self._turns is not None:
            self._turns.serve(self)
            return
        while self.run(0.0):
            pass

    @property
    def is_time_over(self) -> bool:
        """Whether the current work must stop now and continue later."""
        return self._turns is not None and self._turns.monotonic() >= self._until_s

    def reserve_step(self) -> None:
        """Count a slice in this pass of the event loop, for the first step of a task that it has started."""
        if self._turns is not None:
            self._turns.reserve_step()

    def charged(self, work: Awaitable[_Result]) -> Awaitable[_Result]:
        """``work``, to be awaited in a task: the time of its steps is this share's, waits cost nothing."""
        return work if self._turns is None else _Charged(self, work)

    def step(self) -> _Timed:
        """A block whose time counts as this share's. It must not wait; not without turns."""
        assert self._turns is not None
        return _Timed(self._turns, self)

    def wait(self) -> None:
        """Wait for a later pass of the event loop. Does nothing without turns."""
        if self._turns is not None:
            self._turns.put_next(self)

    def put(self) -> None:
        """Do more of the work when its turn comes."""
        assert self._turns is not None
        self._turns.put(self)

    def close(self) -> None:
        """Do no more work, and drop the reference to ``work``."""
        self.is_closed = True
        self._work = lambda: False

    def run(self, until_s: float) -> bool:
        """Work until a time on the turns' clock; returns whether more is left."""
        self._until_s = until_s
        return not self.is_closed and self._work()


class Rests:
    """Decides when an event loop rests, over all its turns."""

    __slots__ = ("_rest", "_worked_s")

    def __init__(self, rest: Callable[[], object] | None = None) -> None:
        """rest: lets other threads run for a moment; None: sleep for REST_S."""
        self._rest = rest or partial(time.sleep, REST_S)
        self._worked_s = 0.0

    def add_work(self, work_s: float) -> None:
        """Count work, and rest if due."""
        self._worked_s += work_s
        if self._worked_s >= REST_AFTER_S:
            self._worked_s = 0.0
            self._rest()


class Turns:
    """Schedules the shares of one event loop."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        rests: Rests | None = None,
    ) -> None:
        """call_soon: calls a function in the next pass of the event loop. rests: of the event loop."""
        self.pass_number = 0
        """Counts the passes of the event loop with work."""
        self.monotonic = monotonic
        self._call_soon = call_soon
        self._rests = rests or Rests()
        self._queue: _FairQueue[_Party] = _FairQueue(0.0)
        self._parties: WeakValueDictionary[object, _Party] = WeakValueDictionary()
        self._next_pass: list[Share] = []
        """Shares that wait, and enter a queue in the next pass."""
        self._is_pass_due = False
        self._slice_s = SLICE_S
        self._pass_s = PASS_S
        self._served_s = 0.0  # in this pass
        self._inner_s = 0.0  # by shares that were served inside another's work
        self._settled: Turns | None = None
        """Turns for shares that were served here for ARRIVAL_S; None: these turns."""
        self._for_output: Turns | None = None
        self._for_arrivals: Turns | None = None
        self._for_health: Turns | None = None

    def __repr__(self) -> str:
        return f"<Turns addresses waiting={len(self._queue)}>"

    @property
    def for_output(self) -> Turns:
        """Turns of the same event loop for output to receivers."""
        if self._for_output is None:
            self._for_output = self._other()
        return self._for_output

    @property
    def for_arrivals(self) -> Turns:
        """Turns of the same event loop for new connections, which later move to these."""
        if self._for_arrivals is None:
            self._for_arrivals = self._other()
            self._for_arrivals._settled = self
            self._for_arrivals._slice_s = ARRIVAL_SLICE_S
        return self._for_arrivals

    @property
    def for_health(self) -> Turns:
        """Turns of the same event loop for requests for ``/health``."""
        if self._for_health is None:
            self._for_health = self._other()
            self._for_health._slice_s = ARRIVAL_SLICE_S
            self._for_health._pass_s = HEALTH_PASS_S
        return self._for_health

    def _other(self) -> Turns:
        return Turns(monotonic=self.monotonic, call_soon=self._call_soon, rests=self._rests)

    def party(self, address: object) -> _Party:
        """The party of an address; it exists while any share belongs to it."""
        party = self._parties.get(address)
        if party is None:
            party = self._parties[address] = _Party(self._queue.start_s)
        return party

    def serve(self, share: Share) -> None:
        """See ``Share.serve``."""
        if share.is_waiting or share.is_closed:
            return
        if self._served_s < self._pass_s:
            self._ask_for_pass()
            self._run(share)
        else:
            self.put(share)

    def put(self, share: Share) -> None:
        """Serve a share when its turn comes, in this pass or later."""
        if not (share.is_waiting or share.is_closed):
            self._put(share)
            self._ask_for_pass()

    def put_next(self, share: Share) -> None:
        """See ``Share.wait``."""
        if not (share.is_waiting or share.is_closed):
            share.is_waiting = True
            self._next_pass.append(share)
            self._ask_for_pass()

    def _put(self, share: Share) -> None:
        party = share.party
        assert party is not None
        party.queue.put(share)
        if not party.is_waiting:
            self._queue.put(party)

    def _ask_for_pass(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        self._is_pass_due = False
        self.pass_number += 1
        self._served_s = 0.0
        deferred, self._next_pass = self._next_pass, []
        for share in deferred:
            self._put(share)
        try:
            while self._queue and self._served_s < self._pass_s:
                party = self._queue.take()
                share = party.queue.take()
                try:
                    self._run(share)
                finally:
                    if party.queue and not party.is_waiting:
                        self._queue.put(party)
        finally:
            self._served_s = 0.0
            if self._queue:
                self._ask_for_pass()

    def reserve_step(self) -> None:
        """See ``Share.reserve_step``."""
        self._served_s += SLICE_S

    def _run(self, share: Share) -> None:
        with _Timed(self, share) as timed:
            timed.has_more = share.run(timed.started_s + self._slice_s)
        if timed.has_more:
            share.put()


class _Timed:
    """A block that is work of a share: its time counts."""

    __slots__ = ("_outer_s", "_party", "_share", "_turns", "has_more", "started_s")

    def __init__(self, turns: Turns, share: Share) -> None:
        assert share.party is not None
        self._turns = turns
        self._share = share
        self._party = share.party
        self.has_more = False
        """Whether the work leaves more to do, which waits."""

    def __enter__(self) -> _Timed:
        turns = self._turns
        turns._queue.enter(self._party)
        self._party.queue.enter(self._share)
        self._outer_s, turns._inner_s = turns._inner_s, 0.0
        self.started_s = turns.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        turns, share = self._turns, self._share
        elapsed_s = turns.monotonic() - self.started_s
        own_s = max(0.0, elapsed_s - turns._inner_s)
        is_lone = not (self.has_more or share.is_waiting)
        charged_s = max(own_s * _LONE_CHARGE, own_s - LONE_S) if is_lone else own_s
        share.tag_s += charged_s
        share.served_s += own_s
        self._party.tag_s += charged_s
        turns._served_s += own_s
        turns._inner_s = self._outer_s + elapsed_s
        turns._rests.add_work(own_s)
        if turns._settled is not None and share.served_s >= ARRIVAL_S and not share.is_waiting:
            share.move(turns._settled)


class _Charged(Generic[_Result]):
    """See ``Share.charged``."""

    def __init__(self, share: Share, work: Awaitable[_Result]) -> None:
        self._share = share
        self._work = work

    def __await__(self) -> Generator[Any, Any, _Result]:
        work = self._work.__await__()
        try:
            with self._share.step():
                awaited = work.send(None)
        except StopIteration as end:
            result: _Result = end.value
            return result
        return (yield from run_on(work, awaited, self._share.step))

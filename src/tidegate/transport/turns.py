"""Turns: connections share their event loop, so that none of them owns it.

Whatever a peer can cause goes through a ``Share``, in slices of about a millisecond.

    a share has work         a slice of it is done at once, if time is left in this pass of the event loop;
                             else, or if a slice did not do, the share waits
    a pass of the loop       shares that wait get slices until the pass's time is used up

So what takes less than a slice waits for nobody's backlog. Of those that wait, next is who has had least:
each share has a tag that grows with the time it was served, and who comes back after a while starts where
the others are by now, less a small credit (start-time fair queueing: Goyal, Vin and Cheng, IEEE/ACM
Transactions on Networking 5(5), 1997). A single busy connection has the whole loop.

What is sent to receivers has turns of its own (``for_output``), and so up to half of the time: a thousand
receivers who come at once each have a right to their share, and would leave nothing for requests and sends.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

SLICE_S: Final = 0.001
"""After so long, work is to stop at the next occasion."""

PASS_S: Final = 0.004
"""What a pass of the event loop spends on shares that wait, and again on those whose bytes come in it (our
choice: an answer takes some passes, and what a pass costs by itself is 1 % of that)."""

CREDIT_S: Final = 0.005
"""How much earlier than others who is back may start: some requests in a row."""


class Share:
    """One party's share of the event loop's time."""

    __slots__ = ("_turns", "_until_s", "_work", "first_pass", "is_closed", "is_waiting", "tag_s")

    def __init__(self, turns: Turns | None, work: Callable[[], bool]) -> None:
        """work: does what there is until ``is_time_over``; returns whether to be called again.

        turns: None has all work done at once.
        """
        self._turns = turns
        self._work = work
        self._until_s = 0.0
        self.tag_s = 0.0 if turns is None else turns.start_s
        self.first_pass = 0  # before it, it is not served
        self.is_waiting = False
        self.is_closed = False

    def serve(self) -> None:
        """There is work: do it now, or when its turn comes."""
        if self._turns is not None:
            self._turns.serve(self)
            return
        while self.run(0.0):
            pass

    @property
    def is_time_over(self) -> bool:
        """Whether work under way is to stop now, and to be continued later."""
        return self._turns is not None and self._turns.monotonic() >= self._until_s

    def wait(self) -> None:
        """Be called in the next pass of the event loop, or later. Nothing where turns are None."""
        if self._turns is not None:
            self.first_pass = self._turns.pass_number + 1
            self._turns.put(self)

    def close(self) -> None:
        """Nothing more is to be done."""
        self.is_closed = True

    def run(self, until_s: float) -> bool:
        """Do work until a time on the turns' clock; returns whether there is more."""
        self._until_s = until_s
        return not self.is_closed and self._work()


class Turns:
    """What shares of one event loop have in common."""

    def __init__(
        self, *, monotonic: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """call_soon: has a function called in the next pass of the event loop."""
        self.pass_number = 0
        """Counts the passes of the event loop in which there was work."""
        self.start_s = 0.0
        """The tag of who was served last: where who is new begins."""
        self.monotonic = monotonic
        self._call_soon = call_soon
        self._waiting: list[tuple[float, int, Share]] = []  # a heap
        self._puts = 0
        self._is_pass_due = False
        self._served_s = 0.0  # in this pass
        self._inner_s = 0.0  # by shares that were served inside another's work
        self._for_output: Turns | None = None

    def __repr__(self) -> str:
        return f"<Turns waiting={len(self._waiting)}>"

    @property
    def for_output(self) -> Turns:
        """Turns of the same event loop for what is sent to receivers."""
        if self._for_output is None:
            self._for_output = Turns(monotonic=self.monotonic, call_soon=self._call_soon)
        return self._for_output

    def serve(self, share: Share) -> None:
        """See ``Share.serve``."""
        if share.is_waiting or share.is_closed:
            return
        if self._served_s < PASS_S:
            self._ask_for_pass()
            self._run(share)
        else:
            self.put(share)

    def put(self, share: Share) -> None:
        """Serve a share when its turn comes, in this pass or later."""
        if share.is_waiting or share.is_closed:
            return
        share.is_waiting = True
        self._puts += 1
        heappush(self._waiting, (self._tag(share), self._puts, share))
        self._ask_for_pass()

    def _tag(self, share: Share) -> float:
        return max(share.tag_s, self.start_s - CREDIT_S)

    def _ask_for_pass(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        self._is_pass_due = False
        self.pass_number += 1
        self._served_s = 0.0
        later: list[tuple[float, int, Share]] = []
        try:
            while self._waiting and self._served_s < PASS_S:
                entry = heappop(self._waiting)
                share = entry[2]
                if share.first_pass > self.pass_number:
                    later.append(entry)
                    continue
                share.is_waiting = False
                self._run(share)
        finally:
            for entry in later:
                heappush(self._waiting, entry)
            self._served_s = 0.0
            if self._waiting:
                self._ask_for_pass()

    def _run(self, share: Share) -> None:
        tag_s = self._tag(share)
        outer_s, self._inner_s = self._inner_s, 0.0
        started_s = self.monotonic()
        self.start_s = max(self.start_s, tag_s)
        has_more = False
        try:
            has_more = share.run(started_s + SLICE_S)
        finally:
            elapsed_s = self.monotonic() - started_s
            own_s = max(0.0, elapsed_s - self._inner_s)
            share.tag_s = tag_s + own_s
            self._served_s += own_s
            self._inner_s = outer_s + elapsed_s
        if has_more:
            self.put(share)

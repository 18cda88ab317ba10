"""Who makes the next change of a namespace: one change at a time, and the actors that wait take turns.

    the service itself, each policy of the namespace    first, in turn
    each event hub, whatever policy or token            if none of those waits, in turn

So the manager of one hub delays only the hub's other managers: deleting its policy waits for the change
that is being made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tidegate.broker.audit import Actor
from tidegate.model.errors import ServerBusyError

WAITING_MAX: Final = 16
"""Changes of one policy of the namespace, or with rights on one hub, that may wait (our choice: as many
requests as one AMQP connection may have in progress)."""

_RETRY_AFTER_S: Final = 1.0
"""Our choice: a change takes some milliseconds."""

_Party = tuple[str, str]
"""A hub and no name, or no hub and the name of a policy; neither: the service itself."""

_Line = dict[_Party, deque[asyncio.Future[None]]]
"""The waiting changes of each party, oldest first; the first party is next."""


class ChangeQueue:
    """The changes of one namespace."""

    def __init__(self) -> None:
        self._is_busy = False
        self._namespace_line: _Line = {}
        self._hubs_line: _Line = {}

    @asynccontextmanager
    async def turn(self, actor: Actor) -> AsyncIterator[None]:
        """Wait for the actor's turn, and let no other have one within the block.

        Raises ServerBusyError if ``WAITING_MAX`` changes of the actor's policy or hub wait already; changes
        of the service itself always wait. Cancellation: the others move up.
        """
        if self._is_busy:
            await self._wait(_party_of(actor))
        self._is_busy = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, party: _Party) -> None:
        line = self._hubs_line if party[0] else self._namespace_line
        waiting = line.setdefault(party, deque())
        if any(party) and len(waiting) >= WAITING_MAX:
            raise ServerBusyError(
                f"{len(waiting)} changes of {_shown(party)} wait already, the maximum.",
                next_step="Make fewer at the same time, and repeat this one later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in waiting:
                waiting.remove(turn)
                if not waiting:
                    del line[party]
            elif not turn.cancelled():  # it was given the turn, and does not use it
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the party that is next, which then is last."""
        while line := self._namespace_line or self._hubs_line:
            party = next(iter(line))
            waiting = line.pop(party)
            turn = waiting.popleft()
            if waiting:
                line[party] = waiting
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_busy = False


def _party_of(actor: Actor) -> _Party:
    names = sorted(grant.policy_name for grant in actor.grants if not grant.hub)
    return ("", names[0]) if names else (actor.hub, "")


def _shown(party: _Party) -> str:
    return f"the event hub {party[0]!r}" if party[0] else f"the policy {party[1]!r}"

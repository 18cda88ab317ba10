"""Unused connections end, even if their clients keep them alive: heartbeats do not count.

    no token accepted yet        unauthorized_s from when the client has connected
    no link for events           linkless_s since there was one, or since $management was asked
    a link for events            unlimited
    no token valid any longer    unauthorized_s from the loss of the last one

Source of the times and the message: the service's closes in MicrosoftDocs/azure-docs#90372 (60,000 ms; our
default is less) and in Azure/azure-sdk-for-java#15926 and #42987 (300,000 ms, while links to $cbs and
$management were open).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_DELAY_SHARE: Final = 0.8
"""Maximum share of a connection's remaining time for a delay: the answer needs time to arrive."""


@dataclass(frozen=True, slots=True)
class IdleLimits:
    """How long a connection may be unused, in seconds."""

    unauthorized_s: float = 10.0
    linkless_s: float = 300.0
    """At least ``unauthorized_s``."""


class IdleGuard:
    """Watches one connection; ``close`` it with the connection. One timer, and none while there are links."""

    __slots__ = ("_is_authorized", "_limits", "_link_count", "_loop", "_on_idle", "_since", "_timer")

    def __init__(
        self,
        limits: IdleLimits,
        is_authorized: Callable[[], bool],
        on_idle: Callable[[float], None],
        *,
        age_s: float = 0.0,
    ) -> None:
        """on_idle: called at most once, with the exceeded limit in seconds. age_s: seconds since the client
        connected, which count."""
        self._limits = limits
        self._is_authorized = is_authorized
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._link_count = 0
        self._since = self._loop.time() - age_s
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def add_link(self) -> None:
        """A link for events was attached."""
        self._link_count += 1
        self._cancel()

    def remove_link(self) -> None:
        """A link for events has ended."""
        self._link_count -= 1
        if self._link_count == 0:
            self.note_use()
            self._arm()

    def note_use(self) -> None:
        """The connection was used without a link for events. Without a token, this changes nothing."""
        if self._is_authorized():
            self._since = self._loop.time()

    def note_loss(self) -> None:
        """No token is valid any longer: another one is waited for as long as for the first."""
        self._since = self._loop.time()
        if self._link_count == 0:
            self._arm()

    def delay_s(self, wanted_s: float) -> float:
        """How long an answer may wait: ``wanted_s``, or less if the connection would end first."""
        if self._timer is None:
            return wanted_s
        return min(wanted_s, max(0.0, self._timer.when() - self._loop.time()) * _DELAY_SHARE)

    def close(self) -> None:
        """Stop watching, and release the connection."""
        self._cancel()
        self._is_authorized, self._on_idle = lambda: False, lambda limit_s: None

    @property
    def _limit_s(self) -> float:
        return self._limits.linkless_s if self._is_authorized() else self._limits.unauthorized_s

    def _arm(self) -> None:
        self._cancel()
        self._timer = self._loop.call_at(self._since + self._limit_s, self._on_timer)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        # Meanwhile a token may have raised the limit, or a use may have restarted the time.
        if self._loop.time() < self._since + self._limit_s:
            self._arm()
        else:
            self._on_idle(self._limit_s)

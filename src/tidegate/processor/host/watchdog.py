"""The watchdog of a host, which restarts pumps without progress.

A partition is stalled if it had backlog for ``stall_timeout_s`` without making a step. There are two cases:
for a handler call that does not return, the backlog is its events; during a wait (for events, or for the
handler's ``open``), the watchdog asks the service where the partition ends, and counts from the first answer
that showed backlog. A call that fails repeatedly makes a step each time: its errors are reported, and a
restart would not help.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.model.errors import PartitionStalledError, TidegateError
from tidegate.processor.pump.pump import PartitionPump
from tidegate.processor.pump.session import PartitionSession, PumpEnvironment

_LOOKS_PER_TIMEOUT: Final = 4
"""Checks per stall time-out: a stall is noticed at most a quarter of the time-out late (our choice)."""


@dataclass(slots=True)
class _Observation:
    """A session's state at the watchdog's last check."""

    session: PartitionSession
    activity: int
    backlog_since: float | None = None
    """Monotonic time; None: no backlog seen since the last step."""


class Watchdog:
    """Restarts a host's pumps that are stalled."""

    def __init__(
        self, environment: PumpEnvironment, pumps: Mapping[str, PartitionPump], *, stall_timeout_s: float
    ) -> None:
        """pumps: by partition; a live view."""
        self._environment = environment
        self._stall_timeout_s = stall_timeout_s
        self._pumps = pumps
        self._observations: dict[str, _Observation] = {}
        self._checked_last = ""
        """The partition that was checked last."""

    async def watch(self) -> None:
        """Check every pump periodically, until cancelled."""
        interval_s = self._stall_timeout_s / _LOOKS_PER_TIMEOUT
        while True:
            await asyncio.sleep(interval_s)
            self._observations = {key: seen for key, seen in self._observations.items() if key in self._pumps}
            waiting = [pump for pump in list(self._pumps.values()) if not self._check_call(pump)]
            # Continue after the last partition checked, so that slow requests do not keep others unchecked.
            waiting.sort(key=lambda pump: (pump.partition_id <= self._checked_last, pump.partition_id))
            with contextlib.suppress(TimeoutError):  # calls are checked even without the service
                async with asyncio.timeout(interval_s):
                    for pump in waiting:
                        self._checked_last = pump.partition_id
                        await self._check_wait(pump)

    def _check_call(self, pump: PartitionPump) -> bool:
        """Check a pump whose handler has events; False if it has none."""
        session = pump.session
        if session is None or session.batch_in_hand_since is None:
            return False
        self._judge(pump, session, session.batch_in_hand_since)
        return True

    async def _check_wait(self, pump: PartitionPump) -> None:
        """Check a pump that waits for events or for the handler's ``open``."""
        session = pump.session
        if session is None:
            return
        seen = self._observations.get(pump.partition_id)
        if seen is None or seen.session is not session or seen.activity != session.activity:
            seen = self._observations[pump.partition_id] = _Observation(session, session.activity)
        if seen.backlog_since is None and await self._has_backlog(session):
            seen.backlog_since = self._environment.clock.monotonic()
        if pump.session is session and seen.activity == session.activity and seen.backlog_since is not None:
            self._judge(pump, session, seen.backlog_since)

    def _judge(self, pump: PartitionPump, session: PartitionSession, since: float) -> None:
        waited_s = self._environment.clock.monotonic() - since
        if waited_s >= self._stall_timeout_s:
            pump.restart_stalled(self._describe_stall(session, waited_s))

    async def _has_backlog(self, session: PartitionSession) -> bool:
        """Whether the partition has events that the session has not reached; False if unknown."""
        resume_point = session.progress.next_sequence_number
        if resume_point is None and not session.is_opening:
            return False
        try:
            properties = await self._environment.consumer.get_partition_properties(session.partition_id)
        except TidegateError:
            return False  # the receiver gets the same error, and reports it
        if properties.is_empty:
            return False
        return resume_point is None or properties.last_enqueued_sequence_number >= resume_point

    def _describe_stall(self, session: PartitionSession, waited_s: float) -> PartitionStalledError:
        resume_point = session.progress.next_sequence_number
        place = "" if resume_point is None else f" at sequence number {resume_point}"
        if session.batch_in_hand_since is not None:
            what = "its handler has not returned"
        elif session.is_opening:
            what = "its handler's open has not returned"
        else:
            what = "its receiver has returned none of the available events"
        return PartitionStalledError(
            f"Partition {session.partition_id} of {self._environment.consumer.event_hub!r} is stalled{place}"
            f": {what} for {waited_s:.1f} s.",
            next_step="It is restarted. If a call may take that long, raise stall_timeout_s.",
        )

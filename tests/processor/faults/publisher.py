"""Sends the numbered events while hosts and the service are being killed, at a pace, never too far ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from tests.processor.faults.work import PARTITION_COUNT, events_of, partition_ids

from tidegate.client import EventHubProducer
from tidegate.client.retry import RetryPolicy

_RETRY: Final = RetryPolicy(retries_max=200, delay_s_max=1.0)
"""The service is away again and again: this outlasts it."""
_WAIT_S: Final = 0.05
_ROUND_EVENTS_MAX: Final = 250
"""Events for each partition that are sent before pace and lead are looked at again."""


class Publisher:
    """Sends ``events`` events, PARTITION_COUNT in each row of them."""

    def __init__(
        self,
        connection_string: str,
        event_hub: str,
        *,
        events: int,
        events_per_s: float,
        lead_max: int | None = None,
        processed: Callable[[], int] = lambda: 0,
        may_end: Callable[[], bool] = lambda: True,
    ) -> None:
        """events_per_s: the pace. lead_max: how many events it may be ahead of ``processed()``; None: any.

        may_end: the last tenth is held back until this is true.
        """
        assert events % PARTITION_COUNT == 0
        self._connection_string = connection_string
        self._event_hub = event_hub
        self._events = events
        self._events_per_s = events_per_s
        self._lead_max = lead_max
        self._processed = processed
        self._may_end = may_end
        self._is_finishing = False
        self.published = 0
        """Events that the service has acknowledged, all of them and those before."""

    @property
    def is_done(self) -> bool:
        """Whether all are acknowledged."""
        return self.published == self._events

    def finish(self) -> None:
        """Send no more than what is being sent now; ``run`` then returns, and ``published`` is final."""
        self._is_finishing = True

    async def run(self) -> None:
        """Send all, or until told to finish; each is stored once, over every break of the line."""
        each_until = self._events // PARTITION_COUNT
        began = time.monotonic()
        sent = 0
        async with EventHubProducer.from_connection_string(
            self._connection_string, self._event_hub, retry=_RETRY
        ) as producer:
            while sent < each_until and not self._is_finishing:
                due = int((time.monotonic() - began) * self._events_per_s) // PARTITION_COUNT
                until = min(each_until, due, sent + _ROUND_EVENTS_MAX)
                if self._lead_max is not None:
                    until = min(until, (self._processed() + self._lead_max) // PARTITION_COUNT)
                if not self._may_end():
                    until = min(until, each_until * 9 // 10)
                if until <= sent:
                    await asyncio.sleep(_WAIT_S)
                    continue
                for partition_id in partition_ids():
                    await producer.enqueue_many(
                        events_of(partition_id, sent, until), partition_id=partition_id
                    )
                await producer.flush()
                sent = until
                self.published = sent * PARTITION_COUNT

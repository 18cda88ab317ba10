"""How long events took from the hub to SQL, from Spark's observations of each micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

QUANTILES: Final = tuple((index + 0.5) / 100 for index in range(100))
"""The quantiles of arrival times in a micro-batch: each stands for a hundredth of its events."""
_BIN_MS: Final = 5


class Latencies:
    """Milliseconds from the time at which the hub accepted an event to the commit of its micro-batch."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._count = 0

    def add(self, enqueued_ms: Sequence[int], event_count: int, committed_ms: int) -> None:
        """Add a micro-batch: the quantiles of its events' arrival times, and its commit time."""
        if not enqueued_ms or not event_count:
            return
        for moment in enqueued_ms:
            self._bins[max(0, committed_ms - moment) // _BIN_MS] += event_count
        self._count += event_count * len(enqueued_ms)

    def percentile_ms(self, share: float) -> float | None:
        """The latency below which ``share`` (0 to 1) of the events stayed; None if there were none."""
        wanted, seen = share * self._count, 0
        for number in sorted(self._bins):
            seen += self._bins[number]
            if seen >= wanted:
                return float((number + 1) * _BIN_MS)
        return None

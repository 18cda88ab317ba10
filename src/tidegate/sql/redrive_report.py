"""What a redrive did, by the reason that its dead letters had before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from tidegate.sql.values import DeadLetter, RedriveReason

REASONS_MAX: Final = 1_000
"""Reasons that are told apart (our choice: a reason may hold the event's own values); the rest share one."""
OTHERS: Final = ("", "(other reasons)")


class ReasonTally:
    """Counts outcomes by reason, page by page."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}

    def add(
        self,
        page: Sequence[DeadLetter],
        redriven: Collection[int],
        failed: Collection[int],
        waiting: Collection[int],
    ) -> None:
        """Count a page of dead letters, and the sequence numbers of each outcome among them."""
        outcomes = [frozenset(numbers) for numbers in (redriven, failed, waiting)]
        for letter in page:
            key = (letter.error_type, letter.reason)
            if key not in self._counts and len(self._counts) >= REASONS_MAX:
                key = OTHERS
            counts = self._counts.setdefault(key, [0, 0, 0, 0])
            counts[0] += 1
            for i, numbers in enumerate(outcomes, start=1):
                counts[i] += letter.sequence_number in numbers

    def outcomes(self) -> tuple[RedriveReason, ...]:
        """One for each reason so far, the most frequent first."""
        found = [RedriveReason(*key, *counts) for key, counts in self._counts.items()]
        return tuple(sorted(found, key=lambda each: (-each.considered, each.error_type, each.reason)))

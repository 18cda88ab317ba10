"""Tallies a redrive's outcomes by the dead letters' former reasons, and its failures by the new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from tidegate.sql.core.values import (
    REASON_CHARACTERS_MAX,
    DeadLetter,
    NewDeadLetter,
    RedriveFailure,
    RedriveReason,
    storable_text,
)

REASONS_MAX: Final = 1_000
"""Reasons counted separately; all others share one (our choice: a reason may hold an event's values)."""
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


class FailureTally:
    """Counts why events failed again, page by page."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], RedriveFailure] = {}

    def add(self, partition_id: str, letters: Iterable[NewDeadLetter]) -> None:
        """Count the failures of a page."""
        for letter in letters:
            key = (letter.error_type, storable_text(letter.reason, REASON_CHARACTERS_MAX))
            if key not in self._failures and len(self._failures) >= REASONS_MAX:
                key = OTHERS
            known = self._failures.get(key)
            self._failures[key] = (
                RedriveFailure(*key, 1, partition_id, letter.sequence_number)
                if known is None
                else replace(known, count=known.count + 1)
            )

    def failures(self) -> tuple[RedriveFailure, ...]:
        """One for each error type and reason so far, the most frequent first."""
        return tuple(
            sorted(self._failures.values(), key=lambda each: (-each.count, each.error_type, each.reason))
        )

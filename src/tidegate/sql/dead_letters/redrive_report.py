"""Tallies a redrive's outcomes by the dead letters' former reasons, and its failures by the new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


class RedriveTally:
    """Counts outcomes by reason, page by page."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], list[int]] = {}
        self._failures: dict[tuple[str, str], RedriveFailure] = {}

    def add(
        self,
        page: Sequence[DeadLetter],
        redriven: Collection[int],
        failed: Sequence[NewDeadLetter],
        waiting: Collection[int],
    ) -> None:
        """Count a page of one partition's dead letters, with the outcomes of some of them."""
        failed_numbers = (letter.sequence_number for letter in failed)
        outcomes = [frozenset(numbers) for numbers in (redriven, failed_numbers, waiting)]
        for letter in page:
            key = _key(self._reasons, letter.error_type, letter.reason)
            counts = self._reasons.setdefault(key, [0, 0, 0, 0])
            counts[0] += 1
            for i, numbers in enumerate(outcomes, start=1):
                counts[i] += letter.sequence_number in numbers
        for again in failed:
            key = _key(self._failures, again.error_type, storable_text(again.reason, REASON_CHARACTERS_MAX))
            first = RedriveFailure(*key, 0, page[0].partition_id, again.sequence_number)
            known = self._failures.get(key, first)
            self._failures[key] = replace(known, count=known.count + 1)

    def by_reason(self) -> tuple[RedriveReason, ...]:
        """One for each former reason so far, the most frequent first."""
        found = [RedriveReason(*key, *counts) for key, counts in self._reasons.items()]
        return tuple(sorted(found, key=lambda each: (-each.considered, each.error_type, each.reason)))

    def failures(self) -> tuple[RedriveFailure, ...]:
        """One for each new error type and reason so far, the most frequent first."""
        found = self._failures.values()
        return tuple(sorted(found, key=lambda each: (-each.count, each.error_type, each.reason)))


def _key(counted: Mapping[tuple[str, str], object], error_type: str, reason: str) -> tuple[str, str]:
    key = (error_type, reason)
    return key if key in counted or len(counted) < REASONS_MAX else OTHERS

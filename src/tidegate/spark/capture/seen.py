"""Tracks which sequence numbers of a partition were read, so that overlapping files yield each event once.

Pure. Files overlap if Capture restarted with another state, or ran beside another service.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class OtherHubError(Exception):
    """One sequence number belongs to two different events."""

    def __init__(self, sequence_number: int) -> None:
        super().__init__(sequence_number)
        self.sequence_number = sequence_number


class SeenNumbers:
    """A set of sequence numbers, as ranges, each with the latest time of its events."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._starts, self._untils, self._times = none, none, none

    def add(self, numbers: Int64s, times_ms: Int64s) -> Mask:
        """Add numbers of events, in any order; returns which of them are new.

        Raises OtherHubError for a known number with a later time than all events up to it had. Numbers and
        times of a partition rise together, so the hub was recreated.
        """
        _, first_places = np.unique(numbers, return_index=True)
        is_new = np.zeros(len(numbers), np.bool_)
        is_new[first_places] = True
        if len(self._starts):
            ranges = np.searchsorted(self._starts, numbers, side="right") - 1
            is_known = (ranges >= 0) & (numbers < self._untils[ranges])
            # Compare seconds, the precision that all writers of capture files have.
            is_later = is_known & (times_ms // 1000 > self._times[ranges] // 1000)
            if is_later.any():
                raise OtherHubError(int(numbers[is_later][0]))
            is_new &= ~is_known
        if is_new.any():
            self._include(numbers[is_new], times_ms[is_new])
        return is_new

    def _include(self, numbers: Int64s, times_ms: Int64s) -> None:
        order = np.argsort(numbers, kind="stable")
        numbers, times_ms = numbers[order], times_ms[order]
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks - 1, [len(numbers) - 1]))
        starts = np.concatenate((self._starts, numbers[firsts]))
        untils = np.concatenate((self._untils, numbers[lasts] + 1))
        times = np.concatenate((self._times, np.maximum.reduceat(times_ms, firsts)))
        order = np.argsort(starts, kind="stable")
        starts, untils, times = starts[order], untils[order], times[order]
        # Ranges do not overlap; those that touch become one.
        is_head = np.concatenate(([True], starts[1:] != untils[:-1]))
        heads = np.flatnonzero(is_head)
        self._starts = starts[heads]
        self._untils = np.maximum.reduceat(untils, heads)
        self._times = np.maximum.reduceat(times, heads)

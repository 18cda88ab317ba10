"""Arithmetic on runs of rows that share a key, without a loop: the row before, the highest so far."""

from __future__ import annotations

import numpy as np


def starts_of(keys: np.ndarray) -> np.ndarray:
    """Where each run of equal keys begins."""
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def lengths_of(starts: np.ndarray, count: int) -> np.ndarray:
    """The number of rows of each run. count: of all rows."""
    return np.diff(starts, append=count)


def previous(values: np.ndarray, starts: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The value of the previous row in the same run; for a run's first row, the run's ``initial``."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[starts] = initial
    return before


def running_max(values: np.ndarray, starts: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The highest value of a run up to each row, and at least the run's ``initial``."""
    # Ranks instead of values, so that each run can be lifted above the previous one.
    levels, places = np.unique(np.concatenate((initial, values)), return_inverse=True)
    run_count = len(starts)
    lifts = np.arange(run_count) * len(levels)
    lifted = places[run_count:] + np.repeat(lifts, lengths_of(starts, len(values)))
    lifted[starts] = np.maximum(lifted[starts], places[:run_count] + lifts)
    highest: np.ndarray = levels[np.maximum.accumulate(lifted) % max(1, len(levels))]
    return highest


def ends_of(starts: np.ndarray, count: int) -> np.ndarray:
    """The last row of each run. count: of all rows."""
    return np.append(starts[1:], count)[: len(starts)] - 1

"""Arithmetic on runs of rows that share a key, without a loop: the row before, the highest so far."""

from __future__ import annotations

import numpy as np


def starts_of(keys: np.ndarray) -> np.ndarray:
    """Where each run of equal keys begins."""
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def lengths_of(starts: np.ndarray, count: int) -> np.ndarray:
    """How many rows each run has. count: rows of all runs."""
    return np.diff(starts, append=count)


def previous(values: np.ndarray, starts: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The value of the row before in the same run; of a run's first row, the run's ``initial``."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[starts] = initial
    return before


def running_max(values: np.ndarray, starts: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The highest value of a run up to and with each row, and not below the run's ``initial``."""
    # Places among all values instead of the values, so that each run can be lifted above the one before it.
    levels, places = np.unique(np.concatenate((initial, values)), return_inverse=True)
    run_count = len(starts)
    lifts = np.arange(run_count) * len(levels)
    lifted = places[run_count:] + np.repeat(lifts, lengths_of(starts, len(values)))
    lifted[starts] = np.maximum(lifted[starts], places[:run_count] + lifts)
    highest: np.ndarray = levels[np.maximum.accumulate(lifted) % max(1, len(levels))]
    return highest


def ends_of(starts: np.ndarray, count: int) -> np.ndarray:
    """The last row of each run. count: rows of all runs."""
    return np.append(starts[1:], count)[: len(starts)] - 1

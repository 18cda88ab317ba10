"""The rules for one sensor's readings in the order of the log: numbers, doors, carbon monoxide.

Each rule takes the readings of all sensors of a block, sorted by sensor and then in the order of the log, and
the previous state; it updates the state and returns the rows concerned. Rows of one sensor are adjacent, so
its previous reading is the previous row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from examples.home_security.homes import CO_LIMIT_PPM, DOOR_OPEN_LIMIT_MS, NUMBERS_REMEMBERED
from examples.home_security.segments import ends_of, lengths_of, previous, running_max, starts_of
from examples.home_security.tables_of_homes import KeyedTable

_NONE_YET: Final = 2
"""Besides closed and open: a door whose state is unknown."""


@dataclass(slots=True)
class Rows:
    """Readings in columns."""

    place: np.ndarray
    """The position of each among the block's readings."""
    home: np.ndarray
    key: np.ndarray
    """Home and sensor, see ``KeyedTable``."""
    kind: np.ndarray
    number: np.ndarray
    taken_ms: np.ndarray
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    def at(self, chosen: np.ndarray) -> Rows:
        """The chosen rows, by index or by boolean."""
        return Rows(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(slots=True)
class AlarmRows:
    """Alarms in columns."""

    key: np.ndarray
    """Home and sensor."""
    number: np.ndarray
    raised_ms: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> AlarmRows:
        """Alarms for these readings."""
        return cls(rows.key, rows.number, rows.taken_ms, rows.value)


def take_numbers(numbers: KeyedTable, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which readings are too far behind, which come for the first time, and which are their sensor's newest.

    Keeps each sensor's highest number, and a bit for each number below it, as network protocols do against
    replayed packets.
    """
    starts = starts_of(rows.key)
    state = numbers.rows_of(rows.key[starts])
    bits = numbers["bits"][state]
    is_known = bits != 0
    highest = np.where(is_known, numbers["highest"][state], -1)
    # Compare each number with the highest before it.
    highest_with = running_max(rows.number, starts, highest)
    behind = previous(highest_with, starts, highest) - rows.number
    is_too_far = behind >= NUMBERS_REMEMBERED
    is_newest = behind < 0

    # A repeat is in the state's bits, or earlier in these rows.
    run = np.repeat(np.arange(len(starts)), lengths_of(starts, len(rows)))
    behind_state = highest[run] - rows.number
    is_in_state = (behind_state >= 0) & (behind_state < NUMBERS_REMEMBERED)
    is_in_state &= (bits[run] >> np.where(is_in_state, behind_state, 0).astype(np.uint64) & np.uint64(1)) == 1
    by_number = np.lexsort((rows.number, run))
    is_repeated = (np.diff(run[by_number]) == 0) & (np.diff(rows.number[by_number]) == 0)
    is_new = ~is_too_far & ~is_in_state
    is_new[by_number[1:][is_repeated]] = False

    # Shift the bits up to the new highest number, and add those of these rows.
    after = highest_with[ends_of(starts, len(rows))]
    come = after[run] - rows.number
    is_remembered = come < NUMBERS_REMEMBERED
    ones = np.where(is_remembered, np.uint64(1) << np.where(is_remembered, come, 0).astype(np.uint64), 0)
    moved = after - highest
    is_kept = moved < NUMBERS_REMEMBERED
    bits = np.where(is_kept, bits << np.where(is_kept, moved, 0).astype(np.uint64), 0)
    numbers["highest"][state] = after
    if len(starts):
        numbers["bits"][state] = bits | np.bitwise_or.reduceat(ones, starts)
    return is_too_far, is_new, is_newest


def move_doors(doors: KeyedTable, rows: Rows) -> tuple[AlarmRows, np.ndarray]:
    """Apply the newest readings of doors and windows. Returns the alarms of doors that had been open for too
    long when they were closed, and the homes of doors that moved."""
    starts = starts_of(rows.key)
    state = doors.rows_of(rows.key[starts])
    is_open = (rows.value == 1).astype(np.uint8)
    initial = np.where(doors["is_known"][state], doors["is_open"][state], _NONE_YET)
    moves = rows.at(is_open != previous(is_open, starts, initial))

    # What each move ends: the previous move or, for the first, the state.
    starts = starts_of(moves.key)
    state = doors.rows_of(moves.key[starts])
    was_open = previous((moves.value == 1).astype(np.uint8), starts, doors["is_open"][state])
    was_raised = previous(np.zeros(len(moves), dtype=np.uint8), starts, doors["is_raised"][state])
    opened_ms = previous(moves.taken_ms, starts, doors["taken_ms"][state])
    opened_number = previous(moves.number, starts, doors["number"][state])
    is_late = (was_open == 1) & (was_raised == 0) & (moves.taken_ms - opened_ms > DOOR_OPEN_LIMIT_MS)
    alarms = AlarmRows(
        moves.key[is_late],
        opened_number[is_late],
        opened_ms[is_late] + DOOR_OPEN_LIMIT_MS,
        np.zeros(int(is_late.sum())),
    )
    last = moves.at(ends_of(starts, len(moves)))
    doors["number"][state], doors["taken_ms"][state] = last.number, last.taken_ms
    doors["is_known"][state], doors["is_open"][state], doors["is_raised"][state] = 1, last.value == 1, 0
    return alarms, moves.home


def measure_co(over: KeyedTable, rows: Rows) -> AlarmRows:
    """Apply the newest readings of carbon monoxide. Returns the alarms of those that exceeded the limit."""
    starts = starts_of(rows.key)
    state = over.rows_of(rows.key[starts])
    is_over = (rows.value > CO_LIMIT_PPM).astype(np.uint8)
    was_over = previous(is_over, starts, over["is_over"][state])
    over["is_over"][state] = is_over[ends_of(starts, len(rows))]
    return AlarmRows.of(rows.at((is_over == 1) & (was_over == 0)))

"""A block of homes, and what a micro-batch's readings, and time, change in it. No clock, no Spark, no SQL.

Theory of operation. A home's readings come in the order of the log, and everything follows from that order
alone: the boundaries of micro-batches make no difference. So the results can be recomputed from the log
(``verify``), and a micro-batch that is repeated after a crash gives the same results.

Homes are independent, so each step of the rules runs for all homes of a block at once, in columns: a block
takes about two hundred calls of numpy, however many readings it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from examples.home_security.homes import (
    ALARM_KINDS,
    ALARMS_SHOWN,
    CARBON_MONOXIDE,
    DOOR_OPEN,
    DOOR_OPEN_LIMIT_MS,
    GLASS_BREAK,
    LATENESS_MS,
    MINUTE_MS,
    PARTITION_COUNT,
    TOO_FAR_BEHIND,
    TOO_LATE,
    WRONG_PARTITION,
    Kind,
)
from examples.home_security.pages import count_activity, see_motion, write_pages
from examples.home_security.segments import ends_of, lengths_of, running_max, starts_of
from examples.home_security.sensors import AlarmRows, Rows, measure_co, move_doors, take_numbers
from examples.home_security.shapes import ALARMS, MINUTES, PAGES, REJECTED, empty, joined, rows_of
from examples.home_security.tables_of_homes import KEY_BITS, HomeTables
from tidegate import partition_for_key

_LOWER: Final = (1 << KEY_BITS) - 1


@dataclass(slots=True)
class BlockChanges:
    """What a micro-batch changes in a block, each as rows of the schema with its name."""

    minutes: pa.RecordBatch = field(default_factory=lambda: empty(MINUTES))
    alarms: pa.RecordBatch = field(default_factory=lambda: empty(ALARMS))
    rejected: pa.RecordBatch = field(default_factory=lambda: empty(REJECTED))
    pages: pa.RecordBatch = field(default_factory=lambda: empty(PAGES))
    """A home may have several; the last one counts."""

    def follow(self, later: BlockChanges) -> None:
        """Add later changes."""
        self.minutes = joined([self.minutes, later.minutes], MINUTES)
        self.alarms = joined([self.alarms, later.alarms], ALARMS)
        self.rejected = joined([self.rejected, later.rejected], REJECTED)
        self.pages = joined([self.pages, later.pages], PAGES)


class Block:
    """The homes of a block, all of one hub partition. ``encode`` saves them between micro-batches."""

    def __init__(self, partition: str, state: bytes | None = None) -> None:
        """partition: of the hub. state: as ``encode`` returned it; None for a new block."""
        self._partition = partition
        self._tables = HomeTables() if state is None else HomeTables.decode(state)

    def encode(self) -> bytes:
        """The state as bytes."""
        return self._tables.encode()

    def next_deadline_ms(self) -> int | None:
        """The watermark after which ``expire`` has something to do; None: not before the next reading."""
        doors = self._tables.doors
        waiting = doors["taken_ms"][_is_waiting(doors.columns)]
        return int(waiting.min()) + DOOR_OPEN_LIMIT_MS + LATENESS_MS if len(waiting) else None

    def take(self, readings: pa.RecordBatch, *, are_pages_wanted: bool = True) -> BlockChanges:
        """Apply readings (rows of ``READINGS`` in the order of the log)."""
        changes = BlockChanges()
        if not readings.num_rows:
            return changes
        homes = self._tables.homes.numbers_of(readings.column("home"), self._is_in_its_partition)
        rows, is_late = self._in_time(readings, homes)
        elsewhere, late, rows = np.flatnonzero(homes < 0), rows.place[is_late], rows.at(~is_late)
        # Stable, to keep a sensor's readings in the order of the log.
        rows = rows.at(np.argsort(rows.key, kind="stable"))
        is_too_far, is_new, is_newest = take_numbers(self._tables.numbers, rows)
        too_far = rows.place[is_too_far]
        changes.rejected = self._rejected(
            readings, {WRONG_PARTITION: elsewhere, TOO_LATE: late, TOO_FAR_BEHIND: too_far}
        )
        changes.minutes = self._count_minutes(rows.at(~is_too_far), is_new[~is_too_far])

        is_door = (rows.kind == Kind.DOOR) | (rows.kind == Kind.WINDOW)
        doors, moved_homes = move_doors(self._tables.doors, rows.at(is_newest & is_door))
        gas = measure_co(self._tables.over, rows.at(is_newest & (rows.kind == Kind.CO)))
        glass = AlarmRows.of(rows.at(is_new & (rows.kind == Kind.GLASS)))
        changes.alarms = self._raise({DOOR_OPEN: doors, CARBON_MONOXIDE: gas, GLASS_BREAK: glass})

        counted = rows.at(is_new)
        livelier_homes = count_activity(self._tables, counted)
        seen_homes = see_motion(self._tables, counted.at(counted.kind == Kind.MOTION))
        if are_pages_wanted:
            alarm_homes = _homes_of(np.concatenate([alarms.key for alarms in (doors, gas, glass)]))
            homes = np.unique(np.concatenate([moved_homes, livelier_homes, seen_homes, alarm_homes]))
            changes.pages = write_pages(self._tables, homes)
        return changes

    def expire(self, watermark_ms: int, *, are_pages_wanted: bool = True) -> BlockChanges:
        """Raise the alarms of doors open for too long, once the watermark (of sending times) shows that every
        reading taken within their limit must have come."""
        changes = BlockChanges()
        doors = self._tables.doors
        limits_ms = doors["taken_ms"] + DOOR_OPEN_LIMIT_MS
        due = np.flatnonzero(_is_waiting(doors.columns) & (limits_ms + LATENESS_MS < watermark_ms))
        doors["is_raised"][due] = 1
        alarms = AlarmRows(doors.keys[due], doors["number"][due], limits_ms[due], np.zeros(len(due)))
        changes.alarms = self._raise({DOOR_OPEN: alarms})
        if are_pages_wanted:
            changes.pages = write_pages(self._tables, np.unique(_homes_of(alarms.key)))
        return changes

    # --- steps of ``take`` --------------------------------------------------------------------------------

    def _is_in_its_partition(self, home: str) -> bool:
        """Senders may name a partition beside the key. A home in two blocks would have each minute and alarm
        twice, which the database refuses. Asked once for each home, as the hash takes microseconds."""
        return str(partition_for_key(home, PARTITION_COUNT)) == self._partition

    def _in_time(self, readings: pa.RecordBatch, homes: np.ndarray) -> tuple[Rows, np.ndarray]:
        """The readings by home, and which of them were sent too long after they were taken. That is judged by
        the home's last sending time, so it depends on the log alone, not on micro-batches. homes: the number
        of each reading's home; those below 0 are left out."""
        tables = self._tables
        order: np.ndarray = np.argsort(homes, kind="stable")[np.count_nonzero(homes < 0) :]
        homes = homes[order]
        sensors = tables.sensors.numbers_of(readings.column("sensor").take(pa.array(order)))
        rows = Rows(
            order,
            homes,
            homes << KEY_BITS | sensors,
            *(readings.column(name).to_numpy()[order] for name in ("kind", "number", "taken_ms", "value")),
        )
        starts = starts_of(rows.home)
        state = tables.by_home.rows_of(rows.home[starts])
        sent_ms = readings.column("sent_ms").to_numpy()[order]
        latest_ms = running_max(sent_ms, starts, tables.by_home["latest_sent_ms"][state])
        tables.by_home["latest_sent_ms"][state] = latest_ms[ends_of(starts, len(rows))]
        return rows, latest_ms - rows.taken_ms > LATENESS_MS

    def _rejected(self, readings: pa.RecordBatch, by_reason: dict[str, np.ndarray]) -> pa.RecordBatch:
        places: pa.Array[Any] = pa.array(np.concatenate(list(by_reason.values())))
        return rows_of(
            REJECTED,
            pa.repeat(self._partition, len(places)),
            *(readings.column(name).take(places) for name in REJECTED.names[1:-1]),
            pa.array([reason for reason, found in by_reason.items() for _ in found], pa.string()),
        )

    def _count_minutes(self, rows: Rows, is_new: np.ndarray) -> pa.RecordBatch:
        """Count readings in their minutes; returns the changed minutes."""
        minutes = self._tables.minutes
        order = np.argsort(rows.home << KEY_BITS | rows.taken_ms // MINUTE_MS, kind="stable")
        rows, is_new = rows.at(order), is_new[order]
        keys = rows.home << KEY_BITS | rows.taken_ms // MINUTE_MS
        starts = starts_of(keys)
        is_first = ~minutes.has(keys[starts])
        state = minutes.rows_of(keys[starts])
        is_opening = ((rows.kind == Kind.DOOR) | (rows.kind == Kind.WINDOW)) & (rows.value == 1)
        for column, is_counted in (
            ("readings", is_new),
            ("motions", is_new & (rows.kind == Kind.MOTION)),
            ("openings", is_new & is_opening),
            ("duplicates", ~is_new),
        ):
            if len(starts):
                minutes[column][state] += np.add.reduceat(is_counted.astype(np.int32), starts)
        is_measured = is_new & (rows.kind == Kind.CO)
        of_rows = np.repeat(state, lengths_of(starts, len(rows)))[is_measured]
        minutes["is_co_measured"][of_rows] = 1
        np.maximum.at(minutes["co_max_ppm"], of_rows, rows.value[is_measured])
        changed = self._minutes_at(state, is_first)
        latest_ms = self._tables.by_home["latest_sent_ms"][_homes_of(minutes.keys)]
        minutes.keep((minutes.keys & _LOWER) * MINUTE_MS > latest_ms - LATENESS_MS - MINUTE_MS)
        return changed

    def _minutes_at(self, places: np.ndarray, is_first: np.ndarray) -> pa.RecordBatch:
        minutes = self._tables.minutes
        keys = minutes.keys[places]
        figures = {name: values[places] for name, values in minutes.columns.items()}
        return rows_of(
            MINUTES,
            self._tables.homes.take(_homes_of(keys)),
            pa.array((keys & _LOWER) * MINUTE_MS),
            *(pa.array(figures[name]) for name in ("readings", "motions", "openings")),
            pa.array(figures["co_max_ppm"], mask=figures["is_co_measured"] == 0),
            pa.array(figures["duplicates"]),
            pa.array(is_first),
        )

    def _raise(self, raised: dict[str, AlarmRows]) -> pa.RecordBatch:
        """Alarms as rows, which are also added to the homes' pages. raised: by kind."""
        found = list(raised.values())
        kinds = np.repeat(
            np.array([ALARM_KINDS.index(kind) for kind in raised], dtype=np.uint8),
            [len(alarms.key) for alarms in found],
        )
        keys, numbers, raised_ms, values = (
            np.concatenate([getattr(alarms, name) for alarms in found])
            for name in ("key", "number", "raised_ms", "value")
        )
        if len(keys):
            self._show_alarms(keys, raised_ms, kinds)
        return rows_of(
            ALARMS,
            self._tables.homes.take(_homes_of(keys)),
            self._tables.sensors.take(keys & _LOWER),
            pa.array(numbers),
            pa.array([ALARM_KINDS[kind] for kind in kinds.tolist()], pa.string()),
            pa.array(raised_ms),
            pa.array(values),
        )

    def _show_alarms(self, keys: np.ndarray, raised_ms: np.ndarray, kinds: np.ndarray) -> None:
        """Keep the newest alarms of each home; simultaneous ones in the order of their kinds and sensors."""
        tables = self._tables
        shown = tables.alarms
        homes = np.concatenate([_homes_of(shown.keys), _homes_of(keys)])
        times_ms = np.concatenate([shown["raised_ms"], raised_ms])
        kinds = np.concatenate([shown["kind"], kinds])
        sensors = np.concatenate([shown["sensor"], (keys & _LOWER).astype(np.int32)])
        order = np.lexsort((tables.sensors.ranks()[sensors], kinds, times_ms, homes))
        homes, times_ms, kinds, sensors = (part[order] for part in (homes, times_ms, kinds, sensors))
        starts = starts_of(homes)
        lengths = lengths_of(starts, len(homes))
        numbers = np.arange(len(homes)) - np.repeat(starts, lengths)
        shown.keys = homes << KEY_BITS | numbers
        shown.columns.update(raised_ms=times_ms, kind=kinds, sensor=sensors)
        shown.keep(numbers >= np.repeat(lengths, lengths) - ALARMS_SHOWN)


def _homes_of(keys: np.ndarray) -> np.ndarray:
    return keys >> KEY_BITS


def _is_waiting(doors: dict[str, np.ndarray]) -> np.ndarray:
    """Open doors that have not raised an alarm."""
    is_waiting: np.ndarray = (doors["is_open"] == 1) & (doors["is_raised"] == 0)
    return is_waiting

"""The resident's page: a home's rooms, doors, alarms and activity of the day, as JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from examples.home_security.homes import ACTIVITY_LEVELS, ALARM_KINDS, DAY_MS, HOUR_MS
from examples.home_security.segments import starts_of
from examples.home_security.sensors import Rows
from examples.home_security.shapes import PAGES, rows_of
from examples.home_security.tables_of_homes import KEY_BITS, HomeTables, KeyedTable, Names

_LOWER: Final = (1 << KEY_BITS) - 1


def room_of(sensor: str) -> str:
    """``motion-hall`` is in the ``hall``."""
    return sensor.partition("-")[2] or sensor


# --- what changes a page ------------------------------------------------------------------------------------


def count_activity(tables: HomeTables, rows: Rows) -> np.ndarray:
    """Count readings (each once, by home) in their hours; returns the homes whose pages change."""
    by_home = tables.by_home
    order = np.argsort(rows.home, kind="stable")
    homes, taken_ms = rows.home[order], rows.taken_ms[order]
    starts = starts_of(homes)
    if not len(starts):
        return homes
    touched = homes[starts]
    next_day = np.maximum.reduceat(taken_ms // DAY_MS + 1, starts)
    is_next = next_day > by_home["next_day"][touched]
    _begin_day(tables, touched[is_next])
    by_home["next_day"][touched[is_next]] = next_day[is_next]

    is_today = taken_ms // DAY_MS + 1 == by_home["next_day"][homes]
    hours = homes[is_today] * 24 + taken_ms[is_today] % DAY_MS // HOUR_MS
    hours, counts = np.unique(hours, return_counts=True)
    activity = by_home["activity"].reshape(-1)
    before = activity[hours]
    after = np.minimum(before + counts, ACTIVITY_LEVELS[-1]).astype(np.uint8)
    activity[hours] = after
    is_livelier = _level_of(after) != _level_of(before)
    return np.concatenate([touched[is_next], hours[is_livelier] // 24])


def see_motion(tables: HomeTables, rows: Rows) -> np.ndarray:
    """Record motions (each once) in their rooms, after ``count_activity``; returns the changed homes."""
    rows = rows.at(rows.taken_ms // DAY_MS + 1 == tables.by_home["next_day"][rows.home])
    names = pa.array([room_of(name) for name in tables.sensors.to_list()], pa.string())
    rooms = rows.home << KEY_BITS | tables.rooms.numbers_of(names)[rows.key & _LOWER]
    order = np.argsort(rooms, kind="stable")
    rooms, hours = rooms[order], (rows.taken_ms[order] % DAY_MS // HOUR_MS).astype(np.uint32)
    starts = starts_of(rooms)
    if not len(starts):
        return starts
    state = tables.hours.rows_of(rooms[starts])
    before = tables.hours["bits"][state]
    after = before | np.bitwise_or.reduceat(np.uint32(1) << hours, starts)
    tables.hours["bits"][state] = after
    changed: np.ndarray = rooms[starts][after != before] >> KEY_BITS
    return changed


def _begin_day(tables: HomeTables, homes: np.ndarray) -> None:
    """Start a new day on homes' pages."""
    tables.by_home["activity"][homes] = 0
    if len(tables.hours.keys):
        tables.hours.keep(~np.isin(tables.hours.keys >> KEY_BITS, homes))


def _level_of(counts: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.array(ACTIVITY_LEVELS), counts, side="right")


# --- the page itself ----------------------------------------------------------------------------------------


def write_pages(tables: HomeTables, homes: np.ndarray) -> pa.RecordBatch:
    """The pages of homes (sorted, distinct) as rows of ``PAGES``; the same bytes for the same state.

    These are orjson's bytes for a dictionary with sorted keys, assembled from columns: creating a dictionary
    for each home took most of a micro-batch.
    """
    names = tables.homes.take(homes).to_pylist()
    days = _texts_of((tables.by_home["next_day"][homes].astype(np.int64) - 1) * DAY_MS)
    activity = np.full((len(homes), 24, 2), ord(","), dtype=np.uint8)
    activity[:, :, 0] = _level_of(tables.by_home["activity"][homes]) + ord("0")
    activities = activity.reshape(len(homes), 48)[:, :47].tobytes().decode()
    alarms, doors, rooms = _alarm_parts(tables, homes), _door_parts(tables, homes), _room_parts(tables, homes)
    pages = [
        f'{{"activity":[{activities[47 * index : 47 * index + 47]}],"alarms":[{alarms[index]}],'
        f'"day":"{day[:10]}","doors":{{{doors[index]}}},"home":{_json(name)},"rooms":{{{rooms[index]}}}}}'
        for index, (name, day) in enumerate(zip(names, days, strict=True))
    ]
    return rows_of(PAGES, pa.array(names, pa.string()), pa.array(pages, pa.string()))


def _alarm_parts(tables: HomeTables, homes: np.ndarray) -> list[str]:
    chosen = _rows_of_homes(tables.alarms, homes)
    times = _texts_of(tables.alarms["raised_ms"][chosen])
    kinds = [ALARM_KINDS[kind] for kind in tables.alarms["kind"][chosen].tolist()]
    sensors = [_json(name) for name in tables.sensors.to_list()]
    texts = [
        f'{{"at":"{at}","kind":"{kind}","sensor":{sensors[sensor]}}}'
        for at, kind, sensor in zip(times, kinds, tables.alarms["sensor"][chosen].tolist(), strict=True)
    ]
    return _joined(tables.alarms.keys[chosen] >> KEY_BITS, homes, texts)


def _door_parts(tables: HomeTables, homes: np.ndarray) -> list[str]:
    doors = tables.doors
    chosen = _by_name(doors.keys, _rows_of_homes(doors, homes), tables.sensors)
    names = [_json(name) for name in tables.sensors.to_list()]
    texts = [
        f'{names[sensor]}:{{"is_open":{_OPENINGS[is_open]},"since":"{since}"}}'
        for sensor, is_open, since in zip(
            (doors.keys[chosen] & _LOWER).tolist(),
            doors["is_open"][chosen].tolist(),
            _texts_of(doors["taken_ms"][chosen]),
            strict=True,
        )
    ]
    return _joined(doors.keys[chosen] >> KEY_BITS, homes, texts)


def _room_parts(tables: HomeTables, homes: np.ndarray) -> list[str]:
    hours = tables.hours
    chosen = _by_name(hours.keys, _rows_of_homes(hours, homes), tables.rooms)
    names = [_json(name) for name in tables.rooms.to_list()]
    texts = [
        f'{names[room]}:{{"hours_with_motion":{_hours_of(bits)}}}'
        for room, bits in zip(
            (hours.keys[chosen] & _LOWER).tolist(), hours["bits"][chosen].tolist(), strict=True
        )
    ]
    return _joined(hours.keys[chosen] >> KEY_BITS, homes, texts)


_OPENINGS: Final = ("false", "true")


def _rows_of_homes(table: KeyedTable, homes: np.ndarray) -> np.ndarray:
    """The rows of homes, which are either few or nearly all."""
    return np.flatnonzero(np.isin(table.keys >> KEY_BITS, homes))


def _by_name(keys: np.ndarray, chosen: np.ndarray, names: Names) -> np.ndarray:
    """Rows by home, and within a home by the name in the lower half of the key."""
    ranks = names.ranks()[keys[chosen] & _LOWER]
    return chosen[np.lexsort((ranks, keys[chosen] >> KEY_BITS))]


def _joined(homes_of_texts: np.ndarray, homes: np.ndarray, texts: list[str]) -> list[str]:
    """Each home's strings, given in the order of homes, joined by commas."""
    starts = np.searchsorted(homes_of_texts, homes).tolist()
    ends = np.searchsorted(homes_of_texts, homes, side="right").tolist()
    return [",".join(texts[start:end]) for start, end in zip(starts, ends, strict=True)]


def _texts_of(times_ms: np.ndarray) -> list[str]:
    """``iso_time`` of each."""
    moments = times_ms.astype("M8[ms]")
    texts: list[str] = np.datetime_as_string(moments, unit="ms", timezone="UTC").tolist()
    return texts


@lru_cache(maxsize=4096)
def _hours_of(bits: int) -> str:
    return _json([hour for hour in range(24) if bits >> hour & 1])


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

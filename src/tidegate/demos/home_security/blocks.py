"""A hundred homes at a time: what the steps of the pipeline hand on to each other, and the state they keep.

Spark asks for state key by key, and every key costs some hundred microseconds of talk between Java and
Python, whatever it holds. So a key here is not a home but a block of homes: those of one hub partition that
share a hash. A home's state is still its own; the homes of a block that have no readings in a micro-batch
stay as the bytes that they are.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tidegate.demos.home_security.home import (
    CO_MAX_PPM,
    DUPLICATES,
    MOTIONS,
    OPENINGS,
    READINGS,
    Alarm,
    Home,
)
from tidegate.demos.home_security.homes import PARTITION_COUNT, Kind
from tidegate.demos.home_security.readings import Reading, parse_reading

_STATUS: Final = int(Kind.STATUS)
_ENTRY: Final = struct.Struct("<HIq")
_NO_DEADLINE: Final = -1

Place = tuple[str, int, str, int]
"""Of an event in the hub: partition, sequence number, offset, enqueued time in milliseconds."""


def block_of(partition: str, partition_key: str | None, blocks: int) -> str:
    """The block of a home. blocks: of the whole hub together."""
    # Another hash than the hub's, which is the same for all homes of a partition.
    number = zlib.crc32((partition_key or "").encode()) % max(1, blocks // PARTITION_COUNT)
    return f"{partition}-{number}"


# --- from events to blocks ---------------------------------------------------------------------------------


@dataclass(slots=True)
class BlockReadings:
    """What came for a block, in the order of the log."""

    first_sequence_number: int
    readings: list[list[Any]] = field(default_factory=list)
    """Each: place, and the fields of ``Reading``."""
    rejected: list[list[Any]] = field(default_factory=list)
    """Each: place, reason."""


@dataclass(slots=True)
class Gathered:
    """What a run of events came to."""

    blocks: dict[str, BlockReadings]
    latest_sent_ms: int
    """The latest time of sending among them; 0: there was none."""


def gather(events: Iterable[tuple[Place, str | None, bytes]], blocks: int) -> Gathered:
    """Parse events and sort them by blocks; what only says that a sensor is alive is left out.

    events: place, partition key and body, in order of their sequence numbers within each partition.
    """
    gathered: dict[str, BlockReadings] = {}
    names: dict[tuple[str, str | None], str] = {}
    latest_sent_ms = 0
    for place, key, body in events:
        name = names.get((place[0], key))
        if name is None:
            name = names[place[0], key] = block_of(place[0], key, blocks)
        block = gathered.get(name)
        if block is None:
            block = gathered[name] = BlockReadings(place[1])
        parsed = parse_reading(body, key)
        if type(parsed) is str:
            block.rejected.append([place, parsed])
            continue
        assert isinstance(parsed, Reading)
        if parsed.sent_ms > latest_sent_ms:
            latest_sent_ms = parsed.sent_ms
        if parsed.kind != _STATUS:
            block.readings.append([place, *parsed])
    return Gathered(gathered, latest_sent_ms)


# --- a block's state ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class BlockOutput:
    """What a block has to say after a micro-batch, in columns, ready to be encoded."""

    minutes: list[list[Any]] = field(default_factory=lambda: [[] for _ in range(7)])
    """The columns of ``home_minute``."""
    alarms: list[Alarm] = field(default_factory=list)
    rejected: list[list[Any]] = field(default_factory=list)
    """Each: place, reason."""
    summaries: list[tuple[str, str]] = field(default_factory=list)
    """Home and JSON, of the homes whose page changes."""

    def encoded(self) -> dict[str, bytes]:
        """Each part as bytes, for the next step: ``decode_parts`` gives lists back."""
        return {
            "minutes": encode_parts(self.minutes),
            "alarms": encode_parts([list(alarm) for alarm in self.alarms]),
            "rejected": encode_parts(self.rejected),
            "summaries": encode_parts(self.summaries),
        }


class Block:
    """The homes of a block, and the earliest time at which one of them has to be looked at."""

    def __init__(self, state: bytes | None = None) -> None:
        """state: as ``encode`` gave it; None: nothing has come for the block yet."""
        self._encoded: dict[str, tuple[bytes, int]] = {}
        self._homes: dict[str, Home] = {}
        if state:
            self._encoded = dict(_entries(state))

    def take(self, readings: Iterable[list[Any]], output: BlockOutput) -> None:
        """Apply readings in the order of the log; alarms and what is put aside go to ``output``.

        readings: as ``BlockReadings`` holds them.
        """
        homes = self._homes
        for place, *fields in readings:
            home = homes.get(fields[0]) or self._home(fields[0])
            effect = home.apply(Reading._make(fields))
            if effect is None:
                continue
            if type(effect) is str:
                output.rejected.append([place, effect])
            else:
                assert isinstance(effect, Alarm)
                output.alarms.append(effect)

    def expire(self, watermark_ms: int, output: BlockOutput) -> None:
        """Raise the alarms whose time has come by the watermark."""
        due = {
            name
            for name, (_, deadline_ms) in self._encoded.items()
            if _NO_DEADLINE < deadline_ms < watermark_ms
        }
        for name in sorted(due | self._homes.keys()):
            output.alarms.extend(self._home(name).expire(watermark_ms))

    def encode(self, output: BlockOutput) -> tuple[bytes, int | None]:
        """The state to be kept, and the watermark behind which ``expire`` has something to do.

        Call it once, at last: the minutes and summaries that have changed go to ``output``.
        """
        for name, home in self._homes.items():
            _write_minutes(home, output.minutes)
            if home.is_summary_changed:
                output.summaries.append((name, home.summary().decode()))
            deadline_ms = home.next_deadline_ms()
            self._encoded[name] = (home.encode(), _NO_DEADLINE if deadline_ms is None else deadline_ms)
        parts: list[bytes] = []
        for name, (state, deadline_ms) in self._encoded.items():
            encoded_name = name.encode()
            parts += (_ENTRY.pack(len(encoded_name), len(state), deadline_ms), encoded_name, state)
        deadlines = [deadline for _, deadline in self._encoded.values() if deadline > _NO_DEADLINE]
        return b"".join(parts), min(deadlines, default=None)

    def _home(self, name: str) -> Home:
        home = self._homes.get(name)
        if home is None:
            found = self._encoded.get(name)
            home = self._homes[name] = Home(name) if found is None else Home.decode(name, found[0])
        return home


def _entries(state: bytes) -> Iterator[tuple[str, tuple[bytes, int]]]:
    position, end, size = 0, len(state), _ENTRY.size
    while position < end:
        name_length, length, deadline_ms = _ENTRY.unpack_from(state, position)
        start = position + size + name_length
        position = start + length
        yield state[start - name_length : start].decode(), (state[start:position], deadline_ms)


def _write_minutes(home: Home, columns: list[list[Any]]) -> None:
    names, minutes, readings, motions, openings, ppm, duplicates = columns
    for minute in home.touched_minutes:
        figures = home.minutes[minute]
        names.append(home.name)
        minutes.append(minute)
        readings.append(figures[READINGS])
        motions.append(figures[MOTIONS])
        openings.append(figures[OPENINGS])
        ppm.append(None if figures[CO_MAX_PPM] < 0 else figures[CO_MAX_PPM])
        duplicates.append(figures[DUPLICATES])


# --- between the steps -------------------------------------------------------------------------------------


def encode_parts(value: object) -> bytes:
    """Lists of a step's results as bytes, for the next step."""
    return orjson.dumps(value)


def decode_parts(encoded: bytes) -> Any:
    """What ``encode_parts`` was given."""
    return orjson.loads(encoded)

"""A home's state machine, held against a recomputation that keeps everything: any readings, cut into any
micro-batches, give the same minutes, alarms, dead letters and summaries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from examples.home_security.block import Block, BlockChanges
from examples.home_security.blocks import gather
from examples.home_security.homes import (
    CARBON_MONOXIDE,
    DAY_MS,
    DOOR_OPEN,
    DOOR_OPEN_LIMIT_MS,
    GLASS_BREAK,
    KIND_NAMES,
    LATENESS_MS,
    MINUTE_MS,
    NUMBERS_REMEMBERED,
    TOO_FAR_BEHIND,
    TOO_LATE,
    WRONG_PARTITION,
    Alarm,
    Kind,
)
from examples.home_security.pipeline import HomesProcessor, results_of
from examples.home_security.reading_columns import parse_readings
from examples.home_security.readings import LONG_HOME, Reading, parse_reading
from examples.home_security.shapes import (
    ALARMS,
    MINUTES,
    PAGES,
    READINGS,
    REJECTED,
    empty,
    from_bytes,
    to_bytes,
)
from examples.home_security.tables import home_alarm, home_minute
from examples.home_security.verify import Expected, Recomputation
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from sqlalchemy import insert, select

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql import Database

Event = tuple[int, str | None, bytes]
"""Sequence number, partition key, body."""

PARTITION = "10"
"""That of the homes h1 and h6; h0's is another."""
START_MS = 20_000 * DAY_MS + 23 * 3_600_000
"""An hour before midnight, so that days change, too."""
ENQUEUED_MS = START_MS + 100 * DAY_MS
"""When the service took every event: by its clock, none of their times is ahead."""
SENSORS = (("door-front", "door"), ("motion-hall", "motion"), ("co-kitchen", "co"), ("glass-hall", "glass"))


def _batch(events: list[Event]) -> pa.RecordBatch:
    """Events as the source gives them."""
    numbers, keys, bodies = zip(*events, strict=True) if events else ((), (), ())
    columns: list[Any] = [
        pa.array([PARTITION] * len(events), pa.string()),
        pa.array(numbers, pa.int64()),
        pa.array([str(number) for number in numbers], pa.string()),
        pa.array([ENQUEUED_MS * 1_000] * len(events), pa.timestamp("us", tz="UTC")),
        pa.array(keys, pa.string()),
        pa.array(bodies, pa.binary()),
    ]
    names = ["partition", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "body"]
    return pa.RecordBatch.from_arrays(columns, names=names)


class Handle:
    """What Spark keeps for a key: a value, and timers."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str) -> Handle:  # noqa: N802 - Spark's name
        return self

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def registerTimer(self, time_ms: int) -> None:  # noqa: N802 - Spark's name
        self.timers.add(time_ms)

    def deleteTimer(self, time_ms: int) -> None:  # noqa: N802 - Spark's name
        self.timers.remove(time_ms)


@dataclass
class Pipeline:
    """The steps of the pipeline without Spark: gathers, keeps state as bytes between micro-batches, raises
    the watermark with what came in the micro-batch before."""

    handle: Handle = field(default_factory=Handle)
    watermark_ms: int = 0
    minutes: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    dead_letters: dict[tuple[str, int], str] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    timers_fired: int = 0

    def run(self, events: list[Event]) -> None:
        """One micro-batch, which comes in two Arrow batches."""
        middle = len(events) // 2
        rows = [
            row for part in (events[:middle], events[middle:]) for row in gather(_batch(part), 1).to_pylist()
        ]
        gathered = [row for row in rows if row["block"] is not None and not self._is_dropped(row)]
        processor, key = HomesProcessor(are_pages_wanted=True), (f"{PARTITION}-0",)
        processor.init(self.handle)  # type: ignore[arg-type]
        times = TimerValues(-1, self.watermark_ms)
        if gathered:
            parts = reversed([SimpleNamespace(**row) for row in gathered])  # a shuffle promises no order
            self._keep(processor.handleInputRows(key, parts, times))
        # As in Spark: a timer fires when the watermark has reached it, and is forgotten then.
        for time_ms in sorted(each for each in self.handle.timers if each <= self.watermark_ms):
            self.timers_fired += 1
            self._keep(processor.handleExpiredTimer(key, times, ExpiredTimerInfo(time_ms)))
            self.handle.deleteTimer(time_ms)
        assert all(each > self.watermark_ms for each in self.handle.timers)
        latest_ms = [round(row["sent"].timestamp() * 1000) for row in rows if row["sent"] is not None]
        self.watermark_ms = max([self.watermark_ms, *latest_ms])

    def _is_dropped(self, row: dict[str, Any]) -> bool:
        """As in Spark: what has an event time and is not past the watermark never reaches the state."""
        return row["sent"] is not None and row["sent"].timestamp() * 1000 <= self.watermark_ms

    def _keep(self, changed: Iterator[Any]) -> None:
        (row,) = changed
        minutes, alarms, rejected, pages = (
            from_bytes(part, schema).to_pylist()
            for part, schema in (
                (row.minutes, MINUTES),
                (row.alarms, ALARMS),
                (row.rejected, REJECTED),
                (row.pages, PAGES),
            )
        )
        for home, minute_ms, *figures, is_new in (minute.values() for minute in minutes):
            # What is new is inserted, and the database would refuse one that is there.
            assert is_new == ((home, minute_ms) not in self.minutes)
            self.minutes[home, minute_ms] = tuple(figures)
        assert len({(minute["home"], minute["minute_ms"]) for minute in minutes}) == len(minutes)
        self.alarms += [Alarm(**alarm) for alarm in alarms]
        for row in rejected:
            place = (row["partition"], row["sequenceNumber"])
            assert place not in self.dead_letters
            assert row["offset"] == str(row["sequenceNumber"])
            self.dead_letters[place] = row["_error"]
        self.pages.update({row["home"]: row["page"].encode() for row in pages})

    def check(self, expected: Expected) -> None:
        """Everything that was written is what is expected, and nothing was written twice."""
        assert self.minutes == dict(expected.minutes)
        assert sorted(self.alarms) == sorted(expected.alarms)
        assert self.dead_letters == dict(expected.dead_letters)
        assert self.pages == dict(expected.summaries)


@st.composite
def micro_batches(draw: st.DrawFn) -> list[list[Event]]:
    """Readings of three homes, one of them in another partition than its own: times of sending that never go
    back, times of taking that do, numbers that come late, again or never; some events are no readings."""
    sent_ms = START_MS
    batches: list[list[Event]] = [[]]
    steps = st.tuples(
        st.sampled_from(("h1", "h6", "h0")),
        st.sampled_from(SENSORS),
        st.one_of(st.integers(0, 12), st.integers(0, 3 * NUMBERS_REMEMBERED)),
        st.sampled_from((0, 1_000, 30_000, 100_000, 400_000)),
        st.one_of(st.just(0), st.integers(0, LATENESS_MS + 5_000)),
        st.sampled_from(("open", "closed")),
        st.sampled_from((3, 70, 71, 300)),
        st.sampled_from((False,) * 6 + (True,)),
        st.sampled_from((False,) * 9 + (True,)),
    )
    for index, step in enumerate(draw(st.lists(steps, max_size=40))):
        home, (sensor, kind), number, passed_ms, delay_ms, opening, ppm, is_batch_over, is_spoilt = step
        sent_ms += passed_ms
        fields = {
            "home": home,
            "sensor": sensor,
            "kind": kind,
            "number": number,
            "taken": sent_ms - delay_ms,
            "sent": sent_ms,
            "value": {"door": opening, "co": ppm}.get(kind),
        }
        body = b"?" if is_spoilt else orjson.dumps(fields)
        batches[-1].append((index, home, body))
        if is_batch_over:
            batches.append([])
    return batches


@settings(max_examples=100)
@given(micro_batches())
@pytest.mark.slow
def test_any_cut_gives_what_the_log_says(batches: list[list[Event]]) -> None:
    """Where one micro-batch ends and the next begins changes nothing; and a last, empty one lets the timers
    fire that the watermark has passed."""
    pipeline, recomputation = Pipeline(), Recomputation()
    for batch in [*batches, []]:
        pipeline.run(batch)
        for number, key, body in batch:
            recomputation.add(PARTITION, number, key, body)
    pipeline.check(recomputation.finish(pipeline.watermark_ms))


@pytest.mark.parametrize(("is_reading_there", "timers_fired"), [(True, 0), (False, 1)])
def test_state_is_looked_at_once_where_a_reading_comes_with_the_deadline(
    is_reading_there: bool, timers_fired: int
) -> None:
    """Spark's timer is for blocks that nothing comes for; each way the alarm is raised once."""
    pipeline = Pipeline()
    later_ms = START_MS + DOOR_OPEN_LIMIT_MS + LATENESS_MS + 1_000
    pipeline.run([_door(0, START_MS)])
    assert pipeline.handle.timers
    pipeline.run([_motion(1, later_ms)])  # moves the watermark behind the deadline
    pipeline.run([_motion(2, later_ms)] if is_reading_there else [])
    assert [alarm.kind for alarm in pipeline.alarms] == [DOOR_OPEN]
    assert (pipeline.timers_fired, pipeline.handle.timers) == (timers_fired, set())


def test_a_minute_that_is_new_is_appended() -> None:
    """In the order of the key, whichever block it is from; one that was there is upserted."""

    def minute(home: str, minute_ms: int, *, is_new: bool) -> dict[str, object]:
        figures = dict.fromkeys(("readings", "motions", "openings", "duplicates"), 1)
        return {"home": home, "minute_ms": minute_ms, **figures, "co_max_ppm": None, "is_new": is_new}

    blocks = [
        [minute("h2", 0, is_new=False), minute("h2", 60_000, is_new=True)],
        [minute("h1", 60_000, is_new=True), minute("h1", 0, is_new=True)],
    ]
    nothing = {name: to_bytes(empty(kind)) for name, kind in (("alarms", ALARMS), ("rejected", REJECTED))}
    rows = [{"minutes": to_bytes(pa.RecordBatch.from_pylist(block, MINUTES)), **nothing} for block in blocks]
    (found,) = results_of(None, iter([pa.RecordBatch.from_pylist(rows)]))
    assert [(row["_table"], row["home"], row["minute_ms"]) for row in found.to_pylist()] == [
        ("new minutes", "h1", 0),
        ("new minutes", "h1", 60_000),
        ("minutes", "h2", 0),
        ("new minutes", "h2", 60_000),
    ]


def _door(number: int, time_ms: int) -> Event:
    fields = {"home": "h1", "sensor": "door-front", "kind": "door", "number": number}
    return number, "h1", orjson.dumps(fields | {"taken": time_ms, "sent": time_ms, "value": "open"})


def _motion(number: int, time_ms: int) -> Event:
    fields = {"home": "h6", "sensor": "motion-hall", "kind": "motion", "number": number}
    return number, "h6", orjson.dumps(fields | {"taken": time_ms, "sent": time_ms, "value": None})


class OneHome:
    """A home whose readings come one by one, its state being bytes between them."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.changes = BlockChanges()

    def apply(
        self, sensor: str, kind: Kind, number: int, taken_ms: int, value: float = 0.0, sent_ms: int = 0
    ) -> Alarm | str | None:
        """Take a reading; the alarm that it raises, or the reason why it is put aside."""
        row = {
            "sequenceNumber": 0,
            "offset": "0",
            "enqueuedTime": 0,
            "home": "h1",
            "sensor": sensor,
            "kind": int(kind),
            "number": number,
            "taken_ms": taken_ms,
            "sent_ms": sent_ms or taken_ms + 50,
            "value": value,
        }
        block = Block(PARTITION, self.state)
        self.changes = block.take(pa.RecordBatch.from_pylist([row], READINGS))
        self.state = block.encode()
        for alarm in self.changes.alarms.to_pylist():
            return Alarm(**alarm)
        for rejected in self.changes.rejected.to_pylist():
            return str(rejected["_error"])
        return None

    def expire(self, watermark_ms: int) -> list[Alarm]:
        """Let time pass."""
        block = Block(PARTITION, self.state)
        self.changes = block.expire(watermark_ms)
        self.state = block.encode()
        return [Alarm(**alarm) for alarm in self.changes.alarms.to_pylist()]

    def deadline_ms(self) -> int | None:
        """When it has to be looked at."""
        return Block(PARTITION, self.state).next_deadline_ms()


def test_a_door_left_open_raises_one_alarm() -> None:
    """Not at its limit and not while a reading of its closing may be under way; then once, and not again
    when it is closed at last."""
    home = OneHome()
    assert home.apply("door", Kind.DOOR, 0, START_MS, 1.0) is None
    deadline_ms = START_MS + DOOR_OPEN_LIMIT_MS + LATENESS_MS
    assert home.deadline_ms() == deadline_ms
    assert home.expire(deadline_ms) == []
    (alarm,) = home.expire(deadline_ms + 1)
    assert (alarm.kind, alarm.number, alarm.raised_ms) == (DOOR_OPEN, 0, START_MS + DOOR_OPEN_LIMIT_MS)
    assert home.expire(deadline_ms + 2) == []
    assert home.deadline_ms() is None
    assert home.apply("door", Kind.DOOR, 1, deadline_ms, 0.0) is None


def test_a_door_closed_in_time_raises_none_and_one_closed_late_does() -> None:
    """The limit itself is still in time."""
    for open_ms, kind in ((DOOR_OPEN_LIMIT_MS, None), (DOOR_OPEN_LIMIT_MS + 1, DOOR_OPEN)):
        home = OneHome()
        home.apply("door", Kind.DOOR, 0, START_MS, 1.0)
        effect = home.apply("door", Kind.DOOR, 1, START_MS + open_ms, 0.0)
        assert (effect.kind if isinstance(effect, Alarm) else effect) == kind


def test_carbon_monoxide_raises_one_alarm_per_incident() -> None:
    """Staying over the limit is no new alarm; going under it and over it again is."""
    home = OneHome()
    effects = [
        home.apply("co", Kind.CO, number, START_MS + number, ppm)
        for number, ppm in enumerate((3.0, 70.0, 71.0, 300.0, 70.0, 90.0))
    ]
    assert [effect.number for effect in effects if isinstance(effect, Alarm)] == [2, 5]
    assert {effect.kind for effect in effects if isinstance(effect, Alarm)} == {CARBON_MONOXIDE}
    (minute,) = home.changes.minutes.to_pylist()
    assert (minute["minute_ms"], minute["co_max_ppm"]) == (START_MS - START_MS % MINUTE_MS, 300.0)


def test_broken_glass_is_an_alarm_even_when_it_comes_late_but_not_twice() -> None:
    """A reading that is overtaken by its sensor's next one is not lost; one that is sent again is."""
    home = OneHome()
    assert home.apply("glass", Kind.MOTION, 5, START_MS) is None
    effect = home.apply("glass", Kind.GLASS, 4, START_MS - 1_000, sent_ms=START_MS + 60)
    assert isinstance(effect, Alarm)
    assert effect.kind == GLASS_BREAK
    assert home.apply("glass", Kind.GLASS, 4, START_MS - 1_000, sent_ms=START_MS + 60) is None
    assert home.changes.minutes.column("duplicates").to_pylist() == [1]


def test_what_comes_too_late_or_from_too_far_behind_is_put_aside() -> None:
    """Its minute may be forgotten, or it may have been counted: neither is guessed."""
    home, sent_ms = OneHome(), START_MS + LATENESS_MS
    assert home.apply("motion", Kind.MOTION, 100, START_MS) is None
    assert home.apply("motion", Kind.MOTION, 101, START_MS, sent_ms=sent_ms) is None
    assert home.apply("motion", Kind.MOTION, 102, START_MS, sent_ms=sent_ms + 1) == TOO_LATE
    assert home.apply("motion", Kind.MOTION, 200, sent_ms) is None
    assert home.apply("motion", Kind.MOTION, 200 - NUMBERS_REMEMBERED, sent_ms) == TOO_FAR_BEHIND
    assert home.apply("motion", Kind.MOTION, 201 - NUMBERS_REMEMBERED, sent_ms) is None


@pytest.mark.slow
def test_the_state_of_a_home_stays_small() -> None:
    """Whatever hours bring, closed minutes and old alarms go: a lively home is below a kilobyte."""
    home = OneHome()
    for number in range(300):
        home.apply(f"motion-{number % 4}", Kind.MOTION, number // 4, START_MS + number * 80_000)
        home.apply("glass", Kind.GLASS, number, START_MS + number * 80_000)
    assert home.state is not None
    assert len(home.state) < 1_000


def test_state_of_another_format_is_refused() -> None:
    """Its bytes would be taken for something that they are not."""
    state = Block(PARTITION).encode()
    assert Block(PARTITION, state).encode() == state
    for other in (b"\x01" + state[1:], b"\xff" + state[1:], b""):
        with pytest.raises(InvalidArgumentError, match="format 2 only"):
            Block(PARTITION, other)


def test_a_page_is_written_when_it_changes_and_only_then() -> None:
    """The second motion in a room in the same hour changes nothing that is shown."""
    home = OneHome()
    # The fourth reading of an hour makes it livelier.
    for number, is_new in ((0, True), (1, False), (2, False), (3, True)):
        home.apply("motion-hall", Kind.MOTION, number, START_MS + number)
        assert bool(home.changes.pages.num_rows) is is_new


def test_a_home_in_two_partitions_counts_in_that_of_its_key() -> None:
    """A sender may name a partition beside the key. Each partition has state of its own: the same minute or
    alarm from both would be two rows with one key, which ends the query."""
    row: dict[str, object] = dict.fromkeys(READINGS.names, 0)
    row |= {"sequenceNumber": 7, "offset": "7", "home": "h1", "sensor": "glass", "kind": int(Kind.GLASS)}
    row |= {"taken_ms": START_MS, "sent_ms": START_MS}
    readings = pa.RecordBatch.from_pylist([row], READINGS)
    mine, others = Block(PARTITION).take(readings), Block("0")
    assert [mine.minutes.num_rows, mine.alarms.num_rows, mine.rejected.num_rows] == [1, 1, 0]
    before = others.encode()
    for _ in range(2):
        found = others.take(readings)
        assert [found.minutes.num_rows, found.alarms.num_rows, found.pages.num_rows] == [0, 0, 0]
        (rejected,) = found.rejected.to_pylist()
        place = rejected["partition"], rejected["sequenceNumber"]
        assert (*place, rejected["_error"]) == ("0", 7, WRONG_PARTITION)
    assert others.encode() == before


@pytest.mark.parametrize("home", ["h" * 128, "ä" * 128, "😀" * 128, "h" * 129, "ä" * 129])
def test_a_home_is_as_long_as_the_tables_hold(home: str) -> None:
    """Both parsers count characters, as databases do: one more would end the query when it is written."""
    fields = {"home": home, "sensor": "s", "kind": "motion", "number": 1, "taken": 5, "sent": 6}
    body = orjson.dumps(fields | {"value": None})
    is_short = len(home) <= 128
    assert isinstance(parse_reading(body, home), Reading) is is_short
    columns = parse_readings(pa.array([home]), pa.array([body], pa.binary()))
    assert columns.reasons == ({} if is_short else {0: LONG_HOME})
    assert (columns.kind[0] >= 0) == is_short


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_homes_of_similar_names_have_rows_of_their_own(kind: str, request: pytest.FixtureRequest) -> None:
    """Other names are other homes to the state, so they must be to the database, whatever its collation; and
    the longest that the parsers accept fit."""
    homes = ["h1", "H1", "h1 ", "ä", "a", "😀" * 128]
    minute = dict.fromkeys(("minute_ms", "readings", "motions", "openings", "duplicates"), 1)
    alarm = {"sensor": "s" * 64, "number": 1, "kind": GLASS_BREAK, "raised_ms": 1, "value": 0.0}
    with Database.open(request.getfixturevalue(f"{kind}_url")) as database:
        if kind == "mariadb":  # a database as it is made by default
            with database.writing() as connection, connection.begin():
                connection.exec_driver_sql("ALTER DATABASE COLLATE = utf8mb4_general_ci")
        for table, row in ((home_minute, minute), (home_alarm, alarm)):
            database.ensure_table(table)
            with database.writing() as connection, connection.begin():
                connection.execute(insert(table), [{"home": home, **row} for home in homes])
            with database.read() as connection:
                assert set(connection.scalars(select(table.c.home))) == set(homes)


_TEXTS = st.one_of(
    st.sampled_from(("open", "closed", "", "h1", "a b", 'a"b', "ä", "a\0")), st.text(max_size=5)
)
_NUMBERS = st.one_of(
    st.integers(-2, 100), st.sampled_from((1 << 53, 1 << 63, 1 << 70, 10_000, 10_001, -0.0, 1.5, 1e300, True))
)
_FIELDS = st.fixed_dictionaries(
    {
        "home": st.one_of(st.just("h1"), _TEXTS, st.just("h" * 128), st.just("h" * 129)),
        "sensor": st.one_of(st.just("door"), _TEXTS, st.just("s" * 64), st.just("s" * 65)),
        "kind": st.one_of(st.sampled_from(sorted(KIND_NAMES)), _TEXTS),
        "number": _NUMBERS,
        "taken": st.one_of(_NUMBERS, st.just(4_102_444_800_000)),
        "sent": st.one_of(_NUMBERS, st.just(4_102_444_799_999)),
        "value": st.one_of(st.none(), _TEXTS, _NUMBERS),
    }
)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                _FIELDS.map(lambda fields: json.dumps(fields, separators=(",", ":")).encode()),
                _FIELDS.map(lambda fields: json.dumps(fields, ensure_ascii=False).encode()),
                st.binary(max_size=20),
            ),
            st.sampled_from((b"", b"", b"", b" ", b"}", b"\n", b"\xff")),
            st.sampled_from(("h1", "h1", "h1", "", 'a"b', "h" * 128, "h" * 129, None)),
        ),
        max_size=12,
    )
)
@pytest.mark.slow
def test_readings_in_columns_are_those_that_one_by_one_give(
    events: list[tuple[bytes, bytes, str | None]],
) -> None:
    """What the regular expression takes apart is what ``parse_reading`` takes it for, byte for byte."""
    keys, bodies = [key for *_, key in events], [body + end for body, end, _ in events]
    columns = parse_readings(pa.array(keys, pa.string()), pa.array(bodies, pa.binary()))
    for row, (key, body) in enumerate(zip(keys, bodies, strict=True)):
        expected = parse_reading(body, key)
        if isinstance(expected, str):
            assert columns.kind[row] == -1
            assert columns.reasons[row] == expected
        else:
            assert row not in columns.reasons
            assert expected == Reading(
                str(key),
                columns.sensor[row].as_py(),
                columns.kind[row],
                columns.number[row],
                columns.taken_ms[row],
                columns.sent_ms[row],
                columns.value[row],
            )

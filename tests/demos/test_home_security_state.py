"""A home's state machine, held against a recomputation that keeps everything: any readings, cut into any
micro-batches, give the same minutes, alarms, dead letters and summaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.demos.home_security.blocks import Block, BlockOutput, Place, decode_parts, encode_parts, gather
from tidegate.demos.home_security.home import (
    CARBON_MONOXIDE,
    DOOR_OPEN,
    GLASS_BREAK,
    TOO_FAR_BEHIND,
    TOO_LATE,
    Alarm,
    Home,
)
from tidegate.demos.home_security.homes import (
    DAY_MS,
    DOOR_OPEN_LIMIT_MS,
    LATENESS_MS,
    MINUTE_MS,
    NUMBERS_REMEMBERED,
    Kind,
)
from tidegate.demos.home_security.readings import Reading
from tidegate.demos.home_security.verify import Expected, Recomputation

START_MS = 20_000 * DAY_MS + 23 * 3_600_000
"""An hour before midnight, so that days change, too."""
SENSORS = (("door-front", "door"), ("motion-hall", "motion"), ("co-kitchen", "co"), ("glass-hall", "glass"))


@dataclass
class Pipeline:
    """The steps of the pipeline without Spark: gathers, keeps state as bytes between micro-batches, raises
    the watermark with what came in the micro-batch before."""

    state: bytes | None = None
    deadline_ms: int | None = None
    latest_sent_ms: int = 0
    watermark_ms: int = 0
    minutes: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    dead_letters: dict[tuple[str, int], str] = field(default_factory=dict)
    summaries: dict[str, bytes] = field(default_factory=dict)

    def run(self, events: list[tuple[Place, str | None, bytes]]) -> None:
        """One micro-batch."""
        gathered = gather(events, 1)
        block, output = Block(self.state), BlockOutput()
        for readings in gathered.blocks.values():
            output.rejected += decode_parts(encode_parts(readings.rejected))
            block.take(decode_parts(encode_parts(readings.readings)), output)
        self._keep(block, output)
        # As in Spark: a timer fires when the watermark has reached it.
        while self.deadline_ms is not None and self.deadline_ms + 1 <= self.watermark_ms:
            block, output = Block(self.state), BlockOutput()
            block.expire(self.watermark_ms, output)
            self._keep(block, output)
        self.latest_sent_ms = max(self.latest_sent_ms, gathered.latest_sent_ms)
        self.watermark_ms = self.latest_sent_ms

    def _keep(self, block: Block, output: BlockOutput) -> None:
        self.state, self.deadline_ms = block.encode(output)
        parts = {name: decode_parts(encoded) for name, encoded in output.encoded().items()}
        rows = list(zip(*parts["minutes"], strict=True))
        assert len({row[:2] for row in rows}) == len(rows)
        self.minutes.update({(row[0], row[1]): row[2:] for row in rows})
        self.alarms += [Alarm._make(alarm) for alarm in parts["alarms"]]
        for (partition, number, *_), reason in parts["rejected"]:
            assert (partition, number) not in self.dead_letters
            self.dead_letters[partition, number] = reason
        self.summaries.update({home: text.encode() for home, text in parts["summaries"]})

    def check(self, expected: Expected) -> None:
        """Everything that was written is what is expected, and nothing was written twice."""
        assert self.minutes == dict(expected.minutes)
        assert sorted(self.alarms) == sorted(expected.alarms)
        assert self.dead_letters == dict(expected.dead_letters)
        assert self.summaries == dict(expected.summaries)


@st.composite
def micro_batches(draw: st.DrawFn) -> list[list[tuple[Place, str | None, bytes]]]:
    """Readings of two homes: times of sending that never go back, times of taking that do, numbers that come
    late, again or never; some events are no readings."""
    sent_ms = START_MS
    batches: list[list[tuple[Place, str | None, bytes]]] = [[]]
    steps = st.tuples(
        st.integers(0, 1),
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
            "home": f"h{home}",
            "sensor": sensor,
            "kind": kind,
            "number": number,
            "taken": sent_ms - delay_ms,
            "sent": sent_ms,
            "value": {"door": opening, "co": ppm}.get(kind),
        }
        body = b"?" if is_spoilt else orjson.dumps(fields)
        batches[-1].append((("0", index, str(index), 0), f"h{home}", body))
        if is_batch_over:
            batches.append([])
    return batches


@settings(max_examples=400, deadline=None)
@given(micro_batches())
def test_any_cut_gives_what_the_log_says(batches: list[list[tuple[Place, str | None, bytes]]]) -> None:
    """Where one micro-batch ends and the next begins changes nothing; and a last, empty one lets the timers
    fire that the watermark has passed."""
    pipeline, recomputation = Pipeline(), Recomputation()
    for batch in [*batches, []]:
        pipeline.run(batch)
        for (partition, number, *_), key, body in batch:
            recomputation.add(partition, number, key, body)
    pipeline.check(recomputation.finish(pipeline.watermark_ms))


def _reading(
    sensor: str, kind: Kind, number: int, taken_ms: int, value: float = 0.0, sent_ms: int | None = None
) -> Reading:
    return Reading(
        "h1", sensor, int(kind), number, taken_ms, taken_ms + 50 if sent_ms is None else sent_ms, value
    )


def test_a_door_left_open_raises_one_alarm() -> None:
    """Not at its limit and not while a reading of its closing may be under way; then once, and not again
    when it is closed at last."""
    home = Home("h1")
    assert home.apply(_reading("door", Kind.DOOR, 0, START_MS, 1.0)) is None
    deadline_ms = START_MS + DOOR_OPEN_LIMIT_MS + LATENESS_MS
    assert home.next_deadline_ms() == deadline_ms
    assert list(home.expire(deadline_ms)) == []
    home = Home.decode("h1", home.encode())
    (alarm,) = home.expire(deadline_ms + 1)
    assert (alarm.kind, alarm.number, alarm.raised_ms) == (DOOR_OPEN, 0, START_MS + DOOR_OPEN_LIMIT_MS)
    assert list(home.expire(deadline_ms + 2)) == []
    assert home.next_deadline_ms() is None
    assert home.apply(_reading("door", Kind.DOOR, 1, deadline_ms, 0.0)) is None


def test_a_door_closed_in_time_raises_none_and_one_closed_late_does() -> None:
    """The limit itself is still in time."""
    for open_ms, kind in ((DOOR_OPEN_LIMIT_MS, None), (DOOR_OPEN_LIMIT_MS + 1, DOOR_OPEN)):
        home = Home("h1")
        home.apply(_reading("door", Kind.DOOR, 0, START_MS, 1.0))
        effect = home.apply(_reading("door", Kind.DOOR, 1, START_MS + open_ms, 0.0))
        assert (effect.kind if isinstance(effect, Alarm) else effect) == kind


def test_carbon_monoxide_raises_one_alarm_per_incident() -> None:
    """Staying over the limit is no new alarm; going under it and over it again is."""
    home = Home("h1")
    effects = [
        home.apply(_reading("co", Kind.CO, number, START_MS + number, ppm))
        for number, ppm in enumerate((3.0, 70.0, 71.0, 300.0, 70.0, 90.0))
    ]
    assert [effect.number for effect in effects if isinstance(effect, Alarm)] == [2, 5]
    assert {effect.kind for effect in effects if isinstance(effect, Alarm)} == {CARBON_MONOXIDE}
    assert home.minutes[START_MS - START_MS % MINUTE_MS][3] == 300.0


def test_broken_glass_is_an_alarm_even_when_it_comes_late_but_not_twice() -> None:
    """A reading that is overtaken by its sensor's next one is not lost; one that is sent again is."""
    home = Home("h1")
    assert home.apply(_reading("glass", Kind.STATUS, 5, START_MS)) is None
    late = _reading("glass", Kind.GLASS, 4, START_MS - 1_000, sent_ms=START_MS + 60)
    effect = home.apply(late)
    assert isinstance(effect, Alarm)
    assert effect.kind == GLASS_BREAK
    assert home.apply(late) is None
    assert sum(figures[4] for figures in home.minutes.values()) == 1


def test_what_comes_too_late_or_from_too_far_behind_is_put_aside() -> None:
    """Its minute may be forgotten, or it may have been counted: neither is guessed."""
    home = Home("h1")
    assert home.apply(_reading("motion", Kind.MOTION, 100, START_MS)) is None
    in_time = _reading("motion", Kind.MOTION, 101, START_MS, sent_ms=START_MS + LATENESS_MS)
    assert home.apply(in_time) is None
    assert home.apply(in_time._replace(number=102, sent_ms=START_MS + LATENESS_MS + 1)) == TOO_LATE
    newest = _reading("motion", Kind.MOTION, 200, START_MS + LATENESS_MS)
    assert home.apply(newest) is None
    assert home.apply(newest._replace(number=200 - NUMBERS_REMEMBERED)) == TOO_FAR_BEHIND
    assert home.apply(newest._replace(number=201 - NUMBERS_REMEMBERED)) is None


def test_the_state_of_a_home_stays_small() -> None:
    """Whatever a day brings, closed minutes and old alarms go: a lively home is below a kilobyte."""
    home = Home("h1")
    for number in range(20_000):
        home.apply(_reading(f"motion-{number % 4}", Kind.MOTION, number // 4, START_MS + number * 4_000))
        home.apply(_reading("glass", Kind.GLASS, number, START_MS + number * 4_000))
        if number % 100 == 0:
            home = Home.decode("h1", home.encode())
    assert len(home.encode()) < 1_000


def test_a_summary_is_written_when_the_page_changes_and_only_then() -> None:
    """The second motion in a room in the same hour changes nothing that is shown."""
    pipeline = Pipeline()
    for number, is_new in ((0, True), (1, False), (2, False), (3, True)):
        fields = {
            "home": "h1",
            "sensor": "motion-hall",
            "kind": "motion",
            "number": number,
            "taken": START_MS + number,
            "sent": START_MS + number,
        }
        pipeline.summaries.clear()
        pipeline.run([(("0", number, str(number), 0), "h1", orjson.dumps(fields))])
        # The fourth reading of an hour makes it livelier.
        assert bool(pipeline.summaries) is is_new

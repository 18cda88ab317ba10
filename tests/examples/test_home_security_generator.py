"""The homes that are made up: the rate is kept, the same plan gives the same bytes, and what goes wrong does
so as often as asked."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import orjson
import pytest
from examples.home_security.generator import START_MS, STEP_S, GeneratorPlan, HomesGenerator
from examples.home_security.homes import KIND_NAMES, LATENESS_MS, SENSORS, Kind
from examples.home_security.readings import (
    NOT_AN_OBJECT,
    NOT_JSON,
    WRONG_CLOCK,
    WRONG_HOME,
    WRONG_KIND,
    WRONG_NUMBER,
    WRONG_SENSOR,
    WRONG_TIME,
    WRONG_VALUE,
    Reading,
    parse_reading,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError


def _events(plan: GeneratorPlan, steps: int) -> tuple[list[tuple[str, bytes]], HomesGenerator]:
    generator = HomesGenerator(plan)
    return [event for _ in range(steps) for event in generator.step()], generator


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.builds(
        GeneratorPlan,
        homes=st.integers(1, 300),
        rate=st.floats(1, 3_000),
        speed=st.floats(0.5, 600),
        seed=st.integers(0, 1 << 31),
        malformed_share=st.sampled_from((0.0, 0.01, 0.3)),
        delayed_share=st.sampled_from((0.0, 0.05, 0.3)),
        duplicate_share=st.sampled_from((0.0, 0.05, 0.3)),
        co_after_s=st.sampled_from((0.0, 1.0)),
    ),
    st.integers(1, 25),
)
def test_the_rate_is_kept_and_only_what_is_spoilt_is_malformed(plan: GeneratorPlan, steps: int) -> None:
    """After every step there are as many events as the rate says; each is a reading unless it was spoilt;
    no home's time of sending goes back, and nothing is taken after it is sent."""
    generator = HomesGenerator(plan)
    made, malformed, sent = 0, 0, START_MS
    for step in range(steps):
        events = generator.step()
        made += len(events)
        wanted = (step + 1) * plan.events_per_s * STEP_S
        assert made in (math.floor(wanted - 1e-6), math.floor(wanted + 1e-6))  # sums of floats differ there
        for home, body in events:
            reading = parse_reading(body, home)
            if isinstance(reading, str):
                malformed += 1
                continue
            assert reading.sent_ms >= sent
            assert reading.taken_ms <= reading.sent_ms
            sent = reading.sent_ms
    assert malformed == generator.counts["malformed"]
    assert generator.counts["events"] == made


@pytest.mark.parametrize("speed", [1.0, 10.0, 60.0])
@pytest.mark.slow
def test_every_home_sends_once_a_minute(speed: float) -> None:
    """All homes are heard of in each of their minutes; beside that comes only what cannot wait."""
    homes, minutes = 3_000, 3
    steps = round(minutes * 60 / speed / STEP_S)
    generator = HomesGenerator(GeneratorPlan(homes=homes, speed=speed, co_after_s=0))
    heard: list[set[str]] = [set() for _ in range(minutes)]
    count = 0
    for step in range(steps):
        events = generator.step()
        count += len(events)
        heard[step * minutes // steps].update(home for home, _ in events)
    assert [len(each) for each in heard] == [homes] * minutes
    assert homes * minutes < count < 1.12 * homes * minutes


@pytest.mark.slow
def test_the_same_plan_gives_the_same_events_and_another_seed_does_not() -> None:
    """What a run did can be done again."""
    plan = GeneratorPlan(homes=500, rate=2_000, seed=7)
    assert _events(plan, 30)[0] == _events(plan, 30)[0]
    assert _events(plan, 30)[0] != _events(GeneratorPlan(homes=500, rate=2_000, seed=8), 30)[0]


@pytest.mark.slow
def test_shares_are_as_asked_and_all_kinds_of_trouble_come() -> None:
    """Malformed, delayed and doubled readings come as often as asked, within what chance allows (five
    standard deviations), and a part of the delayed ones comes too late."""
    plan = GeneratorPlan(
        homes=2_000,
        rate=20_000,
        seed=3,
        malformed_share=0.02,
        delayed_share=0.03,
        duplicate_share=0.04,
        co_after_s=0,
    )
    events, generator = _events(plan, 50)
    count = len(events)
    assert count == 100_000
    for name, share in (("malformed", 0.02), ("delayed", 0.03), ("duplicates", 0.04)):
        # Of readings made anew; those that are sent a second time are not tossed for again.
        assert abs(generator.counts[name] - share * count) < 5 * (share * count) ** 0.5 + share**2 * 2 * count
    readings = [parse_reading(body, home) for home, body in events]
    reasons = {reading for reading in readings if isinstance(reading, str)}
    assert {NOT_JSON, WRONG_HOME, WRONG_KIND, WRONG_NUMBER, WRONG_TIME, WRONG_SENSOR, WRONG_CLOCK} <= reasons
    late = [r for r in readings if isinstance(r, Reading) and r.sent_ms - r.taken_ms > LATENESS_MS]
    assert 0 < len(late) < generator.counts["delayed"]
    kinds = Counter(Kind(reading.kind) for reading in readings if isinstance(reading, Reading))
    assert set(kinds) == set(Kind)


@pytest.mark.slow
def test_a_sensor_numbers_its_readings_and_repeats_only_what_it_sends_again() -> None:
    """A number that comes twice is the same reading: the pipeline may take it for one."""
    events, generator = _events(GeneratorPlan(homes=50, rate=5_000, duplicate_share=0.1), 30)
    seen: dict[tuple[str, str, int], set[tuple[int, float]]] = defaultdict(set)
    count = 0
    for home, body in events:
        reading = parse_reading(body, home)
        if isinstance(reading, Reading) and reading.kind != Kind.STATUS:
            seen[home, reading.sensor, reading.number].add((reading.taken_ms, reading.value))
            count += 1
    assert all(len(values) == 1 for values in seen.values())
    assert 0 < count - len(seen) <= generator.counts["duplicates"]


def test_detectors_of_carbon_monoxide_come_while_it_runs() -> None:
    """None before their time, many after it."""
    generator = HomesGenerator(GeneratorPlan(homes=1_000, rate=5_000, co_after_s=1.0))
    counts = [sum(b'"kind":"co"' in body for _, body in generator.step()) for _ in range(20)]
    assert sum(counts[:10]) == 0
    assert sum(counts[10:]) > 100


def test_nights_are_quieter_than_days() -> None:
    """At seven in the morning people walk about; at three at night most sensors only say that they live."""
    plan = GeneratorPlan(homes=1_000, rate=1_000, speed=7_200)
    generator = HomesGenerator(plan)
    shares: dict[int, list[float]] = defaultdict(list)
    for _ in range(120):
        hour = generator.time_ms // 3_600_000 % 24
        events = generator.step()
        shares[hour].append(sum(b'"kind":"status"' in body for _, body in events) / len(events))
    assert max(shares[18]) < min(shares[3])


@pytest.mark.parametrize("plan", [{"homes": 0}, {"rate": 0.0}, {"speed": -1.0}, {"malformed_share": 1.0}])
def test_plans_that_cannot_be_meant(plan: dict[str, float]) -> None:
    """Refused where they are made."""
    with pytest.raises(InvalidArgumentError):
        GeneratorPlan(**plan)  # type: ignore[arg-type]


def _body(**changes: object) -> bytes:
    fields = {
        "home": "h1",
        "sensor": "s",
        "kind": "door",
        "number": 1,
        "taken": 5,
        "sent": 6,
        "value": "open",
    }
    return orjson.dumps({name: value for name, value in (fields | changes).items() if value != "-"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", NOT_JSON),
        (b'{"home":', NOT_JSON),
        (b"[1]", NOT_AN_OBJECT),
        (_body(home="h2"), WRONG_HOME),
        (_body(home=None), WRONG_HOME),
        (_body(sensor=""), WRONG_SENSOR),
        (_body(sensor=3), WRONG_SENSOR),
        (_body(sensor="a\0b"), WRONG_SENSOR),
        (_body(sensor="s" * 65), WRONG_SENSOR),
        (_body(kind="laser"), WRONG_KIND),
        (_body(kind=["door"]), WRONG_KIND),
        (_body(number=True), WRONG_NUMBER),
        (_body(number=1.0), WRONG_NUMBER),
        (_body(number=-1), WRONG_NUMBER),
        (_body(number=1 << 60), WRONG_NUMBER),
        (_body(taken="-"), WRONG_TIME),
        (_body(sent=None), WRONG_TIME),
        (_body(sent=-5), WRONG_TIME),
        (_body(taken=1 << 62), WRONG_TIME),
        (_body(taken=70_000), WRONG_CLOCK),
        (_body(value=1), WRONG_VALUE),
        (_body(value=None), WRONG_VALUE),
        (_body(kind="co", value="open"), WRONG_VALUE),
        (_body(kind="co", value=True), WRONG_VALUE),
        (_body(kind="co", value=-1), WRONG_VALUE),
        (_body(kind="co", value=10_001), WRONG_VALUE),
    ],
)
def test_each_fault_has_its_reason(body: bytes, reason: str) -> None:
    """Dead letters are counted by reason, so each says what is wrong, and no value."""
    assert parse_reading(body, "h1") == reason


@given(st.binary(max_size=60), st.sampled_from(sorted(KIND_NAMES)), st.one_of(st.none(), st.text(max_size=3)))
def test_any_bytes_are_a_reading_or_a_reason(noise: bytes, kind: str, key: str | None) -> None:
    """Nothing that a sensor sends stops the pipeline."""
    for body in (noise, _body(kind=kind)[:-1] + noise):
        assert isinstance(parse_reading(body, key), (str, Reading))


def test_every_sensor_of_a_home_has_a_kind_that_events_can_name() -> None:
    """The generator and the pipeline speak of the same kinds."""
    assert {kind for _, kind in SENSORS} | {Kind.STATUS} == set(KIND_NAMES.values())

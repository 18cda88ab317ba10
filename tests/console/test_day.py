"""The charts' last 24 hours: what is kept, across restarts, for whom, and within which bounds."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.clocks import SetClock

from tidegate.broker import Broker, EventHub
from tidegate.console.consumers.lags import GROUPS_PER_HUB_MAX, find_lags
from tidegate.console.hubs.day import HUB_SERIES_MAX, MINUTES, SERIES_MAX, Day, SeriesKey
from tidegate.console.hubs.day_charts import lag_context, load_charts, load_context
from tidegate.console.hubs.recorder import ChartRecorder, lag_name
from tidegate.console.hubs.sampler import Sampler
from tidegate.model.errors import DatabaseError
from tidegate.processor.group_view import Lag
from tidegate.server.opening import open_broker

NOON = 29_000_000
ONE = SeriesKey("one", "incoming_events")


def _values(day: Day, key: SeriesKey) -> list[float | None]:
    (series,) = day.chart(key.hub_id, {"in": key.name}, "events/s")["series"]
    assert len(series["values"]) == MINUTES
    return list(series["values"])


def test_a_minute_is_where_it_belongs_whatever_is_missing() -> None:
    """The newest is last; minutes without a value are gaps; what is older than a day is gone."""
    day = Day()
    for minute in (NOON, NOON + 1, NOON + 4, NOON + MINUTES + 1):
        day.note(minute, {ONE: float(minute - NOON + 1)}, hub_ids={"one"})
    chart = day.chart("one", {"in": "incoming_events"}, "events/s")
    assert (chart["start"], chart["step"]) == ((NOON + 2) * 60, 60)
    assert _values(day, ONE) == [None, None, 5.0, *[None] * (MINUTES - 4), MINUTES + 2.0]
    assert day.most("one", "incoming_events") == MINUTES + 2.0
    day.note(NOON + 3 * MINUTES, {}, hub_ids={"one"})
    assert _values(day, ONE) == [None] * MINUTES


def test_a_clock_that_is_set_back_leaves_no_chart_that_stands_still() -> None:
    """A little: the minutes that are there stay. Far: the charts begin again."""
    day = Day()
    day.note(NOON, {ONE: 1.0}, hub_ids={"one"})
    day.note(NOON - 10, {ONE: 2.0}, hub_ids={"one"})
    assert _values(day, ONE)[-1] == 1.0
    day.note(NOON - 90, {ONE: 3.0}, hub_ids={"one"})
    assert _values(day, ONE) == [*[None] * (MINUTES - 1), 3.0]


def test_what_is_kept_is_bounded() -> None:
    """Idle hubs take nothing, deleted ones and those without an event for a day make room."""
    day = Day()
    keys = [SeriesKey(str(number), "incoming_events") for number in range(SERIES_MAX + 10)]
    ids = {key.hub_id for key in keys}
    day.note(NOON, dict.fromkeys(keys, 0.0), hub_ids=ids)
    assert day.hub_ids == set()
    day.note(NOON + 1, dict.fromkeys(keys, 1.0), hub_ids=ids)
    assert len(day.hub_ids) == SERIES_MAX
    day.note(NOON + 2, dict.fromkeys(keys[-20:], 1.0), hub_ids=ids - {"0"})
    assert "0" not in day.hub_ids
    day.note(NOON + 1 + MINUTES, dict.fromkeys(keys[:5], 0.0), hub_ids=ids)
    assert day.hub_ids == {key.hub_id for key in keys[-20:-10]}


def test_a_hub_with_ever_new_groups_leaves_room_to_others() -> None:
    """Its managers create and delete groups at will, and a series stays for a day: those that have no value
    any more make room, of this hub alone."""
    day, lags = Day(), [SeriesKey("one", lag_name("events", str(number))) for number in range(SERIES_MAX)]
    for minute, lag in enumerate(lags, NOON):
        day.note(minute, {lag: 1.0, ONE: 2.0}, hub_ids={"one", "two"})
    day.note(minute + 1, {SeriesKey("two", ONE.name): 1.0}, hub_ids={"one", "two"})
    assert day.most("two", ONE.name) == 1.0
    assert _values(day, ONE)[-1 - SERIES_MAX : -1] == [2.0] * SERIES_MAX
    shown = [day.most("one", lag.name) is not None for lag in lags]
    assert shown == [False] * (SERIES_MAX - HUB_SERIES_MAX + 1) + [True] * (HUB_SERIES_MAX - 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: b"tidegate charts 2\n" + content[18:],
        lambda content: b"",
        lambda content: content[:18] + zlib.compress(b"[]\n"),
        lambda content: content[:18] + zlib.compress(b'{"minute": 1, "byteorder": "little", "series": [[]]}'),
        lambda content: content[:18] + zlib.compress(b"[" * 100_000),
    ],
)
def test_a_file_is_whole_or_refused(damage: Callable[[bytes], bytes]) -> None:
    """Cut off, of a later version, of another content: never half of it, and no other error."""
    day = Day()
    day.note(NOON, {ONE: 1.5, SeriesKey("", "incoming_events"): 0.0}, hub_ids={"one"})
    content = day.encode()
    assert _values(Day.decode(content), ONE) == _values(day, ONE)
    with pytest.raises(ValueError, match=r"version|damaged"):
        Day.decode(damage(content))


# --- noted from the broker, in the data directory


@pytest.fixture
def clock() -> SetClock:
    """Time of broker, sampler and recorder."""
    return SetClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: SetClock) -> AsyncIterator[Broker]:
    """A namespace with a hub."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("hub", partition_count=1)
    yield broker
    await broker.close()


def _group(event_hub: str, name: str) -> Any:
    lag = Lag(1, None, 0)
    return SimpleNamespace(summary=SimpleNamespace(event_hub=event_hub, consumer_group=name, lag=lag))


async def test_a_hub_with_a_thousand_groups_leaves_charts_of_lag_to_others() -> None:
    """Those that are not charted, because their hub has so many, counted among those of all hubs."""
    names = [*(("one", str(number)) for number in range(1_000)), ("two", "g")]
    groups = [_group(hub, name) for hub, name in names]

    async def found(*_: object, **__: object) -> Any:
        return SimpleNamespace(groups=groups)

    broker: Any = SimpleNamespace(
        event_hub=lambda name: SimpleNamespace(description=SimpleNamespace(hub_id=name))
    )
    consumers: Any = SimpleNamespace(groups=found)
    lags = await find_lags(broker, lambda: consumers, has_database=True)
    counts = Counter(key.hub_id for key in lags)
    assert counts == {"one": GROUPS_PER_HUB_MAX, "two": 1}


async def _append(event_hub: EventHub, count: int) -> None:
    event = b"\x00\x53\x75\xa0\x01x"
    await event_hub.partition("0").append(event * count, [len(event)] * count)


async def test_charts_survive_a_restart(broker: Broker, clock: SetClock, tmp_path: Path) -> None:
    """Means of each minute, of the hub and the namespace; and of a group's lag. A hub that is created again
    under the name begins without a past."""
    sampler, path, hub = (
        Sampler(broker, clock, tmp_path),
        tmp_path / "console" / "charts",
        broker.event_hub("hub"),
    )
    recorder = ChartRecorder(broker, sampler, clock, path)
    hub_id = hub.description.hub_id

    async def lags() -> Mapping[SeriesKey, float]:
        return {SeriesKey(hub_id, lag_name("events", "$Default")): 7.0}

    recorder.find_lags = lags
    await recorder.load()
    sampler.look()
    await _append(hub, 120)
    clock.advance(60)
    sampler.look()
    await recorder.note()
    await recorder.save()

    again = ChartRecorder(broker, sampler, clock, path)
    await again.load()
    for of in (hub_id, ""):
        assert load_charts(again.day, of)["events"]["series"][0]["values"][-1] == 2.0
    words = load_context(again.day, hub_id, "")["day_words"]
    assert "in 2 events" in words
    assert "out" not in words  # nothing went out
    assert "7 events" in lag_context(again.day, hub_id, "$default", "")["day_words"]
    await broker.delete_event_hub("hub")
    made = await broker.create_event_hub("hub", partition_count=1)
    await again.note()
    assert (
        load_charts(again.day, made.description.hub_id)["events"]["series"][0]["values"] == [None] * MINUTES
    )
    assert again.day.hub_ids == {""}


async def test_a_damaged_past_is_left_out_and_reported(
    broker: Broker, clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the start of the service; the next write replaces it. A database that is away costs the lag of
    a minute, and nothing else. An idle service that has noted nothing writes nothing."""
    path = tmp_path / "console" / "charts"
    recorder = ChartRecorder(broker, Sampler(broker, clock, tmp_path), clock, path)
    await recorder.save()
    assert not path.exists()
    path.parent.mkdir()
    path.write_bytes(b"tidegate charts 9\n")
    with caplog.at_level(logging.WARNING):
        await recorder.load()
    assert len(caplog.records) == 1
    assert "tidegate charts 9" in caplog.text

    async def fail() -> Mapping[SeriesKey, float]:
        raise DatabaseError("away")

    recorder.find_lags = fail
    clock.advance(60)
    await recorder.note()
    await recorder.save()
    Day.decode(path.read_bytes())

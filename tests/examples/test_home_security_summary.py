"""A home's summary: what is one is read whole, and nothing else passes for one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from examples.home_security.summary import ACTIVITY_MAX, HOURS, HomeSummary
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import InvalidArgumentError

pytestmark = pytest.mark.slow

_NAMES = st.text(min_size=1, max_size=12)
_TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(microsecond=0))


@st.composite
def summaries(draw: st.DrawFn) -> dict[str, Any]:
    """The JSON values of any summary."""
    hours = st.sets(st.integers(0, HOURS - 1)).map(sorted)
    times = _TIMES.map(lambda time: time.isoformat())
    return {
        "home": draw(_NAMES),
        "day": draw(st.none() | st.dates().map(date.isoformat)),
        "rooms": {
            room: {"hours_with_motion": found}
            for room, found in draw(st.dictionaries(_NAMES, hours, max_size=4)).items()
        },
        "doors": {
            sensor: {"is_open": is_open, "since": since}
            for sensor, (is_open, since) in draw(
                st.dictionaries(_NAMES, st.tuples(st.booleans(), times), max_size=4)
            ).items()
        },
        "alarms": [
            {"at": at, "kind": kind, "sensor": sensor}
            for at, kind, sensor in draw(st.lists(st.tuples(times, _NAMES, _NAMES), max_size=4))
        ],
        "activity": draw(st.lists(st.integers(0, ACTIVITY_MAX), min_size=HOURS, max_size=HOURS)),
    }


@given(summaries())
def test_all_of_a_summary_is_read(values: dict[str, Any]) -> None:
    """Each part is there again."""
    found = HomeSummary.from_json(json.dumps(values).encode())
    assert found.home == values["home"]
    assert (None if found.day is None else found.day.isoformat()) == values["day"]
    assert {
        name: {"hours_with_motion": list(room.hours_with_motion)} for name, room in found.rooms.items()
    } == (values["rooms"])
    assert {
        sensor: {"is_open": door.is_open, "since": door.since.isoformat()}
        for sensor, door in found.doors.items()
    } == values["doors"]
    assert [alarm.at for alarm in found.alarms] == [
        datetime.fromisoformat(alarm["at"]) for alarm in values["alarms"]
    ]
    assert list(found.activity) == values["activity"]


@given(summaries(), st.data())
def test_a_part_of_one_is_none(values: dict[str, Any], data: st.DataObject) -> None:
    """Cut anywhere, or with something else in the place of any value, it is refused in one way."""
    content = json.dumps(values).encode()
    with pytest.raises(InvalidArgumentError):
        HomeSummary.from_json(content[: data.draw(st.integers(0, len(content) - 1))])
    name = data.draw(st.sampled_from(sorted(values)))
    wrong = data.draw(st.sampled_from([7, True, [{}], {"x": 1}, "x"]))
    try:
        HomeSummary.from_json(json.dumps(values | {name: wrong}).encode())
    except InvalidArgumentError:
        return
    assert (name, wrong) == ("home", "x")


@given(
    st.binary(max_size=60) | st.recursive(st.none() | st.integers(), st.lists).map(lambda x: repr(x).encode())
)
@pytest.mark.slow
def test_anything_else_is_refused_in_one_way(content: bytes) -> None:
    """Whatever the bytes are, the error is the same one."""
    with pytest.raises(InvalidArgumentError):
        HomeSummary.from_json(content)

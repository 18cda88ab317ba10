"""A hub's settings: the declaration is of one piece, and values are judged by it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_settings import (
    HUB_SETTINGS,
    HubChanges,
    HubSetting,
    HubSettings,
    checked_changes,
    hub_changes_in,
)
from tidegate.model.limits import TIER_LIMITS, Tier

_LIMITS = TIER_LIMITS[Tier.STANDARD]
_BY_NAME = {setting.name: setting for setting in HUB_SETTINGS}


def test_types_and_table_name_the_same_settings() -> None:
    """One that is missing in any of the three would be lost on its way through the layers."""
    names = [setting.name for setting in HUB_SETTINGS]
    assert [field.name for field in fields(HubSettings)] == names
    assert list(HubChanges.__annotations__) == names
    assert list(HubSettings().settings()) == names


@pytest.mark.parametrize("setting", HUB_SETTINGS, ids=lambda setting: setting.name)
def test_the_least_and_the_most_are_taken(setting: HubSetting) -> None:
    """And the next one on either side is not; None becomes the default."""
    least, most = setting.minimum, setting.maximum_of(_LIMITS)
    for size in (least, most):
        assert setting.resolve(_value(setting, size), _LIMITS) == (_value(setting, size) or None)
    for size in (least - 1, most + 1):
        if size < 0:
            continue
        with pytest.raises(InvalidArgumentError, match=f"{size} .*; {least} to {most} are allowed"):
            setting.resolve(_value(setting, size), _LIMITS)
    default = None if setting.default_value is None else setting.default_value(_LIMITS)
    assert setting.resolve(None, _LIMITS) == default


def _value(setting: HubSetting, size: int) -> int | str:
    return size if setting.kind is int else "x" * size


@pytest.mark.parametrize("setting", HUB_SETTINGS, ids=lambda setting: setting.name)
def test_values_of_another_type_are_refused(setting: HubSetting) -> None:
    """True is no number, though Python says so."""
    wrong: tuple[object, ...] = (True, 1.5, [], "1" if setting.kind is int else 1)
    for value in wrong:
        with pytest.raises(InvalidArgumentError, match=setting.name):
            hub_changes_in({setting.name: value})


_TEXT = HubSetting("note", str, "A note", "none", "The note", "characters", 0, 9)


@pytest.mark.parametrize(
    ("value", "stored"),
    [(" a\r\nb\tc ", "a\nb\tc"), ("", None), (" \n", None), ("\N{GRINNING FACE}" * 9,) * 2],
)
def test_a_text_is_stored_as_every_door_returns_it(value: str, stored: str | None) -> None:
    """Forms and XML drop blanks at the ends and one half of Windows' line ends."""
    assert _TEXT.resolve(value, _LIMITS) == stored


@pytest.mark.parametrize("value", ["a\0", "a\rb", "\x1b[31m", "\ud800", "\uffff", "x" * 10])
def test_texts_that_some_door_cannot_return_are_refused(value: str) -> None:
    """XML has no place for control characters and halves of pairs, and each text has its limit."""
    with pytest.raises(InvalidArgumentError):
        _TEXT.resolve(value, _LIMITS)


def test_only_settings_are_taken_out_of_other_values() -> None:
    """What is left out stays left out, and null stays null: they mean different things."""
    values = {"name": "hub", "retention_hours": 24, "retention_bytes": None}
    assert hub_changes_in(values) == {"retention_hours": 24, "retention_bytes": None}


def test_an_unknown_name_is_a_mistake_of_the_program() -> None:
    """Left alone, a misspelt setting would be one that was left out."""
    misspelt: HubChanges = {"retention_hour": 24}  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="retention_hour"):
        checked_changes(misspelt)


def test_limits_follow_the_tier() -> None:
    """Basic keeps events for a day, and that is also its default."""
    basic, hours = TIER_LIMITS[Tier.BASIC], _BY_NAME["retention_hours"]
    assert hours.resolve(None, basic) == 24
    with pytest.raises(InvalidArgumentError, match="25 hours; 1 to 24 are allowed"):
        hours.resolve(25, basic)

"""The options for a hub's settings, made from their declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tidegate.cli.shell.decorators import Decorator, adding_argument, all_of, option
from tidegate.cli.shell.options import OFF, number_or_off
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSetting
from tidegate.model.limits import TIER_DEFAULT, TIER_LIMITS


def with_hub_settings(*, is_change: bool) -> Decorator:
    """Give a command an option for each setting; it takes those given as its argument ``settings``.

    is_change: ``off`` removes a limit.
    """

    def make(_: click.Context, arguments: dict[str, Any]) -> HubChanges:
        given = {each: arguments.pop(each.name) for each in HUB_SETTINGS}
        return {  # type: ignore[return-value]  # the names are those of HubChanges
            each.name: number_or_off(_name(each), value) if is_change and each.has_off else value
            for each, value in given.items()
            if value is not None
        }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = (_option(setting, is_change) for setting in HUB_SETTINGS)
        return all_of(*options)(adding_argument(command, "settings", make))

    return decorate


def _option(setting: HubSetting, is_change: bool) -> Decorator:
    text = setting.sentence + (f"; {setting.note}." if setting.note else ".")
    metavar = {"hours": "H"}.get(setting.unit, "N") if setting.kind is int else "TEXT"
    kind = click.IntRange(min=setting.minimum) if setting.kind is int else click.STRING
    if not is_change:
        text += f" Default: {_default(setting)}."
    elif setting.has_off:
        text += f" {OFF}: {setting.default}."
        metavar, kind = f"{metavar}|{OFF}", click.STRING
    elif setting.kind is str:
        text += f' "": {setting.default}.'
    return option(_name(setting), metavar, text, kind)


def _default(setting: HubSetting) -> str:
    if setting.default_value is None:
        return setting.default
    return f"{setting.default_value(TIER_LIMITS[TIER_DEFAULT])}, or what the tier allows"


def _name(setting: HubSetting) -> str:
    return f"--{setting.name.replace('_', '-')}"

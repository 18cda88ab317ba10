"""The options for a hub's settings, made of their declaration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tidegate.cli.shell.administering import OFF, number_or_off
from tidegate.model.hub_settings import HUB_SETTINGS, HubSetting
from tidegate.model.limits import TIER_DEFAULT, TIER_LIMITS


def with_hub_settings(*, is_change: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting, before ``--connection-string``.

    The command takes those that were given as its keyword arguments. is_change: ``off`` takes a limit away.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(*positional: Any, **arguments: Any) -> None:
            given = {each: arguments.pop(each.name) for each in HUB_SETTINGS}
            settings = {
                each.name: number_or_off(_option(each), value) if is_change and each.has_off else value
                for each, value in given.items()
                if value is not None
            }
            command(*positional, **arguments, **settings)

        functools.update_wrapper(run, command)
        signature = inspect.signature(command, eval_str=True)
        parameters = list(signature.parameters.values())[:-1]  # without the command's **settings
        place = list(signature.parameters).index("connection_string")
        parameters[place:place] = [_parameter(each, is_change) for each in HUB_SETTINGS]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(setting: HubSetting, is_change: bool) -> inspect.Parameter:
    words = setting.sentence + (f"; {setting.note}." if setting.note else ".")
    metavar = {"hours": "H"}.get(setting.unit, "N") if setting.kind is int else "TEXT"
    kind: type[int] | type[str] = setting.kind
    if not is_change:
        words += f" Default: {_default(setting)}."
    elif setting.has_off:
        words += f" {OFF}: {setting.default}."
        metavar, kind = f"{metavar}|{OFF}", str
    elif setting.kind is str:
        words += f' "": {setting.default}.'
    option = typer.Option(
        _option(setting), metavar=metavar, min=setting.minimum if kind is int else None, help=words
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _default(setting: HubSetting) -> str:
    if setting.default_value is None:
        return setting.default
    return f"{setting.default_value(TIER_LIMITS[TIER_DEFAULT])}, or what the tier allows"


def _option(setting: HubSetting) -> str:
    return f"--{setting.name.replace('_', '-')}"

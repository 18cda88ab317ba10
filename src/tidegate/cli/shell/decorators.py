"""Declares options, and combines several into one decorator, or into one argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click

from tidegate.model.errors import InvalidArgumentError

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
"""A file or directory, which shells complete; whether it exists is for the command to say."""


def option(
    name: str, metavar: str, text: str, kind: Any = None, *, argument: str | None = None, **more: Any
) -> Decorator:
    """An option with a value. text: the help; kind: None is a string; argument: the parameter, if named
    differently; more: as for ``click.option``."""
    names = (name,) if argument is None else (name, argument)
    return click.option(*names, metavar=metavar, type=kind, help=text, **more)


def flag(name: str, text: str, argument: str | None = None) -> Decorator:
    """An option without a value. text: the help; argument: the parameter, if named differently."""
    return click.option(name, argument or name[2:].replace("-", "_"), is_flag=True, help=text)


def require_at_most_one(options: Mapping[str, object]) -> None:
    """Raise InvalidArgumentError if several options, by name, have a value."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"{' and '.join(given)} are mutually exclusive.", next_step="Use only one of them."
        )


def all_of(*decorators: Decorator) -> Decorator:
    """Several decorators as one, in the order in which help lists their options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


def adding_argument(
    command: Callable[..., Any], name: str, make: Callable[[click.Context, dict[str, Any]], object]
) -> Callable[..., Any]:
    """A command that is also called with ``name``, made by ``make`` from the context and the other arguments.

    ``make`` removes the arguments that it uses up.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        arguments[name] = make(click.get_current_context(), arguments)
        command(**arguments)

    return run

"""Combines options: several into one decorator, or into one argument."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
"""A file or directory, which shells complete; whether it exists is for the command to say."""


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

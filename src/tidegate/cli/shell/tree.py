"""The command tree as a whole: its table of contents, and its end when nobody reads its output any more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import typer
import typer.core

Sections = tuple[tuple[str, tuple[str, ...]], ...]
"""Headings of the table of contents, each with its commands, in order."""

_BROKEN_PIPE = 128 + signal.SIGPIPE


class Formatter(Protocol):
    """What is used of Typer's help formatter."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """Indent what comes beneath a heading."""
        ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write terms and their explanations in two columns."""
        ...


class ContentsGroup(typer.core.TyperGroup):
    """A root group whose help lists the commands under headings. Subclass it with ``sections``."""

    sections: ClassVar[Sections] = ()

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        listed = [name for _, names in self.sections for name in names]
        assert sorted(listed) == sorted(self.commands), set(listed) ^ set(self.commands)
        self.commands = {name: self.commands[name] for name in listed}

    def format_commands(self, ctx: Any, formatter: Formatter) -> None:  # Typer's own types are not public
        """Write the table of contents."""
        for heading, names in self.sections:
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(100)) for name in names])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Where the reader of its output has gone it ends quietly, as other programs do."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # What is still in the buffer has nowhere to go: the interpreter's last flush must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None


def change_commands(
    application: typer.Typer, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Have each command of the tree be what ``change`` makes of its function."""
    for command in application.registered_commands:
        if command.callback is not None:
            command.callback = change(command.callback)
    for group in application.registered_groups:
        if group.typer_instance is not None:
            change_commands(group.typer_instance, change)

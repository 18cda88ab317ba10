"""The command groups: listed in the order of their declaration, and the root with its table of contents."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import click

from tidegate.extras import not_installed
from tidegate.model.errors import NotFoundError

Contents = Sequence[tuple[str, Mapping[str, str]]]
"""Headings, each with its commands: a name, and where it is (``CommandGroup``)."""

_INTERRUPTED: Final = 128 + signal.SIGINT
_BROKEN_PIPE: Final = 128 + 13
"""13 is SIGPIPE, which Windows does not have."""


class CommandGroup(click.Group):
    """Commands in the order in which they were declared; without one, the help is shown.

    places: commands that are imported when they are wanted, which is most of the time that a command takes
    to start: a name, and its module below ``tidegate.cli`` and variable there (``entities.hub:hub_group``).
    """

    def __init__(
        self,
        *arguments: Any,
        commands: Sequence[click.Command] = (),
        places: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **{"no_args_is_help": True, **options})
        self._places = places or {}
        for command in commands:
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(self._places or self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None: there is none."""
        if cmd_name in self._places and cmd_name not in self.commands:
            module, _, variable = self._places[cmd_name].partition(":")
            self.add_command(getattr(import_module(f"tidegate.cli.{module}"), variable))
        return super().get_command(ctx, cmd_name)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, in whose help the examples keep their lines (``\\b``, to Click)."""
        text = inspect.cleandoc(cmd.help or "")
        cmd.help = re.sub(r"\n\n(?=Examples?:\n)", "\n\n\b\n", text)
        super().add_command(cmd, name)


class ContentsGroup(CommandGroup):
    """A root group whose help lists its commands under headings."""

    def __init__(self, *arguments: Any, contents: Contents, **options: Any) -> None:
        places = {name: place for _, section in contents for name, place in section.items()}
        super().__init__(*arguments, places=places, **options)
        self._contents = contents

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of contents."""
        for heading, section in self._contents:
            commands = [(name, self.get_command(ctx, name)) for name in section]
            with formatter.section(heading):
                formatter.write_dl([(name, each.get_short_help_str(100)) for name, each in commands if each])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end quietly when it is interrupted or its output is no longer read.

        Raises NotFoundError, with the command to install it, if it needs a package that is not installed.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except click.Abort as error:
            # A prompt raises the same for Ctrl-C and for "no".
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            click.echo(err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # The buffer's rest has no reader: the interpreter's last flush must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(_BROKEN_PIPE) from None
        except ModuleNotFoundError as error:
            text = str(not_installed(error, f"`tidegate {ctx.invoked_subcommand}`"))
            raise NotFoundError(text) from error

"""``tidegate completion``: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

COMPLETE_VARIABLE: Final = "_TIDEGATE_COMPLETE"
"""Set by the shell when it asks for completions; Click derives its name from the program's."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), metavar="SHELL", help="The shell.")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for commands, options and names.

    Names of event hubs, consumer groups and policies come from the service, if it answers quickly. In zsh,
    run compinit before sourcing the script, or put the file into fpath before running compinit.

    Examples:
      source <(tidegate completion bash)
      tidegate completion bash > ~/.local/share/bash-completion/completions/tidegate
      tidegate completion zsh > ~/.zfunc/_tidegate
      tidegate completion fish > ~/.config/fish/completions/tidegate.fish
    """
    from tidegate.cli.shell.completion_shells import SHELLS

    program = context.find_root().command
    sys.stdout.write(SHELLS[shell](program, {}, "tidegate", COMPLETE_VARIABLE).source())


def prepare_completion() -> None:
    """If a shell asks for completions, register the classes that answer it."""
    if os.environ.get(COMPLETE_VARIABLE):
        from tidegate.cli.shell.completion_shells import register_shells

        register_shells()

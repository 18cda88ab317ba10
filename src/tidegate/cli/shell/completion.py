"""``tidegate completion``: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated, Final

import typer

COMPLETE_VARIABLE: Final = "_TIDEGATE_COMPLETE"
"""Set by the shell when it asks what a word may become."""


class Shell(Enum):
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell: bash, zsh or fish.")],
) -> None:
    """Print a completion script for commands, options and names.

    Names of event hubs, consumer groups and policies come from the service, if it answers quickly. In zsh,
    run compinit before sourcing the script, or put the file into fpath before running compinit.

    \b
    Examples:
      source <(tidegate completion bash)
      tidegate completion bash > ~/.local/share/bash-completion/completions/tidegate
      tidegate completion zsh > ~/.zfunc/_tidegate
      tidegate completion fish > ~/.config/fish/completions/tidegate.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # public, not declared so

    from tidegate.cli.shell.completion_shells import FISH_SCRIPT, ZSH_SCRIPT

    match shell:
        case Shell.ZSH:
            script = ZSH_SCRIPT
        case Shell.FISH:
            script = FISH_SCRIPT
        case Shell.BASH:
            found = get_completion_script(prog_name="tidegate", complete_var=COMPLETE_VARIABLE, shell="bash")
            script = f"{found}\n"
    sys.stdout.write(script)


def prepare_completion() -> None:
    """Where a shell asks, have Typer know how each shell asks and wants to be answered."""
    if os.environ.get(COMPLETE_VARIABLE):
        from typer.completion import completion_init  # type: ignore[attr-defined]

        from tidegate.cli.shell.completion_shells import mend_shells

        completion_init()
        mend_shells()

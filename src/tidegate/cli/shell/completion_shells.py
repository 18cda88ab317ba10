"""What Typer answers a shell that completes, where its own answer does not do.

    every shell    the value of ``--option=value`` is completed, too
    zsh, fish      a description is one line: Typer folds it, and fish cuts off what it folds
    bash           names that its command line would read as more than text are in quotes
    fish           the program is started once per tabulator, where Typer starts it twice
    zsh            names and descriptions reach the shell as they are, and nothing in them is run; the script
                   may also lie in a directory of ``fpath``

Tried with bash 5.2, zsh 5.9 and fish 3.6, with Typer 0.29.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Final

ZSH_SCRIPT: Final = """\
#compdef tidegate

_tidegate() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _TIDEGATE_COMPLETE=complete_zsh tidegate)
}

if [[ $funcstack[1] == _tidegate ]]; then
  _tidegate
else
  compdef _tidegate tidegate
fi
"""
"""Read by ``source`` it says what completes. Loaded from ``fpath`` it is the function ``_tidegate``,
which puts another one in its place and has to complete the first time.
"""

FISH_SCRIPT: Final = """\
function __tidegate_find
  set -g __tidegate_found (env _TIDEGATE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
    _TYPER_COMPLETE_ARGS=(commandline -cp) tidegate)
  test -n "$__tidegate_found"
end

complete --command tidegate --no-files --condition __tidegate_find --arguments '$__tidegate_found'
"""
"""Files are completed where the program knows nothing."""


def mend_shells() -> None:
    """Change Typer's classes for the shells, which are registered already."""
    from typer import _completion_classes as shells

    classes: Any = shells
    for kind in (classes.ZshComplete, classes.FishComplete):
        kind.get_completions = _with_option_names(kind.get_completions)
    classes.BashComplete.get_completion_args = _without_equal_signs(classes.BashComplete.get_completion_args)
    classes.BashComplete.format_completion = lambda _, item: _bash_text(item, _typed_word())
    classes.ZshComplete.format_completion = lambda _, item: _zsh_text(item)
    classes.FishComplete.format_completion = lambda _, item: _fish_text(item)


def _with_option_names(get_completions: Any) -> Any:
    """A value behind ``--option=``: for zsh and fish it is part of the word."""

    def get(self: Any, args: list[str], incomplete: str) -> Any:
        items = get_completions(self, args, incomplete)
        name, has_value, _ = incomplete.partition("=")
        if has_value and name.startswith("-"):
            for item in items:
                item.value = f"{name}={item.value}"
        return items

    return get


def _without_equal_signs(get_completion_args: Any) -> Any:
    """For bash ``=`` is a word between two others."""

    def get(self: Any) -> tuple[list[str], str]:
        args, incomplete = get_completion_args(self)
        kept = [word for word, before in zip(args, ["", *args], strict=False) if not _is_sign(word, before)]
        is_sign = bool(args) and _is_sign(incomplete, args[-1])
        return kept, "" if is_sign else incomplete

    return get


def _is_sign(word: str, before: str) -> bool:
    return word == "=" and before.startswith("-")


def _typed_word() -> str:
    """The word that bash completes, with the quotes that were typed. Its script joins words by line ends."""
    return "".join(os.environ.get("COMP_WORDS", "").split("\n")[int(os.environ.get("COMP_CWORD", "0")) :])


def _bash_text(item: Any, typed: str) -> str:
    """A line of the answer, which bash puts into the command line as it is; empty where there is no way.

    Bash splits the answer at line ends. Behind a quote that was typed it would take another one for its end.
    """
    value = str(item.value)
    quoted = shlex.quote(value)
    is_safe = value.isprintable() and (quoted == value or not any(sign in typed for sign in "'\"\\"))
    return quoted if is_safe else ""


def _zsh_text(item: Any) -> str:
    """An entry of ``_arguments '*: :((…))'``: "word:description", in double quotes within single ones."""
    parts = [
        str(part).replace("\\", "\\\\").replace(":", "\\:") for part in (item.value, _line(item)) if part
    ]
    quoted = ":".join(parts)
    for character in '\\"$`':
        quoted = quoted.replace(character, f"\\{character}")
    return '"' + quoted.replace("'", "'\\''") + '"'


def _fish_text(item: Any) -> str:
    line = _line(item)
    return f"{item.value}\t{line}" if line else str(item.value)


def _line(item: Any) -> str:
    return " ".join((item.help or "").split())

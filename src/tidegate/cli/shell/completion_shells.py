"""Completions for shells, where Click's own are not enough.

    zsh         a script in a directory of fpath completes every time, not only once
    zsh, fish   the value of ``--option=value`` is completed, and a description is one line
    bash, fish  files are completed if the program knows no other completion
    bash        names that a command line would not read as plain text are quoted
    fish        descriptions may contain commas

Tried with bash 5.2, zsh 5.9 and fish 3.6, with Click 8.5.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, ClassVar, Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

_BASH_SCRIPT: Final = """\
%(complete_func)s() {
  local IFS=$'\\n'
  COMPREPLY=( $(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
    %(complete_var)s=bash_complete %(prog_name)s) )
}

complete -o default -F %(complete_func)s %(prog_name)s
"""

_FISH_SCRIPT: Final = """\
function _%(prog_name)s_find
  set -g _%(prog_name)s_found (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \\
    COMP_CWORD=(commandline -ct) %(prog_name)s)
  test -n "$_%(prog_name)s_found"
end

complete --command %(prog_name)s --no-files --condition _%(prog_name)s_find \\
  --arguments '$_%(prog_name)s_found'
"""


class _Bash(BashComplete):
    source_template: ClassVar[str] = _BASH_SCRIPT

    def source(self) -> str:
        """The script; unlike Click's, it runs in versions before 4.4, so none has to be started to ask."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Complete words and the incomplete one. To bash, ``=`` is a word of its own: it is dropped."""
        args, incomplete = super().get_completion_args()
        kept = [word for word, before in zip(args, ["", *args], strict=False) if not _is_sign(word, before)]
        is_sign = bool(args) and _is_sign(incomplete, args[-1])
        return kept, "" if is_sign else incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return bash_text(item, _typed_word())


class _Zsh(ZshComplete):
    # In a directory of fpath, the file is _tidegate's body at each call; Click's test is for the first only.
    source_template: ClassVar[str] = ZshComplete.source_template.replace(
        "$zsh_eval_context[-1] == loadautofunc", "$funcstack[1] == _%(prog_name)s"
    )

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return [_with_option_name(item, incomplete) for item in super().get_completions(args, incomplete)]


class _Fish(FishComplete):
    source_template: ClassVar[str] = _FISH_SCRIPT

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return [_with_option_name(item, incomplete) for item in super().get_completions(args, incomplete)]

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A line of the answer; none for files, which fish completes if there is no answer."""
        if item.type != "plain":
            return ""
        return f"{item.value}\t{item.help}" if item.help else item.value


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register_shells() -> None:
    """Let Click answer with these classes."""
    for shell in SHELLS.values():
        add_completion_class(shell)


def _with_option_name(item: CompletionItem[str], incomplete: str) -> CompletionItem[str]:
    """A completion with a one-line description; after a typed ``--option=``, which zsh and fish replace."""
    name, has_value, _ = incomplete.partition("=")
    prefix = f"{name}=" if has_value and name.startswith("-") else ""
    return CompletionItem(prefix + item.value, item.type, " ".join((item.help or "").split()) or None)


def _is_sign(word: str, before: str) -> bool:
    return word == "=" and before.startswith("-")


def _typed_word() -> str:
    """The word that bash completes, with the quotes as typed. The script joins words with line ends."""
    return "".join(os.environ.get("COMP_WORDS", "").split("\n")[int(os.environ.get("COMP_CWORD", "0")) :])


def bash_text(item: CompletionItem[Any], typed: str) -> str:
    """A line of the answer, which bash inserts into the command line unchanged; empty if that is unsafe.

    Bash splits the answer at line ends. It would end a quote in ``typed`` at another quote.
    """
    if item.type != "plain":
        return ""
    value = str(item.value)
    quoted = shlex.quote(value)
    is_safe = value.isprintable() and (quoted == value or not any(sign in typed for sign in "'\"\\"))
    return quoted if is_safe else ""

"""Makes docs/reference/cli.md from the commands themselves: ``python -m tidegate.cli.reference``.

``--check FILE`` compares instead, and says how to renew the file where it differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import typer
import typer.main

from tidegate.cli.app import EXIT_CODE_HELP, app


class Parameter(Protocol):
    """What is used of a command's argument or option."""

    name: str | None
    opts: list[str]
    secondary_opts: list[str]
    param_type_name: str


class Command(Protocol):
    """What is used of a command."""

    help: str | None
    params: list[Parameter]


def iter_commands(application: typer.Typer) -> Iterator[tuple[str, Command]]:
    """Every command with its whole name (``hub create``), in the order of the help."""
    return _iter_commands(typer.main.get_command(application), ())


def _iter_commands(command: object, names: tuple[str, ...]) -> Iterator[tuple[str, Command]]:
    commands = getattr(command, "commands", None)
    if commands is None:
        yield " ".join(names), command  # type: ignore[misc]  # typer's own classes are not public
        return
    for name, member in commands.items():
        yield from _iter_commands(member, (*names, name))


def reference_page() -> str:
    """The whole page, in Markdown."""
    lines = [
        "# Command line",
        "",
        "Made by `python -m tidegate.cli.reference`; do not edit.",
        "",
        "Commands that talk to a service find it by `--connection-string`, else "
        "`TIDEGATE_CONNECTION_STRING`, else the profile that `tidegate serve` left for this user (in "
        "`TIDEGATE_CONFIG_DIR`, else `tidegate/profile.json` in the user's configuration directory).",
        "",
        "Results go to standard output as a table, or as `--json` (one value), `--nl` (one object per "
        "line) or `--csv`; progress and remarks go to standard error.",
        "",
        f"Exit codes: {EXIT_CODE_HELP}.",
    ]
    for name, command in iter_commands(app):
        lines += ["", f"## tidegate {name}", "", *_help_lines(command.help or "")]
        rows = [_parameter_row(parameter) for parameter in command.params if _is_shown(parameter)]
        lines += ["", "| | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _is_shown(parameter: Parameter) -> bool:
    return not getattr(parameter, "hidden", False) and parameter.name != "help"


def _help_lines(text: str) -> list[str]:
    """The paragraphs of a docstring; the one after ``\\b`` is an example, as a code block."""
    prose, _, example = text.partition("\b")
    lines = [line.strip() for line in prose.strip().splitlines()]
    commands = [line.strip() for line in example.strip().splitlines()[1:]]
    return [*lines, "", "```sh", *commands, "```"]


def _parameter_row(parameter: Parameter) -> str:
    metavar = getattr(parameter, "metavar", None) or ""
    if parameter.param_type_name == "argument":
        names = f"`{metavar}`"
    else:
        spelled = [f"{option} {metavar}".strip() for option in (*parameter.opts, *parameter.secondary_opts)]
        names = ", ".join(f"`{option}`" for option in spelled)
    words = [str(getattr(parameter, "help", None) or "")]
    choices = getattr(getattr(parameter, "type", None), "choices", None)
    if choices:
        words.append("One of " + ", ".join(f"`{_text(choice)}`" for choice in choices) + ".")
    default = getattr(parameter, "default", None)
    if default not in (None, False, ...) and not callable(default):
        words.append(f"Default: `{_text(default)}`.")
    if getattr(parameter, "required", False):
        words.append("Required.")
    return f"| {names} | {' '.join(words)} |"


def _text(value: object) -> str:
    return str(getattr(value, "value", value))


def main(arguments: list[str]) -> int:
    """Print the page, or compare it with ``--check FILE``; returns the exit code."""
    if not arguments:
        sys.stdout.write(reference_page())
        return 0
    path = Path(arguments[-1])
    if path.read_text(encoding="utf-8") == reference_page():
        return 0
    sys.stderr.write(f"{path} is out of date: run `make docs`.\n")
    return 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

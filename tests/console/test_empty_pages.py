"""Pages that are empty say what would fill them: with commands that there are."""

from __future__ import annotations

import re
import shlex

import click

from tidegate.cli.app import app
from tidegate.console.frame.rendering import STATIC_DIRECTORY

COMMANDS = re.compile(r"<code>(?:echo \w+ \| )?tidegate ([^<]*)</code>")


def test_commands_that_pages_name_exist() -> None:
    """With their options; nothing else renames them together."""
    commands = {
        found[1]
        for path in STATIC_DIRECTORY.parent.rglob("*.html")
        for found in COMMANDS.finditer(path.read_text())
    }
    assert len(commands) > 10
    for words in commands:
        command: click.Command = app
        names = shlex.split(re.sub(r"{{.*?}}", "NAME", words))
        while isinstance(command, click.Group) and names:
            found = command.get_command(click.Context(command), names.pop(0))
            assert found is not None, words
            command = found
        options = {option for each in command.params for option in each.opts}
        assert {each for each in names if each.startswith("--")} <= options, words

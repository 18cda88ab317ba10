"""``tidegate profile``: names for services, so that no key has to be pasted into a shell."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.shell.completing import complete_profile
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError

profile_app = typer.Typer(help="Manage this user's saved connections.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The profile.", autocompletion=complete_profile)
]

_COLUMNS = ("name", "used", "endpoint", "event_hub", "key_name", "ca_file")


@profile_app.command("save")
def save(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile; an existing one is replaced.")],
    text: Annotated[
        str | None,
        typer.Option(
            "--connection-string",
            metavar="TEXT",
            help="The service's connection string. Default: read from standard input, or prompted for.",
        ),
    ] = None,
    trusted: Annotated[
        Path | None,
        typer.Option(
            "--ca-file", metavar="FILE", help="Certificate authority to trust for TLS. Default: the system's."
        ),
    ] = None,
) -> None:
    """Save a connection under a name, readable only by this user.

    Prefer standard input: a key given on the command line stays in the shell's history.

    \b
    Examples:
      tidegate profile save production
      echo "$CONNECTION_STRING" | tidegate profile save production
    """
    from tidegate.cli.shell.profiles import Profile, save_profile

    if text is None and sys.stdin.isatty():
        text = typer.prompt("Connection string", hide_input=True, err=True)
    elif text is None:
        text = sys.stdin.readline()
    text = text.strip()
    ConnectionString.parse(text)
    save_profile(name, Profile(text, None if trusted is None else str(trusted.absolute())), os.environ)
    sys.stderr.write(f"Saved the profile {name}. Use it with --profile {name}.\n")


@profile_app.command("list")
@with_output()
def list_profiles(output: Output) -> None:
    """List the profiles, without their keys.

    The active profile is the one that commands use by default.

    \b
    Example:
      tidegate profile list
    """
    from tidegate.cli.shell.profiles import profile_names

    records = []
    for name in profile_names(os.environ):
        try:
            records.append(_record(name))
        except InvalidArgumentError as error:
            sys.stderr.write(f"Skipped {name}: {error}\n")
    output.records(records, columns=_COLUMNS)


@profile_app.command("show")
@with_output()
def show(output: Output, name: NameArgument) -> None:
    """Show a profile, without its key.

    \b
    Example:
      tidegate profile show production
    """
    output.record(_record(name))


@profile_app.command("use")
def use(name: NameArgument) -> None:
    """Make a profile the default for all commands.

    The profile local is written by `tidegate serve`. --connection-string, --profile,
    TIDEGATE_CONNECTION_STRING and TIDEGATE_PROFILE take precedence over the default profile.

    \b
    Example:
      tidegate profile use production
    """
    from tidegate.cli.shell.profiles import choose_profile

    choose_profile(name, os.environ)
    sys.stderr.write(f"Commands now use the profile {name}.\n")


@profile_app.command("delete")
def delete(name: NameArgument) -> None:
    """Delete a profile. The service is not affected.

    \b
    Example:
      tidegate profile delete production
    """
    from tidegate.cli.shell.profiles import delete_profile

    delete_profile(name, os.environ)
    sys.stderr.write(f"Deleted the profile {name}.\n")


def _record(name: str) -> dict[str, object]:
    from tidegate.cli.shell.profiles import chosen_profile, load_profile

    profile = load_profile(name, os.environ)
    parts = ConnectionString.parse(profile.connection_string)
    return {
        "name": name,
        "used": name == chosen_profile(os.environ),
        "endpoint": parts.host if parts.port is None else f"{parts.host}:{parts.port}",
        "event_hub": parts.entity_path,
        "key_name": parts.shared_access_key_name,
        "ca_file": profile.ca_file,
    }

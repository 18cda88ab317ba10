"""``tidegate profile``: names for services, so that no key has to be pasted into a shell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import FILE, option
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.profiles import (
    ServiceConnection,
    choose_profile,
    chosen_profile,
    complete_profile,
    delete_profile,
    load_profile,
    profile_names,
    save_profile,
)
from tidegate.cli.shell.render import Output, remark
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError

profile_group = CommandGroup("profile", help="Manage this user's saved connections.")

name_argument = click.argument("name", shell_complete=complete_profile, help="The profile.")

_COLUMNS = ("name", "used", "endpoint", "event_hub", "key_name", "ca_file", "database")


@profile_group.command()
@click.argument("name", help="The profile; an existing one is replaced.")
@option(
    "--connection-string",
    "TEXT",
    "The service's connection string. Default: read from standard input, or prompted for.",
)
@option("--ca-file", "FILE", "Certificate authority to trust for TLS. Default: the system's.", FILE)
@option(
    "--database",
    "URL|-",
    "SQLAlchemy URL of the database of its hosts and pipelines, for commands that need one. -: read "
    "from standard input after the connection string, or prompted for, as one with a password should be.",
)
def save(name: str, connection_string: str | None, ca_file: Path | None, database: str | None) -> None:
    """Save a connection under a name, readable only by this user.

    Prefer standard input: a key given on the command line stays in the shell's history.

    Examples:
      tidegate profile save production
      tidegate profile save production --database postgresql://reports@db.example.org/reports
      echo "$CONNECTION_STRING" | tidegate profile save production
    """
    text = _read("Connection string") if connection_string is None else connection_string.strip()
    ConnectionString.parse(text)
    if database is not None:
        from tidegate.sql.core.database import absolute_url

        database = absolute_url(_read("Database URL") if database == "-" else database)
    authority = None if ca_file is None else str(ca_file.absolute())
    save_profile(name, ServiceConnection(text, authority, database), os.environ)
    remark(f"Saved the profile {name}. Use it with --profile {name}.")


@profile_group.command("list")
@with_output()
def list_profiles(output: Output) -> None:
    """List the profiles, without keys and passwords.

    The active profile is the one that commands use by default.

    Example:
      tidegate profile list
    """
    records = []
    for name in profile_names(os.environ):
        try:
            records.append(_record(name))
        except InvalidArgumentError as error:
            remark(f"Skipped {name}: {error}")
    output.records(records, columns=_COLUMNS)


@profile_group.command()
@name_argument
@with_output()
def show(output: Output, name: str) -> None:
    """Show a profile, without its key and password.

    Example:
      tidegate profile show production
    """
    output.record(_record(name))


@profile_group.command()
@name_argument
def use(name: str) -> None:
    """Make a profile the default for all commands.

    The profile local is written by `tidegate serve`. --connection-string, --profile,
    TIDEGATE_CONNECTION_STRING and TIDEGATE_PROFILE take precedence over the default profile.

    Example:
      tidegate profile use production
    """
    choose_profile(name, os.environ)
    remark(f"Commands now use the profile {name}.")


@profile_group.command()
@name_argument
def delete(name: str) -> None:
    """Delete a profile. The service is not affected.

    Example:
      tidegate profile delete production
    """
    delete_profile(name, os.environ)
    remark(f"Deleted the profile {name}.")


def _read(what: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


def _record(name: str) -> dict[str, object]:
    profile = load_profile(name, os.environ)
    parts = ConnectionString.parse(profile.connection_string)
    database = profile.database
    if database is not None:
        from tidegate.sql.core.database import shown_url

        database = shown_url(database)
    return {
        "name": name,
        "used": name == chosen_profile(os.environ),
        "endpoint": parts.host if parts.port is None else f"{parts.host}:{parts.port}",
        "event_hub": parts.entity_path,
        "key_name": parts.shared_access_key_name,
        "ca_file": profile.ca_file,
        "database": database,
    }

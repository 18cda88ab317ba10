"""Options that several commands share, and the decorators that make one argument of several options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tidegate.cli.shell.completing import complete_group, complete_hub
from tidegate.cli.shell.connection import profile_option
from tidegate.cli.shell.decorators import (
    FILE,
    Decorator,
    adding_argument,
    all_of,
    flag,
    option,
    require_at_most_one,
)
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.cli.shell.stores import DATABASE_VARIABLE, STORAGE_VARIABLE, StoreChoice
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.server.log_format import LogFormat

OFF = "off"
"""Given in place of a number, removes a limit."""

PORT = click.IntRange(0, 65535)
COUNT = click.IntRange(min=1)
RATE = click.FloatRange(min=0, min_open=True)

hub_argument: Decorator = click.argument("hub", shell_complete=complete_hub, help="The event hub.")

database_option: Decorator = option(
    "--database",
    "URL",
    "SQLAlchemy URL of the database, e.g. sqlite:///flights.db or postgresql://user@host/name. "
    f"Default: {DATABASE_VARIABLE}, then the profile's.",
)

database_alone: Decorator = all_of(database_option, profile_option)
"""For a command that connects to no service: the profile is that of the database."""

from_option: Decorator = option(
    "--from",
    "POSITION",
    "earliest, latest, @SEQUENCE_NUMBER, a time in ISO 8601, or an age (90s, 15m, 2h, 7d).",
    argument="position",
    default="earliest",
)

groups_option: Decorator = option(
    "--group",
    "NAME",
    "A consumer group; repeatable. Default: $Default.",
    argument="groups",
    multiple=True,
    shell_complete=complete_group,
)

life_option: Decorator = option("--life", "AGE", "How long it is valid: 90s, 15m, 2h, 7d.", default="1h")


def life_s(life: str) -> int:
    """The seconds in an age. Raises InvalidArgumentError."""
    from tidegate.model.position import parse_time
    from tidegate.transport.clock import SystemClock

    if life[-1:] not in ("s", "m", "h", "d") or not life[:-1].strip("0"):
        raise InvalidArgumentError(
            f"Invalid value {life[:40]!r} for --life.", next_step="Use 90s, 15m, 2h, 7d."
        )
    now = SystemClock().now_utc()
    return int((now - parse_time(life, now_utc=now)).total_seconds())


_store_options = all_of(
    database_option,
    option(
        "--checkpoint-dir",
        "DIR",
        "Read leases and checkpoints from this directory (hosts with a DirectoryStore) instead of a "
        "database.",
        FILE,
    ),
    option(
        "--blob-container",
        "NAME|URL",
        "Read leases and checkpoints from this Azure blob container (official processors): its URL "
        f"with a shared access signature, or its name in the account given by {STORAGE_VARIABLE}.",
    ),
    option(
        "--namespace",
        "NAME",
        "The namespace used in directory and blob names, for a service that cannot be reached. Default: what "
        "the service reports.",
    ),
)

_FORMAT_HELP = {
    OutputFormat.TABLE: "A table (the default; plain text when piped).",
    OutputFormat.JSON: "One JSON value.",
    OutputFormat.NL: "One JSON object per line.",
    OutputFormat.CSV: "Comma-separated values with a header line.",
}

_WIDE_HELP = "On a terminal, show all columns of a table, uncut, with exact times."


def group_option(text: str) -> Decorator:
    """One consumer group, ``$Default`` unless given. text: the help."""
    return option("--group", "NAME", text, default=DEFAULT_CONSUMER_GROUP, shell_complete=complete_group)


def log_format_option(text: str) -> Decorator:
    """The format of a log on standard error, a ``LogFormat``'s value. text: the help."""
    return click.option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        default=LogFormat.TEXT.value,
        envvar="TIDEGATE_LOG_FORMAT",
        show_envvar=True,
        help=text,
    )


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Say on standard error what is read or sent, and where."
)


def interval_option(text: str) -> Decorator:
    """Seconds between refreshes, 2 unless given. text: the help."""
    return option("--interval", "S", text, click.FloatRange(min=0.1), default=2.0)


yes_option = flag("--yes", "Do not ask for confirmation. Without a terminal, it never asks.")


def with_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a store; it takes a ``StoreChoice`` as its argument ``store``."""

    def make(_: click.Context, arguments: dict[str, Any]) -> StoreChoice:
        names = ("database", "checkpoint_dir", "blob_container", "namespace")
        return StoreChoice(*(arguments.pop(name) for name in names))

    return _store_options(adding_argument(command, "store", make))


def with_output(*formats: OutputFormat) -> Decorator:
    """Give a command the format options; it takes an ``Output`` as its argument ``output``.

    formats: which of them; without any, all four. More than one option at once is an InvalidArgumentError
    (exit code 2).
    """
    offered = formats or tuple(OutputFormat)

    def make(_: click.Context, arguments: dict[str, Any]) -> Output:
        chosen = [each for each in offered if arguments.pop(f"is_{each.value}")]
        require_at_most_one({f"--{each.value}": True for each in chosen})
        is_wide = arguments.pop("is_wide", False)
        return Output(chosen[0] if chosen else OutputFormat.TABLE, is_wide=is_wide)

    flags: list[Decorator] = [
        click.option(f"--{each.value}", f"is_{each.value}", is_flag=True, help=_FORMAT_HELP[each])
        for each in offered
    ]
    if OutputFormat.TABLE in offered:
        flags.append(flag("--wide", _WIDE_HELP, "is_wide"))
    return lambda command: all_of(*flags)(adding_argument(command, "output", make))


def number_or_off(option: str, text: str) -> int | None:
    """The number that was given, or None for ``off``. Raises InvalidArgumentError naming the option."""
    if text.lower() == OFF:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgumentError(
            f"Invalid value {text[:40]!r} for {option}.", next_step=f"Use an integer, or {OFF}."
        )
    return int(text)

"""Options that several commands share, and the decorator that gives a command its output formats."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from tidegate.cli.shell.completing import complete_group, complete_hub, complete_profile
from tidegate.cli.shell.connection import CONNECTION_STRING_VARIABLE, connection_of_profile
from tidegate.cli.shell.profiles import PROFILE_VARIABLE
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.model.errors import InvalidArgumentError

P = ParamSpec("P")

DATABASE_VARIABLE = "TIDEGATE_DATABASE"
STORAGE_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
"""As Azure's own command line has it."""

ConnectionStringOption = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        metavar="TEXT",
        help=f"The service's connection string. Default: {CONNECTION_STRING_VARIABLE}, then a profile.",
    ),
]

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help=f"A connection saved with `tidegate profile`. Default: {PROFILE_VARIABLE}, then the active "
        "profile, then the one written by `tidegate serve`.",
        autocompletion=complete_profile,
    ),
]

HubArgument = Annotated[
    str, typer.Argument(metavar="HUB", help="The event hub.", autocompletion=complete_hub)
]

CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", metavar="FILE", help="Certificate authority to trust for TLS. Default: the system's."
    ),
]

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="SQLAlchemy URL of the database, e.g. sqlite:///flights.db or postgresql://user@host/name. "
        f"Default: {DATABASE_VARIABLE}.",
    ),
]

CheckpointDirOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint-dir",
        metavar="DIR",
        help="Read leases and checkpoints from this directory (hosts with a DirectoryStore) instead of a "
        "database.",
    ),
]

BlobContainerOption = Annotated[
    str | None,
    typer.Option(
        "--blob-container",
        metavar="NAME|URL",
        help="Read leases and checkpoints from this Azure blob container (official processors): its URL "
        f"with a shared access signature, or its name in the account given by {STORAGE_VARIABLE}.",
    ),
]

NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="HOST",
        help="The namespace used in directory and blob names. Default: the connection's host name.",
    ),
]

GroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="A consumer group; repeatable. Default: $Default.",
        autocompletion=complete_group,
    ),
]

_FORMAT_HELP = {
    OutputFormat.TABLE: "A table (the default; plain text when piped).",
    OutputFormat.JSON: "One JSON value.",
    OutputFormat.NL: "One JSON object per line.",
    OutputFormat.CSV: "Comma-separated values with a header line.",
}


def with_output(
    *formats: OutputFormat,
) -> Callable[[Callable[Concatenate[Output, P], None]], Callable[P, None]]:
    """Give a command the format options; the command takes an ``Output`` as its first parameter.

    formats: which of them; none named means all four. More than one option at once is an
    InvalidArgumentError (exit code 2).
    """
    offered = formats or tuple(OutputFormat)

    def decorate(command: Callable[Concatenate[Output, P], None]) -> Callable[P, None]:
        def run(**arguments: object) -> None:
            chosen = [name for name in offered if arguments.pop(_parameter_name(name))]
            if len(chosen) > 1:
                options = " and ".join(f"--{name.value}" for name in chosen)
                raise InvalidArgumentError(
                    f"{options} are mutually exclusive.", next_step="Use only one of them."
                )
            output = Output(chosen[0] if chosen else OutputFormat.TABLE)
            command(output, **arguments)  # type: ignore[call-arg,arg-type]  # typer calls with keywords only

        functools.update_wrapper(run, command)
        # Typer reads the parameters from the signature: the first one goes, the format options come.
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[1:]
        flags = [_format_parameter(name) for name in offered]
        run.__signature__ = signature.replace(parameters=_in_order(own + flags))  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in own + flags}
        return run  # type: ignore[return-value]  # the signature that typer sees is P plus the flags

    return decorate


def with_profile(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes a connection string the option ``--profile``, which stands for one.

    Other commands are returned as they are. Giving both is an InvalidArgumentError.
    """
    signature = inspect.signature(command, eval_str=True)
    if not {"connection_string", "ca_file"} <= set(signature.parameters):
        return command

    def run(*, profile: str | None = None, **arguments: Any) -> None:
        if profile is not None:
            if arguments["connection_string"] is not None:
                raise InvalidArgumentError(
                    "--profile and --connection-string are mutually exclusive.",
                    next_step="Use only one of them.",
                )
            found = connection_of_profile(profile, arguments["ca_file"], os.environ)
            arguments["connection_string"] = found.connection_string
            arguments["ca_file"] = None if found.ca_file is None else Path(found.ca_file)
        command(**arguments)

    functools.update_wrapper(run, command)
    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index("connection_string")
    option = inspect.Parameter("profile", parameters[place].kind, default=None, annotation=ProfileOption)
    parameters.insert(place, option)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter_name(output_format: OutputFormat) -> str:
    return f"is_{output_format.value}"


def _format_parameter(output_format: OutputFormat) -> inspect.Parameter:
    option = typer.Option(f"--{output_format.value}", help=_FORMAT_HELP[output_format])
    return inspect.Parameter(
        _parameter_name(output_format),
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, option],
    )


def _in_order(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return sorted(parameters, key=lambda parameter: parameter.kind)

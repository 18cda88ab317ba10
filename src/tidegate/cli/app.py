"""Assembles the commands, and turns errors into one clear line and an exit code."""

from __future__ import annotations

import sys
from typing import Final

import click

from tidegate.cli.shell.completion import prepare_completion
from tidegate.cli.shell.connection import connection_options
from tidegate.cli.shell.contents import CommandGroup, Contents, ContentsGroup
from tidegate.cli.shell.exit_codes import ExitCode, exit_code_of
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output, guard_standard_error, remark
from tidegate.model import VERSION
from tidegate.model.errors import TidegateError

EXIT_CODE_HELP = "; ".join(
    (
        f"{ExitCode.DONE} done",
        f"{ExitCode.FAILED} the operation failed",
        f"{ExitCode.USAGE} invalid usage",
        f"{ExitCode.UNREACHABLE} the service was unreachable or denied access",
        f"{ExitCode.CHECK_FAILED} a check failed",
        "128 + N terminated by signal N (130: Ctrl-C; 141: output pipe closed)",
    )
)


@click.command()
@with_output()
def version(output: Output) -> None:
    """Show the versions of Tidegate and Python.

    Example:
      tidegate version --json
    """
    import platform

    output.record({"tidegate": VERSION, "python": platform.python_version()})


pipeline_group = CommandGroup(
    "pipeline",
    places={
        "run": "pipelines.run:run",
        "replay": "pipelines.run:replay",
        "diff": "pipelines.shadow:diff",
        "swap": "pipelines.shadow:swap",
        "drop": "pipelines.shadow:drop",
        "status": "pipelines.status:status",
        "stop": "pipelines.status:stop",
    },
    help="Run, monitor and compare pipelines.",
)

_CONTENTS: Final[Contents] = (
    (
        "The service",
        {
            "serve": "service.serve:serve",
            "top": "consumers.top:top",
            "backup": "service.backup:backup",
            "check": "service.check:check",
            "doctor": "service.doctor:doctor",
            "bench": "service.bench:bench",
        },
    ),
    (
        "Event hubs and events",
        {
            "hub": "entities.hub:hub_group",
            "group": "entities.group:group_group",
            "capture": "entities.capture:capture_group",
            "send": "events.send:send",
            "receive": "events.receive:receive",
            "export": "events.export:export",
            "import": "events.importing:import_events",
        },
    ),
    (
        "Access and throughput",
        {
            "policy": "entities.policy:policy_group",
            "token": "entities.token:token_group",
            "publisher": "entities.publisher:publisher_group",
            "throughput": "entities.limits:throughput_group",
            "tier": "entities.limits:tier_group",
        },
    ),
    (
        "Consumers",
        {
            "host": "hosts.run:host_group",
            "lag": "consumers.lag:lag",
            "lease": "consumers.lag:lease_group",
            "checkpoint": "consumers.checkpoint:checkpoint_group",
        },
    ),
    (
        "Pipelines",
        {
            "pipeline": "app:pipeline_group",
            "dlq": "dead_letters.dlq:dlq_group",
            "audit": "consumers.audit:audit",
            "spark": "pipelines.spark:spark_group",
        },
    ),
    (
        "This command line",
        {
            "profile": "entities.profile:profile_group",
            "completion": "shell.completion:completion",
            "version": "app:version",
        },
    ),
)


@click.group(
    "tidegate",
    cls=ContentsGroup,
    contents=_CONTENTS,
    epilog=f"Exit codes: {EXIT_CODE_HELP}.",
    context_settings={"show_default": True},
)
@click.version_option(VERSION, message="%(version)s", help="Show Tidegate's version.")
@connection_options
def app() -> None:
    """Tidegate: a self-hosted Event Hubs, with exactly-once Spark pipelines.

    The connection options can be given before or after the command.
    """


def run() -> None:
    """Run the command line; exits the process with an ``ExitCode``."""
    guard_standard_error()
    prepare_completion()
    try:
        app(prog_name="tidegate")
    except (TidegateError, OSError) as error:
        # An OSError: an unreadable file, a full disk; the system's message names it.
        remark(f"Error: {error}")
        sys.exit(exit_code_of(error))

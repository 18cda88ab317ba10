"""Assembles the commands, and turns errors into one clear line and an exit code."""

from __future__ import annotations

import sys

import click

from tidegate.cli.consumers.audit import audit
from tidegate.cli.consumers.checkpoint import checkpoint_group
from tidegate.cli.consumers.lag import lag, lease_group
from tidegate.cli.consumers.top import top
from tidegate.cli.dead_letters.dlq import dlq_group
from tidegate.cli.entities.capture import capture_group
from tidegate.cli.entities.group import group_group
from tidegate.cli.entities.hub import hub_group
from tidegate.cli.entities.limits import throughput_group, tier_group
from tidegate.cli.entities.policy import policy_group
from tidegate.cli.entities.profile import profile_group
from tidegate.cli.entities.publisher import publisher_group
from tidegate.cli.entities.token import token_group
from tidegate.cli.events.export import export
from tidegate.cli.events.importing import import_events
from tidegate.cli.events.receive import receive
from tidegate.cli.events.send import send
from tidegate.cli.hosts.run import host_group
from tidegate.cli.pipelines.run import replay
from tidegate.cli.pipelines.run import run as run_pipeline
from tidegate.cli.pipelines.shadow import diff, drop, swap
from tidegate.cli.pipelines.spark import spark_group
from tidegate.cli.pipelines.status import status, stop
from tidegate.cli.service.backup import backup
from tidegate.cli.service.bench import bench
from tidegate.cli.service.check import check
from tidegate.cli.service.doctor import doctor
from tidegate.cli.service.serve import serve
from tidegate.cli.shell.completion import completion, prepare_completion
from tidegate.cli.shell.connection import connection_options
from tidegate.cli.shell.contents import CommandGroup, ContentsGroup
from tidegate.cli.shell.exit_codes import ExitCode, exit_code_of
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output, remark
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
    commands=[run_pipeline, replay, diff, swap, drop, status, stop],
    help="Run, monitor and compare pipelines.",
)


@click.group(
    "tidegate",
    cls=ContentsGroup,
    contents=(
        ("The service", (serve, top, backup, check, doctor, bench)),
        (
            "Event hubs and events",
            (hub_group, group_group, capture_group, send, receive, export, import_events),
        ),
        ("Access and throughput", (policy_group, token_group, publisher_group, throughput_group, tier_group)),
        ("Consumers", (host_group, lag, lease_group, checkpoint_group)),
        ("Pipelines", (pipeline_group, dlq_group, audit, spark_group)),
        ("This command line", (profile_group, completion, version)),
    ),
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
    prepare_completion()
    try:
        app(prog_name="tidegate")
    except (TidegateError, OSError) as error:
        # An OSError: an unreadable file, a full disk; the system's message names it.
        remark(f"Error: {error}")
        sys.exit(exit_code_of(error))

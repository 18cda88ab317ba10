"""Puts the commands together, and turns errors into one clear line and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.consumers.audit import audit
from tidegate.cli.consumers.checkpoint import checkpoint_app
from tidegate.cli.consumers.lag import lag
from tidegate.cli.consumers.lease import lease_app
from tidegate.cli.dead_letters.dlq import dlq_app
from tidegate.cli.entities.capture import capture_app
from tidegate.cli.entities.group import group_app
from tidegate.cli.entities.hub import hub_app
from tidegate.cli.entities.policy import policy_app
from tidegate.cli.entities.profile import profile_app
from tidegate.cli.entities.publisher import publisher_app
from tidegate.cli.entities.throughput import throughput_app
from tidegate.cli.entities.tier import tier_app
from tidegate.cli.events.receive import receive
from tidegate.cli.events.send import send
from tidegate.cli.pipelines.pipeline import pipeline_app
from tidegate.cli.pipelines.spark import spark_app
from tidegate.cli.service.check import check
from tidegate.cli.service.serve import serve
from tidegate.cli.shell.completion import completion, prepare_completion
from tidegate.cli.shell.exit_codes import ExitCode, exit_code_of
from tidegate.cli.shell.options import with_output, with_profile
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.tree import ContentsGroup, change_commands
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


class _Contents(ContentsGroup):
    sections = (
        ("The service", ("serve", "check")),
        ("Event hubs and events", ("hub", "group", "capture", "send", "receive")),
        ("Access and throughput", ("policy", "publisher", "throughput", "tier")),
        ("Consumers", ("lag", "lease", "checkpoint")),
        ("Pipelines", ("pipeline", "dlq", "audit", "spark")),
        ("This command line", ("profile", "completion", "version")),
    )


app = typer.Typer(
    name="tidegate",
    cls=_Contents,
    help="Tidegate: a self-hosted Event Hubs, with exactly-once Spark pipelines.",
    epilog=f"Exit codes: {EXIT_CODE_HELP}.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: it starts faster, and the reference page is made from it.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
@with_output()
def version(output: Output) -> None:
    """Show the versions of Tidegate and Python.

    \b
    Example:
      tidegate version --json
    """
    import platform

    from tidegate.model.version import VERSION

    output.record({"tidegate": VERSION, "python": platform.python_version()})


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    is_version: Annotated[bool, typer.Option("--version", help="Show Tidegate's version.")] = False,
) -> None:
    """Handle what comes before the command."""
    if is_version:
        from tidegate.model.version import VERSION

        typer.echo(VERSION)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


app.command()(serve)
app.add_typer(hub_app, name="hub")
app.add_typer(group_app, name="group")
app.add_typer(policy_app, name="policy")
app.add_typer(publisher_app, name="publisher")
app.add_typer(throughput_app, name="throughput")
app.add_typer(tier_app, name="tier")
app.add_typer(capture_app, name="capture")
app.command()(send)
app.command()(receive)
app.command()(lag)
app.add_typer(lease_app, name="lease")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(dlq_app, name="dlq")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(spark_app, name="spark")
app.command()(check)
app.command()(audit)
app.add_typer(profile_app, name="profile")
app.command()(completion)
change_commands(app, with_profile)


def run() -> None:
    """Run the command line; leaves the process with an ``ExitCode``."""
    prepare_completion()
    try:
        app(prog_name="tidegate")
    except TidegateError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(exit_code_of(error))
    except OSError as error:
        # A file that may not be read, a disk that is full: the system's own words name what and why.
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(ExitCode.FAILED)

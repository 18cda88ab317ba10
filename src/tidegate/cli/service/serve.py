"""``tidegate serve``: run the service until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.decorators import FILE, option, require_at_most_one
from tidegate.cli.shell.imports import collections_paused
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import PORT, log_format_option
from tidegate.files import IS_WINDOWS
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.limits import TIER_DEFAULT, Tier
from tidegate.server.log_format import LogFormat

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation
    from tidegate.server.settings import ServerSettings


@click.command()
@option(
    "--data-dir",
    "DIR",
    "Directory for the log, the catalog and the certificates. Default: tidegate in this user's data "
    "directory.",
    FILE,
)
@option("--host", "ADDRESS", "Address to listen on. Default: 127.0.0.1.")
@option("--amqp-port", "N", "Port for plain AMQP. Default if no port is given: 5672.", PORT)
@option("--amqps-port", "N", "Port for AMQP over TLS; SDKs use 5671 by default.", PORT)
@option("--http-port", "N", "Port for plain HTTP. Default if no port is given: 5300.", PORT)
@option("--https-port", "N", "Port for HTTP over TLS.", PORT)
@option(
    "--config",
    "FILE",
    "Settings, event hubs and policies in TOML or JSON, or the official emulator's Config.json. "
    "Options and environment variables take precedence.",
    FILE,
    envvar="TIDEGATE_CONFIG",
    show_envvar=True,
)
@click.option(
    "--ephemeral",
    is_flag=True,
    envvar="TIDEGATE_EPHEMERAL",
    show_envvar=True,
    help="Keep everything in a temporary directory that is deleted when the service stops, write no profile, "
    "and use any free ports for AMQP and HTTP unless some are given: a service for tests.",
)
@option(
    "--root-key",
    "KEY",
    "Key of RootManageSharedAccessKey; use SAS_KEY_VALUE for the official emulator's connection "
    "strings. Other users of this machine can see the command line, so set TIDEGATE_ROOT_KEY instead for "
    "a secret key.",
)
@click.option(
    "--tier",
    type=click.Choice([each.value for each in Tier], case_sensitive=False),
    envvar="TIDEGATE_TIER",
    show_envvar=True,
    help="Set the tier of Event Hubs whose limits apply, also for later starts. A new namespace has "
    f"{TIER_DEFAULT.value}; use your own on Azure in tests.",
)
@option(
    "--ready-file",
    "FILE",
    "File to write when the service is ready: a JSON object with its addresses and connection string.",
    FILE,
)
@option(
    "--tls-name",
    "NAME",
    "Additional name for the self-signed certificate; repeatable.",
    argument="tls_names",
    multiple=True,
)
@option(
    "--tls-certificate",
    "FILE",
    "Your own certificate with its chain (PEM) instead of a self-signed one; requires --tls-key.",
    FILE,
)
@option("--tls-key", "FILE", "The key of --tls-certificate (PEM, without a password).", FILE)
@option(
    "--capture-destination",
    "PREFIX",
    "Directory or URL under which capture may write; repeatable. Default: capture in the data directory.",
    argument="capture_destinations",
    multiple=True,
)
@click.option(
    "--development-issuer",
    "is_development_issuer_trusted",
    is_flag=True,
    default=None,
    help="Accept tokens made by `tidegate token entra`, for code that uses Microsoft Entra ID.",
)
@click.option(
    "--console/--no-console",
    "is_console_served",
    default=None,
    help="Serve the console on the HTTP ports. Default: yes.",
)
@option(
    "--database",
    "URL",
    "SQL database of leases, checkpoints and dead letters, for the console; repeatable. Dead letters over "
    "HTTP are in the first.",
    multiple=True,
)
@option(
    "--redrive-pipeline",
    "MODULE:NAME",
    "Pipeline that the console may use to redrive dead letters; repeatable.",
    argument="redrive_pipelines",
    multiple=True,
)
@log_format_option(
    "Format of the log on standard error. json omits the start message and never contains a secret."
)
def serve(
    config: Path | None,
    ephemeral: bool,
    log_format: str,
    tier: str | None,
    capture_destinations: tuple[str, ...],
    database: tuple[str, ...],
    **options: Any,
) -> None:
    """Run the service that official Event Hubs SDKs connect to.

    Port 0 means any free port. If any port is given, only the protocols with a port are served. Stop the
    service with Ctrl-C or SIGTERM: connections get time to finish, and everything acknowledged is on disk in
    any case.

    Every setting can also be an environment variable: TIDEGATE_ and its name in capitals, with commas
    between several values (TIDEGATE_AMQP_PORT=0, TIDEGATE_TLS_NAMES=a.example.org,b.example.org).

    Examples:
      tidegate serve
      tidegate serve --data-dir ./log --amqp-port 0 --ready-file ready.json
      tidegate serve --ephemeral --ready-file ready.json
      tidegate serve --config Config.json --root-key SAS_KEY_VALUE
      tidegate serve --host 0.0.0.0 --amqps-port 5671 --https-port 443 --tls-name log.example.org
    """
    _refuse_windows()
    with collections_paused():
        import asyncio

        from tidegate.server.app import run_server
        from tidegate.server.log_format import start_logging
        from tidegate.transport.clock import SystemClock

    # Every other option is named as its setting; None or () is one that was not given.
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if capture_destinations:
        given["capture_destinations"] = _destinations(capture_destinations)
    if database:
        given |= {"database": database[0], "more_databases": database[1:]}
    require_at_most_one({"--ephemeral": ephemeral, "--data-dir": "data_dir" in given})
    temporary = tempfile.TemporaryDirectory(prefix="tidegate-") if ephemeral else None
    settings = read_settings(config, given, None if temporary is None else Path(temporary.name))
    if tier is not None:
        settings = replace(settings, declared=replace(settings.declared, tier=Tier(tier)))
    start_logging(LogFormat(log_format), sys.stderr, clock=SystemClock())
    is_new = temporary is not None or not settings.data_dir.exists()
    is_first_start = is_new and temporary is None

    # Only a person at a terminal gets the link: what else takes the output may be a log.
    is_link_shown = log_format == LogFormat.TEXT.value and sys.stdout.isatty()
    link_secret = secrets.token_urlsafe(32) if is_link_shown else None

    def announce(ready: ReadyInformation) -> None:
        # The message contains a key. A log for programs usually shares its destination with this stream.
        if log_format == LogFormat.TEXT.value:
            _announce(
                ready,
                is_first_start=is_first_start,
                is_tier_told=is_new and settings.declared.tier is None,
                is_profile_written=settings.is_profile_written,
                link_secret=link_secret,
            )

    async def serve_until_stopped() -> None:
        # A service ordinarily ends by being stopped.
        with contextlib.suppress(asyncio.CancelledError):
            await run_server(settings, on_ready=announce, link_secret=link_secret)

    with temporary or contextlib.nullcontext():
        run_interruptible(serve_until_stopped())


def _refuse_windows() -> None:
    if IS_WINDOWS:
        raise InvalidArgumentError(
            "The service does not run on Windows.",
            next_step="Run it in a container or in WSL; clients and the other commands run here.",
        )


def _destinations(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Directories relative to the current one, as shells complete them; URLs unchanged."""
    return tuple(each if "://" in each else str(Path(each).absolute()) for each in prefixes)


def default_data_dir() -> Path:
    """Where ``serve`` keeps its data by default (XDG base directory specification)."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tidegate"


def read_settings(
    config: Path | None, options: dict[str, Any], temporary: Path | None = None
) -> ServerSettings:
    """Options over environment variables over the file. temporary: the data directory of ``--ephemeral``."""
    from tidegate.server.config_file import load_settings
    from tidegate.server.settings import environment_values, settings_from_mapping

    is_ephemeral = temporary is not None
    given = {"is_profile_written": not is_ephemeral} | environment_values(os.environ) | options
    if is_ephemeral:
        given["data_dir"] = temporary
    if config is None:
        return settings_from_mapping(given, data_dir=default_data_dir(), is_any_port=is_ephemeral)
    return replace(load_settings(config, data_dir=default_data_dir(), is_any_port=is_ephemeral), **given)


def _announce(
    ready: ReadyInformation,
    *,
    is_first_start: bool,
    is_tier_told: bool,
    is_profile_written: bool,
    link_secret: str | None,
) -> None:
    rows = [
        ("data", ready.data_dir),
        ("AMQP", ready.amqp),
        ("AMQP over TLS", ready.amqps),
        ("HTTP", ready.http),
        ("HTTP over TLS", ready.https),
        ("CA to trust", ready.ca_file),
        ("console", ready.console),
    ]
    lines = ["Tidegate serves."]
    lines += [f"  {name:<14}{value}" for name, value in rows if value is not None]
    if is_first_start:
        lines.append("First start: created the data directory and a random key.")
    if is_tier_told:
        lines.append(
            f"The tier is {TIER_DEFAULT.value}, which allows what smaller ones refuse. To test code for "
            "Azure, add the tier you have there: --tier Standard"
        )
    lines.append("Connection string for any Event Hubs SDK (contains the key; treat it as a password):")
    lines.append(f"  {ready.connection_string}")
    if ready.connection_string_plain not in (None, ready.connection_string):
        lines.append("Without TLS, for clients on this machine:")
        lines.append(f"  {ready.connection_string_plain}")
    if link_secret is not None and ready.console is not None:
        lines.append("Open the console and be signed in (once, within ten minutes):")
        lines.append(f"  {ready.console}console/sign-in?link={link_secret}")
    if is_profile_written:
        lines.append(
            "Other commands of this user find the service automatically, e.g.: tidegate hub create NAME"
        )
    click.echo("\n".join(lines))

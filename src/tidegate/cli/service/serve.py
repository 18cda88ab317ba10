"""``tidegate serve``: run the service until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.decorators import FILE
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import PORT
from tidegate.cli.shell.stores import DATABASE_VARIABLE
from tidegate.server.log_format import LogFormat

ROOT_KEY_VARIABLE = "TIDEGATE_ROOT_KEY"

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation
    from tidegate.server.settings import ServerSettings


@click.command()
@click.option(
    "--data-dir",
    type=FILE,
    metavar="DIR",
    help="Directory for the log, the catalog and the certificates. Default: tidegate in this user's data "
    "directory.",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1.")
@click.option(
    "--amqp-port",
    type=PORT,
    metavar="N",
    help="Port for plain AMQP. Default if no port is given: 5672.",
)
@click.option(
    "--amqps-port", type=PORT, metavar="N", help="Port for AMQP over TLS; SDKs use 5671 by default."
)
@click.option(
    "--http-port",
    type=PORT,
    metavar="N",
    help="Port for plain HTTP. Default if no port is given: 5300.",
)
@click.option("--https-port", type=PORT, metavar="N", help="Port for HTTP over TLS.")
@click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    help="Settings, event hubs and policies in TOML or JSON, or the official emulator's Config.json. "
    "Options on the command line take precedence.",
)
@click.option(
    "--root-key",
    metavar="KEY",
    envvar=ROOT_KEY_VARIABLE,
    help="Key of RootManageSharedAccessKey; use SAS_KEY_VALUE for the official emulator's connection "
    f"strings. Other users of this machine can see the command line, so set {ROOT_KEY_VARIABLE} instead for "
    "a secret key.",
)
@click.option(
    "--ready-file",
    type=FILE,
    metavar="FILE",
    help="File to write when the service is ready: a JSON object with its addresses and connection string.",
)
@click.option(
    "--tls-name",
    "tls_names",
    metavar="NAME",
    multiple=True,
    help="Additional name for the self-signed certificate; repeatable.",
)
@click.option(
    "--tls-certificate",
    type=FILE,
    metavar="FILE",
    help="Your own certificate with its chain (PEM) instead of a self-signed one; requires --tls-key.",
)
@click.option(
    "--tls-key",
    type=FILE,
    metavar="FILE",
    help="The key of --tls-certificate (PEM, without a password).",
)
@click.option(
    "--capture-destination",
    "capture_destinations",
    metavar="PREFIX",
    multiple=True,
    help="Directory or URL under which capture may write; repeatable. Default: capture in the data "
    "directory.",
)
@click.option(
    "--console/--no-console",
    "is_console_served",
    default=None,
    help="Serve the console on the HTTP ports. Default: yes.",
)
@click.option(
    "--database",
    metavar="URL",
    envvar=DATABASE_VARIABLE,
    help="SQL database whose leases, checkpoints and dead letters the console shows. Default: "
    f"{DATABASE_VARIABLE}.",
)
@click.option(
    "--redrive-pipeline",
    "redrive_pipelines",
    metavar="MODULE:NAME",
    multiple=True,
    help="Pipeline that the console may use to redrive dead letters; repeatable.",
)
@click.option(
    "--log-format",
    type=click.Choice([each.value for each in LogFormat]),
    default=LogFormat.TEXT.value,
    help="Format of the log on standard error. json omits the start message and never contains a secret.",
)
def serve(
    config: Path | None,
    log_format: str,
    capture_destinations: tuple[str, ...],
    **options: Any,
) -> None:
    """Run the service that official Event Hubs SDKs connect to.

    Port 0 means any free port. If any port is given, only the protocols with a port are served. Stop the
    service with Ctrl-C or SIGTERM: connections get time to finish, and everything acknowledged is on disk in
    any case.

    \b
    Examples:
      tidegate serve
      tidegate serve --data-dir ./log --amqp-port 0 --ready-file ready.json
      tidegate serve --config Config.json --root-key SAS_KEY_VALUE
      tidegate serve --host 0.0.0.0 --amqps-port 5671 --https-port 443 --tls-name log.example.org
    """
    import asyncio

    from tidegate.server.app import run_server
    from tidegate.server.log_format import start_logging
    from tidegate.transport.clock import SystemClock

    # Every other option is named as its setting; None or () is one that was not given.
    settings = _settings(config, {**options, "capture_destinations": _destinations(capture_destinations)})
    start_logging(LogFormat(log_format), sys.stderr, clock=SystemClock())
    is_first_start = not settings.data_dir.exists()

    def announce(ready: ReadyInformation) -> None:
        # The message contains a key. A log for programs usually shares its destination with this stream.
        if log_format == LogFormat.TEXT.value:
            _announce(ready, is_first_start=is_first_start)

    async def serve_until_stopped() -> None:
        # A service ordinarily ends by being stopped.
        with contextlib.suppress(asyncio.CancelledError):
            await run_server(settings, on_ready=announce)

    run_interruptible(serve_until_stopped())


def _destinations(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Directories relative to the current one, as shells complete them; URLs unchanged."""
    return tuple(each if "://" in each else str(Path(each).absolute()) for each in prefixes)


def default_data_dir() -> Path:
    """Where ``serve`` keeps its data by default (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "tidegate"


def _settings(config: Path | None, options: dict[str, Any]) -> ServerSettings:
    from tidegate.server.config_file import load_settings
    from tidegate.server.settings import ServerSettings

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if config is not None:
        settings = load_settings(config, data_dir=default_data_dir())
    else:
        ports = {name: options[name] for name in ("amqp_port", "amqps_port", "http_port", "https_port")}
        settings = ServerSettings(data_dir=default_data_dir()).with_ports(**ports)
    return replace(settings, is_profile_written=True, **given)


def _announce(ready: ReadyInformation, *, is_first_start: bool) -> None:
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
    lines.append("Connection string for any Event Hubs SDK (contains the key; treat it as a password):")
    lines.append(f"  {ready.connection_string}")
    if ready.connection_string_plain not in (None, ready.connection_string):
        lines.append("Without TLS, for clients on this machine:")
        lines.append(f"  {ready.connection_string_plain}")
    lines.append("Other commands of this user find the service automatically, e.g.: tidegate hub create NAME")
    click.echo("\n".join(lines))

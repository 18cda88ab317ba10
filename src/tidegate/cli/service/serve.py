"""``tidegate serve``: run the service until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.shell.options import DATABASE_VARIABLE
from tidegate.server.log_format import LogFormat

ROOT_KEY_VARIABLE = "TIDEGATE_ROOT_KEY"

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation
    from tidegate.server.settings import ServerSettings


def serve(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for the log, the catalog and the certificates. Default: tidegate in this "
            "user's data directory.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    amqp_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port for plain AMQP. Default if no port is given: 5672."
        ),
    ] = None,
    amqps_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Port for AMQP over TLS; SDKs use 5671 by default."),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port for plain HTTP. Default if no port is given: 5300."
        ),
    ] = None,
    https_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port for Port for HTTP over TLS.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings, event hubs and policies in TOML or JSON, or the official emulator's Config.json. "
            "Options on the command line take precedence.",
        ),
    ] = None,
    root_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar=ROOT_KEY_VARIABLE,
            show_envvar=False,
            help="Key of RootManageSharedAccessKey; use SAS_KEY_VALUE for the official emulator's connection "
            f"strings. Other users of this machine can see the command line, so set {ROOT_KEY_VARIABLE} "
            "instead for a secret key.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write when the service is ready: a JSON object with its addresses and connection "
            "string.",
        ),
    ] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Additional name for the self-signed certificate; repeatable."),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own certificate with its chain (PEM) instead of a self-signed one; requires "
            "--tls-key.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key of --tls-certificate (PEM, without a password)."),
    ] = None,
    capture_destination: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Directory or URL under which capture may write; repeatable. Default: capture in the data "
            "directory.",
        ),
    ] = None,
    console: Annotated[
        bool | None,
        typer.Option("--console/--no-console", help="Serve the console on the HTTP ports. Default: yes."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=DATABASE_VARIABLE,
            show_envvar=False,
            help="SQL database whose leases, checkpoints and dead letters the console shows. Default: "
            f"{DATABASE_VARIABLE}.",
        ),
    ] = None,
    redrive_pipeline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Pipeline that the console may use to redrive dead letters; repeatable.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="Format of the log on standard error. json omits the start message and never contains a "
            "secret."
        ),
    ] = LogFormat.TEXT,
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
    import contextlib

    from tidegate.cli.shell.interrupt import run_interruptible
    from tidegate.server.app import run_server
    from tidegate.server.log_format import start_logging
    from tidegate.transport.clock import SystemClock

    settings = _settings(
        config,
        {
            "data_dir": data_dir,
            "host": host,
            "ready_file": ready_file,
            "tls_names": tuple(tls_name) if tls_name else None,
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "capture_destinations": _destinations(capture_destination),
            "root_key": root_key,
            "is_console_served": console,
            "database": database,
            "redrive_pipelines": tuple(redrive_pipeline) if redrive_pipeline else None,
        },
        {
            "amqp_port": amqp_port,
            "amqps_port": amqps_port,
            "http_port": http_port,
            "https_port": https_port,
        },
    )
    start_logging(log_format, sys.stderr, clock=SystemClock())
    is_first_start = not settings.data_dir.exists()

    def announce(ready: ReadyInformation) -> None:
        # The message holds a key. Where the log is for programs, both streams usually end up in one place.
        if log_format is LogFormat.TEXT:
            _announce(ready, is_first_start=is_first_start)

    async def serve_until_stopped() -> None:
        # Being stopped is how a service ends well.
        with contextlib.suppress(asyncio.CancelledError):
            await run_server(settings, on_ready=announce)

    run_interruptible(serve_until_stopped())


def _destinations(prefixes: list[str] | None) -> tuple[str, ...] | None:
    """Directories from here on, as the shell completes them; URLs as they are."""
    if not prefixes:
        return None
    return tuple(each if "://" in each else str(Path(each).absolute()) for each in prefixes)


def default_data_dir() -> Path:
    """Where ``serve`` keeps its data when nothing says otherwise (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "tidegate"


def _settings(config: Path | None, values: dict[str, object], ports: dict[str, int | None]) -> ServerSettings:
    from dataclasses import replace

    from tidegate.server.config_file import load_settings
    from tidegate.server.settings import ServerSettings

    given = {name: value for name, value in values.items() if value is not None}
    if config is not None:
        settings = load_settings(config, data_dir=default_data_dir())
        given |= {name: port for name, port in ports.items() if port is not None}
    else:
        settings = ServerSettings(data_dir=default_data_dir()).with_ports(**ports)
    return replace(settings, is_profile_written=True, **given)  # type: ignore[arg-type]  # checked by the class


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
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()

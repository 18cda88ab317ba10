"""``tidegate send``: one event per line of standard input or of a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE, option, require_at_most_one
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import hub_argument
from tidegate.model.errors import InvalidArgumentError


@click.command()
@hub_argument
@option("--file", "FILE", "Read lines from this file instead of standard input.", FILE)
@option("--key", "PATH", "JSON field of each line to use as partition key, e.g. .carrier or .device.id")
@option("--partition-key", "TEXT", "One partition key for all events.")
@option(
    "--partition",
    "ID",
    "Send to this partition. Without a key or a partition, events are distributed round-robin.",
)
@with_service
def send(
    service: Service,
    hub: str,
    file: Path | None,
    key: str | None,
    partition_key: str | None,
    partition: str | None,
) -> None:
    """Send each line of standard input or of a file as one event.

    Empty lines are skipped. The command returns when every event is acknowledged, that is, on the service's
    disk. Ctrl-C sends the lines read so far and reports their number.

    Examples:
      echo '{"device": "a1", "celsius": 21.5}' | tidegate send telemetry --key .device
      tidegate send telemetry --file readings.jsonl --key .device
    """
    from tidegate.cli.events.sending import Routing, send_lines
    from tidegate.model.json_path import JsonPath

    require_at_most_one({"--key": key, "--partition-key": partition_key, "--partition": partition})
    routing = Routing(None if key is None else JsonPath.parse(key), partition_key, partition)
    connection = service.connection()
    try:
        descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    except OSError as error:
        raise InvalidArgumentError(f"Cannot read {file}: {error.strerror}.") from error
    run_interruptible(send_lines(connection, hub, descriptor, routing))

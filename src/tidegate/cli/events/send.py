"""``tidegate send``: lines, records or whole files as events."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE, flag, option, require_at_most_one
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import COUNT, RATE, hub_argument, verbose_option


@click.command()
@hub_argument
@option(
    "--file",
    "FILE",
    "Read this file instead of standard input; repeatable.",
    FILE,
    argument="files",
    multiple=True,
)
@flag("--whole", "Send each file, or standard input, as one event, unchanged.")
@flag("--nl", "Each line is an event as `receive --nl` writes it, with key, properties and body.")
@option("--key", "PATH", "JSON field of each line to use as partition key, e.g. .carrier or .device.id")
@option("--partition-key", "TEXT", "One partition key for all events.")
@option(
    "--partition",
    "ID",
    "Send to this partition. Without a key or a partition, events are distributed round-robin.",
)
@option(
    "--property",
    "NAME=VALUE",
    "Give each event this property; repeatable.",
    argument="properties",
    multiple=True,
)
@option("--content-type", "TEXT", "Content type of each event, e.g. application/json.")
@option("--message-id", "TEXT", "Message id of each event.")
@option("--correlation-id", "TEXT", "Correlation id of each event.")
@option("--count", "N", "Stop after this many events.", COUNT)
@option("--rate", "N", "Send at most N events per second.", RATE)
@verbose_option
@with_service
def send(
    service: Service,
    hub: str,
    files: tuple[Path, ...],
    whole: bool,
    nl: bool,
    key: str | None,
    partition_key: str | None,
    partition: str | None,
    properties: tuple[str, ...],
    content_type: str | None,
    message_id: str | None,
    correlation_id: str | None,
    count: int | None,
    rate: float | None,
    verbose: bool,
) -> None:
    """Send each line of standard input or of files as one event.

    Empty lines are skipped. The command returns when every event is acknowledged, that is, on the service's
    disk. Ctrl-C sends the lines read so far (with --rate, those whose time has come) and reports how many.

    `receive --nl | send --nl` copies events with partition key, properties and their AMQP types, message id,
    correlation id, content type and body. The partition and the numbers are the new hub's; an AMQP value as
    body, and an id that is not text, are sent as text.

    Examples:
      echo '{"device": "a1", "celsius": 21.5}' | tidegate send telemetry --key .device
      tidegate send telemetry --file readings.jsonl --key .device --rate 100
      tidegate send pictures --whole --file a.png --content-type image/png --property camera=3
      tidegate receive telemetry --no-follow --nl | tidegate send copy --nl
    """
    from tidegate.cli.events.filters import parse_properties
    from tidegate.cli.events.sending import Input, Routing, opened, send_input
    from tidegate.model.json_path import JsonPath

    require_at_most_one({"--key": key, "--partition-key": partition_key, "--partition": partition})
    require_at_most_one({"--nl": nl, "--whole": whole})
    require_at_most_one({"--nl": nl, "--partition": partition})
    routing = Routing(None if key is None else JsonPath.parse(key), partition_key, partition)
    parsed = parse_properties(properties)
    connection = service.connection()
    given = Input(
        [opened(file) for file in files] or [sys.stdin.fileno()],
        is_whole=whole,
        is_record=nl,
        properties=parsed,
        content_type=content_type,
        message_id=message_id,
        correlation_id=correlation_id,
        count_max=count,
        rate=rate,
        is_verbose=verbose,
    )
    run_interruptible(send_input(connection, hub, given, routing))

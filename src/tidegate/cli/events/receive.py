"""``tidegate receive``: show events as they arrive, from all partitions or one."""

from __future__ import annotations

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import flag, option, require_at_most_one
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import (
    COUNT,
    from_option,
    group_option,
    hub_argument,
    verbose_option,
    with_output,
)
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.model.position import parse_position


@click.command()
@hub_argument
@from_option
@option("--count", "N", "Stop after this many events.", COUNT)
@click.option(
    "--follow/--no-follow", default=True, help="Wait for new events, or stop at the end of the log."
)
@option("--partition", "ID", "Only this partition.")
@group_option("Consumer group to read as.")
@option("--partition-key", "TEXT", "Only events with this partition key.")
@option(
    "--property",
    "NAME=VALUE",
    "Only events with this property; repeatable.",
    argument="properties",
    multiple=True,
)
@option("--contains", "TEXT", "Only events whose body contains this.")
@flag("--body", "Print only the bodies, one per line; on a terminal, control characters are made visible.")
@option(
    "--format",
    "TEMPLATE",
    "Print a line per event: {body}, {partition}, {sequence_number}, {offset}, {enqueued_time}, "
    "{partition_key}, {message_id}, {correlation_id}, {content_type}, {properties}, {properties.NAME}, "
    "{decode_error}; "
    "\\t, \\n and \\0 are understood.",
    argument="template",
)
@verbose_option
@with_service
@with_output()
def receive(
    output: Output,
    service: Service,
    hub: str,
    position: str,
    count: int | None,
    follow: bool,
    partition: str | None,
    group: str,
    partition_key: str | None,
    properties: tuple[str, ...],
    contains: str | None,
    body: bool,
    template: str | None,
    verbose: bool,
) -> None:
    """Show events as they arrive, until Ctrl-C.

    Reading does not affect other readers, and hosts that own the group's partitions do not prevent it.
    Events are ordered within a partition, not across partitions.

    In --json and --nl, property_types has the AMQP types that a property's JSON value does not show (short,
    uuid, ...). Without one, a number with a fraction or exponent is a double; others are ints, or longs if
    they need more than 32 bits.

    An event that is not a valid AMQP message matches no filter. Otherwise it is shown with decode_error, the
    reason, and its bytes in body_base64 (--body and {body}: in base64, with a remark).

    Examples:
      tidegate receive telemetry
      tidegate receive telemetry --from 2h --no-follow --nl | head
      tidegate receive telemetry --from @4711 --partition 0 --count 10
      tidegate receive telemetry --property kind=alarm --format '{partition_key} {body}'
      tidegate receive telemetry --no-follow --nl | tidegate send copy --nl
    """
    from tidegate.cli.events.filters import EventFilter, FormatWriter, parse_properties
    from tidegate.cli.events.tail import BodyWriter, RecordWriter, Selection, Writer, show_events
    from tidegate.transport.clock import SystemClock

    require_at_most_one(
        {"--body": body, "--format": template, "an output format": output.format is not OutputFormat.TABLE}
    )
    start = parse_position(position, now_utc=SystemClock().now_utc())
    wanted = EventFilter(partition_key, parse_properties(properties), contains)
    selection = Selection(start, partition, count, follow, wanted, verbose)
    writer: Writer = BodyWriter() if body else FormatWriter(template) if template else RecordWriter(output)
    run_interruptible(show_events(service.connection(), hub, group, selection, writer))

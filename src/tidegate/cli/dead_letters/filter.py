"""Which dead letters a command of ``tidegate dlq`` selects: the options, and the filter made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.decorators import adding_argument, all_of

if TYPE_CHECKING:
    from tidegate.sql import DeadLetterFilter

_options = all_of(
    click.option("--hub", metavar="HUB", help="Only this event hub."),
    click.option("--group", metavar="NAME", help="Only this consumer group."),
    click.option("--partition", metavar="ID", help="Only this partition."),
    click.option("--error-type", metavar="NAME", help="Only this error type, e.g. ValueError."),
    click.option("--reason", metavar="TEXT", help="Only those whose reason contains this text."),
    click.option("--reason-is", metavar="TEXT", help="Only those whose reason is exactly this text."),
    click.option(
        "--sequence-number",
        type=int,
        metavar="N",
        multiple=True,
        help="Only events with this sequence number; repeatable.",
    ),
    click.option(
        "--failed-since",
        metavar="TIME",
        help="Only those that last failed at or after this time: ISO 8601, or an age (2h, 7d).",
    ),
    click.option("--failed-until", metavar="TIME", help="Only those that last failed before this time."),
)


def with_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select dead letters; it takes a ``DeadLetterFilter`` as its argument
    ``chosen``: open ones, unless the command changes that.

    An invalid time is an InvalidArgumentError.
    """
    return _options(adding_argument(command, "chosen", _filter))


def _filter(_: click.Context, arguments: dict[str, Any]) -> DeadLetterFilter:
    from tidegate.model.position_text import parse_time
    from tidegate.sql import DeadLetterFilter
    from tidegate.transport.clock import SystemClock

    now = SystemClock().now_utc()
    since, until = arguments.pop("failed_since"), arguments.pop("failed_until")
    return DeadLetterFilter(
        event_hub=arguments.pop("hub"),
        consumer_group=arguments.pop("group"),
        partition_id=arguments.pop("partition"),
        error_type=arguments.pop("error_type"),
        reason_contains=arguments.pop("reason"),
        reason_is=arguments.pop("reason_is"),
        sequence_numbers=arguments.pop("sequence_number") or None,
        failed_from=None if since is None else parse_time(since, now_utc=now),
        failed_until=None if until is None else parse_time(until, now_utc=now),
    )

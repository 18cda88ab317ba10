"""Which dead letters a command of ``tidegate dlq`` selects: the options, and the filter made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.shell.decorators import adding_argument, all_of, option

if TYPE_CHECKING:
    from datetime import datetime

    from tidegate.sql import DeadLetterFilter

_options = all_of(
    option("--hub", "HUB", "Only this event hub."),
    option("--group", "NAME", "Only this consumer group."),
    option("--partition", "ID", "Only this partition."),
    option("--error-type", "NAME", "Only this error type, e.g. ValueError."),
    option("--reason", "TEXT", "Only those whose reason contains this text."),
    option("--reason-is", "TEXT", "Only those whose reason is exactly this text."),
    option(
        "--sequence-number", "N", "Only events with this sequence number; repeatable.", int, multiple=True
    ),
    option(
        "--failed-since",
        "TIME",
        "Only those that last failed at or after this time: ISO 8601, or an age (2h, 7d).",
    ),
    option("--failed-until", "TIME", "Only those that last failed before this time."),
    option(
        "--enqueued-since",
        "TIME",
        "Only events that were enqueued at or after this time: ISO 8601, or an age.",
    ),
)


def with_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select dead letters; it takes a ``DeadLetterFilter`` as its argument
    ``chosen``: open ones, unless the command changes that.

    An invalid time is an InvalidArgumentError.
    """
    return _options(adding_argument(command, "chosen", _filter))


def _filter(_: click.Context, arguments: dict[str, Any]) -> DeadLetterFilter:
    from tidegate.model.position import parse_time
    from tidegate.sql import DeadLetterFilter
    from tidegate.transport.clock import SystemClock

    now = SystemClock().now_utc()

    def time(name: str) -> datetime | None:
        given = arguments.pop(name)
        return None if given is None else parse_time(given, now_utc=now)

    return DeadLetterFilter(
        event_hub=arguments.pop("hub"),
        consumer_group=arguments.pop("group"),
        partition_id=arguments.pop("partition"),
        error_type=arguments.pop("error_type"),
        reason_contains=arguments.pop("reason"),
        reason_is=arguments.pop("reason_is"),
        sequence_numbers=arguments.pop("sequence_number") or None,
        failed_from=time("failed_since"),
        failed_until=time("failed_until"),
        enqueued_from=time("enqueued_since"),
    )

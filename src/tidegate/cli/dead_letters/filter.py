"""Which dead letters a command of ``tidegate dlq`` means: the options that say so, and their filter."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.sql import DeadLetterFilter


class StatusChoice(Enum):
    """Which dead letters a list shows."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    ALL = "all"


HubFilter = Annotated[str | None, typer.Option("--hub", metavar="HUB", help="Only this event hub.")]
GroupFilter = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Only this consumer group.")]
PartitionFilter = Annotated[
    str | None, typer.Option("--partition", metavar="ID", help="Only this partition.")
]
ErrorTypeFilter = Annotated[
    str | None, typer.Option("--error-type", metavar="NAME", help="Only this error type, e.g. ValueError.")
]
ReasonFilter = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason contains this text.")
]
ReasonIsFilter = Annotated[
    str | None,
    typer.Option("--reason-is", metavar="TEXT", help="Only those whose reason is exactly this text."),
]
NumberFilter = Annotated[
    list[int] | None,
    typer.Option(
        "--sequence-number",
        metavar="N",
        help="Only events with this sequence number; repeatable.",
    ),
]
SinceFilter = Annotated[
    str | None,
    typer.Option(
        "--failed-since",
        metavar="TIME",
        help="Only those that last failed at or after this time: ISO 8601, or an age (2h, 7d).",
    ),
]
UntilFilter = Annotated[
    str | None,
    typer.Option("--failed-until", metavar="TIME", help="Only those that last failed before this time."),
]


def chosen_filter(
    hub: str | None,
    group: str | None,
    partition: str | None,
    error_type: str | None,
    reason: str | None,
    reason_is: str | None,
    status: StatusChoice,
    sequence_numbers: list[int] | None,
    failed_since: str | None,
    failed_until: str | None,
) -> DeadLetterFilter:
    """The filter of a command's options; None leaves a field open. Raises InvalidArgumentError for a time."""
    from tidegate.model.position_text import parse_time
    from tidegate.sql import DeadLetterFilter, DeadLetterStatus
    from tidegate.transport.clock import SystemClock

    now = SystemClock().now_utc()
    return DeadLetterFilter(
        event_hub=hub,
        consumer_group=group,
        partition_id=partition,
        status=None if status is StatusChoice.ALL else DeadLetterStatus(status.value),
        error_type=error_type,
        reason_contains=reason,
        reason_is=reason_is,
        sequence_numbers=tuple(sequence_numbers) if sequence_numbers else None,
        failed_from=None if failed_since is None else parse_time(failed_since, now_utc=now),
        failed_until=None if failed_until is None else parse_time(failed_until, now_utc=now),
    )

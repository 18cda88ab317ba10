"""``tidegate dlq``: look at dead letters, run them again, or close them for good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.dead_letters.filter import (
    ErrorTypeFilter,
    GroupFilter,
    HubFilter,
    NumberFilter,
    PartitionFilter,
    ReasonFilter,
    ReasonIsFilter,
    SinceFilter,
    StatusChoice,
    UntilFilter,
    chosen_filter,
)
from tidegate.cli.dead_letters.redrive import DataDirOption, event_reader, redrive
from tidegate.cli.shell.options import (
    CaFileOption,
    ConnectionStringOption,
    DatabaseOption,
    HubArgument,
    with_output,
)
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import default_actor, open_database
from tidegate.model.errors import TidegateError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP

if TYPE_CHECKING:
    from tidegate.model.events import ReceivedEvent
    from tidegate.sql import DeadLetter

dlq_app = typer.Typer(help="List dead letters, redrive them, or discard them.", no_args_is_help=True)


_LIST_COLUMNS = (
    "event_hub",
    "partition",
    "sequence_number",
    "key",
    "status",
    "attempts",
    "error_type",
    "reason",
    "last_failed_at",
)
_COUNT_COLUMNS = ("error_type", "reason", "count", "first_failed_at", "last_failed_at")


OutputFileOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write to this file, readable only by you (events may contain personal data).",
    ),
]


@dlq_app.command("list")
@with_output()
def list_dead_letters(
    output: Output,
    database: DatabaseOption = None,
    status: Annotated[StatusChoice, typer.Option(help="Which ones.")] = StatusChoice.OPEN,
    by_reason: Annotated[bool, typer.Option("--by-reason", help="Count them by error and reason.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number to show.")] = 100,
    hub: HubFilter = None,
    group: GroupFilter = None,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    reason_is: ReasonIsFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
    output_file: OutputFileOption = None,
) -> None:
    """List dead letters, by default the open ones.

    \b
    Examples:
      tidegate dlq list --database sqlite:///flights.db
      tidegate dlq list --database postgresql://user@host/name --by-reason --json
    """
    from tidegate.sql import DeadLetters

    chosen = chosen_filter(
        hub,
        group,
        partition,
        error_type,
        reason,
        reason_is,
        status,
        sequence_number,
        failed_since,
        failed_until,
    )
    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if by_reason:
            counts = dead_letters.counts_by_reason(chosen)[:limit]
            with output.into(output_file) as opened_output:
                opened_output.records(
                    ({name: getattr(item, name) for name in _COUNT_COLUMNS} for item in counts),
                    columns=_COUNT_COLUMNS,
                    title="Dead letters by reason",
                )
            return
        found = dead_letters.list(chosen, limit=limit)
        count = len(found) if len(found) < limit else dead_letters.count(chosen)
    with output.into(output_file) as opened_output:
        opened_output.records(
            (_list_record(item) for item in found), columns=_LIST_COLUMNS, title="Dead letters"
        )
    if count > len(found):
        sys.stderr.write(
            f"Showing {len(found):,} of {count:,}; use --limit to show more, or --by-reason to count them.\n"
        )


@dlq_app.command("show")
@with_output()
def show(
    output: Output,
    hub: HubArgument,
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="The partition.")],
    sequence_number: Annotated[
        int, typer.Argument(metavar="SEQUENCE_NUMBER", help="The event's sequence number.")
    ],
    database: DatabaseOption = None,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="The consumer group that dead-lettered the event.")
    ] = DEFAULT_CONSUMER_GROUP,
    event: Annotated[
        bool,
        typer.Option("--event", help="Also show the event, read from the log or from its copy."),
    ] = False,
    data_dir: DataDirOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
    output_file: OutputFileOption = None,
) -> None:
    """Show one dead letter, its traceback and, if asked, its event.

    The event is read from the log. If the log is unreachable or no longer has it, the copy in the dead letter
    is used, if there is one.

    \b
    Example:
      tidegate dlq show flights 0 4711 --database sqlite:///flights.db
    """
    from tidegate.cli.events.tail import event_record
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        letter = DeadLetters(opened).show(ConsumerKey(hub, group), partition, sequence_number)
    record = dict(_list_record(letter))
    record |= {
        "consumer_group": letter.consumer_group,
        "pipeline": letter.pipeline,
        "offset": letter.offset,
        "first_failed_at": letter.first_failed_at,
        "is_payload_copied": letter.payload is not None,
    }
    # A cell of a table is one line: for people it follows below.
    if not output.is_table:
        record["traceback"] = letter.traceback
    if event:
        contents = event_record(_event_of(letter, data_dir, connection_string, ca_file))
        record |= {name: contents[name] for name in ("properties", "body", "body_base64")}
    with output.into(output_file) as opened_output:
        opened_output.record(record, title="Dead letter")
        if output.is_table and letter.traceback:
            opened_output.lines("traceback", letter.traceback)


@dlq_app.command("history")
@with_output()
def history(
    output: Output,
    hub: HubArgument,
    partition: Annotated[
        str | None, typer.Argument(metavar="[PARTITION]", help="The partition. Default: all.")
    ] = None,
    sequence_number: Annotated[
        int | None,
        typer.Argument(metavar="[SEQUENCE_NUMBER]", help="The event's sequence number. Default: all."),
    ] = None,
    database: DatabaseOption = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="The consumer group.")] = DEFAULT_CONSUMER_GROUP,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number to show.")] = 100,
) -> None:
    """Show who redrove or discarded which dead letters, latest first.

    \b
    Example:
      tidegate dlq history flights --database sqlite:///flights.db
    """
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        entries = DeadLetters(opened).audit(ConsumerKey(hub, group), partition, sequence_number, limit=limit)
    output.records(
        (
            {
                "at": entry.at,
                "partition": entry.partition_id,
                "sequence_number": entry.sequence_number,
                "action": entry.action,
                "actor": entry.actor,
                "detail": entry.detail,
            }
            for entry in entries
        ),
        columns=("at", "partition", "sequence_number", "action", "actor", "detail"),
        title="Dead letter history",
    )


dlq_app.command("redrive")(redrive)


@dlq_app.command("discard")
def discard(
    because: Annotated[str, typer.Option(metavar="TEXT", help="The reason, recorded in the audit trail.")],
    database: DatabaseOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report how many would be discarded, and discard none.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation. Without a terminal, it never asks.")
    ] = False,
    hub: HubFilter = None,
    group: GroupFilter = None,
    partition: PartitionFilter = None,
    error_type: ErrorTypeFilter = None,
    reason: ReasonFilter = None,
    reason_is: ReasonIsFilter = None,
    sequence_number: NumberFilter = None,
    failed_since: SinceFilter = None,
    failed_until: UntilFilter = None,
) -> None:
    """Close open dead letters permanently, without processing them.

    \b
    Example:
      tidegate dlq discard --database sqlite:///flights.db --reason diverted --because "not our flights"
    """
    from tidegate.sql import DeadLetters

    chosen = chosen_filter(
        hub,
        group,
        partition,
        error_type,
        reason,
        reason_is,
        StatusChoice.OPEN,
        sequence_number,
        failed_since,
        failed_until,
    )
    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if dry_run:
            sys.stderr.write(f"Would discard {dead_letters.count(chosen):,} dead letters.\n")
            return
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Discard {dead_letters.count(chosen):,} dead letters?", abort=True, err=True)
        count = dead_letters.discard(chosen, reason=because, actor=default_actor())
    sys.stderr.write(f"Discarded {count:,} dead letters.\n")


def _event_of(
    letter: DeadLetter, data_dir: Path | None, connection_string: str | None, ca_file: Path | None
) -> ReceivedEvent:
    """The event from the log; from its copy where the log cannot be asked. Raises TidegateError."""
    from tidegate.sql.dead_letters.read_back import event_of_copy, find_event

    try:
        with event_reader(letter.event_hub, data_dir, connection_string, ca_file) as reader:
            return find_event(letter, reader)
    except TidegateError as error:
        copy = event_of_copy(letter)
        if copy is None:
            raise
        sys.stderr.write(f"Showing the copy stored with the dead letter: {error}\n")
        return copy


def _list_record(letter: DeadLetter) -> dict[str, object]:
    return {
        "event_hub": letter.event_hub,
        "partition": letter.partition_id,
        "sequence_number": letter.sequence_number,
        "key": letter.partition_key,
        "status": letter.status.value,
        "attempts": letter.attempts,
        "error_type": letter.error_type,
        "reason": letter.reason,
        "last_failed_at": letter.last_failed_at,
    }

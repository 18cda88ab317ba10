"""``tidegate dlq``: list dead letters, redrive them, or discard them permanently."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.dead_letters.filter import with_filter
from tidegate.cli.dead_letters.redrive import data_dir_option, event_reader, redrive
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.options import (
    COUNT,
    database_alone,
    database_option,
    group_option,
    hub_argument,
    with_output,
    yes_option,
)
from tidegate.cli.shell.render import Output, attributes, columns_of, counted, remark
from tidegate.cli.shell.stores import default_actor, open_database

if TYPE_CHECKING:
    from tidegate.model.events import ReceivedEvent
    from tidegate.sql import DeadLetter, DeadLetterFilter

dlq_group = CommandGroup("dlq", help="List dead letters, redrive them, or discard them.")

_LIST_ATTRIBUTES: Final = columns_of(
    "event_hub partition=partition_id sequence_number key=partition_key status attempts error_type reason "
    "last_failed_at"
)
_SHOW_ATTRIBUTES: Final = {**_LIST_ATTRIBUTES, **columns_of("consumer_group pipeline offset first_failed_at")}
_COUNT_ATTRIBUTES: Final = columns_of("error_type reason count first_failed_at last_failed_at")
_HISTORY_ATTRIBUTES: Final = columns_of("at partition=partition_id sequence_number action actor detail")

_limit_option = option("--limit", "N", "Maximum number to show.", COUNT, default=100)
_output_file_option = option(
    "--output",
    "FILE",
    "Write to this file, readable only by you (events may contain personal data).",
    FILE,
    argument="output_file",
)


@dlq_group.command("list")
@database_alone
@click.option(
    "--status",
    type=click.Choice(("open", "redriven", "discarded", "all")),
    default="open",
    help="Which ones.",
)
@flag("--by-reason", "Count them by error and reason.")
@_limit_option
@with_filter
@_output_file_option
@with_output()
def list_dead_letters(
    output: Output,
    database: str | None,
    status: str,
    by_reason: bool,
    limit: int,
    chosen: DeadLetterFilter,
    output_file: Path | None,
) -> None:
    """List dead letters, by default the open ones.

    Examples:
      tidegate dlq list --database sqlite:///flights.db
      tidegate dlq list --database postgresql://user@host/name --by-reason --json
    """
    from tidegate.sql import DeadLetters, DeadLetterStatus

    chosen = replace(chosen, status=None if status == "all" else DeadLetterStatus(status))
    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if by_reason:
            counts = dead_letters.counts_by_reason(chosen)[:limit]
            with output.into(output_file) as opened_output:
                opened_output.objects(counts, _COUNT_ATTRIBUTES, title="Dead letters by reason")
            return
        found = dead_letters.list(chosen, limit=limit)
        count = len(found) if len(found) < limit else dead_letters.count(chosen)
    with output.into(output_file) as opened_output:
        first = "partition sequence_number reason error_type event_hub last_failed_at"
        opened_output.objects(found, _LIST_ATTRIBUTES, title="Dead letters", first=first)
    if count > len(found):
        remark(
            f"Showing {len(found):,} of {count:,}; use --limit to show more, or --by-reason to count them."
        )


@dlq_group.command()
@hub_argument
@click.argument("partition", help="The partition.")
@click.argument("sequence_number", type=int, help="The event's sequence number.")
@database_option
@group_option("The consumer group that dead-lettered the event.")
@flag("--event", "Also show the event, read from the log or from its copy.")
@data_dir_option
@with_service
@_output_file_option
@with_output()
def show(
    output: Output,
    service: Service,
    hub: str,
    partition: str,
    sequence_number: int,
    database: str | None,
    group: str,
    event: bool,
    data_dir: Path | None,
    output_file: Path | None,
) -> None:
    """Show one dead letter, its traceback and, if asked, its event.

    The event is read from the log. If the log is unreachable or no longer has it, the copy in the dead letter
    is used, if there is one.

    Example:
      tidegate dlq show flights 0 4711 --database sqlite:///flights.db
    """
    from tidegate.cli.events.records import event_record
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        letter = DeadLetters(opened).show(ConsumerKey(hub, group), partition, sequence_number)
    record = attributes(letter, _SHOW_ATTRIBUTES) | {"is_payload_copied": letter.payload is not None}
    # A table's cell is one line: for people, the traceback follows below.
    if not output.is_table:
        record["traceback"] = letter.traceback
    if event:
        contents = event_record(_event_of(letter, service, data_dir))
        record |= {name: contents[name] for name in ("properties", "body", "body_base64", "decode_error")}
    with output.into(output_file) as opened_output:
        opened_output.record(record, title="Dead letter")
        if output.is_table and letter.traceback:
            opened_output.lines("traceback", letter.traceback)


@dlq_group.command()
@hub_argument
@click.argument("partition", required=False, help="The partition. Default: all.")
@click.argument(
    "sequence_number", type=int, required=False, help="The event's sequence number. Default: all."
)
@database_alone
@group_option("The consumer group.")
@_limit_option
@with_output()
def history(
    output: Output,
    hub: str,
    partition: str | None,
    sequence_number: int | None,
    database: str | None,
    group: str,
    limit: int,
) -> None:
    """Show who redrove or discarded which dead letters, latest first.

    Example:
      tidegate dlq history flights --database sqlite:///flights.db
    """
    from tidegate.sql import ConsumerKey, DeadLetters

    with open_database(database) as opened:
        entries = DeadLetters(opened).audit(ConsumerKey(hub, group), partition, sequence_number, limit=limit)
    output.objects(entries, _HISTORY_ATTRIBUTES, title="Dead letter history")


dlq_group.add_command(redrive)


@dlq_group.command()
@option("--because", "TEXT", "Why they are discarded: recorded in the audit trail.", required=True)
@database_alone
@flag("--dry-run", "Report how many would be discarded, and discard none.")
@yes_option
@with_filter
def discard(because: str, database: str | None, dry_run: bool, yes: bool, chosen: DeadLetterFilter) -> None:
    """Close open dead letters permanently, without processing them.

    Example:
      tidegate dlq discard --database sqlite:///flights.db --reason diverted --because "not our flights"
    """
    from tidegate.sql import DeadLetters

    with open_database(database) as opened:
        dead_letters = DeadLetters(opened)
        if dry_run:
            remark(f"Would discard {counted(dead_letters.count(chosen), 'dead letter')}.")
            return
        if not yes and sys.stdin.isatty():
            question = f"Discard {counted(dead_letters.count(chosen), 'dead letter')}?"
            click.confirm(question, abort=True, err=True)
        count = dead_letters.discard(chosen, reason=because, actor=default_actor())
    remark(f"Discarded {counted(count, 'dead letter')}.")


def _event_of(letter: DeadLetter, service: Service, data_dir: Path | None) -> ReceivedEvent:
    """The event from its copy, else from the log. Raises TidegateError."""
    from tidegate.sql.dead_letters.read_back import event_of_copy, find_event

    copy = event_of_copy(letter)
    if copy is None:
        with event_reader(letter.event_hub, service, data_dir) as reader:
            return find_event(letter, reader)
    remark("Showing the copy stored with the dead letter.")
    return copy
